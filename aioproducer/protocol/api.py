"""Encodes and decodes requests and responses as whole frames (length, header, body), for clients and brokers.

    request   length int32 | api key int16 | version int16 | correlation id int32 | client id | [tags] | body
    response  length int32 | correlation id int32 | [tags] | body

Only flexible versions have tags. The header of an ApiVersionsResponse never has them, since a client must be able to
read it before it knows which versions the broker supports (KIP-511).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from struct import Struct
from typing import NamedTuple, TypeVar

from aioproducer.errors import CorrelationError, ProtocolError, UnsupportedVersionError
from aioproducer.protocol import codec
from aioproducer.protocol.api_keys import CLIENT_VERSIONS, ApiKey, VersionRange
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.frame import PREFIX_SIZE
from aioproducer.protocol.messages import ApiVersionsResponse
from aioproducer.protocol.primitives import (
    Buffer,
    Writer,
    read_nullable_string,
    skip_tags,
    write_nullable_string,
)
from aioproducer.protocol.schema import REQUESTS, Message

__all__ = [
    "CLIENT_VERSIONS",
    "ApiKey",
    "RequestHeader",
    "VersionRange",
    "decode_api_versions_response",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_request",
    "encode_response",
    "negotiate",
]

M = TypeVar("M", bound=Message)

_LENGTH = Struct(">i")
_REQUEST_HEADER = Struct(">hhi")
_CORRELATION_ID = Struct(">i")
_ERROR_CODE = Struct(">h")


class RequestHeader(NamedTuple):
    """The header of every request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


# The client's side


def encode_request(
    request: Message, version: int, correlation_id: int, client_id: str | None
) -> list[bytes | memoryview]:
    """Encode a request as a list of segments, the first of which starts with the length. Batches are not copied.

    Raises:
        UnsupportedVersionError: `version` is not declared, or can't carry a field that is set.
        ValueError: a value does not fit its type on the wire.
    """
    writer = Writer()
    writer.out += bytes(PREFIX_SIZE)
    writer.out += _REQUEST_HEADER.pack(request.api_key, version, correlation_id)
    # The client id is not compact even in flexible versions: brokers must be able to read it in versions that they do
    # not know (KIP-511).
    write_nullable_string(writer.out, client_id)
    if version >= request.flexible_from:
        writer.out.append(0)
    codec.encode(request, version, writer)
    return _framed(writer)


def decode_response(response_type: type[M], version: int, frame: Buffer, expected_correlation_id: int) -> M:
    """Decode the response in `frame`, which has no length prefix.

    Raises:
        CorrelationError: the frame is the response to another request.
        ProtocolError: the frame is not a response of this type and version, or bytes are left over.
    """
    version, pos = _begun(response_type, version, frame, expected_correlation_id)
    return _whole(response_type, version, frame, pos)


def decoding_response(
    response_type: type[M], version: int, frame: Buffer, expected_correlation_id: int
) -> Generator[None, None, M]:
    """Decode as `decode_response` does, but in steps. The call itself reads only the header."""
    version, pos = _begun(response_type, version, frame, expected_correlation_id)
    return _whole_in_steps(response_type, version, frame, pos)


def _begun(
    response_type: type[Message], version: int, frame: Buffer, expected_correlation_id: int
) -> tuple[int, int]:
    """Return the version in which the response is encoded, and the position after its header."""
    pos = _check_correlation_id(response_type, frame, expected_correlation_id)
    if response_type is ApiVersionsResponse:
        # KIP-511: a broker that does not support the version rejects it in the format of version 0.
        if len(frame) >= pos + 2 and _ERROR_CODE.unpack_from(frame, pos)[0] == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
    elif version >= response_type.flexible_from:
        pos = skip_tags(frame, pos)
    return version, pos


def decode_api_versions_response(
    version: int, frame: Buffer, expected_correlation_id: int
) -> ApiVersionsResponse:
    """Decode an ApiVersions response, as `decode_response` does with ApiVersionsResponse.

    With error code UNSUPPORTED_VERSION, the response has the format of version 0, whatever the version of the request
    (KIP-511). Its `api_keys`, unless empty, contain the versions of ApiVersions that the broker supports.
    """
    return decode_response(ApiVersionsResponse, version, frame, expected_correlation_id)


