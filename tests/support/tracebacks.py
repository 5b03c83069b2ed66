"""The local variables of the package's frames, as a crash reporter shows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import aioproducer
from aioproducer import Producer, blocking
from aioproducer.compat.aiokafka import AIOKafkaProducer

PACKAGE = str(Path(aioproducer.__file__).parent)


def frames(error: BaseException | None) -> Iterator[FrameType]:
    """Yield all frames of the package in the tracebacks of an error, its causes and its contexts."""
    waiting, seen = [error], []
    while waiting:
        one = waiting.pop()
        if one is None or one in seen:
            continue
        seen.append(one)
        waiting += [one.__cause__, one.__context__]
        at = one.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename.startswith(PACKAGE):
                yield at.tb_frame
            at = at.tb_next


def fields_of(thing: object) -> dict[str, Any]:
    """Return the fields of an object, both those in slots and those in its dict."""
    slots = [name for base in type(thing).__mro__ for name in vars(base).get("__slots__", ())]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | vars(thing)


def shown(value: object) -> str:
    """Return the repr of a value, or the fields of a producer: its repr does not show them."""
    if isinstance(value, tuple):
        return "".join(map(shown, value))
    if isinstance(value, Producer | blocking.Producer | AIOKafkaProducer):
        return "".join(f"{name} = {shown(field)}\n" for name, field in fields_of(value).items())
    return repr(value)


def assert_no_frame_shows(error: BaseException, secret: str) -> None:
    """Check that the error has frames of the package, and that none of their local variables shows the secret."""
    found = list(frames(error))
    assert found
    for frame in found:
        for name, value in frame.f_locals.items():
            assert secret not in shown(value), f"{frame.f_code.co_qualname}: {name}"
