"""The transaction coordinator of an embedded cluster: it manages transactional ids and their transactions.

The handlers call the coordinator, and transaction_metadata.TransactionalId makes the decisions. Each decision is
written to `__transaction_state` before the response is sent. One background task, TransactionCoordinator._run, does the
work that no request waits for: it loads logs after elections, writes markers and aborts transactions that time out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import NamedTuple

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing.embedded.batches import encode_batch
from aioproducer.testing.embedded.controller import Controller
from aioproducer.testing.embedded.faults import VerificationFaults
from aioproducer.testing.embedded.markers import Markers
from aioproducer.testing.embedded.state_topic import StateTopic
from aioproducer.testing.embedded.topics import Partition
from aioproducer.testing.embedded.transaction_log import (
    PARTITIONS,
    TOPIC,
    encoded_key,
    encoded_value,
    read_states,
)
from aioproducer.testing.embedded.transaction_metadata import (
    PREPARED,
    ProducerIdAndEpoch,
    TransactionalId,
    TransactionMetadata,
    TransactionRefused,
    TransactionStatus,
)
from aioproducer.types import TopicPartition

logger = logging.getLogger(__name__)

MAX_TIMEOUT_MS = 15 * 60 * 1000
"""Kafka's default for transaction.max.timeout.ms."""

SWEEP_INTERVAL = 10.0
"""Seconds between checks for transactions that have timed out; Kafka's default
(transaction.abort.timed.out.transaction.cleanup.interval.ms)."""

WRITE_TIMEOUT = 30.0
"""Seconds after which a request fails with COORDINATOR_NOT_AVAILABLE if its state has not been replicated."""


class _Writing(NamedTuple):
    """A state in the log, which takes effect once it is replicated."""

    partition: Partition
    leader_epoch: int
    offset: int
    transaction: TransactionalId
    done: asyncio.Future[None]


