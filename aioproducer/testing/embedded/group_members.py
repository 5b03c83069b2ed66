"""The members of one consumer group: joins, rebalances, generations and sessions (Kafka's ClassicGroup).

The members assign the partitions themselves: the coordinator chooses a leader and distributes the leader's assignment.
GroupCoordinator owns the groups; nothing in this module reads requests or writes to a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing.embedded.transaction_metadata import TransactionRefused

T = TypeVar("T")

UNKNOWN_MEMBER = ""
NO_GENERATION = -1


class GroupState(Enum):
    """The states of a group."""

    EMPTY = "empty"
    PREPARING_REBALANCE = "preparing a rebalance"
    """Members are joining; each JoinGroup request waits for the other members."""
    COMPLETING_REBALANCE = "completing a rebalance"
    """The members have a new generation and are waiting for the leader's assignment."""
    STABLE = "stable"


TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
}


class RejoinRequired(TransactionRefused):
    """The client must join again with this member id (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        super().__init__(ErrorCode.MEMBER_ID_REQUIRED)
        self.member_id = member_id


class Joining(NamedTuple):
    """A member's request to join."""

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout: float
    """Seconds without a heartbeat after which the member is removed."""
    rebalance_timeout: float
    """Seconds that a rebalance waits for the member."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """The member's assignors in order of preference, each with the member's metadata."""
    gets_id_first: bool
    """True if a new member must join a second time, with the member id from the first response (KIP-394)."""
    skips_assignment: bool
    """True if a returning leader can be asked not to assign partitions (KIP-814)."""


class Joined(NamedTuple):
    """The result of a rebalance for one member."""

    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Only for the leader: the id, the group.instance.id and the metadata of each member."""
    skips_assignment: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    session_timeout: float
    rebalance_timeout: float
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joining: asyncio.Future[Joined] | None = None
    """The JoinGroup request that is waiting for the other members."""
    syncing: asyncio.Future[bytes] | None = None
    """The SyncGroup request that is waiting for the leader's assignment."""
    has_synced: bool = True
    session: asyncio.TimerHandle | None = None


