"""One transaction, several producers: the owner begins and ends it, and participants in other processes write to it."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from functools import partial

import pytest

from aioproducer import (
    Producer,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortableError,
    TransactionError,
    TransactionHandle,
)
from aioproducer.errors import IllegalStateError, InvalidRecordError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from tests.support.producing import (
    PRODUCE,
    QUICK,
    produce_count,
    quick_producer,
    results,
    until,
    within,
)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


PLACES = [TopicPartition("t", partition) for partition in range(6)]


def cluster_of(version, brokers=1):
    return EmbeddedCluster(brokers, topics={"t": 6}, transaction_version=version)


def participant(cluster, handle, partitions, **settings):
    return Producer.attach(
        handle, partitions=partitions, bootstrap_servers=cluster.bootstrap_servers, **{**QUICK, **settings}
    )


def committed(cluster):
    return sorted(int(record.value) for record in cluster.records("t", committed=True))


def ends(cluster):
    return [request.message.committed for request in cluster.requests_of(ApiKey.END_TXN)]


@pytest.mark.promise("Transactions", "other processes can write to the same transaction")
async def test_participants_write_to_the_owners_transaction(version):
    async with cluster_of(version, 3) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        for batch in range(2):
            async with owner.transaction() as transaction:
                handle = await transaction.export(PLACES[:5])
                await owner.send("t", b"%d" % (batch * 1000 + 999), partition=5)
                for number in range(5):
                    async with participant(cluster, handle, [PLACES[number]]) as producer:
                        for value in range(100):
                            await producer.send(
                                "t", b"%d" % (batch * 1000 + number * 100 + value), partition=number
                            )
                await transaction.send_offsets({TopicPartition("t", 0): batch + 1}, "g")

        expected = [batch * 1000 + value for batch in range(2) for value in [*range(500), 999]]
        assert committed(cluster) == expected
        assert cluster.groups.offsets("g")[TopicPartition("t", 0)] == 2


async def test_records_of_a_participant_are_not_committed_if_the_owner_aborts(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        await owner.begin_transaction()
        handle = await owner.export_transaction(PLACES)
        async with participant(cluster, handle, [PLACES[0]]) as producer:
            await producer.send_and_wait("t", b"1", partition=0)
        await owner.abort_transaction()
        async with owner.transaction():
            await owner.send("t", b"2", partition=0)

        assert committed(cluster) == [2]


@pytest.mark.promise("Transactions", "other processes can write to the same transaction")
async def test_a_handle_is_a_value_that_another_process_can_use(version):
    script = """
import asyncio, pickle, sys
from aioproducer import Producer

async def main():
    handle, servers, partitions = pickle.load(sys.stdin.buffer)
    async with Producer.attach(handle, partitions=partitions, bootstrap_servers=servers) as producer:
        for partition in range(3):
            await producer.send("t", b"%d" % partition, partition=partition)

