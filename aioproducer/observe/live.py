"""The producers of this process that were started and not yet collected, for exporters."""

from __future__ import annotations

import weakref
from typing import Protocol

from aioproducer.observe.snapshots import MetricsSnapshot


class Measured(Protocol):
    """The part of a producer that exporters need."""

    def metrics(self, *, window: float | None = None) -> MetricsSnapshot: ...


_live: dict[int, weakref.ref[Measured]] = {}
"""The producers by their id(). This is not a WeakSet: exporters read it in other threads, while producers start and
end."""


def add(producer: Measured) -> None:
    """Include a producer from now on, until it is garbage-collected."""
    key = id(producer)
    _live[key] = weakref.ref(producer, lambda _: _live.pop(key, None))


def snapshots() -> list[MetricsSnapshot]:
    """Return the metrics of all producers. May be called in any thread."""
    alive = (reference() for reference in list(_live.values()))
    return [producer.metrics() for producer in alive if producer is not None]
