"""KIP-126: a batch that is too large for the broker is sent in two halves without loss, duplicates or reordering."""

from __future__ import annotations

import asyncio
import gc
import os
import random

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.errors import KafkaError
from aioproducer.protocol.error_codes import ErrorCode
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    PRODUCE,
    batch_headers,
    by_name,
    error_of,
    numbers,
    offsets,
    produce_count,
    producing,
    quick_producer,
    results,
    send_numbers,
    until,
    values,
    within,
)


def small_batches_only(cluster, most=200, topic="small"):
    cluster.create_topic(topic, 1, config={"max.message.bytes": str(most)})
    return topic


@pytest.mark.promise(
    "Error table",
    "a batch that is too large is sent in halves; nothing is lost, duplicated or reordered (KIP-126)",
)
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_a_batch_that_is_too_large_is_sent_in_parts(compression):
    async with producing(linger_ms=50, compression_type=compression) as (cluster, producer):
        topic = small_batches_only(cluster)
        await producer.partitions_for(topic)
        values = [f"{number:04d}{number**7 * 7919 % 10**30:030d}".encode() for number in range(40)]

        found = await offsets([await producer.send(topic, value) for value in values])

        assert found == list(range(40)), "each delivery has the offset of its record"
        assert [record.value for record in cluster.records(topic)] == values
        headers = batch_headers(cluster, topic)
        assert len(headers) > 2
        assert {epoch for epoch, _, _ in headers} == {0}, "the parts share the numbers of the whole"
        assert [first for _, first, _ in headers] == [
            sum(count for *_, count in headers[:n]) for n in range(len(headers))
        ]
        assert producer.metrics().splits >= len(headers) - 1
        assert producer.metrics().records_acked == 40


@pytest.mark.promise(
    "Error table",
    "a batch that is too large is sent in halves; nothing is lost, duplicated or reordered (KIP-126)",
)
async def test_one_record_that_is_too_large_fails_alone():
    async with producing(linger_ms=50) as (cluster, producer):
        topic = small_batches_only(cluster)
        await producer.partitions_for(topic)
        sizes = [10] * 10 + [500] + [10] * 10

        found = await results([await producer.send(topic, bytes([n]) * size) for n, size in enumerate(sizes)])

        failed = [n for n, result in enumerate(found) if isinstance(result, DeliveryError)]
        assert failed == [10]
        assert found[10].outcome is Outcome.NOT_PERSISTED
        assert "MESSAGE_TOO_LARGE" in str(found[10])
        assert "max.message.bytes" in str(found[10])
        assert [record.value[0] for record in cluster.records(topic)] == [n for n in range(21) if n != 10]
        assert [result.offset for result in found if not isinstance(result, DeliveryError)] == list(range(20))


@pytest.mark.promise(
    "Error table",
    "a batch that is too large is sent in halves; nothing is lost, duplicated or reordered (KIP-126)",
)
async def test_batches_in_flight_behind_it_follow_in_order():
    async with producing(batch_size=400, linger_ms=0) as (cluster, producer):
        topic = small_batches_only(cluster, 300)
        await producer.send_and_wait(topic, b"0")  # from now on, five batches may be in flight

        found = await offsets(await send_numbers(producer, range(1, 400), topic))

        assert found == list(range(1, 400))
        assert numbers(cluster, topic) == list(range(400))


async def test_a_limit_that_is_lowered_while_sending_loses_nothing():
    async with producing(linger_ms=5) as (cluster, producer):
        topic = small_batches_only(cluster, 100_000)
        deliveries = await send_numbers(producer, range(1000), topic)
        await deliveries[0]
        cluster.partition(topic, 0).config = cluster.check_config({"max.message.bytes": "150"})
        deliveries += await send_numbers(producer, range(1000, 2000), topic)

        assert await offsets(deliveries) == list(range(2000))
        assert numbers(cluster, topic) == list(range(2000))
        assert producer.metrics().splits > 0


@pytest.mark.promise(
    "Error table",
    "a batch that is too large is sent in halves; nothing is lost, duplicated or reordered (KIP-126)",
)
async def test_a_batch_in_doubt_is_not_split():
    """The halves could create duplicates: the broker checks the size before it checks for duplicates."""
    async with producing(linger_ms=50) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, drop_after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)

        found = await results(await send_numbers(producer, range(10)))

        assert {error.outcome for error in found} == {Outcome.UNKNOWN}
        assert numbers(cluster) == list(range(10))
        assert await offsets(await send_numbers(producer, [10])) == [10], "the partition continues"


async def test_record_list_too_large_is_also_split():
    async with producing(linger_ms=50) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.RECORD_LIST_TOO_LARGE)

        assert await offsets(await send_numbers(producer, range(10))) == list(range(10))
        assert numbers(cluster) == list(range(10))


