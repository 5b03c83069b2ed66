"""Exports metrics for all producers in the process to Prometheus. The metrics are read only during a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from aioproducer.observe import live
from aioproducer.observe.families import FAMILIES, Family
from aioproducer.observe.snapshots import Distribution

__all__ = ["ProducerCollector"]


class ProducerCollector(Collector):
    """Collects metrics from all producers in the process, including those that are started later.

        from prometheus_client import start_http_server
        from aioproducer.prometheus import ProducerCollector

        ProducerCollector()
        start_http_server(9100)

    Nothing is measured between scrapes. Values from producers with the same client id are added up; give each
    producer its own `client_id` to tell them apart. The counts of a producer stay in these sums after it is
    garbage-collected. A forked process starts without producers.

    With gunicorn, each worker process needs its own port, or a push gateway: prometheus_client's multiprocess mode
    does not support collectors.
    """

    def __init__(self, registry: CollectorRegistry | None = REGISTRY, *, topics: bool = True) -> None:
        """Create the collector, and register it.

        Args:
            registry: the registry for the collector; None to leave it unregistered.
            topics: whether to export separate counters for each topic (up to 1,000 per producer), labelled with its
                name; otherwise the counters of all topics are added up under topic="".

        Raises:
            ValueError: the registry already has such a collector.
        """
        self._topics = topics
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return all metrics without values, so that registering the collector does not read any values."""
        return [_empty(family) for family in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Return the current values of all metrics. May be called from any thread."""
        snapshots = live.snapshots()
        for family in FAMILIES:
            metric: Any = _empty(family)
            for labels, value in family.values(snapshots, topics=self._topics).items():
                if isinstance(value, Distribution):
                    metric.add_metric(labels, buckets=_cumulated(value, family.bounds), sum_value=value.sum)
                else:
                    metric.add_metric(labels, value)
            yield metric


def _empty(family: Family) -> Metric:
    """Return the metric without values."""
    make: Callable[..., Metric] = _TYPES[family.kind]
    return make(f"aioproducer_{family.name}", family.text, labels=family.labels)


_TYPES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def _cumulated(values: Distribution, bounds: tuple[float, ...]) -> list[tuple[str, float]]:
    """Return, for each bound, the number of values that do not exceed it."""
    found = []
    counts = iter(values.buckets)
    end, count = next(counts, (float("inf"), 0))
    total = 0
    for bound in bounds:
        while end <= bound:
            total += count
            end, count = next(counts, (float("inf"), 0))
        found.append((repr(bound), float(total)))
    return [*found, ("+Inf", float(values.count))]
