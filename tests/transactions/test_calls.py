"""A user's transactional calls, v1 and v2, on the embedded cluster: all or nothing, whatever happens."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import asynccontextmanager

import pytest

from aioproducer import (
    CommitOutcomeUnknownError,
    ConsumerGroupMetadata,
    DeliveryError,
    OffsetAndMetadata,
    Outcome,
    Producer,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortableError,
    TransactionAbortedError,
)
from aioproducer.errors import (
    IllegalStateError,
    TransactionReinitError,
    TransactionTimeoutError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.transactions.calls import Transactional, TransactionScope, consists_of_kafka_errors
from aioproducer.transactions.state import TransactionState
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    PRODUCE,
    assert_nothing_left,
    quick_producer,
    results,
    until,
    within,
)

END_TXN, ADD_PARTITIONS, INIT = ApiKey.END_TXN, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.INIT_PRODUCER_ID


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    """The transaction versions that a cluster can have finalized."""
    return request.param


@asynccontextmanager
async def transactional(version, brokers=1, topics=None, **settings):
    async with EmbeddedCluster(brokers, topics=topics or {"t": 3}, transaction_version=version) as cluster:
        producer = quick_producer(cluster, transactional_id="tx", **settings)
        await within(3, producer.start())
        try:
            yield cluster, producer
        finally:
            await within(3, producer.close(timeout=0))
        await assert_nothing_left(producer, cluster)


def committed(cluster, topic="t", partition=None):
    return [record.value for record in cluster.records(topic, partition, committed=True)]


def state_of(producer):
    return producer._transaction.state


@pytest.mark.promise("Transactions", "a transaction is committed whole or not at all, v1 and v2")
async def test_a_block_that_ends_is_committed_and_one_that_raises_is_aborted(version):
    async with transactional(version) as (cluster, producer):
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
            await producer.send("t", b"2", partition=1)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction():
                await producer.send_and_wait("t", b"never", partition=0)
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send("t", b"3", partition=0)

        assert committed(cluster, partition=0) == [b"1", b"3"]
        assert committed(cluster, partition=1) == [b"2"]
        assert b"never" in [record.value for record in cluster.records("t", 0)]


async def test_begin_commit_and_abort_by_name(version):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        delivery = await producer.send("t", b"1", partition=0)
        await producer.commit_transaction()
        assert delivery.done(), "a commit waits for every acknowledgement"
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"2", partition=0)
        await producer.abort_transaction()

        assert committed(cluster) == [b"1"]


@pytest.mark.promise("Transactions", "an abort drops the records that were not sent (KIP-654)")
async def test_an_abort_discards_unsent_records(version):
    async with transactional(version, linger_ms=1_000_000 * MS) as (cluster, producer):
        await producer.begin_transaction()
        deliveries = [await producer.send("t", b"%d" % number) for number in range(10)]

        await within(2, producer.abort_transaction())

        errors = await results(deliveries)
        assert {type(error) for error in errors} == {TransactionAbortedError}
        assert {error.outcome for error in errors} == {Outcome.NOT_PERSISTED}
        assert cluster.records("t") == []
        assert cluster.requests_of(END_TXN) == [], "the coordinator does not know the transaction"


async def test_an_empty_transaction_sends_no_request(version):
    async with transactional(version) as (cluster, producer):
        async with producer.transaction():
            pass
        await producer.begin_transaction()
        await producer.abort_transaction()

        assert cluster.requests_of(END_TXN) == []
        assert cluster.requests_of(ADD_PARTITIONS) == []


async def test_sending_outside_a_transaction_is_rejected(version):
    async with transactional(version) as (cluster, producer):
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            await producer.send("t", b"1")
        async with producer.transaction():
            await producer.send_and_wait("t", b"1")
        for call in (producer.send, producer.send_and_wait):
            with pytest.raises(IllegalStateError, match="begin_transaction"):
                await call("t", b"2")
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.try_send("t", b"2")
        batch = producer.create_batch()
        batch.append(key=None, value=b"2")
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            await producer.send_batch(batch, "t", partition=0)

        assert [record.value for record in cluster.records("t")] == [b"1"]


async def test_calls_in_the_wrong_order_are_rejected_and_change_nothing(version):
    async with transactional(version) as (cluster, producer):
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(IllegalStateError, match="begin"):
                await call()
        with pytest.raises(IllegalStateError):
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        await producer.begin_transaction()
        with pytest.raises(IllegalStateError, match="commit or abort"):
            await producer.begin_transaction()
        with pytest.raises(IllegalStateError):
            await producer.init_transactions()
        await producer.send("t", b"1")
        await producer.commit_transaction()

        assert committed(cluster) == [b"1"]


async def test_transactional_calls_need_a_transactional_id():
    async with EmbeddedCluster() as cluster, quick_producer(cluster) as producer:
        for call in (producer.begin_transaction, producer.commit_transaction, producer.init_transactions):
            with pytest.raises(IllegalStateError, match="transactional_id"):
                await call()


@pytest.mark.promise(
    "Transactions",
    "the finalized feature selects transactions v1 or v2, and v1 limits the request versions (KIP-890)",
)
async def test_the_finalized_feature_and_not_the_advertised_versions_selects_the_protocol(version):
    async with transactional(version) as (cluster, producer):
        async with producer.transaction() as transaction:
            await producer.send("t", b"1")
            await transaction.send_offsets({TopicPartition("t", 0): 7}, "g")

        def versions(api):
            return {request.header.version for request in cluster.requests_of(api)}

        if version == 1:
            assert max(versions(PRODUCE)) <= 11
            assert max(versions(END_TXN)) <= 4
            assert max(versions(ApiKey.TXN_OFFSET_COMMIT)) <= 4
            assert len(cluster.requests_of(ADD_PARTITIONS)) == 1
            assert len(cluster.requests_of(ApiKey.ADD_OFFSETS_TO_TXN)) == 1
        else:
            assert min(versions(PRODUCE)) >= 12
            assert versions(END_TXN) == {5}
            assert versions(ApiKey.TXN_OFFSET_COMMIT) == {5}
            assert cluster.requests_of(ADD_PARTITIONS) == []
            assert cluster.requests_of(ApiKey.ADD_OFFSETS_TO_TXN) == []


@pytest.mark.promise(
    "Transactions",
    "the finalized feature selects transactions v1 or v2, and v1 limits the request versions (KIP-890)",
)
async def test_a_transaction_begun_without_a_connection_uses_the_clusters_level(version):
    """While an application waits for its next transaction, its idle connections are closed, by the brokers too."""
    async with transactional(version, topics={"t": 1}) as (cluster, producer):
        for number in range(2):
            await cluster.close_connections(0)
            await until(lambda: producer._brokers.connection(0) is None)
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"%d" % number)
            await producer.commit_transaction()

        assert {request.header.version for request in cluster.requests_of(END_TXN)} == {3 + version}
        assert committed(cluster) == [b"0", b"1"]


@pytest.mark.promise(
    "Transactions",
    "the finalized feature selects transactions v1 or v2, and v1 limits the request versions (KIP-890)",
)
async def test_each_v2_transaction_has_its_own_epoch(version):
    async with transactional(version, topics={"t": 1}) as (cluster, producer):
        for number in range(3):
            async with producer.transaction():
                await producer.send("t", b"%d" % number)
        headers = [batch.header for batch in cluster.batches("t", 0) if not batch.header.is_control]

        assert all(header.is_transactional for header in headers)
        if version == 1:
            assert [(header.producer_epoch, header.base_sequence) for header in headers] == [
                (0, 0),
                (0, 1),
                (0, 2),
            ]
        else:
            assert [(header.producer_epoch, header.base_sequence) for header in headers] == [
                (0, 0),
                (1, 0),
                (2, 0),
            ]


async def test_many_partitions_join_together(version):
    async with transactional(version, brokers=3, topics={"t": 50}) as (cluster, producer):
        async with producer.transaction():
            for number in range(500):
                await producer.send("t", b"%d" % number, partition=number % 50)

        assert sorted(int(value) for value in committed(cluster)) == list(range(500))
        for partition in range(50):
            assert [int(value) for value in committed(cluster, "t", partition)] == list(
                range(partition, 500, 50)
            )
        if version == 1:
            assert len(cluster.requests_of(ADD_PARTITIONS)) < 10


# ------------------------------------------------------------------------------------------------ when records fail


@pytest.mark.promise(
    "Transactions", "a failed record makes the commit impossible, and the error says so (KIP-1050)"
)
async def test_a_transaction_with_a_failed_record_cannot_be_committed(version):
    async with transactional(version) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, partition=1)
        await producer.begin_transaction()
        good = await producer.send_and_wait("t", b"good", partition=0)
        bad = await producer.send("t", b"bad", partition=1)
        [error] = await results([bad])

        assert isinstance(error, DeliveryError)
        assert error.requires_abort
        with pytest.raises(TransactionAbortableError, match="INVALID_RECORD") as caught:
            await producer.send("t", b"more")
        assert caught.value.requires_abort
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"next", partition=1)

        assert good.offset == 0
        assert committed(cluster) == [b"next"]


async def test_a_block_with_an_unnoticed_failed_record_is_aborted_with_an_error(version):
    async with transactional(version) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partition=1)
        with pytest.raises(TransactionAbortableError, match="TOPIC_AUTHORIZATION_FAILED"):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction():
                await producer.send("t", b"good", partition=0)
                await producer.send("t", b"bad", partition=1)

        assert state_of(producer) is TransactionState.READY
        async with producer.transaction():
            await producer.send("t", b"next", partition=1)
        assert committed(cluster) == [b"next"]


@pytest.mark.promise(
    "Transactions",
    "a record that was rejected without an exception makes the commit impossible: a row of `send_many`, a "
    "record that was queued without await",
)
@pytest.mark.parametrize(
    "settings", [{}, {"value_serializer": lambda value: value}], ids=["columns", "records"]
)
async def test_a_block_with_an_unnoticed_rejected_row_is_aborted_with_an_error(version, settings):
    async with transactional(version, **settings) as (cluster, producer):
        with pytest.raises(TransactionAbortableError, match="str"):  # the whole block is tested
            async with producer.transaction():
                await producer.send_many("t", [b"good", "no bytes", b"good"])

        assert state_of(producer) is TransactionState.READY
        async with producer.transaction():
            await producer.send("t", b"next")
        assert committed(cluster) == [b"next"]


@pytest.mark.promise(
    "Transactions",
    "a record that was rejected without an exception makes the commit impossible: a row of `send_many`, a "
    "record that was queued without await",
)
@in_virtual_time
async def test_a_block_with_rows_that_did_not_fit_the_buffer_is_aborted_with_an_error(version):
    async with transactional(version, max_block_ms=100, **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        held = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=held)
        with pytest.raises(TransactionAbortableError, match="buffer"):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction():
                receipt = await within(3, producer.send_many("t", [bytes(LARGE)] * 12))
                held.set()

        assert 0 < len(receipt.errors) <= 12
        assert committed(cluster) == []


@pytest.mark.promise(
    "Transactions",
    "a record that was rejected without an exception makes the commit impossible: a row of `send_many`, a "
    "record that was queued without await",
)
async def test_rows_of_an_ended_transaction_do_not_affect_the_next(version):
    async with transactional(version, **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        held = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=held)
        await producer.begin_transaction()
        sending = asyncio.create_task(producer.send_many("t", [bytes(LARGE)] * 12, partitions=0))
        await until(lambda: producer.metrics().buffer_waiters)
        aborting = asyncio.create_task(producer.abort_transaction())
        held.set()
        await within(3, aborting)
        await producer.begin_transaction()
        receipt = await within(3, sending)
        await producer.send("t", b"next", partition=1)
        await within(3, producer.commit_transaction())

        assert receipt.errors
        assert committed(cluster) == [b"next"]


async def test_records_that_will_no_longer_be_sent_get_a_result(version):
    async with transactional(version, linger_ms=0) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, partition=1)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"0", partition=0)
        held = cluster.faults.add(PRODUCE, hold=hold, partition=0)
        first = await producer.send("t", b"1", partition=0)
        await within(2, held.reached())
        waiting = [await producer.send("t", b"%d" % number, partition=2) for number in range(3)]
        bad = await producer.send("t", b"bad", partition=1)
        hold.set()

        found = await results([bad, *waiting, first])
        assert isinstance(found[0], DeliveryError)
        await producer.abort_transaction()
        assert committed(cluster) == []


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT]
)
async def test_transient_errors_are_retried(version, code):
    async with transactional(version) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=code, count=3)
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)

        assert committed(cluster) == [b"1"]


@pytest.mark.parametrize("break_", ["drop_before", "drop_after_append"])
@pytest.mark.parametrize("api", [PRODUCE, END_TXN, INIT, ApiKey.FIND_COORDINATOR], ids=lambda api: api.name)
async def test_a_lost_connection_loses_nothing(version, api, break_):
    async with transactional(version) as (cluster, producer):
        for number in range(3):
            cluster.faults.add(api, **{break_: True})
            async with producer.transaction():
                await producer.send("t", b"%d" % number, partition=0)
        cluster.faults.clear()

        assert committed(cluster) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
    ids=lambda code: code.name,
)
@pytest.mark.parametrize("api", [END_TXN, ADD_PARTITIONS, INIT], ids=lambda api: api.name)
async def test_a_coordinator_that_moves_or_is_busy_is_waited_for(api, code):
    async with EmbeddedCluster(2, topics={"t": 3}, transaction_version=1) as cluster:
        fault = cluster.faults.add(api, error=code, count=2)
        async with quick_producer(cluster, transactional_id="tx") as producer:
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)

        assert fault.hits == 2
        assert committed(cluster) == [b"1"]


# ---------------------------------------------------------------------------------------------- fencing, time-outs


@pytest.mark.promise(
    "Transactions",
    "producers with the same transactional id fence each other, including those of other clients (KIP-360, "
    "KIP-588)",
)
async def test_a_second_producer_of_the_same_id_fences_the_first(version):
    async with transactional(version) as (cluster, first):
        await first.begin_transaction()
        await first.send_and_wait("t", b"of the first", partition=0)
        async with quick_producer(cluster, transactional_id="tx") as second:
            async with second.transaction():
                await second.send("t", b"of the second", partition=0)

            await first.send("t", b"too late", partition=0)
            with pytest.raises((ProducerFencedError, TransactionAbortableError)) as caught:
                await first.commit_transaction()
            if caught.value.requires_abort:  # with v2, only the abort shows that it was fenced
                with pytest.raises(ProducerFencedError):
                    await first.abort_transaction()
            with pytest.raises(ProducerFencedError, match="init_transactions"):
                await first.begin_transaction()
            async with second.transaction():
                await second.send("t", b"again", partition=0)

        assert committed(cluster) == [b"of the second", b"again"]


FENCED_BLOCKS = {
    "the commit": lambda first: first.send("t", b"2", partition=0),
    "a delivery": lambda first: first.send_and_wait("t", b"2", partition=0),
    "a flush and a send": lambda first: _send_after_a_failure(first),
    "a task group": lambda first: _send_in_a_group(first),
    "a position": lambda first: first.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g"),
}


async def _send_after_a_failure(producer):
    await results([await producer.send("t", b"2", partition=0)])
    await producer.send("t", b"3", partition=0)


async def _send_in_a_group(producer):
    async with asyncio.TaskGroup() as group:
        for partition in range(3):
            group.create_task(producer.send_and_wait("t", b"2", partition=partition))


@pytest.mark.promise(
    "Transactions",
    "producers with the same transactional id fence each other, including those of other clients (KIP-360, "
    "KIP-588)",
)
@pytest.mark.parametrize("rest", FENCED_BLOCKS.values(), ids=FENCED_BLOCKS)
async def test_a_block_of_a_fenced_producer_raises_producer_fenced_error(version, rest, caplog):
    """With v2, the rejected record alone could also mean a time-out; the answer to the abort shows which it was."""
    async with transactional(version) as (cluster, first):
        with pytest.raises(ProducerFencedError) as caught:  # noqa: PT012  # the whole block is what is tested
            async with first.transaction():
                await first.send_and_wait("t", b"1", partition=0)
                async with quick_producer(cluster, transactional_id="tx") as second:
                    async with second.transaction():
                        await second.send("t", b"of the second", partition=0)
                await rest(first)

        assert caught.value.requires_reinit
        assert "time-out will" not in caplog.text
        assert "abort it after its time-out" not in caplog.text
        assert committed(cluster) == [b"of the second"]


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_block_of_a_fenced_producer_keeps_an_exception_of_the_application(version, error, caplog):
    async with transactional(version) as (cluster, first):
        with pytest.raises(error):  # noqa: PT012  # the whole block is what is tested
            async with first.transaction():
                await first.send_and_wait("t", b"1", partition=0)
                async with quick_producer(cluster, transactional_id="tx"):
                    pass
                raise error

        assert "was already aborted, by its time-out or another producer" in caplog.text
        with pytest.raises(ProducerFencedError):
            await first.begin_transaction()


@pytest.mark.promise(
    "Transactions",
    "producers with the same transactional id fence each other, including those of other clients (KIP-360, "
    "KIP-588)",
)
async def test_init_transactions_takes_the_id_back(version):
    async with transactional(version) as (cluster, first):
        async with quick_producer(cluster, transactional_id="tx") as second:
            await second.begin_transaction()
            await second.send_and_wait("t", b"of the second", partition=0)
            await first.begin_transaction()
            await first.send("t", b"1", partition=0)
            with pytest.raises((ProducerFencedError, TransactionAbortableError)) as caught:
                await first.commit_transaction()
            if caught.value.requires_abort:
                with pytest.raises(ProducerFencedError):
                    await first.abort_transaction()

            await first.init_transactions()
            async with first.transaction():
                await first.send("t", b"2", partition=0)
            await second.close(timeout=0)

        assert committed(cluster) == [b"2"]


@pytest.mark.promise("Transactions", "a commit that is not answered has an unknown outcome")
@in_virtual_time
async def test_a_commit_that_is_never_answered_is_unknown_and_requires_a_new_start(version):
    async with transactional(version, max_block_ms=300_000 * MS, request_timeout_ms=50_000 * MS) as (
        cluster,
        producer,
    ):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_after_append=True, count=10_000)

        with pytest.raises(CommitOutcomeUnknownError, match="init_transactions") as caught:
            await producer.commit_transaction()

        assert caught.value.outcome is Outcome.UNKNOWN
        assert caught.value.requires_reinit
        ends = {request.message.committed for request in cluster.requests_of(END_TXN)}
        assert ends == {True}, "an abort could win against the commit"
        for call in (producer.begin_transaction, producer.abort_transaction, producer.commit_transaction):
            with pytest.raises(CommitOutcomeUnknownError):
                await call()
        cluster.faults.clear()
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"1", b"2"]


@in_virtual_time
async def test_a_commit_that_could_not_be_sent_is_certainly_not_committed(version):
    async with transactional(version, max_block_ms=200_000 * MS) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=10_000)

        with pytest.raises(TransactionAbortableError, match="could not be sent"):
            await producer.commit_transaction()

        cluster.faults.clear()
        await producer.abort_transaction()
        assert committed(cluster) == []


@in_virtual_time
async def test_an_abort_without_an_answer_can_be_called_again(version):
    async with transactional(version, max_block_ms=1_000_000 * MS, request_timeout_ms=50_000 * MS) as (
        cluster,
        producer,
    ):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.faults.add(END_TXN, drop_before=True, count=10_000)

        with pytest.raises(TransactionTimeoutError, match="same call again"):
            await producer.abort_transaction()
        cluster.faults.clear()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)

        assert committed(cluster) == [b"2"]


@in_virtual_time
async def test_start_says_that_no_coordinator_answers(version):
    async with EmbeddedCluster(topics={"t": 1}, transaction_version=version) as cluster:
        cluster.faults.add(ApiKey.FIND_COORDINATOR, error=ErrorCode.COORDINATOR_NOT_AVAILABLE, count=10_000)
        producer = quick_producer(cluster, transactional_id="tx", max_block_ms=300_000 * MS)

        with pytest.raises(TransactionTimeoutError, match="COORDINATOR_NOT_AVAILABLE"):
            await producer.start()
        await assert_nothing_left(producer, cluster)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, "transaction_timeout_ms"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "grant WRITE"),
    ],
)
async def test_start_says_why_the_coordinator_refuses(code, advice):
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.faults.add(INIT, error=code)
        producer = quick_producer(cluster, transactional_id="tx")

        with pytest.raises(TransactionReinitError, match=advice) as caught:
            await producer.start()
        assert code.name in str(caught.value)
        await assert_nothing_left(producer, cluster)


# ----------------------------------------------------------------------------------------- cancelling and closing


@pytest.mark.promise(
    "Transactions",
    "a cancelled block is aborted, a cancelled commit ends first, and a cancelled call goes on",
)
async def test_a_cancelled_block_is_aborted_before_the_cancellation_is_raised(version):
    async with transactional(version) as (cluster, producer):
        inside = asyncio.Event()

        async def work() -> None:
            async with producer.transaction():
                await producer.send_and_wait("t", b"1", partition=0)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await within(2, inside.wait())
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert state_of(producer) is TransactionState.READY
        assert committed(cluster) == []
        assert [request.message.committed for request in cluster.requests_of(END_TXN)] == [False]


@pytest.mark.promise(
    "Transactions",
    "a cancelled block is aborted, a cancelled commit ends first, and a cancelled call goes on",
)
async def test_a_cancelled_commit_ends_before_the_cancellation_is_raised(version):
    async with transactional(version) as (cluster, producer):
        hold = asyncio.Event()
        fault = cluster.faults.add(END_TXN, hold=hold)

        async def work() -> None:
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)

        task = asyncio.create_task(work())
        await within(2, fault.reached())
        task.cancel()
        await asyncio.sleep(0)
        hold.set()
        await asyncio.wait([task])

        assert task.cancelled()
        assert committed(cluster) == [b"1"]
        assert state_of(producer) is TransactionState.READY


@pytest.mark.promise(
    "Transactions",
    "a cancelled block is aborted, a cancelled commit ends first, and a cancelled call goes on",
)
async def test_a_cancelled_call_continues_and_the_same_call_joins_it(version):
    async with transactional(version) as (cluster, producer):
        hold = asyncio.Event()
        fault = cluster.faults.add(END_TXN, hold=hold)
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        task = asyncio.create_task(producer.commit_transaction())
        await within(2, fault.reached())
        task.cancel()
        await asyncio.wait([task])
        assert state_of(producer) is TransactionState.COMMITTING
        with pytest.raises(IllegalStateError, match="commit_transaction"):
            await producer.begin_transaction()

        hold.set()
        await within(2, producer.commit_transaction())

        assert committed(cluster) == [b"1"]
        assert len(cluster.requests_of(END_TXN)) == 1


ENDINGS = ["commit_transaction", "abort_transaction", "fence_transaction"]


@pytest.mark.promise(
    "Transactions",
    "a cancelled block is aborted, a cancelled commit ends first, and a cancelled call goes on",
)
@pytest.mark.parametrize("name", ENDINGS)
async def test_a_call_that_succeeded_after_its_caller_was_cancelled_returns_when_it_is_made_again(
    version, name
):
    """The caller cannot know whether the call is still running. The next call reports its success; a third fails."""
    async with transactional(version) as (cluster, producer):
        hold = asyncio.Event()
        fault = cluster.faults.add(INIT if name.startswith("fence") else END_TXN, hold=hold)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        task = asyncio.create_task(getattr(producer, name)())
        await within(2, fault.reached())
        task.cancel()
        await asyncio.wait([task])
        hold.set()
        await until(lambda: state_of(producer) is TransactionState.READY)

        for other in ENDINGS:
            if other != name:
                with pytest.raises(IllegalStateError):
                    await getattr(producer, other)()
        await getattr(producer, name)()
        with pytest.raises(IllegalStateError, match=f"{name} cannot be called now"):
            await getattr(producer, name)()
        assert committed(cluster) == ([b"1"] if name.startswith("commit") else [])


@pytest.mark.promise(
    "Transactions",
    "a cancelled block is aborted, a cancelled commit ends first, and a cancelled call goes on",
)
async def test_a_second_commit_after_a_success_is_rejected(version):
    """No transaction is open, so the call is probably a mistake, not a repetition. Java's producer rejects it too."""
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        await producer.commit_transaction()
        with pytest.raises(IllegalStateError, match="commit_transaction cannot be called now"):
            await producer.commit_transaction()

        assert committed(cluster) == [b"1"]


