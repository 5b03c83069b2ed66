"""What a partition's log keeps of transactions, and the batches that brokers write into it."""

from __future__ import annotations

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import CONTROL, TRANSACTIONAL, check_crc, read_header, read_records
from aioproducer.testing.embedded.batches import Marker, encode_batch, marker_batch, read_marker
from aioproducer.testing.embedded.log import UNVERIFIED, AppendError, PartitionLog
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.transaction_index import AbortedTransaction, TransactionIndex
from tests.support import oracle
from tests.support.raw_client import NOW
from tests.support.raw_transactions import Identity, txn_batch

ME, OTHER = Identity(7, 3), Identity(8, 0)
COMMIT, ABORT = Marker(True, 0), Marker(False, 0)


@pytest.fixture
def log() -> PartitionLog:
    return PartitionLog(LogConfig())


def write(log: PartitionLog, producer: Identity, sequence: int, *values: bytes) -> None:
    batch = txn_batch(producer, sequence, *(values or (b"x",)))
    log.append(memoryview(batch), read_header(batch), leader_epoch=0, guard=UNVERIFIED)


def end(log: PartitionLog, producer: Identity, marker: Marker, *, bump: int = 1) -> None:
    epoch = producer.epoch + bump
    log.append_marker(producer.producer_id, epoch, marker, leader_epoch=0, now_ms=NOW)


def values(log: PartitionLog, high_watermark: int | None = None) -> list[bytes | None]:
    end_offset = log.end_offset if high_watermark is None else high_watermark
    return [record.value for record in log.committed_records(end_offset)]


# Batches


def test_a_batch_of_a_broker_is_what_the_slow_encoder_writes():
    records = [(b"k", b"v"), (b"", None), (b"key" * 50, b"value" * 50)]

    written = encode_batch(records, NOW, producer_id=9, producer_epoch=2, base_sequence=5)

    expected = oracle.encode_batch(
        [oracle.OracleRecord(NOW, key, value) for key, value in records],
        partition_leader_epoch=0,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
    )
    assert written == expected


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_a_control_batch_with_kafkas_key_and_value(commit):
    written = marker_batch(7, 3, Marker(commit, 5), NOW)

    check_crc(written)
    header = read_header(written)
    (record,) = read_records(written[61:], header)
    assert (header.attributes, header.producer_id, header.producer_epoch) == (TRANSACTIONAL | CONTROL, 7, 3)
    assert (header.base_sequence, header.base_timestamp) == (-1, NOW)
    assert record.key == bytes([0, 0, 0, commit])
    assert record.value == bytes([0, 0, 0, 0, 0, 5])
    assert read_marker(record) == Marker(commit, 5)


# The index


def test_the_first_record_of_an_open_transaction_is_the_last_stable_offset():
    index = TransactionIndex()
    index.begin(7, 4)
    index.begin(8, 5)
    index.begin(7, 6)
    assert index.last_stable_offset(10) == 4
    index.end(7, 7, commit=True)
    assert index.last_stable_offset(7) == 4  # the marker is not replicated yet
    assert index.last_stable_offset(10) == 5
    index.end(8, 8, commit=False)
    assert index.last_stable_offset(10) == 10
    assert index.aborted == [AbortedTransaction(8, 5, 8)]


def test_a_marker_without_records_before_it_changes_nothing():
    index = TransactionIndex()
    index.end(7, 0, commit=False)
    assert index.last_stable_offset(1) == 1
    assert index.aborted == []


# The log


def test_only_committed_records_are_read_committed(log):
    write(log, ME, 0, b"a")
    write(log, OTHER, 0, b"aborted")
    write(log, ME, 1, b"b")
    end(log, OTHER, ABORT)
    assert values(log) == []
    end(log, ME, COMMIT)
    write(log, Identity(8, 1), 0, b"open")

    assert values(log) == [b"a", b"b"]
    assert [record.value for record in log.records()] == [b"a", b"aborted", b"b", b"open"]


