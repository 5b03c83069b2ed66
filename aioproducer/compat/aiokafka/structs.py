"""The named tuples of aiokafka.structs that concern a producer."""

from __future__ import annotations

from typing import NamedTuple

from aioproducer import OffsetAndMetadata, TopicPartition
from aioproducer import RecordMetadata as AcknowledgedRecord

__all__ = ["OffsetAndMetadata", "RecordMetadata", "TopicPartition"]


class RecordMetadata(NamedTuple):
    """The position of a stored record, as a tuple."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int | None
    """The record's offset, or None if the broker no longer knew the offset of a retried record."""
    timestamp: int
    timestamp_type: int
    """0 if the producer set the timestamp, 1 if the broker set it."""
    log_start_offset: int

    @classmethod
    def of(cls, record: AcknowledgedRecord) -> RecordMetadata:
        """Return the tuple for aioproducer's RecordMetadata."""
        return cls(
            record.topic,
            record.partition,
            record.topic_partition,
            record.offset,
            record.timestamp,
            record.timestamp_type,
            record.log_start_offset,
        )
