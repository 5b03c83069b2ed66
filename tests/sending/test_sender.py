"""The sender: retries, requests and sequence numbers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import ContextVar
from itertools import pairwise

import pytest

from aioproducer import Outcome
from aioproducer.errors import (
    BrokerConnectionError,
    DeliveryError,
)
from aioproducer.network import request_stream
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.sending import sender
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.accumulator_bench import LONG, Bench
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    INIT_PRODUCER_ID,
    LARGE,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    RETRIABLE,
    assert_nothing_left,
    by_name,
    error_of,
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

# ------------------------------------------------------------------------------------------ retriable errors


@pytest.mark.parametrize("after_append", [False, True], ids=["before the append", "after the append"])
@pytest.mark.parametrize("code", RETRIABLE, ids=by_name)
async def test_a_retriable_error_with_five_in_flight_loses_repeats_and_reorders_nothing(code, after_append):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=code, after_append=after_append)

        deliveries = await send_numbers(producer, range(1, 9))

        assert await offsets(deliveries) == list(range(1, 9))
        assert numbers(cluster) == list(range(9))
        assert producer.metrics().retries >= 1
        assert producer.metrics().errors[code.name] == 1


@pytest.mark.parametrize("code", RETRIABLE[1:8], ids=by_name)
async def test_many_retriable_errors_in_a_row_are_all_retried(code):
    async with producing(topics={"t": 2}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=code, partition=0, count=4)

        first = await send_numbers(producer, range(6), partition=0)
        other = await send_numbers(producer, range(6), partition=1)

        assert await offsets(first) == await offsets(other) == list(range(6))
        assert numbers(cluster, "t", 0) == numbers(cluster, "t", 1) == list(range(6))


@pytest.mark.promise("Accumulator, sender, connections", "order is kept across retries and leader moves")
async def test_order_is_also_kept_without_idempotence():
    async with producing(enable_idempotence=False, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=2)
        cluster.faults.add(PRODUCE, error=ErrorCode.LEADER_NOT_AVAILABLE, count=1)

        deliveries = await send_numbers(producer, range(6))

        assert await offsets(deliveries) == list(range(6))
        assert numbers(cluster) == list(range(6))


@pytest.mark.promise("Accumulator, sender, connections", "retries back off exponentially, with jitter")
@pytest.mark.promise("KIPs", "KIP-580: exponential back-off")
async def test_retries_back_off_exponentially_and_do_not_spin():
    async with producing(retry_backoff_ms=20, retry_backoff_max_ms=60) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=4)

        await within(2, producer.send_and_wait("t", b"v"))

        times = [request.at for request in cluster.requests_of(PRODUCE)]
        pauses = [after - before for before, after in pairwise(times)]
        assert len(pauses) == 4
        for pause, least in zip(pauses, (16, 32, 48, 48), strict=True):
            assert pause >= (least - 2) / 1000


@pytest.mark.promise(
    "Rules of Kafka's producer", "the sender sleeps until the earliest event that may need it"
)
async def test_the_sender_sleeps_between_retries_instead_of_spinning():
    async with producing(retry_backoff_ms=30, retry_backoff_max_ms=30) as (cluster, producer):
        await producer.partitions_for("t")
        passes = count_passes(producer)
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=3)

        await within(2, producer.send_and_wait("t", b"v"))

        assert passes.total() < 30


@pytest.mark.promise(
    "Rules of Kafka's producer", "the sender sleeps until the earliest event that may need it"
)
async def test_the_sender_sleeps_while_it_lingers_or_waits_for_an_answer():
    async with producing(linger_ms=40) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        passes = count_passes(producer)
        cluster.faults.add(PRODUCE, delay=0.04)

        delivery = await producer.send("t", b"1")
        await within(2, delivery)

        assert passes.total() < 10


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "the sender is woken for batches that are new, full or must go, not for every record",
)
async def test_the_sender_is_woken_for_batches_and_not_for_each_record():
    async with producing(linger_ms=60_000, delivery_timeout_ms=120_000, batch_size=2000) as (
        cluster,
        producer,
    ):
        await producer.partitions_for("t")
        passes = count_passes(producer)
        for _ in range(300):
            await producer.send("t", bytes(100))
            await asyncio.sleep(0)  # let the sender run if it was woken

        full = produce_count(cluster)
        assert passes.total() < 90
        await producer.flush()
        assert len(values(cluster)) == 300
        assert full < 300


def count_passes(producer) -> Counter[str]:
    """Count the passes of the sender."""
    passes: Counter[str] = Counter()
    original = producer._sender._pass

    def counted(now: float) -> float | None:
        passes["all"] += 1
        return original(now)

    producer._sender._pass = counted
    return passes


# --------------------------------------------------------------------------------------- a record that is alone


def requests_of(producer) -> int:
    """Return the number of Produce requests written so far, whether or not they have arrived."""
    return producer.metrics().produce_requests


async def ended(call, delivery) -> None:
    """Wait until the record of a call that was started without a task is delivered, and close the call."""
    await within(5, asyncio.wait([delivery]))
    call.close()


@pytest.mark.promise(
    "Accumulator, sender, connections", "a record that is alone is sent in the turn of its call"
)
async def test_a_record_that_is_alone_is_written_before_send_and_wait_first_waits():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await producer.send_and_wait("t", b"1")
        before = requests_of(producer)

        call = producer.send_and_wait("t", b"2")
        call.send(None)

        assert requests_of(producer) == before + 1
        await ended(call, call.cr_await)
        assert values(cluster) == [b"0", b"1", b"2"]


async def test_the_sender_runs_no_second_pass_for_a_record_that_is_alone():
    async with producing() as (_, producer):
        await producer.send_and_wait("t", b"0")
        passes = count_passes(producer)

        call = producer.send_and_wait("t", b"1")
        call.send(None)
        assert passes.total() == 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert passes.total() == 1
        await ended(call, call.cr_await)


@pytest.mark.parametrize("tasks", [2, 10])
async def test_records_of_several_tasks_are_sent_together_although_the_first_is_alone(tasks):
    async with producing() as (cluster, producer):

        async def together() -> None:
            await asyncio.gather(*(producer.send_and_wait("t", b"v") for _ in range(tasks)))

        await within(5, together())
        before = requests_of(producer)
        await within(5, together())

        assert requests_of(producer) == before + 1
        assert len(values(cluster)) == 2 * tasks


@pytest.mark.parametrize("linger_ms", [0, 60_000])
async def test_a_record_beside_a_buffered_one_is_left_to_the_sender(linger_ms):
    async with producing(topics={"t": 2}, linger_ms=linger_ms, delivery_timeout_ms=120_000) as (_, producer):
        await producer.send_and_wait("t", b"0", partition=0)
        before = requests_of(producer)

        other = await producer.send("t", b"1", partition=1)
        call = producer.send_and_wait("t", b"2", partition=0)
        call.send(None)

        assert requests_of(producer) == before
        await ended(call, call.cr_await)
        await producer.flush()
        assert other.done()


async def test_the_pass_for_a_lone_record_does_not_run_in_the_context_of_its_caller():
    variable: ContextVar[str] = ContextVar("variable", default="the sender's")
    async with producing() as (_, producer):
        await producer.send_and_wait("t", b"0")
        seen = []
        original = producer._sender._pass

        def noted(now: float) -> float | None:
            seen.append(variable.get())
            return original(now)

        producer._sender._pass = noted
        variable.set("the caller's")
        await within(5, producer.send_and_wait("t", b"1"))

    assert set(seen) == {"the sender's"}


async def test_a_defect_in_the_pass_of_a_lone_record_closes_the_producer_as_in_the_task(caplog):
    async with producing() as (_, producer):
        await producer.send_and_wait("t", b"0")
        defect = RuntimeError("a bug")

        def bug(now: float) -> None:
            raise defect

        producer._sender._pass = bug

        with pytest.raises(DeliveryError, match="aioproducer-sender ended unexpectedly"):
            await within(5, producer.send_and_wait("t", b"1"))

    assert any(record.exc_info and record.exc_info[1] is defect for record in caplog.records)


# ------------------------------------------------------------------------------------- the contents of a request


@pytest.mark.promise("Accumulator, sender, connections", "a batch is due by its size")
@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a partition is ready when its first batch is full, has another behind it, has lingered, or is needed "
    "for memory, flush or close",
)
async def test_a_full_batch_is_sent_without_lingering_and_the_open_one_stays():
    settings = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000, "batch_size": 500}
    async with producing(**settings) as (_, producer):
        deliveries = [await producer.send("t", bytes(100)) for _ in range(5)]

        await within(1, deliveries[0])

        assert deliveries[2].done()
        assert not deliveries[4].done(), "the last, open batch lingers"
        await within(1, producer.flush())
        assert deliveries[4].done()


@pytest.mark.promise("Accumulator, sender, connections", "a batch is due by linger")
@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a partition is ready when its first batch is full, has another behind it, has lingered, or is needed "
    "for memory, flush or close",
)
@in_virtual_time
async def test_a_batch_is_sent_when_it_has_lingered():
    async with producing(linger_ms=30) as (cluster, producer):
        await producer.partitions_for("t")
        loop = asyncio.get_running_loop()
        began = loop.time()

        deliveries = [await producer.send("t", b"v") for _ in range(3)]
        await offsets(deliveries)

        assert 0.028 <= loop.time() - began < 0.3 * 1000 * MS
        assert produce_count(cluster) == 1


@pytest.mark.promise("Accumulator, sender, connections", "a batch is due by exhausted memory")
@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a partition is ready when its first batch is full, has another behind it, has lingered, or is needed "
    "for memory, flush or close",
)
async def test_everything_is_sent_while_a_caller_waits_for_memory():
    settings = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    async with producing(topics={"t": 4}, **settings, **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        for partition in range(4):
            await producer.send("t", bytes(LARGE), partition=partition)

        late = await within(1, producer.send("t", bytes(LARGE), partition=0))

        assert len(values(cluster)) >= 1
        await within(1, producer.flush())
        assert late.done()


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request has one batch per partition and begins where the last one stopped; a blocked partition does "
    "not delay the others; a first batch that is too large is sent alone",
)
async def test_a_request_has_one_batch_of_each_partition_and_partitions_take_turns():
    async with producing(topics={"t": 3}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.partitions_for("t")

        deliveries = []
        for number in range(4):
            for partition in range(3):
                deliveries += await send_numbers(producer, [number], partition=partition)
        await offsets(deliveries)

        for request in cluster.requests_of(PRODUCE):
            assert len(partitions_of(request)) == len(set(partitions_of(request)))
        assert [partitions_of(request) for request in cluster.requests_of(PRODUCE)] == [[0, 1, 2]] * 4


@pytest.mark.parametrize(
    ("many", "few", "expected"),
    [
        (0, 1, [(1, 5), (0, 10), (0, 10), (0, 10), (0, 5)]),
        (1, 0, [(1, 10), (0, 5), (1, 10), (1, 10), (1, 5)]),
    ],
    ids=["the first has few", "the first has many"],
)
async def test_a_pass_sends_a_limited_number_of_batches_and_the_next_begins_with_the_other_nodes(
    monkeypatch, many, few, expected
):
    monkeypatch.setattr(sender, "MOST_IN_REQUEST", 10)
    monkeypatch.setattr(sender, "ENOUGH_FOR_PASS", 10)
    monkeypatch.setattr(sender, "REQUEST_COST", 0)
    settings = {"linger_ms": 60_000, "delivery_timeout_ms": 120_000}
    async with producing(brokers=2, topics={"t": 80}, **settings) as (_, producer):
        by_node = {0: [], 1: []}
        await producer.send_and_wait("t", b"", partition=79)
        for queue in producer._accumulator.topics["t"].queues:
            by_node[queue.node_id].append(queue.partition)
        for partition in (by_node[1][0], by_node[0][0]):  # node 1 is the first to have batches
            await producer.send_and_wait("t", b"", partition=partition)
        sent = []
        produce = producer._sender._produce

        def noted(connection, node_id, batches, now):
            sent.append((node_id, len(batches)))
            produce(connection, node_id, batches, now)

        monkeypatch.setattr(producer._sender, "_produce", noted)

        chosen = by_node[many][:35] + by_node[few][:5]
        deliveries = [await producer.send("t", b"v", partition=partition) for partition in chosen]
        await within(5, producer.flush())

        assert sent == expected
        assert await offsets(deliveries) == [1] + [0] * 34 + [1] + [0] * 4


async def test_an_answer_sends_batches_that_have_a_new_leader_though_the_old_one_is_full(monkeypatch):
    monkeypatch.setattr(request_stream, "NEARBY_LATENCY", 60.0)
    settings = {"request_timeout_ms": 60_000, "delivery_timeout_ms": 120_000}
    async with producing(brokers=2, topics={"t": 12}, **ONE_BATCH_PER_RECORD, **settings) as (
        cluster,
        producer,
    ):
        for partition in range(12):
            await producer.send_and_wait("t", b"first", partition=partition)
        queues = producer._accumulator.topics["t"].queues
        here = [queue.partition for queue in queues if queue.node_id == 0]
        moving, *others = here[:5]
        may_answer, never = asyncio.Event(), asyncio.Event()
        cluster.faults.add(PRODUCE, node=0, partition=moving, hold=may_answer)
        for partition in others:
            cluster.faults.add(PRODUCE, node=0, partition=partition, hold=never)
        sent = []
        for count, partition in enumerate([moving, *others], start=1):
            sent += [await producer.send("t", b"second", partition=partition)]
            await until(lambda count=count: producer._brokers.connection(0).in_flight == count)
        assert not producer._brokers.ready(0)
        last = await producer.send("t", b"third", partition=moving)

        queue = queues[moving]
        cluster.move_leader("t", moving, 1)
        producer._metadata.request_update()
        await until(lambda: queue.node_id == 1)
        woken = []
        sent[0].add_done_callback(lambda _: woken.append(producer._wake.is_set()))
        may_answer.set()

        await within(5, last)
        assert woken == [True], "only the answer wakes the sender for the other leader"
        never.set()
        await results(sent)


async def test_drain_says_whether_batches_are_left():
    bench = Bench([0, 0], batch_size=1000, max_request_size=1500, linger_ms=0)
    bench.fill(0, batches=2)
    bench.fill(1, batches=1)

    [first], are_left_beyond_count = bench.drain_some(most=1)
    [second], are_left_beyond_size = bench.drain_some(most=9)

    assert [first.queue.partition, second.queue.partition] == [0, 1]
    assert are_left_beyond_count
    assert are_left_beyond_size
    assert bench.drain_some(most=9, may_send=lambda queue: False) == ([], False)
    while (drained := bench.drain_some(most=9))[1]:
        assert drained[0]
    assert bench.drain_some(most=9) == ([], False)


async def test_drain_takes_one_batch_of_a_partition_and_says_that_another_is_due():
    bench = Bench(linger_ms=LONG, batch_size=1000)
    bench.fill(0, batches=2)

    assert [bench.drain_some(most=9)[1] for _ in range(2)] == [True, False], "the open batch lingers"


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request has one batch per partition and begins where the last one stopped; a blocked partition does "
    "not delay the others; a first batch that is too large is sent alone",
)
async def test_batches_that_do_not_fit_into_a_request_are_first_in_the_next():
    settings = {"max_request_size": 3000, "batch_size": 2000}
    async with producing(topics={"t": 6}, **settings) as (cluster, producer):
        await producer.partitions_for("t")

        deliveries = [await producer.send("t", bytes(1000), partition=partition) for partition in range(6)]
        await offsets(deliveries)

        requests = [partitions_of(request) for request in cluster.requests_of(PRODUCE)]
        assert requests == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request has one batch per partition and begins where the last one stopped; a blocked partition does "
    "not delay the others; a first batch that is too large is sent alone",
)
async def test_a_first_batch_above_max_request_size_is_sent_alone():
    settings = {"max_request_size": 1100, "batch_size": 4000, "linger_ms": 20}
    async with producing(topics={"t": 3}, **settings) as (cluster, producer):
        await producer.partitions_for("t")
        producer._accumulator.batch_limit = 4000  # by default the smaller of the two settings

        deliveries = []
        for _ in range(3):
            for partition in range(3):
                deliveries.append(await producer.send("t", bytes(900), partition=partition))
        assert await offsets(deliveries) == [0, 0, 0, 1, 1, 1, 2, 2, 2]

        assert [partitions_of(request) for request in cluster.requests_of(PRODUCE)] == [[0], [1], [2]]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request has one batch per partition and begins where the last one stopped; a blocked partition does "
    "not delay the others; a first batch that is too large is sent alone",
)
async def test_a_blocked_partition_does_not_stop_its_neighbours():
    settings = {"retry_backoff_ms": 200_000 * MS, "retry_backoff_max_ms": 200_000 * MS}
    async with producing(topics={"t": 3}, **settings) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, partition=0)
        blocked = await producer.send("t", b"0", partition=0)
        await until(lambda: producer.metrics().errors)

        for number in range(3):
            for partition in (1, 2):
                await within(0.15, producer.send_and_wait("t", b"%d" % number, partition=partition))
        assert not blocked.done()
        assert (await within(1, blocked)).offset == 0


@pytest.mark.promise("Rules of Kafka's producer", "a record larger than `batch_size` has a batch of its own")
async def test_a_record_larger_than_a_batch_gets_its_own_batch():
    async with producing(batch_size=500, linger_ms=20) as (cluster, producer):
        await producer.partitions_for("t")
        deliveries = [await producer.send("t", bytes(size)) for size in (10, 10, 2000, 10, 10)]

        assert await offsets(deliveries) == [0, 1, 2, 3, 4]
        assert [batch.header.record_count for batch in cluster.batches("t", 0)] == [2, 1, 2]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "deliveries complete in the order of their appends; a failing callback does not prevent the others",
)
async def test_deliveries_of_a_batch_complete_in_order_and_a_failing_callback_stops_no_other():
    loop = asyncio.get_running_loop()
    raised = []
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    async with producing(linger_ms=10) as (_, producer):
        await producer.partitions_for("t")
        order = []

        def callback(number: int):
            def called(delivery) -> None:
                order.append(number)
                if number == 3:
                    raise ZeroDivisionError

            return called

        deliveries = await send_numbers(producer, range(8))
        for number in (5, 1, 0, 7, 3, 2, 6, 4):
            deliveries[number].add_done_callback(callback(number))
        await offsets(deliveries)
        await asyncio.sleep(0)

    assert order == list(range(8))
    assert [type(error) for error in raised] == [ZeroDivisionError]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a batch is compressed when it closes, numbered and checksummed when it is drained",
)
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_requests_are_packed_by_the_compressed_size(codec):
    settings = {
        "compression_type": codec,
        "max_request_size": 40_000,
        "batch_size": 30_000,
        "linger_ms": 60_000,
    }
    settings |= {"max_in_flight_requests_per_connection": 1, "delivery_timeout_ms": 120_000}
    async with producing(topics={"t": 11}, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"", partition=10)
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        held_back = asyncio.create_task(producer.send_and_wait("t", b"", partition=10))
        await within(1, held.reached())

        deliveries = []
        for _ in range(2):  # the second record of a partition closes its first batch
            deliveries += [await producer.send("t", bytes(25_000), partition=number) for number in range(10)]
        queues = [producer._accumulator._queues["t"][number] for number in range(10)]
        await until(lambda: not any(queue.batches[0].is_being_compressed for queue in queues))
        release.set()
        await within(1, held_back)
        await within(1, producer.flush())

        assert await offsets(deliveries) == [0] * 10 + [1] * 10
        assert [len(value) for value in values(cluster) if value] == [25_000] * 20
        packed = partitions_of(cluster.requests_of(PRODUCE)[2])
        assert packed == list(range(10)), "uncompressed, each would need its own request"


@pytest.mark.parametrize("size", [100, 50_000])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_survive_faults_in_order(codec, size):
    settings = {"compression_type": codec, "batch_size": 1, "max_request_size": 200_000}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, drop_after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)

        deliveries = [await producer.send("t", b"%d" % number * size) for number in range(1, 9)]
        found = await results(deliveries)

        failed = [number for number, end in enumerate(found, 1) if isinstance(end, BaseException)]
        assert len(failed) == 1
        log = [int(value[:1]) for value in values(cluster)]
        assert log == [number for number in range(9) if number not in failed] or log == list(range(9))


# --------------------------------------------------------------------------------------------- producer ids


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "the producer id is requested until a broker returns one, and batches are numbered consecutively",
)
async def test_the_producer_id_is_requested_until_one_is_obtained():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        asked = cluster.faults.add(INIT_PRODUCER_ID, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=5)
        cluster.faults.add(INIT_PRODUCER_ID, drop_before=True)
        async with quick_producer(cluster) as producer:
            deliveries = await send_numbers(producer, range(3))
            assert await offsets(deliveries) == [0, 1, 2]
            assert asked.is_used_up
            assert numbers(cluster) == [0, 1, 2]


async def test_a_rejected_producer_id_request_fails_waiting_records_and_is_repeated_for_later_ones():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.faults.add(INIT_PRODUCER_ID, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        async with quick_producer(cluster, linger_ms=20) as producer:
            await producer.partitions_for("t")
            found = await results(await send_numbers(producer, range(3)))
            errors = [end for end in found if isinstance(end, BaseException)]
            for error in errors:
                assert error.outcome is Outcome.NOT_PERSISTED
                assert "CLUSTER_AUTHORIZATION_FAILED" in str(error)

            assert (await within(1, producer.send_and_wait("t", b"3"))).offset == len(found) - len(errors)
        await assert_nothing_left(producer, cluster)


async def test_an_invalid_producer_id_is_not_used(monkeypatch):
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        ids = iter([-1, -7, 4711])
        monkeypatch.setattr(cluster, "next_producer_id", lambda: next(ids))
        async with quick_producer(cluster) as producer:
            await within(1, producer.send_and_wait("t", b"0"))

            assert cluster.batches("t", 0)[0].header.producer_id == 4711


async def test_the_same_bytes_are_sent_at_each_attempt():
    async with producing(compression_type="gzip") as (cluster, producer):
        cluster.faults.add(PRODUCE, drop_after_append=True, count=2)
        cluster.faults.add(PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT)

        await within(2, producer.send_and_wait("t", b"v" * 2000))

        headers = [request.batches["t", 0] for request in cluster.requests_of(PRODUCE) if request.batches]
        assert len(headers) >= 3
        assert len(set(headers)) == 1


@in_virtual_time
async def test_a_connection_error_says_whether_anything_was_written():
    async with producing(request_timeout_ms=30_000 * MS, delivery_timeout_ms=60_000 * MS) as (
        cluster,
        producer,
    ):
        cluster.faults.add(PRODUCE, drop_before=True, count=1000)

        error = await error_of(producer.send_and_wait("t", b"v"), 1)

        assert isinstance(error.last_error, BrokerConnectionError)
        assert error.outcome is Outcome.UNKNOWN
        assert values(cluster) == []
