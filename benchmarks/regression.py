"""CPU per record as a ratio to aiokafka's in the same run, compared with the ratio stored in the repository.

    python benchmarks/regression.py            measure and judge
    python benchmarks/regression.py --store    measure and keep the ratios, in results/ratios.json

A ratio of CPU times in one interleaved run depends little on the machine and its load. The repeats show the remaining
noise: a case fails if its ratio exceeds the stored one by more than a margin and the noise of this run."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from job import Job, Result
from plan import AIOKAFKA, CLOSED_LOOP, COLUMNS, OURS, PARTITIONS, SERVICES, THROUGHPUT, Cell
from runner import Targets, run
from services import HEADER, TEXT

STORED = Path(__file__).parent / "results" / "ratios.json"
MARGIN = 0.25
MARGIN_WITH_USER_CODE = 1.0
"""Machines differ in how fast they run the user's Python relative to compiled code. A record that leaves the compiled
path costs many times as much."""
REPEATS = 5


@dataclass(frozen=True)
class Case:
    """Two measurements, the first of which is divided by the second."""

    name: str
    section: str
    ours: Job
    theirs: Job
    margin: float = MARGIN


# The linger time is so long that each batch contains ten records, however fast they are sent.
SPREAD = Job("pipelined", "", warm_up=10_000, partitions=1000, round_robin=True, linger_ms=100)

CASES = (
    Case(
        "send, 100 B",
        THROUGHPUT,
        Job("pipelined", OURS, records=300_000, warm_up=20_000),
        Job("pipelined", AIOKAFKA, records=40_000, warm_up=10_000),
    ),
    Case(
        "send, 100 B, a serializer",
        SERVICES,
        Job("services", OURS, records=100_000, warm_up=20_000, work=TEXT),
        Job("services", AIOKAFKA, records=20_000, warm_up=10_000, work=TEXT),
        MARGIN_WITH_USER_CODE,
    ),
    Case(
        "send, 100 B, an interceptor that adds a header",
        SERVICES,
        Job("services", OURS, records=100_000, warm_up=20_000, work=HEADER),
        Job("services", AIOKAFKA, records=20_000, warm_up=10_000, work=HEADER),
        MARGIN_WITH_USER_CODE,
    ),
    Case(
        "send, 1,000 partitions",
        PARTITIONS,
        replace(SPREAD, client=OURS, records=150_000),
        replace(SPREAD, client=AIOKAFKA, records=30_000),
    ),
    Case(
        "send_and_wait, 1,000 tasks",
        CLOSED_LOOP,
        Job("closed_loop", OURS, records=100_000, warm_up=20_000, tasks=1000, linger_ms=0),
        Job("closed_loop", AIOKAFKA, records=30_000, warm_up=10_000, tasks=1000, linger_ms=0),
    ),
    Case(
        "send_many, 100 B with keys in lists",
        COLUMNS,
        Job("columns", OURS, records=1_000_000, warm_up=200_000, keyed=True),
        Job("pipelined", AIOKAFKA, records=40_000, warm_up=10_000),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The ratios of one run, and the limit for their median."""

    ratios: tuple[float, ...]
    stored: float
    margin: float = MARGIN

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def noise(self) -> float:
        """Half of the spread of this run's repeats, relative to their median."""
        return (max(self.ratios) - min(self.ratios)) / 2 / self.median

    @property
    def limit(self) -> float:
        return self.stored * (1 + self.margin + self.noise)

    @property
    def holds(self) -> bool:
        return self.median <= self.limit

    def __str__(self) -> str:
        return (
            f"{self.median:.4f} of aiokafka's CPU a record [{min(self.ratios):.4f}–{max(self.ratios):.4f}], stored "
            f"{self.stored:.4f}, limit {self.limit:.4f} (margin {self.margin:.0%}, noise {self.noise:.0%})"
        )


def measured(
    case: Case, repeats: int = REPEATS, run_one: Callable[[Cell], Result] | None = None
) -> list[float]:
    """Return our CPU per record relative to aiokafka's, for each repeat; the two clients take turns to run first."""
    ratios = []
    with Targets() as targets:
        run_cell = run_one or (lambda cell: run(cell, targets))
        for repeat in range(repeats):
            used = {}
            for job in (case.ours, case.theirs) if repeat % 2 else (case.theirs, case.ours):
                used[job] = float(run_cell(Cell(case.section, case.name, job.client, job, 1))["cpu_us"])
            ratios.append(used[case.ours] / used[case.theirs])
    return ratios


def stored() -> dict[str, float]:
    ratios: dict[str, float] = json.loads(STORED.read_text())
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(",")[0])
    parser.add_argument("--store", action="store_true", help="keep the ratios of this run")
    options = parser.parse_args()
    found = {case: measured(case) for case in CASES}
    if options.store:
        STORED.parent.mkdir(exist_ok=True)
        medians = {case.name: round(statistics.median(ratios), 5) for case, ratios in found.items()}
        STORED.write_text(json.dumps(medians, indent=1) + "\n")
    verdicts = {
        case.name: Verdict(tuple(ratios), stored()[case.name], case.margin) for case, ratios in found.items()
    }
    for name, verdict in verdicts.items():
        print(f"{'ok  ' if verdict.holds else 'SLOWER'} {name}: {verdict}")
    return 0 if all(verdict.holds for verdict in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
