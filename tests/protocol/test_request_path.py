"""The compiled Produce request and the compiled response decoder agree with the declared messages, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple
from uuid import UUID

import pytest

from aioproducer.errors import CorrelationError, ProtocolError
from aioproducer.protocol._request_path import Buckets
from aioproducer.protocol.api import decode_request, decode_response, encode_request, encode_response
from aioproducer.protocol.messages import ProduceRequest, ProduceResponse
from aioproducer.protocol.primitives import NIL_UUID
from aioproducer.protocol.produce import Appended, ProduceBatches

VERSIONS = range(3, 14)
FIRST_WITH_IDS = 13
ID = 0x01020304


class Place(NamedTuple):
    partition: int


class Sealed(NamedTuple):
    """A batch as ProduceBatches expects it."""

    queue: Place
    segments: tuple[bytes | memoryview, ...]
    record_count: int = 1


Topics = list[tuple[str, int, list[Sealed]]]


def some_topics(random: Random, *, long_name: bool = False) -> Topics:
    count = random.choice([1, 1, 2, 5, 200])
    topics = []
    for number in range(count):
        name = f"größe-{number}" + "x" * random.choice(
            [0, 1, 110, 116, 117, 118, 200] if long_name else [0, 30]
        )
        partitions = random.sample(range(-1, 400), random.choice([1, 2, 12, 130]) if count < 10 else 1)
        batches = [
            Sealed(
                Place(n),
                (random.randbytes(61), memoryview(random.randbytes(random.choice([0, 7, 70, 20_000])))),
            )
            for n in partitions
        ]
        topics.append((name, random.getrandbits(128), batches))
    return topics


def declared_request(version: int, topics: Topics, transactional_id: str | None) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=name,
                topic_id=UUID(int=id),
                partition_data=[
                    ProduceRequest.PartitionProduceData(
                        index=batch.queue.partition, records=list(batch.segments)
                    )
                    for batch in batches
                ],
            )
            for name, id, batches in topics
        ],
    )


def asked(version: int, topics: Topics, transactional_id: str | None = None) -> ProduceBatches:
    request = ProduceBatches(transactional_id, -1, 30_000, topics)
    request.frame(version, ID, "client")
    return request


def all_appended(version: int, topics: Topics, random: Random | None = None) -> ProduceResponse:
    """Create a response with success for every batch, in random order if `random` is given."""
    responses = []
    for name, id, batches in topics:
        partitions = [
            ProduceResponse.PartitionProduceResponse(
                index=batch.queue.partition,
                base_offset=batch.queue.partition * 2**33,
                log_append_time_ms=batch.queue.partition - 7,
                log_start_offset=batch.queue.partition + 5 if version >= 5 else -1,
            )
            for batch in batches
        ]
        if random is not None:
            random.shuffle(partitions)
        by_id = version >= FIRST_WITH_IDS
        responses.append(
            ProduceResponse.TopicProduceResponse(
                name="" if by_id else name,
                topic_id=UUID(int=id) if by_id else NIL_UUID,
                partition_responses=partitions,
            )
        )
    if random is not None:
        random.shuffle(responses)
    return ProduceResponse(responses=responses, throttle_time_ms=17)


def frame_of(response: ProduceResponse, version: int) -> bytes:
    return b"".join(encode_response(response, version, ID))[4:]


def places_of(version: int, topics: Topics, response: ProduceResponse) -> list[tuple[int, int, int, int]]:
    """Return the expected result of the compiled decoder, derived from the declared message."""
    numbers: dict[tuple[str | int, int], int] = {}
    for name, id, batches in topics:
        for batch in batches:
            numbers[id if version >= FIRST_WITH_IDS else name, batch.queue.partition] = len(numbers)
    return [
        (
            numbers[topic.topic_id.int if version >= FIRST_WITH_IDS else topic.name, part.index],
            part.base_offset,
            part.log_append_time_ms,
            part.log_start_offset,
        )
        for topic in response.responses
        for part in topic.partition_responses
    ]


# The request


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_equals_its_declared_encoding_byte_for_byte(version):
    random = Random(version)
    for client_id, transactional_id in [("client", None), (None, "tx-ü"), ("", ""), ("c" * 300, "t" * 300)]:
        topics = some_topics(random, long_name=True)

        segments = ProduceBatches(transactional_id, -1, 30_000, topics).frame(version, ID, client_id)

        declared = declared_request(version, topics, transactional_id)
        assert b"".join(segments) == b"".join(encode_request(declared, version, ID, client_id))


def test_records_are_passed_on_and_not_copied():
    records = memoryview(bytes(100_000))

    topics: Topics = [("t", 1, [Sealed(Place(0), (b"h" * 61, records))])]

    segments = ProduceBatches(None, -1, 1, topics).frame(13, ID, None)

    assert any(segment is records for segment in segments)


def test_values_that_no_version_can_carry_are_rejected():
    batches = [Sealed(Place(0), (b"h" * 61, b""))]

    with pytest.raises(ValueError, match="a string of 32768 bytes exceeds 32767 bytes"):
        asked(9, [("x" * 32768, 0, batches)])
    with pytest.raises(ValueError, match="a string of 40000 bytes"):
        asked(9, [("x", 0, batches)], "t" * 40_000)
    with pytest.raises(OverflowError):
        asked(13, [("x", 2**128, batches)])


def test_a_request_can_be_decoded_as_declared():
    topics: Topics = [("t", 5, [Sealed(Place(3), (b"h" * 61, b"records"))])]

    frame = b"".join(ProduceBatches("tx", 1, 7, topics).frame(12, ID, "me"))

    header, request = decode_request(frame[4:])
    assert (header.api_key, header.version, header.correlation_id, header.client_id) == (0, 12, ID, "me")
    assert isinstance(request, ProduceRequest)
    assert (request.acks, request.timeout_ms, request.transactional_id) == (1, 7, "tx")


# The response


@pytest.mark.parametrize("version", VERSIONS)
def test_success_is_read_without_the_declared_decoder_in_any_order(version, monkeypatch):
    random = Random(version)
    for order in (None, random):
        topics = some_topics(random)
        response = all_appended(version, topics, order)
        frame = frame_of(response, version)
        with monkeypatch.context() as patch:
            patch.setattr("aioproducer.protocol.produce.decode_response", None)

            answer = asked(version, topics).answer(version, frame, ID)

        assert isinstance(answer, Appended)
        assert answer.throttle_time_ms == 17
        assert answer.places == places_of(
            version, topics, decode_response(ProduceResponse, version, frame, ID)
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_long_name_is_read_by_one_of_the_two_decoders(version):
    random = Random(version)
    for _ in range(8):
        topics = some_topics(random, long_name=True)
        frame = frame_of(all_appended(version, topics), version)

        answer = asked(version, topics).answer(version, frame, ID)

        declared = decode_response(ProduceResponse, version, frame, ID)
        if isinstance(answer, Appended):
            assert answer.places == places_of(version, topics, declared)
        else:
            assert answer == declared
            assert any(len(name.encode()) > 126 for name, _, _ in topics)


def refused(part: ProduceResponse.PartitionProduceResponse) -> None:
    part.error_code = 6


def explained(part: ProduceResponse.PartitionProduceResponse) -> None:
    part.error_message = ""


def with_culprits(part: ProduceResponse.PartitionProduceResponse) -> None:
    part.record_errors = [ProduceResponse.BatchIndexAndErrorMessage(batch_index=0)]


def led_elsewhere(part: ProduceResponse.PartitionProduceResponse) -> None:
    part.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)


def foreign(part: ProduceResponse.PartitionProduceResponse) -> None:
    part.index = 10_000


@pytest.mark.parametrize(
    ("spoil", "since"), [(refused, 3), (foreign, 3), (explained, 8), (with_culprits, 8), (led_elsewhere, 10)]
)
def test_everything_but_plain_success_is_decoded_as_declared(spoil, since):
    random = Random(7)
    for version in range(since, 14):
        topics = some_topics(random)
        response = all_appended(version, topics, random)
        spoil(random.choice(random.choice(response.responses).partition_responses))
        frame = frame_of(response, version)

        answer = asked(version, topics).answer(version, frame, ID)

        assert answer == decode_response(ProduceResponse, version, frame, ID)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_or_repeated_batch_is_not_plain_success(version):
    batches = [Sealed(Place(n), (b"h" * 61, b"")) for n in range(2)]
    topics: Topics = [("a", 1, batches), ("b", 2, batches)]
    left_out = all_appended(version, topics)
    left_out.responses[0].partition_responses.pop()
    topic_left_out = all_appended(version, topics)
    topic_left_out.responses.pop()
    twice = all_appended(version, topics)
    twice.responses[1].partition_responses[0].index = 1
    topic_twice = all_appended(version, topics)
    topic_twice.responses[1] = topic_twice.responses[0]

    for response in (left_out, topic_left_out, twice, topic_twice):
        frame = frame_of(response, version)
        assert asked(version, topics).answer(version, frame, ID) == decode_response(
            ProduceResponse, version, frame, ID
        )


def test_topics_with_the_same_id_are_not_plain_success():
    topics: Topics = [(name, 1, [Sealed(Place(0), (b"h" * 61, b""))]) for name in "ab"]
    frame = frame_of(all_appended(13, topics), 13)

    assert isinstance(asked(13, topics).answer(13, frame, ID), ProduceResponse)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_or_too_long_response_is_a_protocol_error(version):
    topics: Topics = [("t", 3, [Sealed(Place(n), (b"h" * 61, b"")) for n in range(2)])]
    request, frame = asked(version, topics), frame_of(all_appended(version, topics), version)

    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            request.answer(version, frame[:length], ID)
    with pytest.raises(ProtocolError, match="1 bytes are left over"):
        request.answer(version, frame + b"\0", ID)


def test_a_response_to_another_request_is_rejected():
    topics: Topics = [("t", 3, [Sealed(Place(0), (b"h" * 61, b""))])]
    frame = frame_of(all_appended(13, topics), 13)

    with pytest.raises(CorrelationError):
        asked(13, topics).answer(13, struct.pack(">i", ID + 1) + frame[4:], ID)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_with_one_changed_byte_is_decoded_as_declared(version):
    topics: Topics = [("t", 3, [Sealed(Place(n), (b"h" * 61, b"")) for n in range(2)])]
    request, frame = asked(version, topics), frame_of(all_appended(version, topics), version)

    for at in range(4, len(frame)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            changed = frame[:at] + bytes([value]) + frame[at + 1 :]
            declared = outcome(lambda frame: decode_response(ProduceResponse, version, frame, ID), changed)
            answer = outcome(lambda frame: request.answer(version, frame, ID), changed)
            if isinstance(answer, Appended):
                assert isinstance(declared, ProduceResponse)
                assert answer.places == places_of(version, topics, declared)
                assert answer.throttle_time_ms == declared.throttle_time_ms
            else:
                assert answer == declared


def outcome(decode: Callable[[bytes], object], frame: bytes) -> object:
    """Return the result of `decode`, or the text of its ProtocolError."""
    try:
        return decode(frame)
    except ProtocolError as error:
        return str(error)


def test_quantiles_of_a_compiled_histogram_are_within_a_fifth():
    histogram = Buckets()
    for milliseconds in range(1, 1001):
        histogram.add(milliseconds / 1000)
    histogram.add(0.5, 9)

    assert (histogram.count, histogram.maximum) == (1009, 1.0)
    assert histogram.total == pytest.approx(500.5 + 4.5)
    assert histogram.quantile(0.5) == pytest.approx(0.5, rel=0.2)
    assert histogram.quantile(0.99) == pytest.approx(0.99, rel=0.2)
