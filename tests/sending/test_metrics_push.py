"""Metrics that are pushed to brokers (KIP-714), on the embedded cluster, mostly in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, MetricsData

from aioproducer import Producer
from aioproducer.errors import IllegalStateError, InvalidArgumentError, KafkaTimeoutError
from aioproducer.observe.otlp import metrics_data
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.compression import Codec
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import GetTelemetrySubscriptionsResponse
from aioproducer.sending.metrics_push import DEFAULT_INTERVAL, Subscription
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from aioproducer.testing.embedded.telemetry import Push
from tests.conftest import in_virtual_time
from tests.support.log_lines import log_lines
from tests.support.producing import assert_nothing_left, quick_producer

PATIENT = {"request_timeout_ms": 30_000, "max_block_ms": 60_000, "delivery_timeout_ms": 120_000}
SUBSCRIBE, PUSH = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY
REQUIRED = {
    "connection.creation.rate",
    "connection.creation.total",
    "node.request.latency.avg",
    "node.request.latency.max",
    "produce.throttle.time.avg",
    "produce.throttle.time.max",
    "record.queue.time.avg",
    "record.queue.time.max",
}
"""The producer metrics that KIP-714 requires of each client."""


@asynccontextmanager
async def collecting(
    *metrics: str, brokers: int = 1, subscription: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """A cluster that asks for metrics, and a started producer."""
    async with EmbeddedCluster(brokers, topics={"orders": 1}, collects_metrics=True) as cluster:
        cluster.telemetry.subscribe(metrics, **{"interval_ms": 60_000, **(subscription or {})})
        producer = quick_producer(cluster, **{**PATIENT, **settings})
        await producer.start()
        try:
            yield cluster, producer
        finally:
            await producer.close()
        await assert_nothing_left(producer, cluster)


@asynccontextmanager
async def pushing_to_a_frozen_broker() -> AsyncIterator[Producer]:
    """A producer whose broker asked for metrics and no longer answers."""
    async with EmbeddedCluster(1, topics={"orders": 1}, collects_metrics=True) as cluster:
        cluster.telemetry.subscribe([""], interval_ms=60_000)
        producer = quick_producer(cluster, **PATIENT)
        await producer.start()
        await producer.send_and_wait("orders", b"v")
        await later(lambda: cluster.telemetry.pushes, 120)
        cluster.freeze_broker(0)
        yield producer
        cluster.thaw_broker(0)


async def later(condition: Callable[[], object], seconds: float) -> None:
    """Wait until the condition holds. The steps are long, since the tests wait for minutes of virtual time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the conditions set no event
            await asyncio.sleep(0.1)


