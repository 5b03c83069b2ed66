"""The results of `ping()` and `health()`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from aioproducer.types import Node


@dataclass(frozen=True, slots=True)
class Ping:
    """The result of `ping()`: the broker that answered, and the response time."""

    node: Node
    """The broker that answered."""
    seconds: float
    """Seconds from the request to the response, including the time to connect."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a producer, for readiness checks: whether it can be expected to deliver records now."""

    ok: bool
    reason: str
    """The reasons why `ok` is False; empty if it is True."""
    state: str
    """The state of the producer: new, running, closing or closed."""
    brokers_connected: int
    brokers_known: int
    oldest_unacked_seconds: float
    metadata_age: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the values as a dict, for JSON."""
        return asdict(self)
