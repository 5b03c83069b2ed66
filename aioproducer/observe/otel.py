"""OpenTelemetry: a span for each call that sends records, and instruments that read metrics().

The names follow OpenTelemetry's semantic conventions for messaging and for Kafka."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Collection, Iterable
from functools import lru_cache, partial
from time import time_ns
from typing import TYPE_CHECKING, Any

from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, get_current
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)
from opentelemetry.metrics import CallbackOptions, Observation, get_meter
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Setter, TextMapPropagator
from opentelemetry.trace import DEFAULT_TRACE_STATE, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aioproducer.observe import hooks, live, tracing
from aioproducer.observe.families import FAMILIES, Family
from aioproducer.observe.hooks import BatchEvent
from aioproducer.observe.snapshots import Distribution, MetricsSnapshot
from aioproducer.types import Headers, is_buffer

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

    from aioproducer.config import ProducerConfig

__all__ = ["AioproducerInstrumentor"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 120)
"""The bucket bounds of messaging.client.operation.duration: the bounds in the conventions, and some higher ones."""
QUANTILES = (0.5, 0.99)
ENDS_OF_THE_PROGRAM = (KeyboardInterrupt, SystemExit)
"""Exceptions that are re-raised. All other exceptions from a sampler, a propagator or a processor are caught, so that
they do not affect the records. This includes CancelledError: because these calls do not await, it cannot mean that our
task was cancelled."""
MOST_TOPICS = 1_000
"""The maximum number of topics whose span attributes are cached."""
_OPERATION = {
    "messaging.system": "kafka",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
}


class AioproducerInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # it has no types
    """Traces and measures all producers in the process that are started after `instrument()`.

        from aioproducer.otel import AioproducerInstrumentor

        AioproducerInstrumentor().instrument()

    `opentelemetry-instrument python app.py` does this without changes to the program.

    Each call to `send`, `send_and_wait` and `try_send` has a span `send {topic}` of kind PRODUCER. Its parent is
    the caller's span, and it ends with the acknowledgement. The configured propagator (W3C by default) adds the span's
    context to the headers of the record. `send_many` and `send_batch` have one span for all records, and no headers. A
    call that the sampler does not record has no span, but its headers carry that decision. Without an SDK, a call has
    neither, unless the caller's context has a span from another process.

    Args of `instrument()`:
        tracer_provider, meter_provider: the global ones by default. With `trace.NoOpTracerProvider()`, there are
            metrics but no spans.
        durations: whether to record messaging.client.operation.duration, a histogram with one value for each batch.
            False by default, since OpenTelemetry needs about 20 µs for each value. Quantiles are exported in any
            case. opentelemetry-api before 1.30 does not accept buckets for an instrument; use a View to set them.
        capture_key: whether to add the record's key as messaging.kafka.message.key. False by default, since keys may be
            personal data.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return an empty tuple: the package instruments itself."""
        return ()

    def _instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        durations: bool = False,
        capture_key: bool = False,
        **_: Any,
    ) -> None:
        version = importlib.metadata.version("aioproducer")
        tracer = trace.get_tracer("aioproducer", version, tracer_provider)
        meter = get_meter("aioproducer", version, meter_provider)
        if not isinstance(tracer, trace.NoOpTracer):  # a NoOpTracer would only cost time for each record
            tracing.set_tracer(lambda config: _SendTracer(config, tracer, capture_key=capture_key))
        self._durations = _Durations(meter) if durations else None
        if self._durations is not None:
            hooks.add_default(self._durations)
        _observe(meter)

    def _uninstrument(self, **_: Any) -> None:
        tracing.set_tracer(None)
        if self._durations is not None:
            hooks.remove_default(self._durations)


class _SendTracer:
    """The spans of one producer."""

    def __init__(self, config: ProducerConfig, tracer: Tracer, *, capture_key: bool) -> None:
        self._tracer = tracer
        self._capture_key = capture_key
        self._log = config.log(__name__)
        self._has_failed = False
        host, port = config.bootstrap_servers[0]
        self._common: dict[str, Any] = {
            **_OPERATION,
            "messaging.client.id": config.client_id,
            "server.address": host,
            "server.port": port,
        }
        self._of_batch: dict[object, tuple[list[Span], list[Any]]] = {}
        """By batch: the spans that end with it, and a delivery for each of these spans."""
        self._of_topic: dict[object, tuple[str, dict[str, Any]]] = {}
        """The span name and attributes for each topic. Without this cache, they would be created for every call, even
        one that is not recorded."""

    def begin(
        self, topic: object, value: Any, key: Any, headers: Any, count: int
    ) -> _SendSpan | list[tuple[str, bytes | None]] | None:
        span = None
        try:
            try:
                name, attributes = self._of_topic[topic]
            except (KeyError, TypeError):
                name, attributes = self._describe(topic)
            current = get_current()  # passed on, because the SDK would otherwise look it up three times
            span = self._tracer.start_span(name, current, SpanKind.PRODUCER, attributes)
            if not span.is_recording():
                return _unrecorded(headers, span, current)
            if value is None:
                span.set_attribute("messaging.kafka.message.tombstone", True)
            headers = _with_context(headers, span, current)
            if self._capture_key and key is not None:
                span.set_attribute("messaging.kafka.message.key", _text(key))
            return _SendSpan(span, headers, self)
        except ENDS_OF_THE_PROGRAM:
            raise
        except BaseException:
            self.note_failure()
            return None if span is None else _SendSpan(span, headers, self)

    def begin_many(self, topic: object, count: int) -> _SendSpan | None:
        try:
            name, attributes = self._describe(topic)
            attributes = {**attributes, "messaging.batch.message_count": count}
            span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)
            return _SendSpan(span, None, self) if span.is_recording() else None
        except ENDS_OF_THE_PROGRAM:
            raise
        except BaseException:
            self.note_failure()
            return None

    def end_or_wait(self, delivery: Any, span: Span, _: object) -> None:
        """End the span when the delivery's record has its result, or immediately if it already has one."""
        if delivery.done():
            self._record_ended(span, delivery)
        else:
            delivery.add_done_callback(partial(self._record_ended, span))

    def end_with_batch(self, delivery: Any, span: Span) -> None:
        """End the span when the delivery's batch ends, without a callback per record."""
        found = self._of_batch.get(delivery.batch)
        if found is None:
            found = self._of_batch[delivery.batch] = [], []
            delivery.add_done_callback(partial(self._batch_ended, delivery.batch))
        # Two lists, because a list of pairs would give the garbage collector more objects to visit.
        found[0].append(span)
        found[1].append(delivery)

    def _batch_ended(self, batch: object, _: object) -> None:
        now = time_ns()
        for span, delivery in zip(*self._of_batch.pop(batch), strict=True):
            if delivery.done():
                self._record_ended(span, delivery, now)
            else:  # the batch was split, and its other part has not ended
                delivery.add_done_callback(partial(self._record_ended, span))

    def _record_ended(self, span: Span, delivery: Any, now: int | None = None) -> None:
        error = delivery.exception()
        self.end(span, error, None if error is not None else delivery.result(), now)

    def end(
        self, span: Span, error: BaseException | None, metadata: Any = None, now: int | None = None
    ) -> None:
        """End the span at the time `now` (in ns), or at the present time if it is None."""
        try:
            try:
                if error is not None:
                    span.set_attribute("error.type", type(error).__qualname__)
                    span.record_exception(error)
                    span.set_status(Status(StatusCode.ERROR, str(error)))
                if metadata is not None:
                    place = {"messaging.destination.partition.id": str(metadata.partition)}
                    if (offset := metadata.offset) is not None:
                        place["messaging.kafka.offset"] = offset
                    span.set_attributes(place)  # two calls to set_attribute() would take longer
            finally:
                span.end(now)
        except ENDS_OF_THE_PROGRAM:
            raise
        except BaseException:
            self.note_failure()

    def note_failure(self) -> None:
        """Log the exception that is being handled. Tracing continues: it may work for the next record."""
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        self._log.log(
            level,
            "the OpenTelemetry instrumentation raised an exception: records are still sent, but their spans "
            "may be incomplete or missing. Further exceptions are logged at DEBUG",
            exc_info=True,
        )

    def _describe(self, topic: object) -> tuple[str, dict[str, Any]]:
        described = f"send {topic}", {**self._common, "messaging.destination.name": str(topic)}
        if type(topic) is str and len(self._of_topic) < MOST_TOPICS:
            self._of_topic[topic] = described
        return described


