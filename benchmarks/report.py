"""Figures of a run as markdown tables, and the goals held against them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from plan import (
    AIOKAFKA,
    BY_DEFAULT,
    CALLBACK,
    CLOSED_LOOP,
    COLUMNS,
    LAG,
    MEMORY,
    OURS,
    THROUGHPUT,
    Cell,
)

LAG_P99, LAG_MAX = 2.0, 10.0  # ms above an idle process
AIOKAFKA_CPU = 6  # times less than aiokafka's


@dataclass
class Figures:
    """All results of one cell; a cell with a failure shows no figure."""

    cell: Cell
    results: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        return bool(self.results) and not self.failures

    def median(self, name: str) -> float:
        return float(statistics.median(result[name] for result in self.results))

    def spread(self, name: str) -> str:
        low, high = (number(f(result[name] for result in self.results)) for f in (min, max))
        return f"**{number(self.median(name))}** [{low}–{high}]"


@dataclass(frozen=True)
class Goal:
    sentence: str
    met: bool | None  # None: not measured
    detail: str

    def line(self) -> str:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        return f"- {self.sentence}: **{verdict}**{'. ' + self.detail if self.detail else ''}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rate(value: float) -> str:
    return f"{value / 1e6:.2f}M/s" if value >= 1e6 else f"{value / 1e3:.3g}k/s"


def throughput_cell(f: Figures) -> str:
    batch = number(f.median("records_per_batch"))
    return f"{f.spread('cpu_us')} µs; {rate(f.median('records_per_s'))}; {batch} a batch"


def columns_cell(f: Figures) -> str:
    return f"{f.spread('cpu_us')} µs; {rate(f.median('records_per_s'))}"


def closed_loop_cell(f: Figures) -> str:
    return (
        f"p50 {f.spread('p50_ms')} p99 {f.spread('p99_ms')} ms; {rate(f.median('records_per_s'))}; "
        f"{number(f.median('cpu_us'))} µs"
    )


def memory_cell(f: Figures) -> str:
    return f"{f.spread('bytes_per_record')} B"


def lag_cell(f: Figures) -> str:
    above = ", ".join(f"{name} {f.spread(f'above_{name}_ms')}" for name in ("p99", "max"))
    idle = f"{number(f.median('idle_p99_ms'))} and {number(f.median('idle_max_ms'))}"
    held = f"{number(f.median('held_p99_ms'))} and {number(f.median('held_max_ms'))}"
    speed = rate(f.median("records_per_s"))
    return f"above idle: {above} ms (idle {idle}); CPU between ticks {held} ms; {speed}"


TABLES: dict[str, tuple[str, Callable[[Figures], str]]] = {
    THROUGHPUT: (
        "Pipelined: CPU µs per record of the client process; records per second; records in a batch",
        throughput_cell,
    ),
    COLUMNS: (
        "send_many, 12 partitions, batches of 256 KiB: CPU µs per record of the process; records per second. "
        "Encoded only: into sealed batches, checksum included, without a broker",
        columns_cell,
    ),
    CLOSED_LOOP: ("Closed loop, 100 B, 12 partitions: latency of an awaited send", closed_loop_cell),
    MEMORY: ("Growth of resident memory for each 100 B record that waits", memory_cell),
    LAG: ("Lag of the event loop at full load, 1 KB values, 1 MB batches, 4 partitions", lag_cell),
}


def table(section: str, figures: list[Figures]) -> str:
    """One section as a markdown table: clients down, cases across (for the lag the other way round)."""
    title, show = TABLES[section]
    if not any(f.cell.section == section for f in figures):
        return f"## {title}\n\nNot measured."
    cells = {(f.cell.row, f.cell.column): f for f in figures if f.cell.section == section}
    rows, columns = unique(row for row, _ in cells), unique(column for _, column in cells)
    shown = {
        at: ("**FAILED**: " + f.failures[0] if f.failures else show(f) if f.results else "-")
        for at, f in cells.items()
    }
    if section == LAG:
        shown, rows, columns = {(c, r): text for (r, c), text in shown.items()}, columns, rows
    out = [f"## {title}", "", "| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    out += [f"| {row} | " + " | ".join(shown.get((row, c), "") for c in columns) + " |" for row in rows]
    return "\n".join(out)


# The figure of each section that the ratios are made of.
COMPARED = {THROUGHPUT: "cpu_us", CLOSED_LOOP: "p50_ms", MEMORY: "bytes_per_record"}


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def ratios(figures: list[Figures]) -> list[str]:
    """How our figures stand to the others', where both were measured: in equal batches, and each by its default."""
    lines = []
    for ours in figures:
        name = COMPARED.get(ours.cell.section)
        if name and ours.cell.row in (OURS, OURS + BY_DEFAULT) and ours.counts:
            by_default = ours.cell.row.removeprefix(OURS)
            others = [
                f"{f.median(name) / ours.median(name):.2f} of {f.cell.job.client}"
                for f in figures
                if (f.cell.section, f.cell.column) == (ours.cell.section, ours.cell.column)
                and f.cell.row == f.cell.job.client + by_default
                and f.cell.job.client != OURS
                and f.counts
            ]
            if others:
                lines.append(
                    f"- {ours.cell.section}, {ours.cell.column}{by_default}: 1 to {', '.join(others)}"
                )
    return lines


def compared(
    figures: list[Figures], section: str, other: str, name: str, holds: Callable[[float, float], bool]
) -> tuple[bool | None, str]:
    """Whether `holds(ours, theirs)` in every column of the section where both were measured."""
    found = {(f.cell.row, f.cell.column): f for f in figures if f.cell.section == section}
    verdicts, details = [], []
    for column in unique(column for _, column in found):
        ours, theirs = found.get((OURS, column)), found.get((other, column))
        if ours is None or theirs is None:
            continue
        if not (ours.counts and theirs.counts):
            verdicts.append(False)
            details.append(f"{column}: failed")
            continue
        a, b = ours.median(name), theirs.median(name)
        verdicts.append(holds(a, b))
        details.append(f"{column}: {number(a)} to {number(b)}{'' if verdicts[-1] else ' (no)'}")
    return (all(verdicts) if verdicts else None), "; ".join(details)


def lag_goal(figures: list[Figures]) -> tuple[bool | None, str]:
    for f in figures:
        if f.cell.section == LAG and f.cell.row == OURS and f.cell.column == "zstd":
            if not f.counts:
                return False, "failed"
            p99, most = f.median("above_p99_ms"), f.median("above_max_ms")
            return p99 <= LAG_P99 and most <= LAG_MAX, f"p99 {number(p99)} ms, max {number(most)} ms"
    return None, ""


def goals(figures: list[Figures]) -> list[Goal]:
    """The goals of this stage, judged by medians."""
    cpu = compared(figures, THROUGHPUT, AIOKAFKA, "cpu_us", lambda a, b: a <= b / AIOKAFKA_CPU)
    callback = compared(figures, THROUGHPUT, CALLBACK, "cpu_us", lambda a, b: a < b)
    latency = compared(figures, CLOSED_LOOP, AIOKAFKA, "p50_ms", lambda a, b: a <= b)
    return [
        Goal(f"CPU per record at most 1/{AIOKAFKA_CPU} of aiokafka's", *cpu),
        Goal("CPU per record below confluent-kafka's with a callback", *callback),
        Goal("closed-loop p50 at most aiokafka's", *latency),
        Goal(
            f"lag with zstd at most {LAG_P99:g} ms (p99) and {LAG_MAX:g} ms (max) above idle",
            *lag_goal(figures),
        ),
    ]
