"""The interface of record tracers. The OpenTelemetry tracer is in otel.py.

Each call that sends records asks the tracer for a span, in the caller's context. Apart from the headers, a call without
a span is handled as if there were no tracer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from aioproducer.types import Headers

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig


class SendSpan(Protocol):
    """The span of one call, which lasts until the last of its records has a result."""

    headers: Headers | None
    """The user's headers, and the headers that carry the span's context."""

    def watch(self, delivery: Any, ends_with_batch: bool = False) -> None:
        """End the span with the result of this record. `delivery` is a Delivery.

        With `ends_with_batch`, the record has no timeout of its own, so it ends when its batch ends.
        """
        ...

    def watch_rows(self, receipt: Any) -> None:
        """End the span when the last of these rows has its result. `receipt` is a Receipt."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the span with an error: nothing was sent."""
        ...


class SendTracer(Protocol):
    """Decides which calls have a span. It runs in the caller's thread, must be quick, and must not raise."""

    def begin(
        self, topic: object, value: Any, key: Any, headers: Any, count: int
    ) -> SendSpan | list[tuple[str, bytes | None]] | None:
        """Return the span of a call that sends one record.

        If the call is not recorded, return the headers to send, which carry this decision to the consumers, or None
        to send the call's own headers.

        The arguments are the call's own and have not been checked. `count` is 1.
        """
        ...

    def begin_many(self, topic: object, count: int) -> SendSpan | None:
        """Return the span of a call that sends `count` records (0 or more), or None if the call is not recorded."""
        ...


_make: Callable[[ProducerConfig], SendTracer] | None = None


def set_tracer(make: Callable[[ProducerConfig], SendTracer] | None) -> None:
    """Set the function that makes the tracer of each producer started from now on, or None for no tracer."""
    global _make
    _make = make


def tracer_of(config: ProducerConfig) -> SendTracer | None:
    """Return the tracer for a producer that is starting."""
    return None if _make is None else _make(config)
