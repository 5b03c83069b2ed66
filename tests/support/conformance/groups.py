"""Consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetCommit (Kafka's ClassicGroup)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.support.conformance.client import Client
from tests.support.conformance.suite import case
from tests.support.raw_transactions import COME_BACK, Offset, Transactions, settled

OK = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
OLD_GENERATION = ErrorCode.ILLEGAL_GENERATION
INCONSISTENT = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
FENCED = ErrorCode.FENCED_INSTANCE_ID

SESSION_MS, REBALANCE_MS = 30_000, 60_000
RANGE = (("range", b"me"),)


class Member:
    """A member of the case's group, on a separate connection."""

    def __init__(self, client: Client, group: str | None = None, *, instance: str | None = None) -> None:
        self.client = client
        self.group = client.topic if group is None else group
        self.instance = instance
        self.id = ""
        self.generation = -1

    async def find(self) -> None:
        """Wait until the broker coordinates the group."""
        for key_type, key in ((0, self.group), (1, self.client.topic)):
            request = FindCoordinatorRequest(key=key, key_type=key_type)

            async def ask(request: FindCoordinatorRequest = request) -> int:
                return (await self.client.ask(request, 3)).error_code

            assert await settled(ask) == OK
        # A coordinator that is still reading its log answers heartbeats with success.
        assert await settled(self.heartbeat, *COME_BACK, OK) == UNKNOWN

    def join_request(
        self,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        *,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
    ) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols
            ],
        )

    async def join_once(
        self, protocols: Sequence[tuple[str, bytes]] = RANGE, *, version: int = 9, **settings: object
    ) -> JoinGroupResponse:
        """Send JoinGroup once. A response without an error makes this a member."""
        request = self.join_request(protocols, **settings)
        return self.note(await self.client.ask(request, version))

    def note(self, response: JoinGroupResponse) -> JoinGroupResponse:
        """Remember the member id and the generation that a response contains."""
        if response.error_code in (OK, ErrorCode.MEMBER_ID_REQUIRED):
            self.id = response.member_id
            self.generation = response.generation_id
        return response

    async def join(
        self, protocols: Sequence[tuple[str, bytes]] = RANGE, *, version: int = 9
    ) -> JoinGroupResponse:
        """Join the group; send JoinGroup again with a member id if the broker requires one."""
        response = await self.join_once(protocols, version=version)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            response = await self.join_once(protocols, version=version)
        assert response.error_code == OK
        return response

    def begin_join(self, protocols: Sequence[tuple[str, bytes]] = RANGE) -> int:
        """Send JoinGroup without waiting for the other members."""
        return self.client.send(self.join_request(protocols), 9)

    async def joined(self, correlation_id: int) -> JoinGroupResponse:
        """Wait for the response to `begin_join`."""
        return self.note(await self.client.answer(self.join_request(), 9, correlation_id))

    def sync_request(
        self,
        assignments: Mapping[str, bytes] = {},  # never modified
        *,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in assignments.items()
            ],
        )

    async def sync(
        self,
        assignments: Mapping[str, bytes] = {},  # never modified
        *,
        version: int = 5,
        **protocol: str | None,
    ) -> tuple[int, bytes]:
        """Send SyncGroup; return the error code and the assignment."""
        response: SyncGroupResponse = await self.client.ask(
            self.sync_request(assignments, **protocol), version
        )
        return response.error_code, bytes(response.assignment)

    async def alone(self) -> Member:
        """Become the only member, and the leader, of a stable group."""
        await self.find()
        await self.join()
        assert await self.sync({self.id: b"all"}) == (OK, b"all")
        return self

    async def heartbeat(self, *, version: int = 4) -> int:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
        )
        return (await self.client.ask(request, version)).error_code

    async def leave(self, *, version: int = 5) -> tuple[int, list[int]]:
        """Send LeaveGroup; return the error codes of the request and of the members."""
        request = LeaveGroupRequest(group_id=self.group, member_id=self.id)
        if version >= 3:
            identity = LeaveGroupRequest.MemberIdentity(member_id=self.id, group_instance_id=self.instance)
            request = LeaveGroupRequest(group_id=self.group, members=[identity])
        response = await self.client.ask(request, version)
        return response.error_code, [one.error_code for one in response.members]

    async def commit(
        self,
        offsets: Mapping[int, Offset | int],
        *,
        version: int = 9,
        topic: str | None = None,
        generation: int | None = None,
    ) -> list[int]:
        """Send OffsetCommit for partitions of the case's topic; return the error codes."""
        topic = topic or self.client.topic
        wanted = {at: one if isinstance(one, Offset) else Offset(one) for at, one in offsets.items()}
        partitions = [
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=at, committed_offset=one.offset, committed_metadata=one.metadata
            )
            for at, one in wanted.items()
        ]
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.id,
            group_instance_id=self.instance if version >= 7 else None,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )
        response = await self.client.ask(request, version)
        return [one.error_code for answered in response.topics for one in answered.partitions]

    async def committed(self, *partitions: int) -> list[int]:
        """Send OffsetFetch; return the offset of each partition."""
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(
            name=self.client.topic, partition_indexes=list(partitions)
        )
        request = OffsetFetchRequest(group_id=self.group, topics=[topic], require_stable=True)
        response = await self.client.ask(request, 7)
        (answered,) = response.topics
        assert not any(one.error_code for one in answered.partitions)
        return [one.committed_offset for one in answered.partitions]


