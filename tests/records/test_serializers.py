"""Serializers: the arguments that each receives, plain or async; an exception or an invalid
result becomes one error."""

from __future__ import annotations

import asyncio
import enum
import functools
import gc
import inspect
import json
import pickle
import weakref
import zlib

import pytest

from aioproducer import Outcome, Producer, SerializationContext
from aioproducer.errors import (
    BufferFullError,
    IllegalStateError,
    InvalidRecordError,
    ProducerClosed,
    SerializationError,
    WrongLoopError,
)
from aioproducer.records._record_path import RecordPath, Serialization
from aioproducer.records.serializers import MOST_KEPT, BoundSerializer, Serializers, finish, finish_now
from tests.support.producing import numbers, producing, until, values, within

# ------------------------------------------------------------------------------------------------ without a producer


def serialization(
    of_value=None, of_key=None, *, value=None, key=None, topic="t", headers=None
) -> Serialization:
    """Return the Serialization of one record."""
    return RecordPath()._serialization(
        None if of_value is None else BoundSerializer(of_value, "value"),
        None if of_key is None else BoundSerializer(of_key, "key"),
        topic,
        value,
        key,
        headers,
    )


async def finished(*serializers, **record) -> Serialization:
    """Return the Serialization of one record after both serializers have finished."""
    made = serialization(*serializers, **record)
    await finish(made)
    return made


def finished_now(*serializers, **record) -> Serialization:
    made = serialization(*serializers, **record)
    finish_now(made, "try_send")
    return made


class AnyAwaitable:
    """An awaitable that is not a coroutine."""

    def __init__(self, result: object) -> None:
        self._result = result

    def __await__(self):
        yield from ()
        return self._result


async def test_without_a_serializer_key_and_value_are_not_changed():
    value, key = object(), object()

    for made in (await finished(value=value, key=key), finished_now(value=value, key=key)):
        assert made.value is value
        assert made.key is key


async def test_a_serializer_may_return_none_or_any_buffer():
    for result in (None, b"v", bytearray(b"v"), memoryview(b"v")):

        def returns(_, result=result):
            return result

        async def waits(_, result=result):
            await asyncio.sleep(0)
            return result

        assert finished_now(returns, value=7).value is result
        assert (await finished(waits, value=7)).value is result


async def test_any_awaitable_result_is_awaited():
    assert (await finished(lambda _: AnyAwaitable(b"v"), value=7)).value == b"v"
    with pytest.raises(IllegalStateError, match=r"try_send can't wait for the async key_serializer .*lambda"):
        finished_now(None, lambda _: AnyAwaitable(b"v"), key=7)


async def awaits_while_it_ends(value: object) -> bytes:
    try:
        await asyncio.sleep(0)
    finally:
        ended.append(value)
        await asyncio.sleep(0)
        ended.append(value)
    return b"v"


async def fails_while_it_ends(value: object) -> bytes:
    try:
        await asyncio.sleep(0)
    finally:
        raise ValueError("still open")


ended: list[object] = []


def test_a_serializer_that_awaits_something_while_it_is_closed_ends():
    """anyio does so when it is cancelled while it opens a connection."""
    ended.clear()

    with pytest.raises(IllegalStateError, match="try_send can't wait for the async value_serializer awaits"):
        finished_now(awaits_while_it_ends, value=7)

    assert ended == [7]
    gc.collect()  # a coroutine that did not finish would cause an unraisable exception


def test_an_exception_of_a_serializer_while_it_is_closed_is_the_cause():
    with pytest.raises(
        IllegalStateError, match="try_send can't wait for the async value_serializer fails"
    ) as caught:
        finished_now(fails_while_it_ends, value=7)

    assert repr(caught.value.__cause__) == "ValueError('still open')"


