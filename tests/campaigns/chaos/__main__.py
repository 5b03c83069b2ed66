"""Seeded faults against real brokers, one schedule after the other, until a time has passed, or Ctrl-C.

    python -m tests.campaigns.chaos --minutes 30 --seed 1

Prints counts per outcome, how often each fault struck and how long its recovery took, and for each failure the
command that plays it again; and what this process holds when all producers are closed: memory or anything else that
grows is a failure, too. Three days of it are `--minutes 4320`."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.campaigns.chaos.faults import FAULTS, KINDS
from tests.campaigns.chaos.history import Recovery
from tests.campaigns.chaos.plan import Plan, plan
from tests.campaigns.chaos.run import Result, play
from tests.support.resources import Sample, growth, of_this_process, slope, steady

ENOUGH_SAMPLES = 10
"""Schedules from which on growth can be told from the beginning."""


@dataclass
class Tally:
    """What many schedules have come to."""

    schedules: Counter[str] = field(default_factory=Counter)
    """By kind and release of Kafka."""
    told: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    copied: int = 0
    replaced: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """Acknowledged records that are in no log, by producer: leaders take them along, and acks=0 knows nothing."""
    recoveries: list[Recovery] = field(default_factory=list)
    latest: float = 0.0
    worst_lag: float = 0.0
    failures: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """What this process holds after each schedule, when all its producers are closed."""

    @property
    def grown(self) -> list[str]:
        """What is more at the end than after the warm-up: it would be for ever more."""
        return growth(self.samples) if len(self.samples) >= ENOUGH_SAMPLES else []

    def add(self, result: Result) -> None:
        """Take in one schedule."""
        history = result.history
        self.schedules[f"{result.plan.kind} on {result.plan.version}"] += 1
        self.told.update(sent.told.value for sent in history.sent)
        self.ended.update(transaction.ended.value for transaction in history.transactions)
        self.levels.update(history.levels)
        self.fired.update(history.fired)
        self.errors.update(history.errors)
        self.copied += (history.copies or Counter()).total()
        self.replaced += history.replaced
        self.lost.update(history.lost)
        self.recoveries += history.recoveries
        self.latest = max(self.latest, history.latest)
        self.worst_lag = max(self.worst_lag, history.worst_lag)
        if result.broken:
            self.failures.append(str(result))


def report(tally: Tally, took: float) -> str:
    """All counts as text; the table is Markdown."""
    lines = [
        f"{tally.schedules.total()} schedules in {took / 60:.1f} minutes ({_counts(tally.schedules)})",
        f"{tally.told.total()} records: {_counts(tally.told)}",
        f"{tally.ended.total()} transactions: {_counts(tally.ended)}; committed by {_counts(tally.levels)}",
        f"{tally.copied} records copied; who copied was replaced {tally.replaced} times in mid-transaction",
        f"acknowledged and not there, where less than acks=all was asked for: {_counts(tally.lost)}",
        f"errors that the producers met: {_counts(tally.errors)}",
        f"no result came later than {tally.latest:.2f} s after its deadline, "
        f"and no turn of the event loop later than {tally.worst_lag:.2f} s",
        "",
        "| fault | struck | longest silence of a partition | all went on after |",
        "|---|---|---|---|",
        *_rows(tally),
        "",
        *_held(tally.samples),
        "",
        f"failures: {len(tally.failures) + len(tally.grown)}",
        *tally.failures,
        *(f"it grows and grows: {sentence}" for sentence in tally.grown),
    ]
    never = [name for name in FAULTS if not tally.fired[name]]
    if never:
        lines.append(f"never struck: {', '.join(never)}")
    return "\n".join(lines)


def _rows(tally: Tally) -> list[str]:
    """Times are of rounds in which the fault struck alone: median and worst."""
    alone: dict[str, list[Recovery]] = defaultdict(list)
    for recovery in tally.recoveries:
        if len(recovery.names) == 1:
            alone[recovery.names[0]].append(recovery)
    return [
        f"| {name} | {tally.fired[name]} | {_times([recovery.silence for recovery in alone[name]])} "
        f"| {_times([recovery.recovered for recovery in alone[name]])} |"
        for name in FAULTS
    ]


def _held(samples: list[Sample]) -> list[str]:
    """What is held when all producers are closed, after the first schedule and the last."""
    if not samples:
        return []
    rest = steady(samples)
    return [
        "| held after a schedule | first | last | more in an hour, after the warm-up |",
        "|---|---|---|---|",
        *(
            f"| {name} | {samples[0].held[name]:.0f} | {samples[-1].held[name]:.0f} | {slope(rest, name) * 3600:+.2f} |"
            for name in samples[0].held
        ),
    ]


def _times(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s" if seconds else "-"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "none"


async def _play_all(plans: list[Plan], seconds: float, tally: Tally) -> None:
    """In turns, until the time has passed; what was begun is played to its end."""
    began = time.monotonic()
    for number, which in enumerate(plans):
        if time.monotonic() - began > seconds:
            return

        def tell(what: str, number: int = number, which: Plan = which) -> None:
            sys.stderr.write(
                f"{time.monotonic() - began:5.0f} s  {number + 1}: {which.kind}, seed {which.seed}, "
                f"Kafka {which.version}: {what}\n"
            )

        try:
            tally.add(await play(which, tell))
        except Exception as error:
            if _is_interrupted():
                raise asyncio.CancelledError from error
            tally.failures.append(
                f"{which} did not come to its end: {error!r}\nplay it again: {which.replay}"
            )
        tally.samples.append(of_this_process(time.monotonic() - began))
        tell(f"{tally.told.total()} records so far, {len(tally.failures)} failures")


def _is_interrupted() -> bool:
    """Ctrl-C cancels the main task; what it calls may raise something else on its way out."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def main() -> int:
    """The exit status: 0 if every promise was kept."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.chaos", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=30, help="begin no schedule after so long")
    parser.add_argument("--schedules", type=int, default=10_000, help="play no more than so many")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this workload; may be repeated")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()
    seeds = itertools.count(arguments.seed)
    endless = (
        plan(kind, seed, tuple(arguments.fault or ())) for seed in seeds for kind in arguments.kind or KINDS
    )
    tally = Tally()
    began = time.monotonic()
    try:
        plans = list(itertools.islice(endless, arguments.schedules))
        asyncio.run(_play_all(plans, arguments.minutes * 60, tally))
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
    sys.stdout.write(report(tally, time.monotonic() - began) + "\n")
    return 1 if tally.failures or tally.grown else 0


if __name__ == "__main__":
    sys.exit(main())
