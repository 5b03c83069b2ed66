"""The records of __transaction_state: how they are written, and what a log of them adds up to."""

from __future__ import annotations

from dataclasses import replace

from aioproducer.testing.embedded.coordinator import TransactionMetadata, TransactionState
from aioproducer.testing.embedded.transaction_log import decoded, encoded_key, encoded_value
from aioproducer.types import TopicPartition


def test_records_of_the_log_are_written_as_kafka_writes_them():
    metadata = TransactionMetadata(
        "txn",
        producer_id=1000,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
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
