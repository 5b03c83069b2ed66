"""What a broker answers: one function per API, headed by what its versions changed.

Called by Broker for one request of a connection at a time. A handler changes the cluster's topics and returns
the answer, or None where the protocol knows no answer; it never sees a socket.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

from aioproducer.compression import Codec
from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FetchRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from aioproducer.protocol.schema import Message
from aioproducer.testing.call import Call, CloseConnection
from aioproducer.testing.consumers import fetch, list_offsets
from aioproducer.testing.faults import Target
from aioproducer.testing.log import Appended, AppendError, validate
from aioproducer.testing.releases import advertised
from aioproducer.testing.topics import (
    INTERNAL_TOPICS,
    NO_EPOCH,
    NO_LEADER,
    NO_OFFSET,
    Partition,
    Topic,
    is_valid_name,
    wait_until,
)

if TYPE_CHECKING:
    from aioproducer.testing.cluster import EmbeddedCluster

BROKER_DEFAULT = -1
"""In CreateTopics: as many partitions or replicas as the broker thinks fit."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

Handler: TypeAlias = Callable[[Call, Any], Awaitable[Message | None]]


async def api_versions(call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """1: throttle time. 3: the client's name and version (KIP-511), features. 4: features from 0 on."""
    served = call.cluster.broker(call.node).versions
    error = call.refusal()
    if error is None and call.version >= 3:
        names = request.client_software_name, request.client_software_version
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            error = ErrorCode.INVALID_REQUEST
    if error is not None:
        return refused_api_versions(error, served)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in advertised(served).items()
        ]
    )


def refused_api_versions(error: ErrorCode, served: Mapping[ApiKey, VersionRange]) -> ApiVersionsResponse:
    """KIP-511: whoever asked in too new a version is told which ones to ask in."""
    response = ApiVersionsResponse(error_code=error)
    if error is ErrorCode.UNSUPPORTED_VERSION:
        key = ApiKey.API_VERSIONS
        low, high = served[key]
        response.api_keys = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)]
    return response


# Metadata


async def metadata(call: Call, request: MetadataRequest) -> MetadataResponse:
    """0: an empty list asks for all topics, later None does. 4: allow_auto_topic_creation. 5: offline
    replicas. 7: leader epochs. 10: topic ids. 12: topics by id. 13: an error of the whole answer."""
    cluster = call.cluster
    alive = cluster.alive()
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port)
            for node in alive
        ],
        cluster_id=cluster.cluster_id,
        controller_id=min((node.node_id for node in alive), default=NO_LEADER),
    )
    error = call.refusal()
    if error is not None and call.version >= 13:
        response.error_code = error
        return response
    wanted = request.topics
    if wanted is None or (call.version == 0 and not wanted):
        described = [_described(call, topic) for topic in cluster.topics.values()]
    else:
        # Before version 4 the broker's setting alone decides.
        may_create = request.allow_auto_topic_creation or call.version < 4
        if call.version < 12 and any(topic.name is None for topic in wanted):
            raise CloseConnection(f"topics by id in Metadata version {call.version}")
        described = [_looked_up(call, topic, may_create) for topic in wanted]
    response.topics = [topic for topic in described if not call.omits(topic.name or "")]
    return response


def _looked_up(
    call: Call, wanted: MetadataRequest.MetadataRequestTopic, may_create: bool
) -> MetadataResponse.MetadataResponseTopic:
    cluster = call.cluster
    topic = cluster.find_topic(wanted.name, wanted.topic_id)
    if topic is not None:
        return _described(call, topic)
    if wanted.name is None:
        error = ErrorCode.UNKNOWN_TOPIC_ID
    elif not is_valid_name(wanted.name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif (refusal := call.refusal(wanted.name)) is not None:
        error = refusal
    elif may_create and cluster.auto_create:
        cluster.create_topic(wanted.name)
        # The topic is there when the client asks again. (With ZooKeeper, Kafka said LEADER_NOT_AVAILABLE.)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return MetadataResponse.MetadataResponseTopic(
        error_code=error,
        name=wanted.name,
        topic_id=wanted.topic_id,
        is_internal=wanted.name in INTERNAL_TOPICS,
    )


def _described(call: Call, topic: Topic) -> MetadataResponse.MetadataResponseTopic:
    error = call.refusal(topic.name)
    described = MetadataResponse.MetadataResponseTopic(
        error_code=error or ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
    )
    if error is None:
        alive = {node.node_id for node in call.cluster.alive()}
        described.partitions = [
            _described_partition(call, partition, alive)
            for partition in topic.partitions
            if not call.omits(topic.name, partition.index)
        ]
    return described


def _described_partition(
    call: Call, partition: Partition, alive: set[int]
) -> MetadataResponse.MetadataResponsePartition:
    error = call.refusal(partition.topic, partition.index)
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


