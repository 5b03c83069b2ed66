"""The users of a simulated producer: tasks that send, wait, cancel and flush, and transactions."""

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
    without_tracebacks,
)
from aioproducer.transactions.state import TransactionState
from tests.campaigns.simulation.faults import READ_FROM, TOPIC
from tests.campaigns.simulation.handoff import EXPORTED, RELEASED, end_by_heir, write_with_participant
from tests.campaigns.simulation.history import Ended, Sent, SimulatedTransaction, Told
from tests.campaigns.simulation.plan import V1, V2
from tests.campaigns.simulation.world import GROUP_PARTITIONS, World

RECOVERY = 15.0
"""Seconds after the last fault within which everything works again: longer than any plan's longest back-off, metadata
age and request time-out together."""

PLACES = [TopicPartition(TOPIC, 0), *(TopicPartition(READ_FROM, index) for index in range(GROUP_PARTITIONS))]
"""Partitions in which the consumer group may have a position."""

MOST_ROWS = 12
"""The maximum number of rows in one `send_many`."""

MOST_ATTEMPTS = 40
"""How often a user tries a transactional call."""


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
        self._partitions: list[int] = []
        """The partitions that may be written to while a participant writes to the others; empty to follow the plan."""

    async def run(self) -> None:
        """Work until everything is sent or the producer is closed."""
        if self._plan.is_transactional:
            try:
                await self._run_transactions()
            except asyncio.CancelledError:
                self.problem("a transactional call was cancelled, but not by a user")
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
            if transaction is None and random.random() < 2 / self._plan.records:
                await asyncio.sleep(self._plan.idle)
            try:
                await self._send_one(task, random, transaction)
            except (IllegalStateError, TransactionError):
                return  # closed, or the transaction has failed
            except KafkaError:
                pass

    async def _send_one(self, task: int, random: Random, transaction: SimulatedTransaction | None) -> None:
        if random.random() < 0.02:
            await self._flush(random)
        if random.random() < 0.03:
            await self._send_many(task, random, transaction)
            return
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

    async def _send_many(self, task: int, random: Random, transaction: SimulatedTransaction | None) -> None:
        """Send several records in one call, which is sometimes cancelled or has its own timeout."""
        rows = [self._record(task, random, transaction) for _ in range(random.randint(1, MOST_ROWS))]
        columns = {
            f"{name}s".replace("_mss", "s"): [record[name] for _, record in rows] for name in rows[0][1]
        }
        for sent, _ in rows:
            sent.call_due += self._max_block * len(rows)  # it may wait for room for each row
        timeout = None
        if transaction is None and self._plan.cancels and random.random() < 0.5:
            timeout = random.choice([0.001, 0.05, 1.0])
            for sent, _ in rows:
                sent.call_due = min(sent.call_due, self._loop.time() + timeout)
        call = self.producer.send_many(TOPIC, **columns, timeout=timeout)
        try:
            if random.random() < self._plan.cancels:
                receipt = await self._impatient(call, random)
            else:
                receipt = await call
        except KafkaError as error:
            for sent, _ in rows:
                self._refused(sent, error)
            raise
        except TimeoutError:
            for sent, _ in rows:
                sent.told = Told.GAVE_UP_ASKING
            self.world.history.lost_receipts = True
            return
        self.world.receipts.append(receipt)
        for row, (sent, _) in enumerate(rows):
            try:
                delivery = receipt.delivery(row)
            except KafkaError as error:
                self._refused(sent, error)
                sent.buffered_at = (
                    self._loop.time()
                )  # no exception was raised: its transaction can't be committed
            else:
                self._take(sent, delivery, timeout)
        if random.random() < 0.3:
            await receipt.wait()

    def _record(
        self, task: int, random: Random, transaction: SimulatedTransaction | None
    ) -> tuple[Sent, dict[str, Any]]:
        plan, now = self._plan, self._loop.time()
        number = len(self.world.history.sent)
        filler = random.randint(*plan.sizes)
        # Half of the value can be compressed.
        value = (b"%d " % number) + random.randbytes(filler // 2) + bytes(filler - filler // 2)
        record: dict[str, Any] = {"value": value, "timestamp_ms": int(self.world.wall_time() * 1000)}
        partition = None
        if self._partitions:
            record["partition"] = partition = random.choice(self._partitions)
        elif plan.placement == "explicit":
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
            sent.own_due = sent.asked_at + timeout
            due = min(due, sent.own_due)
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
        """Check after the last fault that every partition accepts a record within RECOVERY seconds."""
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
            if random.random() < 0.5:
                await asyncio.sleep(self._plan.idle)
            if not await self._begin():
                return
            transaction = SimulatedTransaction(len(self.world.history.transactions))
            self.world.history.transactions.append(transaction)
            try:
                await self._write_and_end(transaction, random)
            except IllegalStateError:
                return  # closed meanwhile
            except KafkaError as error:
                transaction.error = without_tracebacks(error)  # as in Sent.failed
                transaction.ended = (
                    Ended.UNKNOWN if isinstance(error, CommitOutcomeUnknownError) else Ended.ABORTED
                )

    async def _write_and_end(self, transaction: SimulatedTransaction, random: Random) -> None:
        """Write and commit, or leave the abort to the next _begin(). Some transactions are shared with other
        producers."""
        hand_off = self._plan.random(f"{self.label}/hand-off/{transaction.number}")
        is_exported = hand_off.random() < EXPORTED
        if is_exported:
            transaction.ended = Ended.ABORTED  # until a commit is tried
            if not await write_with_participant(self, transaction, hand_off):
                return
        else:
            await self._run_tasks(transaction)
        if random.random() < 0.5:
            await self._send_offsets(transaction, random)
        if random.random() < 0.15:
            transaction.ended = Ended.ABORTED
        elif not is_exported and hand_off.random() < RELEASED:
            await end_by_heir(self, transaction, hand_off)
        else:
            await self._commit(transaction, random)

    async def write(self, transaction: SimulatedTransaction, partitions: list[int]) -> None:
        """Send the plan's records to these partitions only."""
        self._partitions = partitions
        try:
            await self._run_tasks(transaction)
        finally:
            self._partitions = []

    async def _send_offsets(self, transaction: SimulatedTransaction, random: Random) -> None:
        """Send positions of some partitions, in one call or two. They may be lower than earlier ones; none is sent
        twice."""
        chosen = random.sample(PLACES, random.randint(1, len(PLACES)))
        positions = {place: random.randrange(1000) * 1000 + transaction.number for place in chosen}
        first = random.randint(1, len(chosen))
        for part in chosen[:first], chosen[first:]:
            if not part:
                continue
            offsets = {place: positions[place] for place in part}
            transaction.offsets.update(offsets)
            call = asyncio.ensure_future(self.producer.send_offsets_to_transaction(offsets, self._plan.group))
            if random.random() < self._plan.cancels:
                # The request continues once it has begun, and the end of the transaction waits for it.
                await asyncio.wait([call], timeout=random.choice([0.0001, 0.001, 0.1]))
                if call.cancel():
                    continue
            await call
        self.world.offsets_were_sent()

    async def _commit(self, transaction: SimulatedTransaction, random: Random) -> None:
        began = self._loop.time()
        transaction.ended = Ended.UNKNOWN  # until the commit is answered
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
        """Repeat a cancelled commit call. The commit itself continues, and the new call joins it or finds it
        finished."""
        try:
            await self.producer.commit_transaction()
        except IllegalStateError as error:
            if isinstance(error, ProducerClosed) or self._state is not TransactionState.READY:
                raise
        transaction.ended = Ended.COMMITTED

    @property
    def _state(self) -> TransactionState:
        return self.producer._transaction.state

    def _check_version(self) -> None:
        """Check that the transaction uses the version that the cluster has finalized, if that does not change during
        the run."""
        is_v2 = self.producer._transaction.is_v2
        if self._plan.upgraded_at is None and is_v2 is not (self._plan.kind == V2):
            self.problem(f"a transaction runs as {V2 if is_v2 else V1}; the cluster offers {self._plan.kind}")

    async def _begin(self) -> bool:
        """Do what is necessary before the next transaction. Return False if no transaction can begin."""
        for _ in range(MOST_ATTEMPTS):
            try:
                if self._state is TransactionState.READY:
                    await self.producer.begin_transaction()
                    self._check_version()
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
            except KafkaError as error:
                if not self._plan.is_disturbed:
                    self.problem(f"a transactional call failed for no reason: {error!r}")
                if isinstance(error, TransactionTimeoutError):
                    continue
                if not isinstance(error, TransactionError):
                    self.problem(f"a transactional call raised {error!r}")
                await asyncio.sleep(0.05)
        return False
