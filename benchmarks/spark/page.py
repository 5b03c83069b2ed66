"""Prints the section "Speed" of docs/spark.md from the stored runs.

python -m benchmarks.spark.page [--check]"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.spark.plan import (
    CONNECTOR,
    EXACTLY_ONCE,
    FOREACH_BATCH,
    FOREACH_CONFLUENT,
    LIMITED,
    OURS,
    PLACED,
    SMALL,
    TUNED,
)
from benchmarks.spark.report import (
    RESULTS,
    TITLES,
    Figures,
    batch_and_cpu,
    milliseconds,
    rate_and_cpu,
    table,
    unique,
)

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
MARK = "printed by python -m benchmarks.spark.page"
STORED = {"ack.json": "A broker that only acknowledges", "real.json": "A real broker on the same machine"}
"""The stored runs, with their headings."""
COMPARED = (
    (OURS, CONNECTOR),
    (LIMITED, CONNECTOR),
    (TUNED, CONNECTOR),
    (OURS, FOREACH_CONFLUENT),
    (EXACTLY_ONCE, PLACED),
    (FOREACH_BATCH, PLACED),
    (EXACTLY_ONCE, OURS),
)
"""The pairs of sinks whose ratios are shown."""


def about(record: dict[str, Any]) -> str:
    """Return a sentence with the machine, the versions and the load."""
    machine = record["machine"]
    before, after = machine["load"]
    rows = max((cell["cell"]["rows"] for cell in record["cells"]), default=0)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    settings = "".join(f", `{name}={value}`" for name, value in record["conf"].items())
    return (
        f'`make bench-spark ARGS="{record["arguments"]}"`: Spark {machine["spark"]} on `local[2]`{settings}; Java '
        f"{machine['java']}, Python {machine['python']}, {machine['cpus']} processors, load {before:.1f} before "
        f"the run and {after:.1f} after it; {packages}. Frames have {rows:,} rows."
    )


def ratios(figures: list[Figures], section: str) -> str:
    """Return a table that compares pairs of sinks; an empty string if no pair was measured."""
    found = {(f.cell.row, f.cell.column): f for f in figures if f.cell.section == section and f.counts}
    columns = unique(column for _, column in found)
    lines = []
    for first, second in COMPARED:
        pairs = [(found.get((first, column)), found.get((second, column))) for column in columns]
        cells = ["" if one is None or other is None else _ratio(one, other) for one, other in pairs]
        if any(cells):
            lines.append(f"| {first} / {second} | " + " | ".join(cells) + " |")
    if not lines:
        return ""
    return "\n".join(["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|", *lines])


def _ratio(one: Figures, other: Figures) -> str:
    if one.cell.section == SMALL:
        return f"{milliseconds(one.median('batch_ms') - other.median('batch_ms'))} ms more".replace("-", "−")
    rate = one.median("rows_per_s") / other.median("rows_per_s")
    return f"{rate:.2f}; {one.median('cpu_us') / other.median('cpu_us'):.2f}"


WHAT = {
    True: "Ratios of the medians, for rows per second and CPU per row:",
    False: "The difference between the medians:",
}


def section_of(record: dict[str, Any], section: str) -> list[str]:
    """Return the tables of one section of a run, one for each shape, followed by the ratios."""
    figures = [f for f in map(Figures.from_json, record["cells"]) if f.cell.section == section]
    if not figures:
        return []
    show = batch_and_cpu if section == SMALL else rate_and_cpu
    parts = [f"**{TITLES[section][0]}**"]
    for shape in dict.fromkeys((f.cell.value_size, f.cell.compression) for f in figures):
        mine = [f for f in figures if (f.cell.value_size, f.cell.compression) == shape]
        parts.append(table(mine, show))
    compared = ratios(figures, section)
    return [*parts, WHAT[section != SMALL], compared] if compared else parts


def printed(folder: Path) -> str:
    """Return the text between the two marks of the page."""
    parts = [
        "Each cell shows the **median** [least–most] of interleaved runs. The topics have 12 partitions; all clients "
        "use acks=all, idempotence, a linger of 5 ms and batches of 256 KiB where a row does not say otherwise. CPU is "
        "that of Spark's whole process tree; the broker's is not included. The broker counted every row.",
    ]
    for file, heading in STORED.items():
        record = json.loads((folder / file).read_text())
        parts += [f"### {heading}", about(record)]
        for section in TITLES:
            parts += section_of(record, section)
    return "\n\n".join(parts)


def between(page: str, mark: str, text: str) -> str:
    """Return the page with new text between the comments `mark: begin` and `mark: end`.

    Raises:
        ValueError: the page does not have both comments.
    """
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"the page does not have the comments {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.spark.page", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if the page is out of date"
    )
    told = parser.parse_args(arguments)
    page = PAGE.read_text()
    wanted = between(page, MARK, printed(RESULTS))
    if told.check and page != wanted:
        print(f"{PAGE} does not match the stored runs; run python -m benchmarks.spark.page", file=sys.stderr)
        return 1
    if not told.check:
        PAGE.write_text(wanted)
        PAGE.with_name("spark-speed.svg").write_bytes((RESULTS / "ack.svg").read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
