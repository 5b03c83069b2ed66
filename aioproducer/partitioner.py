"""Partitioners: by the key's hash, in rotation, or sticky and weighted by load (KIP-794).

The compiled path hashes keys itself, with the same results as this module, and uses `UniformSticky` for records without
a key. This module does no I/O and reads no clock; random numbers come from the Random that the caller passes.
"""

from __future__ import annotations

import difflib
import random as random_module
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol

from aioproducer.errors import ConfigError


class Partitioner(Protocol):
    """The interface of a custom partitioner, with aiokafka's signature.

    `key` is the serialized key or None; `all_partitions` are the topic's partitions in order; `available` are the
    partitions that have a leader, or all partitions if none has one. The result is one of `all_partitions`.
    """

    def __call__(
        self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /
    ) -> int: ...


class Partitioning(NamedTuple):
    """The resolved `partitioner` setting. `function` is set if `kind` is "callable"."""

    kind: Literal["murmur2", "crc32", "round_robin", "callable"]
    function: Callable[..., int] | None = None


_KINDS: dict[str, Literal["murmur2", "crc32", "round_robin"]] = {
    "murmur2": "murmur2",
    "murmur2_random": "murmur2",
    "default": "murmur2",
    "consistent_random": "crc32",
    "round_robin": "round_robin",
}
_NAMES = (*_KINDS, "consistent", "fnv1a", "fnv1a_random", "random")


