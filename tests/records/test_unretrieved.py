"""Failed records whose result was never retrieved: counted immediately, logged together."""

from __future__ import annotations

import asyncio
import logging

from aioproducer.errors import DeliveryError, DeliveryTimeoutError
from aioproducer.observe.client_log import ClientLog
from aioproducer.records.unretrieved import Unretrieved
from tests.support.accumulator_bench import turns

LOG = ClientLog("aioproducer.records.unretrieved", "orders")


def lines(caplog) -> list[str]:
    return [
        record.getMessage().removeprefix("[producer orders] ")
        for record in caplog.records
        if record.levelno == logging.ERROR
    ]


async def test_each_topic_and_error_has_a_line_with_its_first_error(caplog):
    unretrieved = Unretrieved(asyncio.get_running_loop(), LOG)
    unretrieved.add("t", DeliveryError("first"), 3)
    unretrieved.add("u", DeliveryError("other"), 1)
    unretrieved.add("t", DeliveryError("second"), 2)
    unretrieved.add("t", DeliveryTimeoutError("late"), 4)
    await turns()
    assert lines(caplog) == []

    unretrieved.close()

    assert lines(caplog) == [
        "5 records for topic t were not delivered, and no caller has looked at the result: first",
        "1 record for topic u was not delivered, and no caller has looked at the result: other",
        "4 records for topic t were not delivered, and no caller has looked at the result: late",
    ]
    assert unretrieved.counts == {
        ("t", "DeliveryError"): 5,
        ("u", "DeliveryError"): 1,
        ("t", "DeliveryTimeoutError"): 4,
    }


async def test_after_close_the_errors_of_one_turn_are_logged_together_without_a_timer(caplog):
    unretrieved = Unretrieved(asyncio.get_running_loop(), LOG)
    unretrieved.close()
    for _ in range(50):
        unretrieved.add("t", DeliveryError("refused"), 1)

    await turns()

    assert [line.partition(" ")[0] for line in lines(caplog)] == ["50"]
    assert unretrieved._timer is None


def test_without_a_running_loop_the_first_error_of_each_kind_is_logged_immediately(caplog):
    loop = asyncio.new_event_loop()
    unretrieved = Unretrieved(loop, LOG)
    unretrieved.add("t", DeliveryError("refused"), 1)
    loop.close()

    for _ in range(50):
        unretrieved.add("t", DeliveryError("refused"), 1)
    unretrieved.add("u", DeliveryError("refused"), 1)

    assert [line.partition(" ")[0] for line in lines(caplog)] == ["1", "50", "1"]
    assert unretrieved.counts == {("t", "DeliveryError"): 51, ("u", "DeliveryError"): 1}
