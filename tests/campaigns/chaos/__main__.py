"""Plays schedules of seeded faults on real brokers, one after the other, until the time is up or you press Ctrl-C.

    python -m tests.campaigns.chaos --minutes 30 --seed 1

Prints counts per outcome, how often each fault occurred, how long its recovery took, and for each failure the command
that replays it. It also prints the resources that this process holds once all producers are closed: steady growth of
memory or of any other resource is also a failure. For a three-day run, pass `--minutes 4320`."""

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
from tests.support.resources import Sample, growth, of_this_process, slope, steady, use_malloc_only

ENOUGH_SAMPLES = 10
"""Growth is judged once there have been this many schedules."""


@dataclass
class Tally:
    """The results of many schedules."""

    schedules: Counter[str] = field(default_factory=Counter)
    """By kind and Kafka release."""
    told: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    copied: int = 0
    replaced: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """Acknowledged records that are in no log, by producer: with acks=1 they can be lost with their leader, and with
    acks=0 no broker acknowledges them."""
    ended_twice: list[str] = field(default_factory=list)
    """Transactions that the brokers themselves committed in part."""
    recoveries: list[Recovery] = field(default_factory=list)
    latest: float = 0.0
    worst_lag: float = 0.0
    failures: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """The resources of this process after each schedule, when all its producers are closed."""

    @property
    def grown(self) -> list[str]:
        """Resources that grow steadily after the warm-up."""
        return growth(self.samples) if len(self.samples) >= ENOUGH_SAMPLES else []

    def add(self, result: Result) -> None:
        """Add the results of one schedule."""
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
        self.ended_twice += history.ended_twice.values()
        self.recoveries += history.recoveries
        self.latest = max(self.latest, history.latest)
        self.worst_lag = max(self.worst_lag, history.worst_lag)
        if result.broken:
            self.failures.append(str(result))


def report(tally: Tally, took: float) -> str:
    """Return all counts as text with a Markdown table."""
    lines = [
        f"{tally.schedules.total()} schedules in {took / 60:.1f} minutes ({_counts(tally.schedules)})",
        f"{tally.told.total()} records: {_counts(tally.told)}",
        f"{tally.ended.total()} transactions: {_counts(tally.ended)}; committed by {_counts(tally.levels)}",
        f"{tally.copied} records copied; the copier was replaced {tally.replaced} times during a transaction",
        f"lost after an acknowledgement with less than acks=all: {_counts(tally.lost)}",
        f"committed in part by the brokers, as their files prove: {len(tally.ended_twice)}",
        *tally.ended_twice,
        f"errors that the producers met: {_counts(tally.errors)}",
        f"results came at most {tally.latest:.2f} s after their deadline, "
        f"and turns of the event loop were at most {tally.worst_lag:.2f} s late",
        "",
        "| fault | occurred | longest silence of a partition | recovered after |",
        "|---|---|---|---|",
        *_rows(tally),
        "",
        *_held(tally.samples),
        "",
        f"failures: {len(tally.failures) + len(tally.grown)}",
        *tally.failures,
        *(f"steady growth: {sentence}" for sentence in tally.grown),
    ]
    never = [name for name in FAULTS if not tally.fired[name]]
    if never:
        lines.append(f"never occurred: {', '.join(never)}")
    return "\n".join(lines)


def _rows(tally: Tally) -> list[str]:
    """Return the table rows. Times are the median and the worst of the rounds in which only this fault occurred."""
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
    """Return a table of the resources held after the first and the last schedule, when all producers are closed."""
    if not samples:
        return []
    rest = steady(samples)
    return [
        "| held after a schedule | first | last | growth per hour, after the warm-up |",
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
    """Play the plans in turn until the time is up. A schedule that has begun is played to its end."""
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
                f"{which} was not played to its end: {error!r}\nplay it again: {which.replay}"
            )
        tally.samples.append(of_this_process(time.monotonic() - began))
        held = tally.samples[-1].held["MiB of memory"]
        tell(f"{tally.told.total()} records so far, {len(tally.failures)} failures, {held:.1f} MiB")


def _is_interrupted() -> bool:
    """Return True after Ctrl-C, which cancels the main task. Calls in that task may raise another exception when they
    are cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def main() -> int:
    """Run the command; return exit status 0 if every promise was kept."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.chaos", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=30, help="begin no more schedules after this time")
    parser.add_argument("--schedules", type=int, default=10_000, help="play at most this many schedules")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this workload; may be repeated")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this fault; may be repeated")
    arguments = parser.parse_args()
    use_malloc_only()
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
