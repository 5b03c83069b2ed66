"""The broker's side of TLS on a stream that is already open, over a pair of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from aioproducer.testing.embedded.tls_streams import TlsReader, TlsWriter, secured
from tests.support.certificates import authority_pem, client_certificate, server_context
from tests.support.raw_client import TIMEOUT

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[Streams, socket.socket]]:
    """The server's streams, and the client's socket."""
    here, there = socket.socketpair()
    for one in (here, there):
        one.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=here)
    try:
        async with asyncio.timeout(TIMEOUT):
            yield (reader, writer), there
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        there.close()


@contextlib.asynccontextmanager
async def connected(
    *, wants_certificate: bool = False, certificate: bool = False
) -> AsyncIterator[tuple[TlsReader, TlsWriter, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Both ends after the handshake: the server's, then the client's."""
    context = ssl.create_default_context(cadata=authority_pem())
    if certificate:
        client_certificate("alice").configure_cert(context)
    async with pair() as (streams, there):
        (reader, writer), (client_reader, client_writer) = await asyncio.gather(
            secured(server_context(wants_certificate=wants_certificate), *streams),
            asyncio.open_connection(sock=there, ssl=context, server_hostname="localhost"),
        )
        try:
            yield reader, writer, client_reader, client_writer
        finally:
            writer.close()  # before the client, which waits for our close_notify
            client_writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await client_writer.wait_closed()


async def test_bytes_pass_unchanged_in_both_directions_and_in_portions_of_any_size():
    sent = bytes(range(256)) * 1000  # longer than a TLS record, and than one read
    async with connected() as (reader, writer, client_reader, client_writer):
        client_writer.write(sent)
        portions = [await reader.readexactly(size) for size in (1, 0, 99_999, len(sent) - 100_000)]
        writer.write(memoryview(sent))
        writer.write(b"ab")
        writer.write(memoryview(b"cd"))
        await writer.drain()

        assert b"".join(portions) == sent
        assert await client_reader.readexactly(len(sent) + 4) == sent + b"abcd"


async def test_the_end_of_the_stream_within_a_request_is_an_incomplete_read():
    async with connected() as (reader, _, _, client_writer):
        client_writer.write(b"half")
        client_writer.close()

        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await reader.readexactly(8)

        assert (caught.value.partial, caught.value.expected) == (b"half", 8)


async def test_closing_sends_close_notify():
    context = ssl.create_default_context(cadata=authority_pem())

    def read_to_the_end(there: socket.socket) -> list[bytes]:
        """Read everything; fail if the stream ends without close_notify, which asyncio's client would not notice."""
        there.settimeout(TIMEOUT)
        with context.wrap_socket(there, server_hostname="localhost", suppress_ragged_eofs=False) as tls:
            return [tls.recv(100), tls.recv(100)]

    async with pair() as (streams, there):
        reading = asyncio.create_task(asyncio.to_thread(read_to_the_end, there))
        _, writer = await secured(server_context(), *streams)
        writer.write(b"last")
        writer.close()
        writer.close()  # a second call changes nothing

        assert await reading == [b"last", b""]


async def test_get_extra_info_returns_the_certificate_from_tls_and_the_rest_from_the_socket():
    async with connected(wants_certificate=True, certificate=True) as (_, writer, *_):
        subject = dict(pair for part in writer.get_extra_info("peercert")["subject"] for pair in part)
        assert subject["commonName"] == "alice"
        assert writer.get_extra_info("socket").family == socket.AF_UNIX
    async with connected() as (_, writer, *_):
        assert not writer.get_extra_info("peercert")


async def test_a_client_that_disconnects_during_the_handshake_is_a_lost_connection():
    async with pair() as (streams, there):
        there.send(b"\x16\x03\x01\x02\x00\x01")
        there.close()

        with pytest.raises(ConnectionResetError, match="during the TLS handshake"):
            await secured(server_context(), *streams)


async def test_a_client_gets_the_alert_with_the_reason_why_its_handshake_failed():
    offer, answer = ssl.MemoryBIO(), ssl.MemoryBIO()
    old = ssl.create_default_context(cadata=authority_pem())
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLWantReadError):
        old.wrap_bio(answer, offer, server_hostname="localhost").do_handshake()
    new = server_context()
    new.minimum_version = ssl.TLSVersion.TLSv1_3
    async with pair() as ((reader, writer), there):
        there.send(offer.read())

        with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
            await secured(new, reader, writer)
        await writer.drain()

        alert = await asyncio.get_running_loop().sock_recv(there, 100)
        assert (alert[0], alert[-2:]) == (21, b"\x02F"), "not the fatal alert protocol_version"


async def test_a_client_without_tls_is_rejected():
    async with pair() as (streams, there):
        there.send(b"\x00\x00\x00\x10 this is a Kafka request")

        with pytest.raises(ssl.SSLError):
            await secured(server_context(), *streams)
