"""The handlers for requests about the cluster: ApiVersions, Metadata, FindCoordinator and CreateTopics.

Each handler's docstring lists the changes in each version of its API. These requests change the cluster only by
creating topics: CreateTopics and Metadata create the requested topics, and FindCoordinator creates the internal ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from aioproducer.protocol.primitives import NIL_UUID
from aioproducer.testing.embedded.authorizer import CLUSTER_NAME, Operation, ResourceType
from aioproducer.testing.embedded.releases import advertised
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.topics import (
    INTERNAL_TOPICS,
    NO_LEADER,
    EmbeddedTopic,
    Partition,
    is_valid_name,
)

TRANSACTION_VERSION = "transaction.version"
"""The feature that determines the version of transactions in the cluster."""

BROKER_DEFAULT = -1
"""The value in CreateTopics that stands for the broker's default number of partitions or replicas."""

_COORDINATED = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
"""The resource type for each key type in FindCoordinator."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Handle ApiVersions. Version 1: throttle time. 3: the client's name and version (KIP-511), features. 4: features
    whose lowest level is 0."""
    served = context.release.versions
    error = context.refusal()
    if error is None and context.version >= 3:
        names = request.client_software_name, request.client_software_version
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            error = ErrorCode.INVALID_REQUEST
    if error is not None:
        return refused_api_versions(error, served)
    response = ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in advertised(served).items()
        ]
    )
    if context.version >= 3 and context.release.transaction_version:
        _add_features(context, response)
    return response


def _add_features(context: RequestContext, response: ApiVersionsResponse) -> None:
    """Add the level of transaction.version, which determines whether transactions are v1 or v2 (KIP-584, KIP-890)."""
    if context.version >= 4:
        # Older clients would not understand that level 0 is supported.
        supported = ApiVersionsResponse.SupportedFeatureKey(
            name=TRANSACTION_VERSION, min_version=0, max_version=context.release.transaction_version
        )
        response.supported_features.append(supported)
    transactions = context.cluster.transactions
    level = transactions.version
    if level:
        finalized = ApiVersionsResponse.FinalizedFeatureKey(
            name=TRANSACTION_VERSION, min_version_level=level, max_version_level=level
        )
        response.finalized_features.append(finalized)
    response.finalized_features_epoch = transactions.features_epoch


def refused_api_versions(error: ErrorCode, served: Mapping[ApiKey, VersionRange]) -> ApiVersionsResponse:
    """Return an error response; if the request was too new, it lists the versions of ApiVersions (KIP-511)."""
    response = ApiVersionsResponse(error_code=error)
    if error is ErrorCode.UNSUPPORTED_VERSION:
        key = ApiKey.API_VERSIONS
        low, high = served[key]
        response.api_keys = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)]
    return response


# Metadata