def values(push: Push) -> dict[str, dict[str, float]]:
    """Return the values of each metric, keyed by their attributes."""
    return {
        metric.name: {
            ",".join(attribute.value.string_value for attribute in point.attributes): point.as_double
            for point in (metric.sum.data_points or metric.gauge.data_points)
        }
        for resource in MetricsData.FromString(push.data).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def short(push: Push) -> dict[str, dict[str, float]]:
    """Return the same values without the prefix that all metric names of Java's producer have."""
    return {name.removeprefix("org.apache.kafka.producer."): found for name, found in values(push).items()}


# ------------------------------------------------------------------------------------------------ pushed metrics


@pytest.mark.promise(
    "Observability", "KIP-714: brokers get the metrics that they ask for, under Java's names"
)
@in_virtual_time
async def test_all_metrics_are_pushed_under_javas_names():
    async with collecting("", client_id="shop") as (cluster, producer):
        for _ in range(5):
            await producer.send_and_wait("orders", b"v")
        await later(lambda: cluster.telemetry.pushes, 120)
        [push] = cluster.telemetry.pushes
        assert push.client_id == "shop"
        assert push.client_instance_id == await producer.client_instance_id()

    found = short(push)
    assert set(found) >= REQUIRED
    assert all(name.startswith("org.apache.kafka.producer.") for name in values(push))
    assert found["record.send.total"] == {"": 5.0}
    assert found["topic.record.send.total"] == {"orders": 5.0}
    assert found["record.error.total"] == {"": 0.0}
    assert found["node.request.latency.max"]["node-0"] >= found["node.request.latency.avg"]["node-0"]
    assert found["buffer.total.bytes"] == {"": producer.config.buffer_memory}


@in_virtual_time
async def test_only_metrics_with_a_requested_prefix_are_pushed():
    wanted = "org.apache.kafka.producer.topic."
    async with collecting(wanted, "org.apache.kafka.producer.record.send.total") as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        await later(lambda: cluster.telemetry.pushes, 120)
    found = values(cluster.telemetry.pushes[0])
    assert "org.apache.kafka.producer.topic.record.send.total" in found
    assert {name for name in found if not name.startswith(wanted)} == {
        "org.apache.kafka.producer.record.send.total"
    }


@pytest.mark.parametrize("is_delta", [True, False])
def test_counters_count_since_the_last_push_or_since_the_start_as_asked(is_delta):
    pushes: list[Push] = []

    @in_virtual_time
    async def play() -> None:
        async with collecting("", subscription={"is_delta": is_delta}) as (cluster, producer):
            for number in range(1, 4):
                await producer.send_and_wait("orders", b"v")
                await later(lambda number=number: len(cluster.telemetry.pushes) == number, 120)
            pushes.extend(cluster.telemetry.pushes)

    play()

    counts = [short(push)["record.send.total"][""] for push in pushes]
    assert counts == ([1, 1, 1] if is_delta else [1, 2, 3])
    metric = next(
        metric
        for metric in MetricsData.FromString(pushes[1].data).resource_metrics[0].scope_metrics[0].metrics
        if metric.name.endswith("producer.record.send.total")
    )
    temporality = AggregationTemporality.Value(
        "AGGREGATION_TEMPORALITY_DELTA" if is_delta else "AGGREGATION_TEMPORALITY_CUMULATIVE"
    )
    assert metric.sum.aggregation_temporality == temporality
    point = metric.sum.data_points[0]
    length = (point.time_unix_nano - point.start_time_unix_nano) / 1e9
    assert length == pytest.approx(60, abs=1) if is_delta else length > 80


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY, None])
def test_pushes_are_compressed_as_the_broker_prefers(codec):
    @in_virtual_time
    async def play() -> None:
        accepted = [] if codec is None else [codec, Codec.GZIP]
        async with collecting("", subscription={"accepted": accepted}) as (cluster, _):
            await later(lambda: cluster.telemetry.pushes, 120)
            [push] = cluster.telemetry.pushes
            assert push.codec == (codec or Codec.NONE)
            assert set(short(push)) >= {"connection.creation.total"}

    play()


@in_virtual_time
async def test_the_transactional_id_is_an_attribute_of_the_client():
    async with collecting("", transactional_id="tx") as (cluster, producer):
        async with producer.transaction():
            await producer.send("orders", b"v")
        await later(lambda: cluster.telemetry.pushes, 120)
    data = MetricsData.FromString(cluster.telemetry.pushes[0].data)
    [attribute] = data.resource_metrics[0].resource.attributes
    assert (attribute.key, attribute.value.string_value) == ("transactional_id", "tx")
    assert short(cluster.telemetry.pushes[0])["txn.commit.time.ns.total"][""] > 0


@in_virtual_time
async def test_a_metric_of_the_user_is_pushed_and_one_that_raises_is_removed(caplog):
    async with collecting("com.example.", "org.apache.kafka.producer.record.send.total") as (
        cluster,
        producer,
    ):
        producer.register_metric("com.example.orders.open", lambda: 17)
        producer.register_metric("com.example.broken", lambda: 1 / 0)
        producer.register_metric("org.other", lambda: 1)
        await later(lambda: cluster.telemetry.pushes, 120)
        producer.unregister_metric("com.example.orders.open")
        producer.unregister_metric("com.example.orders.open")
        await later(lambda: len(cluster.telemetry.pushes) == 2, 120)
    first, second, *_ = cluster.telemetry.pushes
    assert set(values(first)) == {"com.example.orders.open", "org.apache.kafka.producer.record.send.total"}
    assert values(first)["com.example.orders.open"] == {"": 17.0}
    assert set(values(second)) == {"org.apache.kafka.producer.record.send.total"}
    assert (
        len([line for line in log_lines(caplog, logging.WARNING) if "com.example.broken raised" in line]) == 1
    )


# ----------------------------------------------------------------------------------------------- the times of pushes


