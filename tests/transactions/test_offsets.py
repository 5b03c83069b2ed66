"""The conversion of offsets, groups and partitions that users pass, and the errors for invalid ones."""

from __future__ import annotations

import struct

import aiokafka
import confluent_kafka
import pytest

from aioproducer import ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from aioproducer.errors import InvalidRecordError, KafkaError
from aioproducer.protocol.api import ApiKey
from aioproducer.transactions.offsets import (
    LONGEST_METADATA,
    group_metadata,
    offsets_to_commit,
    partitions_of_handoff,
)
from tests.support.producing import QUICK, error_of, within
from tests.transactions.test_calls import committed, transactional


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


# ---------------------------------------------------------------------------------------------------- conversions


def packed(group_id: str, generation_id: int, member_id: str, instance_id: str | None) -> bytes:
    """Serialize a membership as librdkafka does."""
    head = b"CGMDv2:" + struct.pack("=i", generation_id)
    ids = group_id.encode() + b"\0" + member_id.encode() + b"\0"
    return head + ids + (b"\x01" if instance_id is None else b"\0" + instance_id.encode() + b"\0")


@pytest.mark.parametrize(
    ("given", "group"),
    [
        ("g", ConsumerGroupMetadata("g")),
        (ConsumerGroupMetadata("g", 3, "m", "i"), ConsumerGroupMetadata("g", 3, "m", "i")),
        (packed("g", -1, "", None), ConsumerGroupMetadata("g")),
        (packed("grün", 2**31 - 1, "m", None), ConsumerGroupMetadata("grün", 2**31 - 1, "m")),
        (packed("g", 7, "m", "i"), ConsumerGroupMetadata("g", 7, "m", "i")),
    ],
)
def test_a_group_is_an_id_a_membership_or_what_confluent_kafka_returns(given, group):
    assert group_metadata(given) == group


def test_each_form_of_an_offset_is_converted():
    class Place:
        """Imitates confluent-kafka's TopicPartition, which has attributes and is not a tuple."""

        topic, partition = "t", 3

    found = offsets_to_commit(
        {
            ("t", 0): 17,
            TopicPartition("t", 1): (18, "m"),
            ("t", 2): OffsetAndMetadata(2**63 - 1, "", 5),
            Place(): 0,
        }
    )

    assert found == {
        TopicPartition("t", 0): OffsetAndMetadata(17),
        TopicPartition("t", 1): OffsetAndMetadata(18, "m"),
        TopicPartition("t", 2): OffsetAndMetadata(2**63 - 1, "", 5),
        TopicPartition("t", 3): OffsetAndMetadata(0),
    }
    assert offsets_to_commit({}) == {}


def test_the_offsets_of_aiokafka_and_of_confluent_kafka_are_accepted_unchanged():
    wanted = {
        TopicPartition("t", 0): OffsetAndMetadata(17, "m"),
        TopicPartition("t", 1): OffsetAndMetadata(18),
    }
    of_aiokafka = {
        aiokafka.TopicPartition("t", 0): aiokafka.OffsetAndMetadata(17, "m"),
        aiokafka.TopicPartition("t", 1): 18,
    }
    of_confluent = [
        confluent_kafka.TopicPartition("t", 0, 17, "m"),
        confluent_kafka.TopicPartition("t", 1, 18),
        confluent_kafka.TopicPartition("t", 2, confluent_kafka.OFFSET_INVALID),
    ]

    assert offsets_to_commit(of_aiokafka) == wanted
    assert offsets_to_commit(of_confluent) == wanted
    assert offsets_to_commit([confluent_kafka.TopicPartition("t", 0, 17, "m", 4)]) == {
        TopicPartition("t", 0): OffsetAndMetadata(17, "m", 4)
    }
    assert offsets_to_commit([]) == {}


@pytest.mark.parametrize(
    "offsets", [[TopicPartition("in", 0)], [7], "text", 7, [("in", 0, 5)]], ids=lambda given: repr(given)
)
def test_a_list_of_something_else_is_rejected(offsets):
    with pytest.raises(InvalidRecordError, match=r"^offsets"):
        offsets_to_commit(offsets)


@pytest.mark.parametrize("shape", ["mapping", "list"])
async def test_both_shapes_are_committed_in_a_transaction(version, shape):
    offsets = {
        "mapping": {aiokafka.TopicPartition("t", 0): aiokafka.OffsetAndMetadata(17, "")},
        "list": [confluent_kafka.TopicPartition("t", 0, 17)],
    }
    async with transactional(version) as (cluster, producer):
        async with producer.transaction() as transaction:
            await producer.send("t", b"1", partition=0)
            await transaction.send_offsets(offsets[shape], "g")

        assert cluster.groups.offsets("g") == {TopicPartition("t", 0): 17}


def test_partitions_may_come_from_any_iterable_and_keep_their_order():
    places = partitions_of_handoff(place for place in [("t", 1), TopicPartition("t", 0)])

    assert places == [TopicPartition("t", 1), TopicPartition("t", 0)]
    assert all(isinstance(place, TopicPartition) for place in places)


