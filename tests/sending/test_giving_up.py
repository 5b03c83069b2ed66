"""Giving up: what ends batches without an answer, and what the errors say."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioproducer import DeliveryTimeoutError, Outcome
from aioproducer.errors import (
    RequestTimedOutError,
)
from aioproducer.network.connection import LATE_TIMER
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.sending.giving_up import GivingUp
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    INIT_PRODUCER_ID,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    error_of,
    numbers,
    offsets,
    producing,
    quick_producer,
    results,
    send_numbers,
    until,
    values,
    within,
)


@pytest.mark.promise(
    "Accumulator, sender, connections", "every record has a delivery timeout, with an honest outcome"
)
@pytest.mark.promise("KIPs", "KIP-91: one delivery timeout")
@in_virtual_time
async def test_a_delivery_timeout_of_unsent_records_is_not_persisted():
    settings = {"request_timeout_ms": 20_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(brokers=2, topics={}, **settings) as (cluster, producer):
        cluster.create_topic("t", 1, replication_factor=1)
        await producer.partitions_for("t")
        await cluster.stop_broker(cluster.leader("t", 0))
        await asyncio.sleep(20 * MS)  # until the producer has noticed that its connection ended

        error = await error_of(producer.send_and_wait("t", b"v"), 1)

        assert isinstance(error, DeliveryTimeoutError)
        assert isinstance(error, TimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert (error.topic, error.partition, error.broker, error.attempts) == ("t", 0, None, 0)
        assert 0.099 * 1000 * MS <= error.elapsed < 0.5 * 1000 * MS
        assert values(cluster) == []
        assert producer.metrics().records_failed == 1


@pytest.mark.promise(
    "Accumulator, sender, connections", "every record has a delivery timeout, with an honest outcome"
)
@in_virtual_time
async def test_a_delivery_timeout_of_sent_records_is_unknown():
    settings = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)

        error = await error_of(producer.send_and_wait("t", b"1"), 1)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.UNKNOWN
        assert (error.topic, error.partition, error.broker) == ("t", 0, 0)
        assert error.attempts >= 1
        assert isinstance(error.last_error, RequestTimedOutError)
        assert error.elapsed >= 0.099 * 1000 * MS
        assert producer.metrics().records_unknown == 1
        cluster.thaw_broker(0)


@in_virtual_time
async def test_a_batch_that_expires_in_flight_does_not_make_later_ones_fail():
    """The first attempts expire; later records are delivered as soon as the broker answers again."""
    settings = {"request_timeout_ms": 90_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        lost = cluster.faults.add(PRODUCE, drop_before=True, count=1000)
        early = await send_numbers(producer, range(1, 6))
        errors = await results(early)
        assert {error.outcome for error in errors} == {Outcome.UNKNOWN}
        lost.count = 0

        deliveries = await send_numbers(producer, range(6, 12))

        assert await offsets(deliveries) == list(range(1, 7))
        assert numbers(cluster) == [0, *range(6, 12)]


@in_virtual_time
async def test_later_records_do_not_reuse_the_number_of_an_expired_record():
    settings = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        lost = cluster.faults.add(PRODUCE, drop_after_append=True, count=1000)
        error = await error_of(producer.send_and_wait("t", b"1"), 1)
        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.UNKNOWN
        assert numbers(cluster) == [0, 1]
        lost.count = 0

        assert (await within(1, producer.send_and_wait("t", b"2"))).offset == 2
        assert numbers(cluster) == [0, 1, 2]


async def test_a_blocked_loop_does_not_expire_batches_that_were_answered_in_time():
    settings = {"request_timeout_ms": 100, "delivery_timeout_ms": 120}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        delivery = await producer.send("t", b"1")
        await until(lambda: numbers(cluster) == [0, 1] or delivery.done())
        if not delivery.done():
            time.sleep(0.4)  # noqa: ASYNC251  # the answer is in the socket, or about to be

        assert (await within(1, delivery)).offset == 1


# ------------------------------------------------------------------------------------------ why nothing was sent

SHORT = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 100_000 * MS}


@in_virtual_time
async def test_an_error_names_the_partition_without_a_leader():
    async with producing(brokers=2, topics={}, **SHORT) as (cluster, producer):
        cluster.create_topic("t", 1, replication_factor=1)
        await producer.partitions_for("t")
        await cluster.stop_broker(cluster.leader("t", 0))
        await asyncio.sleep(20 * MS)  # until the producer has noticed that its connection ended

        error = await error_of(producer.send_and_wait("t", b"v"), 1)

        assert error.outcome is Outcome.NOT_PERSISTED
        assert "the partition had no leader; nothing was sent" in str(error)


@in_virtual_time
async def test_an_error_says_that_no_broker_returned_a_producer_id():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.faults.add(INIT_PRODUCER_ID, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=10**6)
        async with quick_producer(cluster, **SHORT) as producer:
            error = await error_of(producer.send_and_wait("t", b"0"), 1)

    assert error.outcome is Outcome.NOT_PERSISTED
    assert "no broker returned a producer id (" in str(error)
    assert "COORDINATOR_LOAD_IN_PROGRESS" in str(error)


@in_virtual_time
async def test_an_error_says_that_the_cluster_cannot_be_reached():
    async with producing(**SHORT) as (cluster, producer):
        await producer.partitions_for("t")
        await cluster.stop_broker(0)
        await asyncio.sleep(20 * MS)  # until the producer has noticed that its connection ended

        error = await error_of(producer.send_and_wait("t", b"v"), 1)

        assert error.outcome is Outcome.NOT_PERSISTED
        assert "the cluster can't be reached (" in str(error)


# ------------------------------------------------------------------------------------------ late timers


@in_virtual_time
async def test_a_batch_in_flight_whose_deadline_is_noticed_late_gets_one_more_pass():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        held = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        [delivery] = await send_numbers(producer, [1])
        await within(1, held.reached())
        giving_up: GivingUp = producer._sender._giving_up
        [batch] = producer._accumulator._queues["t", 0].in_flight

        assert giving_up.expire_overdue(batch.deadline + 2 * LATE_TIMER), "its answer may be in the socket"
        assert not delivery.done()
        assert not giving_up.expire_overdue(batch.deadline + 2 * LATE_TIMER)
        assert delivery.exception().outcome is Outcome.UNKNOWN

        held.hold.set()


@in_virtual_time
async def test_a_batch_whose_deadline_is_noticed_in_time_fails_immediately():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        held = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        [delivery] = await send_numbers(producer, [1])
        await within(1, held.reached())
        [batch] = producer._accumulator._queues["t", 0].in_flight

        assert not producer._sender._giving_up.expire_overdue(batch.deadline)
        assert delivery.exception().outcome is Outcome.UNKNOWN

        held.hold.set()
