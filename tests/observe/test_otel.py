"""OpenTelemetry: spans, headers and metrics, read from the SDK's in-memory exporters, an OTLP collector and a
consumer."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as AiokafkaPartition
from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor
from opentelemetry.metrics import CallbackOptions, NoOpMeter
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import default_setter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracer,
    NoOpTracerProvider,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import aioproducer.blocking
from aioproducer.errors import DeliveryError, InvalidRecordError, MetadataTimeoutError, SendManyError
from aioproducer.metrics import Histogram, MetricsSnapshot
from aioproducer.observe import live
from aioproducer.observe.families import FAMILIES
from aioproducer.observe.hooks import BatchEvent
from aioproducer.observe.otel import (
    _SETTER,
    _Collection,
    _Durations,
    _is_w3c,
    _Quantiles,
    _SendTracer,
    _with_context,
)
from aioproducer.otel import AioproducerInstrumentor
from aioproducer.producer import Producer
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from tests.conftest import MS
from tests.support.log_lines import log_lines
from tests.support.otlp_collector import Collector
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    PRODUCE,
    error_of,
    producing,
    quick_producer,
    until,
    within,
)


class Sdk:
    """The SDK, with exporters that keep everything in memory."""

    def __init__(self, sampler: Sampler) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """The attributes and values of each data point, by the name of the metric."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: [(dict(point.attributes), point) for point in metric.data.data_points]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def instrumented(request: pytest.FixtureRequest) -> Iterator[Sdk]:
    """The SDK, which records everything unless the test has parameters for `instrument`."""
    options = dict(getattr(request, "param", {}))
    sdk = Sdk(options.pop("sampler", ALWAYS_ON))
    instrumentor = AioproducerInstrumentor()
    instrumentor.instrument(tracer_provider=sdk.tracers, meter_provider=sdk.meters, **options)
    yield sdk
    instrumentor.uninstrument()
    sdk.tracers.shutdown()
    sdk.meters.shutdown()


# ------------------------------------------------------------------------------------------------------ spans


@pytest.mark.promise(
    "Observability", "OpenTelemetry: a span for each call, from the call to the acknowledgement"
)
async def test_a_send_has_a_span_that_ends_with_the_acknowledgement(instrumented):
    async with producing(topics={"orders": 1}, client_id="shop") as (cluster, producer):
        await producer.send_and_wait("orders", b"first")
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        with instrumented.tracers.get_tracer("test").start_as_current_span("request") as request:
            delivery = await producer.send("orders", b"v", b"key", headers=[("mine", b"1")])
        await until(lambda: producer.metrics().in_flight)
        assert [span.name for span in instrumented.spans] == ["send orders", "request"], "not ended yet"
        hold.set()
        metadata = await delivery
        await until(lambda: len(instrumented.spans) == 3)
        [record] = [record for record in cluster.records("orders") if record.value == b"v"]

    span = instrumented.spans[-1]
    assert (span.name, span.kind, span.status.status_code) == (
        "send orders",
        SpanKind.PRODUCER,
        StatusCode.UNSET,
    )
    assert span.parent.span_id == request.get_span_context().span_id
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": "shop",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": metadata.offset,
        "server.address": host,
        "server.port": int(port),
    }
    context = span.get_span_context()
    assert record.headers == (
        ("mine", b"1"),
        ("traceparent", b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)),
    )


@pytest.mark.parametrize("instrumented", [{"capture_key": True}], indirect=True)
async def test_the_key_is_captured_only_on_request_and_a_tombstone_is_named(instrumented):
    async with RecordingProducer() as producer:
        await producer.send("t", None, b"k\xff")
    [span] = instrumented.spans
    assert span.attributes["messaging.kafka.message.key"] == "k\ufffd"
    assert span.attributes["messaging.kafka.message.tombstone"] is True


