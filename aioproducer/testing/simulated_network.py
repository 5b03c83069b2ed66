"""The network of a SimulatedLoop: listeners, connections, name lookups, and what can go wrong with them.

A connection is two queues of bytes on their way, each with an order, a latency and a bounded window, as TCP has them:
what does not fit stays with the sender's transport, which says so. Nothing here knows what the bytes mean."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aioproducer.testing.simulation import SimulatedLoop

Address = tuple[str, int]
_Item = bytes | OSError | None
"""What arrives: bytes, a reset, or the end."""

_FIRST_PORT = 9092
_FIRST_CLIENT_PORT = 40_000
_TRACED = struct.Struct(">dIBI")


class Latency(NamedTuple):
    """Seconds that something takes: at least `least`, at most `most`."""

    least: float = 0.0001
    most: float = 0.0005


class _Socket(NamedTuple):
    """What a server tells of its socket."""

    address: Address

    def getsockname(self) -> Address:
        return self.address


def _reset() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


class SimulatedNetwork:
    """All connections of one simulation."""

    def __init__(
        self,
        *,
        latency: Latency = Latency(),  # noqa: B008  # immutable
        window: int = 65536,
        pieces: float = 0.05,
        reset: float = 0.5,
    ) -> None:
        """Describe a network.

        Args:
            latency: of each piece of bytes, one way.
            window: bytes of one direction that are on their way or unread; more stay with the sender.
            pieces: how probable it is that bytes arrive in two pieces.
            reset: how probable it is that a dropped connection loses what was on its way.
        """
        self.latency = latency
        self.window = window
        self.names: dict[str, tuple[str, ...]] = {}
        """What names mean; each other name is its own address, an empty tuple is a name that does not exist."""
        self.lookup_delay = 0.0
        """Seconds until a name is resolved."""
        self._pieces = pieces
        self._reset = reset
        self._loop: SimulatedLoop
        self._random: Random
        self._listeners: dict[Address, SimulatedServer] = {}
        self._ports = _FIRST_PORT
        self._client_ports = _FIRST_CLIENT_PORT
        self._count = 0
        self._open: dict[int, tuple[SimulatedTransport, SimulatedTransport]] = {}
        """(client's end, server's end) of each connection of which one end at least is open."""
        self._held: dict[tuple[int, bool], None] = {}
        """(port, towards the server): what is on its way stays there."""
        self._trace = hashlib.sha256()

    def attach(self, loop: SimulatedLoop, random: Random) -> None:
        """Called by the loop: this is its network."""
        self._loop = loop
        self._random = random

    # For tests: what is there

    @property
    def digest(self) -> str:
        """A SHA-256 over every byte that was sent so far, and when, and on which connection."""
        return self._trace.hexdigest()

    @property
    def open_clients(self) -> list[SimulatedTransport]:
        """The clients' ends that are not closed."""
        return [client for client, _ in self._open.values() if not client.is_closing()]

    # For tests: what shall happen

    def cut(self, port: int) -> int:
        """Reset all connections to a port; what is on its way is lost in part. Returns how many there were."""
        found = [ends for ends in self._open.values() if ends[1].port == port]
        for client, server in found:
            client.break_off()
            if self.loses():
                server.break_off()  # else it learns of it after what was on its way
        return len(found)

    def hold(self, port: int, *, requests: bool = True, answers: bool = True) -> None:
        """What is sent to a port, or from it, stays on its way, new connections included; nobody is told."""
        if requests:
            self._held[port, True] = None
        if answers:
            self._held[port, False] = None

    def release(self, port: int | None = None) -> None:
        """What was held arrives, as after a retransmission. None: of all ports."""
        for held in [held for held in self._held if port in (None, held[0])]:
            del self._held[held]
        for ends in list(self._open.values()):
            for end in ends:
                end.go_on()

    def is_held(self, port: int, *, to_server: bool) -> bool:
        """Whether nothing arrives in this direction now."""
        return (port, to_server) in self._held

    # For the loop

    async def resolve(self, host: str) -> tuple[str, ...]:
        """The addresses of a name. Raises socket.gaierror, an OSError, if there are none."""
        addresses = self.names.get(host, (host,))
        if self.lookup_delay:
            await asyncio.sleep(self.lookup_delay)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return addresses

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimulatedServer:
        """A server that does not serve yet."""
        if port == 0:
            port = self._ports
            self._ports += 1
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} is taken")
        return SimulatedServer(self, self._loop, factory, (host, port))

    def bind(self, server: SimulatedServer, address: Address) -> None:
        """A server takes connections from now on."""
        self._listeners[address] = server

    def unbind(self, address: Address) -> None:
        """It takes none any more."""
        self._listeners.pop(address, None)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """As `create_connection`: one round trip. Raises OSError if nobody listens."""
        while self.is_held(port, to_server=True) or self.is_held(port, to_server=False):
            await asyncio.sleep(0.2)  # until the SYN is sent again
        await asyncio.sleep(self.delay())
        server = self._listeners.get((host, port))
        if server is None:
            await asyncio.sleep(self.delay())
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed ('{host}', {port})")
        self._count += 1
        self._client_ports += 1
        here, there = (host, self._client_ports), (host, port)
        client = SimulatedTransport(self, self._loop, self._count, here, there, is_client=True)
        other = SimulatedTransport(self, self._loop, self._count, there, here, is_client=False)
        client.peer, other.peer = other, client
        self._open[self._count] = client, other
        other.begin(server.factory())
        try:
            await asyncio.sleep(self.delay())
        except asyncio.CancelledError:
            client.abort()
            raise
        protocol = factory()
        client.begin(protocol)
        return client, protocol

    # For transports

    def delay(self) -> float:
        """Seconds until the next thing arrives."""
        return self._random.uniform(*self.latency)

    def cuts(self, size: int) -> Iterable[int]:
        """Into which sizes bytes fall on their way."""
        if size > 1 and self._random.random() < self._pieces:
            first = self._random.randrange(1, size)
            return (first, size - first)
        return (size,)

    def loses(self) -> bool:
        """Whether a connection that is dropped loses what is on its way."""
        return self._random.random() < self._reset

    def keeps(self, count: int) -> int:
        """How many of the things on their way still arrive."""
        return self._random.randint(0, count)

    def note(self, number: int, is_client: bool, data: bytes | bytearray | memoryview) -> None:
        """Take down what is sent."""
        self._trace.update(_TRACED.pack(self._loop.time(), number, is_client, len(data)))
        self._trace.update(data)

    def forget(self, number: int) -> None:
        """A connection's end is closed; of both, the connection is."""
        ends = self._open.get(number)
        if ends is not None and all(end.is_closed for end in ends):
            del self._open[number]


