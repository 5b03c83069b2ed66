"""Fan-in with back-pressure: a thousand tasks feed one producer, and memory stays bounded.

    python examples/fan_in.py --bootstrap-servers localhost:9092
    python examples/fan_in.py --policy drop

When the buffer is full, `send` waits, first come, first served: the tasks slow down to the rate of the brokers.
With `--policy drop` the tasks use `try_send`, which raises an error instead of waiting: they keep their pace and lose
readings."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass

from aioproducer import BufferFullError, CloseReport, KafkaError, Producer

try:
    import uvloop  # faster, if installed
except ImportError:
    new_event_loop = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop


@dataclass
class Seen:
    """Counters collected while the tasks run."""

    accepted: int = 0
    dropped: int = 0
    most_bytes: int = 0
    most_waiters: int = 0


async def sensor(number: int, producer: Producer, options: argparse.Namespace, seen: Seen) -> None:
    """Send the readings of one sensor, all with the same key, so that they stay in order."""
    key = b"sensor-%d" % number
    for reading in range(options.readings):
        value = (b"%d " % reading).ljust(options.size, b".")
        if options.policy == "wait":
            await producer.send(options.topic, value, key)  # waits here while the buffer is full
        else:
            await asyncio.sleep(0)  # try_send never waits, so let other tasks run
            try:
                producer.try_send(options.topic, value, key)
            except BufferFullError:
                seen.dropped += 1
                continue
        seen.accepted += 1  # the delivery is not awaited: close() reports how many failed


async def watch(producer: Producer, seen: Seen) -> None:
    """Sample the state of the buffer every few milliseconds."""
    while True:
        now = producer.metrics()
        seen.most_bytes = max(seen.most_bytes, now.buffer_total - now.buffer_available)
        seen.most_waiters = max(seen.most_waiters, now.buffer_waiters)
        await asyncio.sleep(0.002)


async def fan_in(options: argparse.Namespace) -> tuple[Seen, CloseReport]:
    """Run all tasks against one producer with a small buffer."""
    seen = Seen()
    producer = Producer(
        options.bootstrap_servers,
        client_id="fan-in",
        buffer_memory=options.buffer_memory,
        batch_size=16384,
        max_block_ms=options.patience * 1000,
    )
    async with producer:
        await producer.partitions_for(options.topic)  # try_send fails until the topic is known
        watcher = asyncio.create_task(watch(producer, seen))
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(options.tasks):
                    tasks.create_task(sensor(number, producer, options, seen))
            return seen, await producer.close()
        except* KafkaError as errors:
            raise errors.exceptions[0] from None  # all tasks fail for the same reason
        finally:
            watcher.cancel()


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Many tasks feed one producer with a small buffer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,...", help="Kafka"
    )
    parser.add_argument("--topic", default="readings", help="topic of the readings")
    parser.add_argument("--tasks", type=int, default=1000, help="number of sensors")
    parser.add_argument("--readings", type=int, default=100, help="readings per sensor")
    parser.add_argument("--size", type=int, default=200, metavar="BYTES", help="size of a reading")
    parser.add_argument(
        "--buffer-memory", type=int, default=262_144, metavar="BYTES", help="size of the buffer"
    )
    parser.add_argument(
        "--policy", choices=("wait", "drop"), default="wait", help="what to do when the buffer is full"
    )
    parser.add_argument(
        "--patience", type=float, default=10, metavar="SECONDS", help="longest wait for Kafka, or for room"
    )
    return parser.parse_args()


def main() -> int:
    """Run the example. Exit status: 0 all delivered, 1 some not, 2 can't start or continue, 130 interrupted."""
    options = arguments()
    began = time.monotonic()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            seen, report = runner.run(fan_in(options))
    except KafkaError as error:
        print(f"fan_in: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; records in the buffer were dropped", file=sys.stderr)
        return 130
    took = time.monotonic() - began
    rate = seen.accepted / took
    print(f"{options.tasks} tasks: {seen.accepted} readings accepted in {took:.2f} s ({rate:.0f}/s)")
    print(f"dropped because the buffer was full: {seen.dropped}")
    print(f"at most {seen.most_bytes} of {options.buffer_memory} bytes were in use")
    print(f"at most {seen.most_waiters} tasks waited for room at the same time")
    print(f"delivered {report.delivered}, failed {report.failed}, unknown {report.unknown}")
    return 0 if report.delivered == seen.accepted else 1


if __name__ == "__main__":
    sys.exit(main())
