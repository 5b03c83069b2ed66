"""Producer id, epoch and the sequence numbers of each partition: decides, sends nothing.

(producer id, epoch, topic id, partition, first sequence) names one byte string, ever: a broker that knows the name
answers "success" without looking at the bytes, so a name used twice is a silent loss."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

LAST_SEQUENCE = 2**31 - 1
LAST_EPOCH = 2**15 - 1


class ProducerIdentity(NamedTuple):
    """What InitProducerId gave us, with the epoch as we have raised it since (KIP-360)."""

    producer_id: int
    epoch: int
    is_transactional: bool = False
    """Of a transactional id: its batches carry the transactional bit, and its epoch is the coordinator's to raise."""


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` records later; 2**31 - 1 is followed by 0 (DefaultRecordBatch.incrementSequence)."""
    return (sequence + count) & LAST_SEQUENCE


class PartitionSequence:
    """Where one partition stands. Lives as long as the producer, also while metadata does not know the topic; after its
    topic was made anew, as long as its epoch."""

    __slots__ = ("confirmed_on", "has_gap", "identity", "next_sequence", "topic_id")

    def __init__(self, topic_id: UUID) -> None:
        self.topic_id = topic_id
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0
        self.confirmed_on: tuple[ProducerIdentity, int] | None = None
        """(identity, leader) of the last acknowledgement: this broker knows this producer."""
        self.has_gap = False
        """A numbered batch was given up: what follows needs a new epoch, unless a later one is acknowledged."""

    def adopt(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next_sequence = 0
        self.confirmed_on = None
        self.has_gap = False


class Idempotence:
    """The sequence numbers of one producer: assigned by the sender, reset by the tasks that get an identity."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.identity: ProducerIdentity | None = None
        self._sequences: dict[tuple[UUID, int], PartitionSequence] = {}
        self._replaced: set[tuple[UUID, int]] = set()
        """Of these, those of topics that were made anew since: metadata that is late may still name them."""

    @property
    def needs_identity(self) -> bool:
        return self.enabled and self.identity is None

    def sequence_of(
        self, known: PartitionSequence | None, topic_id: UUID, partition: int
    ) -> PartitionSequence:
        """The state of a partition of the topic with this id, zero if the cluster does not tell ids.

        A topic made anew under the same name has another id and starts anew. A topic whose id is learned only now
        goes on with what is known: to start again at 0 under the same epoch would give a name a second time.
        """
        if not topic_id.int:
            return known if known is not None else PartitionSequence(topic_id)
        found = self._sequences.get((topic_id, partition))
        if found is None:
            found = PartitionSequence(topic_id)
            if known is not None and not known.topic_id.int:
                found = known
            found.topic_id = topic_id
            self._sequences[topic_id, partition] = found
        if found is not known and known is not None and known.topic_id.int:
            self._replace((known.topic_id, partition), (topic_id, partition))
        return found

    def _replace(self, old: tuple[UUID, int], new: tuple[UUID, int]) -> None:
        """A topic was made anew. Who was replaced before is forgotten with its epoch: it numbers nothing any more."""
        self._replaced.discard(new)
        self._replaced.add(old)
        for place in list(self._replaced):
            if self.identity is not None and self._sequences[place].identity != self.identity:
                self._replaced.remove(place)
                del self._sequences[place]

    def may_be_in_flight(self, sequence: PartitionSequence, leader: int, most: int) -> int:
        """How many batches of the partition may be in flight to `leader`.

        One until the first acknowledgement: a broker that does not know the producer accepts any first sequence, so
        a second batch that overtakes a refused first one would shut it out for ever (KAFKA-15591).
        """
        if not self.enabled:
            return 1
        current = self.identity
        if current is None or sequence.identity != current or sequence.has_gap:
            return 1
        return most if sequence.confirmed_on == (current, leader) else 1

    def begin(self, sequence: PartitionSequence) -> None:
        """Before the next batch is numbered, with nothing of the partition in flight: close a gap by a new epoch."""
        if sequence.has_gap and sequence.identity == self.identity:
            self.bump()
        if self.identity is not None and sequence.identity != self.identity:
            sequence.adopt(self.identity)

    def bump(self) -> None:
        """Raise the epoch by one, without asking the broker (KIP-360); after the last one a new id is needed."""
        assert self.identity is not None
        assert not self.identity.is_transactional
        producer_id, epoch, _ = self.identity
        self.identity = ProducerIdentity(producer_id, epoch + 1) if epoch < LAST_EPOCH else None

    def discard(self, identity: ProducerIdentity) -> None:
        """Stop using a producer id that another producer uses too; the next one comes from a broker."""
        assert not identity.is_transactional
        if self.identity is not None and self.identity.producer_id == identity.producer_id:
            self.identity = None

    def take(self, sequence: PartitionSequence, record_count: int) -> int:
        """The first sequence of a new batch."""
        first = sequence.next_sequence
        sequence.next_sequence = sequence_after(first, record_count)
        return first

    def acknowledged(self, sequence: PartitionSequence, identity: ProducerIdentity, leader: int) -> None:
        if sequence.identity == identity:
            sequence.confirmed_on = (identity, leader)
            # The broker took a later batch of this epoch, so it has all earlier ones.
            sequence.has_gap = False

    def given_up(self, sequence: PartitionSequence, identity: ProducerIdentity) -> None:
        if sequence.identity == identity:
            sequence.has_gap = True
