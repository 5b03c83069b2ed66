"""A Kafka cluster inside the test's own event loop: real sockets, real batches, a real log per partition.

    async with EmbeddedCluster(brokers=3, topics={"flights": 12}) as cluster:
        producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
        ...
        assert len(cluster.records("flights")) == 1000

EmbeddedCluster holds the state that all brokers share (topics, leaders, producer ids). EmbeddedBroker has the sockets
of one broker, and Inspection has the methods that tests use to inspect the cluster.
"""

from __future__ import annotations

import asyncio
import math
import random as random_module
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from uuid import UUID

from aioproducer.errors import counted
from aioproducer.testing.embedded.authorizer import Authorizer
from aioproducer.testing.embedded.broker import BrokerState, EmbeddedBroker
from aioproducer.testing.embedded.broker_security import Security
from aioproducer.testing.embedded.faults import FaultScript
from aioproducer.testing.embedded.groups import GroupCoordinator
from aioproducer.testing.embedded.inspection import Inspection
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.offset_log import TOPIC as OFFSETS_TOPIC
from aioproducer.testing.embedded.quotas import Quota, Quotas
from aioproducer.testing.embedded.releases import release_named
from aioproducer.testing.embedded.telemetry import Telemetry
from aioproducer.testing.embedded.topics import NO_LEADER, EmbeddedTopic, Partition, is_valid_name
from aioproducer.testing.embedded.transaction_log import TOPIC as TRANSACTIONS_TOPIC
from aioproducer.testing.embedded.transactions import TransactionCoordinator
from aioproducer.types import Node

_FIRST_PRODUCER_ID = 1000


