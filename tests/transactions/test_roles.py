"""The rights of an owner, a participant and an heir in a transaction."""

from __future__ import annotations

import pytest

from aioproducer.errors import InvalidRecordError
from aioproducer.transactions.roles import HEIR, OWNER, Participant
from aioproducer.types import TopicPartition


def participant(*, detects_repetitions: bool = False) -> Participant:
    return Participant([TopicPartition("t", 1)], detects_repetitions=detects_repetitions)


def test_only_a_participant_shares_its_producer_id_with_other_writers():
    assert (OWNER.is_only_writer, HEIR.is_only_writer, participant().is_only_writer) == (True, True, False)


def test_only_the_heir_writes_nothing_and_ends_with_the_transaction():
    roles = (OWNER, participant(), HEIR)
    assert [role.may_write for role in roles] == [True, True, False]
    assert [role.stays_after_end for role in roles] == [True, True, False]


def test_a_participant_writes_to_the_partitions_it_was_given():
    participant().check_is_own("t", 1)


@pytest.mark.parametrize(("topic", "partition"), [("t", 0), ("u", 1)])
def test_a_participant_does_not_write_to_partitions_that_may_belong_to_another_one(topic, partition):
    with pytest.raises(InvalidRecordError, match=f"partition {partition} of topic {topic} ") as caught:
        participant().check_is_own(topic, partition)

    assert caught.value.argument == "partition"


@pytest.mark.parametrize("role", [OWNER, HEIR])
def test_an_owner_may_write_to_each_partition(role):
    role.check_is_own("t", 0)
    assert role.refusals("t", 3) is None


def test_the_rejections_of_a_participant_grow_with_the_topic():
    role = participant()

    assert [type(refusal) for refusal in role.refusals("t", 2)] == [InvalidRecordError, type(None)]
    refusals = role.refusals("t", 3)

    assert [type(refusal) for refusal in refusals] == [InvalidRecordError, type(None), InvalidRecordError]
    assert refusals[2].__traceback__ is None, "a traceback would keep the frame alive"


@pytest.mark.parametrize("has_time", [False, True])
@pytest.mark.parametrize("has_error", [False, True])
@pytest.mark.parametrize("detects_repetitions", [False, True])
def test_answers_that_reveal_an_earlier_batch_are_recognized(has_time, has_error, detects_repetitions):
    role = participant(detects_repetitions=detects_repetitions)
    expected = has_error or (has_time and detects_repetitions)

    assert role.is_repetition(has_time=has_time, has_error=has_error) is expected
    assert OWNER.is_repetition(has_time=has_time, has_error=has_error) is False
