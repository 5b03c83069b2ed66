"""The log of one partition: whole batches as they were sent, and the state of each producer.

Only Partition appends to the log. No function in this module awaits, and an append does not read individual records.
Batches have already been validated, and their bytes are kept. Only the base offset and the leader epoch, which are in
the first 16 bytes, are overwritten.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aioproducer.protocol.compression import Bytes, Codec
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import (
    HEADER_SIZE,
    NO_PRODUCER_ID,
    BatchHeader,
    Record,
    read_header,
    read_records,
)
from aioproducer.testing.embedded.batches import Marker, marker_batch, read_marker
from aioproducer.testing.embedded.decompression import decompress_as_broker
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.transaction_index import TransactionIndex

NO_TIMESTAMP = -1
MAX_SEQUENCE = 2**31 - 1

# Base offset, batch length, leader epoch. The checksum does not cover them: it begins with the attributes.
_PREFIX = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")

_MAX_UNCOMPRESSED = 1 << 30  # bytes


class AppendError(Exception):
    """The broker rejects a batch, and the log remains unchanged."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        tells_log_start: bool = False,
        is_told: bool = False,
        record_errors: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.is_told = is_told
        """True if the client also gets the message; for most errors, Kafka sends only the error code."""
        self.record_errors = record_errors or {}
        """The errors of individual records, by their index in the batch (KIP-467)."""
        self.tells_log_start = tells_log_start
        """True if the response also contains the log start offset; Kafka includes it for errors that it considers
        unusual."""


class LogBatch(NamedTuple):
    """A batch in the log: its parsed header and its bytes."""

    header: BatchHeader
    data: bytes

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.header.last_offset

    def records(self) -> Iterator[Record]:
        """Iterate over the decompressed records."""
        payload = memoryview(self.data)[HEADER_SIZE:]
        codec = self.header.codec
        if codec is not Codec.NONE:
            payload = memoryview(decompress_as_broker(codec, payload, _MAX_UNCOMPRESSED))
        return read_records(payload, self.header)


class LogAppendInfo(NamedTuple):
    """The position of a batch. For a duplicate, it is the position of the original batch."""

    base_offset: int
    last_offset: int
    log_append_time: int
    """The broker's time in milliseconds; -1 if the topic keeps the records' own timestamps."""
    duplicate: bool = False


@dataclass(slots=True, eq=False)
class VerificationGuard:
    """Permission to append the first batch in a transaction.

    The guard is created before the coordinator is asked, and becomes invalid when a marker for its producer is appended
    (Kafka's VerificationStateEntry)."""

    epoch: int
    lowest_sequence: int
    """The lowest sequence of the batches to verify: the batch with this sequence must be appended first."""
    is_new_producer_refused: bool
    """True if an unknown producer must begin with sequence 0, as with transactions v2 (KIP-890)."""


UNVERIFIED = VerificationGuard(0, 0, False)
"""The guard that brokers use if they do not verify transactions, as in all releases before 3.6."""