async def test_each_call_that_sends_a_single_record_has_a_span(instrumented):
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"1")
        await producer.try_send("t", b"2")
        await producer.send("t", b"3", timeout=5)
        await producer.flush()
        await until(lambda: len(instrumented.spans) == 3)
        sent = {
            record.value: next(value for name, value in record.headers if name == "traceparent")
            for record in cluster.records("t")
        }
    assert sorted(span.attributes["messaging.kafka.offset"] for span in instrumented.spans) == [0, 1, 2]
    assert len(set(sent.values())) == 3


async def test_a_record_that_fails_ends_its_span_with_the_error(instrumented):
    async with producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        error = await error_of(await producer.send("t", b"v"))
        await until(lambda: instrumented.spans)
    assert isinstance(error, DeliveryError)
    [span] = instrumented.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "DeliveryError"
    assert span.events[0].name == "exception"


async def test_a_record_that_is_rejected_ends_its_span_with_the_error(instrumented):
    async with RecordingProducer() as producer:
        for call in (producer.send, producer.send_and_wait):
            with pytest.raises(InvalidRecordError):
                await call("t", 5)
        with pytest.raises(InvalidRecordError):
            producer.try_send("t", 5)
        with pytest.raises(InvalidRecordError):
            await producer.send("t", b"v", headers=7)
        with pytest.raises(InvalidRecordError):
            await producer.send([], b"v")
    errors = [span.attributes["error.type"] for span in instrumented.spans]
    assert errors == ["InvalidRecordError"] * 4 + ["InvalidTopicError"]


