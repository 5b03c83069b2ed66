"""Compare aioproducer with its peers: `make bench`. README.md describes the measurements and their figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import goals
import plots
import programs
import report
from broker import AckBroker
from figures import Figures
from job import Job
from plan import CLIENTS, OURS, SECTIONS, Cell, cells
from runner import Targets, in_order, measure_all, run

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PARTIAL = programs.BUILD / "partial"  # partial runs do not overwrite the stored results
PACKAGES = ("aioproducer", "aiokafka", "confluent-kafka", "kafka-python", "uvloop", "pyarrow")


class Progress:
    """Shows the progress: on a terminal one line that is overwritten, otherwise a line for each section."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = time.monotonic()
        self._section = ""

    def __call__(self, done: int, cell: Cell) -> None:
        took = time.monotonic() - self._began
        left = f", {took / done * (self._total - done) / 60:.0f} min left" if done >= 10 else ""
        told = f"{done}/{self._total}, {took / 60:.1f} min{left}"
        if sys.stderr.isatty():
            print(f"\r\033[K{told}: {cell.name}", end="", file=sys.stderr, flush=True)
        elif cell.section != self._section:
            print(f"{told}: {cell.section}", file=sys.stderr, flush=True)
        self._section = cell.section

    def end(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def versions(clients: list[str]) -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    if programs.FRANZ_GO in clients:
        required = re.search(r"franz-go (v\S+)", (programs.PEERS / "go.mod").read_text())
        found["franz-go"] = required[1] if required else "unknown"
        found["Go"] = first_line("go", "version")
    if programs.LIBRDKAFKA in clients:
        found["librdkafka"] = programs.librdkafka_version()
    if programs.JAVA in clients:
        found["kafka-clients"] = programs.DEFAULT_VERSION
        found["Java"] = first_line("java", "--version")
    return found


def first_line(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("\n")[0]


PERF = ("perf", "record", "--quiet", "--event", "cpu-clock", "--freq", "3000")
SHOWN = ("perf", "report", "--stdio", "--no-children", "--percent-limit", "0.7", "--sort", "dso,symbol")


def profile() -> None:
    """Profile a pipelined run of aioproducer: its Python functions with cProfile, then the whole process with perf.

    cProfile makes each Python call slower and does not see compiled code. perf sees compiled code, but not the names of
    Python functions."""
    job = Job("pipelined", OURS, records=300_000, warm_up=20_000)
    with AckBroker("--topic", "t:12") as broker:
        measured = replace(job, bootstrap=broker.bootstrap, profile=True)
        subprocess.run([*programs.command_for(measured), measured.as_argument()], check=True)
        if not shutil.which("perf"):
            print("perf is not on PATH (Debian: linux-perf): compiled code is not shown", file=sys.stderr)
            return
        longer = replace(measured, profile=False, records=3_000_000)
        data = programs.BUILD / "perf.data"
        subprocess.run(
            [*PERF, "--output", str(data), "--", *programs.command_for(longer), longer.as_argument()],
            check=True,
        )
    subprocess.run([*SHOWN, "--input", str(data)], check=True)


def measure(
    options: argparse.Namespace, run_one: Callable[[Cell, Targets], dict[str, Any]] = run
) -> dict[str, Any]:
    """Measure, and return the run as it is stored. Ctrl-C ends it early and keeps the results so far."""
    missing = {client: why for client in options.clients if (why := programs.prepare(client))}
    clients = [client for client in options.clients if client not in missing]
    plan = [
        replace(cell, repeats=min(cell.repeats, options.repeats or cell.repeats))
        for cell in cells(options.quick, options.sections, clients)
    ]
    began, load = time.perf_counter(), os.getloadavg()[0]
    figures: dict[Cell, Figures] = {}
    interrupted = False
    progress = Progress(len(in_order(plan)))
    try:
        with Targets() as targets:
            measure_all(plan, figures, lambda cell: run_one(cell, targets), progress)
    except KeyboardInterrupt:
        interrupted = True
    progress.end()
    found = [f for f in figures.values() if f.results or f.failures]
    return {
        "machine": {"cpus": os.cpu_count(), "load": load, "versions": versions(clients)},
        "seconds": time.perf_counter() - began,
        "load": os.getloadavg()[0],
        "missing": missing,
        "interrupted": interrupted,
        "narrowed": not asks_for_all(options),
        "cells": [f.as_json() for f in found],
        "goals": [{**asdict(goal), "verdict": goal.verdict} for goal in goals.goals(found)],
    }


def write(run: dict[str, Any], directory: Path, document: Path) -> str:
    """Write results.json and the plots to `directory`, and the tables to `document`. Returns the tables."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(run, indent=1) + "\n")
    figures = [Figures.from_json(stored) for stored in run["cells"]]
    drawn = [os.path.relpath(directory / name, document.parent) for name in plots.draw(figures, directory)]
    remarks = report.REMARKS.read_text() if report.REMARKS.exists() else None
    text = report.document(run, drawn, remarks)
    document.write_text(text)
    return text


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats: about six minutes")
    parser.add_argument("--repeats", type=int, metavar="N", help="the maximum number of repeats of any case")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is not met")
    parser.add_argument("--profile", action="store_true", help="profile aioproducer's pipelined run and stop")
    parser.add_argument("--clients", default=",".join(CLIENTS), help="some of %(default)s")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="some of %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        help="directory of results.json, RESULTS.md and the plots; by default benchmarks/results with "
        "benchmarks/RESULTS.md for a whole run, benchmarks/build/partial for any other",
    )
    parser.add_argument("--render", type=Path, metavar="JSON", help="tables and plots of a stored run")
    options = parser.parse_args(arguments)
    options.clients, options.sections = options.clients.split(","), options.sections.split(",")
    for chosen, known in ((options.clients, CLIENTS), (options.sections, SECTIONS)):
        if unknown := set(chosen) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: unknown, expected some of {', '.join(known)}")
    return options


def asks_for_all(options: argparse.Namespace) -> bool:
    chosen = set(options.clients) == set(CLIENTS) and set(options.sections) == {*SECTIONS}
    return chosen and not options.quick and options.repeats is None


def is_whole(run: dict[str, Any]) -> bool:
    return not run["narrowed"] and not run["interrupted"]


def main() -> int:
    options = parse()
    if options.profile:
        profile()
        return 0
    run = json.loads(options.render.read_text()) if options.render else measure(options)
    directory = options.output or (RESULTS if is_whole(run) else PARTIAL)
    document = HERE / "RESULTS.md" if directory == RESULTS else directory / "RESULTS.md"
    print(write(run, directory, document))
    print(f"Written: {document}, {directory / 'results.json'}", file=sys.stderr)
    if run["interrupted"]:
        return 130
    failed = [f.cell.name for f in map(Figures.from_json, run["cells"]) if f.failures]
    if failed:
        print("FAILED: " + "; ".join(failed), file=sys.stderr)
        return 2
    met = all(goal["verdict"] == goals.MET for goal in run["goals"])
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
