"""The records of __consumer_offsets: their format, and the state that a log of them describes."""

from __future__ import annotations

import pytest

from aioproducer.protocol.recordbatch import TRANSACTIONAL
from aioproducer.testing.embedded.batches import Marker, encode_batch
from aioproducer.testing.embedded.log import PartitionLog
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.offset_log import CommittedOffset, GroupOffsets, encoded_offset
from aioproducer.types import TopicPartition
from tests.support.coordinators import staged_with_group
from tests.support.raw_client import NOW
from tests.support.transaction_stage import OK


@pytest.mark.promise("Test clusters", "the embedded cluster writes group offsets as transactional records")
async def test_offsets_are_transactional_records_of_the_groups_partition():
    async with staged_with_group() as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 7, version=5) == OK
        partition = cluster.groups.partition_of("group")
        assert partition.last_stable_offset == 0
        await on.commit(me)
        data, marker = partition.log.batches
        assert (data.header.is_transactional, data.header.is_control) == (True, False)
        assert (data.header.producer_id, data.header.producer_epoch) == me[:2]
        assert marker.header.is_control
        assert partition.last_stable_offset == 2
        (record,) = data.records()
        assert record.key == bytes.fromhex("0001 0005 67726f7570 0001 74 00000000")
        assert record.value.startswith(bytes.fromhex("0004 0000000000000007 ffffffff 01"))


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def log() -> PartitionLog:
    return PartitionLog(LogConfig())


def write(
    log: PartitionLog,
    offsets: dict[TopicPartition, CommittedOffset | None],
    producer_id: int = -1,
    group: str = "g",
) -> None:
    """Append a group's offsets, in a transaction if a producer id is given."""
    records = [encoded_offset(group, target, committed, NOW) for target, committed in offsets.items()]
    if producer_id < 0:
        log.append_by_broker(encode_batch(records, NOW), leader_epoch=0)
        return
    batch = encode_batch(records, NOW, producer_id=producer_id, producer_epoch=0, attributes=TRANSACTIONAL)
    log.append_by_broker(batch, leader_epoch=0)


def end(log: PartitionLog, producer_id: int, *, commit: bool) -> None:
    log.append_marker(producer_id, 0, Marker(commit, 0), leader_epoch=0, now_ms=NOW)


def read(log: PartitionLog) -> GroupOffsets:
    return GroupOffsets().catch_up(log, log.end_offset)


def test_offsets_outside_of_a_transaction_count_at_once_and_the_last_one_wins(log):
    write(log, {T0: CommittedOffset(5, 2, "note"), T1: CommittedOffset(6)})
    write(log, {T1: CommittedOffset(4)})

    assert read(log).committed("g") == {T0: CommittedOffset(5, 2, "note"), T1: CommittedOffset(4)}


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_are_pending_until_its_own_marker(log, commit):
    write(log, {T0: CommittedOffset(1)})
    write(log, {T0: CommittedOffset(2)}, producer_id=7)
    write(log, {T1: CommittedOffset(3)}, producer_id=8)
    end(log, 8, commit=True)
    found = read(log)
    assert found.committed("g") == {T0: CommittedOffset(1), T1: CommittedOffset(3)}
    assert [found.is_pending("g", target) for target in (T0, T1)] == [True, False]

    end(log, 7, commit=commit)
    found.catch_up(log, log.end_offset)

    assert found.committed("g")[T0] == CommittedOffset(2 if commit else 1)
    assert not found.is_pending("g", T0)


def test_offsets_count_only_when_they_are_replicated(log):
    found = GroupOffsets()
    write(log, {T0: CommittedOffset(1)})
    write(log, {T0: CommittedOffset(2), T1: CommittedOffset(2)})

    for high_watermark, offset in ((0, None), (1, 1), (2, 1), (3, 2)):
        committed = found.catch_up(log, high_watermark).committed("g").get(T0)
        assert (committed and committed.offset) == offset


def test_a_tombstone_removes_an_offset_and_its_pending_one(log):
    write(log, {T0: CommittedOffset(1), U0: CommittedOffset(1)})
    write(log, {T0: CommittedOffset(2)}, producer_id=7)
    assert read(log).concerning("t") == [("g", T0)]

    write(log, {T0: None})
    end(log, 7, commit=True)

    assert read(log).committed("g") == {U0: CommittedOffset(1)}
    assert read(log).concerning("t") == []


def test_a_group_is_known_since_its_first_pending_offset(log):
    write(log, {T0: CommittedOffset(1)}, producer_id=7, group="new")

    found = read(log)

    assert (found.knows("new"), found.knows("other")) == (True, False)
    assert found.concerning("t") == [("new", T0)]
