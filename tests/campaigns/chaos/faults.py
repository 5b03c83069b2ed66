"""The faults, by name. Each strikes a running cluster and returns when the damage is repaired."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from aioproducer.protocol.api import ApiKey
from tests.conftest import MS

if TYPE_CHECKING:
    from tests.campaigns.chaos.world import World

TRAP_TIMEOUT = 10_000 * MS
"""Seconds that a trap waits for its request; a producer that waits for something else may never send it."""
CUTS = 3
"""The number of connections that one fault cuts, one after the other."""

IDEMPOTENT = "idempotent"
V1 = "transactions v1"
V2 = "transactions v2"
UPGRADE = "upgrade to v2"
ACKS = "acks 0 and 1"
COPY = "copy"
KINDS = (IDEMPOTENT, V1, V2, UPGRADE, ACKS, COPY)
"""The kinds of workloads; each has its own cluster."""
TRANSACTIONAL = (V1, V2, UPGRADE, COPY)


class Family(Enum):
    """The target of a fault. A fault in brokers or topics may strike together with a network fault."""

    BROKERS = "brokers"
    TOPICS = "topics"
    NETWORK = "network"


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    family: Family
    strike: Callable[[World, Random], Awaitable[None]]
    kinds: tuple[str, ...]
    """The kinds of workloads that the fault is for; empty means all."""

    def is_for(self, kind: str) -> bool:
        return kind in (self.kinds or (kind,))


FAULTS: dict[str, Fault] = {}

Strike = Callable[["World", Random], Awaitable[None]]


def _fault(name: str, family: Family, *kinds: str) -> Callable[[Strike], Strike]:
    def register(strike: Strike) -> Strike:
        FAULTS[name] = Fault(name, family, strike, kinds)
        return strike

    return register


# Brokers


@_fault("kill -9", Family.BROKERS)
async def _kill(world: World, random: Random) -> None:
    victim = await world.any_leader(random)
    await world.kafka.kill(victim)
    world.struck("kill -9")
    await asyncio.sleep(random.uniform(0, 3000 * MS))
    await world.kafka.start_broker(victim)


@_fault("frozen", Family.BROKERS)
async def _freeze(world: World, random: Random) -> None:
    """Freeze a leader for shorter or longer than its session, so that it resumes as the leader or as a former one."""
    victim = await world.any_leader(random)
    world.kafka.pause(victim)
    try:
        world.struck("frozen")
        await asyncio.sleep(random.uniform(500 * MS, 7000 * MS))
    finally:
        world.kafka.resume(victim)


@_fault("rolling restart", Family.BROKERS)
async def _roll(world: World, random: Random) -> None:
    for victim in random.sample(world.brokers, len(world.brokers)):
        world.struck("rolling restart")
        await world.kafka.restart(victim)


@_fault("two of three down", Family.BROKERS)
async def _two_down(world: World, random: Random) -> None:
    """Kill two brokers, so that there is no majority of controllers and no partition has enough replicas."""
    victims = random.sample(world.brokers, 2)
    for victim in victims:
        await world.kafka.kill(victim)
    world.struck("two of three down")
    await asyncio.sleep(random.uniform(0, 3000 * MS))
    await asyncio.gather(*map(world.kafka.start_broker, victims))


@_fault("coordinator killed in mid-commit", Family.BROKERS, *TRANSACTIONAL)
async def _kill_coordinator(world: World, random: Random) -> None:
    """Kill a coordinator up to 20 ms after it has received an EndTxn."""
    victim = await _trapped(world, ApiKey.END_TXN)
    if victim is None:
        return
    await asyncio.sleep(random.choice([0, 0, 2, 5, 20]) * MS)
    await world.kafka.kill(victim)
    world.struck("coordinator killed in mid-commit")
    await asyncio.sleep(random.uniform(0, 2000 * MS))
    await world.kafka.start_broker(victim)


@_fault("coordinator frozen in mid-commit", Family.BROKERS, *TRANSACTIONAL)
async def _freeze_coordinator(world: World, random: Random) -> None:
    """Freeze a coordinator. Another one takes over while the state of the commit is unknown; then the first resumes."""
    victim = await _trapped(world, ApiKey.END_TXN)
    if victim is None:
        return
    await asyncio.sleep(random.choice([0, 0, 2, 5, 20]) * MS)
    world.kafka.pause(victim)
    try:
        world.struck("coordinator frozen in mid-commit")
        await asyncio.sleep(random.uniform(2000 * MS, 7000 * MS))
    finally:
        world.kafka.resume(victim)


# Topics


@_fault("topic re-created", Family.TOPICS)
async def _make_anew(world: World, random: Random) -> None:
    await world.delete_topic()
    world.struck("topic re-created")
    await asyncio.sleep(random.uniform(0, 1500 * MS))
    await world.create_topic_anew()


@_fault("partitions added", Family.TOPICS)
async def _add_partitions(world: World, random: Random) -> None:
    await world.add_partitions(random.randint(1, 3))
    world.struck("partitions added")


@_fault("transaction.version raised", Family.TOPICS, UPGRADE)
async def _upgrade(world: World, random: Random) -> None:
    """Upgrade the cluster. Producers end an open transaction with the version with which they began it.

    They learn of the new level when they connect. One broker closes its connections, as in a rolling restart."""
    await asyncio.sleep(random.uniform(0, 500 * MS))
    await world.kafka.run_tool(
        "org.apache.kafka.tools.FeatureCommand",
        "--bootstrap-server",
        world.internal_servers,
        "upgrade",
        "--feature",
        "transaction.version=2",
    )
    world.any_proxy(random).hang_up()
    world.struck("transaction.version raised")


# The network


@_fault("cut after a Produce", Family.NETWORK)
async def _cut_produce(world: World, random: Random) -> None:
    await _cut(world, random, ApiKey.PRODUCE, "cut after a Produce")


@_fault("cut after an EndTxn", Family.NETWORK, *TRANSACTIONAL)
async def _cut_end(world: World, random: Random) -> None:
    await _cut(world, random, ApiKey.END_TXN, "cut after an EndTxn")


async def _cut(world: World, random: Random, api_key: ApiKey, name: str) -> None:
    for _ in range(CUTS):
        if await _trapped(world, api_key) is not None:
            world.struck(name)
        await asyncio.sleep(random.uniform(0, 300 * MS))


@_fault("throttled", Family.NETWORK)
async def _throttle(world: World, random: Random) -> None:
    """Make the connections to a broker so slow that requests time out or are late."""
    proxy = world.any_proxy(random)
    proxy.rate = random.choice([1_000, 5_000, 20_000])
    try:
        world.struck("throttled")
        await asyncio.sleep(random.uniform(1000 * MS, 5000 * MS))
    finally:
        proxy.rate = math.inf


@_fault("half-open", Family.NETWORK)
async def _half_open(world: World, random: Random) -> None:
    await _silence(world, random, "half-open", answers_only=False)


@_fault("answers lost", Family.NETWORK)
async def _lose_answers(world: World, random: Random) -> None:
    """Drop a broker's answers, although it continues to handle requests."""
    await _silence(world, random, "answers lost", answers_only=True)


async def _silence(world: World, random: Random, name: str, *, answers_only: bool) -> None:
    """Let the open connections carry no more data until the client closes them; new ones work."""
    if world.any_proxy(random).fall_silent(answers_only=answers_only):
        world.struck(name)


async def _trapped(world: World, api_key: ApiKey) -> int | None:
    """Return the broker that received the next such request, once its connection has been cut; None if no request
    came in time."""
    trap = world.network.lay(api_key)
    try:
        async with asyncio.timeout(TRAP_TIMEOUT):
            return await trap.sprung
    except TimeoutError:
        return None
    finally:
        world.network.take_away(trap)
