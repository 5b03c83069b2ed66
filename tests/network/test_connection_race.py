"""A broker that accepts connections and stays silent: a second connection is opened, but only when it is needed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from aioproducer import Producer
from aioproducer.errors import RequestTimedOutError
from aioproducer.network import brokers, connection_race
from aioproducer.network.connection_state import ConnectionState
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import MetadataRequest
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.simulation.loop import simulate
from tests.campaigns.availability.__main__ import missed, report
from tests.campaigns.availability.proxy import HalfOpenProxy
from tests.campaigns.availability.rounds import Client, Figures
from tests.conftest import MS, in_virtual_time
from tests.network.test_brokers import cluster_of
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

SHORT_HEAD_START = 100 * MS
"""Seconds; the value of HEAD_START in these tests."""

Serve = Callable[[Peer], Awaitable[object]]


@asynccontextmanager
async def net_of(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, **settings: object):
    """Run a Net in which `broker` is node 0 and a second connection is opened after SHORT_HEAD_START seconds."""
    for module in brokers, connection_race:
        monkeypatch.setattr(module, "HEAD_START", SHORT_HEAD_START)
    settings = {"reconnect_backoff_max_ms": 10, "socket_connection_setup_timeout_ms": LONG * 1000, **settings}
    async with Net("127.0.0.1:1", **settings) as net:
        net.brokers.update(cluster_of(broker.port))
        yield net


class Broker:
    """A broker that serves its n-th connection with the n-th of `serves`, and all later ones with the last."""

    def __init__(self, *serves: Serve) -> None:
        self.serves = list(serves)
        self.open = 0
        self.most_open = 0
        self.asked: list[list[ApiKey]] = []
        """The requests that `hears` has read on each connection."""

    async def __call__(self, peer: Peer) -> None:
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        serve = self.serves.pop(0) if len(self.serves) > 1 else self.serves[0]
        try:
            await serve(peer)
        finally:
            self.open -= 1

    async def hears(self, peer: Peer) -> None:
        """Read requests without answering them."""
        asked: list[ApiKey] = []
        self.asked.append(asked)
        while True:
            header, _ = await peer.request()
            asked.append(ApiKey(header.api_key))


async def silent(peer: Peer) -> None:
    await peer.read_to_end()


async def healthy(peer: Peer) -> None:
    await peer.handshake()
    await peer.read_to_end()


async def hangs_up(peer: Peer) -> None:
    """Close immediately."""


@in_virtual_time
async def test_a_healthy_broker_sees_one_connection(monkeypatch):
    async def slow(peer: Peer) -> None:
        header, _ = await peer.request()
        await asyncio.sleep(SHORT_HEAD_START / 4)
        peer.answer(header, api_versions())
        await peer.read_to_end()

    async with ScriptedBroker(slow) as broker, net_of(broker, monkeypatch) as net:
        await net.become_ready(0)
        await asyncio.sleep(5 * SHORT_HEAD_START)

        assert broker.connections == 1
        assert net.brokers._entries[0].connection is not None


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a broker that accepts and stays silent for 1 s gets a second connection, replaced each second until "
    "one is answered; a healthy broker gets one",
)
def test_each_broker_of_a_healthy_cluster_sees_one_connection():
    async def main() -> list[int]:
        async with EmbeddedCluster(3, topics={"t": 6}) as cluster:
            async with Producer(cluster.bootstrap_servers.partition(",")[0]) as producer:
                for number in range(60):
                    await producer.send_and_wait("t", b"v", partition=number % 6)
                    await asyncio.sleep(1)
            return [len(cluster.requests_of(ApiKey.API_VERSIONS, node)) for node in range(3)]

    first, *others = simulate(main)

    assert first in (1, 2)  # it may be connected twice, as a bootstrap address and as a broker
    assert others == [1, 1]


@in_virtual_time
async def test_a_second_connection_is_used_if_the_first_one_gets_no_response(monkeypatch):
    serve = Broker(silent, healthy)
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch) as net:
        await net.become_ready(0)
        await until(lambda: serve.open == 1)

        assert broker.connections == 2
        assert net.brokers.lost == 0
        assert net.metrics.node(0).connects == 1


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a broker that accepts and stays silent for 1 s gets a second connection, replaced each second until "
    "one is answered; a healthy broker gets one",
)
@in_virtual_time
async def test_the_second_connection_is_replaced_until_one_is_answered_and_there_are_never_more_than_two(
    monkeypatch,
):
    serve = Broker(silent, silent, silent, silent, healthy)
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch) as net:
        await net.become_ready(0)
        await until(lambda: serve.open == 1)

        assert broker.connections == 5
        assert net.brokers.lost == 0
    assert serve.most_open <= 3  # a connection that is being closed also counts


@in_virtual_time
async def test_the_first_connection_keeps_its_whole_set_up_time(monkeypatch):
    async def late(peer: Peer) -> None:
        header, _ = await peer.request()
        await asyncio.sleep(6 * SHORT_HEAD_START)
        peer.answer(header, api_versions(metadata=(0, 7)))
        await peer.read_to_end()

    serve = Broker(late, silent)
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch) as net:
        await net.become_ready(0)
        await until(lambda: serve.open == 1)

        assert broker.connections > 2
        assert net.brokers.connection(0).versions.of(ApiKey.METADATA) == 7


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a broker that accepts and stays silent for 1 s gets a second connection, replaced each second until "
    "one is answered; a healthy broker gets one",
)
@in_virtual_time
async def test_only_the_winner_sends_credentials(monkeypatch):
    async def refuses(peer: Peer) -> None:
        await peer.handshake()
        asked.append((await peer.request())[0].api_key)

    asked: list[int] = []
    serve = Broker()
    serve.serves += [serve.hears, serve.hears, refuses]
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "user",
        "sasl_plain_password": "secret",
    }
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch, **settings) as net:
        net.brokers.ready(0)
        await until(lambda: net.brokers.lost)

    assert asked == [ApiKey.SASL_HANDSHAKE]
    assert serve.asked == [[ApiKey.API_VERSIONS], [ApiKey.API_VERSIONS]]


async def test_a_blocked_loop_opens_no_second_connection(monkeypatch):
    async def stalls(peer: Peer) -> None:
        header, _ = await peer.request()
        time.sleep(SHORT_HEAD_START + 2 * connection_race.LATE_TIMER)  # noqa: ASYNC251  # what the user's code may do
        peer.answer(header, api_versions())
        await peer.read_to_end()

    async with ScriptedBroker(stalls) as broker, net_of(broker, monkeypatch) as net:
        await net.become_ready(0)

        assert broker.connections == 1


@in_virtual_time
async def test_a_name_that_resolves_slowly_is_looked_up_once(monkeypatch):
    loop = asyncio.get_running_loop()
    looked_up: list[str] = []

    async def hangs(_loop: object, host: str, port: int) -> list[tuple]:
        looked_up.append(host)
        await asyncio.sleep(6 * SHORT_HEAD_START)
        return await loop.getaddrinfo(HOST, port)

    monkeypatch.setattr("aioproducer.network.dialer._looked_up", hangs)
    async with ScriptedBroker(healthy) as broker, net_of(broker, monkeypatch) as net:
        await net.become_ready(0)

        assert len(looked_up) == 1
        assert broker.connections == 1


@in_virtual_time
async def test_a_failure_of_the_second_connection_is_not_reported(monkeypatch, caplog):
    async def late(peer: Peer) -> None:
        header, _ = await peer.request()
        await asyncio.sleep(6 * SHORT_HEAD_START)
        peer.answer(header, api_versions())
        await peer.read_to_end()

    serve = Broker(late, hangs_up)
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch) as net:
        with caplog.at_level(logging.WARNING):
            await net.become_ready(0)

        assert broker.connections > 2
        assert net.brokers.lost == 0
    assert not caplog.records


@in_virtual_time
async def test_the_attempt_ends_with_the_first_connection(monkeypatch):
    serve = Broker(silent)
    settings = {"request_timeout_ms": 5 * SHORT_HEAD_START * 1000}
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch, **settings) as net:
        net.brokers.ready(0)
        await until(lambda: net.brokers.lost == 1)

        assert isinstance(net.brokers.last_error(0), RequestTimedOutError)
        assert broker.connections >= 2
        await until(lambda: serve.open == 0)


@in_virtual_time
async def test_a_refused_connection_fails_immediately():
    async with Net("127.0.0.1:1") as net:
        net.brokers.update(cluster_of(dead_port()))
        loop = asyncio.get_running_loop()
        began = loop.time()
        net.brokers.ready(0)
        await until(lambda: net.brokers.lost == 1)

        assert loop.time() - began < connection_race.HEAD_START


@in_virtual_time
async def test_closing_while_two_connections_are_tried_leaves_nothing(monkeypatch):
    serve = Broker(silent)
    async with ScriptedBroker(serve) as broker:
        async with net_of(broker, monkeypatch) as net:
            net.brokers.ready(0)
            await until(lambda: broker.connections == 2)
        await until(lambda: serve.open == 0)

    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("aioproducer")]


@in_virtual_time
async def test_an_attempt_that_is_cancelled_again_while_it_stops_leaves_nothing(monkeypatch):
    """The node disappears from the metadata, returns, and disappears again."""
    serve = Broker(silent)
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch) as net:
        net.brokers.ready(0)
        await until(lambda: broker.connections == 2)
        node, task = net.brokers._entries[0].node, net.brokers._entries[0].task
        while not task.done():
            net.brokers._replace({})
            net.brokers._replace({0: node})
            await asyncio.sleep(0)

        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("aioproducer")]
        await until(lambda: serve.open == 0)


async def test_a_second_connection_begins_with_the_next_address(monkeypatch):
    passed_over: list[int] = []
    dial = connection_race.Connection._dial

    async def noting(self):
        passed_over.append(self._attempt.passed_over)
        return await dial(self)

    monkeypatch.setattr(connection_race.Connection, "_dial", noting)
    serve = Broker(silent, silent, healthy)
    async with ScriptedBroker(serve) as broker, net_of(broker, monkeypatch) as net:
        await net.become_ready(0)
        connection = net.brokers.connection(0)

        assert connection is not None
        assert connection.state is ConnectionState.READY
        await asyncio.sleep(0)
        assert not connection.request(MetadataRequest(topics=[]), timeout=LONG).done()
    assert passed_over == [0, 1, 2]


def recovery(outage: float, **settings: object) -> tuple[float, int]:
    """Return the simulated seconds from the end of a half-open broker's silence to the first acknowledgement, and the
    number of failed records."""

    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
            host, _, port = cluster.bootstrap_servers.rpartition(":")
            async with HalfOpenProxy(host, int(port)) as proxy:
                known = {"address_filter": lambda *_: (HOST, proxy.port), **settings}
                async with Producer(f"{HOST}:{proxy.port}", **known) as producer:
                    await producer.send_and_wait("t", b"before")
                    proxy.fall_silent()
                    deliveries = []
                    for _ in range(int(outage)):
                        deliveries.append(await producer.send("t", b"v"))
                        await asyncio.sleep(1)
                    await asyncio.sleep(outage - int(outage))
                    proxy.recover()
                    healed = loop.time()
                    await producer.send_and_wait("t", b"after")
                    took = loop.time() - healed
                    results = await asyncio.gather(*deliveries, return_exceptions=True)
                    return took, sum(isinstance(one, Exception) for one in results)

    return simulate(main)


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "a broker that accepts and stays silent for 1 s gets a second connection, replaced each second until "
    "one is answered; a healthy broker gets one",
)
@pytest.mark.parametrize("outage", [31.2, 36.5, 39.9, 44.4, 58.3, 71.7])
def test_a_half_open_broker_is_used_again_within_two_seconds(outage):
    took, failed = recovery(outage)

    assert took < 2
    assert failed == 0


@pytest.mark.parametrize("outage", [2.1, 3.9, 5.2])
def test_producers_with_short_timeouts_survive_a_half_open_broker(outage):
    took, failed = recovery(outage, request_timeout_ms=2000, delivery_timeout_ms=8000)

    assert took < 2.5
    assert failed == 0


# The program that compares clients


def test_the_comparison_names_each_worst_figure_above_that_of_the_best_peer():
    figures = Figures()
    for client, seconds in {
        "aioproducer": [1.0, 3.0],
        "aiokafka": [2.0, 2.5],
        "confluent-kafka": [9.0],
    }.items():
        figures.seconds["half-open"][client] = seconds
    figures.failed["half-open"]["aioproducer"] = 4

    assert missed(figures, peers=("aiokafka", "confluent-kafka")) == ["half-open: 3.00 s, best peer 2.50 s"]
    assert missed(figures, peers=("confluent-kafka",)) == []
    assert "| half-open | aioproducer | 2 | 3.00 s | 3.00 s | 4 |" in report("title", figures)


def test_a_gap_begins_before_the_fault_and_a_recovery_after_it():
    client = Client("c", None, 2)  # type: ignore[arg-type]  # no process
    client.acks = [[9.0, 9.9, 14.0, 14.1], [9.8, 10.3, 10.5, 14.0]]
    client.failures = [9.5, 10.5]

    assert client.longest_gap(10.0) == pytest.approx(4.1)
    assert client.first_ack(10.0) == pytest.approx(0.3)
    assert client.failed(10.0) == 1
