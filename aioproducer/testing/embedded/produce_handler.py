"""The handler for Produce: it checks each batch, appends it to its partition, and acknowledges it.

The checks are in the same order as in Kafka's KafkaApis and ReplicaManager. An error in one partition does not affect
the others. `validation` checks the batch itself, and the log checks the producer's sequences.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from aioproducer.errors import ProtocolError, counted
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceRequest, ProduceResponse
from aioproducer.protocol.recordbatch import NO_PRODUCER_ID, read_header
from aioproducer.testing.embedded.authorizer import CLUSTER_NAME, Operation, ResourceType
from aioproducer.testing.embedded.broker import CloseConnection
from aioproducer.testing.embedded.log import AppendError, LogAppendInfo, VerificationGuard
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.topics import NO_OFFSET, EmbeddedTopic, Partition, wait_until
from aioproducer.testing.embedded.validation import RequestError, check_can_be_read, only_batch, validate
from aioproducer.testing.embedded.verification import verified_batches
from aioproducer.types import TopicPartition

logger = logging.getLogger(__name__)

_Answer: TypeAlias = ProduceResponse.PartitionProduceResponse
_TopicKey: TypeAlias = tuple[str, UUID]
_Target: TypeAlias = tuple[str, UUID, int]


class _Wanted(NamedTuple):
    """A batch for an existing partition."""

    topic: EmbeddedTopic
    partition: Partition
    batch: memoryview
    guard: VerificationGuard | None


class _Written(NamedTuple):
    """A batch in the leader's log, and the response that is waiting for its replication."""

    partition: Partition
    appended: LogAppendInfo
    leader_epoch: int
    answer: _Answer


async def produce(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Handle Produce. Version 3: record batch v2. 5: log start offset. 7: zstd. 8: errors per record. 10: the new
    leader with NOT_LEADER_OR_FOLLOWER (KIP-951). 13: topic ids (KIP-516). 11 and 12 concern transactions only.
    """
    answers: dict[_TopicKey, dict[int, _Answer]] = {}
    written: list[_Written] = []
    try:
        wanted, refused = await _sorted_out(context, request, answers)
        check_can_be_read(one.batch for one in wanted.values())
    except RequestError as error:
        logger.debug("rejecting a Produce request: %s", error)
        wanted, refused = {}, _all_refused(request)
        answers = {target[:2]: {} for target in refused}
    for target in list(wanted):
        answers[target[:2]][target[2]] = _append(context, request, wanted.pop(target), target[2], written)
    # If a request names a partition twice, Kafka appends the last batch and answers once. If a batch for the partition
    # was rejected before the append, the response contains its error.
    for target, answer in refused.items():
        answers[target[:2]][target[2]] = answer
    if request.acks == -1:
        await _await_replication(context, written, request.timeout_ms / 1000)
    for partition, _, _, answer in written:
        late = context.late_error(partition.topic, partition.index)
        if late is not None:
            answer.error_code = late
    response = _put_together(context, answers)
    if request.acks == 0 and not context.release.answers_acks_0:
        # With acks=0, there is no response, so closing the connection is the only way to report an error.
        if any(answer.error_code for topic in response.responses for answer in topic.partition_responses):
            raise CloseConnection("a Produce request with acks=0 failed")
        return None
    if context.version >= 10:
        _add_leaders(context, response)
    return response


async def _sorted_out(
    context: RequestContext, request: ProduceRequest, answers: dict[_TopicKey, dict[int, _Answer]]
) -> tuple[dict[_Target, _Wanted], dict[_Target, _Answer]]:
    """Return the batches to append, and the errors for the other partitions (KafkaApis.handleProduceRequest).

    The record bytes are removed from the request. `answers` gets an entry for each partition, in order.
    """
    wanted: dict[_Target, _Wanted] = {}
    refused: dict[_Target, _Answer] = {}
    verified = await verified_batches(context, request)
    for topic_data in request.topic_data:
        topic = context.cluster.find_topic(topic_data.name, topic_data.topic_id)
        name = topic.name if topic else topic_data.name
        for data in topic_data.partition_data:
            target = topic_data.name, topic_data.topic_id, data.index
            answers.setdefault(target[:2], {}).setdefault(data.index, _Answer(index=data.index))
            records, data.records = data.records, None
            assert records is None or isinstance(records, memoryview)
            guard, refusal = verified.get(TopicPartition(name, data.index), (None, None))
            if refusal is not None:
                refused[target] = _refusal(data.index, refusal)
                continue
            try:
                found, partition = _found(context, topic, name, data.index)
                wanted[target] = _Wanted(found, partition, only_batch(records, context.version), guard)
            except AppendError as error:
                refused[target] = _refusal(data.index, error)
    return wanted, refused


def _found(
    context: RequestContext, topic: EmbeddedTopic | None, name: str, index: int
) -> tuple[EmbeddedTopic, Partition]:
    """Return the topic and partition if this client is allowed to write to them. Raises AppendError."""
    scripted = context.refusal(topic.name, index) if topic else None
    if scripted is not None:
        raise AppendError(scripted, "a scripted error")
    denied = context.denied(Operation.WRITE, ResourceType.TOPIC, name) if name else None
    if denied is not None:
        raise AppendError(denied, f"{context.session.principal} may not write to {name}")
    if topic is None and context.version >= 13:
        raise AppendError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    partition = topic.partition(index) if topic else None
    if topic is None or partition is None:
        raise AppendError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")
    return topic, partition


def _append(
    context: RequestContext, request: ProduceRequest, wanted: _Wanted, index: int, written: list[_Written]
) -> _Answer:
    """Append the batch for one partition, and return the partition's part of the response."""
    partition = wanted.partition
    answer = _Answer(index=index)
    try:
        _check_partition(context, request, wanted)
        _check_release(context, wanted.batch)
        valid = validate(wanted.batch, partition.config, context.cluster.now_ms())
        context.seen.batches[partition.topic, partition.index] = valid.header
        appended = partition.append(valid.data, valid.header, wanted.guard)
    except AppendError as error:
        answer = _refusal(index, error)
        if error.tells_log_start:
            answer.log_start_offset = partition.log.start_offset
        return answer
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time
    answer.log_start_offset = partition.log.start_offset
    written.append(_Written(partition, appended, partition.leader_epoch, answer))
    return answer


def _check_partition(context: RequestContext, request: ProduceRequest, wanted: _Wanted) -> None:
    """Check whether this broker can append to the partition at all. Raises AppendError."""
    topic, partition = wanted.topic, wanted.partition
    if request.acks not in (-1, 0, 1):
        raise AppendError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not one of -1, 0, 1")
    if topic.is_internal:
        raise AppendError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only brokers may write to {topic.name}")
    if partition.leader != context.node:
        raise AppendError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {context.node} does not lead the partition"
        )
    if request.acks == -1 and len(partition.isr) < partition.effective_min_isr:
        raise AppendError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{counted(len(partition.isr), 'replica is', 'replicas are')} in sync, "
            f"but min.insync.replicas is {partition.config.min_insync_replicas}",
        )


