"""The work that services add to each record: serializers, an interceptor, tracing. Each client does the same work."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import median
from typing import Any

from aioproducer import ProducerRecord
from job import LINES, Job, Result

BYTES, TEXT, ORJSON, JSON = "bytes", "str, encode", "dict, orjson", "dict, json"
HEADER = "a header"
RECORDING, NOT_RECORDING = "traces, recorded", "traces, not recorded"
AVRO = "dict, Avro, traces, metrics"

ADDED = ("source", b"benchmark")
SCHEMA = """{
  "type": "record",
  "name": "Order",
  "fields": [
    {"name": "id", "type": "long"},
    {"name": "user", "type": "string"},
    {"name": "price", "type": "double"},
    {"name": "note", "type": "string"}
  ]
}"""
LEAST_ROUNDS = 5


@dataclass(frozen=True)
class Work:
    """The values of the records, and what happens to each record."""

    is_text: bool = False
    is_dict: bool = False
    load: Callable[[], Callable[[Any], bytes]] | None = None
    """Returns the serializer, whose module is imported only where it is measured."""
    adds_header: bool = False
    sampler: str = ""
    """The name of OpenTelemetry's sampler; "" for no tracing."""
    has_metrics: bool = False
    """True if the metrics of the clients that have any are read every second."""

    @property
    def function(self) -> Callable[[Any], bytes] | None:
        return None if self.load is None else self.load()


def load_orjson() -> Callable[[Any], bytes]:
    import orjson

    return orjson.dumps


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def load_avro() -> Callable[[Any], bytes]:
    """Return confluent-kafka's serializer, which needs a registry only for the first value."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    serialize = AvroSerializer(SchemaRegistryClient.new_client({"url": "mock://"}), SCHEMA)
    context = SerializationContext("t", MessageField.VALUE)
    return lambda value: serialize(value, context)


WORKS = {
    BYTES: Work(),
    TEXT: Work(is_text=True, load=lambda: str.encode),
    ORJSON: Work(is_dict=True, load=load_orjson),
    JSON: Work(is_dict=True, load=lambda: to_json),
    HEADER: Work(adds_header=True),
    RECORDING: Work(sampler="ALWAYS_ON"),
    NOT_RECORDING: Work(sampler="ALWAYS_OFF"),
    AVRO: Work(is_dict=True, load=load_avro, sampler="ALWAYS_ON", has_metrics=True),
}


class AddHeader:
    """A service's interceptor, which adds a header to each record."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=[ADDED])


def values(job: Job) -> list[Any]:
    """Return distinct values, each of which becomes `value_size` bytes of compact JSON."""
    chance, work = random.Random(7), WORKS[job.work]
    made = []
    for number in range(LINES):
        order = {
            "id": number,
            "user": f"{chance.randrange(10**6):06d}",
            "price": round(chance.random() * 1000, 2),
            "note": "",
        }
        order["note"] = "x" * (job.value_size - len(to_json(order)))
        text = to_json(order)
        made.append(order if work.is_dict else text.decode() if work.is_text else text)
    return made


def producer_settings(job: Job) -> dict[str, Any]:
    """Return aioproducer's settings for the job."""
    work = WORKS[job.work]
    settings: dict[str, Any] = {} if work.function is None else {"value_serializer": work.function}
    return settings | ({"interceptors": [AddHeader()]} if work.adds_header else {})


def tracer_provider(job: Job) -> Any:
    """Return a provider whose spans are exported nowhere."""
    from opentelemetry.sdk.trace import TracerProvider, sampling

    return TracerProvider(getattr(sampling, WORKS[job.work].sampler))


def trace(job: Job) -> None:
    """Switch tracing on for the asyncio clients, if the job uses it."""
    if not WORKS[job.work].sampler:
        return
    from opentelemetry.metrics import NoOpMeterProvider

    if job.client == "aioproducer":
        from aioproducer.otel import AioproducerInstrumentor

        AioproducerInstrumentor().instrument(
            tracer_provider=tracer_provider(job), meter_provider=NoOpMeterProvider()
        )
    else:
        from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor

        AIOKafkaInstrumentor().instrument(tracer_provider=tracer_provider(job))


def traced(job: Job, producer: Any) -> Any:
    """Return confluent-kafka's producer, with tracing if the job uses it."""
    if not WORKS[job.work].sampler:
        return producer
    from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor

    return ConfluentKafkaInstrumentor.instrument_producer(producer, tracer_provider(job))


@asynccontextmanager
async def reading_metrics(job: Job) -> AsyncIterator[None]:
    """Read aioproducer's metrics during the block, if the job uses them."""
    has_metrics = WORKS[job.work].has_metrics and job.client == "aioproducer"
    scraping = asyncio.create_task(scrape()) if has_metrics else None
    try:
        yield
    finally:
        if scraping is not None:
            scraping.cancel()
            await asyncio.wait([scraping])


async def scrape() -> None:
    """Read aioproducer's metrics each second, as Prometheus does."""
    from prometheus_client import CollectorRegistry, generate_latest

    from aioproducer.prometheus import ProducerCollector

    registry = CollectorRegistry()
    ProducerCollector(registry)
    while True:
        generate_latest(registry)
        await asyncio.sleep(1)


def librdkafka_metrics(job: Job) -> dict[str, Any]:
    """Return the settings with which confluent-kafka reports its metrics every second, if the job uses them."""
    if not WORKS[job.work].has_metrics:
        return {}
    return {"statistics.interval.ms": 1000, "stats_cb": json.loads}


def own_calls(job: Job) -> tuple[Callable[[Any], object], list[tuple[Any, bytes]]] | None:
    """Return the user's own function, and a window of its arguments, each paired with the bytes of a plain record.

    None if the job has no such function.
    """
    work, sent = WORKS[job.work], values(replace(job, work=BYTES))
    function: Callable[[Any], object] | None = work.function
    given = values(job)
    if work.adds_header and job.client == "aioproducer":
        function, given = AddHeader().on_send, [ProducerRecord(job.topic, value) for value in sent]
    if function is None:
        return None
    return function, list(islice(cycle(zip(given, sent, strict=True)), job.window))


def rounds(job: Job) -> range:
    """Return the rounds, each of which measures three windows: the job, plain bytes, and plain bytes with the calls."""
    return range(max(LEAST_ROUNDS, job.records // 2 // job.window))


@dataclass(frozen=True)
class Round:
    """The CPU seconds of three consecutive windows, so that a busy machine affects all of them."""

    whole: float
    plain: float
    """The window sends bytes."""
    calling: float
    """The window sends bytes, and the user's own function is called for each record."""


def with_own(job: Job, result: Result, measured: list[Round]) -> Result:
    """Return a result with the CPU time of the rounds, divided between the user's own function and the client.

    Args:
        job: the job.
        result: the result of the whole job.
        measured: the rounds; empty without a function, in which case the client used all of the time.
    """
    if not measured:
        return {**result, "own_us": 0.0, "client_us": result["cpu_us"]}
    own = median(r.calling - r.plain for r in measured) / job.window * 1e6
    client = median(r.whole - (r.calling - r.plain) for r in measured) / job.window * 1e6
    sent = job.window * (1 + 3 * len(measured))  # the first window of bytes is a warm-up
    return {
        **result,
        "cpu_us": own + client,
        "own_us": own,
        "client_us": client,
        "sent": result["sent"] + sent,
    }
