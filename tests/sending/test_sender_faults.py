"""Broken connections, moving leaders, random faults: records are still stored exactly once and in order."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    AFTER_APPEND,
    BREAKS,
    METADATA,
    NOT_RETRIABLE,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    RETRIABLE,
    batch_headers,
    metadata_count,
    numbers,
    offsets,
    partitions_of,
    produce_count,
    producing,
    quick_producer,
    results,
    send_numbers,
    until,
    values,
    within,
)

# ------------------------------------------------------------------------------------- broken connections


@pytest.mark.promise("Accumulator, sender, connections", "any time-out or violation closes the connection")
@pytest.mark.parametrize("what", BREAKS)
async def test_a_broken_answer_with_five_in_flight_loses_repeats_and_reorders_nothing(what):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, **BREAKS[what])

        deliveries = await send_numbers(producer, range(1, 9))

        assert await offsets(deliveries) == list(range(1, 9))
        assert numbers(cluster) == list(range(9))
        (node,) = [node for node in producer.metrics().nodes if node.node_id == 0]
        assert (node.connects, node.disconnects) == (2, 1), "the connection was not used again"


@pytest.mark.parametrize("what", BREAKS)
async def test_a_broken_answer_to_the_very_first_request_loses_and_repeats_nothing(what):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        cluster.faults.add(PRODUCE, **BREAKS[what])

        deliveries = await send_numbers(producer, range(4))

        assert await offsets(deliveries) == [0, 1, 2, 3]
        assert numbers(cluster) == [0, 1, 2, 3]


@pytest.mark.parametrize("what", BREAKS)
async def test_a_broken_answer_several_times_in_a_row(what):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, **BREAKS[what], count=3)

        deliveries = await send_numbers(producer, range(1, 9))

        assert await offsets(deliveries) == list(range(1, 9))
        assert numbers(cluster) == list(range(9))


@pytest.mark.promise("Accumulator, sender, connections", "duplicates count as success")
async def test_a_duplicate_is_a_success_with_the_original_offset():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, drop_after_append=True)

        metadata = await within(1, producer.send_and_wait("t", b"1"))

        assert metadata.offset == 1
        assert numbers(cluster) == [0, 1]
        assert produce_count(cluster) == 3


@pytest.mark.promise("Accumulator, sender, connections", "duplicates count as success")
async def test_a_duplicate_that_the_broker_no_longer_remembers_is_a_success_without_an_offset():
    async with producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.DUPLICATE_SEQUENCE_NUMBER, after_append=True)

        metadata = await within(1, producer.send_and_wait("t", b"0"))

        assert metadata.offset is None
        assert numbers(cluster) == [0]
        assert (await within(1, producer.send_and_wait("t", b"1"))).offset == 1


async def test_a_partition_left_out_does_not_affect_its_neighbours():
    async with producing(topics={"t": 3}) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, omit_partitions=True, partition=1)

        deliveries = [await producer.send("t", b"v", partition=partition) for partition in range(3)]

        assert await offsets(deliveries) == [0, 0, 0]
        assert [len(values(cluster, "t", partition)) for partition in range(3)] == [1, 1, 1]
        (first, *rest) = cluster.requests_of(PRODUCE)
        assert partitions_of(first) == [0, 1, 2]
        assert [partitions_of(request) for request in rest] == [[1]], "only what was left out is sent again"


@pytest.mark.promise(
    "Accumulator, sender, connections", "a request contains several partitions, up to `max_request_size`"
)
async def test_an_error_of_one_partition_does_not_affect_its_neighbours():
    async with producing(topics={"t": 100}) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, partition=50)

        deliveries = [await producer.send("t", b"v", partition=partition) for partition in range(100)]
        found = await results(deliveries)

        assert [number for number, end in enumerate(found) if isinstance(end, DeliveryError)] == [50]
        assert len(values(cluster)) == 99
        assert produce_count(cluster) == 1, "all of them are sent in one request"


@pytest.mark.promise(
    "Accumulator, sender, connections", "idle connections close and are reopened when needed"
)
async def test_a_broker_that_closes_idle_connections_loses_no_record():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await cluster.close_connections(0)

        assert (await within(1, producer.send_and_wait("t", b"1"))).offset == 1
        assert numbers(cluster) == [0, 1]


@pytest.mark.promise(
    "Rules of Kafka's producer", "the sender wakes after a throttle and after a reconnect back-off"
)
async def test_a_restarted_broker_gets_the_records_buffered_meanwhile():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await cluster.stop_broker(0)
        deliveries = await send_numbers(producer, range(1, 6))
        await until(lambda: producer._metrics.node(0).connect_failures >= 2)
        assert not any(delivery.done() for delivery in deliveries)

        await cluster.start_broker(0)

        assert await offsets(deliveries) == list(range(1, 6))
        assert numbers(cluster) == list(range(6))


async def test_a_stopped_leader_is_replaced_by_the_next():
    async with producing(brokers=3, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        first = cluster.leader("t", 0)
        deliveries = await send_numbers(producer, range(1, 6))
        await cluster.stop_broker(first)
        deliveries += await send_numbers(producer, range(6, 11))

        assert await offsets(deliveries) == list(range(1, 11))
        assert numbers(cluster) == list(range(11))
        assert cluster.leader("t", 0) != first


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "if the connection to a leader hangs, another broker is asked for the leader",
)
@in_virtual_time
async def test_a_frozen_leader_is_abandoned_after_the_request_timeout():
    settings = {"request_timeout_ms": 80_000 * MS}
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        deliveries = await send_numbers(producer, range(1, 6))
        await until(lambda: producer.metrics().in_flight == 5)

        cluster.move_leader("t", 0, 1)

        assert await offsets(deliveries) == list(range(1, 6))
        assert numbers(cluster) == list(range(6))
        errors = producer.metrics().errors
        assert errors["RequestTimedOutError"] >= 1
        # The other requests, whose timeout had not passed, lost their connection.
        assert errors["RequestTimedOutError"] + errors["BrokerConnectionError"] >= 5
        cluster.thaw_broker(0)
        await until(lambda: cluster.broker(0).connection_count == 0 or produce_count(cluster, 0) > 1)
        assert (await within(2, producer.send_and_wait("t", b"6"))).offset == 6
        assert numbers(cluster) == list(range(7)), "a zombie's late appends are rejected"


# ------------------------------------------------------------------------------------------------- leaders


@pytest.mark.promise("Accumulator, sender, connections", "leader hints in Produce responses are used")
@pytest.mark.promise("KIPs", "KIP-951: the new leader in the answer")
async def test_a_new_leader_named_in_the_answer_gets_the_records_without_a_pause_or_a_refresh():
    settings = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000, "delivery_timeout_ms": 120_000}
    settings["request_timeout_ms"] = 60_000
    async with producing(brokers=3, **ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        asked = metadata_count(cluster)
        cluster.move_leader("t", 0, 1)

        deliveries = await send_numbers(producer, range(1, 9))

        assert await offsets(deliveries) == list(range(1, 9))
        assert numbers(cluster) == list(range(9))
        assert metadata_count(cluster) == asked


@pytest.mark.parametrize("versions", ["2.1", "2.8", "3.5"])
async def test_a_new_leader_is_found_by_a_refresh_where_the_answer_does_not_name_it(versions):
    async with producing(brokers=3, cluster={"versions": versions}, **ONE_BATCH_PER_RECORD) as (
        cluster,
        producer,
    ):
        await producer.send_and_wait("t", b"0")
        cluster.move_leader("t", 0, 1)

        deliveries = await send_numbers(producer, range(1, 9))

        assert await offsets(deliveries) == list(range(1, 9))
        assert numbers(cluster) == list(range(9))


@pytest.mark.promise("Accumulator, sender, connections", "order is kept across retries and leader moves")
async def test_constantly_moving_leaders_neither_reorder_nor_lose_records():
    async with producing(brokers=3, topics={"t": 3}, batch_size=200) as (cluster, producer):
        deliveries = {partition: [] for partition in range(3)}
        for number in range(120):
            for partition in range(3):
                deliveries[partition].append(await producer.send("t", b"%d" % number, partition=partition))
            if number % 10 == 0:
                for partition in range(3):
                    cluster.move_leader("t", partition, (partition + number // 10) % 3)
                await asyncio.sleep(MS)

        for partition in range(3):
            assert await offsets(deliveries[partition]) == list(range(120))
            assert numbers(cluster, "t", partition) == list(range(120))


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a partition has up to 5 batches in flight, and one until the first acknowledgement",
)
async def test_a_new_leader_has_one_batch_in_flight_until_its_first_acknowledgement():
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.move_leader("t", 0, 1)
        await producer.send_and_wait("t", b"1")
        cluster.move_leader("t", 0, 0)
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, node=0, hold=release, error=ErrorCode.REQUEST_TIMED_OUT)
        cluster.faults._faults.remove(held)
        await producer.partitions_for("t")
        producer._metadata.request_update()
        await until(lambda: producer._metadata.cluster.partition("t", 0).leader == 0)
        cluster.faults._faults.append(held)

        deliveries = await send_numbers(producer, range(2, 7))
        await within(1, held.reached())

        assert producer.metrics().in_flight == 1
        release.set()
        assert await offsets(deliveries) == list(range(2, 7))
        assert numbers(cluster) == list(range(7))


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a partition has up to 5 batches in flight, and one until the first acknowledgement",
)
async def test_the_very_first_batch_is_acknowledged_before_a_second_is_sent():
    """A broker that does not know a producer accepts any first sequence (KAFKA-15591)."""
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, hold=release)

        deliveries = await send_numbers(producer, range(5))
        await within(1, held.reached())

        assert producer.metrics().in_flight == 1
        release.set()
        assert await offsets(deliveries) == list(range(5))
        assert batch_headers(cluster) == [(0, number, 1) for number in range(5)]


@asynccontextmanager
async def distant(cluster: EmbeddedCluster, delay: float):
    """Delay each answer of broker 0 by `delay` seconds, no matter how many answers are in flight."""
    loop = asyncio.get_running_loop()
    broker = cluster.broker(0)
    near = broker.port
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    def late(writer: asyncio.StreamWriter, data: bytes) -> None:
        if not writer.is_closing():
            writer.write(data)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: float) -> None:
        while data := await reader.read(65536):
            if after:
                loop.call_later(after, late, writer, data)
            else:
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(broker.host, near)
        writers.extend((writer, back))
        tasks.append(asyncio.create_task(pump(reader, back, 0)))
        tasks.append(asyncio.create_task(pump(there, writer, delay)))

    server = await asyncio.start_server(accept, broker.host, 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        broker.port = near
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
        await server.wait_closed()


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a partition has up to 5 batches in flight, and one until the first acknowledgement",
)
@in_virtual_time
async def test_after_the_first_acknowledgement_one_partition_has_nearly_five_batches_per_round_trip():
    batches = 30
    async with EmbeddedCluster(topics={"t": 1}) as cluster, distant(cluster, 20 * MS):
        async with quick_producer(cluster, **ONE_BATCH_PER_RECORD, request_timeout_ms=3000) as producer:
            loop = asyncio.get_running_loop()
            await producer.send_and_wait("t", b"0")
            began = loop.time()
            await producer.send_and_wait("t", b"0")
            round_trip = loop.time() - began
            began = loop.time()
            for delivery in await send_numbers(producer, range(batches)):
                await within(2, delivery)

            assert batches * round_trip / (loop.time() - began) >= 4.5
    assert {header[2] for header in batch_headers(cluster)} == {1}


@pytest.mark.promise("Accumulator, sender, connections", "a connection has up to 5 requests in flight")
async def test_five_requests_are_in_flight_after_the_first_acknowledgement_and_never_six():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)

        deliveries = await send_numbers(producer, range(1, 12))
        await within(1, held.reached())

        assert producer.metrics().in_flight == 5
        release.set()
        assert await offsets(deliveries) == list(range(1, 12))
        assert numbers(cluster) == list(range(12))


# ----------------------------------------------------------------------------------------- random faults


@pytest.mark.promise("As a whole", "each failure says correctly whether its record may be in the log")
@pytest.mark.parametrize("seed", range(12))
async def test_a_random_schedule_of_faults_keeps_every_promise(seed):
    """Delivered records are at the reported offset, once and in order; NOT_PERSISTED ones are not in the log."""
    chance = random.Random(seed)
    settings = {"batch_size": chance.choice([1, 150, 4000]), "request_timeout_ms": 100_000 * MS}
    settings |= {"compression_type": chance.choice(["none", "lz4"]), "linger_ms": chance.choice([0, 2])}
    versions = chance.choice(["2.1", "3.5", "4.0", "4.1"])
    async with producing(3, {"t": 4}, {"versions": versions}, **settings) as (cluster, producer):
        await producer.partitions_for("t")
        sent: dict[int, list] = {partition: [] for partition in range(4)}
        down: list[int] = []
        frozen: list[int] = []
        for number in range(160):
            partition = chance.randrange(4)
            sent[partition].append((number, await producer.send("t", b"%d" % number, partition=partition)))
            if chance.random() < 0.12:
                await something_breaks(cluster, chance, down, frozen)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0, MS, 3 * MS]))
        for node in frozen:
            cluster.thaw_broker(node)
        for node in down:
            await cluster.start_broker(node)
        cluster.faults.clear()

        await within(5, producer.flush())

        for partition, records in sent.items():
            log = numbers(cluster, "t", partition)
            assert len(log) == len(set(log)), "a record is duplicated"
            delivered = []
            for number, delivery in records:
                error = delivery.exception()
                if error is None:
                    delivered.append(number)
                    assert delivery.result().offset in (None, log.index(number))
                elif error.outcome is Outcome.NOT_PERSISTED:
                    assert number not in log
            assert [number for number in log if number in delivered] == delivered, "order"
            assert delivered


async def something_breaks(
    cluster: EmbeddedCluster, chance: random.Random, down: list[int], frozen: list[int]
):
    where = {"partition": chance.randrange(4)} if chance.random() < 0.7 else {"node": chance.randrange(3)}
    match chance.randrange(12):
        case 0 | 1:
            code = chance.choice(RETRIABLE)
            after_append = code in AFTER_APPEND and chance.random() < 0.5
            cluster.faults.add(PRODUCE, error=code, after_append=after_append, **where)
        case 2:
            cluster.faults.add(PRODUCE, error=chance.choice(NOT_RETRIABLE), **where)
        case 3 | 4:
            cluster.faults.add(PRODUCE, drop_after_append=True, **where)
        case 5:
            cluster.faults.add(PRODUCE, **chance.choice(list(BREAKS.values())), **where)
        case 6:
            cluster.faults.add(PRODUCE, delay=0.01, **where)
        case 7:
            cluster.faults.add(METADATA, drop_before=True)
        case 8 | 9:
            partition = cluster.partition("t", chance.randrange(4))
            to_node = chance.choice(partition.replicas)
            if to_node not in down:
                partition.move_leader(to_node)
        case 10:
            if down:
                await cluster.start_broker(down.pop())
            elif not frozen:
                down.append(chance.randrange(3))
                await cluster.stop_broker(down[0])
        case 11:
            if frozen:
                cluster.thaw_broker(frozen.pop())
            elif not down:
                frozen.append(chance.randrange(3))
                cluster.freeze_broker(frozen[0])
