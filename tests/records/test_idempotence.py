"""Sequences, epochs, and the number of batches in flight: the rules that give each byte string a unique name."""

from __future__ import annotations

import gc
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.records.idempotence import (
    LAST_EPOCH,
    LAST_SEQUENCE,
    Idempotence,
    PartitionSequence,
    ProducerIdentity,
    sequence_after,
)

TOPIC = UUID(int=1)
NO_ID = UUID(int=0)
IDENTITY = ProducerIdentity(4711, 0)
LEADER, OTHER_LEADER = 1, 2
MOST = 5


def begun(epoch: int = 0) -> tuple[Idempotence, PartitionSequence]:
    """Return the numbers of a producer with an identity, and a partition that has adopted it."""
    idempotence = Idempotence(True)
    idempotence.use(ProducerIdentity(4711, epoch))
    sequence = idempotence.sequence_of(None, TOPIC, 0)
    idempotence.begin(sequence)
    return idempotence, sequence


# --------------------------------------------------------------------------------------------------- sequences


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [
        (0, 1, 1),
        (0, 0, 0),
        (LAST_SEQUENCE - 1, 1, LAST_SEQUENCE),
        (LAST_SEQUENCE, 1, 0),
        # org.apache.kafka.common.record.DefaultRecordBatchTest.testIncrementSequence
        (LAST_SEQUENCE - 1, 2, 0),
        (0, 5, 5),
        (LAST_SEQUENCE, 2, 1),
        (LAST_SEQUENCE - 10, 100, 89),
    ],
)
def test_sequence_wraps_to_zero(sequence, count, expected):
    assert sequence_after(sequence, count) == expected


@given(st.integers(0, LAST_SEQUENCE), st.integers(1, LAST_SEQUENCE))
def test_a_sequence_is_incremented_as_in_kafka(sequence, count):
    expected = (
        sequence + count if sequence <= LAST_SEQUENCE - count else count - (LAST_SEQUENCE - sequence) - 1
    )

    assert sequence_after(sequence, count) == expected


def test_the_last_numbers_are_the_largest_that_the_wire_format_allows():
    struct.pack(">ih", LAST_SEQUENCE, LAST_EPOCH)

    with pytest.raises(struct.error):
        struct.pack(">i", LAST_SEQUENCE + 1)
    with pytest.raises(struct.error):
        struct.pack(">h", LAST_EPOCH + 1)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "the producer id is requested until a broker returns one, and batches are numbered consecutively",
)
def test_batches_of_a_partition_are_numbered_consecutively():
    idempotence, sequence = begun()

    assert [idempotence.take(sequence, count) for count in (3, 1, 500, 1)] == [0, 3, 4, 504]


@pytest.mark.promise("Accumulator, sender, connections", "sequences wrap from 2^31-1 to 0")
def test_a_batch_that_straddles_the_wrap_starts_before_it_and_the_next_one_after_it():
    idempotence, sequence = begun()
    sequence.next_sequence = LAST_SEQUENCE - 1

    # Its five records have the sequences 2**31-2, 2**31-1, 0, 1, 2.
    assert idempotence.take(sequence, 5) == LAST_SEQUENCE - 1
    assert idempotence.take(sequence, 1) == 3


def test_batch_that_ends_with_the_last_sequence_is_followed_by_zero():
    idempotence, sequence = begun()
    sequence.next_sequence = LAST_SEQUENCE - 4

    assert idempotence.take(sequence, 5) == LAST_SEQUENCE - 4
    assert idempotence.take(sequence, 5) == 0


# ---------------------------------------------------------------------------------------------- keyed by topic id


def test_state_is_kept_for_each_topic_id_and_partition():
    idempotence, sequence = begun()
    idempotence.take(sequence, 7)

    assert idempotence.sequence_of(None, TOPIC, 0) is sequence
    assert idempotence.sequence_of(sequence, TOPIC, 0) is sequence
    assert idempotence.sequence_of(None, TOPIC, 1) is not sequence


def test_the_state_of_a_partition_is_hidden_from_the_garbage_collector():
    """Otherwise, a full collection would visit the state of every partition ever written to."""
    _, sequence = begun()

    assert not gc.is_tracked(sequence)


