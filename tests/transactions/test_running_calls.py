"""Running transactional calls: the same call made again joins them, and they outlive cancelled callers."""

from __future__ import annotations

import asyncio
import gc
from random import Random
from types import SimpleNamespace

import pytest

from aioproducer.core import Core
from aioproducer.errors import CommitOutcomeUnknownError, ProducerClosed
from aioproducer.metrics import Metrics
from aioproducer.transactions.running_calls import RunningCalls
from tests.support.accumulator_bench import turns
from tests.support.producing import error_of
from tests.support.scripted_broker import make_config

CONFIG = make_config()


class Stage:
    """RunningCalls with one kind of work, which continues until the test ends it."""

    def __init__(self) -> None:
        self.transaction = SimpleNamespace(number=1, error=None, transactional_id="tx")
        self.wake = asyncio.Event()
        self.metrics = Metrics()
        core = Core(CONFIG, asyncio.get_running_loop(), self.wake, self.metrics, Random(1))
        self.calls = RunningCalls(core, self.transaction)
        self.began = 0
        self.end = asyncio.Event()
        self.error: Exception | None = None
        self.complaints: list[dict] = []
        """The reports of the event loop's exception handler."""
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))

    async def work(self) -> None:
        self.began += 1
        await self.end.wait()
        if self.error is not None:
            raise self.error

    async def caller(self, name: str = "commit") -> asyncio.Task[None]:
        task = asyncio.create_task(self.calls.run(name, self.work))
        await turns()
        return task

    async def unseen(self, name: str = "commit") -> None:
        """Let a call succeed after its caller was cancelled."""
        self.end.clear()
        await self.cancel(await self.caller(name))
        self.end.set()
        await turns()

    async def cancel(self, caller: asyncio.Task[None]) -> None:
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller


async def test_the_same_call_made_again_joins_the_running_one():
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


async def test_a_caller_that_is_not_a_task_may_also_be_cancelled():
    """A coroutine can also be run by code that is not a task, and that throws the exception into it."""
    stage = Stage()
    stage.calls.start("commit", stage.work())
    caller = stage.calls.join("commit")

    def run() -> None:  # a callback of the loop: there is no current task
        caller.send(None)
        with pytest.raises(asyncio.CancelledError):
            caller.throw(asyncio.CancelledError())

    asyncio.get_running_loop().call_soon(run)
    await turns()
    assert stage.complaints == []

    stage.end.set()
    await turns()
    assert stage.calls.take_unseen_success("commit")


async def test_cancelled_caller_does_not_cancel_the_call():
    stage = Stage()
    await stage.cancel(await stage.caller())
    assert stage.calls.running("commit")

    again = await stage.caller()
    stage.end.set()
    await again

    assert stage.began == 1
    assert not stage.calls.take_unseen_success("commit"), "a caller has seen it"


async def test_success_that_no_caller_saw_is_reported_once_and_for_its_transaction():
    stage = Stage()
    for number in (1, 2):
        stage.transaction.number = number
        await stage.unseen()

    assert not stage.calls.take_unseen_success("abort")
    stage.transaction.number = 3
    assert not stage.calls.take_unseen_success("commit"), "another transaction"
    stage.transaction.number = 2
    assert stage.calls.take_unseen_success("commit")
    assert not stage.calls.take_unseen_success("commit"), "only once"


ENDINGS = ("commit", "abort", "fence", "initialize")


@pytest.mark.parametrize("name", ENDINGS)
async def test_success_of_each_call_that_ends_a_transaction_is_kept(name):
    stage = Stage()
    await stage.unseen(name)
    assert stage.calls.take_unseen_success(name)


@pytest.mark.parametrize("later", ENDINGS)
async def test_a_later_call_that_ends_a_transaction_discards_the_success_of_the_one_before(later):
    stage = Stage()
    await stage.unseen("commit")
    await stage.caller(later)
    assert not stage.calls.take_unseen_success("commit")


async def test_a_later_call_that_ends_no_transaction_keeps_the_success_of_the_one_before():
    stage = Stage()
    await stage.unseen("commit")
    await stage.caller("offsets 1")
    assert stage.calls.take_unseen_success("commit")


async def test_an_unseen_failure_is_not_reported_as_a_success():
    stage = Stage()
    stage.error = ProducerClosed("no")
    await stage.unseen()

    assert not stage.calls.take_unseen_success("commit")
    assert stage.calls.by_name == {}
    del stage.calls
    gc.collect()
    assert stage.complaints == []


async def test_a_call_without_a_caller_that_close_cancels_is_not_a_success():
    stage = Stage()
    await stage.cancel(await stage.caller())

    await stage.calls.close()
    await turns()

    assert not stage.calls.take_unseen_success("commit")
    assert stage.calls.by_name == {}
    assert stage.complaints == []


async def test_a_call_that_has_just_ended_is_not_joined():
    stage = Stage()
    first = await stage.caller()
    call = stage.calls.by_name["commit"]
    stage.end.set()
    while not call.done():  # noqa: ASYNC110  # an event would be too late: the callback of the task has run by then
        await asyncio.sleep(0)
    assert stage.calls.by_name["commit"] is call
    assert stage.calls.running("commit") is None
    assert stage.calls.others("commit") == []

    stage.end.clear()
    second = await stage.caller()

    assert stage.began == 2
    await first
    assert stage.calls.running("commit"), "the second call goes on after the first has ended"
    stage.end.set()
    await second
    await turns()
    assert stage.calls.by_name == {}
    assert stage.complaints == []


async def test_a_call_is_counted_with_its_duration_and_result():
    stage = Stage()
    loop = asyncio.get_running_loop()
    began = loop.time()
    stage.end.set()
    await stage.caller()
    stage.error = ProducerClosed("no")
    with pytest.raises(ProducerClosed):
        await stage.calls.run("commit", stage.work)
    await turns()

    counted = stage.metrics.transaction_calls["commit"]
    assert (counted.count, counted.failures) == (2, 1)
    assert 0 <= counted.time.maximum <= loop.time() - began


async def test_the_success_of_a_call_that_ends_no_transaction_is_not_kept():
    stage = Stage()
    await stage.cancel(await stage.caller("offsets 1"))
    stage.end.set()
    await turns()

    assert not stage.calls.take_unseen_success("offsets 1")


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


async def test_a_wait_for_the_end_of_the_calls_does_not_raise_their_errors():
    stage = Stage()
    stage.error = ProducerClosed("no")
    caller = await stage.caller()
    stage.end.set()

    await stage.calls.ended()

    assert isinstance(await error_of(caller), ProducerClosed)


async def test_a_caller_that_is_cancelled_while_close_cancels_its_call_is_cancelled():
    stage = Stage()
    caller = await stage.caller()
    closing = asyncio.create_task(stage.calls.close())
    await asyncio.sleep(0)
    await stage.cancel(caller)
    await closing


@pytest.mark.parametrize("error", [None, CommitOutcomeUnknownError("perhaps")])
async def test_close_cancels_the_calls_and_their_callers_get_an_error(error):
    stage = Stage()
    caller = await stage.caller()
    stage.transaction.error = error

    call = stage.calls.by_name["commit"]
    await stage.calls.close()

    assert call.cancelled(), "close() waits until the call is cancelled"
    with pytest.raises(ProducerClosed if error is None else CommitOutcomeUnknownError):
        await caller
    with pytest.raises(ProducerClosed):
        await stage.calls.run("abort", stage.work)
    assert stage.began == 1
