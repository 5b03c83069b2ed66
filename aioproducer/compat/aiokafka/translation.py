"""Lets `except` clauses for aiokafka's errors catch the corresponding errors of aioproducer.

`except` checks the classes that an exception inherits from, so an error gets a class that inherits from its own class
and from aiokafka's. The class for a combination is created when it is first needed. The error stays the same object,
with its text, fields and traceback."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, ClassVar

from aioproducer import errors as ours
from aioproducer.compat.aiokafka import errors as theirs

_NAMES: dict[type[ours.KafkaError], tuple[type[Exception], ...]] = {
    ours.ConfigError: (theirs.KafkaConfigurationError,),
    ours.ProducerClosed: (),  # the same class
    ours.IllegalStateError: (theirs.IllegalOperation,),
    ours.RecordTooLargeError: (theirs.MessageSizeTooLargeError,),
    ours.InvalidTopicError: (theirs.InvalidTopicError,),
    ours.BufferTimeoutError: (theirs.KafkaTimeoutError,),
    ours.MetadataTimeoutError: (theirs.UnknownTopicOrPartitionError,),
    ours.UnknownPartitionError: (theirs.UnknownTopicOrPartitionError,),
    ours.TopicAuthorizationError: (theirs.TopicAuthorizationFailedError,),
    ours.BootstrapError: (theirs.KafkaConnectionError,),
    ours.ProducerFencedError: (theirs.ProducerFenced,),
    ours.RequestTimedOutError: (theirs.RequestTimedOutError,),
    ours.BrokerConnectionError: (theirs.KafkaConnectionError, theirs.NodeNotReadyError),
    ours.UnsupportedSaslMechanismError: (
        theirs.KafkaConnectionError,
        theirs.UnsupportedSaslMechanismError,
        theirs.AuthenticationMethodNotSupported,
        theirs.AuthenticationFailedError,
    ),
    # aiokafka's start() always raises KafkaConnectionError, and logs the reason.
    ours.AuthenticationError: (
        theirs.KafkaConnectionError,
        theirs.AuthenticationFailedError,
        theirs.SaslAuthenticationFailed,
    ),
    ours.CorrelationError: (theirs.CorrelationIdError,),
    ours.ProtocolError: (theirs.KafkaProtocolError,),
    ours.UnsupportedVersionError: (theirs.UnsupportedVersionError, theirs.IncompatibleBrokerVersion),
}
"""aiokafka's classes for each of our classes and its subclasses, except subclasses with their own entry.

A delivery that timed out is not a KafkaTimeoutError: aiokafka raises that error only for records that were not
buffered, so code that catches it may send the record again without the risk of a duplicate."""

_ALSO_FENCED = frozenset({47, 90})  # INVALID_PRODUCER_EPOCH and PRODUCER_FENCED
_NO_LEADER = (theirs.LeaderNotAvailableError, theirs.NotLeaderForPartitionError)
_LATE = (ours.DeliveryTimeoutError, ours.TransactionTimeoutError, ours.CommitOutcomeUnknownError)
_NOT_BYTES = frozenset({"value", "key", "headers"})


class AiokafkaErrors:
    """A context manager that translates the errors that leave its block.

    A serializer's exception leaves the block unchanged, as in aiokafka."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ours.KafkaError):
            translated = translate(error)
            if translated is not error:
                raise translated


aiokafka_errors = AiokafkaErrors()
"""A shared instance, which suffices because the context manager has no state."""


def translate(error: ours.KafkaError) -> Exception:
    """Make the error also an instance of aiokafka's classes, and return it.

    If the error says that a serializer failed, return the serializer's own exception instead.
    """
    if isinstance(error, ours.SerializationError) and isinstance(error.__cause__, Exception):
        cause, error.__cause__ = error.__cause__, None  # the error becomes the context of its cause
        return cause
    if not isinstance(error, _Translated):
        names = tuple(dict.fromkeys(_names_of(error)))
        # Drop each class that has a subclass among the names: a class must not precede its subclass as a base.
        names = tuple(
            name
            for name in names
            if not any(other is not name and issubclass(other, name) for other in names)
        )
        if names:
            error.__class__ = _class_of(
                type(error), names
            )  # in place: the error keeps its traceback and cause
    return error


def _names_of(error: BaseException) -> Iterator[type[Exception]]:
    """Yield aiokafka's classes for an error and its causes, the most specific classes first."""
    code = getattr(error, "code", None)
    if isinstance(code, int):
        if code in _ALSO_FENCED:
            yield theirs.ProducerFenced
        yield theirs.for_code(code)
        return
    for kind in type(error).__mro__:
        if kind in _NAMES:
            yield from _NAMES[kind]
            break
    if isinstance(error, ours.InvalidRecordError) and error.argument in _NOT_BYTES:
        yield TypeError
    if isinstance(error, (ours.DeliveryError, ours.TransactionError)):
        yield from _names_of_causes(error)


def _names_of_causes(error: ours.DeliveryError | ours.TransactionError) -> Iterator[type[Exception]]:
    """Yield aiokafka's classes for the cause of a failed delivery or transaction: aiokafka raises the cause itself."""
    found = False
    for cause in (getattr(error, "last_error", None), error.__cause__):
        if cause is not None:
            for name in _names_of(cause):
                found = True
                yield name
    if found or not isinstance(error, _LATE):
        return
    if isinstance(error, ours.DeliveryError) and error.attempts == 0:
        yield from _NO_LEADER
    yield theirs.RequestTimedOutError


class _Translated(ours.KafkaError):
    """The base of the classes that inherit from one of our classes and from some of aiokafka's."""

    _ours: ClassVar[type[ours.KafkaError]]
    _theirs: ClassVar[tuple[type[Exception], ...]]

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is created at run time, so pickle cannot import it by its name.
        return _rebuild, (self._ours, self._theirs, self.message, self._facts)


_CLASSES: dict[tuple[type[Exception], ...], type[ours.KafkaError]] = {}
"""The classes that have been created so far, keyed by the classes that they inherit from."""


def _class_of(kind: type[ours.KafkaError], names: tuple[type[Exception], ...]) -> type[ours.KafkaError]:
    """Return a class that inherits from `kind` and all `names`. It has the name of the first aiokafka class."""
    if (kind, *names) in _CLASSES:
        return _CLASSES[kind, *names]
    # Built-in exceptions come last: their __init__ takes no keyword arguments.
    own = [name for name in names if name.__module__ == theirs.__name__]
    builtin = [name for name in names if name not in own]
    first = own[0] if own else kind
    members = {"__module__": first.__module__, "__doc__": first.__doc__, "_ours": kind, "_theirs": names}
    created = _CLASSES[kind, *names] = type(first.__name__, (_Translated, *own, kind, *builtin), members)
    return created


def _rebuild(
    kind: type[ours.KafkaError], names: tuple[type[Exception], ...], message: str, facts: dict[str, Any]
) -> ours.KafkaError:
    return _class_of(kind, names)(message, **facts)
