"""The codec that is compiled from declarations: round trips, versions, and malformed bytes."""

from __future__ import annotations

import pytest

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.codec import decode, decoding, encode, source
from aioproducer.protocol.messages import MetadataRequest, MetadataResponse
from aioproducer.protocol.primitives import Writer

REQUEST = MetadataRequest(
    topics=[MetadataRequest.MetadataRequestTopic(name="t")], allow_auto_topic_creation=False
)


def encoded(message, version: int) -> bytes:
    writer = Writer()
    encode(message, version, writer)
    return b"".join(writer.segments())


@pytest.mark.parametrize("version", [4, 9, 12])
def test_a_message_is_decoded_as_it_was_encoded(version):
    body = encoded(REQUEST, version)

    assert decode(MetadataRequest, version, body, 0) == (REQUEST, len(body))


def test_a_field_that_a_version_does_not_have_is_refused_unless_it_has_its_default():
    with pytest.raises(UnsupportedVersionError, match="allow_auto_topic_creation"):
        encoded(REQUEST, 3)


def test_a_version_that_is_not_declared_is_refused():
    with pytest.raises(UnsupportedVersionError):
        encoded(REQUEST, 99)


def test_every_truncation_is_a_protocol_error():
    body = encoded(REQUEST, 9)

    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            decode(MetadataRequest, 9, body[:size], 0)


def test_decoding_in_steps_gives_the_same_as_decoding_at_once():
    brokers = [MetadataResponse.MetadataResponseBroker(node_id=n, host="h" * 200, port=1) for n in range(600)]
    body = encoded(MetadataResponse(brokers=brokers), 9)
    steps, count = decoding(MetadataResponse, 9, body, 0), 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        message, position = end.value

    assert count > 1
    assert (message, position) == decode(MetadataResponse, 9, body, 0)


def test_the_source_of_a_codec_can_be_read():
    assert "def decode_MetadataRequest" in source(MetadataRequest, 9)
