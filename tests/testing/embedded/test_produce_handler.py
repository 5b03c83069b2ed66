"""The embedded brokers' answers to producers, frame by frame."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ProduceRequest,
    ProduceResponse,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.broker import CloseConnection
from aioproducer.testing.embedded.faults import FaultScript
from aioproducer.testing.embedded.produce_handler import produce
from tests.conftest import MS
from tests.support.direct_calls import context_of, unstarted_cluster
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request


@pytest.mark.promise("Test clusters", "the embedded cluster answers as Kafka does")
@pytest.mark.parametrize("version", range(3, 14))
async def test_every_produce_version_appends_and_answers(version):
    async with EmbeddedCluster(topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        request = produce_request({("t", 0): batch_of(b"a", b"b"), ("t", 1): batch_of(b"c")})
        if version >= 13:
            request.topic_data[0].name = ""
            request.topic_data[0].topic_id = cluster.topics["t"].topic_id
        response = await client.ask(request, version)

        assert isinstance(response, ProduceResponse)
        (topic,) = response.responses
        assert topic.topic_id == cluster.topics["t"].topic_id if version >= 13 else topic.name == "t"
        answers = [(part.index, part.error_code, part.base_offset) for part in topic.partition_responses]
        assert answers == [(0, 0, 0), (1, 0, 0)]
        assert [part.log_start_offset for part in topic.partition_responses] == [
            0 if version >= 5 else -1
        ] * 2
        assert [record.value for record in cluster.records("t")] == [b"a", b"b", b"c"]


async def test_idempotence_over_the_wire():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        produced = [
            await client.produce(batch_of(*values, sequence=sequence, epoch=epoch))
            for values, sequence, epoch in [
                ((b"a", b"b"), 0, 0),
                ((b"c",), 2, 0),
                ((b"a", b"b"), 0, 0),  # a duplicate: the first offset again
                ((b"e",), 4, 0),  # a gap
                ((b"d",), 3, 1),  # a new epoch must start with 0
                ((b"d",), 0, 1),
                ((b"x",), 3, 0),  # the old epoch
            ]
        ]

        assert [(answer.error_code, answer.base_offset) for answer in produced] == [
            (0, 0),
            (0, 2),
            (0, 0),
            (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
            (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
            (0, 3),
            (ErrorCode.INVALID_PRODUCER_EPOCH, -1),
        ]
        assert [record.value for record in cluster.records("t")] == [b"a", b"b", b"c", b"d"]


async def test_errors_of_one_partition_do_not_affect_the_others():
    async with EmbeddedCluster(topics={"t": 3}, max_message_bytes=200) as cluster:
        corrupt = batch_of(b"x")[:-1] + b"y"
        request = produce_request(
            {
                ("t", 0): corrupt,
                ("t", 1): batch_of(b"good"),
                ("t", 2): batch_of(b"z" * 200),
                ("t", 3): batch_of(b"no such partition"),
                ("u", 0): batch_of(b"no such topic"),
                ("__consumer_offsets", 0): batch_of(b"no such topic either"),
            }
        )
        async with RawClient(address(cluster)) as client:
            response = await client.ask(request, 12)

        assert isinstance(response, ProduceResponse)
        answers = {
            (topic.name, part.index): ErrorCode(part.error_code)
            for topic in response.responses
            for part in topic.partition_responses
        }
        assert answers == {
            ("t", 0): ErrorCode.CORRUPT_MESSAGE,
            ("t", 1): ErrorCode.NONE,
            ("t", 2): ErrorCode.MESSAGE_TOO_LARGE,
            ("t", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("__consumer_offsets", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert [record.value for record in cluster.records("t")] == [b"good"]


async def test_internal_topics_reject_records_of_clients():
    async with EmbeddedCluster(topics={"__consumer_offsets": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            answer = await client.produce(batch_of(b"a"), "__consumer_offsets")
            described = (await client.metadata("__consumer_offsets")).topics[0]

        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert described.is_internal


async def test_the_last_batch_counts_if_a_partition_is_twice_in_a_request():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        request = produce_request({("t", 0): batch_of(b"a")})
        again = ProduceRequest.PartitionProduceData(index=0, records=batch_of(b"b"))
        request.topic_data[0].partition_data.append(again)
        response = await client.ask(request, 12)

        assert isinstance(response, ProduceResponse)
        errors = [part.error_code for part in response.responses[0].partition_responses]
        assert errors == [0]
        assert [record.value for record in cluster.records("t")] == [b"b"]


async def test_an_unknown_topic_id_has_a_different_error_from_an_unknown_name():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        old_id = cluster.topics["t"].topic_id
        cluster.delete_topic("t")
        cluster.create_topic("t")
        request = produce_request({("", 0): batch_of(b"a")})
        request.topic_data[0].topic_id = old_id
        response = await client.ask(request, 13)

        assert isinstance(response, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert response.responses[0].topic_id == old_id


async def test_acks_1_is_answered_and_other_acks_are_rejected():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        assert (await client.produce(batch_of(b"a"), acks=1)).error_code == 0
        for acks in (2, -2):
            answer = await client.produce(batch_of(b"a"), acks=acks)
            assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert len(cluster.records("t")) == 1


async def test_acks_0_gets_no_answer():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        client.send(produce_request({("t", 0): batch_of(b"a")}, acks=0), 12)
        # The next answer on the connection belongs to the next request.
        await client.metadata("t")

        assert [record.value for record in cluster.records("t")] == [b"a"]


async def test_an_error_with_acks_0_closes_the_connection():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        client.send(produce_request({("t", 9): batch_of(b"a")}, acks=0), 12)

        assert await client.is_closed()


async def test_pipelined_requests_are_answered_in_order():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        requests = [produce_request({("t", 0): batch_of(b"%d" % n, sequence=n)}) for n in range(5)]
        ids = [client.send(request, 12) for request in requests]
        for n, (request, correlation_id) in enumerate(zip(requests, ids, strict=True)):
            response = await client.answer(request, 12, correlation_id)
            assert isinstance(response, ProduceResponse)
            assert response.responses[0].partition_responses[0].base_offset == n


async def test_log_append_time_is_answered():
    async with (
        EmbeddedCluster(clock=lambda: 1_800_000_000.5) as cluster,
        RawClient(address(cluster)) as client,
    ):
        cluster.create_topic("t", 1, config={"message.timestamp.type": "LogAppendTime"})
        answer = await client.produce(batch_of(b"a"))

        assert answer.log_append_time_ms == 1_800_000_000_500
        assert cluster.records("t")[0].timestamp == 1_800_000_000_500


# Leaders, replicas


async def test_only_the_leader_appends_and_others_name_it():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster:
        cluster.move_leader("t", 0, 2)
        async with RawClient(address(cluster, 0)) as client:
            request = produce_request({("t", 0): batch_of(b"a")})
            response = await client.ask(request, 10)
            assert isinstance(response, ProduceResponse)
            answer = response.responses[0].partition_responses[0]
            older = await client.produce(batch_of(b"a"), version=9)

        assert answer.error_code == older.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 1)
        assert [(e.node_id, e.host, e.port) for e in response.node_endpoints] == [cluster.nodes[2][:3]]
        async with RawClient(address(cluster, 2)) as client:
            assert (await client.produce(batch_of(b"a"))).error_code == 0


@pytest.mark.promise(
    "Test clusters", "brokers stop, freeze, change their release; leaders and in-sync replicas move"
)
async def test_acks_all_waits_for_the_followers():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        request = produce_request({("t", 0): batch_of(b"a")})
        answer = asyncio.ensure_future(client.ask(request, 12))
        seen = await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), TIMEOUT)
        assert await asyncio.wait({answer}, timeout=20 * MS) == (set(), {answer})
        cluster.release_replication("t", 0)
        response = await answer

        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0
        # The requests that are kept for tests have no record bytes.
        assert isinstance(seen[0].message, ProduceRequest)
        assert seen[0].message.topic_data[0].partition_data[0].records is None
        assert seen[0].batches["t", 0].record_count == 1


async def test_acks_all_times_out_after_the_append():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        request = produce_request({("t", 0): batch_of(b"a", sequence=0)}, timeout_ms=10)
        response = await client.ask(request, 12)

        assert isinstance(response, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert cluster.log("t", 0).end_offset == 1
        cluster.release_replication("t", 0)
        assert (await client.produce(batch_of(b"a", sequence=0))).base_offset == 0
        assert cluster.log("t", 0).end_offset == 1


async def test_acks_all_fails_if_the_leader_has_moved_and_the_records_are_lost():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        request = produce_request({("t", 0): batch_of(b"a", sequence=0)})
        assert (await client.produce(batch_of(b"lost"), acks=1)).error_code == 0
        correlation_id = client.send(request, 12)
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE, 2), TIMEOUT)
        cluster.move_leader("t", 0, 1)
        response = await client.answer(request, 12, correlation_id)

        assert isinstance(response, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader.leader_id == 1
        assert cluster.records("t") == []


async def test_a_request_that_waits_for_replicas_fails_when_its_topic_is_deleted():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        request = produce_request({("t", 0): batch_of(b"a")})
        correlation_id = client.send(request, 12)
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), TIMEOUT)
        cluster.delete_topic("t")
        response = await client.answer(request, 12, correlation_id)

        assert isinstance(response, ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_too_few_insync_replicas_have_different_errors_before_and_after_the_append():
    async with EmbeddedCluster(3, topics={"t": 1}, min_insync_replicas=2) as cluster:
        async with RawClient(address(cluster)) as client:
            cluster.set_isr("t", 0, [0])
            before = await client.produce(batch_of(b"a"))
            unasked = await client.produce(batch_of(b"b"), acks=1)
            cluster.set_isr("t", 0, [0, 1])
            cluster.hold_replication("t", 0)
            request = produce_request({("t", 0): batch_of(b"c")})
            correlation_id = client.send(request, 12)
            await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE, 3), TIMEOUT)
            cluster.set_isr("t", 0, [0])
            cluster.release_replication("t", 0)
            after = await client.answer(request, 12, correlation_id)

        assert before.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert unasked.error_code == 0
        assert isinstance(after, ProduceResponse)
        error = after.responses[0].partition_responses[0].error_code
        assert error == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert [record.value for record in cluster.records("t")] == [b"b", b"c"]


async def test_a_request_that_waits_for_replicas_does_not_keep_record_bytes():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.hold_replication("t", 0)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await until(lambda: len(cluster.records("t")) == 1, TIMEOUT)
        (seen,) = cluster.requests_of(ApiKey.PRODUCE)

        assert isinstance(seen.message, ProduceRequest)
        assert not answer.done()
        assert seen.message.topic_data[0].partition_data[0].records is None
        cluster.release_replication("t", 0)
        assert (await answer).error_code == 0


async def test_answers_contain_the_start_of_the_log():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        for _ in range(3):
            assert (await client.produce(batch_of(b"a"))).log_start_offset == 0
        cluster.log("t", 0).delete_before(2)

        assert (await client.produce(batch_of(b"b"))).log_start_offset == 2


# The handler without connections


async def test_tests_see_only_valid_batches_and_the_bytes_are_released():
    cluster = unstarted_cluster({"t": 2})
    request = produce_request({("t", 0): memoryview(batch_of(b"a", b"b")), ("t", 1): memoryview(b"no batch")})
    context = context_of(cluster, request, 12)

    await produce(context, request)

    assert {target: header.record_count for target, header in context.seen.batches.items()} == {("t", 0): 2}
    assert [data.records for topic in request.topic_data for data in topic.partition_data] == [None, None]


@pytest.mark.parametrize(("version", "leader"), [(9, -1), (10, 1)])
async def test_a_scripted_error_names_the_leader_of_the_partition(version, leader):
    cluster = unstarted_cluster({"t": 2}, brokers=2)
    request = produce_request({("t", 1): memoryview(batch_of(b"a"))})
    fault = FaultScript().add(ApiKey.PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    response = await produce(context_of(cluster, request, version, node=1, faults=[fault]), request)

    assert response is not None
    (answer,) = response.responses[0].partition_responses
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert answer.current_leader.leader_id == leader
    assert cluster.records("t") == []


async def test_acks_0_is_answered_only_by_releases_that_do_so():
    answers = {}
    for versions in ("4.1", "azure-event-hubs"):
        cluster = unstarted_cluster({"t": 1}, versions=versions)
        request = produce_request({("t", 0): memoryview(batch_of(b"a"))}, acks=0)
        answers[versions] = await produce(context_of(cluster, request, 7), request)
        assert len(cluster.records("t")) == 1

    assert answers["4.1"] is None
    assert answers["azure-event-hubs"].responses[0].partition_responses[0].error_code == 0


async def test_an_error_after_the_append_closes_the_connection_with_acks_0():
    cluster = unstarted_cluster({"t": 1})
    request = produce_request({("t", 0): memoryview(batch_of(b"a"))}, acks=0)
    fault = FaultScript().add(ApiKey.PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT, after_append=True)

    with pytest.raises(CloseConnection, match="acks=0"):
        await produce(context_of(cluster, request, 12, faults=[fault]), request)

    assert len(cluster.records("t")) == 1
