"""One measurement of one client, in a separate process: a job as JSON in argv, a result on stdout.

CPU is the user and system time of all threads of this process during the measured part, after a warm-up."""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import pstats
import sys
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import blocking_clients
import columns
import services
import transforming
from clients import OPEN, Face
from job import (
    FASTEST_LOOP,
    LINES,
    Job,
    Result,
    cpu_seconds,
    latencies_in,
    lines,
    new_event_loop,
    per_record,
    quantile,
    resident_bytes,
    waiting,
)

SLICE = 100  # records between two turns of the loop when its lag is measured
ON_THEIR_WAY = 20_000  # records in flight when the lag is measured
TICK = 0.001  # seconds


# ---- pipelined: as fast as the client accepts records ----


def chunks(job: Job, face: Face) -> Callable[[int], Awaitable[None]]:
    """Return a function that sends a number of records, `window` at a time, and awaits their deliveries one by one."""
    send, topic = face.send, job.topic
    distinct = services.values(job) if job.work else lines(job.value_size)
    values = distinct * -(-job.window // LINES)
    # aiokafka has no interceptors, so its user adds the header.
    adds_header = bool(job.work) and services.WORKS[job.work].adds_header and job.client != "aioproducer"
    numbered = [(value, number % job.partitions) for number, value in enumerate(values)]

    async def send_chunk(size: int) -> list[Awaitable[Any]]:
        if job.round_robin:
            return [await send(topic, value, None, partition) for value, partition in numbered[:size]]
        if adds_header:
            return [await send(topic, value, headers=[services.ADDED]) for value in values[:size]]
        return [await send(topic, value) for value in values[:size]]

    async def push(records: int) -> None:
        for first in range(0, records, job.window):
            for delivery in await send_chunk(min(job.window, records - first)):
                await delivery

    return push


def sliding(job: Job, face: Face) -> Callable[[int], Awaitable[None]]:
    """Return a function that sends a number of records, of which at most `window` are unacknowledged at any time."""
    send, topic, values = face.send, job.topic, lines(job.value_size)

    async def push(records: int) -> None:
        unacknowledged: deque[Awaitable[Any]] = deque()
        for value in islice(cycle(values), records):
            if len(unacknowledged) == job.window:
                await unacknowledged.popleft()
            unacknowledged.append(await send(topic, value))
        while unacknowledged:
            await unacknowledged.popleft()

    return push


async def pipelined(job: Job, face: Face) -> Result:
    push = (sliding if job.kind == "window" else chunks)(job, face)
    await push(job.warm_up)
    profile = cProfile.Profile() if job.profile else None
    if profile:
        profile.enable()
    cpu, wall = cpu_seconds(), time.perf_counter()
    await push(job.records)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    if profile:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    return {**per_record(job.records, cpu, wall), "sent": job.warm_up + job.records}


async def with_work(job: Job, face: Face) -> Result:
    """Measure as `pipelined` does, and divide the CPU time between the user's own function and the client."""
    async with services.reading_metrics(job):
        result = await pipelined(job, face)
        measured = [] if (own := services.own_calls(job)) is None else await in_rounds(job, face, *own)
    return services.with_own(job, result, measured)


async def in_rounds(
    job: Job, face: Face, function: Callable[[Any], object], pairs: list[tuple[Any, bytes]]
) -> list[services.Round]:
    """Measure the job and, for comparison, sending bytes with and without calls to the user's own function."""
    push, bytes_job = chunks(job, face), replace(job, work="")
    plain = await OPEN[job.client](bytes_job)
    await plain.ready(job.topic)
    await chunks(bytes_job, plain)(job.window)
    send, topic = plain.send, job.topic
    measured = []
    for _ in services.rounds(job):
        began = cpu_seconds()
        await push(job.window)
        whole = cpu_seconds()
        for delivery in [await send(topic, value) for given, value in pairs if given is not None]:
            await delivery
        without = cpu_seconds()
        for delivery in [await send(topic, value) for given, value in pairs if function(given) is not None]:
            await delivery
        measured.append(services.Round(whole - began, without - whole, cpu_seconds() - without))
    await plain.close()
    return measured


# ---- closed loop: each task awaits its record before it sends the next ----


async def closed_loop(job: Job, face: Face) -> Result:
    send_and_wait, topic, values = face.send_and_wait, job.topic, lines(job.value_size)
    seconds: list[float] = []

    async def one(count: int, first: int) -> None:
        for index in range(count):
            began = time.perf_counter()
            await send_and_wait(topic, values[(first + index) % LINES])
            seconds.append(time.perf_counter() - began)

    async def all_tasks(count: int) -> None:
        each = count // job.tasks
        await asyncio.gather(*(asyncio.ensure_future(one(each, task)) for task in range(job.tasks)))

    await all_tasks(job.warm_up)
    warm = len(seconds)
    seconds.clear()
    cpu, wall = cpu_seconds(), time.perf_counter()
    await all_tasks(job.records)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return {
        **per_record(len(seconds), cpu, wall),
        **latencies_in(seconds),
        "sent": warm + len(seconds),
    }


# ---- memory: a broker that never answers, so every record waits ----


async def memory(job: Job, face: Face) -> Result:
    await face.ready(job.topic)
    template = lines(job.value_size)
    deliveries: list[Awaitable[Any]] = []

    async def push(records: int) -> None:
        for index in range(records):
            value = b"%08d" % index + template[index % LINES][8:]  # a fresh object, as from a parser
            deliveries.append(await face.send(job.topic, value))
        await asyncio.sleep(0.2)  # the requests that fit into the window are sent, and stay unanswered

    async with asyncio.timeout(100):
        await push(job.warm_up)
        before = resident_bytes()
        await push(job.records)
    return waiting(before, job.records)


# ---- lag: how late the loop runs a timer while the client compresses ----


class Ticker:
    """Repeatedly schedules a call for one millisecond later, and records how late each call is.

    `held` is the CPU time of the loop's thread between two calls: the part of the lag that the client itself causes,
    independent of other work on the machine."""

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
    """Measure the lag at full load, in slices so short that the sending task itself does not block the loop."""
    send, topic, values = face.send, job.topic, lines(job.value_size)
    slices = [values[at : at + SLICE] for at in range(0, len(values), SLICE)]
    on_their_way: deque[list[Awaitable[Any]]] = deque()
    sent = 0

    async def push(seconds: float) -> None:
        nonlocal sent
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            part = slices[sent // SLICE % len(slices)]
            on_their_way.append([await send(topic, value) for value in part])
            sent += SLICE
            if len(on_their_way) * SLICE > ON_THEIR_WAY:
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
    """Measure the lag that the machine causes, in a process that does nothing else."""
    await asyncio.sleep(0.5)
    ticker = Ticker()
    await asyncio.sleep(job.seconds)
    return ticker.stop()


# ---- the process ----

WITH_FACE: dict[str, Callable[[Job, Face], Awaitable[Result]]] = {
    "pipelined": pipelined,
    "window": pipelined,
    "services": with_work,
    "columns": columns.acknowledged,
    "closed_loop": closed_loop,
    "memory": memory,
    "lag": lag,
}
TRANSFORM: dict[str, Callable[[Job], Awaitable[Result]]] = {
    "aioproducer": transforming.with_aioproducer,
    "aiokafka": transforming.with_aiokafka,
}
WITHOUT: dict[str, Callable[[Job], Awaitable[Result]]] = {
    "idle": idle,
    "encoding": columns.encoding,
    "stream": columns.stream,
    "transform": lambda job: TRANSFORM[job.client](job),
}


async def measure(job: Job) -> Result:
    if job.kind in WITHOUT:
        return await WITHOUT[job.kind](job)
    face = await OPEN[job.client](job)
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
    try:
        if measured := blocking_clients.MEASURE.get((job.client, job.kind)):
            leave(measured(job))
        loop_factory = new_event_loop if job.loop == FASTEST_LOOP else None
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            result = runner.run(measure(job))
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # skip the usual exit: a client that was not closed may block or print
    print(json.dumps(result))


if __name__ == "__main__":
    main()
