"""User code: an error names the function at fault, and the value that it returned or the exception that it raised."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import serialization

from aioproducer import Producer, SerializationContext
from aioproducer.errors import (
    BrokerConnectionError,
    IllegalStateError,
    InvalidRecordError,
    SerializationError,
)
from aioproducer.network.dialer import dial
from aioproducer.types import TopicPartition
from tests.conftest import MS
from tests.support.producing import producing


def as_text(value: object) -> str:
    return str(value)


def as_generator(value: object) -> Any:
    yield b"a"


async def as_text_later(value: object) -> str:
    return str(value)


async def waits(value: object) -> bytes:
    await asyncio.sleep(0)
    return b""


class WrongSignature:
    def serialize(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("serializer", "problem", "cause"),
    [
        (as_text, "as_text returned str for topic t; it must return bytes,", None),
        (as_generator, "as_generator returned generator for topic t; it must return bytes,", None),
        (as_text_later, "as_text_later returned str for topic t; it must return bytes,", None),
        (
            WrongSignature(),
            "WrongSignature raised TypeError for topic t: WrongSignature.serialize() takes",
            TypeError,
        ),
    ],
)
@pytest.mark.parametrize("part", ["key", "value"])
async def test_a_serializer_that_fails_or_does_not_return_bytes_is_named(part, serializer, problem, cause):
    async with producing(topics={"t": 1}, **{f"{part}_serializer": serializer}) as (_, producer):
        with pytest.raises(SerializationError) as caught:
            await producer.send("t", **{"value": b"", part: 7})

        assert f"the {part}_serializer {problem}" in str(caught.value)
        assert str(caught.value).endswith("; nothing was buffered")
        assert caught.value.argument == part
        assert cause is None or type(caught.value.__cause__) is cause
        assert producer.metrics().records_buffered == 0


@pytest.mark.parametrize("made", [b"a", bytearray(b"a"), memoryview(b"a")])
async def test_a_serializer_may_return_any_bytes_like_object(made):
    async with producing(topics={"t": 1}, value_serializer=lambda value: made) as (cluster, producer):
        await producer.send_and_wait("t", 7)
        await producer.send_and_wait("t", 7)

        assert [record.value for record in cluster.records("t")] == [b"a", b"a"]


async def test_a_call_that_can_not_wait_for_an_async_serializer_is_named():
    async with producing(topics={"t": 1}, value_serializer=waits) as (_, producer):
        await producer.partitions_for("t")
        with pytest.raises(
            IllegalStateError, match="try_send can't wait for the async value_serializer waits; use send"
        ):
            producer.try_send("t", 7)
        with pytest.raises(
            IllegalStateError, match="a batch built by hand can't wait for the async value_ser"
        ):
            producer.create_batch().append(key=None, value=7)


def test_a_context_has_the_attributes_of_confluents_context_and_message_field():
    theirs = serialization.SerializationContext("orders", serialization.MessageField.VALUE, [("h", b"x")])
    ours = SerializationContext("orders", "value", [("h", b"x")])

    assert ours.field == serialization.MessageField.VALUE
    assert SerializationContext("orders", "key").field == serialization.MessageField.KEY
    assert {name: getattr(ours, name) for name in vars(theirs)} == vars(theirs)


async def test_confluents_own_serializers_work_unchanged():
    settings = {
        "value_serializer": serialization.StringSerializer("utf_8"),
        "key_serializer": serialization.IntegerSerializer(),
    }
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", "text", 7)
        await producer.send_and_wait("t", None, 8)
        await producer.send_and_wait("t", 0.5, 9, value_serializer=serialization.DoubleSerializer())

        assert [(record.key, record.value) for record in cluster.records("t")] == [
            (b"\0\0\0\7", b"text"),
            (b"\0\0\0\x08", None),
            (b"\0\0\0\x09", b"?\xe0\0\0\0\0\0\0"),
        ]


async def choose_later(key: object, every: object, available: object) -> int:
    return 0


def choose_a_word(key: object, every: object, available: object) -> str:
    return "one"


@pytest.mark.parametrize(
    ("partitioner", "problem"),
    [
        (choose_later, "choose_later returned a coroutine (a partitioner cannot be async) for topic t;"),
        (
            choose_a_word,
            "choose_a_word returned str for topic t; it must return one of the topic's partitions",
        ),
        (
            lambda *_: 2,
            "returned 2 for topic t; it must return one of the topic's partitions, an int from 0 to 1",
        ),
        (lambda: 0, "raised TypeError for topic t"),
    ],
)
async def test_a_partitioner_that_fails_or_makes_no_choice_is_named(partitioner, problem):
    async with producing(topics={"t": 2}, partitioner=partitioner) as (_, producer):
        with pytest.raises(InvalidRecordError) as caught:
            await producer.send("t", b"")

        assert problem in str(caught.value)
        assert str(caught.value).startswith("the partitioner ")
        assert "; nothing was buffered" in str(caught.value)


@pytest.mark.parametrize(
    "partitioner",
    ["murmur2", "consistent_random", "consistent", "fnv1a", "random", "round_robin", choose_a_word],
)
async def test_a_key_that_is_not_bytes_is_not_blamed_on_the_partitioner(partitioner):
    async with producing(topics={"t": 2}, partitioner=partitioner) as (_, producer):
        with pytest.raises(InvalidRecordError, match=r"the key must be bytes.*not str; encode it"):
            await producer.send("t", b"", key="ann")


async def test_a_participant_rejects_a_key_that_is_not_bytes():
    place = TopicPartition("t", 1)
    async with producing(topics={"t": 2}, transactional_id="x") as (cluster, owner):
        async with owner.transaction() as transaction:
            handle = await transaction.export([place])
            servers = cluster.bootstrap_servers
            async with Producer.attach(handle, partitions=[place], bootstrap_servers=servers) as producer:
                with pytest.raises(InvalidRecordError, match="the key must be bytes"):
                    await producer.send("t", b"", key="ann")
                await producer.send("t", b"", partition=1)


class AsyncInterceptor:
    async def on_send(self, record: object) -> object:
        return record

    async def on_acknowledgement(self, result: object) -> None:
        pass


async def test_async_interceptors_are_named_and_skipped(caplog):
    async with producing(topics={"t": 1}, interceptors=[AsyncInterceptor()]) as (_, producer):
        await producer.send_and_wait("t", b"")

    assert "AsyncInterceptor.on_send returned coroutine instead of a ProducerRecord" in caplog.text
    assert "AsyncInterceptor.on_acknowledgement is async and was skipped for this record" in caplog.text


async def connect_nothing(host: str, port: int) -> None:
    return None


def connect_now(host: str, port: int) -> socket.socket | None:
    return None


async def connect_wrongly(host: str, port: int) -> None:
    raise ValueError("no proxy")


@pytest.mark.parametrize(
    ("connector", "problem"),
    [
        (
            connect_nothing,
            "the connector connect_nothing returned NoneType; it must return a connected socket",
        ),
        (connect_now, "the connector connect_now returned NoneType; it must be async and return a connected"),
        (connect_wrongly, "the connector connect_wrongly raised ValueError: no proxy"),
        (lambda: None, "raised TypeError"),
    ],
)
async def test_a_connector_that_fails_or_opens_nothing_is_named(connector: Callable[..., Any], problem):
    with pytest.raises(BrokerConnectionError) as caught:
        await dial("broker.example", 9092, 1000 * MS, connector=connector)

    assert str(caught.value).startswith("broker.example:9092: the connector ")
    assert problem in str(caught.value)
