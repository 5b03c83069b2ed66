"""User mistakes: each raises a specific error, with the facts in its fields and a message that says what to do.

Other records are not affected. Wrong addresses are in test_bad_addresses.py; test_nothing_is_shown.py checks that texts
show no keys, values or passwords."""

from __future__ import annotations

import asyncio
import copy
import datetime
import pickle
from typing import Any

import pytest

from aioproducer import ConfigError, Outcome, Producer, RecordTooLargeError, blocking
from aioproducer.errors import (
    BufferFullError,
    IllegalStateError,
    InvalidRecordError,
    InvalidTopicError,
    KafkaError,
    ProducerClosed,
    ProducerNotStartedError,
    SerializationError,
    UnknownPartitionError,
)
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    error_of,
    producing,
    quick_producer,
    results,
    values,
    within,
)

# ------------------------------------------------------------------------------------------------- a record

Case = tuple[dict[str, Any], type[KafkaError], dict[str, Any], tuple[str, ...]]
"""Arguments of send, the error, its fields, and words in its message."""

BAD_RECORDS: dict[str, Case] = {
    "text as value": (
        {"value": "text"},
        InvalidRecordError,
        {"argument": "value"},
        ("value", "bytes", "str", "encode it", "value_serializer"),
    ),
    "a dict as value": (
        {"value": {"a": 1}},
        InvalidRecordError,
        {"argument": "value"},
        ("dict", "value_serializer"),
    ),
    "a view with gaps": (
        {"value": memoryview(b"abcd")[::2]},
        InvalidRecordError,
        {"argument": "value"},
        ("memoryview", "copy"),
    ),
    "a number as key": (
        {"key": 42},
        InvalidRecordError,
        {"argument": "key"},
        ("key", "int", "key_serializer"),
    ),
    "headers as a dict": (
        {"headers": {"a": b"b"}},
        InvalidRecordError,
        {"argument": "headers"},
        ("headers", "(str, bytes)", "dict"),
    ),
    "a header that is a list": (
        {"headers": [["a", b"b"]]},
        InvalidRecordError,
        {"argument": "headers"},
        ("each header must be a tuple (str, bytes or None), not list",),
    ),
    "a header of three": (
        {"headers": [("a", b"b", b"c")]},
        InvalidRecordError,
        {"argument": "headers"},
        ("not a tuple of 3",),
    ),
    "a header with a name of bytes": (
        {"headers": [(b"a", b"b")]},
        InvalidRecordError,
        {"argument": "headers"},
        ("name", "str", "bytes"),
    ),
    "a header with a value of text": (
        {"headers": [("a", "b")]},
        InvalidRecordError,
        {"argument": "headers"},
        ("value", "bytes or None", "str"),
    ),
    "a negative partition": (
        {"partition": -1},
        InvalidRecordError,
        {"argument": "partition"},
        ("partition", "0 or more", "-1"),
    ),
    "a partition of text": (
        {"partition": "0"},
        InvalidRecordError,
        {"argument": "partition"},
        ("partition", "whole number", "str"),
    ),
    "a partition that is not there": (
        {"partition": 7},
        UnknownPartitionError,
        {"topic": "t", "partition": 7},
        ("topic t", "2 partitions", "7"),
    ),
    "a timestamp before 1970": (
        {"timestamp_ms": -1},
        InvalidRecordError,
        {"argument": "timestamp_ms"},
        ("milliseconds", "0 or more", "-1"),
    ),
    "a timestamp in seconds": (
        {"timestamp_ms": 1.7e9},
        InvalidRecordError,
        {"argument": "timestamp_ms"},
        ("whole number", "milliseconds"),
    ),
    "a datetime as timestamp": (
        {"timestamp_ms": datetime.datetime(2026, 1, 1)},
        InvalidRecordError,
        {"argument": "timestamp_ms"},
        ("int", "datetime"),
    ),
    "a record that is too large": (
        {"value": bytes(2000)},
        RecordTooLargeError,
        {"limit": 1500},
        ("1500", "max_request_size", "max.message.bytes"),
    ),
    "no topic": ({"topic": None}, InvalidTopicError, {}, ("topic", "str", "None")),
    "a topic of bytes": ({"topic": b"t"}, InvalidTopicError, {}, ("topic", "str", "bytes")),
    "an empty topic": ({"topic": ""}, InvalidTopicError, {"topic": ""}, ("1 to 249 letters",)),
    "a topic with a blank": (
        {"topic": "my topic"},
        InvalidTopicError,
        {"topic": "my topic"},
        ("'my topic'",),
    ),
    "a topic with an umlaut": ({"topic": "tür"}, InvalidTopicError, {"topic": "tür"}, ("'tür'",)),
    "a topic of 250 letters": ({"topic": "t" * 250}, InvalidTopicError, {"topic": "t" * 250}, ("249",)),
    "a topic of a dot": ({"topic": "."}, InvalidTopicError, {"topic": "."}, ("not '.' or '..'",)),
    "a timeout of text": (
        {"timeout": "soon"},
        InvalidRecordError,
        {"argument": "timeout"},
        ("timeout", "seconds", "str"),
    ),
    "a negative timeout": (
        {"timeout": -1},
        InvalidRecordError,
        {"argument": "timeout"},
        ("0 or more", "-1"),
    ),
    "a timeout that is not a number": (
        {"timeout": float("nan")},
        InvalidRecordError,
        {"argument": "timeout"},
        ("seconds", "nan"),
    ),
    "a timeout beyond all bounds": (
        {"timeout": 10**400},
        InvalidRecordError,
        {"argument": "timeout"},
        ("seconds",),
    ),
}

