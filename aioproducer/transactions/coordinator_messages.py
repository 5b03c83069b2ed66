"""Builds requests about partitions and offsets for a coordinator, and finds the decisive error code in a response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aioproducer.errors import KafkaError, MissingPartitionError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from aioproducer.protocol.outcomes import Action, decide
from aioproducer.records.idempotence import ProducerIdentity
from aioproducer.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def check_is_not_overtaken(offsets: Offsets, group_id: str, doubtful: Offsets) -> None:
    """Raise KafkaError if an earlier request in the same transaction could be carried out late and overwrite one of
    these offsets."""
    for (topic, partition), offset in offsets.items():
        before = doubtful.get(TopicPartition(topic, partition), offset)
        if before != offset:
            raise KafkaError(
                f"the offset {before.offset} of {topic}-{partition} was sent more than once for group "
                f"{group_id!r} because an answer was lost; a delayed attempt could replace the offset {offset.offset}"
            )


def partitions_to_add(
    transactional_id: str, identity: ProducerIdentity, places: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Return the request that adds partitions to the transaction (v1)."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


def offset_commit(
    transactional_id: str,
    identity: ProducerIdentity,
    offsets: Offsets,
    group: ConsumerGroupMetadata,
) -> TxnOffsetCommitRequest:
    """Return the request that adds a group's offsets to the transaction."""
    topics: dict[str, TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        if topic not in topics:
            topics[topic] = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic)
        topics[topic].partitions.append(
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=list(topics.values()),
    )


def offset_fetch(group_id: str, places: Iterable[TopicPartition]) -> OffsetFetchRequest:
    """Return a request for a group's offsets that fails as long as an open transaction could change them.

    The request names the partitions, since a request for all partitions returns none while the group's first offset
    is pending.
    """
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return OffsetFetchRequest(
        group_id=group_id,
        topics=[
            OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)
            for topic, numbers in topics.items()
        ],
        require_stable=True,
    )


def committed_offsets(answer: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the offsets in an OffsetFetch response, with None for a partition without an offset."""
    return {
        TopicPartition(topic.name, partition.partition_index): (
            None
            if partition.committed_offset < 0
            else OffsetAndMetadata(
                partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
            )
        )
        for topic in answer.topics
        for partition in topic.partitions
    }


def worst_of_partitions(asked: Iterable[TopicPartition], response: AddPartitionsToTxnResponse) -> int:
    """Return the most severe error code in an AddPartitionsToTxn response; `asked` lists the requested partitions."""
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    }
    return _worst(ApiKey.ADD_PARTITIONS_TO_TXN, asked, codes)


def worst_of_offsets(asked: Iterable[TopicPartition], response: TxnOffsetCommitResponse) -> int:
    """Return the most severe error code in a TxnOffsetCommit response; `asked` lists the requested partitions."""
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    return _worst(ApiKey.TXN_OFFSET_COMMIT, asked, codes)


def worst_of_fetched(asked: Iterable[TopicPartition], response: OffsetFetchResponse) -> int:
    """Return the most severe error code in an OffsetFetch response; `asked` lists the requested partitions."""
    if response.error_code:
        return response.error_code
    codes = {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    return _worst(ApiKey.OFFSET_FETCH, asked, codes)


_SEVERITY = (Action.SUCCEED, Action.RETRY, Action.COORDINATOR, Action.ABORT, Action.FAIL, Action.REINIT)


def _worst(api: ApiKey, asked: Iterable[TopicPartition], codes: Mapping[TopicPartition, int]) -> int:
    """Return the most severe code, which is the result of the request. `asked` names at least one partition.

    Other codes may be mere consequences: OPERATION_NOT_ATTEMPTED says that another partition was rejected.

    Raises:
        MissingPartitionError: the response leaves out a partition that was in the request.
    """
    missing = [place for place in asked if place not in codes]
    if missing:
        topic, partition = missing[0]
        raise MissingPartitionError(f"the coordinator left {topic}-{partition} out of its answer")
    return max(codes.values(), key=lambda code: _SEVERITY.index(decide(api, code).action))
