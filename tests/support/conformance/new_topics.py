"""Cases about CreateTopics: valid and invalid topics, and the answers."""

from __future__ import annotations

import uuid

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import CreateTopicsRequest, CreateTopicsResponse
from tests.support.conformance.client import Client
from tests.support.conformance.metadata import errors_of
from tests.support.conformance.suite import case

NIL = uuid.UUID(int=0)


async def create(
    client: Client,
    *topics: tuple[str, int, int, dict[str, str | None]],
    version: int = 7,
    validate_only: bool = False,
) -> dict[str, CreateTopicsResponse.CreatableTopicResult]:
    """Create topics, each given as name, partitions, replicas and settings; return the results by name."""
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
            for name, partitions, replicas, config in topics
        ],
        validate_only=validate_only,
    )
    response = await client.ask(request, version)
    return {topic.name: topic for topic in response.topics}


@case()
async def a_topic_is_created_once(client: Client) -> None:
    assert (await create(client, (client.topic, 1, 1, {})))[client.topic].error_code == (
        ErrorCode.TOPIC_ALREADY_EXISTS
    )


@case()
async def the_answer_describes_a_new_topic(client: Client) -> None:
    for version in range(2, 8):
        name = f"{client.topic}-{version}"
        made = (await create(client, (name, 3, 1, {}), version=version))[name]
        assert (made.error_code, made.error_message) == (ErrorCode.NONE, None)
        assert (made.num_partitions, made.replication_factor) == ((3, 1) if version >= 5 else (-1, -1))
        assert (made.topic_id != NIL) is (version >= 7)


@case()
async def minus_1_means_the_brokers_default(client: Client) -> None:
    name = f"{client.topic}-new"
    made = (await create(client, (name, -1, -1, {})))[name]
    assert (made.error_code, made.num_partitions, made.replication_factor) == (ErrorCode.NONE, 1, 1)


@case()
async def topics_that_can_not_be_created(client: Client) -> None:
    name = f"{client.topic}-new"
    for error, topic in (
        (ErrorCode.INVALID_TOPIC_EXCEPTION, ("no/name", 1, 1, {})),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, ("", 1, 1, {})),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, ("..", 1, 1, {})),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, ("x" * 250, 1, 1, {})),
        (ErrorCode.INVALID_PARTITIONS, (name, 0, 1, {})),
        (ErrorCode.INVALID_PARTITIONS, (name, -2, 1, {})),
        (ErrorCode.INVALID_REPLICATION_FACTOR, (name, 1, 0, {})),
        (ErrorCode.INVALID_REPLICATION_FACTOR, (name, 1, -2, {})),
        (ErrorCode.INVALID_REPLICATION_FACTOR, (name, 1, 2, {})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"x": "y"})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"max.message.bytes": "many"})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"max.message.bytes": "-1"})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"min.insync.replicas": "0"})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"message.timestamp.type": "MyTime"})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"cleanup.policy": "burn"})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"compression.type": "zip"})),
        (ErrorCode.INVALID_CONFIG, (name, 1, 1, {"retention.ms": "long"})),
    ):
        for validate_only in (True, False):
            made = await create(client, topic, validate_only=validate_only)
            assert (topic, made[topic[0]].error_code) == (topic, error)
    assert errors_of(await client.describe(name)) == {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@case()
async def settings_that_no_topic_can_have(client: Client) -> None:
    for settings in (
        {"segment.bytes": "13"},
        {"retention.ms": None},
        {"retention.ms": ""},
        {"flush.messages": "0"},
        {"segment.ms": "0"},
        {"cleanup.policy": "Compact"},
        {"compression.type": "GZIP"},
        {"compression.gzip.level": "0"},
        {"compression.lz4.level": "18"},
        {"message.timestamp.type": "createtime"},
        {"preallocate": "perhaps"},
        {"max.message.bytes": "1e3"},
        {"max.message.bytes": "2147483648"},
        {"follower.replication.throttled.replicas": "x"},
        {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "3"},
    ):
        assert await error_of(client, settings) == ErrorCode.INVALID_CONFIG, settings


@case()
async def settings_that_a_topic_can_have(client: Client) -> None:
    for settings in (
        {"max.message.bytes": " 1000 "},
        {"cleanup.policy": ""},
        {"cleanup.policy": "compact,compact"},
        {"preallocate": "TRUE"},
        {"remote.log.copy.disable": "true"},
        {"compression.gzip.level": "-1", "compression.type": "gzip"},
        {"follower.replication.throttled.replicas": "*"},
    ):
        assert await error_of(client, settings) == ErrorCode.NONE, settings


# Kafka 4.0 dropped three of these settings (KIP-724, KIP-937) and requires larger segments (KIP-1030).
BEFORE_4 = {"3.9": ErrorCode.NONE, "4.3": ErrorCode.INVALID_CONFIG}


@case()
async def settings_that_a_topic_could_have_before_kafka_4(client: Client) -> None:
    for settings in (
        {"segment.bytes": "100000"},
        {"message.timestamp.difference.max.ms": "1"},
        {"message.format.version": "3.0"},
        {"message.downconversion.enable": "true"},
    ):
        assert await error_of(client, settings) == client.expected(BEFORE_4), settings


async def error_of(client: Client, settings: dict[str, str | None]) -> int:
    """The error code for a new topic with these settings."""
    name = f"{client.topic}-new"
    return (await create(client, (name, 1, 1, settings), validate_only=True))[name].error_code


@case()
async def a_topic_that_is_only_validated_is_not_created(client: Client) -> None:
    name = f"{client.topic}-new"
    made = (await create(client, (name, 2, 1, {}), validate_only=True))[name]
    assert (made.error_code, made.num_partitions) == (ErrorCode.NONE, 2)
    assert errors_of(await client.describe(name)) == {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@case()
async def one_topic_that_can_not_be_created_does_not_affect_the_others(client: Client) -> None:
    name = f"{client.topic}-new"
    made = await create(client, (client.topic, 1, 1, {}), (name, 1, 1, {}), ("no/name", 1, 1, {}))
    assert {topic: result.error_code for topic, result in made.items()} == {
        client.topic: ErrorCode.TOPIC_ALREADY_EXISTS,
        name: ErrorCode.NONE,
        "no/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


@case()
async def a_topic_twice_in_a_request_is_not_created(client: Client) -> None:
    name = f"{client.topic}-new"
    made = await create(client, (name, 1, 1, {}), (name, 2, 1, {}))
    assert made[name].error_code == ErrorCode.INVALID_REQUEST
    assert errors_of(await client.describe(name)) == {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
