"""The transactional calls of Producer, and `async with producer.transaction()`.

transactions/state.py decides whether a call is allowed; coordinator.py carries it out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
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
from aioproducer.observe.client_log import ClientLog
from aioproducer.records._record_path import RecordPath
from aioproducer.transactions.coordinator import FEATURE, Coordinator
from aioproducer.transactions.offsets import group_metadata, offsets_to_commit, partitions_of_handoff
from aioproducer.transactions.state import Transaction, TransactionState
from aioproducer.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetsToCommit,
    TopicPartition,
    TransactionHandle,
)

_TO_BE_ABORTED = (
    TransactionState.IN_TRANSACTION,
    TransactionState.RELEASING,
    TransactionState.ABORT_REQUIRED,
)


class Transactional(RecordPath):
    """The transactional calls: a base class of Producer, which sets the fields declared below."""

    _transaction: Transaction
    _coordinator: Coordinator
    _log: ClientLog
    _brokers: Brokers
    _initializes_later: bool
    """True if start(wait=False) has not taken over the transactional id yet."""

    def transaction(self) -> TransactionScope:
        """Return a transaction for `async with`.

        The transaction is committed when the block ends, or aborted if an exception or a cancellation leaves the
        block.

            async with producer.transaction() as transaction:
                await producer.send("orders", b"...")
                await transaction.send_offsets({TopicPartition("in", 0): 17}, "my-group")

        Raises, at the end of the block:
            TransactionAbortableError: a record failed, or the coordinator rejected a request; the transaction was
                aborted.
            CommitOutcomeUnknownError: the commit was sent but never answered; `commit_transaction()` repeats it.
            ProducerFencedError: another producer has taken over this transactional id, which aborted the transaction.
                This error also replaces a KafkaError that leaves the block, such as the error of a record that failed
                because of the fencing; the replaced error becomes its cause. Any other exception leaves the block
                unchanged.

        A cancellation takes effect only once the commit or the abort has ended: after at most delivery_timeout_ms for
        the records, plus max_block_ms for each request.
        """
        return TransactionScope(self)

    async def init_transactions(self) -> None:
        """Take over the transactional id: get a new epoch, fence the id's older producers, and abort their transaction.

        `start()` already does this. Call init_transactions() after an error whose `requires_reinit` is True.

        Raises:
            TransactionTimeoutError: no coordinator answered within max_block_ms.
            TransactionReinitError: the coordinator rejected the request.

        Cancelling the call does not stop the operation; a second call joins it.
        """
        self._check_usable()
        await self._coordinator.initialize()
        self._initializes_later = False

    async def begin_transaction(self) -> None:
        """Begin a transaction. Every record sent from now on belongs to the transaction, until it is committed or
        aborted.

        The transaction uses v2 (KIP-890) throughout if the cluster has finalized v2 and the current epoch has had no
        v1 transaction; otherwise it uses v1 throughout. After `start(wait=False)`, the first call also takes over the
        transactional id, as `init_transactions()` does.

        Raises:
            IllegalStateError: a transaction is already open, or the producer has no transactional_id.
            TransactionReinitError: init_transactions() is needed first.
            TransactionTimeoutError: after `start(wait=False)`, no coordinator answered within max_block_ms.
        """
        self._check_usable()
        if self._initializes_later:
            await self._coordinator.initialize()
            self._initializes_later = False
        self._transaction.check("begin_transaction", TransactionState.READY)
        self._transaction.begin(is_v2=self._brokers.finalized_feature(FEATURE) >= 2)
        self._coordinator.call_watch.ended("begin", 0.0, None)

    async def commit_transaction(self) -> None:
        """Send the buffered records, wait for their acknowledgements, and commit.

        Raises:
            TransactionAbortableError: a record failed, or the coordinator rejected a request; call
                abort_transaction().
            CommitOutcomeUnknownError: the commit was sent but not answered within max_block_ms. Call
                commit_transaction() again: it repeats the request, and the response says whether the transaction was
                committed.
            ProducerFencedError: another producer uses this transactional id; nothing was committed.
            IllegalStateError: no transaction is open. As in Java's producer, a second call after a successful one also
                raises this error.

        Cancelling the call does not stop the operation; a second call joins it, or returns immediately if the
        operation has succeeded.
        """
        self._check_usable()
        await self._coordinator.commit()

    async def abort_transaction(self) -> None:
        """Fail the buffered records with TransactionAbortedError, wait for those in flight, and abort.

        Raises:
            TransactionTimeoutError: the coordinator did not answer within max_block_ms; call abort_transaction() again.
            ProducerFencedError: another producer has taken over this transactional id, which aborted the transaction.
            IllegalStateError: no transaction is open.

        Cancelling the call does not stop the operation; a second call joins it, or returns immediately if the
        operation has succeeded.
        """
        self._check_usable()
        await self._coordinator.abort()

    async def send_offsets_to_transaction(
        self,
        offsets: OffsetsToCommit,
        group_id: ConsumerGroupMetadata | str | bytes,
    ) -> None:
        """Commit a consumer's position as part of the transaction (KIP-447).

        Args:
            offsets: for each partition, the offset of the next record to read: a mapping, or a list of
                confluent_kafka.TopicPartition such as `consumer.position(consumer.assignment())`. Negative offsets in
                a list, such as OFFSET_INVALID, are left out, as in librdkafka.
            group_id: the group's id, its ConsumerGroupMetadata, or the bytes that confluent-kafka's
                `consumer_group_metadata()` returns. If it includes a generation, the coordinator rejects the offsets
                of a consumer that has lost its partitions.

        Raises:
            TransactionAbortableError: the coordinator rejected the offsets, e.g. because the group has rebalanced.
            IllegalStateError: no transaction is open.
            InvalidRecordError: the offsets or the group are malformed.

        Cancelling the call does not stop the operation.
        """
        self._check_usable()
        self._transaction.check("send_offsets_to_transaction", TransactionState.IN_TRANSACTION)
        await self._coordinator.send_offsets(offsets_to_commit(offsets), group_metadata(group_id))

    async def fence_transaction(self) -> None:
        """Abort the transaction by taking a new epoch, as a restart would.

        Any other writer to the transaction, such as a participant that no longer responds, is fenced permanently.

        Raises:
            TransactionReinitError: another producer uses this transactional id, or no coordinator answered.
            IllegalStateError: no transaction is open.

        Cancelling the call does not stop the operation; a second call joins it, or returns immediately if the
        operation has succeeded.
        """
        self._check_usable()
        await self._coordinator.fence()

    async def export_transaction(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> TransactionHandle:
        """Share the open transaction with producers that `Producer.attach` creates in other processes.

        Each partition may have only one writer, either this producer or one of the producers that attach with the
        handle, because the broker cannot tell the producers apart. Commit only when all attached producers have
        flushed and closed. If no producer has written anything, a commit with transactions v2 raises
        TransactionAbortableError: the broker gives the same answer as for a transaction that timed out.

        Args:
            partitions: the partitions that the other producers will write to. This producer must not write to them,
                either before or after the call.

        Raises:
            TransactionAbortableError: the coordinator rejected a partition.
            TransactionReinitError: a new epoch was needed, and the coordinator rejected the request or did not answer.
            IllegalStateError: no transaction is open, or a partition already has a writer. With transactions v1, this
                error is also raised if this producer wrote to one of the partitions in an earlier transaction and has
                already sent something in this one. To avoid that, export before the first send: the transaction then
                takes a new epoch, in which participants can number their records from 0.

        Cancelling the call leaves the transaction unchanged; the call can be repeated.
        """
        self._check_usable()
        self._transaction.check("export_transaction", TransactionState.IN_TRANSACTION)
        return await self._coordinator.export(partitions_of_handoff(partitions))

    async def release_transaction(self) -> TransactionHandle:
        """Release the open transaction to another producer, perhaps in another process, and return its handle.

        `Producer.resume` creates that producer from the handle, and only that producer can commit or abort the
        transaction. All records sent so far have been acknowledged when this method returns.

        Afterwards you can close this producer, or take back the transactional id with `init_transactions()`, which
        aborts the transaction if it is still open.

        Raises:
            TransactionAbortableError: a record failed; call abort_transaction().
            IllegalStateError: no transaction is open.

        Cancelling the call leaves the transaction unchanged; the call can be repeated.
        """
        self._check_usable()
        return await self._coordinator.release()

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return a group's committed offsets, with None for a partition that has no committed offset.

        The call waits until no open transaction can change these offsets (KIP-447, require_stable; Kafka 2.5).

        Args:
            group_id: the group's id.
            partitions: the partitions to return offsets for.

        Raises:
            BrokerError: the group's coordinator rejected the request, e.g. because the producer is not authorized to
                read the group.
            TransactionTimeoutError: no answer arrived within max_block_ms, or a transaction stayed open for that long.
            UnsupportedVersionError: the cluster is older than Kafka 2.5.
            IllegalStateError: the producer has no transactional_id.

        Cancelling the call has no side effects.
        """
        self._check_usable()
        if not self._transaction.is_used:
            raise IllegalStateError("committed() requires a producer with a transactional_id")
        if not isinstance(group_id, str) or not group_id:
            raise InvalidRecordError(f"group_id must be a non-empty str, not {group_id!r}")
        places = partitions_of_handoff(partitions)
        return await self._coordinator.committed(group_id, places) if places else {}

    async def _end_transaction(self) -> None:
        """Abort an open transaction, as Java's producer does: otherwise readers would wait until it times out."""
        try:
            await self._coordinator.ended()
            if self._transaction.state in _TO_BE_ABORTED:
                await self._coordinator.abort()
        except KafkaError as error:
            _log_failed_abort(self._log, error)


