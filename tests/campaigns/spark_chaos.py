"""Kills the processes of Spark streams at every point, and checks that each row was committed exactly once.

    python -m tests.campaigns.spark_chaos --runs 100 --seed 1  # on the embedded cluster
    python -m tests.campaigns.spark_chaos --runs 20 --seed 1 --kafka apache  # three real brokers, or apache-3.9: v1
    python -m tests.campaigns.spark_chaos --runs 20 --seed 1 --executors  # on two executors in processes of their own
    python -m tests.campaigns.spark_chaos --runs 20 --seed 1 --topics 3  # with a column `topic`

A run is one stream: its driver is killed, restarted and killed elsewhere until the stream is finished. Then the rows
that read_committed consumers see are compared with the rows that went in."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pytest

from aioproducer.protocol.messages import FindCoordinatorRequest
from aioproducer.testing import ApacheKafka, ApiKey
from aioproducer.testing.embedded.faults import Fault
from tests.campaigns.chaos.proxy import Network
from tests.campaigns.spark_crash_log import CrashLog, CrashRun
from tests.support import spark_crashing
from tests.support.apache_clusters import LEAN, NOTICES_SOON, running
from tests.support.raw_client import RawClient
from tests.support.read_back import read_back
from tests.support.spark_driver import Driver, Ended
from tests.support.spark_stage import call_in, in_a_thread, stage

PARTITIONS = 3
ROWS = 40
"""Rows in a file; each file is a micro-batch."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Crash(NamedTuple):
    """A fault that occurs while a driver writes the new files."""

    point: str
    """The crash point, numbered as in spark.md."""
    place: str = ""
    act: str = ""
    visit: int = 1
    sink: Mapping[str, str] = NOTHING
    """Sink options that apply until the fault has occurred."""
    fault: Mapping[str, Any] = NOTHING
    """Arguments of a fault in the embedded cluster's script. With real brokers, only a lost answer is possible."""
    victim: str = ""
    """The real broker to kill: "leader" of the topic's first partition, or "coordinator"."""
    delay: float = 0.0
    """Seconds from reaching the place until the broker is killed."""


DEATHS = {
    **{point: Crash(point, place, "driver") for point, place in spark_crashing.PLACES.items()},
    "F3 worker": Crash("F3", "row", "worker"),
    "F3 error": Crash("F3", "row", "raise"),
    "F4": Crash("F4", "before row", "zombie"),
    "F5": Crash("F5", fault={"api_key": ApiKey.PRODUCE, "drop_after_append": True}),
    "F6": Crash("F6", "end", "outlive", sink={"kafka.transaction.timeout.ms": "2000"}),
    "F9": Crash("F9", fault={"api_key": ApiKey.END_TXN, "drop_after_append": True}),
    "F11": Crash("F11", fault={"api_key": ApiKey.END_TXN, "after_append": True, "down_for": 0.5}),
    "F12": Crash("F12", "committed", "raise"),
    "F13": Crash("F13", "commit", "rival"),
    "leader": Crash("leader", fault={"api_key": ApiKey.PRODUCE, "down_for": 0.5}),
}
"""All faults in a driver, its tasks and its brokers."""
REAL_DEATHS = {
    **DEATHS,
    "F11": Crash("F11", "end", "broker", victim="coordinator"),
    "leader": Crash("leader", "before row", "broker", victim="leader"),
}
"""The same faults with real brokers, which are killed."""
EXECUTOR = {
    "F3 executor": Crash("F3", "row", "executor"),
    "F3 acknowledged": Crash("F3", "acknowledged", "executor"),
}
"""Further faults, if executors run in their own processes."""
EXECUTORS = "local-cluster[2,1,512]"
AT_LEAST_ONCE = ("F5", "leader")
"""Faults that at-least-once delivery also survives."""


