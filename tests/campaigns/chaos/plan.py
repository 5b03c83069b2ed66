"""The plan for a seed: the cluster, the order of the faults, and the faults that strike together.

A seed fixes the actions but not their results: processes, sockets and elections take their own time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.campaigns.chaos.faults import ACKS, COPY, FAULTS, IDEMPOTENT, UPGRADE, V1, Family

_OLD, _NEW = "3.9.2", "4.3.1"
_LEVEL_1 = ("--feature", "transaction.version=1")
_TOGETHER = 0.4
"""The probability that a network fault strikes together with one of another family."""


@dataclass(frozen=True)
class Plan:
    """One schedule."""

    kind: str
    seed: int
    version: str
    """The version of Kafka."""
    format_args: tuple[str, ...]
    rounds: tuple[tuple[str, ...], ...]
    """Names of faults. Those in a round strike together; the next round begins when everything has recovered."""
    among: tuple[str, ...] = ()
    """The faults to which the plan is limited; empty means all faults for its kind."""

    @property
    def is_transactional(self) -> bool:
        return self.kind not in (IDEMPOTENT, ACKS)

    def random(self, purpose: str) -> Random:
        """Return a source of random numbers that is the same each time the plan is played."""
        return Random(f"{self.kind}/{self.seed}/{purpose}")

    @property
    def replay(self) -> str:
        """The command that replays the plan."""
        confined = "".join(f" --fault {name!r}" for name in self.among)
        return (
            f"python -m tests.campaigns.chaos --kind {self.kind!r} --seed {self.seed} --schedules 1{confined}"
        )


def plan(kind: str, seed: int, among: tuple[str, ...] = ()) -> Plan:
    """Plan each fault for this kind once, or each fault in `among`, in an order that depends on the seed."""
    random = Random(f"{kind}/{seed}")
    names = [name for name in FAULTS if name in (among or FAULTS) and FAULTS[name].is_for(kind)]
    random.shuffle(names)
    network = [name for name in names if FAULTS[name].family is Family.NETWORK]
    rounds = []
    for name in names:
        if FAULTS[name].family is not Family.NETWORK:
            is_joined = network and random.random() < _TOGETHER
            rounds.append((name, network.pop()) if is_joined else (name,))
    rounds += [(name,) for name in network]
    random.shuffle(rounds)
    version, format_args = _cluster(kind, seed)
    return Plan(kind, seed, version, format_args, tuple(rounds), among)


def _cluster(kind: str, seed: int) -> tuple[str, tuple[str, ...]]:
    """Return the release and its features. Transactions v1 run on the old release, or on the new release with the old
    level."""
    is_odd = bool(seed % 2)
    if kind in (IDEMPOTENT, ACKS, COPY):
        return (_NEW if is_odd else _OLD), ()
    if kind == V1:
        return (_OLD, ()) if is_odd else (_NEW, _LEVEL_1)
    return _NEW, (_LEVEL_1 if kind == UPGRADE else ())