class SimulatedServer(asyncio.AbstractServer):
    """What `create_server` returns."""

    def __init__(
        self,
        network: SimulatedNetwork,
        loop: SimulatedLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        address: Address,
    ) -> None:
        self.factory = factory
        self.sockets = (_Socket(address),)
        self._network = network
        self._server_loop = loop
        self._address = address

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it belongs to."""
        return self._server_loop

    async def start_serving(self) -> None:
        """Take connections from now on."""
        self._network.bind(self, self._address)

    def close(self) -> None:
        """Take no more connections; those that are open stay so."""
        self._network.unbind(self._address)

    async def wait_closed(self) -> None:
        """At once."""


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
        """The server's."""
        self.is_closed = False
        """Nobody reads or writes here any more."""
        self._network = network
        self._loop = loop
        self._number = number
        self._is_client = is_client
        self._protocol: asyncio.Protocol
        self._closing = False
        self._has_begun = False
        # what is written and not sent yet
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._is_paused = False
        # what is on its way from here, with the time of its arrival
        self._way: deque[tuple[float, _Item]] = deque()
        self._outstanding = 0
        """Bytes on their way, or arrived and not read."""
        self._last_arrival = 0.0
        # what has arrived and is not read yet
        self._inbox: deque[_Item] = deque()
        self._reads = True

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection is made."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol
        self._has_begun = True
        protocol.connection_made(self)
        if self.is_closed:  # it was cut before anybody had it
            self._loop.call_soon(protocol.connection_lost, _reset())
        self._loop.call_soon(self._read)

    # What a transport is asked for

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
        """Send what is written, then the end."""
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._loop.call_soon(self._closed, None)

    def abort(self) -> None:
        """Drop what is not sent; the other end learns of it, perhaps before it has read what was on its way."""
        self._drop(None)

    # For the network

    def break_off(self) -> None:
        """The connection is reset: what comes to this end is lost from somewhere on."""
        self.peer._lose_some()
        self._drop(_reset(), tell=False)

    def go_on(self) -> None:
        """What was held goes on."""
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
        """One thing is there. Which one, the queue says: timers of the same moment have no order."""
        if not self._way or self._is_held():
            return  # lost, or held meanwhile: go_on() sets another timer
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
        """The other end has read: there is room on the way."""
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

    # The end

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
