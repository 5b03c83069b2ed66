"""The brokers' answers about the cluster: ApiVersions, Metadata, FindCoordinator and CreateTopics."""

from __future__ import annotations

import uuid

import pytest

from aioproducer.protocol.api import ApiKey, decode_api_versions_response, encode_request
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.metadata_handlers import BROKER_DEFAULT, create_topics, refused_api_versions
from tests.support.direct_calls import context_of, unstarted_cluster
from tests.support.raw_client import RawClient, address

# ApiVersions


async def test_api_versions_lists_the_versions_of_the_release():
    async with EmbeddedCluster(versions="2.1") as cluster, RawClient(address(cluster)) as client:
        response = await client.ask(ApiVersionsRequest(), 0)

        assert isinstance(response, ApiVersionsResponse)
        ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        assert ranges[ApiKey.PRODUCE] == (0, 7)
        assert ranges[ApiKey.METADATA] == (0, 7)
        assert ranges[ApiKey.INIT_PRODUCER_ID] == (0, 1)
        assert ranges[ApiKey.API_VERSIONS] == (0, 2)


@pytest.mark.parametrize(("versions", "highest"), [("2.1", 2), ("2.4", 3), ("4.1", 4)])
async def test_api_versions_in_too_new_a_version_is_rejected_in_the_format_of_version_0(versions, highest):
    async with EmbeddedCluster(versions=versions) as cluster, RawClient(address(cluster)) as client:
        frame = encode_request(ApiVersionsRequest(), 4, 1, "raw")[0]
        client.writer.write(bytes(frame[:6]) + (highest + 1).to_bytes(2, "big") + bytes(frame[8:]))

        response = decode_api_versions_response(highest + 1, await client.frame(), 1)

        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        (only,) = response.api_keys
        assert (only.api_key, only.min_version, only.max_version) == (ApiKey.API_VERSIONS, 0, highest)
        # The connection stays open.
        request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        again = await client.ask(request, highest)
        assert isinstance(again, ApiVersionsResponse)
        assert again.error_code == 0


async def test_api_versions_rejects_an_invalid_client_name():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        request = ApiVersionsRequest(client_software_name="a b", client_software_version="1")
        response = await client.ask(request, 3)

        assert isinstance(response, ApiVersionsResponse)
        assert response.error_code == ErrorCode.INVALID_REQUEST


# Metadata


@pytest.mark.parametrize("version", range(14))
async def test_every_metadata_version_describes_brokers_and_topics(version):
    async with EmbeddedCluster(3, topics={"t": 4}) as cluster, RawClient(address(cluster)) as client:
        response = await client.metadata("t", version=version)

        assert [(b.node_id, b.host, b.port) for b in response.brokers] == [node[:3] for node in cluster.nodes]
        (topic,) = response.topics
        assert (topic.name, topic.error_code, topic.is_internal) == ("t", 0, False)
        assert [part.leader_id for part in topic.partitions] == [0, 1, 2, 0]
        assert topic.partitions[1].replica_nodes == topic.partitions[1].isr_nodes == [1, 2, 0]
        if version >= 1:
            assert response.controller_id == 0
        if version >= 7:
            assert topic.partitions[0].leader_epoch == 0
        if version >= 10:
            assert topic.topic_id == cluster.topics["t"].topic_id


async def test_metadata_of_all_topics():
    async with EmbeddedCluster(topics={"a": 1, "b": 1}) as cluster, RawClient(address(cluster)) as client:
        everything = await client.ask(MetadataRequest(topics=None), 12)
        nothing = await client.ask(MetadataRequest(topics=[]), 12)
        old = await client.ask(MetadataRequest(topics=[]), 0)

        names = [
            [topic.name for topic in response.topics]
            for response in (everything, nothing, old)
            if isinstance(response, MetadataResponse)
        ]
        assert names == [["a", "b"], [], ["a", "b"]]


