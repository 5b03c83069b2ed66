"""Copies a topic, each record exactly once: one transaction contains the copies of some records and their offsets.

Now and then the copier is replaced as if its process had been killed: another producer takes over its transactional id
and continues at the group's position."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from aioproducer import Delivery, TopicPartition
from aioproducer.errors import KafkaError
from aioproducer.transactions.state import TransactionState
from tests.campaigns.chaos.workload import TransactionalUser
from tests.campaigns.chaos.world import COPIES, PARTITIONS, STEADY, World
from tests.conftest import MS

SOME = 200
"""The maximum number of records in a transaction."""
BOUNCED = 0.1
"""The share of transactions during which the copier is replaced."""
PLACES = [TopicPartition(STEADY, partition) for partition in range(PARTITIONS[STEADY])]


class Copier(TransactionalUser):
    """Copies from the steady topic to the topic of copies. It stops when nothing is left to copy."""

    def __init__(self, world: World, label: str, **settings: Any) -> None:
        super().__init__(world, label, **settings)
        self._next: dict[TopicPartition, int] = {}
        """The next offset to copy in each partition, as committed."""

    async def run(self) -> None:
        """Copy until stopped, and then until nothing is left to copy."""
        self.world.committed_since[self.label] = 0.0
        consumer = Consumer(
            {
                "bootstrap.servers": self.world.internal_servers,
                "group.id": self.label,
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        try:
            is_placed = False
            while True:
                try:
                    if not is_placed:
                        await self._place(consumer)
                    is_placed = await self._copy(consumer)
                    if is_placed and self._is_stopped.is_set() and await self._is_done(consumer):
                        return
                except KafkaError:
                    is_placed = False
                    await self._recover()
                except KafkaException:
                    await asyncio.sleep(100 * MS)  # the consumer can't reach any broker
        finally:
            await asyncio.to_thread(consumer.close)

    async def _place(self, consumer: Consumer) -> None:
        """Continue reading where the last committed transaction stopped."""
        committed = await self.producer.committed(self.label, PLACES)
        self._next = {place: 0 if found is None else found.offset for place, found in committed.items()}
        consumer.assign([Position(*place, offset) for place, offset in self._next.items()])

    async def _copy(self, consumer: Consumer) -> bool:
        """Copy some records in one transaction, if there are any. Return False if the copier was replaced."""
        begun_at = asyncio.get_running_loop().time()
        messages: list[Message] = await asyncio.to_thread(consumer.consume, SOME, 200 * MS)
        messages = [message for message in messages if message.error() is None]
        if not messages:
            return True
        await self.producer.begin_transaction()
        deliveries = [
            await self.producer.send(COPIES, message.value(), key=message.key()) for message in messages
        ]
        for delivery in deliveries:
            delivery.add_done_callback(_looked_at)  # no other code reads them if the transaction is abandoned
        if self._random.random() < BOUNCED:
            await self._replace()
            return False
        read = {TopicPartition(STEADY, message.partition()): message.offset() + 1 for message in messages}
        await self.producer.send_offsets_to_transaction(read, self.label)
        await self._commit()
        self._next.update(read)
        for copied in [delivery.result() for delivery in deliveries]:
            self.world.history.copied_to[copied.partition] = copied.offset
        self.world.committed(self.label, begun_at)
        return True

    async def _replace(self) -> None:
        """Let a successor fence this producer while its records are still on their way."""
        self.world.history.replaced += 1
        old = self.producer
        while True:
            self.producer = self.world.producer(**self.settings)
            try:
                await self.producer.start()
                break
            except KafkaError:
                await asyncio.sleep(100 * MS)
        await old.close(timeout=0)

    async def _recover(self) -> None:
        """Bring the producer into the state in which it may begin a transaction."""
        while self.producer._transaction.state is not TransactionState.READY:
            state = self.producer._transaction.state
            with suppress(KafkaError):
                if state in (
                    TransactionState.IN_TRANSACTION,
                    TransactionState.ABORT_REQUIRED,
                    TransactionState.ABORTING,
                ):
                    await self.producer.abort_transaction()
                else:
                    await self.producer.init_transactions()
            await asyncio.sleep(20 * MS)

    async def _is_done(self, consumer: Consumer) -> bool:
        """Return True if everything is copied. The source topic contains no transactions, so there are no markers in
        its log."""
        for place, offset in self._next.items():
            _, end = await asyncio.to_thread(consumer.get_watermark_offsets, Position(*place), 5.0)
            if offset < end:
                return False
        return True


def _looked_at(delivery: Delivery) -> None:
    if not delivery.cancelled():
        delivery.exception()
