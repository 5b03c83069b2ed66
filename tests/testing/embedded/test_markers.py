"""Transaction markers: when they are written, and when they take effect."""

from __future__ import annotations

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.batches import Marker, read_marker
from aioproducer.testing.embedded.markers import Markers
from aioproducer.testing.embedded.transaction_metadata import TransactionMetadata, TransactionStatus
from aioproducer.types import TopicPartition
from tests.support.coordinators import another, levels, staged, within_deadline
from tests.support.raw_transactions import refused
from tests.support.transaction_stage import ABORTABLE, BUSY, OK, OLD_EPOCH


@levels
async def test_while_markers_are_held_back_requests_are_answered_with_a_retriable_error(tv):
    async with staged(tv) as (cluster, on):
        me = await on.begin()
        cluster.transactions.hold_markers("t")
        after = await on.end_once(me, commit=True, version=on.end_version)
        assert after.error == OK
        for commit in (True, False):
            ended = await on.end_once(me, commit=commit, version=on.end_version)
            assert ended == refused(BUSY)
        assert await on.init_once() == refused(BUSY)
        follower = after if tv == 2 else me
        assert await on.add(follower, 0) == [BUSY]
        assert await on.add_offsets(follower) == BUSY
        answer = await on.produce_once(follower, 0, version=on.produce_version, partition=1)
        if tv == 2:
            assert (answer.error_code, answer.error_message) == (BUSY, None)
        else:
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert answer.error_message.endswith("Underlying error: CONCURRENT_TRANSACTIONS")
        assert (await on.fetch()).last_stable_offset == 0

        cluster.transactions.release_markers()
        assert (await on.end(me, commit=True, version=on.end_version)).error == OK
        assert await on.visible() == [b"first"]


@levels
async def test_a_late_batch_joins_the_transaction_until_the_marker_is_written(tv):
    async with staged(tv) as (cluster, on):
        me = await on.begin()
        cluster.transactions.hold_markers()
        assert (await on.end_once(me, commit=True, version=on.end_version)).error == OK
        assert await on.write(me, 1, b"late") == OK
        cluster.transactions.release_markers()
        await within_deadline(cluster.transactions.wait_ended("txn"))
        assert await on.write(me, 2, b"too late") == (OLD_EPOCH if tv == 2 else ABORTABLE)
        assert await on.visible() == [b"first", b"late"]


