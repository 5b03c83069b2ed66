"""The remote half of a transaction: when it is aborted for its time, what an answer about partitions means, its end."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from aioproducer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, TransactionAbortableError
from aioproducer.errors import KafkaError, ProducerClosed
from aioproducer.metrics import Metrics
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    EndTxnResponse,
    FindCoordinatorResponse,
    TxnOffsetCommitResponse,
)
from aioproducer.records._record_path import Gate
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from aioproducer.transactions.coordinator import LONGEST_OPEN, Coordinator
from aioproducer.transactions.state import Transaction, TransactionState
from tests.support.accumulator_bench import Bench
from tests.support.producing import error_of
from tests.transactions.test_calls import committed, transactional

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
GROUP = ConsumerGroupMetadata("g")


class Cluster:
    """Brokers that answer each transactional request; offsets with one code for each partition."""

    def __init__(self) -> None:
        self.asked: list[ApiKey] = []
        self.offset_codes: list[int] = [0, 0]
        self.is_silent = False

    async def request_any(self, request, timeout, **_):
        return FindCoordinatorResponse(node_id=1, host="broker.example", port=9092)

    async def request_node(self, node_id, request, timeout, *, about_to_write, **_):
        about_to_write()
        self.asked.append(ApiKey(request.api_key))
        if self.is_silent:
            await asyncio.Event().wait()
        if request.api_key == ApiKey.TXN_OFFSET_COMMIT:
            partitions = [
                TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                    partition_index=number, error_code=code
                )
                for number, code in enumerate(self.offset_codes)
            ]
            topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name="t", partitions=partitions)
            return TxnOffsetCommitResponse(topics=[topic])
        if request.api_key == ApiKey.ADD_OFFSETS_TO_TXN:
            return AddOffsetsToTxnResponse()
        assert request.api_key == ApiKey.END_TXN
        return EndTxnResponse(producer_id=7, producer_epoch=request.producer_epoch + 1)


class Begun:
    """A coordinator with an open transaction, on a cluster that is a stub."""

    def __init__(self, version: int = 2) -> None:
        bench = Bench(transactional_id="tx", transaction_timeout_ms=10_000)
        self.cluster = Cluster()
        self.transaction = Transaction("tx", Gate())
        self.idempotence = Idempotence(True)
        self.idempotence.identity = ProducerIdentity(7, 0, True)
        self.coordinator = Coordinator(
            bench.config,
            self.transaction,
            self.idempotence,
            bench.accumulator,
            self.cluster,
            bench.wake,
            Metrics(),
            Random(7),
        )
        self.transaction.move(TransactionState.INITIALIZING)
        self.transaction.move(TransactionState.READY)
        self.transaction.begin(is_v2=version == 2)

    async def send_offsets(self) -> None:
        offsets = {place: OffsetAndMetadata(17) for place in PLACES}
        await self.coordinator.send_offsets(offsets, GROUP)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


# ----------------------------------------------------------------------------------------------------- its time


async def test_a_transaction_is_aborted_when_most_of_its_time_since_the_first_request_is_over(version):
    begun = Begun(version)
    coordinator, transaction = begun.coordinator, begun.transaction
    assert coordinator.watch(100.0) is None, "the coordinator has heard nothing of it"
    await begun.send_offsets()
    begun.cluster.asked.clear()

    assert coordinator.watch(200.0) == 200.0 + LONGEST_OPEN * 10
    assert coordinator.watch(207.9) == 200.0 + LONGEST_OPEN * 10
    assert transaction.state is TransactionState.IN_TRANSACTION

    assert coordinator.watch(208.1) is None
    assert transaction.state is TransactionState.ABORT_REQUIRED
    assert "it was open for 8.1 s" in str(transaction.error)
    assert "transaction_timeout_ms=10000" in str(transaction.error)
    await coordinator.ended()
    assert begun.cluster.asked == [ApiKey.END_TXN]
    assert coordinator.watch(300.0) is None, "it is aborted once"
    await coordinator.ended()
    assert begun.cluster.asked == [ApiKey.END_TXN]


@pytest.mark.parametrize("step", ["commit", "close"])
async def test_a_transaction_that_is_being_ended_is_not_aborted_for_its_time(step):
    begun = Begun()
    await begun.send_offsets()
    begun.coordinator.watch(200.0)
    begun.cluster.asked.clear()
    if step == "commit":
        begun.transaction.move(TransactionState.COMMITTING)
    else:
        await begun.coordinator.close()

    assert begun.coordinator.watch(300.0) is None

    await begun.coordinator.ended()
    assert begun.cluster.asked == []
    assert begun.transaction.error is None


# --------------------------------------------------------------------------------------------- what it asks for


async def test_a_group_joins_once_and_only_with_v1():
    asked = {}
    for version in (1, 2):
        begun = Begun(version)
        await begun.send_offsets()
        await begun.send_offsets()
        asked[version] = begun.cluster.asked

    commit = ApiKey.TXN_OFFSET_COMMIT
    assert asked == {1: [ApiKey.ADD_OFFSETS_TO_TXN, commit, commit], 2: [commit, commit]}


async def test_the_worst_answer_of_all_partitions_decides(version):
    begun = Begun(version)
    passing, final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.GROUP_AUTHORIZATION_FAILED
    begun.cluster.offset_codes = [passing, final]

    error = await error_of(begun.send_offsets())

    assert isinstance(error, TransactionAbortableError)
    assert final.name in str(error)
    assert begun.cluster.asked.count(ApiKey.TXN_OFFSET_COMMIT) == 1, "what passes is not waited for"


async def test_no_offsets_are_no_request_and_nothing_of_the_transaction_begins(version):
    begun = Begun(version)

    await begun.coordinator.send_offsets({}, GROUP)

    assert begun.cluster.asked == []
    assert not begun.transaction.may_have_started


async def test_a_join_that_breaks_unforeseen_ends_the_transaction_and_is_not_tried_for_ever(
    monkeypatch, caplog
):
    async with transactional(1) as (cluster, producer):
        ask, asked = producer._brokers.request_node, []

        async def broken(node_id, message, timeout, **settings):
            if isinstance(message, AddPartitionsToTxnRequest):
                asked.append(message)
                raise ZeroDivisionError
            return await ask(node_id, message, timeout, **settings)

        await producer.begin_transaction()
        with monkeypatch.context() as patch:
            patch.setattr(producer._brokers, "request_node", broken)
            error = await error_of(await producer.send("t", b"1", partition=0))

        assert error.requires_abort
        assert len(asked) == 1
        assert "ZeroDivisionError" in caplog.text
        with pytest.raises(TransactionAbortableError, match="could not join"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


# ------------------------------------------------------------------------------------------------------- its end


async def test_close_ends_each_call_that_is_at_work_and_lets_none_begin(version):
    begun = Begun(version)
    begun.cluster.is_silent = True
    waiting = asyncio.ensure_future(error_of(begun.send_offsets()))
    while not begun.cluster.asked:  # noqa: ASYNC110  # what is waited for sets no event
        await asyncio.sleep(0)

    await begun.coordinator.close()

    assert isinstance(await waiting, ProducerClosed)
    asked = list(begun.cluster.asked)
    assert isinstance(await error_of(begun.send_offsets()), ProducerClosed)
    assert isinstance(await error_of(begun.coordinator.commit()), KafkaError)
    begun.coordinator.add_partitions()
    await begun.coordinator.ended()
    assert begun.cluster.asked == asked
