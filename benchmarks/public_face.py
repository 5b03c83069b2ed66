"""Measures a producer only through its public interface, so that other versions of the package can be measured too.

`against.py` starts it with the version under test in PYTHONPATH, and a job as JSON in argv."""

from __future__ import annotations

import json
import sys
import time

import uvloop

import aioproducer
from aioproducer import Producer
from job import LINES, Job, Result, cpu_seconds, latencies_in, lines, per_record


async def pipelined(job: Job, producer: Producer) -> Result:
    """Repeatedly send a window of records and await their deliveries."""
    values = lines(job.value_size) * -(-job.window // LINES)
    numbered = [(value, number % job.partitions) for number, value in enumerate(values[: job.window])]

    async def push(records: int) -> None:
        for first in range(0, records, job.window):
            some = numbered[: records - first]
            if job.round_robin:
                deliveries = [
                    await producer.send(job.topic, value, partition=partition) for value, partition in some
                ]
            else:
                deliveries = [await producer.send(job.topic, value) for value, _ in some]
            for delivery in deliveries:
                await delivery

    await push(job.warm_up)
    cpu, wall = cpu_seconds(), time.perf_counter()
    await push(job.records)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return per_record(job.records, cpu, wall)


async def one_task(job: Job, producer: Producer) -> Result:
    """Await each record before sending the next."""
    values = lines(job.value_size)
    seconds = []
    for number in range(job.warm_up + job.records):
        began = time.perf_counter()
        await producer.send_and_wait(job.topic, values[number % LINES])
        seconds.append(time.perf_counter() - began)
    return latencies_in(seconds[job.warm_up :])


async def measure(job: Job) -> Result:
    async with Producer(
        job.bootstrap, linger_ms=job.linger_ms or 0, batch_size=job.batch_size or 16_384
    ) as producer:
        result = await (one_task if job.kind == "closed_loop" else pipelined)(job, producer)
    return {**result, "package": aioproducer.__file__, "sent": job.warm_up + job.records}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(Job(**json.loads(sys.argv[1]))))))
