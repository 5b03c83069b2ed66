"""The translation of aioproducer's errors into instances of the classes that aiokafka would have raised."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle

import pytest

from aioproducer import Outcome
from aioproducer import errors as ours
from aioproducer.compat.aiokafka import errors as theirs
from aioproducer.compat.aiokafka.translation import aiokafka_errors, translate


def refused(code):
    """Return the error that a broker's answer leaves in `last_error`."""
    return ours.BrokerError("refused", code=code, name="?")


def failed(last_error, kind=ours.DeliveryError, attempts=1):
    return kind("a record failed", outcome=Outcome.UNKNOWN, attempts=attempts, last_error=last_error)


def of_transaction(kind, cause=None, **facts):
    error = kind("a transaction failed", transactional_id="id", **facts)
    error.__cause__ = cause
    return error


CASES = {
    # Errors from start().
    "no broker": (ours.BootstrapError("no"), ["KafkaConnectionError"]),
    "wrong password": (ours.AuthenticationError("no"), ["KafkaConnectionError", "AuthenticationFailedError"]),
    "no TLS": (ours.TlsError("no"), ["KafkaConnectionError", "AuthenticationFailedError"]),
    "no such mechanism": (
        ours.UnsupportedSaslMechanismError("no"),
        ["KafkaConnectionError", "UnsupportedSaslMechanismError", "AuthenticationMethodNotSupported"],
    ),
    "wrong setting": (ours.ConfigError("no"), ["KafkaConfigurationError", "ValueError"]),
    # Errors from send().
    "full buffer": (ours.BufferTimeoutError("full"), ["KafkaTimeoutError"]),
    "unknown topic": (ours.MetadataTimeoutError("?"), ["UnknownTopicOrPartitionError"]),
    "unknown partition": (ours.UnknownPartitionError("?"), ["UnknownTopicOrPartitionError"]),
    "invalid topic": (ours.InvalidTopicError("?"), ["InvalidTopicError"]),
    "denied topic": (ours.TopicAuthorizationError("?"), ["TopicAuthorizationFailedError"]),
    "too large": (ours.RecordTooLargeError("?"), ["MessageSizeTooLargeError", "RecordTooLargeError"]),
    "not bytes": (ours.InvalidRecordError("?", argument="value"), ["TypeError", "ValueError"]),
    "stopped": (ours.ProducerClosed("?"), ["ProducerClosed"]),
    "not in a transaction": (ours.IllegalStateError("?"), ["IllegalOperation"]),
    # Delivery errors.
    "few replicas": (failed(refused(19)), ["NotEnoughReplicasError", "BrokerResponseError"]),
    "few replicas, after the append": (failed(refused(20)), ["NotEnoughReplicasAfterAppendError"]),
    "no leader": (failed(refused(5)), ["LeaderNotAvailableError"]),
    "moved leader": (failed(refused(6)), ["NotLeaderForPartitionError"]),
    "too large for the broker": (failed(refused(10)), ["MessageSizeTooLargeError"]),
    "denied by the broker": (failed(refused(29)), ["TopicAuthorizationFailedError"]),
    "fenced by its epoch": (failed(refused(47)), ["ProducerFenced", "InvalidProducerEpoch"]),
    "fenced": (failed(refused(90)), ["ProducerFenced"]),
    "a code that aiokafka does not know": (failed(refused(87)), ["UnknownError", "BrokerResponseError"]),
    "a lost connection": (
        failed(ours.BrokerConnectionError("lost")),
        ["KafkaConnectionError", "NodeNotReadyError"],
    ),
    "no answer": (failed(ours.RequestTimedOutError("late")), ["RequestTimedOutError"]),
    "an answer of another request": (
        failed(ours.CorrelationError("?")),
        ["CorrelationIdError", "KafkaProtocolError"],
    ),
    "late, after a rejection": (failed(refused(19), ours.DeliveryTimeoutError), ["NotEnoughReplicasError"]),
    "late, and never sent": (
        failed(None, ours.DeliveryTimeoutError, attempts=0),
        ["LeaderNotAvailableError", "NotLeaderForPartitionError", "RequestTimedOutError"],
    ),
    "late, and not answered": (failed(None, ours.DeliveryTimeoutError), ["RequestTimedOutError"]),
    # Transaction errors.
    "taken over": (of_transaction(ours.ProducerFencedError, refused(47)), ["ProducerFenced"]),
    "denied id": (
        of_transaction(ours.TransactionReinitError, refused(53)),
        ["TransactionalIdAuthorizationFailed"],
    ),
    "a failed record": (
        of_transaction(ours.TransactionAbortableError, last_error=failed(refused(45))),
        ["OutOfOrderSequenceNumber"],
    ),
    "a denied group": (
        of_transaction(ours.TransactionAbortableError, refused(30), last_error=ours.KafkaError("?")),
        ["GroupAuthorizationFailedError"],
    ),
    "no answer of the coordinator": (
        of_transaction(ours.TransactionTimeoutError),
        ["RequestTimedOutError"],
    ),
}


