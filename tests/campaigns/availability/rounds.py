"""The faults, and the output of the clients during them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

from aioproducer.testing.apache.kafka import ApacheKafka
from tests.campaigns.availability.proxy import HOST, HalfOpenProxy
from tests.support.apache_clusters import NOTICES_SOON

ROOT = Path(__file__).parent.parent.parent.parent
TOPIC = "availability"
PARTITIONS = 6
BROKERS = 3
JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

STEADY = 3.0
"""How many seconds records must have flowed in all partitions before a fault."""
FLOWS = 0.5
"""Records flow in a partition if its last acknowledgement is at most this many seconds old."""
RECOVERY_TIMEOUT = 150.0
"""Seconds within which all clients must have recovered; otherwise the run fails."""
FROZEN = 8.0
"""How many seconds a leader is frozen or down: longer than the cluster takes to elect another one."""


class Figures:
    """The measurements of all rounds."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Fault -> client -> the figure of each run."""
        self.failed: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        """Fault -> client -> number of failed records."""


class Client:
    """A client's process and its output."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, partitions: int) -> None:
        self.name = name
        self.acks: list[list[float]] = [[] for _ in range(partitions)]
        """The moments of each partition's acknowledgements."""
        self.failures: list[float] = []
        self._process = process

    async def read(self) -> None:
        """Record what the process prints, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            kind, partition, moment, *_ = line.decode().split(" ")
            if kind == "ack":
                self.acks[int(partition)].append(float(moment))
            else:
                self.failures.append(float(moment))

    def flows(self, since: float) -> bool:
        """Return True if each partition has had a recent acknowledgement since that moment."""
        young = max(since, time.monotonic() - FLOWS)
        return all(acks and acks[-1] > young for acks in self.acks)

    def first_ack(self, since: float) -> float:
        """Return the seconds from that moment to the first acknowledgement."""
        return min(next(moment for moment in acks if moment > since) for acks in self.acks) - since

    def longest_gap(self, since: float) -> float:
        """Return the longest time in seconds without an acknowledgement in any one partition, starting shortly before
        that moment."""
        gaps = [0.0]
        for acks in self.acks:
            moments = [moment for moment in acks if moment > since - FLOWS]
            gaps += [later - sooner for sooner, later in pairwise(moments)]
        return max(gaps)

    def failed(self, since: float) -> int:
        """Return the number of records that failed after that moment."""
        return sum(moment > since for moment in self.failures)


@asynccontextmanager
async def clients(
    names: list[str], servers: str, partitions: int, *arguments: str
) -> AsyncIterator[list[Client]]:
    """The running clients, each in its own process."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.campaigns.availability.clients",
            *(name, servers, TOPIC, str(partitions), *arguments),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for name in names
    ]
    found = [Client(name, process, partitions) for name, process in zip(names, processes, strict=True)]
    readers = [asyncio.create_task(client.read()) for client in found]
    try:
        yield found
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()  # buffered records no longer matter
        await asyncio.gather(*(process.wait() for process in processes))
        await asyncio.gather(*readers)


async def all_flow(found: list[Client], since: float, seconds: float = STEADY) -> None:
    """Wait until records of each client have flowed in each partition for this many seconds after `since`."""
    begun: float | None = None
    async with asyncio.timeout(RECOVERY_TIMEOUT):
        while begun is None or time.monotonic() - begun < seconds:
            await asyncio.sleep(0.05)
            if not all(client.flows(since) for client in found):
                begun = None
            elif begun is None:
                begun = time.monotonic()


async def recovery(
    names: list[str], runs: int, random: Random, least: float, most: float, extras: list[str]
) -> Figures:
    """Repeatedly make the only broker half-open, and measure how soon each client recovers."""
    figures = Figures()
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(HalfOpenProxy(HOST))
        kafka = ApacheKafka(advertised={0: (HOST, proxy.port)}, jvm_args=JVM)
        await stack.enter_async_context(kafka)
        proxy.broker_port = kafka.nodes[0].port
        await kafka.create_topic(TOPIC, 1, 1)
        found = await stack.enter_async_context(clients(names, f"{HOST}:{proxy.port}", 1, *extras))
        for run in range(runs):
            await all_flow(found, time.monotonic())
            began = time.monotonic()
            proxy.fall_silent()
            await asyncio.sleep(random.uniform(least, most))
            proxy.recover()
            healed = time.monotonic()
            await all_flow(found, healed, 0.0)
            for client in found:
                figures.seconds["half-open"][client.name].append(client.first_ack(healed))
                figures.failed["half-open"][client.name] += client.failed(began)
            _tell(run, f"half-open for {healed - began:.1f} s", figures.seconds["half-open"])
    return figures


async def gaps(names: list[str], runs: int, random: Random, frozen: float, extras: list[str]) -> Figures:
    """Kill, freeze and reassign leaders among three brokers, in turn, and measure the gaps."""
    figures = Figures()
    config = {**NOTICES_SOON, "leader.imbalance.check.interval.seconds": 5}
    async with ApacheKafka(BROKERS, config=config, jvm_args=JVM) as kafka:
        await kafka.create_topic(TOPIC, PARTITIONS, BROKERS)
        faults: dict[str, Callable[[ApacheKafka, int, float], Awaitable[None]]] = {
            "killed": _kill,
            "frozen": _freeze,
            "reassigned": _reassign,
        }
        async with clients(names, kafka.bootstrap_servers, PARTITIONS, "same", *extras) as found:
            for run in range(runs):
                for kind, strike in faults.items():
                    await all_flow(found, time.monotonic())
                    partition = random.randrange(PARTITIONS)
                    began = time.monotonic()
                    await strike(kafka, partition, frozen)
                    await all_flow(found, time.monotonic())
                    for client in found:
                        figures.seconds[kind][client.name].append(client.longest_gap(began))
                        figures.failed[kind][client.name] += client.failed(began)
                    _tell(run, kind, figures.seconds[kind])
    return figures


async def _kill(kafka: ApacheKafka, partition: int, seconds: float) -> None:
    leader = await kafka.leader(TOPIC, partition)
    await kafka.kill(leader)
    await asyncio.sleep(seconds)
    await kafka.start_broker(leader)


async def _freeze(kafka: ApacheKafka, partition: int, seconds: float) -> None:
    leader = await kafka.leader(TOPIC, partition)
    kafka.pause(leader)
    try:
        await asyncio.sleep(seconds)
    finally:
        kafka.resume(leader)


async def _reassign(kafka: ApacheKafka, partition: int, seconds: float) -> None:
    """Move the partition away from its leader, and then add that broker again as a replica."""
    leader = await kafka.leader(TOPIC, partition)
    others = [node for node in range(BROKERS) if node != leader]
    for replicas in others, [*others, leader]:
        plan = kafka.directory / "reassignment.json"
        entry = {"topic": TOPIC, "partition": partition, "replicas": replicas}
        plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        await kafka.run_tool(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            *("--bootstrap-server", kafka.bootstrap_servers_of("INTERNAL")),
            *("--reassignment-json-file", plan, "--execute"),
        )
        async with asyncio.timeout(RECOVERY_TIMEOUT):
            while await kafka.leader(TOPIC, partition) == leader:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def _tell(run: int, what: str, seconds: dict[str, list[float]]) -> None:
    told = ", ".join(f"{client} {figures[-1]:.2f} s" for client, figures in seconds.items())
    print(f"run {run + 1}: {what}: {told}", file=sys.stderr, flush=True)