class Others:
    """Members on separate connections, which are closed at the end of the block."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Others:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def member(self, instance: str | None = None) -> Member:
        client = await self._stack.enter_async_context(self._client.another())
        return Member(client, instance=instance)


async def with_id(member: Member) -> Member:
    """Get a member id, without joining yet."""
    assert (await member.join_once()).error_code == ErrorCode.MEMBER_ID_REQUIRED
    return member


async def two(client: Client, others: Others) -> tuple[Member, Member]:
    """Create a stable group with a leader and a follower, in generation 2."""
    leader = await Member(client).alone()
    follower = await with_id(await others.member())
    waiting = follower.begin_join()
    await until_rebalancing(leader)
    await leader.join()
    await follower.joined(waiting)
    assert leader.generation == follower.generation == 2
    assert await leader.sync({leader.id: b"one", follower.id: b"other"}) == (OK, b"one")
    assert await follower.sync() == (OK, b"other")
    return leader, follower


async def until_rebalancing(member: Member) -> None:
    """Wait until a heartbeat asks the member to join again, because another connection's request has arrived."""
    assert await settled(member.heartbeat, OK) == REBALANCING


def ids(response: JoinGroupResponse) -> list[tuple[str, str | None, bytes]]:
    return sorted((one.member_id, one.group_instance_id, bytes(one.metadata)) for one in response.members)


# JoinGroup


@case()
async def a_group_needs_a_name(client: Client) -> None:
    member = Member(client, "")
    assert (await member.join_once()).error_code == ErrorCode.INVALID_GROUP_ID
    assert await member.sync() == (ErrorCode.INVALID_GROUP_ID, b"")
    assert await member.heartbeat() == ErrorCode.INVALID_GROUP_ID
    assert (await member.leave())[0] == ErrorCode.INVALID_GROUP_ID


@case()
async def a_session_lasts_6_seconds_to_30_minutes(client: Client) -> None:
    member = Member(client)
    await member.find()
    for session_ms in (0, 5_999, 1_800_001):
        response = await member.join_once(session_ms=session_ms)
        assert (response.error_code, response.member_id) == (ErrorCode.INVALID_SESSION_TIMEOUT, "")
    for session_ms in (6_000, 1_800_000):
        response = await member.join_once(session_ms=session_ms)
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        member.id = ""


@case()
async def since_version_4_a_new_member_first_gets_an_id(client: Client) -> None:
    for version in range(4, 10):
        member = Member(client, f"{client.topic}-{version}")
        await member.find()
        response = await member.join_once(version=version)
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert response.member_id.startswith(f"{client.client_id}-")
        assert (response.generation_id, response.leader) == (-1, "")
        assert response.protocol_name == (None if version >= 7 else "")
        await member.join_once(version=version)
        assert member.generation == 1


@case()
async def before_version_4_a_new_member_joins_at_once(client: Client) -> None:
    for version in range(4):
        member = Member(client, f"{client.topic}-{version}")
        await member.find()
        response = await member.join_once(version=version)
        assert (response.error_code, response.generation_id) == (OK, 1)
        assert response.leader == response.member_id
        assert ids(response) == [(member.id, None, b"me")]


@case()
async def the_response_describes_the_generation(client: Client) -> None:
    member = Member(client)
    await member.find()
    response = await member.join()
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert (response.leader, response.skip_assignment) == (member.id, False)
    assert ids(response) == [(member.id, None, b"me")]


