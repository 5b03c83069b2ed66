"""The embedded broker answers what a real Kafka answers: the same frames to both, the answers compared."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from aioproducer.protocol.api import decode_api_versions_response, encode_request
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceResponse,
)
from aioproducer.testing import ApacheKafka, EmbeddedCluster
from tests.conftest import MS
from tests.oracle import OracleRecord, encode_batch
from tests.raw_client import NOW, RawClient, batch_of, produce_request

pytestmark = pytest.mark.apache

Scenario: TypeAlias = Callable[[RawClient, str], Awaitable[object]]
"""Ask something about a new topic with two partitions, return what is to be compared."""


async def produced(client: RawClient, topic: str, *batches: bytes, **settings: int) -> list[tuple[int, ...]]:
    answers = [await client.produce(batch, topic, **settings) for batch in batches]
    return [
        (answer.error_code, answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)
        for answer in answers
    ]


async def sequences(client: RawClient, topic: str) -> object:
    last = 2**31 - 1
    return await produced(
        client,
        topic,
        *(batch_of(b"x", b"y", sequence=sequence) for sequence in (0, 2, 4, 6, 8, 10)),
        *(batch_of(b"x", b"y", sequence=sequence) for sequence in (10, 2, 0)),
        batch_of(b"x", sequence=10),
        batch_of(b"x", sequence=13),
        batch_of(b"x", sequence=5, epoch=1),
        batch_of(b"x", sequence=0, epoch=1),
        batch_of(b"x", sequence=12, epoch=0),
        batch_of(b"x", sequence=1, epoch=1),
        batch_of(b"x", sequence=77, producer_id=8),
        batch_of(b"x", sequence=0, producer_id=8),
        batch_of(b"x", b"y", b"z", sequence=last - 1, producer_id=9),
        batch_of(b"x", b"y", b"z", sequence=last - 1, producer_id=9),
        batch_of(b"x", sequence=0, producer_id=9),
        batch_of(b"x", sequence=1, producer_id=9),
        batch_of(b"x", sequence=last, producer_id=10),
        batch_of(b"x", sequence=0, producer_id=10),
    )


async def malformed_batches(client: RawClient, topic: str) -> object:
    record = OracleRecord(NOW, None, b"x")
    corrupt = bytearray(batch_of(b"value"))
    corrupt[-3] ^= 1
    old = bytearray(batch_of(b"value"))
    old[16] = 1
    return await produced(
        client,
        topic,
        bytes(corrupt),
        bytes(old),
        batch_of(b"a") + batch_of(b"b"),
        batch_of(b"cut")[:-1],
        b"",
        encode_batch([record], control=True),
        encode_batch([record], base_offset=5),
        encode_batch([record], producer_id=7, producer_epoch=0),
        encode_batch([record], partition_leader_epoch=9),
        batch_of(b"x" * 1_048_588),
    )


async def acks(client: RawClient, topic: str) -> object:
    return [await produced(client, topic, batch_of(b"x"), acks=acks) for acks in (-1, 1, 2, -2)]


async def zstd_by_version(client: RawClient, topic: str) -> object:
    batch = encode_batch([OracleRecord(NOW, None, b"x")], codec=4, payload=b"no zstd at all")
    return await produced(client, topic, batch, version=6)


async def unknown_targets(client: RawClient, topic: str) -> object:
    names = produce_request({(topic, 7): batch_of(b"x"), ("nothing", 0): batch_of(b"x")})
    ids = produce_request({("", 0): batch_of(b"x")})
    ids.topic_data[0].topic_id = uuid.UUID(int=12345)
    found = []
    for request, version in ((names, 12), (ids, 13)):
        response = await client.ask(request, version)
        assert isinstance(response, ProduceResponse)
        found += [
            (part.index, part.error_code, part.base_offset)
            for answer in sorted(response.responses, key=lambda answer: answer.name != topic)
            for part in answer.partition_responses
        ]
    return found


async def acks_0_with_an_error(client: RawClient, topic: str) -> object:
    client.send(produce_request({(topic, 7): batch_of(b"x")}, acks=0), 12)
    return await client.is_closed()


async def log_append_time(client: RawClient, topic: str) -> object:
    await create(client, f"{topic}-broker-time", {"message.timestamp.type": "LogAppendTime"})
    (first,) = await produced(client, f"{topic}-broker-time", batch_of(b"x"))
    return first[:2], first[2] > NOW, first[3]


async def too_new_api_versions(client: RawClient, topic: str) -> object:
    frame = encode_request(ApiVersionsRequest(), 4, 1, "raw")[0]
    client.writer.write(bytes(frame[:6]) + b"\x00\x63" + bytes(frame[8:]))
    response = decode_api_versions_response(99, await client.frame(), 1)
    return response.error_code, [(key.api_key, key.min_version) for key in response.api_keys]


async def odd_client_name(client: RawClient, topic: str) -> object:
    request = ApiVersionsRequest(client_software_name="a b", client_software_version="1")
    response = await client.ask(request, 3)
    return response.error_code, len(response.api_keys)


async def advertised_versions(client: RawClient, topic: str) -> object:
    """Where versions are lower than Kafka's, it is because the handlers end there."""
    response = await client.ask(ApiVersionsRequest(), 0)
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    return {api_key: ranges[api_key] for api_key in (0, 3, 10, 18, 19)}


