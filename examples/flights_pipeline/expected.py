"""The expected records of the topics, computed from the CSV files in plain Python, without Spark or Kafka."""

from __future__ import annotations

import csv
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from flights.data import data_file

Row = Mapping[str, Any]
"""A JSON object: numbers, strings, None."""

_CHECK_EVERY = 2_000
"""Rows between two progress reports."""


class Record(NamedTuple):
    """A record that the topic must contain exactly once."""

    key: str
    value: Row
    timestamp_ms: int | None
    """None: the timestamp is the time of writing."""


class Expected(NamedTuple):
    """Each topic's records, by the values of the columns that identify them."""

    flights: dict[tuple[Any, ...], Record]
    """Records by departure, carrier and number."""
    delays: dict[tuple[Any, ...], Record]
    weather: dict[tuple[Any, ...], Record]
    planes: dict[tuple[Any, ...], Record]


IDENTITY = {
    "flights": ("departure", "carrier", "flight"),
    "delays": ("carrier", "origin", "month"),
    "weather": ("origin", "visibility", "rain"),
    "planes": ("manufacturer", "decade"),
}
"""The columns that identify a record in each topic."""


class _Sums:
    """The sums over one group of flights."""

    def __init__(self) -> None:
        self.flights = self.cancelled = self.late = self.departures = self.arrivals = 0
        self.arrival_delays: list[int] = []

    def add(self, flight: Row) -> None:
        self.flights += 1
        self.cancelled += flight["dep_time"] is None
        if flight["arr_delay"] is not None:
            self.departures += flight["dep_delay"]
            self.arrival_delays.append(flight["arr_delay"])

    def measures(self) -> dict[str, Any]:
        delays = self.arrival_delays
        count = len(delays)
        return {
            "flights": self.flights,
            "cancelled": self.cancelled,
            "diverted": self.flights - self.cancelled - count,
            "late": sum(delay >= 15 for delay in delays),
            "mean_dep_delay": self.departures / count if count else None,
            "mean_arr_delay": sum(delays) / count if count else None,
            "worst_arr_delay": max(delays, default=None),
        }


def compute(rows: int, progress: Callable[[int], None]) -> Expected:
    """Compute the expected records of the first `rows` flights.

    Args:
        rows: the maximum number of flights.
        progress: called at intervals with the number of flights so far; if it raises an exception, the work stops.

    Raises:
        DemoError: the data package is not installed, or one of its files is missing.
    """
    planes = {plane["tailnum"]: plane for plane in _rows_of(Path(data_file("planes.csv")))}
    weather = {(hour["origin"], hour["time_hour"]): hour for hour in _rows_of(Path(data_file("weather.csv")))}
    flights: dict[tuple[Any, ...], Record] = {}
    sums: dict[str, defaultdict[tuple[Any, ...], _Sums]] = {
        name: defaultdict(_Sums) for name in IDENTITY if name != "flights"
    }
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        lines = TextIOWrapper(raw, encoding="ascii", newline="")
        for number, flight in enumerate(islice(_cells(lines), rows), 1):
            plane = planes.get(flight["tailnum"], {})
            hour = weather.get((flight["origin"], flight["time_hour"]), {})
            if flight["arr_delay"] is not None:
                record = _enriched(flight, plane, hour)
                flights[tuple(record.value[name] for name in IDENTITY["flights"])] = record
            group = flight | _classes(plane, hour)
            for name, groups in sums.items():
                groups[tuple(group[column] for column in IDENTITY[name])].add(flight)
            if number % _CHECK_EVERY == 0:
                progress(number)
    progress(number)
    return Expected(
        flights, **{name: dict(_aggregates(IDENTITY[name], groups)) for name, groups in sums.items()}
    )


def _enriched(flight: Row, plane: Row, hour: Row) -> Record:
    text, timestamp_ms = _departure(flight["time_hour"], flight["minute"])
    value = {
        "departure": text,
        **{name: flight[name] for name in ("carrier", "flight", "tailnum", "origin", "dest", "distance")},
        "dep_delay": flight["dep_delay"],
        "arr_delay": flight["arr_delay"],
        "mph": flight["distance"] * 60 / flight["air_time"],
        "manufacturer": _maker(plane),
        "model": plane.get("model"),
        "seats": plane.get("seats"),
        "built": plane.get("year"),
        **{name: hour.get(name) for name in ("temp", "wind_speed", "precip", "visib")},
    }
    return Record(flight["carrier"], value, timestamp_ms)


@cache
def _departure(hour: str, minute: int) -> tuple[str, int]:
    departure = datetime.fromisoformat(hour) + timedelta(minutes=minute)
    return f"{departure.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", int(departure.timestamp()) * 1000


def _classes(plane: Row, hour: Row) -> dict[str, Any]:
    miles, rain, built = hour.get("visib"), hour.get("precip"), plane.get("year")
    return {
        "manufacturer": _maker(plane),
        "decade": None if built is None else built - built % 10,
        "visibility": "unknown"
        if miles is None
        else "poor"
        if miles < 2
        else "fair"
        if miles < 8
        else "good",
        "rain": "unknown" if rain is None else "wet" if rain > 0 else "dry",
    }


def _maker(plane: Row) -> str | None:
    name: str | None = plane.get("manufacturer")
    for short in ("AIRBUS", "MCDONNELL DOUGLAS"):
        if name is not None and name.startswith(short):
            return short
    return name


def _aggregates(
    columns: tuple[str, ...], groups: Mapping[tuple[Any, ...], _Sums]
) -> Iterator[tuple[tuple[Any, ...], Record]]:
    for group, sums in groups.items():
        key = "/".join("unknown" if cell is None else str(cell) for cell in group)
        value = dict(zip(columns, group, strict=True)) | sums.measures()
        yield group, Record(key, value, None)


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="ascii", newline="") as lines:
        yield from _cells(lines)


def _cells(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file, with numbers as int or float and missing cells as None."""
    reader = csv.reader(lines)
    names = next(reader)
    cells = [_text if name in _TEXTS else _number for name in names]
    for row in reader:
        yield {name: cell(text) for name, cell, text in zip(names, cells, row, strict=True)}


_TEXTS = frozenset("carrier tailnum origin dest time_hour type manufacturer model engine".split())
"""Columns that stay text; all others are numbers."""


def _text(text: str) -> str | None:
    return None if text == "NA" else text


@cache  # there are few distinct values
def _number(text: str) -> int | float | None:
    if text == "NA":
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)
