"""Figures of a run as markdown tables, and the goals checked against them.

python -m benchmarks.spark.report [results.json]      prints the tables again"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.spark.plan import (
    BATCH,
    CACHED,
    CONNECTOR,
    EXACTLY_ONCE,
    FOREACH_CONFLUENT,
    GENERATED,
    OURS,
    PLACED,
    SMALL,
    STREAM,
    TUNED,
    Cell,
)

RESULTS = Path(__file__).parent / "results"

FASTER_THAN_CONNECTOR = 1.3
CPU_OF_CONNECTOR = 0.8
FASTER_THAN_FOREACH = {GENERATED: 4.0, CACHED: 5.0}
EXACTLY_ONCE_RATE = 0.85
EXACTLY_ONCE_MS = 100.0


@dataclass
class Figures:
    """All results of one cell; a cell with a failure shows no figure."""

    cell: Cell
    results: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        return bool(self.results) and not self.failures

    def all(self, name: str) -> list[float]:
        return [float(result[name]) for result in self.results]

    def median(self, name: str) -> float:
        return statistics.median(self.all(name))

    def spread(self, name: str, show: Callable[[float], str]) -> str:
        """Format the median, the minimum and the maximum of the repeats."""
        found = self.all(name)
        return f"**{show(statistics.median(found))}** [{show(min(found))}–{show(max(found))}]"

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Figures:
        return cls(Cell(**stored["cell"]), stored["results"], stored["failures"])


@dataclass(frozen=True)
class Goal:
    sentence: str
    met: bool | None  # None: not measured
    detail: str

    def line(self) -> str:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[self.met]
        return f"- {self.sentence}: **{verdict}**{'. ' + self.detail if self.detail else ''}"


def rate(value: float) -> str:
    return f"{value / 1e6:.2f}M/s" if value >= 1e6 else f"{value / 1e3:.3g}k/s"


def microseconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}"


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


# ----------------------------------------------------------------------------------------------------------- tables


def rate_and_cpu(f: Figures) -> str:
    java, python = microseconds(f.median("java_us")), microseconds(f.median("python_us"))
    return f"{f.spread('rows_per_s', rate)}; {f.spread('cpu_us', microseconds)} µs ({java} + {python})"


def batch_and_cpu(f: Figures) -> str:
    return f"{f.spread('batch_ms', milliseconds)} ms; {f.spread('cpu_ms_per_batch', milliseconds)} ms of CPU"


TITLES: dict[str, tuple[str, Callable[[Figures], str]]] = {
    BATCH: ("Batch writes: rows per second; CPU of the whole job in µs a row (JVM + Python)", rate_and_cpu),
    STREAM: ("Streams: rows per second of a micro-batch; CPU in µs a row (JVM + Python)", rate_and_cpu),
    SMALL: ("Streams, small micro-batches: time and CPU of a batch", batch_and_cpu),
}


def table(figures: list[Figures], show: Callable[[Figures], str]) -> str:
    """Return a table with a row for each sink and a column for each shape."""
    cells = {(f.cell.row, f.cell.column): f for f in figures}
    columns = unique(column for _, column in cells)
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in unique(row for row, _ in cells):
        shown = [_shown(cells.get((row, column)), show) for column in columns]
        lines.append(f"| {row} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _shown(f: Figures | None, show: Callable[[Figures], str]) -> str:
    if f is None:
        return ""
    if f.failures:
        return "**FAILED**: " + f.failures[0].splitlines()[0].replace("|", "\\|")[:200]
    return show(f) if f.results else "-"


def tables(figures: list[Figures]) -> str:
    """Return all tables; for batch writes, there is one for each value size and compression."""
    parts = []
    for section, (title, show) in TITLES.items():
        of_section = [f for f in figures if f.cell.section == section]
        if of_section:
            parts.append(f"### {title}")
        for shape in dict.fromkeys((f.cell.value_size, f.cell.compression) for f in of_section):
            parts.append(
                table([f for f in of_section if (f.cell.value_size, f.cell.compression) == shape], show)
            )
    return "\n\n".join(parts)


# ------------------------------------------------------------------------------------------------------------ goals


def held(
    figures: list[Figures],
    section: str,
    pair: tuple[str, str],
    name: str,
    holds: Callable[[float, float], bool],
    show: Callable[[float, float], str],
    frame: str | None = None,
) -> tuple[bool | None, str]:
    """Check `holds` with the medians of the pair, in every column of the section that has both."""
    found = {
        (f.cell.row, f.cell.column): f
        for f in figures
        if f.cell.section == section and (frame is None or f.cell.frame == frame)
    }
    verdicts, details = [], []
    for column in unique(column for _, column in found):
        first, second = found.get((pair[0], column)), found.get((pair[1], column))
        if first is None or second is None:
            continue
        if first.failures or second.failures:
            verdicts.append(False)
            details.append(f"{column}: failed")
        elif first.results and second.results:
            a, b = first.median(name), second.median(name)
            verdicts.append(holds(a, b))
            details.append(f"{column}: {show(a, b)}{'' if verdicts[-1] else ' (no)'}")
    return (all(verdicts) if verdicts else None), "; ".join(details)


def times(a: float, b: float) -> str:
    return f"{a / b:.2f}x"


def goals(figures: list[Figures]) -> list[Goal]:
    """Return the goals, judged by medians."""
    found = []
    for frame in (GENERATED, CACHED):
        for sink, how in ((OURS, ""), (TUNED, ", Arrow batches of 2 MB")):
            pair = (sink, CONNECTOR)
            faster = held(
                figures, BATCH, pair, "rows_per_s", lambda a, b: a >= FASTER_THAN_CONNECTOR * b, times, frame
            )
            cheaper = held(
                figures, BATCH, pair, "cpu_us", lambda a, b: a <= CPU_OF_CONNECTOR * b, times, frame
            )
            found += [
                Goal(
                    f"{frame}{how}: rows per second at least {FASTER_THAN_CONNECTOR:g} times the JVM connector's",
                    *faster,
                ),
                Goal(
                    f"{frame}{how}: CPU per row at most {CPU_OF_CONNECTOR:g} times the JVM connector's",
                    *cheaper,
                ),
            ]
        least = FASTER_THAN_FOREACH[frame]
        foreach = held(
            figures,
            BATCH,
            (OURS, FOREACH_CONFLUENT),
            "rows_per_s",
            lambda a, b, least=least: a >= least * b,
            times,
            frame,
        )
        found.append(
            Goal(
                f"{frame}: rows per second at least {least:g} times foreachPartition + confluent-kafka",
                *foreach,
            )
        )
    once, once_in_streams = (
        held(
            figures,
            section,
            (EXACTLY_ONCE, PLACED),
            "rows_per_s",
            lambda a, b: a >= EXACTLY_ONCE_RATE * b,
            times,
        )
        for section in (BATCH, STREAM)
    )
    added = held(
        figures,
        SMALL,
        (EXACTLY_ONCE, OURS),
        "batch_ms",
        lambda a, b: a - b <= EXACTLY_ONCE_MS,
        lambda a, b: f"{a - b:+.0f} ms",
    )
    level = held(figures, STREAM, (OURS, CONNECTOR), "rows_per_s", lambda a, b: a >= b, times)
    small = held(figures, SMALL, (OURS, CONNECTOR), "batch_ms", lambda a, b: a <= b, times)
    return [
        *found,
        Goal(f"exactly_once: at least {EXACTLY_ONCE_RATE:g} times at_least_once's rows per second", *once),
        Goal(
            f"streams, exactly_once: at least {EXACTLY_ONCE_RATE:g} times at_least_once's rows per second",
            *once_in_streams,
        ),
        Goal(f"exactly_once: a micro-batch takes at most {EXACTLY_ONCE_MS:g} ms more", *added),
        Goal("streams: rows per second at least the JVM connector's", *level),
        Goal("streams: a small micro-batch takes at most as long as the JVM connector's", *small),
    ]


# ---------------------------------------------------------------------------------------------------------- records


def markdown(record: dict[str, Any]) -> str:
    """Return a run's tables and goals, for a page of the documentation."""
    figures = [Figures.from_json(stored) for stored in record["cells"]]
    machine, loads = record["machine"], record["machine"]["load"]
    about = (
        f"Into {record['target']}; {record['connector']}; Spark {machine['spark']} (local[2], Java "
        f"{machine['java']}), Python {machine['python']}, {machine['cpus']} CPUs, load {loads[0]:.1f} before and "
        f"{loads[1]:.1f} after, {record['seconds'] / 60:.0f} minutes"
        + ("; **cut short**" if record["is_cut_short"] else "")
        + ". "
        + ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        + "".join(f"; {name}={value}" for name, value in record["conf"].items())
        + ". 12 partitions, linger 5 ms, batches of 256 KiB where a row does not say otherwise; **median** "
        "[least–most] of interleaved runs; every row was counted by the broker."
    )
    lines = "\n".join(Goal(**stored).line() for stored in record["goals"])
    return f"{about}\n\n{tables(figures)}\n\n### Goals\n\n{lines}"


def as_record(figures: list[Figures]) -> list[dict[str, Any]]:
    """Return the figures for the file."""
    return [asdict(f) for f in figures]


def main() -> None:
    """Print the tables of a file."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "ack.json"
    print(markdown(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
