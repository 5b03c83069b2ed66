"""Formats the figures of a run as markdown: tables, ratios, goals, and the whole RESULTS.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import Figures, number, rate, unique
from goals import MILLION, NOT_MEASURED, UNITS, goals
from plan import (
    BARE_LOOP,
    BY_DEFAULT,
    CLOSED_LOOP,
    CLOSED_LOOP_REAL,
    CODECS,
    COLUMNS,
    COLUMNS_REAL,
    DISTANCE,
    LAG,
    MEMORY,
    OURS,
    PARTITIONS,
    SERVICES,
    THROUGHPUT,
    THROUGHPUT_REAL,
    TLS,
    WINDOW,
    WINDOW_REAL,
    WIRE,
)

REMARKS = Path(__file__).with_name("REMARKS.md")
"""The reasons why goals were missed, written by hand. RESULTS.md includes this file unchanged."""


def cpu_and_rate(f: Figures) -> str:
    return f"{f.spread('cpu_us')} µs; {rate(f.median('records_per_s'))}"


def throughput_cell(f: Figures) -> str:
    return f"{cpu_and_rate(f)}; {number(f.median('records_per_batch'))} a batch"


def codec_cell(f: Figures) -> str:
    return f"{cpu_and_rate(f)}; {number(f.median('stored_bytes'))} B"


def window_cell(f: Figures) -> str:
    busy = [cpu * rate_ / MILLION for cpu, rate_ in zip(f.all("cpu_us"), f.all("records_per_s"), strict=True)]
    return f"{cpu_and_rate(f)}; {statistics.median(busy):.2f} processors busy"


def services_cell(f: Figures) -> str:
    return f"{f.spread('client_us')} + {number(f.median('own_us'))} µs"


def wire_cell(f: Figures) -> str:
    rates = [value * f.cell.job.value_size / MILLION for value in f.all("records_per_s")]
    middle = f.median("records_per_s") * f.cell.job.value_size / MILLION
    return f"**{middle:,.0f}** [{min(rates):,.0f}–{max(rates):,.0f}] MB/s; {number(f.median('cpu_us'))} µs per KB"


def closed_loop_cell(f: Figures) -> str:
    return (
        f"p50 {f.spread('p50_ms')} p99 {f.spread('p99_ms')} ms; {rate(f.median('records_per_s'))}; "
        f"{number(f.median('cpu_us'))} µs"
    )


def memory_cell(f: Figures) -> str:
    return f"{f.spread('bytes_per_record')} B"


def lag_cell(f: Figures) -> str:
    lag = ", ".join(f"{name} {f.spread(f'lag_{name}_ms')}" for name in ("p99", "max"))
    idle = f"{number(f.median('idle_p99_ms'))} and {number(f.median('idle_max_ms'))}"
    held = f"{number(f.median('held_p99_ms'))} and {number(f.median('held_max_ms'))}"
    return f"{lag} ms (an idle loop: {idle}); CPU between ticks {held} ms; {rate(f.median('records_per_s'))}"


NULL_BROKER, REAL_BROKER = "acknowledging broker", "Apache Kafka, read back"

TABLES: dict[str, tuple[str, Callable[[Figures], str]]] = {
    THROUGHPUT: (
        f"Pipelined, {NULL_BROKER}: client CPU per record; records per second; records per batch",
        throughput_cell,
    ),
    WINDOW: (
        f"At most 50,000 unacknowledged records, 12 partitions, {NULL_BROKER}: client CPU per record; records per "
        "second; processors that the client keeps busy",
        window_cell,
    ),
    SERVICES: (
        f"Pipelined with the work that services add, 100 B, 12 partitions, {NULL_BROKER} (transactions: "
        f"{REAL_BROKER}): CPU per record of the client + of the user's own function",
        services_cell,
    ),
    CLOSED_LOOP: (
        f"Closed loop, 100 B, 12 partitions, {NULL_BROKER}: latency of an awaited send; records per second; client "
        "CPU per record",
        closed_loop_cell,
    ),
    COLUMNS: (
        f"send_many, 12 partitions, batches of 256 KiB, {NULL_BROKER}: client CPU per record; records per second. "
        "Rows that are only encoded end up in sealed batches with checksums, and are not sent",
        cpu_and_rate,
    ),
    WIRE: (
        "send_many of 1 KB values in Arrow through one connection, compared with a bare asyncio stream that writes "
        "the same number of bytes, 256 KiB (a batch) at a time",
        wire_cell,
    ),
    TLS: (
        "TLS, 1 KB values, 12 partitions, batches of 64 KiB: client CPU per record; records per second. Another "
        "process terminates TLS. The bare asyncio stream writes the same number of bytes",
        cpu_and_rate,
    ),
    PARTITIONS: (
        f"Round robin over 1 to 10,000 partitions, 100 B, batches of 16 KiB, {NULL_BROKER}: client CPU per record; "
        "records per second; records per batch",
        throughput_cell,
    ),
    DISTANCE: (
        f"One partition on a broker that answers after 20 ms, 100 B, {NULL_BROKER}: client CPU per record; records "
        "per second",
        cpu_and_rate,
    ),
    MEMORY: (
        "Growth of resident memory per waiting record of 100 B (Java: growth of the heap after a garbage collection)",
        memory_cell,
    ),
    LAG: ("Lag of the event loop at full load, 1 KB values, 1 MB batches, 4 partitions", lag_cell),
    THROUGHPUT_REAL: (
        f"Pipelined, {REAL_BROKER}: client CPU per record; records per second",
        cpu_and_rate,
    ),
    WINDOW_REAL: (
        f"At most 50,000 unacknowledged records, 12 partitions, {REAL_BROKER}: client CPU per record; records per "
        "second; processors that the client keeps busy",
        window_cell,
    ),
    CLOSED_LOOP_REAL: (
        f"Closed loop, 100 B, 12 partitions, {REAL_BROKER}: latency of an awaited send; records per second; client "
        "CPU per record",
        closed_loop_cell,
    ),
    COLUMNS_REAL: (
        f"send_many, 12 partitions, batches of 256 KiB, {REAL_BROKER}: client CPU per record; records per second",
        cpu_and_rate,
    ),
    CODECS: (
        f"Codecs, 1 KB, 12 partitions, {REAL_BROKER}: client CPU per record; records per second; size of a record "
        "in the log",
        codec_cell,
    ),
}
ROWS_ARE_COLUMNS = {LAG, PARTITIONS, CODECS, SERVICES}
"""Sections that have more cases than clients. Their tables have the clients as columns."""


def table(section: str, figures: list[Figures]) -> str:
    """Return one section as a markdown table, with the clients as rows and the cases as columns, or vice versa."""
    title, show = TABLES[section]
    chosen = [f for f in figures if f.cell.section == section]
    if not chosen:
        return f"## {title}\n\nNot measured."
    turned = section in ROWS_ARE_COLUMNS
    shown = {}
    for f in chosen:
        at = (f.cell.column, f.cell.row) if turned else (f.cell.row, f.cell.column)
        shown[at] = f"**FAILED**: {f.failures[0]}" if f.failures else show(f) if f.results else ""
    rows, columns = unique(row for row, _ in shown), unique(column for _, column in shown)
    out = [f"## {title}", "", "| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    out += [f"| {row} | " + " | ".join(shown.get((row, c), "") for c in columns) + " |" for row in rows]
    return "\n".join(out)


# The figures by which the clients are compared in each section. The ratios are those of the first figure.
CPU_AND_RATE, LATENCY = ("cpu_us", "records_per_s"), ("p50_ms", "p99_ms", "records_per_s", "cpu_us")
COMPARED: dict[str, tuple[str, ...]] = {
    THROUGHPUT: CPU_AND_RATE,
    THROUGHPUT_REAL: CPU_AND_RATE,
    WINDOW: CPU_AND_RATE,
    WINDOW_REAL: CPU_AND_RATE,
    CODECS: CPU_AND_RATE,
    SERVICES: ("client_us",),
    PARTITIONS: CPU_AND_RATE,
    DISTANCE: ("records_per_s", "cpu_us"),
    CLOSED_LOOP: LATENCY,
    CLOSED_LOOP_REAL: LATENCY,
    MEMORY: ("bytes_per_record",),
    LAG: ("lag_p99_ms", "lag_max_ms"),
}


def behind(figures: list[Figures]) -> str:
    """Return a table of the figures in which a peer with the same settings is ahead of aioproducer."""
    lines = []
    for ours in figures:
        if ours.cell.row != OURS or not ours.counts:
            continue
        for name in COMPARED.get(ours.cell.section, ()):
            what, show = UNITS[name]
            mine, ahead = ours.median(name), []
            for f in peers_of(ours, figures):
                theirs = f.median(name)
                if theirs > mine if name == "records_per_s" else theirs < mine:
                    ahead.append(f"{f.cell.row} {show(theirs)} ({mine / theirs:.2f}x)")
            if ahead:
                place = f"{ours.cell.section}, {ours.cell.column}"
                lines.append(f"| {place}: {what} | {show(mine)} | {', '.join(ahead)} |")
    if not lines:
        return ""
    return "\n".join(
        [
            "| | aioproducer | peers that are ahead (aioproducer's figure divided by theirs) |",
            "|---|---|---|",
            *lines,
        ]
    )


def peers_of(ours: Figures, figures: list[Figures]) -> list[Figures]:
    """Return the peers' rows with the same settings as this row of ours."""
    by_default = ours.cell.row.removeprefix(OURS)
    return [
        f
        for f in figures
        if (f.cell.section, f.cell.column) == (ours.cell.section, ours.cell.column)
        and f.cell.row == f.cell.job.client + by_default
        and f.cell.job.client not in (OURS, BARE_LOOP)
        and f.counts
    ]


