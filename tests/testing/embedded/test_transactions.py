"""Transactions of the embedded cluster: its answers, cell by cell, its log, and the location of its coordinator."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import FindCoordinatorRequest
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded import transactions
from aioproducer.testing.embedded.state_topic import partition_for
from aioproducer.testing.embedded.transaction_log import TOPIC
from aioproducer.testing.embedded.transaction_metadata import TransactionRefused
from tests.conftest import MS
from tests.support.coordinators import another, levels, staged, states, within_deadline
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address
from tests.support.raw_transactions import Identity, refused
from tests.support.transaction_cells import CELLS
from tests.support.transaction_stage import (
    BUSY,
    INVALID_STATE,
    OK,
    OLD_EPOCH,
    OTHER_PRODUCER,
    Case,
    Stage,
    named,
)


@pytest.mark.parametrize(("case", "tv"), named(CELLS))
async def test_cell(case: Case, tv: int):
    async with (
        EmbeddedCluster(topics={"t": 3}, versions="4.3", transaction_version=tv) as cluster,
        RawClient(address(cluster)) as client,
    ):
        cluster.transactions.sweep_interval = 20 * MS
        stage = Stage(client, tv, "t", "txn", "group")
        await stage.find()
        await case.play(stage)


# The log


@pytest.mark.promise(
    "Test clusters",
    "the embedded coordinator's states form a table, and each is written to the log before the response",
)
@levels
async def test_every_state_is_in_the_log_before_it_is_answered(tv):
    async with staged(tv) as (cluster, on):
        cluster.transactions.hold_markers()
        me = await on.init()
        assert states(cluster) == ["EMPTY"]
        await on.write_first(me, 0, 1)
        await on.end_once(me, commit=True, version=on.end_version)
        assert states(cluster) == ["EMPTY", *(["ONGOING"] * on.tv), "PREPARE_COMMIT"]
        cluster.transactions.release_markers()
        await within_deadline(cluster.transactions.wait_ended("txn"))
        assert states(cluster)[-1] == "COMPLETE_COMMIT"


@levels
async def test_an_answer_waits_until_the_state_is_replicated(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.begin()
        partition = partition_for("txn", 50)
        cluster.hold_replication(TOPIC, partition)
        ending = asyncio.create_task(on.end_once(me, commit=True, version=on.end_version))
        await within_deadline(cluster.wait_for_requests(ApiKey.END_TXN))
        async with another(cluster, on, cluster.transactions.node("txn")) as second:
            assert await second.init_once() == refused(BUSY)
        assert states(cluster)[-1] == "PREPARE_COMMIT"
        assert not ending.done()
        assert not any(batch.header.is_control for batch in cluster.batches("t", 0))

        cluster.release_replication(TOPIC, partition)

        assert (await within_deadline(ending)).error == OK
        assert (await within_deadline(cluster.transactions.wait_ended("txn"))).state.name == "COMPLETE_COMMIT"


async def test_partitions_that_are_already_in_the_transaction_need_no_new_state():
    async with staged(1) as (cluster, on):
        me = await on.init()
        assert await on.add(me, 0, 1) == [OK, OK]
        assert await on.add(me, 1) == [OK]
        assert states(cluster) == ["EMPTY", "ONGOING"]
        assert await on.add(me, 1, 2) == [OK, OK]
        assert states(cluster) == ["EMPTY", "ONGOING", "ONGOING"]


async def test_a_state_that_is_lost_with_its_leader_is_answered_with_an_error():
    async with staged(2, 3) as (cluster, on):
        me = await on.begin()
        partition = partition_for("txn", 50)
        cluster.hold_replication(TOPIC, partition)
        ending = asyncio.create_task(on.end_once(me, commit=True, version=5))
        await within_deadline(cluster.wait_for_requests(ApiKey.END_TXN))
        new = (cluster.transactions.node("txn") + 1) % 3
        cluster.transactions.move("txn", new)
        assert await within_deadline(ending) == refused(ErrorCode.NOT_COORDINATOR)
        cluster.release_replication(TOPIC, partition)
        assert states(cluster)[-1] == "ONGOING"
        async with another(cluster, on, new) as there:
            assert (await there.end(me, commit=False, version=5)).error == OK
        assert await on.visible() == []


async def test_a_state_is_not_written_with_too_few_replicas():
    async with staged(2, 3) as (cluster, on):
        me = await on.begin()
        cluster.set_isr(TOPIC, partition_for("txn", 50), [])
        ended = await on.end_once(me, commit=True, version=5)
        assert ended == refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        cluster.set_isr(TOPIC, partition_for("txn", 50), [0, 1, 2])
        await on.commit(me)
        assert await on.visible() == [b"first"]


@pytest.mark.promise(
    "Test clusters", "no write needs more replicas in sync than exist, not even a coordinator's"
)
@pytest.mark.parametrize("brokers", [1, 3])
async def test_transactions_do_not_need_more_replicas_than_exist(brokers):
    async with staged(2, brokers, min_insync_replicas=4) as (cluster, on):
        me = await on.begin()
        await on.commit(me)
        assert states(cluster)[-1] == "COMPLETE_COMMIT"


# The location of the coordinator


@pytest.mark.promise(
    "Test clusters",
    "the embedded coordinator's states form a table, and each is written to the log before the response",
)
@levels
async def test_a_new_coordinator_has_the_state_from_the_log(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.begin()
        old = cluster.transactions.node("txn")
        new = (old + 1) % 3
        cluster.transactions.hold_loading()
        cluster.transactions.move("txn", new)
        assert await on.end_once(me, commit=True, version=on.end_version) == refused(
            ErrorCode.NOT_COORDINATOR
        )
        async with another(cluster, on, new) as there:
            for _ in range(2):
                ended = await there.end_once(me, commit=True, version=on.end_version)
                assert ended == refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            cluster.transactions.release_loading()
            after = await there.end(me, commit=True, version=on.end_version)
            assert after.error == OK
            assert await there.end(me, commit=True, version=on.end_version) == after
        assert await on.visible() == [b"first"]
        assert (await on.fetch()).markers == [(True, me.producer_id, me.epoch + tv - 1)]


@levels
async def test_the_next_coordinator_ends_a_prepared_transaction(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.begin()
        cluster.transactions.hold_markers()
        assert (await on.end_once(me, commit=True, version=on.end_version)).error == OK
        old = cluster.transactions.node("txn")
        await cluster.stop_broker(old)
        cluster.transactions.release_markers()
        assert (await within_deadline(cluster.transactions.wait_ended("txn"))).state.name == "COMPLETE_COMMIT"
        new = cluster.transactions.node("txn")
        assert new != old
        async with another(cluster, on, new) as there:
            again = await there.end(me, commit=True, version=on.end_version)
            assert again == (Identity(me.producer_id, me.epoch + 1) if tv == 2 else again._replace(error=OK))
            reverse = await there.end(me, commit=False, version=on.end_version)
            assert reverse == refused(INVALID_STATE)
        assert [record.value for record in cluster.records("t", committed=True)] == [b"first"]


@pytest.mark.promise(
    "Test clusters", "a transaction whose end could not be written to enough replicas ends once they are back"
)
async def test_the_end_of_a_transaction_waits_until_enough_replicas_are_back():
    async with staged(2, 3) as (cluster, on):
        me = await on.begin()
        cluster.transactions.hold_markers()
        assert (await on.end_once(me, commit=True, version=5)).error == OK
        followers = [
            node.node_id for node in cluster.nodes if node.node_id != cluster.transactions.node("txn")
        ]
        for node in followers:
            await cluster.stop_broker(node)
        cluster.transactions.release_markers()
        # The marker is written, but the state COMPLETE_COMMIT can't be.
        await until(lambda: any(batch.header.is_control for batch in cluster.batches("t", 0)), TIMEOUT)
        assert states(cluster)[-1] == "PREPARE_COMMIT"
        for node in followers:
            await cluster.start_broker(node)
        assert (await within_deadline(cluster.transactions.wait_ended("txn"))).state.name == "COMPLETE_COMMIT"


@levels
async def test_the_next_coordinator_also_waits_for_the_markers(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.begin()
        cluster.transactions.hold_markers()
        assert (await on.end_once(me, commit=True, version=on.end_version)).error == OK
        new = (cluster.transactions.node("txn") + 1) % 3
        cluster.transactions.move("txn", new)
        async with another(cluster, on, new) as there:
            for commit in (True, False):
                assert await there.end_once(me, commit=commit, version=on.end_version) == refused(BUSY)
            cluster.transactions.release_markers()
            assert (await there.end(me, commit=True, version=on.end_version)).error == OK


async def test_without_a_replica_in_sync_there_is_no_coordinator():
    async with staged(2, 3) as (cluster, on):
        me = await on.init()
        node = cluster.transactions.node("txn")
        other = (node + 1) % 3
        cluster.move_leader("t", 1, other)
        cluster.set_isr(TOPIC, partition_for("txn", 50), [])
        await cluster.stop_broker(node)
        async with another(cluster, on, other) as there:
            answer = await there.produce_once(me, 0, version=12, partition=1)
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert answer.error_message == (
                "Unable to verify the partition has been added to the transaction. "
                "Underlying error: COORDINATOR_NOT_AVAILABLE"
            )
            for version in (0, 1, 3, 4, 6):
                request = FindCoordinatorRequest()
                if version >= 1:
                    request.key_type = 1
                if version >= 4:
                    request.coordinator_keys = ["txn"]
                else:
                    request.key = "txn"
                response = await there.client.ask(request, version)
                found = response.coordinators[0] if version >= 4 else response
                expected = OK if version == 0 else ErrorCode.COORDINATOR_NOT_AVAILABLE
                assert found.error_code == expected


# Time


@levels
async def test_transactions_time_out_by_the_clusters_clock(tv):
    clock = [time.time()]
    async with staged(tv, clock=lambda: clock[0]) as (cluster, on):
        me = await on.init(timeout_ms=3000)
        await on.write_first(me, 0)
        clock[0] += 2.0
        await on.added(me, 1)
        clock[0] += 1.0
        assert cluster.transactions.abort_timed_out() == []
        clock[0] += 0.001
        assert cluster.transactions.abort_timed_out() == ["txn"]
        assert cluster.transactions.abort_timed_out() == []
        ended = await within_deadline(cluster.transactions.wait_ended("txn"))
        assert (ended.state.name, ended.producer_epoch) == ("COMPLETE_ABORT", me.epoch + 1)
        assert (await on.fetch()).markers == [(False, me.producer_id, me.epoch + 1)]
        assert await on.write(me, 1) == OLD_EPOCH


async def test_a_transactional_id_that_was_not_used_for_a_long_time_is_forgotten():
    async with staged() as (cluster, on):
        me = await on.begin()
        with pytest.raises(TransactionRefused, match="CONCURRENT_TRANSACTIONS"):
            cluster.transactions.expire("txn")
        after = await on.commit(me)
        cluster.transactions.expire("txn")
        assert cluster.transactions.describe("txn") is None
        # The next coordinator also forgets it, because of the tombstone.
        partition = cluster.partition(TOPIC, partition_for("txn", 50))
        partition.move_leader(partition.leader)
        assert cluster.transactions.describe("txn") is None
        assert (await on.end(after, commit=True, version=5)).error == OTHER_PRODUCER
        assert await on.add(after, 0) == [OTHER_PRODUCER]
        assert await on.produce(after, 0, version=12) == OTHER_PRODUCER
        fresh = await on.init(after)
        assert (fresh.epoch, fresh.error) == (0, OK)
        assert fresh.producer_id != me.producer_id


async def test_a_state_that_is_not_replicated_in_time_is_an_error_but_counts_later(monkeypatch):
    monkeypatch.setattr(transactions, "WRITE_TIMEOUT", 50 * MS)
    async with staged(2, 3) as (cluster, on):
        me = await on.begin()
        partition = partition_for("txn", 50)
        cluster.hold_replication(TOPIC, partition)
        ended = await on.end_once(me, commit=True, version=5)
        assert ended == refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert await on.end_once(me, commit=True, version=5) == refused(BUSY)

        cluster.release_replication(TOPIC, partition)

        await until(lambda: states(cluster)[-1] == "COMPLETE_COMMIT", TIMEOUT)
        assert await on.visible() == [b"first"]
