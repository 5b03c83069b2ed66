"""The lifecycle of a producer: start and close, and which calls are allowed when."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aioproducer import CloseReport, Outcome, Producer, ProducerClosed
from aioproducer.errors import (
    BootstrapError,
    ConfigError,
    DeliveryError,
    DeliveryTimeoutError,
    IllegalStateError,
    MetadataTimeoutError,
    ProducerNotStartedError,
    WrongLoopError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.sending.lifecycle import MOST_TOPICS_NAMED
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    ONE_BATCH_PER_RECORD,
    assert_nothing_left,
    error_of,
    producing,
    quick_producer,
    results,
    send_numbers,
    send_to_a_re_created_topic,
    until,
    values,
    within,
)

# -------------------------------------------------------------------------------------------- start and close


@pytest.mark.promise("Public API", "a producer can be built anywhere, also with no running loop")
def test_a_producer_is_built_without_a_running_loop():
    producer = Producer("localhost:1", linger_ms=7)

    assert producer.config.linger == 0.007
    assert repr(producer) == "<Producer new localhost:1>"


@pytest.mark.promise("Public API", "a producer can be built anywhere, also with no running loop")
def test_a_producer_built_outside_of_a_loop_works_in_the_loop_that_starts_it():
    async def main() -> None:
        async with EmbeddedCluster(port=0, topics={"t": 1}) as cluster:
            producer = holder["producer"] = quick_producer(cluster)
            del producer
            async with holder["producer"] as producer:
                assert (await producer.send_and_wait("t", b"v")).offset == 0
            await assert_nothing_left(producer, cluster)

    holder: dict[str, Producer] = {}
    asyncio.run(main())


@pytest.mark.promise(
    "Public API", "a producer is started and closed by `start` and `stop`/`close`, or by `async with`"
)
@pytest.mark.promise("As a whole", "nothing is left after `close()`: no task, no socket, no reserved byte")
async def test_async_with_starts_flushes_and_closes():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        async with quick_producer(cluster, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
            delivery = await producer.send("t", b"v")

        assert delivery.done()
        assert values(cluster) == [b"v"]
        await assert_nothing_left(producer, cluster)


@pytest.mark.promise(
    "Public API", "a producer is started and closed by `start` and `stop`/`close`, or by `async with`"
)
async def test_start_and_stop_are_the_same_as_async_with():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster)
        await producer.start()
        delivery = await producer.send("t", b"v")
        report = await producer.stop()

        assert report == CloseReport(delivered=1, failed=0, unknown=0, unretrieved={})
        assert delivery.result().offset == 0
        await assert_nothing_left(producer, cluster)


@pytest.mark.promise(
    "Public API", "a producer is started and closed by `start` and `stop`/`close`, or by `async with`"
)
async def test_a_second_start_is_rejected_and_has_no_effect():
    async with producing() as (_, producer):
        with pytest.raises(IllegalStateError):
            await producer.start()

        assert (await producer.send_and_wait("t", b"v")).offset == 0


async def test_if_start_is_called_twice_at_the_same_time_one_call_is_rejected():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster)
        ends = await asyncio.gather(producer.start(), producer.start(), return_exceptions=True)

        assert ends[0] is None
        assert isinstance(ends[1], IllegalStateError)
        assert (await producer.send_and_wait("t", b"v")).offset == 0
        await producer.close()
        await assert_nothing_left(producer, cluster)


async def test_a_closed_producer_cannot_be_started_again():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster)
        async with producer:
            pass
        with pytest.raises(IllegalStateError):
            await producer.start()

        never_started = quick_producer(cluster)
        await never_started.close()
        with pytest.raises(IllegalStateError):
            await never_started.start()


async def calls(producer: Producer, builder) -> dict[str, BaseException | None]:
    """Make each public call; return the exceptions, or None, keyed by the call's name."""

    async def attempt(call):
        try:
            result = call()
            if asyncio.iscoroutine(result):
                await result
        except BaseException as error:
            return error
        return None

    return {
        "send": await attempt(lambda: producer.send("t", b"v")),
        "send to an unknown topic": await attempt(lambda: producer.send("unknown", b"v")),
        "send with a timeout": await attempt(lambda: producer.send("t", b"v", timeout=1)),
        "send_and_wait": await attempt(lambda: producer.send_and_wait("t", b"v")),
        "try_send": await attempt(lambda: producer.try_send("t", b"v")),
        "flush": await attempt(producer.flush),
        "partitions_for": await attempt(lambda: producer.partitions_for("t")),
        "partition_info": await attempt(lambda: producer.partition_info("t")),
        "create_batch": await attempt(producer.create_batch),
        "send_batch": await attempt(lambda: producer.send_batch(builder, "t", partition=0)),
    }


