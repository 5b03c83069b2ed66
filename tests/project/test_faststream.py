"""FastStream's broker with the publisher of examples/faststream_app.py."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib import metadata

import pytest
from faststream.kafka import KafkaBroker

from aioproducer import DeliveryError
from aioproducer.compat.aiokafka import AIOKafkaProducer
from aioproducer.compat.aiokafka.errors import PolicyViolationError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from faststream_app import Publisher, publish_with
from tests.support.producing import PRODUCE

one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])


@asynccontextmanager
async def publishing(**settings):
    """A cluster with topic "t" of two partitions, and a connected broker that publishes with aioproducer."""
    async with EmbeddedCluster(topics={"t": 2}) as cluster:
        broker = KafkaBroker(cluster.bootstrap_servers, logger=None)
        publish_with(broker, bootstrap_servers=cluster.bootstrap_servers, **settings)
        async with broker:
            yield cluster, broker


def producer_of(broker):
    publisher = broker.config.producer
    assert isinstance(publisher, Publisher)
    return publisher._producer.producer


@pytest.mark.promise("Coming from other clients", "FastStream publishes through aioproducer")
@one_loop
async def test_a_record_is_published_by_aioproducer():
    async with publishing() as (cluster, broker):
        found = await broker.publish({"a": 1}, "t", key=b"k", partition=1, headers={"h": "v"}, timestamp_ms=5)

        assert isinstance(producer_of(broker), AIOKafkaProducer)
        assert (found.topic, found.partition, found.offset) == ("t", 1, 0)
        [record] = cluster.records("t", 1)
        assert (record.key, record.value, record.timestamp) == (b"k", b'{"a":1}', 5)
        assert ("h", b"v") in list(record.headers)
        assert await broker.ping(5)


@one_loop
async def test_a_publisher_object_uses_aioproducer():
    async with publishing() as (cluster, broker):
        publisher = broker.publisher("t", key=b"k", partition=0)

        await publisher.publish("text")

        assert [(record.key, record.value) for record in cluster.records("t", 0)] == [(b"k", b"text")]
        assert cluster.batches("t", 0)[0].header.producer_id >= 0, "not idempotent, so not by aioproducer"


@one_loop
async def test_without_confirmation_the_result_is_a_future():
    async with publishing(linger_ms=20) as (_, broker):
        future = await broker.publish("text", "t", no_confirm=True)

        assert asyncio.isfuture(future)
        assert (await future).offset == 0


@one_loop
async def test_a_batch():
    async with publishing() as (cluster, broker):
        await broker.publish_batch("one", "two", topic="t", partition=0)

        assert [record.value for record in cluster.records("t", 0)] == [b"one", b"two"]
        assert len(cluster.batches("t", 0)) == 1


@one_loop
async def test_an_error_has_the_classes_of_aiokafka_and_aioproducer():
    async with publishing() as (cluster, broker):
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION)

        with pytest.raises(PolicyViolationError) as caught:
            await broker.publish("text", "t")

        assert isinstance(caught.value, DeliveryError)


@one_loop
async def test_stopping_the_broker_delivers_its_records_and_closes_the_producer():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        broker = KafkaBroker(cluster.bootstrap_servers, logger=None)
        publish_with(broker, bootstrap_servers=cluster.bootstrap_servers, linger_ms=1000)
        async with broker:
            await broker.publish("text", "t", no_confirm=True)
            producer = producer_of(broker)

        assert producer._closed
        assert [record.value for record in cluster.records("t", 0)] == [b"text"]


def test_the_version_is_the_one_that_the_example_names():
    assert metadata.version("faststream").startswith("0.7.")
