"""Brokers other than Kafka: Azure Event Hubs closes connections on unknown versions, and answers acks=0 requests."""

from __future__ import annotations

import pytest

from aioproducer.testing import EmbeddedCluster
from tests.support.producing import quick_producer, within


@pytest.mark.promise(
    "Coming from other clients",
    "brokers that hang up on unknown requests and answer acks=0 are supported (Azure Event Hubs)",
)
@pytest.mark.parametrize("settings", [{}, {"acks": 0}], ids=["acks=all", "acks=0"])
async def test_records_reach_azure_event_hubs(settings):
    async with EmbeddedCluster(2, topics={"t": 2}, versions="azure-event-hubs") as cluster:
        async with quick_producer(cluster, **settings) as producer:
            for value in (b"1", b"2", b"3"):
                await within(5, producer.send_and_wait("t", value, partition=0))
            leader = next(node for node in producer.metrics().nodes if node.node_id == cluster.leader("t", 0))

        assert [record.value for record in cluster.records("t", 0)] == [b"1", b"2", b"3"]
        assert leader.connects == 1, "answers to acks=0 must not close the connection"
