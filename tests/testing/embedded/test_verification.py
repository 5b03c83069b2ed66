"""Verification: a leader asks the coordinator whether a batch belongs to a transaction."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.transaction_metadata import ProducerIdAndEpoch
from aioproducer.testing.embedded.verification import Question, Support, verify
from aioproducer.types import TopicPartition
from tests.conftest import MS, in_virtual_time
from tests.support.coordinators import levels, staged, states, within_deadline
from tests.support.raw_client import RawClient, address
from tests.support.transaction_stage import OK, Stage


@levels
async def test_the_coordinator_is_not_needed_for_a_partition_that_was_already_written_to(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.begin()
        coordinator = (cluster.transactions.node("txn") + 1) % 3
        cluster.transactions.move("txn", coordinator)
        cluster.freeze_broker(coordinator)
        assert await on.write(me, 1, b"second") == OK
        cluster.thaw_broker(coordinator)


@levels
async def test_a_leader_waits_for_a_frozen_coordinator(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.init()
        await on.added(me, 0)
        coordinator = (cluster.transactions.node("txn") + 1) % 3
        cluster.transactions.move("txn", coordinator)
        cluster.freeze_broker(coordinator)
        writing = asyncio.create_task(on.produce_once(me, 0, version=on.produce_version))
        await within_deadline(cluster.wait_for_requests(ApiKey.PRODUCE))
        assert cluster.batches("t", 0) == []
        cluster.thaw_broker(coordinator)
        assert (await within_deadline(writing)).error_code == OK


@levels
async def test_a_coordinator_that_dies_while_a_leader_asks_it_is_a_network_exception(tv):
    async with staged(tv, 3) as (cluster, on):
        me = await on.init()
        await on.added(me, 0)
        coordinator = (cluster.transactions.node("txn") + 1) % 3
        cluster.transactions.move("txn", coordinator)
        cluster.freeze_broker(coordinator)
        writing = asyncio.create_task(on.produce_once(me, 0, version=on.produce_version))
        await within_deadline(cluster.wait_for_requests(ApiKey.PRODUCE))
        await cluster.stop_broker(coordinator)
        answer = await within_deadline(writing)
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert answer.error_message.endswith("Underlying error: NETWORK_EXCEPTION")
        assert await on.write(me, 0) == OK


@in_virtual_time
async def test_a_leader_asks_again_while_markers_are_written():
    async with staged() as (cluster, on):
        me = await on.begin()
        cluster.transactions.marker_delay = 30 * MS
        after = await on.end_once(me, commit=True, version=5)
        assert (await on.produce_once(after, 0, b"next", version=12)).error_code == OK
        assert states(cluster)[-2:] == ["COMPLETE_COMMIT", "ONGOING"]


@pytest.mark.parametrize("version", [9, 11, 12])
async def test_a_scripted_verification_error_has_kafkas_text(version):
    async with staged() as (cluster, on):
        me = await on.init()
        await on.added(me, 0, 1)
        cluster.transactions.refuse_verification(topic="t", partition=0, count=2)
        for _ in range(2):
            answer = await on.produce_once(me, 0, version=version)
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert answer.error_message == (
                "Unable to verify the partition has been added to the transaction. "
                "Underlying error: NETWORK_EXCEPTION"
            )
            assert cluster.batches("t", 0) == []
            assert (await on.produce_once(me, 0, version=version, partition=1)).error_code == OK
        assert (await on.produce_once(me, 0, version=version)).error_code == OK


async def test_a_failed_verification_is_a_coordinator_load_in_progress_error_for_groups():
    async with staged() as (cluster, on):
        me = await on.init()
        cluster.transactions.refuse_verification()
        (code,) = await on.commit_offsets(me, {("t", 0): (1, "")}, version=5)
        assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await on.commit_offset(me, 1, version=5) == OK


async def test_before_kafka_3_6_batches_are_not_verified():
    async with (
        EmbeddedCluster(topics={"t": 1}, versions="3.5") as cluster,
        RawClient(address(cluster)) as client,
    ):
        on = Stage(client, 0, "t", "txn", "group")
        me = await on.init(version=4)
        assert await on.produce(me, 5, version=9) == OK
        assert await on.commit_offset(me, 1, version=3) == OK
        assert (await on.fetch()).last_stable_offset == 0
        await on.added(me, 0)
        assert (await on.end(me, commit=True, version=3)).error == OK
        assert await on.visible() == [b"x"]


# Verification without requests


@pytest.mark.parametrize(
    ("version", "abortable_since", "support"),
    # TRANSACTION_ABORTABLE was added in version 11 of Produce and version 4 of TxnOffsetCommit (KIP-890).
    [
        (9, 11, Support.NOTHING),
        (10, 11, Support.NOTHING),
        (11, 11, Support.ABORTABLE),
        (12, 11, Support.ADDS),
        (13, 11, Support.ADDS),
        (3, 4, Support.NOTHING),
        (4, 4, Support.ABORTABLE),
        (5, 4, Support.ADDS),
    ],
)
def test_the_version_of_a_request_shows_which_errors_its_client_knows(version, abortable_since, support):
    assert Support.of(version, abortable_since) is support


@pytest.mark.parametrize(
    ("support", "code"),
    [
        (Support.NOTHING, ErrorCode.INVALID_TXN_STATE),
        (Support.ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (Support.ADDS, OK),
    ],
)
async def test_only_partitions_without_records_of_the_transaction_are_verified(support, code):
    async with staged() as (cluster, on):
        me = await on.begin(0)
        questions = {
            TopicPartition("t", index): Question(cluster.partition("t", index), sequence=index)
            for index in (0, 1)
        }

        answers = await verify(
            cluster, "txn", ProducerIdAndEpoch(me.producer_id, me.epoch), questions, support
        )

        assert {target: answer.code for target, answer in answers.items()} == {("t", 1): code}
        assert answers[TopicPartition("t", 1)].guard.lowest_sequence == 1


@pytest.mark.parametrize("support", Support)
async def test_a_leader_answers_a_fenced_producer_with_invalid_producer_epoch(support):
    async with staged() as (cluster, on):
        old = await on.init()
        await on.init()
        questions = {TopicPartition("t", 0): Question(cluster.partition("t", 0), 0)}

        answers = await verify(
            cluster, "txn", ProducerIdAndEpoch(old.producer_id, old.epoch), questions, support
        )

        assert [answer.code for answer in answers.values()] == [ErrorCode.INVALID_PRODUCER_EPOCH]
