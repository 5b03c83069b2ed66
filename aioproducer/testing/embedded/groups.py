"""The group coordinator of an embedded cluster: offsets committed in transactions, and the checks of group members.

Consumers can't join groups: they assign themselves partitions, and a test sets the members of a group. Offsets are
stored only in `__consumer_offsets`, so a new coordinator can read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import TRANSACTIONAL
from aioproducer.testing.embedded.batches import encode_batch
from aioproducer.testing.embedded.offset_log import (
    PARTITIONS,
    TOPIC,
    CommittedOffset,
    GroupOffsets,
    encoded_offset,
)
from aioproducer.testing.embedded.state_topic import StateTopic
from aioproducer.testing.embedded.topics import Partition, wait_until
from aioproducer.testing.embedded.transaction_metadata import ProducerIdAndEpoch, TransactionRefused
from aioproducer.types import TopicPartition

if TYPE_CHECKING:
    from aioproducer.testing.embedded.embedded_cluster import EmbeddedCluster

COMMIT_TIMEOUT = 5.0
"""Seconds after which a commit that is not replicated fails with COORDINATOR_NOT_AVAILABLE; Kafka's default
(offsets.commit.timeout.ms)."""

UNKNOWN_MEMBER = ""
NO_GENERATION = -1


@dataclass(slots=True)
class _Membership:
    """The members of a group."""

    generation: int = NO_GENERATION
    members: dict[str, str | None] = field(default_factory=dict)
    """The group.instance.id of each member, or None, by member id."""


class GroupCoordinator:
    """Acts as every group coordinator of a cluster; methods that act as one broker take its node id."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        """Create the coordinator. Its topic is created by the first request for a coordinator."""
        self._cluster = cluster
        self._states: StateTopic[GroupOffsets] = StateTopic(
            cluster, TOPIC, PARTITIONS, lambda partition: GroupOffsets()
        )
        self._memberships: dict[str, _Membership] = {}

    # For tests

    def node(self, group: str) -> int:
        """Return the node id of the group's coordinator; -1 if the group has none now."""
        return self._states.leader(group)

    def move(self, group: str, to_node: int) -> None:
        """Make another broker the coordinator; it reads the log first. Raises ValueError if the broker can't lead."""
        self._cluster.move_leader(TOPIC, self.partition_of(group).index, to_node)

    def hold_loading(self) -> None:
        """Delay the loading of logs: from now on, a new coordinator answers COORDINATOR_LOAD_IN_PROGRESS."""
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

    def set_members(self, group: str, generation: int, members: Mapping[str, str | None]) -> None:
        """Set the members of a group, as after a rebalance.

        From now on, offset commits from other members or for another generation are rejected with UNKNOWN_MEMBER_ID,
        ILLEGAL_GENERATION or FENCED_INSTANCE_ID.

        Args:
            group: The group id.
            generation: The generation of the group.
            members: The member ids, each with its group.instance.id or None.
        """
        self._memberships[group] = _Membership(generation, dict(members))

    # For the cluster

    def create_topic(self) -> None:
        """Create `__consumer_offsets`, if it does not exist."""
        self._states.partitions()

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

    def check_member(self, node: int, group: str, generation: int, member: str, instance: str | None) -> None:
        """Check that this member is allowed to commit offsets in a transaction (ClassicGroup.validateOffsetCommit).

        Raises:
            TransactionRefused: the member is not allowed to commit offsets.
        """
        membership = self._memberships.get(group)
        if membership is None and not self.offsets_at(node, group).knows(group):
            if generation >= 0:
                raise TransactionRefused(ErrorCode.ILLEGAL_GENERATION)
            return
        membership = membership or _Membership()
        if generation < 0 and not membership.members:
            return
        if generation < 0 and member == UNKNOWN_MEMBER and instance is None:
            return
        if instance is not None:
            owner = next((id for id, its in membership.members.items() if its == instance), None)
            if owner is not None and owner != member:
                raise TransactionRefused(ErrorCode.FENCED_INSTANCE_ID)
        if member not in membership.members:
            raise TransactionRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != membership.generation:
            raise TransactionRefused(ErrorCode.ILLEGAL_GENERATION)

    async def commit(
        self, group: str, producer: ProducerIdAndEpoch, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Write the offsets of a transaction and wait until they are replicated.

        Raises:
            TransactionRefused: the log rejects them, the leader changes, or they are not replicated in time.
        """
        partition = self.partition_of(group)
        now_ms = self._cluster.now_ms()
        batch = encode_batch(
            [encoded_offset(group, target, committed, now_ms) for target, committed in offsets.items()],
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
