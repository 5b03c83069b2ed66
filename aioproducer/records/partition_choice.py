"""Chooses the partitions that the compiled path does not choose, for example with the user's partitioner."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from random import Random

from aioproducer.cluster import TopicInfo
from aioproducer.config import ProducerConfig
from aioproducer.errors import InvalidRecordError
from aioproducer.partitioner import ConsistentRandom, RoundRobin, make_partitioner
from aioproducer.records._record_path import whole_number
from aioproducer.records.arguments import check_is_bytes, describe
from aioproducer.types import qualified_name

COMPILED_PATH_CHOOSES = -1


class PartitionChoice:
    """Chooses partitions according to the `partitioner` setting."""

    def __init__(self, config: ProducerConfig, random: Random) -> None:
        kind, self._function = make_partitioner(config.partitioner, random)
        if kind == "crc32":
            self._function = ConsistentRandom(random)
        self._round_robins: dict[str, RoundRobin] | None = {} if kind == "round_robin" else None
        self.is_compiled = kind == "murmur2"
        """True if the compiled path chooses all partitions, with Java's murmur2 and sticky partitions."""
        self._known: dict[str, tuple[TopicInfo, tuple[int, ...], tuple[int, ...]]] = {}
        """For each topic: its TopicInfo, its partitions, and its available partitions."""

    def partition_for(self, info: TopicInfo, key: bytes | None) -> int:
        """Return the partition for a record with this key, or COMPILED_PATH_CHOOSES.

        Raises:
            InvalidRecordError: the user's partitioner chose a partition that does not exist, or raised an exception
                (the `__cause__`).
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
        """Call the partitioner with new lists, since it may change them."""
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
        what = describe(returned)
        if inspect.iscoroutine(returned):
            returned.close()
            what = "a coroutine (a partitioner cannot be async)"
        return InvalidRecordError(
            f"the partitioner {qualified_name(self._function)} returned {what} for topic {topic}; it must return one "
            f"of the topic's partitions, an int from 0 to {partitions - 1}; nothing was buffered",
            argument="partitioner",
        )
