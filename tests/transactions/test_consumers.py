"""A loop's use of aiokafka's and confluent-kafka's consumers, tested with scripted substitutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.aio import AIOConsumer

from aioproducer import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from aioproducer.errors import IllegalStateError, InvalidArgumentError, KafkaError
from aioproducer.testing.embedded.authorizer import Operation
from aioproducer.transactions import consumers
from aioproducer.transactions.consumers import Positions, input_of
from tests.support.transforming import cluster_with_input, each_kind, looping

ZERO, ONE = TopicPartition("in", 0), TopicPartition("in", 1)
MEMBERSHIP = ConsumerGroupMetadata("g", 3, "me", None)


class Known(Positions):
    """Committed offsets that the test sets."""

    def __init__(self, **committed: int) -> None:
        self.committed = {TopicPartition("in", int(name[1:])): offset for name, offset in committed.items()}
        self.starts: dict[TopicPartition, int] = {}
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self.failure: BaseException | None = None
        self.warnings: list[str] = []

    async def of(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        assert group == "g"
        if self.failure is not None:
            raise self.failure
        found = {**self.starts, **self.committed}
        return {place: found[place] for place in partitions if place in found}

    async def until_idle(self) -> None:
        await self.is_idle.wait()

    def warn(self, text: str) -> None:
        self.warnings.append(text)


# ------------------------------------------------------------------------------------------------ aiokafka


class Record:
    """A record of aiokafka's consumer."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Coordinator:
    group_id, generation, member_id, _group_instance_id = "g", 3, "me", None


class Aiokafka(aiokafka.AIOKafkaConsumer):
    """AIOKafkaConsumer without a cluster."""

    def __init__(self, **attributes: Any) -> None:
        self._closed = True
        self._coordinator: Any = Coordinator()
        self.listener: Any = None
        self.sought: list[tuple[TopicPartition, int]] = []
        self.script: list[Callable[[], Any]] = []
        self.places: set[Any] = set()
        vars(self).update(attributes)

    def subscribe(self, topics: Any = (), pattern: Any = None, listener: Any = None) -> None:
        self.listener = listener

    def assignment(self) -> Any:
        return self.places

    def seek(self, partition: Any, offset: int) -> None:
        self.sought.append((TopicPartition(*partition), offset))

    async def getmany(self, *partitions: Any, timeout_ms: int = 0, max_records: Any = None) -> Any:
        result = self.script.pop(0)()
        return await result if asyncio.iscoroutine(result) else result

    async def assign_all(self, *partitions: int) -> None:
        self.places = {aiokafka.TopicPartition("in", partition) for partition in partitions}
        await self.listener.on_partitions_assigned(self.places)


def records_of(*offsets: int, partition: int = 0) -> Callable[[], Any]:
    return lambda: {aiokafka.TopicPartition("in", partition): [Record(offset) for offset in offsets]}


async def test_aiokafkas_partitions_start_at_the_committed_offsets():
    consumer = Aiokafka()
    source = input_of(consumer, Known(p0=7))
    await source.subscribe(["in"])
    await consumer.assign_all(0, 1)
    consumer.script = [records_of(7, 8)]

    records = await source.poll(10, 0.01)

    assert consumer.sought == [(ZERO, 7)]
    assert [record.offset for record in records[ZERO]] == [7, 8]
    assert source.membership == MEMBERSHIP
    assert source.starts == {ZERO: 7}
    assert source.position_after(records[ZERO][-1]) == OffsetAndMetadata(9)


async def test_aiokafkas_records_that_arrive_in_a_rebalance_are_read_again():
    consumer, known = Aiokafka(), Known()
    source = input_of(consumer, known)
    await source.subscribe(["in"])
    await consumer.assign_all(0)

    async def rebalanced() -> Any:
        await consumer.listener.on_partitions_revoked(consumer.places)
        await consumer.assign_all(0)
        return records_of(3, 4)()

    consumer.script = [rebalanced, records_of(3, 4)]
    assert await source.poll(10, 0.01) == {}
    known.starts = source.starts

    records = await source.poll(10, 0.01)

    assert consumer.sought == [(ZERO, 3)]
    assert [record.offset for record in records[ZERO]] == [3, 4]


async def test_aiokafkas_partitions_are_kept_until_no_batch_is_open():
    consumer, known = Aiokafka(), Known()
    source = input_of(consumer, known)
    await source.subscribe(["in"])
    await consumer.assign_all(0)
    known.is_idle.clear()

    revoking = asyncio.create_task(consumer.listener.on_partitions_revoked(consumer.places))
    await asyncio.sleep(0)
    assert source.changes == 2
    assert not revoking.done()
    known.is_idle.set()

    await revoking


