"""The environment of a scenario of the fault catalogue: a cluster, a producer, virtual time, and an oracle.

A scenario is a coroutine function that is registered under the ids of its faults in the catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from aioproducer import Outcome, Producer, TopicPartition
from aioproducer.errors import KafkaError
from aioproducer.protocol.api import ApiKey
from aioproducer.testing.embedded.broker import BrokerState
from aioproducer.testing.embedded.topics import Partition
from aioproducer.testing.simulation.loop import SimulatedLoop
from tests.campaigns.simulation.faults import TOPIC
from tests.campaigns.simulation.history import Ended, Sent, SimulatedTransaction, Told
from tests.campaigns.simulation.plan import IDEMPOTENT, KIND_SETTINGS, Plan, plan
from tests.campaigns.simulation.run import Result, playing
from tests.campaigns.simulation.world import World

T = TypeVar("T")

SETTINGS: dict[str, Any] = {
    "linger_ms": 0,
    "batch_size": 1,  # each record has its own batch
    "request_timeout_ms": 1000,
    "delivery_timeout_ms": 20_000,
    "max_block_ms": 5000,
    "retry_backoff_ms": 50,
    "retry_backoff_max_ms": 500,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 500,
}


class Stage:
    """The objects and calls that a scenario may use."""

    def __init__(self, world: World, producer: Producer, random: Random) -> None:
        self.world = world
        self.producer = producer
        self.random = random
        self.cluster = world.cluster
        self.loop: SimulatedLoop = world.loop
        self.faults = world.cluster.faults
        self.network = world.loop.network
        self.history = world.history

    # Records

    async def send(self, count: int = 1, *, partition: int = 0, size: int = 10, **more: Any) -> list[Sent]:
        """Send records and record their results, including exceptions of `send`."""
        transaction = self.history.transactions[-1] if self.history.transactions else None
        return [await self._send_one(partition, size, transaction, more) for _ in range(count)]

    async def _send_one(
        self, partition: int, size: int, transaction: SimulatedTransaction | None, more: dict[str, Any]
    ) -> Sent:
        settings, now = self.world.plan.settings, self.loop.time()
        number = len(self.history.sent)
        due = now + settings["max_block_ms"] / 1000
        sent = Sent(number, "producer", 0, TOPIC, partition, transaction, now, due)
        self.history.sent.append(sent)
        try:
            delivery = await self.producer.send(
                TOPIC,
                (b"%d " % number).ljust(size, b"."),
                partition=partition,
                timestamp_ms=int(self.world.wall_time() * 1000),
                **more,
            )
        except KafkaError as error:
            sent.failed(error)
        else:
            now = self.loop.time()
            limit = more.get("timeout") or settings["delivery_timeout_ms"] / 1000
            sent.buffered(delivery, now, now + limit)
            sent.delivery = delivery
        return sent

    async def told(self, records: list[Sent]) -> list[Told]:
        """Wait for the results of these records, and return them."""
        waiting = [sent.delivery for sent in records if sent.delivery is not None]
        if waiting:
            await asyncio.wait(waiting)
        return [sent.told for sent in records]

    async def delivered(self, records: list[Sent]) -> None:
        """Check that all of them are acknowledged."""
        told = await self.told(records)
        assert set(told) <= {Told.ACKNOWLEDGED}, [(sent.told, sent.error) for sent in records]

    async def warm_up(self, partitions: int = 1) -> None:
        """Send one record to each partition: afterwards its leader knows the producer, and five batches may be in
        flight."""
        for partition in range(partitions):
            await self.delivered(await self.send(partition=partition))

    # The cluster

    def partition(self, index: int = 0) -> Partition:
        return self.cluster.partition(TOPIC, index)

    def port(self, node: int = 0) -> int:
        return self.cluster.broker(node).port

    def requests(self, api: ApiKey = ApiKey.PRODUCE, node: int | None = None) -> int:
        """Return how many requests of one kind the brokers have read."""
        return len(self.cluster.requests_of(api, node))

    @property
    def connections(self) -> int:
        """The number of connections that the producer has made."""
        return sum(node.connects for node in self.producer.metrics().nodes)

    @property
    def failed_connects(self) -> int:
        """The number of failed connection attempts."""
        nodes = self.producer._metrics.nodes.values()
        return sum(node.connect_failures for node in nodes)

    def stop(self, node: int) -> None:
        self.cluster.crash_broker(node)

    async def start(self, node: int, **more: Any) -> None:
        if self.cluster.broker(node).state is BrokerState.STOPPED:
            await self.cluster.start_broker(node, **more)

    # Transactions

    async def begin(self) -> SimulatedTransaction:
        """Begin a transaction; records sent from now on belong to it."""
        transaction = SimulatedTransaction(len(self.history.transactions))
        await self.producer.begin_transaction()
        self.history.transactions.append(transaction)
        return transaction

    async def commit(self) -> None:
        """Commit the transaction; record and raise any error."""
        transaction = self.history.transactions[-1]
        transaction.ended = Ended.UNKNOWN
        try:
            await self.producer.commit_transaction()
        except KafkaError as error:
            transaction.error = error
            if getattr(error, "outcome", None) is Outcome.NOT_PERSISTED:
                transaction.ended = Ended.ABORTED
            raise
        transaction.ended = Ended.COMMITTED

    async def send_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        """Send the group's positions, to be committed with the transaction."""
        self.history.transactions[-1].offsets.update(offsets)
        await self.producer.send_offsets_to_transaction(offsets, self.world.plan.group)

    async def abort(self) -> None:
        self.history.transactions[-1].ended = Ended.ABORTED
        await self.producer.abort_transaction()

    async def transact(self, count: int = 1, partition: int = 0) -> None:
        """Play one whole transaction, which must succeed."""
        await self.begin()
        records = await self.send(count, partition=partition)
        await self.commit()
        await self.delivered(records)

    async def raises(self, kind: type[BaseException], waited_for: Awaitable[T]) -> Any:
        """Check that this exception is raised, and return it."""
        try:
            result = await waited_for
        except kind as error:
            return error
        raise AssertionError(f"{kind.__name__} was not raised; the call returned {result!r}")


