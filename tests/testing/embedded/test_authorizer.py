"""The embedded cluster's scripted authorizer: denied operations and principals, and Kafka's answers to them."""

from __future__ import annotations

import uuid

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.authorizer import (
    ANONYMOUS,
    CLUSTER_NAME,
    Authorizer,
    Operation,
    ResourceType,
)
from tests.support.raw_client import RawClient, address, batch_of, produce_request

DENIED_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
DENIED_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
DENIED_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def errors_of(response: object) -> dict[tuple[str, int], int]:
    assert isinstance(response, ProduceResponse)
    return {
        (topic.name, part.index): part.error_code
        for topic in response.responses
        for part in topic.partition_responses
    }


# Rules


def test_a_rule_covers_its_operation_resource_name_and_principal_and_nothing_else():
    authorizer = Authorizer()
    authorizer.deny(Operation.WRITE, topic="t", principal="User:alice")
    asked = {
        ("User:alice", Operation.WRITE, ResourceType.TOPIC, "t"): DENIED_TOPIC,
        ("User:bob", Operation.WRITE, ResourceType.TOPIC, "t"): None,
        # As in Kafka, a principal without the right to write may still describe the topic.
        ("User:alice", Operation.DESCRIBE, ResourceType.TOPIC, "t"): None,
        ("User:alice", Operation.WRITE, ResourceType.TOPIC, "u"): None,
        ("User:alice", Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "t"): None,
    }

    assert {one: authorizer.refusal(*one) for one in asked} == asked


def test_a_rule_for_all_operations_names_and_principals_covers_everything():
    authorizer = Authorizer()
    authorizer.deny(Operation.ALL, transactional_id="*")

    for operation in Operation:
        refused = authorizer.refusal("User:x", operation, ResourceType.TRANSACTIONAL_ID, "any")
        assert refused is DENIED_ID


def test_a_rule_can_be_withdrawn():
    authorizer = Authorizer()
    first = authorizer.deny(Operation.IDEMPOTENT_WRITE, cluster=True)
    authorizer.deny(Operation.READ, group="g")
    asked = [
        (ANONYMOUS, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME),
        (ANONYMOUS, Operation.READ, ResourceType.GROUP, "g"),
    ]
    assert [authorizer.refusal(*one) for one in asked] == [
        DENIED_CLUSTER,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ]

    authorizer.withdraw(first)
    assert [authorizer.refusal(*one) for one in asked] == [None, ErrorCode.GROUP_AUTHORIZATION_FAILED]
    authorizer.clear()
    assert [authorizer.refusal(*one) for one in asked] == [None, None]


def test_an_invalid_rule_is_rejected():
    authorizer = Authorizer()
    with pytest.raises(ValueError, match="takes exactly one of topic="):
        authorizer.deny(Operation.WRITE)
    with pytest.raises(ValueError, match="takes exactly one of topic="):
        authorizer.deny(Operation.WRITE, topic="t", cluster=True)
    with pytest.raises(ValueError, match='write "User:alice"'):
        authorizer.deny(Operation.WRITE, topic="t", principal="alice")


# Produce


@pytest.mark.promise("Test clusters", "the embedded cluster has a scripted authorizer, per principal")
@pytest.mark.parametrize("version", [3, 9, 12])
async def test_produce_rejects_only_the_partitions_without_the_right_to_write(version):
    async with EmbeddedCluster(topics={"t": 2, "u": 2}) as cluster, RawClient(address(cluster)) as client:
        cluster.authorizer.deny(Operation.WRITE, topic="u")
        cluster.authorizer.deny(Operation.WRITE, topic="missing")
        wanted = [("t", 0), ("u", 0), ("u", 1), ("t", 1), ("missing", 0), ("gone", 0)]
        request = produce_request({one: batch_of(b"a") for one in wanted})

        assert errors_of(await client.ask(request, version)) == {
            **{("t", 0): 0, ("t", 1): 0},
            **{("u", 0): DENIED_TOPIC, ("u", 1): DENIED_TOPIC},
            # The error does not reveal which topics exist.
            **{("missing", 0): DENIED_TOPIC, ("gone", 0): UNKNOWN},
        }
        assert (len(cluster.records("t")), len(cluster.records("u"))) == (2, 0)


async def test_produce_by_topic_id_is_also_rejected():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.authorizer.deny(Operation.WRITE, topic="t")
        request = produce_request({("", 0): batch_of(b"a")})
        found = []
        for topic_id in (cluster.topics["t"].topic_id, uuid.UUID(int=1)):
            request.topic_data[0].topic_id = topic_id
            request.topic_data[0].partition_data[0].records = batch_of(b"a")
            found += errors_of(await client.ask(request, 13)).values()

        assert found == [DENIED_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID]


async def test_produce_with_acks_0_that_is_denied_closes_the_connection():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.authorizer.deny(Operation.WRITE, topic="t")
        client.send(produce_request({("t", 0): batch_of(b"a")}, acks=0), 12)

        assert await client.is_closed()


@pytest.mark.parametrize(("versions", "error"), [("2.7", DENIED_CLUSTER), ("2.8", 0), ("4.1", 0)])
async def test_idempotent_writes_need_the_right_on_the_cluster_before_2_8(versions, error):
    async with EmbeddedCluster(topics={"t": 1}, versions=versions) as cluster:
        cluster.authorizer.deny(Operation.IDEMPOTENT_WRITE, cluster=True)
        async with RawClient(address(cluster)) as client:
            assert (await client.produce(batch_of(b"a"), version=7)).error_code == 0
            assert (await client.produce(batch_of(b"a", sequence=0), version=7)).error_code == error


