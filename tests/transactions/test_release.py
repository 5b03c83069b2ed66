"""Transactions that one producer begins and another one ends, committed(), and second writers of a partition."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from aioproducer import (
    BrokerError,
    OffsetAndMetadata,
    Outcome,
    Producer,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortableError,
)
from aioproducer.errors import (
    DeliveryError,
    IllegalStateError,
    InvalidRecordError,
    TransactionTimeoutError,
    UnsupportedVersionError,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.transactions.state import TransactionState
from tests.conftest import in_virtual_time
from tests.support.producing import FOUR_RECORDS_FILL_IT, LARGE, QUICK, quick_producer, until, within

PLACE = TopicPartition("t", 0)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


def cluster_of(version):
    return EmbeddedCluster(1, topics={"t": 3}, transaction_version=version)


def settings_of(cluster):
    return {"bootstrap_servers": cluster.bootstrap_servers, **QUICK}


def values(cluster):
    return sorted(bytes(record.value) for record in cluster.records("t", committed=True))


async def begun_and_released(cluster):
    """Return the handle of an open transaction without an owner, in which a participant has written b"1"."""
    async with quick_producer(cluster, transactional_id="tx") as first:
        await first.begin_transaction()
        handle = await first.export_transaction([PLACE])
        async with Producer.attach(handle, partitions=[PLACE], **settings_of(cluster)) as participant:
            await participant.send_and_wait("t", b"1", partition=0)
        assert await first.release_transaction() == handle
    return pickle.loads(pickle.dumps(handle))


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_a_transaction_that_was_released_before_anything_was_sent_can_be_ended(version, end):
    async with cluster_of(version) as cluster:
        async with quick_producer(cluster, transactional_id="tx") as first:
            await first.begin_transaction()
            handle = pickle.loads(pickle.dumps(await first.release_transaction()))

        async with Producer.resume(handle, **settings_of(cluster)) as second:
            await (second.commit_transaction() if end == "commit" else second.abort_transaction())

            await second.init_transactions()
            async with second.transaction():
                await second.send("t", b"1", partition=0)
        assert values(cluster) == [b"1"]


async def test_a_transaction_that_was_released_empty_can_be_committed_with_offsets(version):
    async with cluster_of(version) as cluster:
        async with quick_producer(cluster, transactional_id="tx") as first:
            await first.begin_transaction()
            handle = await first.release_transaction()

        async with Producer.resume(handle, **settings_of(cluster)) as second:
            await second.send_offsets_to_transaction({PLACE: OffsetAndMetadata(7)}, "g")
            await second.commit_transaction()
            assert (await second.committed("g", [PLACE]))[PLACE].offset == 7


@pytest.mark.promise(
    "Transactions", "another process can end a transaction, and learn what a group has committed"
)
async def test_another_producer_commits_with_offsets(version):
    async with cluster_of(version) as cluster:
        handle = await begun_and_released(cluster)
        assert values(cluster) == []

        async with Producer.resume(handle, **settings_of(cluster)) as second:
            await second.send_offsets_to_transaction({PLACE: OffsetAndMetadata(7, "seven")}, "g")
            await second.commit_transaction()

        assert values(cluster) == [b"1"]
        assert cluster.groups.offsets("g")[PLACE] == 7
        assert len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID)) == 1


@pytest.mark.parametrize("end", ["abort_transaction", "fence_transaction", "close"])
async def test_another_producer_aborts(version, end):
    async with cluster_of(version) as cluster:
        handle = await begun_and_released(cluster)
        async with Producer.resume(handle, **settings_of(cluster)) as second:
            await getattr(second, end)()

        async with quick_producer(cluster, transactional_id="tx") as third, third.transaction():
            await third.send("t", b"3", partition=0)
        assert values(cluster) == [b"3"]


@pytest.mark.promise(
    "Transactions", "another process can end a transaction, and learn what a group has committed"
)
async def test_a_resumed_producer_cannot_send_records(version):
    async with cluster_of(version) as cluster:
        handle = await begun_and_released(cluster)
        async with Producer.resume(handle, **settings_of(cluster)) as second:
            for attempt in (second.send("t", b"x"), second.send_many("t", [b"x"])):
                with pytest.raises(IllegalStateError, match="can only commit or abort it"):
                    await attempt
            await second.commit_transaction()
            with pytest.raises(IllegalStateError, match="init_transactions"):
                await second.begin_transaction()
            await second.init_transactions()
            async with second.transaction():
                await second.send("t", b"2", partition=0)
        assert values(cluster) == [b"1", b"2"]


async def test_the_releasing_producer_can_take_the_id_back_and_thereby_aborts_the_transaction(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as first:
        await first.begin_transaction()
        delivery = await first.send("t", b"1", partition=0)
        handle = await first.release_transaction()
        assert delivery.done()  # all records are acknowledged before the release returns
        with pytest.raises(IllegalStateError, match="init_transactions"):
            await first.send("t", b"2", partition=0)

        await first.init_transactions()
        async with Producer.resume(handle, **settings_of(cluster)) as second:
            with pytest.raises((ProducerFencedError, TransactionAbortableError)):
                await second.commit_transaction()
        assert values(cluster) == []


async def test_a_transaction_with_a_failed_record_is_not_released(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as first:
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD)
        await first.begin_transaction()
        delivery = await first.send("t", b"1", partition=0)
        with pytest.raises(TransactionAbortableError):
            await first.release_transaction()
        with pytest.raises(DeliveryError):
            await delivery
        await first.abort_transaction()


@pytest.mark.promise(
    "Transactions",
    "a transaction that is being released accepts nothing more, and is open again if the release was "
    "cancelled",
)
async def test_calls_during_a_release_are_rejected(version):
    """The requests would be answered after the release, within this producer's next transaction."""
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as first:
        await first.begin_transaction()
        first_record = await first.send("t", b"1", partition=0)
        answer = asyncio.Event()
        fault = cluster.faults.add(ApiKey.PRODUCE, hold=answer)
        release = asyncio.create_task(first.release_transaction())
        await within(2, fault.reached())
        for late in (
            first.send("t", b"late", partition=1),
            first.send_offsets_to_transaction({PLACE: 1}, "g"),
            first.export_transaction([TopicPartition("t", 2)]),
            first.release_transaction(),
        ):
            with pytest.raises(IllegalStateError, match=r"wait for release_transaction\(\)"):
                await late
        answer.set()
        handle = await within(2, release)

        assert first_record.done()
        async with Producer.resume(handle, **settings_of(cluster)) as second:
            await second.commit_transaction()
        assert values(cluster) == [b"1"]


