"""The group coordinator: the members that may commit offsets in a transaction, and the coordinators that know
them."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded import groups
from tests.conftest import MS
from tests.support.coordinators import staged_with_group
from tests.support.raw_client import TIMEOUT, RawClient, address
from tests.support.raw_transactions import GroupOffset, Offset
from tests.support.transaction_stage import OK, Stage


async def ended(cluster: EmbeddedCluster) -> None:
    async with asyncio.timeout(TIMEOUT):
        await cluster.transactions.wait_ended("txn")


async def test_offsets_of_a_transaction_count_when_it_is_committed():
    async with staged_with_group() as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        assert cluster.groups.offsets("group") == {}
        me = await on.commit(me)
        assert cluster.groups.offsets("group") == {("t", 0): 1}
        assert await group.commit_offset(me, 2, version=5) == OK
        await on.abort(me)
        assert cluster.groups.offsets("group") == {("t", 0): 1}


async def test_a_new_group_coordinator_knows_the_pending_offsets():
    async with staged_with_group(3) as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        me = await on.commit(me)
        assert await group.commit_offset(me, 2, version=5) == OK
        new = (cluster.groups.node("group") + 1) % 3
        cluster.groups.hold_loading()
        cluster.groups.move("group", new)
        async with RawClient(address(cluster, new)) as client:
            there = Stage(client, 2, "t", "txn", "group")
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await there.fetch_offsets() == {-1: GroupOffset(loading)}
            assert await there.commit_offsets(me, {("t", 0): Offset(3)}, version=5) == [loading]
            cluster.groups.release_loading()
            assert await there.fetch_offsets() == {0: GroupOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)}
            await on.commit(me)
            assert await there.offset() == GroupOffset(OK, 2)


@pytest.mark.promise("Test clusters", "the embedded cluster writes group offsets as transactional records")
@pytest.mark.parametrize("commit", [True, False])
async def test_both_coordinators_die_with_an_offset_pending(commit):
    async with staged_with_group(3) as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        for node in {cluster.transactions.node("txn"): None, cluster.groups.node("group"): None}:
            await cluster.stop_broker(node)
            await cluster.start_broker(node)
        async with (
            RawClient(address(cluster, cluster.transactions.node("txn"))) as one,
            RawClient(address(cluster, cluster.groups.node("group"))) as other,
        ):
            there = Stage(other, 2, "t", "txn", "group")
            assert await there.fetch_offsets() == {0: GroupOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)}
            after = await Stage(one, 2, "t", "txn", "group").end(me, commit=commit, version=5)
            assert after.error == OK
            await ended(cluster)
            assert await there.offset() == GroupOffset(OK, 1 if commit else -1)


async def test_a_test_can_set_members_and_generations():
    async with staged_with_group() as (cluster, on, group):
        cluster.groups.set_members("group", 3, {"a": None, "b": "static"})
        me = await on.init()
        where = {("t", 0): Offset(1)}
        for generation, member, instance, code in (
            (3, "a", None, OK),
            (3, "b", "static", OK),
            (-1, "", None, OK),
            (2, "a", None, ErrorCode.ILLEGAL_GENERATION),
            (-1, "a", None, ErrorCode.ILLEGAL_GENERATION),
            (3, "c", None, ErrorCode.UNKNOWN_MEMBER_ID),
            (3, "", None, ErrorCode.UNKNOWN_MEMBER_ID),
            (3, "a", "static", ErrorCode.FENCED_INSTANCE_ID),
            (3, "c", "unknown", ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            codes = await group.commit_offsets(
                me, where, version=5, generation=generation, member=member, instance=instance
            )
            assert codes == [code]


async def test_the_offsets_of_a_deleted_topic_are_deleted():
    async with staged_with_group() as (cluster, on, group):
        me = await on.init()
        cluster.create_topic("u")
        where = {("t", 0): Offset(1), ("u", 0): Offset(2)}
        assert await group.commit_offset(me, 1, version=5) == OK
        assert await group.commit_offsets(me, where, version=5) == [OK, OK]
        me = await on.commit(me)
        assert await group.commit_offsets(me, {("t", 0): Offset(3)}, version=5) == [OK]
        cluster.delete_topic("t")
        assert await group.fetch_offsets() == {0: GroupOffset(OK)}
        await on.commit(me)
        assert await group.offset() == GroupOffset(OK)
        assert cluster.groups.offsets("group") == {("u", 0): 2}


async def test_a_topic_can_be_deleted_while_too_few_replicas_can_store_offsets():
    async with staged_with_group(3) as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        await on.commit(me)
        await ended(cluster)
        partition = cluster.groups.partition_of("group")
        partition.config = partition.config.changed({"min.insync.replicas": "2"})
        cluster.set_isr("__consumer_offsets", partition.index, [])
        cluster.delete_topic("t")
        assert "t" not in cluster.topics
        # The tombstone of the offset could not be written.
        assert cluster.groups.offsets("group") == {("t", 0): 1}


async def test_offsets_that_are_not_replicated_wait_and_are_then_rejected(monkeypatch):
    monkeypatch.setattr(groups, "COMMIT_TIMEOUT", 50 * MS)
    async with staged_with_group(3) as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        partition = cluster.groups.partition_of("group")
        cluster.hold_replication("__consumer_offsets", partition.index)
        codes = await group.commit_offsets(me, {("t", 0): Offset(2), ("t", 1): Offset(2)}, version=5)
        assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
        unstable = GroupOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert await group.fetch_offsets((0, 1)) == {0: unstable, 1: GroupOffset(OK)}
        committing = asyncio.create_task(group.commit_offsets(me, {("t", 0): Offset(3)}, version=5))
        async with asyncio.timeout(TIMEOUT):
            await cluster.wait_for_requests(ApiKey.TXN_OFFSET_COMMIT, 3)
        cluster.release_replication("__consumer_offsets", partition.index)
        assert await committing == [OK]