def test_a_re_created_topic_starts_at_zero_and_the_old_one_is_remembered():
    idempotence, sequence = begun()
    idempotence.take(sequence, 7)

    again = idempotence.sequence_of(sequence, UUID(int=2), 0)

    assert again is not sequence
    assert (again.topic_id, again.next_sequence, again.identity) == (UUID(int=2), 0, None)
    assert idempotence.sequence_of(again, TOPIC, 0) is sequence


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "nothing grows: the sequences of a topic that was re-created are forgotten with their epoch",
)
def test_sequences_of_re_created_topics_are_forgotten_with_their_epoch():
    idempotence, sequence = begun()
    idempotence.take(sequence, 3)

    for number in range(2, 100):
        sequence = idempotence.sequence_of(sequence, UUID(int=number), 0)
        idempotence.bump()
        idempotence.begin(sequence)
        idempotence.take(sequence, number)

    assert {topic_id: set(found) for topic_id, found in idempotence._sequences.items()} == {
        UUID(int=98): {0},
        UUID(int=99): {0},
    }


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "nothing grows: the sequences of a topic that was re-created are forgotten with their epoch",
)
def test_sequences_of_re_created_topics_are_kept_as_long_as_their_epoch():
    idempotence, first = begun()
    idempotence.take(first, 3)
    sequence = first
    for number in range(2, 10):
        sequence = idempotence.sequence_of(sequence, UUID(int=number), 0)
        idempotence.begin(sequence)

    again = idempotence.sequence_of(sequence, TOPIC, 0)

    assert again is first
    assert again.next_sequence == 3


def test_the_sequence_of_a_topic_that_was_not_re_created_is_kept_through_all_epochs():
    idempotence, sequence = begun()

    for _ in range(3):
        assert idempotence.sequence_of(sequence, TOPIC, 0) is sequence
        idempotence.bump()


def test_a_topic_whose_id_was_unknown_does_not_count_as_re_created():
    idempotence, sequence = begun()
    without_id = idempotence.sequence_of(None, NO_ID, 0)

    assert idempotence.sequence_of(without_id, TOPIC, 0) is sequence


def test_without_an_epoch_nothing_is_forgotten():
    idempotence, first = begun(LAST_EPOCH)
    idempotence.bump()
    second = idempotence.sequence_of(first, UUID(int=2), 0)

    assert idempotence.identity is None
    assert idempotence.sequence_of(second, TOPIC, 0) is first


def test_the_sequence_of_a_topic_id_that_returns_is_not_forgotten():
    idempotence, first = begun()
    second = idempotence.sequence_of(first, UUID(int=2), 0)
    idempotence.sequence_of(second, TOPIC, 0)
    idempotence.bump()

    other = idempotence.sequence_of(None, TOPIC, 1)
    idempotence.begin(other)
    idempotence.sequence_of(other, UUID(int=2), 1)

    assert idempotence.sequence_of(first, TOPIC, 0) is first


def test_state_is_kept_while_the_topic_id_is_missing_from_metadata():
    idempotence, sequence = begun()
    idempotence.take(sequence, 7)

    assert idempotence.sequence_of(sequence, NO_ID, 0) is sequence
    assert sequence.topic_id == TOPIC


def test_state_of_a_topic_without_id_is_kept_when_its_id_is_learned():
    idempotence = Idempotence(True)
    idempotence.use(IDENTITY)
    sequence = idempotence.sequence_of(None, NO_ID, 0)
    idempotence.begin(sequence)
    idempotence.take(sequence, 7)
    assert idempotence.sequence_of(sequence, NO_ID, 0) is sequence

    learned = idempotence.sequence_of(sequence, TOPIC, 0)

    assert learned is sequence
    assert (learned.topic_id, learned.next_sequence) == (TOPIC, 7)
    assert idempotence.sequence_of(learned, UUID(int=2), 0) is not sequence


def test_each_partition_has_its_own_sequence():
    idempotence, first = begun()
    second = idempotence.sequence_of(None, TOPIC, 1)
    idempotence.begin(second)

    idempotence.take(first, 100)

    assert idempotence.take(second, 1) == 0


# ------------------------------------------------------------------------------------------------ in flight


def test_one_batch_is_in_flight_until_the_first_acknowledgement():
    idempotence, sequence = begun()
    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == 1

    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)

    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == MOST


