"""The events of one schedule, for the oracle and the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.campaigns.simulation.history import History


@dataclass(frozen=True)
class Recovery:
    """The times of one round of faults, in seconds."""

    names: tuple[str, ...]
    silence: float
    """The longest time during which a partition of the steady topic acknowledged nothing."""
    recovered: float
    """The time from the return of the last broker until each partition had acknowledged a record sent since then, and
    each transactional producer had committed a transaction begun since then."""


@dataclass(eq=False)
class ChaosHistory(History):
    """The history of one schedule."""

    recoveries: list[Recovery] = field(default_factory=list)
    levels: Counter[str] = field(default_factory=Counter)
    """Committed transactions by protocol, "v1" or "v2"."""
    owners: dict[int, str] = field(default_factory=dict)
    """The producer of each transaction, by the transaction's number. The group whose positions the producer sends has
    the same name."""
    positions: dict[str, int | None] = field(default_factory=dict)
    """The groups' positions at the end."""
    copies: Counter[int] | None = None
    """Committed record numbers in the topic of copies; None if the schedule has no copier."""
    copied_to: dict[int, int] = field(default_factory=dict)
    """The offset of the last copy in each partition."""
    replaced: int = 0
    """How often the copier was replaced."""
    acks_of: dict[str, int] = field(default_factory=dict)
    """The acks setting of each producer with less than acks=all."""
    ended_twice: dict[int, str] = field(default_factory=dict)
    """How the brokers themselves committed a transaction in part, by its number."""
    lost: Counter[str] = field(default_factory=Counter)
    """Acknowledged records of producers with less than acks=all that are in no log."""
    made_anew_at: float = 0.0
    """The loop time at which the topic was last re-created; by then, no broker knew its predecessor any longer."""
    errors: Counter[str] = field(default_factory=Counter)
    """The producers' errors, from their metrics."""
    latest: float = 0.0
    """The longest time in seconds by which a result missed its deadline."""
    worst_lag: float = 0.0
    """The longest delay of an event loop turn, in seconds."""
