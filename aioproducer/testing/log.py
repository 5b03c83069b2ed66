"""One partition's log: whole batches as they came, and what is remembered of each producer.

Called by Partition only. Nothing here awaits, and nothing on the way of an append looks at a single record: a
batch keeps its bytes, only base offset and leader epoch (its first 16 bytes) are written anew.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import crc32c

from aioproducer.compression import Codec
from aioproducer.errors import ProtocolError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.recordbatch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    NO_PRODUCER_ID,
    BatchHeader,
    Record,
    check_crc,
    read_header,
    read_records,
    split_batches,
)
from aioproducer.testing.decompression import decompress

NO_TIMESTAMP = -1
MAX_SEQUENCE = 2**31 - 1

# Base offset, batch length, leader epoch: the checksum begins after them, with the attributes.
_PREFIX = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")

_MAX_UNCOMPRESSED = 1 << 30  # bytes


class AppendError(Exception):
    """The broker refuses a batch, and the log stays as it was."""

    def __init__(self, code: ErrorCode, message: str, *, tells_log_start: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.tells_log_start = tells_log_start
        """Kafka answers the log start offset as well: of errors that it does not take for everyday ones."""


_WITHOUT_EFFECT = frozenset(
    {
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "preallocate",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Settings of Kafka's TopicConfig that are taken and change nothing: this log keeps every record as it came."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's settings, by Kafka's names with dots for underscores."""

    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    min_insync_replicas: int = 1

    def changed(self, settings: Mapping[str, str | None]) -> LogConfig:
        """This config with some settings changed, written as Kafka does: {"max.message.bytes": "1000"}.

        Raises:
            ValueError: a name is unknown or a value makes no sense.
        """
        values: dict[str, int | str] = {}
        for name, text in settings.items():
            if name in _WITHOUT_EFFECT:
                continue
            field = name.replace(".", "_")
            if field not in self.__slots__ or text is None:
                raise ValueError(f"unknown topic config {name}={text}")
            if field == "message_timestamp_type":
                if text not in ("CreateTime", "LogAppendTime"):
                    raise ValueError(f"{name}={text} is neither CreateTime nor LogAppendTime")
                values[field] = text
            else:
                values[field] = int(text)
        return replace(self, **values)  # type: ignore[arg-type]  # one dict of two value types


class Batch(NamedTuple):
    """A batch in the log: its header, read once, and its bytes."""

    header: BatchHeader
    data: bytes

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.header.last_offset

    def records(self) -> Iterator[Record]:
        """The records, uncompressed."""
        payload = memoryview(self.data)[HEADER_SIZE:]
        codec = self.header.codec
        if codec is not Codec.NONE:
            payload = memoryview(decompress(codec, payload, _MAX_UNCOMPRESSED))
        return read_records(payload, self.header)


class Appended(NamedTuple):
    """Where a batch went. A duplicate tells of the batch that came first."""

    base_offset: int
    last_offset: int
    log_append_time: int
    """In milliseconds, -1 if the topic keeps the records' own timestamps."""
    duplicate: bool = False


