"""Numbering: which partitions may send a batch now, and under which numbers."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import DeliveryError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records.idempotence import LAST_EPOCH, LAST_SEQUENCE, ProducerIdentity
from aioproducer.sending.numbering import Numbering
from tests.support.producing import (
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    batch_headers,
    error_of,
    numbers,
    offsets,
    producing,
    results,
    send_numbers,
    until,
    within,
)


@pytest.mark.promise("Accumulator, sender, connections", "sequences wrap from 2^31-1 to 0")
async def test_sequences_wrap_from_their_last_number_to_zero():
    async with producing(batch_size=400) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        queue = producer._accumulator._queues["t", 0]
        queue.sequence.next_sequence = LAST_SEQUENCE - 6
        cluster.log("t", 0).producers.clear()
        cluster.faults.add(PRODUCE, drop_after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)

        deliveries = [await producer.send("t", b"%d" % number) for number in range(1, 30)]
        assert await offsets(deliveries) == list(range(1, 30))

        assert numbers(cluster) == list(range(30))
        headers = batch_headers(cluster)
        assert {header[0] for header in headers} == {0}
        expected = LAST_SEQUENCE - 6
        for _, first, count in headers[1:]:
            assert first == expected
            expected = (first + count) % (LAST_SEQUENCE + 1)
        assert expected < 100


@pytest.mark.promise("KIPs", "KIP-360: a new epoch without a new producer id")
async def test_after_the_last_epoch_a_new_producer_id_is_requested():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.partitions_for("t")
        await until(lambda: producer._sender._idempotence.identity)
        first = producer._sender._idempotence.identity.producer_id
        producer._sender._idempotence.use(ProducerIdentity(first, LAST_EPOCH))
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)

        found = await results(await send_numbers(producer, range(1, 6)))

        assert isinstance(found[0], DeliveryError)
        assert [metadata.offset for metadata in found[1:]] == [1, 2, 3, 4]
        assert numbers(cluster) == [0, 2, 3, 4, 5]
        header = cluster.batches("t", 0)[-1].header
        assert header.producer_id != first
        assert header.producer_epoch == 0


async def test_a_late_failure_of_an_old_epoch_does_not_disturb_the_new_one():
    """One of two partitions raises the epoch while the other still has a batch of the old epoch in flight."""
    async with producing(topics={"t": 2}, brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        for partition in (0, 1):
            await producer.send_and_wait("t", b"0", partition=partition)
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, partition=1, hold=release, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        slow = await send_numbers(producer, range(1, 4), partition=1)
        await within(1, held.reached())
        cluster.faults.add(PRODUCE, partition=0, error=ErrorCode.INVALID_RECORD)
        assert isinstance(await error_of(producer.send_and_wait("t", b"1", partition=0)), DeliveryError)
        await producer.send_and_wait("t", b"2", partition=0)
        release.set()

        assert await offsets(slow) == [1, 2, 3]
        assert await offsets(await send_numbers(producer, range(4, 8), partition=1)) == [4, 5, 6, 7]
        assert numbers(cluster, "t", 1) == list(range(8))
        assert numbers(cluster, "t", 0) == [0, 2]


async def test_a_partition_with_a_batch_in_flight_waits_for_the_first_acknowledgement():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        held = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        deliveries = await send_numbers(producer, range(3))
        await within(1, held.reached())
        numbering: Numbering = producer._sender._numbering
        queue = producer._accumulator._queues["t", 0]

        assert not numbering.prepare(queue), "a broker without state accepts any first number"

        held.hold.set()
        assert await offsets(deliveries) == [0, 1, 2]
        blocked = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        more = await send_numbers(producer, range(3, 8))
        await within(1, blocked.reached())
        await until(lambda: len(queue.in_flight) == 5)
        blocked.hold.set()
        assert await offsets(more) == [3, 4, 5, 6, 7]