class Raising(Sampler):
    """A sampler with a bug."""

    def should_sample(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug of the sampler")

    def get_description(self) -> str:
        return "raising"


class Cancelling(Raising):
    """A sampler that asks a cancelled future for its result."""

    def should_sample(self, *_: Any, **__: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return future.result()


class NoText:
    """A key that needs a serializer, and whose `__str__` raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.promise(
    "Observability", "OpenTelemetry: tracing that fails does not prevent records from being sent"
)
@pytest.mark.parametrize("instrumented", [{"sampler": Raising()}, {"sampler": Cancelling()}], indirect=True)
async def test_a_sampler_that_raises_stops_no_record_and_is_logged_once(instrumented, caplog):
    async with RecordingProducer() as producer:
        await producer.send("t", b"1")
        await producer.send_and_wait("t", b"2")
        producer.try_send("t", b"3")
        await (await producer.send_many("t", [b"4"]))
        batch = producer.create_batch()
        batch.append(key=None, value=b"5")
        await (await producer.send_batch(batch, "t", partition=0))
        assert [record.value for record in producer.sent] == [b"1", b"2", b"3", b"4", b"5"]
        assert {record.headers for record in producer.sent} == {()}
    assert [line.split(": ")[0] for line in log_lines(caplog, logging.WARNING)] == [
        "the OpenTelemetry instrumentation raised an exception"
    ]


@pytest.mark.parametrize("instrumented", [{"capture_key": True}], indirect=True)
async def test_a_key_whose_text_fails_is_sent_and_its_span_ends(instrumented, caplog):
    async with RecordingProducer(key_serializer=lambda _: b"k") as producer:
        await producer.send_and_wait("t", b"v", NoText())
        [record] = producer.sent
        assert (record.key, [name for name, _ in record.headers]) == (b"k", ["traceparent"])
        await until(lambda: instrumented.spans)
    [span] = instrumented.spans
    assert "messaging.kafka.message.key" not in span.attributes
    assert span.attributes["messaging.kafka.offset"] == 0
    assert len(log_lines(caplog, logging.WARNING)) == 1


@pytest.mark.parametrize("instrumented", [{"capture_key": True}], indirect=True)
@pytest.mark.parametrize(
    "key", [b"k\xff", bytearray(b"k\xff"), memoryview(b"k\xff"), memoryview(b"k_\xff_")[::2]]
)
async def test_a_key_in_any_buffer_is_captured_as_text(instrumented, key):
    async with RecordingProducer(key_serializer=bytes) as producer:
        await producer.send_and_wait("t", b"v", key)
    [span] = instrumented.spans
    assert span.attributes["messaging.kafka.message.key"] == "k\ufffd"


async def test_a_propagator_that_raises_leaves_the_users_headers_and_the_span(instrumented, monkeypatch):
    class Fails(TraceContextTextMapPropagator):
        def inject(self, *_: object, **__: object) -> None:
            raise RuntimeError("a bug of the propagator")

    propagator = Fails()
    monkeypatch.setattr(propagate, "get_global_textmap", lambda: propagator)
    async with RecordingProducer() as producer:
        await producer.send_and_wait("t", b"v", headers=[("mine", b"1")])
        assert [record.headers for record in producer.sent] == [(("mine", b"1"),)]
        await until(lambda: instrumented.spans)
    assert instrumented.spans[0].attributes["messaging.kafka.offset"] == 0


class _OfVendor(TraceContextTextMapPropagator):
    """A vendor's propagator, with its own header."""

    def inject(self, carrier, context=None, setter=default_setter):
        setter.set(carrier, "vendor", str(trace.get_current_span(context).get_span_context().span_id))


@pytest.mark.parametrize(
    "propagator",
    [
        propagate.get_global_textmap(),
        TraceContextTextMapPropagator(),
        CompositePropagator([W3CBaggagePropagator(), TraceContextTextMapPropagator()]),
        CompositePropagator([_OfVendor(), W3CBaggagePropagator()]),
        _OfVendor(),
    ],
    ids=["default", "trace context", "composite", "composite of a vendor", "vendor"],
)
@pytest.mark.parametrize("state", [[], [("vendor", "1")]], ids=["", "tracestate"])
@pytest.mark.parametrize("carried", [{}, {"user": "7"}], ids=["", "baggage"])
@pytest.mark.parametrize("headers", [None, [("traceparent", b"1"), ("tracestate", b"2"), ("mine", b"3")]])
def test_headers_are_written_by_the_configured_propagator(monkeypatch, propagator, state, carried, headers):
    monkeypatch.setattr(propagate, "get_global_textmap", lambda: propagator)
    span = NonRecordingSpan(
        SpanContext(2**127 + 7, 8, is_remote=False, trace_flags=TraceFlags(3), trace_state=TraceState(state))
    )
    expected = [*(headers or ())]
    context = Context()
    for name, value in carried.items():
        context = baggage.set_baggage(name, value, context)
    propagator.inject(expected, trace.set_span_in_context(span, context), _SETTER)

    assert _with_context(headers, span, context) == expected


def test_the_default_propagator_is_recognized():
    """If it were not, each record would take longer."""
    assert _is_w3c(propagate.get_global_textmap())


async def test_the_spans_of_a_batch_end_when_its_records_are_acknowledged(instrumented):
    async with producing(linger_ms=50) as (cluster, producer):
        deliveries = [await producer.send("t", b"%d" % number) for number in range(3)]
        deliveries[1].cancel()
        await deliveries[2]
        await until(lambda: len(instrumented.spans) == 3)
        assert not producer._tracer._of_batch

    assert [span.attributes["messaging.kafka.offset"] for span in instrumented.spans] == [0, 1, 2]
    assert len({span.end_time for span in instrumented.spans}) == 1
    assert len(cluster.batches("t", 0)) == 1


async def test_the_spans_of_a_split_batch_end_with_its_parts(instrumented):
    async with producing(linger_ms=50) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)
        held = cluster.faults.add(PRODUCE, hold_before=release, skip=1)
        deliveries = [await producer.send("t", b"%d" % number) for number in range(10)]
        await deliveries[0]
        await within(5, held.reached())
        await until(lambda: len(instrumented.spans) == 5)
        release.set()
        await deliveries[-1]
        await until(lambda: len(instrumented.spans) == 10)
        assert not producer._tracer._of_batch

    assert [span.attributes["messaging.kafka.offset"] for span in instrumented.spans] == list(range(10))
    assert producer.metrics().splits == 1


async def test_a_record_with_its_own_timeout_ends_its_span_before_the_others_of_its_batch(instrumented):
    patience = {"request_timeout_ms": 20_000, "delivery_timeout_ms": 30_000}
    async with producing(linger_ms=50, **patience) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=release)
        patient = await producer.send("t", b"1")
        hasty = await producer.send("t", b"2", timeout=0.2)
        await error_of(hasty)
        await until(lambda: instrumented.spans)
        [ended] = instrumented.spans
        release.set()
        await patient
        await until(lambda: len(instrumented.spans) == 2)

    assert ended.status.status_code is StatusCode.ERROR
    assert instrumented.spans[1].attributes["messaging.kafka.offset"] == 0