async def test_the_result_of_an_awaitable_must_also_be_bytes():
    async def inner() -> bytes:
        return b"v"

    never_awaited = inner()
    with pytest.raises(SerializationError, match="returned coroutine for topic t; it must return bytes"):
        await finished(lambda _: AnyAwaitable(never_awaited), value=7)
    never_awaited.close()


async def test_a_method_named_serialize_is_used_rather_than_a_call():
    class Both:
        def __call__(self, value):
            raise AssertionError

        def serialize(self, topic, value, headers):
            return b"%s %s %d" % (topic.encode(), value, len(headers))

    headers = [("name", b"value")]

    assert (await finished(Both(), value=b"v", headers=headers)).value == b"t v 1"
    assert finished_now(None, Both(), key=b"v", headers=headers).key == b"t v 1"


async def test_a_cancellation_inside_a_serializer_is_not_a_serialization_error():
    async def cancelled(value: object) -> bytes:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await finished(cancelled, value=7)


# ------------------------------------------------------------------------------------------------ which arguments


class Confluent:
    """A serializer that is called as confluent-kafka's serializers are."""

    def __call__(self, obj, ctx=None):
        return context_of(ctx)


class AsyncConfluent:
    """An async serializer of that kind: a plain method that returns a coroutine."""

    def __call__(self, obj, ctx=None):
        return self._serialize(obj, ctx)

    async def _serialize(self, obj, ctx):
        return context_of(ctx)

    def method(self, value, context=None):
        return context_of(context)

    def plain(self, value, indent=None):
        return context_of(indent)


async def takes_context(value, context):
    await asyncio.sleep(0)
    return context_of(context)


async def takes_value(value, indent=None):
    await asyncio.sleep(0)
    return context_of(indent)


def context_of(second):
    return f"{second.topic} {second.field}".encode() if second is not None else b"no context"


class NoSignature:
    """A serializer for which `inspect.signature` raises ValueError, as for some functions written in C."""

    __signature__ = "none"

    def __call__(self, value, second=None):
        return context_of(second)


@pytest.mark.promise(
    "Public API", "a serializer with a second parameter receives topic, field, headers and cluster id"
)
@pytest.mark.parametrize(
    "serializer",
    [
        Confluent(),
        AsyncConfluent(),
        AsyncConfluent().method,
        takes_context,
        lambda value, anything: context_of(anything),
        lambda value, ctx=None: context_of(ctx),
        lambda value, context=None, third=3: context_of(context),
        lambda value, context, /: context_of(context),
        functools.partial(lambda prefix, value, ctx: context_of(ctx), "prefix"),
    ],
)
async def test_a_callable_with_a_required_or_suitably_named_second_parameter_receives_the_context(
    serializer,
):
    made = await finished(serializer, serializer, value=7, key=8)

    assert (made.value, made.key) == (b"t value", b"t key")


@pytest.mark.promise(
    "Public API", "a serializer with a second parameter receives topic, field, headers and cluster id"
)
@pytest.mark.parametrize(
    "serializer",
    [
        AsyncConfluent().plain,
        takes_value,
        NoSignature(),
        lambda v, indent=2: b"no context" if indent == 2 else b"",
        lambda *values: context_of(None) if len(values) == 1 else b"",
        lambda value, *, ctx=None, context=None: context_of(ctx or context),
        lambda value, third=None, ctx=None: context_of(third or ctx),
        functools.partial(lambda value, context: context, context=b"no context"),
    ],
)
async def test_every_other_callable_receives_only_the_value(serializer):
    assert (await finished(serializer, value=7)).value == b"no context"


