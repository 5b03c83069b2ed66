"""Checks the arguments that several of the producer's calls have in common, before anything is buffered."""

from __future__ import annotations

import math

from aioproducer.cluster import check_topic_name
from aioproducer.errors import InvalidArgumentError, InvalidRecordError, InvalidTopicError
from aioproducer.records._record_path import whole_number
from aioproducer.types import is_buffer


def check_is_bytes(data: object, part: str) -> None:
    """Raise InvalidRecordError, with the same text as the compiled append, if a key or value is not a buffer."""
    if not is_buffer(data):
        raise InvalidRecordError(
            f"the {part} must be bytes, bytearray, memoryview or None, not {type(data).__name__}; encode it, or give "
            f"the producer a {part}_serializer",
            argument=part,
        )


def check_target(topic: object, partition: object) -> int | None:
    """Raise unless the arguments are a topic name and a partition number or None. Return the number as an int."""
    if not isinstance(topic, str):
        raise InvalidTopicError(f"the topic must be a str, not {describe(topic)}", topic="")
    check_topic_name(topic)
    if partition is None:
        return None
    number = whole_number(partition)
    if number is None or number < 0:
        raise InvalidRecordError(
            f"the partition must be a whole number, 0 or more, not {describe(partition)}",
            argument="partition",
        )
    return number


def check_timeout(timeout: object, error_type: type[InvalidArgumentError] = InvalidArgumentError) -> None:
    """Raise unless the timeout is None or a number of seconds."""
    if timeout is None or timeout == math.inf:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < 2**53:
        raise error_type(
            f"timeout must be a number of seconds, 0 or more, or None for the default, not {describe(timeout)}",
            argument="timeout",
        )


def describe(value: object) -> str:
    """Return the repr of a number or None, and only the type of anything else, which may be a misplaced key or
    value."""
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64)
    return repr(value) if is_number or value is None else type(value).__name__