async def test_metadata_by_topic_id():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        topic_id = cluster.topics["t"].topic_id
        wanted = [
            MetadataRequest.MetadataRequestTopic(topic_id=one, name=None) for one in (topic_id, uuid.uuid4())
        ]
        response = await client.ask(MetadataRequest(topics=wanted), 12)

        assert isinstance(response, MetadataResponse)
        known, unknown = response.topics
        assert (known.name, known.topic_id, known.error_code) == ("t", topic_id, 0)
        assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_a_topic_is_created_on_demand_and_ready_at_the_second_request():
    async with EmbeddedCluster(default_partitions=3) as cluster, RawClient(address(cluster)) as client:
        first = (await client.metadata("new")).topics[0]
        second = (await client.metadata("new")).topics[0]

        assert (first.error_code, first.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert (second.error_code, len(second.partitions)) == (0, 3)


@pytest.mark.promise("Test clusters", "the embedded cluster answers as Kafka does")
@pytest.mark.parametrize(("name", "key_type"), [("__consumer_offsets", 0), ("__transaction_state", 1)])
async def test_an_internal_topic_is_created_on_demand_with_the_partitions_that_its_coordinators_need(
    name, key_type
):
    async with EmbeddedCluster(3) as cluster, RawClient(address(cluster)) as client:
        await client.metadata(name)
        found = await client.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a"]), 4)

        assert isinstance(found, FindCoordinatorResponse)
        assert found.coordinators[0].error_code == 0
        assert len(cluster.topics[name].partitions) == 50
        assert len((await client.metadata(name)).topics[0].partitions) == 50


async def test_no_topic_is_created_unless_broker_and_client_agree():
    async with EmbeddedCluster(auto_create=False) as cluster, RawClient(address(cluster)) as client:
        assert (await client.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert cluster.topics == {}
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        response = await client.metadata("t", allow_auto_topic_creation=False)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = await client.metadata("no/name")
        assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert cluster.topics == {}


# FindCoordinator


@pytest.mark.promise("KIPs", "KIP-699: several coordinators in one request")
@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_a_broker(version):
    async with EmbeddedCluster(3) as cluster, RawClient(address(cluster)) as client:
        keys = {"coordinator_keys": ["a", "b"]} if version >= 4 else {"key": "a"}
        response = await client.ask(FindCoordinatorRequest(**keys), version)

        assert isinstance(response, FindCoordinatorResponse)
        found = response.coordinators or [response]
        assert [one.error_code for one in found] == [0] * len(found)
        assert all((one.node_id, one.host, one.port) in [n[:3] for n in cluster.nodes] for one in found)


# CreateTopics


@pytest.mark.promise(
    "Protocol", "Fetch, ListOffsets and CreateTopics exist for the embedded cluster and for reading back"
)
@pytest.mark.promise("KIPs", "KIP-464: defaults of the cluster in CreateTopics")
@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(version):
    async with EmbeddedCluster(3, topics={"old": 1}) as cluster, RawClient(address(cluster)) as client:
        wanted = [
            ("new", 2, 2, {"max.message.bytes": "5000"}),
            ("default", -1, -1, {}),
            ("old", 1, 1, {}),
            ("no/name", 1, 1, {}),
            ("none", 0, 1, {}),
            ("many", 1, 4, {}),
            ("odd", 1, 1, {"x": "y"}),
        ]
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replicas,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in config.items()
                    ],
                )
                for name, partitions, replicas, config in wanted
            ]
        )
        response = await client.ask(request, version)

        assert isinstance(response, CreateTopicsResponse)
        assert [ErrorCode(topic.error_code) for topic in response.topics] == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_CONFIG,
        ]
        assert list(cluster.topics) == ["old", "new", "default"]
        assert cluster.partition("new", 1).replicas == (1, 2)
        assert cluster.topics["new"].config.max_message_bytes == 5000


@pytest.mark.promise("Test clusters", "the embedded cluster answers as Kafka does")
async def test_topics_whose_names_differ_only_in_dots_and_underscores_collide():
    async with EmbeddedCluster(topics={"a.b_c": 1}) as cluster, RawClient(address(cluster)) as client:
        with pytest.raises(ValueError, match=r"'a_b\.c' can't be created: it collides with topic 'a\.b_c'"):
            cluster.create_topic("a_b.c")
        topic = CreateTopicsRequest.CreatableTopic(name="a_b.c", num_partitions=1, replication_factor=1)
        response = await client.ask(CreateTopicsRequest(topics=[topic]), 7)
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert response.topics[0].error_message == "Topic 'a_b.c' collides with existing topic: a.b_c"
        for _ in range(2):
            described = (await client.metadata("a.b.c")).topics[0]
            assert described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert list(cluster.topics) == ["a.b_c"]


async def test_create_topics_can_only_validate():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        response = await client.ask(CreateTopicsRequest(topics=[topic], validate_only=True), 7)
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[0].error_code == 0
        assert cluster.topics == {}


async def test_replicas_assigned_by_the_client_are_rejected_and_defaults_are_filled_in():
    cluster = unstarted_cluster({}, brokers=3, default_partitions=4)
    wanted = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=BROKER_DEFAULT, replication_factor=BROKER_DEFAULT
    )
    assigned = CreateTopicsRequest.CreatableTopic(
        name="u",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[2])],
    )
    request = CreateTopicsRequest(topics=[wanted, assigned])

    made, refused = (await create_topics(context_of(cluster, request, 7), request)).topics

    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 4, 3)
    assert made.topic_id == cluster.topics["t"].topic_id
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert list(cluster.topics) == ["t"]


def test_only_a_version_that_is_too_new_is_answered_with_the_served_versions():
    served = unstarted_cluster({}).broker(0).release.versions

    too_new = refused_api_versions(ErrorCode.UNSUPPORTED_VERSION, served)
    otherwise = refused_api_versions(ErrorCode.INVALID_REQUEST, served)

    assert [key.api_key for key in too_new.api_keys] == [ApiKey.API_VERSIONS]
    assert (otherwise.error_code, otherwise.api_keys) == (ErrorCode.INVALID_REQUEST, [])