@pytest.mark.parametrize(
    ("serializer", "value", "written"),
    [
        (str.encode, "text", b"text"),
        (pickle.dumps, {"a": 1}, pickle.dumps({"a": 1})),
        (bytes, [1, 2], b"\1\2"),
        (zlib.compress, b"text", zlib.compress(b"text")),
        (functools.partial(str.encode, encoding="utf-16-le"), "k", b"k\0"),
        ("text: %s".__mod__, "v", "text: v"),
        (bytearray.fromhex, "00ff", bytearray(b"\0\xff")),
        (functools.partial(json.dumps, indent=None), {"a": 1}, '{"a": 1}'),
        (json.dumps, {"a": 1}, '{"a": 1}'),
    ],
)
def test_functions_of_the_standard_library_receive_only_the_value(serializer, value, written):
    if isinstance(written, str):
        with pytest.raises(SerializationError, match="returned str for topic t"):
            finished_now(serializer, value=value)
    else:
        assert finished_now(serializer, value=value).value == written


def test_orjsons_function_receives_only_the_value():
    orjson = pytest.importorskip("orjson")  # not every interpreter of `make matrix` has it
    with_option = functools.partial(orjson.dumps, option=orjson.OPT_SORT_KEYS)

    assert finished_now(orjson.dumps, value={"b": 2, "a": 1}).value == b'{"b":2,"a":1}'
    assert finished_now(with_option, value={"b": 2, "a": 1}).value == b'{"a":1,"b":2}'


def test_msgspecs_functions_receive_only_the_value():
    msgspec = pytest.importorskip("msgspec")  # not every interpreter of `make matrix` has it

    assert finished_now(msgspec.json.encode, value={"a": 1}).value == b'{"a":1}'
    assert finished_now(msgspec.msgpack.Encoder().encode, value={"a": 1}).value == b"\x81\xa1a\x01"


def test_a_serializer_is_inspected_only_once(monkeypatch):
    inspected = []
    signature = inspect.signature

    def counted(function, **settings):
        inspected.append(function)
        return signature(function, **settings)

    monkeypatch.setattr(inspect, "signature", counted)
    serializers = Serializers(str.encode, None)
    of_record = [serializers.given(json.dumps, "value") for _ in range(5)]

    assert inspected == [str.encode, json.dumps]
    assert of_record == of_record[:1] * 5
    assert serializers.given(json.dumps, "key").field == "key"


def test_new_functions_for_each_record_do_not_fill_the_memory():
    serializers = Serializers(None, None)

    for number in range(10 * MOST_KEPT):
        serializers.given(lambda value, number=number: b"%d" % number, "value")

    assert len(serializers._given) == MOST_KEPT


async def test_a_callable_that_cannot_be_hashed_is_accepted_as_a_serializer():
    class Unhashable:
        __hash__ = None

        def __call__(self, value):
            return b"%d" % value

    async with producing() as (cluster, producer):
        for number in range(2):
            await producer.send_and_wait("t", number, value_serializer=Unhashable())

        assert numbers(cluster) == [0, 1]


# ------------------------------------------------------------------------------------------------ the context


def test_the_context_names_topic_field_headers_and_cluster():
    context = SerializationContext("orders", "value", [("h", b"x")])

    assert (context.topic, context.field, context.headers) == ("orders", "value", [("h", b"x")])
    assert context.cluster_id is None, "it has no cluster"
    assert SerializationContext("orders", "key").headers == []
    assert repr(context) == "SerializationContext(topic='orders', field='value')"


@pytest.mark.promise(
    "Public API", "a serializer with a second parameter receives topic, field, headers and cluster id"
)
@pytest.mark.parametrize("headers", [None, [("h", b"x")], (("h", b"x"),)])
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_serializer_may_extend_the_headers_in_its_context(headers, is_async):
    seen = []

    def adds(value, context):
        seen.append((context.topic, context.field, list(context.headers), context.cluster_id))
        context.headers.append((f"schema of {context.field}", b"1"))
        return value

    async def adds_later(value, context):
        await asyncio.sleep(0)
        return adds(value, context)

    serializer = adds_later if is_async else adds
    async with producing(value_serializer=serializer, key_serializer=serializer) as (cluster, producer):
        for _ in ("unknown topic", "known topic"):
            await producer.send_and_wait("t", b"v", b"k", headers=headers)
        if not is_async:
            await producer.try_send("t", b"v", b"k", headers=headers)

        given = list(headers or ())
        of_value, of_key = ("schema of value", b"1"), ("schema of key", b"1")
        for record in cluster.records("t"):
            assert list(record.headers) == [*given, of_value, of_key]
        assert seen[:2] == [
            ("t", "value", given, cluster.cluster_id),
            ("t", "key", [*given, of_value], cluster.cluster_id),
        ]
        assert seen[2:4] == seen[:2]
    assert headers in (None, [("h", b"x")], (("h", b"x"),)), "the caller's own list has changed"