def test_the_longest_metadata_that_a_broker_accepts_is_accepted():
    offsets = {("t", 0): (1, "m" * LONGEST_METADATA)}

    assert offsets_to_commit(offsets)[TopicPartition("t", 0)].metadata == "m" * LONGEST_METADATA
    with pytest.raises(InvalidRecordError, match="at most 4096 characters"):
        offsets_to_commit({("t", 0): (1, "m" * (LONGEST_METADATA + 1))})


# ------------------------------------------------------------------------------------------------------- errors


OFFSETS = {
    "an offset that is not an int64": 2**63,
    "an offset that is a bool": True,
    "a leader epoch that is a str": OffsetAndMetadata(1, "", "x"),
    "a leader epoch that is not an int32": OffsetAndMetadata(1, "", 2**40),
    "metadata that can not be encoded": OffsetAndMetadata(1, "\ud800"),
}


@pytest.mark.parametrize("offset", OFFSETS.values(), ids=OFFSETS)
async def test_an_offset_that_cannot_be_sent_is_rejected_before_anything_is_sent(version, offset):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)

        error = await error_of(producer.send_offsets_to_transaction({TopicPartition("t", 0): offset}, "g"))

        assert isinstance(error, InvalidRecordError)
        assert cluster.requests_of(ApiKey.ADD_OFFSETS_TO_TXN) == []
        assert cluster.requests_of(ApiKey.TXN_OFFSET_COMMIT) == []
        await within(2, producer.commit_transaction())
        assert committed(cluster) == [b"1"]


GROUPS = {
    "an id that can not be encoded": "\ud800",
    "an id that is too long": "g" * 2**15,
    "a generation that is a str": ConsumerGroupMetadata("g", "1"),
    "a generation that is not an int32": ConsumerGroupMetadata("g", 2**40),
    "no member id": ConsumerGroupMetadata("g", 1, None),
    "an instance id that is not a str": ConsumerGroupMetadata("g", 1, "m", 7),
    "confluent-kafka's, with bytes that are not text": b"CGMDv2:" + b"\1\0\0\0" + b"\xff\0m\0\1",
}


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
async def test_a_group_that_cannot_be_sent_is_rejected_before_anything_is_sent(version, group):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)

        error = await error_of(producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, group))

        assert isinstance(error, InvalidRecordError)
        assert cluster.requests_of(ApiKey.ADD_OFFSETS_TO_TXN) == []
        assert cluster.requests_of(ApiKey.TXN_OFFSET_COMMIT) == []
        await within(2, producer.commit_transaction())
        assert committed(cluster) == [b"1"]


PLACES = {
    "a partition that is a str": [("t", "0")],
    "a partition that is not an int32": [("t", 2**40)],
    "a partition below zero": [("t", -1)],
    "a topic that is a number": [(5, 0)],
    "a topic that no broker takes": [("not a topic!", 0)],
    "three parts": [("t", 1, 2)],
    "a topic alone": ["t"],
    "a str in place of a list": "t",
    "a mapping in place of a list": {("t", 0): 1},
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
async def test_an_export_of_invalid_partitions_is_rejected_and_nothing_joins(version, places):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()

        error = await error_of(producer.export_transaction(places))

        assert isinstance(error, KafkaError)
        assert cluster.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN) == []
        await within(2, producer.send_and_wait("t", b"1", partition=0))
        await within(2, producer.commit_transaction())
        assert committed(cluster) == [b"1"]


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
async def test_invalid_partitions_of_a_participant_are_rejected(places):
    async with transactional(2) as (_, producer):
        async with producer.transaction() as transaction:
            handle = await transaction.export([TopicPartition("t", 0)])
            with pytest.raises(KafkaError):
                Producer.attach(handle, partitions=places, bootstrap_servers="127.0.0.1:1", **QUICK)
            await transaction.send_offsets({TopicPartition("t", 0): 1}, "g")


@pytest.mark.parametrize(
    ("offsets", "group"),
    [
        ("t", "g"),
        ({"t": 1}, "g"),
        ({("t", -1): 1}, "g"),
        ({("t", 0): -1}, "g"),
        ({("t", 0): "1"}, "g"),
        ({("t", 0): (1, "m" * 4097)}, "g"),
        ({("t", 0): 1}, ""),
        ({("t", 0): 1}, b"g"),
        ({("t", 0): 1}, b"CGMDv2:"),
        ({("t", 0): 1}, 7),
    ],
)
async def test_malformed_offsets_are_rejected_and_do_not_affect_the_transaction(offsets, group):
    async with transactional(2) as (cluster, producer):
        async with producer.transaction() as transaction:
            await producer.send("t", b"1")
            with pytest.raises(InvalidRecordError):
                await transaction.send_offsets(offsets, group)

        assert committed(cluster) == [b"1"]
