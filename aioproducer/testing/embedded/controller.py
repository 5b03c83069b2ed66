"""The part of a cluster that Kafka's controller manages: the brokers, the topics, their leaders, and new ids.

The coordinators of groups and transactions know their cluster only as a Controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from uuid import UUID

from aioproducer.errors import counted
from aioproducer.testing.embedded.broker import BrokerState, EmbeddedBroker
from aioproducer.testing.embedded.inspection import Inspection
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.topics import NO_LEADER, EmbeddedTopic, Partition, is_valid_name
from aioproducer.types import Node

_FIRST_PRODUCER_ID = 1000


class Controller(Inspection):
    """The brokers and topics of a cluster; tests may also change them."""

    def __init__(
        self,
        config: LogConfig,
        default_partitions: int,
        default_replication_factor: int,
        clock: Callable[[], float],
        random: Random,
    ) -> None:
        super().__init__()
        self.default_partitions = default_partitions
        self.default_replication_factor = default_replication_factor
        self.failures: list[Exception] = []
        """Bugs in the embedded brokers, and scripted faults that could not be carried out. The first one is raised
        when the `async with` block exits, unless the block itself raises an exception."""
        self._brokers: list[EmbeddedBroker] = []
        self._config = config
        self._clock = clock
        self._random = random
        self._producer_id = _FIRST_PRODUCER_ID

    # Brokers

    @property
    def nodes(self) -> list[Node]:
        """All brokers, including stopped ones."""
        return [broker.node for broker in self._brokers]

    def alive(self) -> list[Node]:
        """Return the brokers that metadata lists: those that are running, and frozen ones that are not yet fenced."""
        return [
            broker.node
            for broker in self._brokers
            if (broker.is_running or broker.is_frozen) and not broker.is_fenced
        ]

    def broker(self, node: int) -> EmbeddedBroker:
        """Return the broker with this node id. Raises ValueError if there is no such broker."""
        if not 0 <= node < len(self._brokers):
            raise ValueError(f"there is no broker {node}; the node ids are 0 to {len(self._brokers) - 1}")
        return self._brokers[node]

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> EmbeddedTopic:
        """Create a topic; clients can use it immediately.

        Args:
            name: The topic name; Kafka's rules apply.
            partitions: The number of partitions; None: the cluster's default.
            replication_factor: The number of replicas of each partition; None: the cluster's default.
            config: Topic settings under Kafka's names, such as max.message.bytes or min.insync.replicas.

        Raises:
            ValueError: the topic exists, its name collides with another topic's, or an argument is invalid.
        """
        count = self.default_partitions if partitions is None else partitions
        replicas = self.default_replication_factor if replication_factor is None else replication_factor
        if name in self.topics:
            raise ValueError(f"topic {name} already exists")
        if not is_valid_name(name):
            raise ValueError(
                f"topic {name!r} can't be created: a name has 1 to 249 characters from a-z, A-Z, 0-9, '.', '_', '-', "
                "and can't be '.' or '..'"
            )
        if (other := self.colliding_topic(name)) is not None:
            raise ValueError(f"topic {name!r} can't be created: it collides with topic {other!r}")
        if count < 1 or not 1 <= replicas <= len(self._brokers):
            raise ValueError(
                f"topic {name!r} can't be created with {counted(count, 'partition')} and {counted(replicas, 'replica')}"
            )
        settings = self.check_config(config or {})
        alive = {node.node_id for node in self.alive()}
        topic = EmbeddedTopic(
            name,
            self.new_uuid(),
            [
                _new_partition(name, index, self._replicas(index, replicas), settings, alive)
                for index in range(count)
            ],
            settings,
        )
        self.topics[name] = self._topics_by_id[topic.topic_id] = topic
        return topic

    def add_partitions(self, name: str, count: int) -> None:
        """Increase the number of partitions in a topic to `count`. Raises ValueError if it already has that many."""
        topic = self.topics[name]
        have = len(topic.partitions)
        if count <= have:
            raise ValueError(
                f"topic {name} has {counted(have, 'partition')}; count={count} must be higher than that"
            )
        alive = {node.node_id for node in self.alive()}
        replicas = len(topic.partitions[0].replicas)
        topic.partitions += tuple(
            _new_partition(name, index, self._replicas(index, replicas), topic.config, alive)
            for index in range(have, count)
        )

    def check_config(self, settings: Mapping[str, str | None]) -> LogConfig:
        """Return the config of a topic with these settings. Raises ValueError if a setting is invalid."""
        return self._config.changed(settings)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node id of the leader; -1 if no in-sync replica is alive."""
        return self.partition(topic, partition).leader

    def move_leader(self, topic: str, partition: int, to_node: int) -> None:
        """Make another broker the leader, in a new leader epoch. Records above the high watermark are lost.

        Raises:
            ValueError: the broker is stopped, or has no replica of the partition.
        """
        moved = self.partition(topic, partition)
        state = self.broker(to_node).state
        if to_node not in moved.replicas:
            raise ValueError(
                f"broker {to_node} can't lead {topic}-{partition}: it has no replica of the partition; "
                f"the replicas are on {_listed(moved.replicas)}"
            )
        if state is BrokerState.STOPPED:
            raise ValueError(
                f"broker {to_node} can't lead {topic}-{partition}: it is {state.value}; "
                f"call start_broker({to_node}) first"
            )
        moved.move_leader(to_node)

    def hold_replication(self, topic: str, partition: int) -> None:
        """Stop the followers from fetching: while any is in the ISR, acks=all waits and consumers see nothing new."""
        self.partition(topic, partition).hold_replication()

    def release_replication(self, topic: str, partition: int) -> None:
        """Let the partition's followers catch up."""
        self.partition(topic, partition).release_replication()

    def set_isr(self, topic: str, partition: int, nodes: Sequence[int]) -> None:
        """Set which replicas are in sync. The leader is always in sync."""
        self.partition(topic, partition).set_isr(nodes)

    # For coordinators and handlers

    def colliding_topic(self, name: str) -> str | None:
        """Return a topic whose name equals `name` except for '.' and '_' (their metrics would collide), or None."""
        unified = name.replace(".", "_")
        if "_" not in unified:
            return None
        return next((other for other in self.topics if other.replace(".", "_") == unified), None)

    def next_producer_id(self) -> int:
        """Return an unused producer id."""
        self._producer_id += 1
        return self._producer_id - 1

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def new_uuid(self) -> UUID:
        """Return a new random id."""
        return UUID(int=self._random.getrandbits(128), version=4)

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def _replicas(self, index: int, count: int) -> list[int]:
        """Distribute replicas: leaders rotate through the brokers, and the next brokers are the followers."""
        return [(index + step) % len(self._brokers) for step in range(count)]


def _listed(nodes: Sequence[int]) -> str:
    noun = "broker" if len(nodes) == 1 else "brokers"
    return f"{noun} {', '.join(str(node) for node in nodes)}"


def _new_partition(
    topic: str, index: int, replicas: Sequence[int], config: LogConfig, alive: set[int]
) -> Partition:
    """Create a partition as the controller does: a broker that is down is neither the leader nor in sync."""
    partition = Partition(topic, index, replicas, config)
    partition.isr = [node for node in replicas if node in alive] or [replicas[0]]
    partition.leader = partition.isr[0] if partition.isr[0] in alive else NO_LEADER
    return partition
