"""Columns: the fields of an input row that become the key, the headers and other parts of its record."""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from aioproducer.cli.rows import InputRecord


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns that become parts of a record. By default, the other columns form the value, as JSON."""

    key: str | None = None
    value: str | None = None
    """The column that becomes the value. If it is given, columns that are not named are dropped."""
    headers: tuple[str, ...] = ()
    """The columns that become headers, each under the name of its column."""
    timestamp: str | None = None
    partition: str | None = None
    keep: bool = False
    """Whether the JSON value contains all columns, including those that become other parts of the record."""

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that were named as parts of the record."""
        one_each = (self.key, self.value, self.timestamp, self.partition)
        return (*(name for name in one_each if name is not None), *self.headers)

    def check(self, names: Iterable[str]) -> None:
        """Raise ValueError if a column does not exist."""
        names = list(names)
        for name in self.named:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                advice = f"did you mean {near[0]}?" if near else f"the columns are {', '.join(names)}"
                raise ValueError(f"there is no column {name}; {advice}")

    def rest(self, names: Iterable[str]) -> list[str]:
        """Return the columns that make up the value if no single column is the value."""
        taken = () if self.keep else self.named
        return [name for name in names if name not in taken]

    def record(self, row: Mapping[str, Any]) -> InputRecord:
        """Return the record for an input row. A missing field counts as null.

        Raises:
            ValueError: a field has an unsuitable value, such as a partition that is not a number.
        """
        if self.value is not None:
            value = to_bytes(row.get(self.value))
        else:
            value = to_json({name: row[name] for name in self.rest(row)})
        return InputRecord(
            value,
            None if self.key is None else to_bytes(row.get(self.key)),
            [(name, to_bytes(row.get(name))) for name in self.headers] or None,
            None if self.timestamp is None else to_timestamp(row.get(self.timestamp), self.timestamp),
            None if self.partition is None else to_partition(row.get(self.partition), self.partition),
        )


def to_bytes(value: Any) -> bytes | None:
    """Return text and bytes as they are, other values as JSON, and null as None."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json(value)


def to_json(value: Any) -> bytes:
    """Return the value as JSON. Binary data becomes base64; times become ISO 8601; decimals become strings."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_for_json).encode()


def _for_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise ValueError(f"a {type(value).__name__} cannot be converted to JSON")


def to_timestamp(value: Any, name: str) -> int | None:
    """Return a time as milliseconds since 1970. A string must be such a number or an ISO 8601 time (UTC if it has no
    zone).

    Raises:
        ValueError: the value is not a time in any of these forms.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    when = value
    if isinstance(value, str):
        if value.strip().isascii() and value.strip().isdigit():
            return int(value)
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            pass
    if not isinstance(when, datetime):
        raise ValueError(
            f"{name}={value!r} is neither a number of milliseconds since 1970 nor an ISO 8601 time"
        )
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def to_partition(value: Any, name: str) -> int | None:
    """Return the value of a field as a partition number.

    Raises:
        ValueError: the value is not a whole number.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        return int(value)
    raise ValueError(f"{name}={value!r} is not a partition number")
