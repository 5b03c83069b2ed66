"""confluent-kafka's serializers for Avro, JSON Schema and Protobuf: round trips, registry failures, and the loop."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from confluent_kafka.schema_registry import header_schema_id_serializer
from confluent_kafka.schema_registry._async import schema_registry_client
from confluent_kafka.schema_registry.avro import AsyncAvroSerializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import AsyncProtobufSerializer

from aioproducer import Outcome, SerializationContext, blocking
from aioproducer.errors import IllegalStateError, SerializationError
from aioproducer.testing import RecordingProducer
from aioproducer.testing.apache.broker_setup import PortReservation
from tests.conftest import MS
from tests.support.producing import producing, within
from tests.support.schemas import (
    AVRO,
    FORMATS,
    ORDER,
    Order,
    new_async_client,
    new_client,
    scripted_registry,
)

MOCK = "mock://"
IMPATIENT = {"max.retries": 0, "timeout": 10_000 * MS}
"""Settings of a client that tries only once."""


async def either(result):
    """Return the result of a serializer or deserializer, awaited if it is async."""
    return await result if inspect.isawaitable(result) else result


async def close(client):
    """Close the connections of a sync or async client."""
    await either(client.aclose() if hasattr(client, "aclose") else client.close())


def made(format_name, kind):
    """Return the functions that create a client, a serializer and a deserializer."""
    format_ = FORMATS[format_name]
    if kind == "sync":
        return new_client, format_.serializer, format_.deserializer
    return new_async_client, format_.async_serializer, format_.async_deserializer


# ------------------------------------------------------------------------------------------------ round trips


@pytest.mark.promise(
    "Public API",
    "confluent-kafka's Avro, JSON Schema and Protobuf serializers, sync and async, work unchanged",
)
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("format_name", FORMATS)
async def test_keys_and_values_are_read_back_with_the_deserializer_of_the_same_kind(format_name, kind):
    new, serializer_of, deserializer_of = made(format_name, kind)
    client, value = new(MOCK), FORMATS[format_name].value
    serializer = await either(serializer_of(client))
    deserializer = await either(deserializer_of(client))

    async with producing(value_serializer=serializer, key_serializer=serializer) as (cluster, producer):
        await producer.send_and_wait("t", value, value)  # registers both schemas
        await producer.send_and_wait("t", value, value)
        assert await producer.try_send("t", value, value)
        await producer.send_and_wait("t", None, value)

        *records, tombstone = cluster.records("t")
        assert len(records) == 3
        for record in records:
            assert await either(deserializer(record.value, SerializationContext("t", "value"))) == value
            assert await either(deserializer(record.key, SerializationContext("t", "key"))) == value
        assert tombstone.value is None
    assert sorted(await either(client.get_subjects())) == ["t-key", "t-value"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("format_name", FORMATS)
async def test_a_schema_id_in_a_header_is_sent_and_read_back(format_name, kind):
    new, serializer_of, deserializer_of = made(format_name, kind)
    client, value = new(MOCK), FORMATS[format_name].value
    serializer = await either(serializer_of(client, {"schema.id.serializer": header_schema_id_serializer}))
    deserializer = await either(deserializer_of(client))

    async with producing(value_serializer=serializer) as (cluster, producer):
        await producer.send_and_wait("t", value, headers=[("source", b"web")])

        [record] = cluster.records("t")
        assert [name for name, _ in record.headers] == ["source", "__value_schema_id"]
        context = SerializationContext("t", "value", list(record.headers))
        assert await either(deserializer(record.value, context)) == value


async def test_one_producer_sends_several_schemas_with_serializers_for_one_record():
    client = new_async_client(MOCK)
    avro = await AsyncAvroSerializer(client, AVRO)
    protobuf = await AsyncProtobufSerializer(Order, client)

    async with producing() as (_, producer):
        await producer.send_and_wait("orders", {"item": 7}, value_serializer=avro)
        await producer.send_and_wait("events", Order(item=7), value_serializer=protobuf)

    assert await client.get_subjects() == ["orders-value", "events-value"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_test_double_runs_the_serializers_too(kind):
    new, serializer_of, deserializer_of = made("Avro", kind)
    client, value = new(MOCK), ORDER
    deserializer = await either(deserializer_of(client))

    async with RecordingProducer(value_serializer=await either(serializer_of(client))) as producer:
        await producer.send_and_wait("t", value)

    [sent] = producer.sent
    assert await either(deserializer(sent.value, SerializationContext("t", "value"))) == value


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_blocking_producer_runs_the_serializers(kafka_cluster, kind):
    new, serializer_of, deserializer_of = made("Avro", kind)
    client, value = new(MOCK), ORDER
    serializer = await either(serializer_of(client))
    deserializer = await either(deserializer_of(client))

    def send():
        with blocking.Producer(kafka_cluster.bootstrap_servers, value_serializer=serializer) as producer:
            producer.send("t", value).result()

    await asyncio.to_thread(send)

    [record] = kafka_cluster.records("t")
    assert await either(deserializer(record.value, SerializationContext("t", "value"))) == value


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.promise(
    "Public API", "a failure of the schema registry names serializer, topic and field; nothing is buffered"
)
@pytest.mark.parametrize("field", ["value", "key"])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (
            409,
            {"error_code": 409, "message": "Schema being registered is incompatible with an earlier schema"},
            "Schema being registered is incompatible with an earlier schema (HTTP status code 409, SR code 409)",
        ),
        (
            401,
            {"error_code": 40101, "message": "Unauthorized"},
            "Unauthorized (HTTP status code 401, SR code 40101)",
        ),
        (
            503,
            {"error_code": 50301, "message": "no leader"},
            "no leader (HTTP status code 503, SR code 50301)",
        ),
    ],
)
async def test_a_rejection_by_the_registry_is_an_error_that_names_serializer_topic_and_field(
    kind, field, status, body, text
):
    new, serializer_of, _ = made("Avro", kind)
    with scripted_registry() as registry:
        client = new(registry.url, **IMPATIENT)
        serializer = await either(serializer_of(client))
        registry.error = status, body
        async with producing(**{f"{field}_serializer": serializer}) as (cluster, producer):
            for _ in ("unknown topic", "known topic"):
                with pytest.raises(SerializationError) as caught:
                    await producer.send("t", **{field: {"item": 7}})
                assert str(caught.value) == (
                    f"the {field}_serializer {type(serializer).__name__} raised SchemaRegistryError for topic t: "
                    f"{text}; nothing was buffered"
                )
                assert caught.value.argument == field
                assert caught.value.outcome is Outcome.NOT_PERSISTED
            assert producer.metrics().records_buffered == 0

            registry.error = None
            await producer.send_and_wait("t", **{field: {"item": 7}})
            assert len(cluster.records("t")) == 1
        await close(client)


@pytest.mark.promise(
    "Public API", "a failure of the schema registry names serializer, topic and field; nothing is buffered"
)
@pytest.mark.parametrize("conf", [{}, {"use.latest.version": True}])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_missing_subject_is_an_error_that_names_serializer_topic_and_field(kind, conf):
    new, serializer_of, _ = made("Avro", kind)
    client = new(MOCK)
    serializer = await either(serializer_of(client, {"auto.register.schemas": False, **conf}))

    async with producing(value_serializer=serializer) as (_, producer):
        with pytest.raises(SerializationError) as caught:
            await producer.send("t", {"item": 7})
        assert producer.metrics().records_buffered == 0

    assert str(caught.value) == (
        f"the value_serializer {type(serializer).__name__} raised SchemaRegistryError for topic t: "
        "Schema Not Found (HTTP status code 404, SR code 40400); nothing was buffered"
    )


@pytest.mark.promise(
    "Public API", "a failure of the schema registry names serializer, topic and field; nothing is buffered"
)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_registry_that_is_down_is_an_error_that_names_serializer_topic_and_field(kind):
    new, serializer_of, _ = made("Avro", kind)
    closed = PortReservation()
    client = new(f"http://127.0.0.1:{closed.reserve()}", **IMPATIENT)
    serializer = await either(serializer_of(client))

    async with producing(value_serializer=serializer) as (_, producer):
        with pytest.raises(SerializationError) as caught:
            await producer.send("t", {"item": 7})
        assert producer.metrics().records_buffered == 0

    closed.release()
    await close(client)
    name = type(serializer).__name__
    assert str(caught.value).startswith(f"the value_serializer {name} raised ConnectError for topic t: ")
    assert str(caught.value).endswith("; nothing was buffered")
    assert caught.value.outcome is Outcome.NOT_PERSISTED


@pytest.mark.parametrize("value", [{"item": "seven"}, {}, 7])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("format_name", FORMATS)
async def test_a_value_that_does_not_fit_the_schema_is_an_error(format_name, kind, value):
    new, serializer_of, _ = made(format_name, kind)
    serializer = await either(serializer_of(new(MOCK)))

    async with producing(value_serializer=serializer) as (_, producer):
        with pytest.raises(
            SerializationError,
            match=rf"the value_serializer {type(serializer).__name__} raised \w+ for topic t: ",
        ):
            await producer.send("t", value)
        assert producer.metrics().records_buffered == 0


async def test_a_send_that_waits_for_a_silent_registry_can_be_cancelled():
    with scripted_registry() as registry:
        registry.may_answer.clear()
        client = new_async_client(registry.url)
        serializer = await AsyncAvroSerializer(client, AVRO)
        async with producing(value_serializer=serializer) as (cluster, producer):
            sending = asyncio.create_task(producer.send("t", {"item": 6}))
            await within(5, asyncio.to_thread(registry.was_asked.wait))

            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert producer.metrics().records_buffered == 0

            registry.may_answer.set()
            await within(5, producer.send_and_wait("t", {"item": 7}))
            assert [record.value[5:6] for record in cluster.records("t")] == [b"\x0e"]
        await client.aclose()


async def test_a_silent_registry_is_an_error_after_the_timeout_of_its_client():
    with scripted_registry() as registry:
        registry.may_answer.clear()
        client = new_async_client(registry.url, **{**IMPATIENT, "timeout": 50 * MS})
        serializer = await AsyncAvroSerializer(client, AVRO)
        async with producing(value_serializer=serializer) as (_, producer):
            with pytest.raises(SerializationError) as caught:
                await within(5, producer.send("t", {"item": 7}))
            assert producer.metrics().records_buffered == 0
        await client.aclose()

    assert str(caught.value) == (
        "the value_serializer AsyncAvroSerializer raised ReadTimeout for topic t; nothing was buffered"
    )


# ------------------------------------------------------------------------------------------------ the event loop


@pytest.mark.promise(
    "Public API", "an async serializer that waits for the schema registry does not block the loop"
)
@pytest.mark.parametrize("format_name", FORMATS)
async def test_the_loop_runs_while_an_async_serializer_waits_for_the_registry(format_name):
    format_ = FORMATS[format_name]
    with scripted_registry() as registry:
        registry.may_answer.clear()
        client = new_async_client(registry.url)
        serializer = await format_.async_serializer(client)
        async with producing(value_serializer=serializer) as (cluster, producer):
            sending = asyncio.create_task(producer.send_and_wait("t", format_.value))
            await within(5, asyncio.to_thread(registry.was_asked.wait))

            # Other records are sent, and stored, while this one waits for the registry.
            await producer.send_and_wait("other", b"v", value_serializer=bytes)
            assert not sending.done()

            registry.may_answer.set()  # a blocked loop would not get here before the registry gives up
            await sending
            assert len(cluster.records("t")) == 1
        await client.aclose()
    assert registry.answered_in_time == [True]


@pytest.mark.promise(
    "Public API", "an async serializer that waits for the schema registry does not block the loop"
)
@pytest.mark.parametrize("outage", ["silent", "unavailable", "refuses connections"])
@pytest.mark.parametrize("format_name", FORMATS)
async def test_the_loop_goes_on_turning_while_the_registry_is_down(format_name, outage, monkeypatch):
    pause_ms = 200_000 * MS
    monkeypatch.setattr(schema_registry_client, "full_jitter", lambda *_: pause_ms)
    conf = {"max.retries": 1, "timeout": 10_000 * MS}
    closed = PortReservation()
    with scripted_registry() as registry:
        url = registry.url
        if outage == "silent":
            registry.may_answer.clear()
            conf = {"max.retries": 0, "timeout": pause_ms / 1000}
        elif outage == "unavailable":
            registry.error = 503, {"error_code": 50301, "message": "no leader"}
        else:
            url = f"http://127.0.0.1:{closed.reserve()}"
        client = new_async_client(url, **conf)
        serializer = await FORMATS[format_name].async_serializer(client)
        async with producing(value_serializer=serializer) as (_, producer):
            await producer.partitions_for("t")
            sending = asyncio.create_task(producer.send("t", FORMATS[format_name].value))
            turns = 0
            while not sending.done():
                await asyncio.sleep(MS)
                turns += 1
            with pytest.raises(SerializationError):
                await sending
            assert producer.metrics().records_buffered == 0
        await client.aclose()
    closed.release()

    assert turns >= 10  # a loop that is blocked during the pause would turn twice


async def test_tasks_that_send_a_schema_for_the_first_time_ask_the_registry_once():
    with scripted_registry() as registry:
        client = new_async_client(registry.url)
        serializer = await AsyncAvroSerializer(client, AVRO)
        async with producing(value_serializer=serializer) as (cluster, producer):
            await asyncio.gather(*(producer.send_and_wait("t", {"item": n}) for n in range(5)))

            assert len(cluster.records("t")) == 5
        await client.aclose()
    assert registry.requests == ["POST /subjects/t-value/versions"]


async def test_a_sync_serializer_blocks_the_loop_until_the_registry_answers():
    """docs/schemas.md warns of this, and recommends async serializers."""
    with scripted_registry() as registry:
        registry.may_answer.clear()
        registry.patience = 0.1

        async def let_it_answer() -> None:
            await asyncio.to_thread(registry.was_asked.wait)
            registry.may_answer.set()

        client = new_client(registry.url)
        async with producing(value_serializer=AvroSerializer(client, AVRO)) as (_, producer):
            letting = asyncio.create_task(let_it_answer())
            await producer.send_and_wait("t", {"item": 7})
            await letting
        client.close()

    assert registry.answered_in_time == [False]


@pytest.mark.promise("Public API", "a sync serializer that was warmed up in a thread does not block the loop")
@pytest.mark.parametrize("format_name", FORMATS)
async def test_a_sync_serializer_that_was_warmed_up_in_a_thread_no_longer_asks_the_registry(format_name):
    format_ = FORMATS[format_name]
    with scripted_registry() as registry:
        registry.may_answer.clear()
        client = new_client(registry.url)
        serializer = format_.serializer(client)
        warming = asyncio.create_task(
            asyncio.to_thread(serializer, format_.value, SerializationContext("t", "value"))
        )
        await within(5, asyncio.to_thread(registry.was_asked.wait))
        registry.may_answer.set()
        await warming
        client.close()
        asked = len(registry.requests)
    assert registry.answered_in_time[0] is True

    # The registry has been stopped.
    async with producing(value_serializer=serializer) as (cluster, producer):
        for _ in range(3):
            await producer.send_and_wait("t", format_.value)

        assert len(cluster.records("t")) == 3
    assert len(registry.requests) == asked


@pytest.mark.parametrize("format_name", FORMATS)
async def test_an_async_serializer_that_knows_its_schema_does_not_wait(format_name):
    format_ = FORMATS[format_name]
    with scripted_registry() as registry:
        client = new_async_client(registry.url)
        serializer = await format_.async_serializer(client)
        async with producing(value_serializer=serializer) as (cluster, producer):
            await producer.partitions_for("t")
            with pytest.raises(IllegalStateError, match="can't wait for the async value_serializer Async"):
                producer.try_send("t", format_.value)
            await producer.send_and_wait("t", format_.value)

            await producer.try_send("t", format_.value)
            assert len(cluster.records("t")) == 2
        await client.aclose()
