"""The report: an aligned table on stdout, printed even after Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from flights.proof import Proof
from flights.sending import Measurement, Sent, State


class Line(NamedTuple):
    """A row of the table."""

    name: str
    value: str
    remark: str = ""


def lines(sent: Sent, measured: Measurement, runtime: str) -> list[Line]:
    """Return the lines about the records sent and the time needed."""
    metrics = measured.metrics
    delivered = [
        flight for flight, state in zip(sent.flights, sent.states, strict=True) if state == State.DELIVERED
    ]
    count = len(delivered)
    size = sum(flight.size for flight in delivered)
    cancelled = sum(flight.is_cancelled for flight in delivered)
    ack, seconds = metrics.time_to_ack, max(measured.seconds, 1e-9)
    is_whole = count == len(sent.flights) and metrics.batches > 0
    per_batch = f"; {count / metrics.batches:,.0f} records" if is_whole else ""
    opened = "from a record's batch being opened to its acknowledgement"
    cpu = f"{measured.cpu_seconds / count * 1e6:.2f} µs" if count else "-"
    span = "of this process, from the first send to the last awaited delivery"
    table = [
        Line("records", f"{count:,}", f"{cancelled:,} of them cancelled flights"),
        Line("bytes", f"{size:,}", f"{size / max(count, 1):.0f} per record: key, value, headers"),
        Line(
            "batches",
            f"{metrics.batches:,}",
            f"{metrics.batch_bytes:,} bytes, compression {measured.compression}",
        ),
        Line("mean batch size", f"{metrics.batch_size.mean:,.0f}", f"bytes{per_batch}"),
        Line("requests", f"{metrics.produce_requests:,}", f"to produce; {metrics.requests:,} of all kinds"),
        Line("retries", f"{metrics.retries:,}", _counted(metrics.errors)),
        Line(
            "time", f"{seconds:.2f} s", f"{count / seconds:,.0f} records/s, {size / seconds / 1e6:.1f} MB/s"
        ),
        Line("time to ack, p50", _milliseconds(ack.p50, ack.count), opened),
        Line("time to ack, p99", _milliseconds(ack.p99, ack.count)),
        Line("time to ack, max", _milliseconds(ack.max, ack.count)),
        Line("CPU per record", cpu, span),
        Line("", "", f"(CSV and JSON were processed beforehand; {runtime})"),
    ]
    not_delivered = {
        "not sent": (State.NOT_SENT, ""),
        "failed": (State.FAILED, "provably not in the log"),
        "unknown": (State.UNKNOWN, "may be in the log"),
    }
    for name, (state, remark) in not_delivered.items():
        if sent.count(state):
            table.append(Line(name, f"{sent.count(state):,}", remark))
    for name, times in sent.errors.most_common():
        table.append(Line("error", f"{times:,} times", f"{name}, the first: {sent.examples[name]}"))
    return table


def proof_lines(proof: Proof | None, *, is_complete: bool) -> list[Line]:
    """Return the lines about the read-back proof. `proof` is None if the proof was skipped."""
    if proof is None:
        return [Line("read back", "no", "interrupted before reading back")]
    count = f"{proof.records:,}"
    if proof.kinds:
        return [Line("read back", count, f"WRONG: {_counted(proof.kinds)}")]
    if not is_complete:
        return [
            Line("read back", count, "nothing wrong before the interruption; proves nothing about the rest")
        ]
    return [
        Line("read back", count, "proved: each delivered flight once; value, headers, timestamp as sent;"),
        Line("", "", f"{proof.keys:,} keys, each in order and in its partition; offsets as acknowledged"),
    ]


def show(title: str, table: list[Line]) -> None:
    """Print a title and an aligned table."""
    left = max(len(line.name) for line in table)
    middle = max(len(line.value) for line in table)
    text = [title]
    text += [f"  {line.name:<{left}}  {line.value:>{middle}}  {line.remark}".rstrip() for line in table]
    print("\n".join(text), file=sys.stdout, flush=True)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))


def _milliseconds(seconds: float, count: int) -> str:
    return f"{seconds * 1000:,.1f} ms" if count else "-"
