"""A Produce request that consists of batches, and its responses: plain success, and all others as declared."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from aioproducer.errors import CorrelationError
from aioproducer.protocol.api import encode_response
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.protocol.produce import Appended, ProduceBatches

VERSION, ID = 9, 7


class Queue(NamedTuple):
    partition: int


class Batch(NamedTuple):
    queue: Queue
    segments: tuple[bytes, ...]

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
