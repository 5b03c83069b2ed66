"""Malformed offsets, groups and partitions of transactional calls: a clear error, and the transaction goes on."""

from __future__ import annotations

import pytest

from aioproducer import ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from aioproducer.errors import IllegalStateError, InvalidRecordError, KafkaError, TransactionAbortableError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import AddPartitionsToTxnRequest
from aioproducer.testing import EmbeddedCluster
from tests.support.producing import QUICK, error_of, quick_producer, within
from tests.transactions.test_calls import committed, transactional


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request):
    return request.param


OFFSETS = {
    "an offset that is no int64": 2**63,
    "an offset that is a bool": True,
    "a leader epoch that is a str": OffsetAndMetadata(1, "", "x"),
    "a leader epoch that is no int32": OffsetAndMetadata(1, "", 2**40),
    "metadata that can not be encoded": OffsetAndMetadata(1, "\ud800"),
}


@pytest.mark.parametrize("offset", OFFSETS.values(), ids=OFFSETS)
async def test_an_offset_that_can_not_be_sent_is_refused_before_anything_is(version, offset):
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
    "a generation that is no int32": ConsumerGroupMetadata("g", 2**40),
    "no member id": ConsumerGroupMetadata("g", 1, None),
    "an instance id that is no str": ConsumerGroupMetadata("g", 1, "m", 7),
    "confluent-kafka's, of bytes that are no text": b"CGMDv2:" + b"\1\0\0\0" + b"\xff\0m\0\1",
}


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
async def test_a_group_that_can_not_be_sent_is_refused_before_anything_is(version, group):
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
    "a partition that is no int32": [("t", 2**40)],
    "a partition below zero": [("t", -1)],
    "a topic that is a number": [(5, 0)],
    "a topic that no broker takes": [("not a topic!", 0)],
    "three parts": [("t", 1, 2)],
    "a topic alone": ["t"],
    "a str in place of a list": "t",
    "a mapping in place of a list": {("t", 0): 1},
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
async def test_partitions_of_an_export_that_make_no_sense_are_refused_and_nothing_joins(version, places):
    async with transactional(version) as (cluster, producer):
        await producer.begin_transaction()

        error = await error_of(producer.export_transaction(places))

        assert isinstance(error, KafkaError)
        assert cluster.requests_of(ApiKey.ADD_PARTITIONS_TO_TXN) == []
        await within(2, producer.send_and_wait("t", b"1", partition=0))
        await within(2, producer.commit_transaction())
        assert committed(cluster) == [b"1"]


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
async def test_partitions_of_a_participant_that_make_no_sense_are_refused(places):
    async with transactional(2) as (_, producer):
        async with producer.transaction() as transaction:
            handle = await transaction.export([TopicPartition("t", 0)])
            with pytest.raises(KafkaError):
                Producer.attach(handle, partitions=places, bootstrap_servers="127.0.0.1:1", **QUICK)
            await transaction.send_offsets({TopicPartition("t", 0): 1}, "g")


async def test_a_join_that_breaks_unforeseen_ends_the_transaction_and_is_not_tried_for_ever(
    monkeypatch, caplog
):
    async with transactional(1) as (cluster, producer):
        ask, asked = producer._brokers.request_node, []

        async def broken(node_id, message, timeout, **settings):
            if isinstance(message, AddPartitionsToTxnRequest):
                asked.append(message)
                raise ZeroDivisionError
            return await ask(node_id, message, timeout, **settings)

        await producer.begin_transaction()
        with monkeypatch.context() as patch:
            patch.setattr(producer._brokers, "request_node", broken)
            error = await error_of(await producer.send("t", b"1", partition=0))

        assert error.requires_abort
        assert len(asked) == 1
        assert "ZeroDivisionError" in caplog.text
        with pytest.raises(TransactionAbortableError, match="could not join"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
        assert committed(cluster) == [b"2"]


CALLS = {
    "offsets without a group": lambda producer: producer.send_offsets_to_transaction({("t", 0): 1}, None),
    "offsets that are a list": lambda producer: producer.send_offsets_to_transaction([], "g"),
    "partitions that are a str": lambda producer: producer.export_transaction("t"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_the_state_error_comes_before_errors_of_the_arguments(call):
    """Correct arguments would not help: a transaction has to be begun, or aborted, first."""
    async with transactional(2) as (cluster, producer):
        assert isinstance(await error_of(call(producer)), IllegalStateError)
        await producer.begin_transaction()
        assert isinstance(await error_of(call(producer)), InvalidRecordError)
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD)
        await error_of(producer.send_and_wait("t", b"1", partition=0))

        assert isinstance(await error_of(call(producer)), TransactionAbortableError)


async def test_without_a_transactional_id_the_state_error_comes_first_too():
    async with EmbeddedCluster() as cluster, quick_producer(cluster) as producer:
        for call in (*CALLS.values(), lambda producer: producer.committed(None, "t")):
            error = await error_of(call(producer))
            assert isinstance(error, IllegalStateError)
            assert "transactional_id" in str(error)
