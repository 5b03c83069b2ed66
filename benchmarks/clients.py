"""The asyncio clients behind one face, and the settings in which they are compared.

`send` is the client's own bound method wherever it can be: a wrapper would cost more than some clients do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

UNBOUNDED = 1 << 30  # bytes: more than any run leaves waiting


@dataclass(frozen=True)
class Settings:
    """What a client is opened with: acks=all and idempotence always, the rest as the job says."""

    bootstrap: str
    linger_ms: float = 5
    batch_size: int | None = 65536  # bytes; None leaves the client's own default
    compression: str = "none"
    unbounded_buffer: bool = False
    eager: bool = False  # AIOProducer only: hand every record on at once instead of gathering a thousand


class Face(NamedTuple):
    """`send` returns a delivery to await, `send_and_wait` the metadata; `ready` awaits a topic's metadata."""

    send: Callable[..., Awaitable[Awaitable[Any]]]
    send_and_wait: Callable[..., Awaitable[Any]]
    ready: Callable[[str], Awaitable[Any]]
    close: Callable[[], Awaitable[Any]]
    send_many: Callable[..., Awaitable[Awaitable[Any]]] | None = None


async def open_aioproducer(settings: Settings) -> Face:
    from aioproducer import Producer

    chosen: dict[str, Any] = {} if settings.batch_size is None else {"batch_size": settings.batch_size}
    if settings.unbounded_buffer:
        chosen["buffer_memory"] = UNBOUNDED
    producer = Producer(
        settings.bootstrap, linger_ms=settings.linger_ms, compression_type=settings.compression, **chosen
    )
    await producer.__aenter__()

    async def close() -> None:
        await producer.__aexit__(None, None, None)

    return Face(producer.send, producer.send_and_wait, producer.partitions_for, close, producer.send_many)


async def open_aiokafka(settings: Settings) -> Face:
    from aiokafka import AIOKafkaProducer

    chosen: dict[str, Any] = {} if settings.batch_size is None else {"max_batch_size": settings.batch_size}
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=settings.linger_ms,
        compression_type=None if settings.compression == "none" else settings.compression,
        **chosen,
    )
    await producer.start()
    return Face(producer.send, producer.send_and_wait, producer.partitions_for, producer.stop)


async def open_confluent_aio(settings: Settings) -> Face:
    from confluent_kafka.aio import AIOProducer

    gathered: dict[str, Any] = {"batch_size": 1} if settings.eager else {}
    # Its defaults are 1,000 records and one second.
    producer = AIOProducer(librdkafka(settings), buffer_timeout=max(settings.linger_ms, 5) / 1000, **gathered)

    async def send_and_wait(topic: str, value: bytes) -> Any:
        return await (await producer.produce(topic, value))

    async def ready(topic: str) -> None:
        await producer.list_topics(topic)

    async def close() -> None:
        await producer.flush()
        await producer.close()

    return Face(producer.produce, send_and_wait, ready, close)


def librdkafka(settings: Settings) -> dict[str, Any]:
    """The settings in librdkafka's names."""
    chosen: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": settings.linger_ms,
        "compression.type": settings.compression,
    }
    if settings.batch_size is not None:
        chosen["batch.size"] = settings.batch_size
    if settings.unbounded_buffer:
        chosen["queue.buffering.max.messages"] = 10_000_000
        chosen["queue.buffering.max.kbytes"] = UNBOUNDED >> 10
    return chosen


OPEN: dict[str, Callable[[Settings], Awaitable[Face]]] = {
    "aioproducer": open_aioproducer,
    "aiokafka": open_aiokafka,
    "AIOProducer": open_confluent_aio,
}
