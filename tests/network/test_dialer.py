"""The race of a host name's addresses, and its possible results."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from aioproducer.concurrency.tasks import new_task
from aioproducer.errors import BrokerConnectionError
from aioproducer.network import dialer
from aioproducer.network.dialer import dial
from tests.support.scripted_broker import HOST, LONG, Net, Peer, ScriptedBroker, silence


def resolve(monkeypatch, *addresses: str) -> list[str]:
    """Make every name resolve to these addresses; return the list of names that were looked up."""
    asked = []
    loop = asyncio.get_running_loop()
    original = loop.getaddrinfo

    async def getaddrinfo(host, port, **keywords):
        if host in addresses:
            return await original(host, port, **keywords)
        asked.append(host)
        family = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [
            (family[index], socket.SOCK_STREAM, 6, "", (address, port))
            for index, address in enumerate(addresses)
        ]

    _patch_loop(monkeypatch, loop, "getaddrinfo", getaddrinfo)
    return asked


def _patch_loop(monkeypatch, loop, name, function) -> None:
    """Replace the loop with an object that has this function and delegates the rest: uvloop's loop can't be patched."""

    class Loop:
        def __getattr__(self, attribute):
            return function if attribute == name else getattr(loop, attribute)

    stand_in = type("asyncio", (), {"__getattr__": lambda _, attribute: getattr(asyncio, attribute)})()
    stand_in.get_running_loop = lambda: Loop()
    monkeypatch.setattr(dialer, "asyncio", stand_in)
    monkeypatch.setattr(dialer, "new_task", lambda _, attempt, name: new_task(loop, attempt, name))


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "all addresses of a broker are tried, and after a failed set-up the next one comes first, since an "
    "address that accepts may be unusable",
)
@pytest.mark.parametrize("dead", ["127.0.0.2", "::1"])
async def test_a_dead_address_is_skipped_for_the_next_one(monkeypatch, dead):
    async with ScriptedBroker(silence) as broker:
        asked = resolve(monkeypatch, dead, HOST)
        wire = await dial("broker.example", broker.port, LONG)
        assert wire.writer.get_extra_info("peername")[0] == HOST
        wire.abort()
        await wire.writer.wait_closed()

    assert asked == ["broker.example"]


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "all addresses of a broker are tried, and after a failed set-up the next one comes first, since an "
    "address that accepts may be unusable",
)
async def test_when_all_addresses_are_dead_each_is_named(monkeypatch):
    resolve(monkeypatch, "127.0.0.2", "127.0.0.3")

    with pytest.raises(BrokerConnectionError, match=r"broker\.example:1: .*127\.0\.0\.2.*127\.0\.0\.3"):
        await dial("broker.example", 1, LONG)


@pytest.mark.promise("Accumulator, sender, connections", "connects by happy eyeballs (RFC 8305)")
async def test_the_next_address_is_tried_in_parallel_after_a_quarter_second(monkeypatch):
    opened = []

    async def slow_first(loop, address, port, make_wire):
        opened.append((address, loop.time()))
        if address == "10.0.0.1":
            await asyncio.Event().wait()
        return await original(loop, address, port, make_wire)

    original = dialer._open
    monkeypatch.setattr(dialer, "_open", slow_first)
    async with ScriptedBroker(silence) as broker:
        resolve(monkeypatch, "10.0.0.1", HOST)
        wire = await dial("broker.example", broker.port, LONG)
        wire.abort()
        await wire.writer.wait_closed()

    (first, began), (second, after) = opened
    assert (first, second) == ("10.0.0.1", HOST)
    assert 0.2 < after - began < 2


@pytest.mark.promise("Accumulator, sender, connections", "connects by happy eyeballs (RFC 8305)")
async def test_an_address_that_loses_the_race_is_closed(monkeypatch):
    both = asyncio.Event()
    opened = []

    async def together(loop, address, port, make_wire):
        wire = await original(loop, HOST, port, make_wire)
        opened.append(wire)
        if len(opened) == 2:
            both.set()
        await both.wait()
        return wire

    original = dialer._open
    monkeypatch.setattr(dialer, "_open", together)
    monkeypatch.setattr(dialer, "ATTEMPT_DELAY", 0.001)
    async with ScriptedBroker(silence) as broker:
        resolve(monkeypatch, "10.0.0.1", "10.0.0.2")
        wire = await dial("broker.example", broker.port, LONG)
        loser = next(one for one in opened if one is not wire)
        assert not wire.writer.is_closing()
        assert loser.writer.is_closing()
        for one in opened:
            one.abort()
            await one.writer.wait_closed()


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "all addresses of a broker are tried, and after a failed set-up the next one comes first, since an "
    "address that accepts may be unusable",
)
async def test_addresses_are_tried_once_each_and_families_take_turns(monkeypatch):
    opened = []

    async def fail(_, address, port, make_wire):
        opened.append(address)
        raise OSError("no")

    monkeypatch.setattr("aioproducer.network.dialer._open", fail)
    resolve(monkeypatch, "::1", "::2", "::1", "10.0.0.1", "10.0.0.2")
    with pytest.raises(BrokerConnectionError):
        await dial("broker.example", 1, LONG)

    assert opened == ["::1", "10.0.0.1", "::2", "10.0.0.2"]


async def test_the_first_addresses_are_tried_last_on_request(monkeypatch):
    opened = []

    async def fail(_, address, port, make_wire):
        opened.append(address)
        raise OSError("no")

    monkeypatch.setattr("aioproducer.network.dialer._open", fail)
    resolve(monkeypatch, "10.0.0.1", "10.0.0.2", "10.0.0.3")
    with pytest.raises(BrokerConnectionError):
        await dial("broker.example", 1, LONG, passed_over=5)

    assert opened == ["10.0.0.3", "10.0.0.1", "10.0.0.2"]


async def _hang_up(_: Peer) -> None:
    pass


async def _shake_hands(peer: Peer) -> None:
    await peer.handshake()
    await peer.read_to_end()


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "all addresses of a broker are tried, and after a failed set-up the next one comes first, since an "
    "address that accepts may be unusable",
)
@pytest.mark.parametrize("useless", [_hang_up, silence])
async def test_an_address_that_accepts_but_is_unusable_is_skipped_for_the_next_one(monkeypatch, useless):
    async with ScriptedBroker(useless) as first, ScriptedBroker(_shake_hands) as second:
        ports = {"10.0.0.1": first.port, "10.0.0.2": second.port}

        async def redirected(loop, address, port, make_wire):
            return await original(loop, HOST, ports[address], make_wire)

        original = dialer._open
        monkeypatch.setattr(dialer, "_open", redirected)
        resolve(monkeypatch, *ports)
        async with Net("broker.example:9092", socket_connection_setup_timeout_ms=500) as net:
            await net.become_ready(-1)

        assert first.connections >= 1


async def test_a_name_that_does_not_exist_is_reported(monkeypatch):
    async def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    _patch_loop(monkeypatch, asyncio.get_running_loop(), "getaddrinfo", unknown)

    with pytest.raises(BrokerConnectionError, match="no-such-host:9092: the name can't be resolved: Name"):
        await dial("no-such-host", 9092, LONG)


async def test_a_name_is_resolved_even_if_threads_no_longer_accept_work():
    with ThreadPoolExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)

    async with ScriptedBroker(silence) as broker:
        wire = await dial("localhost", broker.port, LONG)
        wire.abort()
        await wire.writer.wait_closed()


@pytest.mark.promise(
    "Rules of Kafka's producer", "a connection's states are a table, each step is bounded by the set-up time"
)
async def test_name_resolution_is_limited_by_the_set_up_time(monkeypatch):
    async def slow(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    _patch_loop(monkeypatch, asyncio.get_running_loop(), "getaddrinfo", slow)

    with pytest.raises(BrokerConnectionError, match=r"no connection within 0\.02 s"):
        await dial("broker.example", 9092, 0.02)


async def test_cancelling_a_race_leaves_nothing_open(monkeypatch):
    started = asyncio.Event()

    async def hang(*_: object) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("aioproducer.network.dialer._open", hang)
    resolve(monkeypatch, "10.0.0.1", "10.0.0.2")
    task = asyncio.create_task(dial("broker.example", 1, LONG))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
