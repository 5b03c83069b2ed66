"""Plays one schedule from its plan to its verdict."""

from __future__ import annotations

import asyncio
import logging
import math
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from aioproducer import Producer
from tests.campaigns.chaos.coordinators import ended_twice
from tests.campaigns.chaos.copier import Copier
from tests.campaigns.chaos.faults import ACKS, COPY, FAULTS, IDEMPOTENT
from tests.campaigns.chaos.history import ChaosHistory
from tests.campaigns.chaos.oracle import ReadLogs, claimed, verdict
from tests.campaigns.chaos.plan import Plan
from tests.campaigns.chaos.proxy import Network
from tests.campaigns.chaos.workload import Owner, TransactionalUser, User
from tests.campaigns.chaos.world import BROKERS, COPIES, MADE_ANEW, PARTITIONS, World
from tests.campaigns.simulation.oracle import number_of
from tests.conftest import MS
from tests.support.producing import assert_nothing_left, until
from tests.support.read_back import Log, read_back

WARM_UP = 1000 * MS
"""Seconds of load before the first fault."""
ENDS_WITHIN = 120_000 * MS
"""Seconds within which users and producers must end after they are asked to stop."""

PATIENT = {"request_timeout_ms": 2000, "delivery_timeout_ms": 60_000, "max_block_ms": 20_000}
IMPATIENT = {"request_timeout_ms": 1000, "delivery_timeout_ms": 2500, "max_block_ms": 2000}
"""Records reach their deadline while a broker is away, and commits get no answer in time."""
HASTY = {**IMPATIENT, "max_block_ms": 700}

Tell = Callable[[str], None]


@dataclass
class Result:
    """One schedule and its verdict."""

    plan: Plan
    history: ChaosHistory
    broken: list[str]
    """Promises that were not kept; empty if all were kept."""
    logs: str = ""
    """The directory of the brokers' and producers' logs, if a promise was broken."""

    def __str__(self) -> str:
        sentences = "".join(f"\n- {sentence}" for sentence in self.broken[:20])
        return f"{self.plan}\nbroken promises:{sentences or ' none'}\n{self.logs}\nplay it again: {self.plan.replay}"


async def play(plan: Plan, tell: Tell = lambda _: None) -> Result:
    """Play a plan to its end and judge it. The callback gets a line of progress before each round.

    Raises:
        ApacheKafkaError: the cluster itself did not start, or a broker did not come back.

    Cancelling this call ends everything that it started.
    """
    tell("starts")
    result = Result(plan, ChaosHistory(plan.kind, plan.seed), ["it was not judged"])
    async with Network(BROKERS) as network:
        world = World(plan, result.history, network)
        try:
            await world.start()
            with _listening(world):
                async with _lag(result.history):
                    await _work(world, tell)
                logs = await _read(world)
                result.history.ended_twice = ended_twice(world.kafka.directory, result.history, logs)
                result.broken = verdict(result.history, logs)
            if result.broken:
                _keep_evidence(world)
        except asyncio.CancelledError:
            result.broken = []
            raise
        finally:
            if result.broken:
                result.logs = f"logs: {world.kafka.directory}"
            await world.kafka.stop(keep_logs=bool(result.broken))
    return result


async def _work(world: World, tell: Tell) -> None:
    users = _users(world)
    try:
        for user in users:
            await user.producer.start()
        async with asyncio.TaskGroup() as group:
            working = {user: group.create_task(user.run(), name=f"users of {user.label}") for user in users}
            await asyncio.sleep(WARM_UP)
            for number, names in enumerate(world.plan.rounds):
                tell(" and ".join(names))
                await _round(world, number, names)
            # The copiers stop after the others have written everything.
            copiers = [user for user in users if isinstance(user, Copier)]
            for ending in [user for user in users if user not in copiers], copiers:
                for user in ending:
                    user.stop()
                async with asyncio.timeout(ENDS_WITHIN):
                    await asyncio.gather(*(working[user] for user in ending))
                    await asyncio.gather(*(user.producer.close() for user in ending))
    finally:
        await asyncio.gather(*(user.producer.close(timeout=0) for user in users))
    for user in users:
        world.history.errors.update(user.producer.metrics().errors)
        await _nothing_is_left(world, user.producer)


def _users(world: World) -> list[User]:
    patient = User(world, "patient", **PATIENT)
    if world.plan.kind == IDEMPOTENT:
        return [patient, User(world, "impatient", **IMPATIENT)]
    if world.plan.kind == ACKS:
        world.history.acks_of = {"acks=1": 1, "acks=0": 0}
        weak = {"enable_idempotence": False, **PATIENT}
        return [
            patient,
            *(User(world, label, acks=acks, **weak) for label, acks in world.history.acks_of.items()),
        ]
    if world.plan.kind == COPY:
        return [patient, Copier(world, "copier", transactional_id="copier", **PATIENT)]
    payers = {"payer": PATIENT, "hasty payer": IMPATIENT, "hastier payer": HASTY}
    return [
        patient,
        *(TransactionalUser(world, label, transactional_id=label, **payers[label]) for label in payers),
        Owner(world, "owner", transactional_id="owner", **PATIENT),
    ]


