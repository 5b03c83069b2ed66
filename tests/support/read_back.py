"""Reads a topic with a consumer that shares no code with the producer: confluent-kafka in assign mode, in a thread.

Tests against a real Kafka cluster use this. `compare_with_log` compares the log with the producer's result for each
record.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from aioproducer import RecordMetadata
from aioproducer.errors import DeliveryError
from aioproducer.types import Outcome

POLL = 0.2
"""Seconds that one poll for more records may take."""


class LogRecord(NamedTuple):
    """One record of the log."""

    partition: int
    offset: int
    timestamp: int
    """In ms since 1970."""
    timestamp_type: int
    """0: the producer's time (CreateTime); 1: the broker's (LogAppendTime)."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Log = dict[int, list[LogRecord]]
"""The records of a topic by partition, in the order of their offsets. Every partition has an entry."""


class Sent(NamedTuple):
    """A record with a unique value, and the producer's result for it."""

    value: bytes
    result: RecordMetadata | BaseException


async def read_back(
    servers: str,
    topic: str,
    *,
    offsets: Mapping[int, int] | None = None,
    until: Mapping[int, int] | None = None,
    committed_only: bool = False,
    timeout: float = 60.0,
) -> Log:
    """Read a topic from the given offsets to its end.

    Args:
        servers: "host:port,host:port".
        topic: must exist.
        offsets: the partitions to read, each with its first offset; all from the beginning by default.
        until: for some partitions, the offset before which an apparent end of the partition is ignored. It is needed
            just after a leader change, while the replicas do not agree yet on the high watermark.
        committed_only: leave out records of aborted and open transactions.
        timeout: in seconds.

    Raises:
        TimeoutError: the ends were not reached in time.
    """
    found: Log = {}

    def take(message: Message) -> None:
        found.setdefault(message.partition(), []).append(_record(message))

    partitions = await asyncio.to_thread(
        _read, servers, topic, offsets, until or {}, committed_only, timeout, take
    )
    return {partition: found.get(partition, []) for partition in partitions}


async def scan(servers: str, topic: str, take: Callable[[Message], None], *, timeout: float = 60.0) -> None:
    """Pass each record of a topic to `take`, called in a thread; for topics too long to be kept in memory.

    Raises:
        TimeoutError: the ends were not reached in time (seconds).
    """
    await asyncio.to_thread(_read, servers, topic, None, {}, False, timeout, take)


async def group_position(
    servers: str, group: str, topic: str, partition: int, *, timeout: float = 60.0
) -> int | None:
    """Return the offset that a group has committed, or None. Wait while a transaction with its offsets is open.

    This uses a consumer, because librdkafka 2.16 crashes when AdminClient asks a broker that is no longer the group's
    coordinator.

    Raises:
        KafkaException: no broker answered in time (seconds).
    """

    def ask() -> int | None:
        settings = {
            "bootstrap.servers": servers,
            "group.id": group,  # it is not joined
            "isolation.level": "read_committed",
            "log_level": 0,
        }
        deadline = time.monotonic() + timeout
        with closing(Consumer(settings)) as consumer:
            while True:
                try:
                    (found,) = consumer.committed([TopicPartition(topic, partition)], timeout)
                    if found.error is not None:
                        raise KafkaException(found.error)
                    return None if found.offset < 0 else int(found.offset)
                except (
                    KafkaException
                ):  # such as NOT_COORDINATOR, after which the consumer looks for the coordinator
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(POLL)

    return await asyncio.to_thread(ask)


def _read(
    servers: str,
    topic: str,
    offsets: Mapping[int, int] | None,
    until: Mapping[int, int],
    committed_only: bool,
    timeout: float,
    take: Callable[[Message], None],
) -> list[int]:
    """Read to the ends and return the partitions that were read."""
    deadline = time.monotonic() + timeout
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "read-back",  # confluent-kafka requires it; the group is never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 50,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    try:
        if offsets is None:
            found = consumer.list_topics(topic, timeout=timeout).topics[topic]
            assert found.error is None, f"topic {topic} can't be read: {found.error}"
            offsets = dict.fromkeys(sorted(found.partitions), OFFSET_BEGINNING)
        consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
        unfinished = set(offsets)
        while unfinished:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {sorted(unfinished)} of {topic} not read in {timeout:g} s")
            for message in consumer.consume(1000, POLL):
                error = message.error()
                if error is None:
                    take(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= until.get(message.partition(), 0):
                        unfinished.discard(message.partition())
                else:
                    assert error.retriable() or error.code() < 0, f"{topic}-{message.partition()}: {error}"
        return list(offsets)
    finally:
        consumer.close()


def _record(message: Message) -> LogRecord:
    kind, timestamp = message.timestamp()
    return LogRecord(
        message.partition(),
        message.offset(),
        timestamp,
        int(kind == TIMESTAMP_LOG_APPEND_TIME),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def compare_with_log(sent: Iterable[Sent], log: Log) -> Counter[str]:
    """Assert that the log agrees with the producer's results, and count: "acknowledged", "unknown",
    "not persisted" and "unknown but there".

    Every acknowledged record is at its offset (if it got one) and nowhere else. No record that is NOT_PERSISTED is in
    the log, one that is UNKNOWN is there at most once, and the log contains nothing else.
    """
    sent = list(sent)
    values = [record.value for record in sent]
    assert len(set(values)) == len(values), "the values are not unique"
    places: dict[bytes | None, list[tuple[int, int]]] = {}
    for records in log.values():
        for record in records:
            places.setdefault(record.value, []).append((record.partition, record.offset))
    twice = {value: place for value, place in places.items() if len(place) > 1}
    assert not twice, f"{len(twice)} records are in the log more than once: {_some(twice.items())}"
    strangers = places.keys() - set(values)
    assert not strangers, f"{len(strangers)} records in the log were never sent: {_some(strangers)}"
    counted: Counter[str] = Counter()
    wrong = []
    for value, result in sent:
        place = places.get(value, [None])[0]
        if isinstance(result, RecordMetadata):
            counted["acknowledged"] += 1
            is_right = (
                place is not None and place[0] == result.partition and result.offset in (None, place[1])
            )
        else:
            outcome = getattr(result, "outcome", None)
            assert isinstance(outcome, Outcome), f"{value!r} has no outcome: {result!r}"
            counted[outcome.value] += 1
            if outcome is Outcome.UNKNOWN and place is not None:
                counted["unknown but there"] += 1
            is_right = outcome is Outcome.UNKNOWN or place is None
        if not is_right:
            wrong.append((value, result, place))
    assert not wrong, f"{len(wrong)} records are not where the producer says: {_some(wrong)}"
    return counted


def assert_in_order(log: Log) -> None:
    """Assert that each key is in one partition and that the numbers in its values, "<anything>:<number>", rise."""
    last: dict[bytes | None, tuple[int, int]] = {}
    for partition, records in log.items():
        for record in records:
            assert record.value is not None
            number = int(record.value.rpartition(b":")[2])
            before = last.get(record.key, (partition, -1))
            assert before[0] == partition, f"key {record.key!r} is in partitions {before[0]} and {partition}"
            assert before[1] < number, f"{record.value!r} at offset {record.offset} comes after {before[1]}"
            last[record.key] = (partition, number)


async def result_of(delivery: asyncio.Future[RecordMetadata]) -> RecordMetadata | DeliveryError:
    """Wait for a record's metadata or error."""
    try:
        return await delivery
    except DeliveryError as error:
        return error


def _some(things: Iterable[object]) -> str:
    return ", ".join(repr(thing) for thing, _ in zip(things, range(5), strict=False))
