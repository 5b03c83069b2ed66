"""Scripted faults that affect brokers or the bytes of an answer, alone and combined."""

from __future__ import annotations

import asyncio
import contextlib
import math

import pytest

from aioproducer.protocol.api import ApiKey, decode_response
from aioproducer.protocol.messages import MetadataRequest, ProduceResponse
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded import fault_effects
from aioproducer.testing.embedded.broker import BrokerState, CloseConnection
from aioproducer.testing.embedded.faults import FaultScript, ImpossibleFaultError
from tests.conftest import MS
from tests.support.producing import until, within
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request

# At the n-th request


# Leaders


@pytest.mark.promise(
    "Test clusters", "scripted faults move leaders, take down or freeze brokers, and send responses in pieces"
)
async def test_a_leader_moves_as_a_request_arrives():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, move_leader_to=1, partition=0, skip=1)
        first = await client.produce(batch_of(b"a"))
        second = await client.produce(batch_of(b"b"))

        assert (first.error_code, second.error_code) == (0, 6)
        assert (second.current_leader.leader_id, second.current_leader.leader_epoch) == (1, 1)
        assert [cluster.leader("t", partition) for partition in (0, 1)] == [1, 1]
        assert cluster.partition("t", 1).leader_epoch == 0
        assert len(cluster.records("t", 0)) == 1


async def test_a_leader_moves_after_the_append():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, move_leader_to=1, after_append=True)

        assert (await client.produce(batch_of(b"a"))).error_code == 0
        assert (await client.produce(batch_of(b"b"))).error_code == 6
        assert len(cluster.records("t")) == 1


