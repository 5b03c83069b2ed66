"""Messages that contain record batches or offsets.

The producer sends only Produce; the others are for the embedded broker, and for tests that read records back.
"""

from __future__ import annotations

from uuid import UUID

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.messages_metadata import MOST_BROKERS, MOST_PARTITIONS, MOST_TOPICS
from aioproducer.protocol.primitives import Records
from aioproducer.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    record_batches,
    string,
    struct,
    uuid,
)

MOST_RECORDS = 1_000_000
"""The maximum number of record errors for a batch. A batch with that many records is at least 7 MB in size;
the default limit is 256 KiB."""


class ProduceResponse(Message, api_key=ApiKey.PRODUCE, versions=(3, 13), flexible_from=9):
    """The offset of each batch, or its error.

    5: log_start_offset. 6: the broker throttles after its response (KIP-219). 8: record_errors, error_message.
    10: the new leader and its address, with NOT_LEADER_OR_FOLLOWER.
    """

    class BatchIndexAndErrorMessage(Struct):
        batch_index: int = int32()
        batch_index_error_message: str | None = string(nullable="0+", default=None)

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32(default=-1)
        leader_epoch: int = int32(default=-1)

    class PartitionProduceResponse(Struct):
        index: int = int32()
        error_code: int = int16()
        base_offset: int = int64()
        log_append_time_ms: int = int64(default=-1)
        log_start_offset: int = int64("5+", default=-1, ignorable=True)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = array(
            "BatchIndexAndErrorMessage", "8+", ignorable=True, most=MOST_RECORDS
        )
        error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
        current_leader: ProduceResponse.LeaderIdAndEpoch = struct("LeaderIdAndEpoch", "10+", tag=0)

    class TopicProduceResponse(Struct):
        name: str = string("0-12", ignorable=True)
        topic_id: UUID = uuid("13+", ignorable=True)
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = array(
            "PartitionProduceResponse", most=MOST_PARTITIONS
        )

    class NodeEndpoint(Struct):
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable="0+", default=None)

    responses: list[ProduceResponse.TopicProduceResponse] = array("TopicProduceResponse", most=MOST_TOPICS)
    throttle_time_ms: int = int32()
    node_endpoints: list[ProduceResponse.NodeEndpoint] = array(
        "NodeEndpoint", "10+", tag=0, most=MOST_BROKERS
    )


