"""A Produce request that consists of batches, and its responses: the compiled decoding of plain success, and the
declared decoding of all others."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from aioproducer.errors import CorrelationError, ProtocolError
from aioproducer.protocol.api import encode_response
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.produce import MOST_EXTRA, Appended, ProduceBatches

VERSION, ID = 9, 7


class Queue(NamedTuple):
    partition: int


class Batch(NamedTuple):
    queue: Queue
    segments: tuple[bytes, ...]
    record_count: int = 1

    def seal(self) -> tuple[bytes, ...]:
        return self.segments


def request() -> ProduceBatches:
    return ProduceBatches(None, -1, 30_000, [("t", 0, [Batch(Queue(2), (b"header", b"records"))])])


def answer(error: ErrorCode = ErrorCode.NONE, correlation_id: int = ID) -> bytes:
    partition = ProduceResponse.PartitionProduceResponse(
        index=2, error_code=error, base_offset=40, log_append_time_ms=-1, log_start_offset=3
    )
    topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[partition])
    return b"".join(encode_response(ProduceResponse(responses=[topic]), VERSION, correlation_id))[4:]


def test_the_frame_contains_the_records_without_a_copy():
    records = b"records" * 1000
    batches = [Batch(Queue(2), (b"header", records))]
    segments = ProduceBatches(None, -1, 30_000, [("t", 0, batches)]).frame(VERSION, ID, "client")
    size = int.from_bytes(bytes(segments[0])[:4], "big")

    assert size == sum(map(len, segments)) - 4
    assert any(segment is records for segment in segments)
    assert b"header" in b"".join(segments)


def test_success_for_all_batches_is_reported_by_their_index_in_the_request():
    asked = request()
    asked.frame(VERSION, ID, "client")

    found = asked.answer(VERSION, answer(), ID)

    assert isinstance(found, Appended)
    assert found.places == [(0, 40, -1, 3)]
    assert found.throttle_time_ms == 0


def test_a_response_with_an_error_is_decoded_as_declared():
    asked = request()
    asked.frame(VERSION, ID, "client")

    found = asked.answer(VERSION, answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), ID)

    assert isinstance(found, ProduceResponse)
    assert found.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_response_to_another_request_is_an_error():
    asked = request()
    asked.frame(VERSION, ID, "client")

    with pytest.raises(CorrelationError):
        asked.answer(VERSION, answer(correlation_id=8), ID)


# Responses that are larger than their request allows

Partition = ProduceResponse.PartitionProduceResponse
RecordError = ProduceResponse.BatchIndexAndErrorMessage
Topic = ProduceResponse.TopicProduceResponse


def answered(
    topics: list[ProduceResponse.TopicProduceResponse], *, records: int = 1, **fields: object
) -> Appended | ProduceResponse:
    """Decode a response to a request with one batch of `records` records for partition 2 of topic t."""
    asked = ProduceBatches(None, -1, 30_000, [("t", 0, [Batch(Queue(2), (b"header", b"records"), records)])])
    asked.frame(VERSION, ID, "client")
    frame = b"".join(encode_response(ProduceResponse(responses=topics, **fields), VERSION, ID))[4:]
    return asked.answer(VERSION, frame, ID)


def test_a_response_that_is_too_large_for_its_request_is_rejected_before_it_is_decoded():
    partitions = [Partition(index=2, error_code=ErrorCode.INVALID_RECORD)] * 50_000

    with pytest.raises(ProtocolError, match=r"limit for its request of 1 batch and 7 records is 73216 bytes"):
        answered([Topic(name="t", partition_responses=partitions)], records=7)


def test_the_longest_texts_of_kafka_for_each_record_are_accepted():
    name = "t" * 249
    texts = [f"Compacted topic cannot accept message without key in topic partition {name}-99999."] * 5000
    errors = [RecordError(batch_index=at, batch_index_error_message=text) for at, text in enumerate(texts)]
    summary = (
        f"One or more records have been rejected due to 5000 record errors in total, and only: {texts[:3]}"
    )
    partition = Partition(
        index=2, error_code=ErrorCode.INVALID_RECORD, record_errors=errors, error_message=summary
    )

    response = answered([Topic(name="t", partition_responses=[partition])], records=5000)

    assert isinstance(response, ProduceResponse)
    assert len(response.responses[0].partition_responses[0].record_errors) == 5000


def test_many_more_record_errors_than_records_are_rejected():
    def topics(count: int) -> list[ProduceResponse.TopicProduceResponse]:
        halves = [[RecordError()] * (count // 2), [RecordError()] * (count - count // 2)]
        partitions = [
            Partition(index=2 + number, error_code=ErrorCode.INVALID_RECORD, record_errors=errors)
            for number, errors in enumerate(halves)
        ]
        return [Topic(name="t", partition_responses=partitions)]

    assert answered(topics(7 + MOST_EXTRA), records=7)
    with pytest.raises(
        ProtocolError, match=rf"{8 + MOST_EXTRA} record errors; the limit .* is {7 + MOST_EXTRA}"
    ):
        answered(topics(8 + MOST_EXTRA), records=7)


@pytest.mark.parametrize("spread", [True, False])
def test_many_more_partitions_than_in_the_request_are_rejected(spread):
    def topics(count: int) -> list[ProduceResponse.TopicProduceResponse]:
        partitions = [Partition(index=2)] * count
        if spread:
            return [Topic(name="t", partition_responses=[one]) for one in partitions]
        return [Topic(name="t", partition_responses=partitions)]

    assert answered(topics(1 + MOST_EXTRA))
    with pytest.raises(ProtocolError, match=rf"(topics|partitions); the limit .* is {1 + MOST_EXTRA}"):
        answered(topics(2 + MOST_EXTRA))