async def test_the_leaders_of_all_partitions_of_a_fault_move_whatever_the_request_is_about():
    async with EmbeddedCluster(3, topics={"t": 4, "u": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.METADATA, move_leader_to=2, topic="t")
        described = (await client.metadata("t", "u")).topics

        assert [part.leader_id for part in described[0].partitions] == [2, 2, 2, 2]
        assert [part.leader_id for part in described[1].partitions] == [0]


# Brokers


@pytest.mark.promise(
    "Test clusters", "scripted faults move leaders, take down or freeze brokers, and send responses in pieces"
)
async def test_a_broker_goes_down_with_the_request_and_comes_back_by_itself():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster, RawClient(address(cluster, 1)) as other:
        async with RawClient(address(cluster)) as client:
            fault = cluster.faults.add(ApiKey.PRODUCE, down_for=200 * MS)
            client.send(produce_request({("t", 0): batch_of(b"a")}), 12)
            await asyncio.wait_for(fault.reached(), TIMEOUT)

            assert cluster.broker(0).state is BrokerState.STOPPED
            assert await client.is_closed()
            assert [part.leader_id for part in (await other.metadata("t")).topics[0].partitions] == [1, 1]
            assert cluster.records("t") == []
        await until(lambda: len(cluster.alive()) == 2, TIMEOUT)
        async with RawClient(address(cluster)) as client:
            assert len((await client.metadata("t")).brokers) == 2


async def test_a_broker_goes_down_after_the_append_and_stays_down_until_it_is_started():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            cluster.faults.add(ApiKey.PRODUCE, down_for=math.inf, after_append=True)
            client.send(produce_request({("t", 0): batch_of(b"a")}), 12)
            assert await client.is_closed()

        assert len(cluster.records("t")) == 1
        assert (cluster.leader("t", 0), cluster.broker(0).state) == (1, BrokerState.STOPPED)
        await cluster.start_broker(0)
        async with RawClient(address(cluster)) as client:
            assert len((await client.metadata("t")).brokers) == 2


async def test_a_broker_that_is_started_before_its_time_does_not_start_twice():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            cluster.faults.add(ApiKey.PRODUCE, down_for=100 * MS)
            client.send(produce_request({("t", 0): batch_of(b"a")}), 12)
            assert await client.is_closed()
        await cluster.start_broker(0)
        await asyncio.sleep(150 * MS)

        assert cluster.broker(0).state is BrokerState.RUNNING
    assert cluster.failures == []


async def test_a_port_that_is_in_use_when_a_broker_comes_back_is_reported_at_the_end():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            cluster.faults.add(ApiKey.PRODUCE, down_for=200 * MS)
            client.send(produce_request({("t", 0): batch_of(b"a")}), 12)
            assert await client.is_closed()
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", cluster.nodes[0].port):
            await until(lambda: cluster.failures, TIMEOUT)

        with pytest.raises(OSError, match="address already in use"):
            await cluster.__aexit__(None, None, None)
        cluster.failures.clear()


async def test_nothing_comes_back_once_the_cluster_has_stopped():
    before = asyncio.all_tasks()
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            cluster.faults.add(ApiKey.PRODUCE, down_for=100 * MS)
            client.send(produce_request({("t", 0): batch_of(b"a")}), 12)
            assert await client.is_closed()

    assert asyncio.all_tasks() == before
    assert cluster.alive() == []


@pytest.mark.parametrize("after_append", [False, True])
async def test_a_broker_freezes_with_the_request_and_thaws_by_itself(after_append):
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster:
        async with RawClient(address(cluster)) as client, RawClient(address(cluster, 1)) as other:
            fault = cluster.faults.add(ApiKey.PRODUCE, freeze_for=1500 * MS, after_append=after_append)
            loop = asyncio.get_running_loop()
            started = loop.time()
            answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
            await asyncio.wait_for(fault.reached(), TIMEOUT)
            await other.metadata("t")

            assert cluster.broker(0).state is BrokerState.FROZEN
            assert not answer.done()
            assert len(cluster.records("t")) == after_append
            assert (await answer).error_code == 0
            assert loop.time() - started >= 1490 * MS
            assert len(cluster.records("t")) == 1


async def test_a_broker_that_is_frozen_for_ever_thaws_on_request():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        fault = cluster.faults.add(ApiKey.PRODUCE, freeze_for=math.inf)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await asyncio.wait_for(fault.reached(), TIMEOUT)
        cluster.thaw_broker(0)

        assert (await answer).error_code == 0


async def test_a_broker_that_is_thawed_early_does_not_thaw_twice():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        fault = cluster.faults.add(ApiKey.PRODUCE, freeze_for=100 * MS)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await asyncio.wait_for(fault.reached(), TIMEOUT)
        cluster.thaw_broker(0)
        cluster.freeze_broker(0)
        await asyncio.sleep(150 * MS)

        assert cluster.broker(0).state is BrokerState.FROZEN
        cluster.thaw_broker(0)
        assert (await answer).error_code == 0


# Fenced after freezing


@pytest.mark.promise("Test clusters", "a frozen follower holds up acks=all until it is fenced")
async def test_a_frozen_follower_delays_acks_all_until_it_is_fenced():
    async with EmbeddedCluster(3, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.freeze_broker(2, fenced_after=200 * MS)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), TIMEOUT)
        assert cluster.partition("t", 0).isr == [0, 1, 2]
        assert (cluster.partition("t", 0).high_watermark, answer.done()) == (0, False)

        assert (await answer).error_code == 0
        assert cluster.partition("t", 0).isr == [0, 1]
        assert [node.node_id for node in cluster.alive()] == [0, 1]
        assert [broker.node_id for broker in (await client.metadata("t")).brokers] == [0, 1]

        cluster.thaw_broker(2)
        assert sorted(cluster.partition("t", 0).isr) == [0, 1, 2]
        assert len(cluster.alive()) == 3


async def test_a_frozen_leader_that_is_fenced_loses_its_partitions():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster, 1)) as client:
        cluster.freeze_broker(0, fenced_after=5 * MS)
        await until(lambda: cluster.leader("t", 0) == 1, TIMEOUT)
        assert (await client.produce(batch_of(b"a"))).error_code == 0

        cluster.thaw_broker(0)
        async with RawClient(address(cluster, 0)) as back:
            assert (await back.produce(batch_of(b"b"))).error_code == 6


@pytest.mark.promise(
    "Test clusters",
    "a broker that was fenced leads and follows again when it thaws, including topics that were created "
    "meanwhile",
)
async def test_a_fenced_broker_that_thaws_gets_topics_created_meanwhile():
    async with EmbeddedCluster(2) as cluster:
        cluster.freeze_broker(1, fenced_after=5 * MS)
        await until(lambda: len(cluster.alive()) == 1, TIMEOUT)
        alone = cluster.create_topic("alone", 2, replication_factor=1).partitions
        both = cluster.create_topic("both", 2, replication_factor=2).partitions
        assert [partition.leader for partition in alone + both] == [0, -1, 0, 0]
        assert [partition.isr for partition in both] == [[0], [0]]

        cluster.thaw_broker(1)
        assert [partition.leader for partition in alone + both] == [0, 1, 0, 0]
        assert [sorted(partition.isr) for partition in both] == [[0, 1], [0, 1]]
        async with RawClient(address(cluster, 1)) as client:
            assert (await client.produce(batch_of(b"a"), topic="alone", partition=1)).error_code == 0


