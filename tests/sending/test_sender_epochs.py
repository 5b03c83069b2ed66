"""INVALID_PRODUCER_EPOCH without transactions: another producer uses the id, or the batch has an old epoch."""

from __future__ import annotations

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from tests.support.producing import (
    INIT_PRODUCER_ID,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    error_of,
    numbers,
    offsets,
    producing,
    send_numbers,
)
from tests.support.raw_client import RawClient, address, batch_of


async def take_the_epoch(cluster, producer, epoch, partition=0):
    """Write as another producer that uses the same producer id."""
    identity = producer._sender._idempotence.identity
    async with RawClient(address(cluster)) as rival:
        batch = batch_of(b"-1", sequence=0, producer_id=identity.producer_id, epoch=epoch)
        assert (await rival.produce(batch, partition=partition)).error_code == 0
    return identity


async def test_a_producer_id_that_another_producer_uses_is_replaced(caplog):
    async with producing(topics={"t": 2}, **ONE_BATCH_PER_RECORD) as (cluster, producer):
        await offsets(await send_numbers(producer, [0], partition=0))
        await offsets(await send_numbers(producer, [0], partition=1))
        before = await take_the_epoch(cluster, producer, epoch=7)
        asked = len(cluster.requests_of(INIT_PRODUCER_ID))

        deliveries = await send_numbers(producer, range(1, 7), partition=0)
        others = await send_numbers(producer, range(1, 7), partition=1)

        assert await offsets(deliveries) == list(range(2, 8))
        assert await offsets(others) == list(range(1, 7))
        assert numbers(cluster, "t", 0) == [0, -1, *range(1, 7)]
        assert numbers(cluster, "t", 1) == list(range(7))
        after = {batch.header.producer_id for batch in cluster.batches("t", 0)} - {before.producer_id}
        assert len(after) == 1, "one new id for all rejected batches"
        assert len(cluster.requests_of(INIT_PRODUCER_ID)) == asked + 1
        assert "another producer uses the same producer id" in caplog.text


async def test_a_batch_in_doubt_is_not_sent_under_a_new_producer_id():
    async with producing() as (cluster, producer):
        await offsets(await send_numbers(producer, [0]))
        cluster.faults.add(PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT)
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_PRODUCER_EPOCH)

        error = await error_of(producer.send_and_wait("t", b"1"))

        assert type(error) is DeliveryError
        assert error.outcome is Outcome.UNKNOWN
        assert (await producer.send_and_wait("t", b"2")).offset == 1


async def test_a_batch_of_an_earlier_epoch_is_sent_again_under_the_current_one():
    """The batch waited to be sent again while another partition's gap raised the epoch."""
    settings = {"retry_backoff_ms": 40, "retry_backoff_max_ms": 40, **ONE_BATCH_PER_RECORD}
    async with producing(topics={"t": 2}, **settings) as (cluster, producer):
        await offsets(await send_numbers(producer, [0], partition=0))
        await offsets(await send_numbers(producer, [0], partition=1))
        before = producer._sender._idempotence.identity
        cluster.faults.add(PRODUCE, error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, partition=1)
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, partition=0, count=2)
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_PRODUCER_EPOCH, partition=0)

        deliveries = await send_numbers(producer, [1], partition=0)
        deliveries += await send_numbers(producer, [1], partition=1)

        assert await offsets(deliveries) == [1, 1]
        last = cluster.batches("t", 0)[-1].header
        assert (last.producer_id, last.producer_epoch) == (before.producer_id, before.epoch + 1)
        assert len(cluster.requests_of(INIT_PRODUCER_ID)) == 1


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_producer_id_is_discarded_once(epoch):
    idempotence = Idempotence(True)
    refused = ProducerIdentity(4711, epoch)
    idempotence.use(refused)
    idempotence.discard(refused)
    assert idempotence.needs_identity

    idempotence.use(ProducerIdentity(4712, 0))
    idempotence.discard(refused)

    assert idempotence.identity == ProducerIdentity(4712, 0), "it was already replaced"
