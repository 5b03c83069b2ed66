"""A progress bar on stderr if that is a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import Self

from tqdm import tqdm

tqdm.monitor_interval = 0  # no monitor thread: show() is called for every change

_FORMAT = "{desc:<9} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt}{postfix}"
_COUNTED = "{desc:<9} {percentage:3.0f}% |{bar}| {n:.0f}/{total:.0f} {unit}{postfix}"
"""A format that shows the unit but no rate."""
_RATE_WINDOW = 2.0
"""Seconds over which the displayed rates are computed."""
_PLAIN_INTERVAL = 5.0
"""Seconds between lines if stderr is not a terminal."""


class Progress:
    """Displays the progress of a phase: records, records/s and, if the size of a record is given, MB/s.

    Only one thread may call it at a time. Use it in a `with` statement; the last state stays visible.
    """

    def __init__(
        self,
        phase: str,
        total: int,
        *,
        bytes_per_record: float = 0.0,
        unit: str = "records",
        has_rate: bool = True,
    ) -> None:
        self._phase = phase
        self._total = total
        self._unit = unit
        self._has_rate = has_rate
        self._bytes_per_record = bytes_per_record
        self._started = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque([(self._started, 0)])
        self._done = 0
        self._next_line = self._started + _PLAIN_INTERVAL
        self._bar = (
            tqdm(
                total=total,
                desc=phase,
                bar_format=_FORMAT if has_rate else _COUNTED,
                unit=unit,
                unit_scale=True,
                dynamic_ncols=True,
                file=sys.stderr,
            )
            if sys.stderr.isatty()
            else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rates = self._rates(self._done, time.monotonic() - self._started)
        if self._bar is not None:
            self._bar.set_postfix_str(rates, refresh=False)
            self._bar.close()
        else:
            self._print(rates)

    def show(self, done: int, note: str = "", *, total: int | None = None) -> None:
        """Display the number of records done, a note after the rates, and, if given, a corrected total."""
        now = time.monotonic()
        self._done = done
        if total is not None:
            self._total = total
        while len(self._recent) > 1 and now - self._recent[0][0] > _RATE_WINDOW:
            self._recent.popleft()
        since, before = self._recent[0]
        self._recent.append((now, done))
        text = self._rates(done - before, now - since) + (f", {note}" if note else "")
        if self._bar is not None:
            self._bar.n, self._bar.total = done, self._total
            self._bar.set_postfix_str(text)
        elif now >= self._next_line:
            self._next_line = now + _PLAIN_INTERVAL
            self._print(text)

    def _rates(self, records: int, seconds: float) -> str:
        if not self._has_rate:
            return f"{time.monotonic() - self._started:,.1f} s"
        rate = records / seconds if seconds > 0 else 0.0
        text = f"{rate:,.0f} {self._unit}/s"
        if self._bytes_per_record:
            text += f", {rate * self._bytes_per_record / 1e6:.1f} MB/s"
        return text

    def _print(self, text: str) -> None:
        told = f"{self._phase}: {self._done:,} of {self._total:,} {self._unit}, {text}"
        print(told, file=sys.stderr, flush=True)
