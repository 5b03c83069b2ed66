"""Declarations: properties of the classes, and round trips of any value in any version."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import codec, messages
from aioproducer.protocol.api_keys import CLIENT_VERSIONS, ApiKey
from aioproducer.protocol.messages import (
    AddPartitionsToTxnRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    EndTxnResponse,
    FetchResponse,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataResponse,
    OffsetFetchRequest,
    ProduceRequest,
    ProduceResponse,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from aioproducer.protocol.primitives import NIL_UUID, Writer
from aioproducer.protocol.schema import REQUESTS, structs_of, version_range

MESSAGES = [getattr(messages, name) for name in messages.__all__]


def encoded(message, version):
    writer = Writer()
    codec.encode(message, version, writer)
    return b"".join(writer.segments())


# Declarations


@pytest.mark.promise("Protocol", "each message has one declaration, with versions per field")
def test_every_api_key_has_a_request_and_its_response():
    assert REQUESTS.keys() == set(ApiKey)
    for key, request in REQUESTS.items():
        assert request.api_key == request.Response.api_key == key
        assert request.versions == request.Response.versions
        assert request.flexible_from == request.Response.flexible_from
    assert set(MESSAGES) == {kind for request in REQUESTS.values() for kind in (request, request.Response)}


@pytest.mark.promise(
    "Protocol", "every request that a producer needs is implemented, at every version from Kafka 2.1 to 4.3"
)
def test_versions_of_the_client_are_declared():
    assert CLIENT_VERSIONS.keys() == set(ApiKey)
    for key, ours in CLIENT_VERSIONS.items():
        declared = REQUESTS[key].versions
        assert declared.min <= ours.min <= ours.max <= declared.max


@pytest.mark.parametrize(
    ("text", "expected"), [("3+", (3, 32767)), ("0-3", (0, 3)), ("8-10", (8, 10)), ("4", (4, 4))]
)
def test_version_ranges_are_read_as_kafka_writes_them(text, expected):
    assert version_range(text) == expected


def test_structs_are_nested_in_their_message_by_the_names_of_kafka():
    assert set(structs_of(ProduceResponse)) == {
        "BatchIndexAndErrorMessage",
        "LeaderIdAndEpoch",
        "NodeEndpoint",
        "PartitionProduceResponse",
        "TopicProduceResponse",
    }


def test_omitted_fields_have_the_defaults_of_kafka():
    partition = ProduceResponse.PartitionProduceResponse(index=3)

    assert partition.error_code == 0
    assert partition.log_start_offset == -1
    assert partition.record_errors == []
    assert partition.error_message is None
    assert partition.current_leader == ProduceResponse.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    assert ProduceResponse.TopicProduceResponse().topic_id is NIL_UUID
    assert MetadataRequest().allow_auto_topic_creation is True
    assert CreateTopicsRequest().timeout_ms == 60000
    assert SaslAuthenticateRequest().auth_bytes == b""


def test_mutable_defaults_are_not_shared():
    first, second = ProduceResponse.PartitionProduceResponse(), ProduceResponse.PartitionProduceResponse()

    first.record_errors.append(ProduceResponse.BatchIndexAndErrorMessage())
    first.current_leader.leader_id = 7

    assert second.record_errors == []
    assert second.current_leader.leader_id == -1


def test_decoded_defaults_are_not_shared():
    frame = encoded(ProduceResponse(), 10)

    first, _ = codec.decode(ProduceResponse, 10, frame, 0)
    second, _ = codec.decode(ProduceResponse, 10, frame, 0)
    first.node_endpoints.append(ProduceResponse.NodeEndpoint())

    assert second.node_endpoints == []


def test_unknown_field_is_refused_by_the_constructor_and_by_assignment():
    with pytest.raises(TypeError):
        ProduceRequest(topics=[])
    with pytest.raises(AttributeError):
        ProduceRequest().topics = []


def test_messages_are_compared_by_value_and_type():
    assert EndTxnResponse(error_code=3) == EndTxnResponse(error_code=3)
    assert EndTxnResponse(error_code=3) != EndTxnResponse(error_code=4)
    assert ProduceResponse.LeaderIdAndEpoch() != FetchResponse.LeaderIdAndEpoch()
    assert EndTxnResponse() != "EndTxnResponse()"
    with pytest.raises(TypeError):
        hash(EndTxnResponse())


# Texts


def test_repr_never_shows_records():
    partition = ProduceRequest.PartitionProduceData

    for records in (b"secret", bytearray(b"secret"), memoryview(b"secret"), [b"sec", memoryview(b"ret")]):
        assert (
            repr(partition(records=records))
            == "ProduceRequest.PartitionProduceData(index=0, records=<6 bytes>)"
        )
    assert repr(partition()) == "ProduceRequest.PartitionProduceData(index=0, records=None)"


def test_repr_never_shows_sasl_bytes():
    assert repr(SaslAuthenticateRequest(auth_bytes=b"\0user\0pass")) == (
        "SaslAuthenticateRequest(auth_bytes=<10 bytes>)"
    )


def test_repr_escapes_and_cuts_the_texts_of_a_peer():
    shown = repr(SaslHandshakeRequest(mechanism="\x1b[31m\n" + "x" * 10_000))

    assert shown.startswith(r"SaslHandshakeRequest(mechanism='\x1b[31m\x0a")
    assert len(shown) < 300


def test_repr_cuts_long_arrays():
    shown = repr(FindCoordinatorRequest(coordinator_keys=[str(i) for i in range(1000)]))

    assert "'7', … 992 more]" in shown


# Versions


@pytest.mark.parametrize("version", [-1, 2, 14, 32767])
def test_undeclared_version_is_refused(version):
    with pytest.raises(UnsupportedVersionError, match=f"ProduceRequest version {version} is not one of 3-13"):
        encoded(ProduceRequest(), version)
    with pytest.raises(UnsupportedVersionError, match="is not one of 3-13"):
        codec.decode(ProduceRequest, version, b"", 0)


@pytest.mark.promise("Protocol", "each message has one declaration, with versions per field")
@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (MetadataRequest(allow_auto_topic_creation=False), 3, "MetadataRequest.allow_auto_topic_creation"),
        (FindCoordinatorRequest(coordinator_keys=["a"]), 3, "FindCoordinatorRequest.coordinator_keys"),
        (FindCoordinatorRequest(key="a"), 4, "FindCoordinatorRequest.key"),
        (OffsetFetchRequest(require_stable=True), 6, "OffsetFetchRequest.require_stable"),
        (
            ProduceResponse(node_endpoints=[ProduceResponse.NodeEndpoint()]),
            9,
            "ProduceResponse.node_endpoints",
        ),
    ],
)
def test_field_that_is_set_is_not_silently_dropped_in_a_version_without_it(message, version, field):
    with pytest.raises(
        UnsupportedVersionError, match=rf"{field} is set, but version {version} can't carry it"
    ):
        encoded(message, version)


def test_struct_that_is_set_is_not_silently_dropped_in_a_version_without_it():
    partition = ProduceResponse.PartitionProduceResponse(
        current_leader=ProduceResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    )
    response = ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(partition_responses=[partition])]
    )

    with pytest.raises(UnsupportedVersionError, match=r"PartitionProduceResponse\.current_leader is set"):
        encoded(response, 9)


def test_ignorable_field_is_dropped_in_a_version_without_it():
    message = EndTxnResponse(producer_id=5, producer_epoch=6)

    assert codec.decode(EndTxnResponse, 4, encoded(message, 4), 0)[0] == EndTxnResponse()


@pytest.mark.parametrize(
    ("message", "version", "field"),
    [
        (MetadataRequest(topics=None), 0, "MetadataRequest.topics"),
        (
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None)]),
            9,
            "MetadataRequestTopic.name",
        ),
        (OffsetFetchRequest(topics=None), 1, "OffsetFetchRequest.topics"),
    ],
)
def test_none_is_rejected_in_a_version_without_null(message, version, field):
    with pytest.raises(UnsupportedVersionError, match=f"{field} is None, but version {version}"):
        encoded(message, version)


@pytest.mark.parametrize(
    ("message_type", "version", "frame"),
    [
        (MetadataRequest, 0, "ffffffff"),
        (MetadataResponse, 9, "0000000000"),
        (ApiVersionsResponse, 0, "0000ffffffff"),
    ],
)
def test_null_array_is_rejected_in_a_version_without_null(message_type, version, frame):
    with pytest.raises(ProtocolError, match="is null, which this version does not allow"):
        codec.decode(message_type, version, bytes.fromhex(frame), 0)


@pytest.mark.parametrize(
    "message",
    [
        ProduceRequest(acks=32768),
        ProduceRequest(timeout_ms=2**31),
        AddPartitionsToTxnRequest(v3_and_below_producer_id=2**63),
    ],
)
def test_number_that_does_not_fit_is_refused(message):
    with pytest.raises(ValueError, match="does not fit its field"):
        encoded(message, message.versions.min)


def test_source_of_a_codec_can_be_read():
    text = codec.source(EndTxnResponse, 5)

    assert "def decode_EndTxnResponse(buf, pos, at_once=MAX_FRAME):" in text
    assert "def encode_EndTxnResponse(o, w):" in text
    assert "throttle_time_ms, o.error_code, o.producer_id, o.producer_epoch = " in text


# Any value


INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def structs(draw, part, message_type, version):
    """Draw a struct whose fields have any value that the version can carry."""
    nested = structs_of(message_type)

    def value(kind, of):
        if kind in INTEGERS:
            bits = INTEGERS[kind]
            return draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        if kind == "array":
            count = draw(st.integers(0, 3))
            return [value("struct" if of in nested else of, of) for _ in range(count)]
        if kind == "struct":
            return draw(structs(nested[of], message_type, version))
        if kind == "uuid":
            return UUID(int=draw(st.integers(0, 2**128 - 1)))
        if kind in ("bytes", "records"):
            return draw(st.binary(max_size=8))
        return draw(TEXT) if kind == "string" else draw(st.booleans())

    chosen = {}
    for field in part.FIELDS:
        if field.is_in(version) and draw(st.booleans()):
            is_null = field.may_be_null(version) and draw(st.booleans())
            chosen[field.name] = None if is_null else value(field.kind, field.of)
    return part(**chosen)


@pytest.mark.promise("Protocol", "encoder and decoder come from the same declaration")
@settings(deadline=None)  # the first use of a version compiles its codec
@given(st.data())
def test_any_message_of_any_version_round_trips(data):
    message_type = data.draw(st.sampled_from(MESSAGES))
    version = data.draw(st.integers(*message_type.versions))
    message = data.draw(structs(message_type, message_type, version))

    frame = encoded(message, version)
    decoded, stop = codec.decode(message_type, version, b"..." + frame + b".", 3)

    assert stop == 3 + len(frame)
    assert decoded == message
    assert encoded(decoded, version) == frame
