"""Benchmark figures: acknowledged records per second, latencies and CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from aioproducer import CloseReport, Delivery

MB = 1024 * 1024
"""The number of bytes in one MB, as in kafka-producer-perf-test."""


@dataclass(frozen=True, slots=True)
class Total:
    """The figures for a whole run. Latencies are in milliseconds, or None if no record was delivered."""

    delivered: int
    failed: int
    unknown: int
    seconds: float
    records_per_second: float
    mb_per_second: float
    cpu_us_per_record: float | None
    average: float | None
    maximum: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    p99_9: float | None

    def facts(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return asdict(self)

    def text(self) -> str:
        """Return a line in the format of kafka-producer-perf-test's last line, and a line with the CPU time."""
        text = (
            f"{self.delivered} records delivered, {self.records_per_second:.1f} records/sec "
            f"({self.mb_per_second:.2f} MB/sec)"
        )
        if self.average is not None:
            text += (
                f", {self.average:.2f} ms avg latency, {self.maximum:.2f} ms max latency, {self.p50:.2f} ms 50th, "
                f"{self.p95:.2f} ms 95th, {self.p99:.2f} ms 99th, {self.p99_9:.2f} ms 99.9th."
            )
        if self.failed or self.unknown:
            text += f"\n{self.failed} records failed; the outcome of {self.unknown} is unknown."
        if self.cpu_us_per_record is not None:
            text += f"\n{self.cpu_us_per_record:.2f} us CPU per record."
        return text


class Figures:
    """Collects the figures of one run, which begins when the object is created."""

    def __init__(self, acknowledged: Callable[[], int]) -> None:
        """Start measuring.

        Args:
            acknowledged: returns the number of records acknowledged so far.
        """
        self._acknowledged = acknowledged
        self._began = self._window_began = time.perf_counter()
        self._cpu_before = time.process_time()
        self._acknowledged_before = 0
        self._latencies: list[float] = []
        self._window_from = 0
        """The index of the first latency in the current window."""
        self._sent = 0
        self._sent_bytes = 0

    def sent(self, size: int) -> None:
        """Count a record whose value has `size` bytes."""
        self._sent += 1
        self._sent_bytes += size

    def done_since(self, sent_at: float, clock: Callable[[], float]) -> Callable[[Delivery], None]:
        """Return a callback that adds the latency of a record if it was delivered."""

        def done(delivery: Delivery) -> None:
            if not delivery.cancelled() and delivery.exception() is None:
                self._latencies.append(clock() - sent_at)

        return done

    def window(self) -> str:
        """Return the figures since the last call, in the format of kafka-producer-perf-test's interim lines."""
        now, acknowledged = time.perf_counter(), self._acknowledged()
        seconds, count = now - self._window_began, acknowledged - self._acknowledged_before
        latencies = self._latencies[self._window_from :]
        self._window_began, self._acknowledged_before = now, acknowledged
        self._window_from = len(self._latencies)
        text = f"{count} records delivered, {count / seconds:.1f} records/sec ({self._mb(count) / seconds:.2f} MB/sec)"
        if latencies:
            average = sum(latencies) / len(latencies)
            text += f", {average * 1000:.1f} ms avg latency, {max(latencies) * 1000:.1f} ms max latency."
        return text

    def total(self, report: CloseReport) -> Total:
        """Return the figures for the whole run."""
        seconds = time.perf_counter() - self._began
        cpu = time.process_time() - self._cpu_before
        ordered = sorted(1000 * latency for latency in self._latencies)

        def quantile(share: float) -> float | None:
            return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None

        return Total(
            report.delivered,
            report.failed,
            report.unknown,
            seconds,
            report.delivered / seconds,
            self._mb(report.delivered) / seconds,
            1e6 * cpu / report.delivered if report.delivered else None,
            sum(ordered) / len(ordered) if ordered else None,
            ordered[-1] if ordered else None,
            quantile(0.5),
            quantile(0.95),
            quantile(0.99),
            quantile(0.999),
        )

    def _mb(self, records: int) -> float:
        """Return the total size, in MB, of this number of average-sized values."""
        return records * self._sent_bytes / self._sent / MB if self._sent else 0.0
