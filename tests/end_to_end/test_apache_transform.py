"""Consume-transform-produce loops on a real Kafka, each member in its own process: members and brokers are killed,
and each input record is in the output exactly once."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from aioproducer import Producer, TopicPartition
from aioproducer.testing.apache.kafka import ApacheKafka
from aioproducer.testing.embedded.state_topic import partition_for
from tests.conftest import MS
from tests.support.apache_clusters import LEAN, NOTICES_SOON, running
from tests.support.read_back import read_back
from tests.support.transforming import KINDS, each_kind

pytestmark = [pytest.mark.apache, pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 6
GROUP_PARTITIONS = 5
WAIT = 120_000 * MS  # seconds; dead brokers and members are noticed long before that
CASES = ("shared", "killed", "abandoned", "frozen", "broker")

CONFIG = {
    **NOTICES_SOON,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": GROUP_PARTITIONS,
    "transaction.state.log.num.partitions": GROUP_PARTITIONS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """Three brokers, and two topics for each test."""

    async def make_topics(kafka: ApacheKafka) -> None:
        for case, kind, end in itertools.product(CASES, KINDS, ("in", "out")):
            await kafka.create_topic(f"{case}-{kind}-{end}", partitions=PARTITIONS, replication_factor=3)

    kafka = ApacheKafka(3, config=CONFIG, jvm_args=LEAN)
    with running(kafka, make_topics, request=request):
        yield kafka


class Member:
    """A process of tests.support.transform_member."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.committed = 0
        """The number of records in the commits that the member has reported."""
        self._lines = asyncio.Condition()
        self._opened = 0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._lines:
                if line.startswith(b"done"):
                    self.committed += int(line.split()[1])
                else:
                    self._opened += 1
                self._lines.notify_all()

    async def opens(self) -> None:
        """Wait until the member has opened its next transaction."""
        async with asyncio.timeout(WAIT), self._lines:
            opened = self._opened
            await self._lines.wait_for(lambda: self._opened > opened)

    async def commits(self, count: int = 1) -> None:
        """Wait until the member has committed at least `count` more records."""
        async with asyncio.timeout(WAIT), self._lines:
            wanted = self.committed + count
            await self._lines.wait_for(lambda: self.committed >= wanted)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self._reading

    async def stop(self) -> int:
        """Let the member end after its batch; return its exit status."""
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.write(b"stop\n")
            self.process.stdin.close()
        async with asyncio.timeout(WAIT):
            status = await self.process.wait()
        await self._reading
        return status


