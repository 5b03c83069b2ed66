"""One batch of records and its states: open, closed, in flight, done.

The accumulator opens and closes a batch; the sender numbers, sends and ends it. The compiled base class contains the
encoded records and their deliveries."""

from __future__ import annotations

import struct
from asyncio import AbstractEventLoop
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from crc32c import crc32c

from aioproducer.errors import IllegalStateError, RecordTooLargeError
from aioproducer.protocol._request_path import batch_header
from aioproducer.protocol.compression import Codec
from aioproducer.protocol.recordbatch import HEADER_SIZE
from aioproducer.records._record_path import NO_ORDER, Batch, BatchState, PartitionQueue
from aioproducer.types import Headers, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aioproducer.protocol.outcomes import Moment
    from aioproducer.records.idempotence import ProducerIdentity

_UNSUMMED = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, checksum
_NO_IDENTITY = (-1, -1, False)
_TRANSACTIONAL = 0x10
NAMED = 0
"""The value used in place of a topic id if the topic was addressed by name."""
NO_TOPICS: frozenset[int] = frozenset()
NO_REFUSALS: Mapping[int, int] = MappingProxyType({})


class ProducerBatch(Batch):
    """Records for one partition that are sent, acknowledged or rejected together."""

    __slots__ = (
        "attempts",
        "broker",
        "codec",
        "created",
        "deadline",
        "doubted_in",
        "first_sequence",
        "flushes",
        "identity",
        "is_being_compressed",
        "is_counted",
        "keeps_records",
        "last_error",
        "maybe_persisted",
        "moments",
        "order",
        "payload",
        "rebuilds",
        "refusals",
        "segments",
        "wire_size",
    )

    def __init__(
        self,
        queue: PartitionQueue,
        loop: AbstractEventLoop,
        capacity: int,
        limit: int,
        order: tuple[int, int],
        created: float,
        deadline: float,
    ) -> None:
        Batch.__init__(self, queue, loop, capacity, limit)  # super() would take longer
        self.order = order
        """The position among all batches for the partition: the number that the batch received when it was opened,
        and, if the batch is part of one that was split, the index of its first record there (otherwise 0)."""
        self.created = created
        self.deadline = deadline
        self.keeps_records = False
        """True if records must not be left out when their own timeouts pass (enable_gapless_order)."""
        # set when the batch closes
        self.payload: bytes | memoryview = b""
        self.codec = Codec.NONE
        self.wire_size = HEADER_SIZE
        """The size on the wire in bytes; final once the batch is compressed."""
        self.rebuilds = 0
        """The number of times that the batch was rebuilt to leave out withdrawn records."""
        self.is_being_compressed = False
        """True while the batch is waiting for a thread to copy its large value or to compress its records."""
        # set when the batch is numbered; from then on the numbers identify its bytes
        self.identity: ProducerIdentity | None = None
        self.first_sequence = -1
        self.segments: tuple[bytes | memoryview, ...] = ()
        """The header and the records of a sealed batch, as they are sent."""
        # the history of the batch
        self.attempts = 0
        self.maybe_persisted = False
        """True if an earlier attempt may have appended the records to the log."""
        self.doubted_in = NO_TOPICS
        """The ids of the topics whose logs may contain the records; NAMED for a topic that was addressed by name."""
        self.refusals: Mapping[int, int] = NO_REFUSALS
        """The number of error responses to this batch, by error code."""
        self.moments: tuple[Moment, ...] = ()
        """Events that occurred while the batch was in flight. These events end the batch unless the attempt
        succeeds."""
        self.last_error: BaseException | None = None
        self.broker: int | None = None
        self.flushes: tuple[FlushWait, ...] = ()
        self.is_counted = False
        """True from just before the records are counted by outcome, so that metrics() in another thread does not also
        count them as buffered."""

    def enter(self, queue: PartitionQueue, order: tuple[int, int], created: float, deadline: float) -> None:
        """Assign a place in a queue to a batch that the user built."""
        self.queue = queue
        self.order = order
        self.created = created
        self.deadline = deadline

    def close(self) -> int:
        """Close the batch to further records. Return the number of reserved bytes that it does not need."""
        surplus = self.freeze()
        self.payload = self.records
        self.wire_size = HEADER_SIZE + len(self.payload)
        return surplus

    def _carry(self, payload: bytes | memoryview, codec: Codec) -> None:
        self.payload = payload
        self.codec = codec
        self.wire_size = HEADER_SIZE + len(payload)

    def use_compressed(self, codec: Codec, payload: bytes | memoryview) -> None:
        """Replace the encoded records with the compressed `payload` if it is smaller."""
        if self.state is not BatchState.DONE and len(payload) < len(self.payload):
            self._carry(payload, codec)

    @property
    def live_count(self) -> int:
        """The number of records that were not withdrawn and thus share the batch's result."""
        return self.record_count - len(self.withdrawn) + len(self.left_out)

    @property
    def has_live_records(self) -> bool:
        """Whether the batch has a record without an error of its own."""
        return len(self.record_errors or ()) < self.record_count + len(self.left_out)

    @property
    def may_withdraw(self) -> bool:
        """Whether records may still be left out. False once the batch is numbered, sent or done, and always if it
        `keeps_records`."""
        is_new = self.attempts == 0 and not self.is_numbered
        return is_new and not self.keeps_records and self.state is not BatchState.DONE

    def drop_withdrawn(self) -> None:
        """Leave out withdrawn records; allowed only before the first attempt. The payload is uncompressed
        afterwards."""
        self.rebuilds += 1
        self.leave_out_withdrawn()
        self._carry(self.records, Codec.NONE)

    def part(
        self, loop: AbstractEventLoop, first: int, end: int, errors: dict[int, BaseException]
    ) -> ProducerBatch:
        """Return a closed batch with the records from index `first` up to, but not including, `end`.

        Records in `errors` are left out; they fail with those errors when the new batch completes.
        """
        room = self.size - HEADER_SIZE
        part = ProducerBatch(
            self.queue,
            loop,
            room,
            room,
            (self.order[0], self.order[1] + first),
            self.created,
            self.deadline,
        )
        part.take_records(self, first, end, errors)
        part.close()
        part.attempts, part.broker, part.last_error = self.attempts, self.broker, self.last_error
        part.doubted_in = self.doubted_in
        part.flushes = self.flushes
        return part

    def replace_with(self, parts: list[tuple[int, ProducerBatch]]) -> None:
        """End this batch and replace it with its parts, a list of (first index, batch)."""
        self._drop_bytes()
        self.split_into(parts)
        for waiting in self.flushes:
            waiting.left += len(parts) - 1

    @property
    def is_numbered(self) -> bool:
        return self.first_sequence >= 0

    @property
    def outcome(self) -> Outcome:
        """The outcome that the records would have if the batch failed now: UNKNOWN if an attempt may have reached a
        log, otherwise NOT_PERSISTED.

        The batch's errors report this outcome. An attempt in flight counts only once it is noted in `maybe_persisted`.
        """
        return Outcome.UNKNOWN if self.maybe_persisted or self.doubted_in else Outcome.NOT_PERSISTED

    def doubt(self, topic_id: int) -> None:
        """Remember that an attempt may have appended the records to this topic's log."""
        self.maybe_persisted = True
        self.doubted_in |= {topic_id}

    def may_be_in(self, topic_id: int) -> bool:
        """Return whether the records may be in the log of the topic with this id."""
        return (self.maybe_persisted and not self.doubted_in) or bool(self.doubted_in & {NAMED, topic_id})

    def leave_for(self, topic_id: int) -> None:
        """Redirect the batch to the topic with this id, whose log cannot contain the records yet. Discard the
        batch's numbers."""
        assert not self.may_be_in(topic_id)
        self.maybe_persisted = False
        self.number(None, -1)

    def number(self, identity: ProducerIdentity | None, first_sequence: int) -> None:
        """Set the producer id, epoch and sequence. These numbers may change only while the records cannot be in a
        log."""
        assert not self.maybe_persisted
        self.identity = identity
        self.first_sequence = first_sequence
        self.segments = ()

    def seal(self) -> tuple[bytes | memoryview, ...]:
        """Return the bytes to send, which are the same for each attempt. The first call after numbering builds the
        header."""
        assert self.is_whole
        if not self.segments:
            # The transactional bit depends on the identity alone. A batch with only the bit or only the producer id
            # would be appended outside any transaction, without an error.
            producer_id, epoch, is_transactional = self.identity or _NO_IDENTITY
            header = batch_header(
                self.payload,
                self.codec | (_TRANSACTIONAL if is_transactional else 0),
                self.record_count,
                self.base_timestamp,
                self.max_timestamp,
                producer_id,
                epoch,
                -1 if self.identity is None else self.first_sequence,
            )
            self.segments = (header, self.payload)
        return self.segments

    def is_intact(self) -> bool:
        """Return whether the bytes that were sent still match the checksum in the header."""
        if not self.segments:
            return True
        header, payload = self.segments
        checksum = _UNSUMMED.unpack_from(header)[-1]
        return bool(crc32c(payload, crc32c(header[_UNSUMMED.size :])) == checksum)

    def count_refusal(self, code: int) -> None:
        """Count an error response with this code."""
        self.refusals = {**self.refusals, code: self.refusals.get(code, 0) + 1}

    def mark_sent(self, broker: int) -> None:
        """Seal the batch for an attempt that begins now. An idempotent producer numbers the batch before the first
        attempt."""
        assert self.state is BatchState.CLOSED
        self.state = BatchState.IN_FLIGHT
        self.broker = broker
        self.attempts += 1
        self.seal()

    def mark_returned(self) -> None:
        """Return the batch to the closed state after a failed attempt; it will be sent again."""
        assert self.state is BatchState.IN_FLIGHT
        self.state = BatchState.CLOSED

    def succeed(self, base_offset: int, log_append_time: int, log_start_offset: int) -> None:
        """End the batch without an error of its own: the records are in the log or, with acks=0, were written to the
        connection.

        Records that have errors of their own, possibly all records in the batch, fail with those errors.
        """
        self._drop_bytes()
        self.complete(base_offset, log_append_time, log_start_offset)

    def give_up(self, error: BaseException) -> None:
        """Fail all deliveries with `error`."""
        self._drop_bytes()
        self.fail(error)

    def _drop_bytes(self) -> None:
        # A transport that is still writing these bytes has its own references.
        self.payload = b""
        self.segments = ()


