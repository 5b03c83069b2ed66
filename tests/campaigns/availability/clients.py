"""One client in its own process: sends at a steady rate and prints the outcome of each record.

    python -m tests.campaigns.availability.clients aiokafka 127.0.0.1:9092 topic 6

Further arguments: "same" for acks=all and idempotence, "request_timeout_ms=3000". A line is "ack PARTITION MOMENT" or
"failed PARTITION MOMENT ERROR"; moments are seconds of time.monotonic(), which all processes on a machine share. The
process ends when its standard input is closed."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

INTERVAL = 0.05
"""Seconds between two records of one partition."""

Told: TypeAlias = Callable[[BaseException | None], None]


class Reporter:
    """Prints results, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, partition: int, error: object | None = None) -> None:
        """Print that the record of a partition was acknowledged or failed."""
        now = time.monotonic()
        line = (
            f"ack {partition} {now:.4f}" if error is None else f"failed {partition} {now:.4f} {error!r:.200}"
        )
        with self._lock:
            print(line.replace("\n", " "), flush=True)


def is_over() -> threading.Event:
    """Return an event that is set when standard input ends."""
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    return over


async def run_asyncio(producer: Any, topic: str, partitions: int, over: threading.Event) -> None:
    """Send with aioproducer or aiokafka, which have the same interface."""
    report = Reporter()
    tasks: set[asyncio.Task[None]] = set()

    async def send(partition: int) -> None:
        try:
            delivery: Awaitable[Any] = await producer.send(topic, b"v", partition=partition)
            await delivery
        except Exception as error:
            report(partition, error)
        else:
            report(partition)

    await producer.start()
    try:
        while not over.is_set():
            for partition in range(partitions):
                task = asyncio.create_task(send(partition))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(INTERVAL)
    finally:
        for task in tasks:
            task.cancel()
        # Records that are not acknowledged at the end of a run don't count.
        await asyncio.wait_for(producer.stop(), 30)


async def aioproducer(
    servers: str, topic: str, partitions: int, over: threading.Event, extras: list[str]
) -> None:
    from aioproducer import Producer

    await run_asyncio(
        Producer(servers, **request_timeout(extras, "request_timeout_ms")), topic, partitions, over
    )


async def aiokafka(
    servers: str, topic: str, partitions: int, over: threading.Event, extras: list[str]
) -> None:
    from aiokafka import AIOKafkaProducer

    settings: dict[str, Any] = {"acks": "all", "enable_idempotence": True} if "same" in extras else {}
    settings |= request_timeout(extras, "request_timeout_ms")
    await run_asyncio(AIOKafkaProducer(bootstrap_servers=servers, **settings), topic, partitions, over)


async def confluent(
    servers: str, topic: str, partitions: int, over: threading.Event, extras: list[str]
) -> None:
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"enable.idempotence": True} if "same" in extras else {}
    # Both settings limit its requests: one limits the broker's time, the other the network's.
    settings |= request_timeout(extras, "request.timeout.ms") | request_timeout(extras, "socket.timeout.ms")
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, **settings})
    report = Reporter()
    due = time.monotonic()
    while not over.is_set():
        for partition in range(partitions):
            producer.produce(
                topic,
                b"v",
                partition=partition,
                on_delivery=lambda error, _, partition=partition: report(partition, error),
            )
        due += INTERVAL
        while (left := due - time.monotonic()) > 0:
            producer.poll(left)
    producer.purge()
    producer.flush(5)


def request_timeout(extras: list[str], name: str) -> dict[str, int]:
    """Return the request time-out under a client's own name, if one was given."""
    found = [extra.partition("=")[2] for extra in extras if extra.startswith("request_timeout_ms=")]
    return {name: int(found[0])} if found else {}


CLIENTS = {"aioproducer": aioproducer, "aiokafka": aiokafka, "confluent-kafka": confluent}


def main() -> None:
    """Read the arguments: a client, the servers, a topic, its partitions, further arguments."""
    name, servers, topic, partitions, *extras = sys.argv[1:]
    asyncio.run(CLIENTS[name](servers, topic, int(partitions), is_over(), extras))


if __name__ == "__main__":
    main()
