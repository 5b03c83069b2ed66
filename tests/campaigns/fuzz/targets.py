"""The targets of mutated frames: each draws a frame, and decodes it as the producer does.

They may raise only ProtocolError. A peer can validly reject a request (it has no common version, or answers with an
error code); the target handles such errors itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from aioproducer.cluster import Cluster
from aioproducer.errors import BrokerError, ProtocolError, UnsupportedVersionError
from aioproducer.network.handshake import learn_versions
from aioproducer.protocol import frame as framing
from aioproducer.protocol.api import (
    CLIENT_VERSIONS,
    decode_api_versions_response,
    decode_request,
    decode_request_header,
    decode_response,
)
from aioproducer.protocol.compression import Codec
from aioproducer.protocol.messages import ApiVersionsResponse, MetadataResponse, ProduceResponse
from aioproducer.protocol.produce import Appended
from aioproducer.protocol.recordbatch import (
    HEADER_SIZE,
    LENGTH_AT,
    RECORD_COUNT_AT,
    check_crc,
    read_header,
    read_records,
)
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded.decompression import decompress
from tests.campaigns.fuzz.corpus import (
    CORRELATION_ID,
    RESPONSES,
    appended,
    batches,
    metadata,
    requests,
    responses,
)
from tests.campaigns.fuzz.mutations import mutated
from tests.support.merging import merged
from tests.support.record_batches import split_batches

MOST_UNPACKED = 1 << 16
"""The maximum size of an unpacked batch, in bytes."""

Drawn = tuple[Any, bytes]
"""The type that the frame is decoded as, and the frame."""


class Target(NamedTuple):
    """A target: `draw` returns a frame and the type that it is decoded as; `take` decodes it. `share` of 100 frames go
    to this target."""

    name: str
    share: int
    draw: Callable[[Random], Drawn]
    take: Callable[[Any, bytes], object]
    beyond: int = 0
    """Bytes that may be allocated whatever the size of the frame, because the caller has allowed them."""


def _pick(random: Random, choices: list[Any]) -> Any:
    return choices[int(random.random() * len(choices))]


def _frames_of(message: type[Message]) -> list[bytes]:
    return [valid.frame for valid in responses() if valid.message is message]


# Responses: of the requested version, of another one, or of another message.

_OTHERS: dict[type[Message], list[bytes]] = {}


def _draw_response(random: Random) -> Drawn:
    message, version, frame = _pick(random, responses())
    if random.random() < 0.15:
        low, high = message.versions
        version = low + int(random.random() * (high - low + 1))
    elif random.random() < 0.04:
        message, version = _pick(random, RESPONSES)
    others = _OTHERS.get(message)
    if others is None:
        others = _OTHERS[message] = _frames_of(message)
    return (message, version), mutated(random, frame, others, kept=4)


def _take_response(about: Any, frame: bytes) -> object:
    message, version = about
    return decode_response(message, version, frame, CORRELATION_ID)


def _draw_metadata(random: Random) -> Drawn:
    _, version, frame = _pick(random, metadata())
    return version, mutated(random, frame, (_pick(random, metadata()).frame,), kept=4)


def _take_metadata(version: int, frame: bytes) -> object:
    """Build a view of the cluster from the answer, and then a second view from the same answer."""
    answer = decode_response(MetadataResponse, version, frame, CORRELATION_ID)
    names = [topic.name for topic in answer.topics if topic.name is not None]
    cluster = merged(Cluster.empty(), answer, names)
    assert merged(cluster, answer, names).topics.keys() == cluster.topics.keys()
    return cluster


# Answers to Produce: compiled code reads successes, and its result must equal that of the declared decoder.


def _draw_appended(random: Random) -> Drawn:
    version, request, frame = _pick(random, appended())
    others = [other.frame for other in appended()]
    return (version, request), mutated(random, frame, others, kept=4)


def _take_appended(about: Any, frame: bytes) -> object:
    version, request = about
    answer = request.answer(version, frame, CORRELATION_ID)
    if isinstance(answer, Appended):
        declared = decode_response(ProduceResponse, version, frame, CORRELATION_ID)
        offsets = [part.base_offset for topic in declared.responses for part in topic.partition_responses]
        assert [place[1] for place in answer.places] == offsets
        assert sorted(place[0] for place in answer.places) == [0, 1, 2], answer.places
    return answer


# The handshake: versions, and the rejection in the form of version 0 (KIP-511).


def _draw_api_versions(random: Random) -> Drawn:
    asked = int(random.random() * 5)
    if random.random() < 0.5:
        count = int(random.random() * 3)
        body = b"".join(key.to_bytes(2, "big") + b"\0\0\0\4" for key in (18, 3, 0)[:count])
        frame = CORRELATION_ID.to_bytes(4, "big") + b"\0\x23" + count.to_bytes(4, "big") + body
    else:
        frame = _pick(random, _frames_of_api_versions())
    return asked, mutated(random, frame, _frames_of_api_versions(), kept=6 if random.random() < 0.5 else 4)


def _frames_of_api_versions() -> list[bytes]:
    others = _OTHERS.get(ApiVersionsResponse)
    if others is None:
        others = _OTHERS[ApiVersionsResponse] = _frames_of(ApiVersionsResponse)
    return others


def _take_api_versions(first: int, frame: bytes) -> object:
    asked: list[int] = []

    async def ask(request: object, version: int) -> ApiVersionsResponse:
        asked.append(version)
        return decode_api_versions_response(version, frame, CORRELATION_ID)

    try:
        versions = _result(learn_versions(ask, "a peer", first))
    except BrokerError:
        versions = None
    assert len(asked) <= 2, f"asked for versions {asked}"
    assert all(version < first for version in asked[1:]) or first == 0, f"asked for versions {asked}"
    if versions is not None:
        for api_key, ours in CLIENT_VERSIONS.items():
            try:
                assert ours.min <= versions.of(api_key) <= ours.max
            except UnsupportedVersionError:
                pass
    return versions


def _result(steps: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        steps.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


# Lengths of frames


def _draw_size(random: Random) -> Drawn:
    limit = framing.MAX_FRAME if random.random() < 0.5 else framing.MAX_FRAME_BEFORE_AUTHENTICATION
    size = int(random.random() * (limit + 2))
    prefix = _pick(random, [size.to_bytes(4, "big"), b"HTTP", b"\x15\x03\x01\x00", b"\x16\x03\x03\x02"])
    return limit, mutated(random, prefix, (prefix,))[:4]


def _take_size(limit: int, prefix: bytes) -> object:
    size = framing.decode_size(prefix, limit)
    assert 0 <= size <= limit, f"a frame of {size} bytes is accepted; the limit is {limit}"
    return size


# Record batches


def _draw_batches(random: Random) -> Drawn:
    field = mutated(random, _pick(random, batches()), batches())
    if random.random() < 0.2:
        # Change a field that decides where the next batch begins, or how many records are read.
        at = LENGTH_AT if random.random() < 0.5 else RECORD_COUNT_AT
        number = int(random.random() * 32) - 16
        if random.random() < 0.3:
            number *= 2**26
        field = field[:at] + number.to_bytes(4, "big", signed=True) + field[at + 4 :]
    return None, field


def _take_batches(about: None, field: bytes) -> object:
    """Read the batches as a consumer does, but read the records even if the CRC is wrong."""
    read = 0
    for batch in split_batches(field):
        try:
            check_crc(batch)
        except ProtocolError:
            pass
        header = read_header(batch)
        payload: bytes | memoryview = batch[HEADER_SIZE:]
        if header.codec is not Codec.NONE:
            payload = decompress(header.codec, payload, MOST_UNPACKED)
        read += sum(1 for _ in read_records(payload, header))
    return read


# Requests, as the embedded cluster reads them


def _draw_request(random: Random) -> Drawn:
    frame = _pick(random, requests()).frame
    return None, mutated(random, frame, (_pick(random, requests()).frame,), kept=4)


def _take_request(about: None, frame: bytes) -> object:
    decode_request_header(frame)
    try:
        return decode_request(frame)
    except UnsupportedVersionError:
        return None


TARGETS = [
    Target("response", 60, _draw_response, _take_response),
    Target("produce answer", 8, _draw_appended, _take_appended),
    Target("metadata", 6, _draw_metadata, _take_metadata),
    Target("api versions", 5, _draw_api_versions, _take_api_versions),
    Target("frame size", 3, _draw_size, _take_size),
    # The unpacked batch, once as blocks and once joined.
    Target("record batches", 10, _draw_batches, _take_batches, beyond=8 * MOST_UNPACKED),
    Target("request", 8, _draw_request, _take_request),
]
SHARES = [target for target in TARGETS for _ in range(target.share)]
