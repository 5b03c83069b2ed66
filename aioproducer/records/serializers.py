"""Decides how each of the user's serializers is called, and creates the errors for its failures.

Compiled code calls the serializers (_user_code.pxi). This module waits for the results of async serializers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

from aioproducer.errors import IllegalStateError, InvalidRecordError, SerializationError, escaped
from aioproducer.records._record_path import (
    TAKES_CONTEXT,
    TAKES_TOPIC,
    TAKES_VALUE,
    Serialization,
    SerializationContext,
    UserSerializer,
    Waiting,
)
from aioproducer.types import Data, Headers, is_buffer, qualified_name, takes_second

LONGEST_CAUSE = 200
"""The maximum number of characters that our error quotes from an exception's text."""
MOST_KEPT = 32
"""The maximum number of serializers that are kept after being passed to `send`: passing a new lambda with each record
must not exhaust the memory."""
MOST_CLOSES = 100
"""The maximum number of attempts to close a coroutine that awaits something while it is being closed."""


Serialized: TypeAlias = Data | Awaitable[Data | None] | None
T = TypeVar("T", contravariant=True)
S = TypeVar("S")


class SerializerObject(Protocol[T]):
    """A serializer that also receives the topic and the headers. May be async."""

    def serialize(self, topic: str, value: T, headers: Headers | None, /) -> Serialized: ...


Serializer: TypeAlias = (
    Callable[[S], Serialized] | Callable[[S, SerializationContext], Serialized] | SerializerObject[S]
)
"""f(value) or f(value, context) -> bytes or None, or an object with `serialize(topic, value, headers)`.

Any of these may be async."""


class BoundSerializer(UserSerializer):
    """A user's serializer for one field, "value" or "key". The constructor decides how the serializer is called.

    A callable gets `(value, context)` if its second positional parameter is required or is named `ctx` or `context`.
    Every other callable gets `(value)`, including one without a signature. None is never serialized.
    """

    def __init__(self, serializer: Any, field: str) -> None:
        method = getattr(serializer, "serialize", None)
        if callable(method):
            super().__init__(serializer, field, method, TAKES_TOPIC)
        else:
            takes = TAKES_CONTEXT if takes_second(serializer, "ctx", "context") else TAKES_VALUE
            super().__init__(serializer, field, serializer, takes)

    @property
    def needs_topic(self) -> bool:
        return self.takes != TAKES_VALUE

    def __str__(self) -> str:
        return f"{self.field}_serializer {qualified_name(self.serializer)}"

    def failed(self, topic: str, error: Exception) -> SerializationError:
        """Return the SerializationError for an exception from the serializer."""
        text = _text_of(error)
        return SerializationError(
            f"the {self} raised {type(error).__name__}{_for(topic)}{': ' if text else ''}{text}; nothing was buffered",
            argument=self.field,
        )

    def settle(self, topic: str, result: Any) -> Any:
        """Settle a result that is not bytes: return what can be sent, or a Waiting if it must be awaited.

        A coroutine is started at once. If it does not have to wait, for example because its schema is cached, it
        finishes here.

        Raises:
            SerializationError: the result is neither a buffer nor awaitable, or the coroutine raised an exception.
        """
        if inspect.iscoroutine(result):
            try:
                awaited = result.send(None)
            except StopIteration as stop:
                return self.checked(topic, stop.value)
            except Exception as error:
                raise self.failed(topic, error) from error
            return Waiting(_Started(result, awaited))
        if inspect.isawaitable(result):
            return Waiting(result)
        return self.checked(topic, result)

    def checked(self, topic: str, result: Any) -> Any:
        """Return the result if it is a buffer or None. Buffers that can't be sent are rejected later, by the append.

        Raises:
            SerializationError: the result is something else.
        """
        if result is None or is_buffer(result):
            return result
        advice = " (for example, call .encode() on the str)" if isinstance(result, str) else ""
        raise SerializationError(
            f"the {self} returned {type(result).__name__}{_for(topic)}; it must return bytes, bytearray, memoryview or "
            f"None{advice}; nothing was buffered",
            argument=self.field,
        )