class ProduceRequest(
    Message, api_key=ApiKey.PRODUCE, versions=(3, 13), flexible_from=9, response=ProduceResponse
):
    """Appends batches, at most one per partition.

    3: record batch v2 (KIP-98). 7: zstd (KIP-110). 8: errors of individual records (KIP-467).
    10: new leaders (KIP-951). 11: TRANSACTION_ABORTABLE. 12: adds partitions to the transaction implicitly
    (KIP-890). 13: topic ids instead of names (KIP-516).
    """

    class PartitionProduceData(Struct):
        index: int = int32()
        records: Records = record_batches()

    class TopicProduceData(Struct):
        name: str = string("0-12", ignorable=True)
        topic_id: UUID = uuid("13+", ignorable=True)
        partition_data: list[ProduceRequest.PartitionProduceData] = array("PartitionProduceData")

    transactional_id: str | None = string(nullable="0+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[ProduceRequest.TopicProduceData] = array("TopicProduceData")


class FetchResponse(Message, api_key=ApiKey.FETCH, versions=(4, 13), flexible_from=12):
    """The batches of each partition.

    4: aborted transactions. 5: log_start_offset. 7: session. 11: preferred_read_replica. 12: diverging epoch,
    current leader.
    """

    class EpochEndOffset(Struct):
        epoch: int = int32(default=-1)
        end_offset: int = int64(default=-1)

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32(default=-1)
        leader_epoch: int = int32(default=-1)

    class SnapshotId(Struct):
        end_offset: int = int64(default=-1)
        epoch: int = int32(default=-1)

    class AbortedTransaction(Struct):
        producer_id: int = int64()
        first_offset: int = int64()

    class PartitionData(Struct):
        partition_index: int = int32()
        error_code: int = int16()
        high_watermark: int = int64()
        last_stable_offset: int = int64(default=-1)
        log_start_offset: int = int64("5+", default=-1, ignorable=True)
        diverging_epoch: FetchResponse.EpochEndOffset = struct("EpochEndOffset", "12+", tag=0)
        current_leader: FetchResponse.LeaderIdAndEpoch = struct("LeaderIdAndEpoch", "12+", tag=1)
        snapshot_id: FetchResponse.SnapshotId = struct("SnapshotId", "12+", tag=2)
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = array(
            "AbortedTransaction", nullable="0+"
        )
        preferred_read_replica: int = int32("11+", default=-1)
        records: Records = record_batches()

    class FetchableTopicResponse(Struct):
        topic: str = string("0-12", ignorable=True)
        topic_id: UUID = uuid("13+", ignorable=True)
        partitions: list[FetchResponse.PartitionData] = array("PartitionData")

    throttle_time_ms: int = int32()
    error_code: int = int16("7+", ignorable=True)
    session_id: int = int32("7+")
    responses: list[FetchResponse.FetchableTopicResponse] = array("FetchableTopicResponse")


class FetchRequest(Message, api_key=ApiKey.FETCH, versions=(4, 13), flexible_from=12, response=FetchResponse):
    """Reads batches from each partition, starting at a given offset.

    4: isolation level. 7: fetch sessions (KIP-227). 9: leader epoch (KIP-320). 11: rack (KIP-392).
    12: last fetched epoch (KIP-595). 13: topic ids (KIP-516).
    """

    class FetchPartition(Struct):
        partition: int = int32()
        current_leader_epoch: int = int32("9+", default=-1, ignorable=True)
        fetch_offset: int = int64()
        last_fetched_epoch: int = int32("12+", default=-1)
        log_start_offset: int = int64("5+", default=-1, ignorable=True)
        partition_max_bytes: int = int32()

    class FetchTopic(Struct):
        topic: str = string("0-12", ignorable=True)
        topic_id: UUID = uuid("13+", ignorable=True)
        partitions: list[FetchRequest.FetchPartition] = array("FetchPartition")

    class ForgottenTopic(Struct):
        topic: str = string("7-12", ignorable=True)
        topic_id: UUID = uuid("13+", ignorable=True)
        partitions: list[int] = array("int32")

    cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0, ignorable=True)
    replica_id: int = int32(default=-1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    isolation_level: int = int8()
    session_id: int = int32("7+", ignorable=True)
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[FetchRequest.FetchTopic] = array("FetchTopic")
    forgotten_topics_data: list[FetchRequest.ForgottenTopic] = array("ForgottenTopic", "7+")
    rack_id: str = string("11+", ignorable=True)


class ListOffsetsResponse(Message, api_key=ApiKey.LIST_OFFSETS, versions=(1, 7), flexible_from=6):
    """The offset and timestamp for each partition. 2: throttle time. 4: leader epoch."""

    class ListOffsetsPartitionResponse(Struct):
        partition_index: int = int32()
        error_code: int = int16()
        timestamp: int = int64(default=-1)
        offset: int = int64(default=-1)
        leader_epoch: int = int32("4+", default=-1)

    class ListOffsetsTopicResponse(Struct):
        name: str = string()
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = array(
            "ListOffsetsPartitionResponse"
        )

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = array("ListOffsetsTopicResponse")


class ListOffsetsRequest(
    Message, api_key=ApiKey.LIST_OFFSETS, versions=(1, 7), flexible_from=6, response=ListOffsetsResponse
):
    """Asks for the offset at a timestamp (-1 for the end, -2 for the start). 2: isolation level. 4: leader epoch.

    7: timestamp -3 for the record with the largest timestamp (KIP-734).
    """

    class ListOffsetsPartition(Struct):
        partition_index: int = int32()
        current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
        timestamp: int = int64()

    class ListOffsetsTopic(Struct):
        name: str = string()
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = array("ListOffsetsPartition")

    replica_id: int = int32()
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsRequest.ListOffsetsTopic] = array("ListOffsetsTopic")
