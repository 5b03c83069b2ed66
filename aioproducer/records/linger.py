"""Finds the open batches that have lingered long enough.

The accumulator adds each batch when opening it, and asks which batches are due. This module does not read a clock; its
callers pass the time."""

from __future__ import annotations

from collections import Counter, deque

from aioproducer.config import ProducerConfig
from aioproducer.records._record_path import PartitionQueue

SECONDS_PER_BATCH = 50e-6
"""The time in seconds that is allowed for each batch whose linger has ended: about three times the cost of opening,
sending and ending a small batch."""
LONGEST_REST = 0.5
"""The maximum number of seconds that a batch may linger beyond `linger_ms` because too many batches are lingering."""

_Linger = tuple[float, tuple[int, int], PartitionQueue]
"""An entry for an open batch: the loop time at which it is due, its order, and its queue."""


class Lingers:
    """The open batches in the order in which they are due. All of them linger for the same time, so this is also the
    order in which they were opened.

    With thousands of partitions, thousands of batches with one or two records each would become due at once. Sending
    them would take longer than the linger itself, and in that time more records could join the next batches. Therefore,
    when many lingers end together, the next ones are postponed; this pause is called a rest. Only topics with more than
    their share of these batches rest, and only while many of their batches are open. All other records wait only for
    their own linger.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._linger = config.linger
        # After the linger, only request_timeout may be left of the delivery timeout; the request needs most of that.
        self._longest_rest = min(LONGEST_REST, config.request_timeout / 4)
        self._many = config.linger / SECONDS_PER_BATCH
        """The number of batches that can be sent within one linger."""
        self._lingering: deque[_Linger] = deque()
        self._rests_until = 0.0
        """The loop time before which no batch in `_lingering` is due, as long as there are many of them."""
        self._resting: set[str] = set()
        """The topics that are resting until `_rests_until`."""
        self._prompt: deque[_Linger] = deque()
        """Batches of topics that are not resting."""

    def __len__(self) -> int:
        return len(self._lingering) + len(self._prompt)

    def add(self, queue: PartitionQueue, order: tuple[int, int], now: float) -> bool:
        """Let the open batch of a queue linger. Return whether the batch may be due before all others."""
        lingering = self._lingering
        # Batches of other topics also rest if there are more of them than can be sent within one linger.
        if now < self._rests_until and queue.topic not in self._resting and len(self._prompt) < self._many:
            lingering = self._prompt
        lingering.append((now + self._linger, order, queue))
        return len(lingering) == 1

    def end(self, now: float) -> list[PartitionQueue]:
        """Return and forget the queues whose open batches have lingered long enough."""
        ended = _ended(self._prompt, now)
        ended += _ended(self._lingering, now if now >= self._rest_ends() else 0.0)
        if len(ended) > self._many:
            self._rests_until = now + min(len(ended) * SECONDS_PER_BATCH, self._longest_rest)
            self._choose_who_rests(ended)
        return ended

    def next_due(self) -> float | None:
        """Return the loop time at which the next linger ends, or None if no batch is lingering."""
        times = [self._prompt[0][0]] if self._prompt else []
        if self._lingering:
            times.append(max(self._lingering[0][0], self._rest_ends()))
        return min(times, default=None)

    def _rest_ends(self) -> float:
        """Return the loop time before which no batch in `_lingering` is due."""
        return self._rests_until if len(self._lingering) > self._many else 0.0

    def _choose_who_rests(self, ended: list[PartitionQueue]) -> None:
        counts = Counter(queue.topic for queue in ended)
        self._resting = {topic for topic, count in counts.items() if count * len(counts) > self._many}
        others = [linger for linger in self._lingering if linger[2].topic not in self._resting]
        if others and len(others) + len(self._prompt) <= self._many:
            self._lingering = deque(linger for linger in self._lingering if linger[2].topic in self._resting)
            self._prompt = deque(sorted([*self._prompt, *others]))


def _ended(lingering: deque[_Linger], until: float) -> list[PartitionQueue]:
    """Remove the entries at the front that are due by `until`, or whose batch is closed; return the queues that are
    due."""
    ended = []
    while lingering:
        due, order, queue = lingering[0]
        tail = queue.tail
        if tail is not None and tail.order == order:
            if due > until:
                break
            ended.append(queue)
        lingering.popleft()
    return ended
