"""The raw client of the conformance cases. It knows the topic of its case and the release of the broker."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from aioproducer.protocol.recordbatch import BatchHeader, read_header
from aioproducer.protocol.schema import Message
from tests.support.raw_client import RawClient
from tests.support.record_batches import split_batches

T = TypeVar("T")
PartitionAnswer = ProduceResponse.PartitionProduceResponse


class Outcome(NamedTuple):
    """The answer for a partition in a Produce response, without its error texts."""

    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


def appended(base_offset: int, *, log_append_time: int = -1) -> Outcome:
    """The outcome of a batch that is in the log, or already was."""
    return Outcome(ErrorCode.NONE, base_offset, log_append_time, 0)


def refused(code: ErrorCode, *, log_start: int = -1) -> Outcome:
    """The outcome of a batch that is not in the log. For unusual errors, Kafka also returns the log start."""
    return Outcome(code, -1, -1, log_start)


def outcome(answer: PartitionAnswer) -> Outcome:
    """The part of an answer that is compared with `appended` or `refused`."""
    return Outcome(
        ErrorCode(answer.error_code), answer.base_offset, answer.log_append_time_ms, answer.log_start_offset
    )


class Client(RawClient):
    """A connection for one case."""

    def __init__(self, servers: str, release: str, topic: str, topic_id: uuid.UUID) -> None:
        super().__init__(servers)
        self.servers = servers
        self.release = release
        self.topic = topic
        self.topic_id = topic_id
        self.client_id = topic or "conformance"

    def another(self) -> Client:
        """A second connection."""
        return Client(self.servers, self.release, self.topic, self.topic_id)

    def expected(self, by_release: Mapping[str, T]) -> T:
        """The value for the broker's release."""
        return by_release[self.release]

    # Produce

    @property
    def newest_produce(self) -> int:
        """The highest Produce version that the release supports."""
        return self.expected({"3.9": 11, "4.3": 13})

    def produce_request(
        self, batches: Iterable[tuple[int, bytes | None]], *, acks: int = -1, timeout_ms: int = 30_000
    ) -> ProduceRequest:
        """A Produce request, for any version, with partitions of the case's topic."""
        data = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index, batch in batches]
        return ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(name=self.topic, topic_id=self.topic_id, partition_data=data)
            ],
        )

    async def produce(
        self,
        batch: bytes | None,
        partition: int = 0,
        *,
        version: int | None = None,
        acks: int = -1,
        timeout_ms: int = 30_000,
    ) -> PartitionAnswer:
        """Send one batch and return the broker's answer."""
        request = self.produce_request([(partition, batch)], acks=acks, timeout_ms=timeout_ms)
        answers = await self.answers(request, version)
        assert list(answers) == [partition]
        return answers[partition]

    async def outcomes(self, *batches: bytes) -> list[Outcome]:
        """Send batches to partition 0 one after the other, and return their outcomes."""
        return [outcome(await self.produce(batch)) for batch in batches]

    async def refuses(self, batch: bytes, code: ErrorCode, *, log_start: int = -1) -> None:
        """Assert that a batch is rejected, and that the log stays empty."""
        assert outcome(await self.produce(batch)) == refused(code, log_start=log_start)
        assert await self.end_offset() == 0

    async def answers(
        self, request: ProduceRequest, version: int | None = None
    ) -> dict[int, PartitionAnswer]:
        """Send a request for one topic and return the answers by partition."""
        response = await self.ask(request, version or self.newest_produce)
        (topic,) = response.responses
        return {answer.index: answer for answer in topic.partition_responses}

    async def producer_id(self) -> int:
        """Get a new producer id."""
        return (await self.init_producer_id()).producer_id

    async def init_producer_id(
        self, transactional_id: str | None = None, producer_id: int = -1, epoch: int = -1, version: int = 4
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        # A new broker must first get a block of producer ids from the controller.
        while (response := await self.ask(request, version)).error_code == (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ):
            pass
        return response

    # The log

    async def offset_at(
        self, timestamp: int, partition: int = 0, *, version: int = 7, epoch: int = -1
    ) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
        wanted = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name=self.topic, partitions=[wanted])
        response = await self.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), version)
        return response.topics[0].partitions[0]

    async def end_offset(self, partition: int = 0) -> int:
        """The offset that the next record will get."""
        answer = await self.offset_at(-1, partition)
        assert answer.error_code == ErrorCode.NONE
        return answer.offset

    async def fetch(
        self,
        offset: int = 0,
        partition: int = 0,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50_000_000,
        partition_max_bytes: int = 50_000_000,
        epoch: int = -1,
        version: int = 12,
    ) -> FetchResponse.PartitionData:
        """Fetch from a partition of the case's topic."""
        wanted = FetchRequest.FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=epoch,
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=[FetchRequest.FetchTopic(topic=self.topic, partitions=[wanted])],
        )
        response = await self.ask(request, version)
        assert response.error_code == ErrorCode.NONE
        return response.responses[0].partitions[0]

    async def batches(self, partition: int = 0) -> list[bytes]:
        """The batches of the log as they are stored."""
        answer = await self.fetch(partition=partition)
        assert answer.error_code == ErrorCode.NONE
        assert not isinstance(answer.records, list)
        return [bytes(batch) for batch in split_batches(answer.records or b"")]

    async def headers(self, partition: int = 0) -> list[BatchHeader]:
        """The headers of the batches in the log."""
        return [read_header(batch) for batch in await self.batches(partition)]

    # Metadata

    async def describe(
        self,
        *names: str | None,
        ids: Iterable[uuid.UUID] = (),
        version: int = 12,
        allow_auto_topic_creation: bool = False,
    ) -> MetadataResponse:
        """Request the metadata of topics by name or by id."""
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        topics += [MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=allow_auto_topic_creation)
        return await self.ask(request, version)

    # Frames

    def send_body(self, api_key: int, version: int, body: bytes) -> int:
        """Send a request that is not among the declared messages, with a header without tags."""
        self._correlation_id += 1
        client_id = self.client_id.encode()
        header = struct.pack(
            f">hhih{len(client_id)}s", api_key, version, self._correlation_id, len(client_id), client_id
        )
        self.writer.write(struct.pack(">i", len(header) + len(body)) + header + body)
        return self._correlation_id

    async def still_answers(self) -> bool:
        """Return whether the broker answers another request on this connection."""
        response: Message = await self.describe(version=9)
        return bool(response.brokers)
