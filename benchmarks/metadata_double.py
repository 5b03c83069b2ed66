"""A test double for a very large cluster: one listener for each broker, and topics that store nothing.

    python benchmarks/metadata_double.py --brokers 1000 --topics 5000 --partitions 40

It prints the port of the first broker, then obeys commands, one per line: `move` gives every second partition another
leader, and `counts` prints what was received. Leaders acknowledge every batch; other brokers answer
NOT_LEADER_OR_FOLLOWER and name the leader (KIP-951)."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from aioproducer.protocol.api import CLIENT_VERSIONS, VersionRange, decode_request, encode_response
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from aioproducer.protocol.schema import Message

HOST = "127.0.0.1"
CLUSTER = "large"
REPLICAS = 3

PartitionMetadata = MetadataResponse.MetadataResponsePartition
TopicMetadata = MetadataResponse.MetadataResponseTopic


class LargeCluster:
    """The leaders and the end offsets of all partitions."""

    def __init__(self, brokers: int, topics: int, partitions: int) -> None:
        self.partitions = partitions
        self.names = [f"topic-{number}" for number in range(topics)]
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.ports = [0] * brokers
        self.leaders = [number % brokers for number in range(topics * partitions)]
        self.epochs = [0] * (topics * partitions)
        self.ends = [0] * (topics * partitions)
        self.produce_requests = 0
        self.rejected = 0
        self._frames: dict[tuple[int, tuple[str, ...] | None], bytes] = {}
        """Encoded metadata responses by version and topics (None for all), until leaders change."""

    def move(self) -> None:
        """Give every second partition another leader."""
        for number in range(0, len(self.leaders), 2):
            self.leaders[number] = (self.leaders[number] + 1) % len(self.ports)
            self.epochs[number] += 1
        self._frames.clear()

    def counts(self) -> dict[str, int]:
        return {
            "records": sum(self.ends),
            "produce_requests": self.produce_requests,
            "rejected_batches": self.rejected,
        }

    def metadata(self, request: MetadataRequest, version: int) -> bytes:
        """Return the encoded response without its length and correlation id."""
        names = None if request.topics is None else tuple(topic.name or "" for topic in request.topics)
        frame = self._frames.get((version, names))
        if frame is None:
            response = MetadataResponse(
                brokers=[
                    MetadataResponse.MetadataResponseBroker(node_id=node, host=HOST, port=port)
                    for node, port in enumerate(self.ports)
                ],
                cluster_id=CLUSTER,
                controller_id=0,
                topics=[self._topic(name) for name in (self.names if names is None else names)],
            )
            frame = b"".join(encode_response(response, version, 0))[8:]
            self._frames[version, names] = frame
        return frame

    def _topic(self, name: str) -> TopicMetadata:
        topic = self.numbers[name]
        first = topic * self.partitions
        partitions = []
        for index in range(self.partitions):
            leader = self.leaders[first + index]
            replicas = [(leader + more) % len(self.ports) for more in range(REPLICAS)]
            partitions.append(
                PartitionMetadata(
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=self.epochs[first + index],
                    replica_nodes=replicas,
                    isr_nodes=replicas,
                )
            )
        return TopicMetadata(name=name, topic_id=UUID(int=topic + 1), partitions=partitions)

    def produce(self, node: int, request: ProduceRequest) -> ProduceResponse:
        self.produce_requests += 1
        named: dict[int, ProduceResponse.NodeEndpoint] = {}
        responses = []
        for topic in request.topic_data:
            number = self.numbers[topic.name] if topic.name else topic.topic_id.int - 1
            answers = []
            for data in topic.partition_data:
                place = number * self.partitions + data.index
                leader = self.leaders[place]
                if leader == node:
                    count = int.from_bytes(data.records[57:61], "big")
                    answer = ProduceResponse.PartitionProduceResponse(
                        index=data.index,
                        base_offset=self.ends[place],
                        log_append_time_ms=-1,
                        log_start_offset=0,
                    )
                    self.ends[place] += count
                else:
                    self.rejected += 1
                    named[leader] = ProduceResponse.NodeEndpoint(
                        node_id=leader, host=HOST, port=self.ports[leader]
                    )
                    answer = ProduceResponse.PartitionProduceResponse(
                        index=data.index,
                        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        base_offset=-1,
                        current_leader=ProduceResponse.LeaderIdAndEpoch(
                            leader_id=leader, leader_epoch=self.epochs[place]
                        ),
                    )
                answers.append(answer)
            responses.append(
                ProduceResponse.TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=answers
                )
            )
        return ProduceResponse(responses=responses, node_endpoints=list(named.values()))

    def answer(self, node: int, frame: bytes) -> bytes:
        """Return the response to a request, with its length."""
        header, request = decode_request(frame, ignore_rest=True)
        if isinstance(request, MetadataRequest):
            body = self.metadata(request, header.version)
            return (len(body) + 4).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big") + body
        response: Message
        if isinstance(request, ApiVersionsRequest):
            response = ApiVersionsResponse(
                api_keys=[
                    ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in SPOKEN.items()
                ]
            )
        elif isinstance(request, InitProducerIdRequest):
            response = InitProducerIdResponse(producer_id=1, producer_epoch=0)
        elif isinstance(request, ProduceRequest):
            response = self.produce(node, request)
        else:
            raise AssertionError(f"the double does not answer {type(request).__name__}")
        return b"".join(encode_response(response, header.version, header.correlation_id))


SPOKEN = {
    message.api_key: VersionRange(*CLIENT_VERSIONS[message.api_key])
    for message in (ApiVersionsRequest, InitProducerIdRequest, MetadataRequest, ProduceRequest)
}


async def serve(
    cluster: LargeCluster, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            writer.write(cluster.answer(node, await reader.readexactly(size)))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()  # the client is gone


async def run(cluster: LargeCluster) -> None:
    for node in range(len(cluster.ports)):
        server = await asyncio.start_server(partial(serve, cluster, node), HOST, 0, backlog=16)
        cluster.ports[node] = server.sockets[0].getsockname()[1]
    print(cluster.ports[0], flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while command := (await commands.readline()).decode().strip():
        if command == "move":
            cluster.move()
        print(json.dumps(cluster.counts()), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", type=int, default=1000)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--partitions", type=int, default=40, help="number of partitions in each topic")
    options = parser.parse_args(argv)
    asyncio.run(run(LargeCluster(options.brokers, options.topics, options.partitions)))


if __name__ == "__main__":
    main()