@in_virtual_time
async def test_the_first_push_is_jittered_and_the_others_follow_the_interval():
    async with collecting("") as (cluster, _):
        began = asyncio.get_running_loop().time()
        await later(lambda: len(cluster.telemetry.pushes) == 4, 400)
    first, *others = [push.at for push in cluster.telemetry.pushes[:4]]
    assert 30 <= first - began <= 90
    gaps = [later - earlier for earlier, later in zip([first, *others], others, strict=False)]
    assert gaps == pytest.approx([60, 60, 60], abs=0.5)


@in_virtual_time
async def test_close_pushes_the_last_metrics():
    async with collecting("") as (cluster, producer):
        await later(lambda: cluster.telemetry.pushes, 120)
        await producer.send_and_wait("orders", b"v")
    last = cluster.telemetry.pushes[-1]
    assert last.is_last
    assert short(last)["record.send.total"] == {"": 1.0}


@in_virtual_time
async def test_close_waits_for_the_push_in_flight_and_counts_its_records_once():
    subscription = {"is_delta": True, "interval_ms": 1000}
    async with collecting("", subscription=subscription) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        answer = asyncio.Event()
        fault = cluster.faults.add(PUSH, hold=answer)
        await fault.reached()
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        answer.set()
        await closing
    pushed = [short(push).get("record.send.total", {}).get("", 0.0) for push in cluster.telemetry.pushes]
    assert (pushed, cluster.telemetry.pushes[-1].is_last) == ([1.0, 0.0], True)


@in_virtual_time
async def test_no_push_is_made_while_close_waits_for_the_answer_to_the_last_one():
    async with collecting("", subscription={"interval_ms": 100}) as (cluster, _):
        await later(lambda: cluster.telemetry.pushes, 120)
        cluster.faults.add(PUSH, delay=0.8)
        before = len(cluster.requests_of(PUSH))
    assert len(cluster.requests_of(PUSH)) == before + 1
    assert cluster.telemetry.pushes[-1].is_last


@pytest.mark.parametrize(("timeout", "most"), [(None, 1), (30, 1), (0.3, 0.3)])
@in_virtual_time
async def test_close_waits_for_the_last_push_for_a_second_at_most_within_its_timeout(timeout, most):
    async with pushing_to_a_frozen_broker() as producer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await producer.close(timeout=timeout)
        assert loop.time() - began == pytest.approx(most, abs=0.01)


@in_virtual_time
async def test_a_cancelled_close_does_not_wait_for_the_last_push():
    async with pushing_to_a_frozen_broker() as producer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await producer.close()
        assert loop.time() - began == pytest.approx(0.5, abs=0.01)


def test_a_last_push_that_fails_is_not_blamed_on_the_records(caplog, monkeypatch):
    def broken(*_: object, **__: object) -> bytes:
        raise RuntimeError("no bytes")

    @in_virtual_time
    async def play() -> None:
        async with collecting("") as (cluster, _):
            await later(lambda: cluster.telemetry.pushes, 120)
            monkeypatch.setattr("aioproducer.sending.metrics_push.metrics_data", broken)

    play()
    assert log_lines(caplog, logging.ERROR) == ["the last metrics could not be pushed"]


@in_virtual_time
async def test_a_close_without_time_pushes_nothing():
    async with EmbeddedCluster(1, collects_metrics=True) as cluster:
        cluster.telemetry.subscribe([""], interval_ms=60_000)
        producer = quick_producer(cluster, **PATIENT)
        await producer.start()
        await later(lambda: cluster.telemetry.pushes, 120)
        await producer.close(timeout=0)
        assert len(cluster.telemetry.pushes) == 1


# ------------------------------------------------------------------------------------------------ subscriptions


@in_virtual_time
async def test_a_changed_subscription_is_learned_from_the_answer_to_a_push():
    async with collecting("") as (cluster, _):
        await later(lambda: cluster.telemetry.pushes, 120)
        cluster.telemetry.subscribe(["org.apache.kafka.producer.request.total"], interval_ms=10_000)
        await later(lambda: len(cluster.telemetry.pushes) == 3, 120)
    assert set(short(cluster.telemetry.pushes[1])) == {"request.total"}
    assert cluster.telemetry.pushes[2].at - cluster.telemetry.pushes[1].at == pytest.approx(10, abs=0.5)
    assert len(cluster.requests_of(SUBSCRIBE)) == 2