def _check_release(context: RequestContext, batch: memoryview) -> None:
    """Reject features that this release does not have. Raises AppendError."""
    try:
        header = read_header(batch)
        codec = header.codec
    except ProtocolError:
        return  # Validation reports the error.
    if codec not in context.release.codecs:
        raise AppendError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"this release does not support {codec.name}"
        )
    if header.producer_id != NO_PRODUCER_ID and context.release.idempotence_needs_cluster_acl:
        denied = context.denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        if denied is not None:
            raise AppendError(denied, f"{context.session.principal} may not write idempotently")


# Responses


def _all_refused(request: ProduceRequest) -> dict[_Target, _Answer]:
    """Return the response to a request that fails as a whole (ProduceRequest.getErrorResponse)."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    return {
        (topic.name, topic.topic_id, data.index): _Answer(
            index=data.index, error_code=code, base_offset=NO_OFFSET
        )
        for topic in request.topic_data
        for data in topic.partition_data
    }


def _refusal(index: int, error: AppendError) -> _Answer:
    """Return the response for a rejected batch. Kafka sends an error message only if it adds something to the error
    code."""
    logger.debug("rejecting the batch for partition %d in a Produce request: %s", index, error)
    return _Answer(
        index=index,
        error_code=error.code,
        base_offset=NO_OFFSET,
        record_errors=[
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=text)
            for at, text in error.record_errors.items()
        ],
        error_message=error.message if error.is_told else None,
    )


def _put_together(context: RequestContext, answers: dict[_TopicKey, dict[int, _Answer]]) -> ProduceResponse:
    response = ProduceResponse()
    for (name, topic_id), by_index in answers.items():
        topic = context.cluster.find_topic(name, topic_id)
        told = [
            answer
            for index, answer in by_index.items()
            if not context.omits(topic.name if topic else name, index)
        ]
        if told:
            response.responses.append(
                ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=told)
            )
    return response


async def _await_replication(context: RequestContext, written: Sequence[_Written], timeout: float) -> None:
    """Wait, for acks=all, until each batch is replicated or has failed, or until the time-out (DelayedProduce)."""
    waiting = list(written)

    def is_settled() -> bool:
        waiting[:] = [one for one in waiting if not _settle(context, one)]
        return not waiting

    await wait_until([one.partition for one in waiting], is_settled, timeout)
    for one in waiting:
        one.answer.error_code = ErrorCode.REQUEST_TIMED_OUT


def _settle(context: RequestContext, written: _Written) -> bool:
    """Return True if the outcome of a batch is known. Even if the batch has failed, the leader has appended it."""
    partition, appended, leader_epoch, answer = written
    if partition.is_deleted:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif partition.leader != context.node or partition.leader_epoch != leader_epoch:
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif partition.high_watermark <= appended.last_offset:
        return False
    elif len(partition.isr) < partition.effective_min_isr:
        answer.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return True


def _add_leaders(context: RequestContext, response: ProduceResponse) -> None:
    """Add the current leaders and their addresses to the response (KIP-951)."""
    leaders: set[int] = set()
    for topic_response in response.responses:
        topic = context.cluster.find_topic(topic_response.name, topic_response.topic_id)
        for answer in topic_response.partition_responses:
            partition = topic.partition(answer.index) if topic else None
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and partition is not None:
                answer.current_leader = ProduceResponse.LeaderIdAndEpoch(
                    leader_id=partition.leader, leader_epoch=partition.leader_epoch
                )
                leaders.add(partition.leader)
    response.node_endpoints = [
        ProduceResponse.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port)
        for node in context.cluster.alive()
        if node.node_id in leaders
    ]
