"""Arrays of responses that stay encoded: they behave like lists, and malformed ones give the same errors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from aioproducer.errors import ProtocolError
from aioproducer.protocol import codec
from aioproducer.protocol.api import decode_response, encode_response
from aioproducer.protocol.arrays import LazyArray
from aioproducer.protocol.messages import (
    CreateTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    SaslHandshakeResponse,
)
from aioproducer.protocol.primitives import Writer, read_string
from tests.campaigns.fuzz.corpus import CORRELATION_ID, responses
from tests.campaigns.fuzz.mutations import mutated

Broker = MetadataResponse.MetadataResponseBroker
Partition = MetadataResponse.MetadataResponsePartition
Topic = MetadataResponse.MetadataResponseTopic


def frame_of(response, version):
    return b"".join(encode_response(response, version, CORRELATION_ID))[4:]


def through_a_frame(response, version):
    return decode_response(type(response), version, frame_of(response, version), CORRELATION_ID)


def brokers(count):
    return [Broker(node_id=number, host=f"host-{number}", port=9092) for number in range(count)]


def metadata(count):
    """Create a response with long arrays only: brokers, topics, partitions, replicas."""
    replicas = list(range(count))
    partitions = [Partition(partition_index=i, leader_id=i, replica_nodes=replicas) for i in range(count)]
    topics = [Topic(name=f"t{number}", partitions=partitions) for number in range(count)]
    return MetadataResponse(brokers=brokers(count), topics=topics)


# Behaviour of a list


def test_a_long_array_stays_in_its_frame_and_a_short_one_is_a_list():
    assert type(through_a_frame(metadata(17), 12).brokers) is LazyArray
    assert type(through_a_frame(metadata(2), 12).brokers) is list


@pytest.mark.promise(
    "Simulation and fuzzing",
    "decoding a response takes at most 4 times its frame and 8 KiB (for a text of at most 32 KiB, briefly "
    "three times more): a long array is validated at once and its elements are decoded on access",
)
def test_elements_equal_those_of_the_list_on_each_access():
    expected = brokers(40)
    found = through_a_frame(MetadataResponse(brokers=expected), 12).brokers

    assert len(found) == 40
    assert found
    assert list(found) == expected
    assert list(found) == expected
    assert [found[place] for place in range(-40, 40)] == expected + expected
    assert found[3:30:4] == expected[3:30:4]
    assert found[:-35] == expected[:-35]
    assert found[::-1] == expected[::-1]
    assert list(reversed(found)) == expected[::-1]
    assert expected[7] in found
    assert found.index(expected[9]) == 9
    for place in (40, -41):
        with pytest.raises(IndexError):
            found[place]


def test_arrays_are_compared_by_their_elements():
    one, same, other = (
        through_a_frame(MetadataResponse(brokers=brokers(n)), 12).brokers for n in (20, 20, 21)
    )

    assert one == same
    assert one == brokers(20)
    assert brokers(20) == one
    assert one != other
    assert one != brokers(19) + brokers(1)
    assert one != "brokers"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_repr_shows_the_first_elements():
    answer = through_a_frame(MetadataResponse(brokers=brokers(30)), 12)

    assert repr(answer.brokers).startswith(
        "[MetadataResponse.MetadataResponseBroker(node_id=0, host='host-0'"
    )
    assert repr(answer.brokers).endswith("… 22 more]")
    assert "… 22 more]" in repr(answer)
    assert repr(LazyArray(b"\0\1a\0\1b", 0, 2, read_string)) == "['a', 'b']"


def test_strings_and_numbers_also_stay_in_the_frame():
    mechanisms = [f"SCRAM-{number}" for number in range(50)]
    partition = Partition(replica_nodes=list(range(-20, 20)))
    answer = MetadataResponse(topics=[Topic(name="t", partitions=[partition])])

    named = through_a_frame(SaslHandshakeResponse(mechanisms=mechanisms), 1).mechanisms
    replicas = through_a_frame(answer, 12).topics[0].partitions[0].replica_nodes

    assert type(named) is type(replicas) is LazyArray
    assert named == mechanisms
    assert replicas == list(range(-20, 20))
    assert replicas[5] == -15
    assert tuple(replicas) == tuple(range(-20, 20))


def test_null_stays_none():
    configs = [CreateTopicsResponse.CreatableTopicConfigs(name=f"c{number}") for number in range(9)]
    topics = [
        CreateTopicsResponse.CreatableTopicResult(name=f"t{number}", configs=configs if number else None)
        for number in range(30)
    ]

    found = through_a_frame(CreateTopicsResponse(topics=topics), 7).topics

    assert found[0].configs is None
    assert found[29].configs == configs


@pytest.mark.parametrize("version", [0, 7, 12, 13])
def test_a_decoded_response_can_be_encoded_again(version):
    frame = frame_of(metadata(20), version)
    answer = decode_response(MetadataResponse, version, frame, CORRELATION_ID)

    assert frame_of(answer, version) == frame
    assert answer == decode_response(MetadataResponse, version, frame, CORRELATION_ID)


def test_requests_are_decoded_completely():
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=f"t{i}") for i in range(500)])
    writer = Writer()
    codec.encode(request, 12, writer)

    decoded, _ = codec.decode(MetadataRequest, 12, bytes(writer.out), 0)

    assert type(decoded.topics) is list
    assert decoded == request


# The same errors


@contextmanager
def arrays(*, of_any_length: str) -> Iterator[None]:
    """Decode all arrays as lists ("lists"), or none of them ("lazy")."""
    limit = 1 << 30 if of_any_length == "lists" else 0
    codec._codec.cache_clear()
    try:
        with mock.patch.multiple(codec, _SHORT=limit, _SMALL=0, _AT_ONCE=limit):
            yield
    finally:
        codec._codec.cache_clear()


def outcome(message, version, frame):
    """Return the message in a frame, or the text of the error."""
    try:
        return decode_response(message, version, frame, CORRELATION_ID)
    except ProtocolError as error:
        return str(error)


@pytest.mark.promise(
    "Simulation and fuzzing",
    "decoding a response takes at most 4 times its frame and 8 KiB (for a text of at most 32 KiB, briefly "
    "three times more): a long array is validated at once and its elements are decoded on access",
)
def test_walking_over_an_array_raises_the_same_errors_as_decoding_it():
    source = random.Random(1)
    frames = []
    for message, version, frame in responses():
        taken = [frame[:size] for size in source.choices(range(4, len(frame) + 1), k=5)]
        taken += [mutated(source, frame, [frame], kept=4) for _ in range(10)]
        frames += [(message, version, one) for one in (frame, *taken)]

    with arrays(of_any_length="lists"):
        decoded = [outcome(*frame) for frame in frames]
    with arrays(of_any_length="lazy"):
        walked = [outcome(*frame) for frame in frames]
        for (message, version, frame), expected, found in zip(frames, decoded, walked, strict=True):
            assert found == expected, f"{message.__name__} {version}: {frame.hex()}"

    refused = sum(isinstance(one, str) for one in decoded)
    assert refused > 1_000
    assert len(decoded) - refused > 1_000
