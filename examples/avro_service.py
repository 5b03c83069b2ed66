"""A FastAPI service whose orders are Avro values, with a trace for each order and metrics for Prometheus.

    python examples/avro_service.py --bootstrap-servers localhost:9092 --registry http://localhost:8081 --port 8000
    curl -i localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "ann", "item": 7}'

    POST /orders   answers 201 once Kafka has the order; 503 if it is not stored; 504 if the outcome is unknown
    GET /metrics   the producer's metrics

    uvicorn --factory --app-dir examples avro_service:create_app   takes the same settings from the environment:

    AIOPRODUCER_BOOTSTRAP_SERVERS and every other setting of the producer
    SCHEMA_REGISTRY_URL           a registry with Confluent's API; mock:// selects one in memory
    OTEL_EXPORTER_OTLP_ENDPOINT   where the traces go, such as http://localhost:4318; without it, nowhere
    OTEL_TRACES_SAMPLER           which requests have a trace; all of them by default

avro_loop.py turns these orders into invoices. The trace of an order begins with its request and ends with its invoice.

Needs `pip install fastapi uvicorn "aioproducer[schemas,prometheus,otel]" opentelemetry-sdk
opentelemetry-exporter-otlp-proto-http opentelemetry-instrumentation-fastapi`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
from confluent_kafka.schema_registry.avro import AsyncAvroSerializer
from fastapi import FastAPI, HTTPException, Request
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, make_asgi_app
from pydantic import BaseModel

from aioproducer import DeliveryError, KafkaError, Outcome, Producer
from aioproducer.otel import AioproducerInstrumentor
from aioproducer.prometheus import ProducerCollector

logger = logging.getLogger("uvicorn.error")

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "customer", "type": "string"}, {"name": "item", "type": "long"}],
    }
)


class Order(BaseModel):
    """A customer's order."""

    customer: str
    item: int


def open_tracing(service: str) -> TracerProvider:
    """Return a provider that sends the spans to the collector named in the environment, if there is one."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def create_app(
    tracing: TracerProvider | None = None,
    registry_url: str = os.environ.get("SCHEMA_REGISTRY_URL", "http://localhost:8081"),
    patience: float = 5,
    **settings: Any,
) -> FastAPI:
    """Create the application.

    Args:
        tracing: the tracer provider; None creates one from the environment.
        registry_url: the address of the schema registry.
        patience: the longest time in seconds that a request waits for Kafka, or for the registry.
        settings: settings of the producer, which take precedence over the environment.
    """
    tracers = tracing or open_tracing("shop")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        registry = AsyncSchemaRegistryClient.new_client(
            {"url": registry_url, "timeout": patience, "max.retries": 1}
        )
        avro = await AsyncAvroSerializer(registry, SCHEMA, lambda order, context: order.model_dump())
        AioproducerInstrumentor().instrument(tracer_provider=tracers)  # before the producer starts
        producer = Producer.from_env(
            client_id="shop",
            key_serializer=str.encode,
            value_serializer=avro,
            max_block_ms=patience * 1000,
            **settings,
        )
        await producer.start(wait=False)
        app.state.producer = producer
        yield
        report = await producer.close(timeout=30)
        logger.info("producer closed: %s delivered, %s not", report.delivered, report.failed + report.unknown)
        AioproducerInstrumentor().uninstrument()
        tracers.shutdown()  # sends the last spans
        await registry.aclose()

    app = FastAPI(title="shop", lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def order(order: Order, request: Request) -> dict[str, int | None]:
        producer: Producer[str, Order] = request.app.state.producer
        try:
            stored = await producer.send_and_wait("orders", order, order.customer, timeout=patience)
        except KafkaError as error:  # among others, a SerializationError if the registry can't be reached
            if isinstance(error, DeliveryError) and error.outcome is Outcome.UNKNOWN:
                raise HTTPException(
                    504, "the order may already be stored; check before you repeat it"
                ) from error
            logger.error("an order is not stored: %s", error)
            raise HTTPException(503, "the order is not stored", {"Retry-After": "1"}) from error
        return {"partition": stored.partition, "offset": stored.offset}

    metrics = CollectorRegistry()
    ProducerCollector(metrics)
    app.mount("/metrics", make_asgi_app(metrics))
    FastAPIInstrumentor.instrument_app(app, tracer_provider=tracers, excluded_urls="metrics")
    return app


def main() -> int:
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser(
        description="A FastAPI service that writes Avro values to Kafka.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    servers = os.environ.get("AIOPRODUCER_BOOTSTRAP_SERVERS", "localhost:9092")
    registry = os.environ.get("SCHEMA_REGISTRY_URL", "http://localhost:8081")
    parser.add_argument("--bootstrap-servers", default=servers, metavar="HOST:PORT,...", help="Kafka")
    parser.add_argument("--registry", default=registry, metavar="URL", help="schema registry")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: a free port")
    parser.add_argument("--patience", type=float, default=5, metavar="SECONDS", help="longest wait for Kafka")
    options = parser.parse_args()
    app = create_app(None, options.registry, options.patience, bootstrap_servers=options.bootstrap_servers)
    uvicorn.run(app, host=options.host, port=options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
