"""A producer aborts a transaction that is close to its time-out, unless a commit is running."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioproducer import ProducerFencedError, TopicPartition, TransactionAbortableError
from aioproducer.errors import TransactionAbortedError, TransactionTimeoutError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.transactions.expiry import LONGEST_OPEN
from aioproducer.transactions.state import TransactionState
from tests.conftest import MS, in_virtual_time
from tests.support.accumulator_bench import turns
from tests.support.producing import PRODUCE, error_of, until, within
from tests.transactions.test_calls import committed, state_of, transactional
from tests.transactions.test_coordinator import Begun

END_TXN, INIT = ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
SHORT = {"transaction_timeout_ms": 500_000 * MS}
TEXT = r"was open for [\d.]+ s, more than 80% of transaction_timeout_ms="
FAR_OFF = 1e9
"""A loop time at which any transaction is too old."""


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


async def expired(producer):
    await until(lambda: state_of(producer) is TransactionState.ABORT_REQUIRED)


@pytest.mark.promise(
    "Transactions", "a transaction near its time-out is aborted by the producer, unless a commit is under way"
)
async def test_an_open_transaction_is_aborted_before_the_brokers_would(version):
    async with transactional(version, **SHORT) as (cluster, producer):
        loop = asyncio.get_running_loop()
        await producer.begin_transaction()
        began = loop.time()
        await producer.send_and_wait("t", b"1", partition=0)
        await expired(producer)
        took = loop.time() - began
        await until(lambda: cluster.requests_of(END_TXN))

        # uvloop's timers have a resolution of 1 ms, and can fire up to 1 ms too early.
        assert took >= 398 * MS
        for call in (
            lambda: producer.send("t", b"2", partition=0),
            producer.commit_transaction,
            lambda: producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g"),
        ):
            with pytest.raises(TransactionAbortableError, match=TEXT):
                await call()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"3", partition=0)
        assert [request.message.committed for request in cluster.requests_of(END_TXN)] == [False, True]
        assert committed(cluster) == [b"3"]


async def test_a_block_that_takes_too_long_ends_in_the_error_that_names_the_setting(version):
    async with transactional(version, **SHORT) as (cluster, producer):
        with pytest.raises(TransactionAbortableError, match=TEXT):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction() as transaction:
                await transaction.send_offsets({TopicPartition("t", 0): 1}, "g")
                await expired(producer)

        assert state_of(producer) is TransactionState.READY
        assert cluster.groups.offsets("g") == {}


async def test_buffered_records_fail_with_the_reason(version):
    async with transactional(version, linger_ms=1_000_000 * MS) as (_, producer):
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        delivery = await producer.send("t", b"1", partition=0)
        assert producer._coordinator.expiry.watch(FAR_OFF) is None
        error = await within(2, error_of(delivery))

        assert isinstance(error, TransactionAbortedError)
        assert "transaction_timeout_ms" in str(error)
        await producer.abort_transaction()


@pytest.mark.promise(
    "Transactions", "a transaction near its time-out is aborted by the producer, unless a commit is under way"
)
async def test_the_timeout_counts_from_the_first_request_of_the_transaction(version):
    """Until then, the coordinator does not know the transaction, and the application may be waiting for input."""
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        assert producer._coordinator.expiry.watch(FAR_OFF) is None
        assert state_of(producer) is TransactionState.IN_TRANSACTION

        await producer.send_and_wait("t", b"1", partition=0)
        assert producer._transaction.began < FAR_OFF
        await producer.commit_transaction()
        assert committed(cluster) == [b"1"]


@pytest.mark.promise(
    "Transactions", "a transaction near its time-out is aborted by the producer, unless a commit is under way"
)
async def test_a_running_commit_is_not_disturbed(version):
    async with transactional(version) as (cluster, producer):
        hold = asyncio.Event()
        await producer.begin_transaction()
        fault = cluster.faults.add(PRODUCE, hold=hold)
        await producer.send("t", b"1", partition=0)
        await within(2, fault.reached())
        commit = asyncio.create_task(producer.commit_transaction())
        await until(lambda: state_of(producer) is TransactionState.COMMITTING)
        assert producer._coordinator.expiry.watch(FAR_OFF) is None
        hold.set()
        await within(2, commit)

        assert committed(cluster) == [b"1"]


async def test_the_users_abort_joins_the_producers_abort(version):
    async with transactional(version) as (cluster, producer):
        hold = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(END_TXN, hold=hold)
        producer._coordinator.expiry.watch(FAR_OFF)
        await within(2, fault.reached())
        abort = asyncio.create_task(producer.abort_transaction())
        await until(lambda: state_of(producer) is TransactionState.ABORTING)
        hold.set()
        await within(2, abort)

        assert len(cluster.requests_of(END_TXN)) == 1
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


async def test_with_v1_an_exported_transaction_is_followed_by_a_new_epoch(version):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.export_transaction([TopicPartition("t", 0)])
        await until(lambda: producer._transaction.began is not None)
        producer._coordinator.expiry.watch(FAR_OFF)
        await within(2, producer.abort_transaction())

        assert len(cluster.requests_of(INIT)) == (2 if version == 1 else 1)
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
        assert committed(cluster) == [b"1"]


@in_virtual_time
async def test_an_unanswered_abort_of_the_producer_is_repeated_by_the_users_abort(version, caplog):
    impatient = {"max_block_ms": 200_000 * MS, "request_timeout_ms": 100_000 * MS}
    async with transactional(version, **impatient) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_before=True, count=10_000)
        with caplog.at_level(logging.WARNING):
            producer._coordinator.expiry.watch(FAR_OFF)
            await until(lambda: "has not been aborted yet" in caplog.text)
        with pytest.raises(TransactionTimeoutError):
            await producer.abort_transaction()
        cluster.faults.clear()
        await producer.abort_transaction()

        assert state_of(producer) is TransactionState.READY
        assert committed(cluster) == []


async def test_a_producer_that_was_fenced_meanwhile_raises_producer_fenced_error(version):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, error=ErrorCode.PRODUCER_FENCED)
        producer._coordinator.expiry.watch(FAR_OFF)
        await until(lambda: state_of(producer) is TransactionState.REINIT_REQUIRED)

        with pytest.raises(ProducerFencedError):
            await producer.commit_transaction()


# ------------------------------------------------------------------------------------------- with a stub cluster


async def test_a_transaction_is_aborted_when_most_of_its_timeout_has_passed_since_the_first_request(version):
    begun = Begun(version)
    coordinator, transaction = begun.coordinator, begun.transaction
    assert coordinator.expiry.watch(100.0) is None, "the coordinator does not know it yet"
    await begun.send_offsets()
    begun.cluster.asked.clear()

    assert coordinator.expiry.watch(200.0) == 200.0 + LONGEST_OPEN * 10
    assert coordinator.expiry.watch(207.9) == 200.0 + LONGEST_OPEN * 10
    assert transaction.state is TransactionState.IN_TRANSACTION

    assert coordinator.expiry.watch(208.1) is None
    assert transaction.state is TransactionState.ABORT_REQUIRED
    assert "it was open for 8.1 s" in str(transaction.error)
    assert "transaction_timeout_ms=10000" in str(transaction.error)
    await coordinator.ended()
    assert begun.cluster.asked == [ApiKey.END_TXN]
    assert coordinator.expiry.watch(300.0) is None, "it is aborted once"
    await coordinator.ended()
    assert begun.cluster.asked == [ApiKey.END_TXN]


@pytest.mark.parametrize("step", ["commit", "close"])
async def test_a_transaction_that_is_being_ended_is_not_aborted_for_its_timeout(step):
    begun = Begun()
    await begun.send_offsets()
    begun.coordinator.expiry.watch(200.0)
    begun.cluster.asked.clear()
    if step == "commit":
        begun.transaction.move(TransactionState.COMMITTING)
    else:
        await begun.coordinator.close()

    assert begun.coordinator.expiry.watch(300.0) is None

    await begun.coordinator.ended()
    assert begun.cluster.asked == []
    assert begun.transaction.error is None


async def test_an_expired_transaction_is_aborted_only_once():
    begun = Begun()
    await begun.send_offsets()
    begun.coordinator.expiry.watch(200.0)
    begun.cluster.asked.clear()

    for now in (208.1, 208.2, 208.3):
        assert begun.coordinator.expiry.watch(now) is None

    await begun.coordinator.ended()
    assert begun.cluster.asked == [ApiKey.END_TXN]


async def test_a_failed_transaction_that_the_user_does_not_abort_is_aborted_for_its_timeout():
    begun = Begun()
    await begun.send_offsets()
    begun.coordinator.expiry.watch(200.0)
    begun.transaction.require_abort(TransactionAbortableError("a record failed"))
    begun.cluster.asked.clear()

    assert begun.coordinator.expiry.watch(207.9) == 200.0 + LONGEST_OPEN * 10
    begun.coordinator.expiry.watch(208.1)

    await begun.coordinator.ended()
    assert begun.cluster.asked == [ApiKey.END_TXN]
    assert "a record failed" in str(begun.transaction.error)


async def test_an_abort_for_the_timeout_is_logged_once_with_its_reason(caplog):
    begun = Begun()
    await begun.send_offsets()
    begun.coordinator.expiry.watch(200.0)

    with caplog.at_level(logging.WARNING):
        for now in (208.1, 208.2, 208.3):
            begun.coordinator.expiry.watch(now)

    [message] = caplog.messages
    assert "the transaction of 'tx' is being aborted: it was open for 8.1 s" in message
    await begun.coordinator.ended()


async def test_an_abort_joins_the_abort_for_the_timeout_and_sends_no_second_request(version):
    begun = Begun(version)
    await begun.send_offsets()
    begun.coordinator.expiry.watch(200.0)
    begun.cluster.asked.clear()
    begun.cluster.may_answer.clear()
    begun.coordinator.expiry.watch(208.1)
    await turns()
    assert begun.cluster.asked == [ApiKey.END_TXN]

    aborting = asyncio.ensure_future(begun.coordinator.abort())
    await turns()
    begun.cluster.may_answer.set()
    await aborting

    assert begun.cluster.asked == [ApiKey.END_TXN]
    assert begun.transaction.state is TransactionState.READY


async def test_a_fence_replaces_an_abort_for_the_timeout_that_was_not_sent_yet(version):
    begun = Begun(version)
    await begun.send_offsets()
    begun.coordinator.expiry.watch(200.0)
    begun.cluster.may_answer.clear()
    sending = asyncio.ensure_future(begun.send_offsets())
    await turns()
    begun.cluster.asked.clear()
    begun.coordinator.expiry.watch(208.1)  # the abort waits for the answer about the offsets
    await turns()

    fencing = asyncio.ensure_future(begun.coordinator.fence())
    await turns()
    assert begun.cluster.asked == []
    begun.cluster.may_answer.set()
    await fencing

    assert begun.cluster.asked == [ApiKey.INIT_PRODUCER_ID]
    assert begun.transaction.state is TransactionState.READY
    await sending
