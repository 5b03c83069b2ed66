"""Measure aioproducer beside aiokafka and confluent-kafka against a broker that only acknowledges.

Every measurement is a process of its own with a broker of its own; repeats are interleaved, so that
whatever else the machine does meets every client alike. A row fails if the broker did not count exactly
what was sent."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import tls
from broker import AckBroker, build
from measure import Job, as_argument
from plan import LAG, OURS, RECORDS, SECTIONS, Cell, cells
from report import Figures, goals, ratios, table

HERE = Path(__file__).parent
TIME_OUT = 120  # seconds for one measurement
PACKAGES = ("aioproducer", "aiokafka", "confluent-kafka", "uvloop")


class MeasurementError(Exception):
    """A measurement that gave no figure, or a figure that the broker's counts contradict."""


TLS = "tls"


def start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "measure.py"), as_argument(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=TIME_OUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise MeasurementError(f"no result after {TIME_OUT} s") from None
    if process.returncode:
        last = err.strip().splitlines()[-1:] or [f"status {process.returncode}"]
        raise MeasurementError(last[0][:200])
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def run(cell: Cell) -> dict[str, Any]:
    """One measurement of a cell: fresh broker, fresh process, counts compared."""
    with AckBroker(*cell.broker_options()) as broker:
        idle = start(replace(cell.job, kind="idle")) if cell.section == LAG else None
        try:
            result = finish(start(replace(cell.job, bootstrap=broker.bootstrap)))
            if idle:
                at_rest = finish(idle)
                for name in ("p99", "max"):
                    result[f"idle_{name}_ms"] = at_rest[f"lag_{name}_ms"]
                    result[f"above_{name}_ms"] = result[f"lag_{name}_ms"] - at_rest[f"lag_{name}_ms"]
        finally:
            if idle and idle.poll() is None:
                idle.kill()
                idle.communicate()
        counts = broker.counts()
    counted = sum(sum(topic["records"]) for topic in counts["topics"].values())
    batches = sum(sum(topic["batches"]) for topic in counts["topics"].values())
    if not cell.silent and counted != result["sent"]:
        raise MeasurementError(f"the broker counted {counted:,} records of {result['sent']:,} sent")
    result["broker_cpu_seconds"] = counts["cpu_seconds"]
    result["records_per_batch"] = counted / batches if batches else 0.0
    result["batches_per_request"] = batches / max(1, counts["produce_requests"])
    return result


def interleaved(plan: list[Cell]) -> Iterator[Cell]:
    """Every cell once, then every cell that wants it again, each round begun elsewhere."""
    for repeat in range(max((cell.repeats for cell in plan), default=0)):
        turn = repeat * len(plan) // 3 % len(plan)
        yield from (cell for cell in plan[turn:] + plan[:turn] if repeat < cell.repeats)


def measure_all(plan: list[Cell]) -> list[Figures]:
    figures = {cell: Figures(cell) for cell in plan}
    total = sum(cell.repeats for cell in plan)
    for done, cell in enumerate(interleaved(plan), 1):
        if figures[cell].failures:
            continue
        try:
            figures[cell].results.append(run(cell))
        except MeasurementError as error:
            figures[cell].failures.append(str(error))
            print(f"FAILED {cell.name}: {error}", file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print(f"\r{done}/{total} ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return list(figures.values())


def machine() -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {"python": platform.python_version(), "cpus": os.cpu_count(), "load": os.getloadavg(), **versions}


def profile() -> None:
    """Where aioproducer's own Python spends its time, on stderr."""
    job = Job("pipelined", OURS, records=300_000, warm_up=20_000, profile=True)
    with AckBroker("--topic", "t:12") as broker:
        subprocess.run(
            [sys.executable, str(HERE / "measure.py"), as_argument(replace(job, bootstrap=broker.bootstrap))],
            check=True,
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases and repeats, under 90 seconds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is not met")
    parser.add_argument("--profile", action="store_true", help="profile aioproducer's pipelined run and stop")
    parser.add_argument("--clients", default=",".join(RECORDS), help="some of %(default)s")
    parser.add_argument("--sections", default=",".join([*SECTIONS, TLS]), help="some of %(default)s")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "latest.json", help="the JSON file")
    options = parser.parse_args()
    options.clients, options.sections = options.clients.split(","), options.sections.split(",")
    for chosen, known in ((options.clients, RECORDS), (options.sections, [*SECTIONS, TLS])):
        if unknown := set(chosen) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: unknown, expected some of {', '.join(known)}")
    return options


def main() -> int:
    options = parse()
    build()
    if options.profile:
        profile()
        return 0
    began, before = time.perf_counter(), machine()
    sections = [section for section in options.sections if section != TLS]
    figures = measure_all(cells(options.quick, sections, options.clients))
    over_tls = tls.compare(options.quick) if TLS in options.sections else None
    took, verdicts = time.perf_counter() - began, goals(figures)

    print("# aioproducer beside its peers\n")
    print("acks=all, idempotence, linger 5 ms, batches of 64 KiB unless a table says otherwise; asyncio")
    print("clients on uvloop, futures awaited one by one; **median** [least–most] of interleaved runs.")
    loads = f"{before['load'][0]:.1f} before, {os.getloadavg()[0]:.1f} after"
    print(f"Python {before['python']}, {before['cpus']} CPUs, load {loads}, {took:.0f} s. ", end="")
    print(", ".join(f"{package} {before[package]}" for package in PACKAGES) + ".\n")
    for section in sections:
        print(table(section, figures) + "\n")
    if over_tls is not None:
        print(tls.table(over_tls) + "\n")
    if compared := ratios(figures):
        print("## Ratios (aioproducer is 1)\n\n" + "\n".join(compared) + "\n")
    print("## Goals\n\n" + "\n".join(goal.line() for goal in verdicts))

    options.output.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "machine": before,
        "seconds": took,
        "cells": [{**asdict(f.cell), "results": f.results, "failures": f.failures} for f in figures],
        "tls_cpu_ms_per_mb": over_tls,
        "goals": [asdict(goal) for goal in verdicts],
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    if any(f.failures for f in figures):
        print("\nFAILED: " + "; ".join(f.cell.name for f in figures if f.failures))
        return 2
    return 1 if options.check and not all(goal.met for goal in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
