"""Log lines about batches that are sent again: one line for the first retry of each kind, then counts, and a last line
when batches are accepted again."""

from __future__ import annotations

from collections.abc import Iterator

from aioproducer.errors import counted
from aioproducer.observe.client_log import ClientLog

PERIOD = 10.0
"""Seconds between log lines about the same topic and error."""
MOST_AT_ONCE = 20
"""The maximum number of first lines in one period; an outage may affect thousands of topics."""


class _Kind:
    """The retries that one error causes for one topic's batches."""

    __slots__ = ("affected", "began", "is_announced", "logged_at", "retries", "since_line")

    def __init__(self, now: float) -> None:
        self.began = self.logged_at = now
        self.retries = self.since_line = 0
        self.affected: set[int] = set()
        """Partitions that have not accepted a batch since their last retry."""
        self.is_announced = False


class Retries:
    """The retries of one producer. While there are no retries, only `is_disturbed` is read, once for each batch."""

    def __init__(self, log: ClientLog) -> None:
        self._log = log
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self.is_disturbed = False
        """True if any partition has not accepted a batch since its last retry."""
        self._period_began = float("-inf")
        self._lines = 0

    def note(self, topic: str, partition: int, name: str, detail: object, pause: float, now: float) -> None:
        """Note that a batch will be sent again.

        Args:
            topic: the topic.
            partition: the partition.
            name: the name of the error.
            detail: the error.
            pause: seconds until the batch is sent again.
            now: the loop's time.
        """
        self.is_disturbed = True
        kind = self._kinds.get((topic, name))
        if kind is not None and not kind.affected and now - kind.logged_at >= PERIOD:
            kind = None  # the earlier retries had ended; a new series begins
        if kind is None:
            kind = self._kinds[topic, name] = _Kind(now)
            kind.is_announced = self._take_announcement(now)
            if kind.is_announced:
                self._log.warning(
                    "%s-%d: %s; the batch will be sent again in %.3g s", topic, partition, str(detail), pause
                )
        kind.affected.add(partition)
        kind.retries += 1
        kind.since_line += 1
        if now - kind.logged_at >= PERIOD:
            self._log.warning(
                "%s: %s for %.3g s: batches were sent again %s since the last line; %s affected",
                topic,
                name,
                now - kind.began,
                _times(kind.since_line),
                counted(len(kind.affected), "partition is", "partitions are"),
            )
            kind.logged_at, kind.since_line, kind.is_announced = now, 0, True

    def _take_announcement(self, now: float) -> bool:
        """Return whether the first line of a kind may be written now, and count it."""
        if now - self._period_began >= PERIOD:
            self._period_began, self._lines = now, 0
        self._lines += 1
        if self._lines == MOST_AT_ONCE + 1:
            self._log.warning(
                "batches for more topics are being sent again; they will be logged in %g s if this continues",
                PERIOD,
            )
        return self._lines <= MOST_AT_ONCE

    def note_accepted(self, topic: str, partition: int, now: float) -> None:
        """Note that a partition accepted a batch. Called only while `is_disturbed` is True."""
        for key, kind in list(self._kinds_of(topic)):
            kind.affected.discard(partition)
            if not kind.affected and kind.is_announced:
                self._log.info(
                    "%s: batches are accepted again; %s lasted %.3g s, with %s",
                    topic,
                    key[1],
                    now - kind.began,
                    counted(kind.retries, "retry", "retries"),
                )
                kind.is_announced = False
            if not kind.affected and now - kind.logged_at >= PERIOD:
                del self._kinds[key]
        self.is_disturbed = any(kind.affected for kind in self._kinds.values())

    def _kinds_of(self, topic: str) -> Iterator[tuple[tuple[str, str], _Kind]]:
        return ((key, kind) for key, kind in self._kinds.items() if key[0] == topic)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
