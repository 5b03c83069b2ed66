"""An internal topic whose partition leaders are the coordinators of transactions or groups.

The leader of a key's partition is the key's coordinator. A new leader reads the partition's log; until it has finished,
requests are answered with COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing.embedded.controller import Controller
from aioproducer.testing.embedded.log import AppendError
from aioproducer.testing.embedded.topics import NO_LEADER, Partition
from aioproducer.testing.embedded.transaction_metadata import TransactionRefused

State = TypeVar("State")

_REPLICAS = 3
"""Kafka's default replication factor for both topics; a smaller cluster has one replica on each broker."""


class _Shard(Generic[State]):
    """The leader's state for one partition, in one leader epoch."""

    def __init__(self, leader_epoch: int, state: State) -> None:
        self.leader_epoch = leader_epoch
        self.state = state


class StateTopic(Generic[State]):
    """One internal topic; it is created when a client first asks for a coordinator."""

    def __init__(
        self,
        cluster: Controller,
        name: str,
        partitions: int,
        load: Callable[[Partition], State],
        *,
        min_insync_replicas: int | None = None,
    ) -> None:
        """Define the topic, without creating it.

        Args:
            cluster: The topic's cluster.
            name: The name of the topic.
            partitions: The number of partitions.
            load: A function that reads the log of a partition and returns its state.
            min_insync_replicas: The number of replicas that must be in sync for a write if there are three replicas;
                None: the same number as for other topics.
        """
        self.name = name
        self._cluster = cluster
        self._partitions = partitions
        self._min_insync_replicas = min_insync_replicas
        self._load = load
        self._shards: dict[int, _Shard[State]] = {}
        self._is_loading_held = False

    def partition_of(self, key: str) -> Partition:
        """Return the partition that contains all records about `key`."""
        return self.partitions()[partition_for(key, self._partitions)]

    def partitions(self) -> tuple[Partition, ...]:
        """Return all partitions; create the topic if it does not exist."""
        topic = self._cluster.topics.get(self.name)
        if topic is None:
            replicas = min(_REPLICAS, len(self._cluster.nodes))
            config = {}
            if self._min_insync_replicas is not None and replicas == _REPLICAS:
                config["min.insync.replicas"] = str(self._min_insync_replicas)
            topic = self._cluster.create_topic(
                self.name, self._partitions, replication_factor=replicas, config=config
            )
        return topic.partitions

    @property
    def exists(self) -> bool:
        """True if the topic has been created."""
        return self.name in self._cluster.topics

    def leader(self, key: str) -> int:
        """Return the node id of `key`'s coordinator; -1 if it currently has none."""
        return self.partition_of(key).leader

    def state_at(self, node: int, key: str) -> State:
        """Return broker `node`'s state for the partition of `key`.

        Raises:
            TransactionRefused: the broker is not the coordinator, or is still reading the log.
        """
        partition = self.partition_of(key)
        if partition.leader != node:
            raise TransactionRefused(ErrorCode.NOT_COORDINATOR)
        state = self.loaded(partition)
        if state is None:
            raise TransactionRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return state

    def loaded(self, partition: Partition) -> State | None:
        """Return the leader's state for a partition; None if there is no leader or it is still reading the log."""
        shard = self._shards.get(partition.index)
        if shard is not None and shard.leader_epoch == partition.leader_epoch:
            return shard.state if partition.leader != NO_LEADER else None
        self._shards.pop(partition.index, None)
        if partition.leader == NO_LEADER or self._is_loading_held:
            return None
        shard = self._shards[partition.index] = _Shard(partition.leader_epoch, self._load(partition))
        return shard.state

    def all_loaded(self) -> Iterator[tuple[Partition, State]]:
        """Iterate over the partitions whose leaders have read the log, with the leaders' states."""
        if self.exists:
            for partition in self.partitions():
                state = self.loaded(partition)
                if state is not None:
                    yield partition, state

    def hold_loading(self) -> None:
        """Delay log loading: from now on, new leaders answer with COORDINATOR_LOAD_IN_PROGRESS."""
        self._is_loading_held = True

    def release_loading(self) -> None:
        """Let new leaders finish loading their logs."""
        self._is_loading_held = False

    def append(self, partition: Partition, data: bytes) -> int:
        """Write a batch and return its last offset. The batch takes effect once it is replicated.

        Raises:
            TransactionRefused: too few replicas are in sync, or the log rejects the batch.
        """
        if len(partition.isr) < partition.effective_min_isr:
            raise TransactionRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            return partition.append_by_broker(data).last_offset
        except AppendError as error:
            raise TransactionRefused(error.code) from None


def partition_for(key: str, partitions: int) -> int:
    """Return Kafka's partition for a key: the Java string's hash code, without its sign, modulo `partitions`."""
    code = 0
    encoded = key.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        code = (31 * code + int.from_bytes(encoded[at : at + 2], "big")) & 0xFFFFFFFF
    # Kafka's Utils.abs() returns 0 for the smallest int; other values lose their sign.
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions
