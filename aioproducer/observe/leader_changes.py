"""Log lines about partitions that lost their leader or have a new one."""

from __future__ import annotations

from aioproducer.observe.client_log import ClientLog


class LeaderChanges:
    """Gathers the changes of one metadata snapshot, for one line of each kind."""

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._former: dict[tuple[str, int], int] = {}
        """The last leader of each partition that now has none."""
        self._lost: list[str] = []
        self._moved: list[str] = []

    def note(self, topic: str, partition: int, before: int, now: int) -> None:
        """Note that a partition has another leader. Negative ids mean no leader."""
        place = f"{topic}-{partition}"
        if now < 0:
            self._former[topic, partition] = before
            self._lost.append(place)
            return
        former = self._former.pop((topic, partition), -1) if before < 0 else before
        if former >= 0 and former != now:
            self._moved.append(f"{place} from broker {former} to broker {now}")

    def forget(self, topic: str) -> None:
        """Forget a topic that is no longer written to."""
        for place in [place for place in self._former if place[0] == topic]:
            del self._former[place]

    def log_changes(self) -> None:
        """Write the lines about the changes since the last call."""
        lost, self._lost = self._lost, []
        moved, self._moved = self._moved, []
        if moved:
            self._log.info("the leader moved: %s%s", moved[0], _others(moved))
        if lost:
            self._log.warning("no leader, so that records wait: %s%s", lost[0], _others(lost))


def _others(places: list[str]) -> str:
    more = len(places) - 1
    return "" if not more else f" and {more} other partition{'s' if more > 1 else ''}"
