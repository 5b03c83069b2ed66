"""Prepares batches for a request: decides whether a partition may send a batch, and assigns its sequence numbers.

To the broker, these numbers identify the records permanently, so they are assigned as late as possible, and are
discarded only if the records cannot be in a log."""

from __future__ import annotations

from aioproducer.cluster import NO_TOPIC_ID
from aioproducer.core import Core
from aioproducer.errors import KafkaError
from aioproducer.network.metadata import Metadata
from aioproducer.records._record_path import BatchState, PartitionQueue
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.batch import ProducerBatch
from aioproducer.records.idempotence import Idempotence, PartitionSequence
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.transactions.state import Transaction, abortable

NEW_EPOCH = (
    "a new producer epoch began before the records were acknowledged, because records before them failed or the broker "
    "lost this producer's state"
)
"""The error text for a batch that may be in the log with sequence numbers of the old epoch."""


class Numbering:
    """Decides which partitions may send a batch now, and numbers the batch. Used only by the sender task."""

    def __init__(
        self,
        core: Core,
        accumulator: Accumulator,
        metadata: Metadata,
        idempotence: Idempotence,
        transaction: Transaction,
        results: ProduceResults,
    ) -> None:
        self._most_in_flight = core.config.max_in_flight_per_partition
        self._accumulator = accumulator
        self._metadata = metadata
        self._idempotence = idempotence
        self._transaction = transaction
        self._results = results
        self._wake = core.wake

    def prepare(self, queue: PartitionQueue) -> bool:
        """Return whether the first batch for this partition may be sent now, in addition to those in flight.

        While no batch for the partition is in flight, prepare() also creates a new sequence if the topic was
        re-created, and begins a new epoch after a gap. It fails batches that can no longer be sent.
        """
        batch: ProducerBatch = queue.batches[0]
        if self._transaction.is_used and not self._join_or_abort(queue):
            return False
        if not self._idempotence.enabled:
            # Without sequence numbers, a second batch could overtake a first one that has to be sent again.
            return len(queue.in_flight) < self._most_in_flight
        if queue.in_flight:
            # A batch is sent again only when no other batch for its partition is in flight.
            return (
                batch.first_sequence < 0
                and queue.sequence is not None
                and self._is_for_topic_of(queue, queue.sequence)
                and len(queue.in_flight)
                < self._idempotence.may_be_in_flight(queue.sequence, queue.node_id, self._most_in_flight)
            )
        sequence = self._sequence_of(queue)
        if self._transaction.is_used and self._transaction.rejects_records:
            return False
        if batch.first_sequence < 0 and (sequence.has_gap or sequence.identity != self._idempotence.identity):
            self._begin(queue, sequence)
        has_numbers = batch.first_sequence >= 0 or self._idempotence.identity is not None
        return has_numbers and batch.state is not BatchState.DONE

    def number(self, batch: ProducerBatch) -> None:
        """Assign sequence numbers to a batch that is being sent for the first time, if the producer is idempotent.
        (ProduceResults numbers the halves of a split batch.)"""
        if self._idempotence.enabled and batch.first_sequence < 0:
            sequence = batch.queue.sequence
            assert sequence is not None  # set by prepare()
            batch.number(sequence.identity, self._idempotence.take(sequence, batch.record_count))

    def end_if_for_old_topic(self, batch: ProducerBatch) -> bool:
        """Fail a batch that may be in the log of a topic that has since been re-created. Return whether the batch has
        ended.

        prepare() finds such batches, except in partitions that the new topic does not have."""
        queue = batch.queue
        if (
            queue.sequence is not None
            and not queue.in_flight
            and not self._is_for_topic_of(queue, queue.sequence)
        ):
            self._sequence_of(queue)
        return batch.state is BatchState.DONE

    def _join_or_abort(self, queue: PartitionQueue) -> bool:
        """Return whether the transaction permits writing records to this partition now."""
        if not self._transaction.admit(queue.topic, queue.partition):
            return False
        if self._transaction.is_anothers(queue.topic, queue.partition):
            cause = KafkaError(
                f"{queue.topic}-{queue.partition} was exported to another producer, but this one also has records for "
                "it; send records only to partitions that were not exported"
            )
            self._transaction.require_abort(abortable(self._transaction, cause))
            self._wake.set()
            return False
        return True

    def _is_for_topic_of(self, queue: PartitionQueue, sequence: PartitionSequence) -> bool:
        """Return False if the topic was re-created. Batches in flight then belong to the old one and must end first."""
        topic = self._metadata.cluster.topics.get(queue.topic)
        if topic is None or topic.topic_id is sequence.topic_id:
            return True
        return not topic.topic_id.int or not sequence.topic_id.int or topic.topic_id == sequence.topic_id

    def _sequence_of(self, queue: PartitionQueue) -> PartitionSequence:
        """Return the sequence of a partition that has nothing in flight. If its topic was re-created, create a new
        sequence."""
        topic = self._metadata.cluster.topics.get(queue.topic)
        topic_id = NO_TOPIC_ID if topic is None else topic.topic_id
        if queue.sequence is not None and queue.sequence.topic_id is topic_id:
            return queue.sequence  # a shortcut for the usual case
        sequence = self._idempotence.sequence_of(queue.sequence, topic_id, queue.partition)
        if queue.sequence is not sequence:
            if queue.sequence is not None:
                # The new log may already contain records with our numbers, from batches that addressed the topic by
                # name or were sent again. A new epoch avoids a conflict.
                if self._transaction.is_used:
                    cause = KafkaError(
                        f"topic {queue.topic} was re-created while the transaction wrote to it"
                    )
                    # With v1, the next transaction would continue this epoch, but the new log may already contain its
                    # sequence numbers.
                    self._transaction.epoch_is_spent |= self._transaction.may_have_started
                    self._transaction.require_abort(abortable(self._transaction, cause))
                    self._wake.set()  # the next pass fails the records that were not sent
                elif self._idempotence.identity is not None:
                    self._idempotence.bump()
                self._leave_old_topic(queue, topic_id.int)
            queue.sequence = sequence
        return sequence

    def _begin(self, queue: PartitionQueue, sequence: PartitionSequence) -> None:
        """Prepare to number a batch while nothing is in flight: begin a new epoch if the current one has a gap."""
        before = sequence.identity
        self._idempotence.begin(sequence)
        if before is not None and sequence.identity != before:
            self._renumber(queue)

    def _leave_old_topic(self, queue: PartitionQueue, topic_id: int) -> None:
        """Redirect batches that were numbered for a deleted topic to the topic with this id.

        A batch that may already be in the new topic's log fails instead. A batch that was addressed by the old
        topic's id cannot be in that log (ReplicaManager.getPartitionOrException compares the ids before the append).
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
        """Clear the sequence numbers of batches from an old epoch, so that they get new ones. Batches that may be in
        the log fail."""
        for batch in list(queue.batches):
            if batch.state is BatchState.DONE or not batch.is_numbered:
                continue
            if batch.maybe_persisted:
                self._give_up_in_doubt(batch, NEW_EPOCH)
            else:
                batch.number(None, -1)

    def _give_up_in_doubt(self, batch: ProducerBatch, reason: str) -> None:
        self._accumulator.forget(batch)
        self._results.give_up(batch, reason)
        self._wake.set()  # later batches can be sent now
