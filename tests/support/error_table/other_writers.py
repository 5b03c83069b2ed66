"""Scenes about participants: a leader returns an error code when it is asked for the writers of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from aioproducer import DeliveryError, Outcome, Producer, TopicPartition
from aioproducer.errors import KafkaError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.protocol.outcomes import Action, Row
from tests.support.error_table.stage import ALL, SETTINGS, Stage, play, staged

ASK = ApiKey.DESCRIBE_PRODUCERS
PLACE = TopicPartition("t", 0)


def walk(code: int) -> Row:
    """The row seen when a leader returns a code."""
    action, outcome = play(partial(_once, code))
    if action is Action.RETRY:
        outcome = play(partial(_for_ever, code))
    return Row(action, outcome)


@asynccontextmanager
async def _participating() -> AsyncIterator[tuple[Stage, Producer]]:
    async with staged(transactional_id="tx") as on:
        await on.producer.begin_transaction()
        handle = await on.producer.export_transaction([PLACE])
        settings = {**SETTINGS, "bootstrap_servers": on.cluster.bootstrap_servers}
        async with Producer.attach(
            handle, partitions=[PLACE], log_append_time=True, **settings
        ) as participant:
            yield on, participant


async def _send(producer: Producer) -> KafkaError | None:
    """Send a record; return the reason why it was not sent, or None."""
    delivery = await producer.send("t", b"mine", partition=0)
    await asyncio.wait([delivery])
    error = delivery.exception()
    if error is None:
        return None
    assert isinstance(error, DeliveryError)
    assert error.attempts == 0
    assert error.last_error is not None
    return error


async def _once(code: int) -> tuple[Action, Outcome]:
    async with _participating() as (on, producer):
        if code != Code.NONE:
            on.refuse(ASK, code, count=1)
        error = await _send(producer)
        tries = len(on.requests(ASK))
        values = [record.value for record in on.cluster.records("t", 0)]
    if error is None:
        assert values == [b"mine"]
        assert tries in (1, 2)
        return (Action.SUCCEED, Action.RETRY)[tries - 1], Outcome.NOT_PERSISTED
    assert (tries, values) == (1, [])
    assert "did not list the writers" in str(error)
    return Action.FAIL, error.outcome


async def _for_ever(code: int) -> Outcome:
    async with _participating() as (on, producer):
        on.refuse(ASK, code, count=ALL)
        error = await _send(producer)
        assert error is not None
        assert on.cluster.records("t", 0) == []
        return error.outcome
