"""The memory of batches: counted exactly on every path, bounded, and passed to waiting callers, first come
first served."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import pytest

from aioproducer.errors import BufferTimeoutError, DeliveryError, ProducerClosed
from aioproducer.protocol.compression import Codec
from aioproducer.records import accumulator, append_lock
from aioproducer.records._record_path import BatchState, Delivery, PartitionQueue
from aioproducer.records.batch import BatchBuilder
from tests.support.accumulator_bench import (
    LONG,
    Bench,
    small_bench,
    topic_info,
    turns,
    waiting_sends,
)

# ------------------------------------------------------------------------------------------------------ memory


@pytest.mark.promise("Accumulator, sender, connections", "buffer memory is accounted exactly")
async def test_the_used_memory_is_what_the_batches_reserve_and_all_of_it_is_returned():
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
        batch.mark_sent(0)
        batch.give_up(DeliveryError("refused"))
        bench.accumulator.release(batch)

    assert bench.memory.available == bench.memory.total
    assert not bench.accumulator.incomplete


@pytest.mark.promise("Rules of Kafka's producer", "a closing batch returns the memory that it does not need")
async def test_closing_a_batch_returns_unneeded_memory():
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


@pytest.mark.promise("Accumulator, sender, connections", "buffer memory is returned on every path")
async def test_expired_and_aborted_batches_return_their_memory_in_every_state():
    bench = Bench(batch_size=1000)
    bench.fill(batches=3)
    bench.ready()
    [in_flight] = bench.drain()
    in_flight.mark_sent(0)

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


async def test_a_built_batch_follows_the_records_sent_before_and_closes_their_batch():
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


async def test_a_built_batch_for_which_memory_is_missing_can_be_sent_later():
    bench = Bench(buffer_memory=2000, batch_size=1900)
    bench.send(value=b"v" * 900)
    built = BatchBuilder(PartitionQueue("", -1), bench.loop, 1900)
    built.append(key=None, value=b"v" * 1500)

    assert bench.accumulator.append_built(bench.topic.queues[0], built) is None

    bench.check_memory()
    bench.ready(later=LONG)
    bench.succeed(*bench.drain())
    assert bench.accumulator.append_built(bench.topic.queues[0], built) is not None


async def test_a_record_larger_than_batch_size_has_its_own_batch():
    bench = Bench(batch_size=1000)
    bench.send(value=b"small")
    bench.send(value=b"v" * 5000)
    bench.send(value=b"small")

    batches = list(bench.topic.queues[0].batches)
    assert [batch.record_count for batch in batches] == [1, 1, 1]
    assert batches[1].size > 5000
    bench.check_memory()


@pytest.mark.promise("Rules of Kafka's producer", "a record larger than `batch_size` has a batch of its own")
async def test_a_record_larger_than_batch_size_is_due_immediately_because_its_batch_is_full():
    bench = Bench(batch_size=1000)
    bench.wake.counted()

    bench.send(value=b"v" * 5000)

    assert bench.wake.counted() > 0
    assert bench.ready() == [0]
    assert len(bench.drain()) == 1


async def test_a_batch_starts_with_the_size_of_its_predecessor():
    bench = Bench(batch_size=100_000, linger_ms=0)
    bench.send(value=b"v" * 50)
    assert bench.reserved == accumulator.SMALLEST_BATCH
    for _ in range(500):
        bench.send(value=b"v" * 50)
    bench.ready()
    [batch] = bench.drain()

    bench.send(value=b"v" * 50)

    assert bench.topic.queues[0].tail.reserved == len(batch.records)


async def test_the_batch_after_a_full_one_has_room_for_a_full_batch():
    """With a buffer as large as its predecessor's final size, its last record would need a copy to a larger one."""
    bench = Bench(batch_size=100_000)
    bench.fill()
    full, tail = bench.topic.queues[0].batches

    assert full.state is BatchState.CLOSED
    assert tail.reserved == bench.accumulator.batch_limit > len(full.records)


