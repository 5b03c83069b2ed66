"""Sends one request to a coordinator: finds the coordinator, and retries until the response is final.

outcomes.py defines what a response means. Each CoordinatorRequests has at most one request in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    BrokerConnectionError,
    BrokerError,
    CommitOutcomeUnknownError,
    KafkaError,
    TransactionError,
    TransactionReinitError,
    TransactionTimeoutError,
    escaped,
)
from aioproducer.metrics import Metrics
from aioproducer.network.backoff import FAST_RETRY, exponential
from aioproducer.network.brokers import Brokers
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import (
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
)
from aioproducer.protocol.outcomes import (
    Action,
    Condition,
    Row,
    advice,
    decide,
    decide_failure,
    failure_of,
    reinit_error,
)
from aioproducer.protocol.schema import Message
from aioproducer.transactions.state import Transaction, TransactionState, abortable, reinit
from aioproducer.types import Outcome

SHORTEST_ANSWER_WAIT = 1.0
"""The minimum number of seconds to wait for an answer, even beyond max_block_ms. Without it, a commit sent just before
the deadline would needlessly have an unknown outcome."""

CEILINGS_V1: dict[ApiKey, int] = {ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}
"""The highest versions to use with transactions v1, even if the broker supports newer ones. The broker would treat
a newer version as v2: EndTxn would bump the epoch, and TxnOffsetCommit would add the group implicitly (KIP-890)."""

ONE_KEY = 3
"""The last version of FindCoordinator that asks for a single key; later versions ask for several (KIP-699)."""

ONE_GROUP = 7
"""The last version of OffsetFetch that asks for a single group; later versions ask for several (KIP-709)."""

IN_DOUBT = {Condition.COMMIT, Condition.UNANSWERED}
"""The conditions under which a commit may have been carried out."""

Key = tuple[int, str]
"""The key of a coordinator lookup: (type, name), where the type is 0 for a group and 1 for a transactional id."""


class _CoordinatorRefusedError(KafkaError):
    """FindCoordinator failed with an error that is not retried."""

    code: int


class _TryAgainError(Exception):
    """An attempt failed, and the request may be sent again. The argument is the cause, a KafkaError."""


class CoordinatorRequests:
    """Sends requests to the coordinators for a transactional id and for groups. Belongs to one event loop."""

    def __init__(
        self,
        config: ProducerConfig,
        transaction: Transaction,
        brokers: Brokers,
        metrics: Metrics,
        random: Random,
    ) -> None:
        self._config = config
        self._log = config.log(__name__)
        self._transaction = transaction
        self._brokers = brokers
        self._metrics = metrics
        self._random = random
        self._nodes: dict[Key, int] = {}
        """The node id of each known coordinator."""
        self._lock = asyncio.Lock()
        """Held while a request is in progress, so that there is only one at a time."""
        self.written = 0
        """The number of attempts at the current request that were sent or are about to be sent."""
        self.was_in_doubt = False
        """True if an attempt at the last request was not answered. The attempt may still be carried out, even after
        later requests."""

    async def ask(
        self,
        request: Message,
        code_of: Callable[[Any], int],
        *,
        group: str | None = None,
        is_repetition: bool = False,
        deadline: float | None = None,
    ) -> Any:
        """Send a request, repeatedly if necessary, until the response is final. Return the response if it reports
        success.

        Args:
            request: the request.
            code_of: returns the error code in a response.
            group: the group whose coordinator gets the request; None for the coordinator of the transactional id.
            is_repetition: True if an earlier call sent the same request and got no answer.
            deadline: the loop time after which no attempt begins; by default, max_block_ms from now.

        Raises:
            TransactionError: the request was rejected, or not answered in time.
            KafkaError: an OffsetFetch failed, which does not affect the transaction.
        """
        key: Key = (1, self._transaction.transactional_id) if group is None else (0, group)
        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = loop.time() + self._config.max_block
        conditions = {Condition.V2 if self._transaction.is_v2 else Condition.V1}
        if isinstance(request, EndTxnRequest) and request.committed:
            conditions.add(Condition.COMMIT)
        if is_repetition:
            conditions.add(Condition.UNANSWERED)
        last: KafkaError | None = None
        failures = 0
        async with self._lock:
            self.written = 0
            self.was_in_doubt = False
            while loop.time() < deadline:
                try:
                    return await self._attempt(request, code_of, key, conditions, deadline)
                except _TryAgainError as again:
                    (last,) = again.args
                self._log.debug("%s: sending %s again: %s", self._transaction.transactional_id, request, last)
                await asyncio.sleep(self._pause(failures, deadline - loop.time()))
                failures += 1
        raise self._too_late(request, conditions, last)

    async def _attempt(
        self,
        request: Message,
        code_of: Callable[[Any], int],
        key: Key,
        conditions: set[Condition],
        deadline: float,
    ) -> Any:
        """Find the coordinator and send the request once. Return the response if it reports success.

        Raises:
            _TryAgainError: the request may be sent again.
            KafkaError: the same errors as `ask`.
        """
        if self._transaction.state is TransactionState.ABORTING and not isinstance(
            request, EndTxnRequest | InitProducerIdRequest | OffsetFetchRequest
        ):
            raise abortable(self._transaction, KafkaError("the transaction is being aborted"))
        written = self.written
        try:
            node_id = await self._node(key, deadline)
            left = deadline - asyncio.get_running_loop().time()
            response = await self._brokers.request_node(
                node_id,
                request,
                min(self._config.request_timeout, max(left, SHORTEST_ANSWER_WAIT)),
                version_ceiling=self._ceiling(request.api_key),
                about_to_write=self._about_to_write,
            )
        except _CoordinatorRefusedError as error:
            if isinstance(request, OffsetFetchRequest):
                raise BrokerError(str(error), code=error.code, name=error_name(error.code)) from error
            row = decide(ApiKey.FIND_COORDINATOR, error.code)
            raise self._unasked(row, str(error), reinit_error(error.code), conditions) from error
        except KafkaError as error:
            row = decide_failure(failure_of(error), conditions)
            if row.action is Action.FAIL:
                if isinstance(request, OffsetFetchRequest):
                    raise
                raise self._unasked(row, str(error), TransactionReinitError, conditions) from error
            if row.outcome is Outcome.UNKNOWN and self.written > written:
                self._doubt(conditions)
            self._nodes.pop(key, None)
            raise _TryAgainError(error) from None
        code = code_of(response)
        row = decide(request.api_key, code, conditions)
        if row.action is Action.SUCCEED:
            return response
        if row.outcome is Outcome.UNKNOWN:
            self._doubt(conditions)
        self._metrics.count_error(error_name(code))
        raise self._rejected(request, code, row, key)

    def _rejected(self, request: Message, code: int, row: Row, key: Key) -> Exception:
        """Return the exception for a response with this error code: _TryAgainError if the request may be sent again."""
        name = error_name(code)
        error = BrokerError(f"the coordinator answered with {name}", code=code, name=name)
        if row.action is Action.COORDINATOR:
            self._nodes.pop(key, None)
            return _TryAgainError(error)
        if row.action is Action.RETRY:
            return _TryAgainError(error)
        reason = f"{type(request).__name__} was rejected with {name}{advice(code)}"
        if isinstance(request, OffsetFetchRequest):
            # OffsetFetch is only a query: its failure does not affect the transaction.
            return BrokerError(reason, code=code, name=name)
        rejection = self._rejection(row, reason, reinit_error(code))
        rejection.__cause__ = error
        return rejection

    def _doubt(self, conditions: set[Condition]) -> None:
        """Remember that the coordinator may have carried out an attempt, or may still do so.

        With transactions v1, an attempt that is carried out late could affect the next transaction in the same epoch
        (for EndTxn, see KAFKA-17754).
        """
        conditions.add(Condition.UNANSWERED)
        self.was_in_doubt = True
        self._transaction.epoch_is_spent = True

    def _pause(self, failures: int, left: float) -> float:
        longest = exponential(*FAST_RETRY, failures)
        return max(min(self._random.uniform(longest / 2, longest), left), 0.0)

    def _ceiling(self, api_key: ApiKey) -> int | None:
        if api_key is ApiKey.OFFSET_FETCH:
            return ONE_GROUP
        return None if self._transaction.is_v2 else CEILINGS_V1.get(api_key)

    def _rejection(self, row: Row, reason: str, kind: type[TransactionReinitError]) -> TransactionError:
        if row.action is Action.ABORT:
            return abortable(self._transaction, KafkaError(reason))
        if row.outcome is Outcome.UNKNOWN:
            return self.outcome_unknown(reason)
        return reinit(self._transaction, kind, reason)

    def _unasked(
        self, row: Row, reason: str, kind: type[TransactionReinitError], conditions: set[Condition]
    ) -> TransactionError:
        """Return the error for a request that cannot be sent, or cannot be sent again.

        If the request is a commit, an earlier attempt may have been carried out.
        """
        if IN_DOUBT <= conditions:
            return self.outcome_unknown(reason)
        return self._rejection(row, reason, kind)

    def outcome_unknown(self, reason: str) -> TransactionError:
        return reinit(
            self._transaction,
            CommitOutcomeUnknownError,
            f"the transaction may or may not be committed: the commit was sent but not answered ({reason})",
        )

    def _too_late(
        self, request: Message, conditions: set[Condition], last: KafkaError | None
    ) -> TransactionError:
        reason = f"no answer within {self._config.max_block:g} s (max_block_ms); the last error was: {last}"
        if Condition.COMMIT in conditions:
            if IN_DOUBT <= conditions:
                return self.outcome_unknown(reason)
            return abortable(self._transaction, KafkaError(f"the commit could not be sent: {reason}"))
        return TransactionTimeoutError(
            f"{type(request).__name__} for {self._transaction.transactional_id!r}: {reason}; "
            "make the same call again to continue waiting",
            transactional_id=self._transaction.transactional_id,
        )

    async def _node(self, key: Key, deadline: float) -> int:
        """Find a coordinator and return its node id."""
        known = self._nodes.get(key)
        if known is not None:
            return known
        kind, name = key
        request = FindCoordinatorRequest(key=name, key_type=kind)
        loop = asyncio.get_running_loop()
        response = await self._brokers.request_any(
            request,
            min(self._config.request_timeout, max(deadline - loop.time(), SHORTEST_ANSWER_WAIT)),
            version_ceiling=ONE_KEY,
        )
        row = decide(ApiKey.FIND_COORDINATOR, response.error_code)
        text = f"the coordinator of {name!r} was not found: {error_name(response.error_code)}"
        if row.action is Action.RETRY:
            raise BrokerConnectionError(text, written=False)
        if row.action is not Action.SUCCEED:
            raise _CoordinatorRefusedError(text + advice(response.error_code), code=response.error_code)
        if response.node_id < 0 or not response.host or not 0 < response.port < 65536:
            raise BrokerConnectionError(
                f"a broker reported an invalid coordinator for {name!r}: node {response.node_id} at "
                f"{escaped(response.host)}:{response.port}",
                written=False,
            )
        node_id: int = response.node_id
        self._nodes[key] = node_id
        return node_id

    def _about_to_write(self) -> None:
        self.written += 1
