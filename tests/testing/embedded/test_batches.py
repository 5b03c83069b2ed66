"""Batches that brokers write themselves, byte for byte."""

from __future__ import annotations

import pytest

from aioproducer.protocol.recordbatch import CONTROL, TRANSACTIONAL, check_crc, read_header, read_records
from aioproducer.testing.embedded.batches import Marker, encode_batch, marker_batch, read_marker
from tests.support import oracle
from tests.support.raw_client import NOW


def test_a_batch_of_a_broker_equals_that_of_the_slow_encoder():
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
