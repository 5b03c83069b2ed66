"""A Produce request that refers to the sender's batches directly, without creating the declared message's objects.

Compiled code encodes the frame and decodes a response that reports success for every batch. Any other response is
decoded with the declared message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from aioproducer.protocol._request_path import encode_produce, read_success
from aioproducer.protocol.api import decode_response
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.messages import ProduceResponse


class _Queue(Protocol):
    @property
    def partition(self) -> int: ...


class Sealed(Protocol):
    """The interface of a batch: its partition, and its header and records as encoded for the wire."""

    @property
    def queue(self) -> _Queue: ...

    @property
    def segments(self) -> tuple[bytes | memoryview, ...]: ...


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
            ProtocolError: the frame is not a Produce response of this version, or bytes are left over.
        """
        success = read_success(version, frame, correlation_id, self._places)
        if success is None:
            return decode_response(ProduceResponse, version, frame, correlation_id)
        return Appended(*success)