SLOW = {"linger_ms": 60_000, "delivery_timeout_ms": 900_000 * MS * 1000}
"""With these settings, nothing leaves the buffer by itself."""
SMALL = {"max_request_size": 1500, "max_block_ms": 500 * MS * 1000, **SLOW}


@pytest.mark.promise(
    "Coming from other clients",
    "a caller's mistake raises a specific error with its details, and no other caller loses a record",
)
@pytest.mark.parametrize("case", BAD_RECORDS.values(), ids=BAD_RECORDS)
@in_virtual_time
async def test_a_bad_argument_has_a_narrow_error_with_its_facts_and_no_other_record_is_lost(case):
    wrong, error_type, fields, words = case
    async with producing(topics={"t": 2}, **SMALL) as (cluster, producer):
        good = [await producer.send("t", b"before", partition=0)]

        error = await error_of(producer.send(**{"topic": "t", "value": b"v", "partition": 0, **wrong}))
        good.append(await producer.send("t", b"after", partition=0))
        await within(2, producer.flush())

        assert type(error) is error_type
        assert {name: getattr(error, name) for name in fields} == fields
        assert [word for word in words if word not in str(error)] == [], str(error)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert isinstance(error, ValueError | TimeoutError), "as in other clients"
        assert [metadata.offset for metadata in await results(good)] == [0, 1]
        assert values(cluster) == [b"before", b"after"]


@pytest.mark.parametrize("case", BAD_RECORDS.values(), ids=BAD_RECORDS)
@in_virtual_time
async def test_every_way_to_send_rejects_the_same_arguments(case):
    wrong, error_type, _, _ = case
    async with producing(topics={"t": 2}, **SMALL) as (cluster, producer):
        await producer.partitions_for("t")
        arguments = {"topic": "t", "value": b"v", "partition": 0, **wrong}
        ends = [await error_of(producer.send_and_wait(**arguments))]
        if "timeout" not in wrong:
            with pytest.raises(KafkaError) as caught:
                producer.try_send(**arguments)
            # try_send raises BufferFullError if it would have to wait for metadata.
            ends += [] if isinstance(caught.value, BufferFullError) else [caught.value]
        if wrong.keys() & {"value", "key", "headers"} and error_type is InvalidRecordError:
            record = {"value": b"v", "key": None, **wrong}
            with pytest.raises(InvalidRecordError) as refused:
                producer.create_batch().append(**record)
            ends.append(refused.value)

        assert {type(end) for end in ends} == {error_type}
        assert producer.metrics().records_buffered == 0
        await producer.flush()
        assert values(cluster) == []


@pytest.mark.promise(
    "Coming from other clients",
    "a caller's mistake raises a specific error with its details, and no other caller loses a record",
)
@in_virtual_time
async def test_among_many_tasks_only_those_with_a_mistake_fail():
    async with producing(topics={"t": 3}, max_request_size=1500, max_block_ms=500 * MS * 1000) as (
        cluster,
        producer,
    ):

        async def send(number: int) -> object:
            wrong = list(BAD_RECORDS.values())[number % len(BAD_RECORDS)][0] if number % 3 == 0 else {}
            return await producer.send_and_wait(**{"topic": "t", "value": b"%d" % number, **wrong})

        ends = await within(5, asyncio.gather(*map(send, range(150)), return_exceptions=True))

        good = [number for number in range(150) if number % 3]
        assert sorted(int(value) for value in values(cluster)) == good
        assert [number for number, end in enumerate(ends) if not isinstance(end, BaseException)] == good
        assert all(isinstance(ends[number], KafkaError) for number in range(0, 150, 3))


