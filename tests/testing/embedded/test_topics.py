"""Partitions on all brokers: their leaders, in-sync replicas and high watermarks."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.recordbatch import read_header
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.topics import NO_LEADER, Partition, is_valid_name, wait_until
from tests.conftest import MS
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of


async def test_a_partition_has_no_leader_while_its_last_replica_in_sync_is_stopped():
    async with EmbeddedCluster(2, topics={"t": 2}, replication_factor=1) as cluster:
        await cluster.stop_broker(1)
        async with RawClient(address(cluster)) as client:
            described = (await client.metadata("t")).topics[0].partitions[1]
            assert (described.error_code, described.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

            await cluster.start_broker(1)
            described = (await client.metadata("t")).topics[0].partitions[1]
            assert (described.error_code, described.leader_id, described.leader_epoch) == (0, 1, 2)


@pytest.mark.parametrize(("acks", "answered", "kept"), [(1, 0, [b"a"]), (-1, 6, [b"a"])])
async def test_unreplicated_records_are_lost_when_the_leader_moves(acks, answered, kept):
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await client.produce(batch_of(b"a"))
        cluster.hold_replication("t", 0)
        answer = asyncio.ensure_future(client.produce(batch_of(b"b"), acks=acks))
        await until(lambda: len(cluster.records("t")) == 2, TIMEOUT)
        if acks == 1:
            # The record is acknowledged and still lost.
            await answer
        cluster.move_leader("t", 0, 1)

        assert (await answer).error_code == answered
        assert [record.value for record in cluster.records("t")] == kept


@pytest.mark.promise("Test clusters", "followers hold up acks=all while they are in the ISR, and only then")
async def test_followers_that_are_not_in_sync_delay_nothing():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await until(lambda: len(cluster.records("t")) == 1, TIMEOUT)
        cluster.set_isr("t", 0, [0, 1])
        assert (cluster.partition("t", 0).high_watermark, answer.done()) == (0, False)

        cluster.set_isr("t", 0, [0])
        assert (await asyncio.wait_for(answer, TIMEOUT)).error_code == 0
        assert (await asyncio.wait_for(client.produce(batch_of(b"b")), TIMEOUT)).error_code == 0

        # Back in sync, the followers have everything below the high watermark, but do not fetch yet.
        cluster.set_isr("t", 0, [0, 1, 2])
        await client.produce(batch_of(b"c"), acks=1)
        assert cluster.partition("t", 0).high_watermark == 2
        cluster.release_replication("t", 0)
        assert cluster.partition("t", 0).high_watermark == 3


@pytest.mark.promise("Test clusters", "followers hold up acks=all while they are in the ISR, and only then")
async def test_a_partition_without_followers_does_not_wait():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)

        assert (await asyncio.wait_for(client.produce(batch_of(b"a")), TIMEOUT)).error_code == 0
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        assert len(cluster.records("t")) == 1


# Partitions without brokers


def partition(replicas: int = 3, **config: object) -> Partition:
    """A partition with broker 0 as leader and all replicas in sync."""
    return Partition("t", 0, range(replicas), LogConfig(**config))


def write(to: Partition, value: bytes = b"a") -> None:
    batch = batch_of(value)
    to.append(batch, read_header(batch))


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("a", True),
        ("A.b_c-9", True),
        ("x" * 249, True),
        ("..." * 2, True),
        ("x" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
        ("a/b", False),
        ("a b", False),
        ("flüge", False),
        ("a\n", False),
    ],
)
def test_valid_names_are_those_that_kafka_accepts(name, is_valid):
    assert is_valid_name(name) is is_valid


def test_min_insync_replicas_is_limited_by_the_number_of_replicas():
    assert partition(3, min_insync_replicas=2).effective_min_isr == 2
    assert partition(1, min_insync_replicas=2).effective_min_isr == 1


def test_the_next_running_replica_in_sync_replaces_a_stopped_leader():
    one = partition()
    one.set_isr([0, 2])
    one.broker_stopped(0, alive={1, 2})
    assert (one.leader, one.leader_epoch, one.isr) == (2, 1, [2])

    one.broker_started(0)
    assert (one.leader, sorted(one.isr)) == (2, [0, 2]), "the old leader leads again"


def test_the_last_replica_in_sync_stays_in_sync_and_must_return_before_the_others():
    one = partition()
    one.set_isr([0])
    one.broker_stopped(0, alive={1, 2})
    assert (one.leader, one.isr) == (NO_LEADER, [0])

    one.broker_started(1)
    assert (one.leader, one.isr) == (NO_LEADER, [0]), "the new leader may lack records"

    one.broker_started(0)
    assert (one.leader, sorted(one.isr)) == (0, [0, 1])


def test_a_replica_that_does_not_fetch_delays_the_high_watermark_while_it_is_in_sync():
    one = partition()
    one.stop_fetching(2)
    write(one)
    assert one.high_watermark == 0
    one.set_isr([0, 1])
    assert one.high_watermark == 1

    one.start_fetching(2)
    write(one)
    assert (one.high_watermark, sorted(one.isr)) == (2, [0, 1, 2])


def test_an_election_truncates_unreplicated_records():
    one = partition()
    write(one)
    one.hold_replication()
    write(one)
    assert (one.high_watermark, one.log.end_offset) == (1, 2)

    one.move_leader(1)
    assert (one.log.end_offset, one.leader_epoch) == (1, 1)


# Waiting


async def test_waiting_checks_again_after_each_change_of_any_of_the_partitions():
    first, second = partition(), partition()
    looks = 0

    def both_written() -> bool:
        nonlocal looks
        looks += 1
        return bool(first.high_watermark and second.high_watermark)

    waiting = asyncio.create_task(wait_until([first, second, first], both_written, TIMEOUT))
    for change in (first, second):
        await asyncio.sleep(0)
        before = looks
        for _ in range(3):
            await asyncio.sleep(0)
        assert (waiting.done(), looks) == (False, before), "nothing has changed"
        write(change)

    assert await waiting


async def test_waiting_ends_at_its_time_limit_and_leaves_no_watcher():
    one = partition()

    assert await wait_until([one], lambda: True, 0)
    assert not await wait_until([one], lambda: False, 5 * MS)

    assert not one._watchers