class EmbeddedCluster(Inspection):
    """Brokers for tests and demonstrations, in this process and on this event loop.

    The cluster keeps everything in memory, so it is not for production. It imitates Kafka's protocol versions, error
    codes, idempotence, leader epochs, acks and high watermarks.
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
        transaction_version: int = 2,
        host: str = "127.0.0.1",
        clock: Callable[[], float] = time.time,
        random: random_module.Random | None = None,
        security: Security | None = None,
        collects_metrics: bool = False,
    ) -> None:
        """Describe a cluster; `start()` or `async with` starts it.

        Args:
            brokers: The number of brokers; their node ids start at 0.
            port: The first broker's port; the others use the ports after it. 0 lets the system choose each port.
            topics: Topics to create at the first start, with their numbers of partitions.
            auto_create: Whether to create a missing topic when a client requests its metadata and allows its creation.
            default_partitions: The number of partitions for a topic that is created without a partition count.
            replication_factor: The number of replicas of a partition; None: 3, or the number of brokers if it is lower.
            min_insync_replicas: The number of replicas that must be in sync for acks=all.
            max_message_bytes: The maximum size of a batch, in bytes.
            versions: The Kafka release to imitate, from "0.11" to "4.3", or "azure-event-hubs".
            transaction_version: The finalized level of the feature transaction.version: 2 for transactions v2
                (KIP-890), 1 or 0 for v1. Releases before 4.0 do not have the feature and behave as if the level were 0.
            host: The address to listen on, which is also advertised to clients.
            clock: A function that returns the seconds since 1970, for timestamps and the time-outs of transactions.
            random: The source of random ids, such as topic ids.
            security: TLS, SASL and sessions; None for PLAINTEXT.
            collects_metrics: Whether to offer the APIs through which clients push metrics (KIP-714); see `telemetry`.

        Raises:
            ValueError: a number or the release is invalid.
        """
        if brokers < 1 or default_partitions < 1:
            raise ValueError("a cluster needs at least one broker, and a topic at least one partition")
        if replication_factor is not None and not 1 <= replication_factor <= brokers:
            raise ValueError(
                f"replication_factor={replication_factor} is not possible with {counted(brokers, 'broker')}"
            )
        if not 0 <= port <= 65536 - brokers:
            raise ValueError(
                f"port={port} can't be the first port of {counted(brokers, 'broker')}; port 0 chooses free ports"
            )
        if transaction_version not in (0, 1, 2):
            raise ValueError(f"transaction_version={transaction_version} is not one of 0, 1, 2")
        super().__init__()
        self.auto_create = auto_create
        self.default_partitions = default_partitions
        self.default_replication_factor = replication_factor or min(3, brokers)
        self.faults = FaultScript(brokers)
        """The scripted faults; see `FaultScript.add`."""
        self.authorizer = Authorizer()
        """The operations that are denied to clients; see `Authorizer.deny`."""
        self.quotas = Quotas()
        """The limits of clients; see `set_quota`."""
        self.failures: list[Exception] = []
        """Bugs in the embedded brokers, and scripted faults that could not be carried out. The first of them is raised
        at the end of `async with`, unless the block itself raises an exception."""
        self.security = security
        self._random = random or random_module.Random()
        self._clock = clock
        self._collects_metrics = collects_metrics
        self.telemetry = Telemetry()
        """The metrics that the cluster requests from clients, and those that they have pushed."""
        release = release_named(versions, collects_metrics=collects_metrics)
        self._config = LogConfig.of_broker(
            is_before_4=release.is_before_4,
            max_message_bytes=max_message_bytes,
            min_insync_replicas=min_insync_replicas,
        )
        self._first_topics = dict(topics or {})
        self._producer_id = _FIRST_PRODUCER_ID
        # Tasks that restart crashed brokers after a delay.
        self._restarts: dict[asyncio.Task[None], None] = {}
        self._brokers = [
            EmbeddedBroker(self, node_id, host, port and port + node_id, release)
            for node_id in range(brokers)
        ]
        self.transactions = TransactionCoordinator(
            self, min(transaction_version, release.transaction_version)
        )
        """The state of transactional ids, and the scripted faults for their transactions."""
        self.groups = GroupCoordinator(self)
        """The members of consumer groups, and the offsets that they have committed."""
        self.cluster_id = urlsafe_b64encode(self.new_uuid().bytes).decode().rstrip("=")

    # Start and stop

    async def start(self) -> None:
        """Start all brokers and create the topics.

        After `stop()`, the same cluster can start again with its ports, topics, records, leaders, transactions and
        group offsets, as if all brokers of a real cluster had been restarted. Deleted topics stay deleted.

        Raises:
            RuntimeError: a broker is not stopped; it keeps running.
            OSError: a port is in use. Nothing is left running.
            ValueError: a topic can't be created. Nothing is left running.
        """
        for broker in self._brokers:
            if broker.state is not BrokerState.STOPPED:
                raise RuntimeError(
                    f"the cluster can't start: broker {broker.node_id} is {broker.state.value}; call stop() first,"
                    " or start a single broker with start_broker()"
                )
        self._seen = asyncio.Event()  # An event belongs to the event loop of its first waiter.
        try:
            for broker in self._brokers:
                await self.start_broker(broker.node_id)
            while self._first_topics:
                name, partitions = next(iter(self._first_topics.items()))
                self.create_topic(name, partitions)
                del self._first_topics[name]
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all brokers. No task or socket remains. The logs can still be read, and `start` continues with them.

        If the call is cancelled, the brokers still stop; CancelledError is raised afterwards."""
        for restart in self._restarts:
            restart.cancel()
        self.transactions.halt()
        self.groups.halt()
        for broker in self._brokers:
            if broker.state is not BrokerState.STOPPED:
                broker.halt()
        # All tasks have been cancelled; they need a few turns of the loop to end.
        waiting = asyncio.create_task(self._wait_stopped(), name="embedded cluster stops")
        cancelled = None
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _wait_stopped(self) -> None:
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await self.transactions.wait_stopped()
        for broker in self._brokers:
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
        """The addresses of all brokers, as "host:port,host:port"."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self._brokers)

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

    async def stop_broker(self, node: int) -> None:
        """Stop a broker as a crash would: its connections break, and its partitions get other leaders immediately."""
        self.crash_broker(node)
        await self.broker(node).wait_stopped()

    def crash_broker(self, node: int, down_for: float = math.inf) -> None:
        """Crash a broker without waiting for its connections to end, and restart it after `down_for` seconds."""
        self.broker(node).halt()
        self._replace(node)
        if math.isfinite(down_for):
            restart = asyncio.create_task(
                self._start_again(node, down_for), name=f"embedded broker {node} comes back"
            )
            self._restarts[restart] = None
            restart.add_done_callback(self._restarts.pop)

    async def _start_again(self, node: int, after: float) -> None:
        await asyncio.sleep(after)
        try:
            if self.broker(node).state is BrokerState.STOPPED:
                await self.start_broker(node)
        except OSError as error:
            self.failures.append(error)

    async def start_broker(self, node: int, *, versions: str | None = None) -> None:
        """Start a stopped broker at its old address. If `versions` is given, it imitates that release from now on.

        Raises:
            OSError: the port is in use.
        """
        broker = self.broker(node)
        if versions is not None:
            broker.release = release_named(versions, collects_metrics=self._collects_metrics)
        await broker.start()
        for partition in self._partitions():
            partition.broker_started(node)
        self.transactions.resume()
        self.groups.resume()

    def freeze_broker(self, node: int, *, fenced_after: float | None = None) -> None:
        """Freeze a broker: it keeps its connections and accepts new ones, but reads no requests and sends no responses.

        Args:
            node: The broker's node id.
            fenced_after: If None, the controller does not notice: the broker stays leader and its replicas count as up
                to date, so the other brokers' partitions remain available. Otherwise, its replicas stop fetching, so
                acks=all waits for them. After this many seconds (broker.session.timeout.ms), the controller fences the
                broker: it leaves the ISRs, and its partitions get other leaders. When it thaws, it rejoins the ISRs.
        """
        self.broker(node).freeze()
        if fenced_after is not None:
            for partition in self._partitions():
                partition.stop_fetching(node)
            self.broker(node).while_frozen(fenced_after, self._fence, node)

    def _fence(self, node: int) -> None:
        self.broker(node).is_fenced = True
        self._replace(node)

    def _replace(self, node: int) -> None:
        """Act as the controller: let the partitions that have a replica on the broker continue without it."""
        alive = {other.node_id for other in self.alive()}
        for partition in self._partitions():
            partition.broker_stopped(node, alive)

    def thaw_broker(self, node: int) -> None:
        """Thaw a frozen broker: it serves the requests that have arrived in the meantime, and its replicas catch up."""
        was_fenced = self.broker(node).is_fenced
        self.broker(node).thaw()
        for partition in self._partitions():
            if was_fenced:
                partition.broker_started(
                    node
                )  # start_fetching() skips partitions that were created while the broker was fenced.
            else:
                partition.start_fetching(node)

    async def close_connections(self, node: int) -> None:
        """Cut all connections to a broker. The broker keeps running."""
        await self.broker(node).close_connections()

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
            ValueError: the topic exists, its name collides with another topic's, or its name, a number or its
                config is invalid.
        """
        count = self.default_partitions if partitions is None else partitions
        replicas = self.default_replication_factor if replication_factor is None else replication_factor
        if name in self.topics:
            raise ValueError(f"topic {name} already exists")
        if not is_valid_name(name):
            raise ValueError(
                f"topic {name!r} can't be created: a name has 1 to 249 characters from a-z, A-Z, 0-9, '.', '_', '-'"
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

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. A new topic with the same name gets a different id.

        Raises:
            KeyError: the topic does not exist.
        """
        topic = self.topics.pop(name)
        del self._topics_by_id[topic.topic_id]
        for partition in topic.partitions:
            partition.delete()
        self.groups.forget_topic(name)

    def add_partitions(self, name: str, count: int) -> None:
        """Increase the number of partitions in a topic to `count`. Raises ValueError if it already has that many."""
        topic = self.topics[name]
        have = len(topic.partitions)
        if count <= have:
            raise ValueError(f"topic {name} has {counted(have, 'partition')}; count={count} must be higher")
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

    # Clients

    def set_quota(
        self,
        client_id: str | None = None,
        *,
        producer_byte_rate: float | None = None,
        request_percentage: float | None = None,
    ) -> None:
        """Limit a client on each broker: above the limit, its connections are muted for a while.

        The response is sent immediately and contains the throttle time (KIP-219). As in Kafka, rates are averaged over
        eleven seconds, so a burst of ten seconds' worth of data is possible.

        Args:
            client_id: The client id; None limits each client id that has no quota of its own.
            producer_byte_rate: Bytes of Produce requests per second; None: no limit.
            request_percentage: The share of a request thread's time, in percent. A fault's `delay` counts as work; the
                time that a request spends waiting does not. None: no limit.

        Raises:
            ValueError: a limit is not above 0.
        """
        self.quotas.set(client_id, Quota(producer_byte_rate, request_percentage))

    # For brokers and handlers

    def auto_create_topic(self, name: str) -> None:
        """Create a topic that a client has requested. An internal topic gets its usual number of partitions."""
        if name == OFFSETS_TOPIC:
            self.groups.create_topic()
        elif name == TRANSACTIONS_TOPIC:
            self.transactions.create_topic()
        else:
            self.create_topic(name)

    def colliding_topic(self, name: str) -> str | None:
        """Return a topic whose name equals `name` except for '.' and '_' (their metrics would collide), or None."""
        unified = name.replace(".", "_")
        if "_" not in unified:
            return None
        return next((other for other in self.topics if other.replace(".", "_") == unified), None)

    def coordinator(self, key: str, *, of_transactions: bool = False) -> Node | None:
        """Return the broker that coordinates a group or a transactional id; None if it currently has no coordinator."""
        node = self.transactions.node(key) if of_transactions else self.groups.node(key)
        return None if node == NO_LEADER else self.broker(node).node

    def next_producer_id(self) -> int:
        """Return an unused producer id."""
        self._producer_id += 1
        return self._producer_id - 1

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def _replicas(self, index: int, count: int) -> list[int]:
        """Distribute replicas: leaders rotate through the brokers, and the next brokers are the followers."""
        return [(index + step) % len(self._brokers) for step in range(count)]

    def new_uuid(self) -> UUID:
        """Return a new random id."""
        return UUID(int=self._random.getrandbits(128), version=4)


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
