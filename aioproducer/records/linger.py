"""Which open batches have lingered long enough.

The accumulator adds each batch as it is opened and asks which are due; nothing here reads a clock."""

from __future__ import annotations

from collections import Counter, deque

from aioproducer.config import ProducerConfig
from aioproducer.records._record_path import PartitionQueue

PACE = 50e-6
"""Seconds for each batch whose linger is over: some three times what it costs to open, send and end a small one."""
LONGEST_REST = 0.5
"""Seconds; how much longer than `linger_ms` a batch may linger because too many do."""

_Linger = tuple[float, tuple[int, int], PartitionQueue]
"""When an open batch is due, its order, and its queue."""


class Lingers:
    """The open batches in the order in which they are due, which one linger for all makes that of their opening.

    Thousands of partitions would fill as many batches with a record or two in each linger, and to send them would take
    the time in which other records could have joined. So after many batches whose linger ended together comes a rest,
    in which none of the next ones ends. It concerns the topics that had more than their share of the many, as long as
    many of their batches are open: a record that is not one of many waits for its linger and no longer.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._linger = config.linger
        # What is left of the delivery timeout behind the linger is for the request.
        self._longest_rest = min(LONGEST_REST, config.request_timeout / 4)
        self._many = config.linger / PACE
        """So many batches can be sent in the time of a linger."""
        self._lingering: deque[_Linger] = deque()
        self._rests_until = 0.0
        """As long as there are many in `_lingering`, none of them ends before."""
        self._resting: set[str] = set()
        """The topics that rest until then."""
        self._prompt: deque[_Linger] = deque()
        """Batches of other topics, which don't rest."""

    def __len__(self) -> int:
        return len(self._lingering) + len(self._prompt)

    def add(self, queue: PartitionQueue, order: tuple[int, int], now: float) -> bool:
        """Let the open batch of a queue linger; returns whether it may be due before all others."""
        lingering = self._lingering
        # More than can be sent beside the others are not spared: they rest, too.
        if now < self._rests_until and queue.topic not in self._resting and len(self._prompt) < self._many:
            lingering = self._prompt
        lingering.append((now + self._linger, order, queue))
        return len(lingering) == 1

    def end(self, now: float) -> list[PartitionQueue]:
        """The queues whose open batches have lingered long enough; they are forgotten here."""
        ended = _ended(self._prompt, now)
        ended += _ended(self._lingering, now if now >= self._rest_ends() else 0.0)
        if len(ended) > self._many:
            self._rests_until = now + min(len(ended) * PACE, self._longest_rest)
            self._choose_who_rests(ended)
        return ended

    def next_due(self) -> float | None:
        """When the next linger ends."""
        times = [self._prompt[0][0]] if self._prompt else []
        if self._lingering:
            times.append(max(self._lingering[0][0], self._rest_ends()))
        return min(times, default=None)

    def _rest_ends(self) -> float:
        """Before this time no batch of `_lingering` is due."""
        return self._rests_until if len(self._lingering) > self._many else 0.0

    def _choose_who_rests(self, ended: list[PartitionQueue]) -> None:
        counts = Counter(queue.topic for queue in ended)
        self._resting = {topic for topic, count in counts.items() if count * len(counts) > self._many}
        others = [linger for linger in self._lingering if linger[2].topic not in self._resting]
        if others and len(others) + len(self._prompt) <= self._many:
            self._lingering = deque(linger for linger in self._lingering if linger[2].topic in self._resting)
            self._prompt = deque(sorted([*self._prompt, *others]))


def _ended(lingering: deque[_Linger], until: float) -> list[PartitionQueue]:
    """Take those that are due by then out of the front, and with them those whose batch was closed before."""
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
