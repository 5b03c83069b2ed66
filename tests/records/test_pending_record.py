"""Records that are not in the buffer yet."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Outcome, Producer
from aioproducer.errors import KafkaError
from aioproducer.records.pending_record import PendingRecord
from aioproducer.testing import EmbeddedCluster
from aioproducer.types import ProducerRecord
from tests.conftest import in_virtual_time

RECORD = ProducerRecord("t", b"v", b"k", None, 5, [("h", b"x")])


@in_virtual_time
async def test_a_pending_record_has_its_delivery_once_it_is_appended():
    async with EmbeddedCluster(topics={"t": 2}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        pending = PendingRecord(RECORD, transaction=0, deadline=asyncio.get_running_loop().time() + 60)
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
            pending = PendingRecord(RECORD, producer._transaction.number, deadline=float("inf"))
            await producer.commit_transaction()
            await producer.begin_transaction()

            with pytest.raises(KafkaError, match="transaction") as raised:
                await producer._send_pending(pending)

            assert pending.delivery is None
            assert getattr(raised.value, "outcome", Outcome.NOT_PERSISTED) is Outcome.NOT_PERSISTED