# -------------------------------------------------------------------------------------------- waiting for memory


@pytest.mark.promise("Public API", "`send` waits while the buffer is full, bounded by `max_block`")
@pytest.mark.promise(
    "Accumulator, sender, connections", "buffer memory is bounded, with waiters first in, first out"
)
async def test_a_full_buffer_stays_bounded_and_its_waiters_are_counted():
    bench = small_bench()

    async with waiting_sends(bench, [b"v" * 900] * 5) as tasks:
        assert bench.memory.waiters == 5
        assert not any(task.done() for task in tasks)
        assert bench.memory.available >= 0
        assert bench.path.try_send("orders", b"v", partition=0) is None

    assert bench.memory.waiters == 0
    bench.check_memory()


@pytest.mark.promise(
    "Accumulator, sender, connections", "buffer memory is bounded, with waiters first in, first out"
)
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


@pytest.mark.promise(
    "Accumulator, sender, connections", "buffer memory is bounded, with waiters first in, first out"
)
async def test_a_newcomer_never_overtakes_a_waiter_even_if_its_record_would_fit():
    bench = small_bench()
    async with waiting_sends(bench, [b"v" * 900]) as tasks:
        # 1 byte of records fits into the remaining memory, 900 bytes do not.
        newcomer = asyncio.ensure_future(bench.path.send("orders", b"n", partition=0))
        await turns()
        assert bench.memory.waiters == 2
        assert not newcomer.done()

        bench.ready()
        bench.succeed(*bench.drain())

        first, second = await asyncio.gather(*tasks, newcomer)
        queue = bench.topic.queues[0]
        records = [batch.record_count for batch in queue.batches]
        assert sum(records) == 2
        assert first.batch is queue.batches[0]
        assert second.batch is queue.batches[-1]


@pytest.mark.promise("Public API", "callers that wait for room are served first come, first served")
async def test_exactly_those_waiters_whose_records_fit_are_woken():
    bench = Bench(buffer_memory=4000, batch_size=1100)
    for _ in range(3):
        bench.send(value=b"v" * 1000)
    attempts = Counter()

    async def waiter(number: int) -> Delivery:
        def append() -> Delivery | None:
            attempts[number] += 1
            return bench.path._append(bench.topic, b"w" * 1000, None, 0, None, None, True)

        return await bench.accumulator.lock.append(append, bench.loop.time() + 60)

    tasks = [asyncio.ensure_future(waiter(number)) for number in range(20)]
    await turns()
    assert attempts == {0: 1}

    bench.ready()
    first, second = bench.drain() + bench.drain()
    bench.succeed(first, second)
    await turns()

    assert [task.done() for task in tasks] == [True] * 2 + [False] * 18
    assert attempts == {0: 2, 1: 2, 2: 1}, "each return of memory causes one attempt of the first waiter"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    bench.check_memory()


@pytest.mark.promise("Rules of Kafka's producer", "a closing batch returns the memory that it does not need")
async def test_memory_that_a_closing_batch_does_not_need_goes_to_a_waiter():
    bench = Bench(buffer_memory=4000, batch_size=3600)
    bench.topic.queues[0].size_hint = 3500
    bench.send(value=b"v" * 10)
    other = bench.accumulator.open_topic(topic_info([0], "other"))
    append = partial(bench.path._append, other, b"v" * 1000, None, 0, None, None, True)
    task = asyncio.ensure_future(bench.accumulator.lock.append(append, bench.loop.time() + 60))
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
        BufferTimeoutError, match=r"buffer of 1100 bytes.*for \d\.\d+ s \(max_block_ms\)"
    ) as raised:
        await bench.path.send("orders", b"v" * 900, partition=0)

    assert raised.value.retriable
    assert bench.memory.waiters == 0
    bench.check_memory()
    bench.ready(later=LONG)
    bench.succeed(*bench.drain())
    bench.send(value=b"v" * 900)


