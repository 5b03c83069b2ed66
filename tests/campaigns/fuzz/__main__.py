"""Feeds mutated frames to decoders for as long as you like; the exit status is 1 if a decoder broke a promise.

    python -m tests.campaigns.fuzz --frames 100000000 --seed 1 --processes 2

Ctrl-C ends the run with the findings so far. Each finding names the command that feeds its frame again."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections.abc import Iterator

from tests.campaigns.fuzz.fuzzer import BLOCK, Fuzzer, Tally, drawn
from tests.campaigns.fuzz.targets import TARGETS
from tests.campaigns.workers import started_workers

SHARE = 50 * BLOCK
"""The number of frames that a process is given at a time: about a second's work."""
ENOUGH = 20
"""The number of findings after which the run stops."""


def feed(seed: int, first: int, count: int) -> Tally:
    """Feed one share in this process."""
    return Fuzzer(seed, most_findings=ENOUGH).feed(first, count)


def _shares(frames: int) -> Iterator[tuple[int, int]]:
    for first in range(0, frames, SHARE):
        yield first, min(SHARE, frames - first)


def feed_all(seed: int, frames: int, processes: int, seconds: float) -> tuple[Tally, float]:
    """Feed the frames in several processes; return the results and how many seconds it took."""
    began = time.perf_counter()
    tally = Tally()
    wanted = itertools.takewhile(
        lambda _: time.perf_counter() - began < seconds and len(tally.findings) < ENOUGH, _shares(frames)
    )
    with started_workers(processes) as workers:
        for fed in workers.results(feed, ((seed, *share) for share in wanted)):
            tally.add(fed)
            _show(tally, frames, time.perf_counter() - began)
    return tally, time.perf_counter() - began


def _show(tally: Tally, frames: int, took: float) -> None:
    if sys.stderr.isatty():
        rate, found = tally.frames / max(took, 1e-9), len(tally.findings)
        sys.stderr.write(f"\r{tally.frames} of {frames} frames, {rate:.0f} frames/s, {found} findings ")


def report(tally: Tally, seed: int, took: float) -> str:
    """Return all counts as text."""
    lines = [
        f"{tally.frames} frames of seed {seed} in {took:.1f} s ({tally.frames / max(took, 1e-9):.0f} frames/s); "
        f"the memory of {tally.sampled} was measured",
        *(
            f"  {target.name:15s}{tally.refused[target.name]:10d} rejected {tally.taken[target.name]:10d} accepted"
            for target in TARGETS
        ),
        f"findings: {len(tally.findings)}",
        *(f"  {finding.text(seed)}" for finding in tally.findings),
    ]
    return "\n".join(lines)


def replay(seed: int, number: int) -> int:
    """Feed one frame again, and print the traceback of its exception."""
    target, about, frame = drawn(seed, number)
    sys.stdout.write(
        f"frame {number} of seed {seed}: {target.name}, {about}, {len(frame)} bytes\n{frame.hex()}\n"
    )
    sys.stdout.flush()
    tally = Fuzzer(seed).feed(number, 1)
    if not any(finding.hangs for finding in tally.findings):
        try:
            sys.stdout.write(f"accepted: {target.take(about, frame)!r}\n")
        except Exception:
            traceback.print_exc(file=sys.stdout)
    sys.stdout.write(report(tally, seed, 0.0) + "\n")
    return 1 if tally.findings else 0


def main() -> int:
    """Run the command; return exit status 0 if every frame was decoded or rejected as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.fuzz", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many frames")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all random choices")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin nothing new after this time"
    )
    parser.add_argument("--replay", type=int, metavar="NUMBER", help="feed only the frame with this number")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        return replay(arguments.seed, arguments.replay)
    tally, took = feed_all(arguments.seed, arguments.frames, arguments.processes, arguments.seconds)
    sys.stdout.write(report(tally, arguments.seed, took) + "\n")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
