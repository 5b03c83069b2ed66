"""The demo's topic: creates it if necessary, and reads the end offsets of its partitions before and after the run.

The topic is created with confluent-kafka, since a producer does not administer topics. Nothing is ever deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from aioproducer import KafkaError as ProducerError
from aioproducer import Producer
from flights import DemoError

TIMEOUT = 15.0
"""Seconds to wait for one response."""
GLANCE = 0.2
"""Seconds between calls to a `Check`, which can end the work."""

Check = Callable[[], None]
"""A function that raises an exception if the work is no longer wanted."""

# librdkafka's log lines are dropped: everything important is reported as an error.
SILENT = logging.getLogger("flights.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

_SETTINGS = {
    # By their timestamps, the records expired long ago, and would be deleted within minutes.
    "retention.ms": "-1",
    # Kafka starts a new segment when record timestamps are a week apart, which here is every few MB.
    "segment.ms": "315360000000",
    "message.timestamp.type": "CreateTime",
}


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic as it was before the first flight."""

    name: str
    starts: tuple[int, ...]
    """The end offset of each partition: the first record of this run has this offset or a later one."""
    note: str = ""
    """A note for the user about how the topic was created."""


async def prepare(bootstrap_servers: str, name: str, partitions: int, check: Check) -> Topic:
    """Create the topic, or use an existing one as it is, and read the end offsets of its partitions.

    After a cancellation, a thread continues until `check` raises an exception.

    Raises:
        DemoError: the topic has a different number of partitions, can't be created, or is not ready in time.
    """
    creation = await asyncio.to_thread(_create, bootstrap_servers, name, partitions, check)
    try:
        # If CreateTopics was rejected, a metadata request may still create the topic automatically.
        async with Producer(bootstrap_servers, max_block_ms=TIMEOUT * 1000) as producer:
            found = len(await producer.partition_info(name))
    except ProducerError as error:
        raise DemoError(f"topic {name} can't be used: {creation.refused or error}") from error
    if found != partitions and not creation.refused:
        raise DemoError(
            f"topic {name} has {found} partitions, not {partitions}: choose another topic with --topic, or "
            f"use --partitions {found}"
        )
    starts = await asyncio.to_thread(end_offsets, bootstrap_servers, name, found, check)
    return Topic(name, starts, creation.note)


class _Creation(NamedTuple):
    """The result of CreateTopics: each text is the cluster's error message, empty after a success."""

    settings_refused: str
    refused: str

    @property
    def note(self) -> str:
        if self.refused:
            return (
                f"note: CreateTopics was rejected ({self.refused}); the topic has the cluster's own settings"
            )
        if self.settings_refused:
            return (
                f"note: the topic has the cluster's default settings, since the demo's settings were rejected "
                f"({self.settings_refused}); its retention may soon delete records of 2013"
            )
        return ""


def _create(bootstrap_servers: str, name: str, partitions: int, check: Check) -> _Creation:
    """Create the topic unless it exists, with the demo's settings or, if they are rejected, the cluster's defaults."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=SILENT)
    refusal = _refusal(admin, NewTopic(name, partitions, replication_factor=-1, config=_SETTINGS), check)
    again = _refusal(admin, NewTopic(name, partitions, replication_factor=-1), check) if refusal else ""
    return _Creation(refusal, again)


def _refusal(admin: AdminClient, topic: NewTopic, check: Check) -> str:
    """Try to create a topic. Returns the cluster's error message, or an empty string if the topic exists now."""
    created = admin.create_topics([topic], operation_timeout=TIMEOUT, request_timeout=TIMEOUT)
    try:
        _wait(created[topic.topic], check)
    except KafkaException as exception:
        error: KafkaError = exception.args[0]
        return "" if error.code() == KafkaError.TOPIC_ALREADY_EXISTS else error.str()
    return ""


def _wanted() -> None:
    """Do nothing: a check that never stops the work."""


def _wait(answer: Future[None], check: Check) -> None:
    while True:
        check()
        with contextlib.suppress(TimeoutError):
            return answer.result(GLANCE)


def end_offsets(
    bootstrap_servers: str, name: str, partitions: int, check: Check = _wanted
) -> tuple[int, ...]:
    """Return the end offset of each partition. Blocks until a new topic is ready."""
    consumer = Consumer(consumer_settings(bootstrap_servers), logger=SILENT)
    try:
        deadline = time.monotonic() + TIMEOUT
        return tuple(_watermarks(consumer, name, number, deadline, check)[1] for number in range(partitions))
    finally:
        consumer.close()


def start_offsets(consumer: Consumer, name: str, partitions: int) -> tuple[int, ...]:
    """Return the offset of the first record that each partition still contains. Blocks."""
    deadline = time.monotonic() + TIMEOUT
    return tuple(_watermarks(consumer, name, number, deadline)[0] for number in range(partitions))


def consumer_settings(bootstrap_servers: str) -> dict[str, Any]:
    """Return settings for a consumer that reads assigned partitions, joins no group and commits no offsets."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "aioproducer-flights",  # librdkafka requires one
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
    }


def _watermarks(
    consumer: Consumer, name: str, number: int, deadline: float, check: Check = _wanted
) -> tuple[int, int]:
    while True:
        check()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=1)
            return low, high
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise DemoError(
                    f"partition {number} of topic {name} is not ready: {error.args[0].str()}"
                ) from error
            time.sleep(0.1)
