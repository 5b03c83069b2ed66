"""The semantics of `send`, of its delivery, and of cancelling either: never half done, never twice, first come, first
served."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.errors import BufferTimeoutError, DeliveryTimeoutError, MetadataTimeoutError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records import unretrieved
from tests.conftest import MS, in_virtual_time
from tests.support.log_lines import log_lines
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    ONE_BATCH_PER_RECORD,
    error_of,
    metadata_count,
    numbers,
    producing,
    results,
    send_numbers,
    until,
    values,
    within,
)

PRODUCE = ApiKey.PRODUCE
LINGERING = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}


def large(number: int) -> bytes:
    """Return a value so large that four of them fill the buffer."""
    return b"%d" % number + b" " * (LARGE - len(b"%d" % number))


async def fill(cluster, producer, count: int = 4) -> None:
    """Fill the buffer, which stays full until the broker is thawed."""
    await producer.partitions_for("t")
    cluster.freeze_broker(0)
    for number in range(count):
        await producer.send("t", large(number))


# ------------------------------------------------------------------------------------------ cancelling a send


@pytest.mark.promise("Public API", "a `send` that is cancelled before the append leaves no record")
async def test_a_send_cancelled_while_the_buffer_is_full_leaves_no_record():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await fill(cluster, producer)
        waiting = [asyncio.create_task(producer.send("t", large(number))) for number in (4, 5, 6)]
        await until(lambda: producer.metrics().buffer_waiters == 3)

        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.wait(waiting[:2])

        assert waiting[0].cancelled()
        assert producer.metrics().buffer_waiters == 1
        cluster.thaw_broker(0)
        await within(1, await within(1, waiting[2]))
        assert numbers(cluster) == [0, 1, 2, 3, 6]


async def test_a_waiter_cancelled_just_as_its_record_found_room_takes_nothing_from_the_next():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await fill(cluster, producer)
        waiting = [asyncio.create_task(producer.send("t", large(number))) for number in (4, 5)]
        await until(lambda: producer.metrics().buffer_waiters == 2)
        first = next(iter(producer._accumulator.lock._waiting))
        first.add_done_callback(lambda _: waiting[0].cancel())

        cluster.thaw_broker(0)

        await within(1, await within(1, waiting[1]))
        await within(1, producer.flush())
        assert numbers(cluster) == [0, 1, 2, 3, 4, 5], "it was in the buffer, so it is sent"


async def test_after_a_full_buffer_all_waiting_callers_are_served_together():
    """While a caller waits, no other caller overtakes it, so all waiting callers must be served when there is room
    again."""
    async with producing(buffer_memory=64 * 1024, topics={"t": 6}, linger_ms=5) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=release)

        async def send_many() -> None:
            for _ in range(50):
                await producer.send("t", b"v" * 200)

        tasks = [asyncio.create_task(send_many()) for _ in range(100)]
        await until(lambda: producer.metrics().buffer_waiters > 50)
        release.set()
        await within(10, asyncio.gather(*tasks))
        await within(2, producer.flush())

        assert len(cluster.records("t")) == 5000
        assert len(cluster.requests_of(PRODUCE)) < 5000 / 10


@pytest.mark.promise("Public API", "a `send` that is cancelled before the append leaves no record")
async def test_a_send_cancelled_while_it_waits_for_metadata_leaves_no_record():
    async with producing(cluster={"auto_create": False}) as (cluster, producer):
        waiting = asyncio.create_task(producer.send("later", b"v"))
        await until(lambda: metadata_count(cluster) >= 2)

        waiting.cancel()
        await asyncio.wait([waiting])

        assert waiting.cancelled()
        cluster.create_topic("later", 1)
        await within(1, producer.send_and_wait("later", b"other"))
        assert values(cluster, "later") == [b"other"]


@pytest.mark.promise("Public API", "a `send` that is cancelled before the append leaves no record")
async def test_a_send_cancelled_in_its_serializer_leaves_no_record():
    started = asyncio.Event()

    async def slow(value: bytes) -> bytes:
        started.set()
        if value == b"slow":
            await asyncio.Event().wait()
        return value

    async with producing(value_serializer=slow) as (cluster, producer):
        waiting = asyncio.create_task(producer.send("t", b"slow"))
        await within(1, started.wait())

        waiting.cancel()
        await asyncio.wait([waiting])

        assert waiting.cancelled()
        await within(1, producer.send_and_wait("t", b"other"))
        assert values(cluster) == [b"other"]


@pytest.mark.promise(
    "Public API", "cancelling a delivery while its record is queued detaches only the waiter"
)
async def test_cancelling_a_delivery_that_is_queued_detaches_only_the_waiter():
    async with producing(**LINGERING) as (cluster, producer):
        deliveries = await send_numbers(producer, range(3))
        awaiting = asyncio.create_task(within(60, deliveries[0]))
        await asyncio.sleep(0)

        awaiting.cancel()
        assert deliveries[1].cancel()
        await asyncio.wait([awaiting])

        assert awaiting.cancelled()
        assert deliveries[1].cancelled()
        assert deliveries[1].done()
        await within(1, producer.flush())
        assert deliveries[2].result().offset == 2
        assert numbers(cluster) == [0, 1, 2]
        assert producer.metrics().records_acked == 3


@pytest.mark.promise(
    "Public API", "cancelling a delivery while its record is in flight detaches only the waiter"
)
async def test_cancelling_a_delivery_that_is_in_flight_detaches_only_the_waiter():
    async with producing() as (cluster, producer):
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release, drop_after_append=True)
        calls = [asyncio.create_task(producer.send_and_wait("t", b"%d" % number)) for number in range(3)]
        await within(1, held.reached())

        calls[1].cancel()
        await asyncio.wait([calls[1]])
        release.set()

        assert calls[1].cancelled()
        assert [(await within(1, calls[place])).offset for place in (0, 2)] == [0, 2]
        assert numbers(cluster) == [0, 1, 2], "in the log exactly once"


@pytest.mark.promise("Public API", "`cancel` works as with any future, and the record is still sent")
async def test_a_delivery_can_not_be_cancelled_once_it_is_done():
    async with producing() as (_, producer):
        delivery = await producer.send("t", b"v")
        await within(1, delivery)

        assert not delivery.cancel()
        assert delivery.result().offset == 0


async def test_wait_for_a_send_that_waits_for_room_leaves_no_record():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await fill(cluster, producer)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send("t", large(4)), 20 * MS)

        cluster.thaw_broker(0)
        await within(1, producer.flush())
        assert numbers(cluster) == [0, 1, 2, 3]


@in_virtual_time
async def test_wait_for_send_and_wait_abandons_the_answer_and_not_the_record():
    async with producing() as (cluster, producer):
        release = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=release)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send_and_wait("t", b"0"), 30 * MS)

        release.set()
        await within(1, producer.flush())
        assert numbers(cluster) == [0]


@pytest.mark.promise(
    "Public API", "cancelling a delivery while its record is in flight detaches only the waiter"
)
async def test_after_a_cancelled_record_the_next_one_does_not_reuse_its_number():
    """The first attempt may be in the log; a new record with the same number would be taken for a duplicate."""
    for code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
            cluster.faults.add(PRODUCE, error=code, after_append=True, count=2)
            first = asyncio.create_task(producer.send_and_wait("t", b"0"))
            await until(lambda producer=producer: producer.metrics().retries >= 1)
            first.cancel()

            assert (await within(1, producer.send_and_wait("t", b"1"))).offset == 1
            assert numbers(cluster) == [0, 1]


async def test_a_task_group_whose_sibling_fails_leaves_a_whole_batch():
    async with producing(**LINGERING) as (cluster, producer):
        sent = []

        async def send(number: int) -> None:
            await producer.send("t", b"%d" % number)
            sent.append(number)
            await asyncio.Event().wait()

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(5):
                    group.create_task(send(number))
                await until(lambda: len(sent) == 5)
                raise ZeroDivisionError

        with pytest.raises(ExceptionGroup):
            await work()

        await within(1, producer.flush())
        assert numbers(cluster) == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------------------- waiting for room


@pytest.mark.promise("Rules of Kafka's producer", "`max_block_ms` is one budget for metadata and room")
@in_virtual_time
async def test_max_block_is_one_budget_for_metadata_and_room():
    async with producing(
        cluster={"auto_create": False}, max_block_ms=200_000 * MS, **FOUR_RECORDS_FILL_IT
    ) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=release)
        # The whole buffer is in use, but metadata can still be fetched.
        loop = asyncio.get_running_loop()
        producer._accumulator.memory.take(4000)
        began = loop.time()
        loop.call_later(120 * MS, cluster.create_topic, "later", 1)

        error = await error_of(producer.send("later", large(0)), 1)

        assert isinstance(error, BufferTimeoutError), "the topic came in time, but there was no room"
        assert 199 * MS <= loop.time() - began < 300 * MS
        assert error.outcome is Outcome.NOT_PERSISTED
        producer._accumulator.memory.give(4000)
        release.set()


@in_virtual_time
async def test_max_block_bounds_the_wait_for_metadata():
    async with producing(cluster={"auto_create": False}, max_block_ms=50_000 * MS) as (_, producer):
        loop = asyncio.get_running_loop()
        began = loop.time()

        error = await error_of(producer.send("unknown", b"v"), 1)

        assert isinstance(error, MetadataTimeoutError)
        assert isinstance(error, TimeoutError)
        assert 49 * MS <= loop.time() - began < 200 * MS


@pytest.mark.promise("Public API", "callers that wait for room are served first come, first served")
async def test_two_hundred_tasks_and_a_small_buffer_are_served_first_come_first_served():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        tasks = [asyncio.create_task(producer.send_and_wait("t", large(number))) for number in range(200)]
        await within(3, asyncio.gather(*tasks))

        assert numbers(cluster) == list(range(200))
        assert producer.metrics().buffer_waiters == 0


@pytest.mark.promise("Public API", "callers that wait for room are served first come, first served")
async def test_a_new_caller_does_not_overtake_waiting_ones_even_if_its_record_would_fit():
    async with producing(topics={"t": 2}, **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        for number in range(4):
            await producer.send("t", large(number), partition=0)
        first = asyncio.create_task(producer.send("t", large(4), partition=0))
        await until(lambda: producer.metrics().buffer_waiters == 1)
        second = asyncio.create_task(producer.send("t", b"5", partition=0))
        await until(lambda: producer.metrics().buffer_waiters == 2)

        cluster.thaw_broker(0)
        await within(1, asyncio.gather(first, second))
        await within(1, producer.flush())

        assert numbers(cluster, "t", 0) == [0, 1, 2, 3, 4, 5]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "after a wait for room the last batch is tried again; close fails all waiters as NOT_PERSISTED",
)
async def test_after_a_wait_the_last_batch_is_tried_before_a_new_one_is_opened():
    settings = {"batch_size": 4096, "buffer_memory": 4096, **LINGERING}
    async with producing(**settings) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        await producer.send("t", bytes(4000))
        waiting = [asyncio.create_task(producer.send("t", b"%d" % number)) for number in range(20)]
        await within(1, held.reached())

        release.set()
        await within(1, asyncio.gather(*waiting))
        await within(1, producer.flush())

        counts = [batch.header.record_count for batch in cluster.batches("t", 0)]
        assert sum(counts) == 21
        assert counts[0] == 1
        assert len(counts) < 15, "the waiting records share batches"


async def test_a_waiter_that_times_out_does_not_block_the_others():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await fill(cluster, producer)
        hasty = asyncio.create_task(asyncio.wait_for(producer.send("t", large(4)), 20 * MS))
        patient = [asyncio.create_task(producer.send("t", large(number))) for number in (5, 6)]

        await asyncio.wait([hasty])
        assert isinstance(hasty.exception(), TimeoutError)
        cluster.thaw_broker(0)
        await within(1, asyncio.gather(*patient))
        await within(1, producer.flush())

        assert numbers(cluster) == [0, 1, 2, 3, 5, 6]


async def test_a_thousand_records_of_random_sizes_get_through_a_small_buffer():
    chance = random.Random(5)
    settings = {"batch_size": 2000, "buffer_memory": 8000, "linger_ms": 1}
    async with producing(topics={"t": 3}, **settings) as (cluster, producer):

        async def send(task: int) -> None:
            for number in range(10):
                filler = b" " * chance.randrange(600)
                await producer.send("t", b"%d.%d" % (task, number) + filler, partition=task % 3)

        await within(4, asyncio.gather(*[send(task) for task in range(100)]))
        await within(4, producer.flush())

        for task in range(100):
            mine = [
                value
                for value in map(bytes.strip, values(cluster, "t", task % 3))
                if value.startswith(b"%d." % task)
            ]
            assert mine == [b"%d.%d" % (task, number) for number in range(10)]


@asynccontextmanager
async def ticking() -> AsyncIterator[list[int]]:
    """A task that counts the turns of the loop."""
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(len(ticks))
            await asyncio.sleep(0)

    task = asyncio.create_task(tick())
    await asyncio.sleep(0)
    ticks.clear()
    try:
        yield ticks
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.promise("Speed", "a loop of sends never starves the event loop")
async def test_a_loop_of_sends_that_never_waits_lets_other_tasks_run():
    async with producing(topics={"t": 4}) as (cluster, producer):
        await producer.partitions_for("t")
        async with ticking() as ticks:
            for number in range(20_000):
                await producer.send("t", b"%d" % number)
            ticked = len(ticks)

        assert ticked >= 8
        assert len(values(cluster)) > 0, "records are sent meanwhile"
        await within(2, producer.flush())
        assert len(values(cluster)) == 20_000


@pytest.mark.promise("Speed", "a loop of sends never starves the event loop")
async def test_a_loop_of_large_sends_lets_other_tasks_run_more_often():
    async with producing() as (_, producer):
        await producer.partitions_for("t")
        value = bytes(100_000)
        async with ticking() as ticks:
            for _ in range(100):
                await producer.send("t", value)
            ticked = len(ticks)

        assert ticked >= 8
        await within(2, producer.flush())


async def test_a_loop_of_sends_with_a_serializer_lets_other_tasks_run():
    async with producing(value_serializer=lambda value: value) as (_, producer):
        await producer.partitions_for("t")
        async with ticking() as ticks:
            for number in range(10_000):
                await producer.send("t", b"%d" % number)
            ticked = len(ticks)

        assert ticked >= 4
        await within(2, producer.flush())


# --------------------------------------------------------------------------------------------------- order


@pytest.mark.promise("Accumulator, sender, connections", "order is kept across retries and leader moves")
async def test_order_of_each_key_survives_retries_drops_and_leader_moves():
    chance = random.Random(11)
    async with producing(brokers=3, topics={"t": 3}, batch_size=150) as (cluster, producer):
        codes = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT]
        deliveries = []
        for number in range(200):
            key = b"key %d" % (number % 7)
            deliveries.append(await producer.send("t", b"%d" % number, key))
            if number % 8 == 0:
                partition = chance.randrange(3)
                kind = chance.randrange(4)
                if kind == 0:
                    cluster.faults.add(PRODUCE, error=chance.choice(codes), partition=partition)
                elif kind == 1:
                    cluster.faults.add(PRODUCE, drop_after_append=True, partition=partition)
                elif kind == 2:
                    cluster.faults.add(PRODUCE, drop_before=True, partition=partition)
                else:
                    cluster.move_leader("t", partition, chance.randrange(3))
                await asyncio.sleep(MS)
        found = await results(deliveries)

        assert not [end for end in found if isinstance(end, BaseException)]
        log = {}
        for record in cluster.records("t"):
            log.setdefault(record.key, []).append(int(record.value))
        assert log == {b"key %d" % key: list(range(key, 200, 7)) for key in range(7)}
        for number, metadata in enumerate(found):
            at = cluster.records("t", metadata.partition)[metadata.offset]
            assert int(at.value) == number, "each record is at the offset that was reported"


async def test_sends_that_wait_for_the_same_topic_keep_their_order():
    async with producing(cluster={"auto_create": False}) as (cluster, producer):
        tasks = [asyncio.create_task(producer.send("later", b"%d" % number)) for number in range(30)]
        await until(lambda: metadata_count(cluster) >= 2)
        cluster.create_topic("later", 1)

        deliveries = await within(1, asyncio.gather(*tasks))
        await results(deliveries)

        assert numbers(cluster, "later") == list(range(30))


# ----------------------------------------------------------------------------------- deliveries as futures


@pytest.mark.promise("Public API", "`asyncio.gather` works with deliveries")
async def test_gather_accepts_deliveries():
    async with producing() as (_, producer):
        deliveries = await send_numbers(producer, range(5))

        found = await within(1, asyncio.gather(*deliveries))

        assert [metadata.offset for metadata in found] == [0, 1, 2, 3, 4]


@pytest.mark.promise("Public API", "`asyncio.gather` works with deliveries")
async def test_gather_raises_the_error_of_a_delivery():
    async with producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        deliveries = await send_numbers(producer, range(5))

        with pytest.raises(DeliveryError):
            await within(1, asyncio.gather(*deliveries))


async def test_gather_with_return_exceptions_accepts_a_cancelled_delivery():
    async with producing(**LINGERING) as (_, producer):
        deliveries = await send_numbers(producer, range(3))
        deliveries[1].cancel()
        gathering = asyncio.gather(*deliveries, return_exceptions=True)

        await within(1, producer.flush())
        await within(0.5, asyncio.wait([gathering]))

        assert gathering.done()
        found = gathering.result()
        assert isinstance(found[1], asyncio.CancelledError)
        assert [found[0].offset, found[2].offset] == [0, 2]


@pytest.mark.promise("Public API", "`asyncio.gather` works with deliveries")
@pytest.mark.parametrize("return_exceptions", [False, True])
async def test_a_cancelled_gather_ends_and_the_records_are_sent(return_exceptions):
    async with producing(**LINGERING) as (cluster, producer):
        deliveries = await send_numbers(producer, range(3))

        async def gather() -> None:
            await asyncio.gather(*deliveries, return_exceptions=return_exceptions)

        gathering = asyncio.create_task(gather())
        await asyncio.sleep(0)
        gathering.cancel()
        await within(0.5, asyncio.wait([gathering]))

        assert gathering.done()
        assert gathering.cancelled()
        await within(1, producer.flush())
        assert numbers(cluster) == [0, 1, 2]


@pytest.mark.promise("Public API", "`asyncio.wait` and `as_completed` work with deliveries")
async def test_wait_accepts_deliveries():
    async with producing(topics={"t": 1, "u": 1}) as (cluster, producer):
        release = asyncio.Event()
        quick = await producer.send("t", b"v")
        await within(1, quick)
        cluster.faults.add(PRODUCE, hold=release)
        slow = await producer.send("u", b"v")

        done, pending = await asyncio.wait([quick, slow], return_when=asyncio.FIRST_COMPLETED)
        assert (done, pending) == ({quick}, {slow})
        release.set()
        done, pending = await within(1, asyncio.wait([quick, slow]))
        assert (done, pending) == ({quick, slow}, set())


@pytest.mark.promise("Public API", "`asyncio.wait` and `as_completed` work with deliveries")
async def test_as_completed_accepts_deliveries():
    async with producing() as (_, producer):
        deliveries = await send_numbers(producer, range(5))

        found = [(await within(1, earliest)).offset for earliest in asyncio.as_completed(deliveries)]

        assert sorted(found) == [0, 1, 2, 3, 4]


@pytest.mark.promise("Public API", "`asyncio.shield` works with deliveries")
async def test_shield_keeps_a_delivery_when_its_waiter_is_cancelled():
    async with producing(**LINGERING) as (_, producer):
        delivery = await producer.send("t", b"v")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(delivery), 10 * MS)

        assert not delivery.cancelled()
        await within(1, producer.flush())
        assert delivery.result().offset == 0


@pytest.mark.promise("Public API", "`asyncio.wait_for` works with deliveries")
async def test_wait_for_a_delivery_that_takes_too_long_cancels_only_the_waiter():
    async with producing(**LINGERING) as (cluster, producer):
        delivery = await producer.send("t", b"v")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(delivery, 10 * MS)

        assert delivery.cancelled()
        await within(1, producer.flush())
        assert values(cluster) == [b"v"]


@pytest.mark.promise("Public API", "a delivery is an asyncio future that can be awaited")
async def test_a_delivery_may_be_awaited_by_many_and_again():
    async with producing() as (_, producer):
        delivery = await producer.send("t", b"v")
        waiting = [asyncio.create_task(within(1, delivery)) for _ in range(5)]

        found = await asyncio.gather(*waiting)

        assert {metadata.offset for metadata in found} == {0}
        assert (await delivery).offset == 0
        assert asyncio.isfuture(delivery)
        assert asyncio.ensure_future(delivery) is delivery


@pytest.mark.promise("Public API", "`asyncio.shield` works with deliveries")
async def test_a_cancelled_waiter_cancels_the_delivery_for_the_others_like_any_future_unless_it_is_shielded():
    async with producing(**LINGERING) as (cluster, producer):
        shared, shielded = await producer.send("t", b"0"), await producer.send("t", b"1")
        future = asyncio.get_running_loop().create_future()
        for waited_for in (shared, future):
            waiting = [asyncio.ensure_future(within(3, waited_for)) for _ in range(2)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(error) for error in ended} == {asyncio.CancelledError}
            assert waited_for.cancelled()

        waiting = [asyncio.ensure_future(within(3, asyncio.shield(shielded))) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await within(1, producer.flush())

        assert (await waiting[1]).offset == 1
        assert waiting[0].cancelled()
        assert values(cluster) == [b"0", b"1"], "the records of both are sent"


@pytest.mark.promise("Public API", "`add_done_callback` works as with any future")
async def test_a_callback_may_send_flush_and_close():
    async with producing() as (cluster, producer):
        tasks = []

        async def go_on() -> None:
            await producer.send_and_wait("t", b"1")
            await producer.flush()
            await producer.close()

        delivery = await producer.send("t", b"0")
        delivery.add_done_callback(lambda _: tasks.append(asyncio.create_task(go_on())))
        await within(1, delivery)
        await until(lambda: tasks)
        await within(1, tasks[0])

        assert numbers(cluster) == [0, 1]


async def test_the_traceback_of_an_error_awaited_many_times_does_not_grow():
    async with producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        delivery = await producer.send("t", b"v")
        depths = []
        for _ in range(5):
            error = await error_of(delivery)
            depth, traceback = 0, error.__traceback__
            while traceback is not None:
                depth, traceback = depth + 1, traceback.tb_next
            depths.append(depth)

        assert len(set(depths[1:])) == 1


# ----------------------------------------------------------------------------------- unretrieved failures


def unlooked(caplog) -> list[str]:
    return [line for line in log_lines(caplog) if "no caller has looked" in line]


async def test_unretrieved_failures_are_logged_once_with_their_count(caplog):
    async with producing(linger_ms=10) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, count=3)
        for _ in range(3):
            for number in range(5):
                await producer.send("t", b"%d" % number)
            await producer.flush()
        gc.collect()

        report = await producer.close()

        assert len(unlooked(caplog)) == 1, "once for each topic and error"
        assert unlooked(caplog)[0].startswith("15 records for topic t ")
        assert report.unretrieved == {("t", "DeliveryError"): 15}


@in_virtual_time
async def test_failures_of_several_batches_are_logged_together_and_counted_by_metrics(caplog, monkeypatch):
    monkeypatch.setattr(unretrieved, "GATHERING", 400 * MS)
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.partitions_for("t")
        for count in (50, 1):
            caplog.clear()
            cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, count=count)
            await send_numbers(producer, range(count))
            await producer.flush()
            await until(lambda: unlooked(caplog))

            assert len(unlooked(caplog)) == 1
            start = "50 records for topic t were not" if count == 50 else "1 record for topic t was not"
            assert unlooked(caplog)[0].startswith(start)
        assert producer.metrics().records_unretrieved == 51


async def test_failures_discarded_after_close_are_logged_together(caplog):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        deliveries = await send_numbers(producer, range(10))
        report = await producer.close(timeout=0)
        assert (report.unknown + report.failed, report.unretrieved) == (10, {})

        del deliveries
        await until(lambda: unlooked(caplog))

        assert [line[:30] for line in unlooked(caplog)] == ["10 records for topic t were no"]


async def test_retrieved_failures_are_not_logged(caplog):
    async with producing(linger_ms=10) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        deliveries = await send_numbers(producer, range(3))
        await results(deliveries[:1])
        assert deliveries[1].exception() is not None
        with pytest.raises(DeliveryError):
            deliveries[2].result()
        del deliveries
        gc.collect()

        report = await producer.close()

        assert unlooked(caplog) == []
        assert report.unretrieved == {}


@in_virtual_time
async def test_each_topic_and_error_is_logged_separately_and_cancelled_deliveries_are_not(caplog):
    settings = {"request_timeout_ms": 20_000 * MS, "delivery_timeout_ms": 60_000 * MS}
    async with producing(topics={"t": 1, "u": 1}, **settings) as (cluster, producer):
        await producer.partitions_for("t")
        await producer.partitions_for("u")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, topic="t")
        await producer.send("t", b"v")
        await producer.flush()
        cluster.faults.add(PRODUCE, drop_before=True, count=1000)
        await producer.send("u", b"v")
        (await producer.send("u", b"v")).cancel()
        await within(1, producer.flush())
        gc.collect()

        report = await producer.close()

        assert report.unretrieved == {("t", "DeliveryError"): 1, ("u", "DeliveryTimeoutError"): 1}
        assert len(unlooked(caplog)) == 2


async def test_deliveries_discarded_before_the_failure_are_counted_too(caplog):
    async with producing(linger_ms=20) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        for number in range(3):
            await producer.send("t", b"%d" % number)
        kept = await producer.send("t", b"3")
        await producer.flush()
        assert isinstance(kept.exception(), DeliveryError)
        del kept
        gc.collect()

        report = await producer.close()

        assert report.unretrieved == {("t", "DeliveryError"): 3}
        assert unlooked(caplog)[0].startswith("3 records for topic t ")


@pytest.mark.parametrize("call", ["send", "try_send"])
@pytest.mark.parametrize("is_sent", [False, True])
@in_virtual_time
async def test_a_discarded_delivery_that_ended_by_its_own_timeout_is_counted_too(is_sent, call, caplog):
    async with producing(request_timeout_ms=20_000, delivery_timeout_ms=60_000) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        if is_sent:
            held = cluster.faults.add(PRODUCE, hold=release)
        else:
            await cluster.stop_broker(0)
        for _ in range(2):
            made = getattr(producer, call)("t", b"dropped", timeout=1)
            if call == "send":
                await made
        del made
        kept = await producer.send("t", b"retrieved", timeout=1)
        if is_sent:
            await held.reached()
        assert isinstance(await error_of(kept, 5), DeliveryTimeoutError)
        del kept
        release.set()
        await until(lambda: producer.metrics().records_buffered == 0)
        gc.collect()

        report = await producer.close()

        assert report.unretrieved == {("t", "DeliveryTimeoutError"): 2}
        assert unlooked(caplog)[0].startswith("2 records for topic t ")


async def test_unretrieved_deliveries_without_a_failure_are_not_logged(caplog):
    async with producing() as (_, producer):
        for number in range(5):
            await producer.send("t", b"%d" % number)

        report = await producer.close()

        assert report.delivered == 5
        assert report.unretrieved == {}
        assert unlooked(caplog) == []
