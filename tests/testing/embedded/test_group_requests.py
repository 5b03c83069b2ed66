"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup when something goes wrong.

tests.support.conformance.groups covers the usual answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded import group_requests
from aioproducer.testing.embedded.authorizer import Operation
from tests.support.conformance.client import Client
from tests.support.conformance.groups import Member
from tests.support.raw_client import TIMEOUT, address

OK = ErrorCode.NONE


@asynccontextmanager
async def member(brokers: int = 1) -> AsyncIterator[tuple[EmbeddedCluster, Member]]:
    """A cluster, and a client that is connected to the coordinator of group "t"."""
    async with EmbeddedCluster(brokers, topics={"t": 1}, versions="4.3") as cluster:
        where = address(cluster, cluster.groups.node("t"))
        async with Client(where, "4.3", "t", uuid.UUID(int=0)) as client:
            yield cluster, Member(client)


async def asked(cluster: EmbeddedCluster, api_key: ApiKey, count: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        await cluster.wait_for_requests(api_key, count)


@pytest.mark.promise("Test clusters", "the embedded cluster coordinates consumer groups")
async def test_a_coordinator_that_moves_sends_waiting_members_to_the_new_one():
    async with member(3) as (cluster, first):
        await first.join()
        await first.sync({first.id: b"all"})
        async with first.client.another() as client:
            second = Member(client)
            await second.join_once()
            waiting = second.begin_join()
            await asked(cluster, ApiKey.JOIN_GROUP, 4)
            new = (cluster.groups.node("t") + 1) % 3
            cluster.groups.move("t", new)
            moved = await second.client.answer(second.join_request(), 9, waiting)
            assert moved.error_code == ErrorCode.NOT_COORDINATOR
            assert await first.heartbeat() == ErrorCode.NOT_COORDINATOR

        async with Client(address(cluster, new), "4.3", "t", uuid.UUID(int=0)) as client:
            first.client = client
            assert await first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_coordinator_that_reads_its_log_answers_only_heartbeats():
    async with member(3) as (cluster, one):
        await one.join()
        new = (cluster.groups.node("t") + 1) % 3
        cluster.groups.hold_loading()
        cluster.groups.move("t", new)
        async with Client(address(cluster, new), "4.3", "t", uuid.UUID(int=0)) as client:
            one.client = client
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await one.heartbeat() == OK
            assert await one.sync() == (loading, b"")
            assert (await one.join_once()).error_code == loading
            assert await one.leave() == (loading, [])
            assert await one.commit({0: 1}) == [loading]
            cluster.groups.release_loading()
            assert await one.sync({one.id: b"all"}) == (OK, b"all")


async def test_a_client_without_the_right_to_read_the_group_is_rejected():
    async with member() as (cluster, one):
        cluster.authorizer.deny(Operation.READ, group="t")
        denied = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (await one.join_once()).error_code == denied
        assert await one.sync() == (denied, b"")
        assert await one.heartbeat() == denied
        assert await one.leave() == (denied, [])
        assert await one.commit({0: 1}) == [denied]


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
async def test_a_scripted_error_is_returned_once(code):
    async with member() as (cluster, one):
        for api_key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP):
            cluster.faults.add(api_key, error=code)
        assert (await one.join_once()).error_code == code
        assert await one.sync() == (code, b"")
        assert await one.heartbeat() == code
        assert await one.leave() == (code, [])

        assert (await one.join()).error_code == OK
        assert await one.sync({one.id: b"all"}) == (OK, b"all")
        assert await one.heartbeat() == OK
        assert await one.leave() == (OK, [OK])


async def test_a_stopped_cluster_keeps_the_members_of_its_groups():
    async with member() as (cluster, one):
        await one.join()
        await one.sync({one.id: b"all"})
        await cluster.stop()
        await cluster.start()
        async with one.client.another() as client:
            one.client = client
            assert await one.heartbeat() == OK
        assert cluster.groups.members("t") == {one.id: None}
        assert cluster.groups.generation("t") == 1


async def test_a_test_expires_members_and_begins_rebalances():
    async with member() as (cluster, one):
        await one.join()
        async with asyncio.timeout(TIMEOUT):
            waiting = asyncio.create_task(cluster.groups.wait_stable("t", 1))
            assert await one.sync({one.id: b"all"}) == (OK, b"all")
            await waiting
        cluster.groups.rebalance("t")
        assert await one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        cluster.groups.expire_member("t", one.id)
        assert await one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert cluster.groups.members("t") == {}
        with pytest.raises(KeyError):
            cluster.groups.expire_member("t", one.id)


def test_the_limits_of_sessions_are_kafkas():
    assert (group_requests.MIN_SESSION_TIMEOUT_MS, group_requests.MAX_SESSION_TIMEOUT_MS) == (6000, 1800000)
