"""A FastAPI application that starts and closes the producer in its lifespan.

    python examples/fastapi_app.py --bootstrap-servers localhost:9092 --port 8000
    AIOPRODUCER_BOOTSTRAP_SERVERS=localhost:9092 uvicorn --app-dir examples fastapi_app:app
    curl -i localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "ann", "item": 7}'

    POST /orders   answers 201 with partition and offset once Kafka has the order; 503 and Retry-After if it is not
                   stored; 504 if the outcome is unknown
    POST /clicks   answers 202 immediately; delivered and failed clicks are counted
    GET /ready     answers 200 if orders can be expected to reach Kafka, else 503 with the reason: a readiness probe
    GET /metrics   the producer's metrics for Prometheus

The application starts without Kafka, and connects in the background. Every setting of the producer can come from the
environment. When the server stops, it first finishes its requests; then the lifespan ends, and the producer sends the
buffered records. With OpenTelemetry's command-line tools installed, each order is one trace from the request to the
broker's acknowledgement:

    opentelemetry-instrument uvicorn --app-dir examples fastapi_app:app

Needs `pip install fastapi uvicorn "aioproducer[prometheus]"`; uvicorn runs on uvloop if that is installed too."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request, Response
from prometheus_client import CollectorRegistry, make_asgi_app
from pydantic import BaseModel

from aioproducer import DeliveryError, InvalidRecordError, KafkaError, Outcome, Producer
from aioproducer.prometheus import ProducerCollector

logger = logging.getLogger("uvicorn.error")


class Order(BaseModel):
    """A customer's order."""

    customer: str
    item: int


class Place(BaseModel):
    """The position of an order in the log."""

    topic: str
    partition: int
    offset: int | None


def create_app(patience: float = 5, **settings: Any) -> FastAPI:
    """Create the application.

    Args:
        patience: the longest time in seconds that a request waits for Kafka.
        settings: settings of the producer, which take precedence over the environment.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # The producer is built and started in the server's loop, one for each worker process.
        producer = Producer.from_env(client_id="shop", max_block_ms=patience * 1000, **settings)
        await producer.start(wait=False)
        app.state.producer = producer
        yield
        report = await producer.close(timeout=30)
        logger.info("producer closed: %s delivered, %s not", report.delivered, report.failed + report.unknown)

    app = FastAPI(title="shop", lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def order(order: Order, request: Request) -> Place:
        producer: Producer = request.app.state.producer
        value, key = order.model_dump_json().encode(), order.customer.encode()
        try:
            stored = await producer.send_and_wait("orders", value, key, timeout=patience)
        except InvalidRecordError as error:
            raise HTTPException(422, str(error)) from error
        except DeliveryError as error:
            if error.outcome is Outcome.UNKNOWN:
                raise HTTPException(
                    504, "the order may already be stored; check before you send it again"
                ) from error
            raise HTTPException(503, "the order is not stored", {"Retry-After": "1"}) from error
        except KafkaError as error:
            raise HTTPException(503, "the order is not stored", {"Retry-After": "1"}) from error
        return Place(topic=stored.topic, partition=stored.partition, offset=stored.offset)

    @app.post("/clicks", status_code=202)
    async def click(page: Annotated[str, Body(embed=True)], request: Request) -> dict[str, str]:
        producer: Producer = request.app.state.producer
        try:
            await producer.send(
                "clicks", page.encode()
            )  # the delivery is not awaited: failures are logged and counted
        except KafkaError as error:
            raise HTTPException(503, "too busy for clicks", {"Retry-After": "1"}) from error
        return {"status": "accepted"}

    @app.get("/ready")
    async def ready(request: Request, response: Response) -> dict[str, Any]:
        producer: Producer = request.app.state.producer
        health = producer.health(max_unacked_seconds=patience)
        response.status_code = 200 if health.ok else 503
        return health.as_dict()

    registry = CollectorRegistry()
    ProducerCollector(registry)
    app.mount("/metrics", make_asgi_app(registry))

    return app


app = create_app()
"""The application that `uvicorn fastapi_app:app` serves."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="A FastAPI application that writes to Kafka.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,...", help="Kafka"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: a free port")
    parser.add_argument("--patience", type=float, default=5, metavar="SECONDS", help="longest wait for Kafka")
    return parser.parse_args()


def main() -> int:
    """Serve until a signal arrives."""
    options = arguments()
    uvicorn.run(
        create_app(options.patience, bootstrap_servers=options.bootstrap_servers),
        host=options.host,
        port=options.port,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