@pytest.mark.promise("Public API", "using a producer before its start or after its close is a clear error")
async def test_use_before_start_is_refused():
    producer = Producer("localhost:1")

    ends = await calls(producer, None)

    assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(ends, ProducerNotStartedError)
    assert producer.metrics().state == "new", "metrics can be read before the start"


@pytest.mark.promise("Public API", "using a producer before its start or after its close is a clear error")
async def test_use_while_start_is_under_way_is_refused():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.freeze_broker(0)
        producer = quick_producer(cluster)
        starting = asyncio.create_task(producer.start())
        await until(lambda: "running" in repr(producer))

        assert isinstance(await error_of(producer.send("t", b"v")), ProducerNotStartedError)

        cluster.thaw_broker(0)
        await within(2, starting)
        await producer.close()
        await assert_nothing_left(producer, cluster)


@pytest.mark.promise("Public API", "using a producer before its start or after its close is a clear error")
async def test_use_after_close_is_refused():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        async with quick_producer(cluster) as producer:
            await producer.send_and_wait("t", b"v")
            builder = producer.create_batch()
            builder.append(key=None, value=b"late")

        ends = await calls(producer, builder)

        assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(ends, ProducerClosed)
        assert {end.outcome for end in ends.values()} == {Outcome.NOT_PERSISTED}
        assert values(cluster) == [b"v"]
        assert producer.metrics().records_acked == 1, "the counters can still be read"


async def test_use_after_close_of_a_producer_that_never_started_is_refused():
    producer = Producer("localhost:1")

    assert await producer.close() == CloseReport(0, 0, 0, {})
    ends = await calls(producer, None)

    assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(ends, ProducerClosed)
    assert producer.metrics().state == "closed"


@pytest.mark.promise("Public API", "using a producer from another loop or thread is a clear error")
async def test_use_in_another_loop_is_refused():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"v")
        builder = producer.create_batch()
        builder.append(key=None, value=b"late")

        ends = await asyncio.to_thread(asyncio.run, calls(producer, builder))

        assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(ends, WrongLoopError)
        await producer.flush()
        assert values(cluster) == [b"v"]


async def test_close_in_another_loop_is_rejected_and_has_no_effect():
    async with producing() as (cluster, producer):
        end = await asyncio.to_thread(asyncio.run, error_of_close(producer))

        assert isinstance(end, WrongLoopError)
        await within(1, producer.send_and_wait("t", b"v"))
        assert values(cluster) == [b"v"]


async def error_of_close(producer: Producer) -> BaseException | None:
    try:
        await producer.close()
    except BaseException as error:
        return error
    return None


@pytest.mark.promise("Public API", "using a producer from another loop or thread is a clear error")
async def test_use_in_a_thread_without_a_loop_is_refused():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"v")
        ends: list[BaseException] = []

        def use() -> None:
            for call in (
                lambda: producer.try_send("t", b"v"),
                lambda: producer.send("t", b"v").send(None),
                producer.create_batch,
            ):
                try:
                    call()
                except Exception as error:
                    ends.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()

        assert [type(end) for end in ends] == [WrongLoopError] * 3
        await producer.flush()
        assert values(cluster) == [b"v"]


@in_virtual_time
async def test_start_without_a_cluster_names_each_address_and_leaves_nothing_behind():
    async with EmbeddedCluster() as cluster:
        dead = cluster.bootstrap_servers
    producer = quick_producer(dead, max_block_ms=50)

    with pytest.raises(BootstrapError, match=dead):
        await producer.start()

    await assert_nothing_left(producer)
    assert isinstance(await error_of(producer.send("t", b"v")), ProducerClosed)


@pytest.mark.promise("Rules of Kafka's producer", "`max_block_ms` is one budget for metadata and room")
async def test_a_producer_whose_send_never_waits_can_still_start():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        async with quick_producer(cluster, max_block_ms=0, request_timeout_ms=3_000_000 * MS) as producer:
            assert isinstance(await error_of(producer.send("t", b"too soon")), MetadataTimeoutError)
            await until(lambda: producer._metadata.topic("t"))
            await producer.send_and_wait("t", b"v")

        assert values(cluster) == [b"v"]


@pytest.mark.promise(
    "Rules of Kafka's producer", "a connection's states are a table, each step is bounded by the set-up time"
)
async def test_each_step_of_a_connection_is_limited_by_the_setup_timeout():
    async with EmbeddedCluster() as cluster:
        cluster.freeze_broker(0)
        producer = quick_producer(cluster, max_block_ms=60_000, socket_connection_setup_timeout_ms=50)
        starting = asyncio.create_task(producer.start())
        await until(lambda: producer._metrics.node(-1).connect_failures >= 2)

        starting.cancel()
        await asyncio.wait([starting])

        await assert_nothing_left(producer, cluster)


