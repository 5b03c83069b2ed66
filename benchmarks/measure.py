"""One measurement of one client, in a process of its own: a job as JSON in argv, a result on stdout.

CPU is the user and system time of this process, all its threads, over the measured part, after a warm-up."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import os
import pstats
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from clients import OPEN, Face, Settings, librdkafka

from aioproducer._record_path import (
    ALL_APPENDED,
    BufferMemory,
    PartitionQueue,
    RecordPath,
    Rows,
    Topic,
)
from aioproducer.batch import ProducerBatch

CHUNK = 10_000  # records sent before their deliveries are awaited, one by one
SLICE = 100  # records between two turns of the loop where its lag is measured
WINDOW = 20_000  # records on their way there
TICK = 0.001  # seconds
TOPIC = "t"


@dataclass(frozen=True)
class Job:
    """What to measure, in seconds and bytes; `records` are those measured, after `warm_up` more."""

    kind: str  # pipelined, columns, encoding, closed_loop, memory, lag or idle
    client: str
    value_size: int = 100
    records: int = 0
    warm_up: int = 0
    tasks: int = 1
    seconds: float = 0
    linger_ms: float = 5
    batch_size: int | None = 65536
    compression: str = "none"
    arrow: bool = False
    keyed: bool = False
    partitions: int = 12
    loop: str = "uvloop"
    profile: bool = False
    bootstrap: str = ""

    def settings(self) -> Settings:
        return Settings(
            bootstrap=self.bootstrap,
            linger_ms=self.linger_ms,
            batch_size=self.batch_size,
            compression=self.compression,
            unbounded_buffer=self.kind == "memory",
            eager=self.kind == "closed_loop",
        )


Result = dict[str, Any]


def lines(size: int, count: int = 2000) -> list[bytes]:
    """Distinct JSON-like values of exactly `size` bytes, the same in every run."""
    chance = random.Random(7)
    made = []
    for number in range(count):
        text = (
            f'{{"id":{number:07d},"user":{chance.randrange(10**6):06d},"price":{chance.random() * 1000:.4f}'
        )
        while len(text) < size:
            text += f',"k{chance.randrange(100)}":"{chance.getrandbits(40):x}"'
        made.append((text[: size - 1] + "}").encode())
    return made


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def per_record(records: int, cpu: float, wall: float) -> Result:
    return {"cpu_us": cpu / records * 1e6, "records_per_s": records / wall}


def quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))]


# ---- pipelined: as fast as the client takes them ----


async def pipelined(job: Job, face: Face) -> Result:
    send = face.send
    chunk = lines(job.value_size) * (CHUNK // 2000)

    async def push(chunks: int) -> None:
        for _ in range(chunks):
            deliveries = [await send(TOPIC, value) for value in chunk]
            for delivery in deliveries:
                await delivery

    await push(job.warm_up // CHUNK)
    profile = cProfile.Profile() if job.profile else None
    if profile:
        profile.enable()
    cpu, wall = cpu_seconds(), time.perf_counter()
    await push(job.records // CHUNK)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    if profile:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    return {**per_record(job.records, cpu, wall), "sent": job.warm_up + job.records}


def pipelined_callback(job: Job) -> Result:
    from confluent_kafka import Producer

    producer = Producer(librdkafka(job.settings()))
    produce, poll = producer.produce, producer.poll
    chunk = lines(job.value_size) * (CHUNK // 2000)
    delivered = 0

    def on_delivery(error: object, message: object) -> None:
        nonlocal delivered
        if error is not None:
            raise RuntimeError(str(error))
        delivered += 1

    def push(chunks: int) -> None:
        for _ in range(chunks):
            for index, value in enumerate(chunk):
                while True:
                    try:
                        produce(TOPIC, value, on_delivery=on_delivery)
                        break
                    except BufferError:
                        poll(0.01)
                if index % 1000 == 0:
                    poll(0)
        producer.flush()

    push(job.warm_up // CHUNK)
    cpu, wall = cpu_seconds(), time.perf_counter()
    push(job.records // CHUNK)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    if delivered != job.warm_up + job.records:
        raise RuntimeError(f"{delivered} callbacks for {job.warm_up + job.records} records")
    return {**per_record(job.records, cpu, wall), "sent": job.warm_up + job.records}


# ---- columns: many records in one call ----

COLUMN = 100_000  # rows of one call


def column_of(job: Job, values: list[bytes]) -> Any:
    if not job.arrow:
        return values
    import pyarrow

    return pyarrow.array(values)


def columns_of(job: Job) -> tuple[Any, Any]:
    """Values and keys, or None, of one call."""
    chance = random.Random(7)
    keys = [b"key-%06d" % chance.randrange(100_000) for _ in range(COLUMN)]
    values = column_of(job, lines(job.value_size) * (COLUMN // 2000))
    return values, column_of(job, keys) if job.keyed else None


async def columns(job: Job, face: Face) -> Result:
    values, keys = columns_of(job)
    send_many = face.send_many
    if send_many is None:
        raise RuntimeError(f"{job.client} has no send_many")

    async def push(calls: int) -> None:
        receipts = [await send_many(TOPIC, values, keys=keys) for _ in range(calls)]
        for receipt in receipts:
            await receipt

    await push(job.warm_up // COLUMN)
    cpu, wall = cpu_seconds(), time.perf_counter()
    await push(job.records // COLUMN)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return {**per_record(job.records, cpu, wall), "sent": job.warm_up + job.records}


class Discarding:
    """What the compiled path needs of an accumulator: full batches are sealed, checksum and all, and dropped."""

    def __init__(self, partitions: int, batch_size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._batch_size = batch_size
        self.memory = BufferMemory(1 << 60)
        self.topic = Topic(TOPIC)
        self.topic.queues.extend(PartitionQueue(TOPIC, number) for number in range(partitions))
        self.topic.next_partition = lambda used: (self.topic.sticky_partition + 1) % partitions
        self.topics = {TOPIC: self.topic}

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
            unretrieved_errors=lambda batch: None,
        )
        return queue.tail


async def encoding(job: Job) -> Result:
    """Rows into sealed batches, without a producer round it and without a socket."""
    accumulator = Discarding(job.partitions, job.batch_size or 65536)
    path = RecordPath()
    loop = asyncio.get_running_loop()
    path._bind(loop, accumulator, accumulator.memory, 65536, 1 << 20, True, None)
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


# ---- closed loop: each task awaits its record before it sends the next ----


async def closed_loop(job: Job, face: Face) -> Result:
    send_and_wait, values = face.send_and_wait, lines(job.value_size)
    latencies: list[float] = []

    async def one(count: int, first: int) -> None:
        for index in range(count):
            began = time.perf_counter()
            await send_and_wait(TOPIC, values[(first + index) % 2000])
            latencies.append(time.perf_counter() - began)

    async def all_tasks(count: int) -> None:
        each = count // job.tasks
        await asyncio.gather(*(asyncio.ensure_future(one(each, task)) for task in range(job.tasks)))

    await all_tasks(job.warm_up)
    warm = len(latencies)
    latencies.clear()
    cpu, wall = cpu_seconds(), time.perf_counter()
    await all_tasks(job.records)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    latencies.sort()
    return {
        **per_record(len(latencies), cpu, wall),
        "p50_ms": quantile(latencies, 0.5) * 1e3,
        "p99_ms": quantile(latencies, 0.99) * 1e3,
        "sent": warm + len(latencies),
    }


# ---- memory: a broker that never answers, so every record waits ----


def waiting(before: int, records: int) -> Result:
    return {"bytes_per_record": (resident_bytes() - before) / records, "waiting": records}


async def memory(job: Job, face: Face) -> Result:
    await face.ready(TOPIC)
    template = lines(job.value_size)
    deliveries: list[Awaitable[Any]] = []

    async def push(records: int) -> None:
        for index in range(records):
            value = b"%08d" % index + template[index % 2000][8:]  # a fresh object, as from a parser
            deliveries.append(await face.send(TOPIC, value))
        await asyncio.sleep(0.2)  # the requests that fit into the window go out and stay unanswered

    async with asyncio.timeout(60):
        await push(job.warm_up)
        before = resident_bytes()
        await push(job.records)
    return waiting(before, job.records)


def memory_callback(job: Job) -> Result:
    from confluent_kafka import Producer

    producer = Producer(librdkafka(job.settings()))
    producer.list_topics(TOPIC)
    template = lines(job.value_size)

    def push(records: int) -> None:
        for index in range(records):
            value = b"%08d" % index + template[index % 2000][8:]
            producer.produce(TOPIC, value, on_delivery=lambda error, message: None)
        producer.poll(0.2)

    push(job.warm_up)
    before = resident_bytes()
    push(job.records)
    return waiting(before, job.records)


# ---- lag: how late the loop comes to a timer while the client compresses ----


class Ticker:
    """Asks for a call in one millisecond, again and again, and notes how late each came.

    `held` is the CPU time of the loop's thread between two calls: the part of the lag that is the client's own
    doing, whatever else the machine does."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.held: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._asked = self._cpu = 0.0
        self._again()

    def _again(self) -> None:
        self._asked, self._cpu = time.perf_counter(), time.thread_time()
        self._timer = self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self.lags.append(time.perf_counter() - self._asked - TICK)
        self.held.append(time.thread_time() - self._cpu)
        self._again()

    def stop(self) -> Result:
        self._timer.cancel()
        self.lags.sort()
        self.held.sort()
        return {
            "lag_p50_ms": quantile(self.lags, 0.5) * 1e3,
            "lag_p99_ms": quantile(self.lags, 0.99) * 1e3,
            "lag_max_ms": self.lags[-1] * 1e3,
            "held_p99_ms": quantile(self.held, 0.99) * 1e3,
            "held_max_ms": self.held[-1] * 1e3,
            "ticks": len(self.lags),
        }