async def test_a_broker_that_thaws_in_time_is_not_fenced():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.freeze_broker(1, fenced_after=100 * MS)
        answer = asyncio.ensure_future(client.produce(batch_of(b"a")))
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), TIMEOUT)
        assert not answer.done()
        cluster.thaw_broker(1)

        assert (await answer).error_code == 0
        await asyncio.sleep(150 * MS)
        assert (cluster.partition("t", 0).isr, len(cluster.alive())) == ([0, 1], 2)


async def test_a_frozen_follower_that_is_not_fenced_counts_as_up_to_date():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.freeze_broker(1)

        assert (await client.produce(batch_of(b"a"))).error_code == 0
        assert (cluster.partition("t", 0).high_watermark, cluster.partition("t", 0).isr) == (1, [0, 1])


# Answers


async def test_an_answer_can_trickle_in_pieces():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        loop = asyncio.get_running_loop()
        cluster.faults.add(ApiKey.PRODUCE, trickle=20, trickle_pause=5 * MS)
        request = produce_request({("t", 0): batch_of(b"a")})
        started = loop.time()
        correlation_id = client.send(request, 12)
        pieces = [await client.reader.read(1000)]
        size = 4 + int.from_bytes(pieces[0][:4], "big")
        while sum(map(len, pieces)) < size:
            pieces.append(await client.reader.read(1000))

        assert len(pieces[0]) == 20
        assert loop.time() - started >= (size // 20) * 4 * MS
        frame = b"".join(pieces)[4:]
        response = decode_response(ProduceResponse, 12, frame, correlation_id)
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_an_answer_can_trickle_and_be_cut_off():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, trickle=1, truncate=7)
        client.send(produce_request({("t", 0): batch_of(b"a")}), 12)

        assert len(await client.reader.read()) == 7
        assert len(cluster.records("t")) == 1


async def test_an_answer_can_be_cut_off_before_its_first_byte():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, truncate=0)
        client.send(produce_request({("t", 0): batch_of(b"a")}), 12)

        assert await client.reader.read() == b""


# Together


@pytest.mark.promise(
    "Test clusters", "scripted faults move leaders, take down or freeze brokers, and send responses in pieces"
)
async def test_all_effects_of_one_fault_apply_to_the_same_request():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster, RawClient(address(cluster)) as client:
        loop = asyncio.get_running_loop()
        throttle_ms = int(20 * MS * 1000)
        cluster.faults.add(
            ApiKey.PRODUCE,
            error=7,
            after_append=True,
            move_leader_to=1,
            delay=10 * MS,
            trickle=3,
            throttle_ms=throttle_ms,
            topic="t",
            partition=0,
            skip=1,
        )
        assert (await client.produce(batch_of(b"a"))).error_code == 0
        started = loop.time()
        response = await client.ask(produce_request({("t", 0): batch_of(b"b")}), 12)
        answered = loop.time()
        await client.metadata("t")

        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 7
        assert response.throttle_time_ms == throttle_ms
        assert answered - started >= 9 * MS
        assert loop.time() - answered >= 15 * MS
        assert (len(cluster.records("t", 0)), cluster.leader("t", 0)) == (2, 1)


async def test_faults_of_different_partitions_apply_to_the_same_request():
    async with EmbeddedCluster(2, topics={"t": 3}) as cluster, RawClient(address(cluster)) as client:
        cluster.faults.add(ApiKey.PRODUCE, move_leader_to=1, topic="t", partition=0)
        cluster.faults.add(ApiKey.PRODUCE, error=5, topic="t", partition=2)
        request = produce_request({("t", partition): batch_of(b"a") for partition in range(3)})
        response = await client.ask(request, 12)

        assert isinstance(response, ProduceResponse)
        errors = [part.error_code for part in response.responses[0].partition_responses]
        assert errors == [6, 6, 5]


