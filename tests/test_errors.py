"""The error classes: their hierarchy, their descriptions, and pickling."""

from __future__ import annotations

import copy
import inspect
import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer import errors
from aioproducer.errors import (
    BrokerConnectionError,
    BrokerError,
    BufferTimeoutError,
    ConfigError,
    DeliveryError,
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownPartitionError,
    counted,
    escaped,
    without_tracebacks,
)
from aioproducer.types import Outcome

TREE = {
    "KafkaError": {"Exception"},
    "ConfigError": {"KafkaError", "ValueError"},
    "IllegalStateError": {"KafkaError", "RuntimeError"},
    "ProducerNotStartedError": {"IllegalStateError"},
    "ProducerClosed": {"IllegalStateError"},
    "WrongLoopError": {"IllegalStateError"},
    "ForkedError": {"IllegalStateError"},
    "InvalidArgumentError": {"KafkaError", "ValueError"},
    "InvalidRecordError": {"InvalidArgumentError"},
    "RecordTooLargeError": {"InvalidRecordError"},
    "InvalidTopicError": {"InvalidRecordError"},
    "SerializationError": {"InvalidRecordError"},
    "BufferFullError": {"KafkaError"},
    "KafkaTimeoutError": {"KafkaError", "TimeoutError"},
    "BufferTimeoutError": {"KafkaTimeoutError"},
    "MetadataTimeoutError": {"KafkaTimeoutError"},
    "UnknownPartitionError": {"KafkaTimeoutError"},
    "BootstrapError": {"KafkaTimeoutError"},
    "RequestTimedOutError": {"BrokerConnectionError", "KafkaTimeoutError"},
    "TopicAuthorizationError": {"KafkaError"},
    "DeliveryError": {"KafkaError"},
    "DeliveryTimeoutError": {"DeliveryError", "KafkaTimeoutError"},
    "TransactionAbortedError": {"DeliveryError"},
    "SendManyError": {"KafkaError"},
    "TransactionError": {"KafkaError"},
    "TransactionAbortableError": {"TransactionError"},
    "TransactionReinitError": {"TransactionError"},
    "ProducerFencedError": {"TransactionReinitError"},
    "CommitOutcomeUnknownError": {"TransactionReinitError"},
    "TransactionTimeoutError": {"TransactionError", "KafkaTimeoutError"},
    "BrokerConnectionError": {"KafkaError"},
    "AuthenticationError": {"KafkaError"},
    "UnsupportedSaslMechanismError": {"AuthenticationError"},
    "TlsError": {"AuthenticationError"},
    "ProtocolError": {"KafkaError"},
    "CorrelationError": {"ProtocolError"},
    "MissingPartitionError": {"ProtocolError"},
    "ForeignPartitionError": {"ProtocolError"},
    "NotKafkaError": {"ProtocolError"},
    "UnsupportedVersionError": {"KafkaError"},
    "BrokerError": {"KafkaError"},
}

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, BaseException) and found.__module__ == errors.__name__
]

FACTS: dict[str, object] = {
    "setting": "linger_ms",
    "value": -1,
    "size": 2_097_312,
    "limit": 1_048_576,
    "topic": "orders",
    "partition": 3,
    "broker": 2,
    "attempts": 4,
    "elapsed": 1.5,
    "outcome": Outcome.NOT_PERSISTED,
    "written": True,
    "code": 6,
    "name": "NOT_LEADER_OR_FOLLOWER",
}


def facts_of(error_type: type[KafkaError]) -> dict[str, object]:
    declared = {name for parent in error_type.__mro__ for name in vars(parent).get("__annotations__", {})}
    return {name: value for name, value in FACTS.items() if name in declared}


def test_tree():
    assert {found.__name__: {base.__name__ for base in found.__bases__} for found in CLASSES} == TREE


@pytest.mark.promise("Docs", "every public name is described")
def test_tree_is_drawn_in_the_documentation():
    drawn = errors.__doc__ or ""
    timeouts = drawn[
        drawn.index("KafkaTimeoutError (TimeoutError)") : drawn.index("also a BrokerConnectionError")
    ]

    assert [found.__name__ for found in CLASSES if found.__name__ not in drawn] == []
    for found in CLASSES:
        if found.__bases__ == (KafkaTimeoutError,):
            assert found.__name__ in timeouts


@pytest.mark.parametrize("error_type", CLASSES)
def test_every_class_is_described_and_its_flags_are_bool(error_type):
    assert error_type.__doc__
    for flag in ("retriable", "requires_abort", "requires_reinit", "fatal"):
        assert isinstance(getattr(error_type, flag), bool)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error_type", CLASSES)
def test_every_error_can_be_pickled_with_its_fields(error_type, protocol):
    facts = facts_of(error_type)
    error = error_type("what happened", **facts)

    again = pickle.loads(pickle.dumps(error, protocol))

    assert type(again) is error_type
    assert str(again) == "what happened"
    assert again.message == "what happened"
    assert again.args == error.args
    assert {name: getattr(again, name) for name in facts} == facts


def test_error_inside_an_error_can_be_pickled():
    last = BrokerError("NOT_LEADER_OR_FOLLOWER", code=6, name="NOT_LEADER_OR_FOLLOWER")
    error = DeliveryError("given up", outcome=Outcome.UNKNOWN, last_error=last, broker=None)

    again = pickle.loads(pickle.dumps(error))

    assert (again.outcome, again.broker) == (Outcome.UNKNOWN, None)
    assert (again.last_error.code, again.last_error.name) == (6, "NOT_LEADER_OR_FOLLOWER")


