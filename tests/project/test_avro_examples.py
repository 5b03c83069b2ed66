"""The examples with Avro values: an order on its way from the request to its invoice, with
its trace and its metrics."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import re
import signal
from types import ModuleType
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry.avro import AsyncAvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from aioproducer import Producer
from aioproducer.otel import AioproducerInstrumentor
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS
from tests.support.example_processes import DEADLINE, EXAMPLES, running
from tests.support.otlp_collector import Collector
from tests.support.producing import within
from tests.support.read_back import read_back
from tests.support.schemas import new_async_client, registry_in_memory

one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])
TOPICS = {"orders": 2, "invoices": 2, "orders-rejected": 1}
ORDERS = [{"customer": f"c{number % 2}", "item": number} for number in range(5)]
INVOICES = [
    {"text": f"item {order['item']} for {order['customer']}", "cents": 7 * order["item"]} for order in ORDERS
]


def module_of(example: str) -> ModuleType:
    """Import an example."""
    spec = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def values(registry_url: str, topic: str, records: list[Any]) -> list[Any]:
    """Return the values of records, as confluent-kafka's deserializer reads them, sorted by item or by cents."""
    async with new_async_client(registry_url) as client:
        read, context = await AsyncAvroDeserializer(client), SerializationContext(topic, MessageField.VALUE)
        found = [await read(record.value, context) for record in records]
    return sorted(found, key=lambda value: value.get("item", value.get("cents")))


def span_id_in(record: Any) -> str:
    """Return the id of the span named in a record's headers."""
    return dict(record.headers)["traceparent"].split(b"-")[2].decode()


def tracing() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def acked(page: httpx.Response) -> float:
    """Return the number of acknowledged orders on a page of metrics."""
    found = re.search(
        r'^aioproducer_records_acked_total{client_id="shop",topic="orders"} (.+)$', page.text, re.M
    )
    return float(found[1]) if found is not None else 0.0


@pytest.mark.promise(
    "Observability", "a trace can go from a request through a transform loop to the records of its output"
)
@one_loop
async def test_an_order_becomes_an_invoice_in_the_same_trace():
    with registry_in_memory() as registry:
        async with EmbeddedCluster(topics=TOPICS) as cluster:
            tracers, exporter = tracing()
            app = module_of("avro_service").create_app(
                tracers, registry.url, DEADLINE, bootstrap_servers=cluster.bootstrap_servers
            )
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
            ):
                # Producers of earlier tests, which have ended, are counted too.
                before = acked(await client.get("/metrics/"))
                answers = [await client.post("/orders", json=order) for order in ORDERS]
                count_acked = acked(await client.get("/metrics/")) - before
            spans = list(exporter.get_finished_spans())

            tracers, exporter = tracing()
            AioproducerInstrumentor().instrument(tracer_provider=tracers)
            try:
                options = argparse.Namespace(
                    bootstrap_servers=cluster.bootstrap_servers,
                    registry=registry.url,
                    id="billing-1",
                    group="billing",
                    patience=DEADLINE,
                )
                metrics = CollectorRegistry()
                billing = asyncio.create_task(module_of("avro_loop").run(options, tracers, metrics))
                async with asyncio.timeout(DEADLINE * 1000 * MS):
                    while (metrics.get_sample_value("billing_orders_total") or 0) < len(ORDERS):  # noqa: ASYNC110
                        await asyncio.sleep(MS)
                signal.raise_signal(signal.SIGTERM)
                count = await within(DEADLINE, billing)
            finally:
                AioproducerInstrumentor().uninstrument()
            spans += exporter.get_finished_spans()
            records = {topic: cluster.records(topic, committed=True) for topic in TOPICS}
            offsets = cluster.groups.offsets("billing")

        assert [answer.status_code for answer in answers] == [201] * len(ORDERS)
        assert await values(registry.url, "orders", records["orders"]) == ORDERS
        assert await values(registry.url, "invoices", records["invoices"]) == INVOICES
    assert (count, sum(offsets.values()), records["orders-rejected"]) == (len(ORDERS), len(ORDERS), [])
    assert registry.subjects == {"orders-value", "invoices-value"}
    assert count_acked == len(ORDERS)
    by_id = {f"{span.context.span_id:016x}": span for span in spans}
    for record in records["invoices"]:
        names, span = [], by_id[span_id_in(record)]
        while span is not None:
            names.append(span.name)
            span = None if span.parent is None else by_id[f"{span.parent.span_id:016x}"]
        assert names == ["send invoices", "process orders", "send orders", "POST /orders"]


