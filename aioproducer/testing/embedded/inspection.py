"""Lets tests inspect a cluster: its records, and the requests that its brokers have read.

EmbeddedCluster is a subclass of Inspection. Nothing in this module changes a topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from aioproducer.protocol.api import ApiKey, RequestHeader
from aioproducer.protocol.recordbatch import BatchHeader, Record
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded.log import LogBatch, PartitionLog
from aioproducer.testing.embedded.topics import EmbeddedTopic, Partition

_REQUESTS_KEPT = 10_000


@dataclass(slots=True, eq=False)
class SeenRequest:
    """A request that a broker has read; kept for tests, without the record bytes."""

    node: int
    header: RequestHeader
    message: Message
    at: float
    """The loop time at which the request was read, in seconds."""
    batches: dict[tuple[str, int], BatchHeader] = field(default_factory=dict)
    """The headers of the valid batches in a Produce request, by topic and partition."""


class Inspection:
    """A read-only view of a cluster's topics and of the requests that it has received."""

    def __init__(self) -> None:
        self.topics: dict[str, EmbeddedTopic] = {}
        self.requests: deque[SeenRequest] = deque(maxlen=_REQUESTS_KEPT)
        """The latest requests that the brokers have read, except for requests with an unsupported version."""
        self._topics_by_id: dict[UUID, EmbeddedTopic] = {}
        self._seen = asyncio.Event()

    # Records

    def partition(self, topic: str, partition: int) -> Partition:
        """Return a partition. Raises KeyError if it does not exist."""
        found = self.find_partition(topic, partition)
        if found is None:
            raise KeyError(f"there is no partition {partition} of topic {topic}")
        return found

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return a partition's log. Raises KeyError if the partition does not exist."""
        return self.partition(topic, partition).log

    def batches(self, topic: str, partition: int) -> list[LogBatch]:
        """Return the batches in a partition, in order."""
        return list(self.log(topic, partition).batches)

    def records(self, topic: str, partition: int | None = None, *, committed: bool = False) -> list[Record]:
        """Return the decoded records in a partition, or in all partitions, one after another.

        Args:
            topic: The topic name.
            partition: The partition; None: all partitions.
            committed: Return only the records that a consumer with isolation.level=read_committed would receive: no
                records from open or aborted transactions, and none after the first record of an open transaction.
        """
        parts = self.topics[topic].partitions if partition is None else [self.partition(topic, partition)]
        # The first batch can begin below the log start offset.
        return [
            record
            for part in parts
            for record in part.records(committed=committed)
            if record.offset >= part.log.start_offset
        ]

    # Requests

    def requests_of(self, api_key: ApiKey, node: int | None = None) -> list[SeenRequest]:
        """Return the requests for one API that the brokers have read, or that broker `node` has read."""
        return [
            seen
            for seen in self.requests
            if seen.header.api_key == api_key and (node is None or seen.node == node)
        ]

    async def wait_for_requests(
        self, api_key: ApiKey, count: int = 1, node: int | None = None
    ) -> list[SeenRequest]:
        """Wait until brokers have read `count` requests for one API in total. Wrap the call in asyncio.timeout()."""
        while len(found := self.requests_of(api_key, node)) < count:
            self._seen.clear()
            await self._seen.wait()
        return found

    # For brokers and handlers

    def note_request(self, node: int, header: RequestHeader, message: Message) -> SeenRequest:
        """Store a request for tests to inspect."""
        seen = SeenRequest(node, header, message, asyncio.get_running_loop().time())
        self.requests.append(seen)
        self._seen.set()
        return seen

    def find_topic(self, name: str | None, topic_id: UUID) -> EmbeddedTopic | None:
        """Return a topic by its name, or by its id if no name is given. The result is None if the topic does not
        exist."""
        return self.topics.get(name) if name else self._topics_by_id.get(topic_id)

    def find_partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition, or None if it does not exist."""
        found = self.topics.get(topic)
        return found.partition(index) if found else None
