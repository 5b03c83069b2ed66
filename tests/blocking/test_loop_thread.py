"""Tests of the loop thread behind blocking producers: calls from other threads, their results, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from aioproducer import ProducerClosed
from aioproducer.blocking.loop_thread import Call, Flag, LoopThread, check_may_block, wait_for
from aioproducer.errors import WrongLoopError
from tests.conftest import MS

LONG = 10.0


@pytest.fixture
def thread():
    running = LoopThread(None)
    running.start()
    yield running
    running.stop()


def call(thread: LoopThread, function) -> Call:
    made = Call(function)
    thread.post(made.start)
    return made


def test_a_flag_wakes_all_threads_that_wait_for_it():
    flag = Flag()
    seen: list[bool] = []
    waiting = [threading.Thread(target=lambda: seen.append(flag.wait(LONG))) for _ in range(3)]
    for one in waiting:
        one.start()
    flag.set()
    flag.set()
    for one in waiting:
        one.join()

    assert seen == [True] * 3
    assert flag.wait(0)
    assert not Flag().wait(0)


def test_a_call_returns_what_its_coroutine_returns_in_the_callers_context(thread):
    variable = contextvars.ContextVar("variable", default="")
    variable.set("mine")

    async def function() -> tuple[str, bool]:
        return variable.get(), threading.current_thread() is not threading.main_thread()

    assert call(thread, function).wait(thread, LONG) == ("mine", True)


def test_a_call_raises_what_its_coroutine_raises(thread):
    async def function() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        call(thread, function).wait(thread, LONG)


def test_a_call_continues_after_its_timeout(thread):
    ended = threading.Event()

    async def function() -> str:
        await asyncio.sleep(50 * MS)
        ended.set()
        return "late"

    made = call(thread, function)
    with pytest.raises(TimeoutError, match="did not complete within"):
        made.wait(thread, 0.001)

    assert ended.wait(LONG)


def test_a_thread_that_has_ended_accepts_no_calls():
    thread = LoopThread(None)
    thread.start()
    thread.stop()

    async def function() -> None: ...

    made = Call(function)
    assert not thread.post(made.start)
    assert not thread.is_alive
    with pytest.raises(ProducerClosed):
        made.wait(thread, LONG)


def test_an_error_of_the_loop_factory_is_raised_by_start():
    def factory() -> asyncio.AbstractEventLoop:
        raise OSError("no loop today")

    with pytest.raises(OSError, match="no loop today"):
        LoopThread(factory).start()


def test_waiting_for_a_flag_that_is_never_set_ends_in_time():
    assert not wait_for(Flag(), 0.001)


async def test_a_blocking_call_in_a_thread_with_a_loop_is_refused():
    with pytest.raises(WrongLoopError, match=r"asyncio\.to_thread"):
        check_may_block()
