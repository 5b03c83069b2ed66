"""The streams of one socket: bytes in, segments out, and word of when all of them have left.

TLS is pumped here through an SSLObject: asyncio's own layer keeps a second buffer, and can't say which bytes of
which request have left."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import cast

LONE_SEGMENT = 64 * 1024
"""Bytes from which on a segment is written by itself where the transport would copy it."""

MOST_SEGMENTS = 1024
"""That the kernel takes in one call: IOV_MAX."""

AT_ONCE = 4 * 1024 * 1024
"""Bytes that one turn of the loop writes, since a transport copies, or TLS encrypts, what the kernel does not take;
several times what a socket buffers."""

TLS_RECORD = 16 * 1024
"""Bytes; the most that one TLS record can hold."""


class Wire(asyncio.StreamReaderProtocol):
    """The streams of one socket: bytes in, segments out, and word of when all of them have left."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reader = asyncio.StreamReader(loop=loop)
        super().__init__(self.reader, loop=loop)
        self.writer: asyncio.StreamWriter
        self.written = 0
        """Bytes of all segments so far."""
        self.on_drained: Callable[[], None] = _nothing
        self._on_data: Callable[[bytes], None] = self.reader.feed_data
        self._event_loop = loop
        self._out: asyncio.WriteTransport
        self._takes_segments = _takes_segments(loop)
        self._held: list[bytes | memoryview] | None = None
        self._backlog: deque[bytes | memoryview] = deque()
        """What is left of something large, to be written when the transport holds nothing any more."""
        self._handed_over = 0
        """Bytes of ours that the transport has got so far."""
        self._first_error: OSError | None = None
        """What the kernel said when it did not take our bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._out = cast(asyncio.WriteTransport, transport)
        # With both marks at 0, resume_writing means that the transport holds no byte of ours any more.
        self._out.set_write_buffer_limits(high=0, low=0)

    async def shake_hands(self) -> None:
        """Agree on keys before anything else, where there are any."""

    def open_writer(self) -> None:
        """Complete the streams. Not earlier: a cancelled attempt would leave a writer that nobody closes."""
        self.writer = asyncio.StreamWriter(self._out, self, self.reader, self._event_loop)

    def listen(self, on_data: Callable[[bytes], None]) -> None:
        """Hand over what comes at once, in the turn of the loop in which it comes; the reader only tells of the end."""
        self._on_data = on_data
        early = self.reader._buffer  # type: ignore[attr-defined]  # of asyncio.StreamReader since its first day
        if early:
            data = bytes(early)
            early.clear()
            on_data(data)

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(self._first_error or error)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    @property
    def unsent(self) -> int:
        """Bytes that have not left for the kernel."""
        return self.written - self._handed_over + self._out.get_write_buffer_size()

    @property
    def left(self) -> int:
        """Bytes of those written that may have left for the kernel. What begins later was never sent."""
        return self.written - self.unsent

    @property
    def is_closing(self) -> bool:
        """The transport lost its socket: it drops what is written, or (uvloop) raises. The reader hears of it later."""
        return self._out.is_closing()

    def write(self, segments: list[bytes | memoryview]) -> int:
        """Hand the segments to the transport and return their size. They must not change afterwards."""
        size = sum(map(len, segments))
        self.written += size
        if self._held is None:
            self._take(segments)
        else:
            self._held += segments
        return size

    def cork(self) -> None:
        """Hold back what is written until `uncork`, so that several requests cost one system call."""
        self._held = []

    def uncork(self) -> None:
        """Write what was held back. A transport that has lost its socket would drop it, or raise."""
        held, self._held = self._held, None
        if held and not self.is_closing:
            self._take(held)

    def _take(self, segments: list[bytes | memoryview]) -> None:
        if not self._backlog and self.written - self._handed_over <= AT_ONCE:
            self._hand_over(segments)
            self._handed_over = self.written
            return
        is_waiting = bool(self._backlog)  # then it goes on when the transport is empty, or in the next turn
        for segment in segments:
            view = memoryview(segment)
            self._backlog.extend(view[start : start + AT_ONCE] for start in range(0, len(view), AT_ONCE))
        if not is_waiting:
            self._go_on()

    def _go_on(self) -> None:
        """Write what one turn may of the backlog, if the transport holds nothing; tell when all has left."""
        size = 0
        while self._backlog and not self._out.get_write_buffer_size() and not self.is_closing:
            size += len(self._backlog[0])
            if size > AT_ONCE:
                self._event_loop.call_soon(self._go_on)
                return
            piece = self._backlog.popleft()
            self._hand_over([piece])
            self._handed_over += len(piece)
        if not self.unsent:
            self.on_drained()

    def _hand_over(self, segments: list[bytes | memoryview]) -> None:
        transport = self._out
        if len(segments) == 1:
            transport.write(segments[0])
        elif self._takes_segments:
            transport.writelines(segments)
        else:
            for piece in _joined(self._left_by_the_kernel(segments), LONE_SEGMENT):
                transport.write(piece)

    def _left_by_the_kernel(self, segments: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Write by one system call what the kernel takes, if nothing is ahead of it. After an error all is left, and
        the transport ends the connection; it meets another error then, since the kernel tells this one once."""
        socket = self._out.get_extra_info("socket")
        if socket is None or self._out.get_write_buffer_size() or not hasattr(os, "writev"):
            return segments
        try:
            taken = os.writev(socket.fileno(), segments[:MOST_SEGMENTS])
        except BlockingIOError:
            return segments
        except OSError as error:
            self._first_error = error
            return segments
        return _without(segments, taken)

    def abort(self) -> None:
        """Drop the socket and what was not sent."""
        self._out.abort()


