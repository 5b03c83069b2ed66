"""Cases about Metadata: the description of the cluster and its topics, and topics that a request creates."""

from __future__ import annotations

import asyncio
import uuid

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import MetadataRequest, MetadataResponse
from tests.conftest import MS
from tests.support.conformance.client import Client
from tests.support.conformance.suite import case

NIL = uuid.UUID(int=0)


def errors_of(response: MetadataResponse) -> dict[str | None, int]:
    """The error of each topic."""
    return {topic.name: topic.error_code for topic in response.topics}


@case(3)
async def metadata_describe_each_partition(client: Client) -> None:
    for version in range(client.expected({"3.9": 12, "4.3": 13}) + 1):
        response = await client.describe(client.topic, version=version, allow_auto_topic_creation=version < 4)
        (broker,) = response.brokers
        assert f"{broker.host}:{broker.port}" == client.servers
        (topic,) = response.topics
        assert (topic.error_code, topic.name, topic.is_internal) == (0, client.topic, False)
        assert topic.topic_id == (client.topic_id if version >= 10 else NIL)
        node = broker.node_id
        assert sorted(
            (part.partition_index, part.error_code, part.leader_id, part.leader_epoch)
            for part in topic.partitions
        ) == [(index, 0, node, 0 if version >= 7 else -1) for index in range(3)]
        assert {
            (*part.replica_nodes, *part.isr_nodes, *part.offline_replicas) for part in topic.partitions
        } == {(node, node)}
        assert response.cluster_id if version >= 2 else response.cluster_id is None
        assert response.controller_id == (node if version >= 1 else -1)


@case()
async def an_unknown_topic_is_an_error_of_that_topic(client: Client) -> None:
    nothing = f"{client.topic}-none"
    response = await client.describe(client.topic, nothing)
    assert errors_of(response) == {client.topic: 0, nothing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@case()
async def invalid_names_are_invalid_topics(client: Client) -> None:
    for name in ("no/name", "", ".", "..", "x" * 250, "ä", "a b"):
        for allowed in (False, True):
            response = await client.describe(name, allow_auto_topic_creation=allowed)
            assert errors_of(response) == {name: ErrorCode.INVALID_TOPIC_EXCEPTION}


@case()
async def a_topic_that_is_requested_twice_is_answered_once(client: Client) -> None:
    response = await client.describe(client.topic, client.topic)
    assert [topic.name for topic in response.topics] == [client.topic]


@case()
async def an_empty_list_requests_no_topics_and_null_requests_all(client: Client) -> None:
    for version in (1, 9, 12):
        assert (await client.describe(version=version, allow_auto_topic_creation=version < 4)).topics == []
        everything = await client.ask(MetadataRequest(topics=None), version)
        assert client.topic in {topic.name for topic in everything.topics}


@case()
async def in_version_0_an_empty_list_requests_all_topics(client: Client) -> None:
    everything = await client.describe(version=0, allow_auto_topic_creation=True)
    assert client.topic in {topic.name for topic in everything.topics}


@case()
async def a_topic_is_created_when_its_metadata_are_requested(client: Client) -> None:
    name = f"{client.topic}-new"
    assert errors_of(await client.describe(name)) == {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert errors_of(await client.describe(name, allow_auto_topic_creation=True)) == {
        name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    assert len((await until_it_is_there(client, name)).partitions) == 1


@case()
async def before_version_4_a_topic_is_always_created(client: Client) -> None:
    name = f"{client.topic}-new"
    await client.describe(name, version=3, allow_auto_topic_creation=True)
    assert len((await until_it_is_there(client, name)).partitions) == 1


async def until_it_is_there(client: Client, name: str) -> MetadataResponse.MetadataResponseTopic:
    """Wait until the controller has created a topic."""
    async with asyncio.timeout(10_000 * MS):
        while True:
            (found,) = (await client.describe(name)).topics
            if found.error_code == ErrorCode.NONE:
                return found
            await asyncio.sleep(5 * MS)  # Kafka is another process and sets no events


@case()
async def metadata_by_topic_id(client: Client) -> None:
    unknown = uuid.UUID(int=12345)
    response = await client.describe(ids=[client.topic_id, unknown])
    assert {topic.topic_id: (topic.error_code, topic.name) for topic in response.topics} == {
        client.topic_id: (ErrorCode.NONE, client.topic),
        unknown: (ErrorCode.UNKNOWN_TOPIC_ID, None),
    }


@case()
async def a_name_with_the_id_of_another_topic_is_an_unknown_topic_id(client: Client) -> None:
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=client.topic, topic_id=uuid.UUID(int=12345))],
        allow_auto_topic_creation=False,
    )
    response = await client.ask(request, 12)
    assert [(topic.error_code, topic.name) for topic in response.topics] == [
        (ErrorCode.UNKNOWN_TOPIC_ID, None),
    ]


@case()
async def topics_by_id_below_version_12_are_an_invalid_request(client: Client) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=None, topic_id=client.topic_id)]
    for version in (10, 11):
        response = await client.ask(MetadataRequest(topics=topics), version)
        assert (response.brokers, response.controller_id) == ([], -1)
        assert [(topic.error_code, topic.name, topic.topic_id) for topic in response.topics] == [
            (ErrorCode.INVALID_REQUEST, "", client.topic_id)
        ]
