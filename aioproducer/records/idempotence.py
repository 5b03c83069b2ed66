"""Keeps the producer id, its epoch, and the sequence numbers of each partition. This module makes decisions but sends
nothing.

(producer id, epoch, topic id, partition, first sequence) permanently names one byte string. A broker that knows the
name answers "success" without looking at the bytes: using a name twice means silent data loss."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from aioproducer.protocol._request_path import untrack

LAST_SEQUENCE = 2**31 - 1
LAST_EPOCH = 2**15 - 1


class ProducerIdentity(NamedTuple):
    """A producer id and epoch from InitProducerId. The epoch may have been raised since then (KIP-360)."""

    producer_id: int
    epoch: int
    is_transactional: bool = False
    """True if the producer has a transactional id: batches have the transactional bit, and the coordinator raises the
    epoch."""


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence number `count` records later; 0 follows 2**31 - 1 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + count) & LAST_SEQUENCE


class PartitionSequence:
    """The sequence state of one partition.

    The state is kept until the producer closes, even while the topic is missing from the metadata. If the topic is
    re-created, the state of the former topic is kept as long as its epoch is in use."""

    __slots__ = ("confirmed_on", "has_gap", "identity", "next_sequence", "topic_id")

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id = topic_id
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0
        self.confirmed_on: tuple[ProducerIdentity, int] | None = None
        """The (identity, leader) of the last acknowledgement; this leader has state for this producer."""
        self.has_gap = False
        """True if a numbered batch failed: the following batches need a new epoch, unless a later batch is
        acknowledged."""
        untrack(self)

    def adopt(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next_sequence = 0
        self.confirmed_on = None
        self.has_gap = False


class Idempotence:
    """The sequence numbers of one producer. The sender assigns them; the tasks that get a new identity reset them."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.identity: ProducerIdentity | None = None
        """The identity for new batches; changed only by `use`."""
        self.needs_identity = enabled
        """True while no batch can be numbered, because a broker must first provide a producer id."""
        self._sequences: dict[UUID, dict[int, PartitionSequence]] = {}
        self._replaced: set[tuple[UUID, int]] = set()
        """The partitions, as (topic id, number), whose topic was re-created with another id. Outdated metadata may
        still contain the old id."""
        self._confirmations: dict[int, tuple[ProducerIdentity, int]] = {}
        """The last (identity, leader) of each leader, kept so that all of its partitions share one tuple."""

    def use(self, identity: ProducerIdentity | None) -> None:
        """Number batches under this identity from now on; with None, wait for a new identity."""
        self.identity = identity
        self.needs_identity = self.enabled and identity is None

    def sequence_of(
        self, known: PartitionSequence | None, topic_id: UUID, partition: int
    ) -> PartitionSequence:
        """Return the state of a partition in the topic with this id. The id is zero if the cluster has no topic ids.

        A topic that was re-created under the same name has another id and starts with new state. A topic whose id has
        only just become known keeps its state: restarting at 0 under the same epoch would reuse sequence numbers, and
        the broker could drop new records as duplicates.
        """
        if not topic_id.int:
            return known if known is not None else PartitionSequence(topic_id)
        sequences = self._sequences.setdefault(topic_id, {})
        found = sequences.get(partition)
        if found is None:
            found = PartitionSequence(topic_id)
            if known is not None and not known.topic_id.int:
                found = known
            found.topic_id = topic_id
            sequences[partition] = found
        if found is not known and known is not None and known.topic_id.int:
            self._replace((known.topic_id, partition), (topic_id, partition))
        return found

    def _replace(self, old: tuple[UUID, int], new: tuple[UUID, int]) -> None:
        """Record that a topic was re-created, and forget replaced topics whose epoch is no longer in use."""
        self._replaced.discard(new)
        self._replaced.add(old)
        for topic_id, partition in list(self._replaced):
            sequences = self._sequences[topic_id]
            if self.identity is not None and sequences[partition].identity != self.identity:
                self._replaced.remove((topic_id, partition))
                del sequences[partition]
                if not sequences:
                    del self._sequences[topic_id]

    def may_be_in_flight(self, sequence: PartitionSequence, leader: int, most: int) -> int:
        """Return how many batches for the partition may be in flight to `leader`.

        The limit is one until the first acknowledgement. A broker without state for the producer accepts any first
        sequence, so if a second batch overtook a rejected first one, the first could never be appended (KAFKA-15591).
        """
        if not self.enabled:
            return 1
        current = self.identity
        if current is None or sequence.identity != current or sequence.has_gap:
            return 1
        return most if sequence.confirmed_on == (current, leader) else 1

    def begin(self, sequence: PartitionSequence) -> None:
        """Start a new epoch if there is a gap. Call this before numbering, while no batch for the partition is in
        flight."""
        if sequence.has_gap and sequence.identity == self.identity:
            self.bump()
        if self.identity is not None and sequence.identity != self.identity:
            sequence.adopt(self.identity)

    def bump(self) -> None:
        """Raise the epoch by one, without asking a broker (KIP-360). After the last possible epoch, a new producer id
        is needed."""
        assert self.identity is not None
        assert not self.identity.is_transactional
        producer_id, epoch, _ = self.identity
        self.use(ProducerIdentity(producer_id, epoch + 1) if epoch < LAST_EPOCH else None)

    def discard(self, identity: ProducerIdentity) -> None:
        """Stop using a producer id that another producer also uses; a broker must provide another one."""
        assert not identity.is_transactional
        if self.identity is not None and self.identity.producer_id == identity.producer_id:
            self.use(None)

    def take(self, sequence: PartitionSequence, record_count: int) -> int:
        """Return the first sequence number of a new batch, and advance the sequence by its record count."""
        first = sequence.next_sequence
        sequence.next_sequence = sequence_after(first, record_count)
        return first

    def note_acknowledged(self, sequence: PartitionSequence, identity: ProducerIdentity, leader: int) -> None:
        if sequence.identity == identity:
            confirmation = self._confirmations.get(leader)
            if confirmation is None or confirmation[0] != identity:
                confirmation = self._confirmations[leader] = identity, leader
            sequence.confirmed_on = confirmation
            # The broker accepted a later batch in this epoch, so it has all earlier ones.
            sequence.has_gap = False

    def note_given_up(self, sequence: PartitionSequence, identity: ProducerIdentity) -> None:
        if sequence.identity == identity:
            sequence.has_gap = True
