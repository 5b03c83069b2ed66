"""The inspection of a cluster: the records that it stores, and the requests that its brokers have read."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from aioproducer.protocol.api import ApiKey, RequestHeader
from aioproducer.protocol.messages import MetadataRequest
from aioproducer.protocol.primitives import NIL_UUID
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.inspection import Inspection
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.topics import EmbeddedTopic, Partition
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of


async def test_records_start_at_the_start_of_the_log_even_within_a_batch():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await client.produce(batch_of(*(b"%d" % number for number in range(10))))
        cluster.log("t", 0).delete_before(5)

        for committed in (False, True):
            records = cluster.records("t", committed=committed)
            assert [record.offset for record in records] == [5, 6, 7, 8, 9]


def seen(inspection: Inspection, node: int, api_key: ApiKey = ApiKey.METADATA) -> None:
    inspection.note_request(node, RequestHeader(api_key, 12, 1, "raw"), MetadataRequest())


def with_topic() -> Inspection:
    """An inspection with one topic of two partitions."""
    config, inspection = LogConfig(), Inspection()
    partitions = [Partition("t", index, [0], config) for index in range(2)]
    topic = EmbeddedTopic("t", uuid.uuid4(), partitions, config)
    inspection.topics["t"] = inspection._topics_by_id[topic.topic_id] = topic
    return inspection


@pytest.mark.parametrize(("topic", "partition"), [("t", 2), ("t", -1), ("u", 0)])
def test_a_missing_partition_is_a_key_error_for_tests_and_none_for_brokers(topic, partition):
    inspection = with_topic()

    assert inspection.find_partition(topic, partition) is None
    for look in (inspection.partition, inspection.log, inspection.batches):
        with pytest.raises(KeyError, match=f"there is no partition {partition} of topic {topic}"):
            look(topic, partition)


def test_a_topic_is_found_by_its_name_or_if_it_has_none_by_its_id():
    inspection = with_topic()
    topic = inspection.topics["t"]

    assert inspection.find_topic("t", NIL_UUID) is topic
    assert inspection.find_topic(None, topic.topic_id) is topic
    assert inspection.find_topic("", topic.topic_id) is topic
    assert inspection.find_topic("u", topic.topic_id) is None
    assert inspection.find_topic(None, uuid.uuid4()) is None


async def test_requests_are_selected_by_api_and_broker_and_the_latest_are_kept():
    inspection = Inspection()
    seen(inspection, 0)
    for _ in range(10_000):
        seen(inspection, 1)
    seen(inspection, 0, ApiKey.PRODUCE)

    assert len(inspection.requests) == 10_000
    assert inspection.requests_of(ApiKey.METADATA, node=0) == []
    assert len(inspection.requests_of(ApiKey.METADATA)) == 9_999
    assert [one.node for one in inspection.requests_of(ApiKey.PRODUCE)] == [0]


async def test_waiting_for_requests_counts_those_that_came_before():
    inspection = Inspection()
    seen(inspection, 0)
    async with asyncio.timeout(TIMEOUT):
        assert len(await inspection.wait_for_requests(ApiKey.METADATA)) == 1
        waiting = asyncio.create_task(inspection.wait_for_requests(ApiKey.METADATA, 2, node=0))
        for node, api_key in ((1, ApiKey.METADATA), (0, ApiKey.PRODUCE)):
            await asyncio.sleep(0)
            seen(inspection, node, api_key)
            await asyncio.sleep(0)
            assert not waiting.done(), "a request to another broker or API was counted"
        seen(inspection, 0)
        assert len(await waiting) == 2