def _text(key: Any) -> str:
    return bytes(key).decode("utf-8", "replace") if is_buffer(key) else str(key)


_W3C = ("traceparent", "tracestate")


class _HeaderSetter(Setter[list[tuple[str, bytes | None]]]):
    """Sets headers, and removes old ones: a record that was consumed and is now being forwarded still has the headers
    from its first producer."""

    def set(self, carrier: list[tuple[str, bytes | None]], key: str, value: str) -> None:
        if carrier:
            stale = _W3C if key == "traceparent" else (key,)
            carrier[:] = [header for header in carrier if not _is_named(header, stale)]
        carrier.append((key, value.encode()))


def _is_named(header: Any, names: tuple[str, ...]) -> bool:
    return type(header) is tuple and len(header) == 2 and header[0] in names


_SETTER = _HeaderSetter()


def _with_context(headers: Any, span: Span, current: Context) -> Any:
    """Return the user's headers, and the headers that carry the span's context. Leave invalid headers for `send` to
    reject. `current` is the caller's context, which may have baggage."""
    if headers is not None and type(headers) not in (list, tuple):
        return headers
    trace_id, span_id, _, flags, state, _ = span.get_span_context()
    has_state = state is not DEFAULT_TRACE_STATE and state
    has_baggage = current and baggage.get_all(current)
    carrier = [*headers] if headers else []
    if _is_w3c(propagate.get_global_textmap()) and not has_state and not has_baggage:
        # This does the same as the propagator, in half the time.
        if carrier:
            carrier = [header for header in carrier if not _is_named(header, _W3C)]
        carrier.append(("traceparent", b"00-%032x-%016x-%02x" % (trace_id, span_id, flags)))
    else:
        propagate.inject(carrier, trace.set_span_in_context(span, current), _SETTER)
    return carrier