async def the_whole_way(servers: str, registry_url: str) -> tuple[str, str, Any]:
    """Run both examples as processes until each order has its invoice. Return both metrics pages and the collector."""
    with Collector() as collector:
        environment = {
            "AIOPRODUCER_BOOTSTRAP_SERVERS": servers,
            "SCHEMA_REGISTRY_URL": registry_url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
        }
        async with (
            running("avro_service", "--port", 0, "--patience", DEADLINE, **environment) as service,
            running("avro_loop", "--metrics-port", 0, "--patience", DEADLINE, **environment) as billing,
            httpx.AsyncClient(timeout=DEADLINE) as client,
            Producer(servers) as other,
        ):
            metrics = await billing.line("metrics on ")
            shop = (await service.line("Uvicorn running on ", "stderr")).split()[0]
            await other.send_and_wait("orders", b"not Avro")
            answers = [await client.post(f"{shop}/orders", json=order) for order in ORDERS]
            bad = await client.post(f"{shop}/orders", json={"customer": "ann"})
            done = f"billing_orders_total {len(ORDERS) + 1}.0"
            async with asyncio.timeout(DEADLINE * 1000 * MS):
                while done not in (billed := (await client.get(metrics)).text):  # noqa: ASYNC110
                    await asyncio.sleep(10 * MS)
            sold = (await client.get(f"{shop}/metrics/")).text
            _, _, err = await service.finish(signal.SIGINT)
            assert f"{len(ORDERS)} delivered, 0 not" in err
            status, out, err = await billing.finish(signal.SIGINT)
            assert (status, out.splitlines()[-1]) == (0, f"{len(ORDERS) + 1} orders billed"), err
            assert "Traceback" not in err
    assert [answer.status_code for answer in (*answers, bad)] == [201] * len(ORDERS) + [422]
    return sold, billed, collector


def check(pages_and_collector: tuple[str, str, Any], invoices: list[Any]) -> None:
    """Check the metrics, and that the trace of each invoice began with a request."""
    sold, billed, collector = pages_and_collector
    assert f'aioproducer_records_acked_total{{client_id="shop",topic="orders"}} {len(ORDERS)}.0' in sold
    assert (
        f'aioproducer_records_acked_total{{client_id="billing",topic="invoices"}} {len(ORDERS)}.0' in billed
    )
    assert 'aioproducer_transaction_calls_total{call="commit",client_id="billing",result="success"}' in billed
    by_id = {span.span_id.hex(): span for span in collector.spans}
    for record in invoices:
        names, identity = [], span_id_in(record)
        while identity:
            names.append(by_id[identity].name)
            identity = by_id[identity].parent_span_id.hex()
        assert names == ["send invoices", "process orders", "send orders", "POST /orders"]


@pytest.mark.slow
@one_loop
async def test_both_processes_end_to_end_on_the_embedded_cluster():
    with registry_in_memory() as registry:
        async with EmbeddedCluster(topics=TOPICS) as cluster:
            seen = await the_whole_way(cluster.bootstrap_servers, registry.url)
            invoices = cluster.records("invoices", committed=True)
            [rejected] = cluster.records("orders-rejected", committed=True)

        assert await values(registry.url, "invoices", invoices) == INVOICES
    assert rejected.value == b"not Avro"
    check(seen, invoices)


@pytest.mark.slow
@one_loop
async def test_both_processes_end_to_end_on_apache_kafka_and_a_real_registry(apache_kafka, schema_registry):
    for topic, partitions in TOPICS.items():
        await apache_kafka.create_topic(topic, partitions=partitions)

    seen = await the_whole_way(apache_kafka.bootstrap_servers, schema_registry.url)

    logs = {
        topic: [
            record
            for log in (await read_back(apache_kafka.bootstrap_servers, topic)).values()
            for record in log
        ]
        for topic in TOPICS
    }
    orders = [record for record in logs["orders"] if record.value != b"not Avro"]
    assert await values(schema_registry.url, "orders", orders) == ORDERS
    assert await values(schema_registry.url, "invoices", logs["invoices"]) == INVOICES
    assert [record.value for record in logs["orders-rejected"]] == [b"not Avro"]
    check(seen, logs["invoices"])


@pytest.mark.slow
@one_loop
async def test_without_a_registry_the_service_answers_503_and_the_loop_ends():
    with registry_in_memory() as registry:
        registry.error = (500, {"error_code": 50001, "message": "out of order"})
        async with EmbeddedCluster(topics=TOPICS) as cluster:
            environment = {"SCHEMA_REGISTRY_URL": registry.url}
            options = ["--bootstrap-servers", cluster.bootstrap_servers]
            async with (
                running("avro_service", *options, "--port", 0, **environment) as service,
                httpx.AsyncClient(timeout=DEADLINE) as client,
            ):
                shop = (await service.line("Uvicorn running on ", "stderr")).split()[0]
                answer = await client.post(f"{shop}/orders", json=ORDERS[0])
                _, _, err = await service.finish(signal.SIGINT)
            async with Producer(cluster.bootstrap_servers) as producer:
                await producer.send_and_wait("orders", b"\x00\x00\x00\x00\x01\x02a\x02")
            async with running("avro_loop", *options, "--metrics-port", 0, **environment) as billing:
                status, _, loop_err = await billing.finish()

            assert cluster.records("invoices") == []
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "an order is not stored: the value_serializer" in err
    assert status == 2
    assert "out of order" in loop_err
    assert "Traceback" not in loop_err
