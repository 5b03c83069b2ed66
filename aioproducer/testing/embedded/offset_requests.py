"""The handlers for requests about group offsets: OffsetCommit, TxnOffsetCommit and OffsetFetch.

Each handler's docstring lists the changes in each version of its API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from aioproducer.protocol.recordbatch import NO_SEQUENCE
from aioproducer.testing.embedded.authorizer import Operation, ResourceType
from aioproducer.testing.embedded.offset_log import CommittedOffset
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.topics import NO_OFFSET
from aioproducer.testing.embedded.transaction_metadata import ProducerIdAndEpoch, TransactionRefused
from aioproducer.testing.embedded.verification import Question, Support, verify
from aioproducer.types import TopicPartition

MAX_METADATA = 4096
"""The maximum length of an offset's metadata, in UTF-16 code units; Kafka's default
(offset.metadata.max.bytes)."""

_PASSED_ON_AS = {
    # Older clients do not expect a network error that occurred between brokers.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


async def txn_offset_commit(
    context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Handle TxnOffsetCommit. Version 2: leader epochs. 3: member and generation (KIP-447). 4: TRANSACTION_ABORTABLE.
    5: the request also adds the group's partition to the transaction (KIP-890)."""
    asked = {
        TopicPartition(topic.name, part.partition_index): part
        for topic in request.topics
        for part in topic.partitions
    }
    codes = _refused(context, request, asked)
    rest = {target: part for target, part in asked.items() if target not in codes}
    if rest:
        try:
            codes.update(await _committed(context, request, rest))
        except TransactionRefused as refused:
            codes.update(dict.fromkeys(rest, _PASSED_ON_AS.get(refused.code, refused.code)))
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        answers = [
            TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                partition_index=part.partition_index,
                error_code=codes.get(TopicPartition(topic.name, part.partition_index))
                or context.late_error(topic.name, part.partition_index)
                or ErrorCode.NONE,
            )
            for part in topic.partitions
            if not context.omits(topic.name, part.partition_index)
        ]
        response.topics.append(
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers)
        )
    return response


