"""aiokafka's named tuples."""

from __future__ import annotations

import aiokafka.structs

import aioproducer
from aioproducer.compat.aiokafka import structs


def test_the_metadata_is_aiokafkas_tuple():
    record = aioproducer.RecordMetadata("t", 3, 7, 1_700_000_000_000, 1, 2)

    found = structs.RecordMetadata.of(record)

    assert found == ("t", 3, ("t", 3), 7, 1_700_000_000_000, 1, 2)
    assert found._fields == aiokafka.structs.RecordMetadata._fields


def test_partitions_and_offsets_are_equal_to_aiokafkas():
    assert structs.TopicPartition("t", 3) == aiokafka.structs.TopicPartition("t", 3)
    assert structs.OffsetAndMetadata(5, "m").offset == aiokafka.structs.OffsetAndMetadata(5, "m").offset
