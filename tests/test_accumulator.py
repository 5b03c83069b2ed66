"""The accumulator without a sender and without sockets: memory, what is due, what is drained, and in which order."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from uuid import UUID

import pytest

from aioproducer import Producer, accumulator
from aioproducer._record_path import Delivery, PartitionQueue, RecordPath, Topic
from aioproducer.accumulator import NO_NODE, Accumulator
from aioproducer.batch import BatchBuilder, BatchState, ProducerBatch
from aioproducer.cluster import Cluster, PartitionInfo, TopicInfo
from aioproducer.compression import Codec, compressor
from aioproducer.errors import BufferTimeoutError, DeliveryError, ProducerClosed
from aioproducer.types import Node
from tests.conftest import MS

NODES = {number: Node(number, f"broker-{number}", 9092) for number in range(3)}
LONG = 60_000
"""Linger, in ms, of a batch that shall not become due by itself."""


def topic_info(leaders: Iterable[int], name: str = "orders", topic_id: int = 1) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(name, number, leader, 0, (leader,), (leader,), (), 0)
        for number, leader in enumerate(leaders)
    )
    return TopicInfo(name, UUID(int=topic_id), partitions, 0, False)


def cluster_of(*topics: TopicInfo) -> Cluster:
    return Cluster(NODES, 0, "cluster", {topic.name: topic for topic in topics})


class CountingEvent(asyncio.Event):
    """How often was it set?"""

    def __init__(self) -> None:
        super().__init__()
        self.sets = 0

    def set(self) -> None:
        self.sets += 1
        super().set()

    def counted(self) -> int:
        """The number since the last call."""
        sets, self.sets = self.sets, 0
        return sets


class HeldExecutor(Executor):
    """Does its jobs when it is told to."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Future, Callable[[], object]]] = []

    def submit(self, function: Callable[..., object], /, *arguments: object, **named: object) -> Future:
        done: Future = Future()
        self._jobs.append((done, partial(function, *arguments, **named)))
        return done

    def work(self) -> None:
        jobs, self._jobs = self._jobs, []
        for done, job in jobs:
            try:
                done.set_result(job())
            except Exception as error:
                done.set_exception(error)


class Path(RecordPath):
    """`send` as Producer does it where there is no room."""

    def __init__(self, accumulator: Accumulator, max_block: float) -> None:
        self._accumulator = accumulator
        self._max_block = max_block

    async def _send_slowly(
        self, topic: str, value: bytes, key: object, partition: int | None, *rest: object
    ) -> Delivery:
        append = partial(
            self._append,
            self._accumulator.topics[topic],
            value,
            key,
            -1 if partition is None else partition,
            None,
            None,
            True,
        )
        deadline = asyncio.get_running_loop().time() + self._max_block
        return await self._accumulator.append_when_room(append, deadline)

    def _try_send_slowly(self, *arguments: object) -> None:
        return None


