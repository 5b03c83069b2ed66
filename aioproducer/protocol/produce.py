"""A Produce request that refers to the sender's batches directly, without creating the declared message's objects.

Compiled code encodes the frame and decodes a response that reports success for every batch. Any other response is
decoded with the declared message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from aioproducer.errors import ProtocolError, counted
from aioproducer.protocol._request_path import encode_produce, read_success
from aioproducer.protocol.api import decode_response
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.messages import ProduceResponse

ROOM = 64 * 1024
ROOM_PER_BATCH = 4 * 1024
ROOM_PER_RECORD = 512
"""The maximum size of a response in bytes: ROOM, plus ROOM_PER_BATCH for each batch, plus ROOM_PER_RECORD for each
record. Even with the longest topic name, Kafka's error texts are shorter than 2 KiB for a batch, and shorter than 340
bytes for each of its records (KIP-467)."""
MOST_EXTRA = 100
"""The number of partitions, and of record errors, by which a response may exceed its request. The sender ignores or
rejects the surplus and applies the rest of the response."""


class _Queue(Protocol):
    @property
    def partition(self) -> int: ...


class Sealed(Protocol):
    """The interface of a batch: its partition, the number of its records, and its header and records as encoded for the
    wire."""

    @property
    def queue(self) -> _Queue: ...

    @property
    def segments(self) -> tuple[bytes | memoryview, ...]: ...

    @property
    def record_count(self) -> int: ...


class Appended(NamedTuple):
    """The response to a request whose batches were all appended."""

    places: list[tuple[int, int, int, int]]
    """For each batch: (its number in the request, base offset, log append time, log start offset)."""
    throttle_time_ms: int


@dataclass(slots=True, eq=False, repr=False)
class ProduceBatches:
    """A Produce request with at most one batch per partition. Each topic is a tuple (name, id as a number, batches)."""

    api_key: ClassVar = ApiKey.PRODUCE

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[tuple[str, int, Sequence[Sealed]]]
    _places: dict[bytes, dict[int, int]] = field(default_factory=dict, init=False)

    def frame(self, version: int, correlation_id: int, client_id: str | None) -> list[bytes | memoryview]:
        """Encode the request as a list of segments, the first of which starts with the length. Records are not copied.

        Raises:
            ValueError: a value does not fit its type on the wire.
        """
        segments, self._places = encode_produce(
            version,
            correlation_id,
            client_id,
            self.transactional_id,
            self.acks,
            self.timeout_ms,
            self.topics,
        )
        return segments

    def answer(self, version: int, frame: bytes, correlation_id: int) -> Appended | ProduceResponse:
        """Decode the broker's response.

        Raises:
            CorrelationError: the frame is the response to another request.
            ProtocolError: the frame is not a Produce response of this version, bytes are left over, or the response is
                larger than any response to this request.
        """
        success = read_success(version, frame, correlation_id, self._places)
        if success is not None:
            return Appended(*success)
        batches = [batch for _, _, part in self.topics for batch in part]
        records = sum(batch.record_count for batch in batches)
        # The size is checked first: a broker could otherwise block the event loop for seconds with one response.
        most = ROOM + ROOM_PER_BATCH * len(batches) + ROOM_PER_RECORD * records
        if len(frame) > most:
            raise ProtocolError(
                f"a Produce response of {len(frame)} bytes; the limit for its request of "
                f"{counted(len(batches), 'batch', 'batches')} and {counted(records, 'record')} is {most} bytes"
            )
        response = decode_response(ProduceResponse, version, frame, correlation_id)
        _check_counts(response, len(batches) + MOST_EXTRA, records + MOST_EXTRA)
        return response


def _check_counts(response: ProduceResponse, most: int, most_errors: int) -> None:
    """Raise ProtocolError if a response has more than `most` partitions or more than `most_errors` record errors."""
    _check_count(len(response.responses), "topic", most)
    partitions = errors = 0
    for topic in response.responses:
        partitions += len(topic.partition_responses)
        _check_count(partitions, "partition", most)
        errors += sum(len(partition.record_errors) for partition in topic.partition_responses)
        _check_count(errors, "record error", most_errors)


def _check_count(count: int, of: str, most: int) -> None:
    if count > most:
        raise ProtocolError(
            f"a Produce response with {counted(count, of)}; the limit for its request is {most}"
        )
