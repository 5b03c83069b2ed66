"""The handler function for each API, and the topics that a request names.

The handlers are in `produce_handler`, `metadata_handlers`, `consumers` (reading), `transaction_requests`,
`group_requests`, `offset_requests`, `telemetry_requests` and `sasl_requests`. `connections` calls them, one request
at a time on each connection. A handler changes the cluster's state and returns the response, or None if the
request gets no response; it never uses a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import (
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    DescribeProducersRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded.cluster_state import ClusterState
from aioproducer.testing.embedded.consumers import describe_producers, fetch, list_offsets
from aioproducer.testing.embedded.faults import Target
from aioproducer.testing.embedded.group_requests import heartbeat, join_group, leave_group, sync_group
from aioproducer.testing.embedded.metadata_handlers import (
    api_versions,
    create_topics,
    find_coordinator,
    metadata,
)
from aioproducer.testing.embedded.offset_requests import offset_commit, offset_fetch, txn_offset_commit
from aioproducer.testing.embedded.produce_handler import produce
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.sasl_requests import sasl_authenticate, sasl_handshake
from aioproducer.testing.embedded.telemetry_requests import get_telemetry_subscriptions, push_telemetry
from aioproducer.testing.embedded.transaction_requests import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
)

Handler: TypeAlias = Callable[[RequestContext, Any], Coroutine[Any, Any, Message | None]]


HANDLERS: dict[int, Handler] = {
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.METADATA: metadata,
    ApiKey.PRODUCE: produce,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.END_TXN: end_txn,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.SASL_HANDSHAKE: sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: get_telemetry_subscriptions,
    ApiKey.PUSH_TELEMETRY: push_telemetry,
}


def targets(cluster: ClusterState, message: Message) -> list[Target]:
    """Return the topics and partitions that a request names."""
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
    if isinstance(message, DescribeProducersRequest):
        return [(topic.name, index) for topic in message.topics for index in topic.partition_indexes]
    if isinstance(message, MetadataRequest):
        names = cluster.topics if message.topics is None else [topic.name or "" for topic in message.topics]
        return [(name, None) for name in names]
    if isinstance(message, CreateTopicsRequest):
        return [(topic.name, None) for topic in message.topics]
    if isinstance(message, AddPartitionsToTxnRequest):
        return [(topic.name, index) for topic in message.v3_and_below_topics for index in topic.partitions]
    if isinstance(message, TxnOffsetCommitRequest | OffsetCommitRequest):
        return [(topic.name, part.partition_index) for topic in message.topics for part in topic.partitions]
    if isinstance(message, OffsetFetchRequest):
        topics = [
            *(message.topics or ()),
            *(topic for group in message.groups for topic in group.topics or ()),
        ]
        return [(topic.name, index) for topic in topics for index in topic.partition_indexes]
    return []
