"""Connections to several brokers: back-off, routing, lost connections, and complete clean-up."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import asynccontextmanager
from random import Random

import pytest

from aioproducer.cluster import Cluster
from aioproducer.errors import (
    BrokerConnectionError,
    KafkaError,
    ProducerClosed,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from aioproducer.network import brokers as brokers_module
from aioproducer.network import hedge
from aioproducer.network.brokers import TRY_ANOTHER_AFTER
from aioproducer.network.connection_state import ConnectionState
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import ApiVersionsResponse, MetadataRequest, MetadataResponse
from aioproducer.types import Node
from tests.conftest import MS, in_virtual_time
from tests.support.log_lines import log_lines
from tests.support.scripted_broker import (
    HOST,
    LONG,
    Net,
    Peer,
    ScriptedBroker,
    api_versions,
    dead_port,
    until,
)

QUESTION = MetadataRequest(topics=[])


def cluster_of(*ports: int) -> Cluster:
    """Create a cluster with nodes 0, 1, ... at these ports."""
    return Cluster({index: Node(index, HOST, port) for index, port in enumerate(ports)}, 0, "c", {})


async def silent(peer: Peer) -> None:
    await peer.read_to_end()


async def mute(peer: Peer) -> None:
    """Do the handshake, then answer nothing."""
    await peer.handshake()
    await peer.read_to_end()


async def echo(peer: Peer) -> None:
    await peer.handshake()
    while True:
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse())


@asynccontextmanager
async def net_of(*serves, **settings):
    """Run one broker for each of `serves`, with node ids from 0."""
    running = [ScriptedBroker(serve) for serve in serves]
    for broker in running:
        await broker.__aenter__()
    try:
        async with Net("127.0.0.1:1", **settings) as net:
            net.brokers.update(cluster_of(*(broker.port for broker in running)))
            net.peers = running
            yield net
    finally:
        for broker in running:
            await broker.__aexit__()


async def failure(future: asyncio.Future) -> BaseException:
    await asyncio.wait([future], timeout=LONG)
    assert future.done()
    return future.exception()


# Readiness


async def test_ready_returns_false_starts_a_connection_and_wakes_the_sender_once_it_is_ready():
    async with net_of(echo) as net:
        net.wake.clear()
        assert not net.brokers.ready(0)
        assert not net.brokers.ready(0)
        now = asyncio.get_running_loop().time()
        # From the time of retry_at() on, the attempt has taken too long.
        assert now < net.brokers.retry_at(0, now) <= now + TRY_ANOTHER_AFTER

        await asyncio.wait_for(net.wake.wait(), LONG)
        await net.become_ready(0)
        assert net.peers[0].connections == 1
        assert net.brokers.connection(0).versions.of(ApiKey.METADATA) == 13
        assert net.brokers.in_flight(0) == 0
        await net.brokers.request(0, QUESTION, LONG)


async def test_an_unknown_node_requests_metadata():
    async with net_of(echo) as net:
        net.wake.clear()
        assert not net.brokers.ready(7)
        assert net.brokers.update_wanted
        assert net.brokers.retry_at(7, asyncio.get_running_loop().time()) is None
        assert net.brokers.in_flight(7) == 0


async def test_a_broker_at_the_in_flight_limit_is_not_ready():
    async with net_of(mute, max_in_flight_requests_per_connection=1) as net:
        await net.become_ready(0)
        net.brokers.request(0, QUESTION, LONG)
        assert not net.brokers.ready(0)
        assert net.brokers.in_flight(0) == 1
        assert net.brokers.retry_at(0, asyncio.get_running_loop().time()) is None


@pytest.mark.promise("KIPs", "KIP-219: a throttled client mutes itself")
async def test_a_throttled_broker_is_ready_again_at_a_time():
    async def serve(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse(throttle_time_ms=100))
        await peer.read_to_end()

    async with net_of(serve) as net:
        await net.become_ready(0)
        await net.brokers.request(0, QUESTION, LONG)
        assert not net.brokers.ready(0)
        assert net.brokers.retry_at(0, asyncio.get_running_loop().time()) is not None
        await net.become_ready(0)
        assert net.brokers.retry_at(0, asyncio.get_running_loop().time()) is None


@pytest.mark.promise("KIPs", "KIP-584: features of the cluster")
async def test_features_that_a_broker_reported_outlive_its_connection():
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        answer = api_versions()
        answer.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name="transaction.version", max_version_level=2)
        ]
        peer.answer(header, answer)
        await peer.read_to_end()

    async with net_of(serve) as net:
        assert net.brokers.finalized_feature("transaction.version") == 0
        await net.become_ready(0)
        assert net.brokers.finalized_feature("transaction.version") == 2
        assert net.brokers.finalized_feature("other") == 0
        net.brokers.disconnect(0, BrokerConnectionError("cut"))
        assert net.brokers.connection(0) is None
        assert net.brokers.finalized_feature("transaction.version") == 2


async def test_the_highest_features_epoch_wins_until_the_cluster_is_replaced():
    """A restarted broker may be behind the others, and a broker of an old release reports no epoch."""
    reports = iter([(7, 2), (6, 1), (-1, 0), (3, 1)])

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        answer = api_versions()
        answer.finalized_features_epoch, level = next(reports)
        answer.finalized_features = [
            ApiVersionsResponse.FinalizedFeatureKey(name="transaction.version", max_version_level=level)
        ]
        peer.answer(header, answer)
        await peer.read_to_end()

    async with net_of(serve) as net:
        levels = []
        for number in range(4):
            if number:
                net.brokers.disconnect(0, BrokerConnectionError("cut"))
            await net.become_ready(0)
            levels.append(net.brokers.finalized_feature("transaction.version"))
        net.brokers.forget_features()

        assert levels == [2, 2, 2, 2]
        assert net.brokers.finalized_feature("transaction.version") == 1


# Requests


async def test_a_request_without_connection_fails_as_not_written():
    async with net_of(echo) as net:
        for node_id in (0, 7):
            error = await failure(net.brokers.request(node_id, QUESTION, LONG))
            assert isinstance(error, BrokerConnectionError)
            assert error.written is False
            assert net.brokers.connection(node_id) is None


async def test_a_request_that_the_broker_is_too_old_for_raises():
    async def serve(peer: Peer) -> None:
        await peer.handshake(metadata=(0, 3))
        await peer.read_to_end()

    async with net_of(serve) as net:
        await net.become_ready(0)
        with pytest.raises(UnsupportedVersionError):
            net.brokers.request(0, QUESTION, LONG)


async def test_disconnecting_a_broker_fails_requests_in_flight_and_backs_off():
    async with net_of(mute) as net:
        await net.become_ready(0)
        future = net.brokers.request(0, QUESTION, LONG)
        before = asyncio.get_running_loop().time()
        net.brokers.disconnect(0, ProtocolError("broke the rules"))
        net.brokers.disconnect(7, ProtocolError("nobody"))

        assert type(await failure(future)) is ProtocolError
        assert net.brokers.retry_at(0, before) is not None
        await net.become_ready(0)


# Back-off


@pytest.mark.promise("Accumulator, sender, connections", "reconnects back off with growing pauses")
async def test_a_broker_that_refuses_is_tried_with_growing_pauses(monkeypatch):
    pauses = []

    def recorded(base: float, maximum: float, failures: int, random: Random) -> float:
        if base == 0.001:
            pauses.append((failures, maximum))
        return original(base, maximum, failures, random)

    original = brokers_module.backoff
    monkeypatch.setattr(brokers_module, "backoff", recorded)
    async with Net("127.0.0.1:1", reconnect_backoff_ms=1, reconnect_backoff_max_ms=4) as net:
        net.brokers.update(cluster_of(dead_port()))
        for attempt in range(1, 6):
            while net.brokers.lost < attempt:
                net.brokers.ready(0)
                await asyncio.sleep(0)

    assert pauses == [(failures, 0.004) for failures in range(5)]


@in_virtual_time
async def test_brokers_that_stay_unreachable_share_a_line_every_ten_seconds(caplog):
    async with Net("127.0.0.1:1", reconnect_backoff_ms=100, reconnect_backoff_max_ms=1000) as net:
        net.brokers.update(cluster_of(dead_port(), dead_port(), dead_port()))
        loop = asyncio.get_running_loop()
        end = loop.time() + 35
        while loop.time() < end:
            for node_id in range(3):
                net.brokers.ready(node_id)
            await asyncio.sleep(0.05)

    lines = log_lines(caplog, logging.WARNING)
    first, repeated = lines[:3], lines[3:]
    assert all(line.endswith(" s at the earliest") for line in first)
    assert len(repeated) == 3
    for line in repeated:
        assert re.search(
            r" at the earliest; \d+ attempts have failed; 2 other brokers cannot be reached$", line
        )


@in_virtual_time
async def test_a_bootstrap_server_that_stays_unreachable_is_logged_once(caplog):
    async with Net(f"{HOST}:{dead_port()}") as net:
        end = asyncio.get_running_loop().time() + 35
        while asyncio.get_running_loop().time() < end:
            net.brokers.ready(-1)
            await asyncio.sleep(0.05)

    assert len(log_lines(caplog, logging.WARNING)) == 1


@pytest.mark.promise("Accumulator, sender, connections", "reconnects back off with growing pauses")
@in_virtual_time
async def test_frequent_checks_do_not_cause_frequent_connects():
    async with Net("127.0.0.1:1", reconnect_backoff_ms=100, reconnect_backoff_max_ms=1000) as net:
        net.brokers.update(cluster_of(dead_port()))
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.3
        while loop.time() < end:
            net.brokers.ready(0)
            await asyncio.sleep(0.1 * MS)

        assert 1 <= net.brokers.lost <= 3
        assert net.metrics.node(0).connect_failures == net.brokers.lost


@pytest.mark.promise("Accumulator, sender, connections", "reconnects back off with growing pauses")
async def test_a_broker_that_accepts_and_drops_is_tried_with_growing_pauses():
    async def serve(peer: Peer) -> None:
        await peer.handshake()

    async with net_of(serve, reconnect_backoff_ms=10, reconnect_backoff_max_ms=10_000) as net:
        for attempt in range(1, 5):
            while net.brokers.lost < attempt:
                net.brokers.ready(0)
                await asyncio.sleep(1 * MS)
        assert net.brokers._entries[0].failures == 4


async def test_a_connection_that_lasted_resets_the_back_off():
    release = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await release.wait()

    async with net_of(serve, reconnect_backoff_ms=10, reconnect_backoff_max_ms=20) as net:
        net.brokers._entries[0].failures = 9
        await net.become_ready(0)
        await asyncio.sleep(0.03)
        release.set()
        await until(lambda: net.brokers.lost == 1)
        assert net.brokers._entries[0].failures == 1


@pytest.mark.promise(
    "Rules of Kafka's producer", "a connection's states are a table, each step is bounded by the set-up time"
)
async def test_the_set_up_time_grows_with_each_failure_and_ends_with_success(monkeypatch):
    given = []

    async def dial(host: str, port: int, timeout: float, **_: object) -> None:
        given.append(timeout)
        raise BrokerConnectionError("no", written=False)

    async with net_of(
        echo, socket_connection_setup_timeout_ms=10_000, socket_connection_setup_timeout_max_ms=30_000
    ) as net:
        with monkeypatch.context() as patched:
            patched.setattr("aioproducer.network.connection.dial", dial)
            while len(given) < 4:
                net.brokers.ready(0)
                await asyncio.sleep(1 * MS)
            await until(lambda: net.brokers.lost == 4)

        for timeout, middle in zip(given, [10, 20, 30, 30], strict=True):
            assert middle * 0.8 <= timeout <= middle * 1.2
        await net.become_ready(0)
        assert net.brokers._entries[0].failed_setups == 0


async def test_the_name_is_resolved_at_each_attempt(monkeypatch):
    asked = []

    async def dial(host: str, port: int, timeout: float, **_: object) -> None:
        asked.append(host)
        raise BrokerConnectionError("no", written=False)

    monkeypatch.setattr("aioproducer.network.connection.dial", dial)
    async with Net("broker.example:9092") as net:
        while len(asked) < 3:
            net.brokers.ready(-1)
            await asyncio.sleep(1 * MS)

    assert asked == ["broker.example"] * 3


# Lost connections


async def test_a_lost_connection_requests_metadata_and_wakes_the_sender():
    release = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await release.wait()

    async with net_of(serve) as net:
        await net.become_ready(0)
        assert not net.brokers.update_wanted
        net.wake.clear()
        release.set()

        await asyncio.wait_for(net.wake.wait(), LONG)
        await until(lambda: net.brokers.update_wanted)
        assert net.brokers.lost == 1
        assert net.metrics.errors == {"BrokerConnectionError": 1}


async def test_a_refused_connection_requests_metadata():
    async with Net("127.0.0.1:1") as net:
        net.brokers.update(cluster_of(dead_port()))
        net.brokers.ready(0)
        await until(lambda: net.brokers.update_wanted)


@pytest.mark.promise(
    "Accumulator, sender, connections", "idle connections close and are reopened when needed"
)
async def test_a_closed_idle_connection_does_not_count_as_lost_and_is_reopened_when_needed():
    async with net_of(echo, connections_max_idle_ms=30) as net:
        await net.become_ready(0)
        await until(lambda: net.brokers._entries[0].connection is None)

        assert net.brokers.lost == 0
        assert not net.brokers.update_wanted
        await net.become_ready(0)
        assert net.peers[0].connections == 2


# Nodes come and go


async def test_the_bootstrap_addresses_are_nodes_until_the_cluster_is_known():
    async with ScriptedBroker(echo) as broker, Net(f"127.0.0.1:1,{broker.address}") as net:
        assert [node.node_id for node in net.brokers.nodes] == [-1, -2]
        assert net.brokers.is_bootstrapping
        await net.become_ready(-2)

        net.brokers.update(cluster_of(broker.port))
        assert [node.node_id for node in net.brokers.nodes] == [0]
        assert not net.brokers.is_bootstrapping
        net.brokers.update(Cluster.empty())
        assert [node.node_id for node in net.brokers.nodes] == [0]


async def test_a_node_with_a_new_address_gets_a_new_connection_and_the_old_one_is_drained():
    release = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.handshake()
        header, _ = await peer.request()
        await release.wait()
        peer.answer(header, MetadataResponse(controller_id=1))
        await peer.read_to_end()

    async with ScriptedBroker(echo) as other, net_of(slow) as net:
        await net.become_ready(0)
        before = net.brokers._entries[0].connection
        future = net.brokers.request(0, QUESTION, LONG)

        net.brokers.update(cluster_of(other.port))
        assert not net.brokers.ready(0)
        await net.become_ready(0)
        assert other.connections == 1
        assert before.state is ConnectionState.DRAINING

        release.set()
        assert (await future).controller_id == 1
        await until(lambda: before.is_gone)
        assert net.brokers.lost == 0


async def test_a_node_with_a_new_rack_keeps_its_connection():
    async with net_of(echo) as net:
        await net.become_ready(0)
        node = net.brokers.nodes[0]
        net.brokers.update(Cluster({0: node._replace(rack="r2")}, 0, "c", {}))

        assert net.brokers.ready(0)
        assert net.brokers.nodes[0].rack == "r2"


async def test_a_node_that_left_the_cluster_is_dropped_even_while_connecting():
    async with net_of(silent, echo) as net:
        net.brokers.ready(0)
        await until(lambda: net.peers[0].connections == 1)
        net.brokers.update(Cluster({1: net.brokers.nodes[1]}, 0, "c", {}))

        assert not net.brokers.ready(0)
        await until(lambda: not net.brokers._tasks)
        await net.become_ready(1)


async def test_two_nodes_at_one_address_have_a_connection_each():
    async with ScriptedBroker(echo) as broker, Net("127.0.0.1:1") as net:
        net.brokers.update(cluster_of(broker.port, broker.port))
        await net.become_ready(0)
        await net.become_ready(1)
        assert broker.connections == 2


@pytest.mark.promise("KIPs", "KIP-899: back to the bootstrap addresses when no known broker is left")
async def test_a_rebootstrap_returns_to_the_bootstrap_addresses_and_keeps_their_back_off():
    async with net_of(echo) as net:
        await net.become_ready(0)
        net.brokers._former[-1].retry_at = 1e9

        net.brokers.rebootstrap()
        assert [node.node_id for node in net.brokers.nodes] == [-1]
        assert net.brokers.retry_at(-1, asyncio.get_running_loop().time()) == 1e9
        net.brokers.update(cluster_of(net.peers[0].port))
        await net.become_ready(0)


async def test_a_broker_that_a_rebootstrap_discarded_is_named_with_its_last_error():
    async with net_of(echo) as net:
        port = dead_port()
        net.brokers.update(cluster_of(port))
        with pytest.raises(BrokerConnectionError, match=f"{HOST}:{port}"):
            await net.brokers.request_node(0, QUESTION, LONG)

        net.brokers.rebootstrap()

        with pytest.raises(
            BrokerConnectionError, match=f"^broker 0 is no longer known; its last .* was: {HOST}:{port}"
        ):
            await net.brokers.request_node(0, QUESTION, LONG)
        with pytest.raises(BrokerConnectionError, match=r"^broker 7 is not known$"):
            await net.brokers.request_node(7, QUESTION, LONG)


# Any broker


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request for any broker goes to the least loaded one, else to one that is connecting, else to a "
    "free one in rotation",
)
async def test_the_least_loaded_ready_broker_is_chosen():
    async with net_of(mute, mute, mute) as net:
        for node_id in range(3):
            await net.become_ready(node_id)
        for node_id, count in [(0, 2), (1, 1), (2, 3)]:
            for _ in range(count):
                net.brokers.request(node_id, QUESTION, LONG)

        assert [net.brokers.least_loaded() for _ in range(5)] == [1] * 5


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request for any broker goes to the least loaded one, else to one that is connecting, else to a "
    "free one in rotation",
)
async def test_equally_loaded_brokers_take_turns():
    async with net_of(mute, mute, mute) as net:
        for node_id in range(3):
            await net.become_ready(node_id)

        chosen = [net.brokers.least_loaded() for _ in range(6)]
        assert chosen[:3] == chosen[3:]
        assert sorted(chosen[:3]) == [0, 1, 2]


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "a request for any broker goes to the least loaded one, else to one that is connecting, else to a "
    "free one in rotation",
)
async def test_a_connecting_broker_is_preferred_to_one_that_could_be_connected():
    async with net_of(silent, silent, silent) as net:
        assert sorted(net.brokers.least_loaded() for _ in range(3)) == [0, 1, 2]
        net.brokers.ready(1)
        assert {net.brokers.least_loaded() for _ in range(3)} == {1}


async def test_brokers_in_back_off_are_not_chosen():
    async with net_of(silent, silent) as net:
        for entry in net.brokers._entries.values():
            entry.retry_at = 1e9
        assert net.brokers.least_loaded() is None
        net.brokers._entries[1].retry_at = 0.0
        assert net.brokers.least_loaded() == 1


@pytest.mark.promise("KIPs", "KIP-219: a throttled client mutes itself")
async def test_a_throttled_broker_is_skipped_for_requests_to_any_broker():
    async with net_of(mute, echo) as net:
        await net.become_ready(0)
        net.brokers._entries[0].connection.throttled_until = 1e9

        await net.brokers.request_any(QUESTION, LONG)
        assert net.brokers.in_flight(0) == 0


async def test_a_request_to_any_broker_may_exceed_the_in_flight_limit():
    async def late(peer: Peer) -> None:
        await peer.handshake()
        headers = [(await peer.request())[0] for _ in range(2)]
        for header in headers:
            peer.answer(header, MetadataResponse())
        await peer.read_to_end()

    async with net_of(late, max_in_flight_requests_per_connection=1) as net:
        await net.become_ready(0)
        net.brokers.request(0, QUESTION, LONG)
        assert not net.brokers.ready(0)
        await net.brokers.request_any(QUESTION, LONG)


@pytest.mark.parametrize("seed", range(3))
async def test_a_dead_bootstrap_address_is_skipped(seed):
    async with (
        ScriptedBroker(echo) as broker,
        Net(f"{HOST}:{dead_port()},{HOST}:{dead_port()},{broker.address}") as net,
    ):
        net.brokers._rotation = seed
        await net.brokers.request_any(QUESTION, LONG)


@pytest.mark.parametrize("seed", range(2))
async def test_a_second_address_is_tried_in_parallel_to_a_silent_bootstrap_address(seed, monkeypatch):
    monkeypatch.setattr(brokers_module, "TRY_ANOTHER_AFTER", 0.02)
    async with (
        ScriptedBroker(silent) as first,
        ScriptedBroker(echo) as second,
        Net(f"{first.address},{second.address}") as net,
    ):
        net.brokers._rotation = seed
        await net.brokers.request_any(QUESTION, LONG)


async def test_when_no_broker_is_reachable_each_is_named():
    ports = dead_port(), dead_port()
    async with Net(f"{HOST}:{ports[0]},{HOST}:{ports[1]}") as net:
        with pytest.raises(BrokerConnectionError) as caught:
            await net.brokers.request_any(QUESTION, LONG)

        for port in ports:
            assert f"{HOST}:{port}" in str(caught.value)
        assert caught.value.written is False
        assert not net.brokers.reachability.is_hopeless


@in_virtual_time
async def test_brokers_count_as_unreachable_only_after_failing_for_a_while():
    back_off = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 1_000_000 * MS}
    async with Net(f"{HOST}:{dead_port()}", **back_off) as net:
        with pytest.raises(BrokerConnectionError):
            await net.brokers.request_any(QUESTION, LONG)
        assert not net.brokers.reachability.is_unreachable

        while not net.brokers.reachability.is_unreachable:
            with pytest.raises(BrokerConnectionError):
                await net.brokers.request_any(QUESTION, LONG)
        assert net.brokers.lost >= 3


async def test_brokers_in_back_off_are_tried_before_the_request_fails():
    async with Net(f"{HOST}:{dead_port()}") as net:
        for attempt in (1, 2, 3):
            with pytest.raises(BrokerConnectionError):
                await net.brokers.request_any(QUESTION, LONG)
            assert net.brokers.lost == attempt


async def test_a_request_times_out_if_no_broker_becomes_ready():
    async with ScriptedBroker(silent) as broker, Net(broker.address) as net:
        with pytest.raises(RequestTimedOutError, match="has not answered ApiVersions for") as caught:
            await net.brokers.request_any(QUESTION, 500 * MS)  # long enough to connect

    assert f"{broker.address}: the port accepted the connection" in str(caught.value)
    assert "does security_protocol match its listener?" in str(caught.value)


async def test_an_attempt_to_connect_reports_the_step_it_waits_for():
    async with ScriptedBroker(silent) as broker:
        for settings, told in [
            ({}, "the port accepted the connection but has not answered ApiVersions for"),
            (
                {"security_protocol": "SSL"},
                "the port accepted the connection but has not answered the TLS handshake",
            ),
            ({"connector": lambda host, port: asyncio.Event().wait()}, "the name is being resolved"),
        ]:
            async with Net(broker.address, **settings) as net:
                assert net.brokers.reachability.reasons() == f"{broker.address}: not connected yet"
                assert net.brokers.reachability.errors() == {}
                net.brokers.ready(-1)
                await until(lambda net=net, told=told: told in net.brokers.reachability.reasons())

                (error,) = net.brokers.reachability.errors().values()
                assert told in error.message
                with pytest.raises(RequestTimedOutError, match=told):
                    await net.brokers.request_node(-1, QUESTION, 5 * MS)


async def test_a_request_times_out_without_a_response():
    async with net_of(mute) as net:
        with pytest.raises(RequestTimedOutError, match="METADATA"):
            await net.brokers.request_any(QUESTION, 200 * MS)


async def test_another_broker_is_asked_in_parallel_to_one_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(hedge, "HEDGE_AFTER", 10 * MS)
    async with net_of(mute, echo) as net:
        await net.become_ready(0)  # the other one is not connected yet

        await net.brokers.request_any(QUESTION, LONG)

        assert net.brokers.in_flight(0) == 1, (
            "its response is still expected, so that the connection can time out"
        )
        assert net.peers[1].connections == 1


async def test_no_other_broker_is_asked_while_the_first_one_answers():
    async with net_of(echo, echo) as net:

        def requests() -> int:
            return sum(node.requests for node in net.metrics.nodes.values())

        for index in range(2):
            await net.become_ready(index)
        before = requests()

        for _ in range(4):
            await net.brokers.request_any(QUESTION, LONG)

        assert requests() == before + 4


async def test_peers_that_are_not_kafka_brokers_are_hopeless():
    async def serve(peer: Peer) -> None:
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.read_to_end()

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        with pytest.raises(BrokerConnectionError, match="HTTP"):
            await net.brokers.request_any(QUESTION, LONG)
        assert net.brokers.reachability.is_hopeless


# Closing


@pytest.mark.promise("As a whole", "nothing is left after `close()`: no task, no socket, no reserved byte")
async def test_closing_leaves_neither_task_nor_socket():
    ended = []

    async def serve(peer: Peer) -> None:
        await mute(peer)
        ended.append(peer)

    async with net_of(serve, serve, silent) as net:
        await net.become_ready(0)
        await net.become_ready(1)
        net.brokers.ready(2)
        in_flight = net.brokers.request(0, QUESTION, LONG)
        connections = [net.brokers._entries[index].connection for index in (0, 1)]
        await net.brokers.close()

        assert isinstance(in_flight.exception(), BrokerConnectionError)
        assert all(connection.is_gone for connection in connections)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("aioproducer")]
        assert not net.brokers.ready(0)
        assert not net.brokers._tasks
        await until(lambda: len(ended) == 2)
        await net.brokers.close()


async def test_closing_while_connections_drain_leaves_nothing():
    async with net_of(mute) as net:
        await net.become_ready(0)
        connection = net.brokers._entries[0].connection
        future = net.brokers.request(0, QUESTION, LONG)
        net.brokers.rebootstrap()
        assert connection.state is ConnectionState.DRAINING
        await net.brokers.close()

        assert connection.is_gone
        assert isinstance(future.exception(), KafkaError)


async def test_closing_fails_requests_that_wait_for_any_broker():
    async with ScriptedBroker(silent) as broker, Net(broker.address) as net:
        waiting = asyncio.create_task(net.brokers.request_any(QUESTION, LONG))
        await until(lambda: broker.connections)
        await net.brokers.close()

        with pytest.raises(ProducerClosed):
            await waiting
