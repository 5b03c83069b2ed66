"""The topics and partitions that a request names, which select scripted faults."""

from __future__ import annotations

import uuid

import pytest

from aioproducer.protocol.messages import (
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded.handlers import targets
from tests.support.direct_calls import unstarted_cluster
from tests.support.raw_client import produce_request

_Group = OffsetFetchRequest.OffsetFetchRequestGroup
_GroupTopics = OffsetFetchRequest.OffsetFetchRequestTopics

# Requests about partitions 0 and 2 of topic t.
ABOUT_PARTITIONS: list[Message] = [
    produce_request({("t", 0): b"", ("t", 2): b""}),
    FetchRequest(
        topics=[
            FetchRequest.FetchTopic(
                topic="t", partitions=[FetchRequest.FetchPartition(partition=index) for index in (0, 2)]
            )
        ]
    ),
    ListOffsetsRequest(
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="t",
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index) for index in (0, 2)
                ],
            )
        ]
    ),
    AddPartitionsToTxnRequest(
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0, 2])]
    ),
    TxnOffsetCommitRequest(
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=index)
                    for index in (0, 2)
                ],
            )
        ]
    ),
    OffsetFetchRequest(
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 2])]
    ),
    OffsetFetchRequest(
        groups=[
            _Group(group_id="g", topics=[_GroupTopics(name="t", partition_indexes=[0])]),
            _Group(group_id="everything", topics=None),
            _Group(group_id="h", topics=[_GroupTopics(name="t", partition_indexes=[2])]),
        ]
    ),
]


@pytest.mark.parametrize("request_", ABOUT_PARTITIONS, ids=lambda request: type(request).__name__)
def test_a_request_about_partitions_names_each_of_them(request_):
    assert targets(unstarted_cluster({"t": 3}), request_) == [("t", 0), ("t", 2)]


def test_metadata_and_new_topics_are_about_whole_topics():
    cluster = unstarted_cluster({"t": 3, "u": 1})
    named = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="missing")])
    created = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="new")])

    assert targets(cluster, named) == [("missing", None)]
    assert targets(cluster, MetadataRequest(topics=None)) == [("t", None), ("u", None)]
    assert targets(cluster, MetadataRequest(topics=[])) == []
    assert targets(cluster, created) == [("new", None)]


def test_a_topic_id_is_translated_to_the_name_of_its_topic():
    cluster = unstarted_cluster({"t": 3})
    request = produce_request({("", 1): b""})
    assert isinstance(request, ProduceRequest)

    request.topic_data[0].topic_id = cluster.topics["t"].topic_id
    assert targets(cluster, request) == [("t", 1)]
    request.topic_data[0].topic_id = uuid.uuid4()
    assert targets(cluster, request) == [("", 1)]


def test_requests_without_topics_have_no_targets():
    assert targets(unstarted_cluster({"t": 3}), InitProducerIdRequest(transactional_id="t")) == []
