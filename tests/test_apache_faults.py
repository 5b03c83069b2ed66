"""A leader of a real cluster is killed or frozen under load: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from conftest import MS

from aioproducer import Delivery, Outcome, Producer
from aioproducer.testing.apache import ApacheKafka, ApacheKafkaMissingError
from tests.read_back import Sent, assert_in_order, compare_with_log, read_back

pytestmark = pytest.mark.apache

PARTITIONS = 6
TOPICS = ("frozen", "unsure", "nodded-off", "nodded-off-unsure", "killed")
KEYS = 30
BURST = 5
PAUSE = 50 * MS
"""Each key sends BURST records and pauses: 3000 records a second, several batches in flight."""

QUICK = {
    "min.insync.replicas": 2,
    "auto.create.topics.enable": False,
    "auto.leader.rebalance.enable": False,
    # A dead or frozen broker is noticed after 3 s, a dead controller after 1.5 s.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 300,
    "controller.quorum.fetch.timeout.ms": 1500,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.election.backoff.max.ms": 300,
    "controller.quorum.request.timeout.ms": 1000,
    "replica.lag.time.max.ms": 2000,
    "replica.fetch.wait.max.ms": 200,
    "replica.socket.timeout.ms": 2000,
}
LEAN = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApacheKafka]:
    """Three brokers, and a topic for each test: none can be created while a broker is not back yet."""
    kafka = ApacheKafka(3, config=QUICK, jvm_args=LEAN)

    async def start() -> None:
        await kafka.start()
        for topic in TOPICS:
            await kafka.create_topic(topic, partitions=PARTITIONS, replication_factor=3)

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            runner.run(start())
        except ApacheKafkaMissingError as error:
            pytest.skip(str(error))
        try:
            yield kafka
        finally:
            runner.run(kafka.stop())


@pytest.fixture
def report(capsys, request) -> Callable[[str], None]:
    """Writes a line that is seen, whatever pytest captures."""

    def write(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{request.node.name}: {line}\n")

    return write


class Victim(NamedTuple):
    node_id: int
    partitions: set[int]


class Recovery(NamedTuple):
    """Seconds after the strike."""

    recovered: float
    """until each partition had acknowledged a record that was sent after it"""
    elected: float | None
    """until a broker that is up knew another leader of each; None if that did not happen"""

    def __str__(self) -> str:
        leaders = "the same leaders" if self.elected is None else f"new leaders after {self.elected:.2f} s"
        return f"recovered after {self.recovered:.2f} s, {leaders}"

    @property
    def is_quick(self) -> bool:
        """The producer found the new leaders soon; no bound on how long Kafka takes to elect them."""
        return self.elected is None or self.recovered - self.elected < 6000 * MS


class Load:
    """Tasks that send until they are stopped, each with a key of its own; all results are kept."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._is_stopped = False
        self._progress = asyncio.Event()
        self._struck_at = 0.0
        self._recovering: set[int] = set()
        self.sent: list[Sent] = []
        self.first_ack_after: dict[int, float] = {}
        """Seconds from the strike to the first acknowledgement of a record sent after it, by partition."""
        self.errors: dict[str, int] = {}
        """What the producer went through, as its metrics count it; there when the load has ended."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(KEYS):
                tasks.create_task(self._keep_sending(b"key-%d" % number))

    async def _keep_sending(self, key: bytes) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count():
            value = b"%s:%d" % (key, number)
            delivery = await self._producer.send(self._topic, value, key=key)
            delivery.add_done_callback(partial(self._ended, value, loop.time()))
            if (number + 1) % BURST == 0:
                if self._is_stopped:
                    return
                await asyncio.sleep(PAUSE)

    def _ended(self, value: bytes, sent_at: float, delivery: Delivery) -> None:
        error = delivery.exception()
        self.sent.append(Sent(value, delivery.result() if error is None else error))
        partition = delivery.topic_partition.partition
        if error is None and partition in self._recovering and sent_at > self._struck_at:
            self._recovering.remove(partition)
            self.first_ack_after[partition] = asyncio.get_running_loop().time() - self._struck_at
        self._progress.set()

    async def until(self, condition: Callable[[], bool], timeout: float = 60_000 * MS) -> None:
        """Wait for a condition that only the end of a delivery can make true."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._progress.clear()
                await self._progress.wait()

    async def until_more(self, records: int) -> None:
        """Wait until so many more records have their result."""
        before = len(self.sent)
        await self.until(lambda: len(self.sent) >= before + records)

    def struck(self, victim: Victim) -> None:
        """A leader has been struck at this moment."""
        self._struck_at = asyncio.get_running_loop().time()
        self._recovering = set(victim.partitions)

    async def until_recovered(self, kafka: ApacheKafka, victim: Victim) -> Recovery:
        """Wait until all struck partitions take new records."""
        elected = asyncio.create_task(self._until_elected(kafka, victim))
        try:
            await self.until(lambda: not self._recovering)
        finally:
            elected.cancel()
            (moved,) = await asyncio.gather(elected, return_exceptions=True)
        return Recovery(max(self.first_ack_after.values()), moved if isinstance(moved, float) else None)

    async def _until_elected(self, kafka: ApacheKafka, victim: Victim) -> float:
        for partition in victim.partitions:
            while await kafka.leader(self._topic, partition) in (victim.node_id, -1):  # noqa: ASYNC110
                await asyncio.sleep(50 * MS)
        return asyncio.get_running_loop().time() - self._struck_at

    def stop(self) -> None:
        self._is_stopped = True