def test_an_acknowledgement_counts_only_for_its_leader():
    idempotence, sequence = begun()

    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)

    assert idempotence.may_be_in_flight(sequence, OTHER_LEADER, MOST) == 1
    idempotence.note_acknowledged(sequence, IDENTITY, OTHER_LEADER)
    assert idempotence.may_be_in_flight(sequence, OTHER_LEADER, MOST) == MOST
    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == 1


def test_an_acknowledgement_counts_only_for_its_identity():
    idempotence, sequence = begun()
    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)

    idempotence.bump()
    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == 1  # the new epoch is not adopted yet
    idempotence.begin(sequence)
    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == 1
    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)  # a late answer under the old epoch

    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == 1
    assert idempotence.identity is not None
    idempotence.note_acknowledged(sequence, idempotence.identity, LEADER)
    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == MOST


def test_one_batch_is_in_flight_without_numbers_or_without_an_identity():
    disabled = Idempotence(False)
    assert disabled.may_be_in_flight(disabled.sequence_of(None, TOPIC, 0), LEADER, MOST) == 1
    without = Idempotence(True)
    assert without.may_be_in_flight(without.sequence_of(None, TOPIC, 0), LEADER, MOST) == 1


def test_one_batch_is_in_flight_while_there_is_a_gap():
    idempotence, sequence = begun()
    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)

    idempotence.note_given_up(sequence, IDENTITY)

    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == 1


def test_at_first_nothing_is_confirmed_for_a_new_partition_or_a_new_epoch():
    idempotence, sequence = begun()
    assert PartitionSequence(TOPIC).confirmed_on is None
    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)
    assert sequence.confirmed_on == (IDENTITY, LEADER)

    idempotence.bump()
    idempotence.begin(sequence)

    assert sequence.confirmed_on is None


# -------------------------------------------------------------------------------------------------- gaps, epochs


def test_identity_is_needed_only_where_batches_are_numbered():
    idempotence = Idempotence(True)
    assert idempotence.needs_identity
    idempotence.use(IDENTITY)
    assert not idempotence.needs_identity
    assert not Idempotence(False).needs_identity


def test_partition_adopts_the_identity_when_it_begins():
    idempotence = Idempotence(True)
    sequence = idempotence.sequence_of(None, TOPIC, 0)
    idempotence.begin(sequence)
    assert sequence.identity is None

    idempotence.use(IDENTITY)
    idempotence.begin(sequence)

    assert sequence.identity == IDENTITY


def test_a_second_begin_keeps_the_numbers():
    idempotence, sequence = begun()
    idempotence.take(sequence, 5)
    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)

    idempotence.begin(sequence)

    assert idempotence.identity == IDENTITY
    assert sequence.next_sequence == 5
    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == MOST


@pytest.mark.promise("KIPs", "KIP-360: a new epoch without a new producer id")
def test_a_gap_raises_the_epoch_when_the_partition_begins_again_and_not_before():
    idempotence, sequence = begun()
    idempotence.take(sequence, 5)

    idempotence.note_given_up(sequence, IDENTITY)
    assert idempotence.identity == IDENTITY
    idempotence.begin(sequence)

    assert idempotence.identity == ProducerIdentity(4711, 1)
    assert sequence.identity == idempotence.identity
    assert idempotence.take(sequence, 1) == 0
    assert not sequence.has_gap


@pytest.mark.promise("KIPs", "KIP-360: a new epoch without a new producer id")
def test_other_partitions_adopt_a_raised_epoch_when_they_begin():
    idempotence, sequence = begun()
    other = idempotence.sequence_of(None, TOPIC, 1)
    idempotence.begin(other)
    idempotence.take(other, 9)
    idempotence.note_given_up(sequence, IDENTITY)
    idempotence.begin(sequence)
    assert (other.identity, other.next_sequence) == (IDENTITY, 9)

    idempotence.begin(other)

    assert idempotence.identity == ProducerIdentity(4711, 1)
    assert (other.identity, other.next_sequence) == (idempotence.identity, 0)


def test_two_gaps_under_one_epoch_raise_it_once():
    idempotence, sequence = begun()
    other = idempotence.sequence_of(None, TOPIC, 1)
    idempotence.begin(other)

    idempotence.note_given_up(sequence, IDENTITY)
    idempotence.note_given_up(other, IDENTITY)
    idempotence.begin(sequence)
    idempotence.begin(other)

    assert idempotence.identity == ProducerIdentity(4711, 1)
    assert not other.has_gap


