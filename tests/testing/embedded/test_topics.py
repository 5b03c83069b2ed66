"""Partitions as the brokers see them together: leaders, replicas in sync, the high watermark."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of


async def test_the_last_replica_in_sync_leaves_its_partition_without_leader():
    async with EmbeddedCluster(2, topics={"t": 2}, replication_factor=1) as cluster:
        await cluster.stop_broker(1)
        async with RawClient(address(cluster)) as client:
            described = (await client.metadata("t")).topics[0].partitions[1]
            assert (described.error_code, described.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

            await cluster.start_broker(1)
            described = (await client.metadata("t")).topics[0].partitions[1]
            assert (described.error_code, described.leader_id, described.leader_epoch) == (0, 1, 2)


@pytest.mark.parametrize(("acks", "answered", "kept"), [(1, 0, [b"a"]), (-1, 6, [b"a"])])
async def test_what_was_not_replicated_is_lost_when_the_leader_moves(acks, answered, kept):
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await client.produce(batch_of(b"a"))
        cluster.hold_replication("t", 0)
        answer = asyncio.ensure_future(client.produce(batch_of(b"b"), acks=acks))
        await until(lambda: len(cluster.records("t")) == 2, TIMEOUT)
        if acks == 1:
            # Acknowledged, and gone all the same.
            await answer
        cluster.move_leader("t", 0, 1)

        assert (await answer).error_code == answered
        assert [record.value for record in cluster.records("t")] == kept


@pytest.mark.promise("Test clusters", "followers hold up acks=all while they are in the ISR, and only then")
async def test_followers_that_are_not_in_sync_hold_up_nothing():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await until(lambda: len(cluster.records("t")) == 1, TIMEOUT)
        cluster.set_isr("t", 0, [0, 1])
        assert (cluster.partition("t", 0).high_watermark, answer.done()) == (0, False)

        cluster.set_isr("t", 0, [0])
        assert (await asyncio.wait_for(answer, TIMEOUT)).error_code == 0
        assert (await asyncio.wait_for(client.produce(batch_of(b"b")), TIMEOUT)).error_code == 0

        # Back in sync, they are as far as the high watermark, and fetch nothing yet.
        cluster.set_isr("t", 0, [0, 1, 2])
        await client.produce(batch_of(b"c"), acks=1)
        assert cluster.partition("t", 0).high_watermark == 2
        cluster.release_replication("t", 0)
        assert cluster.partition("t", 0).high_watermark == 3


@pytest.mark.promise("Test clusters", "followers hold up acks=all while they are in the ISR, and only then")
async def test_a_partition_without_followers_waits_for_nobody():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)

        assert (await asyncio.wait_for(client.produce(batch_of(b"a")), TIMEOUT)).error_code == 0
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        assert len(cluster.records("t")) == 1
