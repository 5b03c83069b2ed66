"""One batch of records on its way: open, closed, in flight, done.

The accumulator opens and closes it, the sender numbers, sends and ends it. The records themselves, and who waits for
them, are in the compiled base class."""

from __future__ import annotations

import logging
import struct
from asyncio import AbstractEventLoop
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from crc32c import crc32c

from aioproducer.errors import IllegalStateError
from aioproducer.protocol.compression import Codec
from aioproducer.protocol.recordbatch import HEADER_SIZE, LOG_OVERHEAD, MAGIC
from aioproducer.records._record_path import Batch, PartitionQueue
from aioproducer.types import Headers, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioproducer.protocol.outcomes import Moment
    from aioproducer.records.idempotence import ProducerIdentity

logger = logging.getLogger(__name__)


class BatchState(Enum):
    OPEN = "open"  # takes records
    CLOSED = "closed"  # waits to be sent, for the first time or again
    IN_FLIGHT = "in flight"  # written, not answered
    DONE = "done"  # its deliveries have their result

    __hash__ = (
        object.__hash__
    )  # members are singletons; Enum's own hash is a Python function, and this is per batch


TRANSITIONS: dict[BatchState, frozenset[BatchState]] = {
    BatchState.OPEN: frozenset({BatchState.CLOSED, BatchState.DONE}),
    BatchState.CLOSED: frozenset({BatchState.IN_FLIGHT, BatchState.DONE}),
    BatchState.IN_FLIGHT: frozenset({BatchState.CLOSED, BatchState.DONE}),
    BatchState.DONE: frozenset(),
}

_UNSUMMED = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, checksum
_SUMMED = struct.Struct(
    ">hiqqqhii"
)  # attributes, last offset delta, timestamps, producer, epoch, sequence, count
_NO_PRODUCER = (-1, -1, -1)
_TRANSACTIONAL = 0x10
NAMED = 0
"""In place of a topic's id: whichever topic had the name when the broker looked."""
NO_REFUSALS: Mapping[int, int] = MappingProxyType({})


