"""Metrics that the cluster collects from producers (KIP-714), compared with the producers' own counters."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from aioproducer.observe.java_metrics import PREFIX
from aioproducer.testing.embedded.telemetry import ACCEPTED, Push, Telemetry

if TYPE_CHECKING:
    from tests.campaigns.simulation.world import World

COUNTER = f"{PREFIX}record.send.total"


def ask(telemetry: Telemetry, random: Random) -> None:
    """Choose the metrics that the cluster requests."""
    telemetry.subscribe(
        random.choice([[""], [PREFIX + "record."]]),
        interval_ms=random.choice([100, 1000, 10_000]),
        is_delta=random.random() < 0.5,
        accepted=random.choice([ACCEPTED, ()]),
    )


def mistakes(world: World) -> list[str]:
    """Return a sentence for each mistake in the pushed metrics."""
    return [
        f"{client_id} pushed {pushed:g} acknowledged records and has {acked}"
        for client_id, counters in world.counters.items()
        if (acked := sum(metrics.records_acked for metrics in counters))
        < (pushed := _pushed(world, client_id))
        or (pushed < acked and _must_be_complete(world, client_id))
    ]


def _must_be_complete(world: World, client_id: str) -> bool:
    """Return True if there were no faults and the last push, which close() sends, has arrived."""
    pushes = _pushes(world, client_id)
    return not world.plan.is_disturbed and bool(pushes) and pushes[-1].is_last


def _pushed(world: World, client_id: str) -> float:
    """Return the number of acknowledged records that the cluster knows of. A push whose answer was lost may be
    repeated, so sums of deltas say nothing in a disturbed run."""
    if world.cluster.telemetry.is_delta:
        if world.plan.is_disturbed:
            return 0.0
        return sum(value for push in _pushes(world, client_id) for value in _values(push))
    return max((value for push in _pushes(world, client_id) for value in _values(push)), default=0.0)


def _pushes(world: World, client_id: str) -> list[Push]:
    return [push for push in world.cluster.telemetry.pushes if push.client_id == client_id]


def _values(push: Push) -> Iterator[float]:
    data = MetricsData.FromString(push.data)
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                if metric.name == COUNTER:
                    yield sum(point.as_double for point in metric.sum.data_points)
