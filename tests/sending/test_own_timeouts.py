"""OwnTimeouts: timers of calls that have their own timeout;
tests/end_to_end/test_call_timeout.py tests their effect."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Producer
from aioproducer.core import Core
from aioproducer.sending.own_timeouts import OwnTimeouts
from tests.support.producing import producing, within


class Timers:
    """The event loop, which also records the timers that are set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.made: list[asyncio.TimerHandle] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    def call_at(self, when, callback, *arguments):
        self.made.append(self._loop.call_at(when, callback, *arguments))
        return self.made[-1]


def timers_of(producer: Producer) -> Timers:
    timers = Timers(producer._loop)
    core = Core(producer._config, timers, producer._wake, producer._metrics, producer._random)
    producer._own_timeouts = OwnTimeouts(core, producer._accumulator, producer._transaction)
    return timers


async def send_one(producer: Producer) -> None:
    await producer.send("t", b"v", timeout=1000)


async def send_rows(producer: Producer) -> None:
    await producer.send_many("t", [b"a", b"b"], timeout=1000)


async def send_built(producer: Producer) -> None:
    built = producer.create_batch()
    built.append(key=None, value=b"v")
    await producer.send_batch(built, "t", partition=0, timeout=1000)


@pytest.mark.parametrize("send", [send_one, send_rows, send_built])
async def test_records_that_are_acknowledged_in_time_leave_no_timer(send):
    async with producing() as (_, producer):
        timers = timers_of(producer)
        await send(producer)
        assert [timer.cancelled() for timer in timers.made] == [False]

        await within(5, producer.flush())
        await asyncio.sleep(0)

        assert [timer.cancelled() for timer in timers.made] == [True]


async def test_a_call_without_a_timeout_sets_no_timer():
    async with producing() as (_, producer):
        timers = timers_of(producer)
        await producer.send_many("t", [b"a", b"b"])
        await within(5, producer.send_and_wait("t", b"v"))

        assert timers.made == []
