"""Measures how soon records flow again after a fault on real brokers, with aiokafka and confluent-kafka as peers.

    python -m tests.campaigns.availability recovery --runs 20     # a broker that accepts connections and stays silent
    python -m tests.campaigns.availability gaps --runs 5          # a leader is killed, frozen, reassigned

All clients run at once, each in its own process, and meet the same faults. `recovery` uses each client's defaults: the
proxy in front of the only broker is silent for 31 to 62 seconds, longer than a request time-out. The recovery time is
measured from the end of the silence to the first acknowledgement. `gaps` uses acks=all and idempotence for all clients.
A gap is the longest time without an acknowledgement in any of six partitions while the fault strikes. The exit status
is 1 if the worst figure of aioproducer is above that of aiokafka (gaps) or of the better peer (recovery)."""

from __future__ import annotations

import argparse
import asyncio
import sys
from random import Random

from tests.campaigns.availability.clients import CLIENTS
from tests.campaigns.availability.rounds import FROZEN, Figures, gaps, recovery


def report(title: str, figures: Figures) -> str:
    """Return a Markdown table with the median, the worst time and the number of failed records for each kind of fault
    and each client."""
    lines = [
        f"{title}\n",
        "| fault | client | runs | median | worst | failed records |",
        "|---|---|---|---|---|---|",
    ]
    for kind, clients in figures.seconds.items():
        for client, seconds in clients.items():
            ordered = sorted(seconds)
            median, worst = ordered[len(ordered) // 2], ordered[-1]
            failed = figures.failed[kind][client]
            lines.append(
                f"| {kind} | {client} | {len(ordered)} | {median:.2f} s | {worst:.2f} s | {failed} |"
            )
    return "\n".join(lines)


def missed(figures: Figures, *, peers: tuple[str, ...]) -> list[str]:
    """Return the kinds of faults where aioproducer's worst figure is above that of the best of these peers."""
    found = []
    for kind, clients in figures.seconds.items():
        best = min((max(clients[peer]) for peer in peers if peer in clients), default=float("inf"))
        ours = max(clients["aioproducer"])
        if ours > best:
            found.append(f"{kind}: {ours:.2f} s, best peer {best:.2f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.availability")
    parser.add_argument("what", choices=("recovery", "gaps"))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--outage", type=float, nargs=2, default=(31.0, 62.0), metavar=("LEAST", "MOST"))
    parser.add_argument("--frozen", type=float, default=FROZEN, metavar="SECONDS")
    parser.add_argument(
        "--request-timeout-ms", type=int, help="for all clients; by default, each client's own"
    )
    options = parser.parse_args()
    timeout = options.request_timeout_ms
    extras = [f"request_timeout_ms={timeout}"] if timeout else []
    names = options.clients.split(",")
    random = Random(options.seed)
    if options.what == "recovery":
        figures = asyncio.run(recovery(names, options.runs, random, *options.outage, extras))
        print(report(f"Recovery from a half-open broker, defaults, seed {options.seed}", figures))
        misses = missed(figures, peers=("aiokafka", "confluent-kafka"))
    else:
        figures = asyncio.run(gaps(names, options.runs, random, options.frozen, extras))
        print(report(f"Longest gap between acknowledgements, acks=all, seed {options.seed}", figures))
        misses = missed(figures, peers=("aiokafka",))
    for miss in misses:
        print(f"missed: {miss}")
    sys.exit(1 if misses else 0)


if __name__ == "__main__":
    main()