class Mishap(Protocol):
    """A fault between the sink and the brokers."""

    @property
    def is_used_up(self) -> bool:
        """True once the fault has occurred."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster that a run writes to, and how to read it."""

    servers: str
    committed: Callable[[str], list[bytes]]
    fault: Callable[..., AbstractContextManager[Mishap]] | None = None
    """Adds a fault for the duration of a block: to the embedded cluster's script, or to the network in front of real
    brokers."""
    kafka: ApacheKafka | None = None
    """The real brokers; None for the embedded cluster."""

    def victim(self, crash: Crash, name: str, topic: str) -> int:
        """Return the process id of the broker to kill: the topic's leader, or the coordinator of the query called
        `name`. The first request for a coordinator creates the topic that coordinators need."""
        assert self.kafka is not None
        pids = {node.id: node.pid for node in self.kafka.nodes if node.pid is not None}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            finding = (
                self.kafka.leader(topic, 0)
                if crash.victim == "leader"
                else coordinator_of(self.servers, f"tx-{name}")
            )
            with suppress(OSError):  # the broker is not back yet
                if (found := asyncio.run(finding)) in pids:
                    return pids[found]
            time.sleep(0.1)
        raise AssertionError(f"there is no {crash.victim}")

    def mend(self) -> int:
        """Start the real brokers that are dead. Return how many there were."""
        dead = [node.id for node in self.kafka.nodes if node.pid is None] if self.kafka else []
        for node in dead:
            assert self.kafka is not None
            asyncio.run(self.kafka.start_broker(node))
        return len(dead)


class Broken(AssertionError):
    """Rows are missing or duplicated."""