async def test_an_object_for_the_key_sees_the_headers_that_the_values_serializer_has_added():
    class Object:
        def serialize(self, topic, value, headers):
            return b"%s after %s" % (value, headers[-1][0].encode())

    def adds(value, ctx):
        ctx.headers.append(("added", b"1"))
        return value

    assert finished_now(adds, Object(), value=b"v", key=b"k").key == b"k after added"


@pytest.mark.parametrize("headers", [7, {"h": b"x"}, [("h", "text")], [("h",)]])
async def test_invalid_headers_raise_the_same_error_with_a_context(headers):
    async with producing(value_serializer=takes_context) as (_, producer):
        for _ in ("unknown topic", "known topic"):
            with pytest.raises(InvalidRecordError) as caught:
                await producer.send("t", b"v", headers=headers)
            assert caught.value.argument == "headers"
            assert not isinstance(caught.value, SerializationError)
        assert producer.metrics().records_buffered == 0


async def test_invalid_headers_set_by_a_serializer_are_an_invalid_record():
    def replaces(value, context):
        context.headers = {"h": b"x"}
        return value

    async with producing(value_serializer=replaces) as (_, producer):
        for _ in ("unknown topic", "known topic"):
            with pytest.raises(InvalidRecordError, match="headers must be a list"):
                await producer.send("t", b"v")


async def test_a_topic_that_is_an_enum_is_a_str_in_the_context():
    class Topics(str, enum.Enum):  # noqa: UP042  # its str() is not its value
        ORDERS = "t"

    seen = []

    def note(value, context):
        seen.append(context.topic)
        return value

    async with producing(value_serializer=note) as (cluster, producer):
        await producer.send_and_wait(Topics.ORDERS, b"1")
        await producer.send_and_wait(Topics.ORDERS, b"2")
        await producer.try_send(Topics.ORDERS, b"3")

        assert values(cluster) == [b"1", b"2", b"3"]
    assert [(type(topic), topic) for topic in seen] == [(str, "t")] * 3


# ------------------------------------------------------------------------------------------------ errors


def raises(value: object) -> bytes:
    raise ValueError(f"{value!r} is not a number\n")


async def raises_at_once(value: object) -> bytes:
    return raises(value)


async def raises_later(value: object) -> bytes:
    await asyncio.sleep(0)
    return raises(value)


@pytest.mark.promise(
    "Public API", "an error names the serializer, the field, and the cause or the type of the result"
)
@pytest.mark.parametrize("serializer", [raises, raises_at_once, raises_later])
@pytest.mark.parametrize("field", ["value", "key"])
async def test_an_error_names_the_serializer_the_field_the_topic_and_the_cause(serializer, field):
    expected = (
        f"the {field}_serializer {serializer.__name__} raised ValueError for topic t: 'seven' is not a number\\x0a; "
        "nothing was buffered"
    )

    async with producing(**{f"{field}_serializer": serializer}) as (_, producer):
        calls = [lambda: producer.send("t", **{field: "seven"})] * 2  # the topic is known the second time
        if serializer is not raises_later:
            calls.append(lambda: producer.try_send("t", **{field: "seven"}))
        for call in calls:
            with pytest.raises(SerializationError) as caught:
                await call()
            assert str(caught.value) == expected
            assert caught.value.argument == field
            assert caught.value.outcome is Outcome.NOT_PERSISTED
            assert type(caught.value.__cause__) is ValueError
        assert producer.metrics().records_buffered == 0


