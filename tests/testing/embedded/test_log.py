"""The embedded broker's log: what it takes, what it refuses, what it remembers of producers."""

from __future__ import annotations

import pytest

from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import check_crc, read_header
from aioproducer.testing.embedded.log import MAX_SEQUENCE, Appended, AppendError, PartitionLog
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.validation import only_batch, validate
from tests.support.oracle import OracleRecord, encode_batch, encode_records
from tests.support.raw_client import NOW, batch_of

CONFIG = LogConfig()


def append(log: PartitionLog, batch: bytes, *, now_ms: int = NOW) -> Appended:
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
    assert append(log, batch_of(b"a", b"b")) == Appended(0, 1, -1)
    assert append(log, batch_of(b"c")) == Appended(2, 2, -1)

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


def test_a_transactional_batch_without_a_transaction_is_refused(log: PartitionLog):
    batch = encode_batch(
        [OracleRecord(NOW)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert refusal(log, batch) is ErrorCode.INVALID_TXN_STATE


# Idempotence


def test_each_of_the_last_five_batches_is_recognised_as_a_duplicate(log: PartitionLog):
    batches = [batch_of(b"a", b"b", sequence=2 * index) for index in range(6)]
    first = [append(log, batch) for batch in batches]

    for batch, appended in zip(batches[1:], first[1:], strict=True):
        again = append(log, batch)
        assert (again.base_offset, again.last_offset) == (appended.base_offset, appended.last_offset)
        assert again.duplicate
        # Kafka's answer to a duplicate carries the batch's largest timestamp.
        assert again.log_append_time == NOW + 1
    assert refusal(log, batches[0]) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == 12


def test_duplicates_are_told_by_sequences_not_by_content(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0))

    assert append(log, batch_of(b"another", sequence=0)).duplicate
    assert [record.value for record in log.records()] == [b"a"]


def test_other_boundaries_are_no_duplicate(log: PartitionLog):
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


def test_producers_do_not_disturb_each_other(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0, producer_id=1))
    append(log, batch_of(b"b", sequence=9, producer_id=2))
    append(log, batch_of(b"no producer id"))

    assert append(log, batch_of(b"c", sequence=1, producer_id=1)).base_offset == 3
    assert append(log, batch_of(b"d", sequence=10, producer_id=2)).base_offset == 4


def test_an_old_epoch_is_refused(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0, epoch=4))

    assert refusal(log, batch_of(b"b", sequence=1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(log, batch_of(b"a", sequence=0, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_with_sequence_0(log: PartitionLog):
    append(log, batch_of(b"a", sequence=0))

    assert refusal(log, batch_of(b"b", sequence=1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # The refused batch has not raised the epoch.
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


# Reading and cutting


def test_read_begins_with_the_batch_that_has_the_offset(log: PartitionLog):
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


def test_read_cuts_off_what_is_above_the_limit_but_the_first_batch(log: PartitionLog):
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


def test_truncate_forgets_records_and_what_was_learnt_from_them(log: PartitionLog):
    for sequence in range(4):
        append(log, batch_of(b"x", sequence=sequence))

    log.truncate(2)

    assert log.end_offset == 2
    assert append(log, batch_of(b"y", sequence=2)) == Appended(2, 2, -1)
    log.truncate(0)
    assert append(log, batch_of(b"z", sequence=77)).base_offset == 0


def test_delete_before_moves_the_start_and_keeps_the_producers(log: PartitionLog):
    for sequence in range(4):
        append(log, batch_of(b"x", sequence=sequence))

    log.delete_before(3)

    assert (log.start_offset, log.end_offset, len(log.batches)) == (3, 4, 1)
    assert append(log, batch_of(b"x", sequence=1)).duplicate
    assert refusal(log, batch_of(b"x", sequence=5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