def write_files(folder: Path, count: int, first: int = 0, rows: int = ROWS) -> None:
    """Write files whose row values are all different. The source takes the files in order of modification time."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        lines = [
            json.dumps({"key": str(row), "value": f"v{row}"})
            for row in range(number * rows, (number + 1) * rows)
        ]
        path = folder / f"part-{number:05d}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def topics_of(name: str, count: int) -> list[str]:
    """The topics of a run."""
    return [name, *(f"{name}-{number}" for number in range(2, count + 1))]


class Run:
    """One stream from its first row to its last."""

    def __init__(
        self,
        driver: Driver,
        place: Place,
        topic: str,
        folder: Path,
        *,
        delivery: str = "exactly_once",
        topics: int = 1,
    ) -> None:
        self._driver = driver
        self._place = place
        self.topic = topic
        self.topics = topics_of(topic, topics)
        self._folder = folder
        self.delivery = delivery
        self.files = 0
        self.log: list[str] = []
        (folder / "in").mkdir(parents=True)

    def add_files(self, count: int) -> None:
        write_files(self._folder / "in", count, self.files)
        self.files += count

    def drive(
        self,
        crash: Crash | None = None,
        *,
        shuffle: int = 2,
        no_marker: bool = False,
        job: str = "stream",
    ) -> int:
        """Let the driver write the new files.

        Returns:
            0, or a negative number if the driver was killed.

        Raises:
            Broken: the query failed too often, or the fault did not occur.
        """
        told = crash or Crash("whole")
        with ExitStack() as stack:
            fault = None
            if told.fault:
                assert self._place.fault is not None
                fault = stack.enter_context(self._place.fault(**told.fault, skip=told.visit - 1))
            pid = self._place.victim(told, self.topic, self.topics[-1]) if told.victim else 0
            try:
                ended = self._play(told, shuffle, no_marker, pid, job)
            finally:
                died = self._place.mend()
        self.log.append(f"{told.point}: exit {ended.code}\n{ended.said}")
        if ended.code > 0:
            raise Broken(f"the query failed too often: {self.log[-1]}")
        if died is not int(bool(told.victim)):
            raise Broken(f"{died} brokers died: {self.log[-1]}")
        killed = ended.code < 0
        if killed is not (told.act == "driver") or (not killed and told.place and ended.visits < told.visit):
            raise Broken(f"{told.point} was not played: {self.log[-1]}")
        if fault is not None and not fault.is_used_up:
            raise Broken(f"{told.point} was not reached: {self.log[-1]}")
        return ended.code

    def _play(self, told: Crash, shuffle: int, no_marker: bool, pid: int, job: str) -> Ended:
        return self._driver.play(
            {
                "job": job,
                "servers": self._place.servers,
                "topic": self.topic,
                "topics": self.topics,
                "folder": str(self._folder / "in"),
                "checkpoint": str(self._folder / "checkpoint"),
                "delivery": self.delivery,
                "partitions": PARTITIONS,
                "shuffle": shuffle,
                "place": told.place,
                "act": told.act,
                "visit": told.visit,
                "sink": dict(told.sink),
                "pid": pid,
                "delay": told.delay,
                spark_crashing.NO_MARKER: no_marker,
            }
        )

    def check(self, *, twice_is_fine: bool = False) -> None:
        """Check that each row of each file was committed once, or at least once if `twice_is_fine`, and nothing else.

        Raises:
            Broken: a row is missing, duplicated or unknown.
        """
        expected = sorted(b"v%d" % row for row in range(self.files * ROWS))
        found = sorted(value for topic in self.topics for value in self._place.committed(topic))
        if twice_is_fine:
            found = sorted(set(found))
        if found != expected:
            counts = Counter(found)
            lost = [value for value in expected if value not in counts]
            twice = [value for value, count in counts.items() if count > 1]
            raise Broken(f"{len(lost)} of {len(expected)} rows are lost, {len(twice)} occur more than once")


@contextmanager
def embedded(**settings: object) -> Iterator[Place]:
    """An embedded cluster."""
    with stage(3, default_partitions=PARTITIONS, **settings) as cluster:

        @contextmanager
        def fault(**told: Any) -> Iterator[Fault]:
            try:
                yield cluster.call(lambda: cluster.cluster.faults.add(**told))
            finally:
                cluster.call(cluster.cluster.faults.clear)

        cluster.call(lambda: setattr(cluster.cluster.transactions, "sweep_interval", 0.2))
        yield Place(cluster.servers, partial(committed, cluster.servers), fault)


@contextmanager
def apache(
    kafka: ApacheKafka, fault: Callable[..., AbstractContextManager[Mishap]] | None = None
) -> Iterator[Place]:
    """A real cluster that is already running."""
    yield Place(kafka.bootstrap_servers, partial(committed, kafka.bootstrap_servers), fault, kafka)


def committed(servers: str, topic: str) -> list[bytes]:
    """Return the values that confluent-kafka reads with read_committed, sorted."""
    log = asyncio.run(read_back(servers, topic, committed_only=True))
    return sorted(record.value or b"" for records in log.values() for record in records)


@contextmanager
def three_brokers(
    version: str | None = None, *, request: pytest.FixtureRequest | None = None
) -> Iterator[Place]:
    """Three real brokers. One of them can be killed, and answers of any of them can be lost."""
    everywhere = ("transaction.state.log", "offsets.topic")
    copies: dict[str, object] = {f"{topic}.replication.factor": 3 for topic in everywhere}
    gives_up_soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}
    told = {} if version is None else {"version": version}
    with in_a_thread(lambda: Network(3)) as (network, loop):
        kafka = ApacheKafka(
            brokers=3,
            config={**NOTICES_SOON, **copies, **gives_up_soon},
            jvm_args=LEAN,
            advertised=network.advertised,
            **told,
        )

        @contextmanager
        def lose_an_answer(*, api_key: ApiKey, drop_after_append: bool, skip: int) -> Iterator[Mishap]:
            assert drop_after_append
            trap = call_in(loop, lambda: network.lay(api_key, skip=skip))
            try:
                yield trap
            finally:
                call_in(loop, lambda: network.take_away(trap))

        with running(kafka, request=request):
            network.lead_to([node.port for node in kafka.nodes])
            with apache(kafka, lose_an_answer) as place:
                yield place


async def coordinator_of(servers: str, transactional_id: str) -> int:
    """Return the id of the broker that coordinates this transactional id; -1 if there is none at the moment."""
    async with RawClient(servers.split(",")[0]) as client:
        answer = await client.ask(FindCoordinatorRequest(key=transactional_id, key_type=1), 3)
    return answer.node_id


def play(run: Run, crashes: Sequence[Crash], *, shuffles: Iterable[int] = ()) -> int:
    """Add two files before each crash. If the last one killed the driver, finish the stream. Then check the rows.

    Returns:
        How many processes were killed.
    """
    killed = code = 0
    widths = [*shuffles, *[2] * (len(crashes) + 1)]
    for crash, shuffle in zip(crashes, widths, strict=False):
        run.add_files(2)
        code = run.drive(crash, shuffle=shuffle)
        killed += code < 0 or crash.act in ("worker", "executor", "broker")
    if code < 0:
        run.drive(shuffle=widths[len(crashes)])
    run.check(twice_is_fine=run.delivery == "at_least_once")
    return killed


def again(told: argparse.Namespace, seed: int) -> str:
    """Return the command that plays the run with this seed again."""
    command = f"python -m tests.campaigns.spark_chaos --runs 1 --seed {seed} --crashes {told.crashes}"
    command += f" --topics {told.topics} --kafka {told.kafka}"
    return command + " --executors" * told.executors


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the requested number of seeded runs; return 1 if one of them broke the promise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--crashes", type=int, default=2, help="crashes in each run")
    parser.add_argument("--topics", type=int, default=1, help="topics in each run")
    parser.add_argument("--kafka", choices=["embedded", "apache", "apache-3.9"], default="embedded")
    parser.add_argument(
        "--executors", action="store_true", help="two executors in their own processes, which are also killed"
    )
    parser.add_argument("--log", help="a file to which each run adds a line of JSON")
    told = parser.parse_args(arguments)
    log = CrashLog(told.log, told)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the driver runs in its own session
    deaths = dict(DEATHS if told.kafka == "embedded" else REAL_DEATHS)
    if told.executors:
        # F4 waits until Spark abandons the batch, but with executors Spark retries the failed task instead.
        del deaths["F4"]
        deaths |= EXECUTOR
    points: Counter[str] = Counter()
    done = broken = killed = rows = 0
    began = time.monotonic()
    with ExitStack() as stack:
        driver = stack.enter_context(Driver(EXECUTORS) if told.executors else Driver())
        if told.kafka == "embedded":
            places = {
                version: stack.enter_context(embedded(transaction_version=version)) for version in (1, 2)
            }
        else:
            old = told.kafka == "apache-3.9"
            places = {1 if old else 2: stack.enter_context(three_brokers("3.9.2" if old else None))}
        try:
            for seed in range(told.seed, told.seed + told.runs):
                randomly = random.Random(seed)
                names = randomly.choices(sorted(deaths), k=told.crashes)
                crashes = [deaths[name]._replace(visit=randomly.randint(1, 2)) for name in names]
                shuffles = [randomly.randint(1, 3) for _ in range(told.crashes + 1)]
                version = randomly.choice(sorted(places))
                if told.kafka != "embedded":
                    crashes = [crash._replace(delay=randomly.uniform(0, 0.01)) for crash in crashes]
                    kafka = places[version].kafka
                    assert kafka is not None
                    for topic in topics_of(f"chaos{seed}", told.topics):
                        asyncio.run(kafka.create_topic(topic, PARTITIONS, replication_factor=3))
                with tempfile.TemporaryDirectory() as folder:
                    run = Run(
                        driver, places[version], f"chaos{seed}", Path(folder) / "run", topics=told.topics
                    )
                    died, wrong, started = 0, "", time.monotonic()
                    try:
                        died = play(run, crashes, shuffles=shuffles)
                    except AssertionError as error:  # Broken, or another failed assertion
                        broken += 1
                        wrong = str(error).splitlines()[0] or repr(error)
                        driver.kill()
                        print(f"seed {seed}: {error}\n  again: {again(told, seed)}")
                    killed += died
                    rows += run.files * ROWS
                took = round(time.monotonic() - started, 1)
                log.add(
                    CrashRun(seed, tuple(names), version, told.topics, run.files * ROWS, died, took, wrong)
                )
                done += 1
                points.update(names)
                print(
                    f"run {seed}: {', '.join(names)}, v{version}; {time.monotonic() - began:.0f} s",
                    flush=True,
                )
        except KeyboardInterrupt:
            print("stopped")
    print(
        f"{done} runs with {rows} rows, {sum(points.values())} crashes, {killed} processes killed, {broken} runs "
        f"broken; {dict(sorted(points.items()))}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
