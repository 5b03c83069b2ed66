"""The task that sends: wait for work, drain per node, number and send; give up what is too late.

One pass looks at everything that may have changed; nothing in it awaits. It reads top to bottom as a batch goes: run,
pass, number, produce. What the answer means is produce_results.py's."""

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
from aioproducer.sending.produce_results import Answers
from aioproducer.sending.producer_id import ProducerIdSource
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.state import Transaction, TransactionState, abortable

logger = logging.getLogger(__name__)

LAST_VERSION_WITH_TOPIC_NAMES = 12
LAST_VERSION_OF_V1 = 11
"""From 12 on a broker lets a partition join the transaction by being written to, also if transactions v2 are off."""
MOST_IN_PASS = 1000
"""Batches that are sent before others run: it takes the loop some 10 us for each, and as long for its answer. Not of a
transaction: what first comes in one request to a broker is verified together."""
A_MOMENT = 0.05
"""Seconds that answers which lie unread in a socket get to come in."""


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
        """Nodes that a participant has written to."""
        self._answers = Answers(
            config, loop, accumulator, brokers, metadata, idempotence, transaction, metrics, random
        )
        self._producer_ids = ProducerIdSource(config, self._idempotence, brokers, wake, metrics, random)

    # ---------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Pass after pass, for ever; cancelled by close()."""
        try:
            while True:
                self._wake.clear()
                await self._wake.sleep(until=self._pass(self._loop.time()))
        except BaseException as error:
            # Not when the task is thrown away with its loop: nothing can be awaited then.
            if not isinstance(error, GeneratorExit):
                self._wake.close()
                await self._producer_ids.close()
            raise

    def _pass(self, now: float) -> float | None:
        """Send whatever can be sent; returns when to look again if nothing wakes the sender before."""
        if self._metadata.version != self._seen_metadata:
            self._seen_metadata = self._metadata.version
            self._accumulator.file_queues(self._metadata.cluster)
            self._answers.losses.look_at(self._metadata.cluster, now)
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
            times = [now + A_MOMENT]
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
            # At the start, so that the first record need not wait for it; later, if the last epoch is used up.
            self._producer_ids.ask()
        if self._brokers.update_wanted:
            self._brokers.update_wanted = False
            self._metadata.request_update()
        return min(times, default=None)

    def _send_to(self, node_id: int, now: float) -> float | None:
        """Drain a node as long as it can take requests; returns when it may be tried again, if it says."""
        can_send = self._brokers.ready(node_id)
        if (
            can_send
            and node_id not in self._begun
            and self._transaction.state is TransactionState.PARTICIPANT
        ):
            # A broker verifies one partition of a transactional id at a time, and refuses the others until then; all
            # that come in one request it verifies together.
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
        """Whether one more batch of this partition may be in flight."""
        if self._transaction.is_used and not self._may_join(queue):
            return False
        if not self._idempotence.enabled:
            # Without numbers a second batch could overtake a first one that has to be sent again.
            return len(queue.in_flight) < self._config.max_in_flight_per_partition
        if queue.in_flight:
            # A batch that is sent again goes alone.
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
        """Whether the transaction lets records of this partition be written now."""
        if not self._transaction.may_drain(queue.topic, queue.partition):
            return False
        if self._transaction.is_anothers(queue.topic, queue.partition):
            cause = KafkaError(
                f"{queue.topic}-{queue.partition} was exported, so another producer writes to it; this one has too"
            )
            self._transaction.must_abort(abortable(self._transaction, cause))
            self._wake.set()
            return False
        return True

    def _is_for_topic_of(self, queue: PartitionQueue, sequence: PartitionSequence) -> bool:
        """False if the topic was made anew: what is in flight is for the old one, and comes first."""
        topic = self._metadata.cluster.topics.get(queue.topic)
        if topic is None or topic.topic_id is sequence.topic_id:
            return True
        return not topic.topic_id.int or not sequence.topic_id.int or topic.topic_id == sequence.topic_id

    def _sequence_of(self, queue: PartitionQueue) -> PartitionSequence:
        """The numbers of the partition, with nothing in flight; anew if its topic was made anew."""
        topic = self._metadata.cluster.topics.get(queue.topic)
        topic_id = NO_TOPIC_ID if topic is None else topic.topic_id
        sequence = self._idempotence.sequence_of(queue.sequence, topic_id, queue.partition)
        if queue.sequence is not sequence:
            if queue.sequence is not None:
                # The new log may hold records under our numbers already, sent by name or again: a new epoch it is.
                if self._transaction.is_used:
                    cause = KafkaError(f"topic {queue.topic} was made anew while the transaction wrote to it")
                    # With v1 the next transaction would go on with this epoch, whose numbers may be in the new log.
                    self._transaction.epoch_is_spent |= self._transaction.may_have_started
                    self._transaction.must_abort(abortable(self._transaction, cause))
                    self._wake.set()  # the next pass gives up what was not sent
                elif self._idempotence.identity is not None:
                    self._idempotence.bump()
                self._leave_old_topic(queue, topic_id.int)
            queue.sequence = sequence
        return sequence

    def _begin(self, queue: PartitionQueue, sequence: PartitionSequence) -> None:
        """Before an unnumbered batch, with nothing in flight: a new epoch if the last one has a gap."""
        before = sequence.identity
        self._idempotence.begin(sequence)
        if before is not None and sequence.identity != before:
            self._renumber(queue)

    def _leave_old_topic(self, queue: PartitionQueue, topic_id: int) -> None:
        """Send to the topic with this id what was numbered for one that is gone, unless it may be in its log already.

        A batch that was addressed by the old topic's id can't be there, whatever has become of it
        (ReplicaManager.getPartitionOrException compares the ids before the append).
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
        """Numbers of an old epoch are worth nothing: batches get new ones, unless they may be in the log already."""
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
        self._answers.give_up(batch, reason)
        self._wake.set()  # for what stood behind it

    # --------------------------------------------------------------------------------------------- a request

    def _produce(
        self, connection: Connection, node_id: int, batches: list[ProducerBatch], now: float
    ) -> None:
        """Number, seal and write one request; at most one batch of each partition is in it."""
        topics: dict[str, tuple[str, int, list[ProducerBatch]]] = {}
        transaction = self._transaction
        is_numbered = self._idempotence.enabled
        ceiling = None
        for batch in batches:
            queue = batch.queue
            if is_numbered and batch.first_sequence < 0:
                sequence = queue.sequence
                assert sequence is not None  # _may_drain gave it
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
            batch.sent(node_id)
            queue.in_flight.append(batch)
            if transaction.is_used:
                transaction.writes_to(queue.topic, queue.partition)
        if transaction.is_used and not transaction.is_v2:
            ceiling = LAST_VERSION_OF_V1
        if len(topics) > 1:
            batches = [
                batch for _, _, part in topics.values() for batch in part
            ]  # as they are numbered below
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
        """The request of these batches has ended, one way or the other."""
        now = self._loop.time()
        for batch in batches:
            batch.queue.in_flight.remove(batch)
        if error is not None:
            addressed = self._addressed(connection, topics)
            for batch in batches:
                self._answers.broken(batch, error, now, addressed[batch.queue.topic])
        elif self._config.acks == 0:
            for batch in batches:
                self._answers.complete(batch, now)
        elif isinstance(response, Appended):
            self._answers.appended(batches, response, now)
        else:
            names = {topic_id: name for name, topic_id, _ in topics.values()}
            addressed = self._addressed(connection, topics)
            self._answers.read(connection.node.node_id, batches, names, addressed, response, now)
        for batch in batches:
            self._accumulator.touch(batch.queue)
        connection_will_wake = (
            connection.is_full
            and isinstance(response, Appended)
            and not self._transaction.is_used
            and all(batch.queue.node_id == connection.node.node_id for batch in batches)
        )
        if not connection_will_wake:
            self._wake.set()

    def _addressed(
        self, connection: Connection, topics: dict[str, tuple[str, int, list[ProducerBatch]]]
    ) -> dict[str, int]:
        """The ids by which a request to this broker addressed its topics, by name: NAMED where it did so by name."""
        known = connection.versions.ranges.get(ApiKey.PRODUCE)
        by_id = (
            known is not None
            and known.max > LAST_VERSION_WITH_TOPIC_NAMES
            and all(topic_id for _, topic_id, _ in topics.values())
            and not self._transaction.is_used
        )
        return {name: topic_id if by_id else NAMED for name, topic_id, _ in topics.values()}

    def _expire_all(self, now: float) -> bool:
        """End what has passed its delivery timeout; True if that has to wait a moment.

        If the event loop stood still, answers that came in time may lie unread in the sockets, so batches in flight
        whose deadline is noticed late get one more turn.
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
        """The delivery timeout has passed."""
        if batch.state is BatchState.DONE:
            return  # one before it failed, and it with that one
        if self._config.enable_endless_retries and self._has_left_old_topic(batch):
            return
        if batch.attempts == 0:
            batch.last_error, why = self._why_not_sent(batch.queue.node_id)
            reason = f"{why}; nothing was sent"
        else:
            reason = f"the last error was: {batch.last_error!r}" if batch.last_error else "no broker answered"
        why = f"delivery timed out: {reason}"
        in_flight = batch.state is BatchState.IN_FLIGHT
        if not self._answers.end_at(batch, Moment.EXPIRED, why, in_flight=in_flight):
            self._accumulator.postpone(batch, now + self._config.delivery_timeout)

    def _has_left_old_topic(self, batch: ProducerBatch) -> bool:
        """End a batch that may be in the log of a topic that was re-created since; True if it was one.

        drain() finds such batches, but not those of a partition that the new topic does not have."""
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
            return error, f"no broker gave a producer id ({error or 'none has answered'})"
        error = self._metadata.last_error
        if error is not None:
            return error, f"the cluster can't be reached ({error})"
        if node_id == NO_NODE:
            return None, "the partition had no leader"
        error = self._brokers.last_error(node_id)
        return (
            error,
            f"broker {node_id} could not take it ({error or 'busy, throttled, or still connecting'})",
        )

    def abort(self, reason: str) -> None:
        """Give up everything that is left: called by close() when its time is over."""
        for batch in list(self._accumulator.incomplete):
            if batch.state is BatchState.DONE:
                continue  # one before it failed, and it with that one
            if batch.state is BatchState.IN_FLIGHT:
                batch.maybe_persisted = True
            else:
                self._accumulator.forget(batch)
            self._answers.give_up(batch, reason)

    def _abort_unsent(self) -> None:
        """The transaction will not be committed: what is not in flight is not sent any more (KIP-654)."""
        why = self._transaction.error or "the transaction was aborted"
        for batch in list(self._accumulator.incomplete):
            if batch.state in (BatchState.OPEN, BatchState.CLOSED):
                self._accumulator.forget(batch)
                self._answers.give_up(batch, str(why), TransactionAbortedError)

    def _refuse_all(self, error: KafkaError) -> None:
        """Without a producer id nothing can be sent: what waits fails now; the next record asks again."""
        for batch in list(self._accumulator.incomplete):
            if batch.state in (BatchState.OPEN, BatchState.CLOSED) and not batch.is_numbered:
                batch.last_error = error
                self._accumulator.forget(batch)
                self._answers.give_up(batch, str(error))
