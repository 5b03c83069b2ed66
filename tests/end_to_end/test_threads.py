"""Threads other than the loop's: they compress batches, read and discard deliveries, and may have their own loops. On
a free-threaded Python they run at the same time as the loop's thread."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aioproducer import blocking
from aioproducer.errors import DeliveryError
from aioproducer.protocol.recordbatch import HEADER_SIZE
from aioproducer.records._record_path import BatchState
from tests.support.accumulator_bench import Bench
from tests.support.compiled_path import new_batch, sealed
from tests.support.docs_runner import Docs
from tests.support.oracle import OracleRecord, encode_records

THREADS = 4
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
ROUNDS = 200 if IS_FREE_THREADED else 10
"""Few with the GIL, because a spinning thread then keeps the others from running."""


@pytest.fixture
def together() -> Iterator[Callable[[Callable[[int], object]], list[object]]]:
    """Runs a function in several threads that start at the same time, and passes it the thread's number."""
    with ThreadPoolExecutor(THREADS) as threads:

        def run(function: Callable[[int], object]) -> list[object]:
            barrier = threading.Barrier(THREADS)

            def begin(number: int) -> object:
                barrier.wait(60)
                return function(number)

            return list(threads.map(begin, range(THREADS)))

        yield run


@pytest.fixture(scope="module")
def docs() -> Iterator[Docs]:
    """A cluster in its own thread."""
    with Docs() as docs:
        yield docs


@pytest.mark.promise(
    "Packaging", "free-threaded Python: the GIL stays off, and state that several threads share is guarded"
)
def test_nothing_that_the_package_imports_turns_the_gil_on():
    imports = (
        "import aioproducer.producer, aioproducer.protocol.compression; "
        "import aioproducer.blocking, aioproducer.security.tls, sys; "
    )

    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            imports + "print(getattr(sys, '_is_gil_enabled', lambda: True)())",
        ],
        env={name: value for name, value in os.environ.items() if name != "PYTHON_GIL"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.stdout.strip(), done.stderr) == (str(not IS_FREE_THREADED), "")


@pytest.mark.promise(
    "Packaging", "free-threaded Python: the GIL stays off, and state that several threads share is guarded"
)
def test_batches_of_several_threads_share_no_memory(together):
    # Buffers of 16 to 256 KiB are kept and reused for the next batch.
    records = [[OracleRecord(1000, None, bytes([number]) * 20_000, [])] for number in range(THREADS)]
    expected = [encode_records(some) for some in records]

    def work(number: int) -> int:
        wrong = 0
        for _ in range(10 * ROUNDS):
            batches = [new_batch(capacity=capacity) for capacity in (64, 20_000, 100_000)]
            for batch in batches:
                batch.try_append(records[number][0].value, None, 1000, None)
            wrong += sum(sealed(batch)[HEADER_SIZE:] != expected[number] for batch in batches)
        return wrong

    assert together(work) == [0] * THREADS


@pytest.mark.promise(
    "Packaging", "free-threaded Python: the GIL stays off, and state that several threads share is guarded"
)
def test_deliveries_that_several_threads_discard_are_all_counted(together):
    batch = new_batch()
    batch.try_append(b"value", None, 1000, None)

    def work(number: int) -> None:
        for _ in range(20_000):
            batch.delivery(0)

    together(work)

    assert batch.unretrieved == THREADS * 20_000


@pytest.mark.promise(
    "Packaging", "free-threaded Python: the GIL stays off, and state that several threads share is guarded"
)
async def test_failed_batches_that_several_threads_discard_are_all_counted(together):
    bench = Bench([0])

    def work(number: int) -> None:
        for _ in range(100 * ROUNDS):
            bench.accumulator.note_unsent("orders", [DeliveryError("refused")])

    await asyncio.to_thread(together, work)

    assert bench.accumulator.unretrieved.counts == {("orders", "DeliveryError"): THREADS * 100 * ROUNDS}


@pytest.mark.promise(
    "Packaging", "free-threaded Python: the GIL stays off, and state that several threads share is guarded"
)
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_delivery_read_by_several_threads_follows_its_record_once(together, depth):
    loop = asyncio.get_running_loop()

    def looked_at(number: int) -> object:
        if number > 0:
            while not shared.done():
                pass
            return shared.result().offset
        batch, offset = whole, 0
        while batch.record_count > 2:
            half = batch.record_count // 2
            parts = [
                (0, batch.part(loop, 0, half, {})),
                (half, batch.part(loop, half, batch.record_count, {})),
            ]
            parts[0][1].succeed(offset, -1, -1)
            offset += half
            batch.replace_with(parts)
            batch = parts[1][1]
        batch.succeed(offset, -1, -1)
        return shared.result().offset

    for _ in range(ROUNDS):
        count = 2 ** (depth + 1)
        whole = new_batch(loop)
        for _ in range(count):
            whole.try_append(b"value", None, 1000, None)
        whole.close()
        shared = whole.delivery(count - 1)

        assert await asyncio.to_thread(together, looked_at) == [count - 1] * THREADS


@pytest.mark.promise(
    "Packaging", "free-threaded Python: the GIL stays off, and state that several threads share is guarded"
)
async def test_a_batch_that_ends_while_threads_complete_it_ends_once(together):
    loop = asyncio.get_running_loop()

    def work(number: int) -> object:
        if number > 0:
            while batch.state is not BatchState.DONE:
                batch.complete_records()
        else:
            batch.give_up(DeliveryError("refused"))
        return str(shared.exception())

    for _ in range(ROUNDS):
        batch = new_batch(loop, capacity=20_000)
        batch.try_append(b"value" * 1000, None, 1000, None)
        batch.close()
        shared = batch.delivery(0)

        assert await asyncio.to_thread(together, work) == ["refused"] * THREADS


@pytest.mark.promise(
    "Packaging", "free-threaded Python: the GIL stays off, and state that several threads share is guarded"
)
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_threads_that_share_producers_find_each_record_where_its_delivery_says(docs, topic, together, codec):
    docs.topic(topic, 3)
    settings = {"linger_ms": 1, "batch_size": 32 * 1024, "compression_type": codec}
    servers = docs.cluster.bootstrap_servers
    with blocking.Producer(servers, **settings) as one, blocking.Producer(servers, **settings) as other:

        def work(number: int) -> list[tuple[int, int]]:
            deliveries = [
                (one, other)[index % 2].send(topic, b"%d:%d:" % (number, index) + b"x" * 500)
                for index in range(1000)
            ]
            while not all(delivery.done() for delivery in deliveries[::100]):
                pass
            found = [delivery.result() for delivery in deliveries]
            return [(place.partition, place.offset) for place in found]

        places = together(work)

    log = {
        (partition, record.offset): record.value
        for partition in range(3)
        for record in docs.records(topic, partition)
    }
    assert len(log) == THREADS * 1000
    for number, found in enumerate(places):
        assert [log[place][:-500] for place in found] == [
            b"%d:%d:" % (number, index) for index in range(1000)
        ]
