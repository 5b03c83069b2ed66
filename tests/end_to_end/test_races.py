"""Events during the life of a record: its topic changes, other code runs in between, or neighbouring records end."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from typing import Any

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.cluster import LeaderHint
from aioproducer.errors import UnknownPartitionError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import MetadataResponse
from aioproducer.sending.lifecycle import _task_ended
from tests.conftest import MS, in_virtual_time
from tests.support.merging import merged
from tests.support.producing import ONE_BATCH_PER_RECORD, error_of, producing, results, until, within

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


async def test_a_partition_that_vanished_while_a_send_waited_is_rejected():
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
        raise AssertionError("the record should have been rejected")

    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, count=1000)
        for _ in range(20):
            await use(producer)
        gc.collect()

        assert len(alive) <= 1, "failed deliveries keep them alive"


async def test_code_that_runs_while_a_batch_is_opened_may_append_to_the_same_partition():
    async with producing(linger_ms=0, batch_size=4096) as (cluster, producer):
        await producer.send_and_wait("t", b"first")
        accumulator = producer._accumulator
        enqueue = accumulator._enqueue
        inner: list[Any] = []

        def enqueue_and_append(queue: Any, batch: Any) -> None:
            # Imitates the garbage collector or a signal handler, which may run Python code at any allocation.
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
                # A reset instead of an orderly close: the transport loses its socket before the reader notices it.
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


async def test_a_leader_missing_from_the_broker_list_does_not_block_the_loop():
    async with producing(brokers=2, topics={"t": 2}) as (_, producer):
        await producer.send_and_wait("t", b"0", partition=0)
        await producer.send_and_wait("t", b"1", partition=1)
        queue = producer._accumulator.topics["t"].queues[1]

        delivery = await producer.send("t", b"2", partition=1)
        producer._accumulator._set_leader(queue, 77)
        producer._accumulator._make_ready(queue)
        producer._sender._wake.set()
        await asyncio.sleep(0)  # a blocked loop would never return from here
        assert producer._accumulator._ready[77]

        await producer.partition_info("t")
        known = producer._metadata.cluster.partition("t", 1)
        hint = LeaderHint("t", 1, known.leader, known.leader_epoch + 1)
        assert producer._metadata.apply_leader_hints([hint], []), "the next snapshot names the leader"
        producer._sender._wake.set()
        assert (await within(2, delivery)).offset == 1


async def test_partitions_taken_over_from_an_older_snapshot_have_only_known_leaders():
    async with producing(brokers=2, topics={"t": 2}) as (cluster, producer):
        await producer.send_and_wait("t", b"0", partition=0)
        known = producer._metadata.cluster
        gone = cluster.leader("t", 1)
        left = known.nodes[1 - gone]
        info = known.topics["t"]
        answer = MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=left.node_id, host=left.host, port=left.port)
            ],
            topics=[
                MetadataResponse.MetadataResponseTopic(
                    name="t",
                    topic_id=info.topic_id,
                    partitions=[
                        MetadataResponse.MetadataResponsePartition(
                            partition_index=0,
                            leader_id=left.node_id,
                            leader_epoch=9,
                            replica_nodes=[],
                            isr_nodes=[],
                        )
                    ],
                )
            ],
        )

        after = merged(known, answer, ["t"])

        assert [partition.leader for partition in after.topics["t"].partitions] == [left.node_id, -1]


async def test_a_close_by_the_user_and_one_by_an_ended_task_are_the_same():
    async with producing() as (_, producer):
        broken = asyncio.ensure_future(_broken())
        await asyncio.wait([broken])
        closing = asyncio.ensure_future(producer.close(timeout=0))
        await asyncio.sleep(0)  # close() has begun, but its task has not

        _task_ended(weakref.ref(producer), broken)

        assert await within(2, closing) == await within(2, producer.close())


async def _broken() -> None:
    raise RuntimeError("a bug of ours")


async def test_a_throttle_that_ends_between_two_readings_of_the_clock_is_checked_again():
    async with producing() as (_, producer):
        await producer.send_and_wait("t", b"0")
        loop = asyncio.get_running_loop()
        entry = producer._brokers._entries[0]
        before = loop.time()
        entry.connection.throttled_until = before + 1e-6
        while loop.time() <= before + 1e-6:  # for a microsecond
            pass

        assert producer._brokers.retry_at(0, before) == before + 1e-6


async def test_a_record_that_was_withdrawn_is_counted_once():
    async with producing(linger_ms=3000) as (_, producer):
        await producer.partitions_for("t")
        gone = await producer.send("t", b"a", timeout=10 * MS)
        await producer.send("t", b"b")
        await until(gone.done)

        assert producer.metrics().records_buffered == 1
        assert (await producer.close(timeout=0)).failed == 2


@in_virtual_time
async def test_a_built_batch_takes_the_memory_of_its_records_and_no_more():
    async with producing(buffer_memory=5000, max_block_ms=500) as (cluster, producer):
        built = producer.create_batch()
        while built.size() < 4700:
            assert built.append(key=None, value=b"x" * 100)

        await within(1, await producer.send_batch(built, "t", partition=0))

        assert len(cluster.records("t")) == built.record_count()


async def test_batches_given_up_while_they_wait_for_the_compressing_thread_cause_no_compression_warning(
    caplog,
):
    async with producing(compression_type="gzip", compression_level=9) as (_, producer):
        for _ in range(20):
            await producer.send("t", b"0123456789" * 10_000)

        await producer.close(timeout=0)

    assert "could not be compressed" not in caplog.text


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_batch_that_can_not_be_compressed_is_sent_uncompressed(size, caplog):
    def fails(data: Any) -> bytes:
        raise MemoryError("no room for the codec")

    async with producing(compression_type="zstd") as (cluster, producer):
        producer._compressor._compress = fails

        assert (await within(1, producer.send_and_wait("t", b"v" * size))).offset == 0

        assert cluster.records("t")[0].value == b"v" * size
    assert "could not be compressed" in caplog.text


async def test_a_send_with_a_serializer_does_not_visit_every_partition():
    async with producing(topics={"t": 100}, value_serializer=bytes) as (_, producer):
        await producer.send_and_wait("t", b"0")
        assigned = []
        accumulator = producer._accumulator
        assign = accumulator._set_leaders
        accumulator._set_leaders = lambda topic, info: (assigned.append(topic), assign(topic, info))

        for _ in range(10):
            await producer.send("t", b"v")

        assert not assigned


async def test_requests_of_one_pass_are_written_together():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        wire = producer._brokers._entries[0].connection._wire
        hand_over, writes = wire._hand_over, []
        wire._hand_over = lambda segments: (writes.append(len(segments)), hand_over(segments))

        deliveries = [producer.try_send("t", b"%d" % number) for number in range(4)]
        offsets = [metadata.offset for metadata in await results(deliveries)]

        assert offsets == [1, 2, 3, 4]
        assert len(cluster.requests_of(PRODUCE)) == 5
        assert len(writes) == 1


@pytest.mark.parametrize("acks", ["all", 0])
async def test_held_back_requests_above_the_high_water_mark_block_nothing(acks):
    settings = {"max_request_size": 1_000_000, "acks": acks, "enable_idempotence": acks == "all"}
    async with producing(topics={"t": 8}, **settings) as (_, producer):
        await producer.partitions_for("t")

        deliveries = [producer.try_send("t", bytes(900_000), partition=number) for number in range(8)]

        assert len(await results(deliveries, 3)) == 8
        assert not [delivery for delivery in deliveries if delivery.exception() is not None]
