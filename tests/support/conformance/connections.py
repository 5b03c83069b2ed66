"""Cases about connections: invalid frames, unknown requests, versions, order and throttling."""

from __future__ import annotations

import asyncio
import struct

from aioproducer.protocol.api import encode_request
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    ProduceRequest,
)
from aioproducer.protocol.schema import Message
from tests.support.conformance.client import Client, appended, outcome
from tests.support.conformance.suite import case
from tests.support.raw_client import batch_of

API_VERSIONS = 18
SOCKET_REQUEST_MAX_BYTES = 104_857_600
"""The default of socket.request.max.bytes."""


async def closes(client: Client, sent: bytes) -> None:
    """Assert that the broker closes this connection without an answer, but still serves others."""
    client.writer.write(sent)
    assert await client.is_closed()
    async with client.another() as other:
        assert await other.still_answers()


def frame_of(request: Message, version: int) -> bytes:
    """A whole frame, including its length."""
    return b"".join(encode_request(request, version, 1, "raw"))


def framed(body: bytes) -> bytes:
    """A frame with this body."""
    return struct.pack(">i", len(body)) + body


@case()
async def a_frame_above_the_limit_closes_the_connection(client: Client) -> None:
    await closes(client, struct.pack(">i", SOCKET_REQUEST_MAX_BYTES + 1))


@case()
async def a_frame_of_negative_length_closes_the_connection(client: Client) -> None:
    await closes(client, struct.pack(">i", -1))


@case()
async def an_empty_frame_closes_the_connection(client: Client) -> None:
    await closes(client, framed(b""))


@case()
async def a_frame_without_a_whole_header_closes_the_connection(client: Client) -> None:
    await closes(client, framed(b"\0\3\0\1"))


@case()
async def garbage_closes_the_connection(client: Client) -> None:
    await closes(client, framed(b"\x16\x03\x01 this is no Kafka request at all"))