# Produce


class _Written(NamedTuple):
    """A batch in the leader's log, and where to answer for it."""

    partition: Partition
    appended: Appended
    leader_epoch: int
    answer: ProduceResponse.PartitionProduceResponse


async def produce(call: Call, request: ProduceRequest) -> ProduceResponse | None:
    """3: record batch v2. 5: log start offset. 7: zstd. 8: texts of errors. 10: the new leader with
    NOT_LEADER_OR_FOLLOWER (KIP-951). 13: topic ids (KIP-516). 11 and 12 concern transactions only.

    Appends partition by partition: what one of them refuses does not concern the others.
    """
    response = ProduceResponse()
    written: list[_Written] = []
    claimed: set[tuple[str, UUID, int]] = set()
    for topic_data in request.topic_data:
        topic = call.cluster.find_topic(topic_data.name, topic_data.topic_id)
        name = topic.name if topic else topic_data.name
        answers = []
        for data in topic_data.partition_data:
            key = topic_data.name, topic_data.topic_id, data.index
            answer = _append(call, request, topic, data, key in claimed, written)
            claimed.add(key)
            if not call.omits(name, data.index):
                answers.append(answer)
        if answers or not topic_data.partition_data:
            response.responses.append(
                ProduceResponse.TopicProduceResponse(
                    name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=answers
                )
            )
    if request.acks == -1:
        await _await_replication(call, written, request.timeout_ms / 1000)
    for partition, _, _, answer in written:
        late = call.late_error(partition.topic, partition.index)
        if late is not None:
            answer.error_code = late
    if request.acks == 0:
        # Nobody waits for an answer; closing is the only way to say that something went wrong.
        if any(answer.error_code for topic in response.responses for answer in topic.partition_responses):
            raise CloseConnection("a Produce request with acks=0 failed")
        return None
    if call.version >= 10:
        _add_leaders(call, response)
    return response


def _append(
    call: Call,
    request: ProduceRequest,
    topic: Topic | None,
    data: ProduceRequest.PartitionProduceData,
    again: bool,
    written: list[_Written],
) -> ProduceResponse.PartitionProduceResponse:
    """Append the batch of one partition, or say why not. From here on the request holds no record bytes."""
    records, data.records = data.records, None
    answer = ProduceResponse.PartitionProduceResponse(index=data.index, base_offset=NO_OFFSET)
    try:
        if again:
            # Kafka would append one of the two and say nothing about the other.
            raise AppendError(ErrorCode.INVALID_REQUEST, "the partition stands twice in the request")
        partition = _leading(call, request, topic, data.index)
        assert records is None or isinstance(records, memoryview)
        header = validate(records, partition.config)
        if header.codec is Codec.ZSTD and call.version < 7:
            raise AppendError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
        call.seen.batches[partition.topic, partition.index] = header
        assert records is not None
        appended = partition.append(records, header, call.cluster.now_ms())
    except AppendError as error:
        answer.error_code = error.code
        answer.error_message = error.message
        if error.tells_log_start and topic is not None:
            answer.log_start_offset = topic.partitions[data.index].log.start_offset
        return answer
    answer.base_offset = appended.base_offset
    answer.log_append_time_ms = appended.log_append_time
    answer.log_start_offset = partition.log.start_offset
    written.append(_Written(partition, appended, partition.leader_epoch, answer))
    return answer


def _leading(call: Call, request: ProduceRequest, topic: Topic | None, index: int) -> Partition:
    """The partition, if this broker may append to it. Raises AppendError."""
    partition = topic.partition(index) if topic else None
    if topic is not None:
        refusal = call.refusal(topic.name, index)
        if refusal is not None:
            raise AppendError(refusal, "so says the script")
    if topic is None and call.version >= 13:
        raise AppendError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    if topic is None or partition is None:
        raise AppendError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic or partition")
    if request.acks not in (-1, 0, 1):
        raise AppendError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks} is not one of -1, 0, 1")
    if topic.is_internal:
        raise AppendError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is written by brokers only")
    if partition.leader != call.node:
        raise AppendError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {call.node} does not lead the partition")
    if request.acks == -1 and len(partition.isr) < partition.config.min_insync_replicas:
        raise AppendError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{len(partition.isr)} replicas are in sync, "
            f"min.insync.replicas is {partition.config.min_insync_replicas}",
        )
    return partition


async def _await_replication(call: Call, written: Sequence[_Written], timeout: float) -> None:
    """acks=all: wait until the followers have everything, or it is clear that they won't (DelayedProduce)."""
    waiting = list(written)

    def is_settled() -> bool:
        waiting[:] = [one for one in waiting if not _settle(call, one)]
        return not waiting

    await wait_until([one.partition for one in waiting], is_settled, timeout)
    for one in waiting:
        one.answer.error_code = ErrorCode.REQUEST_TIMED_OUT


