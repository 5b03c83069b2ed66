"""Brokers that behave like different releases, and their responses in every version that they serve."""

from __future__ import annotations

import itertools

import pytest

from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceResponse,
)
from aioproducer.protocol.schema import REQUESTS, Message
from aioproducer.testing import ApacheKafka, EmbeddedCluster
from aioproducer.testing.embedded.handlers import HANDLERS
from aioproducer.testing.embedded.releases import (
    _SERVED,
    _TELEMETRY,
    EVENT_HUBS,
    RELEASES,
    _ceilings,
    release_named,
)
from tests.support.oracle import OracleRecord, encode_batch, encode_records
from tests.support.raw_client import NOW, RawClient, address, batch_of, produce_request

# Every version of every API


def request_of(cluster: EmbeddedCluster, api_key: ApiKey, version: int) -> Message:
    """A request in this version that should succeed, or at least be answered."""
    if api_key == ApiKey.PRODUCE:
        request = produce_request({("t", 0): batch_of(b"a")})
        if version >= 13:
            request.topic_data[0].name = ""
            request.topic_data[0].topic_id = cluster.topics["t"].topic_id
        return request
    if api_key == ApiKey.FETCH:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        return FetchRequest(topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])])
    if api_key == ApiKey.LIST_OFFSETS:
        offset = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[offset])
        return ListOffsetsRequest(topics=[topic])
    if api_key == ApiKey.METADATA:
        return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
    if api_key == ApiKey.FIND_COORDINATOR:
        return (
            FindCoordinatorRequest(coordinator_keys=["x"])
            if version >= 4
            else FindCoordinatorRequest(key="x")
        )
    if api_key == ApiKey.API_VERSIONS:
        return ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    if api_key == ApiKey.CREATE_TOPICS:
        wanted = CreateTopicsRequest.CreatableTopic(
            name=f"new-{version}", num_partitions=1, replication_factor=1
        )
        return CreateTopicsRequest(topics=[wanted])
    if api_key == ApiKey.INIT_PRODUCER_ID:
        return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    # The other requests can't succeed on their own, but their answers are decoded.
    return REQUESTS[api_key]()


SUCCEED = {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
}


def errors_in(part: object) -> list[int]:
    """All error codes in an answer, including those of its topics and partitions."""
    if isinstance(part, list):
        return [error for item in part for error in errors_in(item)]
    fields = getattr(part, "FIELDS", ())
    own = [getattr(part, field.name) for field in fields if field.name == "error_code"]
    return own + [error for field in fields for error in errors_in(getattr(part, field.name))]


@pytest.mark.promise("Test clusters", "the embedded cluster answers every served version of every API")
async def test_answers_of_every_served_version_of_every_api_can_be_decoded():
    async with EmbeddedCluster(versions="4.3", topics={"t": 1}) as cluster:
        asked: dict[ApiKey, list[int]] = {}
        for api_key, served in cluster.broker(0).release.versions.items():
            for version in range(served.min, served.max + 1):
                async with RawClient(address(cluster)) as client:
                    request = request_of(cluster, api_key, version)
                    response = await client.ask(request, version)
                    assert isinstance(response, request.Response)
                    if api_key in SUCCEED:
                        assert set(errors_in(response)) == {0}, (api_key, version)
                asked.setdefault(api_key, []).append(version)

        assert SUCCEED <= set(asked)
        assert asked[ApiKey.METADATA] == list(range(14))
        assert asked[ApiKey.PRODUCE] == list(range(3, 14))


def test_an_embedded_cluster_serves_the_versions_that_its_users_need():
    served = release_named(RELEASES[-1]).versions

    assert {key: versions for key, versions in served.items() if key in SUCCEED} == {
        ApiKey.API_VERSIONS: VersionRange(0, 4),
        ApiKey.METADATA: VersionRange(0, 13),
        ApiKey.PRODUCE: VersionRange(3, 13),
        ApiKey.FETCH: VersionRange(4, 12),
        ApiKey.LIST_OFFSETS: VersionRange(1, 7),
        ApiKey.FIND_COORDINATOR: VersionRange(0, 6),
        ApiKey.INIT_PRODUCER_ID: VersionRange(0, 5),
        ApiKey.CREATE_TOPICS: VersionRange(2, 7),
    }