@in_virtual_time
async def test_a_producer_started_before_its_cluster_subscribes_as_soon_as_a_broker_answers():
    async with EmbeddedCluster(1, topics={"orders": 1}, collects_metrics=True) as cluster:
        cluster.telemetry.subscribe([""], interval_ms=60_000)
        cluster.crash_broker(0, down_for=25)
        producer = quick_producer(cluster, **PATIENT)
        await producer.start(wait=False)
        with pytest.raises(KafkaTimeoutError):
            await producer.client_instance_id(timeout=20)
        assert isinstance(await producer.client_instance_id(timeout=10), UUID)
        await later(lambda: cluster.telemetry.pushes, 120)
        await producer.close()
        await assert_nothing_left(producer, cluster)


@in_virtual_time
async def test_while_no_metric_is_requested_nothing_is_pushed_and_the_subscription_is_queried_again():
    async with collecting() as (cluster, producer):
        assert isinstance(await producer.client_instance_id(), UUID)
        await asyncio.sleep(150)
        assert len(cluster.requests_of(SUBSCRIBE)) == 3
        ids = {request.message.client_instance_id for request in cluster.requests_of(SUBSCRIBE)[1:]}
        assert ids == {await producer.client_instance_id()}
        cluster.telemetry.subscribe([""], interval_ms=60_000)
        await later(lambda: cluster.telemetry.pushes, 200)
    assert len({push.client_instance_id for push in cluster.telemetry.pushes}) == 1


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 0.0),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 0.0),
        (ErrorCode.TELEMETRY_TOO_LARGE, 60.0),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 60.0),
    ],
)
def test_a_rejected_push_causes_a_new_query_of_the_subscription(error, again):
    @in_virtual_time
    async def play() -> None:
        async with collecting("") as (cluster, _):
            cluster.faults.add(PUSH, error=error)
            await later(lambda: len(cluster.requests_of(SUBSCRIBE)) == 2, 200)
            refused, asked = cluster.requests_of(PUSH)[0].at, cluster.requests_of(SUBSCRIBE)[1].at
            assert asked - refused == pytest.approx(again, abs=0.5)
            await later(lambda: cluster.telemetry.pushes, 120)

    play()


@pytest.mark.parametrize("api", [SUBSCRIBE, PUSH])
@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_VERSION]
)
def test_a_request_that_a_broker_calls_invalid_is_not_repeated(api, error):
    @in_virtual_time
    async def play() -> None:
        async with collecting("") as (cluster, producer):
            cluster.faults.add(api, error=error, count=1000)
            await asyncio.sleep(1000)
            assert len(cluster.requests_of(api)) == 1
            assert (await producer.send_and_wait("orders", b"v")).offset == 0

    play()


@in_virtual_time
async def test_an_error_or_a_lost_connection_only_skips_a_push():
    async with collecting("") as (cluster, producer):
        cluster.faults.add(PUSH, error=ErrorCode.UNKNOWN_SERVER_ERROR)
        cluster.faults.add(PUSH, drop_before=True)
        await producer.send_and_wait("orders", b"v")
        await later(lambda: cluster.telemetry.pushes, 400)
        assert len(cluster.requests_of(PUSH)) == 3
    assert short(cluster.telemetry.pushes[0])["record.send.total"] == {"": 1.0}, "nothing is left out"


@in_virtual_time
async def test_metrics_that_are_too_large_are_not_sent():
    async with collecting("", subscription={"most_bytes": 10}) as (cluster, producer):
        await asyncio.sleep(300)
        assert cluster.requests_of(PUSH) == []
        assert (await producer.send_and_wait("orders", b"v")).offset == 0


# ----------------------------------------------------------------------------------------------- without pushes


@in_virtual_time
async def test_a_cluster_that_collects_no_metrics_gets_no_requests():
    async with (
        EmbeddedCluster(1, topics={"orders": 1}) as cluster,
        quick_producer(cluster, **PATIENT) as producer,
    ):
        await asyncio.sleep(2 * DEFAULT_INTERVAL)
        assert cluster.requests_of(SUBSCRIBE) == []
        with pytest.raises(KafkaTimeoutError, match="do not collect client metrics"):
            await producer.client_instance_id(timeout=3)