def _settle(call: Call, written: _Written) -> bool:
    """Whether it is known what became of a batch. The leader has appended it, whatever error is answered."""
    partition, appended, leader_epoch, answer = written
    if partition.is_deleted:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif partition.leader != call.node or partition.leader_epoch != leader_epoch:
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif partition.high_watermark <= appended.last_offset:
        return False
    elif len(partition.isr) < partition.config.min_insync_replicas:
        answer.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return True


def _add_leaders(call: Call, response: ProduceResponse) -> None:
    """KIP-951: who leads now, and where to find it."""
    leaders: set[int] = set()
    for topic_response in response.responses:
        topic = call.cluster.find_topic(topic_response.name, topic_response.topic_id)
        for answer in topic_response.partition_responses:
            partition = topic.partition(answer.index) if topic else None
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and partition is not None:
                answer.current_leader = ProduceResponse.LeaderIdAndEpoch(
                    leader_id=partition.leader, leader_epoch=partition.leader_epoch
                )
                leaders.add(partition.leader)
    response.node_endpoints = [
        ProduceResponse.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port)
        for node in call.cluster.alive()
        if node.node_id in leaders
    ]


async def init_producer_id(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """3: the producer's id and epoch so far (KIP-360), which count for transactions only. 4: PRODUCER_FENCED.

    Without a transactional id every request gets a new producer id."""
    error = call.refusal()
    if error is None and request.transactional_id is not None:
        error = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
    if error is not None:
        return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(producer_id=call.cluster.next_producer_id(), producer_epoch=0)


# Cluster


async def find_coordinator(call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """1: key types. 4: several keys at once (KIP-699). 6: share groups."""
    keys = request.coordinator_keys if call.version >= 4 else [request.key]
    error = call.refusal()
    found = []
    for key in keys:
        coordinator = FindCoordinatorResponse.Coordinator(
            key=key, node_id=NO_LEADER, host="", port=-1, error_message=None
        )
        node = call.cluster.coordinator(key)
        if error is None:
            coordinator.node_id, coordinator.host, coordinator.port = node.node_id, node.host, node.port
        else:
            coordinator.error_code = error
        found.append(coordinator)
    if call.version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code, node_id=only.node_id, host=only.host, port=only.port
    )


async def create_topics(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """4: -1 stands for the broker's default (KIP-464). 5: answers what was made. 7: topic ids."""
    return CreateTopicsResponse(
        topics=[_created(call, wanted, request.validate_only) for wanted in request.topics]
    )


def _created(
    call: Call, wanted: CreateTopicsRequest.CreatableTopic, validate_only: bool
) -> CreateTopicsResponse.CreatableTopicResult:
    cluster = call.cluster
    result = CreateTopicsResponse.CreatableTopicResult(
        name=wanted.name, error_message=None, configs=None if call.version < 5 else []
    )
    partitions = None if wanted.num_partitions == BROKER_DEFAULT else wanted.num_partitions
    replicas = None if wanted.replication_factor == BROKER_DEFAULT else wanted.replication_factor
    refusal = call.refusal(wanted.name)
    if refusal is not None:
        result.error_code = refusal
    elif wanted.name in cluster.topics:
        result.error_code = ErrorCode.TOPIC_ALREADY_EXISTS
    elif not is_valid_name(wanted.name):
        result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
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
        if not validate_only:
            topic = cluster.create_topic(
                wanted.name, partitions, replication_factor=replicas, config=settings
            )
            result.topic_id = topic.topic_id
            result.num_partitions = len(topic.partitions)
            result.replication_factor = len(topic.partitions[0].replicas)
    return result


HANDLERS: dict[int, Handler] = {
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.METADATA: metadata,
    ApiKey.PRODUCE: produce,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.CREATE_TOPICS: create_topics,
}


def targets(cluster: EmbeddedCluster, message: Message) -> list[Target]:
    """The topics and partitions that a request speaks of."""
    if isinstance(message, ProduceRequest):
        found = [(cluster.find_topic(topic.name, topic.topic_id), topic) for topic in message.topic_data]
        return [
            (topic.name if topic else asked.name, data.index)
            for topic, asked in found
            for data in asked.partition_data
        ]
    if isinstance(message, FetchRequest):
        return [(topic.topic, part.partition) for topic in message.topics for part in topic.partitions]
    if isinstance(message, ListOffsetsRequest):
        return [(topic.name, part.partition_index) for topic in message.topics for part in topic.partitions]
    if isinstance(message, MetadataRequest):
        names = cluster.topics if message.topics is None else [topic.name or "" for topic in message.topics]
        return [(name, None) for name in names]
    if isinstance(message, CreateTopicsRequest):
        return [(topic.name, None) for topic in message.topics]
    return []