async def test_only_the_beginning_of_a_long_cause_is_repeated_and_an_empty_one_is_omitted():
    def long(value):
        raise ValueError("x" * 1000)

    def silent(value):
        raise LookupError

    with pytest.raises(SerializationError) as caught:
        finished_now(long, value=7)
    assert str(caught.value).count("x") == 199
    with pytest.raises(SerializationError, match="raised LookupError for topic t; nothing was buffered"):
        finished_now(silent, value=7)
    with pytest.raises(SerializationError, match="raised LookupError; nothing was buffered"):
        finished_now(silent, value=7, topic="")


def test_a_cause_whose_text_fails_is_named_by_its_class():
    class NoText(Exception):
        def __str__(self):
            raise ValueError("no text")

    def fails(value):
        raise NoText

    with pytest.raises(SerializationError, match="raised NoText for topic t; nothing was buffered") as caught:
        finished_now(fails, value=7)
    assert type(caught.value.__cause__) is NoText


async def dumps_at_once(value):
    return json.dumps(value)


async def dumps_later(value):
    await asyncio.sleep(0)
    return json.dumps(value)


@pytest.mark.promise(
    "Public API", "an error names the serializer, the field, and the cause or the type of the result"
)
@pytest.mark.parametrize("serializer", [json.dumps, dumps_at_once, dumps_later])
async def test_a_result_that_is_not_bytes_is_named_by_its_type(serializer):
    name = serializer.__qualname__
    async with producing(value_serializer=serializer) as (_, producer):
        for _ in ("unknown topic", "known topic"):
            with pytest.raises(SerializationError) as caught:
                await producer.send("t", {"secret": 42})
            assert str(caught.value) == (
                f"the value_serializer {name} returned str for topic t; it must return bytes, bytearray, memoryview or "
                "None (for example, call .encode() on the str); nothing was buffered"
            )
            assert caught.value.argument == "value"
        assert producer.metrics().records_buffered == 0


async def test_each_error_is_counted_once():
    async with producing(value_serializer=raises) as (_, producer):
        for _ in ("unknown topic", "known topic"):
            with pytest.raises(SerializationError):
                await producer.send("t", 7)
        with pytest.raises(SerializationError):
            producer.try_send("t", 7)
        with pytest.raises(InvalidRecordError):
            producer.try_send("t", 7, value_serializer=7)

        assert dict(producer.metrics().rejected) == {"SerializationError": 3, "InvalidRecordError": 1}


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


async def test_a_result_that_is_not_bytes_makes_the_record_invalid():
    async with producing(value_serializer=str) as (_, producer):
        with pytest.raises(InvalidRecordError):
            await producer.send("t", 42)
        assert producer.metrics().records_buffered == 0


class NeverNone:
    """A serializer that must never receive None, in each form that a user may pass."""

    def serialize(self, topic, value, headers):
        return self.function(value)

    def function(self, value):
        assert value is not None
        return b"<%s>" % value

    def with_context(self, value, context):
        return self.function(value)

    async def later(self, value):
        await asyncio.sleep(0)
        return self.function(value)


@pytest.mark.promise("Public API", "None never reaches a serializer")
@pytest.mark.parametrize(
    "serializer",
    [NeverNone(), NeverNone().function, NeverNone().with_context, NeverNone().later],
)
@pytest.mark.parametrize("given_to", ["the producer", "send"])
async def test_none_never_reaches_a_serializer(serializer, given_to):
    both = {"value_serializer": serializer, "key_serializer": serializer}
    settings, own = (both, {}) if given_to == "the producer" else ({}, both)
    async with producing(**settings) as (cluster, producer):
        for _ in ("unknown topic", "known topic"):
            await producer.send_and_wait("t", None, b"k", **own)
            await producer.send_and_wait("t", b"v", None, **own)
        await producer.try_send("t", None, None, **own)

        assert [(record.key, record.value) for record in cluster.records("t")] == [
            *[(b"<k>", None), (None, b"<v>")] * 2,
            (None, None),
        ]