async def test_a_commit_that_failed_after_its_caller_was_cancelled_does_not_look_like_a_success(version):
    async with transactional(version) as (cluster, producer):
        hold = asyncio.Event()
        fault = cluster.faults.add(END_TXN, hold=hold, error=ErrorCode.TRANSACTION_ABORTABLE)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        task = asyncio.create_task(producer.commit_transaction())
        await within(2, fault.reached())
        task.cancel()
        await asyncio.wait([task])
        hold.set()
        await until(lambda: state_of(producer) is TransactionState.ABORT_REQUIRED)

        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        with pytest.raises(IllegalStateError):
            await producer.commit_transaction()
        assert committed(cluster) == []


async def test_close_aborts_an_open_transaction(version):
    async with EmbeddedCluster(topics={"t": 1}, transaction_version=version) as cluster:
        producer = quick_producer(cluster, transactional_id="tx")
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1")
        waiting = await producer.send("t", b"2")

        await within(3, producer.close())

        assert [request.message.committed for request in cluster.requests_of(END_TXN)] == [False]
        assert committed(cluster) == []
        assert waiting.done()
        await results([waiting])
        await assert_nothing_left(producer, cluster)


async def test_an_immediate_close_leaves_the_transaction_to_its_timeout(version, caplog):
    async with EmbeddedCluster(topics={"t": 1}, transaction_version=version) as cluster:
        producer = quick_producer(cluster, transactional_id="tx")
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1")

        await within(3, producer.close(timeout=0))

        assert cluster.requests_of(END_TXN) == []
        await assert_nothing_left(producer, cluster)


