"""TxnOffsetCommit and OffsetFetch: the brokers' answers, cell by cell and version by version."""

from __future__ import annotations

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import OffsetFetchRequest
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.authorizer import Operation
from aioproducer.testing.embedded.offset_requests import offset_fetch
from tests.support.coordinators import staged_with_group
from tests.support.direct_calls import context_of
from tests.support.offset_cells import CELLS
from tests.support.raw_client import RawClient, address
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


async def test_another_broker_is_not_the_groups_coordinator():
    async with staged_with_group(3) as (cluster, on, group):
        me = await on.init()
        cluster.groups.move("group", (cluster.groups.node("group") + 1) % 3)
        assert await group.commit_offsets(me, {("t", 0): Offset(1)}, version=5) == [ErrorCode.NOT_COORDINATOR]
        assert await group.fetch_offsets() == {-1: GroupOffset(ErrorCode.NOT_COORDINATOR)}
        assert await group.fetch_offsets(version=2) == {-1: GroupOffset(ErrorCode.NOT_COORDINATOR)}
        assert await group.fetch_offsets(version=1) == {0: GroupOffset(ErrorCode.NOT_COORDINATOR)}


@pytest.mark.parametrize("version", range(1, 9))
async def test_every_version_of_offset_fetch_returns_the_offset(version):
    async with staged_with_group() as (_, on, group):
        me = await on.init()
        where = {("t", 0): Offset(5, "note"), ("t", 2): Offset(6)}
        assert await group.commit_offset(me, 1, version=5) == OK
        assert await group.commit_offsets(me, where, version=5) == [OK, OK]
        await on.commit(me)
        found = await group.fetch_offsets((0, 1, 2), version=version)
        assert found == {0: GroupOffset(OK, 5, "note"), 1: GroupOffset(OK), 2: GroupOffset(OK, 6)}


async def test_faults_for_offsets_apply_only_to_their_targets():
    async with staged_with_group() as (cluster, on, group):
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


async def test_requests_without_the_rights_are_rejected():
    async with staged_with_group() as (cluster, on, group):
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


async def test_each_of_several_groups_has_its_own_answer():
    async with staged_with_group(3) as (cluster, on, group):
        me = await on.init()
        assert await group.commit_offset(me, 1, version=5) == OK
        await on.commit(me)
        node = cluster.groups.node("group")
        elsewhere = next(name for name in "abcdef" if cluster.groups.node(name) != node)
        here = next(name for name in "abcdef" if cluster.groups.node(name) == node)
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)
                for name in ("group", elsewhere, here)
            ]
        )

        response = await offset_fetch(context_of(cluster, request, 8, node=node), request)

        described = [
            (
                one.group_id,
                one.error_code,
                [part.committed_offset for topic in one.topics for part in topic.partitions],
            )
            for one in response.groups
        ]
        assert described == [("group", OK, [1]), (elsewhere, ErrorCode.NOT_COORDINATOR, []), (here, OK, [])]