def ratios(figures: list[Figures]) -> list[str]:
    """Return the ratios of the others' figures to ours, with equal batches, and with each client's defaults."""
    lines = []
    for ours in figures:
        names = COMPARED.get(ours.cell.section)
        if names and ours.cell.row in (OURS, OURS + BY_DEFAULT) and ours.counts:
            others = [
                f"{f.cell.job.client} {f.median(names[0]) / ours.median(names[0]):.2f}"
                for f in peers_of(ours, figures)
            ]
            if others:
                by_default = ours.cell.row.removeprefix(OURS)
                lines.append(f"- {ours.cell.section}, {ours.cell.column}{by_default}: {', '.join(others)}")
    return lines


def heading(run: dict[str, Any]) -> list[str]:
    machine = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loop = "asyncio's own loop" if machine["versions"].get("uvloop") == "not installed" else "uvloop"
    lines = [
        "Unless a table says otherwise, all clients use acks=all, idempotence, linger 5 ms, batches of 64 KiB and 12",
        f"partitions. The asyncio clients run on {loop}, and their futures are awaited one by one. A cell shows the",
        "**median** [minimum–maximum] of interleaved runs; every record was counted at the broker. The run took",
        f"{run['seconds'] / 60:.0f} min on {machine['cpus']} CPUs. The load average was {machine['load']:.1f} before",
        f"it and {run['load']:.1f} after it. Versions: {versions}.",
    ]
    if run["missing"]:
        lines.append("Not measured: " + "; ".join(f"{c} ({why})" for c, why in run["missing"].items()) + ".")
    if run["interrupted"]:
        lines.append("**Interrupted**: the results below are those measured before the interruption.")
    return lines


