"""Runs the cells of a plan: each measurement in a separate process, interleaved, and checked.

With the acknowledging broker (`null`), each measurement has its own broker, whose counts must match the records sent.
With the real one, each measurement has its own topic, which is read back."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import programs
import services
import transforming
from aioproducer.testing import ApacheKafkaError
from broker import AckBroker
from figures import Figures
from job import Job, Result
from plan import LAG, REAL, Cell
from real_kafka import ReadBackError, RealKafka
from tls import TlsEnd

TIME_OUT = 300  # seconds for one measurement


class MeasurementError(Exception):
    """A measurement that failed, or whose result contradicts the broker's counts."""


class Targets:
    """The brokers of a run; the real one is started on first use."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._real: RealKafka | None = None
        self._missing = ""

    def __enter__(self) -> Targets:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def real(self) -> RealKafka:
        if self._real is None:
            if self._missing:
                raise MeasurementError(self._missing)
            try:
                self._real = self._stack.enter_context(RealKafka())
            except ApacheKafkaError as error:
                self._missing = f"Apache Kafka did not start: {error}".partition("\n")[0]
                raise MeasurementError(self._missing) from None
        return self._real


@contextmanager
def started(job: Job) -> Iterator[subprocess.Popen[str]]:
    """Start the process that measures a job; it is killed at the end of the block."""
    process = subprocess.Popen(
        [*programs.command_for(job), job.as_argument()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C must reach only the run, which then kills the process
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def result_of(process: subprocess.Popen[str]) -> Result:
    try:
        out, err = process.communicate(timeout=TIME_OUT)
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"no result within {TIME_OUT} s") from None
    if process.returncode:
        last = err.strip().splitlines()[-1:] or [f"status {process.returncode}"]
        raise MeasurementError(last[0][:200])
    result: Result = json.loads(out.splitlines()[-1])
    return result


def measured(job: Job) -> Result:
    job = replace(job, values_file=str(programs.values_file(job.value_size)))
    with started(job) as process:
        return result_of(process)


def measured_lag(job: Job) -> Result:
    """Measure the lag of an idle loop, which the machine causes, and then the lag of a loop at full load."""
    at_rest = measured(replace(job, kind="idle", client=""))
    return measured(job) | {f"idle_{name}_ms": at_rest[f"lag_{name}_ms"] for name in ("p99", "max")}


def run(cell: Cell, targets: Targets) -> Result:
    """Run one measurement of a cell."""
    if cell.target == REAL:
        return run_on_real(cell, targets.real())
    with ExitStack() as stack:
        options = cell.broker_options()
        end = stack.enter_context(TlsEnd()) if cell.job.over_tls else None
        if end is not None:
            options += ["--advertise-port", str(end.port)]
        broker = stack.enter_context(AckBroker(*options))
        job = replace(cell.job, bootstrap=broker.bootstrap)
        if end is not None:
            job = replace(job, bootstrap=end.lead_to(broker.bootstrap), authority=end.authority)
        result = measured_lag(job) if cell.section == LAG else measured(job)
        counts = broker.counts()
    counted = sum(sum(topic["records"]) for topic in counts["topics"].values())
    batches = sum(sum(topic["batches"]) for topic in counts["topics"].values())
    if not cell.silent and counted != result["sent"]:
        raise MeasurementError(f"the broker counted {counted:,} records, but {result['sent']:,.0f} were sent")
    result["broker_cpu_seconds"] = counts["cpu_seconds"]
    result["records_per_batch"] = counted / batches if batches else 0.0
    result["batches_per_request"] = batches / max(1, counts["produce_requests"])
    return result


def run_on_real(cell: Cell, kafka: RealKafka) -> Result:
    with kafka.topic(cell.job.partitions) as topic:
        job = replace(cell.job, bootstrap=kafka.bootstrap, topic=topic)
        if job.kind == "transform":
            return transformed(job, kafka)
        result = measured(job)
        try:
            kafka.check(job, int(result["sent"]))
        except ReadBackError as error:
            raise MeasurementError(str(error)) from None
        result["stored_bytes"] = kafka.stored_bytes(topic) / result["sent"]
    return result


def transformed(job: Job, kafka: RealKafka) -> Result:
    """Measure a job that reads a topic, and check that the output contains one record for each record read."""
    count = job.warm_up + job.records
    values = transforming.inputs(job)
    with kafka.topic(job.partitions) as source:
        kafka.fill(source, [values[number % len(values)] for number in range(count)])
        result = measured(replace(job, source=source))
        transform = transforming.function()
        headers = ("traceparent",) if services.WORKS[job.work].sampler else ()
        expected = Counter((transform(values[number % len(values)]), headers) for number in range(count))
        if kafka.committed(job) != expected:
            raise MeasurementError(
                f"the output does not contain each of the {count:,} records once, with the headers {headers}"
            )
    return result


def interleaved(plan: list[Cell]) -> Iterator[Cell]:
    """Yield every cell once, then, in further rounds, those with more repeats. Each round begins with another cell."""
    for repeat in range(max((cell.repeats for cell in plan), default=0)):
        turn = repeat * len(plan) // 3 % len(plan)
        yield from (cell for cell in plan[turn:] + plan[:turn] if repeat < cell.repeats)


def in_order(plan: list[Cell]) -> list[Cell]:
    """Order the measurements by section, interleaved within each, so that compared rows are measured close in time."""
    sections = dict.fromkeys(cell.section for cell in plan)
    return [cell for name in sections for cell in interleaved([c for c in plan if c.section == name])]


def measure_all(
    plan: list[Cell],
    figures: dict[Cell, Figures],
    run_one: Callable[[Cell], Result],
    tell: Callable[[int, Cell], None] = lambda done, cell: None,
) -> None:
    """Measure all cells into `figures`, which contains the results so far after an interruption."""
    for done, cell in enumerate(in_order(plan)):
        found = figures.setdefault(cell, Figures(cell))
        if found.failures:
            continue
        tell(done, cell)
        try:
            found.results.append(run_one(cell))
        except MeasurementError as error:
            found.failures.append(str(error))
        except Exception as error:  # a defect of the benchmark, which does not affect other measurements
            found.failures.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()
        if found.failures:
            print(f"FAILED {cell.name}: {found.failures[0]}", file=sys.stderr, flush=True)