async def test_a_span_that_cannot_be_written_does_not_change_a_result(instrumented, monkeypatch, caplog):
    class Broken(SpanProcessor):
        def on_end(self, _: ReadableSpan) -> None:
            raise RuntimeError("a bug of the processor")

    instrumented.tracers.add_span_processor(Broken())
    async with RecordingProducer() as producer:
        metadata = await producer.send_and_wait("t", b"v")
        assert metadata.offset == 0
        with pytest.raises(InvalidRecordError):
            await producer.send("t", 5)
        await (await producer.send_many("t", [b"1"]))
    assert len(log_lines(caplog, logging.WARNING)) == 1
    assert log_lines(caplog, logging.ERROR) == []


@pytest.mark.parametrize("headers", [{"a": b"1"}, iter([("a", b"1")]), "ab", [["a", b"1"]], [5], [()]])
async def test_headers_that_are_rejected_without_tracing_are_rejected_with_it(instrumented, headers):
    async with RecordingProducer() as producer:
        with pytest.raises(InvalidRecordError):
            await producer.send("t", b"v", headers=headers)
    assert [span.attributes["error.type"] for span in instrumented.spans] == ["InvalidRecordError"]


async def test_a_delivery_that_is_cancelled_does_not_end_the_span(instrumented):
    async with producing() as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        delivery = await producer.send("t", b"v")
        await until(lambda: producer.metrics().in_flight)
        delivery.cancel()
        await asyncio.sleep(0)
        assert instrumented.spans == []
        hold.set()
        await producer.flush()
        await until(lambda: instrumented.spans)
    assert instrumented.spans[0].attributes["messaging.kafka.offset"] == 0


async def test_many_records_have_one_span_with_their_count(instrumented):
    async with producing() as (cluster, producer):
        await (await producer.send_many("t", [b"%d" % number for number in range(100)]))
        batch = producer.create_batch()
        for number in range(3):
            batch.append(key=None, value=b"%d" % number)
        await (await producer.send_batch(batch, "t", partition=0))
        receipt = await producer.send_many("t", [b"v", 5])
        with pytest.raises(SendManyError):
            await receipt
        with pytest.raises(InvalidRecordError):
            await producer.send_many("t", 5)
        await until(lambda: len(instrumented.spans) == 3)
        assert all(record.headers == () for record in cluster.records("t"))
    many, built, wrong = instrumented.spans
    assert many.attributes["messaging.batch.message_count"] == 100
    assert built.attributes["messaging.batch.message_count"] == 3
    assert (wrong.attributes["messaging.batch.message_count"], wrong.status.status_code) == (
        2,
        StatusCode.ERROR,
    )


async def test_a_call_for_many_records_has_their_count_even_if_it_is_one(instrumented):
    async with RecordingProducer() as producer:
        await (await producer.send_many("t", [b"1"]))
        await (await producer.send_many("t", []))
        batch = producer.create_batch()
        batch.append(key=None, value=None)
        await (await producer.send_batch(batch, "t", partition=0))
        await until(lambda: len(instrumented.spans) == 3)
    assert [span.attributes["messaging.batch.message_count"] for span in instrumented.spans] == [1, 0, 1]
    assert not [span for span in instrumented.spans if "messaging.kafka.message.tombstone" in span.attributes]


