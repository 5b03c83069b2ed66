"""confluent-kafka's serializers with a real schema registry: round trips, and what the registry rejects."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from confluent_kafka.schema_registry import ConfigCompatibilityLevel, ServerConfig
from confluent_kafka.schema_registry.avro import AsyncAvroSerializer, AvroSerializer

from aioproducer import SerializationContext, blocking
from aioproducer.errors import SerializationError
from aioproducer.testing import SchemaRegistry
from tests.conftest import MS
from tests.support.producing import producing, within
from tests.support.schemas import (
    AVRO,
    AVRO_WITH_TEXT,
    FORMATS,
    ORDER,
    new_async_client,
    new_client,
)

pytestmark = [pytest.mark.slow, pytest.mark.schema_registry]


@pytest.fixture
async def client(schema_registry):
    async with new_async_client(schema_registry.url) as client:
        yield client


@pytest.mark.promise(
    "Public API",
    "confluent-kafka's Avro, JSON Schema and Protobuf serializers, sync and async, work unchanged",
)
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("format_name", FORMATS)
async def test_keys_and_values_are_read_back_by_an_async_deserializer(
    schema_registry, client, topic, format_name, kind
):
    format_ = FORMATS[format_name]
    async with contextlib.AsyncExitStack() as stack:
        if kind == "sync":
            serializer = format_.serializer(stack.enter_context(new_client(schema_registry.url)))
            for field in ("value", "key"):
                await asyncio.to_thread(serializer, format_.value, SerializationContext(topic, field))
        else:
            writer = await stack.enter_async_context(new_async_client(schema_registry.url))
            serializer = await format_.async_serializer(writer)
        async with producing(value_serializer=serializer, key_serializer=serializer) as (cluster, producer):
            for _ in range(2):
                await producer.send_and_wait(topic, format_.value, format_.value)
            records = cluster.records(topic)

    # Apicurio 3.3.3 fails to return the Protobuf schemas of confluent-kafka, so the reader has to know them already.
    if format_name == "Protobuf":
        learning = await format_.async_serializer(client)
        for field in ("value", "key"):
            await learning(format_.value, SerializationContext(topic, field))
    deserializer = await format_.async_deserializer(client)
    assert len(records) == 2
    for record in records:
        assert await deserializer(record.value, SerializationContext(topic, "value")) == format_.value
        assert await deserializer(record.key, SerializationContext(topic, "key")) == format_.value
    assert {f"{topic}-key", f"{topic}-value"} <= set(await client.get_subjects())


async def test_an_incompatible_schema_is_an_error_that_names_serializer_topic_and_field(client, topic):
    async with producing() as (cluster, producer):
        old = await AsyncAvroSerializer(client, AVRO)
        await producer.send_and_wait(topic, ORDER, value_serializer=old)
        backward = ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD)
        await client.set_config(f"{topic}-value", backward)

        new = await AsyncAvroSerializer(client, AVRO_WITH_TEXT)
        with pytest.raises(SerializationError) as caught:
            await producer.send(topic, {"item": "seven"}, value_serializer=new)

        assert producer.metrics().records_buffered == 0
        assert len(cluster.records(topic)) == 1
    prefix = f"the value_serializer AsyncAvroSerializer raised SchemaRegistryError for topic {topic}: "
    assert str(caught.value).startswith(prefix)
    assert str(caught.value).endswith("; nothing was buffered")
    assert caught.value.__cause__.http_status_code == 409


@pytest.mark.parametrize(
    "conf", [{"auto.register.schemas": False}, {"auto.register.schemas": False, "use.latest.version": True}]
)
async def test_a_missing_subject_is_an_error_that_names_serializer_topic_and_field(client, topic, conf):
    serializer = await AsyncAvroSerializer(client, AVRO, conf=conf)

    async with producing(key_serializer=serializer) as (_, producer):
        with pytest.raises(SerializationError) as caught:
            await producer.send(topic, b"v", ORDER)
        assert producer.metrics().records_buffered == 0
    assert str(caught.value).startswith(
        f"the key_serializer AsyncAvroSerializer raised SchemaRegistryError for topic {topic}: "
    )
    assert caught.value.__cause__.http_status_code == 404


async def test_a_blocking_producer_sends_with_a_sync_serializer_that_was_called_before(
    schema_registry, topic, kafka_cluster
):
    def send():
        with new_client(schema_registry.url) as client:
            serializer = AvroSerializer(client, AVRO)
            first = serializer(ORDER, SerializationContext(topic, "value"))
            with blocking.Producer(kafka_cluster.bootstrap_servers, value_serializer=serializer) as producer:
                for _ in range(3):
                    producer.send(topic, ORDER).result()
        return first

    first = await asyncio.to_thread(send)

    assert [record.value for record in kafka_cluster.records(topic)] == [first] * 3


async def test_a_registry_that_becomes_silent_and_then_dies_stops_only_new_schemas():
    async with SchemaRegistry() as registry, contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(new_async_client(registry.url, timeout=2000 * MS))
        serializer = await AsyncAvroSerializer(client, AVRO)
        async with producing(value_serializer=serializer) as (cluster, producer):
            await producer.send_and_wait("known", ORDER)

            registry.pause()
            with pytest.raises(
                SerializationError, match="raised ReadTimeout for topic silent; nothing was buffered"
            ):
                await within(60, producer.send("silent", ORDER))
            await producer.send_and_wait("known", ORDER)

            registry.resume()
            await producer.send_and_wait("silent", ORDER)

            registry.kill()
            with pytest.raises(
                SerializationError, match=r"raised (Connect|Read)Error for topic dead: .*; nothing was"
            ):
                await within(60, producer.send("dead", ORDER))
            await producer.send_and_wait("known", ORDER)
            assert [len(cluster.records(name)) for name in ("known", "silent")] == [3, 1]
