"""The handlers for requests about the contents of logs: Fetch, ListOffsets and DescribeProducers.

The group coordinator's requests are in `group_requests` and `offset_requests`.
"""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from aioproducer.protocol.recordbatch import Record
from aioproducer.testing.embedded.authorizer import Operation, ResourceType
from aioproducer.testing.embedded.request_context import RequestContext
from aioproducer.testing.embedded.topics import NO_EPOCH, NO_OFFSET, Partition, wait_until

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3

READ_COMMITTED = 1
"""The isolation level of consumers that see neither open nor aborted transactions."""


async def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse:
    """Handle Fetch. Version 4: isolation level. 5: log start offset. 7: sessions, which are never granted, so every
    request is a full one. 9: leader epochs. 12: the last version with topic names.

    The handler waits up to max_wait_ms for min_bytes. It does not poll, because appends wake it.
    """
    reading = _Reading(context, request)
    await wait_until(reading.partitions(), reading.suffices, request.max_wait_ms / 1000)
    return reading.response


class _Reading:
    """One Fetch request. Its partitions are read again after every change, until there is enough data."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self.context = context
        self.request = request
        self.response = FetchResponse()
        self.size = 0

    def partitions(self) -> list[Partition]:
        """Return the partitions to wait for."""
        found = [
            self.context.cluster.find_partition(topic.topic, wanted.partition)
            for topic in self.request.topics
            for wanted in topic.partitions
        ]
        return [partition for partition in found if partition is not None]

    def suffices(self) -> bool:
        """Read the requested partitions; return True if the response can be sent now."""
        self.response = FetchResponse()
        self.size = 0
        failed = False
        for topic in self.request.topics:
            answers = []
            for wanted in topic.partitions:
                if not self.context.omits(topic.topic, wanted.partition):
                    answer = self._read(topic.topic, wanted)
                    failed = failed or answer.error_code != ErrorCode.NONE
                    answers.append(answer)
            self.response.responses.append(
                FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=answers)
            )
        return failed or self.size >= self.request.min_bytes or not self.response.responses

    def _read(self, topic: str, wanted: FetchRequest.FetchPartition) -> FetchResponse.PartitionData:
        answer = FetchResponse.PartitionData(
            partition_index=wanted.partition, high_watermark=NO_OFFSET, records=b""
        )
        partition = self.context.cluster.find_partition(topic, wanted.partition)
        error = _not_readable(
            self.context, Operation.READ, topic, wanted.partition, wanted.current_leader_epoch
        )
        if error is not None or partition is None:
            answer.error_code = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        log = partition.log
        if not log.start_offset <= wanted.fetch_offset <= log.end_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        stable = partition.last_stable_offset
        is_committed = self.request.isolation_level == READ_COMMITTED
        batches = log.read(
            wanted.fetch_offset,
            min(wanted.partition_max_bytes, self.request.max_bytes - self.size),
            before=stable if is_committed else partition.high_watermark,
            at_least_one=self.size == 0,
        )
        self.size += sum(map(len, batches))
        answer.high_watermark = partition.high_watermark
        answer.last_stable_offset = stable
        answer.log_start_offset = log.start_offset
        answer.aborted_transactions = None
        if is_committed:
            answer.aborted_transactions = [
                FetchResponse.AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
                for one in log.transactions.aborted_between(wanted.fetch_offset, stable)
            ]
        answer.records = batches or b""
        return answer


def _not_readable(
    context: RequestContext, operation: Operation, topic: str, index: int, leader_epoch: int
) -> ErrorCode | None:
    """Return the error if this client can't read the partition from this broker; None if it can."""
    error = context.refusal(topic, index) or context.denied(operation, ResourceType.TOPIC, topic)
    partition = context.cluster.find_partition(topic, index)
    if error is not None:
        return error
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.leader != context.node:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if NO_EPOCH < leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader_epoch > partition.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return None


async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Handle ListOffsets. Version 1: one offset, with its timestamp. 2: isolation level. 4: leader epochs. 7: timestamp
    -3 for the newest record (KIP-734)."""
    response = ListOffsetsResponse()
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            answer = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            error = _not_readable(
                context, Operation.DESCRIBE, topic.name, wanted.partition_index, wanted.current_leader_epoch
            )
            partition = context.cluster.find_partition(topic.name, wanted.partition_index)
            if error is not None or partition is None:
                answer.error_code = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                is_committed = request.isolation_level == READ_COMMITTED
                before = partition.last_stable_offset if is_committed else partition.high_watermark
                answer.offset, answer.timestamp = _offset_at(partition, wanted.timestamp, before)
                if context.version >= 4 and answer.offset != NO_OFFSET:
                    epoch = partition.log.epoch_at(answer.offset)
                    answer.leader_epoch = partition.leader_epoch if epoch is None else epoch
            if not context.omits(topic.name, wanted.partition_index):
                answers.append(answer)
        response.topics.append(
            ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers)
        )
    return response


def _offset_at(partition: Partition, timestamp: int, before: int) -> tuple[int, int]:
    """Return the offset and timestamp of the record that a ListOffsets request asks for; -1 and -1 if there is none."""
    if timestamp == LATEST_TIMESTAMP:
        return before, -1
    if timestamp == EARLIEST_TIMESTAMP:
        return partition.log.start_offset, -1
    record: Record | None
    if timestamp == MAX_TIMESTAMP:
        record = partition.log.newest()
    else:
        record = partition.log.first_since(timestamp)
    if record is None or record.offset >= before:
        return NO_OFFSET, -1
    return record.offset, record.timestamp


async def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Handle DescribeProducers: the state of the producers that each log remembers, even if no transaction is open."""
    response = DescribeProducersResponse()
    for topic in request.topics:
        answers = []
        for index in topic.partition_indexes:
            answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
            error = _not_readable(context, Operation.READ, topic.name, index, NO_EPOCH)
            partition = context.cluster.find_partition(topic.name, index)
            if error is not None or partition is None:
                answer.error_code = error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                answer.active_producers = [
                    _state_of(partition, producer_id) for producer_id in sorted(partition.log.producers)
                ]
            answers.append(answer)
        response.topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=answers))
    return response


def _state_of(partition: Partition, producer_id: int) -> DescribeProducersResponse.ProducerState:
    state = partition.log.producers[producer_id]
    last = state.batches[-1] if state.batches else None
    open_since = partition.log.transactions.first_offset(producer_id)
    return DescribeProducersResponse.ProducerState(
        producer_id=producer_id,
        producer_epoch=state.epoch,
        last_sequence=-1 if last is None else last.last_sequence,
        last_timestamp=-1 if last is None else last.max_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=NO_OFFSET if open_since is None else open_since,
    )
