"""Scenes about batches that end without an answer: their time has run out, or an earlier batch has failed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from aioproducer import Delivery, Outcome
from aioproducer.errors import DeliveryError, DeliveryTimeoutError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.protocol.outcomes import Action, Condition, Moment, Row
from tests.support.error_table.stage import ALL, Cell, Stage, check_flags, play, staged

PRODUCE = ApiKey.PRODUCE


def walk(cell: Cell) -> Row:
    """The row seen for the batch of the cell."""
    row: Row = play(partial(_expired if cell.what is Moment.EXPIRED else _behind, cell))
    return row


async def _expired(cell: Cell) -> Row:
    settings: dict[str, Any] = {"request_timeout_ms": 2500, "delivery_timeout_ms": 3000}
    if Condition.ENDLESS in cell.when:
        settings["enable_endless_retries"] = True
    async with staged(**settings) as on:
        await on.producer.send_and_wait("t", b"first", partition=0)
        # The second attempt comes a second after the first, and does not time out before the batch.
        if Condition.IN_DOUBT in cell.when:
            on.refuse(PRODUCE, Code.REQUEST_TIMED_OUT)
        on.refuse(PRODUCE, Code.NOT_ENOUGH_REPLICAS, count=1 if Condition.IN_FLIGHT in cell.when else ALL)
        if Condition.IN_FLIGHT in cell.when:
            on.faults.add(PRODUCE, hold=asyncio.Event(), count=ALL)
        delivery = await on.producer.send("t", b"0", partition=0)
        await asyncio.sleep(3.01)
        return await _seen(on, delivery, DeliveryTimeoutError)


async def _behind(cell: Cell) -> Row:
    settings: dict[str, Any] = {"enable_gapless_order": True, "batch_size": 1}
    if not cell.when:
        settings["max_in_flight_requests_per_connection"] = 1
    async with staged(**settings) as on:
        await on.producer.send_and_wait("t", b"first", partition=0)
        if Condition.IN_DOUBT in cell.when:
            on.refuse(PRODUCE, Code.NOT_ENOUGH_REPLICAS)
            on.refuse(PRODUCE, Code.REQUEST_TIMED_OUT)
        on.refuse(PRODUCE, Code.POLICY_VIOLATION)
        if Condition.IN_FLIGHT in cell.when:
            on.faults.add(PRODUCE, hold=asyncio.Event())
        head = await on.producer.send("t", b"0", partition=0)
        delivery = await on.producer.send("t", b"1", partition=0)
        await asyncio.wait([head])
        assert isinstance(head.exception(), DeliveryError)
        await asyncio.sleep(0.001)
        return await _seen(on, delivery, DeliveryError)


async def _seen(on: Stage, delivery: Delivery, kind: type[DeliveryError]) -> Row:
    """Return whether the batch has ended, and the outcome of its record; close() ends the batch if it was kept."""
    action = Action.FAIL if delivery.done() else Action.KEEP
    if action is Action.KEEP:
        kind = DeliveryError
        await on.producer.close(timeout=0)
    error = delivery.exception()
    assert type(error) is kind
    check_flags(error, *(["retriable"] if kind is DeliveryTimeoutError else []))
    assert error.outcome in (Outcome.UNKNOWN, Outcome.NOT_PERSISTED)
    return Row(action, error.outcome)
