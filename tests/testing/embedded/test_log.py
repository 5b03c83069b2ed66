"""The embedded broker's log: accepted and rejected batches, and the state of producers."""

from __future__ import annotations

import pytest

from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import check_crc, read_header
from aioproducer.testing.embedded.batches import Marker
from aioproducer.testing.embedded.log import (
    MAX_SEQUENCE,
    UNVERIFIED,
    AppendError,
    LogAppendInfo,
    PartitionLog,
)
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.validation import only_batch, validate
from tests.support.oracle import OracleRecord, encode_batch, encode_records
from tests.support.raw_client import NOW, batch_of
from tests.support.raw_transactions import Identity, txn_batch

CONFIG = LogConfig()


def append(log: PartitionLog, batch: bytes, *, now_ms: int = NOW) -> LogAppendInfo:
    valid = validate(only_batch(memoryview(batch), 12), log.config, now_ms)
    return log.append(valid.data, valid.header, leader_epoch=3)


def refusal(log: PartitionLog, batch: bytes) -> ErrorCode:
    with pytest.raises(AppendError) as caught:
        append(log, batch)
    return caught.value.code


@pytest.fixture
def log() -> PartitionLog:
    return PartitionLog(CONFIG)


def test_batches_get_consecutive_offsets_and_the_leader_epoch(log: PartitionLog):
    assert append(log, batch_of(b"a", b"b")) == LogAppendInfo(0, 1, -1)
    assert append(log, batch_of(b"c")) == LogAppendInfo(2, 2, -1)

    assert [(record.offset, record.value) for record in log.records()] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert read_header(log.batches[1].data).partition_leader_epoch == 3
    for batch in log.batches:
        check_crc(batch.data)
        assert read_header(batch.data) == batch.header


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_read_back_decoded(log: PartitionLog, codec: Codec):
    records = [OracleRecord(NOW, b"k", b"v" * 100), OracleRecord(NOW + 5, None, None, (("h", b"1"),))]
    payload = encode_records(records)
    if codec is not Codec.NONE:
        payload = compressor(codec, None)(payload)

    append(log, batch_of(b"first"))
    append(log, encode_batch(records, codec=codec, payload=payload))

    read = log.records()[1:]
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read] == [
        (1, NOW, b"k", b"v" * 100, ()),
        (2, NOW + 5, None, None, (("h", b"1"),)),
    ]


def test_log_append_time_replaces_the_timestamps_and_the_checksum():
    log = PartitionLog(LogConfig(message_timestamp_type="LogAppendTime"))

    appended = append(log, batch_of(b"a", b"b"), now_ms=NOW + 1000)

    assert appended.log_append_time == NOW + 1000
    assert [record.timestamp for record in log.records()] == [NOW + 1000] * 2
    check_crc(log.batches[0].data)
    assert read_header(log.batches[0].data) == log.batches[0].header


# Transactions


