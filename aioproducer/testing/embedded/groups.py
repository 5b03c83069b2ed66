"""The group coordinator of an embedded cluster: the members of consumer groups, and the offsets that they commit.

Offsets are stored only in `__consumer_offsets`, so a new coordinator can read them. Members are kept in memory, as if
every coordinator had read them from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import TRANSACTIONAL
from aioproducer.testing.embedded.batches import encode_batch
from aioproducer.testing.embedded.controller import Controller
from aioproducer.testing.embedded.group_members import ClassicGroup
from aioproducer.testing.embedded.offset_log import (
    PARTITIONS,
    TOPIC,
    CommittedOffset,
    GroupOffsets,
    encoded_offset,
)
from aioproducer.testing.embedded.state_topic import StateTopic
from aioproducer.testing.embedded.topics import NO_LEADER, Partition, wait_until
from aioproducer.testing.embedded.transaction_metadata import ProducerIdAndEpoch, TransactionRefused
from aioproducer.types import TopicPartition

COMMIT_TIMEOUT = 5.0
"""Seconds after which a commit that has not been replicated fails with COORDINATOR_NOT_AVAILABLE; Kafka's default
(offsets.commit.timeout.ms)."""

T = TypeVar("T")


class GroupCoordinator:
    """Acts as all the group coordinators in a cluster; methods that act as one broker take its node id."""

    def __init__(self, cluster: Controller) -> None:
        """Create the coordinator. Its topic is created by the first request for a coordinator."""
        self._cluster = cluster
        self._states: StateTopic[GroupOffsets] = StateTopic(
            cluster, TOPIC, PARTITIONS, lambda partition: GroupOffsets()
        )
        self._groups: dict[str, ClassicGroup] = {}

    # For tests

    def node(self, group: str) -> int:
        """Return the node id of the group's coordinator; -1 if the group currently has no coordinator."""
        return self._states.leader(group)

    def move(self, group: str, to_node: int) -> None:
        """Make another broker the coordinator; it reads the log first. Raises ValueError if the broker can't lead."""
        self._cluster.move_leader(TOPIC, self.partition_of(group).index, to_node)

    def hold_loading(self) -> None:
        """Delay log loading: from now on, a new coordinator answers with COORDINATOR_LOAD_IN_PROGRESS."""
        self._states.hold_loading()

    def release_loading(self) -> None:
        """Let coordinators finish loading their logs."""
        self._states.release_loading()

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return a group's committed offsets, without offsets from open transactions."""
        partition = self.partition_of(group)
        state = self._states.loaded(partition)
        if state is None:
            return {}
        committed = state.catch_up(partition.log, partition.high_watermark).committed(group)
        return {target: one.offset for target, one in committed.items()}

    def members(self, group: str) -> dict[str, str | None]:
        """Return the group.instance.id (or None) of each member of a group, keyed by member id."""
        found = self._groups.get(group)
        return {} if found is None else {one.member_id: one.instance_id for one in found.members.values()}

    def generation(self, group: str) -> int:
        """Return the generation of a group. It is 0 at first, and each rebalance increases it."""
        found = self._groups.get(group)
        return 0 if found is None else found.generation

    async def wait_stable(self, group: str, members: int) -> None:
        """Wait until every member of a group knows its partitions. Wrap the call in asyncio.timeout().

        Args:
            group: The group id.
            members: The number of members to wait for.
        """
        await self._group(group).wait_stable(members)

    def rebalance(self, group: str) -> None:
        """Make the members of a group join again, as they do when their topics change."""
        self._group(group).rebalance()

    def expire_member(self, group: str, member_id: str) -> None:
        """Remove a member, as if its session had timed out. Raises KeyError if there is no such member."""
        self._group(group).remove(member_id)

    def set_members(self, group: str, generation: int, members: Mapping[str, str | None]) -> None:
        """Set the members of a group, as a rebalance would. No consumer can join afterwards, unless `members` is empty.

        From now on, offset commits from other members or for another generation are rejected with UNKNOWN_MEMBER_ID,
        ILLEGAL_GENERATION or FENCED_INSTANCE_ID.

        Args:
            group: The group id.
            generation: The generation of the group.
            members: The member ids, each with its group.instance.id or None.
        """
        self._group(group).set_members(generation, members)

    # For the cluster

    def create_topic(self) -> None:
        """Create `__consumer_offsets`, if it does not exist."""
        self._states.partitions()

    def halt(self) -> None:
        """Stop the groups' timers, because no broker is running."""
        for group in self._groups.values():
            group.halt()

    def resume(self) -> None:
        """Restart the groups' timers."""
        for group in self._groups.values():
            group.resume()

    # For handlers

    def partition_of(self, group: str) -> Partition:
        """Return the partition of `__consumer_offsets` that contains the records of a group."""
        return self._states.partition_of(group)

    def offsets_at(self, node: int, group: str) -> GroupOffsets:
        """Return broker `node`'s state for the group's partition.

        Raises:
            TransactionRefused: the broker is not the coordinator, or is still reading the log.
        """
        state = self._states.state_at(node, group)
        partition = self.partition_of(group)
        return state.catch_up(partition.log, partition.high_watermark)

    def check_coordinator(self, node: int, group: str) -> None:
        """Raise TransactionRefused unless this broker is the group's coordinator and has read its log."""
        self._states.state_at(node, group)

    def group_at(self, node: int, group: str, *, may_create: bool = False) -> ClassicGroup:
        """Return the members of a group.

        Raises:
            TransactionRefused: the broker is not the coordinator, is still reading the log, or does not know the group.
        """
        self.check_coordinator(node, group)
        found = self._groups.get(group)
        if found is None and not may_create:
            raise TransactionRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        return found or self._group(group)

    def _group(self, name: str) -> ClassicGroup:
        if name not in self._groups:
            self._groups[name] = ClassicGroup(self._new_member_id, lambda: self._is_served(name))
        return self._groups[name]

    def _new_member_id(self, start: str) -> str:
        return f"{start}-{self._cluster.new_uuid()}"

    def _is_served(self, group: str) -> bool:
        node = self.node(group)
        return node != NO_LEADER and self._cluster.broker(node).is_running

    async def answer_of(self, group: str, waiting: asyncio.Future[T]) -> T:
        """Wait for the result of a request that depends on other members.

        Raises:
            TransactionRefused: the group rejected the request, or another broker has become the coordinator.
        """
        partition = self.partition_of(group)
        leader_epoch = partition.leader_epoch
        changed = asyncio.Event()
        waiting.add_done_callback(lambda _: changed.set())
        with partition.watched(changed):
            while not waiting.done() and partition.leader_epoch == leader_epoch:
                await changed.wait()
                changed.clear()
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        raise TransactionRefused(ErrorCode.NOT_COORDINATOR)

    def check_member(
        self,
        node: int,
        group: str,
        generation: int,
        member: str,
        instance: str | None,
        *,
        in_transaction: bool = True,
        unknown_group: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
    ) -> None:
        """Check that this member is allowed to commit offsets (ClassicGroup.validateOffsetCommit).

        `unknown_group` is the error for a member of a group that does not exist.

        Raises:
            TransactionRefused: the member is not allowed to commit offsets.
        """
        found = self._groups.get(group)
        if found is None and not self.offsets_at(node, group).knows(group):
            if generation >= 0:
                raise TransactionRefused(unknown_group)
            return
        self._group(group).check_commit(member, instance, generation, in_transaction=in_transaction)

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer: ProducerIdAndEpoch | None = None,
    ) -> None:
        """Write offsets, in the transaction of a producer if one is given, and wait until they are replicated.

        Raises:
            TransactionRefused: the log rejects them, the leader changes, or they are not replicated in time.
        """
        partition = self.partition_of(group)
        now_ms = self._cluster.now_ms()
        records = [encoded_offset(group, target, committed, now_ms) for target, committed in offsets.items()]
        if producer is None:
            batch = encode_batch(records, now_ms)
        else:
            batch = encode_batch(
                records,
                now_ms,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=0,  # always 0, because the log does not check the sequences of coordinators
                attributes=TRANSACTIONAL,
            )
        offset = self._states.append(partition, batch)
        leader_epoch = partition.leader_epoch
        if not await wait_until(
            [partition],
            lambda: partition.high_watermark > offset or partition.leader_epoch != leader_epoch,
            COMMIT_TIMEOUT,
        ):
            raise TransactionRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if partition.leader_epoch != leader_epoch:
            raise TransactionRefused(ErrorCode.NOT_COORDINATOR)

    def forget_topic(self, topic: str) -> None:
        """Delete every group's offsets for a deleted topic, unless the log that contains them can't be written to."""
        now_ms = self._cluster.now_ms()
        for partition, state in self._states.all_loaded():
            found = state.catch_up(partition.log, partition.high_watermark).concerning(topic)
            if found:
                records = [encoded_offset(group, target, None, now_ms) for group, target in found]
                with suppress(TransactionRefused):  # The topic is deleted even if its offsets can't be.
                    self._states.append(partition, encode_batch(records, now_ms))
