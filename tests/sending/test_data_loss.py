"""Each loss of acknowledged records on a broker is logged and counted once; nothing else is reported as a loss."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from uuid import UUID

import pytest

from aioproducer.config import ProducerConfig
from aioproducer.hooks import DataLossEvent
from aioproducer.metrics import Metrics
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records._record_path import PartitionQueue
from aioproducer.sending.data_loss import LossWatch
from tests.support.producing import (
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    numbers,
    offsets,
    producing,
    quick_producer,
    results,
    send_numbers,
    until,
    within,
)


@pytest.fixture
def reports(caplog):
    """Return the log lines with their levels."""

    def found():
        records = [record for record in caplog.records if record.name == "aioproducer.sending.data_loss"]
        return [(record.levelno, record.getMessage()) for record in records]

    return found


async def look(producer) -> None:
    updates = producer.metrics().metadata_updates
    producer._metadata.request_update()
    await until(lambda: producer.metrics().metadata_updates > updates)


async def truncate(cluster, producer, end: int) -> None:
    """Elect an unclean leader whose log lacks acknowledged records, and let the producer learn of it."""
    partition = cluster.partition("t", 0)
    partition.high_watermark = end
    cluster.move_leader("t", 0, 1 - cluster.leader("t", 0))
    await look(producer)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a broker that lost acknowledged records is reported, once for each event",
)
@pytest.mark.parametrize("settings", [{}, {"acks": 1}, {"enable_idempotence": False}], ids=str)
async def test_a_log_that_became_shorter_is_reported_once_with_its_offsets(settings, reports):
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        for number in range(10):
            await producer.send_and_wait("t", b"%d" % number)
        await truncate(cluster, producer, 6)

        found = await results(await send_numbers(producer, range(10, 16)))

        assert not [end for end in found if isinstance(end, BaseException)]
        assert numbers(cluster) == [*range(6), *range(10, 16)]
        [(level, text)] = reports()
        assert level == logging.ERROR
        assert "t-0 up to offset 9" in text
        assert "so offsets 6 to 9 were truncated" in text
        assert producer.metrics().data_losses == 1


async def test_hooks_are_told_of_each_loss():
    heard = []
    hook = SimpleNamespace(on_data_loss=heard.append)
    async with producing(brokers=2, hooks=[hook], client_id="shop", **ONE_BATCH_PER_RECORD) as (
        cluster,
        producer,
    ):
        for number in range(10):
            await producer.send_and_wait("t", b"%d" % number)
        await truncate(cluster, producer, 6)
        await offsets(await send_numbers(producer, range(10, 16)))

        [event] = heard
        assert isinstance(event, DataLossEvent)
        assert event[:4] == ("shop", "t", {0: 9}, True)
        assert "so offsets 6 to 9 were truncated" in event.reason


async def test_a_second_truncation_is_a_second_event(reports):
    async with producing(brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        for number in range(4):
            await producer.send_and_wait("t", b"%d" % number)
        await truncate(cluster, producer, 2)
        await offsets(await send_numbers(producer, range(4, 10)))
        await truncate(cluster, producer, 5)

        await offsets(await send_numbers(producer, range(10, 12)))

        assert ["2 to 3" in reports()[0][1], "5 to 7" in reports()[1][1]] == [True, True]
        assert producer.metrics().data_losses == 2


async def test_a_loss_is_only_suspected_if_other_producers_have_written_since(reports):
    async with (
        producing(brokers=2, **ONE_BATCH_PER_RECORD) as (cluster, producer),
        quick_producer(cluster) as other,
    ):
        for number in range(4):
            await producer.send_and_wait("t", b"%d" % number)
        await truncate(cluster, producer, 2)
        for number in range(50, 55):
            await other.send_and_wait("t", b"%d" % number)

        await offsets(await send_numbers(producer, range(4, 8)))

        [(level, text)] = reports()
        assert level == logging.WARNING
        assert "may have been lost (t-0 up to offset 3)" in text
        assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in text
        assert (producer.metrics().data_losses, other.metrics().data_losses) == (1, 0)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a broker that lost acknowledged records is reported, once for each event",
)
@pytest.mark.parametrize("versions", ["2.1", "3.9", "4.1"])
async def test_a_topic_that_was_recreated_is_reported_once(versions, reports):
    async with producing(topics={"t": 3}, cluster={"versions": versions}) as (cluster, producer):
        for number in range(4):
            await producer.send_and_wait("t", b"%d" % number, partition=number % 2)
        cluster.delete_topic("t")
        cluster.create_topic("t", 3)
        for number in range(4, 10):
            await within(2, producer.send_and_wait("t", b"%d" % number, partition=number % 2))
        await look(producer)
        await look(producer)

        text = " ".join(line for _, line in reports())
        assert "t-0 up to offset 1" in text
        assert "t-1 up to offset 1" in text
        assert "t-2" not in text, "nothing was acknowledged there"
        if versions == "4.1":
            [(level, _)] = reports()
            assert level == logging.ERROR
            assert "the topic was re-created: its id is" in text
        assert producer.metrics().data_losses == len(reports()) <= 2, "each partition once"


async def test_an_acknowledgement_for_the_deleted_topic_is_not_applied_to_the_new_one(reports):
    async with producing(brokers=2, topics={"t": 1, "u": 1}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        leader = cluster.leader("t", 0)
        cluster.move_leader("u", 0, 1 - leader)
        await producer.send_and_wait("t", b"0")
        await producer.send_and_wait("u", b"0")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        deliveries = await send_numbers(producer, [1])
        await within(1, held.reached())
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        await look(producer)
        await until(lambda: producer._metadata.topic("t").topic_id == cluster.topics["t"].topic_id)
        release.set()

        await results(deliveries)
        await offsets(await send_numbers(producer, [2, 3]))

        assert len(reports()) == 1
        assert "re-created" in reports()[0][1]


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a broker that lost acknowledged records is reported, once for each event",
)
async def test_retries_of_records_already_in_the_log_are_not_reported_as_a_loss(reports):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        for code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            cluster.faults.add(PRODUCE, error=code, after_append=True)
            await offsets(await send_numbers(producer, range(1, 9)))
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)
        await results(await send_numbers(producer, range(9, 17)))

        assert producer.metrics().retries > 1
        assert (reports(), producer.metrics().data_losses) == ([], 0)


async def test_a_rejected_sequence_without_a_loss_is_reported_as_a_possible_loss(reports):
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.UNKNOWN_PRODUCER_ID)

        await offsets(await send_numbers(producer, range(1, 4)))

        [(level, text)] = reports()
        assert level == logging.WARNING
        assert "producer.id.expiration.ms" in text
        assert producer.metrics().data_losses == 1


# ------------------------------------------------------------------------------------------------ LossWatch alone


def watched(**settings):
    metrics = Metrics()
    return LossWatch(ProducerConfig.of(bootstrap_servers="localhost:1", **settings), metrics), metrics


def batch(queue, order, count=1):
    return SimpleNamespace(queue=queue, order=(order, 0), record_count=count, broker=1)


def cluster_of(topic_id, name="t"):
    return SimpleNamespace(topics={name: SimpleNamespace(name=name, topic_id=UUID(int=topic_id))})


def test_a_broker_that_always_answers_the_same_offset_is_reported_once(reports):
    watch, metrics = watched()
    queue = PartitionQueue("t", 0)

    for order in range(100):
        watch.note_acknowledged(batch(queue, order), 0, now=0.0)

    assert len(reports()) == metrics.data_losses == 1


def test_batches_that_may_overtake_each_other_are_not_compared(reports):
    settings = {"enable_idempotence": False, "max_in_flight_requests_per_connection": 5}
    watch, metrics = watched(**settings)
    queue = PartitionQueue("t", 0)
    watch.note_acknowledged(batch(queue, 0), 11, now=0.0)

    watch.note_acknowledged(batch(queue, 1), 10, now=0.0)

    assert (reports(), metrics.data_losses) == ([], 0)


def test_outdated_metadata_does_not_report_a_re_created_topic_twice(reports):
    watch, metrics = watched()
    queue = PartitionQueue("t", 0)
    watch.look_at(cluster_of(1), now=0.0)
    watch.note_acknowledged(batch(queue, 0), 5, now=0.0)

    for offset, topic_id in enumerate((2, 1, 0, 2, 1, 2)):
        watch.look_at(cluster_of(topic_id), now=0.0)
        watch.note_acknowledged(batch(queue, 1 + offset), offset, now=0.0)

    assert len(reports()) == metrics.data_losses == 1
    watch.look_at(cluster_of(3), now=0.0)
    assert len(reports()) == metrics.data_losses == 2


def test_a_re_created_topic_without_acknowledged_records_is_not_a_loss(reports):
    watch, metrics = watched()

    watch.look_at(cluster_of(1), now=0.0)
    watch.look_at(cluster_of(2), now=0.0)

    assert (reports(), metrics.data_losses) == ([], 0)


@pytest.mark.parametrize(
    ("partitions", "others"), [(10, ")"), (11, ", and 1 other partition)"), (12, ", and 2 other partitions)")]
)
def test_a_log_line_names_at_most_ten_partitions(reports, partitions, others):
    watch, metrics = watched()
    watch.look_at(cluster_of(1), now=0.0)
    for number in range(partitions):
        watch.note_acknowledged(batch(PartitionQueue("t", number), number), number, now=0.0)

    watch.look_at(cluster_of(2), now=0.0)

    [(_, text)] = reports()
    assert f"t-9 up to offset 9{others}" in text
    assert metrics.data_losses == 1
