"""The pipeline's report, printed even after Ctrl-C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from flights.report import Line
from flights_pipeline.commits import Commit
from flights_pipeline.jobs import Job
from flights_pipeline.proof import Proof
from flights_pipeline.source import Source


def lines(source: Source, jobs: Mapping[str, Job], commits: Sequence[Commit]) -> list[Line]:
    """Return the lines about the rows read and written."""
    table = [Line("flights", f"{source.rows:,}", f"rows of flights.csv, in {source.files} files")]
    for name, job in jobs.items():
        is_stream = name == "stream"
        mine = [commit for commit in commits if commit.is_batch_job is not is_stream]
        rows = sum(commit.rows for commit in mine)
        kind, promise = ("micro-batch", "exactly once") if is_stream else ("write", "at least once")
        many = "" if len(mine) == 1 else "es" if is_stream else "s"
        end = "" if job.is_done else "; interrupted"
        table += [
            Line(f"{name}, rows", f"{rows:,}", f"in {len(mine)} {kind}{many}, {promise}{end}"),
            Line(
                f"{name}, bytes", f"{sum(commit.megabytes for commit in mine):,.1f} MB", "of record batches"
            ),
            Line(f"{name}, retries", f"{sum(commit.retries for commit in mine):,}"),
            Line(f"{name}, p99", _milliseconds(mine), "to an acknowledgement, in the slowest task"),
        ]
        if len(job.batches) > 1:
            first, *others = [batch.seconds for batch in job.batches]
            table.append(
                Line(
                    f"{name}, a batch",
                    f"{sum(others) / len(others):.1f} s",
                    f"on average; the first {first:.1f} s",
                )
            )
    return table


def _milliseconds(commits: Sequence[Commit]) -> str:
    return f"{max(commit.p99_ms for commit in commits):,.1f} ms" if commits else "-"


def seconds_lines(seconds: Mapping[str, float]) -> list[Line]:
    """Return the lines about the time of each stage."""
    return [Line(f"time, {name}", f"{took:.1f} s") for name, took in seconds.items()]


def proof_lines(proofs: Mapping[str, Proof], *, is_complete: bool) -> list[Line]:
    """Return the lines about the read-back proof."""
    kinds: Counter[str] = Counter()
    for proof in proofs.values():
        kinds.update(proof.kinds)
    count = f"{sum(proof.records for proof in proofs.values()):,}"
    if kinds:
        told = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
        return [Line("read back", count, f"WRONG: {told}")]
    if not is_complete:
        return [Line("read back", count, "interrupted; proves nothing about the rest")]
    table = [Line("read back", count, "proved: each row once, as plain Python computes it from the files;")]
    table.append(Line("", "", "also its key, partition and timestamp"))
    if repeats := sum(proof.repeats for proof in proofs.values()):
        table.append(Line("repeated", f"{repeats:,}", "with at_least_once, which allows repeated rows"))
    return table
