"""The CSV files of the data package where Spark can read them: the flights unpacked, and in several files for a stream.

Nothing here knows of Spark or of Kafka."""

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
    """Where the data are."""

    flights: Path
    """A directory with nothing but the files of the flights."""
    files: int
    planes: Path
    weather: Path
    rows: int
    """Flights in all files."""


def unpack(directory: Path, rows: int, files: int, progress: Callable[[int], None]) -> Source:
    """Put the first `rows` flights into about `files` files, each with the line of column names.

    Args:
        directory: exists, and is empty.
        rows: how many at most.
        files: of which a stream takes one after the other.
        progress: called with the number of flights after each file; what it raises ends the work.

    Raises:
        DemoError: the data package is not installed, or a file of it is not there.
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
            os.utime(path, (number, number))  # a stream takes the oldest file first
            done += len(part)
            progress(done)
    return Source(flights, number, Path(data_file("planes.csv")), Path(data_file("weather.csv")), done)
