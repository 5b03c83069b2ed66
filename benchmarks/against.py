"""Compares this version of the package with another commit: CPU per record, or the latency of one task.

    python benchmarks/against.py 875e126 [--cases "100 B" "one task" ...] [--pairs 30]

The other commit is built into build/against/. The processes of each pair run in turns; the result is the median of
the ratios of this version to the other, with its 95% interval."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker import AckBroker
from job import Job
from observability import interval
from runner import MeasurementError, result_of

ROOT = Path(__file__).parent.parent
GOAL = 1.02
CASES: dict[str, tuple[Job, str]] = {
    "100 B": (Job("pipelined", "aioproducer", 100, records=3_000_000, warm_up=300_000), "cpu_us"),
    "1 KB": (Job("pipelined", "aioproducer", 1000, records=600_000, warm_up=60_000), "cpu_us"),
    "10,000 partitions": (
        Job(
            "pipelined",
            "aioproducer",
            100,
            records=200_000,
            warm_up=20_000,
            partitions=10_000,
            round_robin=True,
        ),
        "cpu_us",
    ),
    "one task": (
        Job("closed_loop", "aioproducer", 100, records=10_000, warm_up=1_000, linger_ms=0),
        "p50_ms",
    ),
}
"""The job of each case, and the figure that is compared."""


def built(commit: str) -> Path:
    """Return the folder with the package as of the commit, and build the package first if necessary."""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.check_output([*git, "rev-parse", f"{commit}^{{commit}}"], text=True).strip()
    place = ROOT / "build" / "against" / name
    if not (place / "installed").exists():
        shutil.rmtree(place, ignore_errors=True)
        (place / "source").mkdir(parents=True)
        archive = subprocess.check_output([*git, "archive", name])
        subprocess.run(["tar", "-x", "-C", str(place / "source")], input=archive, check=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"]
        subprocess.run([*pip, "--target", str(place / "being-installed"), str(place / "source")], check=True)
        (place / "being-installed").rename(place / "installed")
    return place / "installed"


def measured(job: Job, package: Path) -> dict[str, Any]:
    """Measure the package in this folder, in a separate process and with a separate broker."""
    with AckBroker("--topic", f"{job.topic}:{job.partitions}") as broker:
        process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "benchmarks" / "public_face.py"),
                replace(job, bootstrap=broker.bootstrap).as_argument(),
            ],
            env={**os.environ, "PYTHONPATH": str(package)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            result = result_of(process)
        finally:
            process.kill()
        counted = sum(sum(topic["records"]) for topic in broker.counts()["topics"].values())
    if counted != result["sent"]:
        raise MeasurementError(f"the broker counted {counted:,} records, but {result['sent']:,} were sent")
    if not Path(result["package"]).is_relative_to(package):
        raise MeasurementError(f"{result['package']} was measured instead of {package}")
    return result


def ratios(job: Job, figure: str, other: Path, pairs: int) -> list[float]:
    """Return this version's figure relative to the other's, for each pair. The two take turns to run first."""
    found = []
    for pair in range(pairs):
        figures = {
            package: float(measured(job, package)[figure])
            for package in ((ROOT, other) if pair % 2 else (other, ROOT))
        }
        found.append(figures[ROOT] / figures[other])
        print(f"{pair + 1}: {figures[ROOT]:.3f} and {figures[other]:.3f}, {found[-1]:.3f}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--pairs", type=int, default=30)
    options = parser.parse_args()
    other = built(options.commit)
    worst = 0.0
    results = []
    for case in options.cases:
        job, figure = CASES[case]
        load = os.getloadavg()[0]
        print(f"{case}, {figure}:")
        found = ratios(job, figure, other, options.pairs)
        low, high = interval(found)
        worst = max(worst, statistics.median(found))
        results.append(
            f"{case}: {statistics.median(found):.3f} [{low:.3f}, {high:.3f}] of {options.pairs} pairs; "
            f"load {load:.1f} before, {os.getloadavg()[0]:.1f} after"
        )
    print(f"this version relative to {options.commit}, goal {GOAL}:", *results, sep="\n")
    return 0 if worst <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
