"""All faults of the simulation, by name: scripted answers, brokers, leaders, topics, the network.

A kind of fault is a function that strikes once, with its own random choices. It undoes itself later, or World.heal
does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.testing.embedded.faults import Fault
from aioproducer.testing.simulation.network import Latency
from tests.support.producing import AFTER_APPEND, NOT_RETRIABLE, RETRIABLE

if TYPE_CHECKING:
    from tests.campaigns.simulation.world import World

NEEDS_RIVAL = "successor before the answer to an end"
"""The kind of fault that needs another producer with the same transactional id."""

Strike = Callable[["World", Random], None]

SCRIPTED: dict[str, Strike] = {}
"""Faults of single requests, counted when they strike one."""
SUDDEN: dict[str, Strike] = {}
"""Faults of brokers, topics and the network."""
TRANSACTIONAL: dict[str, Strike] = {}
"""Faults of coordinators."""

TOPIC = "t"
READ_FROM = "in"
"""The topic that the consumer group reads. Nothing is written to it, and it is never deleted."""

PRODUCE = ApiKey.PRODUCE
PLAIN_APIS = [PRODUCE, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID, ApiKey.API_VERSIONS]
COORDINATED = [
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
]

# Errors that a broker may return before it has done anything. DUPLICATE_SEQUENCE_NUMBER is not among them: it would
# be false.
LOST_TRACK = [Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID, Code.INVALID_PRODUCER_EPOCH]
COORDINATOR_ERRORS = [
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.CONCURRENT_TRANSACTIONS,
    Code.UNKNOWN_SERVER_ERROR,
]
# A coordinator's errors when it does not know whether its state will be replicated.
MAY_BE_WRITTEN = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE)
ERRORS: dict[ApiKey, list[Code]] = {
    PRODUCE: [*RETRIABLE, *NOT_RETRIABLE, *LOST_TRACK, Code.UNKNOWN_SERVER_ERROR],
    ApiKey.METADATA: [Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_SERVER_ERROR],
    ApiKey.API_VERSIONS: [Code.UNSUPPORTED_VERSION, Code.UNKNOWN_SERVER_ERROR],
    **dict.fromkeys(COORDINATED, COORDINATOR_ERRORS),
    ApiKey.FIND_COORDINATOR: [Code.COORDINATOR_NOT_AVAILABLE, Code.UNKNOWN_SERVER_ERROR],
}
LATE_ERRORS: dict[ApiKey, list[Code]] = {
    PRODUCE: [*AFTER_APPEND, Code.UNKNOWN_SERVER_ERROR],
    **{api: list(MAY_BE_WRITTEN) for api in COORDINATED if api is not ApiKey.FIND_COORDINATOR},
}


def _api(world: World, random: Random, *, late: bool = False) -> ApiKey:
    """Choose Produce half of the time, otherwise any request that this workload sends."""
    if random.random() < 0.5:
        return PRODUCE
    others = COORDINATED if world.plan.is_transactional else PLAIN_APIS
    return random.choice([api for api in others if not late or api in LATE_ERRORS] or [PRODUCE])


def _aim(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    """Choose the affected requests - any, or those of one node or one partition - and their number."""
    aim: dict[str, Any] = {"count": random.choice([1, 1, 1, 2, 3, 8]), "skip": random.choice([0, 0, 1, 3])}
    chance = random.random()
    if chance < 0.25:
        aim["node"] = random.randrange(world.plan.brokers)
    elif chance < 0.5 and api == PRODUCE:
        aim["topic"], aim["partition"] = TOPIC, random.randrange(world.plan.partitions)
    return aim


def _scripted(name: str) -> Callable[[Callable[[World, Random, ApiKey], dict[str, Any]]], Strike]:
    def register(wishes: Callable[[World, Random, ApiKey], dict[str, Any]]) -> Strike:
        def strike(world: World, random: Random) -> None:
            api = _api(world, random, late="after" in name)
            fault: Fault = world.cluster.faults.add(
                api, **{**_aim(world, random, api), **wishes(world, random, api)}
            )
            world.scripted.append((name, fault))

        SCRIPTED[name] = strike
        return strike

    return register


def _seconds(random: Random) -> float:
    """Choose a time, from milliseconds to longer than every time-out."""
    return float(random.choice([0.002, 0.02, 0.1, 0.4, 1.0, 3.0, 8.0]) * random.uniform(0.8, 1.2))


@_scripted("error instead")
def _error(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"error": random.choice(ERRORS[api])}


@_scripted("error after the append")
def _late_error(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"error": random.choice(LATE_ERRORS[api]), "after_append": True}


@_scripted("dropped before the append")
def _drop_before(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"drop_before": True}


@_scripted("dropped after the append")
def _drop_after(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"drop_after_append": True}


@_scripted("late answer")
def _delay(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"delay": _seconds(random)}


@_scripted("answer held")
def _hold(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    event = asyncio.Event()
    world.later(_seconds(random), event.set)
    return {"hold": event}


@_scripted("request arrives late")
def _hold_before(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    """Hold the request, often so long that its sender has abandoned it and has continued with others."""
    event = asyncio.Event()
    world.later(_seconds(random), event.set)
    return {"hold_before": event}


@_scripted("answer cut off")
def _truncate(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"truncate": random.randrange(40)}


@_scripted("wrong correlation id")
def _correlation(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"wrong_correlation_id": True}


@_scripted("partitions left out")
def _omit(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"omit_partitions": True}


@_scripted("throttled")
def _throttle(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"throttle_ms": random.choice([1, 50, 700])}


@_scripted("answer trickles")
def _trickle(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"trickle": random.randint(1, 9), "trickle_pause": random.choice([0.001, 0.05, 1.0])}


@_scripted("leader moves first")
def _move_first(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"move_leader_to": random.choice(world.running() or [0])}


@_scripted("leader moves after the append")
def _move_after(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"move_leader_to": random.choice(world.running() or [0]), "after_append": True}


@_scripted("broker crashes first")
def _crash_first(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"down_for": _seconds(random), "count": 1}


@_scripted("broker crashes after the append")
def _crash_after(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"down_for": _seconds(random), "after_append": True, "count": 1}


@_scripted("broker freezes first")
def _freeze_first(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"freeze_for": _seconds(random), "count": 1}


@_scripted("broker freezes after the append")
def _freeze_after(world: World, random: Random, api: ApiKey) -> dict[str, Any]:
    return {"freeze_for": _seconds(random), "after_append": True, "count": 1}


def _kind(table: dict[str, Strike], name: str) -> Callable[[Strike], Strike]:
    def register(strike: Strike) -> Strike:
        table[name] = strike
        return strike

    return register


# Brokers and leaders


@_kind(SUDDEN, "broker stopped")
def stop_broker(world: World, random: Random) -> None:
    if running := world.running():
        world.cluster.crash_broker(random.choice(running), _seconds(random))
        world.fired("broker stopped")


@_kind(SUDDEN, "broker frozen")
def freeze_broker(world: World, random: Random) -> None:
    if running := world.running():
        node = random.choice(running)
        world.cluster.freeze_broker(node, fenced_after=random.choice([None, 0.1, 0.5]))
        world.later(_seconds(random), lambda: world.thaw(node))
        world.fired("broker frozen")


@_kind(SUDDEN, "connections cut")
def cut_connections(world: World, random: Random) -> None:
    node = world.cluster.broker(random.randrange(world.plan.brokers)).node
    if world.loop.network.cut(node.port):
        world.fired("connections cut")


@_kind(SUDDEN, "leader moved")
def move_leader(world: World, random: Random) -> None:
    partition = random.choice(world.partitions())
    candidates = [node for node in partition.replicas if node in world.running()]
    if candidates and not partition.is_deleted:
        partition.move_leader(random.choice(candidates))
        world.fired("leader moved")


@_kind(SUDDEN, "leader moves to and fro")
def ping_pong(world: World, random: Random) -> None:
    for step in range(random.randint(3, 10)):
        world.later(step * 0.1, lambda: move_leader(world, random))
    world.fired("leader moves to and fro")


@_kind(SUDDEN, "no leader")
def no_leader(world: World, random: Random) -> None:
    partition = random.choice(world.partitions())
    partition.move_leader(-1)
    world.later(_seconds(random), lambda: world.elect(partition))
    world.fired("no leader")


@_kind(SUDDEN, "replication held")
def hold_replication(world: World, random: Random) -> None:
    partition = random.choice(world.partitions())
    partition.hold_replication()
    world.later(_seconds(random), partition.release_replication)
    world.fired("replication held")


@_kind(SUDDEN, "ISR too small")
def shrink_isr(world: World, random: Random) -> None:
    partition = random.choice(world.partitions())
    if partition.leader >= 0:
        partition.set_isr([])
        world.later(_seconds(random), lambda: partition.set_isr(world.running()))
        world.fired("ISR too small")


# Topics


@_kind(SUDDEN, "topic recreated")
def recreate_topic(world: World, random: Random) -> None:
    if TOPIC not in world.cluster.topics:
        return
    world.cluster.delete_topic(TOPIC)
    world.later(random.choice([0.0, 0.05, 1.0]), world.create_topic)
    world.fired("topic recreated")


@_kind(SUDDEN, "partitions added")
def add_partitions(world: World, random: Random) -> None:
    if TOPIC in world.cluster.topics:
        world.cluster.add_partitions(TOPIC, len(world.cluster.topics[TOPIC].partitions) + 1)
        world.watch(world.cluster.topics[TOPIC])
        world.fired("partitions added")


@_kind(SUDDEN, "max.message.bytes lowered")
def lower_limit(world: World, random: Random) -> None:
    for partition in world.partitions():
        partition.config = partition.config.changed(
            {"max.message.bytes": random.choice(["150", "400", "2000"])}
        )
    world.later(_seconds(random), world.restore_limits)
    world.fired("max.message.bytes lowered")


@_kind(SUDDEN, "not authorised")
def deny_topic(world: World, random: Random) -> None:
    world.deny(random.choice([0.01, 0.3, 2.0]))
    world.fired("not authorised")


# The network


@_kind(SUDDEN, "network silent")
def silence(world: World, random: Random) -> None:
    """Hold the data sent to a broker, or by it, or both, for a while."""
    port = world.cluster.broker(random.randrange(world.plan.brokers)).node.port
    requests, answers = random.choice([(True, True), (True, False), (False, True)])
    world.loop.network.hold(port, requests=requests, answers=answers)
    world.later(_seconds(random), lambda: world.loop.network.release(port))
    world.fired("network silent")


@_kind(SUDDEN, "network slow")
def slow(world: World, random: Random) -> None:
    world.loop.network.latency = Latency(0.001, random.choice([0.02, 0.2, 0.6]))
    world.later(_seconds(random), world.restore_latency)
    world.fired("network slow")


# Coordinators


@_kind(TRANSACTIONAL, "coordinator moved")
def move_coordinator(world: World, random: Random) -> None:
    name = world.plan.transactional_id
    if world.cluster.transactions.node(name) >= 0 and (running := world.running()):
        world.cluster.transactions.move(name, random.choice(running))
        world.fired("coordinator moved")


@_kind(TRANSACTIONAL, "group coordinator moved")
def move_group(world: World, random: Random) -> None:
    if world.cluster.groups.node(world.plan.group) >= 0 and (running := world.running()):
        world.cluster.groups.move(world.plan.group, random.choice(running))
        world.fired("group coordinator moved")


@_kind(TRANSACTIONAL, "markers held")
def hold_markers(world: World, random: Random) -> None:
    world.cluster.transactions.hold_markers()
    world.later(_seconds(random), world.cluster.transactions.release_markers)
    world.fired("markers held")


@_kind(TRANSACTIONAL, "coordinator loads")
def hold_loading(world: World, random: Random) -> None:
    world.cluster.transactions.hold_loading()
    move_coordinator(world, random)
    world.later(_seconds(random), world.cluster.transactions.release_loading)
    world.fired("coordinator loads")


@_kind(TRANSACTIONAL, "not verified")
def refuse_verification(world: World, random: Random) -> None:
    world.cluster.transactions.refuse_verification(
        random.choice([Code.NETWORK_EXCEPTION, Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_NOT_AVAILABLE]),
        count=random.randint(1, 4),
    )
    world.fired("not verified")


@_kind(TRANSACTIONAL, "transaction timed out")
def time_out(world: World, random: Random) -> None:
    """Let the sweep find every open transaction overdue, as if the application had been slow."""
    world.skip_wall_time(world.plan.transaction_timeout_ms / 1000 + 1)
    world.cluster.transactions.abort_timed_out()
    world.fired("transaction timed out")


@_kind(TRANSACTIONAL, "offsets arrive in the next transaction")
def delay_offsets(world: World, random: Random) -> None:
    """Hold a request with a group's offsets in the broker until those of the next transaction have been handled."""
    api = random.choice([ApiKey.ADD_OFFSETS_TO_TXN, *[ApiKey.TXN_OFFSET_COMMIT] * 3])
    arrival = asyncio.Event()
    fault = world.cluster.faults.add(api, hold_before=arrival, skip=random.choice([0, 0, 1, 3]))
    world.scripted.append(("offsets arrive in the next transaction", fault))

    async def wait() -> None:
        await fault.reached()
        world.hold_until_next_offsets(arrival)

    world.watching(wait())


@_kind(TRANSACTIONAL, NEEDS_RIVAL)
def let_successor_in(world: World, random: Random) -> None:
    """Hold the answer to an EndTxn until another producer has taken over and begun a transaction, or for a while."""
    answer = asyncio.Event()
    fault = world.cluster.faults.add(ApiKey.END_TXN, hold=answer, skip=random.choice([0, 0, 1, 3]))
    world.scripted.append((NEEDS_RIVAL, fault))
    patience = _seconds(random)

    async def wait() -> None:
        await fault.reached()
        world.later(patience, answer.set)
        await world.successor_has_begun()
        answer.set()

    world.watching(wait())


KINDS = [*SCRIPTED, *SUDDEN, *TRANSACTIONAL]


def strike(name: str, world: World, random: Random) -> None:
    """Let one fault of this kind strike."""
    {**SCRIPTED, **SUDDEN, **TRANSACTIONAL}[name](world, random)
