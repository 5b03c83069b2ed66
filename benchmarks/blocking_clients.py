"""Measurements of the Python clients without an event loop: confluent-kafka and kafka-python."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import services
import transforming
from clients import UNBOUNDED, kafka_python, librdkafka
from job import (
    LINES,
    Job,
    Result,
    cpu_seconds,
    latencies_in,
    lines,
    per_record,
    resident_bytes,
    waiting,
)

CALL = 1000  # messages per produce_batch call, records between two polls


class Deliveries:
    """Counts callbacks; the first error ends the measurement."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: object, message: object) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        self.count += 1


def timed(job: Job, push: Callable[[int], None]) -> Result:
    push(job.warm_up)
    cpu, wall = cpu_seconds(), time.perf_counter()
    push(job.records)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return {**per_record(job.records, cpu, wall), "sent": job.warm_up + job.records}


def complete(job: Job, result: Result, delivered: int) -> Result:
    if delivered != job.warm_up + job.records:
        raise RuntimeError(f"{delivered} of {job.warm_up + job.records} records were delivered")
    return result


def pipelined_callback(job: Job) -> Result:
    from confluent_kafka import Producer

    producer, on_delivery = Producer(librdkafka(job)), Deliveries()
    produce, poll, values = producer.produce, producer.poll, lines(job.value_size)
    calls: list[tuple[Any, ...]] = [(job.topic, value) for value in values]
    if job.round_robin:
        numbers = range(max(LINES, job.partitions))
        calls = [(job.topic, values[n % LINES], None, n % job.partitions) for n in numbers]

    most = job.window if job.kind == "window" else UNBOUNDED

    def push(count: int) -> None:
        before = on_delivery.count
        for index, call in enumerate(islice(cycle(calls), count)):
            while index - (on_delivery.count - before) >= most:
                poll(0.01)
            while True:
                try:
                    produce(*call, on_delivery=on_delivery)
                    break
                except BufferError:
                    poll(0.01)
            if index % CALL == 0:
                poll(0)
        producer.flush()

    return complete(job, timed(job, push), on_delivery.count)


def services_callback(job: Job) -> Result:
    from confluent_kafka import Producer

    producer, on_delivery = (
        services.traced(job, Producer(librdkafka(job) | services.librdkafka_metrics(job))),
        Deliveries(),
    )
    work, values = services.WORKS[job.work], services.values(job)
    produce, poll, topic, function = producer.produce, producer.poll, job.topic, work.function

    def push(count: int) -> None:
        for index, given in enumerate(islice(cycle(values), count)):
            value = given if function is None else function(given)
            while True:
                try:
                    if work.adds_header:
                        produce(topic, value, headers=[services.ADDED], on_delivery=on_delivery)
                    else:
                        produce(topic, value, on_delivery=on_delivery)
                    break
                except BufferError:
                    poll(0.01)
            if index % CALL == 0:
                poll(0)
        producer.flush()

    result = complete(job, timed(job, push), on_delivery.count)
    measured = []
    if (own := services.own_calls(job)) is not None:
        call, pairs = own
        for _, value in pairs:
            produce(topic, value, on_delivery=on_delivery)
        producer.flush()
        for _ in services.rounds(job):
            began = cpu_seconds()
            push(job.window)
            whole = cpu_seconds()
            for given, value in pairs:
                if given is not None:
                    produce(topic, value, on_delivery=on_delivery)
            producer.flush()
            without = cpu_seconds()
            for given, value in pairs:
                if call(given) is not None:
                    produce(topic, value, on_delivery=on_delivery)
            producer.flush()
            measured.append(services.Round(whole - began, without - whole, cpu_seconds() - without))
    return services.with_own(job, result, measured)


def pipelined_batches(job: Job) -> Result:
    from confluent_kafka import Producer

    producer, on_delivery = Producer(librdkafka(job)), Deliveries()
    values = lines(job.value_size)
    most = job.window if job.kind == "window" else UNBOUNDED

    def push(count: int) -> None:
        before = on_delivery.count
        for first in range(0, count, CALL):
            while first + CALL - (on_delivery.count - before) > most:
                producer.poll(0.01)
            messages: list[dict[str, Any]] = [
                {"value": values[(first + number) % LINES]} for number in range(CALL)
            ]
            while messages:
                producer.produce_batch(job.topic, messages, on_delivery=on_delivery)
                messages = [{"value": left["value"]} for left in messages if "_error" in left]
                producer.poll(0.01 if messages else 0)
        producer.flush()

    return complete(job, timed(job, push), on_delivery.count)


def pipelined_kafka_python(job: Job) -> Result:
    producer, values = kafka_python(job), lines(job.value_size)

    def push(count: int) -> None:
        for first in range(0, count, job.window):
            futures = [
                producer.send(job.topic, values[number % LINES])
                for number in range(first, min(first + job.window, count))
            ]
            for future in futures:
                future.get(timeout=60)

    return timed(job, push)


def window_kafka_python(job: Job) -> Result:
    producer, values = kafka_python(job), lines(job.value_size)

    def push(count: int) -> None:
        unacknowledged: deque[Any] = deque()
        for value in islice(cycle(values), count):
            if len(unacknowledged) == job.window:
                unacknowledged.popleft().get(timeout=60)
            unacknowledged.append(producer.send(job.topic, value))
        while unacknowledged:
            unacknowledged.popleft().get(timeout=60)

    return timed(job, push)


def closed_loop_kafka_python(job: Job) -> Result:
    producer, values = kafka_python(job), lines(job.value_size)
    seconds: list[float] = []

    def push(count: int) -> None:
        seconds.clear()
        for number in range(count):
            began = time.perf_counter()
            producer.send(job.topic, values[number % LINES]).get(timeout=60)
            seconds.append(time.perf_counter() - began)

    return timed(job, push) | latencies_in(seconds)


def memory_callback(job: Job) -> Result:
    from confluent_kafka import Producer

    producer, on_delivery = Producer(librdkafka(job)), Deliveries()
    producer.list_topics(job.topic)
    template = lines(job.value_size)

    def push(records: int) -> None:
        for index in range(records):
            value = b"%08d" % index + template[index % LINES][8:]
            producer.produce(job.topic, value, on_delivery=on_delivery)
        producer.poll(0.2)

    push(job.warm_up)
    before = resident_bytes()
    push(job.records)
    return waiting(before, job.records)


MEASURE: dict[tuple[str, str], Callable[[Job], Result]] = {
    ("confluent-kafka", "pipelined"): pipelined_callback,
    ("confluent-kafka", "window"): pipelined_callback,
    ("confluent-kafka", "memory"): memory_callback,
    ("confluent-kafka", "services"): services_callback,
    ("confluent-kafka", "transform"): transforming.with_confluent,
    ("produce_batch", "pipelined"): pipelined_batches,
    ("produce_batch", "window"): pipelined_batches,
    ("kafka-python", "pipelined"): pipelined_kafka_python,
    ("kafka-python", "window"): window_kafka_python,
    ("kafka-python", "closed_loop"): closed_loop_kafka_python,
}
