"""The records of `__consumer_offsets`, each with a group's offset in one partition, and the state that results from
them.

Offsets committed in a transaction are transactional records: a commit marker makes them effective, and an abort marker
discards them. The formats are Kafka's (OffsetCommitKey, OffsetCommitValue).
"""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.schema import NEVER, Message, int32, int64, string
from aioproducer.testing.embedded.batches import read_marker
from aioproducer.testing.embedded.log import LogBatch, PartitionLog
from aioproducer.testing.embedded.transaction_log import read_versioned, versioned
from aioproducer.types import TopicPartition

TOPIC = "__consumer_offsets"
PARTITIONS = 50
"""Kafka's default (offsets.topic.num.partitions)."""

_KEY_VERSION = 1
_VALUE_VERSION = 4


class OffsetCommitKey(Message, api_key=ApiKey.TXN_OFFSET_COMMIT, versions=(0, 1), flexible_from=NEVER):
    """The group and the partition of a committed offset."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, api_key=ApiKey.TXN_OFFSET_COMMIT, versions=(3, 4), flexible_from=4):
    """The committed offset. Version 3: leader epoch."""

    offset: int = int64()
    leader_epoch: int = int32(default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()


class CommittedOffset(NamedTuple):
    """The position from which a group continues in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def encoded_offset(
    group: str, target: TopicPartition, committed: CommittedOffset | None, now_ms: int
) -> tuple[bytes, bytes | None]:
    """Encode the key and value of an offset's record. If `committed` is None, the record deletes the offset."""
    key = versioned(
        OffsetCommitKey(group=group, topic=target.topic, partition=target.partition), _KEY_VERSION
    )
    if committed is None:
        return key, None
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=now_ms,
    )
    return key, versioned(value, _VALUE_VERSION)


class GroupOffsets:
    """The state of one partition of `__consumer_offsets`, read from its replicated records."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        # The offsets in open transactions by producer id, in the order in which they were written.
        self._pending: dict[int, dict[tuple[str, TopicPartition], CommittedOffset]] = {}
        self._next_offset = 0

    def catch_up(self, log: PartitionLog, high_watermark: int) -> GroupOffsets:
        """Read the new replicated records in the log, and return self."""
        for batch in log.batches_from(self._next_offset):
            if batch.last_offset >= high_watermark:
                break
            self._apply(batch)
            self._next_offset = batch.last_offset + 1
        return self

    def committed(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group."""
        return self._committed.get(group, {})

    def knows(self, group: str) -> bool:
        """Return True if the group has had committed offsets, or has pending ones."""
        return group in self._committed or any(
            name == group for offsets in self._pending.values() for name, _ in offsets
        )

    def is_pending(self, group: str, target: TopicPartition) -> bool:
        """Return True if an open transaction has written the group's offset for this partition."""
        return any((group, target) in offsets for offsets in self._pending.values())

    def concerning(self, topic: str) -> list[tuple[str, TopicPartition]]:
        """Return the group and the partition of every offset in a topic, including pending ones."""
        found = [
            (group, target)
            for group, offsets in self._committed.items()
            for target in offsets
            if target.topic == topic
        ]
        found += [key for offsets in self._pending.values() for key in offsets if key[1].topic == topic]
        return list(dict.fromkeys(found))

    def _apply(self, batch: LogBatch) -> None:
        header = batch.header
        if header.is_control:
            offsets = self._pending.pop(header.producer_id, {})
            if read_marker(next(batch.records())).commit:
                for (group, target), committed in offsets.items():
                    self._committed.setdefault(group, {})[target] = committed
            return
        for record in batch.records():
            assert record.key is not None
            key = read_versioned(OffsetCommitKey, record.key)
            target = TopicPartition(key.topic, key.partition)
            if record.value is None:
                self._forget(key.group, target)
                continue
            value = read_versioned(OffsetCommitValue, record.value)
            committed = CommittedOffset(value.offset, value.leader_epoch, value.metadata)
            if header.is_transactional:
                self._pending.setdefault(header.producer_id, {})[key.group, target] = committed
            else:
                self._committed.setdefault(key.group, {})[target] = committed

    def _forget(self, group: str, target: TopicPartition) -> None:
        self._committed.get(group, {}).pop(target, None)
        for offsets in self._pending.values():
            offsets.pop((group, target), None)
