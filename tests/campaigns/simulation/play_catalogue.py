"""Plays every scenario of the fault catalogue with many seeds, until all are played or you press Ctrl-C.

    python -m tests.campaigns.simulation.play_catalogue --seeds 30 --first 1 --only T7 --processes 2

Prints its progress, and at the end how many scenarios were played and each finding with the command that repeats it.
The exit status is 1 if there are findings."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.campaigns.simulation import (
    scenarios_cluster,
    scenarios_connections,
    scenarios_numbers,
    scenarios_transactions,
)
from tests.campaigns.simulation.soak import FINDINGS_SHOWN
from tests.campaigns.simulation.stage import SCENARIOS, Scenario, play
from tests.campaigns.workers import started_workers

MODULES = (scenarios_cluster, scenarios_connections, scenarios_numbers, scenarios_transactions)
"""Importing them registers their scenarios."""


@dataclass
class Plays:
    """The result of a number of plays."""

    count: int = 0
    virtual_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Plays) -> None:
        """Count the plays of another process."""
        self.count += other.count
        self.virtual_seconds += other.virtual_seconds
        self.findings += other.findings


def chosen(only: Sequence[str]) -> list[int]:
    """Return the indexes of the scenarios with one of these ids; of all scenarios if there are no ids.

    Raises:
        ValueError: the simulation plays no scenario with this id.
    """
    known = {number for scenario in SCENARIOS for number in scenario.ids}
    for number in only:
        if number not in known:
            raise ValueError(f"{number} is not an id of a simulated scenario; the ids are C1 to Z13")
    return [
        index
        for index, scenario in enumerate(SCENARIOS)
        if not only or any(number in only for number in scenario.ids)
    ]


def play_seed(indexes: Sequence[int], seed: int) -> Plays:
    """Play these scenarios with one seed, in this process."""
    plays = Plays()
    for index in indexes:
        scenario = SCENARIOS[index]
        try:
            result = play(scenario, seed)
        except Exception as error:
            plays.findings.append(f"{_name(scenario, seed)}: the simulation itself failed: {error!r}")
            continue
        plays.count += 1
        plays.virtual_seconds += result.history.seconds
        if result.broken:
            plays.findings.append(f"{_name(scenario, seed)}: {result.broken[0]}")
    return plays


def _name(scenario: Scenario, seed: int) -> str:
    return (
        f"{'/'.join(scenario.ids)} {scenario.kind} {scenario.name} (play it again: python -m "
        f"tests.campaigns.simulation.play_catalogue --seeds 1 --first {seed} --only {scenario.ids[0]})"
    )


def report(plays: Plays, scenarios: int, seeds: int, took: float) -> str:
    """Return the counts and the findings as text."""
    lines = [
        f"{plays.count} of {scenarios * seeds} plays: {scenarios} scenarios with {seeds} seeds, "
        f"{plays.virtual_seconds / 3600:.1f} virtual hours in {took:.1f} s",
        f"findings: {len(plays.findings)}",
        *(f"  {finding}" for finding in plays.findings[:FINDINGS_SHOWN]),
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the command; return exit status 0 if every scenario ended as it should."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.simulation.play_catalogue", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=30, help="how many seeds for each scenario")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--only", action="append", default=[], help="an id of the catalogue; may be repeated")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    try:
        indexes = chosen(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    began = time.perf_counter()
    plays = Plays()
    with started_workers(arguments.processes) as workers:
        for seed_plays in workers.results(play_seed, ((indexes, seed) for seed in seeds)):
            plays.add(seed_plays)
            took = time.perf_counter() - began
            sys.stderr.write(f"{plays.count} plays, {len(plays.findings)} findings, {took:.0f} s\n")
            sys.stderr.flush()
    sys.stdout.write(report(plays, len(indexes), len(seeds), time.perf_counter() - began) + "\n")
    return 1 if plays.findings else 0


if __name__ == "__main__":
    sys.exit(main())
