"""The transactional calls of Producer, and `async with producer.transaction()`.

What they mean is decided by transactions/state.py and carried out by coordinator.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from copy import copy
from types import TracebackType
from typing import Any, Self

from aioproducer.concurrency.tasks import ended
from aioproducer.errors import (
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    ProducerFencedError,
    TransactionError,
)
from aioproducer.network.brokers import Brokers
from aioproducer.records._record_path import RecordPath
from aioproducer.transactions.coordinator import FEATURE, Coordinator
from aioproducer.transactions.offsets import group_metadata, offsets_to_commit, partitions_of_handoff
from aioproducer.transactions.state import Transaction, TransactionState
from aioproducer.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    TransactionHandle,
)

logger = logging.getLogger(__name__)

_TO_BE_ABORTED = (
    TransactionState.IN_TRANSACTION,
    TransactionState.RELEASING,
    TransactionState.ABORT_REQUIRED,
)

OffsetsToCommit = Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata]


class Transactional(RecordPath):
    """The transactional calls. Base of Producer, which sets the fields."""

    _transaction: Transaction
    _coordinator: Coordinator
    _brokers: Brokers

    def transaction(self) -> TransactionScope:
        """A transaction, for `async with`: committed at its end, aborted when an exception or a cancellation leaves it.

            async with producer.transaction() as transaction:
                await producer.send("orders", b"...")
                await transaction.send_offsets({TopicPartition("in", 0): 17}, "my-group")

        Raises, at the end of the block:
            TransactionAbortableError: a record failed, or the coordinator refused; the transaction was aborted.
            CommitOutcomeUnknownError: the commit was sent and never answered; `commit_transaction()` asks again.
            ProducerFencedError: another producer uses this transactional id by now, and its start has aborted the
                transaction. It is also raised in place of a KafkaError that leaves the block, such as that of a record
                which the fence made fail; that one is its cause. Any other exception leaves the block as it is.

        A cancellation takes effect when the commit or the abort has ended: delivery_timeout_ms at most for its records,
        then max_block_ms for each request.
        """
        return TransactionScope(self)

    async def init_transactions(self) -> None:
        """Take the transactional id (over): a new epoch, older producers of this id fenced, their transaction aborted.

        `start()` does it; call it again after an error whose `requires_reinit` is True.

        Raises:
            TransactionTimeoutError: no coordinator answered within max_block_ms.
            TransactionReinitError: the coordinator refused.

        Cancelling it leaves it running; the same call made again joins it.
        """
        self._check_usable()
        await self._coordinator.initialize()

    async def begin_transaction(self) -> None:
        """Begin a transaction; every record from now on belongs to it, until it is committed or aborted.

        Transactions v2 (KIP-890) if the cluster has finalized them, else v1: settled here for the whole transaction.

        Raises:
            IllegalStateError: there is a transaction already, or the producer has no transactional_id.
            TransactionReinitError: init_transactions() is needed first.
        """
        self._check_usable()
        self._transaction.check("begin_transaction", TransactionState.READY)
        self._transaction.begin(is_v2=self._brokers.finalized_feature(FEATURE) >= 2)

    async def commit_transaction(self) -> None:
        """Send what is buffered, wait for its acknowledgements, and commit.

        Raises:
            TransactionAbortableError: a record failed, or the coordinator refused; call abort_transaction().
            CommitOutcomeUnknownError: the commit was sent and not answered within max_block_ms. Call it again: the same
                request is sent again, and its answer says what became of the transaction.
            ProducerFencedError: another producer uses this transactional id; nothing was committed.
            IllegalStateError: there is no transaction. A second call after one that has returned raises it too, as in
                Java's producer.

        Cancelling it leaves it running; the same call made again joins it, or returns at once if it has succeeded.
        """
        self._check_usable()
        await self._coordinator.commit()

    async def abort_transaction(self) -> None:
        """Throw away what is still buffered (TransactionAbortedError), wait for what is in flight, and abort.

        Raises:
            TransactionTimeoutError: not answered within max_block_ms; call it again.
            ProducerFencedError: another producer uses this transactional id; its start has aborted the transaction.
            IllegalStateError: there is no transaction.

        Cancelling it leaves it running; the same call made again joins it, or returns at once if it has succeeded.
        """
        self._check_usable()
        await self._coordinator.abort()

    async def send_offsets_to_transaction(
        self,
        offsets: OffsetsToCommit,
        group_id: ConsumerGroupMetadata | str | bytes,
    ) -> None:
        """Commit a consumer's position as a part of the transaction (KIP-447).

        Args:
            offsets: for each partition the offset of the next record to read.
            group_id: the group's id, its ConsumerGroupMetadata, or what confluent-kafka's `consumer_group_metadata()`
                returns. With a generation, a consumer that has lost its partitions is refused.

        Raises:
            TransactionAbortableError: the coordinator refused, e.g. since the group has rebalanced.
            IllegalStateError: there is no transaction.
            InvalidRecordError: the offsets or the group are malformed.

        Cancelling it leaves it running.
        """
        self._check_usable()
        self._transaction.check("send_offsets_to_transaction", TransactionState.IN_TRANSACTION)
        await self._coordinator.send_offsets(offsets_to_commit(offsets), group_metadata(group_id))

    async def fence_transaction(self) -> None:
        """Abort by taking a new epoch, as a restart would: whoever still writes to the transaction, such as a
        participant of which nothing was heard, is shut out for ever.

        Raises:
            TransactionReinitError: another producer uses this transactional id, or no coordinator answered.
            IllegalStateError: there is no transaction.

        Cancelling it leaves it running; the same call made again joins it, or returns at once if it has succeeded.
        """
        self._check_usable()
        await self._coordinator.fence()

    async def export_transaction(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> TransactionHandle:
        """Hand the open transaction to producers in other processes, which `Producer.attach` makes.

        Each partition may be written to by one producer only, this one included, and each handle be used once for it:
        the broker can't tell them apart. Commit only when all of them have flushed and closed. If nobody has written
        anything, a commit with transactions v2 raises TransactionAbortableError: the broker's answer does not tell that
        from a transaction that timed out.

        Args:
            partitions: those that they will write to; this producer must not have written to them, and must not.

        Raises:
            TransactionAbortableError: the coordinator refused a partition.
            TransactionReinitError: a new epoch was needed, and the coordinator refused or did not answer.
            IllegalStateError: there is no transaction; or a partition has a writer already; or, with transactions v1,
                this producer wrote to it in an earlier transaction, and something was sent in this one. Export first:
                then the transaction takes a new epoch, under which a participant can number its records from 0.

        Cancelling it leaves the transaction as it is; the call can be made again.
        """
        self._check_usable()
        self._transaction.check("export_transaction", TransactionState.IN_TRANSACTION)
        return await self._coordinator.export(partitions_of_handoff(partitions))

    async def release_transaction(self) -> TransactionHandle:
        """Give the open transaction away, to the producer that `Producer.resume` makes of the handle, perhaps in
        another process: that one ends it. What was sent so far is acknowledged when this returns.

        This producer may be closed, or take the transactional id back with `init_transactions()`, which aborts the
        transaction if nobody has ended it by then.

        Raises:
            TransactionAbortableError: a record failed; call abort_transaction().
            IllegalStateError: there is no transaction.

        Cancelling it leaves the transaction as it is; the call can be made again.
        """
        self._check_usable()
        return await self._coordinator.release()

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What `send_offsets_to_transaction` has committed for a group, None where there is nothing. As long as an open
        transaction may change it, this waits (KIP-447, require_stable; Kafka 2.5).

        Args:
            group_id: the group's id.
            partitions: those to ask for.

        Raises:
            BrokerError: the group's coordinator refused, e.g. since the producer may not read the group.
            TransactionTimeoutError: no answer within max_block_ms, or a transaction stayed open for so long.
            UnsupportedVersionError: the cluster is older than Kafka 2.5.
            IllegalStateError: the producer has no transactional_id.

        Cancelling it has no effect on anything.
        """
        self._check_usable()
        if not self._transaction.is_used:
            raise IllegalStateError("committed() needs a producer with a transactional_id")
        if not isinstance(group_id, str) or not group_id:
            raise InvalidRecordError(f"group_id must be a str that is not empty, not {group_id!r}")
        places = partitions_of_handoff(partitions)
        return await self._coordinator.committed(group_id, places) if places else {}

    async def _end_transaction(self) -> None:
        """An open transaction is aborted, as in Java; otherwise its time-out would, and readers wait until then."""
        try:
            await self._coordinator.ended()
            if self._transaction.state in _TO_BE_ABORTED:
                await self._coordinator.abort()
        except KafkaError as error:
            _log_failed_abort(error)