@pytest.mark.parametrize("release", [*RELEASES, EVENT_HUBS])
def test_all_apis_of_a_release_are_declared_and_have_handlers(release):
    for api_key, served in release_named(release).versions.items():
        declared = REQUESTS[api_key].versions
        assert declared.min <= served.min <= served.max <= declared.max
        assert api_key in HANDLERS


# Releases


@pytest.mark.parametrize(
    ("release", "produce", "metadata", "init_producer_id", "end_txn", "txn_offset_commit", "add_partitions"),
    [
        ("0.11", 3, 4, 0, 0, 0, 0),
        ("2.1", 7, 7, 1, 1, 2, 1),
        ("2.8", 9, 11, 4, 3, 3, 3),
        ("3.9", 11, 12, 5, 4, 4, 5),
        ("4.0", 12, 13, 5, 5, 5, 5),
        ("4.3", 13, 13, 5, 5, 5, 5),
    ],
)
def test_ceilings_are_those_of_the_release(
    release, produce, metadata, init_producer_id, end_txn, txn_offset_commit, add_partitions
):
    ceilings = _ceilings(release)

    assert (
        ceilings[ApiKey.PRODUCE],
        ceilings[ApiKey.METADATA],
        ceilings[ApiKey.INIT_PRODUCER_ID],
        ceilings[ApiKey.END_TXN],
        ceilings[ApiKey.TXN_OFFSET_COMMIT],
        ceilings[ApiKey.ADD_PARTITIONS_TO_TXN],
    ) == (produce, metadata, init_producer_id, end_txn, txn_offset_commit, add_partitions)


KAFKAS_RANGES = {
    # schemaVersions() of each request's class in 2.1.1.
    "2.1": {
        ApiKey.FETCH: VersionRange(0, 10),
        ApiKey.LIST_OFFSETS: VersionRange(0, 4),
        ApiKey.FIND_COORDINATOR: VersionRange(0, 2),
        ApiKey.CREATE_TOPICS: VersionRange(0, 3),
    },
    # "validVersions" of each request's JSON file in 2.8.2.
    "2.8": {
        ApiKey.FETCH: VersionRange(0, 12),
        ApiKey.LIST_OFFSETS: VersionRange(0, 6),
        ApiKey.FIND_COORDINATOR: VersionRange(0, 3),
        ApiKey.CREATE_TOPICS: VersionRange(0, 7),
    },
    # LOWEST_ and HIGHEST_SUPPORTED_VERSION of each request's data class in kafka-clients 4.0.0.
    "4.0": {
        ApiKey.FETCH: VersionRange(4, 17),
        ApiKey.LIST_OFFSETS: VersionRange(1, 10),
        ApiKey.FIND_COORDINATOR: VersionRange(0, 6),
        ApiKey.CREATE_TOPICS: VersionRange(2, 7),
    },
}
"""The versions in Kafka's sources and jars, for APIs that no producer needs in all versions."""


@pytest.mark.parametrize("release", KAFKAS_RANGES)
async def test_a_cluster_serves_other_apis_in_the_range_of_its_release(release):
    async with EmbeddedCluster(versions=release) as cluster, RawClient(address(cluster)) as client:
        response = await client.ask(ApiVersionsRequest(), 0)

    assert isinstance(response, ApiVersionsResponse)
    told = {key.api_key: VersionRange(key.min_version, key.max_version) for key in response.api_keys}
    for api_key, kafkas in KAFKAS_RANGES[release].items():
        assert _ceilings(release)[api_key] == kafkas.max
        assert told[api_key].min >= kafkas.min
        assert told[api_key].max == min(kafkas.max, _SERVED[api_key].max)


