"""The handlers for transactional producers' requests: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.

Each handler's docstring lists the changes in each version of its API. `transaction_metadata` makes the
decisions, and `transactions` writes them to the log and waits for their replication. The handlers perform the first
checks and translate the error codes for old versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from aioproducer.protocol.recordbatch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from aioproducer.testing.embedded.authorizer import CLUSTER_NAME, WILDCARD, Operation, ResourceType
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.topics import INTERNAL_TOPICS
from aioproducer.testing.embedded.transaction_metadata import ProducerIdAndEpoch, TransactionRefused
from aioproducer.types import TopicPartition

_NOBODY = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


async def init_producer_id(context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Handle InitProducerId. Version 3: the producer's current id and epoch (KIP-360). 4: PRODUCER_FENCED.

    Without a transactional id, every request gets a new producer id."""
    producer = _NOBODY
    error = context.refusal() or _producer_id_refusal(context, request.transactional_id)
    if error is None:
        try:
            producer = await _new_identity(context, request)
        except TransactionRefused as refused:
            error = _as_old(refused.code, context.version, 4)
    return InitProducerIdResponse(
        error_code=error or context.late_error() or ErrorCode.NONE,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _producer_id_refusal(context: RequestContext, transactional_id: str | None) -> ErrorCode | None:
    """Return the error if this client can't get a producer id from InitProducerId; None if it can.

    Since KIP-679, a client that may write to at least one topic needs no separate permission for idempotent writes."""
    if transactional_id is not None:
        return context.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    refusal = context.denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
    if refusal is None or context.release.idempotence_needs_cluster_acl:
        return refusal
    # As in Kafka's authorizeByResourceType, only a rule for "*" denies the client WRITE on all topics.
    return refusal if context.denied(Operation.WRITE, ResourceType.TOPIC, WILDCARD) else None


async def _new_identity(context: RequestContext, request: InitProducerIdRequest) -> ProducerIdAndEpoch:
    cluster = context.cluster
    asked = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    if (asked.producer_id == NO_PRODUCER_ID) is not (asked.epoch == NO_PRODUCER_EPOCH):
        raise TransactionRefused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return ProducerIdAndEpoch(cluster.next_producer_id(), 0)
    return await cluster.transactions.init_producer_id(
        context.node,
        request.transactional_id,
        request.transaction_timeout_ms,
        None if asked == _NOBODY else asked,
    )


async def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Handle AddPartitionsToTxn. Version 2: PRODUCER_FENCED (KIP-588). If one partition can't be added, none is."""
    wanted = {topic.name: topic.partitions for topic in request.v3_and_below_topics}
    errors = await _added(context, request, wanted)
    response = AddPartitionsToTxnResponse()
    for topic, partitions in wanted.items():
        results = [
            AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                partition_index=index,
                partition_error_code=errors[topic, index]
                or context.late_error(topic, index)
                or ErrorCode.NONE,
            )
            for index in partitions
            if not context.omits(topic, index)
        ]
        response.results_by_topic_v3_and_below.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results)
        )
    return response


async def _added(
    context: RequestContext, request: AddPartitionsToTxnRequest, wanted: dict[str, list[int]]
) -> dict[tuple[str, int], ErrorCode]:
    """Add the partitions; return the error code for each one."""
    targets = [TopicPartition(topic, index) for topic, partitions in wanted.items() for index in partitions]
    transactional_id = request.v3_and_below_transactional_id
    scripted = {target: context.refusal(*target) for target in targets}
    if any(scripted.values()):
        return {target: error or ErrorCode.OPERATION_NOT_ATTEMPTED for target, error in scripted.items()}
    denied = context.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if denied is not None:
        return dict.fromkeys(targets, denied)
    refusals = added_partition_refusals(context, wanted)
    if refusals:
        return refusals
    producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    try:
        await context.cluster.transactions.add_partitions(context.node, transactional_id, producer, targets)
    except TransactionRefused as refused:
        return dict.fromkeys(targets, _as_old(refused.code, context.version, 2))
    return dict.fromkeys(targets, ErrorCode.NONE)


def added_partition_refusals(
    context: RequestContext, topics: Mapping[str, Iterable[int]]
) -> dict[tuple[str, int], ErrorCode]:
    """Return the errors for an AddPartitionsToTxn request; if any partition can't be added, none are.

    Partitions that can't be added get TOPIC_AUTHORIZATION_FAILED or UNKNOWN_TOPIC_OR_PARTITION; the others get
    OPERATION_NOT_ATTEMPTED. The result is empty if all partitions can be added. Only brokers write to internal topics.
    """
    found: dict[tuple[str, int], ErrorCode] = {}
    for topic, partitions in topics.items():
        denied = (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if topic in INTERNAL_TOPICS
            else context.denied(Operation.WRITE, ResourceType.TOPIC, topic)
        )
        for partition in partitions:
            known = context.cluster.find_partition(topic, partition) is not None
            missing = ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            found[topic, partition] = denied or missing
    if not any(found.values()):
        return {}
    return {target: error or ErrorCode.OPERATION_NOT_ATTEMPTED for target, error in found.items()}


async def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Handle AddOffsetsToTxn: add a group's partition of `__consumer_offsets`. Version 2: PRODUCER_FENCED."""
    error = (
        context.refusal()
        or context.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        or context.denied(Operation.READ, ResourceType.GROUP, request.group_id)
    )
    if error is None:
        partition = context.cluster.groups.partition_of(request.group_id)
        try:
            await context.cluster.transactions.add_partitions(
                context.node,
                request.transactional_id,
                ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                [TopicPartition(partition.topic, partition.index)],
            )
        except TransactionRefused as refused:
            error = _as_old(refused.code, context.version, 2)
    return AddOffsetsToTxnResponse(error_code=error or context.late_error() or ErrorCode.NONE)


async def end_txn(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Handle EndTxn. Version 2: PRODUCER_FENCED (KIP-588). 5: the next transaction's producer id and epoch (KIP-890).

    The response is sent when the decision is in the log; the markers are written later."""
    response = EndTxnResponse()
    error = context.refusal() or context.denied(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    )
    if error is None:
        try:
            producer = await context.cluster.transactions.end(
                context.node,
                request.transactional_id,
                ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
                commit=request.committed,
                bump=context.version >= 5,
            )
            response.producer_id, response.producer_epoch = producer
            error = context.late_error()
        except TransactionRefused as refused:
            error = _as_old(refused.code, context.version, 2)
    response.error_code = error or ErrorCode.NONE
    return response


def _as_old(code: ErrorCode, version: int, since: int) -> ErrorCode:
    """Translate PRODUCER_FENCED for versions below `since`, which do not have it (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
