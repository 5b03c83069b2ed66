"""A program for type checkers only: test_typing.py passes it to mypy and pyright.

A line with `type: ignore` must have an error, because both checkers report an ignore that is not needed. Each
line without it must have no error."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict, assert_type

import aiokafka
import aiokafka.structs
from confluent_kafka import Consumer

import aioproducer
from aioproducer import (
    Delivery,
    Producer,
    RecordMetadata,
    SerializationContext,
    TopicPartition,
    blocking,
)
from aioproducer.testing import RecordingProducer
from aioproducer.types import Data


class Order(TypedDict):
    item: int


def to_json(order: Order) -> bytes:
    return json.dumps(order).encode()


async def to_json_later(order: Order) -> bytes | None:
    return to_json(order)


def with_context(order: Order, context: SerializationContext) -> bytes:
    return context.topic.encode() + to_json(order)


def indented(order: Order, indent: int = 2) -> bytearray:
    return bytearray(json.dumps(order, indent=indent).encode())


class OrderSerializer:
    def serialize(self, topic: str, value: Order, headers: object, /) -> bytes:
        return to_json(value)


class OrderProducer(Producer[str, Order]):
    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers, key_serializer=str.encode, value_serializer=to_json)


async def without_serializers(producer: Producer) -> None:
    await producer.send("orders", b"7", bytearray(b"42"), headers=[("source", b"web")])
    await producer.send("orders", memoryview(b"7"))
    await producer.send("orders")
    assert_type(await producer.send_and_wait("orders", b"7", key=None), RecordMetadata)
    assert_type(producer.try_send("orders", b"7", b"42", 0, 1, None, timeout=1), Delivery)

    await producer.send("orders", {"item": 7})  # type: ignore[call-overload]
    await producer.send("orders", b"7", "42")  # type: ignore[call-overload]
    await producer.send_and_wait("orders", "7")  # type: ignore[call-overload]
    producer.try_send("orders", 7)  # type: ignore[call-overload]
    await producer.send("orders", b"7", headers={"source": b"web"})  # type: ignore[call-overload]


async def with_serializers() -> None:
    producer = Producer("localhost:9092", value_serializer=to_json)
    assert_type(producer, Producer[Data, Order])
    await producer.send("orders", {"item": 7}, b"42")
    await producer.send("orders", None)  # a tombstone
    await producer.send("orders", {"article": 7})  # type: ignore[call-overload]
    await producer.send("orders", b"7")  # type: ignore[call-overload]
    await without_serializers(producer)  # type: ignore[arg-type]

    assert_type(Producer(key_serializer=str.encode, value_serializer=to_json_later), Producer[str, Order])
    assert_type(Producer(value_serializer=with_context), Producer[Data, Order])
    assert_type(Producer(value_serializer=indented), Producer[Data, Order])
    await Producer(value_serializer=partial(indented, indent=4)).send("orders", {"item": 7})
    assert_type(Producer(value_serializer=OrderSerializer()), Producer[Data, Order])
    await Producer(value_serializer=pickle.dumps).send("orders", object())
    Producer(value_serializer=json.dumps)  # type: ignore[arg-type]
    Producer(value_serializer="utf-8")  # type: ignore[arg-type]

    annotated: Producer[Data, Any] = Producer(value_serializer=lambda value: json.dumps(value).encode())
    await annotated.send("orders", {"item": 7})
    configured = Producer[str, Order].from_config({}, key_serializer=str.encode, value_serializer=to_json)
    await configured.send("orders", {"item": 7}, "42")
    await configured.send("orders", 7)  # type: ignore[call-overload]
    await OrderProducer("localhost:9092").send("orders", {"item": 7}, "42")
    await OrderProducer("localhost:9092").send("orders", {"item": 7}, b"42")  # type: ignore[call-overload]


async def serializers_of_one_record(producer: Producer, order: Order) -> None:
    await producer.send("orders", order, value_serializer=to_json)
    await producer.send("orders", order, b"42", value_serializer=OrderSerializer())
    await producer.send("orders", b"7", "42", key_serializer=str.encode)
    await producer.send_and_wait("orders", order, "42", key_serializer=str.encode, value_serializer=to_json)
    producer.try_send("orders", "7", value_serializer=str.encode)
    await producer.send("orders", "7", value_serializer=to_json)  # type: ignore[arg-type]
    await producer.send("orders", order, "42", value_serializer=to_json)  # type: ignore[call-overload]
    await producer.send("orders", order, "42", key_serializer=str.encode)  # type: ignore[call-overload]


def settings(chosen: Callable[[], Mapping[str, Any]]) -> None:
    Producer(acks=1, compression_type="zstd", partitioner="consistent_random")
    Producer(partitioner=lambda key, all_partitions, available: 0, compression_type=None)
    Producer(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_plain_username="ann")
    Producer(**chosen())
    blocking.Producer(acks="all", compression_type="lz4", security_protocol="SSL")

    Producer(acks="most")  # type: ignore[arg-type]
    Producer(acks=2)  # type: ignore[arg-type]
    Producer(compression_type="zip")  # type: ignore[arg-type]
    Producer(partitioner="murmur3")  # type: ignore[arg-type]
    Producer(security_protocol="TLS")  # type: ignore[arg-type]
    Producer(sasl_mechanism="SCRAM")  # type: ignore[arg-type]
    Producer(metadata_recovery_strategy="restart")  # type: ignore[arg-type]
    Producer(lingerms=5)  # type: ignore[call-arg]
    blocking.Producer(acks="most")  # type: ignore[arg-type]
    blocking.Producer(sasl_mechanism="SCRAM")  # type: ignore[arg-type]
    blocking.Producer(lingerms=5)  # type: ignore[call-arg]
    RecordingProducer(compression_type="zip")  # type: ignore[arg-type]


async def offsets(producer: Producer, consumer: Consumer, scope: blocking.TransactionScope) -> None:
    await producer.send_offsets_to_transaction({("orders", 0): 5}, "billing")
    await producer.send_offsets_to_transaction({TopicPartition("orders", 0): (5, "noted")}, "billing")
    positions = {aiokafka.TopicPartition("orders", 0): aiokafka.structs.OffsetAndMetadata(5, "noted")}
    await producer.send_offsets_to_transaction(positions, "billing")
    await producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), "billing")
    scope.send_offsets({("orders", 0): 5}, "billing")
    await producer.send_offsets_to_transaction({("orders", 0): "5"}, "billing")  # type: ignore[arg-type]
    await producer.send_offsets_to_transaction([("orders", 0)], "billing")  # type: ignore[list-item]


async def futures(delivery: Delivery) -> None:
    done, pending = await asyncio.wait([delivery])
    assert_type(done | pending, set[Delivery])
    for each in done:
        assert_type(each.result().offset, int | None)
    assert_type(await delivery, RecordMetadata)
    assert_type(await asyncio.shield(delivery), RecordMetadata)
    assert_type(await asyncio.wait_for(delivery, 1), RecordMetadata)
    assert_type(await asyncio.gather(delivery, delivery), tuple[RecordMetadata, RecordMetadata])
    assert_type(await aioproducer.gather([delivery]), list[RecordMetadata])
    assert_type(
        await aioproducer.gather([delivery], return_exceptions=True), list[RecordMetadata | BaseException]
    )
    delivery.add_done_callback(lambda ended: ended.topic_partition)


def without_await() -> None:
    with blocking.Producer("localhost:9092", value_serializer=to_json) as producer:
        assert_type(producer, blocking.Producer[Data, Order])
        assert_type(producer.send("orders", {"item": 7}), blocking.Delivery)
        assert_type(producer.send_and_wait("orders", {"item": 7}), RecordMetadata)
        assert_type(
            producer.try_send("orders", b"7", "42", key_serializer=str.encode, value_serializer=bytes),
            blocking.Delivery,
        )
        producer.send("orders", b"7")  # type: ignore[call-overload]
        producer.send_and_wait("orders", b"7")  # type: ignore[call-overload]
        producer.try_send("orders", {"item": 7}, "42")  # type: ignore[call-overload]
    assert_type(blocking.Producer(), blocking.Producer[Data, Data])
    blocking.Producer[str, Order].from_env(value_serializer=to_json).send("orders", {"item": 7}, "42")


async def in_tests() -> None:
    async with RecordingProducer(value_serializer=to_json) as producer:
        assert_type(producer, RecordingProducer[Data, Order])
        assert_type(await producer.send("orders", {"item": 7}), Delivery)
        await producer.send("orders", b"7")  # type: ignore[call-overload]
        await takes_orders(producer)
    plain = RecordingProducer()
    await takes_orders(plain)  # type: ignore[arg-type]


async def takes_orders(producer: Producer[bytes, Order]) -> None:
    await producer.send("orders", {"item": 7}, b"42")
