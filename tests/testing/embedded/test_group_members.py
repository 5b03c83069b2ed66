"""The members of a group: the table of states, and the time-outs, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing.embedded.group_members import (
    TRANSITIONS,
    ClassicGroup,
    GroupState,
    Joined,
    Joining,
    RejoinRequired,
)
from aioproducer.testing.embedded.transaction_metadata import TransactionRefused
from tests.conftest import in_virtual_time


def group() -> ClassicGroup:
    numbers = itertools.count(1)
    return ClassicGroup(lambda start: f"{start}-{next(numbers)}")


def joining(member_id: str = "", *, client_id: str = "client", gets_id_first: bool = False) -> Joining:
    return Joining(
        member_id,
        None,
        client_id,
        session_timeout=10.0,
        rebalance_timeout=30.0,
        protocol_type="consumer",
        protocols=(("range", b""),),
        gets_id_first=gets_id_first,
        skips_assignment=True,
    )


async def stable(on: ClassicGroup, *client_ids: str) -> list[str]:
    """Let members join and sync; return their ids, the leader's first."""
    waiting: list[asyncio.Future[Joined]] = []
    for client_id in client_ids:
        waiting.append(on.join(joining(client_id=client_id)))
        if len(waiting) == 2:
            waiting[0] = on.join(joining("a-1"))
    joined = [await each for each in waiting]
    for one in joined:
        on.sync(one.member_id, {other.member_id: b"part" for other in joined})
    assert on.state is GroupState.STABLE
    return [one.member_id for one in joined]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(GroupState, GroupState)))
def test_only_the_transitions_of_the_table_are_possible(before, after):
    on = group()
    on.state = before

    if after in TRANSITIONS[before]:
        on._move(after)
        assert on.state is after
    else:
        with pytest.raises(AssertionError, match=f"transition: from '{before.value}' to '{after.value}'"):
            on._move(after)


@in_virtual_time
async def test_a_member_without_heartbeats_is_removed_after_its_session():
    on = group()
    leader, follower = await stable(on, "a", "b")

    await asyncio.sleep(9)
    on.heartbeat(leader)
    assert list(on.members) == [leader, follower]
    await asyncio.sleep(1)
    assert list(on.members) == [leader]
    with pytest.raises(TransactionRefused, match="REBALANCE_IN_PROGRESS"):
        on.heartbeat(leader)
    joined = await on.join(joining(leader))

    assert (joined.generation, joined.leader) == (on.generation, leader)
    with pytest.raises(TransactionRefused, match="UNKNOWN_MEMBER_ID"):
        on.check_member(follower, None)
    on.halt()


@in_virtual_time
async def test_sessions_do_not_expire_while_no_coordinator_can_receive_heartbeats():
    is_served = False
    on = ClassicGroup(lambda start: f"{start}-1", lambda: is_served)
    await stable(on, "a")

    await asyncio.sleep(35)
    assert list(on.members) == ["a-1"]
    is_served = True
    await asyncio.sleep(10)

    assert on.state is GroupState.EMPTY
    assert on.members == {}


@in_virtual_time
async def test_a_rebalance_removes_members_that_do_not_join_in_time():
    on = group()
    leader, _ = await stable(on, "a", "b")
    waiting = on.join(joining(leader))

    for _ in range(5):
        await asyncio.sleep(5)
        assert not waiting.done()
        with pytest.raises(TransactionRefused, match="REBALANCE_IN_PROGRESS"):
            on.heartbeat("b-2")
    joined = await waiting

    assert list(on.members) == [leader]
    assert joined.members == ((leader, None, b""),)
    on.halt()


@in_virtual_time
async def test_members_that_do_not_ask_for_their_partitions_are_removed():
    on = group()
    joined = await on.join(joining())

    for _ in range(7):
        await asyncio.sleep(5)
        if joined.member_id in on.members:
            on.heartbeat(joined.member_id)

    assert on.state is GroupState.EMPTY
    assert on.members == {}


@in_virtual_time
async def test_a_rebalance_waits_for_members_that_have_only_an_id_until_their_session_ends():
    on = group()
    (leader,) = await stable(on, "a")
    with pytest.raises(RejoinRequired) as required:
        on.join(joining(gets_id_first=True))
    assert required.value.code is ErrorCode.MEMBER_ID_REQUIRED
    waiting = on.join(joining(leader))
    started = asyncio.get_running_loop().time()

    await waiting

    assert asyncio.get_running_loop().time() - started == 10
    with pytest.raises(TransactionRefused, match="UNKNOWN_MEMBER_ID"):
        on.join(joining(required.value.member_id))
    on.halt()


@in_virtual_time
async def test_after_a_restart_every_session_begins_again():
    on = group()
    await stable(on, "a")
    await asyncio.sleep(8)
    on.halt()
    await asyncio.sleep(100)
    on.resume()

    await asyncio.sleep(9)
    assert list(on.members) == ["a-1"]
    await asyncio.sleep(1)

    assert on.members == {}


@in_virtual_time
async def test_a_rebalance_in_progress_continues_after_a_restart():
    on = group()
    leader, _ = await stable(on, "a", "b")
    on.join(joining(leader))
    on.halt()
    on.resume()

    joined = await on.join(joining(leader))

    assert list(on.members) == [leader]
    assert joined.generation == 3
    on.halt()


@in_virtual_time
async def test_a_repeated_request_replaces_the_waiting_one():
    on = group()
    leader, follower = await stable(on, "a", "b")
    first = on.join(joining(leader))
    second = on.join(joining(leader))

    with pytest.raises(TransactionRefused, match="REBALANCE_IN_PROGRESS"):
        await first
    on.join(joining(follower))

    assert (await second).generation == 3
    on.halt()


@in_virtual_time
async def test_waiting_for_a_stable_group_ends_with_the_right_number_of_members():
    on = group()
    watching = asyncio.create_task(on.wait_stable(2))
    await stable(on, "a")
    await asyncio.sleep(0)
    assert not watching.done()
    on.join(joining(client_id="b"))
    joined = await on.join(joining("a-1"))
    on.sync(joined.member_id, {})

    await watching

    assert len(on.members) == 2
    on.halt()
