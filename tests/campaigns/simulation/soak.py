"""Plays many seeds, until the given number or time is reached, or you press Ctrl-C.

    python -m tests.campaigns.simulation.soak --schedules 100000 --seed 1 --processes 2

Prints counts per outcome and per kind of fault, and for each finding the command that replays it."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.campaigns.simulation.faults import KINDS as FAULTS
from tests.campaigns.simulation.plan import KINDS, plan
from tests.campaigns.simulation.run import replay, run
from tests.campaigns.workers import started_workers

FINDINGS_SHOWN = 20
SHARE = 4
"""The number of seeds that a process plays before it reports."""


@dataclass
class Tally:
    """The results of many runs."""

    schedules: int = 0
    undisturbed: int = 0
    """The number of runs with neither faults nor impatient users."""
    gapless: int = 0
    """The number of runs with enable_gapless_order."""
    endless: int = 0
    """The number of runs with enable_endless_retries."""
    records: int = 0
    told: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    virtual_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the results of another tally."""
        self.schedules += other.schedules
        self.undisturbed += other.undisturbed
        self.gapless += other.gapless
        self.endless += other.endless
        self.records += other.records
        self.told += other.told
        self.ended += other.ended
        self.fired += other.fired
        self.virtual_seconds += other.virtual_seconds
        self.findings += other.findings


def play(kinds: tuple[str, ...], seeds: range) -> Tally:
    """Play all kinds with all seeds in this process."""
    tally = Tally()
    for seed in seeds:
        for kind in kinds:
            which = plan(kind, seed)
            try:
                result = run(which)
            except Exception as error:
                tally.findings.append(
                    f"{kind}, seed {seed}: the simulation itself failed: {error!r}; {replay(which)}"
                )
                continue
            history = result.history
            tally.schedules += 1
            tally.undisturbed += not history.is_disturbed
            tally.gapless += history.is_gapless
            tally.endless += history.is_endless
            tally.records += len(history.sent)
            tally.told.update(sent.told.value for sent in history.sent)
            tally.ended.update(transaction.ended.value for transaction in history.transactions)
            tally.fired.update(history.fired)
            tally.virtual_seconds += history.seconds
            if result.broken:
                tally.findings.append(f"{kind}, seed {seed}: {result.broken[0]}; {replay(which)}")
    return tally


def _shares(first: int, count: int, size: int) -> Iterator[range]:
    for start in range(first, first + count, size):
        yield range(start, min(start + size, first + count))


def report(tally: Tally, took: float) -> str:
    """Return all counts as text."""
    share = 100 * tally.undisturbed / max(tally.schedules, 1)
    lines = [
        f"{tally.schedules} schedules, {tally.records} records, {tally.virtual_seconds / 3600:.1f} virtual hours "
        f"in {took:.1f} s ({tally.schedules / max(took, 1e-9) * 60:.0f} schedules a minute)",
        f"undisturbed: {tally.undisturbed} schedules ({share:.1f}%)",
        f"gapless order: {tally.gapless} schedules, endless retries: {tally.endless}",
        "records: " + ", ".join(f"{count} {name}" for name, count in sorted(tally.told.items())),
        "transactions: "
        + (", ".join(f"{count} {name}" for name, count in sorted(tally.ended.items())) or "none"),
        f"faults: {tally.fired.total()}",
        *(f"  {tally.fired[name]:8d}  {name}" for name in FAULTS),
    ]
    never = [name for name in FAULTS if not tally.fired[name]]
    if never:
        lines.append(f"never fired: {', '.join(never)}")
    lines.append(f"findings: {len(tally.findings)}")
    lines += [f"  {finding}" for finding in tally.findings[:FINDINGS_SHOWN]]
    return "\n".join(lines)


def main() -> int:
    """Run the command; return exit status 0 if every promise was kept."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.simulation.soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--schedules", type=int, default=1000, help="how many runs, in total for all kinds")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this workload; may be repeated")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    arguments = parser.parse_args()
    kinds = tuple(arguments.kind or KINDS)
    seeds = max(arguments.schedules // len(kinds), 1)
    began = time.perf_counter()
    tally = Tally()
    in_time = itertools.takewhile(
        lambda _: time.perf_counter() - began < arguments.seconds, _shares(arguments.seed, seeds, SHARE)
    )
    with started_workers(arguments.processes) as workers:
        for played in workers.results(play, ((kinds, share) for share in in_time)):
            tally.add(played)
            for finding in played.findings:
                sys.stderr.write(f"finding: {finding}\n")
            took = time.perf_counter() - began
            sys.stderr.write(f"{tally.schedules} schedules, {len(tally.findings)} findings, {took:.0f} s\n")
            sys.stderr.flush()
    sys.stdout.write(report(tally, time.perf_counter() - began) + "\n")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
