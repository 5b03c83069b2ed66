"""Frames with their headers, on the client's side and on the broker's side."""

import pytest

from aioproducer.errors import CorrelationError, ProtocolError, UnsupportedVersionError
from aioproducer.protocol.api import (
    CLIENT_VERSIONS,
    ApiKey,
    RequestHeader,
    VersionRange,
    decode_api_versions_response,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    negotiate,
)
from aioproducer.protocol.error_codes import ErrorCode, error_name
from aioproducer.protocol.frame import MAX_FRAME, decode_size
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    EndTxnResponse,
    FetchResponse,
    MetadataRequest,
    ProduceRequest,
    SaslHandshakeResponse,
)


def frame_of(segments):
    """Return the frame without its length, which is checked."""
    joined = b"".join(segments)
    assert decode_size(joined[:4], MAX_FRAME) == len(joined) - 4
    return joined[4:]


# Headers


def test_a_request_of_a_version_that_is_not_flexible_has_a_header_without_tags():
    frame = frame_of(encode_request(MetadataRequest(topics=None), 7, 0x01020304, "me"))

    assert frame.hex(" ", 1) == "00 03 00 07 01 02 03 04 00 02 6d 65 ff ff ff ff 01"


def test_a_request_of_a_flexible_version_has_tags_after_a_client_id_that_is_not_compact():
    frame = frame_of(encode_request(MetadataRequest(topics=None), 9, 0x01020304, "me"))

    assert frame.hex(" ", 1) == "00 03 00 09 01 02 03 04 00 02 6d 65 00 00 01 00 00 00"


def test_client_id_may_be_null():
    header, _ = decode_request(frame_of(encode_request(ApiVersionsRequest(), 0, 1, None)))

    assert header == RequestHeader(ApiKey.API_VERSIONS, 0, 1, None)


def test_response_of_a_flexible_version_has_tags_in_its_header():
    assert frame_of(encode_response(EndTxnResponse(), 2, 5)) == bytes.fromhex("00000005 00000000 0000")
    assert frame_of(encode_response(EndTxnResponse(), 3, 5)) == bytes.fromhex("00000005 00 00000000 0000 00")


def test_api_versions_response_never_has_tags_in_its_header():
    frame = frame_of(encode_response(ApiVersionsResponse(), 4, 5))

    assert frame == bytes.fromhex("00000005 0000 01 00000000 00")
    assert decode_response(ApiVersionsResponse, 4, frame, 5) == ApiVersionsResponse()


def test_the_header_of_an_undeclared_request_can_be_read():
    frame = bytes.fromhex("0049 0003 00000009 0001 61 ffff")

    assert decode_request_header(frame) == RequestHeader(73, 3, 9, "a")
    with pytest.raises(UnsupportedVersionError, match="API key 73"):
        decode_request(frame)


def test_request_of_an_undeclared_version_is_refused_but_its_header_can_be_read():
    frame = bytes.fromhex("0012 0005 00000009 ffff 00 deadbeef")

    assert decode_request_header(frame) == RequestHeader(ApiKey.API_VERSIONS, 5, 9, None)
    with pytest.raises(UnsupportedVersionError, match="ApiVersionsRequest version 5 is not one of 0-4"):
        decode_request(frame)


# Records


@pytest.mark.parametrize("version", [8, 9, 13])
def test_records_of_a_produce_request_are_not_copied(version):
    batches = [bytearray(b"a" * 1000), bytearray(b"b" * 2000), bytearray(b"c" * 3000)]
    data = [
        ProduceRequest.PartitionProduceData(index=0, records=batches[0]),
        ProduceRequest.PartitionProduceData(index=1, records=[memoryview(batches[1]), batches[2]]),
    ]
    request = ProduceRequest(
        acks=-1, timeout_ms=30000, topic_data=[ProduceRequest.TopicProduceData(partition_data=data)]
    )

    segments = encode_request(request, version, 1, "me")

    spliced = [segment for segment in segments if isinstance(segment, memoryview)]
    assert [segment.obj for segment in spliced] == batches
    assert all(view.obj is batch for view, batch in zip(spliced, batches, strict=True))
    assert sum(len(segment) for segment in segments if isinstance(segment, bytes)) < 100
    # A later change would be sent, which proves that there is no copy.
    batches[2][:] = b"d" * 3000
    _, decoded = decode_request(frame_of(segments))
    assert decoded.topic_data[0].partition_data[1].records == b"b" * 2000 + b"d" * 3000


def test_records_of_a_decoded_frame_are_a_view_of_it():
    data = FetchResponse.PartitionData(records=b"x" * 1000)
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(partitions=[data])])
    frame = frame_of(encode_response(response, 12, 1))

    decoded = decode_response(FetchResponse, 12, frame, 1)

    assert decoded.responses[0].partitions[0].records.obj is frame


# Responses that do not fit


def test_response_to_another_request_is_a_correlation_error():
    frame = frame_of(encode_response(EndTxnResponse(), 3, 7))

    with pytest.raises(CorrelationError, match=r"expected EndTxnResponse for request 8.* answered request 7"):
        decode_response(EndTxnResponse, 3, frame, 8)


