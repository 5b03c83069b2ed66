"""Compares `aioproducer produce` with kcat and kafka-console-producer: one file of lines to a real Kafka broker.

    python benchmarks/produce_command.py [--lines 10000000] [--rounds 7]

Each line has 100 bytes, including its line feed. The programs run in turns, each with its defaults and acks=all, and
kcat also with idempotence. Each topic must end up with as many records as the file has lines. CPU is that of the whole
process."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

import programs
from aioproducer.testing import ApacheKafka
from aioproducer.testing.apache.jars import java_executable

LINE_BYTES = 100
OURS, KCAT, IDEMPOTENT_KCAT, CONSOLE = "aioproducer", "kcat", "kcat, idempotent", "kafka-console-producer"


def write_lines(path: Path, count: int) -> None:
    block = b"".join(b"%09d " % number + b"x" * (LINE_BYTES - 11) + b"\n" for number in range(10_000))
    with path.open("wb") as file:
        for first in range(0, count, 10_000):
            file.write(block[: min(10_000, count - first) * LINE_BYTES])


def commands(servers: str, path: Path) -> dict[str, list[str]]:
    """Return the command of each program; the topic is to be appended. All but the last read the file themselves."""
    kcat = [shutil.which("kcat") or "kcat", "-P", "-b", servers, "-l", str(path), "-X"]
    java = [java_executable(), "-cp", programs.jars(), "org.apache.kafka.tools.ConsoleProducer"]
    return {
        OURS: [sys.executable, "-m", "aioproducer", "produce", "-b", servers, "--format", "lines"],
        KCAT: [*kcat, "acks=all", "-t"],
        IDEMPOTENT_KCAT: [*kcat, "enable.idempotence=true", "-t"],
        CONSOLE: [*java, "--bootstrap-server", servers, "--topic"],
    }


async def run(name: str, command: list[str], topic: str, path: Path) -> tuple[float, float]:
    """Return how many seconds a program took, and its CPU seconds."""
    arguments = [*command, topic, str(path)] if name == OURS else [*command, topic]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with path.open("rb") as file:
        child = await asyncio.create_subprocess_exec(
            *arguments, stdin=file, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await child.communicate()
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode:
        sys.exit(f"{name} ended with {child.returncode}: {errors.decode()}")
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def records_in(servers: str, topic: str) -> int:
    async with AIOKafkaConsumer(bootstrap_servers=servers) as consumer:
        return (await consumer.end_offsets([TopicPartition(topic, 0)]))[TopicPartition(topic, 0)]


async def compare(lines: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.txt"
        write_lines(path, lines)
        # Only the number of records is checked, so segments can be deleted soon: a round writes 4 GB.
        short = {"log.retention.bytes": 1 << 30, "log.retention.check.interval.ms": 5_000}
        async with ApacheKafka(config=short) as kafka:
            servers = kafka.bootstrap_servers
            for turn in range(rounds):
                for name, command in commands(servers, path).items():
                    topic = f"{name.translate(str.maketrans(', ', '__'))}.{turn}"
                    await kafka.create_topic(topic)
                    found[name].append(await run(name, command, topic, path))
                    if (sent := await records_in(servers, topic)) != lines:
                        sys.exit(f"{name} wrote {sent} of {lines} records")
                    seconds, cpu = found[name][-1]
                    print(f"{turn + 1} {name}: {seconds:.2f} s, {cpu:.2f} s of CPU", file=sys.stderr)
    return found


def report(found: dict[str, list[tuple[float, float]]], lines: int) -> None:
    for name, pairs in found.items():
        rates = [lines / seconds / 1e6 for seconds, _ in pairs]
        costs = [cpu / lines * 1e6 for _, cpu in pairs]
        print(
            f"{name:24} {statistics.median(rates):.2f}M [{min(rates):.2f}M-{max(rates):.2f}M] records/s, "
            f"{statistics.median(costs):.2f} [{min(costs):.2f}-{max(costs):.2f}] µs of CPU a record"
        )
    for name in (KCAT, IDEMPOTENT_KCAT, CONSOLE):
        pairs = list(zip(found[OURS], found[name], strict=True))
        rate = statistics.median(other[0] / own[0] for own, other in pairs)
        cpu = statistics.median(own[1] / other[1] for own, other in pairs)
        print(
            f"compared with {name}: {rate:.2f} times its rate, {cpu:.2f} times its CPU (medians of {len(pairs)} rounds)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if shutil.which("kcat") is None:
        parser.error("kcat is not on PATH; Debian's package has the same name")
    print("load", *(f"{load:.1f}" for load in os.getloadavg()))
    report(asyncio.run(compare(options.lines, options.rounds)), options.lines)


if __name__ == "__main__":
    main()
