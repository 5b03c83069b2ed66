"""Address filters: the values that they may return, and the addresses that are rejected without a filter."""

from __future__ import annotations

import gc

import pytest

from aioproducer import DeliveryTimeoutError, Producer
from aioproducer.errors import BrokerConnectionError
from aioproducer.metrics import Metrics
from aioproducer.network.connection import Attempt, Connection
from aioproducer.network.dialer import answers_tls, dial
from aioproducer.protocol.api import ApiKey
from aioproducer.security.addresses import as_address, is_link_local, is_loopback
from aioproducer.testing import EmbeddedCluster
from aioproducer.types import Node
from tests.conftest import MS
from tests.network.test_brokers import cluster_of, echo
from tests.network.test_dialer import resolve
from tests.support.producing import QUICK
from tests.support.scripted_broker import HOST, LONG, Net, Peer, ScriptedBroker, make_config, silence, until


async def refused_by(address_filter, **settings) -> str:
    """Return the reason why this address_filter prevents a connection to node 0, and check that none reached it."""
    async with ScriptedBroker(echo) as broker:
        async with Net("127.0.0.1:1", address_filter=address_filter, **settings) as net:
            net.brokers.update(cluster_of(broker.port))
            net.brokers.ready(0)
            await until(lambda: net.brokers.lost)
            error = net.brokers.last_error(0)
        assert broker.connections == 0
        assert isinstance(error, BrokerConnectionError)
        return error.message


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "anything but None or (host, port) from `address_filter` is an error; link-local addresses are "
    "rejected unless `resolved_address_filter` allows them",
)
@pytest.mark.parametrize(
    "returned",
    [False, True, (), "", "kafka:9092", 0, (None, 9092), ("", 9092), ("kafka", "9092"), ("kafka", 0), ("kafka", True),
     ("kafka", 65536), ("kafka", 9092, 1), ["kafka", 9092], b"kafka"],
    ids=repr,
)  # fmt: skip
async def test_an_invalid_result_is_an_error_that_shows_it(returned):
    why = await refused_by(lambda host, port, node_id: returned)

    assert f"address_filter returned {returned!r}; it must return (host, port), or None" in why


async def test_none_rejects_the_broker():
    assert "address_filter rejected this address" in await refused_by(lambda host, port, node_id: None)


async def test_an_async_address_filter_is_named():
    async def address_filter(host: str, port: int, node_id: int) -> None:
        return None

    why = await refused_by(address_filter)
    gc.collect()  # warnings are errors, so this shows that the coroutine was closed

    assert "address_filter returned a coroutine (use a plain function, not an async one)" in why


def test_an_address_is_a_pair_of_a_host_and_a_port():
    assert as_address(("kafka", 9092)) == ("kafka", 9092)
    assert as_address(("kafka", 65535)) == ("kafka", 65535)
    assert as_address(None) is None


# Resolved addresses


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("169.254.169.254", True),
        ("169.254.0.0", True),
        ("169.253.255.255", False),
        ("169.255.0.0", False),
        ("fe80::1", True),
        ("fe80::1%eth0", True),
        ("febf::1", True),
        ("fec0::1", False),
        ("::ffff:169.254.169.254", True),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a9fe:a9fe", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::a9fe:a9fe", True),
        ("64:ff9b:1::a00:1", False),
        ("2002:a9fe:a9fe::1", True),
        ("2002:a00:1::a9fe:a9fe", False),
        ("2001:db8::a9fe:a9fe", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("10.1.2.3", False),
        ("not an address", False),
    ],
)
def test_link_local_addresses_are_known(address, expected):
    assert is_link_local(address) is expected


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "anything but None or (host, port) from `address_filter` is an error; link-local addresses are "
    "rejected unless `resolved_address_filter` allows them",
)
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("169.254.169.254", "is a link-local address"),
        ("fe80::1", "is a link-local address"),
        ("::ffff:169.254.169.254", "is a link-local address"),
        ("64:ff9b::a9fe:a9fe", "is a link-local address"),
        ("2002:a9fe:a9fe::1", "is a link-local address"),
        ("fd00:ec2::254", "is the address of a cloud's credential server"),
        ("fd00:ec2::23", "is the address of a cloud's credential server"),
        ("fd20:ce::254", "is the address of a cloud's credential server"),
    ],
)
async def test_a_link_local_address_is_refused_and_the_error_names_the_setting(monkeypatch, address, reason):
    async def must_not_open(*_: object) -> None:
        raise AssertionError("a socket is opened")

    monkeypatch.setattr("aioproducer.network.dialer._open", must_not_open)
    resolve(monkeypatch, address)

    with pytest.raises(BrokerConnectionError, match=rf"{reason}; .* resolved_address_filter") as caught:
        await dial("broker.example", 9092, LONG)

    assert f"broker.example:9092: {address}" in str(caught.value)


async def test_other_addresses_of_a_name_with_a_link_local_one_are_used(monkeypatch):
    async with ScriptedBroker(silence) as broker:
        resolve(monkeypatch, "169.254.1.1", HOST)
        wire = await dial("broker.example", broker.port, LONG)
        assert wire.writer.get_extra_info("peername")[0] == HOST
        wire.abort()
        await wire.writer.wait_closed()


