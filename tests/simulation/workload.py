"""What the users of a simulated producer do: tasks that send, wait, cancel and flush, and transactions."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from aioproducer import CommitOutcomeUnknownError, Delivery, Producer, TopicPartition
from aioproducer.errors import (
    BufferFullError,
    IllegalStateError,
    KafkaError,
    ProducerClosed,
    TransactionError,
    TransactionTimeoutError,
)
from aioproducer.transaction import TransactionState
from tests.simulation.faults import TOPIC
from tests.simulation.history import Ended, Sent, SimulatedTransaction, Told
from tests.simulation.world import World

RECOVERY = 15.0
"""Seconds after the last fault within which everything works again: the longest back-off, metadata age and request
time-out of any plan follow each other in it."""

PATIENCE = 40
"""How often a transactional call is made again before its user gives up."""


class Workload:
    """The users of one producer."""

    def __init__(self, world: World, producer: Producer, label: str = "producer") -> None:
        self.world = world
        self.producer = producer
        self.label = label
        self._plan = world.plan
        self._loop = world.loop
        self._max_block = self._plan.settings["max_block_ms"] / 1000
        self._delivery_timeout = self._plan.settings["delivery_timeout_ms"] / 1000
        self._cancelled: list[asyncio.Task[Any]] = []

    async def run(self) -> None:
        """Until everything is sent, or the producer is closed."""
        if self._plan.is_transactional:
            try:
                await self._run_transactions()
            except asyncio.CancelledError:
                self.problem("a transactional call was cancelled, and by nobody")
        else:
            await self._run_tasks(None)

    async def _run_tasks(self, transaction: SimulatedTransaction | None) -> None:
        async with asyncio.TaskGroup() as group:
            for task in range(self._plan.tasks):
                random = self._plan.random(f"{self.label}/{task}/{transaction.number if transaction else ''}")
                group.create_task(self._send_all(task, random, transaction), name=f"user {task}")

    async def _send_all(self, task: int, random: Random, transaction: SimulatedTransaction | None) -> None:
        for _ in range(self._plan.records):
            if self._plan.pause:
                await asyncio.sleep(random.uniform(0, self._plan.pause))
            try:
                await self._send_one(task, random, transaction)
            except (IllegalStateError, TransactionError):
                return  # closed, or the transaction has failed
            except KafkaError:
                pass

    async def _send_one(self, task: int, random: Random, transaction: SimulatedTransaction | None) -> None:
        if random.random() < 0.02:
            await self._flush(random)
        sent, record = self._record(task, random, transaction)
        chance = random.random()
        patience = self._plan.cancels
        try:
            if chance < patience / 3:
                delivery = await self._impatient(self.producer.send(TOPIC, **record), random)
            elif chance < patience * 2 / 3 and transaction is None:
                timeout = random.choice([0.001, 0.05, 1.0])
                sent.call_due = min(sent.call_due, self._loop.time() + timeout)
                delivery = await self.producer.send(TOPIC, **record, timeout=timeout)
                self._take(sent, delivery, timeout)
                return
            elif chance > 0.9:
                delivery = self.producer.try_send(TOPIC, **record)
            else:
                delivery = await self.producer.send(TOPIC, **record)
        except KafkaError as error:
            self._refused(sent, error)
            raise
        except TimeoutError:
            sent.told = Told.GAVE_UP_ASKING
            return
        self._take(sent, delivery)
        if patience * 2 / 3 < chance < patience:
            self._loop.call_later(random.uniform(0, 0.2), delivery.cancel)
        elif chance > 0.97:
            await asyncio.wait([delivery])

    def _record(
        self, task: int, random: Random, transaction: SimulatedTransaction | None
    ) -> tuple[Sent, dict[str, Any]]:
        plan, now = self._plan, self._loop.time()
        number = len(self.world.history.sent)
        filler = random.randint(*plan.sizes)
        # Half of it can be compressed.
        value = (b"%d " % number) + random.randbytes(filler // 2) + bytes(filler - filler // 2)
        record: dict[str, Any] = {"value": value, "timestamp_ms": int(self.world.wall_time() * 1000)}
        partition = None
        if plan.placement == "explicit":
            record["partition"] = partition = random.randrange(plan.partitions)
        elif plan.placement == "by key":
            record["key"] = b"%d" % random.randrange(4)
        sent = Sent(number, self.label, task, TOPIC, partition, transaction, now, now + self._max_block)
        self.world.history.sent.append(sent)
        return sent, record

    def _take(self, sent: Sent, delivery: Delivery, timeout: float | None = None) -> None:
        now = self._loop.time()
        due = now + self._delivery_timeout
        if timeout is not None:
            due = min(due, sent.asked_at + timeout)
        sent.buffered(delivery, now, due)

    def _refused(self, sent: Sent, error: KafkaError) -> None:
        sent.failed(error)
        if sent.told is not Told.NOT_PERSISTED and not isinstance(error, IllegalStateError):
            self.problem(f"send raised {error!r}, which does not say that nothing was buffered")
        sent.told = Told.NOT_PERSISTED
        if self._loop.time() > sent.call_due + 0.002:
            self.problem(f"send took {self._loop.time() - sent.asked_at:.3f} s to raise {error!r}")
        if isinstance(error, IllegalStateError | BufferFullError):
            return

    async def _impatient(self, call: Any, random: Random) -> Any:
        return await asyncio.wait_for(call, random.choice([0, 0.001, 0.1]))

    async def _flush(self, random: Random) -> None:
        try:
            await self.producer.flush(timeout=random.choice([0.05, None]))
        except (KafkaError, TimeoutError):
            pass

    def problem(self, sentence: str) -> None:
        self.world.history.problems.append(sentence)

    async def go_on(self) -> None:
        """Nothing is wrong any more: every partition takes a record within RECOVERY seconds."""
        began = self._loop.time()
        failed: BaseException | None = None
        while self._loop.time() < began + RECOVERY:
            try:
                if self._plan.is_transactional:
                    await self._go_on_in_a_transaction()
                else:
                    await self._probe(None)
                return
            except KafkaError as error:
                failed = error
                await asyncio.sleep(0.05)
        self.problem(f"{RECOVERY:g} s after the last fault: {failed!r}")

    async def _go_on_in_a_transaction(self) -> None:
        if not await self._begin():
            raise IllegalStateError(f"no transaction can begin, the producer is {self._state.value}")
        transaction = SimulatedTransaction(len(self.world.history.transactions))
        self.world.history.transactions.append(transaction)
        transaction.ended = Ended.ABORTED
        await self._probe(transaction)
        transaction.ended = Ended.UNKNOWN
        try:
            await self.producer.commit_transaction()
        except KafkaError as error:
            if not isinstance(error, CommitOutcomeUnknownError):
                transaction.ended = Ended.ABORTED
            raise
        transaction.ended = Ended.COMMITTED

    async def _probe(self, transaction: SimulatedTransaction | None) -> None:
        random = self._plan.random("probe")
        deliveries = []
        for partition in range(self._plan.partitions):
            sent, record = self._record(-1, random, transaction)
            sent.partition = record["partition"] = partition
            try:
                delivery = await self.producer.send(TOPIC, **record)
            except KafkaError as error:
                self._refused(sent, error)
                raise
            self._take(sent, delivery)
            deliveries.append(delivery)
        await asyncio.wait(deliveries)
        for delivery in deliveries:
            delivery.result()

    # Transactions

    async def _run_transactions(self) -> None:
        random = self._plan.random(f"{self.label}/transactions")
        for _ in range(self._plan.transactions):
            if not await self._begin():
                return
            transaction = SimulatedTransaction(len(self.world.history.transactions))
            self.world.history.transactions.append(transaction)
            await self._run_tasks(transaction)
            try:
                if random.random() < 0.3:
                    transaction.offset = transaction.number + 1
                    await self.producer.send_offsets_to_transaction(
                        {TopicPartition(TOPIC, 0): transaction.offset}, self._plan.group
                    )
                if random.random() < 0.15:
                    transaction.ended = Ended.ABORTED
                else:
                    await self._commit(transaction, random)
            except IllegalStateError:
                return  # closed meanwhile
            except KafkaError as error:
                transaction.error = error
                transaction.ended = (
                    Ended.UNKNOWN if isinstance(error, CommitOutcomeUnknownError) else Ended.ABORTED
                )

    async def _commit(self, transaction: SimulatedTransaction, random: Random) -> None:
        began = self._loop.time()
        transaction.ended = Ended.UNKNOWN  # as long as nobody has said anything
        if random.random() < self._plan.cancels:
            try:
                await self._impatient(self.producer.commit_transaction(), random)
            except TimeoutError as error:
                if isinstance(error, KafkaError):
                    raise
                await self._joined(transaction)
                return
        else:
            await self.producer.commit_transaction()
        transaction.ended = Ended.COMMITTED
        # After an EndTxn that had to be sent twice, a v1 commit takes a new epoch as well.
        limit = self._delivery_timeout + 2 * self._max_block
        if self._loop.time() - began > limit + 0.1:
            self.problem(
                f"commit_transaction took {self._loop.time() - began:.3f} s, the limit is {limit:g} s"
            )

    async def _joined(self, transaction: SimulatedTransaction) -> None:
        """A commit was cancelled and goes on; the same call joins it, or finds it at an end."""
        try:
            await self.producer.commit_transaction()
        except IllegalStateError as error:
            if isinstance(error, ProducerClosed) or self._state is not TransactionState.READY:
                raise
        transaction.ended = Ended.COMMITTED

    @property
    def _state(self) -> TransactionState:
        return self.producer._transaction.state

    async def _begin(self) -> bool:
        """Do whatever has to come before the next transaction; False if there will be none."""
        for _ in range(PATIENCE):
            try:
                if self._state is TransactionState.READY:
                    await self.producer.begin_transaction()
                    return True
                if self._state in (
                    TransactionState.IN_TRANSACTION,
                    TransactionState.ABORT_REQUIRED,
                    TransactionState.ABORTING,
                ):
                    await self.producer.abort_transaction()
                else:
                    await self.producer.init_transactions()
            except IllegalStateError:
                return False  # closed
            except TransactionTimeoutError:
                pass
            except KafkaError as error:
                if not isinstance(error, TransactionError):
                    self.problem(f"a transactional call raised {error!r}")
                await asyncio.sleep(0.05)
        return False