@pytest.mark.promise(
    "Transactions",
    "a transaction that is being released accepts nothing more, and is open again if the release was "
    "cancelled",
)
async def test_a_cancelled_release_leaves_the_transaction_open(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as first:
        await first.begin_transaction()
        answer = asyncio.Event()
        fault = cluster.faults.add(ApiKey.PRODUCE, hold=answer)
        await first.send("t", b"1", partition=0)
        release = asyncio.create_task(first.release_transaction())
        await within(2, fault.reached())
        release.cancel()
        await asyncio.wait([release])
        answer.set()
        await first.send("t", b"2", partition=0)
        await first.commit_transaction()

        assert release.cancelled()
        assert values(cluster) == [b"1", b"2"]


async def test_a_block_can_release_its_transaction(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as first:
        async with first.transaction():
            await first.send("t", b"1", partition=0)
            handle = await first.release_transaction()
        async with Producer.resume(handle, **settings_of(cluster)) as second:
            await second.commit_transaction()
        assert values(cluster) == [b"1"]


@pytest.mark.promise(
    "Transactions",
    "a record that was rejected without an exception makes the commit impossible: a row of `send_many`, a "
    "record that was queued without await",
)
async def test_a_transaction_that_lacks_a_row_is_not_released(version):
    async with cluster_of(version) as cluster:
        async with quick_producer(cluster, transactional_id="tx", **FOUR_RECORDS_FILL_IT) as first:
            await first.begin_transaction()
            answer = asyncio.Event()
            cluster.faults.add(ApiKey.PRODUCE, hold=answer)
            sending = asyncio.create_task(first.send_many("t", [bytes(LARGE)] * 12, partitions=0))
            await until(lambda: first.metrics().buffer_waiters)
            release = asyncio.create_task(first.release_transaction())
            await until(lambda: first._transaction.state is TransactionState.RELEASING)
            answer.set()
            receipt = await within(2, sending)
            with pytest.raises(TransactionAbortableError, match="release_transaction"):
                await within(2, release)

            assert receipt.errors
            await first.abort_transaction()
        assert values(cluster) == []


async def test_an_abort_during_a_release(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as first:
        await first.begin_transaction()
        answer = asyncio.Event()
        fault = cluster.faults.add(ApiKey.PRODUCE, hold=answer)
        await first.send("t", b"1", partition=0)
        release = asyncio.create_task(first.release_transaction())
        await within(2, fault.reached())
        abort = asyncio.create_task(first.abort_transaction())
        await asyncio.sleep(0)
        answer.set()
        await within(2, abort)

        with pytest.raises(IllegalStateError):
            await within(2, release)
        async with first.transaction():
            await first.send("t", b"2", partition=0)
        assert values(cluster) == [b"2"]


@pytest.mark.promise(
    "Transactions", "another process can end a transaction, and learn what a group has committed"
)
async def test_committed_offsets_wait_for_an_open_transaction(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as producer:
        places = [PLACE, TopicPartition("t", 2)]
        assert await producer.committed("g", places) == dict.fromkeys(places)

        async with producer.transaction() as transaction:
            await transaction.send_offsets({PLACE: (4, "four")}, "g")
            asked = asyncio.ensure_future(producer.committed("g", places))
            await until(lambda: len(cluster.requests_of(ApiKey.OFFSET_FETCH)) > 2)
            assert not asked.done()

        found = await within(5, asked)
        assert found == {PLACE: OffsetAndMetadata(4, "four", -1), places[1]: None}


@in_virtual_time
async def test_committed_offsets_do_not_wait_forever():
    async with (
        cluster_of(2) as cluster,
        quick_producer(cluster, transactional_id="tx") as other,
        quick_producer(cluster, transactional_id="ty", max_block_ms=300) as producer,
    ):
        async with other.transaction() as transaction:
            await transaction.send_offsets({PLACE: 4}, "g")
            with pytest.raises(TransactionTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
                await producer.committed("g", [PLACE])
        async with producer.transaction():  # the transaction is not affected
            await producer.send("t", b"1", partition=0)


async def test_committed_raises_the_error_of_a_rejected_request():
    async with cluster_of(2) as cluster, quick_producer(cluster, transactional_id="tx") as producer:
        cluster.faults.add(ApiKey.OFFSET_FETCH, error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED; grant READ on the group"):
            await producer.committed("g", [PLACE])
        with pytest.raises(InvalidRecordError, match="group_id"):
            await producer.committed("", [PLACE])
    async with cluster_of(2) as cluster, quick_producer(cluster) as producer:
        with pytest.raises(IllegalStateError, match="transactional_id"):
            await producer.committed("g", [PLACE])


async def test_committed_raises_the_error_of_a_rejected_coordinator_lookup():
    async with cluster_of(2) as cluster, quick_producer(cluster, transactional_id="tx") as producer:
        cluster.faults.add(ApiKey.FIND_COORDINATOR, error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        with pytest.raises(
            BrokerError, match="GROUP_AUTHORIZATION_FAILED; grant READ on the group"
        ) as caught:
            await producer.committed("g", [PLACE])

        assert (type(caught.value), caught.value.name) == (BrokerError, "GROUP_AUTHORIZATION_FAILED")
        assert caught.value.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_committed_needs_a_cluster_with_stable_offsets():
    async with (
        EmbeddedCluster(1, topics={"t": 1}, versions="2.4") as cluster,
        quick_producer(cluster, transactional_id="tx") as producer,
    ):
        with pytest.raises(UnsupportedVersionError):
            await producer.committed("g", [PLACE])


@pytest.mark.promise(
    "Transactions",
    "a second writer of a partition is detected by a timestamp that only the response to a repeated batch "
    "contains",
)
async def test_a_second_writer_of_a_partition_is_detected(version):
    """The broker mistakes the second writer's batch for a repetition, reports success, and appends nothing."""
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        await owner.begin_transaction()
        handle = await owner.export_transaction([PLACE])
        async with Producer.attach(handle, partitions=[PLACE], **settings_of(cluster)) as one:
            await one.send_and_wait("t", b"1", partition=0)
            async with Producer.attach(handle, partitions=[PLACE], **settings_of(cluster)) as two:
                delivery = await two.send("t", b"2", partition=0)
                with pytest.raises(DeliveryError, match="another producer has written to the partition"):
                    await delivery
                with pytest.raises(TransactionAbortableError):
                    await two.send("t", b"3", partition=0)
            await one.send_and_wait("t", b"4", partition=0)
        await owner.abort_transaction()


async def test_a_lost_answer_to_a_participants_first_batch_fails_the_transaction(version):
    """The repeated batch gets the same answer as another producer's batch would. Later batches are simply repeated."""
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        await owner.begin_transaction()
        handle = await owner.export_transaction([PLACE])
        cluster.faults.add(ApiKey.PRODUCE, drop_after_append=True)
        async with Producer.attach(handle, partitions=[PLACE], **settings_of(cluster)) as one:
            with pytest.raises(DeliveryError, match="the answer to an earlier attempt was lost") as caught:
                await one.send_and_wait("t", b"1", partition=0)
        assert caught.value.requires_abort
        assert caught.value.outcome is Outcome.UNKNOWN
        assert "another producer has written" not in str(caught.value)
        await owner.abort_transaction()

        async with owner.transaction() as transaction:
            handle = await transaction.export([PLACE])
            async with Producer.attach(handle, partitions=[PLACE], **settings_of(cluster)) as one:
                await one.send_and_wait("t", b"2", partition=0)
                cluster.faults.add(ApiKey.PRODUCE, drop_after_append=True)
                await one.send_and_wait("t", b"3", partition=0)
        assert values(cluster) == [b"2", b"3"]