async def test_a_call_for_many_records_that_raises_ends_its_span_with_the_error(instrumented):
    async with producing(max_block_ms=300_000 * MS, allow_auto_create_topics=False) as (_, producer):
        with pytest.raises(MetadataTimeoutError):
            await producer.send_many("nope", [b"1", b"2"])
        waiting = asyncio.create_task(producer.send_many("neither", [b"1", b"2"]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert [(span.status.status_code, span.attributes["error.type"]) for span in instrumented.spans] == [
        (StatusCode.ERROR, "MetadataTimeoutError"),
        (StatusCode.ERROR, "CancelledError"),
    ]


async def test_a_call_for_many_records_that_is_cancelled_half_way_ends_its_span_as_cancelled(instrumented):
    async with producing(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        waiting = asyncio.create_task(producer.send_many("t", [b"v" * LARGE] * 6))
        await until(lambda: producer.metrics().buffer_waiters)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        [span] = instrumented.spans
        hold.set()
        await producer.flush()
    assert span.attributes["error.type"] == "CancelledError"
    assert len(instrumented.spans) == 1


@pytest.mark.promise(
    "Observability", "OpenTelemetry: a call that is not recorded costs no span and no slow path"
)
@pytest.mark.parametrize("instrumented", [{"sampler": ALWAYS_OFF}], indirect=True)
async def test_a_call_that_is_not_recorded_creates_no_span_and_stays_on_the_fast_path(
    instrumented, monkeypatch
):
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"1")

        async def refuse(*_: object) -> None:
            raise AssertionError("it left the fast path")

        monkeypatch.setattr(Producer, "_send_slowly", refuse)
        delivery = await producer.send("t", b"2")
        await producer.send_and_wait("t", b"3")
        await delivery
        assert await producer.try_send("t", b"4")
        assert all([name for name, _ in record.headers] == ["traceparent"] for record in cluster.records("t"))
    assert instrumented.spans == []


@pytest.mark.promise("Observability", "OpenTelemetry: consumers learn that a call was not sampled")
@pytest.mark.parametrize("instrumented", [{"sampler": ParentBased(ALWAYS_OFF)}], indirect=True)
async def test_a_call_that_is_not_sampled_sends_its_context_with_the_flag_unset(instrumented):
    parent = SpanContext(
        7, 8, is_remote=True, trace_flags=TraceFlags(0), trace_state=TraceState([("a", "b")])
    )
    stale = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("mine", b"1")]
    async with RecordingProducer() as producer:
        await producer.send_and_wait("t", b"v")
        token = attach(trace.set_span_in_context(NonRecordingSpan(parent)))
        try:
            await producer.send_and_wait("t", b"v", headers=stale)
            await producer.send("t", b"v", headers=tuple(stale))
            producer.try_send("t", b"v", headers=stale)
        finally:
            detach(token)
        root, *children = [record.headers for record in producer.sent]

    [(name, value)] = root
    assert (name, int(value[-2:], 16) & 1) == ("traceparent", 0)
    for (mine, one), (name, value), state in children:
        assert (mine, one, name, state) == ("mine", b"1", "traceparent", ("tracestate", b"a=b"))
        version, trace_id, span_id, flags = value.split(b"-")
        assert (version, int(trace_id, 16), int(flags, 16) & 1) == (b"00", 7, 0)
        assert int(span_id, 16)
    assert instrumented.spans == []
    assert len(stale) == 2, "the user's list is not changed"


@pytest.mark.parametrize("instrumented", [{"sampler": ALWAYS_OFF}], indirect=True)
async def test_wrong_headers_of_a_call_that_is_not_sampled_are_rejected_as_without_tracing(instrumented):
    async with RecordingProducer() as producer:
        with pytest.raises(InvalidRecordError):
            await producer.send("t", b"v", headers={"a": b"b"})


async def test_without_an_sdk_the_context_of_another_process_is_sent_on(instrumented):
    tracer = _SendTracer(Producer().config, NoOpTracer(), capture_key=False)
    assert tracer.begin("t", b"v", None, None, 1) is None

    token = attach(trace.set_span_in_context(NonRecordingSpan(SpanContext(7, 8, is_remote=True))))
    try:
        headers = tracer.begin("t", b"v", None, [("mine", b"1")], 1)
    finally:
        detach(token)

    assert headers == [("mine", b"1"), ("traceparent", b"00-%032x-%016x-00" % (7, 8))]


async def test_a_call_that_is_recorded_stays_on_the_fast_path(instrumented, monkeypatch):
    async with producing() as (_, producer):
        await producer.send_and_wait("t", b"1")

        async def refuse(*_: object) -> None:
            raise AssertionError("it left the fast path")

        monkeypatch.setattr(Producer, "_send_slowly", refuse)
        await producer.send_and_wait("t", b"2")
    assert len(instrumented.spans) == 2


async def test_a_recorded_call_with_a_serializer_and_an_interceptor_stays_on_the_fast_path(
    instrumented, monkeypatch
):
    seen = []

    def note(value, context):
        seen.append([name for name, _ in context.headers])
        return value

    class Adds:
        def on_send(self, record):
            return record._replace(headers=[*record.headers, ("added", b"1")])

    async with producing(interceptors=[Adds()]) as (cluster, producer):
        await producer.send_and_wait("t", b"1")

        def refuse(*_: object) -> None:
            raise AssertionError("it left the fast path")

        monkeypatch.setattr(Producer, "_send_slowly", refuse)
        monkeypatch.setattr(Producer, "_try_send_slowly", refuse)
        await producer.send_and_wait("t", b"2", value_serializer=note)
        await (await producer.send("t", b"3", value_serializer=note))
        await producer.try_send("t", b"4", value_serializer=note)
        assert [[name for name, _ in record.headers] for record in cluster.records("t")] == [
            ["traceparent", "added"]
        ] * 4
    assert seen == [["traceparent", "added"]] * 3
    assert len(instrumented.spans) == 4


def test_the_blocking_producer_is_traced_with_the_callers_span_as_parent(instrumented):
    async def serve() -> None:
        async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
            await asyncio.to_thread(send, cluster.bootstrap_servers)

    def send(servers: str) -> None:
        with aioproducer.blocking.Producer(servers) as producer:
            for number in range(3):
                with instrumented.tracers.get_tracer("test").start_as_current_span(f"request {number}"):
                    producer.send("t", b"%d" % number)

    asyncio.run(serve())
    requests = {
        span.get_span_context().span_id for span in instrumented.spans if span.name.startswith("request")
    }
    assert {span.parent.span_id for span in instrumented.spans if span.name == "send t"} == requests
    assert len(requests) == 3


# ---------------------------------------------------------------------------------------------------- metrics


@pytest.mark.promise(
    "Observability", "OpenTelemetry: metrics by observable instruments, with the conventions' names"
)
@pytest.mark.parametrize("instrumented", [{"durations": True}], indirect=True)
async def test_metrics_are_read_when_they_are_collected(instrumented):
    async with producing(topics={"orders": 1}, client_id="otel-shop") as (cluster, producer):
        for _ in range(3):
            await producer.send_and_wait("orders", b"v")
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await error_of(await producer.send("orders", b"v"))
        metrics = instrumented.metrics

    def of(name: str) -> list[tuple[dict[str, Any], Any]]:
        found = metrics[name]
        return [
            (attributes, point)
            for attributes, point in found
            if "otel-shop" in (attributes.get("client_id"), attributes.get("messaging.client.id"))
        ]

    sent = {
        attributes.get("error.type"): point.value
        for attributes, point in of("messaging.client.sent.messages")
    }
    assert sent == {None: 3, "not_persisted": 1}
    durations = {
        attributes.get("error.type"): point.count
        for attributes, point in of("messaging.client.operation.duration")
    }
    assert durations == {None: 3, "DeliveryError": 1}
    [(attributes, point)] = of("aioproducer.records_acked")
    assert (attributes, point.value) == ({"client_id": "otel-shop", "topic": "orders"}, 3)
    [(_, point)] = of("aioproducer.buffer_bytes")
    assert point.value == producer.metrics().buffer_total
    times = {
        attributes["quantile"]: point.value for attributes, point in of("aioproducer.time_to_result_seconds")
    }
    assert times == {
        "0.5": producer.metrics().time_to_result.p50,
        "0.99": producer.metrics().time_to_result.p99,
    }


def test_durations_are_recorded_with_an_api_that_accepts_no_buckets():
    recorded: list[float] = []

    class Old(NoOpMeter):
        """A meter like that of opentelemetry-api before 1.30."""

        def create_histogram(self, name: str, unit: str = "", description: str = "") -> Any:
            return self

        def record(self, value: float, attributes: dict[str, Any]) -> None:
            recorded.append(value)

    durations = _Durations(Old("old"))
    durations.on_batch(BatchEvent("shop", "t", 0, 1, 100, "none", 1, 0.25, 0, None, None))

    assert recorded == [0.25]


def test_choosing_old_conventions_has_no_effect(instrumented, monkeypatch):
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "messaging/dup")

    async def send() -> None:
        async with RecordingProducer() as producer:
            await producer.send_and_wait("t", b"v")

    asyncio.run(send())
    monkeypatch.delenv("OTEL_SEMCONV_STABILITY_OPT_IN")
    asyncio.run(send())

    chosen, usual = instrumented.spans
    assert (chosen.name, dict(chosen.attributes)) == (usual.name, dict(usual.attributes))


