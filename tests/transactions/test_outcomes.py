"""Transactional calls report the true outcome of a transaction: committed, not committed, or unknown."""

from __future__ import annotations

import asyncio
import os
import random
from functools import partial

import pytest

from aioproducer import CommitOutcomeUnknownError, Outcome, TopicPartition, TransactionAbortableError
from aioproducer.errors import (
    DeliveryTimeoutError,
    IllegalStateError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionReinitError,
    TransactionTimeoutError,
    UnsupportedVersionError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import EndTxnRequest
from aioproducer.transactions.state import TransactionState
from tests.conftest import MS, in_virtual_time
from tests.support.producing import PRODUCE, by_name, error_of, quick_producer, results, until, within
from tests.transactions.test_calls import committed, state_of, transactional

END_TXN, INIT = ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID
ADD_PARTITIONS, ADD_OFFSETS = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN
IMPATIENT = {"max_block_ms": 300_000 * MS, "request_timeout_ms": 200_000 * MS}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


# -------------------------------------------------------------------------------------------------- the commit


@pytest.mark.promise("Transactions", "a transaction that may be committed is never reported as not committed")
@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT],
    ids=by_name,
)
@in_virtual_time
async def test_a_commit_that_may_be_in_the_coordinators_log_is_in_doubt(version, code):
    """A coordinator gives these answers if the commit is in its own log but was not replicated in time."""
    async with transactional(version, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, error=code, after_append=True)
        cluster.faults.add(END_TXN, error=code, count=10_000)

        error = await error_of(producer.commit_transaction())

        assert isinstance(error, CommitOutcomeUnknownError)
        assert error.outcome is Outcome.UNKNOWN
        assert committed(cluster) == [b"1"]


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST], ids=by_name
)
async def test_an_unanswered_commit_stays_in_doubt_if_its_coordinator_cannot_be_found(version, code):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_after_append=True)
        cluster.faults.add(ApiKey.FIND_COORDINATOR, error=code)

        with pytest.raises(CommitOutcomeUnknownError, match=code.name):
            await producer.commit_transaction()
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.abort_transaction()

        assert {request.message.committed for request in cluster.requests_of(END_TXN)} == {True}
        await until(lambda: committed(cluster) == [b"1"])


@pytest.mark.promise("Transactions", "a transaction that may be committed is never reported as not committed")
async def test_an_unanswered_commit_stays_in_doubt_if_it_cannot_be_sent_again(version, monkeypatch):
    """The broker was replaced by one that supports no version of the request."""
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_after_append=True)
        ask, attempts = producer._brokers.request_node, []

        async def once(node_id, message, timeout, **settings):
            if isinstance(message, EndTxnRequest):
                attempts.append(node_id)
                if len(attempts) > 1:
                    raise UnsupportedVersionError("no common version of EndTxn")
            return await ask(node_id, message, timeout, **settings)

        monkeypatch.setattr(producer._brokers, "request_node", once)
        with pytest.raises(CommitOutcomeUnknownError, match="no common version"):
            await producer.commit_transaction()

        assert state_of(producer) is TransactionState.OUTCOME_UNKNOWN
        await until(lambda: committed(cluster) == [b"1"])


@pytest.mark.parametrize("lost", ["drop_before", "drop_after_append"])
@in_virtual_time
async def test_a_commit_in_doubt_is_resolved_by_the_same_commit(version, lost):
    async with transactional(version, **IMPATIENT) as (cluster, producer):
        cluster.faults.add(END_TXN, **{lost: True}, count=10_000)
        with pytest.raises(CommitOutcomeUnknownError, match=r"call commit_transaction\(\) again"):
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
        for call in (
            producer.abort_transaction,
            producer.begin_transaction,
            partial(producer.send, "t", b"x"),
        ):
            with pytest.raises(CommitOutcomeUnknownError):
                await call()
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()
        cluster.faults.clear()
        await producer.commit_transaction()

        assert state_of(producer) is TransactionState.READY
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"1", b"2"]
        assert len({request.message.producer_epoch for request in cluster.requests_of(END_TXN)}) == 2


@in_virtual_time
async def test_a_commit_in_doubt_stays_so_if_nothing_more_can_be_learned(version):
    """Another producer has taken over the transactional id, and the coordinator has forgotten the earlier outcome."""
    async with transactional(version, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_after_append=True, count=10_000)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()
        cluster.faults.clear()
        async with quick_producer(cluster, transactional_id="tx"):
            for _ in range(2):
                with pytest.raises(CommitOutcomeUnknownError):
                    await producer.commit_transaction()
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)

        assert committed(cluster) == [b"1", b"2"]


