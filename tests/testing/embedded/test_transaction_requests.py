"""Requests of transactional producers to the embedded cluster: versions, features, faults, rights, isolation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.authorizer import Operation
from aioproducer.testing.embedded.faults import FaultScript
from aioproducer.testing.embedded.transaction_requests import add_partitions_to_txn, added_partition_refusals
from tests.conftest import in_virtual_time
from tests.support.direct_calls import context_of, unstarted_cluster
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of
from tests.support.raw_transactions import Identity, refused, txn_batch
from tests.support.transaction_stage import INVALID_STATE, OK, Stage


@asynccontextmanager
async def staged(tv: int = 2, **settings: Any) -> AsyncIterator[tuple[EmbeddedCluster, Stage]]:
    async with (
        EmbeddedCluster(topics={"t": 3}, versions="4.3", transaction_version=tv, **settings) as cluster,
        RawClient(address(cluster)) as client,
    ):
        yield cluster, Stage(client, tv, "t", "txn", "group")


async def ended(cluster: EmbeddedCluster, name: str = "txn") -> str:
    async with asyncio.timeout(TIMEOUT):
        return (await cluster.transactions.wait_ended(name)).state.name


# Versions and features


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
async def test_every_version_of_every_request_makes_a_transaction(version, commit):
    async with staged() as (cluster, on):
        me = await on.init(version=version)
        assert me.error == OK
        assert await on.add(me, 0, 1, version=min(version, 3)) == [OK, OK]
        assert await on.add_offsets(me, version=min(version, 4)) == OK
        assert await on.produce(me, 0, b"x", version=3 + version) == OK
        assert await on.commit_offset(me, 5, version=version) == OK

        after = await on.end_once(me, commit=commit, version=version)

        assert after == ((me.producer_id, me.epoch + 1, OK) if version == 5 else (-1, -1, OK))
        assert await ended(cluster) == ("COMPLETE_COMMIT" if commit else "COMPLETE_ABORT")
        assert await on.visible() == ([b"x"] if commit else [])
        assert cluster.groups.offsets("group") == ({("t", 0): 5} if commit else {})


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_version_of_produce_accepts_a_transactional_batch(version):
    async with staged() as (cluster, on):
        me = await on.init()
        await on.added(me, 0)
        if version == 13:
            # Version 13 has topic ids.
            batch = {("", 0): txn_batch(me, 0, b"x")}
            request = on.produce_request(batch)
            request.topic_data[0].topic_id = cluster.topics["t"].topic_id
            response = await on.client.ask(request, 13)
            assert response.responses[0].partition_responses[0].error_code == OK
        else:
            assert await on.produce(me, 0, b"x", version=version) == OK
        await on.commit(me)
        assert await on.visible() == [b"x"]


async def features(client: RawClient, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    response = await client.ask(request, version)
    assert isinstance(response, ApiVersionsResponse)
    supported = {one.name: (one.min_version, one.max_version) for one in response.supported_features}
    finalized = {
        one.name: (one.min_version_level, one.max_version_level) for one in response.finalized_features
    }
    return supported, finalized


@pytest.mark.parametrize(
    ("versions", "level", "finalized"),
    [("4.0", 2, 2), ("4.3", 1, 1), ("4.3", 0, None), ("3.9", 2, None), ("2.4", 2, None)],
)
async def test_the_feature_is_the_version_of_transactions_of_the_cluster(versions, level, finalized):
    async with (
        EmbeddedCluster(versions=versions, transaction_version=level) as cluster,
        RawClient(address(cluster)) as client,
    ):
        assert cluster.transactions.version == (finalized or 0)
        has_feature = versions >= "4.0"
        for version in (3, 4) if versions >= "3.9" else (3,):
            # Version 3 omits features with a minimum level of 0, because its clients do not support them.
            supported = {"transaction.version": (0, 2)} if has_feature and version == 4 else {}
            expected = {"transaction.version": (finalized, finalized)} if finalized else {}
            assert await features(client, version) == (supported, expected)


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_the_leader_of_the_keys_partition(version):
    async with EmbeddedCluster(3) as cluster, RawClient(address(cluster)) as client:
        for key_type, node_of in ((0, cluster.groups.node), (1, cluster.transactions.node)):
            if key_type and not version:
                continue
            for key in ("a", "b", "c", "d"):
                request = FindCoordinatorRequest()
                if version >= 1:
                    request.key_type = key_type
                if version >= 4:
                    request.coordinator_keys = [key]
                else:
                    request.key = key
                response = await client.ask(request, version)
                found = response.coordinators[0] if version >= 4 else response
                assert (found.error_code, found.node_id) == (OK, node_of(key))
        assert len({cluster.transactions.node(key) for key in "abcdef"}) == 3


# Faults


Request = Callable[[Stage, Identity], Awaitable[object]]

EACH_API: dict[ApiKey, Request] = {
    ApiKey.INIT_PRODUCER_ID: lambda on, me: on.init_once(me),
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda on, me: on.add(me, 0),
    ApiKey.ADD_OFFSETS_TO_TXN: lambda on, me: on.add_offsets(me),
    ApiKey.TXN_OFFSET_COMMIT: lambda on, me: on.commit_offsets(me, {("t", 0): (5, "")}, version=5),
    ApiKey.END_TXN: lambda on, me: on.end_once(me, commit=False, version=5),
}


def trace(cluster: EmbeddedCluster) -> tuple[object, ...]:
    """The state that a request can change."""
    known = cluster.transactions.describe("txn")
    assert known is not None
    offsets = cluster.groups.partition_of("group").log.end_offset
    return known.state, known.identity, known.partitions, offsets


@pytest.mark.parametrize("api_key", EACH_API)
async def test_a_request_is_executed_even_if_its_answer_is_dropped(api_key):
    async with staged() as (cluster, on):
        me = await on.init()
        before = trace(cluster)
        cluster.faults.add(api_key, drop_after_append=True)
        with pytest.raises(asyncio.IncompleteReadError):
            await EACH_API[api_key](on, me)
        assert trace(cluster) != before


@pytest.mark.parametrize("api_key", EACH_API)
async def test_a_request_that_is_dropped_before_the_work_has_no_effect(api_key):
    async with staged() as (cluster, on):
        me = await on.init()
        before = trace(cluster)
        cluster.faults.add(api_key, drop_before=True)
        with pytest.raises(asyncio.IncompleteReadError):
            await EACH_API[api_key](on, me)
        assert trace(cluster) == before


@pytest.mark.parametrize("api_key", EACH_API)
@pytest.mark.parametrize("after_append", [False, True])
async def test_a_scripted_error_is_returned_instead_of_the_work_or_after_it(api_key, after_append):
    async with staged() as (cluster, on):
        me = await on.init()
        before = trace(cluster)
        cluster.faults.add(api_key, error=ErrorCode.UNKNOWN_SERVER_ERROR, after_append=after_append)
        answer = await EACH_API[api_key](on, me)
        code = answer.error if isinstance(answer, Identity) else answer
        assert code in (-1, [-1])
        assert (trace(cluster) != before) is after_append


async def test_end_txn_is_executed_even_if_its_sender_has_disconnected():
    async with staged() as (cluster, on):
        me = await on.begin()
        async with RawClient(address(cluster)) as gone:
            there = Stage(gone, 2, "t", "txn", "group")
            gone.send(there.end_request(me, commit=True), 5)
        assert await ended_soon(cluster) == "COMPLETE_COMMIT"
        assert await on.visible() == [b"first"]


async def ended_soon(cluster: EmbeddedCluster) -> str:
    async with asyncio.timeout(TIMEOUT):
        await cluster.wait_for_requests(ApiKey.END_TXN)
    return await ended(cluster)


async def test_faults_for_partitions_to_add_apply_only_to_their_targets():
    async with staged() as (cluster, on):
        me = await on.init()
        cluster.faults.add(ApiKey.ADD_PARTITIONS_TO_TXN, error=3, topic="t", partition=1)
        assert await on.add(me, 0, 1, 2) == [55, 3, 55]
        assert await on.add(me, 0, 1, 2) == [OK] * 3


# Rights


async def test_transactional_ids_and_topics_without_the_rights_are_rejected():
    async with staged() as (cluster, on):
        me = await on.begin()
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        cluster.authorizer.deny(Operation.WRITE, transactional_id="txn")
        assert await on.init_once() == refused(denied)
        assert await on.add(me, 1) == [denied]
        assert await on.add_offsets(me) == denied
        assert await on.end_once(me, commit=True, version=5) == refused(denied)
        assert (await on.produce_once(me, 1, version=12)).error_code == denied
        cluster.authorizer.clear()

        cluster.create_topic("secret")
        cluster.authorizer.deny(Operation.WRITE, topic="secret")
        topic_denied, not_attempted = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await on.add_topics(me, {"t": [1, 2], "secret": [0]}) == {
            ("t", 1): not_attempted,
            ("t", 2): not_attempted,
            ("secret", 0): topic_denied,
        }
        batches = {("secret", 0): txn_batch(me, 0, b"x"), ("t", 1): txn_batch(me, 0, b"x")}
        answers = await on.produce_all(batches, version=12)
        assert [answer.error_code for answer in answers] == [topic_denied, OK]
        known = cluster.transactions.describe("txn")
        assert known is not None
        assert known.partitions == (("t", 0), ("t", 1))


@pytest.mark.promise("Test clusters", "the embedded cluster has a scripted authorizer, per principal")
def test_added_partitions_are_rejected_together():
    cluster = unstarted_cluster({"t": 2, "u": 2})
    context = context_of(cluster, AddPartitionsToTxnRequest(), 3, principal="User:alice")
    assert added_partition_refusals(context, {"t": [0, 1], "u": [1]}) == {}

    assert added_partition_refusals(context, {"t": [0, 7], "u": [1]}) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 1): ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
    cluster.authorizer.deny(Operation.WRITE, topic="u", principal="User:alice")
    assert added_partition_refusals(context, {"t": [0, 7], "u": [1, 7]}) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 1): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ("u", 7): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    context.session.principal = "User:bob"
    assert added_partition_refusals(context, {"t": [0], "u": [1]}) == {}


def test_only_brokers_add_partitions_of_internal_topics():
    cluster = unstarted_cluster({"t": 1})
    cluster.transactions.create_topic()
    context = context_of(cluster, AddPartitionsToTxnRequest(), 3)

    assert added_partition_refusals(context, {"t": [0], "__transaction_state": [1]}) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("__transaction_state", 1): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }


# Answers to consumers


@pytest.mark.promise(
    "Test clusters", "consumers of the embedded cluster see only committed transactions with read_committed"
)
async def test_an_open_transaction_holds_back_everything_after_its_first_record():
    async with staged() as (cluster, on):
        other = Stage(on.client, 2, "t", "other", "group")
        await on.client.produce(batch_of(b"plain"))
        me, them = await on.begin(), await other.begin()
        assert (await on.fetch()).last_stable_offset == 1
        assert (await on.fetch(committed=False)).values == [b"plain", b"first", b"first"]

        await other.commit(them)
        assert (await on.fetch()).values == [b"plain"]
        assert await latest(on, 0) == 4
        assert await latest(on, 1) == 1

        await on.abort(me)
        found = await on.fetch()
        assert found.values == [b"plain", b"first", b"first"]
        assert found.aborted == [(me.producer_id, 1)]
        assert found.visible() == [b"plain", b"first"]
        assert await latest(on, 1) == 5
        assert [record.offset for record in cluster.records("t", 0, committed=True)] == [0, 2]
        assert [record.offset for record in cluster.records("t", 0)] == [0, 1, 2]


async def latest(on: Stage, isolation_level: int) -> int:
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])],
    )
    response = await on.client.ask(request, 7)
    return response.topics[0].partitions[0].offset


async def test_a_fetch_lists_the_aborted_transactions_of_its_records():
    async with staged() as (_, on):
        firsts = []
        for number in range(4):
            me = await on.init()
            assert await on.write(me, 0, b"%d" % number) == OK
            firsts.append(((await on.fetch(committed=False)).end_offset - 1, me.producer_id))
            await (on.abort if number % 2 else on.commit)(me)
        aborted = [(producer_id, offset) for offset, producer_id in firsts[1::2]]
        assert (await on.fetch()).aborted == aborted
        assert (await on.fetch(offset=aborted[0][1] + 1)).aborted == aborted  # its marker comes later
        assert (await on.fetch(offset=aborted[0][1] + 2)).aborted == aborted[1:]
        assert (await on.fetch(offset=aborted[1][1] + 2)).aborted == []
        assert await on.visible() == [b"0", b"2"]


@pytest.mark.parametrize("version", range(4, 13))
async def test_every_version_of_fetch_respects_the_isolation_level(version):
    async with staged() as (_, on):
        me = await on.begin()
        await on.abort(me)
        found = await on.fetch(version=version)
        assert found.aborted == [(me.producer_id, 0)]
        assert found.visible() == []
        assert (await on.fetch(version=version, committed=False)).values == [b"first"]


async def test_records_that_are_lost_with_their_leader_are_not_part_of_the_transaction():
    async with staged(brokers=3) as (cluster, first):
        node = cluster.leader("t", 0)
        cluster.transactions.move("txn", node)
        async with RawClient(address(cluster, node)) as client:
            on = Stage(client, 2, "t", "txn", "group")
            me = await on.init()
            cluster.hold_replication("t", 0)
            batch = {("t", 0): txn_batch(me, 0, b"lost")}
            (answer,) = await on.produce_all(batch, version=12, acks=1)
            assert answer.error_code == OK
            cluster.move_leader("t", 0, node)
            cluster.release_replication("t", 0)
            # The new leader asks the coordinator again, and the coordinator knows the partition.
            assert cluster.log("t", 0).end_offset == 0
            assert await on.produce(me, 0, b"again", version=12) == OK
            await on.commit(me)
            assert await on.visible() == [b"again"]
            assert first.name == "txn"


async def test_only_brokers_write_to_internal_topics():
    async with staged() as (cluster, on):
        me = await on.init()
        await on.commit_offset(me, 1, version=5)
        for topic in ("__transaction_state", "__consumer_offsets"):
            assert cluster.topics[topic].is_internal
            answer = await on.client.produce(batch_of(b"x"), topic)
            assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_an_epoch_of_an_ended_transaction_can_not_end_another_one():
    async with staged(1) as (cluster, on):
        me = await on.begin()
        assert (await on.end(me, commit=True, version=5)).epoch == me.epoch + 1
        assert await ended(cluster) == "COMPLETE_COMMIT"
        assert (await on.end_once(me, commit=False, version=5)).error == INVALID_STATE


# Producer ids without transactions


async def test_producer_ids_are_never_assigned_twice():
    async with EmbeddedCluster(2) as cluster:
        ids = []
        for node in (0, 1, 0):
            async with RawClient(address(cluster, node)) as client:
                response = await client.init_producer_id()
                assert isinstance(response, InitProducerIdResponse)
                assert (response.error_code, response.producer_epoch) == (0, 0)
                ids.append(response.producer_id)

        assert len(set(ids)) == 3


@in_virtual_time
async def test_an_empty_transactional_id_is_an_invalid_request():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        request = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)
        response = await client.ask(request, 5)

        assert isinstance(response, InitProducerIdResponse)
        assert response.error_code == ErrorCode.INVALID_REQUEST


# The handler without connections


async def test_a_partition_that_is_omitted_from_the_answer_is_still_added():
    async with staged() as (cluster, on):
        me = await on.init()
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="txn",
            v3_and_below_producer_id=me.producer_id,
            v3_and_below_producer_epoch=me.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])
            ],
        )
        fault = FaultScript().add(ApiKey.ADD_PARTITIONS_TO_TXN, omit_partitions=True, topic="t", partition=0)

        response = await add_partitions_to_txn(context_of(cluster, request, 3, faults=[fault]), request)

        (answered,) = response.results_by_topic_v3_and_below
        results = [(one.partition_index, one.partition_error_code) for one in answered.results_by_partition]
        assert results == [(1, OK)]
        known = cluster.transactions.describe("txn")
        assert known is not None
        assert known.partitions == (("t", 0), ("t", 1))
