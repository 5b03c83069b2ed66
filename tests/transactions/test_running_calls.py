"""The transactional calls that are running."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from aioproducer.core import Core
from aioproducer.errors import CommitOutcomeUnknownError, ProducerClosed
from aioproducer.metrics import Metrics
from aioproducer.transactions.running_calls import RunningCalls
from tests.support.accumulator_bench import turns
from tests.support.scripted_broker import make_config

CONFIG = make_config()


class Stage:
    """RunningCalls with one kind of work, which ends when it is told to."""

    def __init__(self) -> None:
        self.transaction = SimpleNamespace(number=1, error=None, transactional_id="tx")
        self.wake = asyncio.Event()
        self.metrics = Metrics()
        core = Core(CONFIG, asyncio.get_running_loop(), self.wake, self.metrics, Random(1))
        self.calls = RunningCalls(core, self.transaction)
        self.began = 0
        self.end = asyncio.Event()

    async def work(self) -> None:
        self.began += 1
        await self.end.wait()

    async def caller(self, name: str = "commit") -> asyncio.Task[None]:
        task = asyncio.create_task(self.calls.run(name, self.work))
        await turns()
        return task

    async def cancel(self, caller: asyncio.Task[None]) -> None:
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller


async def test_same_call_made_again_joins_the_running_one():
    stage = Stage()
    callers = [await stage.caller() for _ in range(3)]
    other = await stage.caller("offsets 1")
    assert stage.began == 2
    assert stage.calls.running("commit")

    stage.end.set()
    await asyncio.gather(*callers, other)
    await turns()

    assert stage.calls.by_name == {}
    assert stage.wake.is_set()


async def test_cancelled_caller_does_not_cancel_the_call():
    stage = Stage()
    await stage.cancel(await stage.caller())
    assert stage.calls.running("commit")

    again = await stage.caller()
    stage.end.set()
    await again

    assert stage.began == 1
    assert not stage.calls.has_succeeded_unseen("commit"), "a caller has seen it"


async def test_success_that_no_caller_saw_is_reported_once_and_for_its_transaction():
    stage = Stage()
    for number in (1, 2):
        stage.transaction.number = number
        stage.end.clear()
        await stage.cancel(await stage.caller())
        stage.end.set()
        await turns()

    assert not stage.calls.has_succeeded_unseen("abort")
    stage.transaction.number = 3
    assert not stage.calls.has_succeeded_unseen("commit"), "another transaction"
    stage.transaction.number = 2
    assert stage.calls.has_succeeded_unseen("commit")
    assert not stage.calls.has_succeeded_unseen("commit"), "only once"


async def test_success_of_a_call_that_ends_nothing_is_not_kept():
    stage = Stage()
    await stage.cancel(await stage.caller("offsets 1"))
    stage.end.set()
    await turns()

    assert not stage.calls.has_succeeded_unseen("offsets 1")


async def test_others_are_the_running_calls_of_these_kinds_without_the_current_one():
    stage = Stage()
    for name in ("commit", "offsets 1", "offsets 2"):
        await stage.caller(name)
    found = []

    async def look() -> None:
        found.extend(stage.calls.others("offsets", "partitions"))

    await stage.calls.run("partitions", look)

    assert found == [stage.calls.by_name["offsets 1"], stage.calls.by_name["offsets 2"]]
    stage.end.set()
    await stage.calls.ended()
    assert stage.calls.others("offsets") == []


@pytest.mark.parametrize("error", [None, CommitOutcomeUnknownError("perhaps")])
async def test_close_cancels_the_calls_and_their_callers_get_an_error(error):
    stage = Stage()
    caller = await stage.caller()
    stage.transaction.error = error

    await stage.calls.close()

    with pytest.raises(ProducerClosed if error is None else CommitOutcomeUnknownError):
        await caller
    with pytest.raises(ProducerClosed):
        await stage.calls.run("abort", stage.work)
    assert stage.began == 1
