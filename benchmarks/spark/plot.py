"""A plot of the batch writes of a run: rows per second and CPU per row, generated and cached."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.spark.plan import BATCH, CACHED, CONNECTOR, GENERATED, OURS, SILENT
from benchmarks.spark.report import Figures

# The same run produces the same file.
mpl.rcParams.update({"svg.hashsalt": "aioproducer", "font.size": 9, "axes.spines.top": False})
mpl.rcParams["axes.spines.right"] = False

PANELS = (("rows_per_s", "million rows per second", 1e-6), ("cpu_us", "CPU µs per row", 1.0))


def color(row: str) -> str:
    if row.startswith(OURS):
        return "#d1495b"
    return "#edae49" if row.startswith(CONNECTOR) else "#8d96a3"


def bars(axes: Axes, figures: list[Figures], name: str, scale: float) -> None:
    """Draw a bar for each sink with its spread, the first one on top."""
    figures = figures[::-1]
    medians = [f.median(name) * scale for f in figures]
    low = [m - min(f.all(name)) * scale for f, m in zip(figures, medians, strict=True)]
    high = [max(f.all(name)) * scale - m for f, m in zip(figures, medians, strict=True)]
    rows = [f.cell.row for f in figures]
    axes.barh(rows, medians, xerr=[low, high], color=[color(row) for row in rows], ecolor="#555555")
    for position, (median, above) in enumerate(zip(medians, high, strict=True)):
        axes.annotate(
            f"{median:.3g}", (median + above, position), (4, 0), textcoords="offset points", va="center"
        )
    axes.margins(x=0.15)


def picture(figures: list[Figures]) -> Figure | None:
    """Return the figure; None if no batch writes of the first shape were measured."""
    shown = [f for f in figures if f.cell.section == BATCH and f.counts and f.cell.sink not in SILENT]
    if not shown:
        return None
    shape = shown[0].cell.value_size, shown[0].cell.compression
    shown = [f for f in shown if (f.cell.value_size, f.cell.compression) == shape]
    by_frame = {frame: [f for f in shown if f.cell.frame == frame] for frame in (GENERATED, CACHED)}
    by_frame = {frame: found for frame, found in by_frame.items() if found}
    most = max(len(found) for found in by_frame.values())
    figure = Figure(figsize=(13, (0.9 + 0.32 * most) * len(by_frame)), layout="constrained")
    all_axes = figure.subplots(len(by_frame), len(PANELS), squeeze=False)
    for (frame, found), row in zip(by_frame.items(), all_axes, strict=True):
        for (name, unit, scale), axes in zip(PANELS, row, strict=True):
            bars(axes, found, name, scale)
            axes.set_title(f"{frame} frame, {shape[0]} B")
            axes.set_xlabel(unit)
    return figure


def draw(figures: list[Figures], file: Path) -> list[Path]:
    """Write the plot as SVG and PNG, and return the paths."""
    figure = picture(figures)
    if figure is None:
        return []
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(file.with_suffix(".png"), dpi=150)
    return [file.with_suffix(".svg"), file.with_suffix(".png")]
