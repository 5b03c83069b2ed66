"""The records of __transaction_state: their format, and the state that a log of them describes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aioproducer.errors import UnsupportedVersionError
from aioproducer.testing.embedded.batches import encode_batch
from aioproducer.testing.embedded.log import PartitionLog
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.transaction_log import decoded, encoded_key, encoded_value, read_states
from aioproducer.testing.embedded.transaction_metadata import TransactionMetadata, TransactionStatus
from aioproducer.types import TopicPartition
from tests.support.raw_client import NOW


def test_records_of_the_log_are_written_as_kafka_writes_them():
    metadata = TransactionMetadata(
        "txn",
        producer_id=1000,
        timeout_ms=60_000,
        state=TransactionStatus.ONGOING,
        producer_epoch=3,
        previous_producer_id=1000,
        partitions=(TopicPartition("t", 0), TopicPartition("u", 2), TopicPartition("t", 1)),
        started_ms=5,
        updated_ms=6,
        client_version=2,
    )

    assert encoded_key("txn") == bytes.fromhex("0000 0003 74786e")
    value = encoded_value(metadata, 1)
    assert value == bytes.fromhex(
        "0001 00000000000003e8 0003 0000ea60 01"
        "03 02 74 03 00000000 00000001 00 02 75 02 00000002 00"
        "0000000000000006 0000000000000005"
        "02 00 08 00000000000003e8 02 02 0002"
    )
    together = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2))
    assert decoded(encoded_key("txn"), value) == replace(metadata, partitions=together)


def state(name: str, to: TransactionStatus = TransactionStatus.EMPTY, epoch: int = 0) -> TransactionMetadata:
    return TransactionMetadata(name, producer_id=7, timeout_ms=1000, state=to, producer_epoch=epoch)


def test_a_log_contains_the_last_state_of_each_transactional_id():
    log = PartitionLog(LogConfig())
    written = [
        state("a"),
        state("b"),
        state("a", epoch=1),
        state("b", TransactionStatus.DEAD),
        state("c", TransactionStatus.COMPLETE_ABORT, epoch=4),
    ]
    for one in written:
        record = encoded_key(one.transactional_id), encoded_value(one, 1)
        log.append_by_broker(encode_batch([record], NOW), leader_epoch=0)

    assert read_states(log) == {"a": written[2], "c": written[4]}


def test_version_0_has_no_other_producer_ids_and_no_client_version():
    metadata = replace(state("txn"), previous_producer_id=5, next_producer_id=9, client_version=2)

    value = encoded_value(metadata, 0)

    assert value is not None
    assert value.startswith(b"\x00\x00")
    assert decoded(encoded_key("txn"), value) == state("txn")


def test_a_record_of_a_future_version_is_rejected():
    value = encoded_value(state("txn"), 1)
    assert value is not None

    with pytest.raises(UnsupportedVersionError):
        decoded(encoded_key("txn"), b"\x00\x02" + value[2:])