@case()
async def a_member_id_that_was_never_given_out_is_unknown(client: Client) -> None:
    member = Member(client)
    await member.find()
    member.id = "nobody"
    first = await member.join_once()
    assert (first.error_code, first.member_id) == (UNKNOWN, "nobody")
    assert first.protocol_name is None
    member.id = ""
    await member.alone()
    member.id = "nobody"
    assert (await member.join_once()).error_code == UNKNOWN


@case()
async def members_need_a_protocol_in_common(client: Client) -> None:
    member = Member(client)
    await member.find()
    assert (await member.join_once(())).error_code == INCONSISTENT
    assert (await member.join_once(protocol_type="")).error_code == INCONSISTENT
    async with Others(client) as others:
        await member.alone()
        other = await others.member()
        assert (await other.join_once((("sticky", b""),))).error_code == INCONSISTENT
        assert (await other.join_once(protocol_type="connect")).error_code == INCONSISTENT
        both = (("sticky", b""), ("range", b""))
        assert (await other.join_once(both)).error_code == ErrorCode.MEMBER_ID_REQUIRED


@case()
async def members_vote_for_the_protocol(client: Client) -> None:
    async with Others(client) as others:
        leader = Member(client)
        await leader.find()
        await leader.join((("a", b"1"), ("b", b"2"), ("c", b"3")))
        assert (await leader.sync(protocol_name="a"))[0] == OK
        follower = await others.member()
        protocols = (("d", b"4"), ("c", b"5"), ("b", b"6"), ("a", b"7"))
        assert (await follower.join_once(protocols)).error_code == ErrorCode.MEMBER_ID_REQUIRED
        third = await others.member()
        assert (await third.join_once((("c", b"8"), ("b", b"9")))).error_code == ErrorCode.MEMBER_ID_REQUIRED
        waiting, also = follower.begin_join(protocols), third.begin_join((("c", b"8"), ("b", b"9")))
        await until_rebalancing(leader)
        response = await leader.join((("a", b"1"), ("b", b"2"), ("c", b"3")))
        assert response.protocol_name == "c"
        assert [metadata for _, _, metadata in ids(response)].count(b"8") == 1
        assert (await follower.joined(waiting)).protocol_name == "c"
        assert (await third.joined(also)).protocol_name == "c"


# Rebalances


@case()
async def a_second_member_makes_the_first_join_again(client: Client) -> None:
    async with Others(client) as others:
        leader = await Member(client).alone()
        follower = await with_id(await others.member())
        assert await leader.heartbeat() == OK
        waiting = follower.begin_join((("range", b"other"),))
        await until_rebalancing(leader)
        assert await leader.sync() == (REBALANCING, b"")
        told = await leader.join()
        assert (told.generation_id, told.leader) == (2, leader.id)
        assert ids(told) == sorted([(leader.id, None, b"me"), (follower.id, None, b"other")])
        also = await follower.joined(waiting)
        assert (also.error_code, also.generation_id, also.leader) == (OK, 2, leader.id)
        assert ids(also) == []


@case()
async def the_followers_get_what_the_leader_assigns(client: Client) -> None:
    async with Others(client) as others:
        leader, follower = await two(client, others)
        assert await leader.sync() == (OK, b"one")
        assert await follower.sync({follower.id: b"mine"}) == (OK, b"other")


@case()
async def a_follower_waits_for_the_leaders_assignment(client: Client) -> None:
    async with Others(client) as others:
        leader, follower = await two(client, others)
        waiting = follower.begin_join((("range", b"new"),))
        await until_rebalancing(leader)
        await leader.join()
        await follower.joined(waiting)
        asked = follower.client.send(follower.sync_request(), 5)
        assert await leader.sync({leader.id: b"new"}) == (OK, b"new")
        response = await follower.client.answer(follower.sync_request(), 5, asked)
        # A member without an assignment gets no bytes.
        assert (response.error_code, bytes(response.assignment)) == (OK, b"")
        assert (response.protocol_type, response.protocol_name) == ("consumer", "range")


@case()
async def a_rebalance_ends_the_wait_for_an_assignment(client: Client) -> None:
    async with Others(client) as others:
        leader, follower = await two(client, others)
        waiting = follower.begin_join((("range", b"new"),))
        await until_rebalancing(leader)
        await leader.join()
        await follower.joined(waiting)
        asked = follower.client.send(follower.sync_request(), 5)
        third = await with_id(await others.member())
        third.begin_join()
        response = await follower.client.answer(follower.sync_request(), 5, asked)
        assert response.error_code == REBALANCING


