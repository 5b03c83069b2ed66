"""A Kafka client under the full control of a test: one frame out, one frame in."""

from __future__ import annotations

import asyncio

from aioproducer.protocol.api import decode_response, encode_request
from aioproducer.protocol.messages import (
    InitProducerIdRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from aioproducer.protocol.schema import Message
from aioproducer.testing import EmbeddedCluster
from tests.support.oracle import OracleRecord, encode_batch

TIMEOUT = 10.0  # seconds; long, because a slow machine is not a failure
NOW = 1_700_000_000_000


def address(cluster: EmbeddedCluster, node: int = 0) -> str:
    """The address of a broker, host:port."""
    return f"{cluster.nodes[node].host}:{cluster.nodes[node].port}"


class RawClient:
    """One connection."""

    client_id = "raw"

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._correlation_id = 0

    async def __aenter__(self) -> RawClient:
        self.reader, self.writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

    async def ask(self, request: Message, version: int) -> Message:
        """Send a request and wait for the response."""
        correlation_id = self.send(request, version)
        return await self.answer(request, version, correlation_id)

    def send(self, request: Message, version: int) -> int:
        self._correlation_id += 1
        self.writer.writelines(encode_request(request, version, self._correlation_id, self.client_id))
        return self._correlation_id

    async def answer(self, request: Message, version: int, correlation_id: int) -> Message:
        frame = await self.frame()
        return decode_response(type(request).Response, version, frame, correlation_id)

    async def frame(self) -> bytes:
        async with asyncio.timeout(TIMEOUT):
            return await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))

    async def is_closed(self) -> bool:
        """Wait for the next byte; True if the broker has closed the connection instead of sending one."""
        try:
            async with asyncio.timeout(TIMEOUT):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def produce(
        self, batch: bytes, topic: str = "t", partition: int = 0, version: int = 12, acks: int = -1
    ) -> ProduceResponse.PartitionProduceResponse:
        """Send one batch and return the broker's answer for its partition."""
        response = await self.ask(produce_request({(topic, partition): batch}, acks=acks), version)
        assert isinstance(response, ProduceResponse)
        return response.responses[0].partition_responses[0]

    async def metadata(
        self, *topics: str, version: int = 12, allow_auto_topic_creation: bool = True
    ) -> MetadataResponse:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=allow_auto_topic_creation,
        )
        response = await self.ask(request, version)
        assert isinstance(response, MetadataResponse)
        return response

    async def init_producer_id(self) -> Message:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        return await self.ask(request, 5)


def produce_request(
    batches: dict[tuple[str, int], bytes], *, acks: int = -1, timeout_ms: int = 30_000
) -> ProduceRequest:
    """A Produce request with one batch for each partition."""
    topics: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
    for (topic, partition), batch in batches.items():
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        topics.setdefault(topic, []).append(data)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(name=topic, partition_data=data) for topic, data in topics.items()
        ],
    )


def batch_of(
    *values: bytes, sequence: int = -1, producer_id: int = -1, epoch: int = 0, timestamp: int = NOW
) -> bytes:
    """A batch of records without keys; with a sequence, the batch of an idempotent producer."""
    return encode_batch(
        [OracleRecord(timestamp + index, None, value) for index, value in enumerate(values)],
        producer_id=7 if sequence >= 0 and producer_id < 0 else producer_id,
        producer_epoch=epoch if sequence >= 0 else -1,
        base_sequence=sequence,
    )
