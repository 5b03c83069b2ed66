"""Transactions that several producers share: participants write to them, and heirs end released ones."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from aioproducer import CommitOutcomeUnknownError, Producer, ProducerClosed, TopicPartition, TransactionHandle
from aioproducer.errors import IllegalStateError, KafkaError
from aioproducer.transactions.state import TransactionState
from tests.campaigns.simulation.faults import TOPIC
from tests.campaigns.simulation.history import Ended, SimulatedTransaction, Told

if TYPE_CHECKING:
    from tests.campaigns.simulation.workload import Workload

EXPORTED, RELEASED = 0.15, 0.1
"""The share of transactions that are exported, and the share that are released."""


async def write_with_participant(owner: Workload, transaction: SimulatedTransaction, random: Random) -> bool:
    """Let a participant write to some partitions and the owner to the others. Return True if the transaction may be
    committed."""
    places = range(owner.world.plan.partitions)
    exported = random.sample(places, random.randint(1, len(places)))
    try:
        handle = await owner.producer.export_transaction([(TOPIC, index) for index in exported])
    except ProducerClosed:
        raise
    except IllegalStateError as error:
        # A batch that the last transaction abandoned may still be in flight.
        if not owner.world.plan.is_disturbed:
            owner.problem(f"export_transaction: {error!r}")
        transaction.error = error
        return False
    participant = _participant(owner, handle, exported, transaction)
    own = [index for index in places if index not in exported]
    try:
        await participant.producer.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(participant.write(transaction, exported), name="participant")
            if own:
                group.create_task(owner.write(transaction, own), name="owner")
        await participant.producer.flush()
    except KafkaError as error:
        transaction.error = error
        return False
    finally:
        await participant.producer.close()
    return _may_be_committed(participant, transaction)


def _participant(
    owner: Workload, handle: TransactionHandle, exported: list[int], transaction: SimulatedTransaction
) -> Workload:
    world = owner.world
    label = f"participant {transaction.number} of {owner.label}"
    producer = Producer.attach(
        handle,
        partitions=[TopicPartition(TOPIC, index) for index in exported],
        log_append_time=world.plan.log_append_time,
        **world.settings(transactional_id=None, client_id=label.replace(" ", "-")),
    )
    return type(owner)(world, world.adopt(producer, label), label)


def _may_be_committed(participant: Workload, transaction: SimulatedTransaction) -> bool:
    """Return False if a record of the participant failed, or if no record was acknowledged."""
    group = [sent for sent in participant.world.history.sent if sent.transaction is transaction]
    errors = [
        sent.error
        for sent in group
        if sent.producer == participant.label and sent.buffered_at is not None and sent.error is not None
    ]
    if participant.producer._transaction.state is TransactionState.FAILED_PARTICIPANT:
        errors.append(participant.producer._transaction.error)
    transaction.error = next(iter(errors), None)
    return not errors and any(sent.told is Told.ACKNOWLEDGED for sent in group)


async def end_by_heir(owner: Workload, transaction: SimulatedTransaction, random: Random) -> None:
    """Release the transaction and let another producer send offsets and commit it, or abort it."""
    transaction.ended = Ended.ABORTED  # unless it is committed below
    handle = await owner.producer.release_transaction()
    label = f"heir {transaction.number} of {owner.label}"
    settings = owner.world.settings(transactional_id=None, client_id=label.replace(" ", "-"))
    heir = owner.world.adopt(Producer.resume(handle, **settings), label)
    try:
        await heir.start()
        if random.random() < 0.5:
            place = TopicPartition(TOPIC, 0)
            position = random.randrange(1000) * 1000 + transaction.number
            await heir.send_offsets_to_transaction({place: position}, owner.world.plan.group)
            transaction.offsets[place] = position
        if random.random() < 0.2:
            await heir.abort_transaction()
            return
        transaction.ended = Ended.UNKNOWN
        await heir.commit_transaction()
        transaction.ended = Ended.COMMITTED
    except KafkaError as error:
        transaction.error = error
        is_unknown = isinstance(error, CommitOutcomeUnknownError)
        transaction.ended = Ended.UNKNOWN if is_unknown else Ended.ABORTED
    finally:
        await heir.close(timeout=5)
