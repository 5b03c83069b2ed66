"""The log lines of a producer, each of which begins with its client id."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest

from aioproducer.observe.client_log import ClientLog, RecentWarnings


@pytest.mark.parametrize("client_id", ["orders", "50%s of %d"])
def test_the_client_id_comes_first_whatever_it_contains(caplog, client_id):
    ClientLog("aioproducer.x", client_id).warning("%d records", 3)
    ClientLog("aioproducer.x", client_id).warning("100%")

    assert caplog.messages == [f"[producer {client_id}] 3 records", f"[producer {client_id}] 100%"]
    assert {record.name for record in caplog.records} == {"aioproducer.x"}


def test_a_line_has_the_source_location_of_its_caller(caplog):
    ClientLog("aioproducer.x", "orders").error("it failed")

    assert (caplog.records[0].filename, caplog.records[0].funcName) == (
        "test_client_log.py",
        "test_a_line_has_the_source_location_of_its_caller",
    )


def test_a_traceback_is_logged_with_its_line(caplog):
    try:
        raise ValueError("bad")
    except ValueError:
        ClientLog("aioproducer.x", "orders").exception("it failed")

    assert "ValueError: bad" in caplog.text


def test_a_level_that_is_off_writes_no_line(caplog):
    with caplog.at_level(logging.WARNING):
        ClientLog("aioproducer.x", "orders").info("connected")

    assert caplog.messages == []


def test_the_last_fifty_warnings_are_kept_even_if_no_handler_accepts_them(caplog):
    recent = RecentWarnings()
    log = ClientLog("aioproducer.x", "orders", recent)

    with caplog.at_level(logging.CRITICAL):
        for number in range(60):
            log.info("connected %d", number)
            log.warning("lost %d of %s", number, "100%")
        log.error("100% lost")

    assert caplog.messages == []
    kept = recent.described()
    assert [entry["line"] for entry in kept] == [
        *(f"lost {number} of 100%" for number in range(11, 60)),
        "100% lost",
    ]
    assert [entry["level"] for entry in kept[-2:]] == ["WARNING", "ERROR"]
    assert kept[0]["time"] == datetime.fromisoformat(kept[0]["time"]).isoformat(timespec="milliseconds")


def test_a_warning_about_an_object_whose_text_fails_is_kept_without_that_text(caplog):
    class NoText:
        def __str__(self) -> str:
            raise ValueError("no text")

    logging.raiseExceptions = False
    recent = RecentWarnings()
    try:
        ClientLog("aioproducer.x", "orders", recent).warning("it failed: %s", NoText())
    finally:
        logging.raiseExceptions = True

    assert [entry["line"] for entry in recent.described()] == ["it failed: %s"]