class PartitionLog:
    """Batches in offset order, with the producer state that idempotence relies on."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.start_offset = 0
        self.end_offset = 0
        """The offset of the next record."""
        self.batches: list[LogBatch] = []
        self.producers: dict[int, ProducerStateEntry] = {}
        self.transactions = TransactionIndex()
        self._guards: dict[int, VerificationGuard] = {}

    def append(
        self,
        data: Bytes,
        header: BatchHeader,
        *,
        leader_epoch: int,
        guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """Append one batch that `validate` has accepted, or recognise it as a duplicate.

        Args:
            data: The batch.
            header: The header of the batch.
            leader_epoch: The leader's epoch, to be written into the batch.
            guard: The result of `start_verification`, for a batch that may be the first of its transaction.

        Raises:
            AppendError: the sequence, the epoch or the transaction does not fit the state of the producer.
        """
        if header.producer_id > NO_PRODUCER_ID:
            state = self.producers.get(header.producer_id)
            # Before 4.5, Kafka accepts any first sequence from an unknown producer.
            if state is not None:
                duplicate = state.find_duplicate(header)
                if duplicate is not None:
                    # For a duplicate, Kafka returns the batch's largest timestamp, even if the topic uses CreateTime.
                    return LogAppendInfo(
                        duplicate.base_offset, duplicate.last_offset, duplicate.max_timestamp, True
                    )
                state.check(header)
            self._check_transaction(header, guard)
        batch = self._take(data, header, leader_epoch)
        log_append_time = header.max_timestamp if header.log_append_time else NO_TIMESTAMP
        return LogAppendInfo(batch.header.base_offset, batch.last_offset, log_append_time)

    def append_by_broker(self, data: bytes, *, leader_epoch: int) -> LogAppendInfo:
        """Append a batch that a coordinator has written. Only the producer's epoch is checked.

        Raises:
            AppendError: the log has seen a newer epoch of the producer.
        """
        header = read_header(data)
        state = self.producers.get(header.producer_id)
        if state is not None:
            state.check_epoch(header)
        batch = self._take(data, header, leader_epoch)
        return LogAppendInfo(batch.header.base_offset, batch.last_offset, NO_TIMESTAMP)

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, leader_epoch: int, now_ms: int
    ) -> LogAppendInfo:
        """End the producer's transaction, if one is open in this log. From now on, older epochs are rejected.

        Raises:
            AppendError: the log has seen a newer epoch of the producer, or a newer coordinator.
        """
        state = self.producers.get(producer_id)
        if state is not None and marker.coordinator_epoch < state.coordinator_epoch:
            raise AppendError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than {state.coordinator_epoch}",
            )
        data = marker_batch(producer_id, producer_epoch, marker, now_ms)
        return self.append_by_broker(data, leader_epoch=leader_epoch)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return True if the producer, with this epoch, has written records to this log in an open transaction."""
        state = self.producers.get(producer_id)
        is_open = self.transactions.first_offset(producer_id) is not None
        return is_open and state is not None and state.epoch == epoch

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, *, is_new_producer_refused: bool
    ) -> VerificationGuard:
        """Create the guard for a batch with this sequence; call this before the coordinator is asked about it."""
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = VerificationGuard(epoch, sequence, is_new_producer_refused)
            self._guards[producer_id] = guard
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, sequence
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def _check_transaction(self, header: BatchHeader, guard: VerificationGuard | None) -> None:
        """Reject a non-transactional batch during a transaction, and the first batch in an unverified transaction."""
        producer_id = header.producer_id
        if self.has_open_transaction(producer_id, header.producer_epoch):
            if not header.is_transactional:
                raise AppendError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"producer {producer_id}: a batch sent during a transaction lacks the transactional bit",
                    tells_log_start=True,
                )
            return
        if not header.is_transactional or guard is UNVERIFIED:
            return
        if guard is None or self._guards.get(producer_id) is not guard:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id}: the partition is not part of a transaction",
            )
        first = guard.lowest_sequence
        if guard.is_new_producer_refused and producer_id not in self.producers:
            first = 0
        if header.base_sequence > first:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id}: sequence {first} has to come before {header.base_sequence}",
                tells_log_start=True,
            )

    def _take(self, data: Bytes, header: BatchHeader, leader_epoch: int) -> LogBatch:
        prefix = _PREFIX.pack(self.end_offset, header.length, leader_epoch)
        header = header._replace(base_offset=self.end_offset, partition_leader_epoch=leader_epoch)
        batch = LogBatch(header, b"".join((prefix, memoryview(data)[_PREFIX.size :])))
        self.batches.append(batch)
        self.end_offset = batch.last_offset + 1
        self._replay(batch)
        return batch

    def read(self, offset: int, max_bytes: int, *, before: int, at_least_one: bool = True) -> list[Bytes]:
        """Return the batches that end below `before`, beginning with the one that contains `offset`.

        As in Kafka, the last batch is cut off at `max_bytes`, but the first batch is never cut off: if it is too large,
        `at_least_one` decides whether it is returned whole or not at all (ReplicaManager.readFromLog,
        firstEntryIncomplete).
        """
        found: list[Bytes] = []
        left = max_bytes
        for batch in self.batches_from(offset):
            if batch.last_offset >= before or (found and left <= 0):
                break
            if not found and not at_least_one and len(batch.data) > left:
                break
            is_whole = len(batch.data) <= left or not found
            found.append(batch.data if is_whole else memoryview(batch.data)[:left])
            left -= len(batch.data)
        return found

    def records(self) -> list[Record]:
        """Return every record in the log, decoded, without transaction markers."""
        return [record for batch in self.batches if not batch.header.is_control for record in batch.records()]

    def committed_records(self, high_watermark: int) -> list[Record]:
        """Return the records that a consumer with isolation.level=read_committed reads."""
        before = self.transactions.last_stable_offset(high_watermark)
        return [
            record
            for batch in self.batches
            if not batch.header.is_control
            and batch.last_offset < before
            and not (batch.header.is_transactional and self.transactions.is_aborted(batch.header))
            for record in batch.records()
        ]

    def first_since(self, timestamp: int) -> Record | None:
        """Return the first record that is not older than `timestamp`, in milliseconds; None if there is none."""
        for batch in self.batches:
            if batch.header.max_timestamp >= timestamp:
                for record in batch.records():
                    if record.timestamp >= timestamp:
                        return record
        return None

    def newest(self) -> Record | None:
        """Return the record with the largest timestamp, or the first of several such records."""
        if not self.batches:
            return None
        batch = max(self.batches, key=lambda batch: batch.header.max_timestamp)
        return max(batch.records(), key=lambda record: record.timestamp)

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch in which the record at `offset` was written; None if there is no such record."""
        batch = next(self.batches_from(offset), None)
        return None if batch is None else batch.header.partition_leader_epoch

    def truncate(self, offset: int) -> None:
        """Remove all batches from `offset` onward, and rebuild the producer state from the rest."""
        del self.batches[bisect_left(self.batches, offset, key=lambda batch: batch.header.base_offset) :]
        self.end_offset = self.batches[-1].last_offset + 1 if self.batches else self.start_offset
        self.producers = {}
        self.transactions = TransactionIndex()
        self._guards.clear()
        for batch in self.batches:
            self._replay(batch)

    def delete_before(self, offset: int) -> None:
        """Apply retention: drop the batches that end below `offset`, which becomes the log's start.

        The state of the producers is kept, as in Kafka."""
        del self.batches[: bisect_left(self.batches, offset, key=lambda batch: batch.last_offset)]
        self.start_offset = min(max(offset, self.start_offset), self.end_offset)
        self.transactions.forget_before(self.start_offset)

    def _replay(self, batch: LogBatch) -> None:
        """Update the state of a batch's producer."""
        header = batch.header
        producer_id = header.producer_id
        if producer_id <= NO_PRODUCER_ID:
            return
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerStateEntry(header.producer_epoch)
        if header.is_control:
            marker = read_marker(next(batch.records()))
            state.end_transaction(header.producer_epoch, marker.coordinator_epoch)
            self.transactions.end(producer_id, header.base_offset, commit=marker.commit)
            self._guards.pop(producer_id, None)
            return
        state.remember(batch)
        if header.is_transactional:
            self.transactions.begin(producer_id, header.base_offset)
            self._guards.pop(producer_id, None)

    def batches_from(self, offset: int) -> Iterator[LogBatch]:
        """Iterate over the batches, starting with the one that contains `offset`."""
        first = bisect_right(self.batches, offset, key=lambda batch: batch.header.base_offset) - 1
        for index in range(max(first, 0), len(self.batches)):
            batch = self.batches[index]
            if batch.last_offset >= offset:
                yield batch