async def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Handle Metadata. Version 0: an empty list asks for all topics; later, None does. 4: allow_auto_topic_creation.
    5: offline replicas. 7: leader epochs. 10: topic ids. 12: topics by id. 13: an error for the whole response."""
    cluster = context.cluster
    alive = cluster.alive()
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port)
            for node in alive
        ],
        cluster_id=cluster.cluster_id,
        controller_id=min((node.node_id for node in alive), default=NO_LEADER),
    )
    error = context.refusal()
    if error is not None and context.version >= 13:
        response.error_code = error
        return response
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        # A client that may not describe a topic does not learn that it exists.
        described = [
            _described(context, topic)
            for topic in cluster.topics.values()
            if context.denied(Operation.DESCRIBE, ResourceType.TOPIC, topic.name) is None
        ]
    else:
        # Before version 4, only the broker's setting decides whether a topic is created.
        may_create = request.allow_auto_topic_creation or context.version < 4
        if context.version < 12 and any(topic.name is None for topic in wanted):
            return _refused_metadata(wanted, ErrorCode.INVALID_REQUEST)
        # If the request contains a topic id, Kafka uses only the ids. Each topic is described only once.
        by_id = any(topic.topic_id != NIL_UUID for topic in wanted)
        unique = {topic.topic_id if by_id else topic.name: topic for topic in reversed(wanted)}
        described = [_looked_up(context, topic, by_id, may_create) for topic in reversed(unique.values())]
    response.topics = [topic for topic in described if not context.omits(topic.name or "")]
    return response


def _refused_metadata(
    wanted: Sequence[MetadataRequest.MetadataRequestTopic], error: ErrorCode
) -> MetadataResponse:
    """Return a response that contains only this error for each topic."""
    topics = [
        MetadataResponse.MetadataResponseTopic(
            error_code=error, name=topic.name or "", topic_id=topic.topic_id
        )
        for topic in wanted
    ]
    return MetadataResponse(topics=topics)


def _looked_up(
    context: RequestContext, wanted: MetadataRequest.MetadataRequestTopic, by_id: bool, may_create: bool
) -> MetadataResponse.MetadataResponseTopic:
    cluster = context.cluster
    if by_id:
        wanted = MetadataRequest.MetadataRequestTopic(name=None, topic_id=wanted.topic_id)
    topic = cluster.find_topic(wanted.name, wanted.topic_id)
    name = topic.name if topic else wanted.name
    denied = context.denied(Operation.DESCRIBE, ResourceType.TOPIC, name) if name else None
    if denied is not None:
        # The response reveals neither whether the topic exists nor, to a client that knows only the id, its name.
        return MetadataResponse.MetadataResponseTopic(
            error_code=denied, name=wanted.name, topic_id=wanted.topic_id
        )
    if topic is not None:
        return _described(context, topic)
    if wanted.name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    elif not is_valid_name(wanted.name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif (refusal := context.refusal(wanted.name)) is not None:
        error = refusal
    elif may_create and cluster.auto_create:
        # The topic is created now, so it exists when the client asks again. (With ZooKeeper, Kafka answered
        # LEADER_NOT_AVAILABLE.)
        error = _creation_refusal(context, wanted.name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # Only the controller detects name collisions, and the broker does not wait for its answer.
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and cluster.colliding_topic(wanted.name) is None:
            cluster.auto_create_topic(wanted.name)
    else:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return MetadataResponse.MetadataResponseTopic(
        error_code=error,
        name=wanted.name,
        topic_id=wanted.topic_id,
        is_internal=wanted.name in INTERNAL_TOPICS,
    )


def _creation_refusal(context: RequestContext, topic: str) -> ErrorCode | None:
    """Return the error if this client is not allowed to create the topic; None if it is.

    Permission on either the cluster or the topic is enough; Kafka checks the cluster first."""
    if context.denied(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) is None:
        return None
    return context.denied(Operation.CREATE, ResourceType.TOPIC, topic)


def _described(context: RequestContext, topic: EmbeddedTopic) -> MetadataResponse.MetadataResponseTopic:
    error = context.refusal(topic.name)
    described = MetadataResponse.MetadataResponseTopic(
        error_code=error or ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
    )
    if error is None:
        alive = {node.node_id for node in context.cluster.alive()}
        described.partitions = [
            _described_partition(context, partition, alive)
            for partition in topic.partitions
            if not context.omits(topic.name, partition.index)
        ]
    return described


def _described_partition(
    context: RequestContext, partition: Partition, alive: set[int]
) -> MetadataResponse.MetadataResponsePartition:
    error = context.refusal(partition.topic, partition.index)
    if error is None and partition.leader == NO_LEADER:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponse.MetadataResponsePartition(
        error_code=error or ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=partition.leader if error is None else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[node for node in partition.replicas if node not in alive],
    )


# Coordinators and topics


async def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Handle FindCoordinator. Version 1: key types. 4: several keys in one request (KIP-699). 6: share groups."""
    keys = request.coordinator_keys if context.version >= 4 else [request.key]
    found = []
    resource_type = _COORDINATED.get(request.key_type)
    for key in keys:
        error = context.refusal()
        if error is None and resource_type is None:
            error = ErrorCode.INVALID_REQUEST
        elif error is None and resource_type is not None:
            error = context.denied(Operation.DESCRIBE, resource_type, key)
        coordinator = FindCoordinatorResponse.Coordinator(
            key=key, node_id=NO_LEADER, host="", port=-1, error_message=None
        )
        of_transactions = resource_type is ResourceType.TRANSACTIONAL_ID
        node = None if error else context.cluster.coordinator(key, of_transactions=of_transactions)
        if node is not None:
            coordinator.node_id, coordinator.host, coordinator.port = node.node_id, node.host, node.port
        else:
            coordinator.error_code = error or ErrorCode.COORDINATOR_NOT_AVAILABLE
        found.append(coordinator)
    if context.version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code, node_id=only.node_id, host=only.host, port=only.port
    )


async def create_topics(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Handle CreateTopics. Version 4: -1 means the broker's default (KIP-464). 5: the response describes each new
    topic. 7: topic ids."""
    names = [wanted.name for wanted in request.topics]
    twice = {name for name in names if names.count(name) > 1}
    results = [
        _created(context, wanted, request.validate_only)
        for wanted in request.topics
        if wanted.name not in twice
    ]
    results += [
        CreateTopicsResponse.CreatableTopicResult(
            name=name,
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="the request names the topic more than once",
        )
        for name in dict.fromkeys(names)
        if name in twice
    ]
    return CreateTopicsResponse(topics=results)


def _created(
    context: RequestContext, wanted: CreateTopicsRequest.CreatableTopic, validate_only: bool
) -> CreateTopicsResponse.CreatableTopicResult:
    cluster = context.cluster
    result = CreateTopicsResponse.CreatableTopicResult(
        name=wanted.name, error_message=None, configs=None if context.version < 5 else []
    )
    partitions = None if wanted.num_partitions == BROKER_DEFAULT else wanted.num_partitions
    replicas = None if wanted.replication_factor == BROKER_DEFAULT else wanted.replication_factor
    refusal = context.refusal(wanted.name) or _creation_refusal(context, wanted.name)
    if refusal is not None:
        result.error_code = refusal
    elif wanted.name in cluster.topics:
        result.error_code = ErrorCode.TOPIC_ALREADY_EXISTS
    elif not is_valid_name(wanted.name):
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif (other := cluster.colliding_topic(wanted.name)) is not None:
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
        result.error_message = f"Topic '{wanted.name}' collides with existing topic: {other}"
    elif wanted.assignments:
        result.error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        result.error_message = "the embedded cluster assigns replicas itself"
    elif partitions is not None and partitions < 1:
        result.error_code = ErrorCode.INVALID_PARTITIONS
    elif replicas is not None and not 1 <= replicas <= len(cluster.alive()):
        result.error_code = ErrorCode.INVALID_REPLICATION_FACTOR
    else:
        settings = {config.name: config.value for config in wanted.configs}
        try:
            cluster.check_config(settings)
        except ValueError as error:
            result.error_code = ErrorCode.INVALID_CONFIG
            result.error_message = str(error)
            return result
        result.num_partitions = partitions or cluster.default_partitions
        result.replication_factor = replicas or cluster.default_replication_factor
        if not validate_only:
            topic = cluster.create_topic(
                wanted.name, partitions, replication_factor=replicas, config=settings
            )
            result.topic_id = topic.topic_id
    return result