@lru_cache(1)
def _is_w3c(propagator: TextMapPropagator) -> bool:
    """Return whether this is the default propagator: W3C's trace context, and baggage."""
    parts = getattr(propagator, "_propagators", ())
    return type(propagator) is CompositePropagator and [type(part) for part in parts] == [
        TraceContextTextMapPropagator,
        W3CBaggagePropagator,
    ]


def _unrecorded(headers: Any, span: Span, current: Context) -> list[tuple[str, bytes | None]] | None:
    """Return the headers of a call that is not recorded. They carry this decision to the consumers. With neither an SDK
    nor a parent span, there is no decision to pass on."""
    if not span.get_span_context().is_valid:
        return None
    headers = _with_context(headers, span, current)
    return headers if type(headers) is list else None


class _SendSpan:
    """The span of one call. Its methods never raise, so that the records are not affected."""

    __slots__ = ("_span", "_tracer", "headers")

    def __init__(self, span: Span, headers: Headers | None, tracer: _SendTracer) -> None:
        self._span = span
        self._tracer = tracer
        self.headers = headers

    def watch(self, delivery: Any, ends_with_batch: bool = False) -> None:
        # The result is read from another delivery. The user's own delivery may be cancelled even though the record is
        # still sent, and reading its result would hide a failure that the user does not look at.
        second = delivery.batch.another(delivery)
        if ends_with_batch:
            self._tracer.end_with_batch(second, self._span)
        else:  # a timeout ends only the user's own delivery
            delivery.add_done_callback(partial(self._tracer.end_or_wait, second, self._span))

    def watch_rows(self, receipt: Any) -> None:
        receipt.call_when_done(self._rows_ended)

    def fail(self, error: BaseException) -> None:
        self._tracer.end(self._span, error)

    def _rows_ended(self, errors: dict[int, BaseException]) -> None:
        self._tracer.end(self._span, next(iter(errors.values()), None))