@case()
async def a_follower_that_joins_again_unchanged_keeps_the_generation(client: Client) -> None:
    async with Others(client) as others:
        leader, follower = await two(client, others)
        again = await follower.join_once()
        assert (again.error_code, again.generation_id, again.leader) == (OK, 2, leader.id)
        assert await leader.heartbeat() == OK


@case()
async def a_leader_that_joins_again_begins_a_rebalance(client: Client) -> None:
    async with Others(client) as others:
        leader, follower = await two(client, others)
        waiting = leader.begin_join()
        await until_rebalancing(follower)
        assert (await follower.join_once()).generation_id == 3
        assert (await leader.joined(waiting)).generation_id == 3


@case()
async def every_version_keeps_a_member_in_the_group(client: Client) -> None:
    member = await Member(client).alone()
    for version in range(6):
        assert await member.sync(version=version) == (OK, b"all")
    for version in range(5):
        assert await member.heartbeat(version=version) == OK


@case()
async def requests_of_unknown_members_and_of_other_generations_are_rejected(client: Client) -> None:
    stranger = Member(client)
    await stranger.find()
    stranger.id = "nobody"
    assert await stranger.heartbeat() == UNKNOWN
    assert await stranger.sync() == (UNKNOWN, b"")
    member = await Member(client).alone()
    assert await stranger.heartbeat() == UNKNOWN
    assert await stranger.sync() == (UNKNOWN, b"")
    for generation in (0, 2, -1):
        member.generation = generation
        assert await member.heartbeat() == OLD_GENERATION
        assert await member.sync() == (OLD_GENERATION, b"")
    member.generation = 1
    assert await member.sync(protocol_name="sticky") == (INCONSISTENT, b"")
    assert await member.sync(protocol_type="connect") == (INCONSISTENT, b"")
    assert await member.sync(protocol_type=None) == (INCONSISTENT, b"")
    assert await member.sync(protocol_name=None) == (INCONSISTENT, b"")
    assert await member.sync(version=4) == (OK, b"all")


@case()
async def a_member_may_send_heartbeats_before_it_knows_its_partitions(client: Client) -> None:
    member = Member(client)
    await member.find()
    await member.join()
    assert await member.heartbeat() == OK


# LeaveGroup


@case()
async def a_member_that_leaves_begins_a_rebalance(client: Client) -> None:
    async with Others(client) as others:
        leader, follower = await two(client, others)
        assert await leader.leave() == (OK, [OK])
        assert await follower.heartbeat() == REBALANCING
        told = await follower.join()
        assert (told.generation_id, told.leader) == (3, follower.id)
        assert await leader.heartbeat() == UNKNOWN


@case()
async def every_version_can_leave_a_group(client: Client) -> None:
    for version in range(6):
        member = Member(client, f"{client.topic}-{version}")
        await member.alone()
        gone = (OK, [OK]) if version >= 3 else (OK, [])
        assert await member.leave(version=version) == gone
        assert await member.leave(version=version) == ((OK, [UNKNOWN]) if version >= 3 else (UNKNOWN, []))
        assert await member.heartbeat() == UNKNOWN


@case()
async def an_unknown_group_can_not_be_left(client: Client) -> None:
    member = Member(client)
    await member.find()
    member.id = "nobody"
    for version in range(6):
        assert await member.leave(version=version) == ((OK, [UNKNOWN]) if version >= 3 else (UNKNOWN, []))


@case()
async def the_next_member_of_an_empty_group_continues_the_generations(client: Client) -> None:
    member = await Member(client).alone()
    assert await member.leave() == (OK, [OK])
    member.id = ""
    assert (await member.join()).generation_id == 3


# Static members


@case()
async def a_static_member_that_comes_back_keeps_its_place(client: Client) -> None:
    async with Others(client) as others:
        member = Member(client, instance="static")
        await member.find()
        told = await member.join_once()
        assert (told.error_code, ids(told)) == (OK, [(member.id, "static", b"me")])
        assert member.id.startswith("static-")
        assert await member.sync({member.id: b"all"}) == (OK, b"all")

        restarted = await others.member("static")
        again = await restarted.join_once()
        assert (again.error_code, again.generation_id) == (OK, 1)
        assert restarted.id != member.id
        assert again.skip_assignment
        assert await restarted.sync() == (OK, b"all")
        assert await member.heartbeat() == FENCED
        assert await member.sync() == (FENCED, b"")
        assert (await member.join_once()).error_code == FENCED
        assert await restarted.heartbeat() == OK