def test_a_transactional_batch_without_a_transaction_is_rejected(log: PartitionLog):
    batch = encode_batch(
        [OracleRecord(NOW)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert refusal(log, batch) is ErrorCode.INVALID_TXN_STATE


# Idempotence


def test_each_of_the_last_five_batches_is_recognized_as_a_duplicate(log: PartitionLog):
    batches = [batch_of(b"a", b"b", sequence=2 * index) for index in range(6)]
    first = [append(log, batch) for batch in batches]

    for batch, appended in zip(batches[1:], first[1:], strict=True):
        again = append(log, batch)
        assert (again.base_offset, again.last_offset) == (appended.base_offset, appended.last_offset)
        assert again.duplicate
        # Kafka's answer to a duplicate contains the batch's largest timestamp.
        assert again.log_append_time == NOW + 1
    assert refusal(log, batches[0]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == 12


def test_duplicates_are_recognized_by_sequences_not_by_content(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0))

    assert append(log, batch_of(b"another", sequence=0)).duplicate
    assert [record.value for record in log.records()] == [b"a"]


def test_batches_with_other_boundaries_are_not_duplicates(log: PartitionLog):
    append(log, batch_of(b"a", b"b", sequence=0))

    assert refusal(log, batch_of(b"a", sequence=0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, batch_of(b"b", sequence=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0))

    assert refusal(log, batch_of(b"c", sequence=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, batch_of(b"b", sequence=1)).base_offset == 1


def test_an_unknown_producer_may_start_with_any_sequence(log: PartitionLog):
    append(log, batch_of(b"a", sequence=500))

    assert append(log, batch_of(b"b", sequence=501)).base_offset == 1
    assert refusal(log, batch_of(b"c", sequence=0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_do_not_affect_each_other(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0, producer_id=1))
    append(log, batch_of(b"b", sequence=9, producer_id=2))
    append(log, batch_of(b"no producer id"))

    assert append(log, batch_of(b"c", sequence=1, producer_id=1)).base_offset == 3
    assert append(log, batch_of(b"d", sequence=10, producer_id=2)).base_offset == 4


def test_an_old_epoch_is_rejected(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0, epoch=4))

    assert refusal(log, batch_of(b"b", sequence=1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(log, batch_of(b"a", sequence=0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_with_sequence_0(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0))

    assert refusal(log, batch_of(b"b", sequence=1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # The rejected batch has not raised the epoch.
    assert append(log, batch_of(b"b", sequence=1, epoch=0)).base_offset == 1
    assert append(log, batch_of(b"c", sequence=0, epoch=1)).base_offset == 2
    assert refusal(log, batch_of(b"d", sequence=2, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_forgets_the_batches_of_the_old_one(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0))

    assert not append(log, batch_of(b"a", sequence=0, epoch=1)).duplicate
    assert log.end_offset == 2


def test_sequences_wrap_to_0(log: PartitionLog):
    append(log, batch_of(b"a", sequence=MAX_SEQUENCE))
    append(log, batch_of(b"b", sequence=0))
    assert refusal(log, batch_of(b"c", sequence=2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, batch_of(b"c", sequence=1))

    assert log.end_offset == 3


def test_sequences_wrap_within_a_batch(log: PartitionLog):
    across = batch_of(b"a", b"b", b"c", sequence=MAX_SEQUENCE - 1)
    append(log, across)

    assert append(log, across).duplicate
    assert refusal(log, batch_of(b"d", sequence=0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, batch_of(b"d", sequence=1)).base_offset == 3


# Reading and truncating


def test_read_begins_with_the_batch_that_contains_the_offset(log: PartitionLog):
    for values in ((b"a", b"b"), (b"c",), (b"d", b"e")):
        append(log, batch_of(*values))
    one, two, three = (batch.data for batch in log.batches)

    assert log.read(0, 10_000, before=5) == [one, two, three]
    assert log.read(1, 10_000, before=5) == [one, two, three]
    assert log.read(2, 10_000, before=5) == [two, three]
    assert log.read(4, 10_000, before=5) == [three]
    assert log.read(5, 10_000, before=5) == []
    assert log.read(0, 10_000, before=3) == [one, two]
    assert log.read(0, len(one) + len(two), before=5) == [one, two]


@pytest.mark.promise("Test clusters", "a fetch returns a truncated batch only after a complete one")
def test_read_cuts_off_at_the_limit_but_not_within_the_first_batch(log: PartitionLog):
    append(log, batch_of(b"a"))
    append(log, batch_of(b"b"))
    one, two = (batch.data for batch in log.batches)

    assert log.read(0, 1, before=2) == [one]
    assert log.read(0, len(one) + 5, before=2) == [one, two[:5]]
    assert log.read(0, len(one), before=2, at_least_one=False) == [one]
    assert log.read(0, len(one) + 5, before=2, at_least_one=False) == [one, two[:5]]
    assert log.read(0, len(one) - 1, before=2, at_least_one=False) == []
    assert log.read(0, 0, before=2, at_least_one=False) == []


def test_first_since_finds_the_first_record_that_is_not_older(log: PartitionLog):
    append(log, batch_of(b"a", b"b", timestamp=NOW))
    append(log, batch_of(b"c", timestamp=NOW + 100))

    found = [log.first_since(NOW + delta) for delta in (-1, 1, 2, 101)]
    assert [record and record.value for record in found] == [b"a", b"b", b"c", None]
    newest = log.newest()
    assert newest is not None
    assert newest.value == b"c"
    assert PartitionLog(CONFIG).newest() is None


def test_truncate_removes_records_and_the_producer_state_derived_from_them(log: PartitionLog):
    for sequence in range(4):
        append(log, batch_of(b"x", sequence=sequence))

    log.truncate(2)

    assert log.end_offset == 2
    assert append(log, batch_of(b"y", sequence=2)) == LogAppendInfo(2, 2, -1)
    log.truncate(0)
    assert append(log, batch_of(b"z", sequence=77)).base_offset == 0


def test_delete_before_moves_the_start_and_keeps_the_producers(log: PartitionLog):
    for sequence in range(4):
        append(log, batch_of(b"x", sequence=sequence))

    log.delete_before(3)

    assert (log.start_offset, log.end_offset, len(log.batches)) == (3, 4, 1)
    assert append(log, batch_of(b"x", sequence=1)).duplicate
    assert refusal(log, batch_of(b"x", sequence=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# Transactions in the log


ME, OTHER = Identity(7, 3), Identity(8, 0)


COMMIT, ABORT = Marker(True, 0), Marker(False, 0)


def write(log: PartitionLog, producer: Identity, sequence: int, *values: bytes) -> None:
    batch = txn_batch(producer, sequence, *(values or (b"x",)))
    log.append(memoryview(batch), read_header(batch), leader_epoch=0, guard=UNVERIFIED)


def end(log: PartitionLog, producer: Identity, marker: Marker, *, bump: int = 1) -> None:
    epoch = producer.epoch + bump
    log.append_marker(producer.producer_id, epoch, marker, leader_epoch=0, now_ms=NOW)


def values(log: PartitionLog, high_watermark: int | None = None) -> list[bytes | None]:
    end_offset = log.end_offset if high_watermark is None else high_watermark
    return [record.value for record in log.committed_records(end_offset)]


def test_a_committed_read_returns_only_committed_records(log):
    write(log, ME, 0, b"a")
    write(log, OTHER, 0, b"aborted")
    write(log, ME, 1, b"b")
    end(log, OTHER, ABORT)
    assert values(log) == []
    end(log, ME, COMMIT)
    write(log, Identity(8, 1), 0, b"open")

    assert values(log) == [b"a", b"b"]
    assert [record.value for record in log.records()] == [b"a", b"aborted", b"b", b"open"]


def test_a_truncated_log_forgets_the_transactions_that_it_loses(log):
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


def test_aborted_transactions_are_deleted_with_their_records_and_marker(log):
    write(log, ME, 0, b"a")
    end(log, ME, ABORT)
    log.delete_before(1)
    assert log.transactions.aborted != []  # the marker is still in the log
    log.delete_before(2)
    assert log.transactions.aborted == []


def test_after_a_marker_with_a_new_epoch_sequences_start_again(log):
    write(log, ME, 0)
    end(log, ME, COMMIT)
    with pytest.raises(AppendError, match="newer epoch 4") as refused:
        write(log, ME, 1)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(AppendError, match="sequence 1 is out of order; 0 is next"):
        write(log, Identity(7, 4), 1)
    write(log, Identity(7, 4), 0)


def test_after_a_marker_without_a_new_epoch_sequences_continue(log):
    write(log, ME, 0)
    end(log, ME, COMMIT, bump=0)
    with pytest.raises(AppendError, match="sequence 2 is out of order; 1 is next"):
        write(log, ME, 2)
    write(log, ME, 1)


def test_a_marker_of_an_old_epoch_or_an_old_coordinator_is_rejected(log):
    write(log, ME, 0)
    with pytest.raises(AppendError, match="newer epoch 3") as refused:
        end(log, ME, COMMIT, bump=-1)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, ME, Marker(True, 5))
    with pytest.raises(AppendError, match="coordinator epoch 4 is older than 5") as refused:
        end(log, ME, Marker(True, 4))
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def append_guarded(log: PartitionLog, producer: Identity, sequence: int, guard: object) -> None:
    batch = txn_batch(producer, sequence, b"x")
    log.append(memoryview(batch), read_header(batch), leader_epoch=0, guard=guard)


def test_the_first_batch_of_a_transaction_needs_a_guard_that_no_marker_has_invalidated(log):
    with pytest.raises(AppendError, match="not part of a transaction"):
        append_guarded(log, ME, 0, None)
    guard = log.start_verification(7, 3, 0, is_new_producer_refused=False)
    end(log, ME, ABORT, bump=0)
    with pytest.raises(AppendError, match="not part of a transaction") as refused:
        append_guarded(log, ME, 0, guard)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE
    append_guarded(log, ME, 0, log.start_verification(7, 3, 0, is_new_producer_refused=False))
    append_guarded(log, ME, 1, None)


def test_no_batch_is_appended_before_the_lowest_sequence_that_was_verified(log):
    log.start_verification(7, 3, 5, is_new_producer_refused=False)
    guard = log.start_verification(7, 3, 6, is_new_producer_refused=False)
    with pytest.raises(AppendError, match="sequence 5 has to come before 6"):
        append_guarded(log, ME, 6, guard)
    newer = Identity(7, 4)
    assert log.start_verification(7, 4, 1, is_new_producer_refused=False) is guard
    with pytest.raises(AppendError, match="sequence 1 has to come before 2"):
        append_guarded(log, newer, 2, guard)
    log.start_verification(7, 3, 0, is_new_producer_refused=False)  # an old epoch has no effect
    append_guarded(log, newer, 1, guard)


def test_with_v2_a_producer_begins_with_sequence_0(log):
    guard = log.start_verification(7, 3, 5, is_new_producer_refused=True)
    with pytest.raises(AppendError, match="sequence 0 has to come before 5") as refused:
        append_guarded(log, ME, 5, guard)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
