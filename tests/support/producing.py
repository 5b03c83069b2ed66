"""A producer on an embedded cluster, with settings for tests, and the checks after its close()."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from aioproducer import Delivery, Producer, RecordMetadata
from aioproducer.errors import KafkaError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records._record_path import BatchState
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.broker import BrokerState
from aioproducer.testing.embedded.request_context import SeenRequest
from tests.conftest import MS, at_most

T = TypeVar("T")

PRODUCE, METADATA, INIT_PRODUCER_ID = ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID

QUICK = {
    "linger_ms": 0,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
    "request_timeout_ms": 300_000 * MS,
    "delivery_timeout_ms": 4_000_000 * MS,
    "max_block_ms": 10_000_000 * MS,
}
"""Settings of a producer that does not keep a test waiting."""

ONE_BATCH_PER_RECORD = {"batch_size": 1}
"""Settings that give each record a separate batch, since every record is larger than this `batch_size`."""

FOUR_RECORDS_FILL_IT = {"batch_size": 1024, "buffer_memory": 4096}
"""Settings with which the buffer has room for four records of `LARGE` bytes, but not for a fifth."""
LARGE = 900


RETRIABLE = [
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LISTENER_NOT_FOUND,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
]

AFTER_APPEND = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
]
"""The codes in RETRIABLE that a broker may return even though the records are already in its log."""

NOT_RETRIABLE = [
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.MESSAGE_TOO_LARGE,
]

BREAKS = {
    "dropped before the append": {"drop_before": True},
    "dropped after the append": {"drop_after_append": True},
    "no byte of the answer": {"truncate": 0},
    "half a length": {"truncate": 2},
    "a length only": {"truncate": 4},
    "half an answer": {"truncate": 20},
    "a wrong correlation id": {"wrong_correlation_id": True},
    "a partition left out": {"omit_partitions": True},
}


def quick_producer(servers: str | EmbeddedCluster, **settings: Any) -> Producer:
    """A producer that is not started yet."""
    servers = servers if isinstance(servers, str) else servers.bootstrap_servers
    return Producer(servers, **{**QUICK, **settings})


@asynccontextmanager
async def producing(
    brokers: int = 1,
    topics: dict[str, int] | None = None,
    cluster: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """A cluster and a started producer. close(timeout=0) ends the producer, which must leave nothing behind."""
    topics = {"t": 1} if topics is None else topics
    async with EmbeddedCluster(brokers, topics=topics, **(cluster or {})) as embedded:
        producer = quick_producer(embedded, **settings)
        await producer.start()
        try:
            yield embedded, producer
        finally:
            await within(2, producer.close(timeout=0))
        await assert_nothing_left(producer, embedded)


async def assert_nothing_left(producer: Producer, cluster: EmbeddedCluster | None = None) -> None:
    """Assert that close() has left no task, thread, timer, socket, reserved byte or unresolved batch."""
    assert repr(producer).startswith("<Producer closed")
    tasks = [task for task in producer._tasks if not task.done()]
    tasks += [task for task in asyncio.all_tasks() if task.get_name().startswith("aioproducer")]
    assert not tasks, f"tasks are left: {tasks}"
    accumulator, brokers = producer._accumulator, producer._brokers
    assert accumulator.memory.available == accumulator.memory.total, "bytes are still reserved"
    assert accumulator.memory.waiters == 0
    assert not accumulator.incomplete
    assert not accumulator._filled
    snapshot = producer.metrics()
    assert (snapshot.in_flight, snapshot.records_buffered) == (0, 0)
    assert not [entry.node for entry in brokers._entries.values() if entry.connection or entry.task]
    assert not brokers._departing
    # Threads, and the loop's own work for closed sockets and cancelled timers, end a moment later.
    await until(lambda: not any(thread.is_alive() for thread in producer._compressor.executor._threads))
    await until(lambda: not timers_left())
    if cluster is not None:
        # A frozen broker does not notice closed connections.
        running = [broker for broker in cluster._brokers if broker.state is BrokerState.RUNNING]
        await until(lambda: not any(broker.connection_count for broker in running))


def timers_left() -> list[asyncio.TimerHandle]:
    """The timers of this package that are still set; none with uvloop, which does not list its timers."""
    scheduled = getattr(asyncio.get_running_loop(), "_scheduled", [])
    of_tests = str(Path(__file__).parent.parent)
    return [
        timer
        for timer in scheduled
        if not timer.cancelled()
        and "aioproducer" in repr(timer)
        and "testing" not in repr(timer)
        and of_tests not in repr(timer)
    ]


async def until(condition: Callable[[], object], seconds: float = 2) -> None:
    """Let the loop run until the condition holds; fail after `seconds` (on a fast machine)."""
    async with at_most(seconds * 1000 * MS):
        while not condition():  # noqa: ASYNC110  # the condition sets no event
            await asyncio.sleep(MS)


async def until_chosen_from(producer: Producer, condition: Callable[[], object]) -> None:
    """Wait until the condition holds and the sender has seen the current metadata, from which it chooses partitions."""
    await until(lambda: condition() and producer._sender._seen_metadata == producer._metadata.version)


async def within(seconds: float, waited_for: Awaitable[T]) -> T:
    """Await `waited_for`; fail after `seconds` (on a fast machine)."""
    async with at_most(seconds * 1000 * MS):
        return await waited_for


async def results(deliveries: Iterable[Delivery], seconds: float = 3) -> list[RecordMetadata | BaseException]:
    """Wait for each record's metadata or error; fail after `seconds` (on a fast machine)."""
    deliveries = list(deliveries)
    if deliveries:
        try:
            await within(seconds, asyncio.wait(deliveries))
        except TimeoutError:
            pending = sum(not delivery.done() for delivery in deliveries)
            raise AssertionError(
                f"{pending} of {len(deliveries)} records have no result after {seconds} s"
            ) from None
    return [delivery.exception() or delivery.result() for delivery in deliveries]


