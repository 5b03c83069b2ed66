"""Columns: the fields of a row that become parts of its record."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from aioproducer.cli.columns import Columns, to_bytes, to_json, to_partition, to_timestamp


def test_columns_without_another_use_are_the_value():
    columns = Columns(key="id", headers=("h",), timestamp="at", partition="p")

    record = columns.record({"id": 7, "h": "x", "at": 5, "p": "3", "rest": [1], "more": None})

    assert record == (b'{"rest":[1],"more":null}', b"7", [("h", b"x")], 5, 3)


def test_kept_columns_are_also_in_the_value():
    assert Columns(key="id", keep=True).record({"id": 7, "a": 1}).value == b'{"id":7,"a":1}'


def test_a_value_column_alone_is_the_value_and_null_is_a_tombstone():
    assert Columns(value="v").record({"v": "text", "other": 1}).value == b"text"
    assert Columns(value="v").record({"v": None}).value is None


@pytest.mark.parametrize(
    ("value", "data"),
    [(None, None), (b"\xff", b"\xff"), ("é", "é".encode()), (7, b"7"), (True, b"true"), ([1], b"[1]")],
)
def test_a_key_is_text_bytes_or_json(value, data):
    assert to_bytes(value) == data


def test_values_that_json_cannot_represent_are_written_as_text():
    row = {
        "b": b"\xff",
        "d": date(2024, 1, 2),
        "t": datetime(2024, 1, 2),
        "n": Decimal("1.10"),
        "s": timedelta(1),
    }

    assert json.loads(to_json(row)) == {
        "b": "/w==",
        "d": "2024-01-02",
        "t": "2024-01-02T00:00:00",
        "n": "1.10",
        "s": 86400.0,
    }
    with pytest.raises(ValueError, match="a set cannot be converted to JSON"):
        to_json({1, 2})


@pytest.mark.parametrize(
    "value",
    [
        1704164645000,
        "1704164645000",
        "2024-01-02T03:04:05Z",
        "2024-01-02T04:04:05+01:00",
        "2024-01-02 03:04:05",
    ],
)
def test_a_timestamp_is_milliseconds_or_iso_8601(value):
    assert to_timestamp(value, "at") == 1704164645000
    assert to_timestamp(datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), "at") == 1704164645000


def test_an_invalid_timestamp_or_partition_is_named():
    with pytest.raises(
        ValueError, match="at='soon' is neither a number of milliseconds since 1970 nor an ISO 8601 time"
    ):
        to_timestamp("soon", "at")
    with pytest.raises(ValueError, match=r"p=1\.5 is not a partition number"):
        to_partition(1.5, "p")


def test_a_column_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match=r"there is no column idd; did you mean id\?"):
        Columns(key="idd").check(["id", "item"])
    with pytest.raises(ValueError, match="there is no column x; the columns are id, item"):
        Columns(key="x").check(["id", "item"])