async def test_a_failing_serializer_fails_only_its_own_record():
    def serializer(value: object) -> bytes:
        if value == "bad":
            raise KeyError("some field")
        return str(value).encode()

    async with producing(value_serializer=serializer, linger_ms=20) as (cluster, producer):
        good = [await producer.send("t", "before")]
        error = await error_of(producer.send("t", "bad"))
        good.append(await producer.send("t", "after"))
        await results(good)

        assert type(error) is SerializationError
        assert isinstance(error.__cause__, KeyError)
        assert "serializer" in str(error)
        assert "topic t" in str(error)
        assert values(cluster) == [b"before", b"after"]


async def test_send_batch_rejects_anything_but_a_batch():
    async with producing() as (cluster, producer):
        for thing in ("records", None, [b"a"]):
            error = await error_of(producer.send_batch(thing, "t", partition=0))
            assert type(error) is InvalidRecordError
            assert "create_batch()" in str(error)
            assert type(thing).__name__ in str(error)
        assert values(cluster) == []


# ------------------------------------------------------------------------------------ calls at the wrong time


@pytest.mark.parametrize(
    "call", ["send", "send_and_wait", "try_send", "flush", "partitions_for", "create_batch"]
)
async def test_use_before_start_and_after_close_says_what_to_do(call):
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        producer = quick_producer(cluster)

        async def use() -> None:
            function = getattr(producer, call)
            arguments = {"flush": (), "create_batch": (), "partitions_for": ("t",)}.get(call, ("t", b"v"))
            result = function(*arguments)
            if asyncio.iscoroutine(result):
                await result

        early = await error_of(use())
        await producer.start()
        await producer.send_and_wait("t", b"good")
        await producer.close()
        late = await error_of(use())

        assert type(early) is ProducerNotStartedError
        assert "start()" in str(early)
        assert "async with" in str(early)
        assert type(late) is ProducerClosed
        assert "closed" in str(late)
        assert isinstance(early, RuntimeError)
        assert isinstance(late, RuntimeError)
        assert values(cluster) == [b"good"]


async def test_a_second_start_says_what_to_do_and_does_no_harm():
    async with producing(**SLOW) as (cluster, producer):
        delivery = await producer.send("t", b"buffered")

        again = await error_of(producer.start())
        await producer.flush()
        await producer.close()
        after = await error_of(producer.start())

        for error in (again, after):
            assert type(error) is IllegalStateError
            assert "it can only be started once, so create a new one" in str(error)
        assert "running" in str(again)
        assert "closed" in str(after)
        assert delivery.result().offset == 0
        assert values(cluster) == [b"buffered"]


BAD_TIMEOUTS = ["soon", -1, float("nan"), 10**400, True]


@pytest.mark.parametrize("timeout", BAD_TIMEOUTS, ids=["text", "negative", "nan", "huge", "bool"])
@pytest.mark.parametrize("call", ["flush", "close"])
async def test_an_invalid_timeout_is_rejected_and_does_no_harm(call, timeout):
    async with producing(**SLOW) as (cluster, producer):
        delivery = await producer.send("t", b"buffered")

        error = await error_of(getattr(producer, call)(timeout=timeout))

        assert isinstance(error, ValueError)
        assert error.argument == "timeout"
        assert "seconds" in str(error)
        assert repr(producer).startswith("<Producer running")
        await producer.send("t", b"more")
        report = await within(2, producer.close())
        assert (report.delivered, report.failed, report.unknown) == (2, 0, 0)
        assert delivery.result().offset == 0
        assert values(cluster) == [b"buffered", b"more"]


# -------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("linger", "linger_ms"),
        ("batchsize", "batch_size"),
        ("compression", "compression_type"),
        ("request_timeout", "request_timeout_ms"),
        ("loop", "started"),
        ("api_version", "negotiated"),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest_one(setting, hint):
    with pytest.raises(ConfigError) as caught:
        Producer("localhost:9092", **{setting: "a value that nobody shall see"})

    assert caught.value.setting == setting
    assert setting in str(caught.value)
    assert hint in str(caught.value)
    assert "nobody shall see" not in str(caught.value)


# ------------------------------------------------------------------------------------- with, and pickle


def test_with_instead_of_async_with_says_what_to_do():
    with (
        pytest.raises(TypeError, match=r"requires `async with`.*aioproducer\.blocking\.Producer"),
        quick_producer("localhost:1"),
    ):
        pytest.fail("it was opened")


async def test_async_with_of_a_blocking_producer_says_what_to_do():
    with pytest.raises(TypeError, match="requires `with`"):
        async with blocking.Producer("localhost:1"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_or_copying_a_producer_says_that_each_process_builds_its_own(copied):
    with pytest.raises(TypeError, match="create one in each process"):
        copied(quick_producer("localhost:1"))
    with pytest.raises(TypeError, match="create one in each process"):
        copied(object.__new__(blocking.Producer))