@case()
async def http_closes_the_connection(client: Client) -> None:
    await closes(client, b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n")


@case()
async def an_unknown_api_key_closes_the_connection(client: Client) -> None:
    client.send_body(32_000, 0, b"")
    assert await client.is_closed()


@case()
async def an_unsupported_version_closes_the_connection(client: Client) -> None:
    for request in (ProduceRequest(acks=-1, timeout_ms=1000), MetadataRequest(topics=[])):
        frame = frame_of(request, type(request).versions.max)
        async with client.another() as other:
            await closes(other, frame[:6] + struct.pack(">h", 99) + frame[8:])


@case()
async def a_request_that_is_cut_off_closes_the_connection(client: Client) -> None:
    frame = frame_of(client.produce_request([(0, batch_of(b"x"))]), 9)
    await closes(client, framed(frame[4:-90]))
    async with client.another() as other:
        assert await other.end_offset() == 0


@case()
async def bytes_after_a_request_are_ignored(client: Client) -> None:
    frame = frame_of(MetadataRequest(topics=[]), 9)
    client.writer.write(framed(frame[4:] + b"\0\0\0"))
    await client.frame()
    assert await client.still_answers()


@case()
async def a_client_needs_no_id(client: Client) -> None:
    client.writer.writelines(encode_request(MetadataRequest(topics=[]), 9, 1, None))
    await client.frame()
    assert await client.still_answers()


@case()
async def unknown_tags_are_skipped(client: Client) -> None:
    # A Metadata request, version 9: header, topics, three booleans; tags of the header and of the body.
    header = struct.pack(">hhih3s", 3, 9, 77, 3, b"raw")
    tags = b"\x01\xbf\x84\x3d\x02hi"
    client.writer.write(framed(header + tags + b"\x01\x00\x00\x00" + tags))
    assert (await client.frame())[:4] == struct.pack(">i", 77)


@case()
async def a_frame_may_come_byte_by_byte(client: Client) -> None:
    for byte in frame_of(MetadataRequest(topics=[]), 9):
        client.writer.write(bytes([byte]))
        await client.writer.drain()
    await client.frame()


@case()
async def pipelined_requests_are_answered_in_order(client: Client) -> None:
    produce = client.produce_request([(0, batch_of(b"x", sequence=0))])
    requests: list[tuple[Message, int]] = [
        (produce, client.newest_produce),
        (MetadataRequest(topics=[]), 9),
        (client.produce_request([(0, batch_of(b"y", sequence=1))], acks=0), client.newest_produce),
        (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3),
        (client.produce_request([(0, batch_of(b"z", sequence=2))]), client.newest_produce),
    ]
    sent = [(request, version, client.send(request, version)) for request, version in requests]
    answers = [
        await client.answer(request, version, correlation_id)
        for request, version, correlation_id in sent
        if not (isinstance(request, ProduceRequest) and request.acks == 0)
    ]
    assert [answers[0].responses[0].partition_responses[0].base_offset, answers[2].error_code] == [0, 0]
    assert outcome(answers[3].responses[0].partition_responses[0]) == appended(2)


@case()
async def correlation_ids_are_returned_unchanged(client: Client) -> None:
    for correlation_id in (0, -1, 2**31 - 1, -(2**31), 5, 5):
        client.writer.writelines(encode_request(MetadataRequest(topics=[]), 9, correlation_id, "raw"))
        assert (await client.frame())[:4] == struct.pack(">i", correlation_id)


@case(producer_byte_rate=1000)
async def a_client_above_its_quota_is_answered_first_and_muted_afterwards(client: Client) -> None:
    # Over a window of 10 s, 10,100 bytes and the header are a little more than 1,000 a second.
    request = client.produce_request([(0, batch_of(b"x" * 10_100))])
    asked = asyncio.get_running_loop().time()
    response = await client.ask(request, client.newest_produce)
    assert outcome(response.responses[0].partition_responses[0]) == appended(0)
    assert 0 < response.throttle_time_ms < 1000
    async with client.another() as other:
        assert await other.still_answers()  # only the connection is muted
    assert await client.still_answers()
    assert asyncio.get_running_loop().time() - asked > response.throttle_time_ms / 2000


@case(producer_byte_rate=1000)
async def requests_below_the_quota_are_not_throttled(client: Client) -> None:
    response = await client.ask(client.produce_request([(0, batch_of(b"x" * 1000))]), client.newest_produce)
    assert response.throttle_time_ms == 0


# ApiVersions


@case()
async def an_api_versions_request_of_a_future_version_is_rejected_in_version_0(client: Client) -> None:
    frame = frame_of(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4)
    client.writer.write(frame[:6] + struct.pack(">h", 99) + frame[8:])
    answer = await client.frame()
    error_code, count, *key = struct.unpack_from(">hihhh", answer, 4)
    assert (error_code, count, key) == (ErrorCode.UNSUPPORTED_VERSION, 1, [API_VERSIONS, 0, 4])
    assert len(answer) == 4 + 12
    assert await client.still_answers()


@case()
async def invalid_names_of_client_software_are_rejected(client: Client) -> None:
    for name, version in (
        ("a b", "1"),
        ("", "1"),
        ("a", ""),
        ("-a", "1"),
        ("a", "1-"),
        ("ä", "1"),
        ("a/b", "1"),
    ):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        for number in (3, 4):
            response = await client.ask(request, number)
            assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])
    assert await client.still_answers()


@case()
async def api_versions_are_answered_in_every_version(client: Client) -> None:
    request = ApiVersionsRequest(client_software_name="a.b-c", client_software_version="1.0")
    found = []
    for version in range(5):
        response = await client.ask(request, version)
        assert response.error_code == ErrorCode.NONE
        found.append({key.api_key: (key.min_version, key.max_version) for key in response.api_keys})
    assert all(versions == found[0] for versions in found)


# Requests whose newest version the embedded cluster also serves. Kafka 4.0 dropped the oldest versions
# (KIP-896), but still advertises Produce 0 to 2 (KAFKA-18659).
VERSIONS = {
    "3.9": {"produce": (0, 11), "metadata": (0, 12), "find_coordinator": (0, 6), "init_producer_id": (0, 5)},
    "4.3": {"produce": (0, 13), "metadata": (0, 13), "find_coordinator": (0, 6), "init_producer_id": (0, 5)},
}


@case()
async def the_versions_of_the_release_are_advertised(client: Client) -> None:
    response = await client.ask(ApiVersionsRequest(), 0)
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    names = {"produce": 0, "metadata": 3, "find_coordinator": 10, "init_producer_id": 22}
    assert {name: ranges[key] for name, key in names.items()} == client.expected(VERSIONS)
    assert ranges[API_VERSIONS] == (0, 4)


@case()
async def api_versions_may_be_requested_again_on_a_connection(client: Client) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    first = await client.ask(request, 3)
    assert await client.still_answers()
    assert (await client.ask(request, 3)).api_keys == first.api_keys
