"""A Produce request as the sender has it: the batches themselves, and no object of the declared message for each.

The frame, and the answer that says success for all of it, are compiled; any other answer is read as it is declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aioproducer.protocol._request_path import encode_produce, read_success
from aioproducer.protocol.api import decode_response
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.messages import ProduceResponse


class _Queue(Protocol):
    @property
    def partition(self) -> int: ...


class Sealed(Protocol):
    """What is asked of a batch: its partition, and its header and records as they go on the wire."""

    @property
    def queue(self) -> _Queue: ...

    def seal(self) -> tuple[bytes | memoryview, ...]: ...


class Appended:
    """The answer to a request of which every batch was appended."""

    __slots__ = ("places", "throttle_time_ms")

    def __init__(self, places: list[tuple[int, int, int, int]], throttle_time_ms: int) -> None:
        self.places = places
        """(number of the batch in the request, base offset, log append time, log start offset)"""
        self.throttle_time_ms = throttle_time_ms


class ProduceBatches:
    """At most one batch of each partition. `topics`: name, id as a number, batches."""

    __slots__ = ("_acks", "_places", "_timeout_ms", "_topics", "_transactional_id")

    api_key = ApiKey.PRODUCE

    def __init__(
        self,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        topics: Sequence[tuple[str, int, Sequence[Sealed]]],
    ) -> None:
        self._transactional_id = transactional_id
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._topics = topics
        self._places: dict[bytes, dict[int, int]] = {}

    def frame(self, version: int, correlation_id: int, client_id: str | None) -> list[bytes | memoryview]:
        """The segments of the request, the first of which starts with the length. Records are not copied.

        Raises:
            ValueError: a value does not fit its type on the wire.
        """
        segments, self._places = encode_produce(
            version,
            correlation_id,
            client_id,
            self._transactional_id,
            self._acks,
            self._timeout_ms,
            self._topics,
        )
        return segments

    def answer(self, version: int, frame: bytes, correlation_id: int) -> Appended | ProduceResponse:
        """What the broker says.

        Raises:
            CorrelationError: it answers another request.
            ProtocolError: it is no answer to a Produce request of this version, or bytes are left behind it.
        """
        success = read_success(version, frame, correlation_id, self._places)
        if success is None:
            return decode_response(ProduceResponse, version, frame, correlation_id)
        return Appended(*success)
