"""Counts the records that the producer does not accept, and reports them to the hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import TracebackType

from aioproducer.metrics import Metrics
from aioproducer.observe.hooks import Hooks, RejectedEvent


class Rejections:
    """Receives each error that `send` and the other calls raise, and the error for each row `send_many` rejects."""

    def __init__(self, metrics: Metrics, hooks: Hooks) -> None:
        self._metrics = metrics
        self._hooks = hooks

    def note(self, topic: object, error: BaseException, records: int = 1) -> None:
        """Count records that were rejected with an error. A cancellation is not counted."""
        if not isinstance(error, Exception):
            return
        self._metrics.count_rejected(error, records)
        if self._hooks.on_rejected:
            self._hooks.tell(
                self._hooks.on_rejected, RejectedEvent(self._hooks.client_id, topic, records, error)
            )

    def note_rows(self, topic: object, errors: Iterable[BaseException]) -> None:
        """Count the rejected rows in one call. The hooks are called once for each class of error, with the first error
        of that class."""
        first: dict[type, BaseException] = {}
        counts: Counter[type] = Counter()
        for error in errors:
            counts[type(error)] += 1
            first.setdefault(type(error), error)
        for kind, error in first.items():
            self.note(topic, error, counts[kind])

    def of(self, topic: object, records: int = 1) -> Watched:
        """Return a context manager that counts an error raised in its block."""
        return Watched(self, topic, records)


class Watched:
    """A context manager that counts the error if its block, which appends records, raises one."""

    __slots__ = ("_records", "_rejections", "_topic")

    def __init__(self, rejections: Rejections, topic: object, records: int) -> None:
        self._rejections = rejections
        self._topic = topic
        self._records = records

    def __enter__(self) -> None:
        """Enter the block. Nothing is counted here; __exit__ counts the error if the block raises one."""

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._rejections.note(self._topic, error, self._records)
