"""Plays one simulated run from its plan to its verdict.

    python -m tests.campaigns.simulation.run idempotent 4711

replays a run and prints its results."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aioproducer import Producer
from aioproducer.errors import KafkaError
from aioproducer.testing.embedded.broker import BrokerState
from aioproducer.testing.simulation.loop import BEGIN, SimulatedLoop, SimulationStalled, simulate
from tests.campaigns.simulation import collected
from tests.campaigns.simulation.history import History, Told
from tests.campaigns.simulation.observer import observing
from tests.campaigns.simulation.oracle import verdict
from tests.campaigns.simulation.plan import KINDS, Plan, plan
from tests.campaigns.simulation.workload import Workload
from tests.campaigns.simulation.world import World

TIME_LIMIT = 4000.0
"""Virtual seconds after which a run is aborted."""
LONGEST_WORK = 1000.0
"""Virtual seconds within which users finish their work, unless deliveries that never end keep them waiting."""


@dataclass
class Result:
    """One run and its verdict."""

    plan: Plan
    history: History
    broken: list[str]
    """Promises that were not kept; empty if all were kept."""

    def __str__(self) -> str:
        sentences = "".join(f"\n- {sentence}" for sentence in self.broken[:20])
        return f"{self.plan}\nbroken promises:{sentences or ' none'}\n{replay(self.plan)}"


def replay(which: Plan) -> str:
    """Return the command that replays a run."""
    return f"play it again: python -m tests.campaigns.simulation.run {which.kind!r} {which.seed}"


def run(which: Plan) -> Result:
    """Play a plan to its end and judge it."""
    return playing(which, _work)


def playing(
    which: Plan, scene: Callable[[World, Producer], Awaitable[None]], *, starts: bool = True
) -> Result:
    """Play a scene in a plan's world: set up the world, play the scene, clean up, and judge."""
    history = History(which.kind, which.seed, which.acks, is_idempotent=which.acks == "all")
    history.is_gapless = which.settings.get("enable_gapless_order", False)
    history.is_endless = which.settings.get("enable_endless_retries", False)
    listening = _Listening(history)
    logger = logging.getLogger("aioproducer")
    before = logger.level, logger.propagate
    logger.addHandler(listening)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        with observing(history):
            simulate(lambda: _main(which, history, scene, starts), seed=which.seed, time_limit=TIME_LIMIT)
    except SimulationStalled as error:
        history.problems.append(f"stalled: {error}")
    finally:
        if history.lost_receipts:
            gc.collect()  # results that were never retrieved are logged when they are collected
        logger.removeHandler(listening)
        logger.setLevel(before[0])
        logger.propagate = before[1]
    if history.losses and not _has_lost(history):
        history.problems += [f"reported without a loss: {line}" for line in history.losses]
    return Result(which, history, verdict(history))


def _has_lost(history: History) -> bool:
    """Return True if the cluster has lost any record that a producer could call acknowledged."""
    names = [topic.name for topic in history.incarnations]
    return bool(history.truncated) or len(set(names)) < len(names)


