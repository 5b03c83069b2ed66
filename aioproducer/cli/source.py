"""An input file, or standard input, read as bytes or as lines."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aioproducer.cli.exits import UsageError
from aioproducer.cli.rows import InputProblem

READ_SIZE = 1024 * 1024
LONGEST_LINE = 256 * 1024 * 1024
"""The maximum length of a line in bytes. A file with a longer line is probably not text, or uses different line
endings."""


@dataclass(slots=True)
class Source:
    """An open file. A read returns as soon as there is any data, so rows from a slow pipe are sent at once."""

    name: str
    """The name as the user wrote it; "standard input" for -."""
    descriptor: int
    size: int | None
    """The size in bytes; None for a pipe or a terminal."""
    bytes_read: int = 0
    rest: bytearray = field(default_factory=bytearray)
    """The beginning of a line whose end has not been read yet."""

    def read(self) -> bytes:
        """Wait for the next bytes and return them; return b"" at the end of the file.

        Raises:
            OSError: the file cannot be read any further.
        """
        data = os.read(self.descriptor, READ_SIZE)
        self.bytes_read += len(data)
        return data

    def blocks(self) -> Iterator[bytes]:
        """Yield the lines completed by each read, as one block without the line ending of its last line.

        Raises:
            OSError: the file cannot be read any further. The lines before the error have been yielded.
            InputProblem: a line is longer than LONGEST_LINE.
        """
        while data := self.read():
            end = data.rfind(b"\n")
            if end >= 0:
                self.rest += data[:end]
                block = bytes(self.rest)
                self.rest = bytearray(data[end + 1 :])
                yield block
            else:
                self.rest += data
            if len(self.rest) > LONGEST_LINE:
                raise InputProblem(f"a line is longer than {LONGEST_LINE // 1024 // 1024} MiB")
        if self.rest:
            block, self.rest = bytes(self.rest), bytearray()
            yield block

    def lines(self) -> Iterator[list[bytes]]:
        """Yield the lines of each block without their line endings. Raise the same errors as `blocks`."""
        return (block.split(b"\n") for block in self.blocks())


def open_sources(names: list[str]) -> list[Source]:
    """Open all files. Open standard input for "-", or if `names` is empty.

    Raises:
        UsageError: a file cannot be opened, or standard input is named twice.
    """
    if names.count("-") > 1:
        raise UsageError("standard input (-) is named twice; it can be read only once")
    return [_open(name) for name in names or ["-"]]


def _open(name: str) -> Source:
    shown = "standard input" if name == "-" else name
    try:
        descriptor = 0 if name == "-" else os.open(Path(name), os.O_RDONLY)
        found = os.fstat(descriptor)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{shown} cannot be read: it is a directory")
    return Source(shown, descriptor, found.st_size if stat.S_ISREG(found.st_mode) else None)
