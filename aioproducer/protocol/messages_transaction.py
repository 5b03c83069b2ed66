"""Messages for idempotence and transactions, in the order in which a transaction sends them."""

from __future__ import annotations

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.messages_metadata import MOST_PARTITIONS, MOST_TOPICS
from aioproducer.protocol.schema import Message, Struct, array, boolean, int16, int32, int64, string

MOST_GROUPS = 1_000
"""The maximum number of groups in a response. A producer asks for one group at a time."""
MOST_PRODUCERS = 1_000_000
"""The maximum number of producers per partition. A broker remembers every producer that wrote in the last day, even
if only one record."""


class InitProducerIdResponse(Message, api_key=ApiKey.INIT_PRODUCER_ID, versions=(0, 5), flexible_from=2):
    """The producer id and its epoch."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()


class InitProducerIdRequest(
    Message,
    api_key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    flexible_from=2,
    response=InitProducerIdResponse,
):
    """Asks for a producer id; with a transactional id, it also fences older producers and ends their transactions.

    3: bumps the epoch of a producer id in use (KIP-360). 4: PRODUCER_FENCED (KIP-588).
    5: TRANSACTION_ABORTABLE.
    """

    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)


class AddPartitionsToTxnResponse(
    Message, api_key=ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 3), flexible_from=3
):
    """One error code for each partition. If any partition fails, none is added."""

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: int = int32()
        partition_error_code: int = int16()

    class AddPartitionsToTxnTopicResult(Struct):
        name: str = string()
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = array(
            "AddPartitionsToTxnPartitionResult", most=MOST_PARTITIONS
        )

    throttle_time_ms: int = int32()
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = array(
        "AddPartitionsToTxnTopicResult", most=MOST_TOPICS
    )


class AddPartitionsToTxnRequest(
    Message,
    api_key=ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 3),
    flexible_from=3,
    response=AddPartitionsToTxnResponse,
):
    """Names the partitions that the transaction is about to write to. Versions from 4 are used only between brokers."""

    class AddPartitionsToTxnTopic(Struct):
        name: str = string()
        partitions: list[int] = array("int32")

    v3_and_below_transactional_id: str = string()
    v3_and_below_producer_id: int = int64()
    v3_and_below_producer_epoch: int = int16()
    v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = array(
        "AddPartitionsToTxnTopic"
    )


class AddOffsetsToTxnResponse(Message, api_key=ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), flexible_from=3):
    """The error code. 2: PRODUCER_FENCED may replace INVALID_PRODUCER_EPOCH (KIP-588)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()


class AddOffsetsToTxnRequest(
    Message,
    api_key=ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    flexible_from=3,
    response=AddOffsetsToTxnResponse,
):
    """Names the group whose offsets the transaction is about to commit. 4: TRANSACTION_ABORTABLE."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class EndTxnResponse(Message, api_key=ApiKey.END_TXN, versions=(0, 5), flexible_from=3):
    """The error code. 5: producer id and epoch of the next transaction (KIP-890)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)