@pytest.mark.parametrize("after_append", [False, True])
@pytest.mark.parametrize(
    ("replicas", "problem"),
    [
        (1, "it has no replica of the partition; the replicas are on broker 0"),
        (2, r"it is stopped; call start_broker\(1\) first"),
    ],
)
async def test_a_scripted_move_that_is_impossible_fails_with_the_brokers_state(
    replicas, problem, after_append, caplog
):
    async with EmbeddedCluster(2, topics={"t": 1}, replication_factor=replicas) as cluster:
        async with RawClient(address(cluster)) as client:
            await cluster.stop_broker(1)
            cluster.faults.add(ApiKey.PRODUCE, move_leader_to=1, after_append=after_append)
            client.send(produce_request({("t", 0): batch_of(b"a")}), 12)
            assert await client.is_closed()

        scripted = (
            r"scripted for PRODUCE \(move_leader_to=1\) can't be carried out: broker 1 can't lead t-0: "
        )
        with pytest.raises(ImpossibleFaultError, match=scripted + problem):
            await cluster.__aexit__(None, None, None)
        cluster.failures.clear()
    assert "can't be carried out" in caplog.text
    assert "a bug" not in caplog.text


# Single effects


class Pieces:
    """A writer that stores the pieces that are written to it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    async def drain(self) -> None:
        """Return at once: everything has been sent."""


async def test_an_answer_to_a_client_that_is_gone_leaves_nothing_in_the_selector():
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = writer.get_extra_info("socket").fileno()
        writer.transport.abort()
        with contextlib.suppress(ConnectionResetError):
            await fault_effects.write(writer, [b"abc", b"def"], [])
        loop = asyncio.get_running_loop()
        if isinstance(loop, asyncio.SelectorEventLoop):
            assert not loop.remove_writer(number)
        served.set()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await within(2, served.wait())
        writer.close()


@pytest.mark.parametrize(
    ("wishes", "written"),
    [
        ({"delay": 1.0}, [b"abcdef"]),
        ({"trickle": 4}, [b"abcd", b"ef"]),
        ({"trickle": 3}, [b"abc", b"def"]),
        ({"trickle": 100}, [b"abcdef"]),
        ({"truncate": 5}, [b"abcde"]),
        ({"truncate": 100}, [b"abcdef"]),
        ({"truncate": 0}, []),
        ({"truncate": 5, "trickle": 2}, [b"ab", b"cd", b"e"]),
    ],
)
async def test_an_answer_is_written_in_the_scripted_pieces(wishes, written):
    fault = FaultScript().add(ApiKey.PRODUCE, **wishes)
    writer = Pieces()

    if "truncate" in wishes:
        with pytest.raises(CloseConnection, match=f"after {len(b''.join(written))} bytes of the response"):
            await fault_effects.write(writer, [b"abc", b"def"], [fault])
    else:
        await fault_effects.write(writer, [b"abc", b"def"], [fault])

    assert writer.written == written


async def test_of_two_faults_that_truncate_the_shorter_answer_counts():
    script = FaultScript()
    faults = [script.add(ApiKey.PRODUCE, truncate=size, partition=size) for size in (4, 2)]
    writer = Pieces()

    with pytest.raises(CloseConnection):
        await fault_effects.write(writer, [b"abcdef"], faults)

    assert writer.written == [b"ab"]


def test_a_dropped_request_keeps_its_partitions_but_not_their_records():
    request = produce_request({("t", 0): batch_of(b"a"), ("u", 1): batch_of(b"b")})

    fault_effects.forget_records(request)
    fault_effects.forget_records(MetadataRequest())  # it has no records

    parts = [
        (topic.name, data.index, data.records)
        for topic in request.topic_data
        for data in topic.partition_data
    ]
    assert parts == [("t", 0, None), ("u", 1, None)]


async def test_faults_of_brokers_apply_before_or_after_the_work():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
        fault = FaultScript().add(ApiKey.PRODUCE, move_leader_to=1, freeze_for=math.inf, after_append=True)

        fault_effects.strike(cluster, 0, [fault], [("t", 0)], late=False)
        assert (cluster.leader("t", 0), cluster.broker(0).state) == (0, BrokerState.RUNNING)
        fault_effects.strike(cluster, 0, [fault], [("t", 0)], late=True)
        assert (cluster.leader("t", 0), cluster.broker(0).state) == (1, BrokerState.FROZEN)