@case()
async def a_static_leader_that_comes_back_with_an_older_version_does_not_assign(client: Client) -> None:
    async with Others(client) as others:
        member = Member(client, instance="static")
        await member.find()
        await member.join_once(version=5)
        assert await member.sync({member.id: b"all"}) == (OK, b"all")
        restarted = await others.member("static")
        again = await restarted.join_once(version=5)
        assert (again.error_code, again.leader, ids(again)) == (OK, member.id, [])


@case()
async def a_static_member_can_leave_by_its_instance_id(client: Client) -> None:
    member = Member(client, instance="static")
    await member.find()
    await member.join_once()
    member.id = ""
    assert await member.leave() == (OK, [OK])
    assert await member.leave() == (OK, [UNKNOWN])


# Offsets


@case(2)
async def every_version_commits_offsets(client: Client) -> None:
    member = await Member(client).alone()
    for version in range(2, 10):
        assert await member.commit({0: version, 1: version + 10}, version=version) == [OK, OK]
        assert await member.committed(0, 1) == [version, version + 10]


@case()
async def any_client_may_commit_while_the_group_has_no_members(client: Client) -> None:
    nobody = Member(client)
    await nobody.find()
    for version in range(2, 9):
        assert await nobody.commit({0: 1}, version=version, generation=0) == [OLD_GENERATION]
    unknown = client.expected({"3.9": OLD_GENERATION, "4.3": ErrorCode.GROUP_ID_NOT_FOUND})
    assert await nobody.commit({0: 1}, generation=0) == [unknown]
    assert await nobody.commit({0: 1}) == [OK]
    member = await Member(client).alone()
    assert await nobody.commit({0: 2}) == [UNKNOWN]
    assert await member.commit({0: 3}) == [OK]
    assert await member.leave() == (OK, [OK])
    assert await nobody.commit({0: 4}) == [OK]
    assert await nobody.committed(0) == [4]


@case()
async def offsets_of_unknown_members_and_of_other_generations_are_rejected(client: Client) -> None:
    member = await Member(client).alone()
    assert await member.commit({0: 1}, generation=0) == [OLD_GENERATION]
    assert await member.commit({0: 1}, generation=2) == [OLD_GENERATION]
    member.id = "nobody"
    assert await member.commit({0: 1}) == [UNKNOWN]
    assert await member.committed(0) == [-1]


@case()
async def offsets_can_be_committed_until_the_members_have_joined_again(client: Client) -> None:
    async with Others(client) as others:
        leader = await Member(client).alone()
        follower = await with_id(await others.member())
        waiting = follower.begin_join()
        await until_rebalancing(leader)
        assert await leader.commit({0: 5}) == [OK]
        await leader.join()
        await follower.joined(waiting)
        assert await leader.commit({0: 6}) == [REBALANCING]
        assert await leader.sync() == (OK, b"")
        assert await leader.commit({0: 7}) == [OK]


@case()
async def offsets_of_missing_topics_and_with_long_metadata_are_rejected(client: Client) -> None:
    member = await Member(client).alone()
    assert await member.commit({9: 1}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await member.commit({0: 1}, topic=f"{client.topic}-missing") == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    ]
    assert await member.commit({0: Offset(1, "x" * 4097)}) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert await member.commit({0: Offset(1, "x" * 4096)}) == [OK]


async def in_transaction(on: Transactions, member: Member) -> list[int]:
    """Commit the offset of partition 0 in a transaction as this member; return the error codes."""
    me = await on.init()
    assert await settled(lambda: on.add_offsets(me, version=3)) == OK
    codes = await on.commit_offsets(
        me, {(on.topic, 0): Offset(7)}, version=3, generation=member.generation, member=member.id
    )
    assert (await on.end(me, commit=False, version=3)).error == OK
    return codes


@case()
async def a_transaction_commits_offsets_until_its_member_has_lost_the_generation(client: Client) -> None:
    async with Others(client) as others:
        leader = await Member(client).alone()
        on = Transactions(client, topic=client.topic, name=client.topic, group=leader.group)
        assert await in_transaction(on, leader) == [OK]
        follower = await with_id(await others.member())
        waiting = follower.begin_join()
        await until_rebalancing(leader)
        assert await in_transaction(on, leader) == [OK]
        await leader.join()
        await follower.joined(waiting)
        assert await in_transaction(on, leader) == [OK]
        leader.generation -= 1
        assert await in_transaction(on, leader) == [OLD_GENERATION]
        leader.id = "nobody"
        assert await in_transaction(on, leader) == [UNKNOWN]