async def test_a_rebalance_during_a_query_of_positions_restarts_the_query():
    consumer, known = Aiokafka(), Known(p0=7)
    source = input_of(consumer, known)
    await source.subscribe(["in"])
    await consumer.assign_all(0)
    of = known.of

    async def rebalanced(group: str, partitions: Any) -> Any:
        await consumer.assign_all(0, 1)
        return await of(group, partitions)

    known.of = rebalanced
    assert await source.poll(10, 0.01) == {}
    assert consumer.sought == []
    known.of = of
    consumer.script = [records_of(7)]

    assert list(await source.poll(10, 0.01)) == [ZERO]
    assert consumer.sought == [(ZERO, 7)]


async def test_errors_of_the_group_are_raised_while_no_partition_is_assigned():
    consumer = Aiokafka()
    source = input_of(consumer, Known())
    await source.subscribe(["in"])

    async def failed() -> Any:
        raise aiokafka.errors.GroupAuthorizationFailedError("g")

    consumer.script = [failed]
    with pytest.raises(aiokafka.errors.GroupAuthorizationFailedError):
        await source.poll(10, 0.01)


async def test_a_consumer_without_a_generation_is_not_used():
    consumer = Aiokafka(_coordinator=object())
    source = input_of(consumer, Known())
    await source.subscribe(["in"])
    await consumer.assign_all(0)

    with pytest.raises(IllegalStateError, match="does not expose the consumer's generation"):
        await source.poll(10, 0.01)


# ------------------------------------------------------------------------------------------ confluent-kafka


class Message:
    """A record, or an error, of confluent-kafka's consumer."""

    def __init__(self, offset: int, partition: int = 0, error: Any = None) -> None:
        self._offset, self._partition, self._error = offset, partition, error

    def topic(self) -> str:
        return "in"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> int | None:
        return 5 if self._offset % 2 else None

    def error(self) -> Any:
        return self._error


