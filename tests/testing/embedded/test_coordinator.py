"""The transaction coordinator of the embedded cluster: its states, its log, its markers, and where it is."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import FindCoordinatorRequest
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.coordinator import (
    LAST_EPOCH,
    MAX_EPOCH,
    TRANSITIONS,
    ProducerIdAndEpoch,
    Refused,
    Transaction,
    TransactionMetadata,
    TransactionState,
)
from aioproducer.testing.embedded.state_topic import partition_for
from aioproducer.testing.embedded.transaction_log import TOPIC, decoded, encoded_key, encoded_value
from aioproducer.types import TopicPartition
from tests.conftest import MS
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address
from tests.support.raw_transactions import Identity, refused
from tests.support.transaction_stage import (
    ABORTABLE,
    BUSY,
    FENCED,
    INVALID_STATE,
    OK,
    OLD_EPOCH,
    OTHER_PRODUCER,
    Stage,
)

levels = pytest.mark.parametrize("tv", [1, 2])


@asynccontextmanager
async def staged(
    tv: int = 2, brokers: int = 1, **settings: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Stage]]:
    """A cluster with a topic, and a connection to the broker that coordinates "txn" and leads t-0."""
    async with EmbeddedCluster(
        brokers, topics={"t": 3}, versions="4.3", transaction_version=tv, **settings
    ) as cluster:
        node = cluster.transactions.node("txn")
        for partition in cluster.topics["t"].partitions:
            partition.move_leader(node)
        async with RawClient(address(cluster, node)) as client:
            yield cluster, Stage(client, tv, "t", "txn", "group")


@asynccontextmanager
async def another(cluster: EmbeddedCluster, on: Stage, node: int = 0) -> AsyncIterator[Stage]:
    """The same producer on a connection of its own."""
    async with RawClient(address(cluster, node)) as client:
        yield Stage(client, on.tv, on.topic, on.name, on.group)


def states(cluster: EmbeddedCluster, name: str = "txn") -> list[str]:
    """What the log says about a transactional id, from the beginning."""
    index = partition_for(name, 50)
    found = [decoded(record.key, record.value) for record in cluster.records(TOPIC, index) if record.value]
    return [metadata.state.name for metadata in found if metadata.transactional_id == name]


async def within_deadline(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


# The state machine


def transaction(state: TransactionState = TransactionState.EMPTY, **fields: Any) -> Transaction:
    fields = {"producer_id": 7, "producer_epoch": 3, **fields}
    if state in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
        fields = {"partitions": (TopicPartition("t", 0),), "started_ms": 1, **fields}
    return Transaction(TransactionMetadata("txn", timeout_ms=1000, state=state, **fields))


ME = ProducerIdAndEpoch(7, 3)


@pytest.mark.parametrize("before", TransactionState)
@pytest.mark.parametrize("after", TransactionState)
def test_the_table_says_which_state_may_follow_which(before, after):
    one = transaction(before)
    to = replace(one.metadata, state=after)

    if after in TRANSITIONS[before]:
        assert one._move(to) is to
        assert one.pending is to
        assert one.state is before
        one.settle()
        assert one.state is after
    else:
        with pytest.raises(RuntimeError, match=f"{before.name}, so it can't become {after.name}"):
            one._move(to)
        assert one.pending is None


def test_only_a_dead_transactional_id_stays_what_it_is_for_ever():
    assert [state for state, after in TRANSITIONS.items() if not after] == [TransactionState.DEAD]
    assert set(itertools.chain(*TRANSITIONS.values())) == set(TransactionState)


REQUESTS: dict[str, Callable[[Transaction], TransactionMetadata]] = {
    "init": lambda one: one.init_producer_id(
        None, timeout_ms=1, now_ms=9, server_version=2, new_producer_id=lambda: 99
    ),
    "add": lambda one: one.add_partitions(*ME, [TopicPartition("t", 1)], client_version=2, now_ms=9),
    "commit": lambda one: one.end(*ME, commit=True, now_ms=9),
    "abort": lambda one: one.end(*ME, commit=False, now_ms=9),
    "commit v5": lambda one: one.end_and_bump(*ME, commit=True, now_ms=9, new_producer_id=lambda: 99),
    "abort v5": lambda one: one.end_and_bump(*ME, commit=False, now_ms=9, new_producer_id=lambda: 99),
}

_S = TransactionState
# What a producer with the current epoch is answered in each state: the state it leads to, or the code.
ANSWERS: dict[str, dict[TransactionState, TransactionState | ErrorCode]] = {
    "init": {
        _S.EMPTY: _S.EMPTY,
        _S.ONGOING: _S.PREPARE_ABORT,
        _S.PREPARE_COMMIT: BUSY,
        _S.PREPARE_ABORT: BUSY,
        _S.COMPLETE_COMMIT: _S.EMPTY,
        _S.COMPLETE_ABORT: _S.EMPTY,
    },
    "add": {
        _S.EMPTY: _S.ONGOING,
        _S.ONGOING: _S.ONGOING,
        _S.PREPARE_COMMIT: BUSY,
        _S.PREPARE_ABORT: BUSY,
        _S.COMPLETE_COMMIT: _S.ONGOING,
        _S.COMPLETE_ABORT: _S.ONGOING,
    },
    "commit": {
        _S.EMPTY: INVALID_STATE,
        _S.ONGOING: _S.PREPARE_COMMIT,
        _S.PREPARE_COMMIT: BUSY,
        _S.PREPARE_ABORT: INVALID_STATE,
        _S.COMPLETE_COMMIT: OK,
        _S.COMPLETE_ABORT: INVALID_STATE,
    },
    "abort": {
        _S.EMPTY: INVALID_STATE,
        _S.ONGOING: _S.PREPARE_ABORT,
        _S.PREPARE_COMMIT: INVALID_STATE,
        _S.PREPARE_ABORT: BUSY,
        _S.COMPLETE_COMMIT: INVALID_STATE,
        _S.COMPLETE_ABORT: OK,
    },
    "commit v5": {
        _S.EMPTY: INVALID_STATE,
        _S.ONGOING: _S.PREPARE_COMMIT,
        _S.PREPARE_COMMIT: FENCED,
        _S.PREPARE_ABORT: FENCED,
        _S.COMPLETE_COMMIT: INVALID_STATE,
        _S.COMPLETE_ABORT: INVALID_STATE,
    },
    "abort v5": {
        _S.EMPTY: _S.PREPARE_ABORT,
        _S.ONGOING: _S.PREPARE_ABORT,
        _S.PREPARE_COMMIT: FENCED,
        _S.PREPARE_ABORT: FENCED,
        _S.COMPLETE_COMMIT: _S.PREPARE_ABORT,
        _S.COMPLETE_ABORT: _S.PREPARE_ABORT,
    },
}


@pytest.mark.parametrize(
    ("request_name", "state", "expected"),
    [(name, state, answer) for name, row in ANSWERS.items() for state, answer in row.items()],
    ids=lambda value: getattr(value, "name", value),
)
def test_each_request_in_each_state(request_name, state, expected):
    one = transaction(state)

    if isinstance(expected, TransactionState):
        assert REQUESTS[request_name](one).state is expected
        with pytest.raises(Refused, match="CONCURRENT_TRANSACTIONS"):
            REQUESTS[request_name](one)
    else:
        with pytest.raises(Refused, match=expected.name):
            REQUESTS[request_name](one)
        assert one.pending is None


@pytest.mark.parametrize("name", REQUESTS)
def test_while_a_state_is_being_written_everybody_is_told_to_come_back(name):
    one = transaction(TransactionState.ONGOING)
    one.end(*ME, commit=True, now_ms=9)

    with pytest.raises(Refused, match="CONCURRENT_TRANSACTIONS"):
        REQUESTS[name](one)


def test_a_write_that_fails_leaves_everything_as_it_was():
    one = transaction(TransactionState.ONGOING)
    before = one.metadata
    one.end_and_bump(*ME, commit=True, now_ms=9, new_producer_id=lambda: 99)

    one.give_up()

    assert (one.metadata, one.pending) == (before, None)


def test_the_last_epoch_ends_with_a_new_producer_id_whose_marker_has_the_reserved_epoch():
    one = transaction(TransactionState.ONGOING, producer_epoch=LAST_EPOCH)

    one.end_and_bump(7, LAST_EPOCH, commit=True, now_ms=9, new_producer_id=lambda: 99)
    one.settle()
    assert one.metadata.identity == (7, MAX_EPOCH)
    one.complete(now_ms=9)
    one.settle()

    assert one.metadata.identity == (99, 0)
    with pytest.raises(Refused, match="NONE"):  # a retry
        one.end_and_bump(7, LAST_EPOCH, commit=True, now_ms=9, new_producer_id=lambda: 100)
    with pytest.raises(Refused, match="INVALID_TXN_STATE"):
        one.end_and_bump(7, LAST_EPOCH, commit=False, now_ms=9, new_producer_id=lambda: 100)


@pytest.mark.parametrize("epoch", [LAST_EPOCH, MAX_EPOCH])
def test_init_producer_id_gives_a_new_producer_id_when_the_epochs_are_used_up(epoch):
    one = transaction(producer_epoch=epoch)

    to = one.init_producer_id(None, timeout_ms=1, now_ms=9, server_version=2, new_producer_id=lambda: 99)

    assert to.identity == (99, 0)


def test_whoever_missed_the_new_producer_id_is_told_again():
    one = transaction(producer_epoch=LAST_EPOCH)
    expected = ProducerIdAndEpoch(7, LAST_EPOCH)

    def ask() -> TransactionMetadata:
        to = one.init_producer_id(
            expected, timeout_ms=1, now_ms=9, server_version=2, new_producer_id=lambda: 99
        )
        one.settle()
        return to

    assert ask().identity == (99, 0)
    assert ask().identity == (99, 0)


# The log


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


async def test_partitions_that_are_in_the_transaction_already_need_no_new_state():
    async with staged(1) as (cluster, on):
        me = await on.init()
        assert await on.add(me, 0, 1) == [OK, OK]
        assert await on.add(me, 1) == [OK]
        assert states(cluster) == ["EMPTY", "ONGOING"]
        assert await on.add(me, 1, 2) == [OK, OK]
        assert states(cluster) == ["EMPTY", "ONGOING", "ONGOING"]


async def test_a_state_that_is_lost_with_its_leader_was_never_answered():
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


async def test_a_state_that_too_few_replicas_would_hold_is_not_written():
    async with staged(2, 3) as (cluster, on):
        me = await on.begin()
        cluster.set_isr(TOPIC, partition_for("txn", 50), [])
        ended = await on.end_once(me, commit=True, version=5)
        assert ended == refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        cluster.set_isr(TOPIC, partition_for("txn", 50), [0, 1, 2])
        await on.commit(me)
        assert await on.visible() == [b"first"]


@pytest.mark.parametrize("brokers", [1, 3])
async def test_transactions_do_not_need_more_replicas_than_there_are(brokers):
    async with staged(2, brokers, min_insync_replicas=4) as (cluster, on):
        me = await on.begin()
        await on.commit(me)
        assert states(cluster)[-1] == "COMPLETE_COMMIT"


def test_records_of_the_log_are_written_as_kafka_writes_them():
    metadata = TransactionMetadata(
        "txn",
        producer_id=1000,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        producer_epoch=3,
        previous_producer_id=1000,
        partitions=(TopicPartition("t", 0), TopicPartition("u", 2), TopicPartition("t", 1)),
        started_ms=5,
        updated_ms=6,
        client_version=2,
    )

    assert encoded_key("txn") == bytes.fromhex("0000 0003 74786e")
    value = encoded_value(metadata, 1)
    assert value == bytes.fromhex(
        "0001 00000000000003e8 0003 0000ea60 01"
        "03 02 74 03 00000000 00000001 00 02 75 02 00000002 00"
        "0000000000000006 0000000000000005"
        "02 00 08 00000000000003e8 02 02 0002"
    )
    together = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2))
    assert decoded(encoded_key("txn"), value) == replace(metadata, partitions=together)


@pytest.mark.parametrize(
    ("key", "partition"),
    # Hash codes 0, 97, 99162322, -862545276 and the smallest int, which Kafka takes for 0.
    [("", 0), ("a", 47), ("hello", 22), ("Hello World", 26), ("polygenelubricants", 0)],
)
def test_the_partition_of_a_key_is_that_of_javas_hash_code(key, partition):
    assert partition_for(key, 50) == partition


# Where the coordinator is


@levels
async def test_a_coordinator_that_moved_knows_what_the_log_says(tv):
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
async def test_a_transaction_that_was_prepared_is_ended_by_the_next_coordinator(tv):
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


async def test_a_transaction_that_too_few_replicas_would_hold_is_ended_when_they_are_back():
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
        # The marker is there; that the transaction is complete can't be written.
        await until(lambda: any(batch.header.is_control for batch in cluster.batches("t", 0)), TIMEOUT)
        assert states(cluster)[-1] == "PREPARE_COMMIT"
        for node in followers:
            await cluster.start_broker(node)
        assert (await within_deadline(cluster.transactions.wait_ended("txn"))).state.name == "COMPLETE_COMMIT"


@levels
async def test_the_next_coordinator_waits_for_the_markers_too(tv):
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


@levels
async def test_once_a_partition_is_written_to_the_coordinator_may_be_gone(tv):
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


# Markers


@levels
async def test_while_markers_are_held_back_everybody_is_told_to_come_back(tv):
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
async def test_a_straggler_gets_into_a_transaction_until_the_marker_comes(tv):
    async with staged(tv) as (cluster, on):
        me = await on.begin()
        cluster.transactions.hold_markers()
        assert (await on.end_once(me, commit=True, version=on.end_version)).error == OK
        assert await on.write(me, 1, b"late") == OK
        cluster.transactions.release_markers()
        await within_deadline(cluster.transactions.wait_ended("txn"))
        assert await on.write(me, 2, b"too late") == (OLD_EPOCH if tv == 2 else ABORTABLE)
        assert await on.visible() == [b"first", b"late"]


async def test_a_leader_asks_again_while_markers_are_written():
    async with staged() as (cluster, on):
        me = await on.begin()
        cluster.transactions.marker_delay = 30 * MS
        after = await on.end_once(me, commit=True, version=5)
        assert (await on.produce_once(after, 0, b"next", version=12)).error_code == OK
        assert states(cluster)[-2:] == ["COMPLETE_COMMIT", "ONGOING"]


@levels
async def test_a_frozen_leader_holds_back_its_markers_only(tv):
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
        # The leader of the data knows nothing of the end, and what it is sent counts.
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
        # The marker is lost with its leader, and written again.
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


# The leader's question


@pytest.mark.parametrize("version", [9, 11, 12])
async def test_a_scripted_refusal_of_the_question_has_kafkas_text(version):
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


async def test_a_refused_question_is_told_to_groups_as_a_log_that_is_being_read():
    async with staged() as (cluster, on):
        me = await on.init()
        cluster.transactions.refuse_verification()
        (code,) = await on.commit_offsets(me, {("t", 0): (1, "")}, version=5)
        assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await on.commit_offset(me, 1, version=5) == OK


async def test_before_kafka_3_6_nobody_asks():
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


async def test_a_transactional_id_that_was_not_used_for_long_is_forgotten():
    async with staged() as (cluster, on):
        me = await on.begin()
        with pytest.raises(Refused, match="CONCURRENT_TRANSACTIONS"):
            cluster.transactions.expire("txn")
        after = await on.commit(me)
        cluster.transactions.expire("txn")
        assert cluster.transactions.describe("txn") is None
        # A tombstone says so to the next coordinator as well.
        partition = cluster.partition(TOPIC, partition_for("txn", 50))
        partition.move_leader(partition.leader)
        assert cluster.transactions.describe("txn") is None
        assert (await on.end(after, commit=True, version=5)).error == OTHER_PRODUCER
        assert await on.add(after, 0) == [OTHER_PRODUCER]
        assert await on.produce(after, 0, version=12) == OTHER_PRODUCER
        fresh = await on.init(after)
        assert (fresh.epoch, fresh.error) == (0, OK)
        assert fresh.producer_id != me.producer_id