def goals_section(figures: list[Figures]) -> str:
    found = goals(figures)
    lines = ["## Goals", ""]
    for goal in found:
        if goal.verdict == NOT_MEASURED and all(c.verdict == NOT_MEASURED for c in goal.checks):
            lines.append(f"- {goal.name} {goal.sentence}: **{NOT_MEASURED}**")
        else:
            lines += goal.lines()
    return "\n".join(lines)


def document(run: dict[str, Any], plots: list[str], remarks: str | None = None) -> str:
    """Return RESULTS.md for a run stored by bench.py; `remarks` follow the goals."""
    figures = [Figures.from_json(stored) for stored in run["cells"]]
    parts = ["# aioproducer compared with its peers", "\n".join(heading(run)), goals_section(figures)]
    if slower := behind(figures):
        parts.append("## Where a peer is ahead\n\n" + slower)
    if remarks:
        parts.append(remarks.strip())
    measured = {f.cell.section for f in figures}
    parts += [table(section, figures) for section in TABLES if section in measured]
    if compared := ratios(figures):
        parts.append("## Ratios of the other clients' figures to aioproducer's\n\n" + "\n".join(compared))
    if plots:
        parts.append("## Plots\n\n" + "\n".join(f"![{name}]({name})" for name in plots))
    return "\n\n".join(parts) + "\n"