class PartitionLog:
    """Batches in order of their offsets, with the producer state that idempotence rests on."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.start_offset = 0
        self.end_offset = 0
        """Offset of the next record."""
        self.batches: list[Batch] = []
        self.producers: dict[int, ProducerState] = {}

    def append(self, records: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> Appended:
        """Append one batch that `validate` passed, or recognise it as a duplicate.

        Raises:
            AppendError: the sequence or the epoch does not fit what is known of the producer.
        """
        state = None
        if header.producer_id != NO_PRODUCER_ID:
            state = self.producers.get(header.producer_id)
            if state is None:
                # Nothing is known of this producer, so any first sequence is taken (Kafka before 4.5).
                state = ProducerState(header.producer_epoch)
            duplicate = state.find_duplicate(header)
            if duplicate is not None:
                # Kafka answers with the batch's largest timestamp here, also on a CreateTime topic.
                return Appended(duplicate.base_offset, duplicate.last_offset, duplicate.max_timestamp, True)
            state.check(header)
        batch = self._stamped(records, header, leader_epoch, now_ms)
        if state is not None:
            state.remember(batch)
            self.producers[header.producer_id] = state
        self.batches.append(batch)
        self.end_offset = batch.last_offset + 1
        log_append_time = now_ms if batch.header.log_append_time else NO_TIMESTAMP
        return Appended(batch.header.base_offset, batch.last_offset, log_append_time)

    def _stamped(self, records: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int) -> Batch:
        """The batch as the log keeps it: numbered, and with the broker's time if the topic wants that."""
        base_offset = self.end_offset
        prefix = _PREFIX.pack(base_offset, header.length, leader_epoch)
        header = header._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
        if self.config.message_timestamp_type == "CreateTime":
            return Batch(header, b"".join((prefix, records[_PREFIX.size :])))
        data = bytearray(records)
        data[: _PREFIX.size] = prefix
        attributes = header.attributes | LOG_APPEND_TIME
        _ATTRIBUTES.pack_into(data, ATTRIBUTES_AT, attributes)
        _MAX_TIMESTAMP.pack_into(data, MAX_TIMESTAMP_AT, now_ms)
        crc = crc32c.crc32c(memoryview(data)[ATTRIBUTES_AT:])
        _CRC.pack_into(data, CRC_AT, crc)
        return Batch(header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc), bytes(data))

    def read(self, offset: int, max_bytes: int, *, before: int, at_least_one: bool = True) -> list[bytes]:
        """Whole batches from the one that holds `offset` on, all of them below `before`."""
        found: list[bytes] = []
        size = 0
        for batch in self._batches_from(offset):
            size += len(batch.data)
            if batch.last_offset >= before or (size > max_bytes and (found or not at_least_one)):
                break
            found.append(batch.data)
        return found

    def records(self) -> list[Record]:
        """Every record of the log, uncompressed and decoded."""
        return [record for batch in self.batches for record in batch.records()]

    def first_since(self, timestamp: int) -> Record | None:
        """The first record that is not older than `timestamp`, in milliseconds."""
        for batch in self.batches:
            if batch.header.max_timestamp >= timestamp:
                for record in batch.records():
                    if record.timestamp >= timestamp:
                        return record
        return None

    def newest(self) -> Record | None:
        """The record with the largest timestamp, the first of several."""
        if not self.batches:
            return None
        batch = max(self.batches, key=lambda batch: batch.header.max_timestamp)
        return max(batch.records(), key=lambda record: record.timestamp)

    def epoch_at(self, offset: int) -> int | None:
        """In which leader epoch the record was written; None if there is no such record."""
        batch = next(self._batches_from(offset), None)
        return None if batch is None else batch.header.partition_leader_epoch

    def truncate(self, offset: int) -> None:
        """Forget every batch from `offset` on and rebuild the producer state from what is left."""
        del self.batches[bisect_left(self.batches, offset, key=lambda batch: batch.header.base_offset) :]
        self.end_offset = self.batches[-1].last_offset + 1 if self.batches else self.start_offset
        self.producers = {}
        for batch in self.batches:
            self._replay(batch)

    def delete_before(self, offset: int) -> None:
        """Retention: drop the batches that end below `offset`, which becomes the log's start.

        Kafka keeps what it knows of their producers, and so does this."""
        del self.batches[: bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)]
        self.start_offset = min(max(offset, self.start_offset), self.end_offset)

    def _replay(self, batch: Batch) -> None:
        header = batch.header
        if header.producer_id != NO_PRODUCER_ID:
            state = self.producers.setdefault(header.producer_id, ProducerState(header.producer_epoch))
            state.remember(batch)

    def _batches_from(self, offset: int) -> Iterator[Batch]:
        first = bisect_right(self.batches, offset, key=lambda batch: batch.header.base_offset) - 1
        for index in range(max(first, 0), len(self.batches)):
            batch = self.batches[index]
            if batch.last_offset >= offset:
                yield batch