@pytest.mark.promise(
    "Coming from other clients", "`except` clauses written for aiokafka catch the same errors"
)
@pytest.mark.parametrize("case", CASES)
def test_an_error_is_caught_by_the_classes_that_aiokafka_would_have_raised(case):
    error, names = copy.copy(CASES[case][0]), CASES[case][1]
    error.__cause__ = CASES[case][0].__cause__
    before, text, facts = type(error), str(error), vars(error).copy()

    translated = translate(error)

    assert translated is error
    assert isinstance(error, before)
    for name in names:
        kind = getattr(theirs, name, None) or getattr(builtins, name)
        with pytest.raises(kind):
            raise error
    assert (str(error), vars(error)) == (text, facts)
    assert isinstance(error, theirs.KafkaError)


def test_a_record_that_may_be_stored_is_not_a_kafka_timeout_error():
    # aiokafka raises KafkaTimeoutError only for unsent records, so code that catches it may send them again.
    for case, (error, _) in CASES.items():
        if case != "full buffer":
            assert not isinstance(translate(copy.copy(error)), theirs.KafkaTimeoutError), case


@pytest.mark.parametrize("name", [name for name, kind in vars(ours).items() if inspect.isclass(kind)])
def test_every_error_can_be_translated_copied_and_pickled(name):
    kind = getattr(ours, name)
    if not issubclass(kind, ours.KafkaError):
        return
    error = kind("text", topic="t", attempts=0)

    translated = translate(error)
    again = pickle.loads(pickle.dumps(translated))
    copied = copy.copy(translated)

    assert translate(translated) is translated
    assert type(again) is type(copied) is type(translated)
    assert (str(again), again.topic) == ("text", "t")
    assert isinstance(again, kind)


def test_equal_combinations_are_one_class_with_aiokafkas_name():
    first, second = translate(failed(refused(19))), translate(failed(refused(19)))

    assert type(first) is type(second)
    assert type(first).__name__ == "NotEnoughReplicasError"
    assert type(first).__module__ == "aioproducer.compat.aiokafka.errors"


def test_a_block_translates_the_errors_that_leave_it_and_keeps_traceback_and_cause():
    cause = ZeroDivisionError()

    def fail():
        raise ours.BufferTimeoutError("full") from cause

    with pytest.raises(theirs.KafkaTimeoutError) as caught, aiokafka_errors:
        fail()

    assert caught.value.__cause__ is cause
    assert caught.traceback[-1].name == "fail"


def test_a_serializers_exception_leaves_the_block_as_it_was_raised():
    cause = UnicodeEncodeError("ascii", "ä", 0, 1, "no")

    with pytest.raises(UnicodeEncodeError) as caught, aiokafka_errors:
        raise ours.SerializationError("the serializer raised") from cause

    assert caught.value is cause
    assert isinstance(cause.__context__, ours.SerializationError)
    assert cause.__context__.__cause__ is None, "a cycle"


def test_other_exceptions_leave_the_block_unchanged():
    for error in (KeyError("k"), TimeoutError(), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, aiokafka_errors:
            raise error
        assert caught.value is error
