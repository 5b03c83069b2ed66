"""Receives bytes from one socket, sends segments, and reports when all of them have been sent.

TLS is done here with an SSLObject, since asyncio's own TLS layer keeps a second buffer and can't report which bytes of
which request have been sent."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import cast

LONE_SEGMENT = 64 * 1024
"""The size in bytes from which a segment is written separately instead of being copied together with others."""

MOST_SEGMENTS = 1024
"""The maximum number of segments in one system call (IOV_MAX)."""

AT_ONCE = 4 * 1024 * 1024
"""The maximum number of bytes written in one turn of the loop, several times the size of a socket buffer. The limit
exists because the transport copies (or TLS encrypts) the bytes that the kernel does not accept."""

TLS_RECORD = 16 * 1024
"""The maximum size of a TLS record, in bytes."""


class Wire(asyncio.StreamReaderProtocol):
    """Owns one open socket: receives bytes, sends segments, and calls `on_drained` when all segments have been sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_drained: Callable[[], None] | None = None) -> None:
        self.reader = asyncio.StreamReader(loop=loop)
        super().__init__(self.reader, loop=loop)
        self.writer: asyncio.StreamWriter
        self.written = 0
        """The total size of all segments written so far."""
        self._on_drained = on_drained or _nothing
        self._event_loop = loop
        self._out: asyncio.WriteTransport
        self.is_closing: Callable[[], bool]
        """A method that returns True if the transport has lost its socket. The transport then drops writes (uvloop's
        raises an error), and the reader is notified later."""
        self._takes_segments = _takes_segments(loop)
        self.is_corked = False
        """True while writes are held back until `uncork`, so that several requests need only one system call."""
        self._held: list[bytes | memoryview] = []
        self._backlog: deque[bytes | memoryview] = deque()
        """The rest of a large write, which is written when the transport's buffer is empty."""
        self._handed_over = 0
        """The number of written bytes that have been passed to the transport so far."""
        self._first_error: OSError | None = None
        """The kernel's error if our own system call (not the transport's) failed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._out = cast(asyncio.WriteTransport, transport)
        self.is_closing = transport.is_closing
        # With both limits at 0, resume_writing means that the transport's buffer is empty.
        self._out.set_write_buffer_limits(high=0, low=0)

    @property
    def security(self) -> str:
        """The TLS version and cipher, or "plain text"."""
        return "plain text"

    async def shake_hands(self) -> None:
        """Do the TLS handshake, before anything is written. On a plain-text wire, do nothing."""

    def open_writer(self) -> None:
        """Create the writer. `connection_made` does not create it, because a cancelled attempt would then leave an
        unclosed writer."""
        self.writer = asyncio.StreamWriter(self._out, self, self.reader, self._event_loop)

    def listen(self, on_data: Callable[[bytes], None]) -> None:
        """Pass received bytes to `on_data` from now on, in the turn in which they arrive. The reader then gets only
        EOF."""
        self._pass_to(on_data)
        early = self.reader._buffer  # type: ignore[attr-defined]  # every asyncio.StreamReader has it
        if early:
            data = bytes(early)
            early.clear()
            on_data(data)

    def _pass_to(self, on_data: Callable[[bytes], None]) -> None:
        """Let the transport call `on_data` directly."""
        self.data_received = on_data  # type: ignore[method-assign, assignment]  # the parameter's name may differ
        self._out.set_protocol(self)  # uvloop looks up the method only during this call

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(self._first_error or error)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    @property
    def unsent(self) -> int:
        """The number of written bytes that have not been passed to the kernel."""
        return self.written - self._handed_over + self._out.get_write_buffer_size()

    @property
    def left(self) -> int:
        """The number of written bytes that may have been passed to the kernel. Any bytes after them were not sent."""
        return self.written - self.unsent

    def write(self, segments: list[bytes | memoryview]) -> int:
        """Pass the segments to the transport and return their total size. Do not change the segments afterwards."""
        size = sum(map(len, segments))
        self.written += size
        if self.is_corked:
            self._held += segments
        else:
            self._take(segments)
        return size

    def uncork(self) -> None:
        """Write the segments that were held back, unless the transport has lost its socket."""
        self.is_corked = False
        held, self._held = self._held, []
        if held and not self.is_closing():
            self._take(held)

    def _take(self, segments: list[bytes | memoryview]) -> None:
        if not self._backlog and self.written - self._handed_over <= AT_ONCE:
            self._hand_over(segments)
            self._handed_over = self.written
            return
        # If there is a backlog, writing continues when the transport is empty, or in the next turn.
        is_waiting = bool(self._backlog)
        for segment in segments:
            view = memoryview(segment)
            self._backlog.extend(view[start : start + AT_ONCE] for start in range(0, len(view), AT_ONCE))
        if not is_waiting:
            self._go_on()

    def _go_on(self) -> None:
        """Write up to AT_ONCE bytes of the backlog while the transport is empty; report when all bytes are sent."""
        size = 0
        while self._backlog and not self._out.get_write_buffer_size() and not self.is_closing():
            size += len(self._backlog[0])
            if size > AT_ONCE:
                self._event_loop.call_soon(self._go_on)
                return
            piece = self._backlog.popleft()
            self._hand_over([piece])
            self._handed_over += len(piece)
        if not self.unsent:
            self._on_drained()

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
        """Write as much as the kernel accepts in one system call, if the transport is empty; return the rest.

        After an error, all segments are returned, and writing them makes the transport close the connection. The
        kernel reports each error only once, so the transport gets a different error; `_first_error` keeps the first
        one.
        """
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
        """Drop the socket and all unsent bytes."""
        self._out.abort()


class TlsWire(Wire):
    """A Wire that encrypts with TLS. Nothing may be written before `shake_hands` has returned."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        server_name: str,
        on_drained: Callable[[], None] | None = None,
    ) -> None:
        """Create the TLS object. Raises ValueError if a certificate can't contain `server_name`."""
        super().__init__(loop, on_drained)
        self._on_data: Callable[[bytes], None] = self.reader.feed_data
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._shaken: asyncio.Future[None] | None = None
        """None before `shake_hands` is called; until then, received bytes stay encrypted in the incoming buffer."""
        self._has_ended = False
        self._encrypted = 0
        """The number of encrypted bytes passed to the transport."""
        self._marks: deque[tuple[int, int]] = deque()
        """The start of each write that may still be buffered: (offset in encrypted bytes, offset in written bytes)."""

    @property
    def security(self) -> str:
        cipher = self._tls.cipher()
        return f"{self._tls.version()}, {cipher[0]}" if cipher else "TLS"

    async def shake_hands(self) -> None:
        """Do the TLS handshake. If the context verifies certificates, it also checks the host name.

        Raises:
            ssl.SSLError: a certificate is rejected, there is no common TLS version or cipher, or the peer does not
                speak TLS.
            OSError: the connection was lost.
        """
        if self.is_closing() or self.reader.at_eof():
            raise ConnectionResetError("the peer closed the connection before the TLS handshake")
        self._shaken = self._event_loop.create_future()
        self._shake(self._shaken)
        await self._shaken

    def _shake(self, shaken: asyncio.Future[None]) -> None:
        try:
            self._tls.do_handshake()
            self._require_certificate()
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, ValueError) as error:
            if not shaken.done():
                shaken.set_exception(error)
        else:
            if not shaken.done():
                shaken.set_result(None)
        self._flush()  # the bytes include the alert that reports a failure

    def _require_certificate(self) -> None:
        """Reject a peer without a certificate, which OpenSSL accepts if an anonymous cipher suite is enabled."""
        if self._tls.context.verify_mode != ssl.CERT_NONE and self._tls.getpeercert(binary_form=True) is None:
            error = ssl.SSLError(1, "the peer presented no certificate")
            error.reason = "PEER_DID_NOT_RETURN_A_CERTIFICATE"  # OpenSSL's name for this error
            raise error

    @property
    def _is_open(self) -> bool:
        shaken = self._shaken
        return shaken is not None and shaken.done() and not shaken.cancelled() and shaken.exception() is None

    def _pass_to(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data

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
            self._flush()  # sends messages of the TLS protocol itself, such as key updates
        except ssl.SSLZeroReturnError:
            self._end()
        except ssl.SSLError as error:
            self._break(error)
        else:
            self._end()

    def _end(self) -> None:
        """Handle the peer's close_notify alert: later bytes are ignored."""
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
        self._not_shaken(error or ConnectionResetError("the connection was lost during the TLS handshake"))
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
        """Pass pending encrypted bytes to the transport."""
        if self._outgoing.pending and not self.is_closing():
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
        # Count whole writes: the plain-text size of a partially sent TLS record is unknown.
        gone = self._encrypted - self._out.get_write_buffer_size()
        for encrypted, written in self._marks:
            if encrypted >= gone:
                return written
        return self._handed_over


def _nothing() -> None:
    """Do nothing: the default for `on_drained`."""


def _joined(segments: list[bytes | memoryview], lone: int) -> Iterator[bytes | memoryview]:
    """Yield the same bytes in fewer pieces: neighbouring segments smaller than `lone` bytes are joined."""
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
    """Return the segments without the first `taken` bytes."""
    for number, segment in enumerate(segments):
        if taken < len(segment):
            return [memoryview(segment)[taken:], *segments[number + 1 :]]
        taken -= len(segment)
    return []


def _takes_segments(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether `writelines` passes segments to the kernel without joining them.

    asyncio has done so since 3.12, but did not pause the protocol before 3.12.9 and 3.13.2 (CVE-2024-12254).
    """
    if type(loop).__module__.partition(".")[0] == "uvloop":
        return True
    version = sys.version_info[:3]
    return version >= (3, 13, 2) or (3, 12, 9) <= version < (3, 13)
