"""Offsets of groups in the embedded cluster: what it answers, cell by cell, and where they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded import groups
from aioproducer.testing.embedded.authorizer import Operation
from tests.conftest import MS
from tests.support.offset_cells import CELLS
from tests.support.raw_client import TIMEOUT, RawClient, address
from tests.support.raw_transactions import GroupOffset, Offset
from tests.support.transaction_stage import OK, Case, Stage, named


@pytest.mark.parametrize(("case", "tv"), named(CELLS))
async def test_cell(case: Case, tv: int):
    async with (
        EmbeddedCluster(topics={"t": 3}, versions="4.3", transaction_version=tv) as cluster,
        RawClient(address(cluster)) as client,
    ):
        stage = Stage(client, tv, "t", "txn", "group")
        await stage.find()
        await case.play(stage)


@asynccontextmanager
async def staged(brokers: int = 1, tv: int = 2) -> AsyncIterator[tuple[EmbeddedCluster, Stage, Stage]]:
    """A cluster, and the same producer connected to the coordinator of transactions and to that of the group."""
    async with EmbeddedCluster(brokers, topics={"t": 3}, versions="4.3", transaction_version=tv) as cluster:
        of_transactions = address(cluster, cluster.transactions.node("txn"))
        of_groups = address(cluster, cluster.groups.node("group"))
        async with RawClient(of_transactions) as one, RawClient(of_groups) as other:
            yield (
                cluster,
                Stage(one, tv, "t", "txn", "group"),
                Stage(other, tv, "t", "txn", "group"),
            )


async def ended(cluster: EmbeddedCluster) -> None:
    async with asyncio.timeout(TIMEOUT):
        await cluster.transactions.wait_ended("txn")


async def test_offsets_of_a_transaction_count_when_it_is_committed():
    async with staged() as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        assert cluster.groups.offsets("group") == {}
        me = await on.commit(me)
        assert cluster.groups.offsets("group") == {("t", 0): 1}
        assert await group.commit_offset(me, 2, version=5) == OK
        await on.abort(me)
        assert cluster.groups.offsets("group") == {("t", 0): 1}


async def test_offsets_are_transactional_records_of_the_groups_partition():
    async with staged() as (cluster, on, group):
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


async def test_another_broker_is_not_the_groups_coordinator():
    async with staged(3) as (cluster, on, group):
        me = await on.init()
        cluster.groups.move("group", (cluster.groups.node("group") + 1) % 3)
        assert await group.commit_offsets(me, {("t", 0): Offset(1)}, version=5) == [ErrorCode.NOT_COORDINATOR]
        assert await group.fetch_offsets() == {-1: GroupOffset(ErrorCode.NOT_COORDINATOR)}
        assert await group.fetch_offsets(version=2) == {-1: GroupOffset(ErrorCode.NOT_COORDINATOR)}
        assert await group.fetch_offsets(version=1) == {0: GroupOffset(ErrorCode.NOT_COORDINATOR)}


async def test_a_group_coordinator_that_moved_knows_what_is_pending():
    async with staged(3) as (cluster, on, group):
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


@pytest.mark.parametrize("commit", [True, False])
async def test_both_coordinators_die_with_an_offset_pending(commit):
    async with staged(3) as (cluster, on, group):
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


async def test_members_and_generations_are_those_that_the_test_says():
    async with staged() as (cluster, on, group):
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


async def test_with_a_topic_its_offsets_go_too():
    async with staged() as (cluster, on, group):
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


async def test_a_topic_can_be_deleted_while_too_few_replicas_hold_the_offsets():
    async with staged(3) as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        await on.commit(me)
        await ended(cluster)
        partition = cluster.groups.partition_of("group")
        partition.config = partition.config.changed({"min.insync.replicas": "2"})
        cluster.set_isr("__consumer_offsets", partition.index, [])
        cluster.delete_topic("t")
        assert "t" not in cluster.topics
        # What says that the offset is gone could not be written.
        assert cluster.groups.offsets("group") == {("t", 0): 1}


async def test_offsets_that_are_not_replicated_wait_and_then_are_refused(monkeypatch):
    monkeypatch.setattr(groups, "COMMIT_TIMEOUT", 50 * MS)
    async with staged(3) as (cluster, on, group):
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


@pytest.mark.parametrize("version", range(1, 9))
async def test_every_version_of_offset_fetch_tells_the_offset(version):
    async with staged() as (_, on, group):
        me = await on.init()
        where = {("t", 0): Offset(5, "note"), ("t", 2): Offset(6)}
        assert await group.commit_offset(me, 1, version=5) == OK
        assert await group.commit_offsets(me, where, version=5) == [OK, OK]
        await on.commit(me)
        found = await group.fetch_offsets((0, 1, 2), version=version)
        assert found == {0: GroupOffset(OK, 5, "note"), 1: GroupOffset(OK), 2: GroupOffset(OK, 6)}


async def test_faults_for_offsets_are_as_narrow_as_the_script_says():
    async with staged() as (cluster, on, group):
        me = await on.init()
        where = {("t", 0): Offset(5), ("t", 1): Offset(6)}
        assert await group.commit_offset(me, 1, version=5) == OK
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=14, topic="t", partition=1)
        assert await group.commit_offsets(me, where, version=5) == [OK, 14]
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=14, after_append=True)
        assert await group.commit_offsets(me, where, version=5) == [14, 14]
        await on.commit(me)
        cluster.faults.add(ApiKey.OFFSET_FETCH, error=88, partition=0)
        found = await group.fetch_offsets((0, 1))
        assert found == {0: GroupOffset(88), 1: GroupOffset(OK, 6)}
        cluster.faults.add(ApiKey.OFFSET_FETCH, error=16)
        assert await group.fetch_offsets((0, 1)) == {-1: GroupOffset(16)}
        assert await group.fetch_offsets((0, 1)) == {0: GroupOffset(OK, 5), 1: GroupOffset(OK, 6)}


async def test_what_may_not_be_read_or_written_is_refused():
    async with staged() as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        where = {("t", 0): Offset(5)}
        for denial, code in (
            ({"transactional_id": "txn"}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            ({"group": "group"}, ErrorCode.GROUP_AUTHORIZATION_FAILED),
            ({"topic": "t"}, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ):
            cluster.authorizer.deny(Operation.ALL, **denial)
            assert await group.commit_offsets(me, where, version=5) == [code]
            cluster.authorizer.clear()
        cluster.authorizer.deny(Operation.DESCRIBE, group="group")
        assert await group.fetch_offsets() == {-1: GroupOffset(ErrorCode.GROUP_AUTHORIZATION_FAILED)}
        assert await on.add_offsets(me) == OK
        cluster.authorizer.deny(Operation.READ, group="group")
        assert await on.add_offsets(me) == ErrorCode.GROUP_AUTHORIZATION_FAILED
        cluster.authorizer.clear()
        await on.commit(me)
        cluster.authorizer.deny(Operation.DESCRIBE, topic="t")
        assert await group.fetch_offsets() == {0: GroupOffset(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
        assert await group.fetch_offsets(None) == {}