Play = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """A scenario and the environment that it needs."""

    ids: tuple[str, ...]
    play: Play
    kind: str
    brokers: int
    partitions: int
    settings: dict[str, Any] = field(default_factory=dict)
    versions: str = "4.1"
    min_insync_replicas: int = 1
    starts: bool = True
    """True if the producer is started before the scenario."""

    @property
    def name(self) -> str:
        return self.play.__name__

    def plan(self, seed: int) -> Plan:
        settings = {**SETTINGS, **KIND_SETTINGS[self.kind], **self.settings}
        return replace(
            plan(self.kind, seed),
            brokers=self.brokers,
            partitions=self.partitions,
            versions=self.versions,
            min_insync_replicas=self.min_insync_replicas,
            settings=settings,
            faults=[],
            close="drain",
            close_at=None,
            cancels=0.1,  # it counts as disturbed, because of what the scenario does
            transaction_timeout_ms=settings.get("transaction_timeout_ms", 60_000),
        )


SCENARIOS: list[Scenario] = []


def scenario(
    *ids: str, kind: str = IDEMPOTENT, brokers: int = 1, partitions: int = 1, **more: Any
) -> Callable[[Play], Play]:
    """Register a scenario under ids of the catalogue. Other keywords are fields of Scenario, or settings."""
    fields = {name: more.pop(name) for name in ("versions", "min_insync_replicas", "starts") if name in more}

    def register(play: Play) -> Play:
        SCENARIOS.append(Scenario(ids, play, kind, brokers, partitions, more, **fields))
        return play

    return register


def play(which: Scenario, seed: int) -> Result:
    """Play a scenario with a seed and judge it."""

    async def scene(world: World, producer: Producer) -> None:
        await which.play(Stage(world, producer, world.plan.random(which.name)))

    return playing(which.plan(seed), scene, starts=which.starts)