class FlushWait:
    """Waits until all of the given batches have ended."""

    __slots__ = ("future", "left")

    def __init__(self, loop: AbstractEventLoop, batches: list[ProducerBatch]) -> None:
        self.future = loop.create_future()
        self.left = len(batches)
        for batch in batches:
            batch.flushes += (self,)
        if not batches:
            self.end()

    def one_ended(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.end()

    def end(self) -> None:
        """End the wait."""
        if not self.future.done():
            self.future.set_result(None)


Row = tuple[Any, Any, int | None, Headers | None]
"""The value and key of a record before serialization, its timestamp, and its headers."""


def _empty_batch(queue: PartitionQueue, loop: AbstractEventLoop, limit: int) -> ProducerBatch:
    return ProducerBatch(
        queue,
        loop,
        min(1024, limit),
        limit,
        NO_ORDER,
        created=0,
        deadline=0,
    )


class BatchBuilder:
    """A batch that the user fills: created by `Producer.create_batch()`, sent by `Producer.send_batch()`."""

    def __init__(
        self,
        queue: PartitionQueue,
        loop: AbstractEventLoop,
        limit: int,
        serialize: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        *,
        keeps_rows: bool = False,
    ) -> None:
        self._make_batch = partial(_empty_batch, queue, loop)
        self._batch = self._make_batch(limit)
        self._serialize = serialize
        self._is_closed = False
        self.rows: list[Row] | None = [] if keeps_rows else None
        """The records before serialization, for the interceptors."""

    def append(
        self,
        *,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> BatchRecordMetadata | None:
        """Add a record, serialized with the producer's serializers. Return None if the batch is closed or full.

        Raises:
            InvalidRecordError: a key or value is not bytes, a header is not (str, bytes), or a timestamp is negative.
            SerializationError: a serializer raised an exception (the `__cause__`).
            IllegalStateError: a serializer is async.
        """
        if self._is_closed:
            return None
        given_value, given_key = value, key
        if self._serialize is not None:
            key, value = self._serialize(key, value)
        size = self._batch.size
        if not self._batch.try_append(value, key, timestamp, headers or None):
            self._is_closed = True  # otherwise, a smaller record could overtake this one
            return None
        if self.rows is not None:
            self.rows.append((given_value, given_key, self._batch.last_timestamp, headers))
        return BatchRecordMetadata(
            self._batch.record_count - 1, self._batch.size - size, self._batch.last_timestamp
        )

    def close(self) -> None:
        """Close the batch to further records."""
        self._is_closed = True

    def closed(self) -> bool:
        """Return whether the batch is closed to further records: full, closed or sent."""
        return self._is_closed

    def size(self) -> int:
        """Return the uncompressed size in bytes."""
        return self._batch.size

    def record_count(self) -> int:
        """Return the number of records."""
        return self._batch.record_count

    def replace_rows(self, rows: Iterable[Row], limit: int) -> None:
        """Encode the records again with the interceptors' changes, in a new batch of at most `limit` bytes.

        Raises:
            InvalidRecordError, SerializationError: as for `append`.
            RecordTooLargeError: the records exceed the limit.
            IllegalStateError: the batch has already been sent.
        """
        self._check_is_unsent()
        batch = self._make_batch(limit)
        for value, key, timestamp, headers in rows:
            if self._serialize is not None:
                key, value = self._serialize(key, value)
            if not batch.try_append(value, key, timestamp, headers or None):
                raise RecordTooLargeError(
                    f"the batch exceeds the limit of {limit} bytes (max_request_size, or buffer_memory if that is "
                    "smaller) after the interceptors' changes",
                    size=batch.size,
                    limit=limit,
                )
        self._batch = batch

    def take(self) -> ProducerBatch:
        """Return the batch to be sent. take() may be called again until the batch has entered a queue."""
        self._check_is_unsent()
        batch = self._batch
        if batch.record_count == 0:
            raise IllegalStateError("this batch is empty; append a record first")
        self._is_closed = True
        if batch.state is BatchState.OPEN:
            batch.close()
            batch.reserved = batch.size - HEADER_SIZE  # the size to reserve; nothing is reserved yet
        return batch

    def _check_is_unsent(self) -> None:
        if self._batch.order[0] >= 0:
            raise IllegalStateError("this batch has already been sent; create a new one with create_batch()")


class BatchRecordMetadata(NamedTuple):
    """The position of a record in a batch that is being built."""

    offset: int
    size: int
    """The number of bytes that the record occupies in the batch."""
    timestamp: int