class _Started:
    """The remainder of a coroutine that has been started and is waiting for `awaited`."""

    def __init__(self, coroutine: Any, awaited: object) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        # The traceback of an exception refers to this frame. To avoid a cycle, the frame keeps neither the exception
        # nor the future that contains it.
        awaited, self._awaited = self._awaited, None
        while True:
            try:
                argument = yield awaited
                step = self._coroutine.send
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:
                argument = error
                step = self._coroutine.throw
            finally:
                awaited = None
            try:
                awaited = step(argument)
            except StopIteration as stop:
                return stop.value
            finally:
                del argument

    def close(self) -> Exception | None:
        """Close the coroutine, which will not be awaited. Return the last exception that it raised, or None."""
        raised: Exception | None = None
        for _ in range(MOST_CLOSES):
            try:
                self._coroutine.close()
            except (
                Exception
            ) as error:  # a RuntimeError if it awaited something, as anyio does while it connects
                raised = error
            if inspect.getcoroutinestate(self._coroutine) == inspect.CORO_CLOSED:
                break
        return raised


async def finish(serialization: Serialization) -> None:
    """Run the serializers that have not been called yet, and wait for async ones.

    Raises:
        SerializationError: a serializer raised an exception (the `__cause__`) or did not return bytes.
    """
    while not serialization.run():
        waiting = serialization.waiting
        assert waiting is not None, "run() returns False only if a result must be awaited"
        try:
            result = await waiting.awaitable
        except Exception as error:
            raise serialization.failed(error) from error
        serialization.resume(result)


def finish_now(serialization: Serialization, caller: str) -> None:
    """Run the serializers that have not been called yet, without waiting.

    Raises:
        SerializationError: as for `finish`.
        IllegalStateError: an async serializer has to wait.
    """
    if serialization.run():
        return
    waiting = serialization.waiting
    assert waiting is not None, "run() returns False only if a result must be awaited"
    raised = waiting.awaitable.close() if isinstance(waiting.awaitable, _Started) else None
    raise IllegalStateError(
        f"{caller} can't wait for the async {serialization.waits_for}; use send"
    ) from raised


class Serializers:
    """The serializers of a producer, and those that were passed to `send`."""

    def __init__(self, of_value: Serializer[Any] | None, of_key: Serializer[Any] | None) -> None:
        self.of_value = None if of_value is None else BoundSerializer(of_value, "value")
        self.of_key = None if of_key is None else BoundSerializer(of_key, "key")
        self._given: dict[tuple[Any, str], BoundSerializer] = {}
        """The last serializers that were passed to `send`, at most MOST_KEPT."""

    @property
    def is_empty(self) -> bool:
        return self.of_value is None and self.of_key is None

    def given(self, serializer: Any, field: str) -> BoundSerializer:
        """Return the BoundSerializer for a serializer that was passed to `send`.

        Raises:
            InvalidRecordError: the argument is not a serializer.
        """
        try:
            return self._given[serializer, field]
        except KeyError:
            is_hashable = True
        except TypeError:
            is_hashable = False
        if not callable(serializer) and not callable(getattr(serializer, "serialize", None)):
            raise InvalidRecordError(
                f"the {field}_serializer must be callable or have a serialize(topic, value, headers) method, not "
                f"{type(serializer).__name__}",
                argument=f"{field}_serializer",
            )
        bound = BoundSerializer(serializer, field)
        if is_hashable:
            if len(self._given) >= MOST_KEPT:
                del self._given[next(iter(self._given))]
            self._given[serializer, field] = bound
        return bound


def _text_of(error: Exception) -> str:
    try:
        return escaped(str(error), LONGEST_CAUSE)
    except Exception:  # the user's __str__ failed; the exception is still the `__cause__` of our error
        return ""


def _for(topic: str) -> str:
    return f" for topic {topic}" if topic else ""