class ClassicGroup:
    """One group. Its requests wait on futures, and its time-outs are event loop timers."""

    def __init__(
        self, new_member_id: Callable[[str], str], is_served: Callable[[], bool] = lambda: True
    ) -> None:
        """Create an empty group.

        Args:
            new_member_id: A function that takes a prefix and returns a new member id with that prefix.
            is_served: A function that returns False while no coordinator can receive heartbeats; during that time,
                sessions do not expire.
        """
        self.state = GroupState.EMPTY
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.leader: str | None = None
        self._protocol_type = ""
        self._protocol_name = ""
        self._new_member_id = new_member_id
        self._is_served = is_served
        # Member ids that have been given out but not used yet, with the timers that withdraw them.
        self._pending: dict[str, asyncio.TimerHandle] = {}
        # The deadline for joining, or for requesting the assignment.
        self._deadline: asyncio.TimerHandle | None = None
        self._watchers: dict[asyncio.Event, None] = {}

    def _move(self, to: GroupState) -> None:
        assert to in TRANSITIONS[self.state], (
            f"invalid group state transition: from {self.state.value!r} to {to.value!r}"
        )
        self.state = to
        for event in self._watchers:
            event.set()

    async def wait_stable(self, members: int) -> None:
        """Wait until the group is stable with this number of members."""
        changed = asyncio.Event()
        self._watchers[changed] = None
        try:
            while self.state is not GroupState.STABLE or len(self.members) != members:
                changed.clear()
                await changed.wait()
        finally:
            del self._watchers[changed]

    def set_members(self, generation: int, members: Mapping[str, str | None]) -> None:
        """Replace the members, as a rebalance would. The new members have no sessions, so they never expire."""
        self.halt()
        self.generation = generation
        self.members = {
            member_id: Member(member_id, instance_id, 0.0, 0.0, ())
            for member_id, instance_id in members.items()
        }
        self.leader = next(iter(members), None)
        self.state = GroupState.STABLE if members else GroupState.EMPTY

    # Checks

    def check_member(self, member_id: str, instance_id: str | None, generation: int | None = None) -> None:
        """Raise TransactionRefused unless this is a member and `generation`, if given, is the current one."""
        if instance_id is not None:
            owner = self._static(instance_id)
            if owner is None:
                raise TransactionRefused(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner.member_id != member_id:
                raise TransactionRefused(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise TransactionRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation is not None and generation != self.generation:
            raise TransactionRefused(ErrorCode.ILLEGAL_GENERATION)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, in_transaction: bool
    ) -> None:
        """Raise TransactionRefused unless this member may commit offsets (ClassicGroup.validateOffsetCommit)."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        if generation >= 0 or member_id != UNKNOWN_MEMBER or instance_id is not None:
            self.check_member(member_id, instance_id, generation)
        elif not in_transaction:
            raise TransactionRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        if not in_transaction and self.state is GroupState.COMPLETING_REBALANCE:
            raise TransactionRefused(ErrorCode.REBALANCE_IN_PROGRESS)

    def _static(self, instance_id: str) -> Member | None:
        return next((one for one in self.members.values() if one.instance_id == instance_id), None)

    def _supports(self, joining: Joining) -> bool:
        if not joining.protocol_type or not joining.protocols:
            return False
        if self.state is GroupState.EMPTY or not self.members:
            return True
        offered = {name for name, _ in joining.protocols}
        return joining.protocol_type == self._protocol_type and bool(offered & self._common_protocols())

    def _common_protocols(self) -> set[str]:
        """Return the protocols that every member supports."""
        return set.intersection(*({name for name, _ in one.protocols} for one in self.members.values()))

    # JoinGroup

    def join(self, joining: Joining) -> asyncio.Future[Joined]:
        """Let a member join; return a future for the result of the rebalance.

        Raises:
            TransactionRefused: the member can't join.
            RejoinRequired: the client must join again with its new member id.
        """
        if not self._supports(joining):
            raise TransactionRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if joining.member_id == UNKNOWN_MEMBER:
            return self._join_new(joining)
        if joining.member_id in self._pending:
            return self._add(joining.member_id, joining)
        self.check_member(joining.member_id, joining.instance_id)
        member = self.members[joining.member_id]
        is_unchanged = member.protocols == joining.protocols
        may_keep_generation = self.state is GroupState.COMPLETING_REBALANCE or (
            self.state is GroupState.STABLE and member.member_id != self.leader
        )
        if is_unchanged and may_keep_generation:
            # The response to the last request may have been lost.
            return _done(self._joined(member))
        return self._rejoin(member, joining)

    def _join_new(self, joining: Joining) -> asyncio.Future[Joined]:
        new_id = self._new_member_id(joining.instance_id or joining.client_id)
        if joining.instance_id is not None:
            known = self._static(joining.instance_id)
            return self._add(new_id, joining) if known is None else self._replace(known, new_id, joining)
        if joining.gets_id_first:
            loop = asyncio.get_running_loop()
            self._pending[new_id] = loop.call_later(joining.session_timeout, self._withdraw, new_id)
            raise RejoinRequired(new_id)
        return self._add(new_id, joining)

    def _withdraw(self, member_id: str) -> None:
        """Withdraw a member id that was not used in time."""
        self._pending.pop(member_id).cancel()
        self._maybe_complete()

    def _add(self, member_id: str, joining: Joining) -> asyncio.Future[Joined]:
        if member_id in self._pending:
            self._pending.pop(member_id).cancel()
        if not self.members:
            self._protocol_type = joining.protocol_type
            self.leader = member_id
        member = Member(member_id, joining.instance_id, 0.0, 0.0, ())
        self.members[member_id] = member
        return self._rejoin(member, joining)

    def _replace(self, known: Member, new_id: str, joining: Joining) -> asyncio.Future[Joined]:
        """Let a restarted static member reclaim its place, with a new member id that fences the old one (KIP-345)."""
        _fail(known.joining, ErrorCode.FENCED_INSTANCE_ID)
        _fail(known.syncing, ErrorCode.FENCED_INSTANCE_ID)
        known.joining = known.syncing = None
        was_leader = known.member_id == self.leader
        self.members = {
            new_id if member_id == known.member_id else member_id: one
            for member_id, one in self.members.items()
        }
        is_unchanged = known.protocols == joining.protocols
        old_leader, known.member_id = self.leader, new_id
        if was_leader:
            self.leader = new_id
        if self.state is GroupState.STABLE and is_unchanged:
            # No rebalance is needed: the member gets its old partitions from SyncGroup. A leader must not assign
            # partitions again. Before version 9, the response names the old id as the leader's, so the returning leader
            # considers itself a follower.
            self._take_times(known, joining)
            self._keep_alive(known)
            joined = self._joined(known)
            if was_leader and joining.skips_assignment:
                return _done(joined._replace(skips_assignment=True))
            return _done(joined._replace(leader=old_leader or "", members=()))
        return self._rejoin(known, joining)

    def _rejoin(self, member: Member, joining: Joining) -> asyncio.Future[Joined]:
        self._take_times(member, joining)
        member.protocols = joining.protocols
        _fail(member.joining, ErrorCode.REBALANCE_IN_PROGRESS)
        future = member.joining = asyncio.get_running_loop().create_future()
        self._keep_alive(member)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete()
        else:
            self.rebalance()
        return future

    def _take_times(self, member: Member, joining: Joining) -> None:
        member.session_timeout = joining.session_timeout
        member.rebalance_timeout = joining.rebalance_timeout

    # Rebalances

    def rebalance(self) -> None:
        """Begin a rebalance: the responses to heartbeats ask the members to join again."""
        if self.state is GroupState.PREPARING_REBALANCE:
            return
        for member in self.members.values():
            _fail(member.syncing, ErrorCode.REBALANCE_IN_PROGRESS)
            member.syncing = None
        self._move(GroupState.PREPARING_REBALANCE)
        self._set_deadline(self._complete)
        self._maybe_complete()

    def _set_deadline(self, callback: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        longest = max((member.rebalance_timeout for member in self.members.values()), default=0.0)
        self._deadline = asyncio.get_running_loop().call_later(longest, callback)

    def _maybe_complete(self) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and not self._pending
            and all(member.joining is not None for member in self.members.values())
        ):
            self._complete()

    def _complete(self) -> None:
        """End the joining phase: members that have not joined again are removed, except static ones."""
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._drop(member)
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined:
            self._set_deadline(self._complete)
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.generation += 1
        if not joined:
            self._protocol_name = ""
            self._move(GroupState.EMPTY)
            return
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = joined[0].member_id
        self._protocol_name = self._elected()
        self._move(GroupState.COMPLETING_REBALANCE)
        for member in self.members.values():
            member.has_synced = False
            member.assignment = b""
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self._joined(member))
            member.joining = None
            self._keep_alive(member)
        self._set_deadline(self._remove_unsynced)

    def _elected(self) -> str:
        """Return the protocol that wins the vote: each member votes for its first protocol that all members support."""
        common = self._common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _joined(self, member: Member) -> Joined:
        members: Iterable[Member] = self.members.values() if member.member_id == self.leader else ()
        return Joined(
            self.generation,
            self._protocol_type,
            self._protocol_name,
            self.leader or "",
            member.member_id,
            tuple(
                (one.member_id, one.instance_id, dict(one.protocols)[self._protocol_name]) for one in members
            ),
        )

    def _remove_unsynced(self) -> None:
        """Remove the members that did not ask for their partitions in time."""
        late = [member for member in self.members.values() if not member.has_synced]
        for member in late:
            self._drop(member)
        if late:
            self.rebalance()

    # SyncGroup, Heartbeat, LeaveGroup

    def check_protocol(self, protocol_type: str | None, protocol_name: str | None) -> None:
        """Raise TransactionRefused unless the group uses this protocol; None (an omitted field) is accepted."""
        if protocol_type not in (None, self._protocol_type) or protocol_name not in (
            None,
            self._protocol_name,
        ):
            raise TransactionRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    @property
    def protocol(self) -> tuple[str, str]:
        """The type and the name of the protocol of the current generation."""
        return self._protocol_type, self._protocol_name

    def sync(self, member_id: str, assignments: Mapping[str, bytes]) -> asyncio.Future[bytes]:
        """Return a future for a member's assignment. The leader's request contains the assignments of all members.

        Raises:
            TransactionRefused: a rebalance has begun.
        """
        if self.state is GroupState.PREPARING_REBALANCE:
            raise TransactionRefused(ErrorCode.REBALANCE_IN_PROGRESS)
        member = self.members[member_id]
        member.has_synced = True
        self._keep_alive(member)
        if self.state is GroupState.STABLE:
            return _done(member.assignment)
        _fail(member.syncing, ErrorCode.REBALANCE_IN_PROGRESS)
        future = member.syncing = asyncio.get_running_loop().create_future()
        if member_id == self.leader:
            for one in self.members.values():
                one.assignment = assignments.get(one.member_id, b"")
                if one.syncing is not None and not one.syncing.done():
                    one.syncing.set_result(one.assignment)
                one.syncing = None
            self._move(GroupState.STABLE)
        return future

    def heartbeat(self, member_id: str) -> None:
        """Keep a member's session alive. Raises TransactionRefused if the member must join again."""
        self._keep_alive(self.members[member_id])
        if self.state is GroupState.PREPARING_REBALANCE:
            raise TransactionRefused(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """Remove a member. Raises TransactionRefused if there is no such member."""
        if member_id == UNKNOWN_MEMBER and instance_id is not None:
            known = self._static(instance_id)
            if known is None:
                raise TransactionRefused(ErrorCode.UNKNOWN_MEMBER_ID)
            member_id = known.member_id
        elif member_id in self._pending and instance_id is None:
            self._withdraw(member_id)
            return
        self.check_member(member_id, instance_id)
        self.remove(member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, as when its session expires; the others rebalance. Raises KeyError if it does not exist."""
        self._drop(self.members[member_id])
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalance()
        else:
            self._maybe_complete()

    def _drop(self, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
        _fail(member.joining, ErrorCode.UNKNOWN_MEMBER_ID)
        _fail(member.syncing, ErrorCode.UNKNOWN_MEMBER_ID)
        member.joining = member.syncing = None
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    # Time

    def _keep_alive(self, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None
        if member.session_timeout > 0:
            member.session = asyncio.get_running_loop().call_later(
                member.session_timeout, self._expire, member
            )

    def _expire(self, member: Member) -> None:
        if member.joining is not None or member.syncing is not None or not self._is_served():
            self._keep_alive(member)  # The member can't send heartbeats now.
        else:
            self.remove(member.member_id)

    def halt(self) -> None:
        """Stop all timers, as when no broker is running."""
        for timer in self._pending.values():
            timer.cancel()
        self._pending.clear()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for member in self.members.values():
            if member.session is not None:
                member.session.cancel()
                member.session = None
            member.joining = member.syncing = None

    def resume(self) -> None:
        """Restart the timers, perhaps on another event loop: every session starts over."""
        for member in self.members.values():
            if member.session is None:
                self._keep_alive(member)
        if self._deadline is None and self.state is GroupState.PREPARING_REBALANCE:
            self._set_deadline(self._complete)
        elif self._deadline is None and self.state is GroupState.COMPLETING_REBALANCE:
            self._set_deadline(self._remove_unsynced)


def _done(result: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


def _fail(future: asyncio.Future[T] | None, code: ErrorCode) -> None:
    if future is not None and not future.done():
        future.set_exception(TransactionRefused(code))