def make_partitioner(
    setting: str | Callable[..., int], random: random_module.Random | None = None
) -> Partitioning:
    """Resolve the `partitioner` setting.

    Args:
        setting: "murmur2", "murmur2_random" or "default" (Java's: murmur2 of the key, sticky without a key),
            "consistent_random" (librdkafka's default: crc32 of the key, random without a key or with an empty
            one), "consistent" (crc32; a missing key counts as an empty one), "fnv1a" and "fnv1a_random" (Sarama's
            hash), "round_robin", "random", or a callable with the signature of `Partitioner`.
        random: the source of random numbers.

    Raises:
        ConfigError: the name is unknown, or the value is neither a name nor a callable.
    """
    if isinstance(setting, str):
        if setting in _KINDS:
            return Partitioning(_KINDS[setting])
        if setting in _NAMES:
            return Partitioning("callable", _function(setting, random or random_module.Random()))
        near = difflib.get_close_matches(setting.lower(), _NAMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        problem = f"is not one of {', '.join(_NAMES)}{hint}"
    elif callable(setting):
        return Partitioning("callable", setting)
    else:
        problem = "is neither a partitioner's name nor callable"
    raise ConfigError(f"partitioner={setting!r} {problem}", setting="partitioner", value=setting)


def _function(name: str, random: random_module.Random) -> Callable[..., int]:
    if name == "random":
        return RandomPartitioner(random)
    if name == "consistent":
        return Hashed(crc32_partition)
    return Hashed(fnv1a_partition, random if name == "fnv1a_random" else None)


def murmur2(key: bytes) -> int:
    """Return the 32-bit hash of Kafka's `Utils.murmur2`, signed as in Java."""
    mask = 0xFFFFFFFF
    multiplier = 0x5BD1E995
    size = len(key)
    h = 0x9747B28C ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        k ^= k >> 24
        h = (h * multiplier ^ k * multiplier) & mask
    if size > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    h = (h ^ h >> 13) * multiplier & mask
    h ^= h >> 15
    return h - 0x100000000 if h & 0x80000000 else h


def murmur2_partition(key: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner chooses for a key."""
    # Java's toPositive clears the sign bit, which is not the same as the absolute value.
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def crc32_partition(key: bytes, partitions: int) -> int:
    """Return the partition that librdkafka's consistent partitioners choose for a key."""
    return zlib.crc32(key) % partitions


def fnv1a(key: bytes) -> int:
    """Return the absolute value of the signed 32-bit FNV-1a hash, as in the partitioners of Sarama and librdkafka."""
    h = 0x811C9DC5
    for byte in key:
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return 0x100000000 - h if h & 0x80000000 else h


def fnv1a_partition(key: bytes, partitions: int) -> int:
    """Return the partition that librdkafka's fnv1a partitioners, and Sarama's hash partitioner, choose for a key."""
    return fnv1a(key) % partitions


class Hashed:
    """Chooses among all partitions by the hash of the key. A record without a key goes to a random partition or is
    treated as if its key were empty, depending on `random`."""

    def __init__(
        self, partition_of: Callable[[bytes, int], int], random: random_module.Random | None = None
    ) -> None:
        """Store the arguments. With `random`, records without a key go to a random available partition."""
        self._partition_of = partition_of
        self._random = random

    def __call__(self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /) -> int:
        if key is None and self._random is not None:
            return self._random.choice(available or all_partitions)
        return all_partitions[self._partition_of(key or b"", len(all_partitions))]


class RandomPartitioner:
    """Chooses a random available partition, whatever the key."""

    def __init__(self, random: random_module.Random) -> None:
        self._random = random

    def __call__(self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /) -> int:
        return self._random.choice(available or all_partitions)


class ConsistentRandom:
    """librdkafka's default: crc32 of the key, and a random available partition if the key is None or empty."""

    def __init__(self, random: random_module.Random) -> None:
        self._random = random

    def __call__(self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /) -> int:
        if key:
            return all_partitions[crc32_partition(key, len(all_partitions))]
        return self._random.choice(available or all_partitions)


class RoundRobin:
    """Chooses the available partitions in turn, whatever the key, like Java's RoundRobinPartitioner. Each topic has its
    own instance."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, key: bytes | None, all_partitions: Sequence[int], available: Sequence[int], /) -> int:
        choice = available or all_partitions
        number = self._calls
        self._calls = number + 1
        return choice[number % len(choice)]


class UniformSticky:
    """Chooses the partition for the next records without a key (KIP-794). Each topic has its own instance.

    A new partition is chosen after a certain number of bytes (counted by the compiled path), not after each batch.
    Batches for a slow broker grow, so choosing after each batch would send more data to slow brokers. With `adaptive`,
    the choice is weighted: the fewer batches are waiting for a partition, the likelier it is to be chosen. Without
    weights, each partition is chosen once, in random order, before any is chosen again, so n choices reach all n
    partitions.

    In all methods, `available` means the partitions that may be chosen: those with a leader, or all if none has one.
    Pass the same object as long as these partitions have not changed, so that they are not examined again.
    """

    __slots__ = (
        "_adaptive",
        "_bounds",
        "_current",
        "_ids",
        "_left",
        "_left_of",
        "_load_of",
        "_random",
        "_seen",
    )

    def __init__(self, random: random_module.Random, adaptive: bool = True) -> None:
        self._adaptive = adaptive
        self._random = random
        # the current choice
        self._current = -1
        self._seen: Sequence[int] | None = None
        # the partitions not yet chosen in this round, and the sequence with which the round began
        self._left: list[int] = []
        self._left_of: Sequence[int] | None = None
        # the load, written by update_load(): partition _ids[i] has the share from _bounds[i - 1] to
        # _bounds[i]
        self._ids: list[int] = []
        self._bounds: list[int] = []
        self._load_of: Sequence[int] | None = None
        """The sequence of available partitions that `_ids` was last checked against."""

    def current(self, available: Sequence[int]) -> int:
        """Return the current partition. If it is not available, choose another one first."""
        if available is not self._seen:
            # The partition may have lost its leader, or the topic may have been re-created with fewer partitions.
            if self._current not in available:
                self.choose(available)
            self._seen = available
        return self._current

    def choose(self, available: Sequence[int]) -> int:
        """Choose the next partition, which may be the same one, and return it."""
        self._seen = available
        # randrange() would be exactly uniform, but takes four times as long. The bias of the remainder is at most
        # n / 2 ** 32.
        number = self._random.getrandbits(32)
        if self._bounds and self._load_of is not available:
            self._load_of = available
            if not set(self._ids) <= set(available):  # the load includes a partition that is not available
                self._ids, self._bounds = [], []
        if self._bounds:
            self._current = self._ids[bisect_right(self._bounds, number % self._bounds[-1])]
            return self._current
        left = self._left
        if not left or self._left_of is not available:
            left = self._left = list(available)
            self._left_of = available
        place = number % len(left)
        self._current = left[place]
        left[place] = left[-1]
        left.pop()
        return self._current

    def update_load(
        self, queue_sizes: Sequence[int], partition_ids: Sequence[int], *, total: int | None = None
    ) -> None:
        """Set new weights for future choices; the current choice remains.

        Args:
            queue_sizes: the number of batches that are waiting for each partition.
            partition_ids: the partitions in the same order; partitions are left out if their leader has accepted no
                data for `partitioner_availability_timeout_ms`.
            total: the number of partitions, including those left out; by default, none is left out.
        """
        if not self._adaptive:
            return
        if total is None:
            total = len(partition_ids)
        nothing_left_out = len(partition_ids) == total
        if not partition_ids or total < 2 or (nothing_left_out and min(queue_sizes) == max(queue_sizes)):
            self._ids, self._bounds = [], []
            return
        # Queues of 0, 3, 1 give the weights 4, 1, 3 and the bounds 4, 5, 8: a random number below 4 selects
        # the first partition, 4 the second, and 5 to 7 the third.
        heaviest = max(queue_sizes) + 1
        self._load_of = None
        self._ids = list(partition_ids)
        self._bounds = list(accumulate(heaviest - size for size in queue_sizes))


class NodeAvailability:
    """Measures how long data has been waiting for each broker that can't accept it (partition availability in KIP-794).

    Time during which no data is waiting does not count: a broker whose records have expired may be back, and only new
    records can show that.

    Only the sender uses this class. Times are the event loop's, in seconds.
    """

    __slots__ = ("_looked", "_since", "is_watched", "timeout")

    def __init__(self, timeout: float) -> None:
        """`timeout` is in seconds; if it is 0, every broker counts as available."""
        self.timeout = timeout
        self.is_watched = timeout > 0
        # for each broker that can't accept the data waiting for it: the times at which this was first and last observed
        self._since: dict[int, float] = {}
        self._looked: dict[int, float] = {}

    def update(self, node_id: int, now: float, *, can_drain: bool) -> None:
        """Update the state of a broker that data is waiting for: whether it can accept the data now."""
        if not self.is_watched:
            return
        if can_drain:
            self._since.pop(node_id, None)
            return
        self._since.setdefault(node_id, now)
        self._looked[node_id] = now

    def only_for(self, node_ids: Collection[int]) -> None:
        """Forget all brokers except these, the only ones that data is waiting for."""
        for node_id in [node_id for node_id in self._since if node_id not in node_ids]:
            del self._since[node_id]

    def is_available(self, node_id: int) -> bool:
        """Return whether the partitions of this broker may be chosen."""
        since = self._since.get(node_id)
        return since is None or self._looked[node_id] - since <= self.timeout
