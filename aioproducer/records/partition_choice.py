"""Chooses partitions that the compiled path does not choose: checks of arguments, and the user's partitioner."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from random import Random

from aioproducer.cluster import TopicInfo, check_topic_name
from aioproducer.config import ProducerConfig
from aioproducer.errors import InvalidArgumentError, InvalidRecordError, InvalidTopicError
from aioproducer.partitioner import ConsistentRandom, RoundRobin, make_partitioner
from aioproducer.records._record_path import whole_number
from aioproducer.types import is_buffer, qualified_name

COMPILED_PATH_CHOOSES = -1


class PartitionChoice:
    """Chooses partitions according to the setting `partitioner`."""

    def __init__(self, config: ProducerConfig, random: Random) -> None:
        kind, self._function = make_partitioner(config.partitioner, random)
        if kind == "crc32":
            self._function = ConsistentRandom(random)
        self._round_robins: dict[str, RoundRobin] | None = {} if kind == "round_robin" else None
        self.is_compiled = kind == "murmur2"
        """The compiled path does all of the work, with Java's murmur2 and sticky partitions."""
        self._known: dict[str, tuple[TopicInfo, tuple[int, ...], tuple[int, ...]]] = {}
        """The TopicInfo of each topic, with all its partitions and the available ones."""

    def partition_for(self, info: TopicInfo, key: bytes | None) -> int:
        """Return the partition of a record with this key, or COMPILED_PATH_CHOOSES.

        Raises:
            InvalidRecordError: the user's partitioner chose a partition that does not exist, or raised an exception,
                which is the cause.
        """
        if self.is_compiled:
            return COMPILED_PATH_CHOOSES
        known = self._known.get(info.name)
        if known is None or known[0] is not info:
            numbers = tuple(range(len(info.partitions)))
            known = self._known[info.name] = (info, numbers, tuple(info.available) or numbers)
        _, every, available = known
        if key is not None and type(key) is not bytes:
            check_is_bytes(key, "key")
        if self._round_robins is not None:
            number: object = self._round_robins.setdefault(info.name, RoundRobin())(key, every, available)
        else:
            number = self._chosen(info.name, key, every, available)
        chosen = whole_number(number)
        if chosen is None or not 0 <= chosen < len(every):
            raise self._wrong_choice(number, info.name, len(every))
        return chosen

    def _chosen(
        self, topic: str, key: bytes | None, every: Sequence[int], available: Sequence[int]
    ) -> object:
        """Call the partitioner with copies of the lists, which it may change."""
        assert self._function is not None
        try:
            return self._function(key, list(every), list(available))
        except Exception as error:
            raise InvalidRecordError(
                f"the partitioner {qualified_name(self._function)} raised {type(error).__name__} for topic {topic}; "
                "nothing was buffered",
                argument="partitioner",
            ) from error

    def _wrong_choice(self, returned: object, topic: str, partitions: int) -> InvalidRecordError:
        what = shown(returned)
        if inspect.iscoroutine(returned):
            returned.close()
            what = "a coroutine (a partitioner cannot be async)"
        return InvalidRecordError(
            f"the partitioner {qualified_name(self._function)} returned {what} for topic {topic}; it must return one "
            f"of the topic's partitions, an int from 0 to {partitions - 1}; nothing was buffered",
            argument="partitioner",
        )


def check_is_bytes(data: object, part: str) -> None:
    """Raise unless a key or value is a buffer, with the same text as the append."""
    if not is_buffer(data):
        raise InvalidRecordError(
            f"the {part} must be bytes, bytearray, memoryview or None, not {type(data).__name__}; encode it, or give "
            f"the producer a {part}_serializer",
            argument=part,
        )


def check_target(topic: object, partition: object) -> int | None:
    """Raise unless the arguments are a topic name and a partition number or None. Return the number as an int."""
    if not isinstance(topic, str):
        raise InvalidTopicError(f"the topic must be a str, not {shown(topic)}", topic="")
    check_topic_name(topic)
    if partition is None:
        return None
    number = whole_number(partition)
    if number is None or number < 0:
        raise InvalidRecordError(
            f"the partition must be a whole number, 0 or more, not {shown(partition)}", argument="partition"
        )
    return number


def check_timeout(timeout: object, error_type: type[InvalidArgumentError] = InvalidArgumentError) -> None:
    """Raise unless the timeout is None or a number of seconds."""
    if timeout is None or timeout == math.inf:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < 2**53:
        raise error_type(
            f"timeout must be a number of seconds, 0 or more, or None for the default, not {shown(timeout)}",
            argument="timeout",
        )


def shown(value: object) -> str:
    """Return the repr of a number, and only the type of anything else, which may be a misplaced key or value."""
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64)
    return repr(value) if is_number or value is None else type(value).__name__
