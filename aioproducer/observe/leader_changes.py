"""Logs the partitions whose leader has changed, and those that have no leader while records are waiting for them."""

from __future__ import annotations

from collections.abc import Iterable

from aioproducer.errors import counted
from aioproducer.observe.client_log import ClientLog

PERIOD = 10.0
"""Seconds between log lines about leaders that are still missing."""


class LeaderChanges:
    """Collects the leader changes in one metadata snapshot, and logs one line for each kind of change."""

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._former: dict[tuple[str, int], int] = {}
        """The last leader of each partition that has no leader now."""
        self._missing: dict[tuple[str, int], float] = {}
        """Partitions without a leader for which records are waiting, with the loop time of the first log line about
        each."""
        self._logged_at = 0.0
        self._moved: list[str] = []

    def note(self, topic: str, partition: int, before: int, now: int) -> None:
        """Note that the leader of a partition has changed. A negative id means that there is no leader."""
        if now < 0:
            self._former[topic, partition] = before
            return
        self._missing.pop((topic, partition), None)
        former = self._former.pop((topic, partition), -1) if before < 0 else before
        if former >= 0 and former != now:
            self._moved.append(f"{topic}-{partition} from broker {former} to broker {now}")

    def forget(self, topic: str) -> None:
        """Forget a topic to which records are no longer sent."""
        for place in [place for place in self._former if place[0] == topic]:
            del self._former[place]
            self._missing.pop(place, None)

    def log_changes(self) -> None:
        """Log one line about the leaders that have moved since the last call."""
        moved, self._moved = self._moved, []
        if moved:
            self._log.info("the leader moved: %s%s", moved[0], _others(moved))

    def note_waiting(self, places: Iterable[tuple[str, int]], now: float) -> None:
        """Note the partitions without a leader for which records are waiting.

        New ones are logged immediately, and all of them are logged every 10 s. `now` is the loop's time.
        """
        lost = [place for place in places if place in self._former]
        new = [place for place in lost if place not in self._missing]
        self._missing.update(dict.fromkeys(new, now))
        if new:
            self._log.warning("records are waiting: no leader for %s-%d%s", *new[0], _others(new))
        elif lost and now - self._logged_at >= PERIOD:
            waited = now - min(self._missing[place] for place in lost)
            self._log.warning(
                "records have been waiting for %.0f s: no leader for %s-%d%s", waited, *lost[0], _others(lost)
            )
        else:
            return
        self._logged_at = now


def _others(places: list[str] | list[tuple[str, int]]) -> str:
    more = len(places) - 1
    return "" if not more else f" and {counted(more, 'other partition')}"
