"""The embedded cluster as a whole: it starts, loses brokers and gets them back, and leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.testing import EmbeddedCluster
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request


@pytest.mark.promise(
    "Test clusters", "brokers stop, freeze, change their release; leaders and in-sync replicas move"
)
async def test_stopping_a_broker_moves_its_partitions_and_starting_it_brings_it_back():
    async with EmbeddedCluster(3, topics={"t": 3}) as cluster:
        port = cluster.nodes[1].port
        async with RawClient(address(cluster, 1)) as client, RawClient(address(cluster, 0)) as other:
            await client.metadata("t")
            await cluster.stop_broker(1)
            assert await client.is_closed()
            response = await other.metadata("t")

            assert [broker.node_id for broker in response.brokers] == [0, 2]
            described = response.topics[0].partitions[1]
            assert (described.leader_id, described.leader_epoch) == (2, 1)
            assert (described.isr_nodes, described.offline_replicas) == ([2, 0], [1])
            with pytest.raises(OSError, match=r"refused|Connect"):
                await asyncio.open_connection("127.0.0.1", port)

            await cluster.start_broker(1)
            response = await other.metadata("t")
            assert [broker.port for broker in response.brokers][1] == port
            assert sorted(response.topics[0].partitions[1].isr_nodes) == [0, 1, 2]
        async with RawClient(address(cluster, 1)) as client:
            await client.metadata("t")


@pytest.mark.promise(
    "Test clusters", "`EmbeddedCluster` runs in process, and as `python -m aioproducer.testing`"
)
async def test_nothing_is_left_when_a_test_fails_in_the_middle():
    before = asyncio.all_tasks()
    clients = []

    async def failing_test():
        async with EmbeddedCluster(3, topics={"t": 1}) as cluster:
            for node in (0, 0, 1):
                clients.append(RawClient(address(cluster, node)))
                await clients[-1].__aenter__()
            cluster.hold_replication("t", 0)
            clients[0].send(produce_request({("t", 0): batch_of(b"a")}), 12)
            clients[1].writer.write(b"\x00\x00\x01\x00half a request")
            await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), TIMEOUT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing_test()
    for client in clients:
        assert await client.is_closed()
        await client.__aexit__()

    assert asyncio.all_tasks() == before


async def test_a_client_that_connects_while_the_cluster_stops_leaves_nothing_behind():
    before = asyncio.all_tasks()
    async with EmbeddedCluster() as cluster:
        connecting = [
            asyncio.ensure_future(asyncio.open_connection(*cluster.nodes[0][1:3])) for _ in range(5)
        ]
        await asyncio.sleep(0)
    for connected in await asyncio.gather(*connecting, return_exceptions=True):
        if not isinstance(connected, BaseException):
            connected[1].close()
            await asyncio.gather(connected[1].wait_closed(), return_exceptions=True)

    assert asyncio.all_tasks() == before


async def test_a_port_that_is_in_use_leaves_nothing_running():
    async with EmbeddedCluster(2) as first:
        port = first.nodes[1].port
        second = EmbeddedCluster(2, port=port - 1)
        with pytest.raises(OSError, match="address already in use"):
            await second.start()
        assert second.alive() == []


async def test_ports_follow_the_first_one():
    async with EmbeddedCluster() as first:
        port = first.nodes[0].port
    async with EmbeddedCluster(port=port) as second:
        assert second.bootstrap_servers == f"127.0.0.1:{port}"


def test_invalid_arguments_are_rejected():
    for wrong in (
        {"brokers": 0},
        {"versions": "0.9"},
        {"transaction_version": 3},
        {"replication_factor": 2},
        {"default_partitions": 0},
    ):
        with pytest.raises(ValueError, match=r"broker|version"):
            EmbeddedCluster(**wrong)


async def test_an_invalid_topic_leaves_nothing_running():
    cluster = EmbeddedCluster(topics={"t": 0})
    with pytest.raises(ValueError, match="can't be created"):
        await cluster.start()
    assert cluster.alive() == []
