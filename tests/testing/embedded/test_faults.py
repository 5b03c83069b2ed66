"""Scripted faults: each kind, on a real connection."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.errors import CorrelationError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.faults import FaultScript, VerificationFaults
from aioproducer.types import TopicPartition
from tests.conftest import MS
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request


async def test_an_error_is_returned_instead_of_an_append():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        fault = cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=2)
        errors = [(await client.produce(batch_of(b"a"))).error_code for _ in range(3)]

        assert errors == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2 + [0]
        assert len(cluster.records("t")) == 1
        assert (fault.hits, fault.is_used_up) == (2, True)


async def test_an_error_can_come_after_the_append():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT, after_append=True)
        answer = await client.produce(batch_of(b"a"))

        assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        assert len(cluster.records("t")) == 1


async def test_a_scripted_not_leader_error_names_the_leader():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, error=6)
        answer = await client.produce(batch_of(b"a"), version=10)

        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (0, 0)


async def test_an_error_of_one_partition_leaves_the_others_alone():
    async with EmbeddedCluster(topics={"t": 2, "u": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, error=7, topic="t", partition=1)
        cluster.faults.add(ApiKey.PRODUCE, error=3, topic="u")
        partitions = [("t", 0), ("t", 1), ("u", 0)]
        request = produce_request({partition: batch_of(b"a") for partition in partitions})
        response = await client.ask(request, 12)

        assert isinstance(response, ProduceResponse)
        errors = [part.error_code for topic in response.responses for part in topic.partition_responses]
        assert errors == [0, 7, 3]


@pytest.mark.promise("Test clusters", "the embedded cluster plays faults by script")
async def test_faults_with_the_same_target_apply_one_after_the_other():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        for error in (5, 6, 7):
            cluster.faults.add(ApiKey.PRODUCE, error=error, topic="t")
        errors = [(await client.produce(batch_of(b"a"))).error_code for _ in range(4)]

        assert errors == [5, 6, 7, 0]


@pytest.mark.promise("Test clusters", "the embedded cluster plays faults by script")
async def test_a_fault_applies_only_to_its_broker_topic_partition_and_api():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster:
        fault = cluster.faults.add(ApiKey.PRODUCE, drop_before=True, node=1, topic="t", partition=1)
        async with RawClient(address(cluster, 0)) as client:
            assert (await client.produce(batch_of(b"a"))).error_code == 0
        async with RawClient(address(cluster, 1)) as client:
            await client.metadata("t")
            assert (await client.produce(batch_of(b"a"), partition=0)).error_code == 6
            assert fault.hits == 0
            client.send(produce_request({("t", 1): batch_of(b"a")}), 12)
            assert await client.is_closed()
        assert fault.hits == 1


async def test_a_fault_by_topic_name_also_applies_to_requests_with_topic_ids():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, error=19, topic="t")
        request = produce_request({("", 0): batch_of(b"a")})
        request.topic_data[0].topic_id = cluster.topics["t"].topic_id
        response = await client.ask(request, 13)

        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 19


async def test_drop_before_closes_without_an_append():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        fault = cluster.faults.add(ApiKey.PRODUCE, drop_before=True)
        client.send(produce_request({("t", 0): batch_of(b"a")}), 12)

        await asyncio.wait_for(fault.reached(), TIMEOUT)
        assert await client.is_closed()
        assert cluster.records("t") == []
        message = cluster.requests[0].message
        assert isinstance(message, ProduceRequest)
        assert message.topic_data[0].partition_data[0].records is None


async def test_a_held_request_is_served_even_if_its_client_has_disconnected():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        arrives = asyncio.Event()
        async with RawClient(address(cluster)) as client:
            fault = cluster.faults.add(ApiKey.PRODUCE, hold_before=arrives)
            client.send(produce_request({("t", 0): batch_of(b"late")}), 12)
            await asyncio.wait_for(fault.reached(), TIMEOUT)
        async with RawClient(address(cluster)) as client:
            await client.produce(batch_of(b"early"))
            arrives.set()
            await until(lambda: len(cluster.records("t")) == 2)

        assert [record.value for record in cluster.records("t")] == [b"early", b"late"]


@pytest.mark.promise("Test clusters", "the embedded cluster plays faults by script")
async def test_drop_after_append_closes_with_the_records_in_the_log():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, drop_after_append=True)
        client.send(produce_request({("t", 0): batch_of(b"a")}), 12)

        assert await client.is_closed()
        assert len(cluster.records("t")) == 1


async def test_delay_answers_later():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        loop = asyncio.get_running_loop()
        cluster.faults.add(ApiKey.PRODUCE, delay=20 * MS)
        started = loop.time()
        await client.produce(batch_of(b"a"))

        assert loop.time() - started >= 19 * MS


async def test_hold_delays_the_answer_until_the_test_releases_it():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        release = asyncio.Event()
        fault = cluster.faults.add(ApiKey.PRODUCE, hold=release)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await asyncio.wait_for(fault.reached(), TIMEOUT)
        assert not answer.done()
        release.set()

        assert (await answer).error_code == 0


async def test_truncate_cuts_the_answer_and_the_connection():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, truncate=9)
        client.send(produce_request({("t", 0): batch_of(b"a")}), 12)

        assert len(await client.reader.read()) == 9
        assert len(cluster.records("t")) == 1


async def test_wrong_correlation_id_answers_another_request():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, wrong_correlation_id=True)
        with pytest.raises(CorrelationError):
            await client.produce(batch_of(b"a"))


async def test_omit_partitions_leaves_them_out_of_the_answer():
    async with EmbeddedCluster(topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, omit_partitions=True, topic="t", partition=0)
        request = produce_request({("t", 0): batch_of(b"a"), ("t", 1): batch_of(b"b")})
        response = await client.ask(request, 12)

        assert isinstance(response, ProduceResponse)
        assert [part.index for part in response.responses[0].partition_responses] == [1]
        assert len(cluster.records("t")) == 2

        cluster.faults.add(ApiKey.PRODUCE, omit_partitions=True)
        response = await client.ask(produce_request({("t", 0): batch_of(b"a")}), 12)
        assert isinstance(response, ProduceResponse)
        assert response.responses == []


async def test_throttle_answers_at_once_and_then_mutes_the_connection():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        loop = asyncio.get_running_loop()
        throttle_ms = int(30 * MS * 1000)
        cluster.faults.add(ApiKey.PRODUCE, throttle_ms=throttle_ms)
        response = await client.ask(produce_request({("t", 0): batch_of(b"a")}), 12)
        answered = loop.time()
        await client.metadata("t")

        assert isinstance(response, ProduceResponse)
        assert response.throttle_time_ms == throttle_ms
        assert loop.time() - answered >= 25 * MS


async def test_metadata_faults_apply_to_the_answer_a_topic_or_a_partition():
    async with EmbeddedCluster(topics={"t": 2, "u": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.METADATA, error=ErrorCode.REBOOTSTRAP_REQUIRED)
        assert (await client.metadata("t", version=13)).error_code == ErrorCode.REBOOTSTRAP_REQUIRED

        cluster.faults.add(ApiKey.METADATA, error=29)
        assert [topic.error_code for topic in (await client.metadata("t", "u")).topics] == [29, 29]

        cluster.faults.add(ApiKey.METADATA, error=29, topic="u")
        assert [topic.error_code for topic in (await client.metadata("t", "u")).topics] == [0, 29]

        cluster.faults.add(ApiKey.METADATA, error=5, topic="t", partition=1)
        partitions = (await client.metadata("t")).topics[0].partitions
        assert [(part.error_code, part.leader_id) for part in partitions] == [(0, 0), (5, -1)]

        cluster.faults.add(ApiKey.METADATA, omit_partitions=True, topic="t", partition=0)
        partitions = (await client.metadata("t")).topics[0].partitions
        assert [part.partition_index for part in partitions] == [1]

        cluster.faults.add(ApiKey.METADATA, omit_partitions=True, topic="t")
        assert [topic.name for topic in (await client.metadata("t", "u")).topics] == ["u"]


async def test_requests_without_topics_fail_as_a_whole():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.INIT_PRODUCER_ID, error=14)
        response = await client.init_producer_id()
        assert isinstance(response, InitProducerIdResponse)
        assert (response.error_code, response.producer_id) == (14, -1)

        cluster.faults.add(ApiKey.FIND_COORDINATOR, error=15)
        found = await client.ask(FindCoordinatorRequest(coordinator_keys=["x"]), 6)
        assert isinstance(found, FindCoordinatorResponse)
        assert found.coordinators[0].error_code == 15

        cluster.faults.add(ApiKey.API_VERSIONS, error=ErrorCode.UNSUPPORTED_VERSION)
        request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        refused = await client.ask(request, 4)
        assert isinstance(refused, ApiVersionsResponse)
        assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [key.api_key for key in refused.api_keys] == [ApiKey.API_VERSIONS]


def test_a_fault_that_does_nothing_is_rejected():
    script = FaultScript()
    with pytest.raises(ValueError, match="does nothing"):
        script.add(ApiKey.PRODUCE)
    with pytest.raises(ValueError, match="after_append"):
        script.add(ApiKey.PRODUCE, after_append=True, drop_before=True)


@pytest.mark.promise("Test clusters", "the embedded cluster plays faults by script")
@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.CREATE_TOPICS,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FETCH,
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
    ],
)
def test_an_error_after_the_append_is_rejected_for_apis_that_append_nothing(api_key):
    script = FaultScript()

    with pytest.raises(ValueError, match=f"{api_key.name} appends nothing"):
        script.add(api_key, error=15, after_append=True)

    script.add(api_key, down_for=0, after_append=True)
    assert len(list(script)) == 1


def test_a_script_lists_what_is_left_and_can_be_cleared():
    script = FaultScript()
    first = script.add(ApiKey.PRODUCE, error=7)
    second = script.add(ApiKey.PRODUCE, error=7, topic="t")

    assert script.take(ApiKey.PRODUCE, 0, [("t", 0)]) == [first]
    assert list(script) == [second]
    script.clear()
    assert script.take(ApiKey.PRODUCE, 0, [("t", 0)]) == []


async def test_skip_lets_requests_pass_before_the_fault():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        fault = cluster.faults.add(ApiKey.PRODUCE, error=7, skip=2, count=2)
        errors = [(await client.produce(batch_of(b"a"))).error_code for _ in range(5)]

        assert errors == [0, 0, 7, 7, 0]
        assert (fault.hits, fault.skip, fault.is_used_up) == (2, 0, True)


async def test_a_fault_that_skips_requests_does_not_block_the_next_fault():
    async with EmbeddedCluster(topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, error=5, topic="t", skip=1)
        cluster.faults.add(ApiKey.PRODUCE, error=7, topic="t", count=2)
        errors = [(await client.produce(batch_of(b"a"))).error_code for _ in range(4)]

        assert errors == [7, 5, 7, 0]


@pytest.mark.parametrize("wish", ["node", "move_leader_to"])
@pytest.mark.parametrize("broker", [-1, 2])
def test_a_fault_for_a_broker_that_does_not_exist_is_rejected(wish, broker):
    with pytest.raises(ValueError, match=f"{wish}={broker} is not a broker.*the node ids are 0 to 1"):
        EmbeddedCluster(2).faults.add(ApiKey.PRODUCE, delay=1.0, **{wish: broker})


@pytest.mark.parametrize(
    ("wishes", "problem"),
    [
        ({}, "does nothing"),
        ({"skip": 2, "count": 3, "topic": "t"}, "does nothing"),
        ({"trickle_pause": 1.0}, "does nothing"),
        ({"after_append": True, "delay": 1.0}, "set at least one of them"),
        ({"drop_before": True, "drop_after_append": True}, "does not serve the request"),
        ({"drop_before": True, "down_for": 1.0, "after_append": True}, "does not serve the request"),
        ({"error": 7, "count": 0}, "count=0 must be 1 or more"),
        ({"error": 7, "skip": -1}, "skip=-1 must be 0 or more"),
        ({"delay": -1.0}, "delay=-1.0 must be 0 or more"),
        ({"truncate": -1}, "truncate=-1 must be 0 or more"),
        ({"trickle": 0}, "trickle=0 must be 1 or more"),
        ({"down_for": -1.0}, "down_for=-1.0 must be 0 or more"),
    ],
)
def test_an_invalid_fault_is_rejected(wishes, problem):
    with pytest.raises(ValueError, match=problem):
        FaultScript().add(ApiKey.PRODUCE, **wishes)


# Faults for verification


def test_faults_for_verification_apply_only_to_their_partitions():
    faults = VerificationFaults()
    faults.add(ErrorCode.NETWORK_EXCEPTION, "t", 1, 1)
    faults.add(ErrorCode.NOT_COORDINATOR, None, None, 2)
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)

    answers = [faults.take(targets) for targets in ([t0], [t0, t1], [t1], [t1])]

    assert answers == [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        None,
    ]
