"""A transactional producer under the full control of a test: raw requests, each in a given version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    FetchRequest,
    FetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from aioproducer.protocol.recordbatch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    read_header,
    read_records,
)
from tests.conftest import MS
from tests.support.oracle import OracleRecord, encode_batch
from tests.support.raw_client import TIMEOUT, RawClient, produce_request
from tests.support.record_batches import split_batches

T = TypeVar("T")

COME_BACK = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Error codes of a coordinator that asks the client to try again later."""


NOT_LED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Error codes for a topic that has just been created."""


class Identity(NamedTuple):
    """The id and epoch of a producer, or the error code that the broker returned instead."""

    producer_id: int
    epoch: int
    error: int = 0

    def older(self, epochs: int = 1) -> Identity:
        """The same producer with an earlier epoch."""
        return self._replace(epoch=self.epoch - epochs)


NOBODY = Identity(-1, -1)


def refused(code: ErrorCode) -> Identity:
    """The identity in a response with an error code."""
    return Identity(-1, -1, code)


class Fetched(NamedTuple):
    """The part of a Fetch response for one partition."""

    records: memoryview
    last_stable_offset: int
    aborted: list[tuple[int, int]]
    """The producer id and first offset of each aborted transaction."""

    def batches(self) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """All batches, including markers and those of aborted transactions."""
        for batch in split_batches(self.records):
            header = read_header(batch)
            yield header, list(read_records(batch[HEADER_SIZE:], header))

    @property
    def end_offset(self) -> int:
        """The offset after the last batch."""
        return max((header.last_offset + 1 for header, _ in self.batches()), default=0)

    @property
    def values(self) -> list[bytes | None]:
        """The values of all data records, including those of aborted transactions."""
        return [
            record.value for header, records in self.batches() if not header.is_control for record in records
        ]

    @property
    def markers(self) -> list[tuple[bool, int, int]]:
        """The control batches: whether each is a commit, its producer id and epoch."""
        return [
            (records[0].key == b"\x00\x00\x00\x01", header.producer_id, header.producer_epoch)
            for header, records in self.batches()
            if header.is_control
        ]

    def visible(self) -> list[bytes | None]:
        """The values that a read_committed consumer returns: without aborted transactions."""
        aborted = sorted(self.aborted, key=lambda one: one[1])
        ongoing: dict[int, None] = {}
        values: list[bytes | None] = []
        for header, records in self.batches():
            while aborted and aborted[0][1] <= header.last_offset:
                ongoing[aborted.pop(0)[0]] = None
            if header.is_control:
                ongoing.pop(header.producer_id, None)
            elif not (header.is_transactional and header.producer_id in ongoing):
                values += [record.value for record in records]
        return values


class GroupOffset(NamedTuple):
    """OffsetFetch's response for one partition."""

    error: int
    offset: int = -1
    metadata: str | None = ""


class Offset(NamedTuple):
    """An offset to commit with TxnOffsetCommit."""

    offset: int
    metadata: str | None = ""


async def settled(ask: Callable[[], Awaitable[T]], *codes: int) -> T:
    """Repeat a request until its error code is not one of `codes`, by default COME_BACK."""
    pending = codes or COME_BACK
    async with asyncio.timeout(TIMEOUT):
        while getattr(answer := await ask(), "error", answer) in pending:  # noqa: ASYNC110  # may be Kafka
            await asyncio.sleep(5 * MS)
    return answer