async def test_the_filter_receives_each_address_and_alone_decides(monkeypatch):
    asked: list[tuple[str, str, int]] = []

    def address_filter(host: str, address: str, port: int) -> bool:
        asked.append((host, address, port))
        return address == HOST

    async with ScriptedBroker(silence) as broker:
        resolve(monkeypatch, "127.0.0.2", HOST, "169.254.1.1")
        wire = await dial("broker.example", broker.port, LONG, address_filter=address_filter)
        assert wire.writer.get_extra_info("peername")[0] == HOST
        wire.abort()
        await wire.writer.wait_closed()

    assert asked == [
        ("broker.example", address, broker.port) for address in ("127.0.0.2", HOST, "169.254.1.1")
    ]


async def test_the_setting_allows_a_link_local_address(monkeypatch):
    opened: list[str] = []

    async def opening(loop, address, port, make_wire):
        opened.append(address)
        raise ConnectionRefusedError("nobody")

    monkeypatch.setattr("aioproducer.network.dialer._open", opening)
    resolve(monkeypatch, "169.254.1.1")
    with pytest.raises(BrokerConnectionError, match="nobody"):
        await dial("broker.example", 9092, LONG, address_filter=lambda *_: True)

    assert opened == ["169.254.1.1"]


def _raises(*_: object) -> bool:
    raise LookupError("\x1b[31m")


async def _is_async(*_: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("address_filter", "told"),
    [
        (lambda *_: False, "resolved_address_filter rejected 127.0.0.1"),
        (
            lambda *_: None,
            "resolved_address_filter returned None for 127.0.0.1; it must return True or False",
        ),
        (lambda *_: ("127.0.0.1", 1), "it must return True or False"),
        (_raises, "resolved_address_filter raised LookupError"),
        (_is_async, "returned a coroutine (use a plain function, not an async one)"),
    ],
)
async def test_a_rejection_of_resolved_addresses_gives_the_reason(address_filter, told):
    async with ScriptedBroker(silence) as broker:
        with pytest.raises(BrokerConnectionError) as caught:
            await dial(HOST, broker.port, LONG, address_filter=address_filter)
        gc.collect()

        assert broker.connections == 0
    assert told in str(caught.value)
    assert "\x1b" not in str(caught.value)


async def test_the_setting_reaches_bootstrap_servers_and_brokers():
    asked: set[tuple[str, str, int]] = set()

    def resolved_address_filter(host: str, address: str, port: int) -> bool:
        asked.add((host, address, port))
        return address == HOST

    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        servers = cluster.bootstrap_servers
        port = int(servers.partition(":")[2])
        cluster.broker(0).host = "localhost"  # advertised in metadata from now on
        async with Producer(servers, resolved_address_filter=resolved_address_filter) as producer:
            await producer.send_and_wait("t", b"v")

    assert (HOST, HOST, port) in asked
    assert ("localhost", HOST, port) in asked


async def test_an_advertised_broker_that_the_setting_rejects_gets_no_records():
    settings = {**QUICK, "request_timeout_ms": 400 * MS * 1000, "delivery_timeout_ms": 600 * MS * 1000}
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        servers = cluster.bootstrap_servers
        cluster.broker(0).host = "localhost"
        settings["resolved_address_filter"] = lambda host, address, port: host != "localhost"
        async with Producer(servers, **settings) as producer:
            with pytest.raises(DeliveryTimeoutError, match="resolved_address_filter rejected"):
                await producer.send_and_wait("t", b"v")

        assert cluster.requests_of(ApiKey.PRODUCE) == []


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_probe_for_tls_opens_no_socket_that_the_filter_rejects(allowed):
    async def answer_like_tls(peer: Peer) -> None:
        await peer.reader.read(1)
        peer.writer.write(b"\x16\x03\x03\x00\x02\x02\x46")
        await silence(peer)

    async with ScriptedBroker(answer_like_tls) as broker:
        assert await answers_tls(HOST, broker.port, LONG, None, lambda *_: allowed, 0) is allowed

        assert broker.connections == int(allowed)


async def test_a_port_that_hangs_up_is_probed_for_tls_only_with_the_filters_consent():
    asked = 0

    def once(host: str, address: str, port: int) -> bool:
        nonlocal asked
        asked += 1
        return asked == 1

    async def hang_up(peer: Peer) -> None:
        await peer.reader.read(1)

    async with ScriptedBroker(hang_up) as broker:
        connection = Connection(
            Node(1, HOST, broker.port),
            make_config(resolved_address_filter=once),
            Attempt(first_asked=0),
            on_change=lambda _: None,
            metrics=Metrics(),
        )
        with pytest.raises(BrokerConnectionError):
            await connection.connect()

        assert (asked, broker.connections) == (2, 1)


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("kafka", False),
    ],
)
def test_the_machine_itself_is_recognised(host, is_own):
    assert is_loopback(host) == is_own
