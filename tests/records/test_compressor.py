"""Compression of batches: in the loop, for up to a millisecond per turn, or in threads that take all waiting
batches."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import pytest

from aioproducer.protocol.compression import LEVELS, Codec, bytes_per_millisecond
from aioproducer.records import compressor
from aioproducer.records.batch import ProducerBatch
from aioproducer.records.compressor import processor_count
from tests.support.accumulator_bench import Bench, HeldExecutor, turns
from tests.support.producing import producing, values, within

KIB = 1024
BATCH = 64 * KIB
VALUE = b"0123456789abcdef" * (BATCH // 16)
"""A value that needs a batch of its own: with the overhead of a record, it exceeds the batch size."""


def bench_with(processors: int, partitions: int = 32, codec: str = "lz4", **settings: object) -> Bench:
    return Bench(
        [0] * partitions, processors, batch_size=BATCH, compression_type=codec, linger_ms=0, **settings
    )


def fill(bench: Bench, count: int, size: int = BATCH - 1000) -> list[ProducerBatch]:
    """Send a large record to each of `count` partitions in one turn of the loop, and drain. Return the batches
    that stay queued because threads compress them."""
    for partition in range(count):
        bench.send(partition, VALUE[:size])
    bench.drain()
    return [queue.batches[0] for queue in bench.topic.queues[:count] if queue.batches]


async def test_with_two_processors_the_loop_compresses_for_a_millisecond_per_turn_and_threads_do_the_rest():
    bench = bench_with(processors=2)
    in_a_turn = bytes_per_millisecond(Codec.LZ4) // BATCH

    left = fill(bench, 20)

    assert len(left) == 20 - in_a_turn - 1, "the last batch of a turn may exceed the millisecond"
    assert all(batch.is_being_compressed for batch in left)

    await turns()
    assert not bench.accumulator.compressor.turn_is_full
    bench.send(31, VALUE[: BATCH - 1000])
    assert [batch.codec for batch in bench.drain()] == [Codec.LZ4], "in a new turn, the loop compresses again"


@pytest.mark.promise("Records", "large batches are compressed in a thread")
@pytest.mark.parametrize(
    ("codec", "level", "size", "is_held"),
    [
        ("lz4", None, 50 * KIB, False),
        ("lz4", 9, 50 * KIB, True),
        ("zstd", None, 50 * KIB, False),
        ("zstd", 22, 4 * KIB, True),
        ("gzip", 3, 50 * KIB, False),
        ("gzip", 4, 50 * KIB, True),
        ("snappy", None, 50 * KIB, False),
    ],
)
async def test_a_batch_that_takes_over_half_a_millisecond_is_compressed_in_a_thread_on_any_machine(
    codec, level, size, is_held
):
    bench = bench_with(2, codec=codec, **({} if level is None else {"compression_level": level}))

    left = fill(bench, 1, size)

    assert [batch.is_being_compressed for batch in left] == [True] * is_held


@pytest.mark.parametrize(("size", "is_held"), [(7 * KIB, False), (9 * KIB, True)])
async def test_with_more_processors_all_but_small_batches_are_compressed_in_threads(size, is_held):
    bench = bench_with(processors=3)

    assert bool(fill(bench, 1, size)) is is_held


async def test_a_thread_takes_all_waiting_batches_and_returns_them_in_groups_for_one_request(monkeypatch):
    bench = bench_with(processors=3)
    bench.accumulator.compressor._threads = 1
    told: list[Callable[[], None]] = []
    monkeypatch.setattr(bench.loop, "call_soon_threadsafe", told.append, raising=True)
    batches = fill(bench, 20)
    assert len(batches) == 20
    assert len(bench.executor._jobs) == 1

    bench.executor.work()

    assert len(told) == 2, "one call after each half megabyte; the executor reports the end of the job itself"
    assert all(batch.is_being_compressed for batch in batches), "only the loop takes the results over"
    monkeypatch.undo()
    told[0]()
    assert not any(batch.is_being_compressed for batch in batches)
    assert bench.drain_all() == batches


async def test_a_batch_that_arrives_after_the_last_check_of_a_thread_gets_its_own_thread():
    bench = bench_with(processors=3)
    bench.accumulator.compressor._threads = 1
    [first] = fill(bench, 1)
    bench.executor.work()  # the loop does not know yet that the thread has ended
    bench.send(1, VALUE[: BATCH - 1000])
    bench.drain()
    second = bench.topic.queues[1].batches[0]
    assert second.is_being_compressed
    assert not bench.executor._jobs

    await turns()
    bench.executor.work()
    await turns()

    assert not second.is_being_compressed
    assert second.codec is Codec.LZ4
    assert bench.drain_all() == [first, second]


@pytest.mark.parametrize("fails", ["when it is started", "when it works"])
async def test_without_threads_the_loop_compresses_the_waiting_batches(monkeypatch, caplog, fails):
    bench = bench_with(processors=3)
    executor = HeldExecutor()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    if fails == "when it is started":
        monkeypatch.setattr(bench.executor, "submit", no_thread)
    else:
        submit = executor.submit
        monkeypatch.setattr(bench.executor, "submit", lambda *_: submit(no_thread))

    fill(bench, 3)
    executor.work()
    await turns()

    batches = [batch for queue in bench.topic.queues for batch in queue.batches] or bench.drain_all()
    assert not any(batch.is_being_compressed for batch in batches)
    assert "can't start new thread" in caplog.text


async def test_a_loop_of_sends_yields_when_its_turn_has_compressed_for_a_millisecond(monkeypatch):
    monkeypatch.setattr(compressor, "processor_count", lambda: 2)
    settings = {"compression_type": "zstd", "batch_size": BATCH, "linger_ms": 60_000}
    async with producing(topics={"t": 1}, **settings, delivery_timeout_ms=120_000) as (cluster, producer):
        await producer.send_and_wait("t", b"first")
        turns_of_others = 0

        async def others() -> None:
            nonlocal turns_of_others
            while True:
                turns_of_others += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        value = os.urandom(12 * KIB)  # a batch has room for five
        sent = [await producer.send("t", value) for _ in range(60)]
        other.cancel()

        batches = 60 // 5
        in_a_turn = bytes_per_millisecond(Codec.ZSTD) // BATCH
        assert turns_of_others >= batches // (in_a_turn + 1)
        assert not producer._compressor.executor._threads, "no thread was needed"
        await within(5, producer.flush())
        assert [(await delivery).offset for delivery in sent] == list(range(1, 61))
        assert values(cluster)[1:] == [value] * 60


async def test_after_close_no_thread_continues(monkeypatch):
    bench = bench_with(processors=3)
    fill(bench, 3)

    bench.accumulator.compressor.executor.shutdown = lambda **_: None
    await bench.accumulator.compressor.close()
    compressed: list[object] = []
    bench.accumulator.compressor._compress = compressed.append
    bench.executor.work()

    assert compressed == []


def test_every_level_has_a_pace_and_higher_levels_are_not_faster():
    for codec, (lowest, highest) in LEVELS.items():
        paces = [bytes_per_millisecond(codec, level) for level in range(max(lowest, -10), highest + 1)]
        assert paces == sorted(paces, reverse=True)
        assert paces[-1] > 0
    assert bytes_per_millisecond(Codec.GZIP, -1) == bytes_per_millisecond(Codec.GZIP)
    assert bytes_per_millisecond(Codec.SNAPPY) > bytes_per_millisecond(Codec.ZSTD) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process can't be kept to some processors")
def test_only_processors_of_this_process_are_counted():
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        assert processor_count() == 1
    finally:
        os.sched_setaffinity(0, usable)
    assert processor_count() == len(usable)