# Producer ids and transactions


async def init_producer_id(client: RawClient, transactional_id: str | None = None) -> int:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    response = await client.ask(request, 1)
    assert isinstance(response, InitProducerIdResponse)
    return response.error_code


async def test_a_producer_id_needs_the_right_to_write_to_any_topic_since_2_8():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        cluster.authorizer.deny(Operation.WRITE, topic="*")
        assert await init_producer_id(client) == 0
        rule = cluster.authorizer.deny(Operation.IDEMPOTENT_WRITE, cluster=True)
        assert await init_producer_id(client) == DENIED_CLUSTER

        cluster.authorizer.clear()
        cluster.authorizer.deny(*rule[:1], cluster=True)
        cluster.authorizer.deny(Operation.WRITE, topic="t")
        assert await init_producer_id(client) == 0


async def test_a_producer_id_needs_the_right_on_the_cluster_before_2_8():
    async with EmbeddedCluster(versions="2.7") as cluster, RawClient(address(cluster)) as client:
        assert await init_producer_id(client) == 0
        cluster.authorizer.deny(Operation.IDEMPOTENT_WRITE, cluster=True)
        assert await init_producer_id(client) == DENIED_CLUSTER


async def test_a_transactional_id_that_is_denied_gets_no_producer_id_and_no_coordinator():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        cluster.authorizer.deny(Operation.WRITE, transactional_id="x")
        assert await init_producer_id(client, "x") == DENIED_ID

        cluster.authorizer.deny(Operation.DESCRIBE, transactional_id="y")
        cluster.authorizer.deny(Operation.DESCRIBE, group="y")
        for key_type, denied in ((1, DENIED_ID), (0, ErrorCode.GROUP_AUTHORIZATION_FAILED)):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x", "y"])
            found = await client.ask(request, 6)
            assert isinstance(found, FindCoordinatorResponse)
            assert [one.error_code for one in found.coordinators] == [0, denied]
            assert [one.node_id for one in found.coordinators] == [0, -1]

        old = await client.ask(FindCoordinatorRequest(key_type=1, key="y"), 2)
        assert isinstance(old, FindCoordinatorResponse)
        assert (old.error_code, old.node_id) == (DENIED_ID, -1)


# Topics


async def test_metadata_hides_topics_that_may_not_be_described():
    async with EmbeddedCluster(topics={"t": 1, "u": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.authorizer.deny(Operation.DESCRIBE, topic="u")
        cluster.authorizer.deny(Operation.DESCRIBE, topic="new")
        named = (await client.metadata("t", "u", "new")).topics
        everything = await client.ask(MetadataRequest(topics=None), 12)

        assert [(topic.name, topic.error_code) for topic in named] == [
            ("t", 0),
            ("u", DENIED_TOPIC),
            ("new", DENIED_TOPIC),
        ]
        assert (named[1].partitions, named[1].topic_id) == ([], uuid.UUID(int=0))
        assert isinstance(everything, MetadataResponse)
        assert [topic.name for topic in everything.topics] == ["t"]
        assert "new" not in cluster.topics

        topic_id = cluster.topics["u"].topic_id
        by_id = MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)
        response = await client.ask(MetadataRequest(topics=[by_id]), 12)
        assert isinstance(response, MetadataResponse)
        (hidden,) = response.topics
        assert (hidden.error_code, hidden.name, hidden.topic_id) == (DENIED_TOPIC, None, topic_id)


async def test_no_topic_is_created_without_the_right_to_do_so():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:

        async def created(name: str) -> list[int]:
            wanted = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            response = await client.ask(CreateTopicsRequest(topics=[wanted]), 7)
            assert isinstance(response, CreateTopicsResponse)
            return [topic.error_code for topic in response.topics]

        cluster.authorizer.deny(Operation.CREATE, topic="a")
        assert await created("a") == [0]  # the right on the cluster is enough
        cluster.authorizer.deny(Operation.CREATE, cluster=True)
        assert await created("b") == [0]  # and so is the right on the topic
        cluster.authorizer.deny(Operation.CREATE, topic="c")
        assert await created("c") == [DENIED_TOPIC]
        assert (await client.metadata("c")).topics[0].error_code == DENIED_TOPIC
        assert list(cluster.topics) == ["a", "b"]


async def test_consumers_may_also_be_denied():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        fetch = FetchRequest(topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])])
        offset = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        offsets = ListOffsetsRequest(
            topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[offset])]
        )

        async def asked() -> tuple[int, int]:
            fetched, listed = await client.ask(fetch, 12), await client.ask(offsets, 7)
            assert isinstance(fetched, FetchResponse)
            assert isinstance(listed, ListOffsetsResponse)
            return (
                fetched.responses[0].partitions[0].error_code,
                listed.topics[0].partitions[0].error_code,
            )

        assert await asked() == (0, 0)
        cluster.authorizer.deny(Operation.READ, topic="t")
        assert await asked() == (DENIED_TOPIC, 0)
        cluster.authorizer.deny(Operation.DESCRIBE, topic="t")
        assert await asked() == (DENIED_TOPIC, DENIED_TOPIC)


# Principals


async def test_an_unauthenticated_connection_belongs_to_anonymous():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.authorizer.deny(Operation.WRITE, topic="t", principal="User:alice")
        assert (await client.produce(batch_of(b"a"))).error_code == 0
        cluster.authorizer.deny(Operation.WRITE, topic="t", principal="User:ANONYMOUS")
        assert (await client.produce(batch_of(b"a"))).error_code == DENIED_TOPIC
