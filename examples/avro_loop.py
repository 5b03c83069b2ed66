"""A loop that reads Avro orders and writes Avro invoices, each exactly once, with traces and metrics.

    python examples/avro_loop.py --bootstrap-servers localhost:9092 --registry http://localhost:8081 --id billing-1
    curl localhost:9100/metrics

avro_service.py writes the orders. The trace of an order continues here: its invoice belongs to the same trace. A value
that is not an order is sent to orders-rejected, in the same transaction. Several processes, each with its own id, can
share the partitions. Ctrl-C or SIGTERM ends the loop after the batch in progress.

AIOPRODUCER_BOOTSTRAP_SERVERS, every other setting of the producer, SCHEMA_REGISTRY_URL and OTEL_EXPORTER_OTLP_ENDPOINT
can come from the environment, as in avro_service.py.

Needs `pip install aiokafka "aioproducer[schemas,prometheus,otel]" opentelemetry-sdk
opentelemetry-exporter-otlp-proto-http`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import KafkaError as ConsumerError
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
from confluent_kafka.schema_registry.avro import AsyncAvroDeserializer, AsyncAvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from httpx import HTTPError
from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Tracer
from prometheus_client import CollectorRegistry, Counter, start_http_server

from aioproducer import KafkaError, Producer, TransformLoop
from aioproducer.otel import AioproducerInstrumentor
from aioproducer.prometheus import ProducerCollector

try:
    import uvloop  # faster, if installed
except ImportError:
    new_event_loop = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Invoice",
        "namespace": "shop",
        "fields": [{"name": "text", "type": "string"}, {"name": "cents", "type": "long"}],
    }
)
ORDER = SerializationContext("orders", MessageField.VALUE)
NOT_AN_ORDER = (SerializationError, ValueError, KeyError, TypeError)
"""The errors for values that are not orders. Errors from the registry end the loop instead."""


async def bill(
    record: ConsumerRecord, producer: Producer[Any, Any], orders: AsyncAvroDeserializer, tracer: Tracer
) -> None:
    """Send the invoice for an order, and continue the trace in the record's headers."""
    sent = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
    with tracer.start_as_current_span("process orders", propagate.extract(sent), SpanKind.CONSUMER):
        try:
            order: Any = await orders(record.value, ORDER)
            text, cents = f"item {order['item']} for {order['customer']}", 7 * order["item"]
        except NOT_AN_ORDER:
            await producer.send("orders-rejected", record.value, record.key, value_serializer=bytes)
        else:
            await producer.send("invoices", {"text": text, "cents": cents}, record.key)


async def run(options: argparse.Namespace, tracers: TracerProvider, metrics: CollectorRegistry) -> int:
    """Write invoices until a signal arrives. Returns the number of orders."""
    billed = Counter("billing_orders", "Orders in committed transactions.", registry=metrics)
    client = AsyncSchemaRegistryClient.new_client({"url": options.registry, "timeout": options.patience})
    try:
        async with Producer.from_env(
            bootstrap_servers=options.bootstrap_servers,
            client_id="billing",
            transactional_id=options.id,
            value_serializer=await AsyncAvroSerializer(client, SCHEMA),
            max_block_ms=options.patience * 1000,
        ) as producer:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=options.bootstrap_servers,
                group_id=options.group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            )
            # A signal takes effect within `poll_timeout`.
            async with consumer, TransformLoop(producer, consumer, ["orders"], poll_timeout=0.2) as batches:
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, batches.stop)
                print("billing; stop with SIGTERM or Ctrl-C", flush=True)
                orders, tracer, count = await AsyncAvroDeserializer(client), tracers.get_tracer("billing"), 0
                async for batch in batches:
                    async with batch:
                        for record in batch:
                            await bill(record, producer, orders, tracer)
                    if batch.is_committed:
                        billed.inc(len(batch))
                        count += len(batch)
                return count
    finally:
        await client.aclose()


def main() -> int:
    """Run the example. Exit status: 0 ended by a signal, 2 failed, 130 interrupted before it was connected."""
    parser = argparse.ArgumentParser(
        description="Reads Avro orders and writes Avro invoices, each exactly once.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    servers = os.environ.get("AIOPRODUCER_BOOTSTRAP_SERVERS", "localhost:9092")
    registry = os.environ.get("SCHEMA_REGISTRY_URL", "http://localhost:8081")
    parser.add_argument("--bootstrap-servers", default=servers, metavar="HOST:PORT,...", help="Kafka")
    parser.add_argument("--registry", default=registry, metavar="URL", help="schema registry")
    parser.add_argument("--id", default="billing-1", help="transactional id, different for each process")
    parser.add_argument("--group", default="billing", help="consumer group, the same for all processes")
    parser.add_argument("--metrics-port", type=int, default=9100, metavar="PORT", help="0: a free port")
    parser.add_argument(
        "--patience", type=float, default=10, metavar="SECONDS", help="longest wait for Kafka"
    )
    options = parser.parse_args()
    tracers = TracerProvider(resource=Resource.create({"service.name": "billing"}))
    if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    AioproducerInstrumentor().instrument(tracer_provider=tracers)
    metrics = CollectorRegistry()
    ProducerCollector(metrics)
    server, thread = start_http_server(options.metrics_port, "127.0.0.1", metrics)
    print(f"metrics on http://127.0.0.1:{server.server_port}/metrics", flush=True)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            print(f"{runner.run(run(options, tracers, metrics))} orders billed")
    except (KafkaError, ConsumerError, SchemaRegistryError, HTTPError, OSError) as error:
        print(f"the loop can't go on: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        tracers.shutdown()  # sends the last spans
    return 0


if __name__ == "__main__":
    sys.exit(main())