def negotiate(api_key: ApiKey, broker: Mapping[int, VersionRange], ceiling: int | None = None) -> int:
    """Return the highest version of an API, up to `ceiling`, that client and broker have in common.

    Raises:
        UnsupportedVersionError: they have no version in common.
    """
    ours = CLIENT_VERSIONS[api_key]
    theirs = broker.get(api_key)
    if theirs is None:
        raise UnsupportedVersionError(
            f"{api_key.name}: the broker does not offer this API; this client supports versions {ours}"
        )
    highest = min(ours.max, theirs.max) if ceiling is None else min(ours.max, theirs.max, ceiling)
    if highest < max(ours.min, theirs.min):
        limit = "" if ceiling is None else f" (at most {ceiling} for this request)"
        raise UnsupportedVersionError(
            f"{api_key.name}: no common version: the broker supports {theirs}, this client {ours}{limit}"
        )
    return highest


# The broker's side


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Decode only the header of the request in `frame`, which has no length prefix. The API may be unknown.

    Raises:
        ProtocolError: `frame` is not a request.
    """
    return _request_header(frame)[0]


def decode_request(frame: Buffer, *, ignore_rest: bool = False) -> tuple[RequestHeader, Message]:
    """Decode the request in `frame`, which has no length prefix.

    With `ignore_rest`, more bytes may follow the request, as Kafka's brokers allow.

    Raises:
        UnsupportedVersionError: the API or its version is not declared.
        ProtocolError: `frame` is not a request, or bytes are left over.
    """
    header, pos = _request_header(frame)
    request_type = REQUESTS.get(header.api_key)
    if request_type is None:
        raise UnsupportedVersionError(f"no request is declared for API key {header.api_key}")
    if header.version >= request_type.flexible_from:
        pos = skip_tags(frame, pos)
    if ignore_rest:
        return header, codec.decode(request_type, header.version, frame, pos)[0]
    return header, _whole(request_type, header.version, frame, pos)


def encode_response(response: Message, version: int, correlation_id: int) -> list[bytes | memoryview]:
    """Encode a response as a list of segments, the first of which starts with the length. Batches are not copied.

    To reject an ApiVersionsRequest with UNSUPPORTED_VERSION, encode the response at version 0 (KIP-511).

    Raises:
        UnsupportedVersionError: `version` is not declared, or can't carry a field that is set.
        ValueError: a value does not fit its type on the wire.
    """
    writer = Writer()
    writer.out += bytes(PREFIX_SIZE)
    writer.out += _CORRELATION_ID.pack(correlation_id)
    if version >= response.flexible_from and not isinstance(response, ApiVersionsResponse):
        writer.out.append(0)
    codec.encode(response, version, writer)
    return _framed(writer)


# Both sides


def _framed(writer: Writer) -> list[bytes | memoryview]:
    _LENGTH.pack_into(writer.out, 0, len(writer) - PREFIX_SIZE)
    return writer.segments()


def _whole(message_type: type[M], version: int, frame: Buffer, pos: int) -> M:
    message, stop = codec.decode(message_type, version, frame, pos)
    _check_end(message_type, version, frame, stop)
    return message


def _whole_in_steps(message_type: type[M], version: int, frame: Buffer, pos: int) -> Generator[None, None, M]:
    message, stop = yield from codec.decoding(message_type, version, frame, pos)
    _check_end(message_type, version, frame, stop)
    return message


def _check_end(message_type: type[Message], version: int, frame: Buffer, stop: int) -> None:
    if stop != len(frame):
        name = message_type.__name__
        raise ProtocolError(f"{name} version {version}: {len(frame) - stop} bytes are left over")


def _check_correlation_id(response_type: type[Message], frame: Buffer, expected: int) -> int:
    name = response_type.__name__
    if len(frame) < _CORRELATION_ID.size:
        raise ProtocolError(f"{name}: {len(frame)} bytes are too few for a response")
    got: int = _CORRELATION_ID.unpack_from(frame)[0]
    if got != expected:
        raise CorrelationError(f"expected {name} for request {expected}, but the peer answered request {got}")
    return _CORRELATION_ID.size


def _request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    if len(frame) < _REQUEST_HEADER.size:
        raise ProtocolError(f"{len(frame)} bytes are too few for a request")
    api_key, version, correlation_id = _REQUEST_HEADER.unpack_from(frame)
    client_id, pos = read_nullable_string(frame, _REQUEST_HEADER.size)
    return RequestHeader(api_key, version, correlation_id, client_id), pos