async def test_a_waiter_behind_another_also_gives_up_after_max_block():
    bench = small_bench(max_block_ms=20)

    async with waiting_sends(bench, [b"v" * 900] * 3) as tasks:
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [BufferTimeoutError] * 3
    assert bench.memory.waiters == 0


async def test_max_block_of_zero_does_not_wait():
    bench = small_bench(max_block_ms=0)

    with pytest.raises(BufferTimeoutError):
        await bench.path.send("orders", b"v" * 900, partition=0)


@pytest.mark.promise("Accumulator, sender, connections", "buffer memory is returned on every path")
async def test_a_cancelled_waiter_leaks_nothing_and_the_next_one_is_served():
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


@pytest.mark.promise("Accumulator, sender, connections", "buffer memory is returned on every path")
async def test_a_waiter_that_is_cancelled_after_its_append_detaches_only_itself():
    bench = small_bench()

    async with waiting_sends(bench, [b"v" * 900] * 2) as (first, second):
        bench.ready()
        bench.succeed(*bench.drain())
        first.cancel()  # in the turn in which its record was appended
        await turns()

        assert first.cancelled()
        bench.ready()
        bench.succeed(*bench.drain())
        await turns()
        assert second.done()
        assert not second.cancelled()
        bench.check_memory()


async def test_a_waiter_that_times_out_in_the_turn_of_its_append_gets_its_delivery(monkeypatch):
    """The record is in the buffer, so an error that claims otherwise would be wrong."""

    @asynccontextmanager
    async def over_when_it_is_served(deadline):
        yield
        raise TimeoutError

    bench = small_bench()
    monkeypatch.setattr(append_lock.asyncio, "timeout_at", over_when_it_is_served)
    append = partial(bench.path._append, bench.topic, b"v" * 900, None, 0, None, None, True)
    task = asyncio.ensure_future(bench.accumulator.lock.append(append, 0))
    await turns()
    assert not task.done()

    bench.ready()
    bench.succeed(*bench.drain())

    assert isinstance(await task, Delivery)
    assert bench.memory.waiters == 0


async def test_close_fails_all_waiters_and_later_callers():
    bench = small_bench()

    async with waiting_sends(bench, [b"v" * 900] * 3) as tasks:
        bench.accumulator.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [ProducerClosed] * 3
    assert len({id(result) for result in results}) == 3
    with pytest.raises(ProducerClosed):
        await bench.path.send("orders", b"v" * 900, partition=0)
    assert bench.memory.waiters == 0


# ------------------------------------------------------------------------------------------ unretrieved errors


async def test_unretrieved_failures_are_logged_once_for_each_topic_and_error(caplog):
    gc.collect()  # what other tests left is not logged in this one
    bench = Bench([0, 1])
    for _ in range(3):
        bench.send(0, b"secret")
        bench.send(1, b"secret")

    with caplog.at_level(logging.ERROR):
        bench.give_up(*list(bench.accumulator.incomplete))
        gc.collect()
        bench.accumulator.unretrieved.close()

    assert bench.accumulator.unretrieved.counts == {("orders", "DeliveryError"): 6}
    assert len(caplog.records) == 1
    assert "6 records for topic orders" in caplog.text
    assert "secret" not in caplog.text


async def test_a_batch_of_one_record_is_four_objects_for_the_garbage_collector():
    """The batch, its order, its linger and the queue's tuple of batches.

    With 10,000 partitions, each record has its own batch, and the collector used to take a tenth of the CPU time.
    """
    bench = Bench([0] * 200)
    deliveries = [bench.send(partition) for partition in range(100)]
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        deliveries += [bench.send(partition) for partition in range(100, 200)]
        after = len(gc.get_objects())
    finally:
        gc.enable()

    assert all(delivery.batch.record_count == 1 for delivery in deliveries)
    assert round((after - before) / 100) == 4
