"""Transactional calls that meet what is in flight, other calls, and close()."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import CommitOutcomeUnknownError, TopicPartition
from aioproducer.errors import KafkaError, TransactionError, TransactionReinitError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.transaction import TransactionState
from tests.producing import (
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    results,
    within,
)
from tests.test_transactions import transactional


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


END_TXN, INIT = ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID


async def test_close_during_a_commit_cancels_nobody(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        fault = cluster.faults.add(END_TXN, hold=answer)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        commit = asyncio.create_task(producer.commit_transaction())
        await within(2, fault.reached())

        await within(2, producer.close(timeout=0))

        answer.set()
        await asyncio.wait([commit])
        assert not commit.cancelled(), "nobody has cancelled it"
        assert isinstance(commit.exception(), CommitOutcomeUnknownError)


@pytest.mark.parametrize("call", ["abort_transaction", "send_offsets", "init_transactions"])
async def test_close_during_a_transactional_call_cancels_nobody(version, call):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        if call == "abort_transaction":
            fault = cluster.faults.add(END_TXN, hold=answer)
            task = asyncio.create_task(producer.abort_transaction())
        elif call == "send_offsets":
            fault = cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, hold=answer)
            task = asyncio.create_task(producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g"))
        else:
            await producer.abort_transaction()
            fault = cluster.faults.add(INIT, hold=answer)
            task = asyncio.create_task(producer.init_transactions())
        await within(2, fault.reached())

        await within(2, producer.close(timeout=0))

        answer.set()
        await asyncio.wait([task])
        assert not task.cancelled(), "nobody has cancelled it"
        assert isinstance(task.exception(), KafkaError)


@pytest.mark.parametrize("when", ["during", "after"])
async def test_an_answer_of_the_old_epoch_that_comes_during_init_transactions_changes_nothing(version, when):
    async with transactional(version, brokers=2, topics={"t": 2}, **ONE_BATCH_PER_RECORD) as (
        cluster,
        producer,
    ):
        elsewhere = next(p for p in (0, 1) if cluster.leader("t", p) != cluster.transactions.node("tx"))
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=elsewhere)
        late = asyncio.Event()
        held = cluster.faults.add(PRODUCE, error=ErrorCode.PRODUCER_FENCED, hold=late)
        second = await producer.send("t", b"2", partition=elsewhere)
        await within(2, held.reached())
        cluster.faults.add(ApiKey.ADD_OFFSETS_TO_TXN, error=ErrorCode.PRODUCER_FENCED)
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=ErrorCode.PRODUCER_FENCED)
        with pytest.raises(TransactionReinitError):
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        calling = asyncio.create_task(producer.init_transactions())
        if when == "during":
            answer = asyncio.Event()
            init = cluster.faults.add(INIT, hold=answer)
            await within(2, init.reached())
            late.set()
            await results([second])
            answer.set()
            await within(3, calling)
            await producer.begin_transaction()
        else:
            await asyncio.wait([calling], timeout=0.05)  # it may wait for what is in flight
            if calling.done():
                await producer.begin_transaction()
            late.set()
            await results([second])
            await within(3, calling)
            if producer._transaction.state is TransactionState.READY:
                await producer.begin_transaction()

        await producer.send("t", b"3", partition=elsewhere)
        await within(3, producer.commit_transaction())

        assert [r.value for r in cluster.records("t", committed=True)] == [b"3"]


async def test_an_abort_during_which_a_record_is_fenced_ends_in_a_typed_error_or_in_peace(version):
    async with transactional(version, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        late = asyncio.Event()
        held = cluster.faults.add(PRODUCE, error=ErrorCode.PRODUCER_FENCED, hold=late)
        await producer.send("t", b"2", partition=0)
        await within(2, held.reached())
        calling = asyncio.create_task(producer.abort_transaction())
        await asyncio.sleep(0.01)
        late.set()
        try:
            await within(3, calling)
        except TransactionError:
            pass
        assert producer._transaction.state in (TransactionState.READY, TransactionState.REINIT_REQUIRED)


async def test_a_commit_during_which_close_is_called_leaves_no_open_transaction(version):
    """close(timeout) while a commit flushes."""
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        late = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=late)
        await producer.send("t", b"2", partition=0)
        await within(2, held.reached())
        commit = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(producer.close(timeout=1))
        await asyncio.sleep(0.01)
        late.set()
        await within(3, closing)
        await asyncio.wait([commit])
        partition = cluster.partition("t", 0)
        assert partition.last_stable_offset == partition.log.end_offset
