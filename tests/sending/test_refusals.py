"""The texts of failed deliveries: they say what is known about the records, and quote brokers safely."""

from __future__ import annotations

import pytest

from aioproducer import DeliveryError, DeliveryTimeoutError, Outcome
from aioproducer.errors import BrokerError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.outcomes import Action, Moment, advice
from aioproducer.records.batch import NAMED, ProducerBatch
from aioproducer.sending.refusals import PartitionAnswer, error_of, message_of, reason_of
from tests.support.compiled_path import new_batch


def sent(attempts: int = 1, broker: int = 3) -> ProducerBatch:
    """Return a batch that was sent `attempts` times."""
    batch = new_batch()
    batch.try_append(b"secret", b"secret", 1, None)
    batch.close()
    for _ in range(attempts):
        batch.mark_sent(broker)
        batch.mark_returned()
    return batch


def answer_of(code: int, message: str | None = None) -> ProduceResponse.PartitionProduceResponse:
    return ProduceResponse.PartitionProduceResponse(error_code=code, error_message=message)


def refusal_of(
    code: int,
    action: Action,
    message: str | None = None,
    *,
    batch: ProducerBatch | None = None,
    **given: bool,
) -> str:
    answer = answer_of(code, message)
    in_doubt = given.get("was_in_doubt", False)
    return PartitionAnswer(batch or sent(), answer, ProduceResponse(), action, 0.0, in_doubt).refusal


def error_after(batch: ProducerBatch, count: int = 1, **given: object) -> DeliveryError:
    settings = {"elapsed": 1.25, "count": count, "requires_abort": False, "requires_reinit": False, **given}
    return error_of(batch, "the reason", DeliveryError, **settings)


# -------------------------------------------------------------------------------------------- the broker's answer


def test_a_brokers_message_is_quoted_without_control_characters():
    assert message_of(answer_of(1)) == message_of(answer_of(1, "")) == ""
    assert message_of(answer_of(1, "no\x1b[2J")) == r": no\x1b[2J"


def test_a_rejection_names_the_broker_the_code_its_message_and_the_advice():
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert advice(code)

    text = refusal_of(code, Action.FAIL, "ask ann")

    assert "broker 3 rejected" in text
    assert "TOPIC_AUTHORIZATION_FAILED: ask ann" in text
    assert text.endswith(advice(code))


def test_records_that_were_damaged_in_memory_are_not_blamed_on_the_broker():
    batch = sent()

    damaged = refusal_of(ErrorCode.CORRUPT_MESSAGE, Action.DAMAGED, batch=batch)

    assert "in this process's memory" in damaged
    assert f"{batch.wire_size} bytes" in damaged
    assert "memory" not in refusal_of(ErrorCode.CORRUPT_MESSAGE, Action.FAIL)


def test_a_batch_already_in_the_log_is_blamed_on_a_second_writer_unless_an_answer_was_lost():
    first = refusal_of(0, Action.FAIL)
    doubtful = refusal_of(0, Action.FAIL, was_in_doubt=True)

    assert "another producer has written to the partition" in first
    assert "an earlier attempt was lost" not in first
    assert "an earlier attempt was lost" in doubtful


# -------------------------------------------------------------------------------------------------- the error


def test_an_expired_batch_names_the_last_error_and_one_behind_a_failed_batch_does_not():
    batch = sent()
    batch.last_error = BrokerError("NOT_ENOUGH_REPLICAS")

    assert "NOT_ENOUGH_REPLICAS" in reason_of(batch, Moment.EXPIRED)
    assert "NOT_ENOUGH_REPLICAS" not in reason_of(batch, Moment.BEHIND)


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_the_outcome_and_the_text_of_an_error_agree(count, in_doubt):
    batch = sent()
    if in_doubt:
        batch.doubt(NAMED)

    error = error_after(batch, count)

    assert error.outcome is (Outcome.UNKNOWN if in_doubt else Outcome.NOT_PERSISTED)
    not_persisted = "it is not in the log" if count == 1 else "they are not in the log"
    assert ("may be in the log" in str(error)) == in_doubt
    assert (not_persisted in str(error)) != in_doubt
    assert str(error).startswith(f"{count} record{'s' if count > 1 else ''} for orders-0 failed after ")


def test_an_error_has_the_details_as_fields_and_contains_no_record():
    batch = sent(attempts=2)
    batch.last_error = BrokerError("busy")

    error = error_of(
        batch,
        "the reason",
        DeliveryTimeoutError,
        elapsed=1.25,
        count=1,
        requires_abort=True,
        requires_reinit=False,
    )

    assert type(error) is DeliveryTimeoutError
    assert (error.topic, error.partition, error.broker, error.attempts) == ("orders", 0, 3, 2)
    assert (error.elapsed, error.last_error) == (1.25, batch.last_error)
    assert (error.requires_abort, error.requires_reinit) == (True, False)
    assert "1.250 s and 2 attempts: the reason" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(("attempts", "tried"), [(0, "0 attempts"), (1, "1 attempt:"), (2, "2 attempts")])
def test_attempts_are_counted_in_plain_numbers(attempts, tried):
    error = error_after(sent(attempts))

    assert tried in str(error)
    assert error.broker == (3 if attempts else None)