@in_virtual_time
async def test_a_commit_in_doubt_that_cannot_be_repeated_stays_in_doubt(version):
    """One repetition is never sent, and close() interrupts another one."""
    async with transactional(version, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_after_append=True, count=10_000)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()
        fault = cluster.faults.add(ApiKey.FIND_COORDINATOR, drop_before=True, count=10_000)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()
        hits = fault.hits
        again = asyncio.create_task(producer.commit_transaction())
        await within(2, fault.reached(hits + 1))
        await within(2, producer.close(timeout=0))

        assert isinstance(await error_of(again), CommitOutcomeUnknownError)


@in_virtual_time
async def test_with_v2_a_commit_in_doubt_turns_out_to_be_aborted_if_the_transaction_timed_out():
    async with transactional(2, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_before=True, count=10_000)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()
        cluster.faults.clear()
        cluster.faults.add(END_TXN, error=ErrorCode.INVALID_TXN_STATE)  # Kafka's answer after the time-out
        with pytest.raises(TransactionAbortableError, match="INVALID_TXN_STATE"):
            await producer.commit_transaction()
        await producer.abort_transaction()

        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


@pytest.mark.promise("Transactions", "a transaction that may be committed is never reported as not committed")
@in_virtual_time
async def test_a_commit_that_was_not_sent_is_certainly_not_committed(version):
    """Only the request to find the coordinator was sent, and it was not answered."""
    async with transactional(version, brokers=2, topics={"t": 2}, **IMPATIENT) as (cluster, producer):
        coordinator = cluster.transactions.node("tx")
        elsewhere = next(partition for partition in (0, 1) if cluster.leader("t", partition) != coordinator)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=elsewhere)
        lost = producer._brokers.lost
        await cluster.stop_broker(coordinator)
        await until(lambda: producer._brokers.lost > lost)
        cluster.faults.add(ApiKey.FIND_COORDINATOR, drop_after_append=True, count=10_000)

        error = await error_of(producer.commit_transaction())

        assert cluster.requests_of(END_TXN) == []
        assert isinstance(error, TransactionAbortableError)
        assert error.outcome is Outcome.NOT_PERSISTED


async def test_a_commit_whose_answer_has_no_epoch_succeeds(monkeypatch):
    """Only the epoch of the next transaction is missing, and begin_transaction() reports that."""
    async with transactional(2) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        ask = producer._brokers.request_node

        async def without_epoch(node_id, message, timeout, **settings):
            answer = await ask(node_id, message, timeout, **settings)
            if isinstance(message, EndTxnRequest):
                answer.producer_id = answer.producer_epoch = -1
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(producer._brokers, "request_node", without_epoch)
            await producer.commit_transaction()

        assert committed(cluster) == [b"1"]
        with pytest.raises(TransactionReinitError, match="no new epoch"):
            await producer.begin_transaction()
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"1", b"2"]


@pytest.mark.promise(
    "Transactions",
    "with v1, an unanswered request is followed by a new epoch, so its late copy is rejected (KAFKA-17754)",
)
async def test_with_v1_an_end_request_that_was_sent_twice_is_followed_by_a_new_epoch():
    """A late copy of the request would end the next transaction of the same epoch (KAFKA-17754)."""
    async with transactional(1) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_after_append=True)
        await producer.commit_transaction()

        ends = [request.message.committed for request in cluster.requests_of(END_TXN)]
        assert ends == [True, True, False], "an abort verifies that the epoch is still the producer's"
        assert len(cluster.requests_of(INIT)) == 2
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"1", b"2"]


@pytest.mark.promise(
    "Transactions",
    "with v1, an unanswered request is followed by a new epoch, so its late copy is rejected (KAFKA-17754)",
)
@in_virtual_time
async def test_with_v1_a_repeated_abort_call_is_also_followed_by_a_new_epoch():
    """A copy of the first call's request can arrive as late as a copy of the second call's."""
    async with transactional(1, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_before=True, count=10_000)
        with pytest.raises(TransactionTimeoutError):
            await producer.abort_transaction()
        cluster.faults.clear()
        await producer.abort_transaction()

        assert len(cluster.requests_of(INIT)) == 2
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


@in_virtual_time
async def test_with_v1_an_abort_that_was_never_carried_out_keeps_the_epoch():
    async with transactional(1, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=10_000)
        with pytest.raises(TransactionTimeoutError):
            await producer.abort_transaction()
        cluster.faults.clear()
        await producer.abort_transaction()

        assert len(cluster.requests_of(INIT)) == 1


