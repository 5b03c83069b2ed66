"""Responses with more brokers, topics or partitions than any cluster has, and with invented node ids."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import aioproducer
from aioproducer.cluster import Cluster
from aioproducer.errors import KafkaError, ProtocolError
from aioproducer.metrics import MOST_NODES, Metrics
from aioproducer.network.large_answer import LARGE
from aioproducer.protocol.api import ApiKey, decode_response, decoding_response, encode_response
from aioproducer.protocol.codec import SLICE
from aioproducer.protocol.frame import MAX_FRAME_BEFORE_AUTHENTICATION
from aioproducer.protocol.messages import MetadataRequest, MetadataResponse
from aioproducer.protocol.messages_metadata import MOST_BROKERS
from aioproducer.protocol.schema import REQUESTS, Field, Message, Struct, structs_of
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


NEVER_REQUESTED = {
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.JOIN_GROUP,
    ApiKey.LEAVE_GROUP,
    ApiKey.CREATE_TOPICS,
}
"""The APIs whose responses have arrays without a limit, because no producer sends their requests: only the embedded
broker encodes the responses, and only tools for tests decode them."""


class Array(NamedTuple):
    """An array in a response: the fields that lead to it, from the message down."""

    response: type[Message]
    path: tuple[Field, ...]

    def __str__(self) -> str:
        return f"{self.owners[-1].__name__}.{self.path[-1].name}"

    @property
    def owners(self) -> list[type[Struct]]:
        """The classes that contain each field of the path."""
        structs = structs_of(self.response)
        return [self.response, *(structs[field.of] for field in self.path[:-1])]

    @property
    def most(self) -> int | None:
        return self.path[-1].most

    def exceeded(self, *, before: int) -> bytes:
        """Encode a response whose array has one element too many, with `before` empty structs before each struct that
        leads to it."""
        kind = self.path[-1].of
        structs = structs_of(self.response)
        items = [structs[kind]() if kind in structs else "x" if kind == "string" else 1] * (self.most + 1)
        for owner, field in zip(reversed(self.owners), reversed(self.path), strict=True):
            message = owner(**{field.name: items})
            items = [*[owner()] * before, message]
        return b"".join(encode_response(message, self.version, 7))[4:]

    @property
    def version(self) -> int:
        """The highest version that has the array."""
        versions = range(self.response.versions.min, self.response.versions.max + 1)
        return max(one for one in versions if all(field.is_in(one) for field in self.path))


def arrays_of(response: type[Message], outer: tuple[Field, ...] = ()) -> Iterator[Array]:
    structs = structs_of(response)
    for field in (structs[outer[-1].of] if outer else response).FIELDS:
        if field.kind == "array":
            yield Array(response, (*outer, field))
            if field.of in structs:
                yield from arrays_of(response, (*outer, field))


ARRAYS = [
    array
    for key, request in REQUESTS.items()
    if key not in NEVER_REQUESTED
    for array in arrays_of(request.Response)
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_each_array_of_a_response_declares_a_limit(array):
    assert array.most is not None


def test_the_producer_sends_no_request_whose_response_has_arrays_without_a_limit():
    package = Path(aioproducer.__file__).parent
    sent = {
        name
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in ("protocol", "testing")
        for name in re.findall(r"\b(\w+Request)\(", path.read_text())
    }
    never = {REQUESTS[key] for key in NEVER_REQUESTED}

    assert {"MetadataRequest", "InitProducerIdRequest"} <= sent
    assert sent & {request.__name__ for request in never} == set()
    assert all(None in [array.most for array in arrays_of(request.Response)] for request in never)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a response's declaration bounds its counts (`most=`), and a large metadata response is decoded in "
    "slices",
)
@pytest.mark.parametrize("before", [0, 99])
@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_more_elements_than_any_cluster_has_are_rejected_before_they_are_decoded(array, before):
    frame = array.exceeded(before=before)

    tracemalloc.start()
    with pytest.raises(ProtocolError, match=rf"{array} has \d+ elements; the limit is {array.most}"):
        decode_response(array.response, array.version, frame, 7)
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
