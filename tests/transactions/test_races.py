"""Transactional calls that run at the same time as requests in flight, other calls, and close()."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import CommitOutcomeUnknownError, Outcome, TopicPartition, TransactionAbortableError
from aioproducer.errors import (
    IllegalStateError,
    KafkaError,
    ProducerClosed,
    TransactionError,
    TransactionReinitError,
    TransactionTimeoutError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.transactions.state import TransactionState
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    METADATA,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    assert_nothing_left,
    results,
    until,
    within,
)
from tests.transactions.test_calls import committed, state_of, transactional


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


END_TXN, INIT = ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID


async def test_close_during_a_commit_does_not_cancel_the_caller(version):
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
        assert not commit.cancelled(), "its caller was not cancelled"
        assert isinstance(commit.exception(), CommitOutcomeUnknownError)


@pytest.mark.promise("Transactions", "a transaction that may be committed is never reported as not committed")
async def test_close_between_a_commit_and_the_next_epoch_does_not_fail_the_commit():
    """With v1, the next transaction needs a new epoch. Without one, only that transaction would fail."""
    async with transactional(1) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await producer.export_transaction([TopicPartition("t", 1)])
        answer = asyncio.Event()
        fault = cluster.faults.add(INIT, hold=answer)
        commit = asyncio.create_task(producer.commit_transaction())
        await within(2, fault.reached())

        await within(2, producer.close(timeout=0))

        answer.set()
        await within(2, commit)
        assert committed(cluster) == [b"1"]
        assert state_of(producer) is TransactionState.REINIT_REQUIRED


@pytest.mark.parametrize("call", ["abort_transaction", "send_offsets", "init_transactions"])
async def test_close_during_a_transactional_call_does_not_cancel_the_caller(version, call):
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
        assert not task.cancelled(), "its caller was not cancelled"
        assert isinstance(task.exception(), KafkaError)


async def test_a_fence_that_waits_for_an_abort_does_not_begin_after_close(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(END_TXN, hold=answer)
        abort = asyncio.create_task(producer.abort_transaction())
        await within(2, fault.reached())
        fence = asyncio.create_task(producer.fence_transaction())
        await asyncio.sleep(0)

        await within(2, producer.close(timeout=0))

        await within(0.2, asyncio.wait([abort, fence]))
        answer.set()
        assert [type(task.exception()) for task in (abort, fence)] == [ProducerClosed, ProducerClosed]
        assert len(cluster.requests_of(INIT)) == 1


async def test_close_during_an_export_does_not_cancel_the_caller_and_no_partition_joins():
    async with transactional(1) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        fault = cluster.faults.add(ApiKey.ADD_PARTITIONS_TO_TXN, hold=answer)
        export = asyncio.create_task(producer.export_transaction([TopicPartition("t", 0)]))
        await within(2, fault.reached())

        await within(2, producer.close(timeout=0))

        await assert_nothing_left(producer)
        await asyncio.wait([export])
        answer.set()
        assert not export.cancelled(), "its caller was not cancelled"
        assert isinstance(export.exception(), ProducerClosed)


@pytest.mark.parametrize("when", ["during", "after"])
async def test_an_answer_of_the_old_epoch_during_init_transactions_changes_nothing(version, when):
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
            await asyncio.wait([calling], timeout=0.05)  # it may wait for the requests in flight
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


async def test_an_abort_during_which_a_record_is_fenced_succeeds_or_raises_a_transaction_error(version):
    async with transactional(version, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        late = asyncio.Event()
        held = cluster.faults.add(PRODUCE, error=ErrorCode.PRODUCER_FENCED, hold=late)
        await producer.send("t", b"2", partition=0)
        await within(2, held.reached())
        calling = asyncio.create_task(producer.abort_transaction())
        await until(lambda: state_of(producer) is TransactionState.ABORTING)
        late.set()
        try:
            await within(3, calling)
        except TransactionError:
            pass
        assert producer._transaction.state in (TransactionState.READY, TransactionState.REINIT_REQUIRED)


async def test_a_commit_during_which_close_is_called_leaves_no_open_transaction(version):
    """close(timeout) is called while a commit flushes."""
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        late = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=late)
        await producer.send("t", b"2", partition=0)
        await within(2, held.reached())
        commit = asyncio.create_task(producer.commit_transaction())
        await until(lambda: state_of(producer) is TransactionState.COMMITTING)
        closing = asyncio.create_task(producer.close(timeout=1000 * MS))
        await asyncio.sleep(0)
        late.set()
        await within(3, closing)
        await asyncio.wait([commit])
        partition = cluster.partition("t", 0)
        assert partition.last_stable_offset == partition.log.end_offset


# ------------------------------------------------------------------------------------------- concurrent calls


async def turns_until(condition):
    """Wait until the condition is true, and return in the same iteration of the loop in which it became true."""
    async with asyncio.timeout(2000 * MS):
        while not condition():  # noqa: ASYNC110  # an event would be one iteration late
            await asyncio.sleep(0)


async def test_a_commit_that_has_just_ended_is_not_joined_by_the_next_one(version):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        commit = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0)
        await turns_until(lambda: state_of(producer) is TransactionState.READY)

        await producer.begin_transaction()
        await producer.send("t", b"2", partition=0)
        await within(2, producer.commit_transaction())
        await commit

        assert state_of(producer) is TransactionState.READY
        assert committed(cluster) == [b"1", b"2"]


async def test_an_export_does_not_wait_for_a_join_that_has_just_ended(monkeypatch):
    async with transactional(1) as (_, producer):
        await producer.begin_transaction()
        first = asyncio.create_task(producer.export_transaction([TopicPartition("t", 0)]))
        await turns_until(lambda: TopicPartition("t", 0) in producer._transaction.partitions)
        call, calls = producer._coordinator._calls.run, []

        async def counted(name, work):
            calls.append(name)
            assert len(calls) < 100, "it spins without yielding to the loop"
            await call(name, work)

        monkeypatch.setattr(producer._coordinator._calls, "run", counted)
        await within(2, producer.export_transaction([TopicPartition("t", 1)]))
        await first


async def test_the_second_of_concurrent_init_and_begin_calls_is_rejected(version):
    async with transactional(version) as (cluster, producer):
        init, begin = await asyncio.gather(
            producer.init_transactions(), producer.begin_transaction(), return_exceptions=True
        )
        assert init is None
        assert isinstance(begin, IllegalStateError)
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)

        assert committed(cluster) == [b"1"]


async def test_a_fence_waits_for_a_running_abort(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(END_TXN, hold=answer)
        abort = asyncio.create_task(producer.abort_transaction())
        await within(2, fault.reached())
        abort.cancel()
        await asyncio.wait([abort])

        fence = asyncio.create_task(producer.fence_transaction())
        answer.set()
        await within(3, fence)

        assert state_of(producer) is TransactionState.READY
        assert committed(cluster) == []


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "not answered"])
@in_virtual_time
async def test_two_fences_that_wait_for_an_abort_are_joined(version, answered):
    async with transactional(version, max_block_ms=300_000 * MS, request_timeout_ms=200_000 * MS) as (
        cluster,
        producer,
    ):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(END_TXN, hold=answer, count=1 if answered else 1000)
        abort = asyncio.create_task(producer.abort_transaction())
        await within(2, fault.reached())
        fences = [asyncio.create_task(producer.fence_transaction()) for _ in range(2)]
        await asyncio.sleep(0)
        if answered:
            answer.set()
        await asyncio.wait([abort])
        await within(3, asyncio.gather(*fences))
        answer.set()

        assert isinstance(abort.exception(), type(None) if answered else TransactionTimeoutError)
        assert state_of(producer) is TransactionState.READY
        assert len(cluster.requests_of(INIT)) == 2
        assert committed(cluster) == []


async def test_a_fence_that_waited_for_an_abort_does_not_affect_the_next_transaction(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(END_TXN, hold=answer)

        async def abort_and_begin_anew():
            await producer.abort_transaction()
            await producer.begin_transaction()

        beginning = asyncio.create_task(abort_and_begin_anew())
        await within(2, fault.reached())
        fence = asyncio.create_task(producer.fence_transaction())
        answer.set()
        await within(3, beginning)
        await within(3, fence)
        await producer.send("t", b"2", partition=0)
        await within(2, producer.commit_transaction())

        assert committed(cluster) == [b"2"]


async def test_offsets_of_many_groups_can_be_sent_concurrently(version):
    async with transactional(version) as (cluster, producer):
        place = TopicPartition("t", 0)
        await producer.begin_transaction()
        await asyncio.gather(
            *(producer.send_offsets_to_transaction({place: number}, f"g{number}") for number in range(20))
        )
        await producer.commit_transaction()

        assert [cluster.groups.offsets(f"g{number}")[place] for number in range(20)] == list(range(20))


# ------------------------------------------------------------------ commits and aborts with requests in flight


@pytest.mark.promise("Transactions", "a commit or an abort is sent after all requests that are on their way")
async def test_a_commit_waits_for_offsets_in_flight_and_fails_with_them(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=ErrorCode.ILLEGAL_GENERATION, hold=answer)
        offsets = asyncio.create_task(producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g"))
        await within(2, fault.reached())
        offsets.cancel()
        await asyncio.wait([offsets])
        commit = asyncio.create_task(producer.commit_transaction())
        await until(lambda: state_of(producer) is TransactionState.COMMITTING)

        answer.set()
        with pytest.raises(TransactionAbortableError, match="ILLEGAL_GENERATION"):
            await within(3, commit)

        assert committed(cluster) == []


@pytest.mark.promise("Transactions", "a commit or an abort is sent after all requests that are on their way")
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_an_end_request_is_sent_after_both_requests_of_offsets_in_flight(commit):
    async with transactional(1, request_timeout_ms=3_000_000 * MS) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(ApiKey.ADD_OFFSETS_TO_TXN, hold=answer)
        offsets = asyncio.create_task(producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g"))
        await within(2, fault.reached())
        offsets.cancel()
        await asyncio.wait([offsets])
        ending = asyncio.create_task(
            producer.commit_transaction() if commit else producer.abort_transaction()
        )
        answer.set()
        await within(3, ending)

        asked = [ApiKey(request.header.api_key) for request in cluster.requests]
        order = [
            api for api in asked if api in (ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, END_TXN)
        ]
        if commit:
            assert order == [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, END_TXN]
        else:
            assert order[0] is ApiKey.ADD_OFFSETS_TO_TXN
            assert order[-1] is END_TXN, "with v1, later offsets would join the next transaction"


async def test_an_abort_does_not_wait_for_partitions_that_cannot_join():
    async with transactional(1, max_block_ms=6_000_000 * MS) as (cluster, producer):
        await producer.begin_transaction()
        fault = cluster.faults.add(
            ApiKey.ADD_PARTITIONS_TO_TXN, error=ErrorCode.CONCURRENT_TRANSACTIONS, count=1000
        )
        await producer.send("t", b"1", partition=0)
        await until(lambda: fault.hits >= 2)

        await within(3, producer.abort_transaction())

        assert committed(cluster) == []


async def test_a_commit_contains_the_buffered_records_and_none_that_were_rejected_meanwhile(version):
    async with transactional(version, **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        hold = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"first", partition=0)
        fault = cluster.faults.add(PRODUCE, hold=hold)
        sends = {
            value: asyncio.create_task(producer.send("t", value, partition=0))
            for value in (b"%d" % number + b"x" * LARGE for number in range(12))
        }
        await within(2, fault.reached())
        await until(lambda: producer._accumulator.memory.waiters)
        commit = asyncio.create_task(producer.commit_transaction())
        await until(lambda: state_of(producer) is TransactionState.COMMITTING)
        hold.set()
        await within(3, commit)
        await asyncio.wait(sends.values())

        taken = [value for value, send in sends.items() if send.exception() is None]
        assert len(taken) < 12
        assert committed(cluster) == [b"first", *taken]


@in_virtual_time
async def test_a_late_batch_of_an_aborted_transaction_does_not_appear_in_the_next_one(version):
    quick = {"delivery_timeout_ms": 300_000 * MS, "request_timeout_ms": 290_000 * MS}
    async with transactional(version, brokers=2, topics={"t": 4}, **quick) as (cluster, producer):
        hold = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"0", partition=0)
        cluster.faults.add(PRODUCE, hold=hold, count=1000)
        [error] = await results([await producer.send("t", b"1", partition=0)])
        assert error.outcome is Outcome.UNKNOWN
        cluster.faults.clear()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
            hold.set()

        assert committed(cluster) == [b"2"]


# ------------------------------------------------------------------------------------- sends that outlive a block


class HeldBack:
    """A serializer that blocks on one value until it is released."""

    def __init__(self, value):
        self.value = value
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def serialize(self, topic, value, headers):
        if value == self.value:
            self.begun.set()
            await self.go.wait()
        return value


@pytest.mark.promise("Transactions", "a record belongs to the transaction in which `send` was called")
async def test_a_send_called_in_an_aborted_transaction_sends_nothing_in_the_next_one(version):
    serializer = HeldBack(b"old")
    async with transactional(version, value_serializer=serializer) as (cluster, producer):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction():
                send = asyncio.create_task(producer.send("t", b"old", partition=0))
                await within(2, serializer.begun.wait())
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send("t", b"new", partition=0)
            serializer.go.set()
            with pytest.raises(IllegalStateError, match="nothing was buffered"):
                await within(2, send)

        assert committed(cluster) == [b"new"]


@pytest.mark.promise("Transactions", "a record belongs to the transaction in which `send` was called")
@pytest.mark.parametrize("call", ["send", "send_batch"])
async def test_a_record_that_waited_for_metadata_past_its_transaction_is_not_sent_in_the_next_one(
    version, call
):
    async with transactional(version, topics={"t": 1, "u": 1}) as (cluster, producer):
        batch = producer.create_batch()
        batch.append(key=None, value=b"old")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction():
                fault = cluster.faults.add(
                    METADATA, topic="u", error=ErrorCode.LEADER_NOT_AVAILABLE, count=10_000
                )
                sending = asyncio.create_task(
                    producer.send("u", b"old")
                    if call == "send"
                    else producer.send_batch(batch, "u", partition=0)
                )
                await within(2, fault.reached())
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send("t", b"new")
            cluster.faults.clear()
            with pytest.raises(IllegalStateError, match="nothing was buffered"):
                await within(2, sending)

        assert committed(cluster, "u") == []
        assert committed(cluster, "t") == [b"new"]


# ------------------------------------------------------------------------------------------ cancelling and closing


async def test_a_cancelled_block_whose_commit_fails_is_aborted(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        fault = cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, hold=answer)

        async def work():
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)

        task = asyncio.create_task(work())
        await within(2, fault.reached())
        await until(lambda: state_of(producer) is TransactionState.COMMITTING)
        task.cancel()
        await asyncio.sleep(0)
        answer.set()
        await asyncio.wait([task])

        assert task.cancelled()
        assert state_of(producer) is TransactionState.READY
        assert committed(cluster) == []


async def test_a_block_completes_its_abort_no_matter_how_often_it_is_cancelled(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        fault = cluster.faults.add(END_TXN, hold=answer)

        async def work():
            async with producer.transaction():
                await producer.send_and_wait("t", b"1", partition=0)
                raise ZeroDivisionError

        task = asyncio.create_task(work())
        await within(2, fault.reached())
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done(), "no transaction is left open"
        answer.set()
        await asyncio.wait([task])

        assert task.cancelled()
        assert state_of(producer) is TransactionState.READY
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


async def test_close_lets_a_block_that_is_committing_finish(version):
    async with transactional(version) as (cluster, producer):
        hold = asyncio.Event()
        fault = cluster.faults.add(PRODUCE, hold=hold)

        async def work():
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)

        task = asyncio.create_task(work())
        await within(2, fault.reached())
        await until(lambda: state_of(producer) is TransactionState.COMMITTING)
        close = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        hold.set()
        await within(3, task)
        await within(3, close)

        assert committed(cluster) == [b"1"]


@pytest.mark.promise("Transactions", "`close()` waits for its timeout only once")
async def test_cancelling_close_does_not_wait_for_a_silent_coordinator(version):
    async with transactional(version) as (cluster, producer):
        answer = asyncio.Event()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        fault = cluster.faults.add(END_TXN, hold=answer, count=100)
        close = asyncio.create_task(producer.close())
        await within(2, fault.reached())

        close.cancel()
        try:
            await within(0.5, asyncio.wait([close]))
        finally:
            answer.set()
            await asyncio.wait([close])


@pytest.mark.promise("Transactions", "`close()` waits for its timeout only once")
@pytest.mark.parametrize("silent", ["what it waits for", "every broker"])
@in_virtual_time
async def test_close_waits_for_its_timeout_only_once(version, silent):
    async with transactional(version, request_timeout_ms=3_000_000 * MS) as (cluster, producer):
        answer = asyncio.Event()
        loop = asyncio.get_running_loop()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        if silent == "every broker":
            cluster.freeze_broker(0)
        else:
            fault = cluster.faults.add(PRODUCE, hold=answer, count=100)
            await producer.send("t", b"2", partition=0)
            await within(2, fault.reached())

        began = loop.time()
        await producer.close(timeout=1000 * MS)
        took = loop.time() - began

        answer.set()
        if silent == "every broker":
            cluster.thaw_broker(0)
        assert took < 1900 * MS, "twice would be 2000 ms"