def test_a_log_that_is_cut_forgets_the_transactions_that_it_loses(log):
    write(log, ME, 0, b"a")
    end(log, ME, ABORT)
    write(log, Identity(7, 4), 0, b"b")
    end(log, Identity(7, 4), COMMIT)
    assert values(log) == [b"b"]

    log.truncate(3)
    assert log.transactions.last_stable_offset(3) == 2
    assert log.has_open_transaction(7, 4)
    log.truncate(1)
    assert log.transactions.aborted == []
    assert log.has_open_transaction(7, 3)


def test_records_that_are_deleted_take_their_aborted_transactions_along(log):
    write(log, ME, 0, b"a")
    end(log, ME, ABORT)
    log.delete_before(1)
    assert log.transactions.aborted != []  # its marker is still there
    log.delete_before(2)
    assert log.transactions.aborted == []


def test_a_marker_with_a_new_epoch_lets_sequences_begin_anew(log):
    write(log, ME, 0)
    end(log, ME, COMMIT)
    with pytest.raises(AppendError, match="newer epoch 4") as refused:
        write(log, ME, 1)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(AppendError, match="sequence 1 where 0 is next"):
        write(log, Identity(7, 4), 1)
    write(log, Identity(7, 4), 0)


def test_a_marker_without_a_new_epoch_lets_sequences_go_on(log):
    write(log, ME, 0)
    end(log, ME, COMMIT, bump=0)
    with pytest.raises(AppendError, match="sequence 2 where 1 is next"):
        write(log, ME, 2)
    write(log, ME, 1)


def test_a_marker_of_an_old_epoch_or_an_old_coordinator_is_refused(log):
    write(log, ME, 0)
    with pytest.raises(AppendError, match="newer epoch 3") as refused:
        end(log, ME, COMMIT, bump=-1)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, ME, Marker(True, 5))
    with pytest.raises(AppendError, match="coordinator epoch 4 is older than 5") as refused:
        end(log, ME, Marker(True, 4))
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def append(log: PartitionLog, producer: Identity, sequence: int, guard: object) -> None:
    batch = txn_batch(producer, sequence, b"x")
    log.append(memoryview(batch), read_header(batch), leader_epoch=0, guard=guard)


def test_the_first_batch_of_a_transaction_needs_a_guard_that_no_marker_made_void(log):
    with pytest.raises(AppendError, match="not part of a transaction"):
        append(log, ME, 0, None)
    guard = log.start_verification(7, 3, 0, is_new_producer_refused=False)
    end(log, ME, ABORT, bump=0)
    with pytest.raises(AppendError, match="not part of a transaction") as refused:
        append(log, ME, 0, guard)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    append(log, ME, 0, log.start_verification(7, 3, 0, is_new_producer_refused=False))
    append(log, ME, 1, None)


def test_no_batch_overtakes_the_lowest_sequence_that_was_asked_about(log):
    log.start_verification(7, 3, 5, is_new_producer_refused=False)
    guard = log.start_verification(7, 3, 6, is_new_producer_refused=False)
    with pytest.raises(AppendError, match="sequence 5 has to come before 6"):
        append(log, ME, 6, guard)
    newer = Identity(7, 4)
    assert log.start_verification(7, 4, 1, is_new_producer_refused=False) is guard
    with pytest.raises(AppendError, match="sequence 1 has to come before 2"):
        append(log, newer, 2, guard)
    log.start_verification(7, 3, 0, is_new_producer_refused=False)  # an old epoch counts for nothing
    append(log, newer, 1, guard)


def test_with_v2_a_producer_begins_with_sequence_0(log):
    guard = log.start_verification(7, 3, 5, is_new_producer_refused=True)
    with pytest.raises(AppendError, match="sequence 0 has to come before 5") as refused:
        append(log, ME, 5, guard)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
