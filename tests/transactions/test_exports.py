"""Transactions exported to other producers: each partition has one writer, and no record is lost between writers."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Producer, TopicPartition, TransactionAbortableError
from aioproducer.errors import IllegalStateError, TransactionReinitError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.transactions.state import TransactionState
from tests.conftest import MS
from tests.support.producing import PRODUCE, QUICK, error_of, offsets, within
from tests.transactions.test_calls import committed, state_of, transactional


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


PLACES = [TopicPartition("t", partition) for partition in range(4)]


def participant(cluster, handle, partition):
    return Producer.attach(
        handle, partitions=[("t", partition)], bootstrap_servers=cluster.bootstrap_servers, **QUICK
    )


@pytest.mark.promise("Transactions", "a partition has one writer in a transaction")
async def test_a_partition_that_the_owner_has_written_to_cannot_be_exported(version):
    """A participant would begin with the owner's first sequence number, so its records would seem to be duplicates."""
    async with transactional(version) as (cluster, owner):
        await owner.begin_transaction()
        await owner.send_and_wait("t", b"1", partition=0)
        with pytest.raises(IllegalStateError, match="t-0 was already written to or exported"):
            await owner.export_transaction([PLACES[1], PLACES[0]])
        handle = await owner.export_transaction([PLACES[1]])
        async with participant(cluster, handle, 1) as producer:
            await producer.send("t", b"2", partition=1)
        await owner.commit_transaction()

        assert committed(cluster) == [b"1", b"2"]


async def test_a_partition_with_buffered_records_of_the_owner_cannot_be_exported(version):
    async with transactional(version, linger_ms=1_000_000 * MS) as (cluster, owner):
        async with owner.transaction() as transaction:
            await owner.send("t", b"1", partition=0)
            with pytest.raises(IllegalStateError, match="t-0"):
                await transaction.export([PLACES[0]])

        assert committed(cluster) == [b"1"]


@pytest.mark.promise("Transactions", "a partition has one writer in a transaction")
async def test_a_record_of_the_owner_for_an_exported_partition_fails_the_transaction(version):
    async with transactional(version) as (cluster, owner):
        await owner.begin_transaction()
        await owner.send_and_wait("t", b"1", partition=1)
        handle = await owner.export_transaction([PLACES[0]])
        async with participant(cluster, handle, 0) as producer:
            await producer.send("t", b"theirs", partition=0)
        error = await error_of(await owner.send("t", b"mine", partition=0))

        assert error.requires_abort
        with pytest.raises(TransactionAbortableError, match="t-0 was exported"):
            await owner.commit_transaction()
        await owner.abort_transaction()
        assert [record.value for record in cluster.records("t", 0)] == [b"theirs"]
        async with owner.transaction():
            await owner.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


async def test_a_cancelled_export_can_be_repeated():
    async with transactional(1) as (cluster, owner):
        answer = asyncio.Event()
        async with owner.transaction() as transaction:
            fault = cluster.faults.add(ApiKey.ADD_PARTITIONS_TO_TXN, hold=answer)
            export = asyncio.create_task(transaction.export([PLACES[0]]))
            await within(2, fault.reached())
            export.cancel()
            await asyncio.wait([export])
            answer.set()
            handle = await within(2, transaction.export([PLACES[0]]))
            async with participant(cluster, handle, 0) as producer:
                await producer.send("t", b"1", partition=0)

        assert committed(cluster) == [b"1"]


async def test_a_partition_is_exported_once_in_a_transaction(version):
    async with transactional(version) as (_, owner):
        for _ in range(2):
            async with owner.transaction() as transaction:
                await transaction.export([PLACES[0]])
                with pytest.raises(IllegalStateError, match="each partition can have only one writer"):
                    await transaction.export([PLACES[0]])
                await owner.send("t", b"1", partition=1)


