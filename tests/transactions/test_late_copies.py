"""A late copy of an unanswered request, which arrives after the retry, does not change a later transaction.

The exception is a late InitProducerId: it aborts the open transaction, and the producers report that."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import asynccontextmanager

import pytest

from aioproducer import Outcome, Producer, ProducerFencedError, TopicPartition, TransactionAbortableError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing.embedded.transaction_metadata import TransactionStatus
from tests.conftest import MS
from tests.support.producing import PRODUCE, error_of, quick_producer, until, within
from tests.transactions.test_calls import committed, transactional

ADD_PARTITIONS, ADD_OFFSETS = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN
COMMIT_OFFSETS, END_TXN, INIT = ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
IMPATIENT = {"request_timeout_ms": 100_000 * MS}
PLACES = [TopicPartition("t", partition) for partition in range(3)]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


class Late:
    """The first request of an API, which the broker has read but does not carry out until `arrives()` is called."""

    def __init__(self, cluster, api):
        self._cluster = cluster
        self._go = asyncio.Event()
        self.fault = cluster.faults.add(api, hold_before=self._go)

    async def arrives(self):
        broker = self._cluster.broker(0)
        before = broker.connection_count
        self._go.set()
        await until(lambda: broker.connection_count < before)  # the client has disconnected


@asynccontextmanager
async def late(version, api, **settings):
    async with transactional(version, **IMPATIENT, **settings) as (cluster, producer):
        yield cluster, producer, Late(cluster, api)


async def end(producer, how):
    if how == "commit":
        await producer.commit_transaction()
    else:
        await producer.abort_transaction()


@pytest.mark.promise(
    "Transactions",
    "with v1, an unanswered request is followed by a new epoch, so its late copy is rejected (KAFKA-17754)",
)
@pytest.mark.parametrize("how", ["commit", "abort"])
async def test_late_offsets_of_one_transaction_are_not_committed_with_the_next(version, how):
    async with late(version, COMMIT_OFFSETS) as (cluster, producer, copy):
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({PLACES[0]: 10}, "g")
        await end(producer, how)
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({PLACES[1]: 7, PLACES[2]: 7}, "g")
        if how == "commit":
            await producer.send_offsets_to_transaction({PLACES[0]: 20}, "g")
        await copy.arrives()
        await producer.commit_transaction()

        expected = {PLACES[1]: 7, PLACES[2]: 7} | ({PLACES[0]: 20} if how == "commit" else {})
        assert cluster.groups.offsets("g") == expected


@pytest.mark.promise(
    "Transactions",
    "with v1, an unanswered request is followed by a new epoch, so its late copy is rejected (KAFKA-17754)",
)
@pytest.mark.parametrize("how", ["commit", "abort"])
@pytest.mark.parametrize(
    "api", [ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, PRODUCE, END_TXN], ids=lambda api: api.name
)
async def test_with_v1_any_request_that_was_not_answered_is_followed_by_a_new_epoch(api, how):
    """Otherwise, the copy would begin a transaction that the producer does not know of, or change its next one."""
    async with late(1, api) as (cluster, producer, copy):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await producer.send_offsets_to_transaction({PLACES[0]: 10}, "g")
        await end(producer, how)
        assert copy.fault.hits == 1
        assert len(cluster.requests_of(INIT)) == 2
        await copy.arrives()

        assert cluster.transactions.describe("tx").state is TransactionStatus.EMPTY
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == ([b"1", b"2"] if how == "commit" else [b"2"])


async def test_with_v1_a_request_rejected_after_an_unanswered_attempt_is_followed_by_a_new_epoch():
    """The first attempt was not answered; the abort alone would keep the epoch."""
    async with late(1, COMMIT_OFFSETS) as (cluster, producer, copy):
        cluster.faults.add(COMMIT_OFFSETS, error=ErrorCode.ILLEGAL_GENERATION)
        await producer.begin_transaction()
        with pytest.raises(TransactionAbortableError, match="ILLEGAL_GENERATION"):
            await producer.send_offsets_to_transaction({PLACES[0]: 10}, "g")
        await producer.abort_transaction()
        async with producer.transaction() as transaction:
            await transaction.send_offsets({PLACES[1]: 7}, "g")
            await copy.arrives()

        assert cluster.groups.offsets("g") == {PLACES[1]: 7}


async def test_with_v1_an_undisturbed_transaction_keeps_its_epoch():
    async with transactional(1) as (cluster, producer):
        for number in range(3):
            async with producer.transaction() as transaction:
                await producer.send("t", b"%d" % number, partition=0)
                await transaction.send_offsets({PLACES[0]: number}, "g")

        assert len(cluster.requests_of(INIT)) == 1


@pytest.mark.parametrize("how", ["commit", "abort"])
@pytest.mark.parametrize("delayed", ["the answer to the abort", "the request", "its repetition"])
async def test_with_v1_a_request_for_an_epoch_that_comes_too_late_aborts_a_successors_transaction(
    delayed, how
):
    """The successor takes over after the abort that checks the epoch, and begins before InitProducerId arrives.

    The coordinator aborts an open transaction before it compares epochs. Afterwards, neither producer owns the
    transactional id, but both know what is committed.
    """
    async with transactional(1) as (cluster, producer):
        go = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await producer.export_transaction([PLACES[1]])  # the next transaction needs a new epoch
        if delayed == "the answer to the abort":
            fault = cluster.faults.add(END_TXN, hold=go, skip=1)  # the first EndTxn ends the transaction
        elif delayed == "the request":
            fault = cluster.faults.add(INIT, hold_before=go)
        else:  # the coordinator's answer while markers are being written
            fault = cluster.faults.add(INIT, error=ErrorCode.CONCURRENT_TRANSACTIONS, hold=go)
        ending = asyncio.create_task(end(producer, how))
        await within(2, fault.reached())
        async with quick_producer(cluster, transactional_id="tx") as successor:
            await successor.begin_transaction()
            await successor.send_and_wait("t", b"2", partition=0)
            go.set()
            if how == "commit":
                await within(2, ending)
            else:
                with pytest.raises(ProducerFencedError):
                    await within(2, ending)
            for call in (successor.commit_transaction, producer.begin_transaction):
                error = await error_of(call())
                assert isinstance(error, ProducerFencedError)
                assert error.outcome is Outcome.NOT_PERSISTED
            await successor.init_transactions()
            async with successor.transaction():
                await successor.send("t", b"3", partition=0)

        assert committed(cluster) == ([b"1", b"3"] if how == "commit" else [b"3"])


async def test_with_v1_a_late_copy_of_a_request_for_an_epoch_aborts_the_producers_next_transaction():
    async with late(1, INIT) as (cluster, producer, copy):
        await producer.begin_transaction()
        await producer.export_transaction([PLACES[1]])  # the next transaction needs a new epoch
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await copy.arrives()

        error = await error_of(producer.commit_transaction())
        assert isinstance(error, ProducerFencedError)
        assert error.outcome is Outcome.NOT_PERSISTED
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


@pytest.mark.promise(
    "Transactions", "a late copy of an offset commit does not replace later offsets of the same transaction"
)
async def test_late_offsets_do_not_replace_later_ones_of_the_same_transaction(version):
    async with late(version, COMMIT_OFFSETS) as (cluster, producer, copy):
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({PLACES[0]: 10}, "g")
        await producer.send_offsets_to_transaction({PLACES[0]: 10, PLACES[1]: 3}, "g")
        await producer.send_offsets_to_transaction({PLACES[0]: 30}, "another")
        with pytest.raises(TransactionAbortableError, match="the offset 10 of t-0 was sent more than once"):
            await producer.send_offsets_to_transaction({PLACES[0]: 20}, "g")
        await within(2, producer.abort_transaction())
        async with producer.transaction() as transaction:
            await transaction.send_offsets({PLACES[0]: 20}, "g")
            await copy.arrives()

        assert cluster.groups.offsets("g") == {PLACES[0]: 20}


@pytest.mark.promise(
    "Transactions",
    "an offset whose answer was lost is not replaced in the same transaction, not even by an heir",
)
async def test_late_offsets_of_a_released_transaction_do_not_replace_those_of_its_heir(version):
    async with late(version, COMMIT_OFFSETS) as (cluster, producer, copy):
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({PLACES[0]: 10}, "g")
        handle = await producer.release_transaction()
        assert pickle.loads(pickle.dumps(handle)) == handle
        async with Producer.resume(handle, bootstrap_servers=cluster.bootstrap_servers) as heir:
            await heir.send_offsets_to_transaction({PLACES[0]: 10, PLACES[1]: 7}, "g")
            with pytest.raises(
                TransactionAbortableError, match="the offset 10 of t-0 was sent more than once"
            ):
                await heir.send_offsets_to_transaction({PLACES[0]: 20}, "g")
            await copy.arrives()
            await heir.abort_transaction()

        assert cluster.groups.offsets("g") == {}