async def test_without_idempotence_a_batch_is_also_split():
    async with producing(linger_ms=50, enable_idempotence=False) as (cluster, producer):
        topic = small_batches_only(cluster)
        await producer.partitions_for(topic)

        assert await offsets(await send_numbers(producer, range(100), topic)) == list(range(100))
        assert numbers(cluster, topic) == list(range(100))


@in_virtual_time
async def test_parts_keep_the_state_of_the_deliveries_of_the_whole():
    """Callers keep waiting, deliveries stay cancelled or completed, and withdrawn records stay withdrawn."""
    async with producing(linger_ms=60) as (cluster, producer):
        topic = small_batches_only(cluster, 250)
        await producer.partitions_for(topic)
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=hold)
        deliveries = await send_numbers(producer, range(5), topic)
        withdrawn = await producer.send(topic, b"5", timeout=10 * MS)
        deliveries += await send_numbers(producer, range(6, 40), topic)
        waiting = [asyncio.ensure_future(awaited(delivery)) for delivery in deliveries[::3]]
        called = []
        deliveries[1].add_done_callback(called.append)
        assert type(await error_of(withdrawn)).__name__ == "DeliveryTimeoutError"
        await until(lambda: produce_count(cluster) == 1, 4)
        deliveries[2].cancel()
        late = asyncio.ensure_future(awaited(deliveries[7]))
        await asyncio.sleep(0)
        hold.set()

        expected = [number for number in range(40) if number != 5]
        await until(lambda: len(cluster.records(topic)) == 39, 4)
        assert numbers(cluster, topic) == expected
        assert [metadata.offset for metadata in await within(2, asyncio.gather(*waiting))] == list(
            range(0, 39, 3)
        )
        assert (await within(2, late)).offset == 7
        await until(lambda: called)
        assert called[0].result().offset == 1
        assert deliveries[2].cancelled()
        assert (await deliveries[-1]).offset == 38


async def awaited(delivery):
    return await delivery


async def test_flush_and_memory_accounting_include_the_parts():
    async with producing(linger_ms=1_000_000 * MS) as (cluster, producer):
        topic = small_batches_only(cluster)
        await producer.partitions_for(topic)
        deliveries = await send_numbers(producer, range(60), topic)

        await within(3, producer.flush())

        assert all(delivery.done() for delivery in deliveries)
        memory = producer._accumulator.memory
        assert memory.available == memory.total


@in_virtual_time
async def test_parts_expire_at_the_deadline_of_the_whole():
    settings = {"request_timeout_ms": 50_000 * MS, "delivery_timeout_ms": 200_000 * MS}
    async with producing(linger_ms=20, **settings) as (cluster, producer):
        topic = small_batches_only(cluster)
        await producer.partitions_for(topic)
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)
        cluster.faults.add(PRODUCE, drop_before=True, count=1000)
        loop = asyncio.get_running_loop()
        began = loop.time()

        found = await results(await send_numbers(producer, range(20), topic))

        assert loop.time() - began < 1000 * MS
        assert {type(error).__name__ for error in found} == {"DeliveryTimeoutError"}
        # The first half was sent again and may be in the log; the second was not sent since the whole was rejected.
        assert [error.outcome for error in found] == [Outcome.UNKNOWN] * 10 + [Outcome.NOT_PERSISTED] * 10


async def test_a_closing_producer_also_fails_parts():
    async with producing(linger_ms=20) as (cluster, _):
        topic = small_batches_only(cluster)
        producer = quick_producer(cluster, linger_ms=20)
        await producer.start()
        await producer.partitions_for(topic)
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)
        hold = asyncio.Event()
        fault = cluster.faults.add(PRODUCE, hold=hold)
        deliveries = await send_numbers(producer, range(20), topic)
        await within(2, fault.reached())

        report = await within(2, producer.close(timeout=0))
        hold.set()

        assert report.unknown + report.failed == 20
        assert all(isinstance(result, DeliveryError) for result in await results(deliveries))


# ------------------------------------------------------------------------------------------- the order of the parts


@pytest.mark.promise(
    "Error table", "the parts of a split batch keep their order, and their records keep their own time-outs"
)
@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER], ids=by_name
)
async def test_parts_of_a_batch_keep_their_order_when_several_are_sent_again(code):
    async with producing(linger_ms=20) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(
            PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE, count=4
        )  # for batches of 8, 4 and 2 records, and for the first record alone
        deliveries = await send_numbers(producer, range(1, 9))
        await until(deliveries[0].done)
        # The second part meets the gap and is sent under a new epoch. Once it is acknowledged, two are in flight.
        cluster.faults.add(PRODUCE, error=code, skip=2, count=2)
        await within(2, producer.flush())

        assert isinstance(await error_of(deliveries[0]), DeliveryError)
        await offsets(deliveries[1:])
        assert numbers(cluster) == [0, *range(2, 9)]