def test_quantiles_are_those_of_the_time_since_the_last_collection(monkeypatch):
    times = Histogram()
    monkeypatch.setattr(
        live, "snapshots", lambda: [MetricsSnapshot(client_id="shop", time_to_result=times.snapshot())]
    )
    [family] = [family for family in FAMILIES if family.name == "time_to_result_seconds"]
    read = _Quantiles(_Collection(), family)

    def quantiles() -> dict[str, float]:
        return {one.attributes["quantile"]: one.value for one in read(CallbackOptions())}

    times.add(0.001, 1000)
    assert quantiles()["0.99"] == pytest.approx(0.001, rel=0.2)
    times.add(100.0)
    assert quantiles() == {"0.5": pytest.approx(100), "0.99": pytest.approx(100)}
    assert quantiles() == {}, "nothing happened"


def test_each_collection_takes_one_snapshot_for_all_instruments(monkeypatch):
    taken = []
    monkeypatch.setattr(live, "snapshots", lambda: taken.append(1) or [])
    collection = _Collection()

    for _ in range(3):
        for reader in "abc":
            collection.snapshots(reader)

    assert len(taken) == 3


async def test_without_a_tracer_that_records_there_is_no_tracer():
    instrumentor = AioproducerInstrumentor()
    instrumentor.instrument(tracer_provider=NoOpTracerProvider(), meter_provider=MeterProvider())
    try:
        async with producing() as (_, producer):
            assert producer._tracer is None
            assert not producer._hooks.on_batch, "durations are opt-in"
    finally:
        instrumentor.uninstrument()