class Confluent:
    """confluent_kafka.Consumer without a cluster."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}
        self.assigned: list[tuple[int, int]] = []
        self.sought: list[tuple[int, int]] = []
        self.script: list[Callable[[], list[Message]]] = []
        self.seek_errors: list[Any] = []
        self.is_cooperative = False

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.callbacks = callbacks

    def consume(self, count: int, timeout: float) -> list[Message]:
        return self.script.pop(0)()

    def consumer_group_metadata(self) -> bytes:
        return b"CGMDv2:\3\0\0\0g\0me\0\1"

    def assign(self, partitions: list[Any]) -> None:
        if self.is_cooperative:
            raise confluent_kafka.KafkaException(
                confluent_kafka.KafkaError(confluent_kafka.KafkaError._STATE)
            )
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.assigned += [(place.partition, place.offset) for place in partitions]

    def seek(self, place: Any) -> None:
        if self.seek_errors:
            raise confluent_kafka.KafkaException(self.seek_errors.pop())
        self.sought.append((place.partition, place.offset))

    def rebalance(self, *partitions: int) -> None:
        places = [confluent_kafka.TopicPartition("in", partition) for partition in partitions]
        self.callbacks["on_assign"](self, places)

    def revoke(self, *partitions: int) -> None:
        places = [confluent_kafka.TopicPartition("in", partition) for partition in partitions]
        self.callbacks["on_revoke"](self, places)


class Reading:
    """An Input that reads from a Confluent, and is closed at the end."""

    def __init__(self, consumer: Confluent, known: Known) -> None:
        self.source = input_of(consumer, known)

    async def __aenter__(self) -> consumers.Input:
        await self.source.subscribe(["in"])
        return self.source

    async def __aexit__(self, *error: object) -> None:
        await self.source.close()


@pytest.mark.parametrize("is_cooperative", [False, True])
async def test_confluents_partitions_start_at_the_committed_offsets(is_cooperative):
    consumer = Confluent()
    consumer.is_cooperative = is_cooperative
    consumer.script = [lambda: consumer.rebalance(0, 1) or [], lambda: [Message(7), Message(8)]]
    async with Reading(consumer, Known(p0=7)) as source:
        assert await source.poll(10, 0.01) == {}
        records = await source.poll(10, 0.01)

        assert consumer.assigned == [(0, 7), (1, confluent_kafka.OFFSET_INVALID)]
        assert source.membership == MEMBERSHIP
        assert source.starts == {ZERO: 7}
        assert source.position_after(records[ZERO][0]) == OffsetAndMetadata(8, "", 5)
        assert source.position_after(records[ZERO][1]) == OffsetAndMetadata(9, "", -1)


async def test_confluents_records_that_are_returned_with_a_rebalance_are_read_again():
    def rebalanced() -> list[Message]:
        consumer.revoke(1)
        consumer.rebalance()
        return [Message(3), Message(4), Message(5, 1)]

    consumer, known = Confluent(), Known(p0=4)
    consumer.script = [lambda: consumer.rebalance(0, 1) or [], rebalanced]
    async with Reading(consumer, known) as source:
        await source.poll(10, 0.01)
        assert await source.poll(10, 0.01) == {}

        assert consumer.sought == [(0, 4)], "partition 1 was revoked"
        assert source.changes == 3


async def test_a_poll_that_is_cancelled_while_it_seeks_back_does_so_at_the_next_poll():
    def rebalanced() -> list[Message]:
        consumer.rebalance()
        return [Message(3)]

    consumer, known = Confluent(), Known(p0=3)
    consumer.script = [lambda: consumer.rebalance(0) or [], rebalanced, lambda: [Message(3)]]
    async with Reading(consumer, known) as source:
        await source.poll(10, 0.01)
        of, asked = known.of, asyncio.Event()

        async def never(group: str, partitions: Iterable[TopicPartition]) -> Any:
            if not list(partitions):
                return {}
            asked.set()
            await asyncio.Event().wait()

        known.of = never
        polling = asyncio.create_task(source.poll(10, 0.01))
        await asked.wait()
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        known.of = of

        assert await source.poll(10, 0.01) == {}
        assert consumer.sought == [(0, 3)]
        assert list(await source.poll(10, 0.01)) == [ZERO]


async def test_a_seek_in_a_partition_that_is_not_started_yet_is_repeated(monkeypatch):
    monkeypatch.setattr(consumers, "_SEEK_PAUSE", 0.0)
    consumer = Confluent()
    consumer.script = [lambda: consumer.rebalance(0) or []]
    async with Reading(consumer, Known()) as source:
        await source.poll(10, 0.01)
        not_started = confluent_kafka.KafkaError(confluent_kafka.KafkaError._STATE)
        consumer.seek_errors = [not_started] * 3
        await source.seek({ZERO: 5, ONE: 6})
        assert consumer.sought == [(0, 5)], "partition 1 is not assigned"

        consumer.seek_errors = [confluent_kafka.KafkaError(confluent_kafka.KafkaError._UNKNOWN_PARTITION)]
        with pytest.raises(confluent_kafka.KafkaException):
            await source.seek({ZERO: 5})
        monkeypatch.setattr(consumers, "_SEEK_TIMEOUT", -1.0)
        consumer.seek_errors = [not_started]
        with pytest.raises(confluent_kafka.KafkaException):
            await source.seek({ZERO: 5})


async def test_the_end_of_a_partition_is_not_an_error_and_other_errors_are_logged():
    end = confluent_kafka.KafkaError(confluent_kafka.KafkaError._PARTITION_EOF)
    other = confluent_kafka.KafkaError(confluent_kafka.KafkaError._MAX_POLL_EXCEEDED, "too slow")
    consumer, known = Confluent(), Known()
    consumer.script = [lambda: [Message(0, error=end), Message(1), Message(0, error=other)]]
    async with Reading(consumer, known) as source:
        records = await source.poll(10, 0.01)

        assert [message.offset() for message in records[ZERO]] == [1]
        assert len(known.warnings) == 1
        assert "too slow" in known.warnings[0]


@pytest.mark.parametrize(
    "error",
    [
        confluent_kafka.KafkaError(confluent_kafka.KafkaError._FATAL, "fenced", True),
        confluent_kafka.KafkaError(confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_a_consumer_that_cannot_continue_ends_the_poll(error):
    consumer = Confluent()
    consumer.script = [lambda: [Message(0, error=error)]]
    async with Reading(consumer, Known()) as source:
        with pytest.raises(KafkaError, match="the consumer has failed: KafkaError"):
            await source.poll(10, 0.01)


async def test_a_failure_in_confluents_callback_is_raised_by_the_poll():
    consumer, known = Confluent(), Known()
    known.failure = KafkaError("denied")
    consumer.script = [lambda: consumer.rebalance(0) or []]
    async with Reading(consumer, known) as source:
        with pytest.raises(KafkaError, match="denied"):
            await source.poll(10, 0.01)
        assert consumer.assigned == []


async def test_after_the_loop_confluents_library_assigns_partitions_itself():
    consumer = Confluent()
    async with Reading(consumer, Known(p0=7)) as source:
        pass
    consumer.rebalance(0)

    assert consumer.assigned == []
    assert source.changes == 0


# -------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize(
    ("consumer", "text"),
    [
        (object(), "AIOKafkaConsumer or confluent-kafka's Consumer, not object"),
        (Aiokafka(_enable_auto_commit=True), "enable_auto_commit=False"),
        (Aiokafka(_group_id=None), "must have a group_id"),
        (AIOConsumer.__new__(AIOConsumer), "AIOConsumer is not supported"),
    ],
    ids=["no consumer", "auto commit", "no group", "AIOConsumer"],
)
async def test_other_consumers_are_rejected(consumer, text):
    with pytest.raises(InvalidArgumentError, match=text):
        input_of(consumer, Known())


@each_kind
async def test_a_group_whose_offsets_must_not_be_read_ends_the_wait_for_records(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, _):
        cluster.authorizer.deny(Operation.DESCRIBE, group="g")
        with pytest.raises(Exception, match=r"(?i)group_?authorization_?failed"):
            await anext(loop)
