"""The sender task: waits for work, drains batches per node, numbers and sends them, and fails those that expired.

One pass checks everything that may have changed, and never awaits. The methods follow the path of a batch: run, pass,
number, produce. produce_results.py handles the answers."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from random import Random
from typing import Any

from aioproducer.cluster import NO_TOPIC_ID
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    KafkaError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from aioproducer.metrics import Metrics
from aioproducer.network.brokers import Brokers
from aioproducer.network.connection import LATE_TIMER, Connection
from aioproducer.network.metadata import Metadata
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.outcomes import Moment
from aioproducer.protocol.produce import Appended, ProduceBatches
from aioproducer.records._record_path import PartitionQueue
from aioproducer.records.accumulator import NO_NODE, Accumulator
from aioproducer.records.batch import NAMED, BatchState, ProducerBatch
from aioproducer.records.idempotence import Idempotence, PartitionSequence
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.sending.producer_id import ProducerIdSource
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.state import Transaction, TransactionState, abortable

logger = logging.getLogger(__name__)

LAST_VERSION_WITH_TOPIC_NAMES = 12
LAST_VERSION_OF_V1 = 11
"""From version 12 on, a broker adds every written partition to the transaction, even if v2 is disabled."""
MOST_IN_PASS = 1000
"""The maximum number of batches per pass, so that other tasks can run: each batch takes the loop some 10 us, and so
does its answer. It does not apply to transactions, because a broker verifies the partitions of one request together."""
UNREAD_ANSWER_GRACE = 0.05
"""Seconds to wait for answers that may be unread in a socket."""


class Sender:
    """Moves batches from the accumulator to the brokers and their answers back to the deliveries."""

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        accumulator: Accumulator,
        brokers: Brokers,
        metadata: Metadata,
        idempotence: Idempotence,
        transaction: Transaction,
        coordinator: Coordinator,
        wake: WakeUp,
        metrics: Metrics,
        random: Random,
    ) -> None:
        self._config = config
        self._loop = loop
        self._accumulator = accumulator
        self._brokers = brokers
        self._metadata = metadata
        self._wake = wake
        self._metrics = metrics
        self._random = random
        self._idempotence = idempotence
        self._transaction = transaction
        self._coordinator = coordinator
        self._request_timeout_ms = int(config.request_timeout * 1000)
        self._seen_metadata = -1
        self._gave_a_moment = False
        self._left_in_pass = 0
        self._begun: set[int] = set()
        """Nodes that a participant has begun to write to."""
        self._results = ProduceResults(
            config, loop, accumulator, brokers, metadata, idempotence, transaction, metrics, random
        )
        self._producer_ids = ProducerIdSource(config, self._idempotence, brokers, wake, metrics, random)

    # ---------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Run one pass after another until close() cancels the task."""
        try:
            while True:
                self._wake.clear()
                await self._wake.sleep(until=self._pass(self._loop.time()))
        except BaseException as error:
            # A GeneratorExit means that the task is discarded with its loop, when nothing can be awaited.
            if not isinstance(error, GeneratorExit):
                self._wake.close()
                await self._producer_ids.close()
            raise

    def _pass(self, now: float) -> float | None:
        """Send everything that can be sent; return the time of the next pass unless the sender is woken earlier."""
        if self._metadata.version != self._seen_metadata:
            self._seen_metadata = self._metadata.version
            self._accumulator.update_leaders(self._metadata.cluster)
            self._results.losses.look_at(self._metadata.cluster, now)
        if self._producer_ids.refused is not None:
            self._refuse_all(self._producer_ids.refused)
            self._producer_ids.refused = None
        if self._transaction.refuses_records:
            self._abort_unsent()
        late = self._expire_all(now)
        nodes, look_again = self._accumulator.ready(now)
        self._left_in_pass = sys.maxsize if self._transaction.is_used else MOST_IN_PASS
        times = [] if look_again is None else [look_again]
        if late:
            times = [now + UNREAD_ANSWER_GRACE]
        for node_id in nodes:
            if node_id == NO_NODE:
                for topic in sorted(self._accumulator.topics_without_leader()):
                    self._metadata.touch(topic)
                self._metadata.request_update()
            elif not self._idempotence.needs_identity:
                again_at = self._send_to(node_id, now)
                if again_at is not None:
                    times.append(again_at)
        if self._transaction.is_used:
            if self._transaction.has_to_join:
                self._coordinator.add_partitions()
            if (watch_again := self._coordinator.watch(now)) is not None:
                times.append(watch_again)
        elif self._idempotence.needs_identity and (nodes or not self._producer_ids.was_asked):
            # At the start, so that the first record does not wait for it; later, if the last epoch is used up.
            self._producer_ids.ask()
        if self._brokers.update_wanted:
            self._brokers.update_wanted = False
            self._metadata.request_update()
        return min(times, default=None)

    def _send_to(self, node_id: int, now: float) -> float | None:
        """Drain a node while it can accept requests; return when it can be tried again, if that time is known."""
        can_send = self._brokers.ready(node_id)
        if (
            can_send
            and node_id not in self._begun
            and self._transaction.state is TransactionState.PARTICIPANT
        ):
            # A broker verifies all partitions of one request together. While it verifies them, it rejects requests
            # for other partitions of the same transactional id.
            self._begun.add(node_id)
            self._accumulator.hurry_node(node_id)
        self._accumulator.availability.update(node_id, now, can_drain=can_send)
        connection = self._brokers.connection(node_id)
        if can_send and self._left_in_pass == 0:
            self._wake.set()  # the next pass begins with this node
            return None
        if can_send and connection is not None:
            drain = self._accumulator.drain
            connection.cork()
            try:
                while can_send and self._left_in_pass > 0:
                    batches = drain(node_id, now, self._may_drain, self._left_in_pass)
                    if not batches:
                        return None
                    self._produce(connection, node_id, batches, now)
                    self._left_in_pass -= len(batches)
                    can_send = connection.can_send
            finally:
                connection.uncork()
            if can_send:
                self._accumulator.serve_last(node_id)
                self._wake.set()
                return None
        return self._brokers.retry_at(node_id, now)

    # --------------------------------------------------------------------------------------------- numbering

    def _may_drain(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Return whether one more batch of this partition may be in flight."""
        if self._transaction.is_used and not self._may_join(queue):
            return False
        if not self._idempotence.enabled:
            # Without sequence numbers a second batch could overtake a first one that has to be sent again.
            return len(queue.in_flight) < self._config.max_in_flight_per_partition
        if queue.in_flight:
            # A batch is sent again only when no other batch of its partition is in flight.
            most = self._config.max_in_flight_per_partition
            return (
                batch.first_sequence < 0
                and queue.sequence is not None
                and self._is_for_topic_of(queue, queue.sequence)
                and len(queue.in_flight)
                < self._idempotence.may_be_in_flight(queue.sequence, queue.node_id, most)
            )
        sequence = self._sequence_of(queue)
        if self._transaction.refuses_records:
            return False
        if not batch.is_numbered:
            self._begin(queue, sequence)
        return batch.state is not BatchState.DONE and (
            batch.is_numbered or not self._idempotence.needs_identity
        )

    def _may_join(self, queue: PartitionQueue) -> bool:
        """Return whether the transaction allows records of this partition to be written now."""
        if not self._transaction.may_drain(queue.topic, queue.partition):
            return False
        if self._transaction.is_anothers(queue.topic, queue.partition):
            cause = KafkaError(
                f"{queue.topic}-{queue.partition} was exported to another producer, but this one also has records for "
                "it; send records only to partitions that were not exported"
            )
            self._transaction.must_abort(abortable(self._transaction, cause))
            self._wake.set()
            return False
        return True

    def _is_for_topic_of(self, queue: PartitionQueue, sequence: PartitionSequence) -> bool:
        """Return False if the topic was re-created: batches in flight are for the old one and must end first."""
        topic = self._metadata.cluster.topics.get(queue.topic)
        if topic is None or topic.topic_id is sequence.topic_id:
            return True
        return not topic.topic_id.int or not sequence.topic_id.int or topic.topic_id == sequence.topic_id

    def _sequence_of(self, queue: PartitionQueue) -> PartitionSequence:
        """Return the sequence of a partition that has nothing in flight: a new one if its topic was re-created."""
        topic = self._metadata.cluster.topics.get(queue.topic)
        topic_id = NO_TOPIC_ID if topic is None else topic.topic_id
        sequence = self._idempotence.sequence_of(queue.sequence, topic_id, queue.partition)
        if queue.sequence is not sequence:
            if queue.sequence is not None:
                # The new log may already contain records with our numbers, sent by topic name or sent again. A new
                # epoch avoids a conflict.
                if self._transaction.is_used:
                    cause = KafkaError(
                        f"topic {queue.topic} was re-created while the transaction wrote to it"
                    )
                    # With v1 the next transaction would continue this epoch, whose numbers may be in the new log.
                    self._transaction.epoch_is_spent |= self._transaction.may_have_started
                    self._transaction.must_abort(abortable(self._transaction, cause))
                    self._wake.set()  # the next pass fails the records that were not sent
                elif self._idempotence.identity is not None:
                    self._idempotence.bump()
                self._leave_old_topic(queue, topic_id.int)
            queue.sequence = sequence
        return sequence

    def _begin(self, queue: PartitionQueue, sequence: PartitionSequence) -> None:
        """Prepare to number a batch with nothing in flight: begin a new epoch if the last one has a gap."""
        before = sequence.identity
        self._idempotence.begin(sequence)
        if before is not None and sequence.identity != before:
            self._renumber(queue)

    def _leave_old_topic(self, queue: PartitionQueue, topic_id: int) -> None:
        """Redirect batches that were numbered for a deleted topic to the topic with this id.

        A batch that may already be in the new topic's log fails instead. A batch that was addressed by the old topic's
        id cannot be there (ReplicaManager.getPartitionOrException compares the ids before the append).
        """
        for batch in list(queue.batches):
            if batch.state is BatchState.DONE or (not batch.is_numbered and not batch.doubted_in):
                continue
            if batch.may_be_in(topic_id) or (self._transaction.is_used and batch.maybe_persisted):
                self._give_up_in_doubt(
                    batch,
                    "the topic was re-created before the records were acknowledged; they may be in the old log or "
                    "in the new one",
                )
            else:
                batch.leave_for(topic_id)

    def _renumber(self, queue: PartitionQueue) -> None:
        """Clear numbers of an old epoch, so that the batches get new ones. Batches that may be in the log fail."""
        for batch in list(queue.batches):
            if batch.state is BatchState.DONE or not batch.is_numbered:
                continue
            if batch.maybe_persisted:
                self._give_up_in_doubt(
                    batch, "the broker lost track of this producer before it acknowledged the records"
                )
            else:
                batch.number(None, -1)

    def _give_up_in_doubt(self, batch: ProducerBatch, reason: str) -> None:
        self._accumulator.forget(batch)
        self._results.give_up(batch, reason)
        self._wake.set()  # the batches behind it can now be sent

    # --------------------------------------------------------------------------------------------- a request

    def _produce(
        self, connection: Connection, node_id: int, batches: list[ProducerBatch], now: float
    ) -> None:
        """Number, seal and write one request with at most one batch of each partition."""
        topics: dict[str, tuple[str, int, list[ProducerBatch]]] = {}
        transaction = self._transaction
        is_numbered = self._idempotence.enabled
        ceiling = None
        for batch in batches:
            queue = batch.queue
            if is_numbered and batch.first_sequence < 0:
                sequence = queue.sequence
                assert sequence is not None  # set by _may_drain
                batch.number(sequence.identity, self._idempotence.take(sequence, batch.record_count))
            topic = topics.get(queue.topic)
            if topic is None:
                info = self._metadata.cluster.topics.get(queue.topic)
                topic_id = 0 if info is None else info.topic_id.int
                if not topic_id:
                    ceiling = LAST_VERSION_WITH_TOPIC_NAMES
                topic = topics[queue.topic] = (queue.topic, topic_id, [])
                self._metadata.touch(queue.topic, now)
            topic[2].append(batch)
            batch.mark_sent(node_id)
            queue.in_flight.append(batch)
            if transaction.is_used:
                transaction.writes_to(queue.topic, queue.partition)
        if transaction.is_used and not transaction.is_v2:
            ceiling = LAST_VERSION_OF_V1
        if len(topics) > 1:
            batches = [
                batch for _, _, part in topics.values() for batch in part
            ]  # in the order of the request
        request = ProduceBatches(
            self._config.transactional_id,
            self._config.acks,
            self._request_timeout_ms,
            list(topics.values()),
        )
        answered = partial(self._answered, connection, batches, topics)
        try:
            connection.request(
                request,
                timeout=self._config.request_timeout,
                version_ceiling=ceiling,
                expects_response=self._config.acks != 0,
                answered=answered,
            )
        except UnsupportedVersionError as error:
            self._loop.call_soon(answered, None, error)
        self._count_request(batches)

    def _count_request(self, batches: list[ProducerBatch]) -> None:
        metrics = self._metrics
        metrics.produce_requests += 1
        records = 0
        for batch in batches:
            records += batch.record_count
            if batch.attempts == 1:
                metrics.batches += 1
                metrics.records_sent += batch.record_count
                metrics.record_bytes += batch.size
                metrics.batch_bytes += batch.wire_size
                metrics.batch_size.add(batch.wire_size)
            else:
                metrics.retries += 1
        metrics.records_per_request.add(records)

    def _answered(
        self,
        connection: Connection,
        batches: list[ProducerBatch],
        topics: dict[str, tuple[str, int, list[ProducerBatch]]],
        response: Any,
        error: KafkaError | None,
    ) -> None:
        """Handle the end of the request for these batches, with a response or an error."""
        now = self._loop.time()
        for batch in batches:
            batch.queue.in_flight.remove(batch)
        if error is not None:
            addressed = self._addressed(connection, topics)
            for batch in batches:
                self._results.broken(batch, error, now, addressed[batch.queue.topic])
        elif self._config.acks == 0:
            for batch in batches:
                self._results.complete(batch, now)
        elif isinstance(response, Appended):
            self._results.appended(batches, response, now)
        else:
            names = {topic_id: name for name, topic_id, _ in topics.values()}
            addressed = self._addressed(connection, topics)
            self._results.read(connection.node.node_id, batches, names, addressed, response, now)
        node_id = connection.node.node_id
        stays_here = True
        for batch in batches:
            queue = batch.queue
            self._accumulator.touch(queue)
            if queue.node_id != node_id:
                stays_here = False
        connection_will_wake = (
            connection.is_full
            and stays_here
            and isinstance(response, Appended)
            and not self._transaction.is_used
        )
        if not connection_will_wake:
            self._wake.set()

    def _addressed(
        self, connection: Connection, topics: dict[str, tuple[str, int, list[ProducerBatch]]]
    ) -> dict[str, int]:
        """Return how a request to this broker addressed its topics: by name, the topic's id or NAMED."""
        known = connection.versions.ranges.get(ApiKey.PRODUCE)
        by_id = (
            known is not None
            and known.max > LAST_VERSION_WITH_TOPIC_NAMES
            and all(topic_id for _, topic_id, _ in topics.values())
            and not self._transaction.is_used
        )
        return {name: topic_id if by_id else NAMED for name, topic_id, _ in topics.values()}

    def _expire_all(self, now: float) -> bool:
        """Fail the batches that have passed their delivery timeout; return True if some of them get a short delay.

        If the event loop was blocked, answers that arrived in time may still be unread in the sockets. Batches in
        flight whose deadline is noticed late therefore get one more pass.
        """
        late: list[ProducerBatch] = []
        for batch in self._accumulator.expired(now):
            in_flight = batch.state is BatchState.IN_FLIGHT
            if in_flight and now - batch.deadline > LATE_TIMER and not self._gave_a_moment:
                late.append(batch)
            else:
                self._expire(batch, now)
        self._gave_a_moment = bool(late)
        return self._gave_a_moment

    def _expire(self, batch: ProducerBatch, now: float) -> None:
        """Handle a batch that has passed its delivery timeout."""
        if batch.state is BatchState.DONE:
            return  # it failed together with a batch before it
        if self._config.enable_endless_retries and self._has_left_old_topic(batch):
            return
        if batch.attempts == 0:
            batch.last_error, why = self._why_not_sent(batch.queue.node_id)
            reason = f"{why}; nothing was sent"
        else:
            reason = f"the last error was: {batch.last_error!r}" if batch.last_error else "no broker answered"
        why = f"delivery timed out: {reason}"
        in_flight = batch.state is BatchState.IN_FLIGHT
        if not self._results.end_at(batch, Moment.EXPIRED, why, in_flight=in_flight):
            self._accumulator.postpone(batch, now + self._config.delivery_timeout)

    def _has_left_old_topic(self, batch: ProducerBatch) -> bool:
        """Fail a batch that may be in the log of a topic that has been re-created since; return whether it was one.

        drain() finds such batches, except in partitions that the new topic does not have."""
        queue = batch.queue
        if (
            queue.sequence is not None
            and not queue.in_flight
            and not self._is_for_topic_of(queue, queue.sequence)
        ):
            self._sequence_of(queue)
        return batch.state is BatchState.DONE

    def _why_not_sent(self, node_id: int) -> tuple[KafkaError | None, str]:
        if self._idempotence.needs_identity:
            error = self._producer_ids.last_error
            return error, f"no broker returned a producer id ({error or 'no broker has answered'})"
        error = self._metadata.last_error
        if error is not None:
            return error, f"the cluster can't be reached ({error})"
        if node_id == NO_NODE:
            return None, "the partition had no leader"
        error = self._brokers.last_error(node_id)
        return (
            error,
            f"broker {node_id} could not accept it ({error or 'busy, throttled, or still connecting'})",
        )

    def abort(self, reason: str) -> None:
        """Fail all remaining batches. close() calls this when its time has run out."""
        for batch in list(self._accumulator.incomplete):
            if batch.state is BatchState.DONE:
                continue  # it failed together with a batch before it
            if batch.state is BatchState.IN_FLIGHT:
                batch.maybe_persisted = True
            else:
                self._accumulator.forget(batch)
            self._results.give_up(batch, reason)

    def _abort_unsent(self) -> None:
        """Fail the batches that are not in flight, because their transaction cannot be committed (KIP-654)."""
        why = self._transaction.error or "the transaction was aborted"
        for batch in list(self._accumulator.incomplete):
            if batch.state in (BatchState.OPEN, BatchState.CLOSED):
                self._accumulator.forget(batch)
                self._results.give_up(batch, str(why), TransactionAbortedError)

    def _refuse_all(self, error: KafkaError) -> None:
        """Fail the waiting batches, which cannot be sent without a producer id. The next record asks for one again."""
        for batch in list(self._accumulator.incomplete):
            if batch.state in (BatchState.OPEN, BatchState.CLOSED) and not batch.is_numbered:
                batch.last_error = error
                self._accumulator.forget(batch)
                self._results.give_up(batch, str(error))
