"""Messages between the members of consumer groups and their coordinators.

The producer sends none of them; they are for the embedded broker, which coordinates the groups of real consumers.
"""

from __future__ import annotations

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    byte_string,
    int16,
    int32,
    int64,
    string,
)


class JoinGroupResponse(Message, api_key=ApiKey.JOIN_GROUP, versions=(0, 9), flexible_from=6):
    """The generation, and, for the leader, the members with their metadata.

    2: throttle time. 5: static members (KIP-345). 7: protocol type. 9: skip_assignment (KIP-814).
    """

    class JoinGroupResponseMember(Struct):
        member_id: str = string()
        group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
        metadata: bytes = byte_string()

    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+")
    member_id: str = string()
    members: list[JoinGroupResponse.JoinGroupResponseMember] = array("JoinGroupResponseMember")


class JoinGroupRequest(
    Message, api_key=ApiKey.JOIN_GROUP, versions=(0, 9), flexible_from=6, response=JoinGroupResponse
):
    """Joins a group, or rejoins it in a rebalance.

    1: rebalance timeout. 4: the first request gets a member id (KIP-394). 5: static members (KIP-345). 8: the reason.
    """

    class JoinGroupRequestProtocol(Struct):
        name: str = string()
        metadata: bytes = byte_string()

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = array("JoinGroupRequestProtocol")
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class SyncGroupResponse(Message, api_key=ApiKey.SYNC_GROUP, versions=(0, 5), flexible_from=4):
    """The partitions of this member. 1: throttle time. 5: protocol type and name."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = byte_string()


class SyncGroupRequest(
    Message, api_key=ApiKey.SYNC_GROUP, versions=(0, 5), flexible_from=4, response=SyncGroupResponse
):
    """Asks for this member's partitions; the leader's request contains those of all members. 3: static members."""

    class SyncGroupRequestAssignment(Struct):
        member_id: str = string()
        assignment: bytes = byte_string()

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequest.SyncGroupRequestAssignment] = array("SyncGroupRequestAssignment")


class HeartbeatResponse(Message, api_key=ApiKey.HEARTBEAT, versions=(0, 4), flexible_from=4):
    """The error code; REBALANCE_IN_PROGRESS asks the member to rejoin. 1: throttle time."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()


class HeartbeatRequest(
    Message, api_key=ApiKey.HEARTBEAT, versions=(0, 4), flexible_from=4, response=HeartbeatResponse
):
    """Keeps a member's session alive. 3: static members."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class LeaveGroupResponse(Message, api_key=ApiKey.LEAVE_GROUP, versions=(0, 5), flexible_from=4):
    """The error code. 1: throttle time. 3: an error code for each member."""

    class MemberResponse(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = string("3+", nullable="3+")
        error_code: int = int16("3+")

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    members: list[LeaveGroupResponse.MemberResponse] = array("MemberResponse", "3+")


class LeaveGroupRequest(
    Message, api_key=ApiKey.LEAVE_GROUP, versions=(0, 5), flexible_from=4, response=LeaveGroupResponse
):
    """Removes members from a group. 3: several members (KIP-345). 5: the reason."""

    class MemberIdentity(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = string("3+", nullable="3+", default=None)
        reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    group_id: str = string()
    member_id: str = string("0-2")
    members: list[LeaveGroupRequest.MemberIdentity] = array("MemberIdentity", "3+")


class OffsetCommitResponse(Message, api_key=ApiKey.OFFSET_COMMIT, versions=(2, 9), flexible_from=8):
    """One error code for each partition. 3: throttle time."""

    class OffsetCommitResponsePartition(Struct):
        partition_index: int = int32()
        error_code: int = int16()

    class OffsetCommitResponseTopic(Struct):
        name: str = string()
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = array(
            "OffsetCommitResponsePartition"
        )

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = array("OffsetCommitResponseTopic")


class OffsetCommitRequest(
    Message, api_key=ApiKey.OFFSET_COMMIT, versions=(2, 9), flexible_from=8, response=OffsetCommitResponse
):
    """Commits a group's offsets outside transactions. 5: no retention time. 6: leader epochs. 7: static members."""

    class OffsetCommitRequestPartition(Struct):
        partition_index: int = int32()
        committed_offset: int = int64()
        committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
        committed_metadata: str | None = string(nullable="0+")

    class OffsetCommitRequestTopic(Struct):
        name: str = string()
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = array(
            "OffsetCommitRequestPartition"
        )

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = array("OffsetCommitRequestTopic")
