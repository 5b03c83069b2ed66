"""The stored log of the crash runs on a real Kafka cluster, and the table in docs/spark.md that is printed from it.

    python -m tests.campaigns.spark_chaos ... --log tests/campaigns/spark_crashes.jsonl    adds lines to it
    python -m tests.campaigns.spark_crash_log    updates the table in docs/spark.md

Each invocation of the campaign adds a line with its options, and then a line for each run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.spark.page import PAGE, between

STORED = Path(__file__).with_name("spark_crashes.jsonl")
MARK = "printed by python -m tests.campaigns.spark_crash_log"

WHAT = {
    "F1": "the driver was killed before it planned a batch",
    "F2": "the driver was killed after it had planned a batch",
    "F3": "the driver was killed while a task was writing rows",
    "F7": "the driver was killed before the commit",
    "F8": "the driver was killed before EndTxn",
    "F10": "the driver was killed after EndTxn",
    "F3 error": "a task failed",
    "F3 worker": "the Python worker of a task was killed",
    "F3 executor": "an executor was killed while its task was writing rows",
    "F3 acknowledged": "an executor was killed after its rows had been acknowledged",
    "F4": "a task continued after its batch was aborted",
    "F5": "the response to a record batch was lost",
    "F6": "the transaction exceeded its timeout",
    "F9": "the response to EndTxn was lost",
    "F11": "the coordinator of the transaction went down at EndTxn",
    "F12": "the commit failed after the transaction was committed",
    "F13": "a second driver took over the transactional id",
    "leader": "the leader of a partition went down",
}
"""A description of each fault, in the order of the table."""


@dataclass(frozen=True, slots=True)
class CrashRun:
    """One stream, and the faults that occurred in it."""

    seed: int
    faults: tuple[str, ...]
    transactions: int
    """The version of the transaction protocol."""
    topics: int
    rows: int
    killed: int
    """How many processes were killed."""
    seconds: float
    broken: str = ""
    """A description of the error in the rows; empty if they are correct."""


class CrashLog:
    """A file to which each run is added as soon as it has ended. Without a path, nothing is written."""

    def __init__(self, path: str | None, options: argparse.Namespace) -> None:
        """Open the log, and add the options of the campaign to it."""
        self._path = path
        self._add(
            {
                "options": {name: value for name, value in vars(options).items() if name != "log"},
                "date": time.strftime("%Y-%m-%d"),
                "spark": metadata.version("pyspark"),
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
            }
        )

    def add(self, run: CrashRun) -> None:
        """Add a line for a run."""
        self._add(asdict(run))

    def _add(self, line: dict[str, object]) -> None:
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def read(path: Path = STORED) -> tuple[list[dict[str, Any]], list[CrashRun]]:
    """Return the lines that describe the invocations, and all runs."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    calls = [line for line in lines if "options" in line]
    runs = [CrashRun(**line | {"faults": tuple(line["faults"])}) for line in lines if "seed" in line]
    return calls, runs


def printed(path: Path = STORED) -> str:
    """Return the paragraph and the table for the page."""
    calls, runs = read(path)
    faults = Counter(fault for run in runs for fault in run.faults)
    rows = sum(run.rows for run in runs)
    broken = [run for run in runs if run.broken]
    verdict = (
        f"in {len(broken)} runs, rows were lost or duplicated" if broken else "none was lost or duplicated"
    )
    versions = ", ".join(dict.fromkeys(f"Spark {call['spark']}" for call in calls))
    commands = " and ".join(dict.fromkeys(f'`make chaos-spark ARGS="{_arguments(call)}"`' for call in calls))
    topics = " or ".join(str(count) for count in sorted({run.topics for run in runs}))
    about = (
        f"{len(runs)} runs are stored in `tests/campaigns/{STORED.name}` ({commands}; {versions}; {topics} topics in "
        f"each stream). The runs included {sum(faults.values())} faults, and {sum(run.killed for run in runs)} "
        f"processes were killed. Of {rows:,} rows, {verdict}."
    )
    lines = [f"| {WHAT[fault]} | {faults[fault]} |" for fault in WHAT if faults[fault]]
    return "\n\n".join([about, "\n".join(["| what happened | times |", "|---|---|", *lines])])


def _arguments(call: dict[str, Any]) -> str:
    """Return the arguments that determine the faults; the seeds continue from one invocation to the next."""
    options = {
        name: value for name, value in call["options"].items() if name in ("kafka", "executors", "topics")
    }
    return " ".join(
        f"--{name}" if value is True else f"--{name} {value}" for name, value in options.items() if value
    )


def main() -> int:
    """Update the table in the page."""
    PAGE.write_text(between(PAGE.read_text(), MARK, printed()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
