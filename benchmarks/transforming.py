"""Consume, transform and produce Avro values exactly once: the same loop with each client, on a real broker.

Each transaction has up to `window` records. aioproducer's loop reads with confluent-kafka's consumer. The job's `work`
says whether the sent records have traces, and whether the metrics are read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import services
from clients import chosen, librdkafka
from job import Job, Result, cpu_seconds, per_record

COLUMN = "Avro to Avro in transactions, traces, metrics"
CENT = 0.01


def function() -> Callable[[bytes], bytes]:
    """Return the user's function: Avro in, Avro out, with a known schema."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    write, read = AvroSerializer(registry, services.SCHEMA), AvroDeserializer(registry)
    context = SerializationContext("t", MessageField.VALUE)
    write({"id": 0, "user": "", "price": 0.0, "note": ""}, context)  # registers the schema

    def transform(value: bytes) -> bytes:
        order: Any = read(value, context)
        order["price"] += CENT
        return write(order, context)

    return transform


def inputs(job: Job) -> list[bytes]:
    """Return distinct orders in Avro."""
    write = services.load_avro()
    return [write(order) for order in services.values(replace(job, work=services.AVRO))]


class Meter:
    """Measures from the commit that ends the warm-up to the last commit."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.count = 0
        self._first = -1

    def add(self, count: int) -> bool:
        """Count committed records. Return whether these were the last ones."""
        self.count += count
        if self._first < 0 and self.count >= self._job.warm_up:
            self._first, self._cpu, self._wall = self.count, cpu_seconds(), time.perf_counter()
        return self.is_done

    @property
    def is_done(self) -> bool:
        return self.count >= self._job.warm_up + self._job.records

    def result(self) -> Result:
        cpu, wall = cpu_seconds() - self._cpu, time.perf_counter() - self._wall
        found = per_record(self.count - self._first, cpu, wall)
        own = own_us(self._job)
        return {**found, "sent": self.count, "own_us": own, "client_us": found["cpu_us"] - own}


def own_us(job: Job) -> float:
    """Return the CPU time of one call of the user's own function, in microseconds."""
    transform, values = function(), inputs(job)
    for value in values:
        transform(value)
    cpu = cpu_seconds()
    for value in values * 10:
        transform(value)
    return (cpu_seconds() - cpu) / (10 * len(values)) * 1e6


def consumer_settings(job: Job) -> dict[str, Any]:
    """Return the settings of confluent-kafka's consumer."""
    return {
        "bootstrap.servers": job.bootstrap,
        "group.id": job.topic,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }


async def with_aioproducer(job: Job) -> Result:
    from confluent_kafka import Consumer

    from aioproducer import Producer, TransformLoop

    meter, transform, consumer = Meter(job), function(), Consumer(consumer_settings(job))
    settings = chosen(job, batch_size="batch_size", linger_ms="linger_ms")
    services.trace(job)
    async with (
        services.reading_metrics(job),
        Producer(job.bootstrap, transactional_id=job.topic, **settings) as producer,
        TransformLoop(producer, consumer, [job.source], max_records=job.window) as batches,
    ):
        async for batch in batches:
            async with batch:
                for message in batch:
                    await producer.send(job.topic, transform(message.value()))
            if batch.is_committed and meter.add(len(batch)):
                result = meter.result()
                batches.stop()
    await asyncio.to_thread(consumer.close)
    return result


async def with_aiokafka(job: Job) -> Result:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    meter, transform = Meter(job), function()
    consumer = AIOKafkaConsumer(
        job.source,
        bootstrap_servers=job.bootstrap,
        group_id=job.topic,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    settings = chosen(job, batch_size="max_batch_size", linger_ms="linger_ms")
    services.trace(job)
    producer = AIOKafkaProducer(bootstrap_servers=job.bootstrap, transactional_id=job.topic, **settings)
    async with consumer, producer:
        while not meter.is_done:
            found = await consumer.getmany(timeout_ms=1000, max_records=job.window)
            if not found:
                continue
            async with producer.transaction():
                for records in found.values():
                    for record in records:
                        await producer.send(job.topic, transform(record.value))
                offsets = {partition: records[-1].offset + 1 for partition, records in found.items()}
                await producer.send_offsets_to_transaction(offsets, job.topic)
            meter.add(sum(map(len, found.values())))
        return meter.result()


def with_confluent(job: Job) -> Result:
    from confluent_kafka import Consumer, Producer

    meter, transform = Meter(job), function()
    consumer = Consumer(consumer_settings(job))
    producer = Producer(librdkafka(job) | {"transactional.id": job.topic} | services.librdkafka_metrics(job))
    sending = services.traced(job, producer)
    producer.init_transactions(30)
    consumer.subscribe([job.source])
    while not meter.is_done:
        messages = consumer.consume(job.window, timeout=0.1)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            sending.produce(job.topic, transform(message.value()))
        producer.poll(0)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        meter.add(len(messages))
    result = meter.result()
    consumer.close()
    return result
