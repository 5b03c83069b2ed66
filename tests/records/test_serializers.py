"""Serializers: plain or async, functions or objects; an exception or an invalid result becomes one error."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Outcome
from aioproducer.errors import IllegalStateError, InvalidRecordError, SerializationError
from aioproducer.records.serializers import serialized, serialized_now
from tests.support.producing import numbers, producing, values, within

# ------------------------------------------------------------------------------------------------ one call


class AnyAwaitable:
    """An awaitable that is not a coroutine."""

    def __init__(self, result: object) -> None:
        self._result = result

    def __await__(self):
        yield from ()
        return self._result


async def test_without_a_serializer_the_value_passes_as_it_is():
    value = object()

    assert await serialized(None, value, "t", None, "value") is value
    assert serialized_now(None, value, "t", None, "value") is value


async def test_a_serializer_may_return_none_or_any_buffer():
    for made in (None, b"v", bytearray(b"v"), memoryview(b"v")):
        assert await serialized(lambda _: made, 7, "t", None, "value") is made  # noqa: B023  # called at once
        assert serialized_now(lambda _: made, 7, "t", None, "value") is made  # noqa: B023


async def test_what_can_be_awaited_is_awaited_also_if_it_is_not_a_coroutine():
    assert await serialized(lambda _: AnyAwaitable(b"v"), 7, "t", None, "value") == b"v"
    with pytest.raises(IllegalStateError, match="try_send can't wait for the async key_serializer"):
        serialized_now(lambda _: AnyAwaitable(b"v"), 7, "t", None, "key")


async def test_a_method_named_serialize_is_used_rather_than_a_call():
    class Both:
        def __call__(self, value):
            raise AssertionError

        def serialize(self, topic, value, headers):
            return b"%s %s %d" % (topic.encode(), value, len(headers))

    headers = [("name", b"value")]

    assert await serialized(Both(), b"v", "t", headers, "value") == b"t v 1"
    assert serialized_now(Both(), b"v", "t", headers, "value") == b"t v 1"


async def test_a_cancellation_inside_a_serializer_is_not_a_serialization_error():
    async def cancelled(value: object) -> bytes:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await serialized(cancelled, 7, "t", None, "value")


@pytest.mark.parametrize(("topic", "where"), [("t", " for topic t"), ("", "")])
async def test_both_ways_name_the_part_and_the_topic_if_it_is_known_and_show_no_value(topic, where):
    def fails(value: object) -> bytes:
        raise ValueError(f"can't encode {value}")

    with pytest.raises(SerializationError) as waited:
        await serialized(fails, "secret", topic, None, "key")
    with pytest.raises(SerializationError) as at_once:
        serialized_now(fails, "secret", topic, None, "key")

    for caught in (waited, at_once):
        assert f"raised ValueError{where}; nothing was buffered" in str(caught.value)
        assert "the key_serializer" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert caught.value.argument == "key"
        assert type(caught.value.__cause__) is ValueError


# ------------------------------------------------------------------------------------------------ in a producer


@pytest.mark.promise("Public API", "serializers are optional, sync or async")
@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a serializer is a function or an object with `serialize`, either may be async",
)
async def test_serializers_are_plain_functions():
    settings = {"value_serializer": lambda value: str(value).encode(), "key_serializer": str.encode}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", 42, "key")
        delivery = producer.try_send("t", 43, "key")
        await within(1, delivery)

        assert [(record.key, record.value) for record in cluster.records("t")] == [
            (b"key", b"42"),
            (b"key", b"43"),
        ]


@pytest.mark.promise("Public API", "serializers are optional, sync or async")
@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a serializer is a function or an object with `serialize`, either may be async",
)
async def test_serializers_may_be_async():
    async def slowly(value: int) -> bytes:
        await asyncio.sleep(0)
        return b"%d" % value

    async with producing(value_serializer=slowly) as (cluster, producer):
        await producer.send_and_wait("t", 42)
        with pytest.raises(IllegalStateError):
            producer.try_send("t", 43)

        assert numbers(cluster) == [42]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a serializer is a function or an object with `serialize`, either may be async",
)
async def test_serializers_may_be_objects_that_see_topic_and_headers():
    class Registry:
        async def serialize(self, topic, value, headers):
            headers.append(("schema", topic.encode()))
            return b"<%s>" % value

    class Plain:
        def serialize(self, topic, value, headers):
            return value.upper()

    async with producing(value_serializer=Registry(), key_serializer=Plain()) as (cluster, producer):
        await producer.send_and_wait("t", b"v", b"k", headers=[])

        (record,) = cluster.records("t")
        assert (record.key, record.value, record.headers) == (b"K", b"<v>", (("schema", b"t"),))


@pytest.mark.promise("Public API", "serializers are optional, sync or async")
async def test_a_serializer_that_raises_is_the_cause_of_the_error_and_nothing_is_buffered():
    def picky(value: object) -> bytes:
        if value == "bad":
            raise ValueError("no")
        return b"%s" % value

    async def picky_too(value: object) -> bytes:
        return picky(value)

    for serializer in (picky, picky_too):
        async with producing(value_serializer=serializer) as (cluster, producer):
            with pytest.raises(SerializationError) as caught:
                await producer.send("t", "bad")

            assert isinstance(caught.value.__cause__, ValueError)
            assert caught.value.outcome is Outcome.NOT_PERSISTED
            assert "bad" not in str(caught.value), "a value is shown"
            assert producer.metrics().records_buffered == 0
            await producer.send_and_wait("t", b"good")
            assert values(cluster) == [b"good"]


async def test_a_serializer_that_returns_no_bytes_is_an_invalid_record():
    async with producing(value_serializer=str) as (_, producer):
        with pytest.raises(InvalidRecordError):
            await producer.send("t", 42)
        assert producer.metrics().records_buffered == 0
