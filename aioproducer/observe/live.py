"""The producers in this process, for exporters, and the counters of producers that no longer exist.

An exported counter must not decrease, because Prometheus takes a decrease for a restart. Nor may the
counts of a short-lived producer be lost before the next scrape. Therefore, the counters of a garbage-collected producer
are added to the totals for its client id."""

from __future__ import annotations

import functools
import operator
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import NamedTuple, Protocol

from aioproducer.observe.snapshots import MOST_TOPICS, OTHER_TOPICS, MetricsSnapshot

MOST_CLIENTS = 1_000
"""The maximum number of client ids whose past counters are kept. The ids whose producers ended longest ago are dropped
first."""


class Measured(Protocol):
    """The part of a producer that exporters need."""

    def metrics(self, *, window: float | None = None) -> MetricsSnapshot: ...


class _Entry(NamedTuple):
    producer: weakref.ref[Measured]
    past: Callable[[], MetricsSnapshot]
    """A function that returns the producer's counters, even after the producer has been garbage-collected."""


class Producers:
    """All producers in a process.

    The garbage collector may call _collected() in any thread, even in one that holds the lock. _collected() therefore
    never waits for the lock: the thread that holds it does the work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        self._entries: dict[int, _Entry] = {}
        self._collected_ones: deque[int] = deque()
        """The keys in `_entries` that belong to producers that no longer exist."""
        self._past: dict[str, MetricsSnapshot] = {}
        """The total counts for producers that no longer have an entry, by client id."""

    def add(self, producer: Measured, past: Callable[[], MetricsSnapshot]) -> None:
        """Include a producer from now on. `past` returns its counters, but must not keep it alive."""
        number = next(self._numbers)
        self._entries[number] = _Entry(weakref.ref(producer, lambda _: self._collected(number)), past)

    def snapshots(self) -> list[MetricsSnapshot]:
        """Return the metrics of all producers, including past ones. May be called from any thread."""
        with self._lock:
            self._move_collected()
            found = []
            for entry in list(self._entries.values()):
                producer = entry.producer()
                found.append(entry.past() if producer is None else producer.metrics())
            found += self._past.values()
        self._move_collected_if_free()
        return found

    def _collected(self, number: int) -> None:
        self._collected_ones.append(number)
        self._move_collected_if_free()

    def _move_collected_if_free(self) -> None:
        while self._collected_ones and self._lock.acquire(blocking=False):
            try:
                self._move_collected()
            finally:
                self._lock.release()

    def _move_collected(self) -> None:
        """Add the counters of producers that no longer exist to the totals for their client ids. The lock must be
        held."""
        while self._collected_ones:
            ended = self._entries.pop(self._collected_ones.popleft()).past()
            before = self._past.pop(ended.client_id, None)
            if len(self._past) >= MOST_CLIENTS:
                del self._past[next(iter(self._past))]
            self._past[ended.client_id] = ended if before is None else _with_few_topics(before + ended)


def _with_few_topics(snapshot: MetricsSnapshot) -> MetricsSnapshot:
    """Merge the topics beyond MOST_TOPICS into one, as a single producer does."""
    named = [topic for topic in snapshot.topics if topic.name != OTHER_TOPICS]
    if len(named) <= MOST_TOPICS:
        return snapshot
    others = [*(topic for topic in snapshot.topics if topic.name == OTHER_TOPICS), *named[MOST_TOPICS:]]
    other = replace(functools.reduce(operator.add, others), name=OTHER_TOPICS)
    return replace(snapshot, topics=(*named[:MOST_TOPICS], other))


_producers = Producers()


def add(producer: Measured, past: Callable[[], MetricsSnapshot]) -> None:
    """Include a producer from now on. `past` returns its counters, but must not keep it alive."""
    _producers.add(producer, past)


def snapshots() -> list[MetricsSnapshot]:
    """Return the metrics of all producers, including past ones. May be called from any thread."""
    return _producers.snapshots()


def _forked() -> None:
    """Forget the parent's producers, which the parent process exports itself."""
    global _producers
    _producers = Producers()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