@pytest.mark.promise("Public API", "a record may have serializers of its own")
async def test_a_record_may_have_its_own_serializers():
    settings = {"value_serializer": lambda value: b"producer's %d" % value, "key_serializer": str.encode}
    own = {
        "value_serializer": lambda value: b"own %d" % value,
        "key_serializer": lambda key: key.upper().encode(),
    }

    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", 1, "k", **own)
        await producer.send_and_wait("t", 2, "k", value_serializer=own["value_serializer"])
        await (await producer.send("t", 3, "k", key_serializer=own["key_serializer"]))
        await producer.try_send("t", 4, "k", **own)
        await producer.send_and_wait("t", 5, "k", key_serializer=None, value_serializer=None)
        await producer.send_and_wait("t", 6, "k", timeout=60, **own)

        assert [(record.key, record.value) for record in cluster.records("t")] == [
            (b"K", b"own 1"),
            (b"k", b"own 2"),
            (b"K", b"producer's 3"),
            (b"K", b"own 4"),
            (b"k", b"producer's 5"),
            (b"K", b"own 6"),
        ]


@pytest.mark.parametrize("field", ["value", "key"])
async def test_an_invalid_serializer_makes_the_record_invalid(field):
    name = f"{field}_serializer"
    expected = rf"the {name} must be callable or have a serialize\(topic, value, headers\) method, not int"

    async with producing() as (_, producer):
        for call in (producer.send, producer.send_and_wait, producer.try_send):
            with pytest.raises(InvalidRecordError, match=expected) as caught:
                await call("t", b"v", **{name: 7})
            assert caught.value.argument == name


# ------------------------------------------------------------------------------------------------ the compiled path


class Adds:
    """An interceptor that adds a header."""

    def on_send(self, record):
        return record._replace(headers=[*(record.headers or ()), ("added", b"1")])


class Acknowledged(Adds):
    def on_acknowledgement(self, result):
        pass


async def from_a_cache(value, context):
    return value


@pytest.mark.promise("Speed", "serializers and interceptors that do not wait stay in compiled code")
@pytest.mark.parametrize(
    "settings",
    [
        {"value_serializer": bytes, "key_serializer": bytes},
        {"value_serializer": lambda value, context: value},
        {"value_serializer": NeverNone(), "key_serializer": NeverNone()},
        {"value_serializer": from_a_cache, "key_serializer": from_a_cache},
        {"interceptors": [Adds()]},
        {"interceptors": [Acknowledged(), Adds()], "value_serializer": bytearray},
    ],
)
async def test_plain_serializers_and_interceptors_stay_in_compiled_code(settings, monkeypatch):
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0", b"k")

        def refuse(*_: object) -> None:
            raise AssertionError("it left the compiled path")

        monkeypatch.setattr(Producer, "_send_slowly", refuse)
        monkeypatch.setattr(Producer, "_try_send_slowly", refuse)
        await producer.send_and_wait("t", b"1", b"k")
        await (await producer.send("t", b"2", b"k", headers=[("h", b"x")]))
        await producer.try_send("t", b"3", b"k", value_serializer=lambda value: value)

        found = [record.value.strip(b"<>") for record in cluster.records("t")]
        assert found == [b"0", b"1", b"2", b"3"]
        added = [("added", b"1")] * len(settings.get("interceptors", ()))
        assert list(cluster.records("t")[2].headers) == [("h", b"x"), *added]


async def waits_once(value, context):
    await asyncio.sleep(0)
    return value