def test_bytes_after_a_response_are_rejected():
    frame = frame_of(encode_response(EndTxnResponse(), 3, 7))

    with pytest.raises(ProtocolError, match="EndTxnResponse version 3: 2 bytes are left"):
        decode_response(EndTxnResponse, 3, frame + b"\0\0", 7)


def test_bytes_after_a_request_are_rejected():
    frame = frame_of(encode_request(MetadataRequest(), 9, 7, None))

    with pytest.raises(ProtocolError, match="MetadataRequest version 9: 1 bytes are left"):
        decode_request(frame + b"\0")


@pytest.mark.parametrize("frame", [b"", b"\0\0\0"])
def test_frame_without_room_for_a_header_is_refused(frame):
    with pytest.raises(ProtocolError, match="too few for a response"):
        decode_response(EndTxnResponse, 3, frame, 0)
    with pytest.raises(ProtocolError, match="too few for a request"):
        decode_request(frame)


def test_error_names_message_and_version():
    with pytest.raises(ProtocolError, match=r"SaslHandshakeResponse version 1: .* 16777216"):
        decode_response(SaslHandshakeResponse, 1, bytes.fromhex("00000000 0000 01000000"), 0)


# KIP-511


def refusal(*api_keys):
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=list(api_keys))
    return frame_of(encode_response(response, 0, 1)), response


@pytest.mark.promise("KIPs", "KIP-511: the client's name, and the downgrade of ApiVersions")
@pytest.mark.parametrize("asked", [0, 1, 2, 3, 4])
def test_rejected_api_versions_request_is_read_in_the_format_of_version_0(asked):
    ours = ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=2)
    frame, response = refusal(ours)

    assert frame == bytes.fromhex("00000001 0023 00000001 0012 0000 0002")
    assert decode_api_versions_response(asked, frame, 1) == response
    assert decode_response(ApiVersionsResponse, asked, frame, 1) == response


def test_rejected_api_versions_request_without_any_version_is_read():
    frame, response = refusal()

    assert decode_api_versions_response(4, frame, 1) == response


def test_other_errors_of_api_versions_have_the_format_of_the_requested_version():
    response = ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, throttle_time_ms=5)

    assert decode_api_versions_response(4, frame_of(encode_response(response, 4, 1)), 1) == response


def test_truncated_rejection_is_a_protocol_error():
    frame, _ = refusal(ApiVersionsResponse.ApiVersion())

    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_api_versions_response(4, frame[:size], 1)


# Negotiation


@pytest.mark.parametrize(
    ("theirs", "ceiling", "expected"),
    [
        ((0, 20), None, 13),
        ((0, 9), None, 9),
        ((3, 7), None, 7),
        ((13, 13), None, 13),
        ((0, 20), 12, 12),
        ((0, 9), 12, 9),
        ((0, 20), 7, 7),
    ],
)
def test_highest_common_version_is_chosen(theirs, ceiling, expected):
    assert negotiate(ApiKey.PRODUCE, {ApiKey.PRODUCE: VersionRange(*theirs)}, ceiling) == expected


@pytest.mark.parametrize("theirs", [(0, 6), (14, 20), (5, 4)])
def test_no_common_version_names_both_ranges(theirs):
    broker = {0: VersionRange(*theirs)}

    with pytest.raises(UnsupportedVersionError) as caught:
        negotiate(ApiKey.PRODUCE, broker)

    assert (
        f"PRODUCE: no common version: the broker supports {theirs[0]}-{theirs[1]}, this client 7-13"
        in str(caught.value)
    )


def test_ceiling_that_leaves_no_version_is_named():
    with pytest.raises(UnsupportedVersionError, match="at most 6"):
        negotiate(ApiKey.PRODUCE, {0: VersionRange(3, 13)}, 6)


def test_api_that_the_broker_does_not_offer_is_named():
    with pytest.raises(
        UnsupportedVersionError, match=r"INIT_PRODUCER_ID: the broker does not offer this API.*0-5"
    ):
        negotiate(ApiKey.INIT_PRODUCER_ID, {0: VersionRange(3, 13)})


@pytest.mark.promise(
    "Protocol", "every request that a producer needs is implemented, at every version from Kafka 2.1 to 4.3"
)
def test_kafka_2_1_supports_every_api_that_the_producer_needs():
    kafka_2_1 = {0: 7, 3: 7, 10: 2, 17: 1, 18: 2, 22: 1, 24: 1, 25: 1, 26: 1, 28: 2, 36: 0}
    broker = {key: VersionRange(0, newest) for key, newest in kafka_2_1.items()}

    assert {key: negotiate(ApiKey(key), broker) for key in kafka_2_1} == kafka_2_1


def test_client_versions_of_kafka_4_3_are_the_newest():
    assert CLIENT_VERSIONS[ApiKey.PRODUCE] == (7, 13)
    assert CLIENT_VERSIONS[ApiKey.METADATA] == (7, 13)
    assert CLIENT_VERSIONS[ApiKey.ADD_PARTITIONS_TO_TXN] == (0, 3)


# Error codes


def test_error_names_are_those_of_kafka():
    assert error_name(0) == "NONE"
    assert error_name(-1) == "UNKNOWN_SERVER_ERROR"
    assert error_name(6) == "NOT_LEADER_OR_FOLLOWER"
    assert error_name(9999) == "UNKNOWN_CODE_9999"