class Copying:
    """A continuous input, and the members that copy it."""

    def __init__(self, cluster: ApacheKafka, case: str, kind: str) -> None:
        self.cluster = cluster
        self.kind = kind
        self.source, self.target = f"{case}-{kind}-in", f"{case}-{kind}-out"
        self.group = f"copies-{self.source}"
        self.sent = 0
        self._is_ending = False
        self._feeding = asyncio.create_task(self._feed())
        self._members: list[Member] = []

    async def _feed(self) -> None:
        async with Producer(self.cluster.bootstrap_servers) as producer:
            while not self._is_ending:
                deliveries = [
                    await producer.send(
                        self.source, b"%d" % (self.sent + number), partition=number % PARTITIONS
                    )
                    for number in range(60)
                ]
                await asyncio.gather(*deliveries)
                self.sent += len(deliveries)
                await asyncio.sleep(50 * MS)

    async def member(self, name: str) -> Member:
        """Start a member; its transactional id is the same whenever it is started under this name."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.transform_member",
            self.kind,
            self.cluster.bootstrap_servers,
            f"{self.source}-{name}",
            self.source,
            self.target,
            stdin=PIPE,
            stdout=PIPE,
        )
        member = Member(process)
        self._members.append(member)
        return member

    async def end(self) -> None:
        """End the input, wait until it is copied, stop the members, and compare the output with the input."""
        self._is_ending = True
        await self._feeding
        places = [TopicPartition(self.source, partition) for partition in range(PARTITIONS)]
        servers = self.cluster.bootstrap_servers
        async with (
            Producer(servers, transactional_id=f"{self.source}-watcher") as watcher,
            asyncio.timeout(WAIT),
        ):
            while True:
                found = await watcher.committed(self.group, places)
                if sum(one.offset for one in found.values() if one is not None) == self.sent:
                    break
                await asyncio.sleep(100 * MS)
        alive = [member for member in self._members if member.process.returncode is None]
        assert [await member.stop() for member in alive] == [0] * len(alive)
        copies: Counter[bytes | None] = Counter()
        async with asyncio.timeout(WAIT):
            # An abandoned transaction hides the records behind it until its time-out.
            while copies.total() < self.sent:
                log = await read_back(servers, self.target, committed_only=True)
                copies = Counter(record.value for part in log.values() for record in part)
        assert copies == Counter(b"%d" % number for number in range(self.sent))

    async def close(self) -> None:
        self._feeding.cancel()
        await asyncio.gather(self._feeding, return_exceptions=True)
        for member in self._members:
            if member.process.returncode is None:
                member.signal(signal.SIGCONT)
                await member.kill()


@asynccontextmanager
async def copying(cluster: ApacheKafka, case: str, kind: str) -> AsyncIterator[Copying]:
    on = Copying(cluster, case, kind)
    try:
        yield on
    finally:
        await on.close()


@pytest.mark.promise(
    "Transactions",
    "a loop's input is in the output exactly once, through rebalances and kills, on a real Kafka",
)
@each_kind
async def test_members_come_and_go(cluster, kind):
    async with copying(cluster, "shared", kind) as on:
        first = await on.member("one")
        await first.commits()
        second = await on.member("two")
        await second.commits(300)
        assert await first.stop() == 0
        await second.commits(300)
        third = await on.member("three")
        await third.commits(300)

        await on.end()


@pytest.mark.promise(
    "Transactions",
    "a loop's input is in the output exactly once, through rebalances and kills, on a real Kafka",
)
@each_kind
async def test_a_member_is_killed_in_a_transaction_and_started_again(cluster, kind):
    async with copying(cluster, "killed", kind) as on:
        first, second = await on.member("one"), await on.member("two")
        await asyncio.gather(first.commits(100), second.commits(100))
        for _ in range(2):
            await first.opens()
            await first.kill()
            first = await on.member("one")
            await asyncio.gather(first.commits(100), second.commits(100))

        await on.end()


@pytest.mark.promise(
    "Transactions",
    "a loop's input is in the output exactly once, through rebalances and kills, on a real Kafka",
)
@each_kind
async def test_a_killed_member_is_not_started_again(cluster, kind):
    async with copying(cluster, "abandoned", kind) as on:
        first, second = await on.member("one"), await on.member("two")
        await asyncio.gather(first.commits(100), second.commits(100))
        await first.opens()
        await first.kill()

        await on.end()


@pytest.mark.promise(
    "Transactions",
    "a loop's input is in the output exactly once, through rebalances and kills, on a real Kafka",
)
@each_kind
async def test_a_frozen_member_loses_its_partitions_and_can_not_commit_when_it_resumes(cluster, kind):
    async with copying(cluster, "frozen", kind) as on:
        first, second = await on.member("one"), await on.member("two")
        await asyncio.gather(first.commits(100), second.commits(100))
        await first.opens()
        first.signal(signal.SIGSTOP)
        # The second member can copy more than half of the input only after it has been assigned all partitions.
        await second.commits(2000)
        first.signal(signal.SIGCONT)
        await first.commits(100)

        await on.end()


@pytest.mark.promise(
    "Transactions",
    "a loop's input is in the output exactly once, through rebalances and kills, on a real Kafka",
)
@each_kind
async def test_the_brokers_that_coordinate_are_killed(cluster, kind):
    async with copying(cluster, "broker", kind) as on:
        first, second = await on.member("one"), await on.member("two")
        await asyncio.gather(first.commits(100), second.commits(100))
        transactional_id = f"{on.source}-one"
        for topic, partition in (
            ("__consumer_offsets", partition_for(on.group, GROUP_PARTITIONS)),
            ("__transaction_state", partition_for(transactional_id, GROUP_PARTITIONS)),
        ):
            node = await cluster.leader(topic, partition)
            assert node >= 0
            await first.opens()
            await cluster.kill(node)
            await asyncio.gather(first.commits(100), second.commits(100))
            await cluster.start_broker(node)

        await on.end()