@pytest.mark.parametrize("why", ["an export", "an end that went twice"])
async def test_with_v1_taking_the_next_epoch_does_not_disturb_a_successor(why):
    """InitProducerId with the old epoch would abort the transaction of a producer that took over in between."""
    async with transactional(1) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        if why == "an export":
            await producer.export_transaction([TopicPartition("t", 1)])
        else:
            cluster.faults.add(END_TXN, drop_after_append=True)
        fault = cluster.faults.add(END_TXN, hold=answer)
        commit = asyncio.create_task(producer.commit_transaction())
        await within(2, fault.reached())
        async with quick_producer(cluster, transactional_id="tx") as successor:
            await successor.begin_transaction()
            await successor.send_and_wait("t", b"2", partition=0)
            answer.set()
            await within(2, commit)
            await successor.commit_transaction()

        assert committed(cluster) == [b"1", b"2"]
        with pytest.raises(ProducerFencedError):
            await producer.begin_transaction()


async def test_with_v1_an_abort_that_is_answered_late_does_not_disturb_a_successor():
    """Markers can delay the answer, so the abort alone does not prove that no other producer has taken over since."""
    async with transactional(1) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await producer.export_transaction([TopicPartition("t", 1)])  # the next transaction needs a new epoch
        fault = cluster.faults.add(END_TXN, hold=answer)
        abort = asyncio.create_task(producer.abort_transaction())
        await within(2, fault.reached())
        async with quick_producer(cluster, transactional_id="tx") as successor:
            await successor.begin_transaction()
            await successor.send_and_wait("t", b"2", partition=0)
            answer.set()
            with pytest.raises(ProducerFencedError):
                await within(2, abort)
            await successor.commit_transaction()

        assert committed(cluster) == [b"2"]


# --------------------------------------------------------------------------------------- records and partitions


@pytest.mark.parametrize("outcome", [Outcome.NOT_PERSISTED, Outcome.UNKNOWN], ids=lambda one: one.name)
async def test_a_transaction_is_not_committed_without_a_record_whose_own_timeout_is_over(version, outcome):
    async with transactional(version, linger_ms=1_000_000 * MS) as (cluster, producer):
        hold = asyncio.Event()
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        in_flight = outcome is Outcome.UNKNOWN  # before its time-out, even on a slow machine
        late = await producer.send("t", b"2", partition=0, timeout=(250 if in_flight else 50) * MS)
        if in_flight:
            fault = cluster.faults.add(PRODUCE, hold=hold)
            flushing = asyncio.create_task(producer.flush())
            await within(2, fault.reached())
        error = await error_of(late)
        hold.set()
        if in_flight:
            await within(2, flushing)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is outcome
        assert error.requires_abort
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert committed(cluster) == []


async def test_a_fenced_record_requires_a_new_start_and_not_an_abort(version):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        cluster.faults.add(PRODUCE, error=ErrorCode.PRODUCER_FENCED)
        error = await error_of(await producer.send("t", b"1", partition=0))

        assert (error.requires_abort, error.requires_reinit) == (False, True)
        with pytest.raises(ProducerFencedError):
            await producer.abort_transaction()
        await producer.init_transactions()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            await producer.send("t", b"1")
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


@in_virtual_time
async def test_an_init_without_an_answer_says_nothing_of_the_transaction_that_was_aborted_before(version):
    async with transactional(version, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        await error_of(await producer.send("t", b"1", partition=0))
        await producer.abort_transaction()
        cluster.faults.add(INIT, error=ErrorCode.CONCURRENT_TRANSACTIONS, count=10_000)
        with pytest.raises(TransactionTimeoutError):
            await producer.init_transactions()

        for call in (producer.begin_transaction, producer.abort_transaction):
            error = await error_of(call())
            assert isinstance(error, TransactionReinitError)
            assert "CONCURRENT_TRANSACTIONS" in str(error)
        cluster.faults.clear()
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


@in_virtual_time
async def test_an_init_without_an_answer_leaves_a_commit_in_doubt(version):
    async with transactional(version, **IMPATIENT) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_after_append=True, count=10_000)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()
        cluster.faults.add(INIT, error=ErrorCode.CONCURRENT_TRANSACTIONS, count=10_000)
        with pytest.raises(TransactionTimeoutError):
            await producer.init_transactions()

        with pytest.raises(CommitOutcomeUnknownError):
            await producer.begin_transaction()


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST], ids=by_name
)
async def test_an_abort_after_rejected_partitions_succeeds(code):
    """With v1 no partition has joined, so the coordinator does not know the transaction."""
    async with transactional(1) as (cluster, producer):
        await producer.begin_transaction()
        cluster.faults.add(ADD_PARTITIONS, error=code)
        error = await error_of(await producer.send("t", b"1", partition=0))
        assert error.requires_abort

        await producer.abort_transaction()

        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT],
    ids=by_name,
)
@in_virtual_time
async def test_with_v1_an_abort_also_ends_a_transaction_that_may_have_begun(code):
    """A coordinator gives these answers if the partitions are in its own log but were not replicated in time."""
    async with transactional(1) as (cluster, producer):
        await producer.begin_transaction()
        cluster.faults.add(ADD_PARTITIONS, error=code, after_append=True)
        cluster.faults.add(ADD_PARTITIONS, error=code, count=10_000)
        delivery = await producer.send("t", b"1", partition=0)
        await until(lambda: len(cluster.requests_of(ADD_PARTITIONS)) > 1)

        await producer.abort_transaction()

        assert isinstance(await error_of(delivery), TransactionAbortedError)
        assert [request.message.committed for request in cluster.requests_of(END_TXN)] == [False]


