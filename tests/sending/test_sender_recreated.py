"""Records in doubt when their topic is re-created: only those addressed by its name can be in the new log."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from aioproducer import DeliveryError, DeliveryTimeoutError, Outcome
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records.idempotence import LAST_EPOCH
from tests.conftest import in_virtual_time
from tests.support.producing import (
    INIT_PRODUCER_ID,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    numbers,
    offsets,
    producing,
    results,
    send_numbers,
    until,
    within,
)

IN_DOUBT = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, None]
"""The broker's possible answers after it appended the batch; None if it closes the connection instead."""


async def recreate_in_flight(cluster, producer, answer, count=5):
    """Send some records, and re-create the topic while the first is in the old log and its answer is held back."""
    await producer.send_and_wait("t", b"0")
    await offsets(await send_numbers(producer, [0]))
    release = asyncio.Event()
    mishap = {"drop_after_append": True} if answer is None else {"error": answer, "after_append": True}
    held = cluster.faults.add(PRODUCE, hold=release, **mishap)
    deliveries = await send_numbers(producer, range(1, 1 + count))
    await within(1, held.reached())
    await until(lambda: producer.metrics().in_flight == count)
    cluster.delete_topic("t")
    cluster.create_topic("t", 1)
    release.set()
    return deliveries


@pytest.mark.parametrize("answer", IN_DOUBT, ids=str)
async def test_records_in_doubt_addressed_by_topic_id_are_sent_to_the_new_topic_once(answer):
    async with producing(cluster={"versions": "4.1"}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        deliveries = await recreate_in_flight(cluster, producer, answer)

        assert await offsets(deliveries) == list(range(5))
        assert numbers(cluster) == list(range(1, 6)), "all of them, in order, without duplicates"
        assert producer.metrics().records_unknown == 0
        assert (await producer.send_and_wait("t", b"6")).offset == 5


@pytest.mark.parametrize("answer", IN_DOUBT[:2], ids=str)
@pytest.mark.parametrize("versions", ["2.8", "3.9", "4.0"])
async def test_records_in_doubt_addressed_by_topic_name_may_be_in_either_log(versions, answer):
    async with producing(cluster={"versions": versions}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        deliveries = await recreate_in_flight(cluster, producer, answer)

        found = await results(deliveries)

        assert isinstance(found[0], DeliveryError)
        assert found[0].outcome is Outcome.UNKNOWN
        # Either the new metadata or the next attempt comes first.
        assert any(
            text in str(found[0]) for text in ("the topic was re-created", "OUT_OF_ORDER_SEQUENCE_NUMBER")
        )
        log = numbers(cluster)
        assert log == sorted(set(log))
        for number, end in enumerate(found, 1):
            assert isinstance(end, BaseException) or number in log
        assert (await producer.send_and_wait("t", b"6")).offset == len(log)


@in_virtual_time
async def test_a_record_that_moved_to_the_new_topic_and_fails_there_is_still_unknown():
    """The record may be in the deleted log, where consumers may have read it."""
    settings = {"request_timeout_ms": 100, "delivery_timeout_ms": 400, **ONE_BATCH_PER_RECORD}
    async with producing(cluster={"versions": "4.1"}, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT, after_append=True)
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=10_000)
        (delivery,) = await send_numbers(producer, [1])
        await until(lambda: "NOT_ENOUGH_REPLICAS" in producer.metrics().errors)
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)

        (error,) = await results([delivery])

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.UNKNOWN
        cluster.faults.clear()


@pytest.mark.parametrize("waits", [False, True], ids=["sent meanwhile", "not sent meanwhile"])
async def test_outdated_metadata_moves_no_record_back_into_a_log_that_may_contain_it(waits):
    """The metadata temporarily shows the old topic again. `waits`: the epochs are used up, so a new id is needed."""
    async with producing(cluster={"versions": "4.1"}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        old = producer._metadata.cluster
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        assert (await within(2, producer.send_and_wait("t", b"1"))).offset == 0
        new = producer._metadata.cluster
        assert new.topics["t"].topic_id != old.topics["t"].topic_id
        if waits:
            idempotence = producer._sender._idempotence
            idempotence.use(idempotence.identity._replace(epoch=LAST_EPOCH))
        release, identify = asyncio.Event(), asyncio.Event()
        timed_out = {"error": ErrorCode.REQUEST_TIMED_OUT, "after_append": True}
        held = cluster.faults.add(PRODUCE, hold=release, **timed_out)
        asked = cluster.faults.add(INIT_PRODUCER_ID, hold=identify)

        deliveries = await send_numbers(producer, [2, 3])
        await within(1, held.reached())
        late = dataclasses.replace(new, topics={**new.topics, "t": old.topics["t"]})
        producer._metadata._publish(late)
        release.set()
        if waits:
            await within(1, asked.reached())
            producer._metadata._publish(new)
        identify.set()
        found = await results(deliveries)

        log = numbers(cluster)
        assert log == sorted(set(log)), "no record is duplicated"
        assert 2 in log
        assert isinstance(found[0], DeliveryError)
        assert found[0].outcome is Outcome.UNKNOWN
        assert "the topic was re-created" in str(found[0])
        assert (await producer.send_and_wait("t", b"4")).offset == len(log)
