"""A Kafka cluster inside the test's own event loop: real sockets, real batches, a real log per partition.

    async with EmbeddedCluster(brokers=3, topics={"flights": 12}) as cluster:
        producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
        ...
        assert len(cluster.records("flights")) == 1000

What the brokers know together (topics, leaders, producer ids) lives here, each broker's sockets in Broker.
"""

from __future__ import annotations

import asyncio
import random as random_module
import time
import zlib
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from uuid import UUID

from aioproducer.protocol.api import ApiKey, RequestHeader
from aioproducer.protocol.schema import Message
from aioproducer.recordbatch import Record
from aioproducer.testing.broker import Broker, BrokerState
from aioproducer.testing.call import SeenRequest
from aioproducer.testing.faults import FaultScript
from aioproducer.testing.log import Batch, LogConfig, PartitionLog
from aioproducer.testing.releases import served_versions
from aioproducer.testing.topics import NO_LEADER, Partition, Topic, is_valid_name
from aioproducer.types import Node

_REQUESTS_KEPT = 10_000
_FIRST_PRODUCER_ID = 1000


class EmbeddedCluster:
    """Brokers for tests and demonstrations, in this process and on this event loop.

    Everything is kept in memory: no Kafka for production. What it does, it does as Kafka does: versions,
    error codes, idempotence, leader epochs, acks, the high watermark.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        port: int = 0,
        topics: Mapping[str, int] | None = None,
        auto_create: bool = True,
        default_partitions: int = 1,
        replication_factor: int | None = None,
        min_insync_replicas: int = 1,
        max_message_bytes: int = 1_048_588,
        versions: str = "4.1",
        host: str = "127.0.0.1",
        clock: Callable[[], float] = time.time,
        random: random_module.Random | None = None,
    ) -> None:
        """Describe a cluster; `start()` or `async with` brings it up.

        Args:
            brokers: How many; their node ids count from 0.
            port: The first broker's port, the others follow it; 0 lets the system choose each.
            topics: Topics to create at the start, with their numbers of partitions.
            auto_create: Create a topic when a client asks for its metadata and allows it.
            default_partitions: Of topics for which nobody says how many.
            replication_factor: Replicas of a partition; None: 3, or as many as there are brokers.
            min_insync_replicas: acks=all needs at least so many replicas in sync.
            max_message_bytes: The largest batch, in bytes.
            versions: The Kafka release whose API versions are served, from "0.11" to "4.3".
            host: Where to listen, and what clients are told.
            clock: Seconds since 1970, for LogAppendTime.
            random: Where topic ids come from.

        Raises:
            ValueError: a number or the release makes no sense.
        """
        if brokers < 1 or default_partitions < 1:
            raise ValueError("a cluster needs at least one broker, a topic at least one partition")
        if replication_factor is not None and not 1 <= replication_factor <= brokers:
            raise ValueError(f"replication_factor={replication_factor} does not fit {brokers} brokers")
        self.auto_create = auto_create
        self.default_partitions = default_partitions
        self.default_replication_factor = replication_factor or min(3, brokers)
        self.topics: dict[str, Topic] = {}
        self.faults = FaultScript()
        """What shall go wrong; see `FaultScript.add`."""
        self.requests: deque[SeenRequest] = deque(maxlen=_REQUESTS_KEPT)
        """The latest requests that brokers have read, but no ApiVersions requests that they refused."""
        self.failures: list[Exception] = []
        """Bugs of the embedded brokers; leaving `async with` raises the first."""
        self._random = random or random_module.Random()
        self._clock = clock
        self._config = LogConfig(max_message_bytes=max_message_bytes, min_insync_replicas=min_insync_replicas)
        self._first_topics = dict(topics or {})
        self._topics_by_id: dict[UUID, Topic] = {}
        self._producer_id = _FIRST_PRODUCER_ID
        self._seen = asyncio.Event()
        self._brokers = [
            Broker(self, node_id, host, port and port + node_id, served_versions(versions))
            for node_id in range(brokers)
        ]
        self.cluster_id = urlsafe_b64encode(self._uuid().bytes).decode().rstrip("=")

    # Life

    async def start(self) -> None:
        """Start all brokers and create the topics.

        Raises:
            OSError: a port is taken. Nothing is left running.
            ValueError: a topic can't be made. Nothing is left running.
        """
        try:
            for broker in self._brokers:
                await broker.start()
            for name, partitions in self._first_topics.items():
                self.create_topic(name, partitions)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all brokers. No task and no socket is left; the logs can still be read."""
        # All are halted before the first wait, so that also a cancelled stop() leaves nothing that goes on.
        running = [broker for broker in self._brokers if broker.state is not BrokerState.STOPPED]
        for broker in running:
            broker.halt()
        for broker in running:
            await broker.wait_stopped()

    async def __aenter__(self) -> EmbeddedCluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
        if self.failures and error is None:
            raise self.failures[0]

    @property
    def bootstrap_servers(self) -> str:
        """All brokers' addresses, "host:port,host:port"."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self._brokers)

    # Brokers

    @property
    def nodes(self) -> list[Node]:
        """All brokers, also those that are stopped."""
        return [broker.node for broker in self._brokers]

    def alive(self) -> list[Node]:
        """The brokers that metadata tells of: a frozen one is among them, a stopped one is not."""
        return [broker.node for broker in self._brokers if broker.state is not BrokerState.STOPPED]

    def broker(self, node: int) -> Broker:
        """The broker with this node id. Raises ValueError if there is none."""
        if not 0 <= node < len(self._brokers):
            raise ValueError(f"there is no broker {node}; the node ids are 0 to {len(self._brokers) - 1}")
        return self._brokers[node]

    async def stop_broker(self, node: int) -> None:
        """Stop a broker as a crash would: its connections break, its partitions get other leaders at once."""
        broker = self.broker(node)
        broker.halt()
        alive = {other.node_id for other in self.alive()}
        for partition in self._partitions():
            partition.broker_stopped(node, alive)
        await broker.wait_stopped()

    async def start_broker(self, node: int, *, versions: str | None = None) -> None:
        """Start a stopped broker at its old address, with another release if one is named.

        Raises:
            OSError: its port is taken.
        """
        broker = self.broker(node)
        if versions is not None:
            broker.versions = served_versions(versions)
        await broker.start()
        for partition in self._partitions():
            partition.broker_started(node)

    def freeze_broker(self, node: int) -> None:
        """A broker keeps its connections and takes new ones, but reads and answers nothing.

        It still leads, and its replicas stay in sync."""
        self.broker(node).freeze()

    def thaw_broker(self, node: int) -> None:
        """A frozen broker goes on; it serves what has arrived meanwhile."""
        self.broker(node).thaw()

    async def close_connections(self, node: int) -> None:
        """Cut all connections of a broker that goes on running."""
        await self.broker(node).close_connections()

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> Topic:
        """Create a topic; clients can use it at once.

        Args:
            name: By Kafka's rules.
            partitions: How many; None: the cluster's default.
            replication_factor: Replicas of each partition; None: the cluster's default.
            config: By Kafka's names: max.message.bytes, message.timestamp.type, min.insync.replicas.

        Raises:
            ValueError: the topic exists, or its name, a number or its config makes no sense.
        """
        count = self.default_partitions if partitions is None else partitions
        replicas = self.default_replication_factor if replication_factor is None else replication_factor
        if name in self.topics:
            raise ValueError(f"topic {name} exists")
        if not is_valid_name(name) or count < 1 or not 1 <= replicas <= len(self._brokers):
            raise ValueError(f"topic {name!r} with {count} partitions and {replicas} replicas can't be made")
        settings = self.check_config(config or {})
        alive = {node.node_id for node in self.alive()}
        topic = Topic(
            name,
            self._uuid(),
            [
                _new_partition(name, index, self._replicas(index, replicas), settings, alive)
                for index in range(count)
            ],
            settings,
        )
        self.topics[name] = self._topics_by_id[topic.topic_id] = topic
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. A new one of the same name has another id. Raises KeyError."""
        topic = self.topics.pop(name)
        del self._topics_by_id[topic.topic_id]
        for partition in topic.partitions:
            partition.delete()

    def add_partitions(self, name: str, count: int) -> None:
        """Let a topic have `count` partitions in all. Raises ValueError if it has as many or more."""
        topic = self.topics[name]
        have = len(topic.partitions)
        if count <= have:
            raise ValueError(f"topic {name} has {have} partitions; it can't have {count}")
        alive = {node.node_id for node in self.alive()}
        replicas = len(topic.partitions[0].replicas)
        topic.partitions += tuple(
            _new_partition(name, index, self._replicas(index, replicas), topic.config, alive)
            for index in range(have, count)
        )

    def check_config(self, settings: Mapping[str, str | None]) -> LogConfig:
        """A topic's config. Raises ValueError."""
        return self._config.changed(settings)

    def partition(self, topic: str, partition: int) -> Partition:
        """A partition's state. Raises KeyError if there is none."""
        found = self.find_partition(topic, partition)
        if found is None:
            raise KeyError(f"there is no partition {partition} of topic {topic}")
        return found

    def leader(self, topic: str, partition: int) -> int:
        """The node id of the leader; -1 if no replica in sync is alive."""
        return self.partition(topic, partition).leader

    def move_leader(self, topic: str, partition: int, to_node: int) -> None:
        """Let another broker lead, in a new leader epoch. Records above the high watermark are lost.

        Raises:
            ValueError: the broker is stopped, or holds no replica.
        """
        moved = self.partition(topic, partition)
        if to_node not in moved.replicas or self.broker(to_node).state is BrokerState.STOPPED:
            raise ValueError(f"broker {to_node} can't lead {topic}-{partition}, only {moved.replicas} can")
        moved.move_leader(to_node)

    def hold_replication(self, topic: str, partition: int) -> None:
        """The partition's followers stop fetching: acks=all waits, consumers see nothing new."""
        self.partition(topic, partition).hold_replication()

    def release_replication(self, topic: str, partition: int) -> None:
        """The partition's followers catch up."""
        self.partition(topic, partition).release_replication()

    def set_isr(self, topic: str, partition: int, nodes: Sequence[int]) -> None:
        """Say which replicas are in sync; the leader always is."""
        self.partition(topic, partition).set_isr(nodes)

    # What was written, what was asked

    def log(self, topic: str, partition: int) -> PartitionLog:
        """A partition's log. Raises KeyError if there is none."""
        return self.partition(topic, partition).log

    def batches(self, topic: str, partition: int) -> list[Batch]:
        """The batches of a partition, in order."""
        return list(self.log(topic, partition).batches)

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """All records of a partition, or of a topic partition by partition; uncompressed and decoded."""
        if partition is not None:
            return self.log(topic, partition).records()
        return [record for part in self.topics[topic].partitions for record in part.log.records()]

    def requests_of(self, api_key: ApiKey, node: int | None = None) -> list[SeenRequest]:
        """The requests of one API that brokers have read, to one broker or to any."""
        return [
            seen
            for seen in self.requests
            if seen.header.api_key == api_key and (node is None or seen.node == node)
        ]

    async def wait_for_requests(
        self, api_key: ApiKey, count: int = 1, node: int | None = None
    ) -> list[SeenRequest]:
        """Wait until brokers have read so many requests of one API in all. Put a time-out around it."""
        while len(found := self.requests_of(api_key, node)) < count:
            self._seen.clear()
            await self._seen.wait()
        return found

    # For brokers and handlers

    def note_request(self, node: int, header: RequestHeader, message: Message) -> SeenRequest:
        """Remember a request for tests."""
        seen = SeenRequest(node, header, message, asyncio.get_running_loop().time())
        self.requests.append(seen)
        self._seen.set()
        return seen

    def find_topic(self, name: str | None, topic_id: UUID) -> Topic | None:
        """A topic by its name, or by its id if there is no name."""
        return self.topics.get(name) if name else self._topics_by_id.get(topic_id)

    def find_partition(self, topic: str, index: int) -> Partition | None:
        """A partition, if there is one."""
        found = self.topics.get(topic)
        return found.partition(index) if found else None

    def coordinator(self, key: str) -> Node:
        """The broker that coordinates a group or a transactional id."""
        alive = self.alive()
        return alive[zlib.crc32(key.encode()) % len(alive)]

    def next_producer_id(self) -> int:
        """A producer id that nobody had before."""
        self._producer_id += 1
        return self._producer_id - 1

    def now_ms(self) -> int:
        """The wall clock, in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def _replicas(self, index: int, count: int) -> list[int]:
        """Leaders go round the brokers, followers sit next to them."""
        return [(index + step) % len(self._brokers) for step in range(count)]

    def _uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


def _new_partition(
    topic: str, index: int, replicas: Sequence[int], config: LogConfig, alive: set[int]
) -> Partition:
    """A partition as the controller makes it: brokers that are down are neither leader nor in sync."""
    partition = Partition(topic, index, replicas, config)
    partition.isr = [node for node in replicas if node in alive] or [replicas[0]]
    partition.leader = partition.isr[0] if partition.isr[0] in alive else NO_LEADER
    return partition
