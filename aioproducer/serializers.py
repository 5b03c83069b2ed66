"""Calling the user's serializers: functions or objects, sync or async; what they raise becomes one error."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from aioproducer.errors import IllegalStateError, SerializationError
from aioproducer.types import Headers


class SerializerObject(Protocol):
    """A serializer that wants to see the topic and the headers too. May be async."""

    def serialize(self, topic: str, value: Any, headers: Headers | None, /) -> Any: ...


Serializer: TypeAlias = Callable[[Any], Any] | SerializerObject
"""f(value) -> bytes | None, or an object with `serialize(topic, value, headers)`; either may be async."""


async def serialized(serializer: Serializer | None, value: Any, topic: str, headers: Headers | None) -> Any:
    """The value as the serializer makes it; the value itself without one.

    Raises:
        SerializationError: the serializer raised; its error is the cause.
    """
    if serializer is None:
        return value
    try:
        result = _call(serializer, value, topic, headers)
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        raise _failed(serializer, topic) from error


def serialized_now(serializer: Serializer | None, value: Any, topic: str, headers: Headers | None) -> Any:
    """The same where nothing can be waited for.

    Raises:
        SerializationError: the serializer raised; its error is the cause.
        IllegalStateError: the serializer is async.
    """
    if serializer is None:
        return value
    try:
        result: Any | Awaitable[Any] = _call(serializer, value, topic, headers)
    except Exception as error:
        raise _failed(serializer, topic) from error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise IllegalStateError("try_send can't wait for an async serializer; use send")
    return result


def _call(serializer: Serializer, value: Any, topic: str, headers: Headers | None) -> Any:
    method = getattr(serializer, "serialize", None)
    return serializer(value) if method is None else method(topic, value, headers)  # type: ignore[operator]  # a callable


def _failed(serializer: Serializer, topic: str) -> SerializationError:
    name = getattr(serializer, "__qualname__", type(serializer).__qualname__)
    return SerializationError(f"the serializer {name} failed for topic {topic}; nothing was buffered")
