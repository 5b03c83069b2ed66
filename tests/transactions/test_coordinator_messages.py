"""The coordinator's requests about offsets, and the most severe error code of an answer."""

from __future__ import annotations

import pytest

from aioproducer.errors import KafkaError, MissingPartitionError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    AddPartitionsToTxnResponse,
    OffsetFetchResponse,
    TxnOffsetCommitResponse,
)
from aioproducer.records.idempotence import ProducerIdentity
from aioproducer.transactions.coordinator_messages import (
    check_is_not_overtaken,
    committed_offsets,
    offset_commit,
    offset_fetch,
    worst_of_fetched,
    worst_of_offsets,
    worst_of_partitions,
)
from aioproducer.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def fetched(codes: dict[TopicPartition, int], error_code: int = 0) -> OffsetFetchResponse:
    topics: dict[str, OffsetFetchResponse.OffsetFetchResponseTopic] = {}
    for (topic, partition), code in codes.items():
        if topic not in topics:
            topics[topic] = OffsetFetchResponse.OffsetFetchResponseTopic(name=topic)
        topics[topic].partitions.append(
            OffsetFetchResponse.OffsetFetchResponsePartition(
                partition_index=partition,
                committed_offset=-1 if partition else 7,
                committed_leader_epoch=3,
                metadata=None,
                error_code=code,
            )
        )
    return OffsetFetchResponse(topics=list(topics.values()), error_code=error_code)


def joined(codes: dict[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                name=topic,
                results_by_partition=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition_index=partition, partition_error_code=code
                    )
                ],
            )
            for (topic, partition), code in codes.items()
        ]
    )


def committed(codes: dict[TopicPartition, int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition, error_code=code
                    )
                ],
            )
            for (topic, partition), code in codes.items()
        ]
    )


def test_offset_commit_groups_partitions_by_topic():
    offsets = {B0: OffsetAndMetadata(1), A1: OffsetAndMetadata(2, "m", 5), A0: OffsetAndMetadata(3)}

    request = offset_commit(
        "tx", ProducerIdentity(7, 2, True), offsets, ConsumerGroupMetadata("g", 3, "member", "instance")
    )

    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("tx", 7, 2)
    assert (request.group_id, request.generation_id) == ("g", 3)
    assert (request.member_id, request.group_instance_id) == ("member", "instance")
    found = {
        (topic.name, one.partition_index): (
            one.committed_offset,
            one.committed_metadata,
            one.committed_leader_epoch,
        )
        for topic in request.topics
        for one in topic.partitions
    }
    assert found == {("a", 0): (3, "", -1), ("a", 1): (2, "m", 5), ("b", 0): (1, "", -1)}
    assert [topic.name for topic in request.topics] == ["a", "b"]


def test_offset_fetch_names_each_partition_and_requests_stable_offsets():
    request = offset_fetch("g", [A0, B0, A1])

    assert request.require_stable
    assert {topic.name: topic.partition_indexes for topic in request.topics} == {"a": [0, 1], "b": [0]}


def test_offset_0_is_an_offset():
    answer = fetched({A0: 0})
    answer.topics[0].partitions[0].committed_offset = 0
    assert committed_offsets(answer) == {A0: OffsetAndMetadata(0, "", 3)}


def test_a_partition_without_a_committed_offset_has_none():
    assert committed_offsets(fetched({A0: 0, A1: 0})) == {A0: OffsetAndMetadata(7, "", 3), A1: None}


def test_most_severe_code_decides():
    retried, final = ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED

    assert worst_of_fetched([A0, B0], fetched({A0: 0, B0: 0})) == 0
    assert worst_of_fetched([A0, B0], fetched({A0: retried, B0: 0})) == retried
    assert worst_of_fetched([A0, B0], fetched({A0: final, B0: retried})) == final
    assert worst_of_fetched([A0], fetched({}, error_code=final)) == final, "the code of the whole answer"


@pytest.mark.parametrize(
    ("worst", "answer", "milder", "graver"),
    [
        # If one partition is rejected, the others are merely not attempted.
        (
            worst_of_partitions,
            joined,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ),
        (worst_of_partitions, joined, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (worst_of_partitions, joined, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR),
        (worst_of_partitions, joined, ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_TXN_STATE),
        (worst_of_partitions, joined, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.PRODUCER_FENCED),
        (worst_of_offsets, committed, ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (worst_of_offsets, committed, ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR),
        (worst_of_offsets, committed, ErrorCode.NOT_COORDINATOR, ErrorCode.ILLEGAL_GENERATION),
        (worst_of_offsets, committed, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.PRODUCER_FENCED),
        (worst_of_fetched, fetched, ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR),
        (worst_of_fetched, fetched, ErrorCode.NOT_COORDINATOR, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_the_more_severe_of_two_codes_decides_in_either_order(worst, answer, milder, graver):
    assert worst([A0, B0], answer({A0: milder, B0: graver})) == graver
    assert worst([A0, B0], answer({A0: graver, B0: milder})) == graver


def test_an_offset_has_the_metadata_that_was_committed():
    answer = fetched({A0: 0})
    answer.topics[0].partitions[0].metadata = "note"
    assert committed_offsets(answer) == {A0: OffsetAndMetadata(7, "note", 3)}


def test_answer_without_a_partition_of_the_request_is_an_error():
    with pytest.raises(MissingPartitionError, match="left b-0 out of its answer"):
        worst_of_fetched([A0, B0], fetched({A0: 0}))


def test_offset_in_doubt_may_be_sent_again_but_not_replaced():
    doubtful = {A0: OffsetAndMetadata(5)}

    check_is_not_overtaken({A0: OffsetAndMetadata(5), B0: OffsetAndMetadata(9)}, "g", doubtful)
    with pytest.raises(KafkaError, match=r"the offset 5 of a-0 .* could replace the offset 6"):
        check_is_not_overtaken({A0: OffsetAndMetadata(6)}, "g", doubtful)
