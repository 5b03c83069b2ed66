"""A producer needs no more memory after three days of faults than after one day; virtual time makes this test
quick."""

from __future__ import annotations

import asyncio
import gc
import logging
import types
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from aioproducer import Producer
from aioproducer.errors import KafkaError
from aioproducer.testing.simulation.loop import SimulatedLoop, simulate
from tests.campaigns.simulation import faults
from tests.campaigns.simulation.faults import SCRIPTED, SUDDEN, TOPIC, TRANSACTIONAL
from tests.campaigns.simulation.history import History
from tests.campaigns.simulation.plan import IDEMPOTENT, V2, Plan, plan
from tests.campaigns.simulation.world import World
from tests.support.resources import Sample, growth

pytestmark = pytest.mark.slow

HOUR = 3600.0
HOURS = 72
FAULTS_AN_HOUR = 6
HEALS_AFTER = 120.0
"""The duration of a fault in seconds."""
RECORDS_EVERY = 120.0
"""Seconds between two rounds of records."""
SETTINGS = {
    "linger_ms": 5,
    "request_timeout_ms": 5000,
    "delivery_timeout_ms": 20_000,
    "max_block_ms": 10_000,
    "transaction_timeout_ms": 60_000,
}


def the_plan(kind: str) -> Plan:
    settings = {
        key: value for key, value in SETTINGS.items() if kind == V2 or key != "transaction_timeout_ms"
    }
    if kind == V2:
        settings["transactional_id"] = "the-id"
    return replace(
        plan(kind, 1), brokers=3, partitions=3, versions="4.1", min_insync_replicas=1, settings=settings
    )


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "nothing grows: the sequences of a topic that was re-created are forgotten with their epoch",
)
@pytest.mark.parametrize("kind", [IDEMPOTENT, V2])
def test_72_hours_of_rolling_faults_leave_nothing_behind(kind, caplog):
    caplog.set_level(logging.CRITICAL, logger="aioproducer")  # pytest keeps each log line until the test ends
    days = Days(the_plan(kind))

    simulate(days.live, seed=1)

    assert len(days.samples) == HOURS
    assert growth(days.samples) == []
    assert len(days.fired) > 20, days.fired
    assert all(count >= 20 for count in days.acknowledged.values()), days.acknowledged


class Days:
    """One producer that writes now and then during days of faults."""

    def __init__(self, plan: Plan) -> None:
        self.samples: list[Sample] = []
        self.acknowledged: Counter[int] = Counter({hour: 0 for hour in range(HOURS)})
        self.fired: Counter[str] = Counter()
        self._plan = plan
        self._now: Callable[[], int]

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        world = World(self._plan, History(self._plan.kind, self._plan.seed), loop)
        began = loop.time()
        async with world.cluster:
            world.create_topic()
            async with world.producer() as producer:
                self._now = lambda: int(world.wall_time() * 1000)
                user = asyncio.create_task(self._write(producer, began))
                for hour in range(HOURS):
                    await self._an_hour_of_faults(world, Random(hour), began + (hour + 1) * HOUR)
                    self.samples.append(sample(producer, loop.time() - began))
                user.cancel()
                with suppress(asyncio.CancelledError):
                    await user

    async def _an_hour_of_faults(self, world: World, random: Random, end: float) -> None:
        kinds = [*SCRIPTED, *SUDDEN, *(TRANSACTIONAL if self._plan.is_transactional else ())]
        for _ in range(FAULTS_AN_HOUR):
            faults.strike(random.choice(kinds), world, random)
            await asyncio.sleep(HEALS_AFTER)
            await world.heal()
            self.fired += world.history.fired
            world.history.fired.clear()
            world.scripted.clear()
            world._timers.clear()
            await asyncio.sleep(HOUR / (FAULTS_AN_HOUR + 1) - HEALS_AFTER)
        for number in range(3):  # so that each sample is taken with the same connections
            world.cluster.move_leader(TOPIC, number, number)
        await asyncio.sleep(end - world.loop.time())

    async def _write(self, producer: Producer, began: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RECORDS_EVERY)
            with suppress(KafkaError):
                if self._plan.is_transactional:
                    async with producer.transaction():
                        await self._send(producer)
                else:
                    await self._send(producer)
                self.acknowledged[int((loop.time() - began) // HOUR)] += 1

    async def _send(self, producer: Producer) -> None:
        now = self._now()
        deliveries = [
            await producer.send(TOPIC, b"value", partition=number, timestamp_ms=now) for number in range(3)
        ]
        await asyncio.wait(deliveries)
        for delivery in deliveries:
            await delivery


def sample(producer: Producer, seconds: float) -> Sample:
    gc.collect()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    held = reachable(producer)
    return Sample(
        seconds,
        {
            "connections": len(loop.network.open_clients),
            "tasks": sum(task.get_name().startswith("aioproducer") for task in asyncio.all_tasks()),
            "objects": sum(held.values()),
        },
    )


def reachable(producer: Producer) -> Counter[str]:
    """Count the objects that the producer keeps alive, by type, excluding the loop and the brokers' objects."""
    strangers = (type, types.ModuleType, types.FunctionType, asyncio.AbstractEventLoop)
    found: Counter[str] = Counter()
    seen = {id(producer)}
    left: list[object] = [producer]
    while left:
        one = left.pop()
        found[type(one).__qualname__] += 1
        for other in gc.get_referents(one):
            if (
                id(other) in seen
                or isinstance(other, strangers)
                or type(other).__module__.startswith("aioproducer.testing")
            ):
                continue
            seen.add(id(other))
            left.append(other)
    return found
