"""The clients in Python, and the settings with which they are compared.

The asyncio clients have a common interface, `Face`. Its `send` is the client's own bound method if possible, since a
wrapper would cost more than some clients do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import services
from job import Job

UNBOUNDED = 1 << 30  # bytes: more than any run leaves waiting


class Face(NamedTuple):
    """The common interface: `send` returns a delivery to await, `send_and_wait` the record's metadata.

    `ready` waits for a topic's metadata."""

    send: Callable[..., Awaitable[Awaitable[Any]]]
    send_and_wait: Callable[..., Awaitable[Any]]
    ready: Callable[[str], Awaitable[Any]]
    close: Callable[[], Awaitable[Any]]
    send_many: Callable[..., Awaitable[Awaitable[Any]]] | None = None


def chosen(job: Job, **names: str) -> dict[str, Any]:
    """Return the settings of the job that are not left to the client, under the client's names."""
    return {name: getattr(job, field) for field, name in names.items() if getattr(job, field) is not None}


async def open_aioproducer(job: Job) -> Face:
    from aioproducer import Producer

    settings = chosen(job, batch_size="batch_size", linger_ms="linger_ms", compression="compression_type")
    if job.kind in ("memory", "window"):  # the buffer must have room for the whole window
        settings["buffer_memory"] = UNBOUNDED
    if job.authority:
        settings |= {"security_protocol": "SSL", "ssl_truststore_location": job.authority}
        settings |= {"ssl_truststore_type": "PEM"}
    if job.level is not None:
        settings[f"compression_{job.compression}_level"] = job.level
    if job.work:
        settings |= services.producer_settings(job)
        services.trace(job)
    producer = Producer(job.bootstrap, **settings)
    await producer.__aenter__()

    async def close() -> None:
        await producer.__aexit__(None, None, None)

    return Face(producer.send, producer.send_and_wait, producer.partitions_for, close, producer.send_many)


async def open_aiokafka(job: Job) -> Face:
    from aiokafka import AIOKafkaProducer
    from aiokafka.helpers import create_ssl_context

    if job.work:
        services.trace(job)
    over_tls: dict[str, Any] = {}
    if job.authority:
        over_tls = {"security_protocol": "SSL", "ssl_context": create_ssl_context(cafile=job.authority)}
    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks="all",
        enable_idempotence=True,
        compression_type=None if job.compression == "none" else job.compression,
        value_serializer=services.WORKS[job.work].function if job.work else None,
        **over_tls,
        **chosen(job, batch_size="max_batch_size", linger_ms="linger_ms"),
    )
    await producer.start()
    return Face(producer.send, producer.send_and_wait, producer.partitions_for, producer.stop)


async def open_confluent_aio(job: Job) -> Face:
    from confluent_kafka.aio import AIOProducer

    # AIOProducer's defaults are 1,000 records and one second; the closed loop would never fill such a group.
    gathered: dict[str, Any] = {"batch_size": 1} if job.kind == "closed_loop" else {}
    producer = AIOProducer(librdkafka(job), buffer_timeout=max(job.linger_ms or 0, 5) / 1000, **gathered)

    async def send_and_wait(topic: str, value: bytes) -> Any:
        return await (await producer.produce(topic, value))

    async def ready(topic: str) -> None:
        await producer.list_topics(topic)

    async def close() -> None:
        await producer.flush()
        await producer.close()

    return Face(producer.produce, send_and_wait, ready, close)


async def open_bare_loop(job: Job) -> Face:
    from bare_loop import BareLoop

    host, _, port = job.bootstrap.rpartition(":")
    loop = asyncio.get_running_loop()
    _, bare = await loop.create_connection(lambda: BareLoop(job), host, int(port))
    return Face(bare.send, bare.send_and_wait, bare.ready, bare.close)


OPEN: dict[str, Callable[[Job], Awaitable[Face]]] = {
    "aioproducer": open_aioproducer,
    "aiokafka": open_aiokafka,
    "AIOProducer": open_confluent_aio,
    "bare loop": open_bare_loop,
}


def librdkafka(job: Job) -> dict[str, Any]:
    """Return the settings under librdkafka's names."""
    settings: dict[str, Any] = {
        "bootstrap.servers": job.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        **chosen(
            job,
            linger_ms="linger.ms",
            batch_size="batch.size",
            compression="compression.type",
            level="compression.level",
        ),
    }
    if job.authority:
        settings |= {"security.protocol": "ssl", "ssl.ca.location": job.authority}
    if job.kind == "memory":
        settings["queue.buffering.max.messages"] = 10_000_000
        settings["queue.buffering.max.kbytes"] = UNBOUNDED >> 10
    return settings


def kafka_python(job: Job) -> Any:
    from kafka import KafkaProducer

    return KafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks="all",
        enable_idempotence=True,
        compression_type=None if job.compression == "none" else job.compression,
        **chosen(job, batch_size="batch_size", linger_ms="linger_ms"),
    )