@pytest.mark.promise("Speed", "serializers and interceptors that do not wait stay in compiled code")
@pytest.mark.parametrize(
    ("topic", "settings", "arguments"),
    [
        ("t", {"value_serializer": waits_once}, {}),
        ("t", {"value_serializer": bytes}, {"timeout": 5}),
        ("t", {"value_serializer": bytes, "partitioner": "fnv1a"}, {}),
        ("t", {"value_serializer": bytes, "partitioner": lambda key, every, available: 0}, {}),
        ("other", {"value_serializer": bytes}, {}),
    ],
)
async def test_exactly_these_records_leave_compiled_code(topic, settings, arguments, monkeypatch):
    """docs/serializers.md lists these cases and two more: a full buffer, and a producer from `attach` or `resume`."""
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0", b"k")
        left = []
        send_slowly = Producer._send_slowly

        async def watched(self, *arguments):
            left.append(topic)
            return await send_slowly(self, *arguments)

        monkeypatch.setattr(Producer, "_send_slowly", watched)
        await producer.send_and_wait(topic, b"1", b"k", **arguments)

        assert left == [topic]
        assert [record.value for record in cluster.records(topic)][-1] == b"1"


async def test_an_async_serializer_that_waits_is_called_once_and_keeps_its_task():
    calls = []

    async def waits(value, context):
        calls.append((value, asyncio.current_task()))
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="caught"):
            await asyncio.gather(failing())
        context.headers.append(("h", b"x"))
        return b"%d" % value

    async def failing():
        await asyncio.sleep(0)
        raise ValueError("caught")

    async with producing(value_serializer=waits) as (cluster, producer):
        for number in range(3):
            await producer.send_and_wait("t", number)

        assert numbers(cluster) == [0, 1, 2]
        assert {record.headers for record in cluster.records("t")} == {(("h", b"x"),)}
    assert calls == [(number, asyncio.current_task()) for number in range(3)]


async def test_cancelling_send_cancels_its_async_serializer():
    ended = []

    async def waits(value):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(value)

    async with producing(value_serializer=waits) as (_, producer):
        await producer.partitions_for("t")
        await producer.send_and_wait("t", value_serializer=bytes)
        sending = asyncio.ensure_future(producer.send("t", 7))
        await asyncio.sleep(0)
        assert not ended
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

        assert ended == [7]
        assert producer.metrics().records_buffered == 0


async def test_a_send_that_fails_in_its_serializer_frees_the_value_without_a_collector():
    class Value:
        """A class of objects that can be weakly referenced."""

    async def waits(value):
        await asyncio.Event().wait()

    def failing():
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError())
        return future

    async def fails(value):
        await failing()

    gc.collect()
    gc.disable()
    try:
        async with producing() as (_, producer):
            await producer.send_and_wait("t", b"v")
            for serializer in (waits, fails):
                value = Value()
                is_alive = weakref.ref(value)
                sending = asyncio.ensure_future(producer.send("t", value, value_serializer=serializer))
                await asyncio.sleep(0)
                if serializer is waits:
                    sending.cancel()
                await asyncio.wait([sending])
                assert sending.cancelled() or type(sending.exception()) is SerializationError
                del value, sending
                await asyncio.sleep(0)
                assert is_alive() is None, serializer
    finally:
        gc.enable()


async def test_try_send_closes_an_async_serializer_that_has_to_wait():
    ended = []

    async def waits(value):
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(value)

    async with producing(value_serializer=waits) as (_, producer):
        with pytest.raises(BufferFullError):
            producer.try_send("t", 6)
        assert ended == [], "nothing is serialized for a topic that is not known"
        await producer.send_and_wait("t", b"v", value_serializer=bytes)
        with pytest.raises(
            IllegalStateError, match=r"try_send can't wait for the async value_serializer .*waits"
        ):
            producer.try_send("t", 7)

    assert ended == [7]


