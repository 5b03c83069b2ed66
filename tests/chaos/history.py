"""What happened in one schedule, for the oracle and the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.history import History


@dataclass(frozen=True)
class Recovery:
    """One round of faults, in seconds."""

    names: tuple[str, ...]
    silence: float
    """The longest time in which some partition acknowledged nothing."""
    recovered: float
    """After the last broker was back, until each partition had acknowledged a record sent since, and each
    transactional producer had committed a transaction begun since."""


@dataclass(eq=False)
class ChaosHistory(History):
    """One schedule."""

    recoveries: list[Recovery] = field(default_factory=list)
    levels: Counter[str] = field(default_factory=Counter)
    """Committed transactions by protocol, "v1" or "v2"."""
    made_anew_at: float = 0.0
    """Loop time since which no broker knows the topic's last predecessor any more."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the producers went through, as their metrics count it."""
    latest: float = 0.0
    """Seconds after its deadline that a result came at worst."""
    worst_lag: float = 0.0
    """Seconds that the event loop came too late at worst."""
