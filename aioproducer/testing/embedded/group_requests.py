"""The handlers for requests from the members of consumer groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Each handler's docstring lists the changes in each version of its API. ClassicGroup makes the decisions.
"""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aioproducer.testing.embedded.authorizer import Operation, ResourceType
from aioproducer.testing.embedded.group_members import UNKNOWN_MEMBER, Joined, Joining, RejoinRequired
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.transaction_metadata import TransactionRefused

MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS = 6_000, 1_800_000
"""Kafka's defaults (group.min.session.timeout.ms, group.max.session.timeout.ms)."""


def _check(context: RequestContext, group: str) -> None:
    """Raise TransactionRefused if the script rejects the request, or if this client can't be a member of the group."""
    error = context.refusal() or context.denied(Operation.READ, ResourceType.GROUP, group)
    if error is None and not group:
        error = ErrorCode.INVALID_GROUP_ID
    if error is not None:
        raise TransactionRefused(error)


async def join_group(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Handle JoinGroup. Version 1: rebalance timeout. 4: a new member gets its id first (KIP-394). 5: static members
    (KIP-345). 9: skip_assignment (KIP-814)."""
    # Before version 7, the name of the protocol can't be null.
    no_protocol = None if context.version >= 7 else ""
    try:
        joined = await _joined(context, request)
    except RejoinRequired as required:
        return JoinGroupResponse(
            error_code=required.code, member_id=required.member_id, protocol_name=no_protocol
        )
    except TransactionRefused as refused:
        return JoinGroupResponse(
            error_code=refused.code, member_id=request.member_id, protocol_name=no_protocol
        )
    return JoinGroupResponse(
        error_code=context.late_error() or ErrorCode.NONE,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name,
        leader=joined.leader,
        skip_assignment=joined.skips_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in joined.members
        ],
    )


async def _joined(context: RequestContext, request: JoinGroupRequest) -> Joined:
    """Let the member join, and wait for the result of the rebalance. Raises TransactionRefused."""
    groups = context.cluster.groups
    _check(context, request.group_id)
    if not MIN_SESSION_TIMEOUT_MS <= request.session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        raise TransactionRefused(ErrorCode.INVALID_SESSION_TIMEOUT)
    group = groups.group_at(context.node, request.group_id, may_create=request.member_id == UNKNOWN_MEMBER)
    has_rebalance_timeout = context.version >= 1
    waiting = group.join(
        Joining(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=context.seen.header.client_id or "",
            session_timeout=request.session_timeout_ms / 1000,
            rebalance_timeout=(
                request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms
            )
            / 1000,
            protocol_type=request.protocol_type,
            protocols=tuple((one.name, one.metadata) for one in request.protocols),
            gets_id_first=context.version >= 4,
            skips_assignment=context.version >= 9,
        )
    )
    return await groups.answer_of(request.group_id, waiting)


async def sync_group(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Handle SyncGroup. Version 3: static members (KIP-345). 5: the protocol's type and name (KIP-559)."""
    groups = context.cluster.groups
    try:
        _check(context, request.group_id)
        if context.version >= 5 and None in (request.protocol_type, request.protocol_name):
            raise TransactionRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = groups.group_at(context.node, request.group_id)
        group.check_member(request.member_id, request.group_instance_id, request.generation_id)
        group.check_protocol(request.protocol_type, request.protocol_name)
        waiting = group.sync(
            request.member_id, {one.member_id: one.assignment for one in request.assignments}
        )
        assignment = await groups.answer_of(request.group_id, waiting)
    except TransactionRefused as refused:
        return SyncGroupResponse(error_code=refused.code)
    protocol_type, protocol_name = group.protocol
    return SyncGroupResponse(
        error_code=context.late_error() or ErrorCode.NONE,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignment=assignment,
    )


async def heartbeat(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Handle Heartbeat. Version 3: static members (KIP-345)."""
    try:
        _check(context, request.group_id)
        group = context.cluster.groups.group_at(context.node, request.group_id)
        group.check_member(request.member_id, request.group_instance_id, request.generation_id)
        group.heartbeat(request.member_id)
    except TransactionRefused as refused:
        # A coordinator that is still reading its log reports success for heartbeats.
        is_loading = refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.refusal() is None
        return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else refused.code)
    return HeartbeatResponse(error_code=context.late_error() or ErrorCode.NONE)


async def leave_group(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Handle LeaveGroup. Version 3: several members, including static ones (KIP-345). 5: the reason."""
    leaving = request.members
    if context.version < 3:
        leaving = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
    response = LeaveGroupResponse()
    groups = context.cluster.groups
    try:
        _check(context, request.group_id)
        groups.check_coordinator(context.node, request.group_id)
    except TransactionRefused as refused:
        response.error_code = refused.code
        return response
    for member in leaving:
        code = ErrorCode.NONE
        try:
            groups.group_at(context.node, request.group_id).leave(member.member_id, member.group_instance_id)
        except TransactionRefused as refused:
            code = refused.code
        if context.version < 3:
            response.error_code = code
        else:
            response.members.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=code,
                )
            )
    response.error_code = response.error_code or context.late_error() or ErrorCode.NONE
    return response