async def error_of(delivery: Awaitable[Any], seconds: float = 3) -> KafkaError:
    """Return the error of a delivery or a call, which must fail."""
    try:
        result = await within(seconds, delivery)
    except KafkaError as error:
        return error
    raise AssertionError(f"expected an error, got {result!r}")


def values(cluster: EmbeddedCluster, topic: str = "t", partition: int | None = None) -> list[bytes | None]:
    """The values in the log."""
    return [record.value for record in cluster.records(topic, partition)]


def numbers(cluster: EmbeddedCluster, topic: str = "t", partition: int | None = None) -> list[int]:
    """The values in the log as numbers, if the test wrote numbers."""
    return [int(value or b"-1") for value in values(cluster, topic, partition)]


async def send_numbers(
    producer: Producer, numbers: Iterable[int], topic: str = "t", **record: Any
) -> list[Delivery]:
    """Send one record for each number."""
    return [await producer.send(topic, b"%d" % number, **record) for number in numbers]


async def send_to_a_re_created_topic(
    cluster: EmbeddedCluster, producer: Producer, count: int
) -> list[Delivery]:
    """Send `count` records in one batch that may be in the log of a deleted topic, but not in that of the new topic.

    The broker answers each further attempt with NOT_ENOUGH_REPLICAS. The cluster must support topic
    ids in Produce (4.1).
    """
    cluster.faults.add(PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT, after_append=True)
    cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=10_000)
    deliveries = await send_numbers(producer, range(count))
    await until(lambda: "NOT_ENOUGH_REPLICAS" in producer.metrics().errors)
    cluster.delete_topic("t")
    cluster.create_topic("t", 1)
    producer._metadata.request_update()
    (batch,) = producer._accumulator.incomplete
    await until(lambda: not batch.maybe_persisted and batch.state is BatchState.CLOSED)
    return deliveries


def produce_count(cluster: EmbeddedCluster, node: int | None = None) -> int:
    """The number of Produce requests that the brokers have read."""
    return len(cluster.requests_of(ApiKey.PRODUCE, node))


def metadata_count(cluster: EmbeddedCluster) -> int:
    """The number of Metadata requests that the brokers have read."""
    return len(cluster.requests_of(ApiKey.METADATA))


async def offsets(deliveries: Iterable[Delivery]) -> list[int | None]:
    """Wait for the offsets of records, which must all be delivered."""
    found = await results(deliveries)
    errors = [error for error in found if isinstance(error, BaseException)]
    assert not errors, errors
    return [metadata.offset for metadata in found]


def batch_headers(
    cluster: EmbeddedCluster, topic: str = "t", partition: int = 0
) -> list[tuple[int, int, int]]:
    """(epoch, first sequence, records) of each batch in the log."""
    return [
        (batch.header.producer_epoch, batch.header.base_sequence, batch.header.record_count)
        for batch in cluster.batches(topic, partition)
    ]


def partitions_of(request: SeenRequest) -> list[int]:
    """The partitions in a Produce request."""
    return sorted(data.index for topic in request.message.topic_data for data in topic.partition_data)


def by_name(code: ErrorCode) -> str:
    """The id of a parametrized test."""
    return code.name
