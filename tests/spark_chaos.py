"""Streams whose processes are killed at every point, and the proof that each row was committed once.

    python -m tests.spark_chaos --runs 100 --seed 1                 # on the embedded cluster

A run is one stream: its driver is killed, started again, killed elsewhere, until it gets through; then what
read_committed consumers see is held against the rows that went in."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aioproducer.testing import ApacheKafka
from tests import spark_crashing
from tests.spark_stage import ROOT, stage

PARTITIONS = 3
ROWS = 40
"""Of a file, which is a micro-batch."""
PATIENCE = 240
"""Seconds that a driver may take."""


class Crash(NamedTuple):
    """What happens to one start of the driver."""

    point: str
    """As spark.md counts them."""
    place: str
    act: str
    visit: int = 1
    sink: tuple[tuple[str, str], ...] = ()
    """Options of the sink for this start."""


DEATHS = {
    **{point: Crash(point, place, "driver") for point, place in spark_crashing.PLACES.items()},
    "F3 worker": Crash("F3", "row", "worker"),
    "F3 error": Crash("F3", "row", "raise"),
    "F4": Crash("F4", "row", "stall"),
    "F12": Crash("F12", "committed", "raise"),
}
"""All that can be done to a driver and its tasks from within."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run writes to, and how that is read."""

    servers: str
    committed: Callable[[str], list[bytes]]


class Broken(AssertionError):
    """Rows are missing, or there twice."""


def write_files(folder: Path, count: int, first: int = 0, rows: int = ROWS) -> None:
    """Files of rows whose values are all different. The source takes them in the order of their times."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + count):
        lines = [
            json.dumps({"key": str(row), "value": f"v{row}"})
            for row in range(number * rows, (number + 1) * rows)
        ]
        path = folder / f"part-{number:05d}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


class Run:
    """One stream from its first row to its last."""

    def __init__(self, place: Place, topic: str, folder: Path, *, delivery: str = "exactly_once") -> None:
        self._place = place
        self.topic = topic
        self._folder = folder
        self._delivery = delivery
        self._starts = 0
        self.files = 0
        self.log: list[str] = []
        (folder / "in").mkdir(parents=True)

    def add_files(self, count: int) -> None:
        write_files(self._folder / "in", count, self.files)
        self.files += count

    def drive(self, crash: Crash | None = None, *, shuffle: int = 2, **environment: str) -> int:
        """Start a driver, and return how it ended: 0, or less than 0 if it was killed."""
        self._starts += 1
        visits = self._folder / f"start-{self._starts}"
        visits.mkdir()
        told = {**os.environ, **environment, "PYTHONPATH": str(ROOT), spark_crashing.FOLDER: str(visits)}
        if crash is not None:
            told |= {
                spark_crashing.PLACE: crash.place,
                spark_crashing.VISIT: str(crash.visit),
                spark_crashing.ACT: crash.act,
                **{f"SINK_{name.replace('.', '__')}": value for name, value in crash.sink},
            }
        command = [
            sys.executable, "-m", "tests.spark_driver", self._place.servers, self.topic,
            str(self._folder / "in"), str(self._folder / "checkpoint"), self._delivery, str(PARTITIONS), str(shuffle),
        ]  # fmt: skip
        with open(self._folder / f"start-{self._starts}.log", "wb") as log:
            driver = subprocess.Popen(
                command,
                cwd=ROOT,
                env=told,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = driver.wait(PATIENCE)
            except BaseException:
                driver.kill()
                driver.wait()
                raise
        text = Path(log.name).read_text(errors="replace")
        self.log.append(f"{crash.point if crash else 'whole'}: exit {code}\n{text[-4000:]}")
        return code

    def check(self) -> None:
        """Every row of every file once, and nothing else.

        Raises:
            Broken: it is not so.
        """
        expected = sorted(b"v%d" % row for row in range(self.files * ROWS))
        found = self._place.committed(self.topic)
        if found != expected:
            counts = Counter(found)
            lost = [value for value in expected if value not in counts]
            twice = [value for value, count in counts.items() if count > 1]
            raise Broken(
                f"{len(lost)} of {len(expected)} rows are lost, {len(twice)} are there more than once"
            )


@contextmanager
def embedded(**settings: object) -> Iterator[Place]:
    """The embedded cluster."""
    with stage(3, default_partitions=PARTITIONS, **settings) as cluster:
        yield Place(cluster.servers, cluster.committed)


@contextmanager
def apache(kafka: ApacheKafka) -> Iterator[Place]:
    """A real one that runs already, as confluent-kafka's read_committed sees it."""
    from tests.read_back import read_back

    def committed(topic: str) -> list[bytes]:
        async def read() -> list[bytes]:
            log = await read_back(kafka.bootstrap_servers, topic, committed_only=True)
            return sorted(record.value or b"" for records in log.values() for record in records)

        return asyncio.run(read())

    yield Place(kafka.bootstrap_servers, committed)


def play(run: Run, crashes: Sequence[Crash], *, shuffles: Iterable[int] = ()) -> int:
    """Each crash in a start of its own, with a file more before it; then a start that nothing happens to.

    Returns:
        How many processes were killed.
    """
    killed = 0
    widths = [*shuffles, *[2] * (len(crashes) + 1)]
    for crash, shuffle in zip(crashes, widths, strict=False):
        run.add_files(2)
        code = run.drive(crash, shuffle=shuffle)
        killed += code < 0 or crash.act == "worker"
        if code > 0:
            raise Broken(f"the driver ended with {code}: {run.log[-1]}")
        if crash.act == "driver" and code == 0:
            raise Broken(f"{crash.point} was not reached: {run.log[-1]}")
    run.add_files(1)
    code = run.drive(shuffle=widths[len(crashes)])
    if code != 0:
        raise Broken(f"the driver ended with {code}: {run.log[-1]}")
    run.check()
    return killed


def main(arguments: Sequence[str] | None = None) -> int:
    """Seeded runs until there were enough; 1 if one of them broke the promise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--crashes", type=int, default=3, help="of each run")
    told = parser.parse_args(arguments)
    points: Counter[str] = Counter()
    broken = killed = 0
    began = time.monotonic()
    try:
        for seed in range(told.seed, told.seed + told.runs):
            randomly = random.Random(seed)
            names = randomly.choices(sorted(DEATHS), k=told.crashes)
            crashes = [DEATHS[name]._replace(visit=randomly.randint(1, 2)) for name in names]
            version = randomly.choice([1, 2])
            with tempfile.TemporaryDirectory() as folder, embedded(transaction_version=version) as place:
                run = Run(place, f"chaos{seed}", Path(folder) / "run")
                try:
                    killed += play(
                        run, crashes, shuffles=[randomly.randint(1, 3) for _ in range(told.crashes + 1)]
                    )
                except Broken as error:
                    broken += 1
                    print(
                        f"seed {seed}: {error}\n  again: python -m tests.spark_chaos --runs 1 --seed {seed}"
                    )
            points.update(names)
            print(f"run {seed}: {', '.join(names)}, v{version}; {time.monotonic() - began:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("stopped")
    print(
        f"{sum(points.values())} crashes, {killed} processes killed, {broken} runs broken; "
        f"{dict(sorted(points.items()))}"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