class RememberedBatch(NamedTuple):
    """What tells a retry from new records."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class ProducerState:
    """What a partition knows of one producer id (Kafka's ProducerStateEntry)."""

    NUM_BATCHES_TO_RETAIN = 5

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[RememberedBatch] = deque(maxlen=self.NUM_BATCHES_TO_RETAIN)

    @property
    def last_sequence(self) -> int | None:
        """The sequence of the last record, None before the first batch of this epoch."""
        return self.batches[-1].last_sequence if self.batches else None

    def find_duplicate(self, header: BatchHeader) -> RememberedBatch | None:
        """The remembered batch of the same epoch with the very same first and last sequence."""
        if header.producer_epoch == self.epoch:
            wanted = header.base_sequence, _last_sequence(header)
            for batch in self.batches:
                if (batch.first_sequence, batch.last_sequence) == wanted:
                    return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Refuse an old epoch and a sequence that is not the next one (Kafka's ProducerAppendInfo)."""
        who = f"producer {header.producer_id}, epoch {header.producer_epoch}"
        if header.producer_epoch < self.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"{who}: the log has seen the newer epoch {self.epoch}",
                tells_log_start=True,
            )
        if header.producer_epoch > self.epoch:
            if header.base_sequence != 0:
                raise AppendError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{who}: a new epoch starts with sequence 0, not {header.base_sequence}",
                    tells_log_start=True,
                )
        elif self.last_sequence is not None and header.base_sequence != _next_sequence(self.last_sequence):
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{who}: sequence {header.base_sequence} does not follow {self.last_sequence}",
                tells_log_start=True,
            )

    def remember(self, batch: Batch) -> None:
        """Take note of an appended batch."""
        header = batch.header
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.batches.clear()
        self.batches.append(
            RememberedBatch(
                header.base_sequence,
                _last_sequence(header),
                header.base_offset,
                batch.last_offset,
                header.max_timestamp,
            )
        )


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == MAX_SEQUENCE else sequence + 1


def _last_sequence(header: BatchHeader) -> int:
    """Sequences wrap from 2**31 - 1 to 0, also in the middle of a batch."""
    return (header.base_sequence + header.last_offset_delta) % (MAX_SEQUENCE + 1)


def validate(records: memoryview | None, config: LogConfig) -> BatchHeader:
    """The header of the one batch that a Produce request brings for a partition.

    Raises:
        AppendError: Kafka's ProduceRequest or LogValidator would refuse it, whatever the log holds.
    """
    if records and len(records) > MAGIC_AT and records[MAGIC_AT] != MAGIC:
        raise AppendError(ErrorCode.INVALID_RECORD, f"message format v{records[MAGIC_AT]}, not v{MAGIC}")
    try:
        if not records or read_header(records).size > len(records):
            raise AppendError(ErrorCode.INVALID_RECORD, "no complete record batch")
        batches = list(split_batches(records))
        if len(batches) != 1:
            raise AppendError(ErrorCode.INVALID_RECORD, f"{len(batches)} record batches instead of one")
        header = read_header(batches[0])
        if header.size > config.max_message_bytes:
            raise AppendError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
            )
        check_crc(batches[0])
        _ = header.codec
    except ProtocolError as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    _check_header(header)
    return header


def _check_header(header: BatchHeader) -> None:
    problem = None
    if header.base_offset != 0:
        problem = f"the base offset should be 0, not {header.base_offset}"
    elif header.record_count < 1:
        problem = f"{header.record_count} records"
    elif header.record_count != header.last_offset_delta + 1:
        problem = f"{header.record_count} records, but the last offset delta is {header.last_offset_delta}"
    elif header.is_control:
        problem = "clients may not write control records"
    elif header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
        problem = f"producer {header.producer_id} with sequence {header.base_sequence}"
    if problem is not None:
        raise AppendError(ErrorCode.INVALID_RECORD, problem, tells_log_start=True)
    if header.is_transactional:
        raise AppendError(ErrorCode.INVALID_TXN_STATE, "no transaction is open")