class RememberedBatch(NamedTuple):
    """The fields of an appended batch that identify a retry of the batch."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class ProducerStateEntry:
    """The state of one producer id in one partition (Kafka's ProducerStateEntry)."""

    NUM_BATCHES_TO_RETAIN = 5

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        """The epoch of the coordinator that wrote the last transaction marker."""
        self.batches: deque[RememberedBatch] = deque(maxlen=self.NUM_BATCHES_TO_RETAIN)

    @property
    def next_sequence(self) -> int:
        """The sequence that the next batch in this epoch must have; 0 for the first batch."""
        return _next_sequence(self.batches[-1].last_sequence) if self.batches else 0

    def find_duplicate(self, header: BatchHeader) -> RememberedBatch | None:
        """Return the remembered batch from the same epoch with exactly the same first and last sequence."""
        if header.producer_epoch == self.epoch:
            wanted = header.base_sequence, _last_sequence(header)
            for batch in self.batches:
                if (batch.first_sequence, batch.last_sequence) == wanted:
                    return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Reject an old epoch or a sequence that is not the next one (Kafka's ProducerAppendInfo)."""
        self.check_epoch(header)
        who = f"producer {header.producer_id}, epoch {header.producer_epoch}"
        if header.producer_epoch > self.epoch:
            if header.base_sequence != 0:
                raise AppendError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{who}: a new epoch starts with sequence 0, not {header.base_sequence}",
                    tells_log_start=True,
                )
        elif header.base_sequence != self.next_sequence:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{who}: sequence {header.base_sequence} is out of order; {self.next_sequence} is next",
                tells_log_start=True,
            )

    def check_epoch(self, header: BatchHeader) -> None:
        """Reject an old epoch."""
        if header.producer_epoch < self.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}, epoch {header.producer_epoch}: "
                f"the log has seen the newer epoch {self.epoch}",
                tells_log_start=True,
            )

    def remember(self, batch: LogBatch) -> None:
        """Remember an appended batch."""
        header = batch.header
        self._enter(header.producer_epoch)
        self.batches.append(
            RememberedBatch(
                header.base_sequence,
                _last_sequence(header),
                header.base_offset,
                batch.last_offset,
                header.max_timestamp,
            )
        )

    def end_transaction(self, epoch: int, coordinator_epoch: int) -> None:
        """Apply a marker. With transactions v2, the marker has a new epoch, and sequences begin at 0 again."""
        self._enter(epoch)
        self.coordinator_epoch = coordinator_epoch

    def _enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


def _next_sequence(sequence: int) -> int:
    return 0 if sequence == MAX_SEQUENCE else sequence + 1


def _last_sequence(header: BatchHeader) -> int:
    """Return the last sequence of a batch. Sequences wrap from 2**31 - 1 to 0, even within a batch."""
    return (header.base_sequence + header.last_offset_delta) % (MAX_SEQUENCE + 1)
