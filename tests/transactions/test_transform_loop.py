"""The consume-transform-produce loop on the embedded cluster: each input record is in the output exactly once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioproducer import (
    CommitOutcomeUnknownError,
    Producer,
    ProducerFencedError,
    TopicPartition,
    TransactionAbortableError,
    TransformLoop,
)
from aioproducer.errors import IllegalStateError, InvalidArgumentError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.transactions import transform_loop
from tests.conftest import MS
from tests.support.producing import QUICK, until
from tests.support.transforming import (
    AIOKAFKA,
    EAGER,
    GROUP,
    cluster_with_input,
    consuming,
    copy,
    each_kind,
    fill,
    looping,
    output,
    run,
)

WAIT = 30.0  # seconds; longer than any of these tests takes on a slow machine

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def short_pauses(monkeypatch):
    monkeypatch.setattr(transform_loop, "FIRST_PAUSE", 1 * MS)


async def finish(cluster, loop, producer, count=40, first=0):
    """Copy until the output is complete, then check that each record from `first` to `count` - 1 is in it once."""
    done = asyncio.Event()
    running = asyncio.create_task(run(loop, producer, done))
    await until(lambda: len(output(cluster)) >= count - first or running.done(), WAIT)
    done.set()
    await running
    assert sorted(output(cluster)) == sorted(b"%d" % number for number in range(first, count))
    assert sum(cluster.groups.offsets(GROUP).values()) == count


def fetched_partitions(cluster):
    """Return the partitions that consumers have fetched from, and whose first offsets they therefore know."""
    return {
        partition.partition
        for request in cluster.requests_of(ApiKey.FETCH)
        for topic in request.message.topics
        for partition in topic.partitions
    }


@pytest.mark.promise(
    "Transactions", "a consume-transform-produce loop for aiokafka's and confluent-kafka's consumers"
)
@each_kind
async def test_each_record_is_transformed_once_and_its_offset_is_committed_with_the_result(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        await finish(cluster, loop, producer)

        assert {
            request.message.member_id for request in cluster.requests_of(ApiKey.TXN_OFFSET_COMMIT)
        } == set(cluster.groups.members(GROUP))
        assert {
            request.message.generation_id for request in cluster.requests_of(ApiKey.TXN_OFFSET_COMMIT)
        } == {cluster.groups.generation(GROUP)}


@pytest.mark.promise(
    "Transactions", "a consume-transform-produce loop for aiokafka's and confluent-kafka's consumers"
)
@each_kind
async def test_members_that_come_and_go_share_the_work_and_repeat_nothing(kind):
    async with cluster_with_input(100) as cluster, asyncio.timeout(WAIT):
        servers = cluster.bootstrap_servers
        done, leave = asyncio.Event(), asyncio.Event()

        async def member(name, stop):
            async with looping(kind, servers, name, max_records=5) as (loop, producer):
                return await run(loop, producer, stop)

        async def until_copied(count):
            await until(lambda: len(output(cluster)) >= count or first.done(), WAIT)

        first = asyncio.create_task(member("one", done))
        await until_copied(20)
        second = asyncio.create_task(member("two", leave))
        await cluster.groups.wait_stable(GROUP, 2)
        await fill(servers, 100, 100)
        await until_copied(200)
        leave.set()
        await fill(servers, 100, 200)
        by_second = await second
        await until_copied(300)
        done.set()
        by_first = await first

        assert by_first + by_second == 300
        assert by_second >= 25
        assert sorted(output(cluster)) == sorted(b"%d" % number for number in range(300))


@each_kind
async def test_an_exception_aborts_rewinds_and_leaves_the_block(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        first = await anext(loop)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the whole block is what is tested
            async with first:
                await copy(first, producer)
                await producer.flush()
                raise ZeroDivisionError
        assert not first.is_committed
        assert cluster.groups.offsets(GROUP) == {}

        await finish(cluster, loop, producer)


@each_kind
async def test_a_commit_that_is_rejected_is_repeated_with_the_same_records(kind, caplog):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=ErrorCode.ILLEGAL_GENERATION)
        with caplog.at_level(logging.WARNING):
            first = await anext(loop)
            async with first:
                await copy(first, producer)
            again = await anext(loop)
            assert (first.is_committed, first.attempt, again.attempt) == (False, 1, 2)
            async with again:
                await copy(again, producer)

        assert again.is_committed
        assert "read again (attempt 1 of 10)" in caplog.text
        await finish(cluster, loop, producer)
        assert loop._attempts == 0


@each_kind
async def test_a_record_that_fails_in_the_block_is_a_failed_attempt(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD)
        first = await anext(loop)
        async with first:
            await producer.send_and_wait("out", b"lost")
        assert not first.is_committed

        await finish(cluster, loop, producer)


@each_kind
async def test_after_the_last_attempt_the_error_is_raised_and_the_loop_can_continue(kind):
    async with (
        cluster_with_input() as cluster,
        looping(kind, cluster.bootstrap_servers, max_attempts=2) as (loop, producer),
    ):
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=ErrorCode.ILLEGAL_GENERATION, count=2)
        async with await anext(loop) as batch:
            await copy(batch, producer)
        with pytest.raises(TransactionAbortableError, match="ILLEGAL_GENERATION"):
            async with await anext(loop) as batch:
                await copy(batch, producer)

        await finish(cluster, loop, producer)


@pytest.mark.promise(
    "Transactions", "a fenced member of a loop stops and does not take its transactional id back"
)
@each_kind
async def test_a_fenced_member_stops_and_does_not_take_its_id_back(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        async with await anext(loop) as batch:
            await copy(batch, producer)
        with pytest.raises(ProducerFencedError):  # noqa: PT012  # the whole block is what is tested
            async with await anext(loop) as batch:
                await copy(batch, producer)
                async with Producer(cluster.bootstrap_servers, transactional_id="one"):
                    pass  # another process with the same id
        taken_over = len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID))
        with pytest.raises(ProducerFencedError):
            await anext(loop)

        assert len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID)) == taken_over
        assert len(output(cluster)) == sum(cluster.groups.offsets(GROUP).values())


@each_kind
async def test_a_fencing_that_a_record_reports_ends_the_loop(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        with pytest.raises(ProducerFencedError):  # noqa: PT012  # the whole block is what is tested
            async with await anext(loop):
                await producer.send_and_wait("out", b"1")
                async with Producer(cluster.bootstrap_servers, transactional_id="one"):
                    pass
                await producer.send_and_wait("out", b"2")
        with pytest.raises(ProducerFencedError):
            await anext(loop)


@pytest.mark.promise("Transactions", "a loop repeats a commit that was not answered")
@each_kind
async def test_a_commit_without_an_answer_is_repeated_until_its_outcome_is_known(kind, caplog):
    async with (
        cluster_with_input() as cluster,
        looping(kind, cluster.bootstrap_servers, max_block_ms=200 * MS * 1000) as (loop, producer),
    ):
        async with await anext(loop) as batch:
            await copy(batch, producer)
        batch = await anext(loop)
        async with batch:
            await copy(batch, producer)
            await producer.flush()
            cluster.faults.add(ApiKey.END_TXN, drop_after_append=True, count=10**6)
            repeated = asyncio.create_task(until(lambda: "is being repeated" in caplog.text, WAIT))
            repeated.add_done_callback(lambda _: cluster.faults.clear())
        await repeated

        assert batch.is_committed
        await finish(cluster, loop, producer)


async def test_a_commit_that_is_never_answered_ends_the_loop():
    async with (
        cluster_with_input() as cluster,
        looping(AIOKAFKA, cluster.bootstrap_servers, max_block_ms=100 * MS * 1000, max_attempts=2) as (
            loop,
            producer,
        ),
    ):
        with pytest.raises(CommitOutcomeUnknownError):  # noqa: PT012  # the whole block is what is tested
            async with await anext(loop) as batch:
                await copy(batch, producer)
                await producer.flush()
                cluster.faults.add(ApiKey.END_TXN, drop_before=True, count=10**6)
        cluster.faults.clear()
        with pytest.raises(CommitOutcomeUnknownError):
            await anext(loop)


@each_kind
async def test_a_member_that_has_lost_its_partitions_cannot_commit(kind):
    async with cluster_with_input() as cluster, asyncio.timeout(WAIT):
        async with looping(kind, cluster.bootstrap_servers, "zombie") as (loop, producer):
            batch = await anext(loop)
            async with batch:
                await copy(batch, producer)
                (zombie,) = cluster.groups.members(GROUP)
                cluster.groups.expire_member(GROUP, zombie)
                async with looping(kind, cluster.bootstrap_servers, "successor") as (other, theirs):
                    async with await anext(other) as taken:
                        await copy(taken, theirs)
            assert taken.is_committed
            assert not batch.is_committed

            await finish(cluster, loop, producer)


@each_kind
async def test_a_new_member_waits_for_a_transaction_that_may_still_change_its_start(kind):
    async with cluster_with_input() as cluster, asyncio.timeout(WAIT):
        servers = cluster.bootstrap_servers
        async with Producer(servers, transactional_id="dead", **QUICK) as dead:
            await dead.begin_transaction()
            offsets = {TopicPartition("in", partition): 7 for partition in range(4)}
            await dead.send_offsets_to_transaction(offsets, GROUP)
            async with looping(kind, servers) as (loop, _):
                reading = asyncio.create_task(anext(loop))
                await cluster.groups.wait_stable(GROUP, 1)
                asked = len(cluster.requests_of(ApiKey.OFFSET_FETCH))
                await cluster.wait_for_requests(ApiKey.OFFSET_FETCH, asked + 3)
                assert not reading.done()
                await dead.commit_transaction()
                batch = await reading
                assert set(batch.starts.values()) == {7}


@each_kind
async def test_a_loop_that_waits_for_the_transaction_of_another_member_can_be_cancelled(kind):
    async with cluster_with_input() as cluster, asyncio.timeout(WAIT):
        servers = cluster.bootstrap_servers
        async with Producer(servers, transactional_id="dead", **QUICK) as dead:
            await dead.begin_transaction()
            await dead.send_offsets_to_transaction({TopicPartition("in", 0): 7}, GROUP)
            async with looping(kind, servers) as (loop, _):
                reading = asyncio.create_task(anext(loop))
                await cluster.groups.wait_stable(GROUP, 1)
                asked = len(cluster.requests_of(ApiKey.OFFSET_FETCH))
                await cluster.wait_for_requests(ApiKey.OFFSET_FETCH, asked + 3)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            await dead.abort_transaction()
        assert output(cluster) == []


@each_kind
async def test_with_latest_an_aborted_first_batch_is_read_again_and_nothing_before_it(kind):
    async with cluster_with_input(8) as cluster, asyncio.timeout(WAIT):
        servers = cluster.bootstrap_servers
        async with looping(kind, servers, reset="latest") as (loop, producer):
            # librdkafka learns the end offset of partition 0 late, and fetches from the other partitions first.
            cluster.faults.add(
                ApiKey.LIST_OFFSETS, topic="in", partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            reading = asyncio.create_task(anext(loop))
            await until(lambda: fetched_partitions(cluster) == {0, 1, 2, 3}, WAIT)
            await fill(servers, 4, first=8)
            first = await reading
            with pytest.raises(ZeroDivisionError):
                async with first:
                    raise ZeroDivisionError

            await finish(cluster, loop, producer, 12, first=8)


async def test_in_a_rebalance_aiokafkas_consumer_keeps_its_partitions_until_the_batch_has_ended():
    async with cluster_with_input() as cluster, asyncio.timeout(WAIT):
        async with looping(AIOKAFKA, cluster.bootstrap_servers) as (loop, producer):
            batch = await anext(loop)
            async with batch:
                await copy(batch, producer)
                cluster.groups.rebalance(GROUP)
                heartbeats = len(cluster.requests_of(ApiKey.HEARTBEAT))
                await cluster.wait_for_requests(ApiKey.HEARTBEAT, heartbeats + 3)
                assert cluster.groups.generation(GROUP) == 1
            assert batch.is_committed

            await finish(cluster, loop, producer)
            assert cluster.groups.generation(GROUP) == 2


@each_kind
async def test_a_cancelled_block_is_aborted_and_the_consumer_rewound(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        entered = asyncio.Event()

        async def block():
            async with await anext(loop) as batch:
                await copy(batch, producer)
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert output(cluster) == []

        await finish(cluster, loop, producer)


@each_kind
async def test_a_cancelled_wait_for_records_loses_none(kind):
    async with cluster_with_input() as cluster, looping(kind, cluster.bootstrap_servers) as (loop, producer):
        for _ in range(20):
            waiting = asyncio.create_task(anext(loop))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        await finish(cluster, loop, producer)


async def test_a_batch_whose_transaction_cannot_begin_is_not_lost():
    async with cluster_with_input() as cluster, looping(EAGER, cluster.bootstrap_servers) as (loop, producer):
        batch = await anext(loop)
        await producer.begin_transaction()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            async with batch:
                pass
        with pytest.raises(IllegalStateError, match="was not entered"):
            await anext(loop)
        await producer.abort_transaction()
        async with batch:
            await copy(batch, producer)

        await finish(cluster, loop, producer)


async def test_a_block_that_ends_the_transaction_itself_ends_the_loop():
    async with cluster_with_input() as cluster, looping(EAGER, cluster.bootstrap_servers) as (loop, producer):
        batch = await anext(loop)
        with pytest.raises(IllegalStateError, match="send_offsets_to_transaction"):
            async with batch:
                await producer.commit_transaction()
        with pytest.raises(IllegalStateError, match="send_offsets_to_transaction"):
            await anext(loop)


async def test_a_loop_does_not_continue_after_a_batch_that_was_not_rewound(monkeypatch):
    async with cluster_with_input() as cluster, looping(EAGER, cluster.bootstrap_servers) as (loop, producer):
        batch = await anext(loop)

        async def fails(positions):
            raise ZeroDivisionError("no seek")

        monkeypatch.setattr(loop._input, "seek", fails)
        cluster.faults.add(ApiKey.TXN_OFFSET_COMMIT, error=ErrorCode.ILLEGAL_GENERATION)
        with pytest.raises(ZeroDivisionError):
            async with batch:
                await copy(batch, producer)
        with pytest.raises(ZeroDivisionError):
            await anext(loop)


async def test_a_batch_must_be_entered_exactly_once():
    async with cluster_with_input() as cluster, looping(EAGER, cluster.bootstrap_servers) as (loop, producer):
        batch = await anext(loop)
        with pytest.raises(IllegalStateError, match="was not entered"):
            await anext(loop)
        async with batch:
            await copy(batch, producer)
        with pytest.raises(IllegalStateError, match="only once"):
            async with batch:
                pass
        assert len(list(batch)) == len(batch) > 0


async def test_a_loop_must_be_entered_exactly_once():
    async with cluster_with_input(0) as cluster, consuming(EAGER, cluster.bootstrap_servers) as consumer:
        async with Producer(cluster.bootstrap_servers, transactional_id="one") as producer:
            loop = TransformLoop(producer, consumer, ["in"])
            with pytest.raises(IllegalStateError, match="`async with`"):
                await anext(loop)
            async with loop:
                with pytest.raises(IllegalStateError, match="only once"):
                    await loop.__aenter__()
        async with Producer(cluster.bootstrap_servers) as producer:
            with pytest.raises(IllegalStateError, match="transactional_id"):
                await TransformLoop(producer, consumer, ["in"]).__aenter__()


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (("producer", None, ["in"]), {}),
        ((None, None, "in"), {}),
        ((None, None, []), {}),
        ((None, None, [1]), {}),
        ((None, None, ["in"]), {"max_records": 0}),
        ((None, None, ["in"]), {"max_attempts": 0}),
        ((None, None, ["in"]), {"poll_timeout": 0}),
    ],
)
def test_wrong_arguments_are_rejected(arguments, settings):
    producer, consumer, topics = arguments
    with pytest.raises(InvalidArgumentError):
        TransformLoop(producer or Producer(transactional_id="x"), consumer, topics, **settings)
