"""`producer.client`, as health checks and instrumentation use it."""

from __future__ import annotations

import pytest

from aioproducer.compat.aiokafka import AIOKafkaProducer
from aioproducer.compat.aiokafka.client import BrokerMetadata, Client
from aioproducer.compat.aiokafka.errors import KafkaConnectionError
from tests.support.compat import aiokafka_producing
from tests.support.producing import METADATA, until


async def test_the_cluster_is_seen_through_the_client():
    async with aiokafka_producing(2, topics={"t": 2, "other": 1}) as (cluster, producer):
        await producer.partitions_for("t")

        seen = producer.client.cluster

        assert isinstance(producer.client, Client)
        assert {broker.nodeId for broker in seen.brokers()} == {0, 1}
        assert seen.broker_metadata(1) == BrokerMetadata(1, "127.0.0.1", cluster.nodes[1].port, None)
        assert seen.broker_metadata(7) is None
        assert seen.topics() == {"t"}
        assert seen.partitions_for_topic("t") == {0, 1}
        assert seen.partitions_for_topic("other") is None
        for partition in (0, 1):
            assert seen.leader_for_partition(("t", partition)) == cluster.leader("t", partition)
        assert seen.leader_for_partition(("t", 2)) is None


def test_nothing_is_known_before_the_start():
    seen = AIOKafkaProducer().client.cluster

    assert (seen.brokers(), seen.topics(), seen.partitions_for_topic("t")) == (set(), set(), None)


async def test_a_health_check_sends_a_request_to_a_broker():
    async with aiokafka_producing() as (cluster, producer):
        await producer.partitions_for("t")
        before = len(cluster.requests_of(METADATA))

        assert await producer.client.force_metadata_update() is True
        assert len(cluster.requests_of(METADATA)) > before
        cluster.add_partitions("t", 3)
        assert (await producer.client.fetch_all_metadata()).brokers()

        await until(lambda: producer.client.cluster.partitions_for_topic("t") == {0, 1, 2})


async def test_a_health_check_without_a_broker_fails():
    async with aiokafka_producing() as (cluster, producer):
        await cluster.stop()

        assert await producer.client.force_metadata_update() is False
        with pytest.raises(KafkaConnectionError):
            await producer.client.fetch_all_metadata()
        await cluster.start()


async def test_instrumentation_of_aiokafka_finds_address_and_client_id():
    async with aiokafka_producing(client_id="orders") as (cluster, producer):
        assert producer.client._client_id == "orders"
        assert list(producer.client._bootstrap_servers) == cluster.bootstrap_servers.split(",")
