"""The cluster, the producers and the faults of one run, and the operations that the workload and faults perform."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from aioproducer import Producer, Receipt
from aioproducer.metrics import Metrics
from aioproducer.testing import EmbeddedCluster, Operation
from aioproducer.testing.embedded.broker import BrokerState
from aioproducer.testing.embedded.faults import Fault
from aioproducer.testing.embedded.topics import EmbeddedTopic, Partition
from aioproducer.testing.embedded.transaction_metadata import TransactionStatus
from aioproducer.testing.simulation.loop import SimulatedLoop
from aioproducer.testing.simulation.network import Latency
from tests.campaigns.simulation import collected, faults
from tests.campaigns.simulation.faults import READ_FROM, TOPIC
from tests.campaigns.simulation.history import History
from tests.campaigns.simulation.oracle import number_of
from tests.campaigns.simulation.plan import V1, Plan

QUIET = Latency()
GROUP_PARTITIONS = 3
"""The number of partitions of the topic that the consumer group reads."""


class _Cluster(EmbeddedCluster):
    """A cluster in which late faults that no longer apply do nothing."""

    def move_leader(self, topic: str, partition: int, to_node: int) -> None:
        with suppress(ValueError, KeyError):
            super().move_leader(topic, partition, to_node)


class World:
    """The state of a run in progress."""

    def __init__(self, plan: Plan, history: History, loop: SimulatedLoop) -> None:
        self.plan = plan
        self.history = history
        self.loop = loop
        self.scripted: list[tuple[str, Fault]] = []
        self.receipts: list[Receipt] = []
        """The receipt of each send_many; its errors are read at the end."""
        self.counters: dict[str, list[Metrics]] = {}
        """The metrics of all producers, by client id."""
        self._wall_skew = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._watching: list[asyncio.Task[None]] = []
        """The tasks of faults that wait for an event."""
        self._late_offsets: list[tuple[int, asyncio.Event]] = []
        """Held requests, each with the number of transactions that had begun when it was read."""
        self.wants_successor = asyncio.Event()
        """Set when a fault waits for the rival, which then begins at once, if the plan has one."""
        self.cluster = _Cluster(
            plan.brokers,
            min_insync_replicas=plan.min_insync_replicas,
            versions=plan.versions,
            transaction_version=1 if plan.kind == V1 or plan.upgraded_at is not None else 2,
            clock=self.wall_time,
            random=plan.random("cluster"),
            auto_create=False,
            collects_metrics=plan.collects_metrics,
        )
        if plan.faults:  # the delay may be as long as the shortest time-outs
            self.cluster.transactions.marker_delay = plan.random("markers").choice([0.0, 0.0, 0.005, 0.1])
        if plan.collects_metrics:
            collected.ask(self.cluster.telemetry, plan.random("telemetry"))

    def wall_time(self) -> float:
        return self.loop.wall_time() + self._wall_skew

    def skip_wall_time(self, seconds: float) -> None:
        """Move the brokers' clock ahead."""
        self._wall_skew += seconds

    def producer(self, label: str = "producer", **settings: Any) -> Producer:
        """Return a new producer, not yet started."""
        producer = Producer(**self.settings(client_id=label, **settings))
        return self.adopt(producer, label)

    def adopt(self, producer: Producer, label: str) -> Producer:
        """Take the producer's random numbers from the plan, and its time from the simulation."""
        producer._random.seed(f"{self.plan.kind}/{self.plan.seed}/{label}")
        producer._wall_clock = self.loop.wall_time
        self.counters.setdefault(producer._config.client_id, []).append(producer._metrics)
        return producer

    def settings(self, **settings: Any) -> dict[str, Any]:
        """Return the settings of the plan's producers with these changes; None leaves one out."""
        known = {"bootstrap_servers": self.cluster.bootstrap_servers, **self.plan.settings, **settings}
        return {name: value for name, value in known.items() if value is not None}

    # Topics

    def create_topic(self) -> None:
        """Create, or re-create, the topic that all producers write to; with transactions, also one to read from."""
        if TOPIC not in self.cluster.topics:
            self.watch(self.cluster.create_topic(TOPIC, self.plan.partitions, config=self._topic_config))
            self.history.incarnations.append(self.cluster.topics[TOPIC])
        if self.plan.is_transactional and READ_FROM not in self.cluster.topics:
            self.cluster.create_topic(READ_FROM, GROUP_PARTITIONS)

    @property
    def _topic_config(self) -> dict[str, str | None]:
        return {"message.timestamp.type": "LogAppendTime"} if self.plan.log_append_time else {}

    def watch(self, topic: EmbeddedTopic) -> None:
        """Record which records leader changes truncate."""
        for partition in topic.partitions:
            if "truncate" not in vars(partition.log):
                vars(partition.log)["truncate"] = self._noting(partition)

    def _noting(self, partition: Partition) -> Callable[[int], None]:
        truncate = partition.log.truncate

        def noting(offset: int) -> None:
            lost = [number_of(record.value) for record in partition.records() if record.offset >= offset]
            self.history.truncated.setdefault((TOPIC, partition.index), []).extend(lost)
            truncate(offset)

        return noting

    def partitions(self) -> list[Partition]:
        """Return the topic's partitions, or those of its last incarnation if it is deleted."""
        topic = self.cluster.topics.get(TOPIC)
        return list(topic.partitions if topic is not None else self.history.incarnations[-1].partitions)

    # Faults

    def schedule_faults(self) -> None:
        random = self.plan.random("faults")
        for at, name in self.plan.faults:
            self.later(at, lambda name=name: faults.strike(name, self, random))
        if self.plan.upgraded_at is not None:
            self.later(self.plan.upgraded_at, self._upgrade)

    def _upgrade(self) -> None:
        """The brokers restart one by one with the new level, so every client connects again."""
        self.cluster.transactions.finalize(2)
        for node in range(self.plan.brokers):
            self.loop.network.cut(self.cluster.broker(node).node.port)
        self.fired("upgraded")

    def later(self, seconds: float, strike: Callable[[], object]) -> None:
        """Schedule a fault, unless heal() comes first."""
        self._timers.append(self.loop.call_later(seconds, strike))

    def watching(self, wait: Coroutine[Any, Any, None]) -> None:
        """Let a fault wait for an event, until heal()."""
        self._watching.append(asyncio.create_task(wait, name="fault"))

    def hold_until_next_offsets(self, arrival: asyncio.Event) -> None:
        """Hold a request that was just read until a later transaction has sent offsets."""
        self._late_offsets.append((len(self.history.transactions), arrival))

    def offsets_were_sent(self) -> None:
        """Release held offsets of earlier transactions: the group coordinator has those of the last one."""
        begun = len(self.history.transactions)
        for number, arrival in self._late_offsets:
            if number < begun:
                arrival.set()

    async def successor_has_begun(self) -> None:
        """Call the rival, and wait until the transactional id has an open transaction under a later epoch."""
        before = self.cluster.transactions.describe(self.plan.transactional_id)
        self.wants_successor.set()
        while True:
            now = self.cluster.transactions.describe(self.plan.transactional_id)
            if (
                before is not None
                and now is not None
                and now.identity > before.identity
                and now.state is TransactionStatus.ONGOING
            ):
                return
            await asyncio.sleep(0.001)

    def fired(self, name: str) -> None:
        self.history.fired[name] += 1

    def running(self) -> list[int]:
        """Return the ids of the running brokers."""
        return [node.node_id for node in self.cluster.nodes if self.cluster.broker(node.node_id).is_running]

    def thaw(self, node: int) -> None:
        if self.cluster.broker(node).is_frozen:
            self.cluster.thaw_broker(node)

    def elect(self, partition: Partition) -> None:
        """Give a partition a leader again, from its ISR as a controller does."""
        if partition.leader < 0 and not partition.is_deleted:
            alive = [node for node in partition.isr or partition.replicas if node in self.running()]
            if alive:
                partition.move_leader(alive[0])

    def restore_limits(self) -> None:
        for partition in self.partitions():
            partition.config = partition.config.changed({"max.message.bytes": "1048588"})

    def restore_latency(self) -> None:
        self.loop.network.latency = QUIET

    def deny(self, seconds: float) -> None:
        """Deny writes to the topic for a while."""
        denial = self.cluster.authorizer.deny(Operation.WRITE, topic=TOPIC)

        def withdraw() -> None:
            with suppress(ValueError):
                self.cluster.authorizer.withdraw(denial)

        self.later(seconds, withdraw)

    async def heal(self) -> None:
        """End all faults, and let no more strike."""
        for timer in self._timers:
            timer.cancel()
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        cluster = self.cluster
        cluster.faults.clear()
        cluster.authorizer.clear()
        cluster.transactions.marker_delay = 0.0
        self.loop.network.release()
        self.restore_latency()
        for node in cluster.nodes:
            self.thaw(node.node_id)
            if cluster.broker(node.node_id).state is BrokerState.STOPPED:
                await cluster.start_broker(node.node_id)
        self.create_topic()
        self.restore_limits()
        for topic in list(cluster.topics.values()):
            for partition in topic.partitions:
                partition.release_replication()
                self.elect(partition)
                partition.set_isr(self.running())
        for name, fault in self.scripted:
            self.history.fired[name] += fault.hits
            for held in (fault.hold, fault.hold_before):
                if held is not None:
                    held.set()
        self.scripted.clear()
        if self.plan.is_transactional:
            cluster.transactions.release_loading()
            cluster.transactions.release_markers()
