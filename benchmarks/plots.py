"""Plots the most important tables of a run, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import Figures, unique
from goals import HEADLINE, ONE_TASK
from plan import (
    AIO,
    AIOKAFKA,
    BATCHES,
    CALLBACK,
    CLIENTS,
    CLOSED_LOOP,
    CODECS,
    KAFKA_PYTHON,
    LAG,
    MEMORY,
    OURS,
    PARTITIONS,
    THROUGHPUT,
    THROUGHPUT_REAL,
)
from programs import FRANZ_GO, JAVA, LIBRDKAFKA

COLORS = {
    OURS: "#d1495b",
    FRANZ_GO: "#00798c",
    LIBRDKAFKA: "#9b5de5",
    JAVA: "#edae49",
    CALLBACK: "#30638e",
    BATCHES: "#7a9cc6",
    AIO: "#8d96a3",
    AIOKAFKA: "#66a182",
    KAFKA_PYTHON: "#b8b8aa",
}
LOGARITHMIC = 20  # the ratio of maximum to minimum above which an axis is logarithmic

# The same run produces the same file.
mpl.rcParams.update({"svg.hashsalt": "aioproducer", "font.size": 9, "axes.spines.top": False})
mpl.rcParams["axes.spines.right"] = False


def by_client(figures: list[Figures], section: str, column: str) -> dict[str, Figures]:
    """Return the rows of one column that are plain clients, in the usual order."""
    found = {f.cell.row: f for f in figures if (f.cell.section, f.cell.column) == (section, column)}
    return {client: found[client] for client in CLIENTS if client in found and found[client].counts}


def bars(axes: Axes, figures: dict[str, Figures], name: str, title: str) -> None:
    """Draw a bar or a point with its spread for each client, the first one on top."""
    clients = list(reversed(figures))
    medians = [figures[client].median(name) for client in clients]
    low = [m - min(figures[c].all(name)) for c, m in zip(clients, medians, strict=True)]
    high = [max(figures[c].all(name)) - m for c, m in zip(clients, medians, strict=True)]
    colors = [COLORS[client] for client in clients]
    if (
        medians and max(medians) > LOGARITHMIC * min(medians) > 0
    ):  # points: a bar has no length on such an axis
        axes.set_xscale("log")
        axes.scatter(medians, clients, color=colors, zorder=2)
        axes.errorbar(medians, clients, xerr=[low, high], fmt="none", ecolor="#555555", zorder=1)
        axes.grid(axis="x", color="#dddddd")
    else:
        axes.barh(clients, medians, xerr=[low, high], color=colors, ecolor="#555555")
    for position, (median, above) in enumerate(zip(medians, high, strict=True)):
        axes.annotate(
            f"{median:.3g}", (median + above, position), (6, 0), textcoords="offset points", va="center"
        )
    axes.margins(x=0.15)
    axes.set_title(title)


def side_by_side(
    figures: list[Figures], name: str, unit: str, panels: list[tuple[str, str, str]]
) -> Figure | None:
    """Draw a panel of bars for each (section, column, title) that was measured."""
    shown = [(by_client(figures, section, column), title) for section, column, title in panels]
    shown = [(found, title) for found, title in shown if found]
    if not shown:
        return None
    figure = Figure(figsize=(5 * len(shown), 0.6 + 0.35 * max(len(found) for found, _ in shown)))
    all_axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (found, title) in zip(all_axes, shown, strict=True):
        bars(axes, found, name, title)
        axes.set_xlabel(unit)
    return figure


def pipelined(figures: list[Figures]) -> Figure | None:
    panels = [
        (THROUGHPUT, HEADLINE, "100 B, acknowledging broker"),
        (THROUGHPUT_REAL, HEADLINE, "100 B, Apache Kafka"),
    ]
    return side_by_side(figures, "cpu_us", "CPU µs per record", panels)


def closed_loop(figures: list[Figures]) -> Figure | None:
    panels = [
        (CLOSED_LOOP, ONE_TASK, "1 task, linger 0"),
        (CLOSED_LOOP, "1,000 tasks, linger 0 ms", "1,000 tasks, linger 0"),
    ]
    return side_by_side(figures, "p99_ms", "p99 of an awaited send, ms", panels)


def memory(figures: list[Figures]) -> Figure | None:
    panels = [(MEMORY, HEADLINE, "memory of a waiting 100 B record")]
    return side_by_side(figures, "bytes_per_record", "bytes", panels)


def partitions(figures: list[Figures]) -> Figure | None:
    columns = unique(f.cell.column for f in figures if f.cell.section == PARTITIONS)
    found = {column: by_client(figures, PARTITIONS, column) for column in columns}
    if not any(found.values()):
        return None
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for client in CLIENTS:
        points = [
            (int(column.replace(",", "")), found[column][client].median("cpu_us"))
            for column in columns
            if client in found[column]
        ]
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", color=COLORS[client], label=client)
    axes.set_xlabel("partitions")
    axes.set_ylabel("CPU µs per record")
    axes.set_title("100 B, each record to the next partition")
    axes.legend(frameon=False)
    return figure


def grouped(figures: list[Figures], section: str, name: str, title: str, label: str) -> Figure | None:
    """Draw the clients side by side for each column of a section."""
    columns = unique(f.cell.column for f in figures if f.cell.section == section)
    found = {column: by_client(figures, section, column) for column in columns}
    clients = [client for client in CLIENTS if any(client in by for by in found.values())]
    if not clients:
        return None
    figure = Figure(figsize=(8, 3.5))
    axes = figure.subplots()
    width = 0.8 / len(clients)
    for index, client in enumerate(clients):
        places = [
            (at + (index - (len(clients) - 1) / 2) * width, found[column][client].median(name))
            for at, column in enumerate(columns)
            if client in found[column]
        ]
        axes.bar(*zip(*places, strict=True), width=width, color=COLORS[client], label=client)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel(label)
    axes.set_title(title)
    axes.legend(frameon=False)
    return figure


def codecs(figures: list[Figures]) -> Figure | None:
    return grouped(figures, CODECS, "cpu_us", "1 KB, Apache Kafka", "CPU µs per record")


def lag(figures: list[Figures]) -> Figure | None:
    title = "lag of the event loop at full load, 1 MB batches"
    return grouped(figures, LAG, "lag_p99_ms", title, "p99, ms")


PLOTS: dict[str, Callable[[list[Figures]], Figure | None]] = {
    "pipelined": pipelined,
    "closed-loop": closed_loop,
    "partitions": partitions,
    "codecs": codecs,
    "lag": lag,
    "memory": memory,
}


def draw(figures: list[Figures], directory: Path) -> list[str]:
    """Write every plot that has figures. Returns the names of the SVG files."""
    names = []
    directory.mkdir(parents=True, exist_ok=True)
    for name, plot in PLOTS.items():
        figure = plot(figures)
        if figure is None:
            continue
        figure.savefig(directory / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
        figure.savefig(directory / f"{name}.png", bbox_inches="tight", dpi=150)
        names.append(f"{name}.svg")
    return names