async def leader_of_first(kafka: ApacheKafka, topic: str) -> Victim:
    """The broker that leads partition 0, and all that it leads of this topic."""
    leaders = [await kafka.leader(topic, partition) for partition in range(PARTITIONS)]
    return Victim(
        leaders[0], {partition for partition in range(PARTITIONS) if leaders[partition] == leaders[0]}
    )


async def all_in_sync(kafka: ApacheKafka, topic: str) -> None:
    """Wait until every replica is in sync, so that one may be lost."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    async with asyncio.timeout(60_000 * MS):
        while True:
            found = await asyncio.to_thread(admin.list_topics, topic, 10)
            if all(len(partition.isrs) == 3 for partition in found.topics[topic].partitions.values()):
                return
            await asyncio.sleep(100 * MS)


@asynccontextmanager
async def under_load(
    kafka: ApacheKafka, topic: str, *, request_timeout_ms: int = 2000, delivery_timeout_ms: int = 60_000
) -> AsyncIterator[Load]:
    """A block with a producer under load before, in and behind it. Afterwards every record has its result."""
    await all_in_sync(kafka, topic)
    async with Producer(
        kafka.bootstrap_servers,
        batch_size=4000,
        linger_ms=5,
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=delivery_timeout_ms,
        retry_backoff_ms=50,
        retry_backoff_max_ms=500,
    ) as producer:
        load = Load(producer, topic)
        running = asyncio.create_task(load.run())
        try:
            await load.until_more(2000)
            yield load
            await load.until_more(2000)
            load.stop()
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        closed = await producer.close()
        load.errors = producer.metrics().errors
    assert closed.delivered + closed.failed + closed.unknown == len(load.sent)


async def compare(kafka: ApacheKafka, topic: str, load: Load) -> dict[str, int]:
    """Hold the log against what the producer said; returns the counts."""
    ends: dict[int, int] = {}
    for _, result in load.sent:
        if not isinstance(result, BaseException):
            ends[result.partition] = max(ends.get(result.partition, 0), result.offset + 1)
    log = await read_back(kafka.bootstrap_servers, topic, until=ends)
    counts = compare_with_log(load.sent, log)
    assert_in_order(log)
    return counts


async def test_frozen_leader_costs_no_record(cluster, report):
    async with under_load(cluster, "frozen") as load:
        victim = await leader_of_first(cluster, "frozen")
        cluster.pause(victim.node_id)
        load.struck(victim)
        recovery = await load.until_recovered(cluster, victim)
        # It wakes as a leader that was deposed, with requests in its sockets.
        cluster.resume(victim.node_id)
    counts = await compare(cluster, "frozen", load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert counts == {"acknowledged": len(load.sent)}
    assert recovery.is_quick
    assert load.errors["RequestTimedOutError"] > 0


async def test_frozen_leader_costs_only_what_is_reported(cluster, report):
    topic = "unsure"
    async with under_load(cluster, topic, request_timeout_ms=1000, delivery_timeout_ms=1500) as load:
        victim = await leader_of_first(cluster, topic)
        cluster.pause(victim.node_id)
        load.struck(victim)
        recovery = await load.until_recovered(cluster, victim)
        cluster.resume(victim.node_id)
    counts = await compare(cluster, topic, load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert counts[Outcome.UNKNOWN.value] > 0
    assert counts[Outcome.NOT_PERSISTED.value] > 0
    assert recovery.is_quick


@pytest.mark.parametrize(
    ("topic", "delivery_timeout_ms"), [("nodded-off", 60_000), ("nodded-off-unsure", 1000)]
)
async def test_leader_that_stays_reads_old_requests_when_it_wakes(
    cluster, report, topic, delivery_timeout_ms
):
    async with under_load(
        cluster, topic, request_timeout_ms=700, delivery_timeout_ms=delivery_timeout_ms
    ) as load:
        victim = await leader_of_first(cluster, topic)
        cluster.pause(victim.node_id)
        load.struck(victim)
        # Requests time out and are sent again on other connections, but the session lasts: no other leader
        # is elected, and what the old connections carried is read first, between or last.
        await asyncio.sleep(1700 * MS)
        cluster.resume(victim.node_id)
        recovery = await load.until_recovered(cluster, victim)
    counts = await compare(cluster, topic, load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert load.errors["RequestTimedOutError"] > 0
    if delivery_timeout_ms == 60_000:
        assert counts == {"acknowledged": len(load.sent)}
    else:
        assert counts[Outcome.UNKNOWN.value] > 0


async def test_killed_leader_costs_no_record(cluster, report):
    async with under_load(cluster, "killed") as load:
        victim = await leader_of_first(cluster, "killed")
        await cluster.kill(victim.node_id)
        load.struck(victim)
        recovery = await load.until_recovered(cluster, victim)
    counts = await compare(cluster, "killed", load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert counts == {"acknowledged": len(load.sent)}
    assert recovery.is_quick
    assert load.errors["BrokerConnectionError"] > 0