async def test_an_abort_after_rejected_offsets_succeeds(version):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        first = ADD_OFFSETS if version == 1 else ApiKey.TXN_OFFSET_COMMIT
        cluster.faults.add(first, error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(TransactionAbortableError, match="GROUP_AUTHORIZATION_FAILED"):
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")

        await producer.abort_transaction()

        assert state_of(producer) is TransactionState.READY


async def test_offsets_that_an_answer_leaves_out_do_not_count_as_committed(version):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=ErrorCode.ILLEGAL_GENERATION, omit_partitions=True)
        with pytest.raises(TransactionAbortableError, match="left t-0 out of its answer"):
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()

        assert committed(cluster) == []


async def test_with_v1_a_re_created_topic_gets_no_sequence_number_twice():
    """The new log may contain sequence numbers of the aborted transaction, which the next one must not reuse."""
    async with transactional(1, compression_type="gzip") as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"warm", partition=1)
        cluster.delete_topic("t")
        cluster.create_topic("t", 3)
        await producer.send_and_wait("t", os.urandom(10), partition=0)  # by its name, into the new topic
        old = producer._accumulator.topics["t"].queues[0].sequence.topic_id
        producer._metadata.request_update()
        await until(lambda: producer._metadata.cluster.topics["t"].topic_id != old)
        # Compression takes a while, so the transaction is aborted before the record can be sent.
        await results([await producer.send("t", b"b" * 20_000, partition=0)])
        await producer.abort_transaction()

        async with producer.transaction():
            third = await producer.send("t", b"c" * 20_000, partition=0)

        assert (await third).offset is not None
        assert committed(cluster, "t", 0) == [b"c" * 20_000]


# -------------------------------------------------------------------------------------------------- any fault


def some_fault(chance):
    """Return an API, and a fault of its requests from which a producer can recover."""
    api = chance.choice([PRODUCE, PRODUCE, END_TXN, ADD_PARTITIONS, ApiKey.TXN_OFFSET_COMMIT, ADD_OFFSETS])
    codes = [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ]
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if api is PRODUCE else chance.choice(codes)
    what = chance.choice(
        [{"drop_before": True}, {"drop_after_append": True}, {"delay": 5 * MS}, {"error": code}]
    )
    return api, {**what, "skip": chance.randrange(3)}


async def attempt(producer, values, number, kind, patience):
    """Run one transaction; return whether its values are committed (None if unknown)."""
    try:
        async with asyncio.timeout(patience if kind == "cancelled" else None):
            async with producer.transaction() as transaction:
                for value in values:
                    await producer.send("t", value)
                await transaction.send_offsets({TopicPartition("in", 0): number}, "g")
                if kind == "aborted":
                    raise ZeroDivisionError
        return True
    except (ZeroDivisionError, TransactionAbortableError):
        return False
    except (TimeoutError, CommitOutcomeUnknownError):
        return None
    except TransactionReinitError as error:
        return None if error.outcome is Outcome.UNKNOWN else False
    finally:
        if state_of(producer) in (TransactionState.REINIT_REQUIRED, TransactionState.OUTCOME_UNKNOWN):
            await producer.init_transactions()
        assert state_of(producer) is TransactionState.READY


@pytest.mark.promise("Transactions", "a transaction that may be committed is never reported as not committed")
@pytest.mark.parametrize("seed", range(4))
async def test_after_any_fault_a_transaction_is_committed_as_a_whole_or_not_at_all(version, seed):
    chance = random.Random(seed)
    patient = {"max_block_ms": 3_000_000 * MS, "delivery_timeout_ms": 3_000_000 * MS}
    async with transactional(
        version, brokers=2, topics={"t": 3, "in": 1}, request_timeout_ms=200_000 * MS, **patient
    ) as (cluster, producer):
        for _ in range(14):
            api, what = some_fault(chance)
            cluster.faults.add(api, **what)
        became = []
        for number in range(12):
            kind = chance.choice(["committed", "committed", "aborted", "cancelled"])
            values = [b"%d-%d" % (number, index) for index in range(5)]
            became.append(await attempt(producer, values, number, kind, chance.random() * 10 * MS))

        found = committed(cluster)
        assert len(found) == len(set(found))
        for number, is_there in enumerate(became):
            mine = [value for value in found if value.startswith(b"%d-" % number)]
            assert len(mine) in ((0, 5) if is_there is None else (5,) if is_there else (0,)), number
