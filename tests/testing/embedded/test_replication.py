"""One request at a time, and what acks promise: replicas, the high watermark, a tail that may be lost."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import MetadataRequest, ProduceRequest
from aioproducer.testing import EmbeddedCluster
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request


async def test_the_next_request_of_a_connection_is_read_when_the_answer_to_the_last_has_left():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        release = asyncio.Event()
        fault = cluster.faults.add(ApiKey.PRODUCE, hold=release)
        ids = [client.send(produce_request({("t", 0): batch_of(b"a")}), 12) for _ in range(3)]
        await asyncio.wait_for(fault.reached(), TIMEOUT)
        async with RawClient(address(cluster)) as other:
            for _ in range(3):
                await other.ask(MetadataRequest(topics=[]), 12)

        # Other connections are served, but of this one nothing more has been read.
        assert len(cluster.requests_of(ApiKey.PRODUCE)) == 1
        assert len(cluster.records("t")) == 1
        release.set()
        for correlation_id in ids:
            await client.answer(ProduceRequest(), 12, correlation_id)
        assert len(cluster.records("t")) == 3


async def test_a_request_that_waits_for_replicas_holds_no_record_bytes():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await until(lambda: len(cluster.records("t")) == 1, TIMEOUT)
        (seen,) = cluster.requests_of(ApiKey.PRODUCE)

        assert isinstance(seen.message, ProduceRequest)
        assert not answer.done()
        assert seen.message.topic_data[0].partition_data[0].records is None
        cluster.release_replication("t", 0)
        assert (await answer).error_code == 0


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


async def test_a_partition_without_followers_waits_for_nobody():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)

        assert (await asyncio.wait_for(client.produce(batch_of(b"a")), TIMEOUT)).error_code == 0
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        assert len(cluster.records("t")) == 1


async def test_answers_carry_the_start_of_the_log():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        for _ in range(3):
            assert (await client.produce(batch_of(b"a"))).log_start_offset == 0
        cluster.log("t", 0).delete_before(2)

        assert (await client.produce(batch_of(b"b"))).log_start_offset == 2
