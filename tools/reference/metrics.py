"""The page with all metrics: those of the exporters, and the snapshots that `Producer.metrics()` returns."""

from __future__ import annotations

from aioproducer.observe.families import FAMILIES, Family
from tools.reference.markdown import code, table

HEAD = ["metric", "type", "other labels", "meaning"]
SNAPSHOTS = ("MetricsSnapshot", "TopicSnapshot", "NodeSnapshot", "TransactionCallSnapshot", "Distribution")
"""The snapshot classes, outermost first."""


def row_for(family: Family) -> list[str]:
    """Return a row of the table in docs/prometheus.md."""
    name = f"aioproducer_{family.name}" + ("_total" if family.kind == "counter" else "")
    return [code(name), family.kind, code(*family.own_labels), family.text]


def page() -> str:
    """Return the reference page."""
    exported = table(HEAD, [row_for(family) for family in FAMILIES])
    snapshots = "\n\n".join(
        f"::: aioproducer.observe.snapshots.{name}\n    options:\n      heading_level: 3\n      members_order: source"
        for name in SNAPSHOTS
    )
    return f"""# Metrics

[Operations](operations.md#what-to-watch) says which metrics to watch, and gives Java's name
for each. No metric is recorded per record.

## Exported metrics

These are the names for [Prometheus](prometheus.md). For [OpenTelemetry](opentelemetry.md#metrics), the names begin with
`aioproducer.` and have no `_total`. All metrics also have the `client_id` label.

{exported}

## The result of metrics()

Times are in seconds, sizes in bytes. Counters start at 0 when the producer is created, and never decrease.

{snapshots}
"""