async def _round(world: World, number: int, names: tuple[str, ...]) -> None:
    """Let the faults of a round strike together; return when the cluster has recovered and all producers make
    progress."""
    world.round_begins()
    async with asyncio.TaskGroup() as striking:
        for name in names:
            random = world.plan.random(f"{number}/{name}")
            striking.create_task(FAULTS[name].strike(world, random), name=name)
    await world.round_ends(names)


async def _nothing_is_left(world: World, producer: Producer) -> None:
    """Check that close() has left no task, no timer, no reserved byte, and no connection at any proxy."""
    try:
        await assert_nothing_left(producer)
        await until(lambda: not world.network.connections, seconds=10)
    except AssertionError as error:
        world.history.problems.append(f"close() left something: {error}")
    except TimeoutError:
        world.history.problems.append(f"close() left {world.network.connections} connections, or a timer")


async def _read(world: World) -> ReadLogs:
    """Read all logs with confluent-kafka, not through the proxies."""
    await world.settled()
    history = world.history
    ends = {topic: _ends(history, topic) for topic in PARTITIONS}

    async def read(topic: str, until: dict[int, int], *, committed_only: bool = False) -> Log:
        try:
            # A newly elected leader may not yet know how far its log is committed.
            return await read_back(world.internal_servers, topic, until=until, committed_only=committed_only)
        except TimeoutError:
            return await read_back(world.internal_servers, topic, committed_only=committed_only)

    for label in set(history.owners.values()):
        history.positions[label] = await world.position(label)
    if world.plan.kind == COPY:
        until = {partition: last + 1 for partition, last in history.copied_to.items()}
        copies = await read(COPIES, until, committed_only=True)
        history.copies = Counter(number_of(record.value) for log in copies.values() for record in log)
    return ReadLogs(
        {topic: await read(topic, ends[topic]) for topic in PARTITIONS},
        {topic: await read(topic, ends[topic], committed_only=True) for topic in PARTITIONS},
    )


def _ends(history: ChaosHistory, topic: str) -> dict[int, int]:
    """Return the length that each log of a topic must have, according to its producers."""
    ends: dict[int, int] = {}
    for sent in claimed(history):
        if sent.topic == topic and sent.offset is not None and sent.producer not in history.acks_of:
            assert sent.partition is not None  # it was acknowledged
            ends[sent.partition] = max(ends.get(sent.partition, 0), sent.offset + 1)
    return ends


def _keep_evidence(world: World) -> None:
    """Write the history of each record and transaction, and the brokers' segments, beside the brokers' logs."""
    history, directory = world.history, world.kafka.directory
    lines = [
        f"{transaction} by {history.owners.get(transaction.number)}" for transaction in history.transactions
    ]
    lines += [
        f"{sent.number} {sent.producer} {sent.topic}-{sent.partition} at {sent.offset}: {sent.told.value}, "
        f"transaction {sent.transaction and sent.transaction.number}, "
        f"from {sent.asked_at:.3f} to {sent.ended_at or math.nan:.3f}, {sent.error!r}"
        for sent in history.sent
    ]
    (directory / "history.txt").write_text("\n".join(lines) + "\n")
    with tarfile.open(directory / "segments.tar", "w") as archive:
        for segment in sorted(
            directory.glob("node-*/data/*/*.log")
        ):  # not the indexes, which are sparse files
            archive.add(segment, segment.relative_to(directory))


@asynccontextmanager
async def _lag(history: ChaosHistory) -> AsyncIterator[None]:
    """Measure how late the turns of the event loop are."""
    loop = asyncio.get_running_loop()

    async def measure() -> None:
        while True:
            due = loop.time() + 100 * MS
            await asyncio.sleep(100 * MS)
            history.worst_lag = max(history.worst_lag, loop.time() - due)

    measuring = asyncio.create_task(measure())
    try:
        yield
    finally:
        measuring.cancel()
        with suppress(asyncio.CancelledError):
            await measuring


@contextmanager
def _listening(world: World) -> Iterator[None]:
    """Write the producers' log beside the brokers' logs. An error in it or in the event loop is a bug."""
    logger = logging.getLogger("aioproducer")
    level, propagate = logger.level, logger.propagate
    to_file = logging.FileHandler(world.kafka.directory / "producers.log")
    to_file.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(name)s %(levelname)s %(message)s"))
    errors = _Errors(world.history)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: world.history.problems.append(f"event loop: {context}")
    )
    logger.addHandler(to_file)
    logger.addHandler(errors)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(to_file)
        logger.removeHandler(errors)
        logger.setLevel(level)
        logger.propagate = propagate
        to_file.close()
        asyncio.get_running_loop().set_exception_handler(None)


class _Errors(logging.Handler):
    """Records errors as problems of the schedule, unless they report records that the brokers have lost."""

    def __init__(self, history: ChaosHistory) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "aioproducer.sending.data_loss" and self._is_possible(record.getMessage()):
            return
        error = record.exc_info[1] if record.exc_info else None
        self._history.problems.append(f"log of {record.name}: {record.getMessage()} {error!r}")

    def _is_possible(self, loss: str) -> bool:
        """Return True if acknowledged records can be lost: with a re-created topic or, with acks=1, a lost leader."""
        return f"({MADE_ANEW}-" in loss or bool(self._history.acks_of)
