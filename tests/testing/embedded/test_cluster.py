"""The embedded cluster as its clients see it, frame by frame."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from aioproducer.protocol.api import (
    ApiKey,
    decode_api_versions_response,
    encode_request,
)
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceResponse,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.broker import TRANSITIONS, BrokerState
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request

# Versions


async def test_api_versions_tells_what_the_release_serves():
    async with EmbeddedCluster(versions="2.1") as cluster, RawClient(address(cluster)) as client:
        response = await client.ask(ApiVersionsRequest(), 0)

        assert isinstance(response, ApiVersionsResponse)
        ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        assert ranges[ApiKey.PRODUCE] == (0, 7)
        assert ranges[ApiKey.METADATA] == (0, 7)
        assert ranges[ApiKey.INIT_PRODUCER_ID] == (0, 1)
        assert ranges[ApiKey.API_VERSIONS] == (0, 2)


@pytest.mark.parametrize(("versions", "highest"), [("2.1", 2), ("2.4", 3), ("4.1", 4)])
async def test_api_versions_in_too_new_a_version_is_refused_in_the_shape_of_version_0(versions, highest):
    async with EmbeddedCluster(versions=versions) as cluster, RawClient(address(cluster)) as client:
        frame = encode_request(ApiVersionsRequest(), 4, 1, "raw")[0]
        client.writer.write(bytes(frame[:6]) + (highest + 1).to_bytes(2, "big") + bytes(frame[8:]))

        response = decode_api_versions_response(highest + 1, await client.frame(), 1)

        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        (only,) = response.api_keys
        assert (only.api_key, only.min_version, only.max_version) == (ApiKey.API_VERSIONS, 0, highest)
        # The connection lives on.
        request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
        again = await client.ask(request, highest)
        assert isinstance(again, ApiVersionsResponse)
        assert again.error_code == 0


async def test_api_versions_refuses_an_odd_client_name():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        request = ApiVersionsRequest(client_software_name="a b", client_software_version="1")
        response = await client.ask(request, 3)

        assert isinstance(response, ApiVersionsResponse)
        assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("versions", "version"), [("2.1", 8), ("3.5", 10), ("4.0", 13)])
async def test_a_request_above_the_ceiling_closes_the_connection(versions, version):
    async with EmbeddedCluster(versions=versions, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            client.send(produce_request({("t", 0): batch_of(b"a")}), version)
            assert await client.is_closed()
        assert cluster.records("t") == []


async def test_bytes_that_are_no_request_close_the_connection():
    async with EmbeddedCluster() as cluster:
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x02ab",
            b"\x7f\xff\xff\xff",
        ):
            async with RawClient(address(cluster)) as client:
                client.writer.write(garbage)
                assert await client.is_closed()


# Metadata


@pytest.mark.parametrize("version", range(14))
async def test_every_metadata_version_describes_brokers_and_topics(version):
    async with EmbeddedCluster(3, topics={"t": 4}) as cluster, RawClient(address(cluster)) as client:
        response = await client.metadata("t", version=version)

        assert [(b.node_id, b.host, b.port) for b in response.brokers] == [node[:3] for node in cluster.nodes]
        (topic,) = response.topics
        assert (topic.name, topic.error_code, topic.is_internal) == ("t", 0, False)
        assert [part.leader_id for part in topic.partitions] == [0, 1, 2, 0]
        assert topic.partitions[1].replica_nodes == topic.partitions[1].isr_nodes == [1, 2, 0]
        if version >= 1:
            assert response.controller_id == 0
        if version >= 7:
            assert topic.partitions[0].leader_epoch == 0
        if version >= 10:
            assert topic.topic_id == cluster.topics["t"].topic_id


async def test_metadata_of_all_topics():
    async with EmbeddedCluster(topics={"a": 1, "b": 1}) as cluster, RawClient(address(cluster)) as client:
        everything = await client.ask(MetadataRequest(topics=None), 12)
        nothing = await client.ask(MetadataRequest(topics=[]), 12)
        old = await client.ask(MetadataRequest(topics=[]), 0)

        names = [
            [topic.name for topic in response.topics]
            for response in (everything, nothing, old)
            if isinstance(response, MetadataResponse)
        ]
        assert names == [["a", "b"], [], ["a", "b"]]


async def test_metadata_by_topic_id():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        topic_id = cluster.topics["t"].topic_id
        wanted = [
            MetadataRequest.MetadataRequestTopic(topic_id=one, name=None) for one in (topic_id, uuid.uuid4())
        ]
        response = await client.ask(MetadataRequest(topics=wanted), 12)

        assert isinstance(response, MetadataResponse)
        known, unknown = response.topics
        assert (known.name, known.topic_id, known.error_code) == ("t", topic_id, 0)
        assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_a_topic_is_created_on_demand_and_ready_at_the_second_ask():
    async with EmbeddedCluster(default_partitions=3) as cluster, RawClient(address(cluster)) as client:
        first = (await client.metadata("new")).topics[0]
        second = (await client.metadata("new")).topics[0]

        assert (first.error_code, first.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert (second.error_code, len(second.partitions)) == (0, 3)


@pytest.mark.parametrize(("name", "key_type"), [("__consumer_offsets", 0), ("__transaction_state", 1)])
async def test_an_internal_topic_is_created_on_demand_as_its_coordinators_need_it(name, key_type):
    async with EmbeddedCluster(3) as cluster, RawClient(address(cluster)) as client:
        await client.metadata(name)
        found = await client.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a"]), 4)

        assert isinstance(found, FindCoordinatorResponse)
        assert found.coordinators[0].error_code == 0
        assert len(cluster.topics[name].partitions) == 50
        assert len((await client.metadata(name)).topics[0].partitions) == 50


async def test_no_topic_is_created_unless_broker_and_client_agree():
    async with EmbeddedCluster(auto_create=False) as cluster, RawClient(address(cluster)) as client:
        assert (await client.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert cluster.topics == {}
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        response = await client.metadata("t", allow_auto_topic_creation=False)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = await client.metadata("no/name")
        assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert cluster.topics == {}


# Brokers


async def test_stopping_a_broker_moves_its_partitions_and_starting_it_brings_it_back():
    async with EmbeddedCluster(3, topics={"t": 3}) as cluster:
        port = cluster.nodes[1].port
        async with RawClient(address(cluster, 1)) as client, RawClient(address(cluster, 0)) as other:
            await client.metadata("t")
            await cluster.stop_broker(1)
            assert await client.is_closed()
            response = await other.metadata("t")

            assert [broker.node_id for broker in response.brokers] == [0, 2]
            described = response.topics[0].partitions[1]
            assert (described.leader_id, described.leader_epoch) == (2, 1)
            assert (described.isr_nodes, described.offline_replicas) == ([2, 0], [1])
            with pytest.raises(OSError, match=r"refused|Connect"):
                await asyncio.open_connection("127.0.0.1", port)

            await cluster.start_broker(1)
            response = await other.metadata("t")
            assert [broker.port for broker in response.brokers][1] == port
            assert sorted(response.topics[0].partitions[1].isr_nodes) == [0, 1, 2]
        async with RawClient(address(cluster, 1)) as client:
            await client.metadata("t")


async def test_the_last_replica_in_sync_leaves_its_partition_without_leader():
    async with EmbeddedCluster(2, topics={"t": 2}, replication_factor=1) as cluster:
        await cluster.stop_broker(1)
        async with RawClient(address(cluster)) as client:
            described = (await client.metadata("t")).topics[0].partitions[1]
            assert (described.error_code, described.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

            await cluster.start_broker(1)
            described = (await client.metadata("t")).topics[0].partitions[1]
            assert (described.error_code, described.leader_id, described.leader_epoch) == (0, 1, 2)


async def test_a_frozen_broker_keeps_quiet_until_it_thaws():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster:
        async with RawClient(address(cluster, 0)) as client, RawClient(address(cluster, 1)) as other:
            await client.metadata("t")
            cluster.freeze_broker(0)
            request = produce_request({("t", 0): batch_of(b"a")})
            correlation_id = client.send(request, 12)
            async with RawClient(address(cluster, 0)) as late:
                wanted = MetadataRequest(topics=[])
                late_id = late.send(wanted, 12)
                # The other broker answers, and still names the frozen one.
                for _ in range(3):
                    assert len((await other.metadata("t")).brokers) == 2
                assert cluster.records("t") == []

                cluster.thaw_broker(0)
                response = await client.answer(request, 12, correlation_id)
                await late.answer(wanted, 12, late_id)

        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_a_broker_that_is_frozen_can_be_stopped():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        cluster.freeze_broker(0)
        client.send(MetadataRequest(topics=[]), 12)
        await cluster.stop_broker(0)
        assert await client.is_closed()
        with pytest.raises(RuntimeError, match="broker 0 is stopped"):
            await cluster.stop_broker(0)


@pytest.mark.parametrize("start", BrokerState)
@pytest.mark.parametrize("to", BrokerState)
async def test_a_broker_changes_state_by_the_table_only(start, to):
    async with EmbeddedCluster() as cluster:
        broker = cluster.broker(0)
        starting = asyncio.create_task(asyncio.sleep(0))
        if start in (BrokerState.STOPPED, BrokerState.STARTING):
            await cluster.stop_broker(0)
        if start is BrokerState.STARTING:
            starting = asyncio.create_task(cluster.start_broker(0))
            await asyncio.sleep(0)
        elif start is BrokerState.FROZEN:
            cluster.freeze_broker(0)
        assert broker.state is start

        async def change() -> None:
            if to is BrokerState.STARTING:
                asking = asyncio.create_task(broker.start())
                await asyncio.sleep(0)
                if not asking.done():
                    assert broker.state is to
                await asking
            elif to is BrokerState.RUNNING and start is BrokerState.STARTING:
                await starting
            else:
                {
                    BrokerState.STOPPED: broker.halt,
                    BrokerState.FROZEN: broker.freeze,
                    BrokerState.RUNNING: broker.thaw,
                }[to]()

        if to in TRANSITIONS[start]:
            await change()
            assert broker.state is (BrokerState.RUNNING if to is BrokerState.STARTING else to)
        else:
            with pytest.raises(RuntimeError, match=f"broker 0 is {start.value}"):
                await change()
        (failure,) = await asyncio.gather(starting, return_exceptions=True)
        # Whoever stops a broker that is starting tells so whoever starts it.
        stopped = (start, to) == (BrokerState.STARTING, BrokerState.STOPPED)
        assert isinstance(failure, RuntimeError) is stopped


async def test_metadata_names_a_broker_once_it_can_be_connected_to():
    async with EmbeddedCluster(2) as cluster:
        await cluster.stop_broker(0)
        starting = asyncio.create_task(cluster.start_broker(0))
        while len(cluster.alive()) < 2:  # noqa: ASYNC110  # the very round in which it is named
            await asyncio.sleep(0)
        async with RawClient(address(cluster)) as client:
            await client.metadata()
        await starting


async def test_a_broker_can_come_back_as_another_release():
    async with EmbeddedCluster(versions="2.8") as cluster:
        await cluster.stop_broker(0)
        await cluster.start_broker(0, versions="4.1")
        async with RawClient(address(cluster)) as client:
            response = await client.ask(ApiVersionsRequest(), 0)
        assert isinstance(response, ApiVersionsResponse)
        assert response.api_keys[0].max_version == 13


# The rest


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_names_a_broker(version):
    async with EmbeddedCluster(3) as cluster, RawClient(address(cluster)) as client:
        keys = {"coordinator_keys": ["a", "b"]} if version >= 4 else {"key": "a"}
        response = await client.ask(FindCoordinatorRequest(**keys), version)

        assert isinstance(response, FindCoordinatorResponse)
        found = response.coordinators or [response]
        assert [one.error_code for one in found] == [0] * len(found)
        assert all((one.node_id, one.host, one.port) in [n[:3] for n in cluster.nodes] for one in found)


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics(version):
    async with EmbeddedCluster(3, topics={"old": 1}) as cluster, RawClient(address(cluster)) as client:
        wanted = [
            ("new", 2, 2, {"max.message.bytes": "5000"}),
            ("default", -1, -1, {}),
            ("old", 1, 1, {}),
            ("no/name", 1, 1, {}),
            ("none", 0, 1, {}),
            ("many", 1, 4, {}),
            ("odd", 1, 1, {"x": "y"}),
        ]
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replicas,
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in config.items()
                    ],
                )
                for name, partitions, replicas, config in wanted
            ]
        )
        response = await client.ask(request, version)

        assert isinstance(response, CreateTopicsResponse)
        assert [ErrorCode(topic.error_code) for topic in response.topics] == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_CONFIG,
        ]
        assert list(cluster.topics) == ["old", "new", "default"]
        assert cluster.partition("new", 1).replicas == (1, 2)
        assert cluster.topics["new"].config.max_message_bytes == 5000


async def test_topics_whose_names_differ_in_dots_and_underscores_only_collide():
    async with EmbeddedCluster(topics={"a.b_c": 1}) as cluster, RawClient(address(cluster)) as client:
        with pytest.raises(ValueError, match=r"'a_b\.c' can't be made: it collides with topic 'a\.b_c'"):
            cluster.create_topic("a_b.c")
        topic = CreateTopicsRequest.CreatableTopic(name="a_b.c", num_partitions=1, replication_factor=1)
        response = await client.ask(CreateTopicsRequest(topics=[topic]), 7)
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert response.topics[0].error_message == "Topic 'a_b.c' collides with existing topic: a.b_c"
        for _ in range(2):
            described = (await client.metadata("a.b.c")).topics[0]
            assert described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert list(cluster.topics) == ["a.b_c"]


async def test_create_topics_can_be_rehearsed():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        response = await client.ask(CreateTopicsRequest(topics=[topic], validate_only=True), 7)
        assert isinstance(response, CreateTopicsResponse)
        assert response.topics[0].error_code == 0
        assert cluster.topics == {}


async def test_records_begin_where_the_log_does_also_within_a_batch():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await client.produce(batch_of(*(b"%d" % number for number in range(10))))
        cluster.log("t", 0).delete_before(5)

        for committed in (False, True):
            records = cluster.records("t", committed=committed)
            assert [record.offset for record in records] == [5, 6, 7, 8, 9]


async def test_partitions_can_be_added():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.add_partitions("t", 3)
        assert [p.leader_id for p in (await client.metadata("t")).topics[0].partitions] == [0, 1, 0]
        with pytest.raises(ValueError, match="has 3 partitions"):
            cluster.add_partitions("t", 3)


async def test_nothing_is_left_when_a_test_fails_in_the_middle():
    before = asyncio.all_tasks()
    clients = []

    async def failing_test():
        async with EmbeddedCluster(3, topics={"t": 1}) as cluster:
            for node in (0, 0, 1):
                clients.append(RawClient(address(cluster, node)))
                await clients[-1].__aenter__()
            cluster.hold_replication("t", 0)
            clients[0].send(produce_request({("t", 0): batch_of(b"a")}), 12)
            clients[1].writer.write(b"\x00\x00\x01\x00half a request")
            await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), TIMEOUT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing_test()
    for client in clients:
        assert await client.is_closed()
        await client.__aexit__()

    assert asyncio.all_tasks() == before


async def test_nothing_is_left_of_a_client_that_connects_while_the_cluster_stops():
    before = asyncio.all_tasks()
    async with EmbeddedCluster() as cluster:
        connecting = [
            asyncio.ensure_future(asyncio.open_connection(*cluster.nodes[0][1:3])) for _ in range(5)
        ]
        await asyncio.sleep(0)
    for connected in await asyncio.gather(*connecting, return_exceptions=True):
        if not isinstance(connected, BaseException):
            connected[1].close()
            await asyncio.gather(connected[1].wait_closed(), return_exceptions=True)

    assert asyncio.all_tasks() == before


async def test_a_port_that_is_taken_leaves_nothing_running():
    async with EmbeddedCluster(2) as first:
        port = first.nodes[1].port
        second = EmbeddedCluster(2, port=port - 1)
        with pytest.raises(OSError, match="address already in use"):
            await second.start()
        assert second.alive() == []


async def test_ports_follow_the_first_one():
    async with EmbeddedCluster() as first:
        port = first.nodes[0].port
    async with EmbeddedCluster(port=port) as second:
        assert second.bootstrap_servers == f"127.0.0.1:{port}"


def test_numbers_that_make_no_sense_are_refused():
    for wrong in (
        {"brokers": 0},
        {"versions": "0.9"},
        {"transaction_version": 3},
        {"replication_factor": 2},
        {"default_partitions": 0},
    ):
        with pytest.raises(ValueError, match=r"broker|version"):
            EmbeddedCluster(**wrong)


async def test_a_topic_that_makes_no_sense_leaves_nothing_running():
    cluster = EmbeddedCluster(topics={"t": 0})
    with pytest.raises(ValueError, match="can't be made"):
        await cluster.start()
    assert cluster.alive() == []
