"""The users of the producers, who work while faults strike: tasks that send, and transactions one after the other."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from aioproducer import CommitOutcomeUnknownError, Delivery, Producer, TopicPartition
from aioproducer.errors import KafkaError, TransactionError, TransactionTimeoutError, without_tracebacks
from aioproducer.transactions.state import TransactionState
from tests.campaigns.chaos.world import GROWING, MADE_ANEW, PARTITIONS, STEADY, World
from tests.campaigns.simulation.history import Ended, Sent, SimulatedTransaction, Told
from tests.conftest import MS

BURST = 3
PAUSE = 100 * MS
"""Each task sends BURST records and pauses."""
KEYS = 16
"""The number of different keys that a task uses; together they reach all partitions."""
FILLER = 500
"""The maximum number of bytes in a record besides its number."""
SLACK = 10_000 * MS
"""Seconds by which a call or a delivery may be late, on a machine that also runs three brokers."""
ABORTED = 0.2
"""The share of transactions that their user aborts."""
WITH_OFFSETS = 0.5
"""The share of transactions that include a position of the group."""


class User:
    """One producer and the tasks that send with it."""

    def __init__(self, world: World, label: str, **settings: Any) -> None:
        self.world = world
        self.label = label
        self.settings = settings
        self.producer = world.producer(**settings)
        self._config = self.producer.config
        self._random = world.plan.random(label)
        self._is_stopped = asyncio.Event()

    def stop(self) -> None:
        """Send no more records and begin no more transactions."""
        self._is_stopped.set()

    async def run(self) -> None:
        """Send until stopped."""
        async with asyncio.TaskGroup() as tasks:
            for number, topic in enumerate((STEADY, STEADY, GROWING, MADE_ANEW)):
                tasks.create_task(self._keep_sending(number, topic), name=f"user {self.label}/{number}")

    async def _keep_sending(self, task: int, topic: str) -> None:
        while not self._is_stopped.is_set():
            for _ in range(BURST):
                try:
                    await self.send(task, topic, None)
                except KafkaError:
                    pass  # the failure is recorded: this record must not be in the log
            await self.pause(PAUSE)

    async def pause(self, seconds: float) -> None:
        """Wait, or return at once when stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_stopped.wait()
        except TimeoutError:
            pass

    async def send(
        self,
        task: int,
        topic: str,
        transaction: SimulatedTransaction | None,
        *,
        participant: Producer | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Send one record, perhaps through a participant in the transaction, and record its result."""
        history = self.world.history
        now = asyncio.get_running_loop().time()
        number = len(history.sent)
        call_due = now + self._config.max_block + SLACK
        label = self.label if participant is None else f"{self.label}'s participant"
        sent = Sent(number, label, task, topic, None, transaction, now, call_due)
        history.sent.append(sent)
        try:
            value = b"%d " % number + self._random.randbytes(self._random.randrange(FILLER))
            key = b"%d" % self._random.randrange(KEYS)
            delivery = await (participant or self.producer).send(topic, value, key=key, partition=partition)
        except KafkaError as error:
            self._refused(sent, error)
            raise
        now = asyncio.get_running_loop().time()
        sent.buffered(delivery, now, now + self._config.delivery_timeout + SLACK)
        delivery.add_done_callback(lambda _: self._ended(sent))
        return delivery

    def _ended(self, sent: Sent) -> None:
        history = self.world.history
        history.latest = max(history.latest, sent.ended_at - (sent.due - SLACK))
        if sent.told is Told.ACKNOWLEDGED:
            self.world.acked(sent)

    def _refused(self, sent: Sent, error: KafkaError) -> None:
        sent.failed(error)
        problems = self.world.history.problems
        if sent.told is not Told.NOT_PERSISTED:
            problems.append(f"send raised {error!r}, which does not say that nothing was buffered")
        sent.told = Told.NOT_PERSISTED
        late = asyncio.get_running_loop().time() - sent.call_due
        if late > 0:
            problems.append(f"send raised {error!r} {late:.3f} s too late")


class TransactionalUser(User):
    """Runs transactions of several records, one after the other."""

    async def run(self) -> None:
        """Run transactions until stopped."""
        random = self._random
        loop = asyncio.get_running_loop()
        self.world.committed_since[self.label] = 0.0
        for number in itertools.count():
            if self._is_stopped.is_set():
                return
            if not await self._begin():
                continue
            transaction = SimulatedTransaction(len(self.world.history.transactions))
            self.world.history.transactions.append(transaction)
            self.world.history.owners[transaction.number] = self.label
            begun_at = loop.time()
            try:
                await self._write(number, transaction)
                if random.random() < WITH_OFFSETS:
                    position = {TopicPartition(STEADY, 0): number}
                    await self.producer.send_offsets_to_transaction(position, self.label)
                    transaction.offset = number
                if random.random() < ABORTED:
                    transaction.ended = Ended.ABORTED
                    await self.producer.abort_transaction()
                    continue
                transaction.ended = Ended.UNKNOWN  # until the commit is answered
                await self._commit()
            except KafkaError as error:
                transaction.error = without_tracebacks(error)  # as in Sent.failed
                is_unknown = isinstance(error, CommitOutcomeUnknownError)
                transaction.ended = Ended.UNKNOWN if is_unknown else Ended.ABORTED
            else:
                transaction.ended = Ended.COMMITTED
                self.world.committed(self.label, begun_at)
            await self.pause(20 * MS)

    async def _write(self, number: int, transaction: SimulatedTransaction) -> None:
        """Send the records of the transaction."""
        random = self._random
        for _ in range(random.randint(2, 20)):
            await self.send(number, random.choice((STEADY, GROWING)), transaction)
            if random.random() < 0.2:
                await self.pause(random.uniform(0, 50 * MS))

    async def _commit(self) -> None:
        is_v2 = self.producer._transaction.is_v2
        # Time for the deliveries, the EndTxn and, with v1, a new epoch after an EndTxn that was sent twice.
        limit = self._config.delivery_timeout + 2 * self._config.max_block + SLACK
        async with asyncio.timeout(limit):
            await self.producer.commit_transaction()
        self.world.history.levels["v2" if is_v2 else "v1"] += 1

    async def _begin(self) -> bool:
        """Begin a transaction, or do what must come first. Return False if the call must be repeated."""
        state = self.producer._transaction.state
        try:
            if state is TransactionState.READY:
                await self.producer.begin_transaction()
                return True
            if state in (
                TransactionState.IN_TRANSACTION,
                TransactionState.ABORT_REQUIRED,
                TransactionState.ABORTING,
            ):
                await self.producer.abort_transaction()
            else:
                await self.producer.init_transactions()
        except TransactionTimeoutError:
            pass
        except KafkaError as error:
            if not isinstance(error, TransactionError):
                self.world.history.problems.append(f"a transactional call raised {error!r}")
            await self.pause(50 * MS)
        return False


class Owner(TransactionalUser):
    """A user whose transactions each have a participant: another producer, which writes some of the records and is
    closed before the transaction ends."""

    async def _write(self, number: int, transaction: SimulatedTransaction) -> None:
        random = self._random
        taken = random.sample(range(PARTITIONS[STEADY]), random.randint(1, 3))
        places = [TopicPartition(STEADY, partition) for partition in taken]
        for _ in range(random.randint(0, 3)):
            await self.send(number, GROWING, transaction)
        handle = await self.producer.export_transaction(places)
        participant = self.world.participant(handle, places, self.settings)
        try:
            await participant.start()
            deliveries = [
                await self.send(
                    number, STEADY, transaction, participant=participant, partition=random.choice(taken)
                )
                for _ in range(random.randint(1, 10))
            ]
            await participant.flush()
            for delivery in deliveries:
                await delivery  # the owner commits only if everything was delivered
        finally:
            await participant.close(timeout=0)
