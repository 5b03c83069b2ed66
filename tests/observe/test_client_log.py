"""Each line of a producer begins with its client id."""

from __future__ import annotations

import logging

import pytest

from aioproducer.observe.client_log import ClientLog


@pytest.mark.parametrize("client_id", ["orders", "50%s of %d"])
def test_the_client_id_comes_first_whatever_it_contains(caplog, client_id):
    ClientLog("aioproducer.x", client_id).warning("%d records", 3)
    ClientLog("aioproducer.x", client_id).warning("100%")

    assert caplog.messages == [f"[producer {client_id}] 3 records", f"[producer {client_id}] 100%"]
    assert {record.name for record in caplog.records} == {"aioproducer.x"}


def test_a_line_names_the_place_of_its_caller(caplog):
    ClientLog("aioproducer.x", "orders").error("it failed")

    assert (caplog.records[0].filename, caplog.records[0].funcName) == (
        "test_client_log.py",
        "test_a_line_names_the_place_of_its_caller",
    )


def test_a_traceback_goes_with_its_line(caplog):
    try:
        raise ValueError("bad")
    except ValueError:
        ClientLog("aioproducer.x", "orders").exception("it failed")

    assert "ValueError: bad" in caplog.text


def test_a_level_that_is_off_costs_no_line(caplog):
    with caplog.at_level(logging.WARNING):
        ClientLog("aioproducer.x", "orders").info("connected")

    assert caplog.messages == []
