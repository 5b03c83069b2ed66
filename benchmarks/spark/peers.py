"""Writers without a sink, as users write them today: a Kafka client in each task. Every delivery is checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

CHUNK = 10_000  # records sent before their deliveries are awaited


class Settings(NamedTuple):
    """The settings of all clients, in addition to acks=all, idempotence and murmur2."""

    bootstrap: str
    topic: str
    compression: str
    linger_ms: int
    batch_size: int

    def librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": self.linger_ms,
            "batch.size": self.batch_size,
            "compression.type": self.compression,
            "partitioner": "murmur2_random",
        }


class Deliveries:
    """Counts deliveries, and keeps the first error."""

    def __init__(self) -> None:
        self.count = 0
        self.error: object = None

    def __call__(self, error: object, message: object) -> None:
        self.count += 1
        self.error = self.error or error

    def check(self, sent: int) -> None:
        if self.error is not None or self.count != sent:
            raise RuntimeError(f"{self.count} of {sent} were delivered; {self.error}")


def produce_all(settings: Settings, pairs: Iterable[tuple[Any, Any]]) -> int:
    """Write rows with confluent-kafka's `produce`."""
    from confluent_kafka import Producer

    producer, deliveries = Producer(settings.librdkafka()), Deliveries()
    produce, poll, topic = producer.produce, producer.poll, settings.topic
    sent = 0
    for key, value in pairs:
        while True:
            try:
                produce(topic, value, key, on_delivery=deliveries)
                break
            except BufferError:
                poll(0.01)
        sent += 1
        if sent % 1000 == 0:
            poll(0)
    producer.flush()
    deliveries.check(sent)
    return sent


def foreach_confluent(settings: Settings) -> Callable[[Iterator[Any]], None]:
    """Return a function for `df.foreachPartition` of a frame with the columns key and value.

    It unpacks each Row as a tuple, since looking up a column by name costs about a microsecond."""

    def write(rows: Iterator[Any]) -> None:
        produce_all(settings, rows)

    return write


def foreach_aiokafka(settings: Settings) -> Callable[[Iterator[Any]], None]:
    """Return a function for `df.foreachPartition`."""

    async def send_all(rows: Iterator[Any]) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=settings.bootstrap,
            acks="all",
            enable_idempotence=True,
            linger_ms=settings.linger_ms,
            max_batch_size=settings.batch_size,
            compression_type=None if settings.compression == "none" else settings.compression,
        )
        await producer.start()
        try:
            futures = []
            for key, value in rows:
                futures.append(await producer.send(settings.topic, value.encode(), key.encode()))
                if len(futures) == CHUNK:
                    for future in futures:
                        await future
                    futures.clear()
            for future in futures:
                await future
        finally:
            await producer.stop()

    def write(rows: Iterator[Any]) -> None:
        asyncio.run(send_all(rows))

    return write


# For `df.mapInArrow`: each task returns one row with the number of rows that it has sent.


def _counted(sent: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([sent], pa.int64())], names=["n"])


def map_confluent(settings: Settings) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pairs = (
            pair
            for batch in batches
            for pair in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        )
        yield _counted(produce_all(settings, pairs))

    return write


def map_confluent_batch(settings: Settings) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Write rows with confluent-kafka's `produce_batch`, which takes a list of dictionaries."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Producer

        producer, deliveries = Producer(settings.librdkafka()), Deliveries()
        sent = 0
        for batch in batches:
            messages = batch.select(["key", "value"]).to_pylist()
            sent += len(messages)
            while messages:
                producer.produce_batch(settings.topic, messages, on_delivery=deliveries)
                messages = _refused(messages)
                producer.poll(0.01 if messages else 0)
        producer.flush()
        deliveries.check(sent)
        yield _counted(sent)

    return write


def _refused(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages for which the queue had no room, to be passed again."""
    from confluent_kafka import KafkaError

    refused = [message for message in messages if "_error" in message]
    for message in refused:
        error = message.pop("_error")
        if error.code() != KafkaError._QUEUE_FULL:
            raise RuntimeError(str(error))
    return refused


def map_count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield _counted(sum(batch.num_rows for batch in batches))
