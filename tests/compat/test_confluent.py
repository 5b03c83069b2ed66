"""The producers that take confluent-kafka's arguments, compared with confluent-kafka's own producer."""

from __future__ import annotations

import inspect
import zlib
from contextlib import asynccontextmanager

import confluent_kafka
import pytest

import aioproducer
from aioproducer import OffsetAndMetadata, Secret, TopicPartition, blocking
from aioproducer.compat.confluent import BlockingProducer, Producer
from aioproducer.errors import ConfigError, IllegalStateError, InvalidRecordError, SerializationError
from aioproducer.testing import EmbeddedCluster
from tests.support.docs_runner import Docs
from tests.support.producing import PRODUCE, QUICK, assert_nothing_left, within
from tests.support.tracebacks import assert_no_frame_shows, shown


@asynccontextmanager
async def confluent_producing(config=None, **settings):
    """A cluster with topic "t" of ten partitions, and a started producer, which must leave nothing behind."""
    async with EmbeddedCluster(topics={"t": 10}) as cluster:
        config = {"bootstrap.servers": cluster.bootstrap_servers, **(config or {})}
        producer = Producer(config, **{**QUICK, **settings})
        await producer.start()
        try:
            yield cluster, producer
        finally:
            await within(2, producer.close(timeout=0))
        await assert_nothing_left(producer, cluster)


def stored(cluster, partition=None):
    return [(one.key, one.value, list(one.headers)) for one in cluster.records("t", partition)]


# ------------------------------------------------------------------------------------------------ settings


def test_a_dict_of_settings_is_accepted_and_keywords_override_it():
    config = {
        "bootstrap.servers": "a:9092",
        "linger.ms": 7,
        "queue.buffering.max.kbytes": 1024,
        "acks": "all",
    }

    producer = Producer(config, linger_ms=9)

    assert producer.config.bootstrap_servers == (("a", 9092),)
    assert producer.config.linger == 0.009
    assert producer.config.buffer_memory == 1024 * 1024
    assert config["linger.ms"] == 7


@pytest.mark.parametrize(
    ("config", "settings", "partitioner"),
    [
        ({}, {}, "consistent_random"),
        ({"partitioner": "murmur2_random"}, {}, "murmur2_random"),
        ({}, {"partitioner": "round_robin"}, "round_robin"),
        ({"partitioner.ignore.keys": "true"}, {}, "random"),
        (None, {}, "consistent_random"),
    ],
)
def test_the_default_partitioner_is_librdkafkas(config, settings, partitioner):
    for kind in (Producer, BlockingProducer):
        assert kind(config, **settings).config.partitioner == partitioner


