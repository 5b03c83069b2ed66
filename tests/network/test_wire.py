"""The wire, with and without TLS: all bytes arrive, in order, and the wire knows how many were sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from aioproducer.network.dialer import dial
from aioproducer.network.wire import AT_ONCE, TLS_RECORD, TlsWire, Wire
from aioproducer.security.tls import make_context
from tests.conftest import MS
from tests.support.certificates import HOST, authority_pem, server_context
from tests.support.scripted_broker import LONG, make_config, until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


def client_context(**settings: object) -> ssl.SSLContext:
    return make_context(
        make_config("h:1", security_protocol="SSL", ssl_truststore_certificates=authority_pem(), **settings)
    )


@asynccontextmanager
async def server(serve: Serve, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Yield a port on which `serve` handles each connection, with TLS if a context is given."""
    tasks = []
    errors = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        except Exception as error:
            errors.append(error)
        finally:
            await _gone(writer)

    listening = await asyncio.start_server(accept, HOST, 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()
        assert not errors, errors


async def _gone(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def opened(port: int, **settings: object) -> TlsWire:
    """Yield the client's end, before the handshake."""
    make_wire = partial(TlsWire, context=client_context(**settings), server_name=HOST)
    wire = await dial(HOST, port, LONG, make_wire=make_wire)
    assert isinstance(wire, TlsWire)
    return wire


async def closed(wire: Wire) -> None:
    wire.abort()
    with contextlib.suppress(OSError):
        await wire.writer.wait_closed()


@asynccontextmanager
async def connected(serve: Serve, **settings: object) -> AsyncIterator[TlsWire]:
    """Yield the client's end, after the handshake."""
    async with server(serve, server_context()) as port:
        wire = await opened(port, **settings)
        try:
            await asyncio.wait_for(wire.shake_hands(), LONG)
            yield wire
        finally:
            await closed(wire)


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()
    await asyncio.Event().wait()


@pytest.mark.parametrize("protocols", ["TLSv1.2", "TLSv1.3"])
async def test_segments_of_any_size_arrive_whole_and_in_order_both_ways(protocols):
    chance = random.Random(protocols)
    sizes = [0, 1, 7, 4096, TLS_RECORD - 1, TLS_RECORD, TLS_RECORD + 1, 65536, 300_000, 1_500_000]
    pieces = [chance.randbytes(chance.choice(sizes)) for _ in range(40)]
    total = b"".join(pieces)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(total)))
        await writer.drain()
        await reader.read()

    async with connected(echo, ssl_enabled_protocols=protocols) as wire:
        for start in range(0, len(pieces), 4):
            four = [memoryview(piece) if len(piece) % 2 else piece for piece in pieces[start : start + 4]]
            assert wire.write(four) == sum(map(len, four))
        assert wire.written == len(total)
        assert await asyncio.wait_for(wire.reader.readexactly(len(total)), LONG) == total
        await until(lambda: wire.unsent == 0)
        assert wire.left == wire.written


async def test_held_back_segments_go_out_together_at_the_uncork():
    got = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.readexactly(6))

    async with connected(serve) as wire:
        wire.is_corked = True
        wire.write([b"ab"])
        wire.write([b"cd", b"ef"])
        assert (wire.unsent, wire.left, wire.written) == (6, 0, 6)
        wire.uncork()
        assert await asyncio.wait_for(got, LONG) == b"abcdef"
        assert wire.left == 6


@pytest.mark.promise("Security", "over TLS, too, NOT_PERSISTED is reported only for records that never left")
async def test_writes_entirely_in_the_transport_count_as_unsent_and_sent_ones_never_do():
    async with connected(read_nothing) as wire:
        starts = []
        while wire.unsent < 4_000_000:
            starts.append(wire.written)
            wire.write([bytes(200_000)])
            await asyncio.sleep(0)
        size = wire.written

        # TLS adds bytes, so subtracting the unsent bytes would give a value that is too low.
        assert wire.left in starts
        assert wire.left > size - wire.unsent
        assert size - 200_000 >= wire.left > 0