@in_virtual_time
async def test_an_abort_that_fails_does_not_hide_the_exception_of_the_block(version, caplog):
    async with transactional(version, max_block_ms=100_000 * MS, request_timeout_ms=50_000 * MS) as (
        cluster,
        producer,
    ):
        with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction():
                await producer.send_and_wait("t", b"1")
                cluster.faults.add(END_TXN, drop_before=True, count=10_000)
                raise ZeroDivisionError
        assert "the brokers will abort it after its time-out" in caplog.text


async def test_a_block_may_end_its_transaction_itself(version):
    async with transactional(version) as (cluster, producer):
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
            await producer.commit_transaction()
        async with producer.transaction():
            await producer.send_and_wait("t", b"2", partition=0)
            await producer.abort_transaction()

        assert committed(cluster) == [b"1"]


# ------------------------------------------------------------------------------------------------------- offsets


GROUPS = {
    "a group id": "g",
    "our own": ConsumerGroupMetadata("g"),
    "confluent-kafka's": b"CGMDv2:\xff\xff\xff\xffg\x00\x00\x01",
}


@pytest.mark.promise("Transactions", "offsets are committed with the group's membership (KIP-447)")
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
async def test_offsets_are_committed_with_the_records_or_not_at_all(version, group):
    async with transactional(version) as (cluster, producer):
        place = TopicPartition("t", 0)
        async with producer.transaction() as transaction:
            await producer.send("t", b"1", partition=0)
            await transaction.send_offsets({place: 17}, group)
        assert cluster.groups.offsets("g")[TopicPartition("t", 0)] == 17
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction() as transaction:
                await transaction.send_offsets({place: OffsetAndMetadata(18, "m")}, group)
                raise ZeroDivisionError
        assert cluster.groups.offsets("g")[TopicPartition("t", 0)] == 17
        async with producer.transaction():
            await producer.send_offsets_to_transaction({("t", 0): (19, "m")}, group)
        assert cluster.groups.offsets("g")[TopicPartition("t", 0)] == 19


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ],
    ids=lambda code: code.name,
)
async def test_a_transaction_with_rejected_offsets_cannot_be_committed(version, code):
    async with transactional(version) as (cluster, producer):
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=code)
        with pytest.raises(TransactionAbortableError, match=code.name):  # noqa: PT012  # the whole block is what is tested
            async with producer.transaction() as transaction:
                await producer.send("t", b"1")
                await transaction.send_offsets({TopicPartition("t", 0): 17}, "g")

        assert committed(cluster) == []
        async with producer.transaction():
            await producer.send("t", b"2")
        assert committed(cluster) == [b"2"]