class Bench:
    """An accumulator with its topic "orders", and what stands round it."""

    def __init__(self, leaders: Iterable[int] = (0,), **settings: object) -> None:
        self.loop = asyncio.get_running_loop()
        self.config = Producer(**{"linger_ms": LONG, "acks": "all"} | settings).config
        self.wake = CountingEvent()
        self.executor = HeldExecutor()
        self.accumulator = Accumulator(self.config, self.loop, self.wake, Random(7), self.executor)
        self.memory = self.accumulator.memory
        self.topic = self.accumulator.open_topic(topic_info(leaders))
        self.path = Path(self.accumulator, self.config.max_block)
        self.path._bind(
            self.loop,
            self.accumulator,
            self.memory,
            self.config.batch_size,
            self.config.max_request_size,
            True,
            None,
        )

    def send(self, partition: int | None = 0, value: bytes = b"v", topic: str = "orders") -> Delivery:
        delivery = self.path.try_send(topic, value, partition=partition)
        assert delivery is not None, "no room"
        return delivery

    def fill(self, partition: int = 0, batches: int = 1) -> None:
        """Send until so many batches are closed, with an open one behind."""
        queue = self.topic.queues[partition]
        closed = sum(batch.state is BatchState.CLOSED for batch in queue.batches)
        while sum(batch.state is BatchState.CLOSED for batch in queue.batches) < closed + batches:
            self.send(partition, b"v" * (self.config.batch_size // 4))

    def ready(self, later: float = 0.0) -> list[int]:
        """The nodes for which something is due `later` seconds from now."""
        return self.accumulator.ready(self.loop.time() + later)[0]

    def drain(
        self, node: int = 0, later: float = 0.0, may_drain: Callable[..., bool] = lambda queue, batch: True
    ) -> list[ProducerBatch]:
        return self.accumulator.drain(node, self.loop.time() + later, may_drain)

    def drain_all(self, node: int = 0) -> list[ProducerBatch]:
        """Everything that is due for the node, also what becomes so by draining."""
        found: list[ProducerBatch] = []
        while node in self.ready() and (batches := self.drain(node)):
            found += batches
        return found

    def succeed(self, *batches: ProducerBatch) -> None:
        for batch in batches:
            batch.sent(0)
            batch.succeed(0, -1, -1)
            self.accumulator.release(batch)

    def give_up(self, *batches: ProducerBatch) -> None:
        for batch in batches:
            self.accumulator.forget(batch)
            batch.give_up(DeliveryError("given up"))
            self.accumulator.release(batch)

    @property
    def reserved(self) -> int:
        return sum(batch.reserved for batch in self.accumulator.incomplete)

    def check_memory(self) -> None:
        assert self.memory.available == self.memory.total - self.reserved


@asynccontextmanager
async def waiting_sends(bench: Bench, values: Iterable[bytes]) -> AsyncIterator[list[asyncio.Task[Delivery]]]:
    """Tasks that wait for room, in order; those left at the end are cancelled."""
    tasks = [asyncio.ensure_future(bench.path.send("orders", value, partition=0)) for value in values]
    await turns()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def turns(count: int = 10) -> None:
    """Let everything happen that only waits for its turn of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def partitions_of(batches: Iterable[ProducerBatch]) -> list[int]:
    return [batch.queue.partition for batch in batches]


# ------------------------------------------------------------------------------------------------------ memory


async def test_memory_is_what_the_batches_reserve_and_all_of_it_comes_back():
    bench = Bench([0, 1], batch_size=4096)
    bench.check_memory()
    for number in range(200):
        bench.send(number % 2, b"v" * (number * 7 % 500))
        bench.check_memory()
    bench.accumulator._flushing += 1
    bench.ready()

    batches = bench.drain_all(0) + bench.drain_all(1)
    bench.check_memory()
    assert bench.memory.available < bench.memory.total
    bench.succeed(*batches[::2])
    bench.check_memory()
    for batch in batches[1::2]:
        batch.sent(0)
        batch.give_up(DeliveryError("refused"))
        bench.accumulator.release(batch)

    assert bench.memory.available == bench.memory.total
    assert not bench.accumulator.incomplete


async def test_closing_a_batch_returns_what_it_does_not_need():
    bench = Bench(batch_size=16_384)
    bench.topic.queues[0].size_hint = 10_000
    bench.send()
    assert bench.memory.available == bench.memory.total - 10_000

    bench.ready(later=LONG)
    [batch] = bench.drain()

    assert bench.memory.available == bench.memory.total - len(batch.records)
    bench.check_memory()


async def test_compressed_batch_keeps_its_records_reserved_until_it_ends():
    bench = Bench(compression_type="gzip", linger_ms=0)
    bench.send(value=b"v" * 1000)
    [batch] = bench.drain()

    assert batch.codec is Codec.GZIP
    assert batch.wire_size < 200
    assert bench.memory.available <= bench.memory.total - 1000
    bench.succeed(batch)
    assert bench.memory.available == bench.memory.total


async def test_expired_and_aborted_batches_return_their_memory_in_every_state():
    bench = Bench(batch_size=1000)
    bench.fill(batches=3)
    bench.ready()
    [in_flight] = bench.drain()
    in_flight.sent(0)

    later = bench.loop.time() + bench.config.delivery_timeout
    expired = bench.accumulator.expired(later)

    assert [batch.state for batch in expired] == [
        BatchState.IN_FLIGHT,
        BatchState.CLOSED,
        BatchState.CLOSED,
        BatchState.OPEN,
    ]
    assert bench.accumulator.expired(later - bench.config.delivery_timeout - 1) == []
    bench.give_up(*expired)
    assert bench.memory.available == bench.memory.total
    assert bench.ready(later=LONG) == []
    assert bench.topic.queues[0].tail is None
    bench.send()
    bench.check_memory()


async def test_built_batch_takes_its_memory_when_it_is_sent_and_returns_it():
    bench = Bench()
    built = BatchBuilder(PartitionQueue("", -1), bench.loop, 1000)
    while built.append(key=None, value=b"v" * 50) is not None:
        pass

    delivery = bench.accumulator.append_built(bench.topic.queues[0], built)

    bench.check_memory()
    assert bench.memory.available < bench.memory.total - 800
    assert bench.ready() == [0]
    bench.succeed(*bench.drain())
    assert bench.memory.available == bench.memory.total
    assert (await delivery).offset == 0


async def test_built_batch_goes_behind_what_was_sent_before_and_closes_it():
    bench = Bench()
    bench.send()
    built = BatchBuilder(PartitionQueue("", -1), bench.loop, 1000)
    built.append(key=None, value=b"built")

    bench.accumulator.append_built(bench.topic.queues[0], built)
    bench.send()

    queue = bench.topic.queues[0]
    assert [batch.state for batch in queue.batches] == [BatchState.CLOSED, BatchState.CLOSED, BatchState.OPEN]
    assert queue.batches[1].queue is queue
    assert [batch.order for batch in queue.batches] == sorted(batch.order for batch in queue.batches)


async def test_built_batch_without_memory_for_it_can_be_sent_later():
    bench = Bench(buffer_memory=2000, batch_size=1900)
    bench.send(value=b"v" * 900)
    built = BatchBuilder(PartitionQueue("", -1), bench.loop, 1900)
    built.append(key=None, value=b"v" * 1500)

    assert bench.accumulator.append_built(bench.topic.queues[0], built) is None

    bench.check_memory()
    bench.ready(later=LONG)
    bench.succeed(*bench.drain())
    assert bench.accumulator.append_built(bench.topic.queues[0], built) is not None


async def test_record_larger_than_batch_size_has_a_batch_of_its_own():
    bench = Bench(batch_size=1000)
    bench.send(value=b"small")
    bench.send(value=b"v" * 5000)
    bench.send(value=b"small")

    batches = list(bench.topic.queues[0].batches)
    assert [batch.record_count for batch in batches] == [1, 1, 1]
    assert batches[1].size > 5000
    bench.check_memory()


async def test_record_larger_than_batch_size_is_due_at_once_because_its_batch_is_full():
    bench = Bench(batch_size=1000)
    bench.wake.counted()

    bench.send(value=b"v" * 5000)

    assert bench.wake.counted() > 0
    assert bench.ready() == [0]
    assert len(bench.drain()) == 1


async def test_batch_starts_with_what_its_predecessor_used():
    bench = Bench(batch_size=100_000, linger_ms=0)
    bench.send(value=b"v" * 50)
    assert bench.reserved == accumulator.SMALLEST_BATCH
    for _ in range(500):
        bench.send(value=b"v" * 50)
    bench.ready()
    [batch] = bench.drain()

    bench.send(value=b"v" * 50)

    assert bench.topic.queues[0].tail.reserved == len(batch.records)


# -------------------------------------------------------------------------------------------- waiting for memory


def small_bench(**settings: object) -> Bench:
    """Room for one batch of about 1000 bytes, which is taken."""
    bench = Bench(**{"buffer_memory": 1100, "batch_size": 1000} | settings)
    bench.send(value=b"v" * 900)
    return bench


async def test_full_buffer_is_bounded_and_its_waiters_are_counted():
    bench = small_bench()

    async with waiting_sends(bench, [b"v" * 900] * 5) as tasks:
        assert bench.memory.waiters == 5
        assert not any(task.done() for task in tasks)
        assert bench.memory.available >= 0
        assert bench.path.try_send("orders", b"v", partition=0) is None

    assert bench.memory.waiters == 0
    bench.check_memory()


async def test_waiters_are_served_first_come_first_served():
    bench = small_bench()
    served = []

    async with waiting_sends(bench, [b"%d" % number * 900 for number in range(5)]) as tasks:
        for number, task in enumerate(tasks):
            task.add_done_callback(lambda _, number=number: served.append(number))
        for number in range(5):
            assert served == list(range(number))
            bench.ready()
            bench.succeed(*bench.drain())
            await turns()

        assert served == list(range(5))
        bench.check_memory()


async def test_newcomer_never_overtakes_a_waiter_even_if_it_would_fit():
    bench = small_bench()
    async with waiting_sends(bench, [b"v" * 900]) as tasks:
        # 1 byte of records fits into what is left, 900 do not.
        newcomer = asyncio.ensure_future(bench.path.send("orders", b"n", partition=0))
        await turns()
        assert bench.memory.waiters == 2
        assert not newcomer.done()

        bench.ready()
        bench.succeed(*bench.drain())
        assert bench.path.try_send("orders", b"n", partition=0) is None
        await turns()

        first, second = await asyncio.gather(*tasks, newcomer)
        queue = bench.topic.queues[0]
        records = [batch.record_count for batch in queue.batches]
        assert sum(records) == 2
        assert first.batch is queue.batches[0]
        assert second.batch is queue.batches[-1]


async def test_exactly_those_waiters_that_fit_are_woken():
    bench = Bench(buffer_memory=4000, batch_size=1100)
    for _ in range(3):
        bench.send(value=b"v" * 1000)
    attempts = Counter()

    async def waiter(number: int) -> Delivery:
        def append() -> Delivery | None:
            attempts[number] += 1
            return bench.path._append(bench.topic, b"w" * 1000, None, 0, None, None, True)

        return await bench.accumulator.append_when_room(append, bench.loop.time() + 60)

    tasks = [asyncio.ensure_future(waiter(number)) for number in range(20)]
    await turns()
    assert attempts == {0: 1}

    bench.ready()
    first, second = bench.drain() + bench.drain()
    bench.succeed(first, second)
    await turns()

    assert [task.done() for task in tasks] == [True] * 2 + [False] * 18
    assert attempts == {0: 2, 1: 1, 2: 1}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    bench.check_memory()


async def test_memory_that_a_closing_batch_does_not_need_goes_to_a_waiter():
    bench = Bench(buffer_memory=4000, batch_size=3600)
    bench.topic.queues[0].size_hint = 3500
    bench.send(value=b"v" * 10)
    other = bench.accumulator.open_topic(topic_info([0], "other"))
    append = partial(bench.path._append, other, b"v" * 1000, None, 0, None, None, True)
    task = asyncio.ensure_future(bench.accumulator.append_when_room(append, bench.loop.time() + 60))
    await turns()
    assert not task.done()

    bench.ready()
    [batch] = bench.drain()
    await turns()

    assert task.done()
    assert bench.memory.waiters == 0
    assert batch.state is BatchState.CLOSED
    bench.check_memory()


async def test_waiter_gives_up_after_max_block():
    bench = small_bench(max_block_ms=20)

    with pytest.raises(
        BufferTimeoutError, match=r"buffer of 1100 bytes.*for 0\.02 s \(max_block_ms\)"
    ) as raised:
        await bench.path.send("orders", b"v" * 900, partition=0)

    assert raised.value.retriable
    assert bench.memory.waiters == 0
    bench.check_memory()
    bench.ready(later=LONG)
    bench.succeed(*bench.drain())
    bench.send(value=b"v" * 900)


async def test_waiter_behind_another_gives_up_after_max_block_too():
    bench = small_bench(max_block_ms=20)

    async with waiting_sends(bench, [b"v" * 900] * 3) as tasks:
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [BufferTimeoutError] * 3
    assert bench.memory.waiters == 0


async def test_max_block_of_zero_does_not_wait():
    bench = small_bench(max_block_ms=0)

    with pytest.raises(BufferTimeoutError):
        await bench.path.send("orders", b"v" * 900, partition=0)


async def test_cancelled_waiter_leaks_nothing_and_the_next_one_has_its_turn():
    bench = small_bench()

    async with waiting_sends(bench, [b"v" * 900] * 3) as (first, second, third):
        first.cancel()
        await turns()
        assert bench.memory.waiters == 2
        second.cancel()
        bench.ready()
        bench.succeed(*bench.drain())
        await turns()

        assert first.cancelled()
        assert second.cancelled()
        assert third.done()
        assert not third.cancelled()
        assert bench.memory.waiters == 0
        bench.check_memory()
        bench.ready()
        bench.accumulator._flushing += 1
        bench.ready()
        bench.succeed(*bench.drain())
    assert bench.memory.available == bench.memory.total


async def test_waiter_that_is_cancelled_when_its_room_came_passes_it_on():
    bench = small_bench()

    async with waiting_sends(bench, [b"v" * 900] * 2) as (first, second):
        bench.ready()
        bench.succeed(*bench.drain())
        first.cancel()  # in the same turn in which it was woken
        await turns()

        assert first.cancelled()
        assert second.done()
        assert not second.cancelled()
        bench.check_memory()


async def test_close_fails_all_waiters_and_those_who_come_later():
    bench = small_bench()

    async with waiting_sends(bench, [b"v" * 900] * 3) as tasks:
        bench.accumulator.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [ProducerClosed] * 3
    assert len({id(result) for result in results}) == 3
    with pytest.raises(ProducerClosed):
        await bench.path.send("orders", b"v" * 900, partition=0)
    assert bench.memory.waiters == 0


# ------------------------------------------------------------------------------------------------ what is due


async def test_open_batch_is_due_when_it_has_lingered():
    bench = Bench(linger_ms=50)
    bench.send()

    assert bench.ready() == []
    assert bench.drain() == []
    look_again = bench.accumulator.ready(bench.loop.time())[1]
    batch = bench.topic.queues[0].tail
    assert look_again == pytest.approx(batch.created + 0.05)
    assert bench.ready(later=0.051) == [0]
    assert bench.drain() == [batch]


async def test_batch_is_due_at_once_without_linger():
    bench = Bench(linger_ms=0)

    bench.send()

    assert bench.ready() == [0]
    assert len(bench.drain()) == 1


async def test_full_batch_is_due_and_the_open_one_behind_it_is_not():
    bench = Bench(batch_size=1000)

    bench.fill()

    assert bench.ready() == [0]
    [batch] = bench.drain()
    assert batch.state is BatchState.CLOSED
    assert bench.ready() == []
    assert bench.topic.queues[0].tail.state is BatchState.OPEN


async def test_open_batch_that_lingered_behind_a_closed_one_goes_out_too():
    bench = Bench(batch_size=1000, linger_ms=50)
    bench.fill()
    tail = bench.topic.queues[0].tail

    assert bench.ready(later=1) == [0]
    [closed] = bench.drain()
    assert closed is not tail
    assert bench.drain() == [tail]


async def test_open_batch_that_lingered_while_the_one_before_it_was_in_back_off_goes_out_too():
    bench = Bench(batch_size=1000, linger_ms=50)
    bench.fill()
    tail = bench.topic.queues[0].tail
    bench.ready()
    [closed] = bench.drain()
    closed.sent(0)
    closed.returned()
    bench.accumulator.requeue(closed, bench.loop.time() + 10)
    bench.ready(later=1)
    assert bench.drain(later=1) == []

    bench.ready(later=11)

    assert bench.drain(later=11) == [closed]
    assert bench.drain(later=11) == [tail]


async def test_open_batch_that_lingered_behind_a_forgotten_one_goes_out():
    bench = Bench(batch_size=1000, linger_ms=50)
    bench.fill()
    closed, tail = bench.topic.queues[0].batches
    bench.ready(later=1)

    bench.give_up(closed)

    assert bench.ready(later=1) == [0]
    assert bench.drain() == [tail]


async def test_hurried_batch_is_due():
    bench = Bench()
    bench.send()
    batch = bench.topic.queues[0].tail
    bench.wake.counted()

    batch.is_due = True
    bench.accumulator.hurry(batch)

    assert bench.wake.counted() == 1
    assert bench.ready() == [0]
    assert bench.drain() == [batch]


async def test_everything_is_due_while_somebody_waits_for_memory():
    bench = Bench([0, 1], buffer_memory=2000, batch_size=1000)
    bench.send(0, b"v" * 900)
    bench.send(1, b"v" * 600)
    assert bench.ready() == []

    async with waiting_sends(bench, [b"v" * 900]):
        assert sorted(bench.ready()) == [0, 1]


async def test_everything_is_due_while_a_flush_runs_and_it_ends_with_the_last_batch():
    bench = Bench([0, 1])
    bench.send(0)
    bench.send(1)
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()

    assert sorted(bench.ready()) == [0, 1]
    bench.send(0, b"of the same batch")
    [first], [second] = bench.drain(0), bench.drain(1)
    bench.send(0, b"later")
    bench.succeed(first)
    await turns()
    assert not flush.done()
    bench.give_up(second)
    await turns()

    assert flush.done()
    assert bench.ready() == []  # what came later lingers again


async def test_open_batch_behind_a_full_one_goes_out_in_the_same_pass_while_a_flush_runs():
    bench = Bench(batch_size=1000)
    bench.fill()
    full, tail = bench.topic.queues[0].batches
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()
    bench.ready()

    assert bench.drain() == [full]
    assert bench.drain() == [tail]

    bench.succeed(full, tail)
    await flush


async def test_flush_without_batches_is_over_at_once():
    await asyncio.wait_for(Bench().accumulator.flush(), 1000 * MS)


async def test_cancelled_flush_changes_nothing():
    bench = Bench()
    bench.send()
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()

    flush.cancel()
    await asyncio.wait([flush])

    assert bench.ready() == []
    bench.ready(later=LONG)
    bench.succeed(*bench.drain())


async def test_everything_is_due_once_the_accumulator_is_closed():
    bench = Bench()
    bench.send()
    bench.wake.counted()

    bench.accumulator.close()

    assert bench.wake.counted() > 0
    assert bench.ready() == [0]


async def test_batch_without_a_leader_is_reported_and_goes_to_the_leader_that_comes():
    bench = Bench([NO_NODE], linger_ms=0)
    bench.send()

    assert bench.ready() == [NO_NODE]
    bench.accumulator.file_queues(cluster_of(topic_info([2])))

    assert bench.ready() == [2]
    assert len(bench.drain(2)) == 1


async def test_batches_follow_their_leader():
    bench = Bench([0, 1], linger_ms=0)
    bench.send(0)
    bench.send(1)

    bench.accumulator.file_queues(cluster_of(topic_info([1, 0])))

    assert sorted(bench.ready()) == [0, 1]
    assert partitions_of(bench.drain(0)) == [1]
    assert partitions_of(bench.drain(1)) == [0]


async def test_batches_of_a_topic_that_metadata_forgot_wait_for_a_leader():
    bench = Bench(linger_ms=0)
    bench.send()

    bench.accumulator.file_queues(cluster_of())

    assert bench.ready() == [NO_NODE]
    assert bench.accumulator.topics == {}
    bench.accumulator.open_topic(topic_info([1]))
    assert bench.ready() == [1]
    assert len(bench.drain(1)) == 1


async def test_when_to_look_again_is_the_first_of_linger_back_off_and_deadline():
    bench = Bench([0, 1, 2], linger_ms=5000, delivery_timeout_ms=40_000)
    assert bench.accumulator.ready(bench.loop.time())[1] is None
    bench.send(0)
    now = bench.loop.time()
    batch = bench.topic.queues[0].tail
    assert bench.accumulator.ready(now)[1] == batch.created + 5

    bench.ready(later=5)
    assert bench.accumulator.ready(now + 5)[1] == batch.deadline
    bench.drain()
    batch.sent(0)
    assert bench.accumulator.ready(now + 5)[1] == batch.deadline
    batch.returned()
    bench.accumulator.requeue(batch, now + 7)

    assert bench.accumulator.ready(now + 5) == ([], now + 7)


async def test_cost_of_ready_does_not_depend_on_idle_partitions(monkeypatch):
    touched = Counter()

    class CountedQueue(PartitionQueue):
        def __getattribute__(self, name: str) -> object:
            touched[super().__getattribute__("partition")] += 1
            return super().__getattribute__(name)

    monkeypatch.setattr(accumulator, "PartitionQueue", CountedQueue)
    bench = Bench([number % 3 for number in range(2000)], batch_size=1000, linger_ms=50)
    # Most had a batch once.
    for partition in range(1000):
        bench.send(partition)
    bench.ready(later=1)
    bench.succeed(*(batch for node in range(3) for batch in bench.drain_all(node)))
    bench.send(7)
    bench.send(1500)
    bench.fill(3)
    touched.clear()

    for later in (0, 1, 2):
        bench.ready(later)
    bench.drain(0, later=2)
    bench.drain(1, later=2)
    bench.accumulator._flushing += 1
    bench.ready()

    assert set(touched) <= {3, 7, 1500}
    assert sum(touched.values()) < 100


async def test_ended_batches_are_not_kept_until_their_linger_would_have_ended():
    bench = Bench([0, 1], batch_size=1000)
    bench.send(1)  # lingers for a long time
    bench.fill(0, batches=50)
    bench.ready()
    bench.succeed(*bench.drain_all())
    gc.collect()

    alive = [found for found in gc.get_objects() if isinstance(found, ProducerBatch)]
    alive = [batch for batch in alive if batch.queue in bench.topic.queues]

    assert sum(batch.state is BatchState.DONE for batch in alive) <= 1


# ------------------------------------------------------------------------------------------------------ waking


async def test_sender_is_woken_for_the_first_open_batch_and_not_for_each_record():
    bench = Bench()
    bench.wake.counted()

    bench.send()
    assert bench.wake.counted() == 1
    for _ in range(100):
        bench.send()
    assert bench.wake.counted() == 0


async def test_sender_is_not_woken_for_a_new_batch_whose_linger_ends_later_than_that_of_another():
    bench = Bench([0, 1, 2])
    bench.send(0)
    bench.wake.counted()

    bench.send(1)
    bench.send(2)

    assert bench.wake.counted() == 0
    assert bench.accumulator.ready(bench.loop.time())[1] == bench.topic.queues[0].tail.created + LONG / 1000


async def test_sender_is_woken_once_for_each_full_batch():
    bench = Bench(batch_size=1000)
    bench.send()
    bench.wake.counted()

    bench.fill(batches=5)

    assert bench.wake.counted() == 5


async def test_sender_is_woken_for_each_batch_without_linger():
    bench = Bench(linger_ms=0)
    bench.wake.counted()

    bench.send()
    bench.send()
    assert bench.wake.counted() == 1
    bench.ready()
    bench.drain()
    bench.send()

    assert bench.wake.counted() == 1


async def test_sender_is_woken_by_who_waits_for_memory_and_by_flush():
    bench = small_bench()
    bench.wake.counted()

    async with waiting_sends(bench, [b"v" * 900]):
        assert bench.wake.counted() > 0
    flush = asyncio.ensure_future(bench.accumulator.flush())
    await turns()

    assert bench.wake.counted() == 1
    bench.give_up(*list(bench.accumulator.incomplete))
    await flush


async def test_sender_is_woken_for_a_retry_at_once_and_sets_its_timer_for_a_later_one():
    bench = Bench(linger_ms=0)
    bench.send()
    [batch] = bench.drain()
    batch.sent(0)
    batch.returned()
    bench.wake.counted()

    bench.accumulator.requeue(batch, bench.loop.time())

    assert bench.wake.counted() == 1
    assert bench.drain() == [batch]


# --------------------------------------------------------------------------------------------------- draining


async def test_drain_takes_one_batch_of_each_partition_at_a_time():
    bench = Bench([0, 0, 0], batch_size=1000)
    for partition in range(3):
        bench.fill(partition, batches=2)
    bench.ready()

    assert partitions_of(bench.drain()) == [0, 1, 2]
    assert partitions_of(bench.drain()) == [0, 1, 2]
    assert bench.drain() == []


async def test_drain_keeps_the_order_of_a_partition():
    bench = Bench(batch_size=1000)
    bench.fill(batches=5)
    bench.ready()

    drained = bench.drain_all()

    assert [batch.order for batch in drained] == sorted(batch.order for batch in drained)
    assert len(drained) == 5


async def test_drain_takes_what_is_due_for_its_node_only():
    bench = Bench([0, 1, 0], linger_ms=0)
    for partition in range(3):
        bench.send(partition)

    assert partitions_of(bench.drain(1)) == [1]
    assert partitions_of(bench.drain(0)) == [0, 2]
    assert bench.drain(2) == []


async def test_drain_stops_at_max_request_size_and_goes_on_where_it_stopped():
    bench = Bench([0] * 5, batch_size=1000, max_request_size=2100)
    for partition in range(5):
        bench.fill(partition, batches=2)
    bench.ready()
    requests = []

    while drained := bench.drain():
        assert sum(batch.wire_size for batch in drained) <= 2100
        requests.append(partitions_of(drained))

    assert requests == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


async def test_first_batch_above_max_request_size_goes_alone():
    bench = Bench([0, 0, 0], batch_size=4000, max_request_size=1500, linger_ms=0)
    bench.send(0, b"small")
    for _ in range(3):
        bench.send(1, b"v" * 1000)
    bench.send(2, b"small")

    requests = []
    while drained := bench.drain():
        requests.append((partitions_of(drained), sum(batch.wire_size for batch in drained) > 1500))

    assert requests == [([0], False), ([1], True), ([2], False)]


async def test_blocked_partition_never_stops_its_neighbours():
    bench = Bench([0] * 4, batch_size=1000)
    for partition in range(4):
        bench.fill(partition)
    bench.ready()
    asked = []

    def may_drain(queue: PartitionQueue, batch: ProducerBatch) -> bool:
        asked.append((queue.partition, batch.queue.partition))
        return queue.partition not in (0, 2)

    assert partitions_of(bench.drain(may_drain=may_drain)) == [1, 3]
    assert asked == [(number, number) for number in range(4)]
    # It is still due, and open batches stay open while they are blocked.
    assert partitions_of(bench.drain()) == [0, 2]


async def test_blocked_open_batch_keeps_filling():
    bench = Bench(linger_ms=0)
    bench.send()

    assert bench.drain(may_drain=lambda queue, batch: False) == []

    assert bench.topic.queues[0].tail.state is BatchState.OPEN
    bench.send()
    [batch] = bench.drain()
    assert batch.record_count == 2


async def test_partition_that_was_held_back_is_drained_after_an_answer():
    bench = Bench(batch_size=1000)
    bench.fill(batches=2)
    bench.ready()
    [first] = bench.drain()
    first.sent(0)
    assert bench.drain(may_drain=lambda queue, batch: False) == []
    first.succeed(0, -1, -1)
    bench.accumulator.release(first)

    bench.accumulator.touch(bench.topic.queues[0])

    assert bench.ready() == [0]
    assert len(bench.drain()) == 1


async def test_batch_that_is_being_compressed_waits_and_its_neighbours_do_not():
    bench = Bench([0, 0], batch_size=64 * 1024, compression_type="gzip", linger_ms=0)
    bench.send(0, b"v" * 2 * accumulator.COMPRESS_IN_THREAD_FROM)
    bench.send(1, b"v" * 100)

    assert partitions_of(bench.drain()) == [1]
    assert bench.drain() == []
    bench.wake.counted()
    bench.executor.work()
    await turns()

    assert bench.wake.counted() > 0
    assert bench.ready() == [0]
    [batch] = bench.drain()
    assert bytes(batch.payload) == compressor(Codec.GZIP)(batch.records)


async def test_batch_that_can_not_be_compressed_goes_uncompressed(caplog):
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", linger_ms=0)

    def broken(data: object) -> bytes:
        raise ValueError("broken codec")

    bench.accumulator._compress = broken
    bench.send(0, b"v" * 2 * accumulator.COMPRESS_IN_THREAD_FROM)
    bench.drain()

    bench.executor.work()
    await turns()

    [batch] = bench.drain()
    assert batch.codec is Codec.NONE
    assert "broken codec" in caplog.text


async def test_batch_that_expires_while_it_is_compressed_is_not_brought_back():
    bench = Bench(batch_size=64 * 1024, compression_type="gzip", linger_ms=0)
    bench.send(0, b"v" * 2 * accumulator.COMPRESS_IN_THREAD_FROM)
    bench.drain()
    bench.give_up(*list(bench.accumulator.incomplete))

    bench.executor.work()
    await turns()

    assert bench.ready() == []
    assert bench.drain() == []
    assert bench.memory.available == bench.memory.total


async def test_records_that_ended_early_are_left_out_and_a_batch_without_any_is_not_sent():
    bench = Bench([0, 0], linger_ms=0)
    late = [bench.send(0), bench.send(1)]
    kept = bench.send(0, b"kept")
    for delivery in late:
        delivery.batch.end_record(delivery, DeliveryError("too late"), True)

    [batch] = bench.drain()

    assert partitions_of([batch]) == [0]
    assert batch.record_count == 1
    bench.succeed(batch)
    assert (await kept).offset == 0
    assert [delivery.exception() is not None for delivery in late] == [True, True]
    assert bench.memory.available == bench.memory.total
    assert not bench.accumulator.incomplete


# --------------------------------------------------------------------------------------------------- retries


async def test_requeued_batches_are_in_the_order_in_which_they_were_opened():
    bench = Bench(batch_size=1000)
    bench.fill(batches=4)
    bench.ready()
    batches = bench.drain_all()
    for batch in batches:
        batch.sent(0)
        batch.returned()

    for batch in (batches[2], batches[0], batches[3], batches[1]):
        bench.accumulator.requeue(batch, bench.loop.time())

    queue = bench.topic.queues[0]
    assert list(queue.batches)[:4] == batches
    assert queue.batches[4] is queue.tail
    assert bench.drain_all() == batches


async def test_partition_in_back_off_is_not_drained_before_its_time():
    bench = Bench([0, 0], linger_ms=0)
    bench.send(0)
    bench.send(1)
    first, second = bench.drain()
    for batch in (first, second):
        batch.sent(0)
        batch.returned()
    now = bench.loop.time()

    bench.accumulator.requeue(first, now + 10)
    bench.accumulator.requeue(second, now)

    assert bench.drain() == [second]
    assert bench.accumulator.ready(now) == ([], now + 10)
    assert bench.ready(later=10) == [0]
    assert bench.drain(later=10) == [first]


async def test_back_off_holds_also_for_newer_batches_flush_and_memory_waiters():
    bench = Bench(batch_size=1000)
    bench.fill()
    bench.ready()
    [batch] = bench.drain()
    batch.sent(0)
    batch.returned()
    bench.accumulator.requeue(batch, bench.loop.time() + 10)

    bench.fill(batches=2)
    bench.accumulator._flushing += 1
    bench.ready()

    assert bench.drain() == []
    bench.ready(later=10)
    assert bench.drain(later=10) == [batch]


# ------------------------------------------------------------------------------------------- sticky partitions


async def test_records_without_a_key_spread_evenly_and_fill_their_batches():
    bench = Bench([0, 1, 2, 0, 1, 2], batch_size=1000, partitioner_adaptive_partitioning_enable=False)
    sent = Counter()

    for _ in range(6000):
        sent[bench.send(None, b"v" * 80).topic_partition.partition] += 1
        if len(bench.accumulator.incomplete) > 100:
            bench.ready()
            bench.succeed(*(batch for node in range(3) for batch in bench.drain_all(node)))

    assert set(sent) == set(range(6))
    assert max(sent.values()) < 1.5 * min(sent.values())
    bench.accumulator._flushing += 1
    bench.ready()
    batches = [batch for node in range(3) for batch in bench.drain_all(node)]
    assert sum(batch.size for batch in batches) / len(batches) > 0.7 * 1000


async def test_sticky_partition_changes_after_batch_size_bytes():
    bench = Bench([0] * 10, batch_size=1000)
    bench.send(None)
    first = bench.topic.sticky_partition
    switches = 0

    for _ in range(40):
        before = bench.topic.sticky_partition
        size = bench.topic.sticky_bytes
        bench.send(None, b"v" * 100)
        if bench.topic.sticky_partition != before:
            switches += 1
            assert 1000 <= size <= 2000

    assert first in range(10)
    assert 2 <= switches <= 6


async def test_sticky_partition_is_one_with_a_leader():
    bench = Bench([NO_NODE, 0, NO_NODE, 1])

    used = {bench.send(None, b"v" * 30_000).topic_partition.partition for _ in range(60)}

    assert used == {1, 3}


async def test_sticky_partition_is_any_if_none_has_a_leader():
    bench = Bench([NO_NODE] * 4)

    used = {bench.send(None, b"v" * 30_000).topic_partition.partition for _ in range(60)}

    assert used == {0, 1, 2, 3}


async def test_sticky_partition_is_left_when_it_loses_its_leader():
    bench = Bench([0, 1])
    lost = bench.send(None).topic_partition.partition

    bench.accumulator.file_queues(
        cluster_of(topic_info([NO_NODE if number == lost else 0 for number in range(2)]))
    )

    assert bench.send(None).topic_partition.partition == 1 - lost


async def test_adaptive_sticky_partitioning_prefers_short_queues():
    bench = Bench([0, 0, 0], batch_size=1000, buffer_memory=1 << 24)
    bench.fill(0, batches=100)
    sent = Counter()

    for _ in range(900):
        partition = bench.send(None, b"v" * 300).topic_partition.partition
        sent[partition] += 1
        bench.ready()
        if partition != 0:
            queue = bench.topic.queues[partition]
            bench.succeed(*bench.drain(may_drain=lambda other, batch, queue=queue: other is queue))

    assert sent[0] < sent[1] / 5
    assert sent[0] < sent[2] / 5


# ----------------------------------------------------------------------------------------------------- topics


async def test_new_partitions_of_a_topic_are_taken_over():
    bench = Bench([0])

    bench.accumulator.file_queues(cluster_of(topic_info([0, 1, 2])))

    assert [queue.node_id for queue in bench.topic.queues] == [0, 1, 2]
    assert bench.accumulator.topics["orders"] is bench.topic


async def test_queue_of_a_partition_is_the_same_after_its_topic_was_forgotten():
    bench = Bench([0, 1])
    queues = list(bench.topic.queues)

    bench.accumulator.file_queues(cluster_of())
    topic = bench.accumulator.open_topic(topic_info([0, 1]))

    assert topic.queues == queues


async def test_record_that_waited_for_memory_while_its_topic_was_forgotten_still_finds_a_partition():
    bench = Bench([0, 0, 0], batch_size=1000)
    topic: Topic = bench.topic
    bench.send(None)

    bench.accumulator.file_queues(cluster_of())

    for _ in range(10):
        delivery = bench.path._append(topic, b"v" * 900, None, -1, None, None, True)
        assert delivery.topic_partition.partition in range(3)


async def test_topic_that_was_made_anew_with_fewer_partitions_gets_no_record_for_those_that_are_gone():
    bench = Bench([0, 1, 2, 0])

    bench.accumulator.file_queues(cluster_of(topic_info([0, 1], topic_id=2)))

    topic = bench.accumulator.topics.get("orders") or bench.accumulator.open_topic(
        topic_info([0, 1], topic_id=2)
    )
    deliveries = [bench.path._append(topic, b"v", b"%d" % key, -1, None, None, False) for key in range(50)]
    assert {delivery.topic_partition.partition for delivery in deliveries} == {0, 1}


# ------------------------------------------------------------------------------------------ unretrieved errors


async def test_failed_records_that_nobody_looked_at_are_logged_once_for_each_topic_and_error(caplog):
    bench = Bench([0, 1])
    for _ in range(3):
        bench.send(0, b"secret")
        bench.send(1, b"secret")

    with caplog.at_level(logging.ERROR):
        bench.give_up(*list(bench.accumulator.incomplete))
        gc.collect()

    assert bench.accumulator.unretrieved == {("orders", "DeliveryError"): 6}
    assert len(caplog.records) == 1
    assert "3 records for topic orders" in caplog.text
    assert "secret" not in caplog.text