class TransactionScope:
    """One transaction; made by `Producer.transaction()`, and good for one `async with`."""

    def __init__(self, producer: Transactional) -> None:
        self._producer = producer

    async def send_offsets(
        self, offsets: OffsetsToCommit, group_id: ConsumerGroupMetadata | str | bytes
    ) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        await self._producer.send_offsets_to_transaction(offsets, group_id)

    async def export(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> TransactionHandle:
        """As `Producer.export_transaction`."""
        return await self._producer.export_transaction(partitions)

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state = self._producer._transaction.state
        if error is None:
            # else the block has ended it by itself, or given it away
            if state not in (TransactionState.READY, TransactionState.UNINITIALIZED):
                await self._commit()
            return
        if state in _TO_BE_ABORTED:
            await self._abort()
        self._raise_if_fenced(error)

    async def _commit(self) -> None:
        try:
            await _to_the_end(self._producer.commit_transaction())
        except (TransactionError, asyncio.CancelledError) as error:
            if self._producer._transaction.state is TransactionState.ABORT_REQUIRED:
                await self._abort()
            self._raise_if_fenced(error)
            raise

    async def _abort(self) -> None:
        """Abort; what is on its way out of the block matters more than why that failed."""
        try:
            await _to_the_end(self._producer.abort_transaction())
        except KafkaError as error:
            _log_failed_abort(error)

    def _raise_if_fenced(self, error: BaseException) -> None:
        """Raise ProducerFencedError if `error` is only what the fence has led to."""
        transaction = self._producer._transaction
        fenced = transaction.error
        if (
            transaction.state is TransactionState.REINIT_REQUIRED
            and isinstance(fenced, ProducerFencedError)
            and not isinstance(error, ProducerFencedError)
            and _is_kafkas(error)
        ):
            raise copy(fenced) from error


def _is_kafkas(error: BaseException) -> bool:
    """A KafkaError, or a group of nothing else, such as one of a TaskGroup in which several sends failed."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(KafkaError)[1] is None
    return isinstance(error, KafkaError)


def _log_failed_abort(error: KafkaError) -> None:
    if isinstance(error, ProducerFencedError):
        logger.warning(
            "the open transaction was aborted already, by its time-out or another producer: %s", error
        )
    else:
        logger.warning(
            "the open transaction was not aborted; the brokers abort it after its time-out: %s", error
        )


async def _to_the_end(call: Coroutine[Any, Any, None]) -> None:
    """Await it to its end, which each of its steps bounds, however often somebody cancels; that comes after it."""
    task = asyncio.ensure_future(call)
    if (cancelled := await ended(task)) is not None:
        if not task.cancelled():
            task.exception()  # whoever cancelled does not look at it
        raise cancelled
    task.result()
