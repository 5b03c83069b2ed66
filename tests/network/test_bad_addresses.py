"""Addresses without a Kafka broker: the error names the peer that answers instead, and waiting is limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from aioproducer import Producer
from aioproducer.errors import (
    BootstrapError,
    BrokerConnectionError,
    KafkaError,
    NotKafkaError,
    ProtocolError,
)
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS
from tests.support.certificates import server_context
from tests.support.producing import QUICK, assert_nothing_left, error_of, values, within
from tests.support.scripted_broker import Peer, ScriptedBroker, dead_port

SETUP = 60 * MS * 1000


async def failed_start(address: str, patience: float = 250, **settings: Any) -> BootstrapError:
    """Return the error of start() for an address; it must not take much longer than max_block_ms."""
    producer = Producer(
        address,
        **{
            **QUICK,
            "max_block_ms": patience * MS * 1000,
            "socket_connection_setup_timeout_ms": SETUP,
            **settings,
        },
    )
    error = await error_of(producer.start(), seconds=2)
    await assert_nothing_left(producer)
    assert type(error) is BootstrapError
    assert isinstance(error, TimeoutError)
    assert address in str(error)
    return error


@asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    """Run uvicorn with a minimal application."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(application, port=0, lifespan="off", ws="none", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(3):
        while not server.started:  # noqa: ASYNC110  # uvicorn sets no event
            await asyncio.sleep(MS)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def test_the_port_of_a_web_server_is_named_immediately():
    async with web_server() as address:
        error = await within(1, failed_start(address, patience=60_000))

    assert "HTTP" in str(error)
    assert "not of a Kafka broker" in str(error)
    assert type(error.reasons[address]).__mro__[1:3] == (ProtocolError, KafkaError)


def answers(data: bytes) -> Callable[[Peer], Any]:
    async def serve(peer: Peer) -> None:
        await peer.reader.read(1)
        peer.writer.write(data)
        await peer.writer.drain()
        await peer.read_to_end()

    return serve


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ("HTTP", "web server")),
        (b"\x15\x03\x03\x00\x02\x02\x46", ("TLS", "security_protocol")),
        (b"\x16\x03\x01\x00\x05hello", ("TLS", "security_protocol")),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ("'SSH-'", "not the port of a Kafka broker")),
        (b"220 mail.example.com ESMTP\r\n", ("'220 '", "not the port of a Kafka broker")),
        (b"-ERR unknown command\r\n", ("'-ERR'", "not the port of a Kafka broker")),
        (b"\xff" * 64, ("-1 bytes", "Kafka broker")),
        (bytes(64), ("0 bytes", "Kafka broker")),
        (b"\0\0\0\x10" + bytes(4) + b"\xee" * 12, ("ApiVersionsResponse", "Kafka broker")),
    ],
    ids=["HTTP", "TLS alert", "TLS handshake", "SSH", "SMTP", "Redis", "noise", "zeros", "a frame of noise"],
)
async def test_a_peer_that_answers_but_is_not_a_kafka_broker_is_named_immediately(data, words):
    async with ScriptedBroker(answers(data)) as peer:
        error = await within(1, failed_start(peer.address, patience=60_000))

    assert [word for word in words if word not in str(error)] == [], str(error)
    assert isinstance(error.reasons[peer.address], ProtocolError)


async def closes_at_once(peer: Peer) -> None:
    """Close the connection before reading anything: the client sees a reset or the end of the stream."""


async def closes_after_reading(peer: Peer) -> None:
    await peer.reader.read(1000)


async def never_answers(peer: Peer) -> None:
    await peer.read_to_end()


@pytest.mark.parametrize("serve", [closes_at_once, closes_after_reading, never_answers])
async def test_start_fails_in_time_on_a_port_that_closes_the_connection_or_stays_silent(serve):
    async with ScriptedBroker(serve) as peer:
        error = await failed_start(peer.address, patience=1000)

    assert "during the handshake" in str(error)
    assert "security_protocol" in str(error)
    assert isinstance(error.reasons[peer.address], BrokerConnectionError)


@pytest.mark.promise("Coming from other clients", "a port that hung up on every version is checked for TLS")
@pytest.mark.parametrize("wants_certificate", [True, False])
async def test_a_tls_port_is_named_immediately(wants_certificate):
    """OpenSSL closes the connection on plain-text bytes without sending an alert."""

    async def never_called(reader: Any, writer: Any) -> None:
        writer.close()

    context = server_context(wants_certificate=wants_certificate)
    server = await asyncio.start_server(never_called, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        error = await within(1, failed_start(address, patience=60_000))
    finally:
        server.close()
        await server.wait_closed()

    reason = error.reasons[address]
    assert isinstance(reason, NotKafkaError)
    assert reason.peer == "TLS"
    assert "security_protocol to SSL or SASL_SSL" in str(error)


async def test_a_closed_port_and_an_unknown_name_give_different_errors():
    nobody = f"127.0.0.1:{dead_port()}"

    error = await failed_start(nobody)
    assert "refused" in str(error).lower() or "111" in str(error)

    producer = Producer(f"{nobody},no-such-host.invalid:9092", **{**QUICK, "max_block_ms": 250 * MS * 1000})
    both = await error_of(producer.start(), seconds=5)
    assert set(both.reasons) == {nobody, "no-such-host.invalid:9092"}
    assert "can't be resolved" in str(both)
    await assert_nothing_left(producer)


async def test_an_advertised_name_that_is_unknown_here_is_named_by_start_and_send():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        servers = cluster.bootstrap_servers
        cluster.broker(0).host = "kafka.invalid"
        settings = QUICK | {"max_block_ms": 600 * MS * 1000}
        transactional = Producer(servers, transactional_id="x", **settings)
        in_start = await error_of(transactional.start(), seconds=5)
        settings |= {"request_timeout_ms": 400 * MS * 1000, "delivery_timeout_ms": 600 * MS * 1000}
        async with Producer(servers, **settings) as producer:
            in_send = await error_of(producer.send_and_wait("t", b"x"), seconds=5)
        cluster.broker(0).host = "127.0.0.1"

    hint = "the cluster advertises this address to its clients: see advertised.listeners of broker 0"
    assert hint in str(in_start)
    assert hint in str(in_send)
    await assert_nothing_left(transactional)


async def test_one_good_address_among_bad_ones_is_enough():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, ScriptedBroker(answers(b"SSH-2.0-x\r\n")) as ssh:
        addresses = [f"127.0.0.1:{dead_port()}", ssh.address, cluster.bootstrap_servers]
        async with Producer(addresses, **QUICK) as producer:
            await within(3, producer.send_and_wait("t", b"v"))
        assert values(cluster) == [b"v"]