async def producer_ids(client: RawClient, topic: str) -> object:
    found = []
    for transactional_id, producer_id, epoch in ((None, -1, -1), (None, 5, 3), ("", -1, -1)):
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        response = await client.ask(request, 5)
        assert isinstance(response, InitProducerIdResponse)
        # A new broker has to get its first block of producer ids from the controller.
        while response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            response = await client.ask(request, 5)
            assert isinstance(response, InitProducerIdResponse)
        found.append((response.error_code, response.producer_id >= 0, response.producer_epoch))
    return found


async def metadata(client: RawClient, topic: str) -> object:
    response = await client.metadata(topic, "no/name", "nothing", allow_auto_topic_creation=False)
    return [
        (found.error_code, found.is_internal, [part.error_code for part in found.partitions])
        for found in sorted(response.topics, key=lambda found: found.name or "")
    ]


async def new_topics(client: RawClient, topic: str) -> object:
    wanted = [
        (topic, 1, 1, {}),
        ("no/name", 1, 1, {}),
        ("none", 0, 1, {}),
        ("many", 1, 4, {}),
        ("odd", 1, 1, {"x": "y"}),
        ("worse", 1, 1, {"max.message.bytes": "many"}),
    ]
    found = []
    for name, partitions, replicas, config in wanted:
        found.append(await create(client, name, config, partitions, replicas))
    return found


async def fetching(client: RawClient, topic: str) -> object:
    await produced(client, topic, batch_of(b"a", b"b"), batch_of(b"c"))
    found = []
    for partition, offset, epoch in ((0, 1, -1), (0, 3, 0), (0, 4, -1), (0, -1, -1), (0, 0, 9), (7, 0, -1)):
        wanted = FetchRequest.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            current_leader_epoch=epoch,
            partition_max_bytes=10_000,
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchRequest.FetchTopic(topic=topic)])
        request.topics[0].partitions = [wanted]
        response = await client.ask(request, 12)
        assert isinstance(response, FetchResponse)
        answer = response.responses[0].partitions[0]
        found.append(
            (
                answer.error_code,
                answer.high_watermark,
                answer.last_stable_offset,
                answer.log_start_offset,
                bytes(answer.records or b""),
            )
        )
    return found


async def offsets(client: RawClient, topic: str) -> object:
    await produced(client, topic, batch_of(b"a", b"b"), batch_of(b"c", timestamp=NOW + 100))
    return [
        await offset_at(client, topic, partition, timestamp)
        for partition, timestamp in (
            *((0, -1), (0, -2), (0, -3), (0, NOW + 1), (0, NOW + 101)),
            *((1, -1), (1, -2), (1, -3), (1, NOW), (7, -1)),
        )
    ]


async def create(
    client: RawClient, topic: str, config: dict[str, str], partitions: int = 2, replicas: int = 1
) -> int:
    """Create a topic and wait until it has leaders, or return the error code."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in config.items()
        ],
    )
    response = await client.ask(CreateTopicsRequest(topics=[wanted]), 7)
    assert isinstance(response, CreateTopicsResponse)
    error = response.topics[0].error_code
    while not error and not await is_led(client, topic):  # noqa: ASYNC110  # Kafka is another process
        await asyncio.sleep(10 * MS)
    return error


async def is_led(client: RawClient, topic: str) -> bool:
    """Both partitions have a leader that knows it. Kafka's metadata are a little ahead of its leaders."""
    answers = [await offset_at(client, topic, partition, -1) for partition in (0, 1)]
    return [answer[0] for answer in answers] == [0, 0]


async def offset_at(client: RawClient, topic: str, partition: int, timestamp: int) -> tuple[int, ...]:
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])
    response = await client.ask(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7)
    assert isinstance(response, ListOffsetsResponse)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


SCENARIOS: list[Scenario] = [
    sequences,
    malformed_batches,
    acks,
    zstd_by_version,
    unknown_targets,
    acks_0_with_an_error,
    log_append_time,
    too_new_api_versions,
    odd_client_name,
    advertised_versions,
    producer_ids,
    metadata,
    new_topics,
    fetching,
    offsets,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_the_embedded_broker_answers_as_kafka_does(scenario: Scenario, apache_kafka: ApacheKafka):
    topic = f"parity-{uuid.uuid4()}"
    found = []
    async with EmbeddedCluster(versions="4.3") as cluster:
        for servers in (apache_kafka.bootstrap_servers, cluster.bootstrap_servers):
            async with RawClient(servers) as client:
                await create(client, topic, {})
                found.append(await scenario(client, topic))
    kafka, embedded = found
    assert embedded == kafka