async def test_a_transactional_producer_starts_uninitialized():
    producer = Producer("localhost:9092", transactional_id="tx")
    assert state_of(producer) is TransactionState.UNINITIALIZED
    await producer.close()


# ------------------------------------------------------------------------------------------------ all calls


ARGUMENTS = {
    "send_offsets_to_transaction": ({("t", 0): 1}, "g"),
    "export_transaction": ([("t", 0)],),
    "committed": ("g", [("t", 0)]),
}


def coroutine_calls() -> list[str]:
    """Return the names of the public coroutine methods of Transactional."""
    members = vars(Transactional).items()
    return [
        name for name, member in members if not name.startswith("_") and inspect.iscoroutinefunction(member)
    ]


@pytest.mark.parametrize("name", coroutine_calls())
async def test_no_call_of_a_closed_producer_changes_the_transaction(name):
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster, transactional_id="tx")
        await within(3, producer.start())
        await producer.close()
        before = state_of(producer)

        with pytest.raises(IllegalStateError, match="closed"):
            await getattr(producer, name)(*ARGUMENTS.get(name, ()))

        assert state_of(producer) is before


async def test_a_block_yields_a_scope_with_the_calls_of_a_transaction(version):
    async with transactional(version) as (_, producer):
        scope = producer.transaction()
        assert isinstance(scope, TransactionScope)
        assert state_of(producer) is TransactionState.READY, "the transaction begins with the block"
        async with scope as entered:
            assert entered is scope
            assert state_of(producer) is TransactionState.IN_TRANSACTION


@pytest.mark.parametrize(
    ("error", "is_ours"),
    [
        (DeliveryError("no"), True),
        (ExceptionGroup("sends", [DeliveryError("no"), ExceptionGroup("more", [DeliveryError("no")])]), True),
        (ExceptionGroup("sends", [DeliveryError("no"), ValueError()]), False),
        (BaseExceptionGroup("sends", [DeliveryError("no"), asyncio.CancelledError()]), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_an_exception_group_counts_as_a_kafka_error_only_if_all_its_members_do(error, is_ours):
    assert consists_of_kafka_errors(error) == is_ours