async def test_a_cancelled_start_leaves_nothing_behind_and_closes_the_producer():
    async with EmbeddedCluster() as cluster:
        cluster.freeze_broker(0)
        producer = quick_producer(cluster)
        starting = asyncio.create_task(producer.start())
        await until(lambda: producer._brokers._tasks if "running" in repr(producer) else False)

        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

        await assert_nothing_left(producer, cluster)


# -------------------------------------------------------------------------------------------- close


@pytest.mark.promise("Public API", "`close()` reports how many records were delivered, failed and unknown")
async def test_close_reports_delivered_failed_and_unknown():
    async with EmbeddedCluster(topics={"good": 1, "bad": 1, "dark": 1}) as cluster:
        async with quick_producer(cluster) as producer:
            good = await send_numbers(producer, range(3), "good")
            cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD, topic="bad")
            bad = await send_numbers(producer, range(2), "bad")
            cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.UNKNOWN_SERVER_ERROR, topic="dark")
            dark = await send_numbers(producer, range(4), "dark")
            await results([*good, *bad, *dark])

        report = await producer.close()

        assert report == CloseReport(delivered=3, failed=2, unknown=4, unretrieved={})
        await assert_nothing_left(producer, cluster)


@pytest.mark.promise("Public API", "`close()` reports how many records were delivered, failed and unknown")
async def test_every_close_returns_the_same_report():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster)
        await producer.start()
        await producer.send("t", b"v")

        first, second = await asyncio.gather(producer.close(), producer.close())
        third = await producer.close()

        assert first == second == third == CloseReport(1, 0, 0, {})


@pytest.mark.promise("Public API", "`close()` has a finite default")
@in_virtual_time
async def test_close_has_a_finite_default():
    settings = {"request_timeout_ms": 50_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"first")
        cluster.freeze_broker(0)
        delivery = await producer.send("t", b"never answered")

        report = await within(1, producer.close())

        assert (report.delivered, report.unknown) == (1, 1)
        assert isinstance(delivery.exception(), DeliveryTimeoutError)
        assert delivery.exception().outcome is Outcome.UNKNOWN


@pytest.mark.promise("Public API", "`close()` has a finite default")
async def test_close_with_timeout_zero_is_quick_and_honest_about_a_frozen_broker():
    async with producing(**ONE_BATCH_PER_RECORD, delivery_timeout_ms=60_000) as (cluster, producer):
        await producer.send_and_wait("t", b"first")
        cluster.freeze_broker(0)
        in_flight = await send_numbers(producer, range(5))
        await until(lambda: producer.metrics().in_flight == 5)
        unsent = await send_numbers(producer, range(5, 8))

        report = await within(0.5, producer.close(timeout=0))

        assert (report.delivered, report.failed, report.unknown) == (1, 3, 5)
        assert {delivery.exception().outcome for delivery in in_flight} == {Outcome.UNKNOWN}
        assert {delivery.exception().outcome for delivery in unsent} == {Outcome.NOT_PERSISTED}
        await assert_nothing_left(producer)
        cluster.thaw_broker(0)


@pytest.mark.promise("Public API", "`close()` has a finite default")
async def test_close_waits_no_longer_than_its_timeout():
    async with producing(delivery_timeout_ms=60_000) as (cluster, producer):
        await producer.send_and_wait("t", b"first")
        cluster.freeze_broker(0)
        delivery = await producer.send("t", b"v")
        loop = asyncio.get_running_loop()
        began = loop.time()

        report = await within(1, producer.close(timeout=50 * MS))

        assert loop.time() - began >= 49 * MS
        assert report.unknown == 1
        assert delivery.exception().outcome is Outcome.UNKNOWN
        await assert_nothing_left(producer)
        cluster.thaw_broker(0)