class ProducerBatch(Batch):
    """Records of one partition that are sent, acknowledged or refused together."""

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
        "is_packing",
        "keeps_records",
        "last_error",
        "maybe_persisted",
        "moments",
        "order",
        "payload",
        "rebuilds",
        "refusals",
        "segments",
        "state",
        "unretrieved_errors",
        "wire_size",
    )

    def __init__(
        self,
        queue: PartitionQueue,
        loop: AbstractEventLoop,
        capacity: int,
        limit: int,
        *,
        order: tuple[int, int],
        created: float,
        deadline: float,
        unretrieved_errors: Callable[[ProducerBatch], None],
    ) -> None:
        super().__init__(queue, loop, capacity, limit)
        self.state = BatchState.OPEN
        self.order = order
        """Place among all batches of its partition: the number of the batch as it was opened, and the index in it of
        the first record, for the parts of one that was split."""
        self.created = created
        self.deadline = deadline
        self.keeps_records = False
        """No record is left out by its own timeout."""
        # set when it closes
        self.payload: bytes | memoryview = b""
        self.codec = Codec.NONE
        self.wire_size = HEADER_SIZE
        """Bytes on the wire; final when it is compressed."""
        self.rebuilds = 0
        """How often records were left out."""
        self.is_packing = False
        """A thread copies its large record, or compresses it."""
        # set when it is numbered: they name these bytes, for ever
        self.identity: ProducerIdentity | None = None
        self.first_sequence = -1
        self.segments: tuple[bytes | memoryview, ...] = ()
        # what became of it so far
        self.attempts = 0
        self.maybe_persisted = False
        """An attempt ended so that the records may be in the log."""
        self.doubted_in: frozenset[int] = frozenset()
        """The ids of the topics whose log that may be, NAMED for one that was addressed by its name."""
        self.refusals: Mapping[int, int] = NO_REFUSALS
        """How often a broker has answered each error code to these bytes."""
        self.moments: tuple[Moment, ...] = ()
        """What has passed while it was in flight and ends it unless it succeeds."""
        self.last_error: BaseException | None = None
        self.broker: int | None = None
        self.flushes: tuple[FlushWait, ...] = ()
        self.unretrieved_errors = unretrieved_errors

    def enter(
        self,
        queue: PartitionQueue,
        order: tuple[int, int],
        created: float,
        deadline: float,
        unretrieved_errors: Callable[[ProducerBatch], None],
    ) -> None:
        """A batch that the user built gets its place."""
        self.queue = queue
        self.order = order
        self.created = created
        self.deadline = deadline
        self.unretrieved_errors = unretrieved_errors

    def _move(self, to: BatchState) -> None:
        assert to in TRANSITIONS[self.state], f"a batch can't go from {self.state.value} to {to.value}"
        self.state = to

    def close(self) -> int:
        """Take no more records; returns the bytes of memory that it does not need."""
        self._move(BatchState.CLOSED)
        surplus = self.freeze()
        self._carry(self.records, Codec.NONE)
        return surplus

    def _carry(self, payload: bytes | memoryview, codec: Codec) -> None:
        self.payload = payload
        self.codec = codec
        self.wire_size = HEADER_SIZE + len(payload)

    def compressed(self, codec: Codec, payload: bytes | memoryview) -> None:
        """Send `payload` for the records, unless they did not shrink."""
        if not self.is_done and len(payload) < len(self.payload):
            self._carry(payload, codec)

    @property
    def live_count(self) -> int:
        """Records whose result is still the batch's: without those that are yet to be left out."""
        return self.record_count - len(self.withdrawn) + len(self.left_out)

    @property
    def has_live_records(self) -> bool:
        """Whether a record has no error of its own."""
        return len(self.record_errors or ()) < self.record_count + len(self.left_out)

    @property
    def may_withdraw(self) -> bool:
        """Whether a record can still be left out: nothing was ever sent."""
        return self.attempts == 0 and not self.is_numbered and not self.is_done and not self.keeps_records

    def rebuild(self) -> None:
        """Leave out what was withdrawn, before the first attempt. The records are uncompressed afterwards."""
        self.rebuilds += 1
        self.leave_out_withdrawn()
        self._carry(self.records, Codec.NONE)

    def part(
        self, loop: AbstractEventLoop, first: int, end: int, errors: dict[int, BaseException]
    ) -> ProducerBatch:
        """A closed batch with the records from index `first` to before `end`, in this one's place.

        Those that `errors` names are left out, and end with these errors when the part does.
        """
        room = self.size - HEADER_SIZE
        part = ProducerBatch(
            self.queue,
            loop,
            room,
            room,
            order=(self.order[0], self.order[1] + first),
            created=self.created,
            deadline=self.deadline,
            unretrieved_errors=self.unretrieved_errors,
        )
        part.take_records(self, first, end, errors)
        part.close()
        part.attempts, part.broker, part.last_error = self.attempts, self.broker, self.last_error
        part.doubted_in = self.doubted_in
        part.flushes = self.flushes
        return part

    def become(self, parts: list[tuple[int, ProducerBatch]]) -> None:
        """End this batch in favour of its parts, (first index, batch)."""
        self._move(BatchState.DONE)
        self._drop_bytes()
        self.split_into(parts)
        for waiting in self.flushes:
            waiting.left += len(parts) - 1

    @property
    def is_numbered(self) -> bool:
        return self.first_sequence >= 0

    @property
    def outcome(self) -> Outcome:
        return Outcome.UNKNOWN if self.maybe_persisted or self.doubted_in else Outcome.NOT_PERSISTED

    def doubt(self, topic_id: int) -> None:
        """An attempt that was addressed to this topic ended so that the records may be in its log."""
        self.maybe_persisted = True
        self.doubted_in |= {topic_id}

    def may_be_in(self, topic_id: int) -> bool:
        """Whether an attempt may have put the records into the log of the topic with this id."""
        return (self.maybe_persisted and not self.doubted_in) or bool(self.doubted_in & {NAMED, topic_id})

    def leave_for(self, topic_id: int) -> None:
        """Be sent to the topic with this id instead, in whose log the records can't be. The numbers are void."""
        assert not self.may_be_in(topic_id)
        self.maybe_persisted = False
        self.number(None, -1)

    def number(self, identity: ProducerIdentity | None, first_sequence: int) -> None:
        """Give the batch its name in the log. May be changed only while no attempt can have been persisted."""
        assert not self.maybe_persisted
        self.identity = identity
        self.first_sequence = first_sequence
        self.segments = ()

    def seal(self) -> tuple[bytes | memoryview, ...]:
        """The bytes to send, the same at each attempt. The header is made once it is numbered: it is checksummed."""
        assert self.is_whole
        if not self.segments:
            identity, first = self.identity, self.first_sequence
            numbers = _NO_PRODUCER if identity is None else (identity.producer_id, identity.epoch, first)
            # The bit comes from the identity alone: a transactional batch without a producer id, or the reverse, would
            # be appended outside of any transaction, and nobody would complain.
            is_transactional = identity is not None and identity.is_transactional
            self.segments = (self._header(*numbers, is_transactional), self.payload)
        return self.segments

    def is_intact(self) -> bool:
        """Whether the bytes that were sent still match the checksum in their header."""
        if not self.segments:
            return True
        header, payload = self.segments
        checksum = _UNSUMMED.unpack_from(header)[-1]
        return bool(crc32c(payload, crc32c(header[_UNSUMMED.size :])) == checksum)

    def was_refused(self, code: int) -> None:
        """Count an answer with this error code."""
        self.refusals = {**self.refusals, code: self.refusals.get(code, 0) + 1}

    def _header(
        self, producer_id: int, producer_epoch: int, first_sequence: int, is_transactional: bool
    ) -> bytes:
        # recordbatch.py draws the layout. The checksum covers everything behind itself.
        summed = _SUMMED.pack(
            self.codec | (_TRANSACTIONAL if is_transactional else 0),
            self.record_count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            first_sequence,
            self.record_count,
        )
        checksum = crc32c(self.payload, crc32c(summed))
        # The base offset is the broker's to give; it does not look at the leader epoch.
        return _UNSUMMED.pack(0, self.wire_size - LOG_OVERHEAD, -1, MAGIC, checksum) + summed

    def sent(self, broker: int) -> None:
        self._move(BatchState.IN_FLIGHT)
        self.broker = broker
        self.attempts += 1

    def returned(self) -> None:
        """An attempt ended without success and the batch will be sent again."""
        self._move(BatchState.CLOSED)

    def succeed(self, base_offset: int, log_append_time: int, log_start_offset: int) -> None:
        """The records are in the log; all deliveries are resolved."""
        self._move(BatchState.DONE)
        self._drop_bytes()
        self.complete(base_offset, log_append_time, log_start_offset)

    def give_up(self, error: BaseException) -> None:
        """All deliveries fail with `error`."""
        self._move(BatchState.DONE)
        self._drop_bytes()
        self.fail(error)

    def _drop_bytes(self) -> None:
        # Only our references: a transport that still writes them holds its own.
        self.payload = b""
        self.segments = ()

    def __del__(self) -> None:
        if self.unretrieved and self.parts is None and (self.error is not None or self.record_errors):
            self.unretrieved_errors(self)