class Transactions:
    """The requests of producers with one transactional id, to one topic and one group."""

    def __init__(
        self, client: RawClient, *, topic: str = "t", name: str = "txn", group: str = "group"
    ) -> None:
        self.client = client
        self.topic = topic
        self.name = name
        self.group = group

    async def find(self) -> None:
        """Wait until the topic has leaders, and find both coordinators, which creates the internal topics."""
        for partition in range(3):
            assert await settled(lambda partition=partition: self._fetch_error(partition), *NOT_LED) == 0
        for key_type, key in ((0, self.group), (1, self.name)):
            request = FindCoordinatorRequest(key=key, key_type=key_type)

            async def ask(request: FindCoordinatorRequest = request) -> int:
                response = await self.client.ask(request, 3)
                assert isinstance(response, FindCoordinatorResponse)
                return response.error_code

            assert await settled(ask) == 0

    async def init_once(
        self, expected: Identity = NOBODY, *, version: int = 5, timeout_ms: int = 60_000
    ) -> Identity:
        """InitProducerId."""
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        response = await self.client.ask(request, version)
        assert isinstance(response, InitProducerIdResponse)
        return Identity(response.producer_id, response.producer_epoch, response.error_code)

    async def init(
        self, expected: Identity = NOBODY, *, version: int = 5, timeout_ms: int = 60_000
    ) -> Identity:
        """InitProducerId, repeated until the answer is final."""
        return await settled(lambda: self.init_once(expected, version=version, timeout_ms=timeout_ms))

    async def add(
        self, producer: Identity, *partitions: int, version: int = 3, topic: str | None = None
    ) -> list[int]:
        """AddPartitionsToTxn; returns the error code of each partition."""
        name = topic or self.topic
        codes = await self.add_topics(producer, {name: partitions}, version=version)
        return [codes[name, partition] for partition in partitions]

    async def add_topics(
        self, producer: Identity, topics: Mapping[str, Sequence[int]], *, version: int = 3
    ) -> dict[tuple[str, int], int]:
        """AddPartitionsToTxn for several topics."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=list(partitions))
                for name, partitions in topics.items()
            ],
        )
        response = await self.client.ask(request, version)
        return {
            (answered.name, result.partition_index): result.partition_error_code
            for answered in response.results_by_topic_v3_and_below
            for result in answered.results_by_partition
        }

    async def added(self, producer: Identity, *partitions: int) -> None:
        """AddPartitionsToTxn, repeated until the previous transaction's markers are written; it must succeed."""

        async def ask() -> int:
            return max(await self.add(producer, *partitions))

        assert await settled(ask) == 0

    async def add_offsets(self, producer: Identity, *, version: int = 4) -> int:
        """AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id=self.group,
        )
        return (await self.client.ask(request, version)).error_code

    async def end_once(self, producer: Identity, *, commit: bool, version: int) -> Identity:
        """EndTxn."""
        response = await self.client.ask(self.end_request(producer, commit=commit), version)
        assert isinstance(response, EndTxnResponse)
        return Identity(response.producer_id, response.producer_epoch, response.error_code)

    def end_request(self, producer: Identity, *, commit: bool) -> EndTxnRequest:
        """An EndTxn request."""
        return EndTxnRequest(
            transactional_id=self.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )

    async def end(self, producer: Identity, *, commit: bool, version: int) -> Identity:
        """EndTxn, repeated until the answer is final."""
        return await settled(lambda: self.end_once(producer, commit=commit, version=version))

    def produce_request(self, batches: Mapping[tuple[str, int], bytes], *, acks: int = -1) -> ProduceRequest:
        """A Produce request."""
        request = produce_request(dict(batches), acks=acks)
        request.transactional_id = self.name
        return request

    async def produce_all(
        self, batches: Mapping[tuple[str, int], bytes], *, version: int, name: str | None = "", acks: int = -1
    ) -> list[ProduceResponse.PartitionProduceResponse]:
        """Send one Produce request; return the answers in the order of the batches."""
        request = self.produce_request(batches, acks=acks)
        request.transactional_id = self.name if name == "" else name
        response = await self.client.ask(request, version)
        assert isinstance(response, ProduceResponse)
        answers = {
            (topic.name, answer.index): answer
            for topic in response.responses
            for answer in topic.partition_responses
        }
        return [answers[target] for target in batches]

    async def produce_once(
        self, producer: Identity, sequence: int, *values: bytes, version: int, partition: int = 0
    ) -> ProduceResponse.PartitionProduceResponse:
        """Send one Produce request with one transactional batch."""
        batch = txn_batch(producer, sequence, *(values or (b"x",)))
        (answer,) = await self.produce_all({(self.topic, partition): batch}, version=version)
        return answer

    async def produce(
        self, producer: Identity, sequence: int, *values: bytes, version: int, partition: int = 0
    ) -> int:
        """Send one transactional batch, repeated until the answer is final; return the error code."""

        async def ask() -> int:
            answer = await self.produce_once(
                producer, sequence, *values, version=version, partition=partition
            )
            return answer.error_code

        return await settled(ask, ErrorCode.NOT_ENOUGH_REPLICAS, *COME_BACK)

    async def commit_offsets(
        self,
        producer: Identity,
        offsets: Mapping[tuple[str, int], Offset],
        *,
        version: int,
        generation: int = -1,
        member: str = "",
        instance: str | None = None,
    ) -> list[int]:
        """TxnOffsetCommit; returns the error code of each partition."""
        topics: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), (offset, metadata) in offsets.items():
            part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
            topics.setdefault(topic, []).append(part)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=topic, partitions=parts)
                for topic, parts in topics.items()
            ],
        )
        if version >= 3:
            request.generation_id = generation
            request.member_id = member
            request.group_instance_id = instance
        response = await self.client.ask(request, version)
        assert isinstance(response, TxnOffsetCommitResponse)
        return [part.error_code for topic in response.topics for part in topic.partitions]

    async def commit_offset(self, producer: Identity, offset: int, *, version: int) -> int:
        """TxnOffsetCommit for partition 0, repeated until the answer is final."""

        async def ask() -> int:
            (code,) = await self.commit_offsets(producer, {(self.topic, 0): Offset(offset)}, version=version)
            return code

        return await settled(ask)

    async def fetch_offsets(
        self, partitions: Sequence[int] | None = (0,), *, version: int = 8, stable: bool = True
    ) -> dict[int, GroupOffset]:
        """OffsetFetch; returns the answer for each partition of the topic, or under -1 the error of the group."""
        if version >= 8:
            asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=self.group, topics=None)
            if partitions is not None:
                named = OffsetFetchRequest.OffsetFetchRequestTopics(
                    name=self.topic, partition_indexes=list(partitions)
                )
                asked.topics = [named]
            request = OffsetFetchRequest(groups=[asked])
        else:
            request = OffsetFetchRequest(group_id=self.group, topics=None)
            if partitions is not None:
                old = OffsetFetchRequest.OffsetFetchRequestTopic(
                    name=self.topic, partition_indexes=list(partitions)
                )
                request.topics = [old]
        if version >= 7:
            request.require_stable = stable
        response = await self.client.ask(request, version)
        assert isinstance(response, OffsetFetchResponse)
        if response.error_code:
            return {-1: GroupOffset(response.error_code)}
        if version >= 8 and response.groups[0].error_code:
            return {-1: GroupOffset(response.groups[0].error_code)}
        return {
            part.partition_index: GroupOffset(part.error_code, part.committed_offset, part.metadata)
            for topic in (response.groups[0].topics if version >= 8 else response.topics)
            for part in topic.partitions
        }

    async def offset(self) -> GroupOffset:
        """Wait for a stable offset of partition 0 and return it."""

        async def ask() -> GroupOffset:
            found = await self.fetch_offsets()
            return found.get(0) or found[-1]

        return await settled(ask, ErrorCode.UNSTABLE_OFFSET_COMMIT, *COME_BACK)

    async def _fetch_error(self, partition: int) -> int:
        return (await self._fetched(partition, 0, False, 11)).error_code

    async def fetch(
        self, partition: int = 0, *, offset: int = 0, committed: bool = True, version: int = 11
    ) -> Fetched:
        """Fetch a partition from an offset."""
        answer = await self._fetched(partition, offset, committed, version)
        assert answer.error_code == 0
        assert (answer.aborted_transactions is not None) is committed
        assert isinstance(answer.records, memoryview)
        aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()]
        return Fetched(answer.records, answer.last_stable_offset, aborted)

    async def _fetched(
        self, partition: int, offset: int, committed: bool, version: int
    ) -> FetchResponse.PartitionData:
        wanted = FetchRequest.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1_000_000
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=int(committed),
            topics=[FetchRequest.FetchTopic(topic=self.topic, partitions=[wanted])],
        )
        response = await self.client.ask(request, version)
        assert isinstance(response, FetchResponse)
        return response.responses[0].partitions[0]

    async def visible(self, partition: int = 0) -> list[bytes | None]:
        """Wait until every transaction has ended, and return the values that a read_committed consumer sees."""

        async def is_stable() -> bool:
            found = await self.fetch(partition, committed=False)
            return found.last_stable_offset == found.end_offset

        await settled(is_stable, False)
        return (await self.fetch(partition)).visible()


def txn_batch(producer: Identity, sequence: int, *values: bytes, transactional: bool = True) -> bytes:
    """A batch of a transactional producer."""
    # The current time: after older records, the marker would begin a new segment, and Kafka would delete the old one.
    now = int(time.time() * 1000)
    return encode_batch(
        [OracleRecord(now, None, value) for value in values],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