def test_without_instrumentation_there_is_no_tracer():
    assert AioproducerInstrumentor().is_instrumented_by_opentelemetry is False
    assert Producer()._tracer is None


# ------------------------------------------------------------------------------------ a consumer, and a collector


async def test_a_consumers_instrumentation_continues_the_trace(instrumented):
    consumers = AIOKafkaInstrumentor()
    consumers.instrument(tracer_provider=instrumented.tracers)
    try:
        async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
            async with quick_producer(cluster) as producer:
                with instrumented.tracers.get_tracer("test").start_as_current_span("request") as request:
                    await producer.send_and_wait("t", b"v")
            consumer = AIOKafkaConsumer(
                bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
            )
            await consumer.start()
            try:
                consumer.assign([AiokafkaPartition("t", 0)])
                await consumer.seek_to_beginning()
                record = await asyncio.wait_for(consumer.getone(), 10)
            finally:
                await consumer.stop()
    finally:
        consumers.uninstrument()
    assert record.value == b"v"
    received = [span for span in instrumented.spans if span.kind is SpanKind.CONSUMER]
    [sent] = [span for span in instrumented.spans if span.kind is SpanKind.PRODUCER]
    assert received
    assert {span.get_span_context().trace_id for span in received} == {request.get_span_context().trace_id}
    assert received[0].parent.span_id == sent.get_span_context().span_id


