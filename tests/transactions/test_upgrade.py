"""A cluster that finalizes transactions v2 (KIP-890) while producers are using transactions v1.

With v1, EndTxn is answered before the markers are written, and the next transaction has the same epoch. If a
transaction of the same epoch is open in a partition, a broker accepts a v2 batch without asking the coordinator. The
markers of the last v1 transaction would then commit or abort the records of the first v2 transaction."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.producing import within
from tests.transactions.test_calls import committed, transactional


async def finalize(level, cluster, producer):
    """Finalize the level, and make the producer connect again so that it learns of it."""
    cluster.transactions.finalize(level)
    producer._brokers.renegotiate(0)
    await producer.ping()
    assert producer._brokers.finalized_feature("transaction.version") == level


@pytest.mark.promise("Transactions", "the first transaction v2 after an upgrade has an epoch of its own")
@pytest.mark.parametrize(("first", "second"), [("abort", "commit"), ("commit", "abort")])
async def test_markers_of_the_last_v1_transaction_do_not_end_the_next_one(first, second):
    """The producer learns of the upgrade between two transactions."""
    async with transactional(1, topics={"t": 1}) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        cluster.transactions.hold_markers()
        await getattr(producer, f"{first}_transaction")()
        await finalize(2, cluster, producer)
        await producer.begin_transaction()
        delivery = await producer.send("t", b"2", partition=0)
        # While the markers are held, the delivery must not be done, so this wait should time out.
        await asyncio.wait([delivery], timeout=0.2)
        cluster.transactions.release_markers()
        await within(2, delivery)
        await getattr(producer, f"{second}_transaction")()
        await cluster.transactions.wait_ended("tx")

        assert committed(cluster) == [b"1" if first == "commit" else b"2"]


@pytest.mark.parametrize("first", ["abort", "commit"])
async def test_a_transaction_during_which_the_cluster_was_upgraded_is_the_last_with_v1(first):
    async with transactional(1, topics={"t": 1}) as (cluster, producer):
        epoch = producer._idempotence.identity.epoch
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"1", partition=0)
        await finalize(2, cluster, producer)
        await producer.send_and_wait("t", b"2", partition=0)
        assert not producer._transaction.is_v2
        await getattr(producer, f"{first}_transaction")()
        assert producer._idempotence.identity.epoch == epoch + 1
        async with producer.transaction():
            assert producer._transaction.is_v2
            await producer.send("t", b"3", partition=0)

        assert committed(cluster) == ([b"1", b"2"] if first == "commit" else []) + [b"3"]


async def test_an_upgrade_before_the_first_record_of_the_epoch_needs_no_new_epoch():
    async with transactional(1, topics={"t": 1}) as (cluster, producer):
        async with producer.transaction():
            pass  # the coordinator does not learn of this transaction
        epoch = producer._idempotence.identity.epoch
        await finalize(2, cluster, producer)
        await producer.begin_transaction()
        assert producer._transaction.is_v2
        assert producer._idempotence.identity.epoch == epoch
        await producer.send("t", b"1", partition=0)
        await producer.commit_transaction()

        assert committed(cluster) == [b"1"]


async def test_a_downgrade_takes_effect_with_the_next_transaction():
    async with transactional(2, topics={"t": 1}) as (cluster, producer):
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
        await finalize(1, cluster, producer)
        cluster.transactions.hold_markers()
        async with producer.transaction():
            assert not producer._transaction.is_v2
            await producer.send("t", b"2", partition=0)
            cluster.transactions.release_markers()

        assert committed(cluster) == [b"1", b"2"]