async def lag(job: Job, face: Face) -> Result:
    """Full load, in slices short enough that the sending task itself does not hold the loop."""
    send, values = face.send, lines(job.value_size)
    slices = [values[at : at + SLICE] for at in range(0, len(values), SLICE)]
    on_their_way: deque[list[Awaitable[Any]]] = deque()
    sent = 0

    async def push(seconds: float) -> None:
        nonlocal sent
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            part = slices[sent // SLICE % len(slices)]
            on_their_way.append([await send(TOPIC, value) for value in part])
            sent += SLICE
            if len(on_their_way) * SLICE > WINDOW:
                for delivery in on_their_way.popleft():
                    await delivery
            await asyncio.sleep(0)

    await push(0.5)
    warm, cpu, wall = sent, cpu_seconds(), time.perf_counter()
    ticker = Ticker()
    await push(job.seconds)
    lags = ticker.stop()
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    for part in on_their_way:
        for delivery in part:
            await delivery
    return {**lags, **per_record(sent - warm, cpu, wall), "sent": sent}


async def idle(job: Job) -> Result:
    """What the ticker sees in a process that does nothing else: the machine's own lateness."""
    await asyncio.sleep(0.5)
    ticker = Ticker()
    await asyncio.sleep(job.seconds)
    return ticker.stop()


# ---- the process ----

WITH_FACE: dict[str, Callable[[Job, Face], Awaitable[Result]]] = {
    "pipelined": pipelined,
    "columns": columns,
    "closed_loop": closed_loop,
    "memory": memory,
    "lag": lag,
}
CALLBACK = {"pipelined": pipelined_callback, "memory": memory_callback}


async def measure(job: Job) -> Result:
    if job.kind == "idle":
        return await idle(job)
    if job.kind == "encoding":
        return await encoding(job)
    face = await OPEN[job.client](job.settings())
    result = await WITH_FACE[job.kind](job, face)
    if job.kind == "memory":
        leave(result)  # closing would wait for a broker that never answers
    await face.close()
    return result


def leave(result: Result) -> None:
    print(json.dumps(result), flush=True)
    os._exit(0)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    if job.client == "confluent-kafka":
        leave(CALLBACK[job.kind](job))
    elif job.loop == "uvloop":
        import uvloop

        print(json.dumps(uvloop.run(measure(job))))
    else:
        print(json.dumps(asyncio.run(measure(job))))


def as_argument(job: Job) -> str:
    """The job as the process takes it."""
    return json.dumps(asdict(job))


if __name__ == "__main__":
    main()
