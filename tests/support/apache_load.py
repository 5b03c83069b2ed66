"""A producer under load on a real cluster of three brokers, some of which fail while it sends.

A broker is struck when a test kills, restarts or freezes it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from aioproducer import Delivery, Producer
from aioproducer.testing.apache.kafka import ApacheKafka
from tests.conftest import MS
from tests.support.apache_log import (
    DumpedBatch,
    assert_same,
    assert_sequences_continue,
    dump,
    ends_of,
    read_with_aiokafka,
)
from tests.support.read_back import Sent, assert_in_order, compare_with_log, read_back

PARTITIONS = 6
KEYS = 30
BURST = 5
PAUSE = 50 * MS
"""Each key's task sends BURST records and pauses: 3000 records a second in all, with several batches in flight."""


class Victim(NamedTuple):
    """A broker to strike, and the partitions that it leads."""

    node_id: int
    partitions: set[int]


EVERYBODY = Victim(-1, set(range(PARTITIONS)))


class Recovery(NamedTuple):
    """The duration of a recovery, in seconds from the strike."""

    recovered: float
    """The time until each partition had acknowledged a record that was sent after the strike."""
    elected: float | None
    """The time until a running broker knew a new leader for each partition; None if that did not happen."""

    def __str__(self) -> str:
        leaders = "the same leaders" if self.elected is None else f"new leaders after {self.elected:.2f} s"
        return f"recovered after {self.recovered:.2f} s, {leaders}"

    @property
    def is_quick(self) -> bool:
        """Whether the producer recovered soon after the election; Kafka may take any time to elect leaders."""
        return self.elected is None or self.recovered - self.elected < 6000 * MS


class Load:
    """Tasks that send until they are stopped, each with a different key; all results are kept."""

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
        """The errors that the producer's metrics counted; filled when the load has ended."""

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
        """Wait for a condition that can become true only when a delivery ends."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._progress.clear()
                await self._progress.wait()

    async def until_more(self, records: int) -> None:
        """Wait until `records` more records have a result."""
        before = len(self.sent)
        await self.until(lambda: len(self.sent) >= before + records)

    def struck(self, victim: Victim) -> None:
        """Note that a leader has been struck at this moment."""
        self._struck_at = asyncio.get_running_loop().time()
        self._recovering = set(victim.partitions)

    async def until_recovered(self, kafka: ApacheKafka, victim: Victim) -> Recovery:
        """Wait until all partitions of the victim accept new records."""
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

    async def until_all_partitions_recovered(self) -> float:
        """The same as `until_recovered`, without asking a broker; return the seconds from the strike."""
        await self.until(lambda: not self._recovering)
        return max(self.first_ack_after.values())

    def stop(self) -> None:
        self._is_stopped = True


async def leader_of_first(kafka: ApacheKafka, topic: str) -> Victim:
    """The broker that leads partition 0, with all partitions of the topic that it leads."""
    leaders = [await kafka.leader(topic, partition) for partition in range(PARTITIONS)]
    return Victim(
        leaders[0], {partition for partition in range(PARTITIONS) if leaders[partition] == leaders[0]}
    )


async def all_in_sync(kafka: ApacheKafka, topic: str) -> None:
    """Wait until every replica is in sync, so that the loss of one is harmless."""
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
    """Run a block under load, which starts before it and stops after it. At the end every record has a result."""
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
            for node in kafka.nodes:
                if node.pid:  # a broker left frozen by a failed test would make all later tests fail
                    kafka.resume(node.id)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        closed = await producer.close()
        load.errors = producer.metrics().errors
    assert closed.delivered + closed.failed + closed.unknown == len(load.sent)


async def compare(kafka: ApacheKafka, topic: str, load: Load) -> dict[str, int]:
    """Compare the logs of all brokers with the producer's results; return the counts."""
    ends: dict[int, int] = {}
    for _, result in load.sent:
        if not isinstance(result, BaseException):
            ends[result.partition] = max(ends.get(result.partition, 0), result.offset + 1)
    log = await read_back(kafka.bootstrap_servers, topic, until=ends)
    counts = compare_with_log(load.sent, log)
    assert_in_order(log)
    assert await read_with_aiokafka(kafka.bootstrap_servers, topic, ends_of(log)) == log
    batches = await what_all_replicas_have(kafka, topic)
    for partition, records in log.items():
        dumped = [record for batch in batches[partition] for record in batch.records]
        for shown, record in zip(dumped[: len(records)], records, strict=True):
            assert_same(shown, record)
        assert_sequences_continue(batches[partition])
    return counts


async def what_all_replicas_have(kafka: ApacheKafka, topic: str) -> dict[int, list[DumpedBatch]]:
    """Wait until the disks of all running brokers contain the same batches, and return them."""
    await all_in_sync(kafka, topic)
    async with asyncio.timeout(60_000 * MS):
        while True:
            replicas = [
                await dump(kafka, topic, range(PARTITIONS), node.id) for node in kafka.nodes if node.pid
            ]
            if all(replica == replicas[0] for replica in replicas):
                return replicas[0]
