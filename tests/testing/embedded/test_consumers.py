"""The embedded brokers' answers to consumers, frame by frame."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from aioproducer.protocol.recordbatch import read_header
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.consumers import _Reading
from tests.conftest import MS
from tests.support.raw_client import NOW, TIMEOUT, RawClient, address, batch_of
from tests.support.record_batches import split_batches


def fetch_request(
    *offsets: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
) -> FetchRequest:
    """A request for partitions 0, 1, ... of topic t from these offsets."""
    partitions = [
        FetchRequest.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=leader_epoch,
        )
        for partition, offset in enumerate(offsets)
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=partitions)],
    )


async def fetch(
    client: RawClient, request: FetchRequest, version: int = 12
) -> list[FetchResponse.PartitionData]:
    response = await client.ask(request, version)
    assert isinstance(response, FetchResponse)
    return response.responses[0].partitions


def base_offsets(answer: FetchResponse.PartitionData) -> list[int]:
    assert isinstance(answer.records, memoryview)
    return [read_header(batch).base_offset for batch in split_batches(answer.records)]


@pytest.mark.promise(
    "Protocol", "Fetch, ListOffsets and CreateTopics exist for the embedded cluster and for reading back"
)
@pytest.mark.parametrize("version", range(4, 13))
async def test_every_fetch_version_returns_whole_batches(version):
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        for values in ((b"a", b"b"), (b"c",)):
            await client.produce(batch_of(*values))
        (answer,) = await fetch(client, fetch_request(1), version)

        assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 3, 3)
        assert base_offsets(answer) == [0, 2]


@pytest.mark.promise("Test clusters", "a fetch returns a truncated batch only after a complete one")
async def test_size_limits_are_respected_except_for_the_first_batch():
    async with EmbeddedCluster(topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        for partition in (0, 0, 1):
            await client.produce(batch_of(b"x" * 1000), partition=partition)

        both = await fetch(client, fetch_request(0, 0))
        assert [base_offsets(answer) for answer in both] == [[0, 1], [0]]
        small = await fetch(client, fetch_request(0, 0, max_bytes=10))
        assert [base_offsets(answer) for answer in small] == [[0], []]
        each = await fetch(client, fetch_request(0, 0, partition_max_bytes=1100))
        assert [len(answer.records or b"") for answer in each] == [1100, 1070]
        # If the first batch were cut off, the consumer would assume that it can never read the batch.
        tiny = await fetch(client, fetch_request(0, 0, partition_max_bytes=1000))
        assert [base_offsets(answer) for answer in tiny] == [[0], []]
        assert [len(answer.records or b"") for answer in tiny] == [1070, 0]


async def test_a_fetch_waits_for_an_append_without_polling(monkeypatch):
    reads = 0
    read = _Reading._read

    def counted(self, *arguments):
        nonlocal reads
        reads += 1
        return read(self, *arguments)

    monkeypatch.setattr(_Reading, "_read", counted)
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as consumer, RawClient(address(cluster)) as producer:
            answer = asyncio.ensure_future(fetch(consumer, fetch_request(0, max_wait_ms=60_000)))
            await asyncio.wait_for(cluster.wait_for_requests(ApiKey.FETCH), TIMEOUT)
            assert await asyncio.wait({answer}, timeout=20 * MS) == (set(), {answer})
            assert reads <= 2
            await producer.produce(batch_of(b"a"))

            (found,) = await asyncio.wait_for(answer, TIMEOUT)
            assert base_offsets(found) == [0]
            assert reads <= 3


async def test_a_fetch_waits_for_min_bytes_but_no_longer_than_max_wait():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await client.produce(batch_of(b"a"))
        loop = asyncio.get_running_loop()
        started = loop.time()
        (answer,) = await fetch(client, fetch_request(0, max_wait_ms=30, min_bytes=10_000))

        assert loop.time() - started >= 0.029
        assert base_offsets(answer) == [0]


async def test_errors_are_answered_at_once():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        cluster.move_leader("t", 0, 1)
        cluster.move_leader("t", 0, 0)
        expected = {
            (1, -1): ErrorCode.OFFSET_OUT_OF_RANGE,
            (0, 1): ErrorCode.FENCED_LEADER_EPOCH,
            (0, 3): ErrorCode.UNKNOWN_LEADER_EPOCH,
        }
        for (offset, epoch), error in expected.items():
            request = fetch_request(offset, max_wait_ms=60_000, leader_epoch=epoch)
            (answer,) = await fetch(client, request)
            assert answer.error_code == error
        first, other, unknown = await fetch(client, fetch_request(0, 0, 0, max_wait_ms=60_000))
        assert first.error_code == 0
        assert other.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.faults.add(ApiKey.FETCH, error=-1, partition=0)
        (scripted,) = await fetch(client, fetch_request(0, max_wait_ms=60_000))
        assert scripted.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_consumers_see_nothing_above_the_high_watermark():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await client.produce(batch_of(b"a"))
        cluster.hold_replication("t", 0)
        await client.produce(batch_of(b"b"), acks=1)
        (answer,) = await fetch(client, fetch_request(0))
        assert (answer.high_watermark, base_offsets(answer)) == (1, [0])

        cluster.release_replication("t", 0)
        (answer,) = await fetch(client, fetch_request(0))
        assert (answer.high_watermark, base_offsets(answer)) == (2, [0, 1])


@pytest.mark.promise(
    "Protocol", "Fetch, ListOffsets and CreateTopics exist for the embedded cluster and for reading back"
)
@pytest.mark.parametrize("version", range(1, 8))
async def test_list_offsets(version):
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        for values, timestamp in (((b"a", b"b"), NOW), ((b"c",), NOW + 100), ((b"d",), NOW + 50)):
            await client.produce(batch_of(*values, timestamp=timestamp))
        cluster.log("t", 0).delete_before(2)
        asked = [-1, -2, NOW, NOW + 100, NOW + 101, *([-3] if version >= 7 else [])]
        found = []
        for timestamp in asked:
            wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])
            response = await client.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), version)
            assert isinstance(response, ListOffsetsResponse)
            answer = response.topics[0].partitions[0]
            assert answer.error_code == 0
            assert answer.leader_epoch == (0 if version >= 4 and answer.offset >= 0 else -1)
            found.append((answer.offset, answer.timestamp))

        newest = [(2, NOW + 100)] if version >= 7 else []
        assert found == [(4, -1), (2, -1), (2, NOW + 100), (2, NOW + 100), (-1, -1), *newest]


async def test_list_offsets_of_a_partition_with_another_leader():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        wanted = [
            ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (1, 5)
        ]
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=wanted)
        response = await client.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 7)

        assert isinstance(response, ListOffsetsResponse)
        errors = [answer.error_code for answer in response.topics[0].partitions]
        assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_leader_lists_the_producers_in_its_log():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        for sequence, values in ((0, (b"a", b"b")), (2, (b"c",))):
            batch = batch_of(*values, producer_id=7, epoch=3, sequence=sequence)
            assert (await client.produce(batch)).error_code == 0
        wanted = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 1, 5])
        response = await client.ask(DescribeProducersRequest(topics=[wanted]), 0)

        assert isinstance(response, DescribeProducersResponse)
        first, second, missing = response.topics[0].partitions
        assert [answer.error_code for answer in (first, second, missing)] == [
            0,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        (state,) = first.active_producers
        assert (state.producer_id, state.producer_epoch, state.last_sequence) == (7, 3, 2)
        assert (state.last_timestamp, state.current_txn_start_offset) == (NOW, -1)