class _Durations:
    """A hook that records the duration of each batch, as defined by the conventions."""

    def __init__(self, meter: Meter) -> None:
        create = partial(
            meter.create_histogram,
            "messaging.client.operation.duration",
            unit="s",
            description="Time from opening a batch to its result.",
        )
        try:
            self._histogram = create(explicit_bucket_boundaries_advisory=SECONDS)
        except TypeError:  # opentelemetry-api before 1.30
            self._histogram = create()

    def on_batch(self, event: BatchEvent) -> None:
        attributes = {
            **_OPERATION,
            "messaging.client.id": event.client_id,
            "messaging.destination.name": event.topic,
            "messaging.destination.partition.id": str(event.partition),
        }
        if event.error is not None:
            attributes["error.type"] = type(event.error).__qualname__
        self._histogram.record(event.seconds, attributes)


def _observe(meter: Meter) -> None:
    """Create an instrument for each metric of FAMILIES. The instruments are read when metrics are collected."""
    collection = _Collection()
    meter.create_observable_counter(
        "messaging.client.sent.messages",
        [_SentMessages(collection)],
        unit="{message}",
        description="Records whose result is known.",
    )
    for family in FAMILIES:
        name = f"aioproducer.{family.name}"
        if family.kind == "counter":
            meter.create_observable_counter(name, [_Reader(collection, family)], description=family.text)
        elif family.kind == "gauge":
            meter.create_observable_gauge(name, [_Reader(collection, family)], description=family.text)
        else:
            meter.create_observable_gauge(name, [_Quantiles(collection, family)], description=family.text)


class _Collection:
    """The snapshots that all instruments read during one collection."""

    def __init__(self) -> None:
        self._snapshots: list[MetricsSnapshot] = []
        self._readers: set[object] = set()
        """The instruments that have read these snapshots. When one of them reads again, a new collection begins."""

    def snapshots(self, reader: object) -> list[MetricsSnapshot]:
        if not self._readers or reader in self._readers:
            self._snapshots = live.snapshots()
            self._readers.clear()
        self._readers.add(reader)
        return self._snapshots


class _SentMessages:
    """Reads messaging.client.sent.messages."""

    def __init__(self, collection: _Collection) -> None:
        self._collection = collection

    def __call__(self, _: CallbackOptions) -> Iterable[Observation]:
        for snapshot in self._collection.snapshots(self):
            for topic in snapshot.topics:
                attributes = {
                    **_OPERATION,
                    "messaging.client.id": snapshot.client_id,
                    "messaging.destination.name": topic.name,
                }
                yield Observation(topic.records_acked, attributes)
                for count, outcome in (
                    (topic.records_failed, "not_persisted"),
                    (topic.records_unknown, "unknown"),
                ):
                    if count:
                        yield Observation(count, {**attributes, "error.type": outcome})


class _Reader:
    """Reads one counter or gauge."""

    def __init__(self, collection: _Collection, family: Family) -> None:
        self._collection = collection
        self._family = family

    def __call__(self, _: CallbackOptions) -> Iterable[Observation]:
        for labels, value in self._values().items():
            yield Observation(value, self._attributes(labels))

    def _values(self) -> dict[tuple[str, ...], Any]:
        return self._family.values(self._collection.snapshots(self))

    def _attributes(self, labels: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self._family.labels, labels, strict=True))


class _Quantiles(_Reader):
    """Reads the quantiles of the values added to a distribution since the last collection."""

    def __init__(self, collection: _Collection, family: Family) -> None:
        super().__init__(collection, family)
        self._before: dict[tuple[str, ...], Distribution] = {}

    def __call__(self, _: CallbackOptions) -> Iterable[Observation]:
        before, self._before = self._before, self._values()
        for labels, value in self._before.items():
            since = value - before.get(labels, Distribution())
            if since.count > 0:
                for quantile in QUANTILES:
                    attributes = {**self._attributes(labels), "quantile": str(quantile)}
                    yield Observation(since.quantile(quantile), attributes)