class TlsWire(Wire):
    """The same with TLS in between. Nothing may be written before `shake_hands` has returned."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext, server_name: str) -> None:
        """Raises ValueError if the name can't stand in a certificate."""
        super().__init__(loop)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._shaken: asyncio.Future[None] | None = None
        """None until `shake_hands`: what comes earlier waits, still encrypted, in the incoming buffer."""
        self._has_ended = False
        self._encrypted = 0
        """Bytes handed to the transport, as TLS records."""
        self._marks: deque[tuple[int, int]] = deque()
        """Where what the transport may still hold begins: as TLS records, and in bytes of ours."""

    async def shake_hands(self) -> None:
        """Do the handshake. The peer has proved by then that it has the name, if the context checks that.

        Raises:
            ssl.SSLError: a certificate is refused, or nothing is common, or the peer does not speak TLS.
            OSError: the connection broke.
        """
        if self.is_closing or self.reader.at_eof():
            raise ConnectionResetError("the peer closed the connection before the TLS handshake")
        self._shaken = self._event_loop.create_future()
        self._shake(self._shaken)
        await self._shaken

    def _shake(self, shaken: asyncio.Future[None]) -> None:
        try:
            self._tls.do_handshake()
            self._refuse_without_certificate()
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ValueError) as error:
            if not shaken.done():
                shaken.set_exception(error)
        else:
            if not shaken.done():
                shaken.set_result(None)
        self._flush()  # also the alert that says why not

    def _refuse_without_certificate(self) -> None:
        """A context that checks certificates also accepts an anonymous peer if a cipher suite allows one."""
        if self._tls.context.verify_mode != ssl.CERT_NONE and self._tls.getpeercert(binary_form=True) is None:
            error = ssl.SSLError(1, "the peer showed no certificate")
            error.reason = "PEER_DID_NOT_RETURN_A_CERTIFICATE"  # OpenSSL's name for it
            raise error

    @property
    def _is_open(self) -> bool:
        shaken = self._shaken
        return shaken is not None and shaken.done() and not shaken.cancelled() and shaken.exception() is None

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._shaken is not None and not self._shaken.done():
            self._shake(self._shaken)
        if self._is_open and not self._has_ended:
            self._decrypt()

    def _decrypt(self) -> None:
        try:
            while plain := self._tls.read(TLS_RECORD):
                self._on_data(plain)
        except ssl.SSLWantReadError:
            self._flush()  # what TLS itself wants to say, such as new keys
        except ssl.SSLZeroReturnError:
            self._end()
        except ssl.SSLError as error:
            self._break(error)
        else:
            self._end()

    def _end(self) -> None:
        """The peer said good-bye in TLS: what comes after it counts for nothing."""
        self._has_ended = True
        self.reader.feed_eof()

    def _break(self, error: ssl.SSLError) -> None:
        self._has_ended = True
        self.reader.set_exception(error)
        self._flush()
        self._out.abort()

    def eof_received(self) -> bool | None:
        self._not_shaken(ConnectionResetError("the peer closed the connection during the TLS handshake"))
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._not_shaken(error or ConnectionResetError("connection lost during the TLS handshake"))
        super().connection_lost(error)

    def _not_shaken(self, error: Exception) -> None:
        if self._shaken is not None and not self._shaken.done():
            self._shaken.set_exception(error)

    def _hand_over(self, segments: list[bytes | memoryview]) -> None:
        self._forget_marks()
        self._marks.append((self._encrypted, self._handed_over))
        try:
            for piece in _joined(segments, TLS_RECORD):
                view = memoryview(piece)
                while len(view):
                    view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            self._break(error)
        else:
            self._flush()

    def _flush(self) -> None:
        """Hand what TLS has ready to the transport."""
        if self._outgoing.pending and not self.is_closing:
            records = self._outgoing.read()
            self._encrypted += len(records)
            self._out.write(records)

    def _forget_marks(self) -> None:
        gone = self._encrypted - self._out.get_write_buffer_size()
        while len(self._marks) > 1 and self._marks[1][0] <= gone:
            self._marks.popleft()
        if self._marks and self._encrypted == gone:
            self._marks.clear()

    @property
    def left(self) -> int:
        # Whole hand-overs: how many bytes of ours a part of a TLS record stands for, nobody can say.
        gone = self._encrypted - self._out.get_write_buffer_size()
        for encrypted, written in self._marks:
            if encrypted >= gone:
                return written
        return self._handed_over


def _nothing() -> None:
    """Nobody listens yet."""


def _joined(segments: list[bytes | memoryview], lone: int) -> Iterator[bytes | memoryview]:
    """The same bytes in fewer pieces: those below `lone` bytes are joined."""
    small: list[bytes | memoryview] = []
    for segment in segments:
        if len(segment) < lone:
            small.append(segment)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield segment
    if small:
        yield b"".join(small)


def _without(segments: list[bytes | memoryview], taken: int) -> list[bytes | memoryview]:
    """What is left without the first bytes."""
    for number, segment in enumerate(segments):
        if taken < len(segment):
            return [memoryview(segment)[taken:], *segments[number + 1 :]]
        taken -= len(segment)
    return []


def _takes_segments(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether `writelines` takes segments to the kernel without joining them.

    asyncio does so from 3.12 on, but forgot to pause the protocol before 3.12.9 and 3.13.2 (CVE-2024-12254).
    """
    if type(loop).__module__.partition(".")[0] == "uvloop":
        return True
    version = sys.version_info[:3]
    return version >= (3, 13, 2) or (3, 12, 9) <= version < (3, 13)