@pytest.mark.promise("Transactions", "a partition has one writer in a transaction")
async def test_only_one_of_two_waiting_exports_gets_the_same_partition():
    async with transactional(1) as (cluster, owner):
        answer = asyncio.Event()
        await owner.begin_transaction()
        fault = cluster.faults.add(ApiKey.ADD_PARTITIONS_TO_TXN, hold=answer)
        exports = [asyncio.create_task(owner.export_transaction([PLACES[0]])) for _ in range(2)]
        await within(2, fault.reached())
        answer.set()
        await within(2, asyncio.wait(exports))

        assert exports[0].exception() is None
        assert isinstance(exports[1].exception(), IllegalStateError)
        assert "t-0 was already written to or exported" in str(exports[1].exception())


async def test_a_partition_is_not_exported_if_the_owner_sent_a_record_while_it_joined():
    async with transactional(1) as (cluster, owner):
        answer = asyncio.Event()
        await owner.begin_transaction()
        fault = cluster.faults.add(ApiKey.ADD_PARTITIONS_TO_TXN, hold=answer)
        export = asyncio.create_task(owner.export_transaction([PLACES[0]]))
        await within(2, fault.reached())
        await owner.send("t", b"1", partition=0)
        answer.set()

        with pytest.raises(IllegalStateError, match="t-0 was already written to"):
            await within(2, export)
        await owner.commit_transaction()
        assert committed(cluster) == [b"1"]


async def test_an_exported_v2_transaction_without_records_can_only_be_aborted():
    """The coordinator does not know the transaction, and answers as if it had timed out."""
    async with transactional(2) as (cluster, owner):
        await owner.begin_transaction()
        await owner.export_transaction(PLACES[:1])
        with pytest.raises(TransactionAbortableError, match="INVALID_TXN_STATE"):
            await owner.commit_transaction()
        await owner.abort_transaction()

        assert state_of(owner) is TransactionState.READY
        async with owner.transaction():
            await owner.send("t", b"1", partition=0)
        assert committed(cluster) == [b"1"]


async def test_an_exported_v1_transaction_without_records_is_committed():
    """The exported partitions have joined the transaction, so the coordinator knows it."""
    async with transactional(1) as (_, owner):
        await owner.begin_transaction()
        await owner.export_transaction(PLACES[:1])
        await within(2, owner.commit_transaction())

        assert state_of(owner) is TransactionState.READY


async def test_participants_retry_transient_errors(version):
    async with transactional(version, topics={"t": 4}) as (cluster, owner):
        await owner.begin_transaction()
        handle = await owner.export_transaction(PLACES)
        for code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.NETWORK_EXCEPTION,
        ):
            cluster.faults.add(PRODUCE, error=code, count=2)
        participants = [participant(cluster, handle, partition) for partition in range(4)]
        for one in participants:
            await one.start()
        deliveries = [
            await participants[number % 4].send("t", b"%d" % number, partition=number % 4)
            for number in range(40)
        ]
        await offsets(deliveries)
        for one in participants:
            await one.close()
        await owner.commit_transaction()

        for partition in range(4):
            assert [int(value) for value in committed(cluster, "t", partition)] == list(
                range(partition, 40, 4)
            )


# ------------------------------------------------------------------------ partitions of earlier transactions


@pytest.mark.promise("Transactions", "a partition has one writer in a transaction")
@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
async def test_a_partition_that_the_owner_wrote_to_in_an_earlier_transaction_is_exported_under_a_new_epoch(
    version, timestamps
):
    """In one v1 epoch for both, the broker would take the participant's record for the owner's first one."""
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        cluster.create_topic("t", 1, config={"message.timestamp.type": timestamps})
        async with owner.transaction():
            await owner.send("t", b"1", partition=0)
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES[:1])
            async with Producer.attach(
                handle,
                partitions=PLACES[:1],
                log_append_time=timestamps == "LogAppendTime",
                bootstrap_servers=cluster.bootstrap_servers,
                **QUICK,
            ) as producer:
                metadata = await producer.send_and_wait("t", b"2", partition=0)
        async with owner.transaction():
            await owner.send("t", b"3", partition=0)

        assert committed(cluster) == [b"1", b"2", b"3"]
        assert cluster.records("t")[1].offset == metadata.offset


