"""The network of a SimulatedLoop: listeners, connections, name lookups, and what can go wrong with them.

A connection has two queues of bytes in transit, one for each direction. As in TCP, each queue keeps its order, and has
a latency and a bounded window. Bytes that do not fit stay in the sender's transport, which notifies its protocol. The
network does not interpret the bytes."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import socket
import struct
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from aioproducer.testing.simulation.transport import Address, SimulatedTransport

if TYPE_CHECKING:
    from aioproducer.testing.simulation.loop import SimulatedLoop


RETRANSMISSION = 0.2
"""Seconds after which TCP retries an unanswered attempt to connect."""

_FIRST_PORT = 9092
_FIRST_CLIENT_PORT = 40_000
_TRACED = struct.Struct(">dIBI")


class Latency(NamedTuple):
    """A range of durations in seconds, from `least` to `most`."""

    least: float = 0.0001
    most: float = 0.0005


class _Socket(NamedTuple):
    """The visible part of a server's socket."""

    address: Address

    def getsockname(self) -> Address:
        return self.address


class SimulatedNetwork:
    """All connections in one simulation."""

    def __init__(
        self,
        *,
        latency: Latency = Latency(),  # noqa: B008  # immutable
        window: int = 65536,
        pieces: float = 0.05,
        reset: float = 0.5,
    ) -> None:
        """Create a network that is not attached to a loop yet.

        Args:
            latency: the one-way latency of each piece of data.
            window: the maximum number of bytes that can be in transit or unread in one direction; further bytes stay
                with the sender.
            pieces: the probability that bytes arrive in two pieces.
            reset: the probability that a dropped connection loses the bytes in transit.
        """
        self.latency = latency
        self.window = window
        self.names: dict[str, tuple[str, ...]] = {}
        """The addresses for each name. A name without an entry is its own address; an empty tuple makes a name
        unknown."""
        self.lookup_delay = 0.0
        """How many seconds it takes to resolve a name."""
        self._pieces = pieces
        self._reset = reset
        self._loop: SimulatedLoop
        self._random: Random
        self._listeners: dict[Address, SimulatedServer] = {}
        self._ports = _FIRST_PORT
        self._client_ports = _FIRST_CLIENT_PORT
        self._count = 0
        self._open: dict[int, tuple[SimulatedTransport, SimulatedTransport]] = {}
        """(client's end, server's end) of each connection with at least one open end."""
        self._held: dict[tuple[int, bool], None] = {}
        """Each direction in which nothing arrives, as (port, whether it is towards the server)."""
        self._trace = hashlib.sha256()

    def attach(self, loop: SimulatedLoop, random: Random) -> None:
        """Attach the network to its loop, which calls this method."""
        self._loop = loop
        self._random = random

    # For tests: inspection

    @property
    def digest(self) -> str:
        """A SHA-256 hash of all bytes sent so far, with their times and connections."""
        return self._trace.hexdigest()

    @property
    def open_clients(self) -> list[SimulatedTransport]:
        """The open client ends of connections."""
        return [client for client, _ in self._open.values() if not client.is_closing()]

    # For tests: faults

    def cut(self, port: int) -> int:
        """Reset all connections to a port; some bytes in transit are lost. Return the number of connections."""
        found = [ends for ends in self._open.values() if ends[1].port == port]
        for client, server in found:
            client.break_off()
            if self.loses():
                server.break_off()  # otherwise, the server first receives the bytes in transit
        return len(found)

    def hold(self, port: int, *, requests: bool = True, answers: bool = True) -> None:
        """Hold back new connections to a port and all bytes to or from it; neither end notices."""
        if requests:
            self._held[port, True] = None
        if answers:
            self._held[port, False] = None

    def release(self, port: int | None = None) -> None:
        """Let the bytes that were held back on a port (None: on all ports) arrive, as after a retransmission."""
        for held in [held for held in self._held if port in (None, held[0])]:
            del self._held[held]
        for ends in list(self._open.values()):
            for end in ends:
                end.go_on()

    def is_held(self, port: int, *, to_server: bool) -> bool:
        """Return whether bytes in this direction are currently held back."""
        return (port, to_server) in self._held

    def _is_silent(self, port: int) -> bool:
        return self.is_held(port, to_server=True) or self.is_held(port, to_server=False)

    # For the loop

    async def resolve(self, host: str) -> tuple[str, ...]:
        """Return the addresses for a name. Raises socket.gaierror, an OSError, if there are none."""
        addresses = self.names.get(host, (host,))
        if self.lookup_delay:
            await asyncio.sleep(self.lookup_delay)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return addresses

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimulatedServer:
        """Create a server that is not serving yet."""
        if port == 0:
            port = self._ports
            self._ports += 1
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} is taken")
        return SimulatedServer(self, self._loop, factory, (host, port))

    def bind(self, server: SimulatedServer, address: Address) -> None:
        """Make a server accept connections from now on."""
        self._listeners[address] = server

    def unbind(self, address: Address) -> None:
        """Stop accepting connections at this address."""
        self._listeners.pop(address, None)

    def serves(self, address: Address) -> bool:
        """Return whether a server accepts connections at this address."""
        return address in self._listeners

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect like `create_connection`, in one round trip. Raises OSError if no server is listening there."""
        while self._is_silent(port):  # noqa: ASYNC110  # TCP is not notified either
            await asyncio.sleep(RETRANSMISSION)
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
        """Return a random latency for one item, in seconds."""
        return self._random.uniform(*self.latency)

    def cuts(self, size: int) -> Iterable[int]:
        """Return the sizes of the pieces in which `size` bytes arrive."""
        if size > 1 and self._random.random() < self._pieces:
            first = self._random.randrange(1, size)
            return (first, size - first)
        return (size,)

    def loses(self) -> bool:
        """Return whether a dropped connection loses the bytes in transit."""
        return self._random.random() < self._reset

    def keeps(self, count: int) -> int:
        """Return how many of `count` items in transit still arrive."""
        return self._random.randint(0, count)

    def note(self, number: int, is_client: bool, data: bytes | bytearray | memoryview) -> None:
        """Add sent bytes to the digest."""
        self._trace.update(_TRACED.pack(self._loop.time(), number, is_client, len(data)))
        self._trace.update(data)

    def forget(self, number: int) -> None:
        """Forget a connection if both of its ends are closed; each end calls this when it closes."""
        ends = self._open.get(number)
        if ends is not None and all(end.is_closed for end in ends):
            del self._open[number]


class SimulatedServer(asyncio.AbstractServer):
    """A server in the simulation, as returned by `create_server`."""

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
        """Return the server's loop."""
        return self._server_loop

    async def start_serving(self) -> None:
        """Accept connections from now on."""
        self._network.bind(self, self._address)

    def close(self) -> None:
        """Accept no more connections. Open connections stay open."""
        self._network.unbind(self._address)

    async def wait_closed(self) -> None:
        """Return immediately."""

    def is_serving(self) -> bool:
        """Return whether the server accepts connections."""
        return self._network.serves(self._address)

    async def serve_forever(self) -> None:
        """Serve until cancelled."""
        await self.start_serving()
        await self._server_loop.create_future()
