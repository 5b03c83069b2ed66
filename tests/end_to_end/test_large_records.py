"""Records of many MiB: a thread copies them, so that no turn of the loop is long, and all guarantees still hold."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from aioproducer import Producer
from aioproducer.errors import DeliveryError
from aioproducer.records._record_path import LARGE_RECORD
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS
from tests.support.producing import producing, quick_producer, results, until, values, within

HUNDRED_MIB = 100 * 1024 * 1024 - 4096
"""The largest value, in bytes, whose request a broker accepts (socket.request.max.bytes)."""
LONGEST_TURN = 0.05
"""The longest permitted turn, in CPU seconds of the loop's thread."""
LARGE_TOO = {
    "max_request_size": 8 * LARGE_RECORD,
    "buffer_memory": 64 * LARGE_RECORD,
    "request_timeout_ms": 5_000_000 * MS,
    "delivery_timeout_ms": 20_000_000 * MS,
}
TAKES_LARGE = {"max_message_bytes": 8 * LARGE_RECORD}


# --------------------------------------------------------------------------------------------- one turn of the loop


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A cluster in a separate process, so that its work does not load the loop."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    yield ours.recv()
    ours.send(None)
    process.join()


def _serve(pipe: Connection) -> None:
    async def main() -> None:
        async with EmbeddedCluster(max_message_bytes=2 * HUNDRED_MIB) as cluster:
            pipe.send(cluster.bootstrap_servers)
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_reader(pipe.fileno(), stopped.set)
            await stopped.wait()

    asyncio.run(main())


@pytest.mark.promise(
    "Records",
    "a value of many MiB does not hold up the loop: a thread copies it (`bytes` only) before its batch is "
    "sealed",
)
@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_a_record_of_100_mib_does_not_block_the_loop(servers, topic, compression):
    value = random.Random(1).randbytes(1024 * 1024) * 100
    value = value[:HUNDRED_MIB]
    async with quick_producer(
        servers,
        max_request_size=2 * HUNDRED_MIB,
        buffer_memory=2 * HUNDRED_MIB,
        compression_type=compression,
        request_timeout_ms=20_000_000 * MS,
        delivery_timeout_ms=60_000_000 * MS,
    ) as producer:
        await producer.send_and_wait(topic, b"first")

        # Other work on the machine can make page faults slower for a while.
        longest = [await _longest_turn(producer, topic, value)]
        while min(longest) >= LONGEST_TURN and len(longest) < 3:
            longest.append(await _longest_turn(producer, topic, value))

    assert min(longest) < LONGEST_TURN, longest


async def _longest_turn(producer: Producer, topic: str, value: bytes) -> float:
    """Return the CPU seconds of the longest turn between the call of send and the acknowledgement."""
    loop = asyncio.get_running_loop()
    longest = 0.0
    last = time.thread_time()

    def turn() -> None:
        nonlocal longest, last, again
        now = time.thread_time()
        longest = max(longest, now - last)
        last = now
        again = loop.call_soon(turn)

    again = loop.call_soon(turn)
    await within(20, producer.send_and_wait(topic, value))
    await asyncio.sleep(0)
    again.cancel()
    return longest


# --------------------------------------------------------------------------------------------- the same guarantees


def large(number: int) -> bytes:
    return random.Random(number).randbytes(LARGE_RECORD + number)


@pytest.mark.promise(
    "Records",
    "a value of many MiB does not hold up the loop: a thread copies it (`bytes` only) before its batch is "
    "sealed",
)
@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("batch_size", [16_384, 4 * LARGE_RECORD])
async def test_large_records_keep_their_order_among_the_others(batch_size, compression):
    sent = [large(1), b"a", b"b", large(2), large(3), b"c"]
    async with producing(
        cluster=TAKES_LARGE, batch_size=batch_size, compression_type=compression, linger_ms=1, **LARGE_TOO
    ) as (cluster, producer):
        deliveries = [
            await producer.send("t", value, key=b"k", headers=[("h", value[:9])], partition=0)
            for value in sent
        ]
        found = await results(deliveries)

        assert [metadata.offset for metadata in found] == list(range(len(sent)))
        assert values(cluster) == sent
        assert [record.headers for record in cluster.records("t")] == [(("h", value[:9]),) for value in sent]


@pytest.mark.promise(
    "Records",
    "a value of many MiB does not hold up the loop: a thread copies it (`bytes` only) before its batch is "
    "sealed",
)
async def test_a_mutable_value_is_copied_before_send_returns():
    value = bytearray(large(1))
    before = bytes(value)
    async with producing(cluster=TAKES_LARGE, **LARGE_TOO) as (cluster, producer):
        delivery = await producer.send("t", value)
        value[:] = bytes(len(value))
        await within(5, delivery)

        assert values(cluster) == [before]


async def test_without_a_thread_the_loop_copies(monkeypatch):
    async with producing(cluster=TAKES_LARGE, **LARGE_TOO) as (cluster, producer):

        def no_thread(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(producer._compressor.executor, "submit", no_thread)
        await within(5, producer.send_and_wait("t", large(1)))

        assert values(cluster) == [large(1)]


@pytest.mark.promise(
    "Records",
    "a value of many MiB does not hold up the loop: a thread copies it (`bytes` only) before its batch is "
    "sealed",
)
async def test_a_thread_that_fails_before_it_has_copied_loses_no_byte(monkeypatch, caplog):
    async with producing(cluster=TAKES_LARGE, compression_type="lz4", **LARGE_TOO) as (cluster, producer):

        def fails(*_: object) -> None:
            raise MemoryError

        submit = producer._compressor.executor.submit
        monkeypatch.setattr(producer._compressor.executor, "submit", lambda *_: submit(fails))
        await within(5, producer.send_and_wait("t", large(1)))

        assert values(cluster) == [large(1)]
    assert "because compressing in a thread failed" in caplog.text


async def test_a_large_record_that_ends_while_a_thread_has_it_is_not_sent():
    may_go_on = threading.Event()
    async with producing(
        cluster=TAKES_LARGE,
        **{**LARGE_TOO, "delivery_timeout_ms": 300_000 * MS, "request_timeout_ms": 250_000 * MS},
    ) as (cluster, producer):
        for _ in range(producer._compressor.executor.most):
            producer._compressor.executor.submit(may_go_on.wait)
        delivery = await producer.send("t", large(1))
        with pytest.raises(DeliveryError):
            await within(5, delivery)
        assert producer._accumulator.memory.available == producer._accumulator.memory.total

        may_go_on.set()
        await within(5, producer.send_and_wait("t", b"next"))

        assert values(cluster) == [b"next"]


async def test_a_large_record_waits_for_its_memory_and_is_not_overtaken():
    async with producing(cluster=TAKES_LARGE, **{**LARGE_TOO, "buffer_memory": LARGE_RECORD + 1000}) as (
        cluster,
        producer,
    ):
        sends = [asyncio.create_task(producer.send("t", value)) for value in (large(1), large(2), b"small")]
        await until(lambda: producer._accumulator.memory.waiters == 2)

        await results([await within(5, send) for send in sends])

        assert values(cluster) == [large(1), large(2), b"small"]
