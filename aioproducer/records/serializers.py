"""Calls the user's serializers: functions or objects, sync or async. Their exceptions become SerializationError."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from aioproducer.errors import IllegalStateError, SerializationError
from aioproducer.types import Headers, is_buffer, qualified_name


class SerializerObject(Protocol):
    """A serializer that also needs the topic and the headers. May be async."""

    def serialize(self, topic: str, value: Any, headers: Headers | None, /) -> Any: ...


Serializer: TypeAlias = Callable[[Any], Any] | SerializerObject
"""f(value) -> bytes | None, or an object with `serialize(topic, value, headers)`; either may be async."""


async def serialized(
    serializer: Serializer | None, value: Any, topic: str, headers: Headers | None, part: str
) -> Any:
    """Return the serialized `part`, "key" or "value", of a record; without a serializer, the value itself.

    Raises:
        SerializationError: the serializer raised an exception (the `__cause__`), or did not return bytes.
    """
    if serializer is None:
        return value
    try:
        result = _call(serializer, value, topic, headers)
        if inspect.isawaitable(result):
            result = await result
    except Exception as error:
        raise _failed(serializer, topic, part, error) from error
    if type(result) is not bytes and result is not None:
        _check_result(serializer, result, topic, part)
    return result


def serialized_now(
    serializer: Serializer | None, value: Any, topic: str, headers: Headers | None, part: str
) -> Any:
    """Return the serialized part like `serialized`, but without waiting. `topic` is empty if it is not known yet.

    Raises:
        SerializationError: the serializer raised an exception (the `__cause__`), or did not return bytes.
        IllegalStateError: the serializer is async.
    """
    if serializer is None:
        return value
    try:
        result: Any | Awaitable[Any] = _call(serializer, value, topic, headers)
    except Exception as error:
        raise _failed(serializer, topic, part, error) from error
    if type(result) is bytes or result is None:
        return result
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        caller = "try_send" if topic else "a batch built by hand"
        raise IllegalStateError(f"{caller} can't wait for the async {_named(serializer, part)}; use send")
    _check_result(serializer, result, topic, part)
    return result


def _call(serializer: Serializer, value: Any, topic: str, headers: Headers | None) -> Any:
    method = getattr(serializer, "serialize", None)
    return serializer(value) if method is None else method(topic, value, headers)  # type: ignore[operator]  # a callable


def _check_result(serializer: Serializer, result: object, topic: str, part: str) -> None:
    """Raise SerializationError unless the result is a buffer. Later, the append rejects buffers that can't be
    sent."""
    if is_buffer(result):
        return
    raise SerializationError(
        f"the {_named(serializer, part)} returned {type(result).__name__}{_for(topic)}; it must return bytes, "
        "bytearray, memoryview or None; nothing was buffered",
        argument=part,
    )


def _failed(serializer: Serializer, topic: str, part: str, error: Exception) -> SerializationError:
    # The text of `error` is left out because it may contain the value.
    return SerializationError(
        f"the {_named(serializer, part)} raised {type(error).__name__}{_for(topic)}; nothing was buffered",
        argument=part,
    )


def _named(serializer: Serializer, part: str) -> str:
    return f"{part}_serializer {qualified_name(serializer)}"


def _for(topic: str) -> str:
    return f" for topic {topic}" if topic else ""