@pytest.mark.promise("Public API", "`close()` reports how many records were delivered, failed and unknown")
async def test_close_counts_unretrieved_failures():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster, delivery_timeout_ms=60_000)
        await producer.start()
        await producer.send_and_wait("t", b"first")
        cluster.freeze_broker(0)
        await producer.send("t", b"in flight")
        await until(lambda: producer.metrics().in_flight == 1)
        await producer.send("t", b"unsent")

        report = await producer.close(timeout=0)

        assert report.unretrieved == {("t", "DeliveryError"): 2}
        cluster.thaw_broker(0)


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "after a wait for room the last batch is tried again; close fails all waiters as NOT_PERSISTED",
)
async def test_close_fails_callers_that_wait_for_room_as_not_persisted():
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        for _ in range(4):
            await producer.send("t", bytes(LARGE))
        waiting = [asyncio.create_task(producer.send("t", bytes(LARGE))) for _ in range(3)]
        await until(lambda: producer.metrics().buffer_waiters == 3)

        closing = asyncio.create_task(producer.close(timeout=1))
        ends = await within(0.5, asyncio.gather(*waiting, return_exceptions=True))

        assert [type(end) for end in ends] == [ProducerClosed] * 3
        assert {end.outcome for end in ends} == {Outcome.NOT_PERSISTED}
        cluster.thaw_broker(0)
        assert (await within(2, closing)).delivered == 4
        assert len(values(cluster)) == 4


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "after a wait for room the last batch is tried again; close fails all waiters as NOT_PERSISTED",
)
async def test_close_fails_callers_that_wait_for_metadata_as_not_persisted():
    async with producing(cluster={"auto_create": False}) as (cluster, producer):
        waiting = [asyncio.create_task(producer.send("unknown", b"v")) for _ in range(3)]
        waiting.append(asyncio.create_task(producer.send("t", b"v", partition=7)))
        await until(lambda: len(cluster.requests_of(ApiKey.METADATA)) >= 3)

        closing = asyncio.create_task(producer.close())
        ends = await within(0.5, asyncio.gather(*waiting, return_exceptions=True))

        assert [type(end) for end in ends] == [ProducerClosed] * 4
        assert {end.outcome for end in ends} == {Outcome.NOT_PERSISTED}
        assert len({id(end) for end in ends}) == 4, "each caller has its own error, with its own traceback"
        await within(1, closing)


async def test_close_while_a_serializer_works_rejects_its_record():
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(value: bytes) -> bytes:
        started.set()
        await go_on.wait()
        return value

    async with producing(value_serializer=slow) as (cluster, producer):
        sending = asyncio.create_task(producer.send("t", b"v"))
        await within(1, started.wait())
        await within(1, producer.close())
        go_on.set()

        error = await error_of(sending, 1)

        assert isinstance(error, ProducerClosed)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert values(cluster) == []


async def test_close_while_start_is_under_way_ends_both():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.freeze_broker(0)
        producer = quick_producer(cluster, max_block_ms=60_000)
        starting = asyncio.create_task(producer.start())
        await until(lambda: "running" in repr(producer) and producer._brokers._tasks)

        await within(1, producer.close())
        await within(1, asyncio.wait([starting]))

        assert isinstance(starting.exception(), ProducerClosed | BootstrapError)
        await assert_nothing_left(producer, cluster)


@pytest.mark.promise("Public API", "leaving `async with` by an exception aborts quickly")
async def test_async_with_left_by_an_exception_does_not_wait_for_the_brokers():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster, delivery_timeout_ms=60_000)
        deliveries = []

        async def work() -> None:
            async with producer:
                await producer.send_and_wait("t", b"first")
                cluster.freeze_broker(0)
                deliveries.append(await producer.send("t", b"v"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await within(0.5, work())

        assert isinstance(deliveries[0].exception(), DeliveryError)
        await assert_nothing_left(producer)
        cluster.thaw_broker(0)


@pytest.mark.promise("Public API", "leaving `async with` by an exception aborts quickly")
async def test_a_cancelled_task_leaves_async_with_quickly():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster, delivery_timeout_ms=60_000)
        stuck = asyncio.Event()

        async def work() -> None:
            async with producer:
                await producer.send_and_wait("t", b"first")
                cluster.freeze_broker(0)
                await producer.send("t", b"v")
                stuck.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await within(1, stuck.wait())
        task.cancel()
        await within(0.5, asyncio.wait([task]))

        assert task.cancelled()
        await assert_nothing_left(producer)
        cluster.thaw_broker(0)


async def test_cancelling_close_gives_up_the_remaining_records_and_the_next_close_reports_them():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster, delivery_timeout_ms=60_000)
        await producer.start()
        await producer.send_and_wait("t", b"first")
        cluster.freeze_broker(0)
        delivery = await producer.send("t", b"v")
        closing = asyncio.create_task(producer.close())
        await until(lambda: "closing" in repr(producer))

        closing.cancel()
        await within(0.5, asyncio.wait([closing]))

        assert closing.cancelled()
        assert delivery.exception().outcome is Outcome.UNKNOWN
        assert (await producer.close()).unknown == 1
        await assert_nothing_left(producer)
        cluster.thaw_broker(0)


