"""A FastStream app that consumes with FastStream's own client, aiokafka, and publishes with aioproducer.

    pip install "faststream[kafka]>=0.7,<0.8"
    python examples/faststream_app.py --bootstrap-servers localhost:9092
    kcat -b localhost:9092 -t orders -P <<< '{"customer": "ann", "item": 7}'

FastStream has no public way to choose another producer, so `publish_with` replaces a private attribute of its broker.
This app was written for FastStream 0.7, and may fail with others. docs/from-aiokafka.md lists what is missing."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Any

from faststream import FastStream
from faststream.kafka import KafkaBroker
from faststream.kafka.publisher.producer import AioKafkaFastProducerImpl
from pydantic import BaseModel

from aioproducer.compat.aiokafka import AIOKafkaProducer
from aioproducer.compat.aiokafka.errors import KafkaError


class Publisher(AioKafkaFastProducerImpl):
    """FastStream's publisher, with an aioproducer producer instead of the one that FastStream built."""

    def __init__(self, make_producer: Callable[[], AIOKafkaProducer]) -> None:
        super().__init__(parser=None, decoder=None)
        self.make_producer = make_producer

    async def connect(self, producer: Any, serializer: Any, codec: Any = None) -> None:
        await producer.stop()  # FastStream's own, which has not been started
        await super().connect(self.make_producer(), serializer, codec)


def publish_with(broker: KafkaBroker, **settings: Any) -> None:
    """Make a broker publish with aioproducer, with these `Producer` settings. Call this before the app starts."""
    broker.config.broker_config.producer = Publisher(lambda: AIOKafkaProducer(**settings))


class Order(BaseModel):
    """A record in the topic that the app reads."""

    customer: str
    item: int


class Receipt(BaseModel):
    """A record in the topic that the app writes to."""

    customer: str
    text: str


def make_app(options: argparse.Namespace) -> FastStream:
    """Build the app, which writes a receipt for each order."""
    broker = KafkaBroker(options.bootstrap_servers)
    publish_with(broker, bootstrap_servers=options.bootstrap_servers, compression_type=options.codec)
    app = FastStream(broker)
    done = 0

    @broker.subscriber(options.orders, auto_offset_reset="earliest")
    async def order_placed(order: Order) -> None:
        nonlocal done
        receipt = Receipt(customer=order.customer, text=f"item {order.item} for {order.customer}")
        try:
            # publish() returns when all in-sync replicas have acknowledged the record (acks=all, the default).
            metadata = await broker.publish(receipt, options.receipts, key=order.customer.encode())
        except KafkaError as error:
            print(f"no receipt for {order.customer}: {error}", file=sys.stderr, flush=True)
            return
        print(f"receipt at partition {metadata.partition}, offset {metadata.offset}", flush=True)
        done += 1
        if done == options.count:
            app.exit()

    @app.after_startup
    async def say_so() -> None:
        print("started", flush=True)

    return app


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="A FastStream app that publishes with aioproducer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,...", help="Kafka"
    )
    parser.add_argument("--orders", default="orders", help="the topic to read")
    parser.add_argument("--receipts", default="receipts", help="the topic to write")
    parser.add_argument("--codec", default="zstd", help="the compression of the receipts")
    parser.add_argument("--count", type=int, default=0, help="stop after this many receipts; 0: never")
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(make_app(arguments()).run())