class _Listening(logging.Handler):
    """Treats an error in a log as a bug of the producer or the cluster, unless it reports records that the cluster
    has lost."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history
        self._unretrieved = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._history.lost_receipts and record.name == "aioproducer.records.unretrieved":
            return  # failures whose rows can't be read
        if record.name == "aioproducer.records.unretrieved" and self._are_of_cancelled_sends(record):
            return
        if record.name == "aioproducer.sending.data_loss":
            self._history.losses.append(record.getMessage())
            return
        if self._history.is_disturbed and " stopped waiting before " in record.getMessage():
            return  # close() ran out of time before the records' delivery time-out
        error = record.exc_info[1] if record.exc_info else None
        self._history.problems.append(f"log of {record.name}: {record.getMessage()} {error!r}")

    def _are_of_cancelled_sends(self, record: logging.LogRecord) -> bool:
        """Return whether there are at most as many logged failures as cancelled `send` calls. If a call is cancelled in
        the turn that gave it memory, its record is in the buffer, but its delivery does not reach the caller."""
        counts = re.findall(r"(\d+) records? for topic", record.getMessage())
        self._unretrieved += sum(map(int, counts))
        return self._unretrieved <= sum(sent.told is Told.GAVE_UP_ASKING for sent in self._history.sent)


async def _main(
    which: Plan, history: History, scene: Callable[[World, Producer], Awaitable[None]], starts: bool
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    loop.set_exception_handler(lambda _, context: history.problems.append(f"event loop: {context}"))
    history.is_disturbed = which.is_disturbed
    world = World(which, history, loop)
    async with world.cluster as cluster:
        world.create_topic()
        producer = world.producer()
        try:
            if starts:
                await producer.start()
            await scene(world, producer)
        except Exception as error:
            history.problems.append(f"the scene ended with {error!r}")
        await world.heal()
        await _close(world, producer)
        await _settled(world)
        history.problems += [f"{receipt!r} after close()" for receipt in world.receipts if not receipt.done()]
        for receipt in world.receipts:
            receipt.errors  # noqa: B018  # read as its user would
        # Otherwise, a batch that also has records of a lost receipt would be reported during a later run.
        world.receipts.clear()
        if hasattr(producer, "_accumulator"):
            await _nothing_is_left(world, producer)
        if which.is_transactional and cluster.groups._states.exists:
            history.group_offsets = cluster.groups.offsets(which.group)
        history.problems += collected.mistakes(world)
        history.problems += [f"bug of the embedded cluster: {error!r}" for error in cluster.failures]
        cluster.failures.clear()
    history.digest = loop.network.digest
    history.seconds = loop.time() - BEGIN


async def _work(world: World, producer: Producer) -> None:
    """Let the users work until they finish, or until the producer is closed while they work."""
    plan = world.plan
    world.schedule_faults()
    workload = Workload(world, producer)
    working = asyncio.create_task(workload.run(), name="users")
    rival = asyncio.create_task(_rival(world), name="rival") if plan.rival_at is not None else None
    await asyncio.wait([working], timeout=plan.close_at or LONGEST_WORK)
    if plan.close_at is None and not working.done():
        # A partition that stays without a leader, or whose ISR stays too small, keeps records in doubt.
        await world.heal()
        await asyncio.wait([working], timeout=LONGEST_WORK)
        if not working.done():
            world.history.problems.append(
                f"the users are still working {LONGEST_WORK:g} s after the last fault"
            )
    if plan.recovers and working.done() and working.exception() is None:
        await world.heal()
        await workload.go_on()
    await _close(world, producer)
    await asyncio.wait([working], timeout=100)
    if not working.done():
        world.history.problems.append(f"users hang after close(): {working!r}")
        working.cancel()
    elif working.exception() is not None:
        world.history.problems.append(f"the workload failed: {working.exception()!r}")
    if rival is not None:
        await rival


async def _rival(world: World) -> None:
    """Run a second producer with the same transactional id for a while."""
    assert world.plan.rival_at is not None
    world.history.has_rivals = True
    with suppress(TimeoutError):
        await asyncio.wait_for(world.wants_successor.wait(), world.plan.rival_at)
    producer = world.producer("rival")
    try:
        await producer.start()
        await Workload(world, producer, "rival").run()
    except KafkaError:
        pass  # it could not begin
    finally:
        await producer.close(timeout=5)


async def _close(world: World, producer: Producer) -> None:
    timeout = {"drain": None, "hurry": 0.3, "at once": 0}[world.plan.close]
    limit = timeout
    if limit is None:
        limit = world.plan.settings["delivery_timeout_ms"] / 1000 + 1
    began = world.loop.time()
    if world.history.closing_at is None:
        world.history.closing_at = began
    report = await producer.close(timeout=timeout)
    took = world.loop.time() - began
    # An open transaction is aborted first, which may take as long again.
    if took > limit * (2 if world.plan.is_transactional else 1) + 0.01:
        world.history.problems.append(f"close(timeout={timeout}) took {took:.3f} s ({report})")


async def _settled(world: World) -> None:
    """Wait until late data has arrived and brokers have aborted abandoned transactions."""
    if world.plan.is_transactional:
        await asyncio.sleep(world.plan.transaction_timeout_ms / 1000 + 30)
    await asyncio.sleep(10)


async def _nothing_is_left(world: World, producer: Producer) -> None:
    """Check that close() has left no task, no socket, no timer and no reserved byte."""
    found: list[Any] = [
        task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("aioproducer")
    ]
    found += [f"socket {client.get_extra_info('sockname')}" for client in world.loop.network.open_clients]
    memory = producer._accumulator.memory
    if memory.available != memory.total:
        found.append(f"{memory.total - memory.available} reserved bytes")
    if producer._accumulator.incomplete:
        found.append(f"{len(producer._accumulator.incomplete)} batches")
    if memory.waiters:
        found.append(f"{memory.waiters} waiters for memory")
    running = [broker for broker in world.cluster._brokers if broker.state is BrokerState.RUNNING]
    found += [
        f"{broker.connection_count} connections of broker {broker.node_id}"
        for broker in running
        if broker.connection_count
    ]
    if found:
        world.history.problems.append(f"close() left {', '.join(found)}")


def main() -> int:
    """Play one run, or one seed with all kinds."""
    *kinds, seed = sys.argv[1:]
    failed = False
    for kind in kinds or KINDS:
        result = run(plan(kind, int(seed)))
        told = Counter(sent.told.value for sent in result.history.sent)
        sys.stdout.write(f"{result}\ntold: {dict(told)}\nfired: {dict(result.history.fired)}\n")
        sys.stdout.write(f"{result.history.seconds:.3f} s, sha256 {result.history.digest}\n")
        failed = failed or bool(result.broken)
    return failed


if __name__ == "__main__":
    sys.exit(main())
