"""Responses with more brokers, topics or partitions than any cluster has, and with invented node ids."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from aioproducer.cluster import Cluster
from aioproducer.errors import KafkaError, ProtocolError
from aioproducer.metrics import MOST_NODES, Metrics
from aioproducer.network.large_answer import LARGE
from aioproducer.protocol.api import decode_response, decoding_response, encode_response
from aioproducer.protocol.codec import SLICE
from aioproducer.protocol.frame import MAX_FRAME_BEFORE_AUTHENTICATION
from aioproducer.protocol.messages import (
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    SaslHandshakeResponse,
)
from aioproducer.protocol.messages_connection import MOST_OFFERED
from aioproducer.protocol.messages_metadata import MOST_BROKERS, MOST_PARTITIONS, MOST_REPLICAS, MOST_TOPICS
from tests.support.scripted_broker import (
    HOST,
    LONG,
    Net,
    Peer,
    ScriptedBroker,
    api_versions,
    make_connection,
    until,
)

Broker = MetadataResponse.MetadataResponseBroker
Partition = MetadataResponse.MetadataResponsePartition
Topic = MetadataResponse.MetadataResponseTopic

BROKER = Broker(node_id=1, host="h", port=1)
PARTITION = Partition(partition_index=0, leader_id=1)


def with_partitions(partitions: list[Partition]) -> MetadataResponse:
    return MetadataResponse(brokers=[BROKER], topics=[Topic(name="t", partitions=partitions)])


TOO_MANY = {
    "brokers": (MetadataResponse(brokers=[BROKER] * (MOST_BROKERS + 1)), 13),
    "topics": (MetadataResponse(brokers=[BROKER], topics=[Topic(name="t")] * (MOST_TOPICS + 1)), 13),
    "partitions": (with_partitions([PARTITION] * (MOST_PARTITIONS + 1)), 13),
    "replica_nodes": (with_partitions([Partition(replica_nodes=[1] * (MOST_REPLICAS + 1))]), 13),
    "isr_nodes": (with_partitions([Partition(isr_nodes=[1] * (MOST_REPLICAS + 1))] * 100), 8),
    "offline_replicas": (with_partitions([Partition(offline_replicas=[1] * (MOST_REPLICAS + 1))]), 13),
    "api_keys": (ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion()] * (MOST_OFFERED + 1)), 4),
    "finalized_features": (
        ApiVersionsResponse(
            finalized_features=[ApiVersionsResponse.FinalizedFeatureKey()] * (MOST_OFFERED + 1)
        ),
        3,
    ),
    "mechanisms": (SaslHandshakeResponse(mechanisms=["x"] * (MOST_OFFERED + 1)), 1),
}


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a response's declaration bounds its counts (`most=`), and a large metadata response is decoded in "
    "slices",
)
@pytest.mark.parametrize("field", TOO_MANY)
def test_more_elements_than_any_cluster_has_are_rejected_before_they_are_decoded(field):
    answer, version = TOO_MANY[field]
    frame = b"".join(encode_response(answer, version, 7))[4:]

    tracemalloc.start()
    with pytest.raises(ProtocolError, match=rf"{field} has \d+ elements; the limit is \d+"):
        decode_response(type(answer), version, frame, 7)
    grown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert grown < 100_000


def test_as_many_brokers_as_allowed_are_read():
    answer = MetadataResponse(brokers=[BROKER] * MOST_BROKERS)
    frame = b"".join(encode_response(answer, 13, 7))[4:]

    assert len(decode_response(MetadataResponse, 13, frame, 7).brokers) == MOST_BROKERS


def test_brokers_are_merged_one_per_step():
    answer = MetadataResponse(brokers=[Broker(node_id=number, host="h", port=1) for number in range(1000)])
    steps = Cluster.empty().merging(answer, [])
    merged: list[Cluster] = []

    def merge():
        merged.append((yield from steps))

    assert sum(1 for _ in merge()) >= 1000
    assert len(merged[0].nodes) == 1000


async def test_a_response_with_too_many_brokers_closes_the_connection_and_gives_the_reason():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse(brokers=[BROKER] * (MOST_BROKERS + 1)))
        await peer.read_to_end()

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        net.run()
        await until(lambda: net.metadata.last_error)

        assert "the limit is 10000" in str(net.metadata.last_error)
        assert net.brokers.lost == 1


async def test_before_authentication_only_small_responses_are_accepted():
    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.writer.write((MAX_FRAME_BEFORE_AUTHENTICATION + 1).to_bytes(4, "big"))
        await peer.read_to_end()

    assert MAX_FRAME_BEFORE_AUTHENTICATION <= 64 * 1024
    async with ScriptedBroker(serve) as broker:
        with pytest.raises(KafkaError, match=f"the limit is {MAX_FRAME_BEFORE_AUTHENTICATION} bytes"):
            await asyncio.wait_for(make_connection(broker.port).connect(), LONG)


def test_metrics_keep_a_limited_number_of_brokers_and_lose_no_request():
    metrics = Metrics()
    used = metrics.node(0)
    used.connects = used.requests = 1
    for number in range(1, 3 * MOST_NODES):
        metrics.node(number).requests += 1

    snapshot = metrics.snapshot(
        records_buffered=0,
        records_unretrieved=0,
        buffer_total=0,
        buffer_available=0,
        buffer_waiters=0,
        describe_node=lambda _: {"in_flight": 0},
        wall_time=float,
    )

    assert len(snapshot.nodes) == MOST_NODES
    assert metrics.node(0) is used, "a broker that was connected is kept"
    assert snapshot.requests == 3 * MOST_NODES


async def test_a_broker_that_invents_ids_does_not_make_metrics_grow(monkeypatch):
    monkeypatch.setattr("aioproducer.metrics.MOST_NODES", 5)
    asked = 0

    async def serve(peer: Peer) -> None:
        nonlocal asked
        header, _ = await peer.request()
        peer.answer(header, api_versions())
        while True:
            header, _ = await peer.request()
            asked += 1
            invented = [
                Broker(node_id=10 * asked + number, host=HOST, port=broker.port) for number in range(3)
            ]
            peer.answer(header, MetadataResponse(brokers=invented, cluster_id="c"))

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        await net.start()
        while asked < 12:
            net.metadata.request_update()
            for node_id in [node.node_id for node in net.brokers.nodes]:
                net.brokers.ready(node_id)
            await asyncio.sleep(0.001)

        assert len(net.metrics.nodes) <= 5


# Slices


def large_answer(topics: int = 600) -> MetadataResponse:
    partitions = [Partition(partition_index=number, leader_id=1, replica_nodes=[1]) for number in range(20)]
    return MetadataResponse(
        brokers=[BROKER], topics=[Topic(name=f"t{number}", partitions=partitions) for number in range(topics)]
    )


def decoded_in_steps(frame: bytes, version: int) -> tuple[MetadataResponse, int]:
    """Decode a message; return it and the number of steps."""
    decoded: list[MetadataResponse] = []

    def run():
        decoded.append((yield from decoding_response(MetadataResponse, version, frame, 7)))

    steps = sum(1 for _ in run())
    return decoded[0], steps


@pytest.mark.parametrize("version", range(14))
def test_a_message_decoded_in_slices_is_the_same(version):
    frame = b"".join(encode_response(large_answer(), version, 7))[4:]
    small = b"".join(encode_response(large_answer(1), version, 7))[4:]

    sliced, steps = decoded_in_steps(frame, version)
    assert sliced == decode_response(MetadataResponse, version, frame, 7)
    assert steps >= len(frame) // SLICE - 1
    sliced, steps = decoded_in_steps(small, version)
    assert sliced == decode_response(MetadataResponse, version, small, 7)
    assert steps == 0


def test_a_topic_of_many_partitions_is_walked_over_in_slices():
    frame = b"".join(encode_response(with_partitions([PARTITION] * 50_000), 13, 7))[4:]

    _, steps = decoded_in_steps(frame, 13)

    assert steps >= len(frame) // (2 * SLICE)


@pytest.mark.parametrize("damage", ["cut", "longer", "correlation id"])
def test_decoding_in_slices_rejects_the_same_frames(damage):
    frame = b"".join(encode_response(large_answer(), 13, 7))[4:]
    damaged = {"cut": frame[:-1], "longer": frame + b"\0", "correlation id": b"\0\0\0\1" + frame[4:]}[damage]
    with pytest.raises(ProtocolError) as at_once:
        decode_response(MetadataResponse, 13, damaged, 7)

    with pytest.raises(ProtocolError) as in_slices:
        list(decoding_response(MetadataResponse, 13, damaged, 7))

    assert str(in_slices.value) == str(at_once.value)
    assert type(in_slices.value) is type(at_once.value)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a response's declaration bounds its counts (`most=`), and a large metadata response is decoded in "
    "slices",
)
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_large_response_is_decoded_in_slices_and_a_damaged_one_closes_the_connection(
    is_damaged, monkeypatch
):
    steps = 0
    sleep = asyncio.sleep

    async def counting(seconds: float) -> None:
        nonlocal steps
        steps += 1
        await sleep(seconds)

    stand_in = type("asyncio", (), {"sleep": staticmethod(counting)})
    monkeypatch.setattr("aioproducer.network.large_answer.asyncio", stand_in)

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        frame = peer.frame(header, large_answer(1500))
        assert len(frame) > LARGE
        peer.writer.write(frame[:-1] + b"\7" if is_damaged else frame)
        await peer.read_to_end()

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        asking = net.brokers.request_any(MetadataRequest(topics=[]), LONG)
        if is_damaged:
            with pytest.raises(ProtocolError, match="the connection was closed"):
                await asking
            await until(lambda: net.brokers.lost == 1)
        else:
            assert len((await asking).topics) == 1500
            assert net.brokers.lost == 0

    assert steps >= LARGE // SLICE - 1


async def test_a_large_response_may_throttle_the_client():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        answer = large_answer(1500)
        answer.throttle_time_ms = 5000
        peer.answer(header, answer)
        await peer.read_to_end()

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        await net.brokers.request_any(MetadataRequest(topics=[]), LONG)

        assert net.brokers._entries[-1].throttled_until > asyncio.get_running_loop().time()