def _refused(
    context: RequestContext, request: TxnOffsetCommitRequest, targets: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return the errors that are detected before the coordinator checks the request."""
    denied = context.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    if denied is not None:
        return dict.fromkeys(targets, denied)
    return _unreadable(context, request.group_id, targets)


def _unreadable(
    context: RequestContext, group: str, targets: Iterable[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return the errors for partitions that do not exist, or that this client can't read as a member of the group."""
    denied = context.denied(Operation.READ, ResourceType.GROUP, group)
    if denied is not None:
        return dict.fromkeys(targets, denied)
    found = {}
    for target in targets:
        error = context.refusal(*target) or context.denied(Operation.READ, ResourceType.TOPIC, target.topic)
        if error is None and context.cluster.find_partition(*target) is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if error is not None:
            found[target] = error
    return found


async def _committed(
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    parts: Mapping[TopicPartition, TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition],
) -> dict[TopicPartition, ErrorCode]:
    """Commit the valid offsets; return the error codes for the others. Raises TransactionRefused."""
    groups = context.cluster.groups
    if not request.group_id:
        raise TransactionRefused(ErrorCode.INVALID_GROUP_ID)
    groups.offsets_at(context.node, request.group_id)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    if context.release.verifies_transactions:
        await _check_transaction(context, request, producer)
    groups.check_member(
        context.node,
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
    )
    codes, offsets = _sorted(parts)
    if offsets:
        await groups.commit(request.group_id, offsets, producer)
    return codes


def _sorted(
    parts: Mapping[
        TopicPartition,
        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
        | OffsetCommitRequest.OffsetCommitRequestPartition,
    ],
) -> tuple[dict[TopicPartition, ErrorCode], dict[TopicPartition, CommittedOffset]]:
    """Return the error codes of the offsets that can't be committed, and the other offsets."""
    codes = {}
    offsets = {}
    for target, part in parts.items():
        text = part.committed_metadata or ""
        if len(text.encode("utf-16-be")) // 2 > MAX_METADATA:
            codes[target] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        else:
            offsets[target] = CommittedOffset(part.committed_offset, part.committed_leader_epoch, text)
    return codes, offsets


async def _check_transaction(
    context: RequestContext, request: TxnOffsetCommitRequest, producer: ProducerIdAndEpoch
) -> None:
    """Ask the transaction coordinator, as any partition leader does. Raises TransactionRefused."""
    partition = context.cluster.groups.partition_of(request.group_id)
    target = TopicPartition(partition.topic, partition.index)
    answers = await verify(
        context.cluster,
        request.transactional_id,
        producer,
        {target: Question(partition, NO_SEQUENCE)},
        Support.of(context.version, 4),
    )
    if target in answers and answers[target].code is not ErrorCode.NONE:
        raise TransactionRefused(answers[target].code)


async def offset_commit(context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Handle OffsetCommit. Version 5: no retention time. 6: leader epochs. 7: static members
    (KIP-345). 9: GROUP_ID_NOT_FOUND, since Kafka 4.0."""
    groups = context.cluster.groups
    is_new = context.version >= 9 and not context.release.is_before_4
    asked = {
        TopicPartition(topic.name, part.partition_index): part
        for topic in request.topics
        for part in topic.partitions
    }
    codes = _unreadable(context, request.group_id, asked)
    rest = {target: part for target, part in asked.items() if target not in codes}
    if rest:
        try:
            groups.offsets_at(context.node, request.group_id)
            groups.check_member(
                context.node,
                request.group_id,
                request.generation_id_or_member_epoch,
                request.member_id,
                request.group_instance_id,
                in_transaction=False,
                unknown_group=ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION,
            )
            too_large, offsets = _sorted(rest)
            codes.update(too_large)
            if offsets:
                await groups.commit(request.group_id, offsets)
        except TransactionRefused as refused:
            codes.update(dict.fromkeys(rest, refused.code))
    response = OffsetCommitResponse()
    for topic in request.topics:
        answers = [
            OffsetCommitResponse.OffsetCommitResponsePartition(
                partition_index=part.partition_index,
                error_code=codes.get(TopicPartition(topic.name, part.partition_index))
                or context.late_error(topic.name, part.partition_index)
                or ErrorCode.NONE,
            )
            for part in topic.partitions
            if not context.omits(topic.name, part.partition_index)
        ]
        response.topics.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(name=topic.name, partitions=answers)
        )
    return response


async def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Handle OffsetFetch. Version 2: all offsets of a group, and an error for the group. 5: leader epochs.
    7: require_stable (KIP-447). 8: several groups (KIP-709)."""
    if context.version >= 8:
        groups = [
            _described_group(context, asked.group_id, _named(asked.topics), request.require_stable)
            for asked in request.groups
        ]
        return OffsetFetchResponse(groups=groups)
    named = _named(request.topics)
    group = _described_group(context, request.group_id, named, request.require_stable)
    return _as_one_group(group, named or {}, context.version)


def _named(
    topics: Iterable[OffsetFetchRequest.OffsetFetchRequestTopic | OffsetFetchRequest.OffsetFetchRequestTopics]
    | None,
) -> dict[str, list[int]] | None:
    """Return the partitions that the request names; None means all."""
    return None if topics is None else {topic.name: topic.partition_indexes for topic in topics}


def _described_group(
    context: RequestContext, group: str, wanted: Mapping[str, list[int]] | None, require_stable: bool
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    response = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group)
    error = context.refusal() or context.denied(Operation.DESCRIBE, ResourceType.GROUP, group)
    if error is None:
        try:
            offsets = context.cluster.groups.offsets_at(context.node, group)
        except TransactionRefused as refused:
            error = refused.code
    if error is not None:
        response.error_code = error
        return response
    committed = offsets.committed(group)
    if wanted is None:
        wanted = {}
        for target in committed:
            if context.denied(Operation.DESCRIBE, ResourceType.TOPIC, target.topic) is None:
                wanted.setdefault(target.topic, []).append(target.partition)
    for topic, indexes in wanted.items():
        answers = []
        for index in indexes:
            target = TopicPartition(topic, index)
            one = committed.get(target, CommittedOffset(NO_OFFSET))
            error = context.refusal(topic, index) or context.denied(
                Operation.DESCRIBE, ResourceType.TOPIC, topic
            )
            if error is None and require_stable and offsets.is_pending(group, target):
                error = ErrorCode.UNSTABLE_OFFSET_COMMIT
            answers.append(_described_offset(index, one if error is None else None, error))
        response.topics.append(OffsetFetchResponse.OffsetFetchResponseTopics(name=topic, partitions=answers))
    return response


def _described_offset(
    index: int, committed: CommittedOffset | None, error: ErrorCode | None
) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
    found = committed or CommittedOffset(NO_OFFSET)
    return OffsetFetchResponse.OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=error or ErrorCode.NONE,
    )


def _as_one_group(
    group: OffsetFetchResponse.OffsetFetchResponseGroup, wanted: Mapping[str, list[int]], version: int
) -> OffsetFetchResponse:
    """Return the response for versions up to 7. In version 1, a group error is repeated for each partition."""
    topics = group.topics
    if group.error_code and version < 2:
        topics = [
            OffsetFetchResponse.OffsetFetchResponseTopics(
                name=topic,
                partitions=[_described_offset(index, None, ErrorCode(group.error_code)) for index in indexes],
            )
            for topic, indexes in wanted.items()
        ]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