async def test_a_record_that_a_serializer_itself_sends_is_stored_first():
    async with producing() as (cluster, producer):

        def audits(value):
            producer.try_send("t", b"audit of %s" % value)
            return value

        await producer.partitions_for("t")
        await producer.send_and_wait("t", b"first")
        await producer.send_and_wait("t", b"v", value_serializer=audits)
        await until(lambda: len(values(cluster)) == 3)

        assert values(cluster) == [b"first", b"audit of v", b"v"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_record_that_waits_for_room_is_serialized_once(is_async):
    calls = []

    def note(value):
        calls.append(value)
        return value

    async def note_later(value):
        await asyncio.sleep(0)
        return note(value)

    settings = {"buffer_memory": 1 << 14, "batch_size": 1 << 13, "linger_ms": 0}
    async with producing(value_serializer=note_later if is_async else note, **settings) as (
        cluster,
        producer,
    ):
        await producer.partitions_for("t")
        sent = [b"%03d" % number + bytes(4000) for number in range(50)]
        deliveries = await asyncio.gather(*[producer.send("t", value) for value in sent])
        assert producer.metrics().buffer_wait.count > 0
        await asyncio.gather(*deliveries)

    assert sorted(calls) == sent
    assert sorted(values(cluster)) == sent


async def test_a_record_is_not_appended_if_the_producer_closed_while_its_serializer_ran():
    # In a greenlet, a serializer can wait, and other tasks run in the meantime.
    def close(value):
        producer._unbind()
        return value

    async with producing(value_serializer=close) as (cluster, producer):
        await producer.send_and_wait("t", b"first", value_serializer=bytes)
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"v")
    assert values(cluster) == [b"first"]


async def test_no_user_code_runs_where_no_record_may_be_sent():
    calls = []

    class Note:
        def on_send(self, record):
            calls.append("on_send")
            return record

    def note(value):
        calls.append("serializer")
        return value

    settings = {"interceptors": [Note()], "value_serializer": note, "transactional_id": "tx"}
    async with producing(**settings) as (_, producer):
        async with producer.transaction():
            await producer.send("t", b"v")
        assert calls == ["on_send", "serializer"]

        with pytest.raises(IllegalStateError):
            await producer.send("t", b"outside of a transaction")
        with pytest.raises(IllegalStateError):
            producer.try_send("t", b"outside of a transaction")
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(asyncio.run, producer.send("t", b"in another loop"))
    with pytest.raises(ProducerClosed):
        await producer.send("t", b"after the close")

    assert calls == ["on_send", "serializer"]


# ------------------------------------------------------------------------------------------------ many records


async def test_rows_of_send_many_are_serialized_in_the_same_way():
    def with_context(value, context):
        context.headers.append((context.field, context.topic.encode()))
        return value.encode()

    async with producing(value_serializer=with_context, key_serializer=str.encode) as (cluster, producer):
        await (await producer.send_many("t", ["1", None, "3"], keys=["a", "b", None]))

        assert [(record.key, record.value, record.headers) for record in cluster.records("t")] == [
            (b"a", b"1", (("value", b"t"),)),
            (b"b", None, ()),
            (None, b"3", (("value", b"t"),)),
        ]


@pytest.mark.parametrize("serializer", [NeverNone(), NeverNone().with_context])
async def test_a_batch_built_by_hand_has_no_topic_for_a_serializer(serializer):
    async with producing(value_serializer=serializer) as (_, producer):
        with pytest.raises(
            IllegalStateError, match=r"has no topic to pass to the value_serializer .*NeverNone"
        ):
            producer.create_batch()


async def test_a_batch_built_by_hand_is_serialized_with_functions_of_the_value():
    async with producing(value_serializer=json.dumps, key_serializer=str.encode) as (_, producer):
        batch = producer.create_batch()
        with pytest.raises(SerializationError, match="the value_serializer dumps returned str; it must"):
            batch.append(key="k", value={"a": 1}, timestamp=None)