class FlushWait:
    """Somebody waits until a number of batches have ended."""

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
        """Wait no longer."""
        if not self.future.done():
            self.future.set_result(None)


class BatchBuilder:
    """A batch that the user fills: `Producer.create_batch()` makes it, `Producer.send_batch()` sends it."""

    def __init__(
        self,
        queue: PartitionQueue,
        loop: AbstractEventLoop,
        limit: int,
        serialize: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        self._batch = ProducerBatch(
            queue,
            loop,
            min(1024, limit),
            limit,
            order=(-1, 0),
            created=0,
            deadline=0,
            unretrieved_errors=_nobody,
        )
        self._serialize = serialize
        self._is_closed = False

    def append(
        self,
        *,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> BatchRecordMetadata | None:
        """Add a record, serialized by the producer's serializers; None if the batch is closed, or full and so closed.

        Raises:
            InvalidRecordError: a value is not bytes, a header not (str, bytes), a timestamp below 0.
            SerializationError: a serializer raised; its error is the cause.
            IllegalStateError: a serializer is async.
        """
        if self._is_closed:
            return None
        if self._serialize is not None:
            key, value = self._serialize(key, value)
        size = self._batch.size
        if not self._batch.try_append(value, key, timestamp, headers or None):
            self._is_closed = True  # a smaller record may not overtake the one that did not fit
            return None
        return BatchRecordMetadata(
            self._batch.record_count - 1, self._batch.size - size, self._batch.last_timestamp
        )

    def close(self) -> None:
        """Take no more records."""
        self._is_closed = True

    def closed(self) -> bool:
        """Whether it takes no more records: it was full, closed or sent."""
        return self._is_closed

    def size(self) -> int:
        """Bytes, uncompressed."""
        return self._batch.size

    def record_count(self) -> int:
        """How many records were appended."""
        return self._batch.record_count

    def take(self) -> ProducerBatch:
        """The batch, to be sent; once."""
        batch = self._batch
        if batch.order[0] >= 0:
            raise IllegalStateError("this batch was sent before; make a new one with create_batch()")
        if batch.record_count == 0:
            raise IllegalStateError("this batch is empty; append a record first")
        self._is_closed = True
        if batch.state is BatchState.OPEN:
            batch.close()
            batch.reserved = batch.size - HEADER_SIZE  # what it will take; nothing was reserved so far
        return batch


class BatchRecordMetadata(NamedTuple):
    """A record's place in a batch that is being built."""

    offset: int
    size: int
    """Bytes that the record took."""
    timestamp: int


def _nobody(batch: ProducerBatch) -> None:
    """For a batch that was never sent."""
