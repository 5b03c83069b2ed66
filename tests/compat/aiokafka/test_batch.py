"""Batches built by hand, through the compat producer."""

from __future__ import annotations

import json

import pytest

from aioproducer.compat.aiokafka.batch import BatchBuilder
from aioproducer.compat.aiokafka.errors import IllegalOperation, ProducerClosed
from tests.support.compat import aiokafka_producing


async def test_a_batch_accepts_records_until_it_is_full_and_is_sent():
    async with aiokafka_producing(max_batch_size=10_000) as (cluster, producer):
        await producer.send_and_wait("t", b"discovering offset", partition=1)
        batch = producer.create_batch()
        assert isinstance(batch, BatchBuilder)
        assert (batch.record_count(), batch.closed()) == (0, False)

        count = 0
        while (metadata := batch.append(key=b"test key", value=b"test value", timestamp=None)) is not None:
            assert metadata.offset == count
            count += 1

        assert count > 100
        assert (batch.record_count(), batch.closed()) == (count, True)
        assert 0 < batch.size() <= 10_000
        stored = await (await producer.send_batch(batch, "t", partition=1))
        assert (stored.topic, stored.partition, stored.offset) == ("t", 1, 1)
        assert len(cluster.records("t", 1)) == count + 1


async def test_a_record_larger_than_a_batch_is_accepted_as_the_first_one_only():
    async with aiokafka_producing(max_batch_size=1000) as (_, producer):
        first, second = producer.create_batch(), producer.create_batch()
        second.append(key=None, value=b"short", timestamp=None)

        assert first.append(key=None, value=bytes(1001), timestamp=None) is not None
        assert second.append(key=None, value=bytes(1001), timestamp=None) is None


async def test_a_closed_batch_accepts_nothing_and_calls_no_serializer():
    called = []

    async with aiokafka_producing(value_serializer=called.append) as (_, producer):
        batch = producer.create_batch()
        batch.close()

        assert batch.append(key=None, value="v", timestamp=None) is None
        assert called == []


async def test_a_batch_is_serialized_and_none_reaches_the_serializers():
    async with aiokafka_producing(
        key_serializer=lambda key: b"no key" if key is None else key.upper().encode(),
        value_serializer=lambda value: json.dumps(value, separators=(",", ":")).encode(),
    ) as (cluster, producer):
        batch = producer.create_batch()
        batch.append(key="key1", value={"value": 111}, timestamp=None)
        batch.append(key=None, value=None, timestamp=5, headers=[("h", b"v")])

        await (await producer.send_batch(batch, "t", partition=0))

        first, second = cluster.records("t", 0)
        assert (first.key, first.value) == (b"KEY1", b'{"value":111}')
        assert (second.key, second.value, second.timestamp) == (b"no key", b"null", 5)
        assert list(second.headers) == [("h", b"v")]


async def test_a_value_that_is_not_bytes_is_a_type_error_and_a_serializers_error_is_raised_unchanged():
    async with aiokafka_producing() as (_, producer):
        with pytest.raises(TypeError):
            producer.create_batch().append(key=None, value="text", timestamp=None)

    async with aiokafka_producing(value_serializer=json.dumps) as (_, producer):
        with pytest.raises(TypeError, match="not JSON serializable"):
            producer.create_batch().append(key=None, value={1, 2}, timestamp=None)


async def test_a_batch_can_be_sent_once_and_not_after_stop():
    async with aiokafka_producing() as (_, producer):
        batch, other = producer.create_batch(), producer.create_batch()
        for one in (batch, other):
            one.append(key=None, value=b"v", timestamp=None)
        await (await producer.send_batch(batch, "t", partition=0))

        with pytest.raises(IllegalOperation):
            await producer.send_batch(batch, "t", partition=0)
        await producer.stop()
        with pytest.raises(ProducerClosed):
            await producer.send_batch(other, "t", partition=0)