def test_error_can_be_copied():
    error = RecordTooLargeError("too large", size=2, limit=1)

    again = copy.copy(error)

    assert (type(again), str(again), again.size, again.limit) == (RecordTooLargeError, "too large", 2, 1)


@pytest.mark.parametrize("error_type", CLASSES)
def test_documented_fields_have_their_defaults(error_type):
    bare = error_type("bare")

    if issubclass(error_type, DeliveryError):
        assert bare.outcome is Outcome.UNKNOWN
    if issubclass(error_type, BrokerConnectionError):
        assert bare.written is False


@pytest.mark.parametrize(
    "error_type",
    [ProducerClosed, InvalidRecordError, RecordTooLargeError, BufferTimeoutError, UnknownPartitionError],
)
def test_record_that_was_never_buffered_is_not_persisted(error_type):
    assert error_type("bare").outcome is Outcome.NOT_PERSISTED


def test_builtin_exceptions_catch_what_they_should():
    with pytest.raises(ValueError, match="bad"):
        raise ConfigError("bad")
    with pytest.raises(TimeoutError):
        raise DeliveryTimeoutError("late")
    with pytest.raises(RuntimeError):
        raise IllegalStateError("no")
    assert RequestTimedOutError.retriable
    assert KafkaTimeoutError.retriable
    assert not DeliveryError.retriable


# ----------------------------------------------------------------------------------------------------- counted()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((1, "record"), "1 record"),
        ((0, "record"), "0 records"),
        ((2, "record"), "2 records"),
        ((1, "batch", "batches"), "1 batch"),
        ((3, "batch", "batches"), "3 batches"),
    ],
)
def test_a_number_has_a_noun_that_fits(words, text):
    assert counted(*words) == text


# ----------------------------------------------------------------------------------------------------- escaped()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ""),
        ("", ""),
        ("plain text, größe", "plain text, größe"),
        ("line\r\nbreak", r"line\x0d\x0abreak"),
        ("\x1b[31mred\x7f\x00", r"\x1b[31mred\x7f\x00"),
    ],
)
def test_text_from_a_peer_is_escaped(text, expected):
    assert escaped(text) == expected


@given(st.text(st.characters(exclude_categories=[])))
def test_escaped_text_has_only_printable_characters(text):
    found = escaped(text)

    assert not {unicodedata.category(one) for one in found} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert found.isprintable()
    found.encode()


@pytest.mark.parametrize(
    ("character", "expected"),
    [
        ("\u2028", r"\u2028"),  # a line separator
        ("\u2029", r"\u2029"),
        ("\u202e", r"\u202e"),  # the text after this is shown from right to left
        ("\u2066", r"\u2066"),
        ("\u200b", r"\u200b"),  # has no width
        ("\ufeff", r"\ufeff"),
        ("\xad", r"\xad"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),  # a tag, which no terminal shows
    ],
)
def test_characters_that_hide_or_reorder_text_are_escaped(character, expected):
    assert escaped(f"a{character}b") == f"a{expected}b"


def test_every_error_can_be_printed():
    for error_type in (KafkaError, ConfigError, DeliveryError):
        error = error_type("größe t\ud800")

        assert str(error) == error.message == r"größe t\ud800"
        str(error).encode()
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_c1_control_characters_are_also_escaped():
    # U+009B starts a control sequence as ESC [ does.
    assert escaped("\x9b31m\x85") == r"\x9b31m\x85"


@given(st.text(alphabet="a\n\x00ö", max_size=300), st.integers(1, 100))
def test_escaped_text_is_no_longer_than_the_limit_and_shows_that_it_was_cut(text, limit):
    safe = escaped(text, limit)

    assert len(safe.removesuffix("…")) <= limit
    if len(text) > limit:
        assert safe.endswith("…")


def raised_from(error, cause=None):
    """Raise the error, from `cause` if there is one, and return it as it was caught."""
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.promise(
    "Public API",
    "an error does not keep frames alive: if it is never retrieved, it is reported when it is dropped, not "
    "when the garbage collector runs",
)
def test_a_kept_error_holds_no_frames_and_keeps_its_causes():
    first = raised_from(ValueError("first"))
    second = raised_from(OSError("second"), first)
    error = raised_from(KafkaError("third"), second)
    second.__context__ = error.__context__ = first

    assert without_tracebacks(error) is error
    assert error.__cause__ is second
    assert second.__cause__ is first
    assert [one.__traceback__ for one in (error, second, first)] == [None] * 3
    assert [one.__context__ for one in (error, second, first)] == [None] * 3


def test_the_context_of_a_kept_error_is_released_and_not_changed():
    try:
        raise ValueError("the caller handles this")
    except ValueError as caught:
        handled = caught
        error = raised_from(KafkaError("kept"))
    assert error.__context__ is handled

    without_tracebacks(error)

    assert error.__context__ is None
    assert handled.__traceback__ is not None


def test_an_error_that_is_its_own_cause_can_be_kept():
    error = KafkaError("loop")
    error.__cause__ = error

    assert without_tracebacks(error).__traceback__ is None
