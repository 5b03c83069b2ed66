"""Scenes about transactions: a coordinator returns an error code for each request, under all conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

from aioproducer import Outcome, TopicPartition
from aioproducer.errors import (
    BrokerError,
    CommitOutcomeUnknownError,
    DeliveryError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionReinitError,
    TransactionTimeoutError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.protocol.messages import EndTxnRequest
from aioproducer.protocol.outcomes import Action, Condition, Row
from aioproducer.testing.embedded.request_context import SeenRequest
from tests.support.error_table.stage import ALL, Cell, Stage, check_flags, error_of, play, staged

FIND, INIT, END = ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN
PARTITIONS, OFFSETS = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN
COMMIT_OFFSETS, FETCH_OFFSETS = ApiKey.TXN_OFFSET_COMMIT, ApiKey.OFFSET_FETCH

ONLY_V1 = (PARTITIONS, OFFSETS)
"""Requests that clients with transactions v2 do not send."""


class Case(NamedTuple):
    """The conditions under which a request is rejected."""

    version: int = 2
    commits: bool = True
    is_unanswered: bool = False
    """An earlier attempt was not answered."""

    @property
    def holds(self) -> set[Condition]:
        holds = {Condition.V1 if self.version == 1 else Condition.V2}
        holds |= {Condition.COMMIT} if self.commits else set()
        return holds | ({Condition.UNANSWERED} if self.is_unanswered else set())


def cases(cell: Cell) -> Iterator[Case]:
    """All combinations of conditions for which this cell's rule is the first that applies."""
    is_end = cell.api is END
    for version, commits, is_unanswered in product((1, 2), (True, False), (True, False)):
        case = Case(version, commits, is_unanswered)
        if (version == 2 and cell.api in ONLY_V1) or (not is_end and (commits or is_unanswered)):
            continue
        if next(rule.when for rule in cell.rules if rule.when <= case.holds) == cell.when:
            yield case


def walk(cell: Cell, code: int, case: Case) -> Row:
    """The row seen when a coordinator returns a code."""
    assert cell.api is not None
    action = play(partial(_once, cell.api, code, case))
    if action in (Action.RETRY, Action.COORDINATOR):
        return Row(action, play(partial(_for_ever, cell.api, code, case)))
    return Row(action, play(partial(_outcome_once, cell.api, code, case)))


async def _begin(on: Stage, api: ApiKey) -> None:
    """Do everything that comes before the request."""
    if api in (INIT, FETCH_OFFSETS):
        return
    await on.producer.begin_transaction()
    if api is not PARTITIONS:
        await on.producer.send_and_wait("t", b"mine", partition=0)


def _call(on: Stage, api: ApiKey, case: Case) -> Awaitable[None]:
    """The call that makes the producer send the request."""
    if api is INIT:
        return on.producer.init_transactions()
    if api is PARTITIONS:
        return _send(on)
    if api is FETCH_OFFSETS:
        return _committed(on)
    if api is END:
        return on.producer.commit_transaction() if case.commits else on.producer.abort_transaction()
    return on.producer.send_offsets_to_transaction({TopicPartition("t", 1): 7}, "group")


async def _committed(on: Stage) -> None:
    assert await on.producer.committed("group", [("t", 1)]) == {TopicPartition("t", 1): None}


async def _send(on: Stage) -> None:
    delivery = await on.producer.send("t", b"mine", partition=0)
    await asyncio.wait([delivery])
    error = delivery.exception()
    if error is None:
        return
    # The record was never sent; the transaction's error gives the reason.
    assert isinstance(error, DeliveryError)
    assert (error.outcome, error.attempts) == (Outcome.NOT_PERSISTED, 0)
    check_flags(error, "requires_abort")
    await on.producer.commit_transaction()


def _refuse(on: Stage, api: ApiKey, code: int, case: Case, count: int) -> None:
    if case.is_unanswered:
        on.refuse(api, Code.REQUEST_TIMED_OUT)
    if code != Code.NONE:
        # A coordinator that finds nothing to abort has already aborted.
        late = (api, code, case.version, case.commits) == (END, Code.INVALID_TXN_STATE, 1, False)
        on.refuse(api, code, count=count, after_append=late)


