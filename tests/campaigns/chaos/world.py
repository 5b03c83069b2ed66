"""The environment of one schedule: three brokers behind proxies, three topics, and the progress of the producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

import aioproducer
from aioproducer import Producer, TransactionHandle
from aioproducer.testing.apache import admin
from aioproducer.testing.apache.kafka import ApacheKafka
from tests.campaigns.chaos.faults import COPY
from tests.campaigns.chaos.history import ChaosHistory, Recovery
from tests.campaigns.chaos.plan import Plan
from tests.campaigns.chaos.proxy import Network, Proxy
from tests.campaigns.simulation.history import Sent
from tests.conftest import MS
from tests.support.apache_clusters import NOTICES_SOON
from tests.support.read_back import group_position

STEADY, GROWING, MADE_ANEW = "steady", "growing", "made-anew"
"""A topic that no fault changes, one that gets more partitions, and one that is deleted and re-created."""
PARTITIONS = {STEADY: 6, GROWING: 2, MADE_ANEW: 3}
COPIES = "copies"
"""The topic that receives the copies of the steady topic."""

BROKERS = 3
JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
QUICK = {
    **NOTICES_SOON,
    # A broker that was away becomes a leader again soon.
    "leader.imbalance.check.interval.seconds": 5,
    # Abandoned transactions are aborted soon, so that readers reach the end.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}

RECOVERS_WITHIN = 90_000 * MS
"""Seconds after a fault within which everything must work again, including elections on a busy machine."""
SETTLES_WITHIN = 60_000 * MS
"""Seconds within which brokers must abort abandoned transactions."""


class World:
    """The cluster that faults strike and producers write to."""

    def __init__(self, plan: Plan, history: ChaosHistory, network: Network) -> None:
        self.plan = plan
        self.history = history
        self.network = network
        self.kafka = ApacheKafka(
            BROKERS,
            plan.version,
            config=QUICK,
            jvm_args=JVM,
            format_args=plan.format_args,
            advertised=network.advertised,
        )
        self.brokers = list(range(BROKERS))
        self.committed_since: dict[str, float] = {}
        """For each transactional producer, the time at which its last committed transaction began."""
        self._partitions = {**PARTITIONS, **({COPIES: 3} if plan.kind == COPY else {})}
        self._acked_since: dict[tuple[str, int], float] = {}
        """For each partition, the time at which its latest acknowledged record was sent."""
        self._acked_at: dict[int, float] = {}
        """For each partition of the steady topic, the time of its last acknowledgement."""
        self._silence = 0.0
        self._progress = asyncio.Event()
        self._admin: AdminClient

    async def start(self) -> None:
        """Start the brokers and create the topics."""
        await self.kafka.start()
        self.network.lead_to([node.port for node in self.kafka.nodes])
        for topic, partitions in self._partitions.items():
            await self.kafka.create_topic(topic, partitions, BROKERS)
        self._connect_admin()

    def _connect_admin(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.internal_servers, "log_level": 0})

    def producer(self, **settings: object) -> Producer:
        """Return a new producer, not yet started, that connects through the proxies."""
        return Producer(**self._settings(settings))

    def participant(
        self, handle: TransactionHandle, places: list[aioproducer.TopicPartition], settings: dict[str, object]
    ) -> Producer:
        """Return a new participant, not yet started, in another producer's transaction."""
        own = {name: value for name, value in settings.items() if name != "transactional_id"}
        return Producer.attach(handle, partitions=places, **self._settings(own))

    def _settings(self, settings: dict[str, object]) -> dict[str, object]:
        codec = self.plan.random(f"codec {settings}").choice(["none", "gzip", "snappy", "lz4", "zstd"])
        return {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "compression_type": codec,
            "batch_size": 4000,
            "retry_backoff_ms": 50,
            "retry_backoff_max_ms": 500,
            "reconnect_backoff_max_ms": 500,
            "metadata_max_age_ms": 2000,
            "transaction_timeout_ms": 10_000,
            **settings,
        }

    @property
    def internal_servers(self) -> str:
        """The brokers' addresses behind the proxies."""
        return self.kafka.bootstrap_servers_of("INTERNAL")

    async def any_leader(self, random: Random) -> int:
        """Return the leader of a random partition, or any broker if that partition has no leader at the moment."""
        leader = await self.kafka.leader(STEADY, random.randrange(PARTITIONS[STEADY]))
        return leader if leader >= 0 else random.choice(self.brokers)

    def any_proxy(self, random: Random) -> Proxy:
        """Return a proxy with open connections, or any proxy if none has."""
        carrying = [proxy for proxy in self.network.proxies if proxy.links]
        return random.choice(carrying or self.network.proxies)

    def struck(self, name: str) -> None:
        """Count a fault that has just occurred."""
        self.history.fired[name] += 1

    # The producers' progress

    def acked(self, sent: Sent) -> None:
        """Record an acknowledgement."""
        place = (sent.topic, sent.partition)
        self._acked_since[place] = max(self._acked_since.get(place, 0.0), sent.asked_at)
        if sent.topic == STEADY:
            self._silence = max(
                self._silence, sent.ended_at - self._acked_at.get(sent.partition, sent.ended_at)
            )
            self._acked_at[sent.partition] = sent.ended_at
        self._progress.set()

    def committed(self, label: str, begun_at: float) -> None:
        """Record a committed transaction."""
        self.committed_since[label] = begun_at
        self._progress.set()

    def round_begins(self) -> None:
        """Start to measure silences: faults are about to strike."""
        now = asyncio.get_running_loop().time()
        self._silence = 0.0
        self._acked_at = dict.fromkeys(self._acked_at, now)

    async def round_ends(self, names: tuple[str, ...]) -> None:
        """Wait until all partitions and all producers make progress again, and record how long that took."""
        since = asyncio.get_running_loop().time()
        if await self._until(lambda: self._has_recovered(since)):
            took = asyncio.get_running_loop().time() - since
            self.history.recoveries.append(Recovery(names, self._silence, took))
        else:
            places = [place for place in self._places(PARTITIONS) if self._acked_since.get(place, 0) < since]
            labels = [label for label, begun_at in self.committed_since.items() if begun_at < since]
            self.history.problems.append(
                f"{RECOVERS_WITHIN:g} s after {' and '.join(names)}, nothing new from {places} and {labels}"
            )

    def _has_recovered(self, since: float) -> bool:
        return all(begun_at >= since for begun_at in self.committed_since.values()) and all(
            self._acked_since.get(place, 0.0) >= since for place in self._places(PARTITIONS)
        )

    def _places(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        return [(topic, partition) for topic in topics for partition in range(self._partitions[topic])]

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait for progress until the condition is true; return False if that takes too long."""
        try:
            async with asyncio.timeout(RECOVERS_WITHIN):
                while not condition():
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    # Topics

    async def delete_topic(self) -> None:
        """Delete the topic that is re-created later; return when no broker knows it any longer."""
        future = self._admin.delete_topics([MADE_ANEW], operation_timeout=30)[MADE_ANEW]
        await asyncio.to_thread(future.result, 60)
        async with asyncio.timeout(RECOVERS_WITHIN):
            for broker in self.kafka._brokers:
                while await admin.leaders(broker.internal_port, MADE_ANEW):  # noqa: ASYNC110
                    await asyncio.sleep(50 * MS)

    async def create_topic_anew(self) -> None:
        """Re-create the topic; records sent from now on go into the new log."""
        await self.kafka.create_topic(MADE_ANEW, PARTITIONS[MADE_ANEW], BROKERS)
        self.history.made_anew_at = asyncio.get_running_loop().time()

    async def add_partitions(self, count: int) -> None:
        """Add partitions to the growing topic; the producers learn of them from their next metadata."""
        total = self._partitions[GROWING] + count
        future = self._admin.create_partitions([NewPartitions(GROWING, total)])[GROWING]
        await asyncio.to_thread(future.result, 60)
        self._partitions[GROWING] = total

    async def settled(self) -> None:
        """Wait until read_committed consumers see no open transaction."""
        places = [TopicPartition(topic, partition) for topic, partition in self._places(self._partitions)]
        unsettled = ""
        try:
            async with asyncio.timeout(SETTLES_WITHIN):
                while unsettled := await self._unsettled(places):  # noqa: ASYNC110  # brokers set no events
                    await asyncio.sleep(100 * MS)
        except TimeoutError:
            self.history.problems.append(f"not settled after {SETTLES_WITHIN:g} s: {unsettled}")

    async def _unsettled(self, places: list[TopicPartition]) -> str:
        """Return the partitions with an open transaction, or the error for a missing leader; "" if there are none."""
        try:
            committed = await self._ends(places, IsolationLevel.READ_COMMITTED)
            written = await self._ends(places, IsolationLevel.READ_UNCOMMITTED)
        except KafkaException as error:
            self._connect_admin()  # after FENCED_LEADER_EPOCH, an old client keeps asking with the old epoch
            return str(error)
        return ", ".join(
            f"{topic}-{partition} has {written[topic, partition]} records and a transaction open since offset {end}"
            for (topic, partition), end in committed.items()
            if end != written[topic, partition]
        )

    async def position(self, group: str) -> int | None:
        """Return the group's committed offset for partition 0 of the steady topic."""
        return await group_position(self.internal_servers, group, STEADY, 0)

    async def _ends(
        self, places: list[TopicPartition], isolation: IsolationLevel
    ) -> dict[tuple[str, int], int]:
        wanted = {place: OffsetSpec.latest() for place in places}
        found = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=30)
        return {
            (place.topic, place.partition): (await asyncio.to_thread(future.result, 60)).offset
            for place, future in found.items()
        }