def test_later_acknowledgement_under_the_same_identity_closes_a_gap():
    idempotence, sequence = begun()
    idempotence.note_given_up(sequence, IDENTITY)

    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)
    idempotence.begin(sequence)

    assert idempotence.identity == IDENTITY


def test_results_under_an_old_identity_change_nothing():
    idempotence, sequence = begun()
    idempotence.bump()
    idempotence.begin(sequence)

    idempotence.note_given_up(sequence, IDENTITY)
    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)

    assert not sequence.has_gap
    assert sequence.confirmed_on is None


def test_an_acknowledgement_under_an_old_identity_does_not_close_a_gap():
    idempotence, sequence = begun()
    idempotence.bump()
    idempotence.begin(sequence)
    idempotence.note_given_up(sequence, sequence.identity)

    idempotence.note_acknowledged(sequence, IDENTITY, LEADER)

    assert sequence.has_gap


def test_after_the_last_epoch_a_new_identity_is_needed_with_which_the_partition_starts_at_zero():
    idempotence, sequence = begun(epoch=LAST_EPOCH)
    idempotence.take(sequence, 5)
    idempotence.note_given_up(sequence, ProducerIdentity(4711, LAST_EPOCH))

    idempotence.begin(sequence)

    assert idempotence.identity is None
    assert idempotence.needs_identity
    assert sequence.identity == ProducerIdentity(4711, LAST_EPOCH)
    assert idempotence.may_be_in_flight(sequence, LEADER, MOST) == 1
    idempotence.begin(sequence)  # without an identity, this does nothing
    assert idempotence.identity is None
    idempotence.use(ProducerIdentity(4712, 0))
    idempotence.begin(sequence)
    assert idempotence.identity == ProducerIdentity(4712, 0)
    assert idempotence.take(sequence, 1) == 0


def test_the_last_epoch_itself_is_used():
    idempotence, _ = begun(epoch=LAST_EPOCH - 1)

    idempotence.bump()

    assert idempotence.identity == ProducerIdentity(4711, LAST_EPOCH)


def test_the_epoch_of_a_transactional_id_is_never_raised_here():
    idempotence = Idempotence(True)
    idempotence.use(ProducerIdentity(4711, 0, is_transactional=True))

    with pytest.raises(AssertionError):
        idempotence.bump()

    assert idempotence.identity.epoch == 0


def test_a_producer_id_that_another_producer_also_uses_is_discarded_with_any_epoch():
    idempotence, _ = begun(epoch=3)

    idempotence.discard(ProducerIdentity(4711, 1))

    assert idempotence.identity is None
    idempotence.discard(ProducerIdentity(4711, 1))
    assert idempotence.identity is None


def test_discarding_leaves_an_identity_with_another_producer_id():
    idempotence, _ = begun()

    idempotence.discard(ProducerIdentity(4712, 0))

    assert idempotence.identity == ProducerIdentity(4711, 0)


def test_the_producer_id_of_a_transactional_id_is_never_discarded_here():
    idempotence = Idempotence(True)
    identity = ProducerIdentity(4711, 0, is_transactional=True)
    idempotence.use(identity)

    with pytest.raises(AssertionError):
        idempotence.discard(identity)

    assert idempotence.identity == identity


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "the producer id is requested until a broker returns one, and batches are numbered consecutively",
)
@given(
    st.lists(st.sampled_from(["take", "give up", "acknowledge", "bump", "begin"]), max_size=60),
    st.integers(1, 9),
)
def test_no_sequence_number_is_ever_used_twice(steps, count):
    idempotence, sequence = begun()
    given_names: set[tuple[ProducerIdentity, int]] = set()

    for step in steps:
        assert sequence.identity is not None
        if step == "take" and sequence.identity == idempotence.identity and not sequence.has_gap:
            first = idempotence.take(sequence, count)
            names = {(sequence.identity, first + offset) for offset in range(count)}
            assert not names & given_names
            given_names |= names
        elif step == "give up":
            idempotence.note_given_up(sequence, sequence.identity)
        elif step == "acknowledge":
            idempotence.note_acknowledged(sequence, sequence.identity, LEADER)
        elif step == "bump":
            idempotence.bump()
        elif step == "begin":
            idempotence.begin(sequence)
