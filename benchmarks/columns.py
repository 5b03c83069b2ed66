"""Measurements of `send_many`: until the acknowledgement, encoded only, and compared with a bare stream."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from types import SimpleNamespace
from typing import Any

from aioproducer.records._record_path import (
    ALL_APPENDED,
    BufferMemory,
    PartitionQueue,
    RecordPath,
    Rows,
    Topic,
)
from aioproducer.records.batch import ProducerBatch
from clients import Face
from job import LINES, Job, Result, cpu_seconds, lines, per_record

COLUMN = 100_000  # rows per call
DEFAULT_BATCH_SIZE = 262_144  # bytes, aioproducer's


def column_of(job: Job, values: list[bytes]) -> Any:
    if not job.arrow:
        return values
    import pyarrow

    return pyarrow.array(values)


def columns_of(job: Job) -> tuple[Any, Any]:
    """Return the values for one call, and its keys or None."""
    chance = random.Random(7)
    keys = [b"key-%06d" % chance.randrange(100_000) for _ in range(COLUMN)]
    values = column_of(job, lines(job.value_size) * (COLUMN // LINES))
    return values, column_of(job, keys) if job.keyed else None


async def acknowledged(job: Job, face: Face) -> Result:
    values, keys = columns_of(job)
    send_many = face.send_many
    if send_many is None:
        raise RuntimeError(f"{job.client} has no send_many")

    async def push(calls: int) -> None:
        receipts = [await send_many(job.topic, values, keys=keys) for _ in range(calls)]
        for receipt in receipts:
            await receipt

    await push(job.warm_up // COLUMN)
    cpu, wall = cpu_seconds(), time.perf_counter()
    await push(job.records // COLUMN)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return {**per_record(job.records, cpu, wall), "sent": job.warm_up + job.records}


# ---- encoded only ----


class Discarding:
    """A minimal accumulator for the compiled path: it seals full batches, with their checksums, and drops them."""

    def __init__(self, topic: str, partitions: int, batch_size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._batch_size = batch_size
        self.memory = BufferMemory(1 << 60)
        self.compressor = SimpleNamespace(turn_is_full=False)
        self.topic = Topic(topic, lambda topic: (topic.sticky_partition + 1) % partitions)
        self.topic.queues.extend(PartitionQueue(topic, number) for number in range(partitions))
        self.topics = {topic: self.topic}

    def open_batch(self, queue: PartitionQueue, size: int) -> ProducerBatch:
        if queue.tail is not None:
            queue.tail.close()
            queue.tail.seal()
        queue.tail = ProducerBatch(
            queue,
            self._loop,
            self._batch_size,
            self._batch_size,
            order=(0, 0),
            created=0,
            deadline=0,
        )
        return queue.tail


async def encoding(job: Job) -> Result:
    """Encode rows into sealed batches, without a producer and without a socket."""
    accumulator = Discarding(job.topic, job.partitions, job.batch_size or DEFAULT_BATCH_SIZE)
    path = RecordPath()
    loop = asyncio.get_running_loop()
    path._bind(loop, accumulator, accumulator.memory, 65536, 1 << 20, True)
    values, keys = columns_of(job)

    def push(calls: int) -> None:
        for _ in range(calls):
            rows = Rows(values, keys, None, None, None)
            while path._append_rows(accumulator.topic, rows, None, False) != ALL_APPENDED:
                pass

    push(job.warm_up // COLUMN)
    cpu, wall = cpu_seconds(), time.perf_counter()
    push(job.records // COLUMN)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return {**per_record(job.records, cpu, wall), "sent": 0}


# ---- a bare stream ----


async def stream(job: Job) -> Result:
    """Write the same bytes to an asyncio stream, one batch per write, until all have arrived."""
    host, _, port = job.bootstrap.rpartition(":")
    context = ssl.create_default_context(cafile=job.authority) if job.authority else None
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    data = memoryview(b"".join(lines(job.value_size) * (COLUMN // LINES)))  # the values for one call
    size = job.batch_size or DEFAULT_BATCH_SIZE

    async def write(records: int) -> None:
        for _ in range(records // COLUMN):
            for first in range(0, len(data), size):
                writer.write(data[first : first + size])
                await writer.drain()

    await write(job.warm_up)
    cpu, wall = cpu_seconds(), time.perf_counter()
    await write(job.records)
    # TLS has no half-closed connections; with TLS, at most one write buffer is left unsent.
    if not job.authority:
        writer.write_eof()
        await reader.read()  # the other side has read everything and closes
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    writer.close()
    return {**per_record(job.records, cpu, wall), "sent": 0}