@pytest.mark.promise(
    "Error table", "the parts of a split batch keep their order, and their records keep their own time-outs"
)
async def test_parts_of_a_batch_keep_their_order_behind_one_that_fails():
    async with producing(cluster={"max_message_bytes": 400}, linger_ms=5) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        deliveries = [
            await producer.send("t", (b"%d " % number).ljust(600 if number == 41 else 60, b"."))
            for number in range(1, 82)
        ]

        found = await results(deliveries)

        failed = [number for number, one in enumerate(found, 1) if isinstance(one, BaseException)]
        assert failed == [41]
        assert found[40].outcome is Outcome.NOT_PERSISTED
        kept = [int(value.split()[0]) for value in values(cluster)]
        assert kept == [number for number in range(82) if number != 41]


@pytest.mark.promise(
    "Error table", "the parts of a split batch keep their order, and their records keep their own time-outs"
)
async def test_records_with_their_own_timeouts_also_end_in_time_in_parts():
    async with producing(linger_ms=5, request_timeout_ms=8000, delivery_timeout_ms=20_000) as (
        cluster,
        producer,
    ):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE, count=2)
        fault = cluster.faults.add(PRODUCE, hold=hold)
        deliveries = [
            await producer.send("t", b"%d" % number, timeout=8000 * MS if number % 3 else 700 * MS)
            for number in range(11)
        ]
        await within(5, fault.reached())
        hasty = await results(deliveries[::3])
        hold.set()
        await within(5, producer.flush())

        assert hasty[0].outcome is Outcome.UNKNOWN, "it was in flight"
        kept = [number for number in range(11) if number % 3 or hasty[number // 3].outcome is Outcome.UNKNOWN]
        assert numbers(cluster) == kept
        assert [(await deliveries[number]).offset for number in range(11) if number % 3] == [
            kept.index(number) for number in range(11) if number % 3
        ]


async def test_unretrieved_errors_of_a_split_batch_are_reported():
    async with producing(linger_ms=5) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for number in range(10):
            await producer.send("t", b"%d" % number)
        await within(2, producer.flush())
        gc.collect()
        report = await producer.close()

        assert (report.failed, report.delivered) == (5, 5)
        assert sum(report.unretrieved.values()) == 5


# ------------------------------------------------------------------------------------------------------- any fault

MISHAPS = [
    {"error": ErrorCode.MESSAGE_TOO_LARGE},
    {"error": ErrorCode.MESSAGE_TOO_LARGE},
    {"error": ErrorCode.NOT_ENOUGH_REPLICAS},
    {"error": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER},
    {"error": ErrorCode.INVALID_PRODUCER_EPOCH},
    {"error": ErrorCode.UNKNOWN_PRODUCER_ID},
    {"error": ErrorCode.NOT_LEADER_OR_FOLLOWER, "after_append": True},
    {"drop_before": True},
    {"drop_after_append": True},
    {"delay": 3 * MS},
]


@pytest.mark.promise(
    "Error table", "the parts of a split batch keep their order, and their records keep their own time-outs"
)
@pytest.mark.parametrize("hasty", [False, True], ids=["no timeouts", "timeouts of their own"])
@pytest.mark.parametrize("seed", range(5))
async def test_split_batches_lose_duplicate_and_reorder_nothing_under_faults(seed, hasty):
    chance = random.Random(seed)
    async with producing(
        compression_type=chance.choice(["none", "lz4"]),
        linger_ms=1,
        batch_size=20_000,
        buffer_memory=60_000,
        topics={"t": 2},
    ) as (cluster, producer):
        for _ in range(30):
            cluster.faults.add(PRODUCE, **chance.choice(MISHAPS), skip=chance.choice([0, 0, 0, 1]))
        sent = {}

        async def work(task):
            for number in range(80):
                value = b"%d:%d:" % (task, number) + os.urandom(chance.choice([10, 300, 3000]))
                timeout = chance.choice([None, None, None, 2 * MS, 15 * MS]) if hasty else None
                try:
                    sent[value] = await producer.send("t", value, partition=task % 2, timeout=timeout)
                except KafkaError:
                    assert hasty
                    continue
                if hasty and chance.random() < 0.1:
                    sent.pop(value).cancel()

        await asyncio.gather(*(work(task) for task in range(4)))
        await within(5, producer.flush())

        log = {
            partition: [record.value for record in cluster.records("t", partition)] for partition in (0, 1)
        }
        for partition, found in log.items():
            assert len(found) == len(set(found)), "duplicated"
            for task in (partition, partition + 2):
                mine = [int(value.split(b":")[1]) for value in found if value.startswith(b"%d:" % task)]
                assert mine == sorted(mine), "reordered"
        for value, delivery in sent.items():
            found = log[int(value[:1]) % 2]
            error = delivery.exception()
            if error is None:
                assert value in found, "lost"
                assert delivery.result().offset in (None, found.index(value))
            elif error.outcome is Outcome.NOT_PERSISTED:
                assert value not in found
