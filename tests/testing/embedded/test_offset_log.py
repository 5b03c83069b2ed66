"""The records of __consumer_offsets: how they are written, and what a log of them adds up to."""

from __future__ import annotations

import pytest

from tests.support.coordinators import staged_with_group
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