@pytest.mark.promise("Records", "a large request is written, and encrypted, 4 MiB in each turn of the loop")
async def test_on_drained_is_called_when_everything_has_been_sent():
    may_read = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await may_read.wait()
        writer.transport.resume_reading()
        while await reader.read(65536):
            pass

    async with connected(serve) as wire:
        drained = asyncio.Event()
        wire._on_drained = drained.set
        wire.write([bytes(16_000_000)])
        await asyncio.sleep(20 * MS)
        assert wire.unsent > 0
        assert not drained.is_set()

        may_read.set()
        await asyncio.wait_for(drained.wait(), LONG)
        assert wire.unsent == 0
        assert wire.left == wire.written == 16_000_000


class TakesEverything(asyncio.WriteTransport):
    """A transport that accepts all bytes immediately, so that it is never paused."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def is_closing(self) -> bool:
        return False


@pytest.mark.promise("Records", "a large request is written, and encrypted, 4 MiB in each turn of the loop")
async def test_a_large_write_takes_several_turns_and_later_writes_follow_it():
    transport = TakesEverything()
    drained = asyncio.Event()
    wire = Wire(asyncio.get_running_loop(), drained.set)
    wire.connection_made(transport)
    large = random.Random(1).randbytes(2 * AT_ONCE + 5)

    wire.write([b"first"])
    wire.write([b"header", memoryview(large)])
    wire.write([b"last"])

    assert wire.left <= len("first") + AT_ONCE
    assert wire.unsent == wire.written - wire.left
    assert not drained.is_set()
    await asyncio.wait_for(drained.wait(), LONG)
    assert b"".join(transport.pieces) == b"firstheader" + large + b"last"
    assert (wire.left, wire.unsent) == (wire.written, 0)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_segments_are_passed_to_the_kernel_together_and_the_rest_follows(is_slow, monkeypatch):
    """The test simulates an asyncio whose `writelines` would copy the segments."""
    taken = []
    writev = os.writev

    def noted(descriptor: int, segments: list[bytes | memoryview]) -> int:
        taken.append((writev(descriptor, segments), sum(map(len, segments))))
        return taken[-1][0]

    monkeypatch.setattr(os, "writev", noted)
    monkeypatch.setattr("aioproducer.network.wire._takes_segments", lambda loop: False)
    parts = [
        random.Random(number).randbytes(size) for number, size in enumerate([20, 100_000, 0, 61, 300_000])
    ]
    may_read = asyncio.Event()
    come = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_slow:
            writer.transport.pause_reading()
            await may_read.wait()
            writer.transport.resume_reading()
        come.set_result(await reader.readexactly(2 * sum(map(len, parts))))

    async with server(serve, None) as port:
        wire = await dial(HOST, port, LONG)
        sending = wire.writer.get_extra_info("socket")
        if is_slow:
            sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        wire.write([*parts])
        wire.write([parts[0], memoryview(parts[1]), *parts[2:]])
        assert (wire.unsent > 0) is is_slow
        may_read.set()

        assert await asyncio.wait_for(come, LONG) == b"".join(2 * parts)

        await until(lambda: not wire.unsent)
        assert wire.left == wire.written
        await closed(wire)
    size = sum(map(len, parts))
    assert taken[0][1] == size
    if is_slow:
        assert taken[0][0] < size
        assert len(taken) == 1, "nothing may overtake the bytes in the transport"
    else:
        assert taken == [(size, size)] * 2


async def test_segments_for_a_peer_that_is_gone_break_the_connection_as_usual(monkeypatch):
    monkeypatch.setattr("aioproducer.network.wire._takes_segments", lambda loop: False)
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        gone.set()

    async with server(serve, None) as port:
        wire = await dial(HOST, port, LONG)
        await gone.wait()
        wire.write([b"a" * 100, b"b" * 100_000])
        wire.write([b"c", b"d"])

        await until(wire.is_closing)
        await closed(wire)


async def test_the_kernel_reports_an_error_once_and_that_error_is_raised(monkeypatch):
    monkeypatch.setattr("aioproducer.network.wire._takes_segments", lambda loop: False)
    with socket.create_server((HOST, 0)) as listening:
        wire = await dial(HOST, listening.getsockname()[1], LONG)
        peer, _ = listening.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

        # The peer closed the connection in this turn of the loop, so the error has not been read yet.
        wire.write([b"a" * 100, b"b" * 100_000])

        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(wire.reader.read(1), LONG)
        await closed(wire)


async def test_a_close_notify_ends_the_stream_and_later_bytes_are_ignored():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"last words")
        writer.close()
        await writer.wait_closed()

    async with connected(serve) as wire:
        assert await asyncio.wait_for(wire.reader.read(-1), LONG) == b"last words"
        assert wire.reader.at_eof()


async def test_bytes_that_are_not_tls_end_the_connection_with_an_error():
    relayed = asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An attacker in the middle forwards the handshake and then inserts a record.
        inner_reader, inner_writer = await asyncio.open_connection(HOST, inner_port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)

        back = asyncio.create_task(pump(inner_reader, writer))
        forth = asyncio.create_task(pump(reader, inner_writer))
        await relayed.wait()
        writer.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        try:
            await asyncio.wait([back, forth])
        finally:
            back.cancel()
            forth.cancel()
            await asyncio.wait([back, forth])
            await _gone(inner_writer)

    async with (
        server(lambda reader, writer: reader.read(), server_context()) as inner_port,
        server(relay, None) as port,
    ):
        wire = await opened(port)
        await asyncio.wait_for(wire.shake_hands(), LONG)
        relayed.set()
        with pytest.raises(ssl.SSLError):
            await asyncio.wait_for(wire.reader.read(1), LONG)
        assert wire.is_closing()
        wire.write([b"nobody reads it"])
        await closed(wire)


async def test_bytes_that_arrive_before_the_handshake_are_not_treated_as_decrypted():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04evil")
        await reader.read()

    async with server(serve, None) as port:
        wire = await opened(port)
        await asyncio.sleep(20 * MS)
        with pytest.raises(ssl.SSLError):
            await asyncio.wait_for(wire.shake_hands(), LONG)
        assert wire.reader._buffer == b""
        await closed(wire)


@pytest.mark.parametrize("when", ["before", "during", "reset"])
async def test_a_peer_that_closes_around_the_handshake_is_an_error(when):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if when != "before":
            await reader.read(1)
        if when == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async with server(serve, None) as port:
        wire = await opened(port)
        if when == "before":
            await until(lambda: wire.is_closing() or wire.reader.at_eof())
        with pytest.raises(OSError, match=r"handshake|lost|reset|Broken"):
            await asyncio.wait_for(wire.shake_hands(), LONG)
        await closed(wire)


async def test_cancelling_a_handshake_leaves_nothing_open():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # never answers

    async with server(serve, None) as port:
        wire = await opened(port)
        task = asyncio.create_task(wire.shake_hands())
        await asyncio.sleep(5 * MS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await closed(wire)


@pytest.mark.parametrize("name", ["", ".example", "a" * 70 + ".example"])
async def test_a_name_that_no_certificate_can_contain_is_rejected(name):
    with pytest.raises(ValueError, match=r"."):
        TlsWire(asyncio.get_running_loop(), client_context(), name)


async def test_a_listener_gets_earlier_bytes_first_and_then_each_piece_immediately():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"early")
        await reader.readexactly(1)
        writer.write(b"late")
        await reader.read()

    got: list[bytes] = []
    async with connected(serve) as wire:
        await until(lambda: bool(wire.reader._buffer))

        wire.listen(got.append)
        assert got == [b"early"]
        wire.write([b"?"])
        await until(lambda: len(got) == 2)

        assert got == [b"early", b"late"]
        assert not wire.reader._buffer