async def test_forwarded_headers_of_a_consumed_record_refer_to_the_new_span(instrumented):
    stale = [
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("mine", b"1"),
        ("tracestate", b"vendor=old"),
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203332-01"),
        ("mine", b"2"),
    ]
    async with RecordingProducer() as producer:
        await producer.send_and_wait("out", b"v", headers=stale)
        [record] = producer.sent
    context = instrumented.spans[0].get_span_context()
    assert record.headers == (
        ("mine", b"1"),
        ("mine", b"2"),
        ("traceparent", b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)),
    )
    assert len(stale) == 5, "the user's list is not changed"


async def test_baggage_replaces_that_of_a_consumed_record(instrumented):
    token = attach(baggage.set_baggage("user", "7"))
    try:
        async with RecordingProducer() as producer:
            await producer.send_and_wait("t", b"v", headers=[("baggage", b"user=5"), ("mine", b"1")])
            [record] = producer.sent
    finally:
        detach(token)
    assert [value for name, value in record.headers if name == "baggage"] == [b"user=7"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def test_spans_and_metrics_arrive_at_a_collector_by_otlp(collector):
    tracers, instrumentor = TracerProvider(), AioproducerInstrumentor()
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.address}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.address}/v1/metrics"), 3_600_000)
    meters = MeterProvider([reader])
    instrumentor.instrument(tracer_provider=tracers, meter_provider=meters)

    async def send() -> None:
        async with RecordingProducer(client_id="otlp") as producer:
            await producer.send_and_wait("t", b"v")
            await asyncio.to_thread(meters.force_flush)

    try:
        asyncio.run(send())
    finally:
        instrumentor.uninstrument()
        tracers.shutdown()
        meters.shutdown()

    assert [span.name for span in collector.spans] == ["send t"]
    assert {"messaging.client.sent.messages", "aioproducer.records_acked"} <= collector.metric_names


PROGRAM = """
import asyncio
from aioproducer.testing import RecordingProducer

async def main():
    async with RecordingProducer() as producer:
        await producer.send_and_wait("orders", b"v")
        assert [name for name, _ in producer.sent[0].headers] == ["traceparent"]

asyncio.run(main())
"""


def test_opentelemetry_instrument_works_without_a_change_to_the_program(collector):
    command = [str(Path(sys.executable).parent / "opentelemetry-instrument"), sys.executable]
    ended = subprocess.run(
        [*command, "-c", PROGRAM],
        env={**os.environ, **collector.environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert [span.name for span in collector.spans] == ["send orders"]


def test_without_the_extra_the_error_names_it():
    code = "import sys; sys.modules['opentelemetry'] = None; import aioproducer.otel"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "aioproducer[otel]"' in ended.stderr.splitlines()[-1]
    assert trace.get_tracer_provider() is not None