class TransactionCoordinator:
    """Acts as all the transaction coordinators in a cluster; methods that act as one broker take its node id."""

    def __init__(self, cluster: Controller, version: int) -> None:
        """Create the coordinator. Its topic is created by the first request for a coordinator.

        Args:
            cluster: The coordinators' cluster.
            version: The finalized level of transaction.version.
        """
        self.version = version
        self.features_epoch = 0
        self.sweep_interval = SWEEP_INTERVAL
        """Seconds between checks for transactions that have timed out."""
        self.marker_delay = 0.0
        """Seconds between the response to EndTxn and the first marker; a few milliseconds in Kafka."""
        self._cluster = cluster
        self._states: StateTopic[dict[str, TransactionalId]] = StateTopic(
            cluster,
            TOPIC,
            PARTITIONS,
            self._read,
            min_insync_replicas=2,
        )
        self._markers = Markers(cluster)
        self._writing: list[_Writing] = []
        self.verification_faults = VerificationFaults()
        """Scripted faults for verification; see `refuse_verification`."""
        self._due: dict[TransactionalId, float] = {}
        self._settled = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # For tests: scripted faults

    def node(self, transactional_id: str) -> int:
        """Return the node id of the coordinator; -1 if there is currently none."""
        return self._states.leader(transactional_id)

    def move(self, transactional_id: str, to_node: int) -> None:
        """Make another broker the coordinator; it reads the log first. Raises ValueError if the broker can't lead."""
        partition = self._states.partition_of(transactional_id)
        self._cluster.move_leader(TOPIC, partition.index, to_node)

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the state of a transactional id at its coordinator; the state is PREPARE_* while markers are due."""
        state = self._states.loaded(self._states.partition_of(transactional_id))
        transaction = None if state is None else state.get(transactional_id)
        return None if transaction is None else transaction.metadata

    async def wait_ended(self, transactional_id: str) -> TransactionMetadata:
        """Wait until a transaction that is being committed or aborted has ended in all partitions.

        Wrap the call in asyncio.timeout(). It returns immediately if no transaction is ending.

        Returns:
            The state of the transactional id afterwards.

        Raises:
            KeyError: the coordinator does not know this transactional id.
        """
        while True:
            state = self._states.loaded(self._states.partition_of(transactional_id))
            if state is not None:
                metadata = state[transactional_id].metadata
                if metadata.state not in PREPARED:
                    return metadata
            self._settled.clear()
            await self._settled.wait()

    def finalize(self, version: int) -> None:
        """Finalize another level of transaction.version, as in an upgrade; clients learn of it when they connect."""
        self.version = version
        self.features_epoch += 1

    def hold_markers(self, topic: str | None = None, partition: int | None = None) -> None:
        """Stop writing markers to all partitions, to all partitions of one topic, or to one partition.

        Transactions stay prepared, and requests from their producers are answered with CONCURRENT_TRANSACTIONS."""
        self._markers.hold(topic, partition)

    def release_markers(self) -> None:
        """Resume writing markers, beginning with those that were held back."""
        self._markers.release()
        self.wake()

    def hold_loading(self) -> None:
        """Delay log loading: from now on, a new coordinator answers with COORDINATOR_LOAD_IN_PROGRESS."""
        self._states.hold_loading()

    def release_loading(self) -> None:
        """Let coordinators finish loading their logs."""
        self._states.release_loading()
        self.wake()

    def abort_timed_out(self) -> list[str]:
        """Abort every transaction that has been open for longer than its time-out, by the cluster's clock.

        The cluster does this itself every `sweep_interval` seconds.

        Returns:
            The transactional ids of the aborted transactions.
        """
        now_ms = self._cluster.now_ms()
        found = []
        for _, state in self._states.all_loaded():
            for transactional_id, transaction in state.items():
                metadata = transaction.metadata
                if (
                    transaction.state is TransactionStatus.ONGOING
                    and transaction.pending is None
                    and metadata.started_ms + metadata.timeout_ms < now_ms
                ):
                    transaction.fence(server_version=self.version, now_ms=now_ms)
                    with suppress(TransactionRefused):
                        self._write(transaction)
                        found.append(transactional_id)
        return found

    def refuse_verification(
        self,
        error: int = ErrorCode.NETWORK_EXCEPTION,
        *,
        topic: str | None = None,
        partition: int | None = None,
        count: int = 1,
    ) -> None:
        """Make the next `count` verifications fail: a leader that asks about a transaction gets an error.

        If `error` means that the leader got no answer, a Produce request fails with NOT_ENOUGH_REPLICAS and a message
        that names `error`. Any other error is passed on to the client.

        Args:
            error: The error that the leader gets instead of an answer.
            topic: Only verifications that concern this topic.
            partition: Only verifications that concern this partition.
            count: The number of verifications.
        """
        self.verification_faults.add(ErrorCode(error), topic, partition, count)

    def expire(self, transactional_id: str) -> None:
        """Forget a transactional id, as Kafka does once it has been unused for seven days.

        Raises:
            KeyError: the coordinator does not know the transactional id.
            TransactionRefused: the transactional id is in use.
        """
        state = self._states.loaded(self._states.partition_of(transactional_id))
        transaction = (state or {})[transactional_id]
        transaction.expire()
        self._write(transaction)

    # For the cluster

    def create_topic(self) -> None:
        """Create `__transaction_state`, if it does not exist."""
        self._states.partitions()

    # For handlers: each method raises TransactionRefused with the error code for the response

    async def init_producer_id(
        self, node: int, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        """Return the producer id and the epoch with which the client may begin a transaction."""
        if not transactional_id:
            raise TransactionRefused(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
            raise TransactionRefused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        state = self._states.state_at(node, transactional_id)
        transaction = state.get(transactional_id)
        if transaction is None:
            producer_id = self._cluster.next_producer_id()
            fresh = TransactionMetadata(transactional_id, producer_id, timeout_ms)
            transaction = state[transactional_id] = TransactionalId(fresh)
        to = transaction.init_producer_id(
            expected,
            timeout_ms=timeout_ms,
            now_ms=self._cluster.now_ms(),
            server_version=self.version,
            new_producer_id=self._cluster.next_producer_id,
        )
        await self._written(transaction)
        if to.state is TransactionStatus.PREPARE_ABORT:
            raise TransactionRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        return to.identity

    async def add_partitions(
        self,
        node: int,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int = 0,
    ) -> None:
        """Add these partitions to the transaction, before the producer writes to them."""
        transaction = self._known(node, transactional_id)
        try:
            transaction.add_partitions(
                *producer, partitions, client_version=client_version, now_ms=self._cluster.now_ms()
            )
        except TransactionRefused as refused:
            if refused.code is ErrorCode.NONE:
                return
            raise
        await self._written(transaction)

    def verify(
        self, node: int, transactional_id: str, producer: ProducerIdAndEpoch
    ) -> tuple[TopicPartition, ...]:
        """Return the partitions in the producer's transaction."""
        transaction = self._known(node, transactional_id)
        transaction.check_producer(*producer)
        return transaction.metadata.partitions

    async def end(
        self, node: int, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, bump: bool
    ) -> ProducerIdAndEpoch:
        """Prepare the commit or the abort; the markers are written later.

        Returns:
            The producer id and the epoch of the next transaction.
        """
        transaction = self._known(node, transactional_id)
        now_ms = self._cluster.now_ms()
        try:
            if bump:
                transaction.end_and_bump(
                    *producer,
                    commit=commit,
                    now_ms=now_ms,
                    new_producer_id=self._cluster.next_producer_id,
                )
            else:
                transaction.end(*producer, commit=commit, now_ms=now_ms)
        except TransactionRefused as refused:
            if refused.code is ErrorCode.NONE:
                return transaction.metadata.identity
            raise
        await self._written(transaction)
        return (transaction.pending or transaction.metadata).identity

    def _known(self, node: int, transactional_id: str) -> TransactionalId:
        if not transactional_id:
            raise TransactionRefused(ErrorCode.INVALID_REQUEST)
        transaction = self._states.state_at(node, transactional_id).get(transactional_id)
        if transaction is None:
            raise TransactionRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction

    # The log

    def _read(self, partition: Partition) -> dict[str, TransactionalId]:
        """Read the states in the log, as a new leader does. The markers of prepared transactions are written next."""
        found = {key: TransactionalId(metadata) for key, metadata in read_states(partition.log).items()}
        for transaction in found.values():
            if transaction.state in PREPARED:
                transaction.complete(now_ms=self._cluster.now_ms())
        return found

    async def _written(self, transaction: TransactionalId) -> None:
        """Write the pending state and wait until it is replicated."""
        done = self._write(transaction)
        if not done.done():
            try:
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await asyncio.shield(done)
            except TimeoutError:
                raise TransactionRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None
        done.result()

    def _write(self, transaction: TransactionalId) -> asyncio.Future[None]:
        """Write the pending state. It takes effect immediately if the followers keep up; otherwise, _run settles it."""
        assert transaction.pending is not None
        to = transaction.pending
        partition = self._states.partition_of(to.transactional_id)
        value = encoded_value(to, 1 if self.version else 0)
        batch = encode_batch([(encoded_key(to.transactional_id), value)], self._cluster.now_ms())
        try:
            offset = self._states.append(partition, batch)
        except TransactionRefused:
            transaction.give_up()
            raise
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writing.append(_Writing(partition, partition.leader_epoch, offset, transaction, done))
        self._settle_replicated()
        self._keep_running()
        return done

    def _settle_replicated(self) -> None:
        """Make replicated states the current ones; discard states that were written in an older leader epoch."""
        still = []
        for writing in self._writing:
            partition, leader_epoch, offset, transaction, done = writing
            if partition.leader_epoch != leader_epoch:
                transaction.give_up()
                if not done.done():
                    done.set_exception(TransactionRefused(ErrorCode.NOT_COORDINATOR))
                    done.exception()  # mark the exception as retrieved, because the waiting request may have ended
            elif partition.high_watermark > offset:
                self._settle(partition, transaction)
                if not done.done():
                    done.set_result(None)
            else:
                still.append(writing)
        self._writing = still

    def _settle(self, partition: Partition, transaction: TransactionalId) -> None:
        transaction.settle()
        self._settled.set()
        if transaction.state in PREPARED:
            transaction.complete(now_ms=self._cluster.now_ms())
            self._due[transaction] = asyncio.get_running_loop().time() + self.marker_delay
        elif transaction.state is TransactionStatus.DEAD:
            state = self._states.loaded(partition)
            assert state is not None
            del state[transaction.metadata.transactional_id]

    # Background work

    def wake(self) -> None:
        """Wake the background task after a change that may allow it to write a marker or load a log."""
        self._wake.set()

    def resume(self) -> None:
        """Resume any background work that a stop interrupted, possibly on another event loop."""
        if self._task is None and self._states.exists:
            self._settled, self._wake = asyncio.Event(), asyncio.Event()
            self._keep_running()

    def halt(self) -> None:
        """Stop all background work. Call `wait_stopped` next."""
        if self._task is not None:
            self._task.cancel()

    async def wait_stopped(self) -> None:
        """Wait until the background task has ended."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _keep_running(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="transaction coordinator")
            self._task.add_done_callback(self._note_failure)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error(
                "the transaction coordinator failed because of a bug in the embedded cluster", exc_info=error
            )
            assert isinstance(error, Exception)
            self._cluster.failures.append(error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_sweep = loop.time() + self.sweep_interval
        with ExitStack() as watches:
            for partition in self._states.partitions():
                watches.enter_context(partition.watched(self._wake))
            while True:
                self._wake.clear()
                self._settle_replicated()
                if loop.time() >= next_sweep:
                    next_sweep = loop.time() + self.sweep_interval
                    self.abort_timed_out()
                self._send_markers()
                deadline = min(
                    [*self._due.values(), *([next_sweep] if self._has_ongoing() else [])], default=None
                )
                with ExitStack() as targets, suppress(TimeoutError):
                    for partition in self._markers.targets():
                        targets.enter_context(partition.watched(self._wake))
                    async with asyncio.timeout_at(deadline):
                        await self._wake.wait()

    def _has_ongoing(self) -> bool:
        return any(
            transaction.state is TransactionStatus.ONGOING
            for _, state in self._states.all_loaded()
            for transaction in state.values()
        )

    def _send_markers(self) -> None:
        now = asyncio.get_running_loop().time()
        self._due = {transaction: due for transaction, due in self._due.items() if due > now}
        for partition, state in self._states.all_loaded():
            if not self._cluster.broker(partition.leader).is_running:
                continue  # a frozen coordinator sends nothing
            for transaction in state.values():
                if (
                    transaction.state in PREPARED
                    and transaction not in self._due
                    and not self._is_being_written(transaction)
                    and self._markers.write(transaction.metadata, partition.leader_epoch)
                ):
                    if transaction.pending is None:  # The last attempt to write the completed state failed.
                        transaction.complete(now_ms=self._cluster.now_ms())
                    with suppress(TransactionRefused):
                        self._write(transaction)

    def _is_being_written(self, transaction: TransactionalId) -> bool:
        return any(writing.transaction is transaction for writing in self._writing)