def test_every_way_to_build_a_producer_has_the_same_default(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:9092\n")
    for kind in (Producer, BlockingProducer):
        built = [
            kind.from_config({"bootstrap.servers": "a:9092"}),
            kind.from_properties(file),
            kind.from_env("X_", {"X_BOOTSTRAP_SERVERS": "a:9092"}),
            kind(bootstrap_servers="a:9092"),
        ]
        for producer in built:
            assert type(producer) is kind
            assert producer.config.bootstrap_servers == (("a", 9092),)
            assert producer.config.partitioner == "consistent_random"


def test_a_wrong_setting_is_reported_with_advice_and_without_secrets():
    for kind in (Producer, BlockingProducer):
        with pytest.raises(ConfigError, match=r"linger\.ms") as caught:
            kind({"linger.msx": 1, "sasl.password": "hunter2"})
        assert_no_frame_shows(caught.value, "hunter2")


@pytest.mark.parametrize("kind", [Producer, BlockingProducer])
@pytest.mark.parametrize("password", ["hunter2", b"hunter2"])
def test_no_frame_shows_a_password_that_is_a_keyword(kind, password):
    with pytest.raises(ConfigError) as caught:
        kind({"linger.ms": -1}, sasl_plain_password=password)

    assert "hunter2" not in str(caught.value)
    assert_no_frame_shows(caught.value, "hunter2")


@pytest.mark.parametrize("kind", [Producer, BlockingProducer])
def test_a_producer_keeps_a_password_that_is_a_keyword_hidden(kind):
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me"}

    producer = kind(config, sasl_plain_password="hunter2")

    assert "hunter2" not in shown(producer)
    assert producer.config.sasl_plain_password == Secret("hunter2")


# ------------------------------------------------------------------------------------------------- records

RECORDS = [
    {"value": "text", "key": "ü", "headers": {"a": "x", "b": b"y", "c": None}},
    {"value": b"bytes", "key": b"k", "headers": [("a", "x"), ("a", b"y")]},
    {"value": "", "key": None, "headers": None},
    {"value": None, "key": "k", "headers": {}},
]


@pytest.mark.promise(
    "Coming from other clients", "text, dict headers and list offsets of confluent-kafka are accepted"
)
async def test_the_same_records_are_in_the_log_as_by_confluent_kafka():
    with Docs() as docs:
        docs.topic("t", 1)
        servers = docs.cluster.bootstrap_servers
        theirs = confluent_kafka.Producer({"bootstrap.servers": servers})
        for record in RECORDS:
            theirs.produce("t", **record)
        assert theirs.flush(10) == 0
        expected = [(one.key, one.value, list(one.headers)) for one in docs.records("t", 0)]

        async with Producer({"bootstrap.servers": servers}) as producer:
            for record in RECORDS:
                await producer.send("t", **record)
        for record in RECORDS:
            async with Producer({"bootstrap.servers": servers}) as producer:
                await producer.send_and_wait("t", **record)
        async with Producer({"bootstrap.servers": servers}) as producer:
            await producer.partitions_for("t")
            for record in RECORDS:
                producer.try_send("t", **record)

        found = [(one.key, one.value, list(one.headers)) for one in docs.records("t", 0)]

    assert len(expected) == len(RECORDS)
    assert found == expected * 4


async def test_keys_have_librdkafkas_partitions_and_minus_one_means_any_partition():
    async with confluent_producing() as (_, producer):
        for key in ("a", "b", "customer 7"):
            metadata = await producer.send_and_wait("t", "v", key, -1)
            assert metadata.partition == zlib.crc32(key.encode()) % 10


async def test_serializers_receive_text_unchanged():
    async with confluent_producing(
        value_serializer=lambda value: value.upper().encode(),
        key_serializer=lambda key: key.encode("utf-16-le"),
    ) as (cluster, producer):
        await producer.send_and_wait("t", "text", "k", 0)

        assert stored(cluster) == [(b"k\0", b"TEXT", [])]


async def test_a_records_own_serializers_receive_text_unchanged():
    own = {
        "value_serializer": lambda text: text.upper().encode(),
        "key_serializer": lambda text: text.encode("utf-16-le"),
    }

    async with confluent_producing() as (cluster, producer):
        await producer.send_and_wait("t", "text", "k", 0, **own)
        await (await producer.send("t", "text", "k", 0, value_serializer=own["value_serializer"]))
        await producer.try_send("t", "text", "k", 0, key_serializer=own["key_serializer"])

        assert stored(cluster) == [(b"k\0", b"TEXT", []), (b"k", b"TEXT", []), (b"k\0", b"text", [])]


async def test_a_value_that_is_neither_text_nor_bytes_is_rejected():
    async with confluent_producing() as (cluster, producer):
        for record in (
            {"value": 7},
            {"key": 7},
            {"headers": {"a": 7}},
            {"headers": {7: b"v"}},
            {"headers": "x"},
        ):
            with pytest.raises(InvalidRecordError):
                await producer.send("t", **record)

        assert cluster.requests_of(PRODUCE) == []


def test_the_blocking_producer_takes_the_same_arguments():
    with Docs() as docs:
        docs.topic("t", 1)
        with BlockingProducer({"bootstrap.servers": docs.cluster.bootstrap_servers}, linger_ms=0) as producer:
            for record in RECORDS:
                producer.send("t", partition=-1, **record)
            producer.flush(10)
            for record in RECORDS:
                producer.send_and_wait("t", **record)
            for record in RECORDS:
                producer.try_send("t", **record)

        found = [(one.key, one.value, list(one.headers)) for one in docs.records("t", 0)]

    assert found == found[:4] * 3
    assert found[0] == ("ü".encode(), b"text", [("a", b"x"), ("b", b"y"), ("c", None)])


def test_the_blocking_producer_takes_serializers_for_a_record():
    own = {"value_serializer": lambda text: text.upper().encode(), "key_serializer": str.encode}
    with Docs() as docs:
        docs.topic("t", 1)
        with BlockingProducer({"bootstrap.servers": docs.cluster.bootstrap_servers}, linger_ms=0) as producer:
            producer.send("t", "text", "k", **own).result(10)
            producer.send_and_wait("t", "text", "k", **own)
            producer.try_send("t", "text", "k", **own).result(10)

        assert [(one.key, one.value) for one in docs.records("t", 0)] == [(b"k", b"TEXT")] * 3


def test_text_is_queued_without_waiting_for_the_loop(monkeypatch):
    with Docs() as docs:
        docs.topic("t", 1)
        with BlockingProducer({"bootstrap.servers": docs.cluster.bootstrap_servers}) as producer:
            producer.send("t", "first").result(10)
            calls = []
            monkeypatch.setattr(producer, "_call_settled", lambda *call: calls.append(call))
            producer.send("t", "text", "key", headers={"a": "x"}).result(10)
            monkeypatch.undo()

    assert calls == []


@pytest.mark.parametrize("kind", [Producer, BlockingProducer])
@pytest.mark.parametrize("method", ["send", "send_and_wait", "try_send"])
def test_the_arguments_are_those_of_aioproducer(kind, method):
    ours = inspect.signature(getattr(kind, method)).parameters
    base = aioproducer.Producer if kind is Producer else blocking.Producer

    assert list(ours) == list(inspect.signature(getattr(base, method)).parameters)


# -------------------------------------------------------------------------------------------- transactions


def position(partition, offset, **more):
    return confluent_kafka.TopicPartition("in", partition, offset, **more)


async def committed(producer):
    found = await producer.committed("group", [("in", number) for number in range(4)])
    return [one and (one.offset, one.metadata, one.leader_epoch) for one in found.values()]


async def test_a_list_of_offsets_is_committed_without_partitions_that_have_none():
    async with confluent_producing({"transactional.id": "id"}) as (cluster, producer):
        cluster.create_topic("in", 4)
        positions = [
            position(0, 17),
            position(1, 5, metadata="m", leader_epoch=0),
            position(2, confluent_kafka.OFFSET_INVALID),
            position(3, confluent_kafka.OFFSET_END),
        ]

        async with producer.transaction() as transaction:
            await producer.send("t", "v")
            await transaction.send_offsets(positions, "group")

        assert await committed(producer) == [(17, "", -1), (5, "m", 0), None, None]


async def test_a_list_without_an_offset_commits_nothing():
    async with confluent_producing({"transactional.id": "id"}) as (cluster, producer):
        cluster.create_topic("in", 4)
        async with producer.transaction():
            await producer.send_offsets_to_transaction([position(0, confluent_kafka.OFFSET_INVALID)], "group")
            await producer.send_offsets_to_transaction([], "group")

        assert await committed(producer) == [None] * 4
        with pytest.raises(IllegalStateError):
            await producer.send_offsets_to_transaction([], "group")


async def test_a_mapping_of_offsets_and_the_groups_metadata_are_accepted_as_before():
    async with confluent_producing({"transactional.id": "id"}) as (cluster, producer):
        cluster.create_topic("in", 4)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "group"}
        )
        async with producer.transaction():
            offsets = {TopicPartition("in", 0): 3, TopicPartition("in", 1): OffsetAndMetadata(4, "m")}
            await producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        consumer.close()

        assert await committed(producer) == [(3, "", -1), (4, "m", -1), None, None]


@pytest.mark.parametrize("offsets", [[TopicPartition("in", 0)], [7], "text", 7, [("in", 0, 5)]], ids=str)
async def test_invalid_offsets_are_rejected(offsets):
    async with confluent_producing({"transactional.id": "id"}) as (_, producer):
        async with producer.transaction():
            with pytest.raises(InvalidRecordError, match="offsets"):
                await producer.send_offsets_to_transaction(offsets, "group")


def test_the_blocking_producer_takes_a_list_of_offsets():
    with Docs() as docs:
        docs.topic("in", 4)
        settings = {"bootstrap.servers": docs.cluster.bootstrap_servers, "transactional.id": "id"}
        with BlockingProducer(settings) as producer:
            with producer.transaction() as transaction:
                transaction.send_offsets([position(2, 9), position(3, -1001)], "group")

            found = producer.committed("group", [("in", 2), ("in", 3)])

    assert [one and one.offset for one in found.values()] == [9, None]


async def test_a_serializer_that_fails_raises_as_usual():
    async with confluent_producing(value_serializer=lambda value: 1 / 0) as (_, producer):
        with pytest.raises(SerializationError):
            await producer.send("t", "v")
