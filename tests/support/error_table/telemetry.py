"""Scenes about the metrics that are pushed to brokers (KIP-714): the next step after an error code."""

from __future__ import annotations

import asyncio
from functools import partial

from aioproducer import Outcome
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.outcomes import Action, Row
from tests.support.error_table.stage import Stage, play, staged, until

SUBSCRIBE, PUSH = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY
INTERVAL = 10.0
"""Seconds between pushes. The time before the first push, or after an unanswered request, may be longer."""
LONG = 310.0


def walk(api: ApiKey, code: int) -> list[Row]:
    """The row seen when a broker returns a code."""
    return [play(partial(_asked if api is SUBSCRIBE else _pushed, code))]


async def _begin(on: Stage, api: ApiKey, code: int) -> None:
    on.cluster.telemetry.subscribe([""], interval_ms=int(INTERVAL * 1000))
    if code:
        on.refuse(api, code)
    await on.producer.start()


async def _asked(code: int) -> Row:
    async with staged(cluster={"collects_metrics": True}, starts=False) as on:
        await _begin(on, SUBSCRIBE, code)
        await asyncio.sleep(2 * INTERVAL)
        if on.cluster.telemetry.pushes:
            return Row(Action.SUCCEED, Outcome.NOT_PERSISTED)
        assert len(on.requests(SUBSCRIBE)) == 1
        await asyncio.sleep(LONG)
        has_asked_again = len(on.requests(SUBSCRIBE)) == 2
        return Row(Action.RETRY if has_asked_again else Action.FAIL, Outcome.NOT_PERSISTED)


async def _pushed(code: int) -> Row:
    async with staged(cluster={"collects_metrics": True}, starts=False) as on:
        await _begin(on, PUSH, code)
        await until(lambda: on.requests(PUSH))
        await asyncio.sleep(INTERVAL / 2)
        return Row(await _next_step(on), Outcome.NOT_PERSISTED)


async def _next_step(on: Stage) -> Action:
    if on.cluster.telemetry.pushes:
        return Action.SUCCEED
    if len(on.requests(SUBSCRIBE)) == 2:
        return Action.SUBSCRIBE
    assert len(on.requests(PUSH)) == 1
    await asyncio.sleep(INTERVAL)
    if len(on.requests(SUBSCRIBE)) == 2:
        return Action.SUBSCRIBE_LATER
    return Action.RETRY if len(on.requests(PUSH)) == 2 else Action.FAIL
