"""Records that are not in the buffer yet."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Outcome, Producer
from aioproducer.errors import InvalidRecordError, KafkaError
from aioproducer.records.pending_record import PendingRecord
from aioproducer.testing import EmbeddedCluster
from aioproducer.types import ProducerRecord
from tests.conftest import in_virtual_time
from tests.support.producing import FOUR_RECORDS_FILL_IT, LARGE, PRODUCE, producing, until, values

RECORD = ProducerRecord("t", b"v", b"k", None, 5, [("h", b"x")])


@in_virtual_time
async def test_a_pending_record_has_its_delivery_once_it_is_appended():
    async with EmbeddedCluster(topics={"t": 2}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        pending = PendingRecord(RECORD)
        pending.deadline = asyncio.get_running_loop().time() + 60
        assert pending.delivery is None

        delivery = await producer._send_pending(pending)

        assert delivery is pending.delivery
        [record] = cluster.records("t", (await delivery).partition)
        assert (record.key, record.value, record.timestamp) == (b"k", b"v", 5)


@in_virtual_time
async def test_a_record_whose_transaction_has_ended_is_not_appended():
    settings = {"transactional_id": "tx"}
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers, **settings) as producer:
            await producer.begin_transaction()
            pending = PendingRecord(RECORD)
            pending.transaction = producer._transaction.number
            await producer.commit_transaction()
            await producer.begin_transaction()

            with pytest.raises(KafkaError, match="transaction") as raised:
                await producer._send_pending(pending)

            assert pending.delivery is None
            assert getattr(raised.value, "outcome", Outcome.NOT_PERSISTED) is Outcome.NOT_PERSISTED


class Counts:
    """An interceptor and serializer that counts its calls."""

    def __init__(self):
        self.intercepted = self.serialized = 0

    def on_send(self, record):
        self.intercepted += 1
        return record

    def __call__(self, value):
        self.serialized += 1
        return value


@in_virtual_time
@pytest.mark.parametrize("serializer", ["sync", "async"])
async def test_a_record_that_waits_for_room_is_intercepted_and_serialized_once(serializer):
    counts = Counts()

    async def waits(value):
        await asyncio.sleep(1)
        return counts(value)

    settings = {"value_serializer": counts if serializer == "sync" else waits, "interceptors": [counts]}
    async with producing(**settings, **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=hold)
        await producer.partitions_for("t")
        sending = [asyncio.ensure_future(producer.send("t", bytes(LARGE))) for _ in range(6)]
        await until(lambda: producer._accumulator.memory.waiters == 2)
        assert (counts.intercepted, counts.serialized) == (6, 6)

        hold.set()
        await asyncio.gather(*await asyncio.gather(*sending))

        assert (counts.intercepted, counts.serialized) == (6, 6)
        assert len(cluster.records("t")) == 6


async def test_a_record_for_an_unknown_topic_is_intercepted_once_and_serialized_when_the_topic_is_known():
    counts = Counts()

    async with producing(value_serializer=counts, interceptors=[counts]) as (cluster, producer):
        assert producer._metadata.topic("t") is None
        await producer.send_and_wait("t", b"v")

        assert values(cluster) == [b"v"]
    assert (counts.intercepted, counts.serialized) == (1, 1)


@pytest.mark.parametrize("serializer", [None, lambda value: value])
async def test_a_rejected_record_is_reported_under_the_topic_that_send_received(serializer):
    class Redirect:
        def on_send(self, record):
            return record._replace(topic="t", partition=0)

    class Hook:
        def __init__(self):
            self.topics = []

        def on_rejected(self, event):
            self.topics.append(event.topic)

    hook = Hook()
    settings = {"interceptors": [Redirect()], "hooks": [hook], "value_serializer": serializer}
    async with producing(**settings) as (_, producer):
        for _ in ("while the topic is unknown", "when it is known"):
            with pytest.raises(InvalidRecordError):
                await producer.send("elsewhere", "not bytes")
        with pytest.raises(InvalidRecordError):
            producer.try_send("elsewhere", "not bytes")
        with pytest.raises(InvalidRecordError):
            await producer.send("elsewhere", "not bytes", timeout=5)

    assert hook.topics == ["elsewhere"] * 4