async def test_a_sender_that_ends_because_of_a_bug_fails_all_records_immediately(caplog):
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster, linger_ms=20, delivery_timeout_ms=60_000)
        await producer.start()
        await producer.partitions_for("t")
        delivery = await producer.send("t", b"v")

        def bug(now: float) -> float:
            raise AssertionError("a bug")

        producer._sender._pass = bug

        error = await error_of(delivery, 1)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert isinstance(await error_of(producer.send("t", b"v")), ProducerClosed)
        assert (await within(1, producer.close())).failed == 1
        assert "ended unexpectedly" in caplog.text
        await assert_nothing_left(producer, cluster)


@in_virtual_time
async def test_the_log_of_an_unclosed_producer_counts_a_record_that_a_deleted_topic_may_contain_as_unknown(
    caplog,
):
    async with producing(cluster={"versions": "4.1"}) as (cluster, producer):
        await send_to_a_re_created_topic(cluster, producer, 1)

        producer._report_unclosed("it was garbage-collected")

        assert (
            "before 1 accepted record had a result: 0 were not sent and are lost, 1 may be in the log"
            in caplog.text
        )


# ---------------------------------------------------------------------------------------- leaving `async with`


@pytest.mark.promise(
    "Public API",
    "the end of `async with` waits up to `close_timeout_ms`, and reports the records that it abandons",
)
async def test_the_end_of_async_with_waits_for_close_timeout_ms_and_logs_what_it_gives_up(caplog):
    async with EmbeddedCluster(1, topics={"t": 1, "u": 1}) as cluster:
        producer = quick_producer(cluster, close_timeout_ms=100)
        began = asyncio.get_running_loop().time()
        async with producer:
            await producer.partitions_for("u")
            await producer.partitions_for("t")
            cluster.freeze_broker(0)
            sent = [await producer.send(topic, b"v") for topic in ("t", "t", "u")]
        waited = asyncio.get_running_loop().time() - began

        assert 0.1 <= waited < 3000 * MS
        assert (await producer.close()).unknown == 3
        assert {type(delivery.exception()) for delivery in sent} == {DeliveryError}
        [(level, line)] = [
            (record.levelname, record.getMessage())
            for record in caplog.records
            if "stopped waiting" in record.getMessage()
        ]
        assert level == "ERROR"
        assert "before 3 records were acknowledged" in line
        assert "2 for topic t, 1 for topic u." in line
        assert "close_timeout_ms (100)" in line
        await assert_nothing_left(producer)


@pytest.mark.parametrize(("count", "others"), [(11, "1 more topic."), (12, "2 more topics.")])
async def test_the_end_of_async_with_names_at_most_ten_topics(caplog, count, others):
    topics = {f"t{number}": 1 for number in range(count)}
    async with EmbeddedCluster(1, topics=topics) as cluster:
        async with quick_producer(cluster, close_timeout_ms=10) as producer:
            for topic in topics:
                await producer.partitions_for(topic)
            cluster.freeze_broker(0)
            for topic in topics:
                await producer.send(topic, b"v")

    [line] = [message for message in caplog.messages if "stopped waiting" in message]
    assert line.count(" for topic ") == MOST_TOPICS_NAMED == 10
    assert f"the others for {others}" in line


async def test_close_returns_what_it_gives_up_and_does_not_log_it(caplog):
    async with producing() as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        delivery = await producer.send("t", b"v")

        assert (await producer.close(timeout=10 * MS)).unknown == 1

        assert delivery.exception() is not None
        assert "stopped waiting" not in caplog.text


async def test_the_end_of_async_with_logs_nothing_if_it_gives_up_no_record(caplog):
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        async with quick_producer(cluster) as producer:
            delivery = await producer.send("t", b"v")

    assert delivery.result().offset == 0
    assert "stopped waiting" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 25),
        ({"close_timeout_ms": 60_000}, 60),
        ({"request_timeout_ms": 5000, "delivery_timeout_ms": 10_000}, 10),
    ],
)
@in_virtual_time
async def test_the_end_of_async_with_waits_25_seconds_unless_records_may_not_live_as_long(settings, seconds):
    settings = {"request_timeout_ms": 90_000, "delivery_timeout_ms": 120_000, **settings}
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await producer.partitions_for("t")
            cluster.freeze_broker(0)
            await producer.send("t", b"v")
            began = asyncio.get_running_loop().time()
        took = asyncio.get_running_loop().time() - began

    assert took == pytest.approx(seconds, abs=0.1)


def test_close_timeout_must_not_be_negative():
    with pytest.raises(ConfigError, match="close_timeout_ms"):
        Producer(close_timeout_ms=-1)
