"""What may happen while a record is on its way: its topic changes, other code runs in between, its neighbours end."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from typing import Any

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.errors import UnknownPartitionError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from tests.conftest import MS
from tests.producing import ONE_BATCH_PER_RECORD, error_of, producing, results, until, within

PRODUCE = ApiKey.PRODUCE


async def test_the_batch_behind_one_whose_records_all_timed_out_is_sent_at_once():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=hold)
        first = await producer.send("t", b"first")
        await cluster.wait_for_requests(PRODUCE)
        gone = await producer.send("t", b"gone", timeout=20 * MS)
        last = await producer.send("t", b"last")
        await until(gone.done)

        hold.set()

        assert (await within(1, first)).offset == 0
        assert (await within(1, last)).offset == 1
        assert [record.value for record in cluster.records("t")] == [b"first", b"last"]


async def test_a_partition_that_vanished_while_a_send_waited_is_refused():
    gate, started = asyncio.Event(), asyncio.Event()

    async def slow(value: bytes) -> bytes:
        if value == b"slow":
            started.set()
            await gate.wait()
        return value

    async with producing(topics={"t": 40}, value_serializer=slow) as (cluster, producer):
        await producer.send_and_wait("t", b"0", partition=0)
        sending = asyncio.ensure_future(producer.send("t", b"slow", partition=39))
        await started.wait()
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        producer._metadata.request_update()
        await until(lambda: len(producer._accumulator.topics["t"].queues) == 1)

        gate.set()

        assert isinstance(await error_of(sending), UnknownPartitionError)


async def test_a_failed_delivery_in_a_local_variable_does_not_keep_the_function_alive():
    class Local:
        pass

    alive: weakref.WeakSet[Local] = weakref.WeakSet()

    async def use(producer: Any) -> None:
        local = Local()
        alive.add(local)
        delivery = await producer.send("t", b"x")
        try:
            await delivery
        except DeliveryError:
            return
        raise AssertionError("the record should have been refused")

    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, count=1000)
        for _ in range(20):
            await use(producer)
        gc.collect()

        assert len(alive) <= 1, "at most the last one, but not one for each failed delivery"


async def test_code_that_runs_while_a_batch_is_opened_may_append_to_the_same_partition():
    async with producing(linger_ms=0, batch_size=4096) as (cluster, producer):
        await producer.send_and_wait("t", b"first")
        accumulator = producer._accumulator
        enqueue = accumulator._enqueue
        inner: list[Any] = []

        def enqueue_and_append(queue: Any, batch: Any) -> None:
            # Stands for the collector or a signal handler, which may run Python code at any allocation.
            enqueue(queue, batch)
            if not inner:
                inner.append(None)
                inner[0] = producer.try_send("t", b"y" * 3990)

        accumulator._enqueue = enqueue_and_append
        outer = await producer.send("t", b"z" * 100)

        assert sorted([(await within(1, outer)).offset, (await within(1, inner[0])).offset]) == [1, 2]
        values = [record.value for record in cluster.records("t")]
        assert sorted(map(len, values)) == [5, 100, 3990]


@pytest.mark.parametrize("acks", ["all", 0])
async def test_resets_under_load_cost_a_retry_and_never_the_producer(acks):
    settings = {"acks": acks, "request_timeout_ms": 3000, "delivery_timeout_ms": 10_000}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"first")
        deliveries = []
        resets = 0
        while resets < 10:
            deliveries.append(await producer.send("t", b"%d" % len(deliveries)))
            await asyncio.sleep(0)
            if len(deliveries) % 50 == 0:
                # A reset, not a close in good order: the transport loses its socket before the reader hears of it.
                for writer in list(cluster._brokers[0]._connections.values()):
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    resets += 1

        outcomes = await results(deliveries, 10)

        assert repr(producer).startswith("<Producer running")
        if acks == "all":
            assert [record.value for record in cluster.records("t")][1:] == [
                b"%d" % n for n in range(len(deliveries))
            ]
        else:
            failed = [error for error in outcomes if isinstance(error, DeliveryError)]
            assert all(error.outcome is Outcome.UNKNOWN for error in failed)
