"""Compare the sink with Spark's own JVM connector and with the alternatives without a sink.

    python -m benchmarks.spark.bench [--quick] [--rows N] [--target ack|real]

One Spark driver runs all sinks, and each measurement has its own topic. Repeats are interleaved, so that other work on
the machine affects all sinks equally. A row fails if the broker did not count exactly what was sent. Ctrl-C ends the
run and shows what was measured so far."""

from __future__ import annotations

import argparse
import json
import os
import platform
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.spark import environment, plan
from benchmarks.spark.plan import BATCH, SMALL, STREAM, TRANSACTIONAL, Cell
from benchmarks.spark.report import RESULTS, Figures, Goal, as_record, goals, markdown, rate
from benchmarks.spark.target import TARGETS, AckTarget, RealTarget

TIME_OUT = 900  # seconds for one measurement, including caching the DataFrame
START = 180  # seconds for Spark to start
SECTIONS = (BATCH, STREAM, SMALL)
PACKAGES = ("pyarrow", "pandas", "confluent-kafka", "aiokafka")


class MeasurementError(Exception):
    """A measurement without a figure, or with a figure that contradicts the broker's counts."""


class Stage:
    """The Spark driver, in its own environment and process group, so that Ctrl-C reaches only this process."""

    def __init__(self, interpreter: Path, jars: Path, memory: str, conf: dict[str, str], log: Path) -> None:
        settings = {"jars": sorted(map(str, jars.glob("*.jar"))), "memory": memory, "conf": conf}
        self._command = [str(interpreter), "-m", "benchmarks.spark.stage", json.dumps(settings)]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.about: dict[str, Any] = {}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement; start Spark if it is not running."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = self._answer(process, TIME_OUT)
        if "error" in answer:
            raise MeasurementError(answer["error"])
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                cwd=environment.ROOT,
                env={**os.environ, "PYTHONPATH": str(environment.ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log.open("a"),
                text=True,
                start_new_session=True,
            )
            self.about = self._answer(self._process, START)
        return self._process

    def _answer(self, process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(seconds) else ""
        if not line:
            self.end()
            raise MeasurementError(f"Spark did not answer within {seconds} s, or ended: {self._log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Kill Spark with all its child processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None


def run(stage: Stage, target: AckTarget | RealTarget, cell: Cell) -> dict[str, Any]:
    """Run one measurement of a cell and count its rows."""
    topic = target.topic()
    try:
        result = stage.ask({"cell": asdict(cell), "topic": topic, "bootstrap": target.bootstrap})
        result |= target.written(topic, transactional=cell.sink in TRANSACTIONAL)
    finally:
        target.drop(topic)
    if result["counted"] != cell.sent:
        raise MeasurementError(f"the broker counted {result['counted']:,} rows, but {cell.sent:,} were sent")
    return result


def interleaved(cells: list[Cell]) -> Iterator[Cell]:
    """Yield the cells, grouped by size: each cell once, then again for each repeat, starting with another cell."""
    for group in dict.fromkeys((cell.section, cell.value_size) for cell in cells):
        mine = [cell for cell in cells if (cell.section, cell.value_size) == group]
        for repeat in range(max(cell.repeats for cell in mine)):
            turn = repeat * len(mine) // 3 % len(mine)
            yield from (cell for cell in mine[turn:] + mine[:turn] if repeat < cell.repeats)


class Run:
    """All measurements, and the progress that is shown while they run."""

    def __init__(self, cells: list[Cell]) -> None:
        self.figures = {cell: Figures(cell) for cell in cells}
        self.is_cut_short = False
        self._total = sum(cell.repeats for cell in cells)
        self._seconds: dict[Cell, float] = {}
        self._done = 0

    def measure(self, stage: Stage, target: AckTarget | RealTarget) -> None:
        """Measure until everything is done, or until Ctrl-C."""
        try:
            self._warm_up(stage, target)
            for cell in interleaved(list(self.figures)):
                self._done += 1
                if not self.figures[cell].failures:
                    self._measure(cell, stage, target)
        except KeyboardInterrupt:
            self.is_cut_short = True
        finally:
            stage.end()

    def _warm_up(self, stage: Stage, target: AckTarget | RealTarget) -> None:
        """Run each sink once in frames and in streams, so that the JVM has compiled the code that is measured."""
        first = {(cell.section, cell.sink): cell for cell in reversed(self.figures) if cell.section != SMALL}
        for number, ((section, sink), cell) in enumerate(first.items(), 1):
            _say(f"warm-up {number}/{len(first)} {section}: {sink}")
            fewer = replace(cell, rows=max(100_000, cell.rows // 6), frame=plan.GENERATED)
            try:
                run(stage, target, fewer)
            except MeasurementError as error:
                same = [other for other in self.figures if (other.section, other.sink) == (section, sink)]
                self._fail(same, error)

    def _measure(self, cell: Cell, stage: Stage, target: AckTarget | RealTarget) -> None:
        began = time.perf_counter()
        try:
            result = run(stage, target, cell)
        except MeasurementError as error:
            self._fail([cell], error)
            return
        self.figures[cell].results.append(result)
        self._seconds[cell] = time.perf_counter() - began
        shown = f"{rate(result['rows_per_s'])}, {result['cpu_us']:.2f} µs"
        if cell.section == SMALL:
            shown = f"{result['batch_ms']} ms, {result['cpu_ms_per_batch']:.0f} ms of CPU a batch"
        _say(f"{self._done}/{self._total}{self._left()} {cell.name}: {shown}")

    def _fail(self, cells: list[Cell], error: Exception) -> None:
        for cell in cells:
            self.figures[cell].failures.append(str(error))
        _say(f"FAILED {cells[0].name}: {error}")

    def _left(self) -> str:
        """Return the estimated time left, from the cells measured so far; empty in the first round."""
        if len(self._seconds) < len(self.figures):
            return ""
        seconds = sum(
            self._seconds[cell] * (cell.repeats - len(f.results)) for cell, f in self.figures.items()
        )
        return f", {seconds / 60:.0f} min left"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine(stage: Stage, interpreter: Path, before: float) -> dict[str, Any]:
    found = subprocess.run(
        [str(interpreter), "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    )
    versions = {package["name"].lower(): package["version"] for package in json.loads(found.stdout)}
    return {
        "spark": stage.about.get("spark", "?"),
        "java": stage.about.get("java", "?"),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": [before, os.getloadavg()[0]],
        "packages": {
            "aioproducer": metadata.version("aioproducer"),
            **{package: versions.get(package, "not installed") for package in PACKAGES},
        },
    }


def _setting(told: str) -> tuple[str, str]:
    name, equals, value = told.partition("=")
    if not equals or not name.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{told}: expected spark.NAME=VALUE")
    return name, value


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.spark.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="600,000 rows, fewer shapes and repeats")
    parser.add_argument(
        "--rows", type=int, help="number of rows in a frame; a large micro-batch has a third of them"
    )
    parser.add_argument("--repeats", type=int, help="maximum number of repeats of a measurement")
    parser.add_argument("--target", choices=list(TARGETS), default="ack", help="default: %(default)s")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="some of %(default)s")
    parser.add_argument(
        "--sink", action="append", choices=plan.ALL_SINKS, help="only this one; may be repeated"
    )
    parser.add_argument("--value-size", type=int, choices=plan.VALUE_SIZES, help="only this size, in bytes")
    parser.add_argument("--compression", choices=plan.COMPRESSIONS, help="only this one")
    parser.add_argument(
        "--connector", help="release of spark-sql-kafka-0-10; default: the newest complete one"
    )
    parser.add_argument("--memory", default="6g", help="memory of the driver, which holds the cached frame")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a Spark setting",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is not met")
    parser.add_argument("--output", type=Path, help="default: benchmarks/spark/results/TARGET.json")
    options = parser.parse_args()
    options.sections = options.sections.split(",")
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"{', '.join(sorted(unknown))}: unknown, expected some of {', '.join(SECTIONS)}")
    if options.rows is not None and options.rows < plan.WARM_ROWS:
        parser.error(f"--rows {options.rows}: must be at least {plan.WARM_ROWS}")
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: must be at least 1")
    options.conf = dict(options.conf)
    options.sink = options.sink or plan.ALL_SINKS
    options.output = options.output or RESULTS / f"{options.target}.json"
    return options


def wanted(options: argparse.Namespace) -> list[Cell]:
    """Return the cells to measure."""
    cells = plan.cells(options.quick, options.rows, options.sections, options.sink, options.repeats)
    return [
        cell
        for cell in cells
        if options.value_size in (None, cell.value_size) and options.compression in (None, cell.compression)
    ]


def main() -> int:
    options = parse()
    try:
        connector = environment.connector(options.connector)
    except environment.MissingError as error:
        _say(str(error))
        return 2
    interpreter = environment.python_with(connector.version)
    began, before = time.perf_counter(), os.getloadavg()[0]
    stage = Stage(interpreter, connector.jars, options.memory, options.conf, environment.BUILD / "spark.log")
    measured = Run(wanted(options))
    with TARGETS[options.target]() as target:
        measured.measure(stage, target)
    figures = list(measured.figures.values())
    verdicts = goals(figures)
    record = {
        "arguments": shlex.join(sys.argv[1:]),
        "target": target.name,
        "connector": connector.name,
        "conf": options.conf,
        "machine": machine(stage, interpreter, before),
        "seconds": time.perf_counter() - began,
        "is_cut_short": measured.is_cut_short,
        "cells": as_record(figures),
        "goals": [asdict(goal) for goal in verdicts],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record))
    for file in drawn(figures, options.output):
        _say(f"written: {file}")
    return status(figures, verdicts, measured.is_cut_short, options.check)


def drawn(figures: list[Figures], output: Path) -> list[Path]:
    """Write the plot next to the results."""
    try:
        from benchmarks.spark.plot import draw
    except ImportError:
        _say("no picture: matplotlib is not installed")
        return [output]
    return [output, *draw(figures, output)]


def status(figures: list[Figures], verdicts: list[Goal], is_cut_short: bool, check: bool) -> int:
    """Return the exit status: 130 after Ctrl-C, 2 after a failure, 1 if goals are checked and one is not met."""
    if is_cut_short:
        return 130
    if any(f.failures for f in figures):
        return 2
    return 1 if check and not all(goal.met for goal in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