@pytest.mark.promise("Transactions", "a partition has one writer in a transaction")
async def test_a_partition_of_an_earlier_transaction_is_not_exported_once_the_transaction_has_begun():
    """A new epoch would abort the transaction."""
    async with transactional(1) as (cluster, owner):
        async with owner.transaction():
            await owner.send("t", b"1", partition=0)
        async with owner.transaction() as transaction:
            await owner.send_and_wait("t", b"2", partition=1)
            with pytest.raises(
                IllegalStateError, match=r"t-0 .* earlier transaction .* before the first send"
            ):
                await transaction.export(PLACES[:1])
            await transaction.export(PLACES[2:3])

        assert committed(cluster) == [b"1", b"2"]


@pytest.mark.parametrize("first", ["offsets", "export"])
async def test_offsets_are_committed_whether_an_export_is_called_just_before_or_just_after(first):
    """Both calls are made in the same turn of the loop, before either request reaches the coordinator."""
    async with transactional(1) as (cluster, owner):
        async with owner.transaction():
            await owner.send("t", b"1", partition=0)
        await owner.begin_transaction()
        calls = [owner.send_offsets_to_transaction({PLACES[0]: 7}, "g"), owner.export_transaction(PLACES[:1])]
        made = await asyncio.gather(*(calls if first == "offsets" else calls[::-1]), return_exceptions=True)
        of_offsets, of_export = made if first == "offsets" else made[::-1]

        assert of_offsets is None
        if first == "offsets":
            with pytest.raises(IllegalStateError, match=r"t-0 .* before the first send\(\) or send_offsets"):
                raise of_export
        else:
            assert of_export.epoch > 0
        await owner.commit_transaction()
        assert cluster.groups.offsets("g") == {PLACES[0]: 7}
        requests = [request.message for request in cluster.requests_of(ApiKey.ADD_OFFSETS_TO_TXN)]
        commits = [request.message for request in cluster.requests_of(ApiKey.TXN_OFFSET_COMMIT)]
        assert {request.producer_epoch for request in requests} == {
            request.producer_epoch for request in commits
        }


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_records_sent_while_an_export_takes_a_new_epoch_wait_for_it(end):
    async with transactional(1) as (cluster, owner):
        async with owner.transaction():
            await owner.send("t", b"1", partition=0)
        answer = asyncio.Event()
        await owner.begin_transaction()
        fault = cluster.faults.add(ApiKey.INIT_PRODUCER_ID, hold=answer)
        export = asyncio.create_task(owner.export_transaction(PLACES[:1]))
        await within(2, fault.reached())
        delivery = await owner.send("t", b"2", partition=1)
        group = asyncio.create_task(owner.send_offsets_to_transaction({PLACES[0]: 7}, "g"))
        again = asyncio.create_task(owner.export_transaction(PLACES[2:3]))
        await asyncio.sleep(0)
        ending = asyncio.create_task(owner.abort_transaction()) if end == "abort" else None
        await asyncio.sleep(0)
        answer.set()
        await within(2, asyncio.wait([export, group, again]))

        if ending is None:
            assert export.exception() is group.exception() is again.exception() is None
            await owner.commit_transaction()
            await delivery
            assert committed(cluster) == [b"1", b"2"]
            assert cluster.groups.offsets("g") == {PLACES[0]: 7}
        else:
            await within(2, ending)
            assert None not in (export.exception(), group.exception(), again.exception())
            assert committed(cluster) == [b"1"]
            assert cluster.groups.offsets("g") == {}
        async with owner.transaction():
            await owner.send("t", b"3", partition=0)
        assert committed(cluster, "t", 0) == [b"1", b"3"]


async def test_an_export_that_gets_no_new_epoch_requires_a_new_start():
    async with transactional(1) as (cluster, owner):
        async with owner.transaction():
            await owner.send("t", b"1", partition=0)
        await owner.begin_transaction()
        cluster.faults.add(ApiKey.INIT_PRODUCER_ID, error=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        with pytest.raises(TransactionReinitError, match="INVALID_PRODUCER_ID_MAPPING"):
            await owner.export_transaction(PLACES[:1])
        await owner.init_transactions()
        async with owner.transaction():
            await owner.send("t", b"2", partition=0)

        assert committed(cluster) == [b"1", b"2"]
