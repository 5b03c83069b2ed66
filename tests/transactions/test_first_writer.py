"""A participant's check for other writers in the transaction, made before its first record."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

from aioproducer import DeliveryError, Producer, TopicPartition, TransactionAbortableError
from aioproducer.errors import TransactionTimeoutError
from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import DescribeProducersResponse
from aioproducer.records.accumulator import NO_NODE
from aioproducer.transactions.first_writer import FirstWriter
from tests.conftest import MS, in_virtual_time
from tests.sending.test_sender_topics import serve
from tests.support.producing import QUICK, within
from tests.support.scripted_broker import make_config
from tests.transactions.test_calls import committed, transactional

PLACES = [TopicPartition("t", 0), TopicPartition("t", 1)]
ASKED = ApiKey.DESCRIBE_PRODUCERS


@pytest.fixture(params=[1, 2])
def version(request):
    return request.param


def participant(cluster, handle, places=PLACES, **settings):
    told = {**QUICK, "bootstrap_servers": cluster.bootstrap_servers, **settings}
    return Producer.attach(handle, partitions=places, log_append_time=True, **told)


async def begun(cluster, owner):
    cluster.create_topic("t", 2, config={"message.timestamp.type": "LogAppendTime"})
    await owner.begin_transaction()
    return await owner.export_transaction(PLACES)


@pytest.mark.promise("Transactions", "a partition has one writer in a transaction")
async def test_a_second_writer_of_a_topic_with_log_append_time_is_rejected_before_it_writes(version):
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        handle = await begun(cluster, owner)
        async with participant(cluster, handle) as first:
            await first.send_and_wait("t", b"1", partition=1)

        async with participant(cluster, handle) as second:
            await second.send_and_wait("t", b"2", partition=0)
            with pytest.raises(DeliveryError, match="another producer has written to t-1") as caught:
                await second.send_and_wait("t", b"3", partition=1)
            assert caught.value.last_error.partitions == {PLACES[1]}
            with pytest.raises(TransactionAbortableError, match="another producer has written to t-1"):
                await second.send("t", b"4", partition=0)

        assert [record.value for record in cluster.records("t", 1)] == [b"1"]


@pytest.mark.promise("Transactions", "a partition has one writer in a transaction")
async def test_participants_with_the_same_partitions_write_to_different_ones(version):
    """Each participant may write to any partition, like a Spark task; only its records show which ones it uses."""
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        handle = await begun(cluster, owner)
        for partition in range(2):
            async with participant(cluster, handle) as one:
                for value in (b"1", b"2"):
                    await one.send_and_wait("t", value, partition=partition)
        await owner.commit_transaction()

        assert committed(cluster, "t", 0) == committed(cluster, "t", 1) == [b"1", b"2"]
        assert len(cluster.requests_of(ASKED)) == 2


async def test_a_record_that_waits_for_the_answer_is_sent_by_close(version):
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        handle = await begun(cluster, owner)
        async with participant(cluster, handle) as one:
            delivery = await one.send("t", b"1", partition=1)

        assert (await delivery).offset == 0
        await owner.commit_transaction()
        assert committed(cluster, "t", 1) == [b"1"]


async def test_the_partitions_of_other_writers_are_named(version):
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        handle = await begun(cluster, owner)
        await owner.partitions_for("t")
        first_writer = FirstWriter(owner.config, owner._brokers, owner._metadata, owner._random, handle)
        assert await first_writer.check(PLACES) is None
        async with participant(cluster, handle, PLACES[:1]) as one:
            await one.send_and_wait("t", b"1", partition=0)

        with pytest.raises(TransactionAbortableError) as caught:
            await first_writer.check(PLACES)
        assert caught.value.partitions == {PLACES[0]}
        assert await first_writer.check(PLACES[1:]) is None


async def test_writers_of_earlier_transactions_are_not_counted(version):
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        cluster.create_topic("t", 2, config={"message.timestamp.type": "LogAppendTime"})
        for number in range(2):
            await owner.begin_transaction()
            handle = await owner.export_transaction(PLACES)
            async with participant(cluster, handle) as one:
                await one.send_and_wait("t", b"%d" % number, partition=0)
            await owner.commit_transaction()

        assert committed(cluster) == [b"0", b"1"]


async def test_a_leader_that_does_not_answer_yet_is_asked_again(version):
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        handle = await begun(cluster, owner)
        cluster.faults.add(ASKED, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        cluster.faults.add(ASKED, drop_before=True)
        async with participant(cluster, handle) as one:
            await one.send_and_wait("t", b"1", partition=0)

        assert len(cluster.requests_of(ASKED)) == 3


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            {"error": ErrorCode.NOT_LEADER_OR_FOLLOWER, "count": 10_000},
            "leader of t-0 did not list its writers .*NOT_LEADER_OR_FOLLOWER",
        ),
        ({"error": ErrorCode.TOPIC_AUTHORIZATION_FAILED}, "TOPIC_AUTHORIZATION_FAILED"),
        ({"versions": VersionRange(1, 1)}, r"log_append_time=True requires Kafka 2\.8"),
    ],
)
async def test_without_an_answer_nothing_is_written(version, fault, text):
    async with transactional(version, topics={"other": 1}) as (cluster, owner):
        handle = await begun(cluster, owner)
        if "versions" in fault:
            serve(cluster.broker(0), ASKED, fault["versions"])
        else:
            cluster.faults.add(ASKED, **fault)

        async with participant(cluster, handle, max_block_ms=300_000 * MS) as one:
            with pytest.raises(DeliveryError, match=text):
                await within(10, one.send_and_wait("t", b"1", partition=0))

        assert cluster.records("t") == []


class Alone:
    """One participant's check, on a cluster whose partitions have this leader, or are unknown if it is None."""

    def __init__(self, leader: int | None) -> None:
        self.leader = leader
        self.updates: list[float] = []
        """The times of the requests for metadata."""
        partition = None if leader is None else SimpleNamespace(leader=leader)
        self.check = FirstWriter(
            make_config(max_block_ms=1000, retry_backoff_ms=100),
            self,
            SimpleNamespace(
                cluster=SimpleNamespace(partition=lambda topic, number: partition),
                request_update=lambda: self.updates.append(asyncio.get_running_loop().time()),
            ),
            Random(1),
            SimpleNamespace(transactional_id="tx", producer_id=1, epoch=1),
        ).check

    async def request_node(self, leader, request, timeout):
        partitions = [
            DescribeProducersResponse.PartitionResponse(partition_index=number)
            for number in request.topics[0].partition_indexes
        ]
        return DescribeProducersResponse(
            topics=[DescribeProducersResponse.TopicResponse(name="t", partitions=partitions)]
        )


@pytest.mark.parametrize("leader", [None, NO_NODE])
@in_virtual_time
async def test_partitions_without_a_leader_are_waited_for_until_max_block(leader):
    alone = Alone(leader)
    began = asyncio.get_running_loop().time()

    text = r"leader of t-0 .* within 1 s .*; no leader is known"
    with pytest.raises(TransactionTimeoutError, match=text) as caught:
        await alone.check(PLACES)

    assert caught.value.transactional_id == "tx"
    assert asyncio.get_running_loop().time() - began == pytest.approx(1, abs=0.01)
    pauses = [later - earlier for earlier, later in pairwise(alone.updates)]
    assert 0.08 <= pauses[0] <= 0.12  # retry_backoff_ms +-20 %, then doubled each time
    assert 0.16 <= pauses[1] <= 0.24
    assert 0.32 <= pauses[2] <= 0.48


@in_virtual_time
async def test_nothing_is_waited_for_after_the_last_answer():
    alone = Alone(leader=0)
    began = asyncio.get_running_loop().time()

    await alone.check(PLACES)

    assert asyncio.get_running_loop().time() == began
    assert alone.updates == []
