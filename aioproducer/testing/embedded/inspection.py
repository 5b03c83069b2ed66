"""What tests look at: the records that a cluster keeps, and the requests that its brokers have read.

EmbeddedCluster is one of these; nothing here changes a topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from uuid import UUID

from aioproducer.protocol.api import ApiKey, RequestHeader
from aioproducer.protocol.recordbatch import Record
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded.log import LogBatch, PartitionLog
from aioproducer.testing.embedded.request_context import SeenRequest
from aioproducer.testing.embedded.topics import EmbeddedTopic, Partition

_REQUESTS_KEPT = 10_000


class Inspection:
    """The topics of a cluster and what was asked of it, for reading."""

    def __init__(self) -> None:
        self.topics: dict[str, EmbeddedTopic] = {}
        self.requests: deque[SeenRequest] = deque(maxlen=_REQUESTS_KEPT)
        """The latest requests that brokers have read, but no ApiVersions requests that they refused."""
        self._topics_by_id: dict[UUID, EmbeddedTopic] = {}
        self._seen = asyncio.Event()

    # Records

    def partition(self, topic: str, partition: int) -> Partition:
        """A partition's state. Raises KeyError if there is none."""
        found = self.find_partition(topic, partition)
        if found is None:
            raise KeyError(f"there is no partition {partition} of topic {topic}")
        return found

    def log(self, topic: str, partition: int) -> PartitionLog:
        """A partition's log. Raises KeyError if there is none."""
        return self.partition(topic, partition).log

    def batches(self, topic: str, partition: int) -> list[LogBatch]:
        """The batches of a partition, in order."""
        return list(self.log(topic, partition).batches)

    def records(self, topic: str, partition: int | None = None, *, committed: bool = False) -> list[Record]:
        """All records of a partition, or of a topic partition by partition; uncompressed and decoded.

        Args:
            topic: Where they are.
            partition: None: all of them.
            committed: Only what a consumer with isolation.level=read_committed would be given: nothing of
                transactions that are open or aborted, and nothing behind the first record of an open one.
        """
        parts = self.topics[topic].partitions if partition is None else [self.partition(topic, partition)]
        # The first batch may begin below the log's start.
        return [
            record
            for part in parts
            for record in part.records(committed=committed)
            if record.offset >= part.log.start_offset
        ]

    # Requests

    def requests_of(self, api_key: ApiKey, node: int | None = None) -> list[SeenRequest]:
        """The requests of one API that brokers have read, to one broker or to any."""
        return [
            seen
            for seen in self.requests
            if seen.header.api_key == api_key and (node is None or seen.node == node)
        ]

    async def wait_for_requests(
        self, api_key: ApiKey, count: int = 1, node: int | None = None
    ) -> list[SeenRequest]:
        """Wait until brokers have read so many requests of one API in all. Put a time-out around it."""
        while len(found := self.requests_of(api_key, node)) < count:
            self._seen.clear()
            await self._seen.wait()
        return found

    # For brokers and handlers

    def note_request(self, node: int, header: RequestHeader, message: Message) -> SeenRequest:
        """Remember a request for tests."""
        seen = SeenRequest(node, header, message, asyncio.get_running_loop().time())
        self.requests.append(seen)
        self._seen.set()
        return seen

    def find_topic(self, name: str | None, topic_id: UUID) -> EmbeddedTopic | None:
        """A topic by its name, or by its id if there is no name."""
        return self.topics.get(name) if name else self._topics_by_id.get(topic_id)

    def find_partition(self, topic: str, index: int) -> Partition | None:
        """A partition, if there is one."""
        found = self.topics.get(topic)
        return found.partition(index) if found else None
