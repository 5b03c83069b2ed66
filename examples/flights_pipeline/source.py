"""Prepares the CSV files of the data package for Spark: unpacks the flights, into several files for a stream.

This module does not depend on Spark or Kafka."""

from __future__ import annotations

import io
import itertools
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flights.data import FLIGHTS, data_file


class Source(NamedTuple):
    """The paths of the data."""

    flights: Path
    """A directory that contains only the files of the flights."""
    files: int
    planes: Path
    weather: Path
    rows: int
    """The number of flights in all files."""


def unpack(directory: Path, rows: int, files: int, progress: Callable[[int], None]) -> Source:
    """Write the first `rows` flights to about `files` files, each of which begins with the column names.

    Args:
        directory: an existing, empty directory.
        rows: the maximum number of flights.
        files: the approximate number of files, which a stream reads one after the other.
        progress: called with the number of flights after each file; if it raises an exception, the work stops.

    Raises:
        DemoError: the data package is not installed, or one of its files is missing.
    """
    flights = directory / "flights"
    flights.mkdir()
    rows = min(rows, FLIGHTS)
    each = -(-rows // files)
    done = 0
    with (
        zipfile.ZipFile(data_file("flights.csv.zip")) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="ascii", newline="") as lines,
    ):
        names = next(lines)
        for number in itertools.count():
            part = list(itertools.islice(lines, min(each, rows - done)))
            if not part:
                break
            path = flights / f"part-{number:03}.csv"
            path.write_text(names + "".join(part), encoding="ascii", newline="")
            os.utime(path, (number, number))  # a stream reads the oldest file first
            done += len(part)
            progress(done)
    return Source(flights, number, Path(data_file("planes.csv")), Path(data_file("weather.csv")), done)