class TransactionScope:
    """One transaction, created by `Producer.transaction()` for a single `async with` block."""

    def __init__(self, producer: Transactional) -> None:
        self._producer = producer

    async def send_offsets(
        self, offsets: OffsetsToCommit, group_id: ConsumerGroupMetadata | str | bytes
    ) -> None:
        """Same as `Producer.send_offsets_to_transaction`."""
        await self._producer.send_offsets_to_transaction(offsets, group_id)

    async def export(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> TransactionHandle:
        """Same as `Producer.export_transaction`."""
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
            # In these two states, the block has already ended or released the transaction.
            if state not in (TransactionState.READY, TransactionState.UNINITIALIZED):
                await self._commit()
            return
        if state in _TO_BE_ABORTED:
            await self._abort()
        self._raise_if_fenced(error)

    async def _commit(self) -> None:
        try:
            await to_the_end(self._producer.commit_transaction())
        except (TransactionError, asyncio.CancelledError) as error:
            if self._producer._transaction.state is TransactionState.ABORT_REQUIRED:
                await self._abort()
            self._raise_if_fenced(error)
            raise

    async def _abort(self) -> None:
        """Abort the transaction. A failure is only logged: the exception that leaves the block matters more."""
        try:
            await to_the_end(self._producer.abort_transaction())
        except KafkaError as error:
            _log_failed_abort(self._producer._log, error)

    def _raise_if_fenced(self, error: BaseException) -> None:
        """Raise ProducerFencedError if the producer was fenced and `error` is only a consequence of that."""
        transaction = self._producer._transaction
        fenced = transaction.error
        if (
            transaction.state is TransactionState.REINIT_REQUIRED
            and isinstance(fenced, ProducerFencedError)
            and not isinstance(error, ProducerFencedError)
            and consists_of_kafka_errors(error)
        ):
            raise copy(fenced) from error


def consists_of_kafka_errors(error: BaseException) -> bool:
    """Return whether `error` is a KafkaError or an exception group of KafkaErrors only.

    A TaskGroup in which several sends failed raises such a group.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.split(KafkaError)[1] is None
    return isinstance(error, KafkaError)


def _log_failed_abort(log: ClientLog, error: KafkaError) -> None:
    if isinstance(error, ProducerFencedError):
        log.warning(
            "the open transaction was already aborted, by its time-out or another producer: %s", error
        )
    else:
        log.warning(
            "the open transaction was not aborted; the brokers will abort it after its time-out: %s", error
        )


async def to_the_end(call: Coroutine[Any, Any, None]) -> None:
    """Wait for the call to end, even if the caller is cancelled repeatedly. If it was, raise the cancellation.

    The call ends in bounded time, because each of its steps has a time limit.
    """
    task = asyncio.ensure_future(call)
    if (cancelled := await ended(task)) is not None:
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved: the cancellation is raised instead
        raise cancelled
    task.result()
