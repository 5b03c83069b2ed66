"""The input formats: how a file's format is chosen, and the reader for each format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from aioproducer.cli.columns import Columns
from aioproducer.cli.csv_rows import read_csv
from aioproducer.cli.exits import UsageError
from aioproducer.cli.feed import Reader
from aioproducer.cli.json_lines import read_json_lines, read_records
from aioproducer.cli.lines import LineFormat, read_lines
from aioproducer.cli.source import Source
from aioproducer.cli.tables import check_pyarrow, read_arrow, read_parquet


class Format(StrEnum):
    """The input formats."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class Shape:
    """How the input becomes records."""

    form: Format | None
    """The format of all files; None to choose each file's format by its name."""
    lines: LineFormat
    columns: Columns
    delimiter: str | None

    def check(self, sources: list[Source]) -> None:
        """Raise UsageError for options that the format of a source does not support."""
        formats = {self.format_of(source) for source in sources}
        if formats & {"parquet", "arrow"}:
            check_pyarrow()
        self._check_has("-K", self.lines.key_delimiter is not None, formats, {"lines"})
        self._check_has("--null", self.lines.null is not None, formats, {"lines", "csv"})
        self._check_has("--delimiter", self.delimiter is not None, formats, {"csv"})
        has_columns = bool(self.columns.named) or self.columns.keep
        self._check_has("column options", has_columns, formats, {"jsonl", "csv", "parquet", "arrow"})

    @staticmethod
    def _check_has(option: str, is_given: bool, formats: set[str], suits: set[str]) -> None:
        if is_given and (others := sorted(formats - suits)):
            raise UsageError(
                f"{option} cannot be used with the {others[0]} format; use --format to choose another"
            )

    def format_of(self, source: Source) -> str:
        """Return the format of a source."""
        return format_of(source.name) if self.form is None else self.form.value

    def reader(self, source: Source) -> Reader:
        """Return the reader for a source."""
        form = self.format_of(source)
        if form == "csv":
            delimiter = self.delimiter or ("\t" if source.name.lower().endswith(".tsv") else ",")
            null = None if self.lines.null is None else self.lines.null.decode()
            return partial(read_csv, columns=self.columns, delimiter=delimiter, null=null)
        if form == "lines":
            return partial(read_lines, form=self.lines)
        if form == "records":
            return read_records
        by_columns: dict[str, Any] = {
            "jsonl": read_json_lines,
            "parquet": read_parquet,
            "arrow": read_arrow,
        }
        return partial(by_columns[form], columns=self.columns)


FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}


def format_of(name: str) -> str:
    """Return the format for a file name's extension; "lines" if the extension is not in FORMATS."""
    return FORMATS.get(Path(name).suffix.lower(), "lines")
