"""Scenarios of the fault catalogue: transactions (T...), each with transactions v1 and v2."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aioproducer import (
    CommitOutcomeUnknownError,
    ConsumerGroupMetadata,
    Outcome,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortableError,
)
from aioproducer.errors import (
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    TransactionError,
    TransactionReinitError,
    UnsupportedVersionError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.testing import Operation
from aioproducer.transactions.state import TransactionState
from tests.campaigns.simulation.faults import TOPIC
from tests.campaigns.simulation.history import Ended, SimulatedTransaction, Told
from tests.campaigns.simulation.plan import V1, V2
from tests.campaigns.simulation.stage import Play, Stage, scenario

PRODUCE, END_TXN = ApiKey.PRODUCE, ApiKey.END_TXN
ONLY_TRANSACTIONS = (
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.INIT_PRODUCER_ID,
)
"""APIs that a broker without transactions does not offer."""
RPCS = {
    "find the coordinator": ApiKey.FIND_COORDINATOR,
    "init": ApiKey.INIT_PRODUCER_ID,
    "add partitions": ApiKey.ADD_PARTITIONS_TO_TXN,
    "add offsets": ApiKey.ADD_OFFSETS_TO_TXN,
    "commit offsets": ApiKey.TXN_OFFSET_COMMIT,
    "end": ApiKey.END_TXN,
}


def both(*ids: str, brokers: int = 3, **more: object) -> Callable[[Play], Play]:
    """Register a scenario for transactions v1 and for v2."""

    def register(play: Play) -> Play:
        for kind in (V1, V2):
            scenario(*ids, kind=kind, brokers=brokers, **more)(play)  # type: ignore[arg-type]  # a mixed dict
        return play

    return register


async def _with_offsets(stage: Stage) -> None:
    """Play a transaction with records and offsets."""
    transaction = await stage.begin()
    records = await stage.send(2)
    await stage.send_offsets({TopicPartition(TOPIC, 0): transaction.number + 1})
    await stage.commit()
    await stage.delivered(records)


@both("T1", max_block_ms=20_000)
async def the_coordinator_dies_before_or_after_each_request(stage: Stage) -> None:
    await _with_offsets(stage)
    for api in RPCS.values():
        for late in (False, True):
            stage.faults.add(api, down_for=1.0, after_append=late)
            if api is ApiKey.INIT_PRODUCER_ID:
                # Don't leave this request to the next epoch of v1: a restarted coordinator has forgotten the
                # previous epoch, and treats a repeated request like one from a fenced producer.
                await stage.producer.init_transactions()
            await _with_offsets(stage)
            await asyncio.sleep(1.5)


@both("T2", max_block_ms=20_000)
async def the_coordinator_is_another_broker_for_each_request(stage: Stage) -> None:
    await _with_offsets(stage)
    for step in range(6):
        stage.cluster.transactions.move("the-id", step % 3)
        stage.cluster.groups.move(stage.world.plan.group, (step + 1) % 3)
        await _with_offsets(stage)


@both("T3", max_block_ms=60_000, delivery_timeout_ms=60_000)
async def the_coordinator_reads_its_log_for_half_a_minute(stage: Stage) -> None:
    await stage.transact()
    stage.cluster.transactions.hold_loading()
    stage.cluster.transactions.move("the-id", (stage.cluster.transactions.node("the-id") + 1) % 3)
    stage.world.later(30.0, stage.cluster.transactions.release_loading)
    await stage.transact()


@both("T4", max_block_ms=60_000)
async def the_markers_are_slow(stage: Stage) -> None:
    await stage.transact()
    for _ in range(3):
        stage.cluster.transactions.hold_markers()
        stage.world.later(5.0, stage.cluster.transactions.release_markers)
        await stage.transact()
        began = stage.loop.time()
        await stage.transact()
        assert stage.loop.time() - began < 7


@both("T5", request_timeout_ms=300)
async def the_answer_to_a_commit_is_lost_and_the_commit_is_not(stage: Stage) -> None:
    await stage.transact()
    for fault in ({"drop_after_append": True}, {"delay": 1.0}):
        stage.faults.add(END_TXN, **fault)
        await stage.transact()


@both("T6", max_block_ms=1000, request_timeout_ms=300)
async def a_commit_gets_no_answer_within_max_block_ms(stage: Stage) -> None:
    for lost in ({"drop_before": True}, {"drop_after_append": True}, {"delay": 5.0}):
        stage.faults.add(END_TXN, count=100, **lost)
        await stage.begin()
        await stage.delivered(await stage.send(2))
        await stage.raises(CommitOutcomeUnknownError, stage.commit())
        await stage.raises(TransactionError, stage.producer.abort_transaction())
        stage.faults.clear()
        await _initialised(stage)
        await stage.transact()


async def _initialised(stage: Stage) -> None:
    for _ in range(20):
        try:
            await stage.producer.init_transactions()
        except TransactionError:
            await asyncio.sleep(0.2)
        else:
            return
    raise AssertionError("init_transactions() never succeeds")


@both("T7", max_block_ms=1500, request_timeout_ms=300, brokers=1)
async def a_commit_of_the_last_transaction_arrives_in_the_next_one(stage: Stage) -> None:
    await stage.begin()
    await stage.delivered(await stage.send(2))
    committing = asyncio.ensure_future(stage.commit())
    stage.network.hold(stage.port(), requests=True, answers=False)
    await stage.raises(CommitOutcomeUnknownError, committing)
    stage.network.release()
    await _initialised(stage)
    await stage.begin()
    await stage.delivered(await stage.send(2))
    await asyncio.sleep(1)
    await stage.abort()
    await stage.transact()


@both("T8")
async def a_commit_is_answered_with_an_unknown_server_error(stage: Stage) -> None:
    for late in (False, True):
        if late:
            stage.faults.add(END_TXN, error=Code.UNKNOWN_SERVER_ERROR, after_append=True)
        else:
            stage.faults.add(END_TXN, error=Code.UNKNOWN_SERVER_ERROR)
        await stage.begin()
        await stage.delivered(await stage.send(2))
        await stage.raises(CommitOutcomeUnknownError, stage.commit())
        await _initialised(stage)
    await stage.transact()


@both("T9", "T17")
async def a_record_fails_and_the_commit_is_rejected(stage: Stage) -> None:
    await stage.transact()
    await stage.begin()
    stage.faults.add(PRODUCE, error=Code.POLICY_VIOLATION)
    records = await stage.send(3)
    await stage.raises(TransactionAbortableError, stage.commit())
    assert Told.NOTHING not in await stage.told(records)
    await stage.abort()
    await stage.transact()


@both("T10", request_timeout_ms=300, delivery_timeout_ms=400, max_block_ms=3000)
async def a_record_times_out_in_its_transaction(stage: Stage) -> None:
    await stage.transact()
    await stage.begin()
    stage.faults.add(PRODUCE, delay=1.0, count=3)
    await stage.send(3)
    await stage.raises(TransactionAbortableError, stage.commit())
    await stage.abort()
    await asyncio.sleep(3)
    await stage.transact(3)


@both("T11")
async def an_abort_with_records_in_flight_and_in_the_buffer(stage: Stage) -> None:
    await stage.transact()
    stage.faults.add(PRODUCE, delay=0.3)
    await stage.begin()
    records = await stage.send(20)
    await asyncio.sleep(stage.random.uniform(0, 0.01))
    await stage.abort()
    assert Told.NOTHING not in await stage.told(records)
    await stage.transact()


@both("T12")
async def two_producers_have_the_same_transactional_id(stage: Stage) -> None:
    await stage.transact()
    await stage.begin()
    await stage.delivered(await stage.send(2))
    stage.history.transactions[-1].ended = Ended.ABORTED
    successor = stage.world.producer("successor")
    await successor.start()
    error = await stage.raises(TransactionReinitError, stage.commit())
    assert isinstance(error, ProducerFencedError), error
    assert error.outcome is Outcome.NOT_PERSISTED
    await successor.close()
    await stage.producer.init_transactions()
    await stage.transact()


@both("T13", transaction_timeout_ms=2000)
async def a_transaction_times_out_while_its_application_is_slow(stage: Stage) -> None:
    await stage.transact()
    await stage.begin()
    await stage.delivered(await stage.send(2))
    stage.world.skip_wall_time(3.0)
    stage.cluster.transactions.abort_timed_out()
    await asyncio.sleep(1)
    await stage.raises(TransactionError, stage.commit())
    if stage.producer._transaction.state is TransactionState.ABORT_REQUIRED:
        await stage.abort()
    else:
        await stage.producer.init_transactions()
    await stage.transact()


@both("T14")
async def the_brokers_forget_the_transactional_id(stage: Stage) -> None:
    await stage.transact()
    await asyncio.sleep(1)
    stage.cluster.transactions.expire("the-id")
    await stage.begin()
    records = await stage.send(2)
    await stage.raises(TransactionReinitError, stage.commit())
    assert Told.ACKNOWLEDGED not in await stage.told(records)
    await stage.producer.init_transactions()
    await stage.transact()


@both("T15", partitions=3)
async def writing_to_the_topic_is_forbidden(stage: Stage) -> None:
    await stage.transact()
    denial = stage.cluster.authorizer.deny(Operation.WRITE, topic=TOPIC)
    await stage.begin()
    records = [sent for index in range(3) for sent in await stage.send(partition=index)]
    await stage.raises(TransactionAbortableError, stage.commit())
    assert set(await stage.told(records)) == {Told.NOT_PERSISTED}
    stage.cluster.authorizer.withdraw(denial)
    await stage.abort()
    await stage.transact()


@scenario("T16", kind=V1, brokers=3, request_timeout_ms=500)
async def the_answer_to_add_partitions_is_lost_and_the_transaction_is_aborted(stage: Stage) -> None:
    await stage.transact()
    stage.faults.add(ApiKey.ADD_PARTITIONS_TO_TXN, drop_after_append=True)
    await stage.begin()
    await stage.send()
    await asyncio.sleep(0.005)
    ends = stage.requests(END_TXN)
    await stage.abort()
    assert stage.requests(END_TXN) == ends + 2  # the abort, and one that only checks the epoch
    await stage.transact()


@both("T18")
async def an_empty_transaction_costs_nothing(stage: Stage) -> None:
    for _ in range(3):
        await stage.begin()
        await stage.commit()
        await stage.begin()
        await stage.abort()
    assert stage.requests(END_TXN) == stage.requests(ApiKey.ADD_PARTITIONS_TO_TXN) == 0


@both("T19", max_block_ms=10_000)
async def the_level_of_transactions_changes_while_the_producer_runs(stage: Stage) -> None:
    await stage.transact()
    for level in (1, 2, 1, 2):
        await stage.begin()
        records = await stage.send(2)
        stage.cluster.transactions.version = level
        for node in range(3):
            stage.network.cut(stage.port(node))
        await stage.delivered(records)
        try:
            await stage.commit()
        except TransactionAbortableError:
            await stage.abort()
        await asyncio.sleep(1)
        await stage.transact(3)


@both("T20", brokers=1)
async def the_epochs_of_a_transactional_producer_are_used_up(stage: Stage) -> None:
    await stage.transact()
    state = stage.cluster.transactions._states.loaded(
        stage.cluster.transactions._states.partition_of("the-id")
    )
    assert state is not None
    transaction = state["the-id"]
    await stage.cluster.transactions.wait_ended("the-id")
    last = 2**15 - 4
    transaction.metadata = replace(transaction.metadata, producer_epoch=last)
    idempotence = stage.producer._coordinator._idempotence
    assert idempotence.identity is not None
    idempotence.identity = idempotence.identity._replace(epoch=last)
    for step in range(8):
        if step % 2:
            await stage.producer.init_transactions()
        await stage.transact()
    ids = {batch.header.producer_id for batch in stage.cluster.batches(TOPIC, 0)}
    assert len(ids) == 2, ids


@both("T21")
async def the_group_rebalances_before_the_offsets_are_committed(stage: Stage) -> None:
    await _with_offsets(stage)
    stage.cluster.groups.set_members(stage.world.plan.group, 7, {"me": None})
    await stage.begin()
    records = await stage.send()
    stale = ConsumerGroupMetadata(stage.world.plan.group, 6, "me")
    error = await stage.raises(
        KafkaError, stage.producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 99}, stale)
    )
    assert error.requires_abort
    await stage.abort()
    await stage.told(records)
    await stage.transact()


@both("T22", max_block_ms=20_000)
async def the_group_coordinator_is_gone(stage: Stage) -> None:
    await _with_offsets(stage)
    for _ in range(3):
        stage.cluster.crash_broker(stage.cluster.groups.node(stage.world.plan.group), 1.0)
        await _with_offsets(stage)
        await asyncio.sleep(2)


@both("T23")
async def the_metadata_of_an_offset_is_too_large(stage: Stage) -> None:
    await stage.transact()
    await stage.begin()
    records = await stage.send()
    for text, kind in (("x" * 4097, InvalidRecordError), ("\U0001f41e" * 3000, KafkaError)):
        # Brokers count UTF-16 units, so only they can reject the second text.
        error = await stage.raises(
            kind,
            stage.producer.send_offsets_to_transaction(
                {TopicPartition(TOPIC, 0): (1, text)}, stage.world.plan.group
            ),
        )
    if error.requires_abort:
        await stage.abort()
    else:
        await stage.commit()
    assert Told.NOTHING not in await stage.told(records)
    await stage.transact()


@both("T24")
async def a_call_is_cancelled_and_made_again(stage: Stage) -> None:
    await stage.transact()
    for wait in (0.0, 0.0005, 0.002):
        transaction = await stage.begin()
        records = await stage.send(3)
        transaction.ended = Ended.UNKNOWN
        call = asyncio.ensure_future(stage.producer.commit_transaction())
        await asyncio.sleep(wait)
        call.cancel()
        await asyncio.wait([call])
        if stage.producer._transaction.state is not TransactionState.READY:
            await stage.commit()
        transaction.ended = Ended.COMMITTED
        await stage.delivered(records)


@both("T25")
async def a_block_is_left_by_an_exception_or_a_cancellation(stage: Stage) -> None:
    async def block(leave: Callable[[], Awaitable[None]]) -> None:
        async with stage.producer.transaction():
            number = len(stage.history.transactions)
            stage.history.transactions.append(SimulatedTransaction(number, Ended.ABORTED))
            await stage.send(3)
            await leave()

    async def fail() -> None:
        raise ZeroDivisionError

    await stage.raises(ZeroDivisionError, block(fail))
    task = asyncio.ensure_future(block(lambda: asyncio.sleep(100)))
    await asyncio.sleep(stage.random.uniform(0, 0.01))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await stage.transact()


@both("T26")
async def two_tasks_end_the_same_transaction(stage: Stage) -> None:
    transaction = await stage.begin()
    records = await stage.send(3)
    transaction.ended = Ended.COMMITTED
    first = asyncio.ensure_future(stage.producer.commit_transaction())
    await asyncio.sleep(0)
    await stage.raises(IllegalStateError, stage.producer.abort_transaction())
    await stage.raises(IllegalStateError, stage.producer.begin_transaction())
    await first
    await stage.delivered(records)
    await stage.transact()


@both("T27")
async def close_within_a_transaction(stage: Stage) -> None:
    await stage.transact()
    transaction = await stage.begin()
    await stage.delivered(await stage.send(2))
    transaction.ended = Ended.ABORTED
    await stage.producer.close()
    partition = stage.partition()
    assert partition.last_stable_offset == partition.log.end_offset, "readers would wait for a time-out"


@both("T28")
async def permission_for_the_transactional_id_is_revoked_and_restored(stage: Stage) -> None:
    await stage.transact()
    denial = stage.cluster.authorizer.deny(Operation.WRITE, transactional_id="the-id")
    await stage.begin()
    await stage.send(2)
    await stage.raises(TransactionError, stage.commit())
    stage.cluster.authorizer.withdraw(denial)
    if stage.producer._transaction.state is TransactionState.ABORT_REQUIRED:
        await stage.abort()
    else:
        await stage.producer.init_transactions()
    await stage.transact()


@both("T30", transaction_timeout_ms=2000, max_block_ms=1000, request_timeout_ms=300)
async def a_transaction_whose_end_is_lost_does_not_block_readers(stage: Stage) -> None:
    transaction = await stage.begin()
    await stage.delivered(await stage.send(2))
    stage.faults.add(END_TXN, drop_before=True, count=1000)
    transaction.ended = Ended.ABORTED
    await stage.producer.close(timeout=2)
    await asyncio.sleep(30)
    partition = stage.partition()
    assert partition.last_stable_offset == partition.log.end_offset


@scenario("T31", kind=V1, starts=False)
async def a_cluster_does_not_offer_transactions(stage: Stage) -> None:
    broker = stage.cluster.broker(0)
    without = {api: spoken for api, spoken in broker.release.versions.items() if api not in ONLY_TRANSACTIONS}
    broker.release = replace(broker.release, versions=without)
    began = stage.loop.time()

    error = await stage.raises(KafkaError, stage.producer.start())

    assert stage.loop.time() - began < 1
    assert isinstance(error.__cause__, UnsupportedVersionError)
    assert "INIT_PRODUCER_ID: the broker does not offer this API" in str(error)
