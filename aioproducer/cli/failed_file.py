"""The --failed file: records that were not delivered, as JSON lines that `produce --format records` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from aioproducer.cli.exits import UsageError
from aioproducer.cli.json_lines import record_line
from aioproducer.cli.ledger import outcome_of
from aioproducer.cli.rows import InputRows


class FailedFile:
    """Appends records to a file. The file is created when the first record is written, so that no empty file is left
    behind."""

    def __init__(self, path: Path) -> None:
        """Check that the file can be written.

        Raises:
            UsageError: the file cannot be written, or is not empty (records from two runs would be mixed).
        """
        self.path = path
        self._descriptor = -1
        if path.is_dir():
            raise UsageError(f"--failed {path} is a directory; name a file")
        if path.is_file() and path.stat().st_size:
            raise UsageError(f"--failed {path}: the file is not empty; move it elsewhere first")
        if not path.exists() and not os.access(path.parent, os.W_OK):
            raise UsageError(f"--failed {path}: the directory does not exist or cannot be written")

    def write(self, rows: InputRows, errors: Mapping[int, BaseException]) -> None:
        """Append the failed records, each with its row, error and outcome.

        Raises:
            OSError: the records were not written, or were written only in part.
        """
        lines = [
            record_line(
                rows.record(index),
                row=rows.numbers[index],
                error=str(error),
                outcome=outcome_of(error).value,
            )
            for index, error in sorted(errors.items())
        ]
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        data = memoryview(b"".join(lines))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: the content may not have been written to the disk.
        """
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