@levels
async def test_a_frozen_leader_holds_back_only_its_own_markers(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.begin(0, 1)
        node = cluster.transactions.node("txn")
        elsewhere = (node + 1) % 3
        cluster.move_leader("t", 1, elsewhere)
        cluster.freeze_broker(elsewhere)
        assert (await on.end_once(me, commit=False, version=on.end_version)).error == OK
        assert await on.visible() == []
        assert (await on.fetch()).markers == [(False, me.producer_id, me.epoch + tv - 1)]
        assert await on.init_once() == refused(BUSY)
        assert not any(batch.header.is_control for batch in cluster.batches("t", 1))
        cluster.thaw_broker(elsewhere)
        assert (await on.init()).error == OK
        assert cluster.batches("t", 1)[-1].header.is_control


async def test_a_frozen_coordinator_writes_no_markers():
    async with staged(2, 3) as (cluster, on):
        me = await on.begin()
        elsewhere = (cluster.transactions.node("txn") + 1) % 3
        cluster.transactions.move("txn", elsewhere)
        async with another(cluster, on, elsewhere) as there:
            cluster.transactions.hold_markers()
            assert (await there.end_once(me, commit=True, version=5)).error == OK
        cluster.freeze_broker(elsewhere)
        cluster.transactions.release_markers()
        # The partition's leader does not know that the transaction has ended, so it still appends.
        assert await on.write(me, 1, b"late") == OK
        assert (await on.fetch()).last_stable_offset == 0
        cluster.thaw_broker(elsewhere)
        await within_deadline(cluster.transactions.wait_ended("txn"))
        assert await on.visible() == [b"first", b"late"]


async def test_a_marker_counts_when_it_is_replicated():
    async with staged(2, 3) as (cluster, on):
        me = await on.begin()
        cluster.hold_replication("t", 0)
        assert (await on.end_once(me, commit=True, version=5)).error == OK
        assert await on.init_once() == refused(BUSY)
        assert cluster.batches("t", 0)[-1].header.is_control
        assert (await on.fetch()).last_stable_offset == 0
        # The marker is lost with the leader, and written again.
        cluster.move_leader("t", 0, cluster.leader("t", 0))
        assert not cluster.batches("t", 0)[-1].header.is_control or cluster.log("t", 0).end_offset == 2
        cluster.release_replication("t", 0)
        await within_deadline(cluster.transactions.wait_ended("txn"))
        assert [batch.header.is_control for batch in cluster.batches("t", 0)] == [False, True]
        assert await on.visible() == [b"first"]


async def test_a_deleted_topic_needs_no_marker():
    async with staged() as (cluster, on):
        me = await on.begin(0, 1)
        cluster.delete_topic("t")
        assert (await on.end_once(me, commit=True, version=5)).error == OK
        assert (await within_deadline(cluster.transactions.wait_ended("txn"))).state.name == "COMPLETE_COMMIT"


# Markers without requests


def prepared(*partitions: int, commit: bool = True) -> TransactionMetadata:
    return TransactionMetadata(
        "txn",
        producer_id=7,
        timeout_ms=1000,
        state=TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
        producer_epoch=3,
        partitions=tuple(TopicPartition("t", index) for index in partitions),
    )


def marker_in(cluster: EmbeddedCluster, partition: int) -> list[Marker]:
    return [
        read_marker(next(batch.records()))
        for batch in cluster.batches("t", partition)
        if batch.header.is_control
    ]


async def test_each_partition_gets_its_marker_even_if_another_one_must_wait():
    async with EmbeddedCluster(topics={"t": 3}) as cluster:
        markers = Markers(cluster)
        markers.hold("t", 0)

        assert not markers.write(prepared(0, 1), 5)
        assert [marker_in(cluster, index) for index in range(3)] == [[], [Marker(True, 5)], []]
        assert markers.targets() == [cluster.partition("t", 0)]

        markers.release()
        assert markers.write(prepared(0, 1), 5)
        assert [marker_in(cluster, index) for index in range(3)] == [[Marker(True, 5)], [Marker(True, 5)], []]
        assert markers.targets() == []


async def test_a_marker_is_written_only_once_unless_its_leader_is_lost_before_it_is_replicated():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
        markers = Markers(cluster)
        cluster.hold_replication("t", 0)

        assert not markers.write(prepared(0, commit=False), 5)
        assert not markers.write(prepared(0, commit=False), 5)
        assert marker_in(cluster, 0) == [Marker(False, 5)]

        cluster.move_leader("t", 0, 1)
        assert marker_in(cluster, 0) == []
        cluster.release_replication("t", 0)
        assert markers.write(prepared(0, commit=False), 5)
        assert marker_in(cluster, 0) == [Marker(False, 5)]


async def test_no_marker_is_written_without_a_running_leader():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        markers = Markers(cluster)
        cluster.freeze_broker(0)
        assert not markers.write(prepared(0), 5)
        await cluster.stop_broker(0)
        assert not markers.write(prepared(0), 5)
        assert marker_in(cluster, 0) == []

        await cluster.start_broker(0)
        assert markers.write(prepared(0), 5)


async def test_a_partition_with_a_marker_of_a_newer_coordinator_needs_no_marker():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        assert Markers(cluster).write(prepared(0), 6)

        assert Markers(cluster).write(prepared(0, commit=False), 5)
        assert marker_in(cluster, 0) == [Marker(True, 6)]
