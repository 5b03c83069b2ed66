"""One end of a simulated connection: an asyncio transport without a socket.

Bytes reach the other end in order, through a queue with latency and a bounded window. Bytes that do not fit stay in
this transport, and its protocol is notified, as over TCP. The network determines latencies and losses."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.testing.simulation.loop import SimulatedLoop
    from aioproducer.testing.simulation.network import SimulatedNetwork

Address = tuple[str, int]
_Item = bytes | OSError | None
"""An item that arrives: bytes, a reset (OSError), or the end of the stream (None)."""


def _reset() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: SimulatedNetwork,
        loop: SimulatedLoop,
        number: int,
        own: Address,
        peer: Address,
        *,
        is_client: bool,
    ) -> None:
        super().__init__({"sockname": own, "peername": peer})
        self.peer: SimulatedTransport
        self.port = peer[1] if is_client else own[1]
        """The port of the server."""
        self.is_closed = False
        """True once this end no longer reads or writes."""
        self._network = network
        self._loop = loop
        self._number = number
        self._is_client = is_client
        self._protocol: asyncio.Protocol
        self._closing = False
        self._has_begun = False
        # bytes that have been written but not sent yet
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._is_paused = False
        # items in transit to the other end, each with its arrival time
        self._way: deque[tuple[float, _Item]] = deque()
        self._outstanding = 0
        """The number of bytes that are in transit, or have arrived but have not been read."""
        self._last_arrival = 0.0
        # items that have arrived but have not been read yet
        self._inbox: deque[_Item] = deque()
        self._reads = True

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Start the connection with its protocol."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol
        self._has_begun = True
        protocol.connection_made(self)
        if self.is_closed:  # the connection was cut before it had a protocol
            self._loop.call_soon(protocol.connection_lost, _reset())
        self._loop.call_soon(self._read)

    # The methods of a transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._loop.call_soon(self._read)

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        self._pause_if_full()

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._network.note(self._number, self._is_client, data)
        self._buffer.append(bytes(data))
        self._buffered += len(data)
        self._send()
        self._pause_if_full()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send the bytes that were written, then close this end."""
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._loop.call_soon(self._closed, None)

    def abort(self) -> None:
        """Drop the unsent bytes, and close this end. Bytes in transit may also be lost; the peer then sees a reset."""
        self._drop(None)

    # For the network

    def break_off(self) -> None:
        """Reset the connection: from a random point on, the items in transit to this end are lost."""
        self.peer._lose_some()
        self._drop(_reset(), tell=False)

    def go_on(self) -> None:
        """Resume the delivery of the items that were held back."""
        if self._way and not self._is_held():
            for _ in self._way:
                self._last_arrival = max(self._loop.time() + self._network.delay(), self._last_arrival)
                self._loop.call_at(self._last_arrival, self._arrive)

    # Sending

    def _is_held(self) -> bool:
        return self._network.is_held(self.port, to_server=self._is_client)

    def _send(self) -> None:
        room = self._network.window - self._outstanding
        while self._buffer and room > 0:
            data = self._buffer.popleft()
            if len(data) > room:
                self._buffer.appendleft(data[room:])
                data = data[:room]
            room -= len(data)
            self._buffered -= len(data)
            self._outstanding += len(data)
            start = 0
            for size in self._network.cuts(len(data)):
                self._put(data[start : start + size])
                start += size

    def _put(self, item: _Item) -> None:
        when = max(self._loop.time() + self._network.delay(), self._last_arrival)
        self._last_arrival = when
        self._way.append((when, item))
        if not self._is_held():
            self._loop.call_at(when, self._arrive)

    def _arrive(self) -> None:
        """Deliver the next item in the queue.

        The timer does not refer to the item, because timers that are due at the same time fire in no fixed order.
        """
        if not self._way or self._is_held():
            return  # the item was lost, or is held back, and go_on() will set another timer
        _, item = self._way.popleft()
        peer = self.peer
        if peer.is_closed:
            if isinstance(item, bytes):
                self._drop(_reset(), tell=False)
            return
        peer._inbox.append(item)
        if peer._has_begun:
            peer._read()

    def _lose_some(self) -> None:
        keep = self._network.keeps(len(self._way))
        while len(self._way) > keep:
            self._way.pop()

    def _pause_if_full(self) -> None:
        if self._buffered > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def _acknowledged(self, size: int) -> None:
        """Make room in the window, because the other end has read `size` bytes."""
        self._outstanding -= size
        if not self._buffer:
            return
        self._send()
        if self._buffered <= self._low and self._is_paused:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._closing and not self._buffer:
            self._loop.call_soon(self._closed, None)

    # Reading

    def _read(self) -> None:
        while self._inbox and self._reads and not self._closing and self._has_begun:
            item = self._inbox.popleft()
            if item is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            if isinstance(item, OSError):
                self._drop(item, tell=False)
                return
            self.peer._acknowledged(len(item))
            self._protocol.data_received(item)

    # Closing

    def _drop(self, error: Exception | None, *, tell: bool = True) -> None:
        if self.is_closed:
            return
        self._buffer.clear()
        self._buffered = 0
        self._closing = True
        if tell and self._network.loses():
            self._lose_some()
            self._put(_reset())
        self._loop.call_soon(self._closed, error)

    def _closed(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._put(None)
        self._network.forget(self._number)
        if self._has_begun:
            self._protocol.connection_lost(error)
