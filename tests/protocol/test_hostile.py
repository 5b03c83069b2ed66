"""A peer that sends truncated, false or random data: only ProtocolError is raised, and
claimed sizes allocate nothing."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import codec, messages
from aioproducer.protocol.api import decode_request, decode_response
from aioproducer.protocol.messages import (
    ApiVersionsResponse,
    FetchResponse,
    MetadataResponse,
    ProduceResponse,
)
from aioproducer.protocol.schema import REQUESTS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "messages.json").read_text(encoding="utf-8"))
FULL = [case for case in GOLDEN["cases"] if case["case"] in ("full", "nulls")]
TYPES = [
    (kind, v)
    for r in REQUESTS.values()
    for kind in (r, r.Response)
    for v in range(kind.versions.min, kind.versions.max + 1)
]


def case_id(case):
    return f"{case['message']}-{case['version']}-{case['case']}"


def is_request(case):
    return case["message"].endswith("Request")


def decoded(case, frame):
    if is_request(case):
        return decode_request(frame)
    return decode_response(getattr(messages, case["message"]), case["version"], frame, case["correlation_id"])


def decoded_or_refused(case, frame):
    """Decode a frame, which may fail only with a ProtocolError, or with an UnsupportedVersionError if the header of a
    mutated request names another version."""
    try:
        decoded(case, frame)
    except (ProtocolError, UnsupportedVersionError):
        return


@pytest.mark.promise("Protocol", "responses are decoded defensively: counts against the bytes that are left")
@pytest.mark.parametrize("case", FULL, ids=case_id)
def test_every_prefix_of_a_valid_frame_is_a_protocol_error(case):
    frame = bytes.fromhex(case["frame"])

    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decoded(case, frame[:size])


@pytest.mark.parametrize("case", FULL, ids=case_id)
def test_every_single_byte_can_be_replaced(case):
    frame = bytearray.fromhex(case["frame"])

    for place in range(8 if is_request(case) else 4, len(frame)):
        kept = frame[place]
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            frame[place] = byte
            decoded_or_refused(case, bytes(frame))
        frame[place] = kept


@pytest.mark.promise("Protocol", "responses are decoded defensively: counts against the bytes that are left")
@settings(deadline=None)  # the first use of a version compiles its codec
@given(st.sampled_from(FULL), st.data())
def test_mutated_frames_raise_nothing_but_protocol_error(case, data):
    frame = bytearray.fromhex(case["frame"])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(frame)))
        stop = data.draw(st.integers(start, min(len(frame), start + 8)))
        frame[start:stop] = data.draw(st.binary(max_size=8))

    decoded_or_refused(case, bytes(frame))


@settings(deadline=None)  # the first use of a version compiles its codec
@given(st.sampled_from(TYPES), st.binary(max_size=200))
@example((ApiVersionsResponse, 3), b"\x00\x23")
def test_random_bytes_raise_nothing_but_protocol_error(message, frame):
    message_type, version = message
    try:
        codec.decode(message_type, version, frame, 0)
    except ProtocolError:
        return


@settings(deadline=None)  # the first use of a version compiles its codec
@given(st.binary(max_size=200))
def test_random_requests_raise_nothing_but_protocol_and_version_errors(frame):
    try:
        decode_request(frame)
    except (ProtocolError, UnsupportedVersionError):
        return


# Counts


@pytest.mark.promise("Protocol", "responses are decoded defensively: counts against the bytes that are left")
@pytest.mark.parametrize(
    ("message_type", "version", "head"),
    [
        (ProduceResponse, 8, "7fffffff"),
        (ProduceResponse, 10, "ffffffff0f"),
        (MetadataResponse, 7, "00000000 7fffffff"),
        (MetadataResponse, 12, "00000000 ffffffff07"),
        (ApiVersionsResponse, 0, "0000 0fffffff"),
        (FetchResponse, 11, "00000000 0000 00000000 7fffffff"),
    ],
)
def test_a_count_that_exceeds_the_frame_allocates_nothing(message_type, version, head):
    frame = bytes.fromhex(head) + bytes(100)
    with pytest.raises(ProtocolError):
        codec.decode(message_type, version, b"", 0)  # compiles the codec, which must not be measured

    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=r"a count of \d+ .* exceeds the 100 bytes left"):
            codec.decode(message_type, version, frame, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 100_000


def test_count_is_limited_by_the_minimum_size_of_an_element():
    # A partition of version 8 needs at least 36 bytes, so 100 bytes can't contain 3 of them.
    topic = bytes.fromhex("00000001 0000")

    with pytest.raises(ProtocolError, match="partition_responses: a count of 3"):
        codec.decode(ProduceResponse, 8, topic + bytes.fromhex("00000003") + bytes(100), 0)
    with pytest.raises(ProtocolError, match=r"too few|cut off"):
        codec.decode(ProduceResponse, 8, topic + bytes.fromhex("00000002") + bytes(72), 0)


def test_length_of_an_int_array_cannot_exceed_the_frame():
    partition = "0000 00000000 00000000 00000000"
    frame = bytes.fromhex("00000000 00000000 ffff 00000000 00000001 0000 0000 00 00000001" + partition)

    with pytest.raises(ProtocolError, match=r"replica_nodes: a count of 1073741823"):
        codec.decode(MetadataResponse, 7, frame + bytes.fromhex("3fffffff") + bytes(40), 0)


# Tags


def produce_response(tags):
    """Return a ProduceResponse of version 10 without topics, with this section of tagged fields."""
    return bytes.fromhex("00000001 00 01 00000000" + tags)


NO_ENDPOINTS = "000101"


def test_tagged_field_may_be_absent_or_unknown():
    empty = ProduceResponse()

    assert decode_response(ProduceResponse, 10, produce_response("00"), 1) == empty
    assert decode_response(ProduceResponse, 10, produce_response("01" + NO_ENDPOINTS), 1) == empty
    assert decode_response(ProduceResponse, 10, produce_response("02 07 02 abcd" + NO_ENDPOINTS), 1) == empty


@pytest.mark.promise("KIPs", "KIP-482: flexible versions and tagged fields")
@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ("02" + NO_ENDPOINTS * 2, "tag 0 .* occurs twice"),
        ("03 0700 0800 0700", "tag 7 .* occurs twice"),
        ("01 00 02 01 00", "tagged field 0 stops at"),
        ("01 00 00 01", "tagged field 0 stops at"),
        ("01 07 05 abcd", "a tagged field of length 5"),
        ("ffffffff0f", "a tagged field count of 4294967295"),
        ("8080808080808001", "longer than 5 bytes"),
    ],
)
def test_malformed_tags_are_refused(tags, why):
    with pytest.raises(ProtocolError, match=why):
        decode_response(ProduceResponse, 10, produce_response(tags), 1)