class EndTxnRequest(
    Message, api_key=ApiKey.END_TXN, versions=(0, 5), flexible_from=3, response=EndTxnResponse
):
    """Commits or aborts the transaction. 5: transactions v2, each of which ends with a new epoch (KIP-890)."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class TxnOffsetCommitResponse(Message, api_key=ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5), flexible_from=3):
    """One error code for each partition."""

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: int = int32()
        error_code: int = int16()

    class TxnOffsetCommitResponseTopic(Struct):
        name: str = string()
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = array(
            "TxnOffsetCommitResponsePartition", most=MOST_PARTITIONS
        )

    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = array(
        "TxnOffsetCommitResponseTopic", most=MOST_TOPICS
    )


class TxnOffsetCommitRequest(
    Message,
    api_key=ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    flexible_from=3,
    response=TxnOffsetCommitResponse,
):
    """Commits a group's offsets as part of a transaction. 2: leader epoch. 3: member, generation (KIP-447).

    5: adds the group to the transaction implicitly (KIP-890).
    """

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: int = int32()
        committed_offset: int = int64()
        committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
        committed_metadata: str | None = string(nullable="0+")

    class TxnOffsetCommitRequestTopic(Struct):
        name: str = string()
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = array(
            "TxnOffsetCommitRequestPartition"
        )

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = array("TxnOffsetCommitRequestTopic")


class OffsetFetchResponse(Message, api_key=ApiKey.OFFSET_FETCH, versions=(1, 8), flexible_from=6):
    """The committed offset of each partition.

    2: an error code for the whole group. 3: throttle time. 5: leader epoch. 8: a list with one element per group.
    """

    class OffsetFetchResponsePartition(Struct):
        partition_index: int = int32()
        committed_offset: int = int64()
        committed_leader_epoch: int = int32("5-7", default=-1, ignorable=True)
        metadata: str | None = string(nullable="0+")
        error_code: int = int16()

    class OffsetFetchResponseTopic(Struct):
        name: str = string()
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = array(
            "OffsetFetchResponsePartition", most=MOST_PARTITIONS
        )

    class OffsetFetchResponsePartitions(Struct):
        partition_index: int = int32()
        committed_offset: int = int64()
        committed_leader_epoch: int = int32(default=-1)
        metadata: str | None = string(nullable="0+")
        error_code: int = int16()

    class OffsetFetchResponseTopics(Struct):
        name: str = string()
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = array(
            "OffsetFetchResponsePartitions", most=MOST_PARTITIONS
        )

    class OffsetFetchResponseGroup(Struct):
        group_id: str = string()
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = array(
            "OffsetFetchResponseTopics", most=MOST_TOPICS
        )
        error_code: int = int16()

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = array(
        "OffsetFetchResponseTopic", "0-7", most=MOST_TOPICS
    )
    error_code: int = int16("2-7", ignorable=True)
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = array(
        "OffsetFetchResponseGroup", "8+", most=MOST_GROUPS
    )


class OffsetFetchRequest(
    Message, api_key=ApiKey.OFFSET_FETCH, versions=(1, 8), flexible_from=6, response=OffsetFetchResponse
):
    """Asks for the committed offsets of a group, in all topics if `topics` is None.

    7: require_stable waits for open transactions (KIP-447). 8: several groups in one request (KIP-709).
    """

    class OffsetFetchRequestTopic(Struct):
        name: str = string()
        partition_indexes: list[int] = array("int32")

    class OffsetFetchRequestTopics(Struct):
        name: str = string()
        partition_indexes: list[int] = array("int32")

    class OffsetFetchRequestGroup(Struct):
        group_id: str = string()
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = array(
            "OffsetFetchRequestTopics", nullable="0+"
        )

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = array(
        "OffsetFetchRequestTopic", "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = array("OffsetFetchRequestGroup", "8+")
    require_stable: bool = boolean("7+")


class DescribeProducersResponse(Message, api_key=ApiKey.DESCRIBE_PRODUCERS, versions=(0, 0), flexible_from=0):
    """The producers that the leader of each partition remembers."""

    class ProducerState(Struct):
        producer_id: int = int64()
        producer_epoch: int = int32()
        last_sequence: int = int32(default=-1)
        last_timestamp: int = int64(default=-1)
        coordinator_epoch: int = int32()
        current_txn_start_offset: int = int64(default=-1)

    class PartitionResponse(Struct):
        partition_index: int = int32()
        error_code: int = int16()
        error_message: str | None = string(nullable="0+", default=None)
        active_producers: list[DescribeProducersResponse.ProducerState] = array(
            "ProducerState", most=MOST_PRODUCERS
        )

    class TopicResponse(Struct):
        name: str = string()
        partitions: list[DescribeProducersResponse.PartitionResponse] = array(
            "PartitionResponse", most=MOST_PARTITIONS
        )

    throttle_time_ms: int = int32()
    topics: list[DescribeProducersResponse.TopicResponse] = array("TopicResponse", most=MOST_TOPICS)


class DescribeProducersRequest(
    Message,
    api_key=ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    flexible_from=0,
    response=DescribeProducersResponse,
):
    """Asks the leaders of partitions for the state of their producers (KIP-664)."""

    class TopicRequest(Struct):
        name: str = string()
        partition_indexes: list[int] = array("int32")

    topics: list[DescribeProducersRequest.TopicRequest] = array("TopicRequest")
