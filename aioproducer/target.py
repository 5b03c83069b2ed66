"""Where a record goes, as far as the compiled path does not decide it: the checks and the user's partitioner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from aioproducer.cluster import TopicInfo, check_topic_name
from aioproducer.config import ProducerConfig
from aioproducer.errors import InvalidArgumentError, InvalidRecordError, InvalidTopicError
from aioproducer.partitioner import ConsistentRandom, RoundRobin, make_partitioner

COMPILED_PATH_CHOOSES = -1


class PartitionChoice:
    """Chooses by the setting `partitioner`."""

    def __init__(self, config: ProducerConfig, random: Random) -> None:
        kind, self._function = make_partitioner(config.partitioner, random)
        if kind == "crc32":
            self._function = ConsistentRandom(random)
        self._round_robins: dict[str, RoundRobin] | None = {} if kind == "round_robin" else None
        self.is_compiled = kind == "murmur2"
        """Java's murmur2 and sticky partitions need nothing of this class."""
        self._known: dict[str, tuple[TopicInfo, tuple[int, ...], tuple[int, ...]]] = {}
        """All partitions and the available ones of a topic, as long as its TopicInfo is the same object."""

    def partition_for(self, info: TopicInfo, key: bytes | None) -> int:
        """The partition of a record with this key, or COMPILED_PATH_CHOOSES.

        Raises:
            InvalidRecordError: the user's partitioner chose one that does not exist, or raised; that is the cause.
        """
        if self.is_compiled:
            return COMPILED_PATH_CHOOSES
        known = self._known.get(info.name)
        if known is None or known[0] is not info:
            numbers = tuple(range(len(info.partitions)))
            known = self._known[info.name] = (info, numbers, tuple(info.available) or numbers)
        _, every, available = known
        if self._round_robins is not None:
            number: object = self._round_robins.setdefault(info.name, RoundRobin())(key, every, available)
        else:
            number = self._chosen(info.name, key, every, available)
        if type(number) is not int or not 0 <= number < len(every):
            raise InvalidRecordError(
                f"the partitioner chose {shown(number)} for topic {info.name}, whose partitions are 0 to "
                f"{len(every) - 1}",
                argument="partitioner",
            )
        return number

    def _chosen(
        self, topic: str, key: bytes | None, every: Sequence[int], available: Sequence[int]
    ) -> object:
        """What the partitioner returns; it may change the lists that it is given."""
        assert self._function is not None
        try:
            return self._function(key, list(every), list(available))
        except Exception as error:
            name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
            raise InvalidRecordError(
                f"the partitioner {name} failed for topic {topic}; nothing was buffered",
                argument="partitioner",
            ) from error


def check_target(topic: object, partition: object) -> None:
    """Raise for what can't be the name of a topic or the number of a partition."""
    if not isinstance(topic, str):
        raise InvalidTopicError(f"the topic must be a str, not {shown(topic)}", topic="")
    check_topic_name(topic)
    if partition is not None and (type(partition) is not int or partition < 0):
        raise InvalidRecordError(
            f"the partition must be a whole number, 0 or more, not {shown(partition)}", argument="partition"
        )


def check_timeout(timeout: object, error_type: type[InvalidArgumentError] = InvalidArgumentError) -> None:
    """Raise for what can't be a number of seconds to wait."""
    if timeout is None or timeout == math.inf:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < 2**53:
        raise error_type(
            f"timeout must be a number of seconds, 0 or more, or None for the default, not {shown(timeout)}",
            argument="timeout",
        )


def shown(value: object) -> str:
    """A number as it is; of anything else only the type, for it may be a key or a value in the wrong place."""
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64)
    return repr(value) if is_number or value is None else type(value).__name__