asyncio.run(main())
"""
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES[:3])
            assert pickle.loads(pickle.dumps(handle)) == handle
            told = pickle.dumps((handle, cluster.bootstrap_servers, PLACES[:3]))
            ended = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", script],
                input=told,
                capture_output=True,
                timeout=60,
                env={**os.environ, "PYTHONPATH": os.getcwd()},
            )
            assert ended.returncode == 0, ended.stderr.decode()

        assert committed(cluster) == [0, 1, 2]


async def test_a_participant_can_only_send_and_flush(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES[:2])
            async with participant(cluster, handle, PLACES[:2]) as producer:
                for call in (
                    producer.begin_transaction,
                    producer.commit_transaction,
                    producer.abort_transaction,
                    producer.fence_transaction,
                    producer.init_transactions,
                    partial(producer.export_transaction, PLACES),
                ):
                    with pytest.raises(IllegalStateError, match="only the producer that began"):
                        await call()
                with pytest.raises(IllegalStateError):
                    await producer.send_offsets_to_transaction({("t", 0): 1}, "g")
                await producer.send("t", b"1", partition=0)
                await within(2, producer.flush())
                assert len(cluster.records("t", 0)) == 1

        assert ends(cluster)[0] is True
        assert committed(cluster) == [1]


@pytest.mark.promise("Transactions", "other processes can write to the same transaction")
async def test_other_partitions_are_rejected(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES)
            async with participant(cluster, handle, PLACES[:1]) as producer:
                with pytest.raises(InvalidRecordError, match="attach"):
                    await producer.send("t", b"9", partition=3)
                with pytest.raises(InvalidRecordError):
                    producer.try_send("t", b"9", partition=3)
                batch = producer.create_batch()
                batch.append(key=None, value=b"9")
                with pytest.raises(InvalidRecordError):
                    await producer.send_batch(batch, "t", partition=3)
                with pytest.raises(InvalidRecordError, match="partition="):
                    await producer.send("t", b"9")
                sent = 0
                for number in range(50):
                    try:
                        delivery = await producer.send("t", b"%d" % number, b"key-%d" % number)
                    except InvalidRecordError:
                        continue
                    assert (await delivery).partition == 0
                    sent += 1
                assert 0 < sent < 50

        assert len(cluster.records("t")) == sent


async def test_the_first_batches_of_all_partitions_of_a_broker_are_sent_in_one_request(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES)
            before = produce_count(cluster)
            async with participant(cluster, handle, PLACES, linger_ms=20) as producer:
                await producer.partitions_for("t")
                for partition in range(6):
                    await producer.send("t", b"%d" % partition, partition=partition)
                await producer.flush()
                first = cluster.requests_of(PRODUCE)[before]
                partitions = {
                    data.index for topic in first.message.topic_data for data in topic.partition_data
                }
                assert partitions == set(range(6))


async def test_a_broker_that_cannot_verify_a_partition_yet_is_asked_again(version):
    """NOT_ENOUGH_REPLICAS with the message of a failed verification has nothing to do with replicas."""
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES)
            cluster.transactions.refuse_verification(count=5)
            patient = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
            async with participant(cluster, handle, PLACES, **patient) as one:
                await within(3, one.send_and_wait("t", b"1", partition=0))

        assert committed(cluster) == [1]


async def test_a_failed_record_fails_the_participant(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        await owner.begin_transaction()
        handle = await owner.export_transaction(PLACES)
        async with participant(cluster, handle, PLACES) as producer:
            cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD, partition=1)
            [error] = await results([await producer.send("t", b"1", partition=1)])
            assert error.requires_abort or error.requires_reinit
            with pytest.raises(TransactionAbortableError, match="INVALID_RECORD"):
                await producer.send("t", b"2", partition=0)
        await owner.abort_transaction()

        assert committed(cluster) == []


@pytest.mark.promise("Transactions", "other processes can write to the same transaction")
async def test_a_fenced_participant_can_no_longer_write(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        await owner.begin_transaction()
        handle = await owner.export_transaction(PLACES)
        async with participant(cluster, handle, PLACES) as zombie:
            await zombie.send_and_wait("t", b"1", partition=0)

            await within(2, owner.fence_transaction())
            async with owner.transaction():
                await owner.send("t", b"2", partition=0)

            [error] = await results([await zombie.send("t", b"3", partition=0)])
            assert error.requires_abort or error.requires_reinit
            with pytest.raises(TransactionError):
                await zombie.send("t", b"4", partition=0)

        assert committed(cluster) == [2]


async def test_a_handle_of_an_ended_transaction_cannot_be_used():
    async with cluster_of(2) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES[1:])
            await owner.send("t", b"1", partition=0)
        await until(lambda: committed(cluster) == [1])
        async with participant(cluster, handle, PLACES[1:]) as late:
            [error] = await results([await late.send("t", b"2", partition=1)])
            assert error.requires_abort or error.requires_reinit

        assert committed(cluster) == [1]


async def test_only_an_open_transaction_can_be_exported(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        with pytest.raises(IllegalStateError, match="begin"):
            await owner.export_transaction(PLACES)
        with pytest.raises(IllegalStateError, match="begin"):
            await owner.fence_transaction()
        await owner.begin_transaction()
        handle = await owner.export_transaction(PLACES)
        assert isinstance(handle, TransactionHandle)
        assert handle.is_v2 is (version == 2)
        await owner.abort_transaction()


async def test_an_exported_transaction_is_ended_at_the_coordinator_although_the_owner_wrote_nothing(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        async with owner.transaction() as transaction:
            handle = await transaction.export(PLACES)
            async with participant(cluster, handle, PLACES) as producer:
                await producer.send("t", b"1", partition=0)

        # With v1, an abort follows. It verifies that the epoch is still the producer's before a new one is requested.
        assert ends(cluster) == ([True] if version == 2 else [True, False])
        assert committed(cluster) == [1]


async def test_a_fenced_owner_raises_producer_fenced_error(version):
    async with cluster_of(version) as cluster, quick_producer(cluster, transactional_id="tx") as owner:
        await owner.begin_transaction()
        handle = await owner.export_transaction(PLACES)
        async with quick_producer(cluster, transactional_id="tx"):
            async with participant(cluster, handle, PLACES) as producer:
                [error] = await results([await producer.send("t", b"1", partition=0)])
                assert error.requires_abort or error.requires_reinit
            with pytest.raises((ProducerFencedError, TransactionAbortableError)) as caught:
                await owner.commit_transaction()
            if caught.value.requires_abort:
                with pytest.raises(ProducerFencedError):
                    await owner.abort_transaction()
        assert committed(cluster) == []