@in_virtual_time
async def test_pushing_can_be_switched_off():
    async with collecting("", enable_metrics_push=False) as (cluster, producer):
        await asyncio.sleep(200)
        assert cluster.requests_of(SUBSCRIBE) == []
        with pytest.raises(IllegalStateError, match="enable_metrics_push"):
            await producer.client_instance_id()


def test_a_subscription_uses_a_known_codec_and_a_sensible_interval():
    response = GetTelemetrySubscriptionsResponse(
        subscription_id=7,
        accepted_compression_types=[99, 2, 4],
        push_interval_ms=-5,
        telemetry_max_bytes=100,
        requested_metrics=["a.b", "*"],
    )
    subscription = Subscription.of(response)
    assert subscription.codec is Codec.SNAPPY
    assert subscription.interval > 0
    assert subscription.wants("anything")
    assert not subscription._replace(prefixes=("a.b",)).wants("a.c")


# --------------------------------------------------------------------------------------- records are never disturbed


@pytest.mark.parametrize("name", [5, None, "", "a\ud800", b"bytes"])
async def test_a_metric_needs_a_name_that_can_be_sent(name):
    async with RecordingProducer() as producer:
        with pytest.raises(InvalidArgumentError, match="name") as raised:
            producer.register_metric(name, lambda: 1.0)
    assert raised.value.argument == "name"


async def test_a_metric_needs_a_function_that_reads_it():
    async with RecordingProducer() as producer:
        with pytest.raises(InvalidArgumentError, match="read must be a function") as raised:
            producer.register_metric("com.example.open", 5)
    assert raised.value.argument == "read"


@in_virtual_time
async def test_a_metric_that_unregisters_itself_and_raises_only_ends_itself(caplog):
    async with collecting("com.example.", subscription={"interval_ms": 1000}) as (cluster, producer):

        def read() -> float:
            producer.unregister_metric("com.example.once")
            raise ValueError("once")

        producer.register_metric("com.example.once", read)
        producer.register_metric("com.example.open", lambda: 17)
        await later(lambda: len(cluster.telemetry.pushes) == 2, 120)
        assert producer.health().ok
        assert set(values(cluster.telemetry.pushes[1])) == {"com.example.open"}
    assert len([line for line in log_lines(caplog, logging.WARNING) if "once raised" in line]) == 1


@in_virtual_time
async def test_a_metric_that_itself_raises_a_cancellation_is_removed(caplog):
    def read() -> float:
        raise asyncio.CancelledError

    async with collecting("com.example.", subscription={"interval_ms": 1000}) as (cluster, producer):
        producer.register_metric("com.example.cancelled", read)
        producer.register_metric("com.example.open", lambda: 17)
        await later(lambda: len(cluster.telemetry.pushes) == 2, 120)
        assert set(values(cluster.telemetry.pushes[0])) == {"com.example.open"}
    assert len([line for line in log_lines(caplog, logging.WARNING) if "cancelled raised" in line]) == 1


@in_virtual_time
async def test_a_push_that_fails_unexpectedly_is_logged_and_repeated_and_leaves_the_records_alone(
    caplog, monkeypatch
):
    fails = True

    def broken(*given: Any, **options: Any) -> bytes:
        if fails:
            raise RuntimeError("broken")
        return metrics_data(*given, **options)

    monkeypatch.setattr("aioproducer.sending.metrics_push.metrics_data", broken)
    async with collecting("") as (cluster, producer):
        await asyncio.sleep(120)
        assert cluster.telemetry.pushes == []
        assert (await producer.send_and_wait("orders", b"v")).offset == 0
        fails = False
        await later(lambda: cluster.telemetry.pushes, 2 * DEFAULT_INTERVAL)
        fails = True
    lines = log_lines(caplog, logging.ERROR)
    assert len(lines) == 2, "one push after the interval, one at the end"
    assert all("metrics could not be pushed" in line for line in lines)
    assert "next attempt in 300 s" in lines[0]


@in_virtual_time
async def test_registering_a_metric_has_no_effect_while_pushing_is_off():
    async with collecting("", enable_metrics_push=False) as (cluster, producer):
        producer.register_metric("com.example.open", lambda: 17)
        await asyncio.sleep(200)
        producer.unregister_metric("com.example.open")
    assert cluster.telemetry.pushes == []
