"""Opens the socket to a broker: every address of the name, raced, as streams.

The one seam where bytes enter and leave the process. uvloop's `create_connection` has no
`happy_eyeballs_delay`, so the race (RFC 8305) is run here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from aioproducer.errors import BrokerConnectionError

ATTEMPT_DELAY = 0.25
"""Seconds that one address has before the next one is tried beside it (RFC 8305, 5)."""

LONE_SEGMENT = 64 * 1024
"""Bytes from which on a segment is written by itself where the transport would copy it."""


class Wire(asyncio.StreamReaderProtocol):
    """The streams of one socket: bytes in, segments out, and word of when all of them have left."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reader = asyncio.StreamReader(loop=loop)
        super().__init__(self.reader, loop=loop)
        self.writer: asyncio.StreamWriter
        self.written = 0
        """Bytes handed to the transport so far."""
        self.on_drained: Callable[[], None] = _nothing
        self._event_loop = loop
        self._out: asyncio.WriteTransport
        self._takes_segments = _takes_segments(loop)
        self._held: list[bytes | memoryview] | None = None
        self._held_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._out = cast(asyncio.WriteTransport, transport)
        # With both marks at 0, resume_writing means that the transport holds no byte of ours any more.
        self._out.set_write_buffer_limits(high=0, low=0)

    def open_writer(self) -> None:
        """Complete the streams. Not earlier: a cancelled attempt would leave a writer that nobody closes."""
        self.writer = asyncio.StreamWriter(self._out, self, self.reader, self._event_loop)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.on_drained()

    @property
    def unsent(self) -> int:
        """Bytes that have not left for the kernel."""
        return self._held_size + self._out.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        """The transport lost its socket: it drops what is written, or (uvloop) raises. The reader hears of it later."""
        return self._out.is_closing()

    def write(self, segments: list[bytes | memoryview]) -> int:
        """Hand the segments to the transport and return their size. They must not change afterwards."""
        size = sum(map(len, segments))
        self.written += size
        if self._held is None:
            self._hand_over(segments)
        else:
            self._held += segments
            self._held_size += size
        return size

    def cork(self) -> None:
        """Hold back what is written until `uncork`, so that several requests cost one system call."""
        self._held = []

    def uncork(self) -> None:
        """Write what was held back. A transport that has lost its socket would drop it, or raise."""
        held, self._held, self._held_size = self._held, None, 0
        if held and not self.is_closing:
            self._hand_over(held)

    def _hand_over(self, segments: list[bytes | memoryview]) -> None:
        transport = self._out
        if len(segments) == 1:
            transport.write(segments[0])
        elif self._takes_segments:
            transport.writelines(segments)
        else:
            small: list[bytes | memoryview] = []
            for segment in segments:
                if len(segment) < LONE_SEGMENT:
                    small.append(segment)
                    continue
                if small:
                    transport.write(b"".join(small))
                    small.clear()
                transport.write(segment)
            if small:
                transport.write(b"".join(small))

    def abort(self) -> None:
        """Drop the socket and what was not sent."""
        self._out.abort()


def _nothing() -> None:
    """Nobody listens yet."""


async def dial(host: str, port: int, timeout: float) -> Wire:
    """Connect to whichever address of `host` answers first, within `timeout` seconds, name lookup included.

    The addresses are tried in the resolver's order, families taking turns, each with a head start on the
    next. Cancelling it leaves nothing open.

    Raises:
        BrokerConnectionError: no address answered; the text says of each why.
    """
    loop = asyncio.get_running_loop()
    where = f"{host}:{port}"
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            addresses = _interleaved(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            if not addresses:
                raise OSError("the name has no address")
            return await _race(loop, addresses, port)
    except socket.gaierror as error:
        message = f"{where}: the name can't be resolved: {error.strerror or error}"
        raise BrokerConnectionError(message, written=False) from error
    except (OSError, UnicodeError) as error:
        reason = str(error) or type(error).__name__
        if limit.expired():
            reason = f"no connection within {timeout:g} s"
        raise BrokerConnectionError(f"{where}: {reason}", written=False) from error


def _interleaved(found: list[tuple[Any, ...]]) -> list[str]:
    """The addresses without repetition, the resolver's first family and the others in turns (RFC 8305, 4)."""
    families: dict[int, deque[str]] = {}
    for family, _, _, _, address in found:
        if family in (socket.AF_INET, socket.AF_INET6):
            queue = families.setdefault(family, deque())
            if _text(address) not in queue:
                queue.append(_text(address))
    addresses = []
    while any(families.values()):
        addresses += [queue.popleft() for queue in families.values() if queue]
    return addresses


def _text(address: tuple[Any, ...]) -> str:
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{scope}" if scope and "%" not in address[0] else str(address[0])


async def _race(loop: asyncio.AbstractEventLoop, addresses: list[str], port: int) -> Wire:
    if len(addresses) == 1:
        return await _open(loop, addresses[0], port)
    waiting = deque(addresses)
    attempts: dict[asyncio.Task[Wire], str] = {}
    winner: asyncio.Task[Wire] | None = None
    try:
        running: list[asyncio.Task[Wire]] = []
        while winner is None and (waiting or running):
            if waiting:
                address = waiting.popleft()
                attempt = loop.create_task(
                    _open(loop, address, port), name=f"aioproducer dial {address}:{port}"
                )
                attempts[attempt] = address
            running = [attempt for attempt in attempts if not attempt.done()]
            await asyncio.wait(
                running, timeout=ATTEMPT_DELAY if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            winner = next(
                (attempt for attempt in running if attempt.done() and not attempt.exception()), None
            )
            running = [attempt for attempt in running if not attempt.done()]
        await _discard(attempts, winner)
    except BaseException:
        await _discard(attempts, None)
        raise
    if winner is None:
        why = "; ".join(f"{address}: {attempt.exception()}" for attempt, address in attempts.items())
        raise OSError(f"no address answers ({why})")
    return winner.result()


async def _discard(attempts: dict[asyncio.Task[Wire], str], winner: asyncio.Task[Wire] | None) -> None:
    """Stop the attempts that lost; one that got through all the same is closed."""
    losers = [attempt for attempt in attempts if attempt is not winner]
    for attempt in losers:
        attempt.cancel()
        attempt.add_done_callback(_abandon)
    if losers:
        await asyncio.wait(losers)


def _abandon(attempt: asyncio.Task[Wire]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort()


async def _open(loop: asyncio.AbstractEventLoop, address: str, port: int) -> Wire:
    _, wire = await loop.create_connection(lambda: Wire(loop), address, port)
    wire.open_writer()
    _keep_alive(wire.writer.get_extra_info("socket"))
    return wire


def _keep_alive(sock: socket.socket | None) -> None:
    """Notice within some minutes that a silent peer is gone, also while nothing is in flight."""
    if sock is None:
        return
    options = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    with contextlib.suppress(OSError, ValueError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _takes_segments(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether `writelines` takes segments to the kernel without joining them.

    asyncio does so from 3.12 on, but forgot to pause the protocol before 3.12.9 and 3.13.2 (CVE-2024-12254).
    """
    if type(loop).__module__.partition(".")[0] == "uvloop":
        return True
    version = sys.version_info[:3]
    return version >= (3, 13, 2) or (3, 12, 9) <= version < (3, 13)