async def _once(api: ApiKey, code: int, case: Case) -> Action:
    async with staged(version=case.version, transactional_id="tx") as on:
        await _begin(on, api)
        asked = len(_tries(on, api, case))
        _refuse(on, api, code, case, 1)
        error = await error_of(_call(on, api, case))
        tries = _tries(on, api, case)[asked + case.is_unanswered :]
        searched = [seen for seen in on.requests(FIND) if tries[0].at < seen.at < tries[-1].at]
        action = _seen(error, code, len(tries), bool(searched))
        await _goes_on(on, api, case, action)
        return action


def _tries(on: Stage, api: ApiKey, case: Case) -> list[SeenRequest]:
    """The requests of this API; for EndTxn only commits or only aborts.

    With v1, a request in doubt is followed by a new epoch: an abort that only checks the epoch, and InitProducerId.
    This abort is not counted."""
    requests = on.requests(api)
    if api is not END:
        return requests
    ends = [seen for seen in requests if isinstance(seen.message, EndTxnRequest)]
    checks = [
        [seen for seen in ends if seen.at <= epoch.at][-1]
        for epoch in on.requests(INIT)[1:]  # the first one is that of init_transactions()
    ]
    return [seen for seen in ends if seen.message.committed is case.commits and seen not in checks]


def _seen(error: KafkaError | None, code: int, tries: int, searched: bool) -> Action:
    if error is None:
        if tries == 1:
            return Action.SUCCEED
        assert tries == 2
        return Action.COORDINATOR if searched else Action.RETRY
    assert tries == 1, "a request that was finally rejected was sent again"
    if type(error) is BrokerError:
        check_flags(error)
        assert error.code == code
        return Action.FAIL
    if error.requires_abort:
        check_flags(error, "requires_abort")
        assert type(error) is TransactionAbortableError
        return Action.ABORT
    check_flags(error, "requires_reinit")
    if error.outcome is Outcome.UNKNOWN:
        assert type(error) is CommitOutcomeUnknownError
    else:
        fenced = code in (Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED)
        assert type(error) is (ProducerFencedError if fenced else TransactionReinitError)
    return Action.REINIT


async def _goes_on(on: Stage, api: ApiKey, case: Case, action: Action) -> None:
    """Do what the error asks for. Check that the producer then works, and that no uncommitted record is visible."""
    producer = on.producer
    is_open = api not in (INIT, END, FETCH_OFFSETS)
    committed = case.commits and api is END
    if action is Action.ABORT:
        await producer.abort_transaction()
    elif action is Action.REINIT:
        error = await error_of(producer.begin_transaction())
        assert error is not None
        await producer.init_transactions()
    elif is_open:
        await producer.commit_transaction()
        committed = True
    await producer.begin_transaction()
    await producer.send("t", b"last", partition=0)
    await producer.commit_transaction()
    values = [record.value for record in on.cluster.records("t", 0, committed=True)]
    assert values == ([b"mine"] if committed and action not in _ENDS else []) + [b"last"]


_ENDS = (Action.ABORT, Action.REINIT)


async def _outcome_once(api: ApiKey, code: int, case: Case) -> Outcome:
    async with staged(version=case.version, transactional_id="tx") as on:
        await _begin(on, api)
        _refuse(on, api, code, case, 1)
        error = await error_of(_call(on, api, case))
        # The error of a query has no outcome.
        return getattr(error, "outcome", Outcome.NOT_PERSISTED)


async def _for_ever(api: ApiKey, code: int, case: Case) -> Outcome:
    """The outcome if the coordinator always returns the code. For EndTxn, this is the outcome of a commit."""
    case = Case(case.version)
    async with staged(version=case.version, transactional_id="tx") as on:
        await _begin(on, api)
        _refuse(on, api, code, case, ALL)
        error = await error_of(_call(on, api, case))
        on.faults.clear()
        assert error is not None
        if api in (INIT, FETCH_OFFSETS):
            check_flags(error, "retriable")
            assert type(error) is TransactionTimeoutError
        elif error.outcome is Outcome.UNKNOWN:
            check_flags(error, "requires_reinit")
            assert type(error) is CommitOutcomeUnknownError
        else:
            check_flags(error, "requires_abort")
            assert type(error) is TransactionAbortableError
        return error.outcome