def test_an_api_is_not_served_by_earlier_releases():
    assert ApiKey.SASL_AUTHENTICATE not in _ceilings("0.11")
    assert ApiKey.SASL_AUTHENTICATE not in release_named("0.11").versions
    assert _ceilings("1.0")[ApiKey.SASL_AUTHENTICATE] == 0


def test_no_release_serves_less_than_the_previous_one():
    for older, newer in itertools.pairwise(RELEASES):
        before, after = _ceilings(older), _ceilings(newer)
        assert all(after[api_key] >= ceiling for api_key, ceiling in before.items())


def test_an_unknown_release_is_rejected_with_a_list_of_the_known_ones():
    with pytest.raises(ValueError, match=r"versions='5\.0' is not one of 0\.11, .*4\.3, azure-event-hubs"):
        EmbeddedCluster(versions="5.0")


def without_telemetry(release: str) -> dict[ApiKey, int]:
    """The ceilings, without the two APIs that brokers offer only with a plugin (test_apache_telemetry uses one)."""
    return {api_key: version for api_key, version in _ceilings(release).items() if api_key not in _TELEMETRY}


async def ceilings_of(kafka: ApacheKafka) -> dict[int, int]:
    async with RawClient(kafka.bootstrap_servers.split(",")[0]) as client:
        response = await client.ask(ApiVersionsRequest(), 0)
    assert isinstance(response, ApiVersionsResponse)
    return {key.api_key: key.max_version for key in response.api_keys}


@pytest.mark.promise("Test clusters", "embedded brokers behave like a release, or like Azure Event Hubs")
@pytest.mark.apache
async def test_ceilings_of_4_3_are_those_of_a_real_kafka(apache_kafka: ApacheKafka):
    real = await ceilings_of(apache_kafka)

    ours = without_telemetry("4.3")
    assert {api_key: real[api_key] for api_key in ours} == ours


@pytest.mark.promise("Test clusters", "embedded brokers behave like a release, or like Azure Event Hubs")
@pytest.mark.apache
async def test_ceilings_of_3_9_are_those_of_a_real_kafka(apache_kafka_39: ApacheKafka):
    real = await ceilings_of(apache_kafka_39)

    ours = without_telemetry("3.9")
    assert {api_key: real[api_key] for api_key in ours} == ours


# Azure Event Hubs


async def test_event_hubs_has_no_topic_ids_in_metadata_and_advertises_produce_with_them():
    async with EmbeddedCluster(versions=EVENT_HUBS) as cluster, RawClient(address(cluster)) as client:
        response = await client.ask(ApiVersionsRequest(), 0)

    assert isinstance(response, ApiVersionsResponse)
    ranges = {key.api_key: key.max_version for key in response.api_keys}
    assert (ranges[ApiKey.METADATA], ranges[ApiKey.PRODUCE]) == (9, 13)


@pytest.mark.promise("Test clusters", "embedded brokers behave like a release, or like Azure Event Hubs")
async def test_event_hubs_closes_the_connection_on_newer_api_versions():
    async with EmbeddedCluster(versions=EVENT_HUBS) as cluster:
        request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        async with RawClient(address(cluster)) as client:
            client.send(request, 4)
            assert await client.is_closed()
        async with RawClient(address(cluster)) as client:
            await client.ask(request, 3)


@pytest.mark.parametrize("codec", Codec)
async def test_event_hubs_accepts_only_gzip(codec):
    records = [OracleRecord(NOW, None, b"x")]
    payload = encode_records(records)
    if codec is not Codec.NONE:
        payload = compressor(codec)(payload)
    async with EmbeddedCluster(versions=EVENT_HUBS, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            answer = await client.produce(encode_batch(records, codec=codec, payload=payload))

    taken = codec in (Codec.NONE, Codec.GZIP)
    assert answer.error_code == (0 if taken else ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)


async def test_event_hubs_answers_acks_0():
    async with EmbeddedCluster(versions=EVENT_HUBS, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            response = await client.ask(produce_request({("t", 0): batch_of(b"a")}, acks=0), 9)

        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0
        assert len(cluster.records("t")) == 1
