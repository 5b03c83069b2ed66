"""Messages about the cluster: brokers, topics, coordinators, new topics."""

from __future__ import annotations

from uuid import UUID

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.schema import Message, Struct, array, boolean, int8, int16, int32, string, uuid

MOST_BROKERS = 10_000
"""The maximum number of brokers in a response. The largest clusters have a few hundred."""
MOST_REPLICAS = 1_000
"""The maximum number of replicas of a partition."""
MOST_PARTITIONS = 100_000
"""The maximum number of partitions in a topic. A whole KRaft cluster is designed for a few million."""
MOST_TOPICS = 100_000
"""The maximum number of topics, or of coordinators, in a response."""


class MetadataResponse(Message, api_key=ApiKey.METADATA, versions=(0, 13), flexible_from=9):
    """The brokers, and the requested topics with their partitions and leaders.

    3: throttle time. 5: offline replicas. 7: leader epochs (KIP-320). 10: topic ids (KIP-516).
    12: a topic that was requested by id may have no name. 13: an error code for the whole response,
    REBOOTSTRAP_REQUIRED (KIP-1102).
    """

    class MetadataResponseBroker(Struct):
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)

    class MetadataResponsePartition(Struct):
        error_code: int = int16()
        partition_index: int = int32()
        leader_id: int = int32()
        leader_epoch: int = int32("7+", default=-1, ignorable=True)
        replica_nodes: list[int] = array("int32", most=MOST_REPLICAS)
        isr_nodes: list[int] = array("int32", most=MOST_REPLICAS)
        offline_replicas: list[int] = array("int32", "5+", ignorable=True, most=MOST_REPLICAS)

    class MetadataResponseTopic(Struct):
        error_code: int = int16()
        name: str | None = string(nullable="12+")
        topic_id: UUID = uuid("10+", ignorable=True)
        is_internal: bool = boolean("1+", ignorable=True)
        partitions: list[MetadataResponse.MetadataResponsePartition] = array(
            "MetadataResponsePartition", most=MOST_PARTITIONS
        )
        topic_authorized_operations: int = int32("8+", default=-2147483648)

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponse.MetadataResponseBroker] = array(
        "MetadataResponseBroker", most=MOST_BROKERS
    )
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponse.MetadataResponseTopic] = array("MetadataResponseTopic", most=MOST_TOPICS)
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+", ignorable=True)


class MetadataRequest(
    Message, api_key=ApiKey.METADATA, versions=(0, 13), flexible_from=9, response=MetadataResponse
):
    """Asks for the brokers, and for topics with their leaders. None, or an empty list in version 0, means all topics.

    4: allow_auto_topic_creation. 8: authorized operations (KIP-430). 12: topics by id (KIP-516).
    """

    class MetadataRequestTopic(Struct):
        topic_id: UUID = uuid("10+", ignorable=True)
        name: str | None = string(nullable="10+")

    topics: list[MetadataRequest.MetadataRequestTopic] | None = array("MetadataRequestTopic", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class FindCoordinatorResponse(Message, api_key=ApiKey.FIND_COORDINATOR, versions=(0, 6), flexible_from=3):
    """Up to version 3, one coordinator in top-level fields; from version 4, a list with a coordinator for each key."""

    class Coordinator(Struct):
        key: str = string()
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        error_code: int = int16()
        error_message: str | None = string(nullable="0+")

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[FindCoordinatorResponse.Coordinator] = array("Coordinator", "4+", most=MOST_TOPICS)


class FindCoordinatorRequest(
    Message,
    api_key=ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    flexible_from=3,
    response=FindCoordinatorResponse,
):
    """Asks for the coordinator of a group (key_type 0) or of a transactional id (1).

    4: several keys in one request (KIP-699). 5: TRANSACTION_ABORTABLE (KIP-890). 6: share groups (KIP-932).
    """

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array("string", "4+")


class CreateTopicsResponse(Message, api_key=ApiKey.CREATE_TOPICS, versions=(2, 7), flexible_from=5):
    """The result for each new topic. 5: partitions, replication factor and configs (KIP-525). 7: topic id."""

    class CreatableTopicConfigs(Struct):
        name: str = string()
        value: str | None = string(nullable="0+")
        read_only: bool = boolean()
        config_source: int = int8(default=-1)
        is_sensitive: bool = boolean()

    class CreatableTopicResult(Struct):
        name: str = string()
        topic_id: UUID = uuid("7+", ignorable=True)
        error_code: int = int16()
        error_message: str | None = string(nullable="0+")
        topic_config_error_code: int = int16("5+", tag=0, ignorable=True)
        num_partitions: int = int32("5+", default=-1, ignorable=True)
        replication_factor: int = int16("5+", default=-1, ignorable=True)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = array(
            "CreatableTopicConfigs", "5+", nullable="5+", ignorable=True
        )

    throttle_time_ms: int = int32()
    topics: list[CreateTopicsResponse.CreatableTopicResult] = array("CreatableTopicResult")


class CreateTopicsRequest(
    Message, api_key=ApiKey.CREATE_TOPICS, versions=(2, 7), flexible_from=5, response=CreateTopicsResponse
):
    """Creates topics. 5: -1 for partitions or replication factor means the broker's default. 6: quotas (KIP-599)."""

    class CreatableReplicaAssignment(Struct):
        partition_index: int = int32()
        broker_ids: list[int] = array("int32")

    class CreatableTopicConfig(Struct):
        name: str = string()
        value: str | None = string(nullable="0+")

    class CreatableTopic(Struct):
        name: str = string()
        num_partitions: int = int32()
        replication_factor: int = int16()
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = array(
            "CreatableReplicaAssignment"
        )
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = array("CreatableTopicConfig")

    topics: list[CreateTopicsRequest.CreatableTopic] = array("CreatableTopic")
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()
