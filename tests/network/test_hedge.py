"""One request to several brokers: when each is asked, and which response counts."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.network import hedge
from aioproducer.network.hedge import first_answer
from tests.conftest import MS
from tests.support.scripted_broker import until


class Question:
    """A function that returns the future of another broker on each call, until it has asked `brokers` brokers."""

    def __init__(self, brokers: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.left = brokers
        self.asked: list[asyncio.Future[str]] = []

    def __call__(self) -> asyncio.Future[str] | None:
        if self.left == 0:
            return None
        self.left -= 1
        self.asked.append(self._loop.create_future())
        return self.asked[-1]

    async def until_asked(self, count: int) -> None:
        await until(lambda: len(self.asked) >= count)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(hedge, "HEDGE_AFTER", 10 * MS)
    monkeypatch.setattr(hedge, "LOOK_AGAIN", MS)


async def test_a_response_in_time_is_the_only_one_requested(monkeypatch):
    monkeypatch.setattr(hedge, "HEDGE_AFTER", 1000.0)
    question = Question(3)
    waiting = asyncio.create_task(first_answer(question))
    await question.until_asked(1)
    question.asked[0].set_result("first")

    assert (await waiting).result() == "first"
    assert len(question.asked) == 1


async def test_another_broker_is_asked_in_parallel_to_a_silent_one_and_the_first_response_counts():
    question = Question(3)
    waiting = asyncio.create_task(first_answer(question))
    await question.until_asked(3)
    question.asked[1].set_result("second")

    assert (await waiting).result() == "second"
    assert question.asked[0].cancelled()
    assert question.asked[2].cancelled()


async def test_a_failure_counts_only_when_no_other_broker_is_left_to_answer():
    question = Question(2)
    waiting = asyncio.create_task(first_answer(question))
    await question.until_asked(2)
    question.asked[0].set_exception(OSError("broken"))
    await asyncio.sleep(0)
    assert not waiting.done()
    question.asked[1].set_result("second")

    assert (await waiting).result() == "second"


async def test_if_all_fail_the_first_failure_is_returned():
    question = Question(2)
    waiting = asyncio.create_task(first_answer(question))
    await question.until_asked(2)
    question.asked[1].set_exception(OSError("second"))
    question.asked[0].set_exception(OSError("first"))

    with pytest.raises(OSError, match="first"):
        (await waiting).result()


async def test_a_broker_that_connects_later_is_asked_at_that_time():
    question = Question(1)
    waiting = asyncio.create_task(first_answer(question))
    await question.until_asked(1)
    await asyncio.sleep(20 * MS)
    question.left = 1
    await question.until_asked(2)
    question.asked[1].set_result("late")

    assert (await waiting).result() == "late"


async def test_cancelling_cancels_every_request():
    question = Question(2)
    waiting = asyncio.create_task(first_answer(question))
    await question.until_asked(2)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(future.cancelled() for future in question.asked)
