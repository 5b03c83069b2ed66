"""One broker: its state, its listening socket, and a task per connection.

A broker knows nothing about the cluster or the requests: `connections` serves its connections.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from aioproducer.testing.embedded import listener
from aioproducer.testing.embedded.releases import Release
from aioproducer.types import Node

_READ_LIMIT = 1024 * 1024  # bytes to read ahead of the current request


Serve: TypeAlias = (
    "Callable[[EmbeddedBroker, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]"
)
"""Serves one connection of a broker until it is closed."""


class CloseConnection(Exception):
    """The broker closes this connection and sends nothing more on it."""


class BrokerState(Enum):
    """The states of a broker. Metadata lists brokers that are running, or frozen but not fenced."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"


TRANSITIONS: dict[BrokerState, frozenset[BrokerState]] = {
    BrokerState.STOPPED: frozenset({BrokerState.STARTING}),
    BrokerState.STARTING: frozenset({BrokerState.RUNNING, BrokerState.STOPPED}),
    BrokerState.RUNNING: frozenset({BrokerState.FROZEN, BrokerState.STOPPED}),
    BrokerState.FROZEN: frozenset({BrokerState.RUNNING, BrokerState.STOPPED}),
}


class EmbeddedBroker:
    """One broker of an EmbeddedCluster."""

    def __init__(
        self,
        node_id: int,
        host: str,
        port: int,
        release: Release,
        *,
        serve: Serve,
        on_thaw: Callable[[], None],
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        """The port; if the system chooses it, 0 until the first start."""
        self.release = release
        self.is_fenced = False
        """True if the controller has fenced the broker. The broker rejoins the cluster when it thaws."""
        self._serve = serve
        self._on_thaw = on_thaw
        self._state = BrokerState.STOPPED
        self._server: asyncio.Server | None = None
        self._listener: listener.CountingListener | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._thawed = asyncio.Event()
        # Timers that run while the broker is frozen; they are cancelled when it thaws or stops.
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def state(self) -> BrokerState:
        """The state of the broker."""
        return self._state

    @property
    def is_frozen(self) -> bool:
        """True if the broker is frozen: it reads no requests and sends no responses."""
        return self._state is BrokerState.FROZEN

    @property
    def node(self) -> Node:
        """The broker's address, as in metadata."""
        return Node(self.node_id, self.host, self.port)

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def _move(self, to: BrokerState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise self._impossible(to)
        self._state = to

    def _impossible(self, to: BrokerState) -> RuntimeError:
        return RuntimeError(f"broker {self.node_id} is {self._state.value}, so it can't become {to.value}")

    async def start(self) -> None:
        """Start listening. After a stop, the broker reuses its old port. Raises OSError if the port is in use."""
        if self._state is BrokerState.STOPPED:
            await self.wait_stopped()
        self._move(BrokerState.STARTING)
        self._thawed = asyncio.Event()  # The event loop may have changed since the last start.
        self._thawed.set()
        try:
            # Create and serve in two steps: if start_server() were cancelled while starting to serve, it would leak
            # its socket.
            await asyncio.sleep(0)  # start_server() does not yield to the loop if it is given a socket
            self._listener = listener.listen(asyncio.get_running_loop(), self.host, self.port)
            place = (
                {"host": self.host, "port": self.port} if self._listener is None else {"sock": self._listener}
            )
            accept = partial(self._accept, self._listener)
            self._server = await asyncio.start_server(accept, **place, limit=_READ_LIMIT, start_serving=False)
            self.port = self._server.sockets[0].getsockname()[1]
            self._move(BrokerState.RUNNING)
            await self._server.start_serving()
        except BaseException:
            if self._state is not BrokerState.STOPPED:
                self.halt()
            elif self._server is not None:
                self._server.close()  # the server was created after this broker had been stopped
            raise

    def halt(self) -> None:
        """Close the port and cut every connection, even in the middle of a request. Call `wait_stopped` next."""
        self._move(BrokerState.STOPPED)
        self._cancel_timers()
        self.is_fenced = False
        if self._server is not None:
            listener.close(self._server, self._listener)
        self._cut_connections()
        self._thawed.set()

    async def wait_stopped(self) -> None:
        """After `halt`, wait until no task or socket remains."""
        if self._server is None:
            return
        # A connection that the loop has already accepted reaches _accept() a few turns later and is rejected there.
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def close_connections(self) -> None:
        """Cut every connection, but keep listening."""
        await asyncio.gather(*self._cut_connections(), return_exceptions=True)

    def _cut_connections(self) -> list[asyncio.Task[None]]:
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()
        return list(self._connections)

    def freeze(self, for_seconds: float = math.inf) -> None:
        """Freeze the broker, as SIGSTOP would, and thaw it after `for_seconds` (never if math.inf).

        A frozen broker keeps its connections and accepts new ones, but reads no requests and sends no responses."""
        self._move(BrokerState.FROZEN)
        self._thawed.clear()
        self.while_frozen(for_seconds, self.thaw)
        for writer in self._connections.values():
            if not writer.transport.is_closing():
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport also reads

    def while_frozen(self, seconds: float, callback: Callable[..., object], *arguments: object) -> None:
        """Call `callback` after `seconds` (never if math.inf), unless the broker thaws or stops first."""
        if math.isfinite(seconds):
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(seconds, callback, *arguments))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    @property
    def is_running(self) -> bool:
        """True if the broker has started and is neither stopped nor frozen."""
        return self._state is BrokerState.RUNNING

    async def thawed(self) -> None:
        """Wait while the broker is frozen; return when it has thawed or stopped."""
        await self._thawed.wait()

    def thaw(self) -> None:
        """Resume serving the connections after `freeze`."""
        if not self.is_frozen:
            raise self._impossible(BrokerState.RUNNING)
        self._move(BrokerState.RUNNING)
        self._cancel_timers()
        self.is_fenced = False
        self._on_thaw()
        for writer in self._connections.values():
            if not writer.transport.is_closing():
                writer.transport.resume_reading()  # type: ignore[attr-defined]  # the transport also reads
        self._thawed.set()

    def _accept(
        self,
        accepted_by: listener.CountingListener | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if accepted_by is not None:
            accepted_by.made += 1
        if self._state is BrokerState.STOPPED:
            writer.transport.abort()
            return
        if self._state is BrokerState.FROZEN:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport also reads
        peer = writer.get_extra_info("peername")
        task = asyncio.create_task(
            self._serve(self, reader, writer), name=f"broker {self.node_id} serves {peer}"
        )
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)
