"""What happened in one schedule, for the oracle and the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.campaigns.simulation.history import History


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
    owners: dict[int, str] = field(default_factory=dict)
    """By the number of a transaction whose it is; whoever owns one sends positions of a group of that name along."""
    positions: dict[str, int | None] = field(default_factory=dict)
    """Where the groups are at the end."""
    copies: Counter[int] | None = None
    """Committed numbers in the topic that the steady one is copied to; None if nobody copies."""
    copied_to: dict[int, int] = field(default_factory=dict)
    """Where the last copy is in each partition."""
    replaced: int = 0
    """How often who copies was as if killed."""
    acks_of: dict[str, int] = field(default_factory=dict)
    """Producers that ask for less than acks=all."""
    lost: Counter[str] = field(default_factory=Counter)
    """Acknowledged records of producers with less than acks=all that are in no log."""
    made_anew_at: float = 0.0
    """Loop time since which no broker knows the topic's last predecessor any more."""
    errors: Counter[str] = field(default_factory=Counter)
    """What the producers went through, as their metrics count it."""
    latest: float = 0.0
    """Seconds after its deadline that a result came at worst."""
    worst_lag: float = 0.0
    """Seconds that the event loop came too late at worst."""
