"""A TCP proxy in front of each broker, for network faults between clients and the broker.

The brokers advertise the proxies' addresses to clients (`ApacheKafka(advertised=...)`), but connect to each other
directly. A proxy parses only the length and the API key of each request."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from typing import Self

from tests.support.accepting import AcceptingServer

HOST = "127.0.0.1"
_PREFIX = 4
_CHUNK = 512
"""The number of bytes that a throttled proxy forwards at once."""


@dataclass(eq=False)
class Link:
    """A client's connection, and the matching connection from the proxy to the broker."""

    client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    broker: asyncio.StreamReader
    to_broker: asyncio.StreamWriter
    task: asyncio.Task[None]
    """The task that forwards the bytes."""
    loses_requests: bool = False
    loses_answers: bool = False
    is_cut: bool = False
    """The broker's next answer is dropped, and the connection is closed."""


@dataclass(eq=False)
class Trap:
    """Waits for a request, and cuts its connection after the broker has received it and before the client gets an
    answer."""

    api_key: int
    sprung: asyncio.Future[int]
    """The broker that received the request."""
    skip: int = 0
    """The number of such requests that pass before one springs the trap."""

    @property
    def is_used_up(self) -> bool:
        """True once a request has sprung it."""
        return self.sprung.done()


class Network:
    """The proxies of all brokers, used with `async with`."""

    def __init__(self, brokers: int) -> None:
        self.proxies = [Proxy(node_id, self) for node_id in range(brokers)]
        self._traps: list[Trap] = []

    async def __aenter__(self) -> Self:
        """Take a free port for each broker."""
        for proxy in self.proxies:
            await proxy.listen()
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Close all proxies and their connections."""
        for proxy in self.proxies:
            await proxy.close()

    @property
    def advertised(self) -> dict[int, tuple[str, int]]:
        """The addresses that the brokers advertise to clients."""
        return {proxy.node_id: (HOST, proxy.port) for proxy in self.proxies}

    def lead_to(self, ports: list[int]) -> None:
        """Set the ports of the brokers after they have started."""
        for proxy, port in zip(self.proxies, ports, strict=True):
            proxy.broker_port = port

    @property
    def connections(self) -> int:
        """The number of open client connections."""
        return sum(len(proxy.links) for proxy in self.proxies)

    def lay(self, api_key: int, *, skip: int = 0) -> Trap:
        """Lay a trap for the next request with this API key to any broker, after `skip` others."""
        trap = Trap(api_key, asyncio.get_running_loop().create_future(), skip)
        self._traps.append(trap)
        return trap

    def take_away(self, trap: Trap) -> None:
        """Remove a trap that has not been sprung."""
        if trap in self._traps:
            self._traps.remove(trap)

    def trap_for(self, api_key: int) -> Trap | None:
        """Return the trap that this request springs, and remove it."""
        for trap in self._traps:
            if trap.api_key != api_key:
                continue
            if not trap.skip:
                self._traps.remove(trap)
                return trap
            trap.skip -= 1
        return None


class Proxy:
    """A proxy in front of one broker. While the broker is down, it accepts connections and closes them at once."""

    def __init__(self, node_id: int, network: Network) -> None:
        self.node_id = node_id
        self.port = 0
        self.broker_port = 0
        self.rate = math.inf
        """Bytes per second that each direction of a connection may carry."""
        self.links: set[Link] = set()
        self._network = network
        self._server = AcceptingServer(self._serve, f"proxy of broker {node_id}")

    async def listen(self) -> None:
        """Take a free port."""
        self.port = await self._server.listen(HOST)

    def fall_silent(self, *, answers_only: bool) -> int:
        """Keep the open connections open, but let them carry no data, or no answers. Return how many there are."""
        for link in self.links:
            link.loses_answers = True
            link.loses_requests = not answers_only
        return len(self.links)

    def hang_up(self) -> None:
        """Close all open connections."""
        for link in self.links:
            link.task.cancel()

    async def close(self) -> None:
        """Stop listening and break all connections."""
        await self._server.close()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            broker, to_broker = await asyncio.open_connection(HOST, self.broker_port)
        except OSError:
            return  # the broker is down
        task = asyncio.current_task()
        assert task is not None
        link = Link(client, to_client, broker, to_broker, task)
        self.links.add(link)
        try:
            await self._carry(link)
        finally:
            self.links.discard(link)
            to_broker.transport.abort()

    async def _carry(self, link: Link) -> None:
        """Carry bytes until either side closes the connection, or a trap cuts it."""
        loop = asyncio.get_running_loop()
        pumps = [loop.create_task(self._requests(link)), loop.create_task(self._answers(link))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
        for pump in pumps:
            if not pump.cancelled():
                pump.result()

    async def _requests(self, link: Link) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                prefix = await link.client.readexactly(_PREFIX)
                frame = await link.client.readexactly(int.from_bytes(prefix))
                if link.loses_requests:
                    continue
                trap = self._network.trap_for(int.from_bytes(frame[:2]))
                if trap is not None:
                    link.is_cut = True
                await self._forward(prefix + frame, link.to_broker)
                if trap is not None and not trap.sprung.done():
                    trap.sprung.set_result(self.node_id)

    async def _answers(self, link: Link) -> None:
        with contextlib.suppress(OSError):
            while data := await link.broker.read(65536):
                if link.is_cut:
                    return
                if not link.loses_answers:
                    await self._forward(data, link.to_client)

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        while self.rate < math.inf and data:
            await _write(data[:_CHUNK], writer)
            await asyncio.sleep(_CHUNK / self.rate)
            data = data[_CHUNK:]
        await _write(data, writer)


async def _write(data: bytes, writer: asyncio.StreamWriter) -> None:
    if writer.transport.is_closing():  # uvloop's write would raise RuntimeError
        raise ConnectionResetError
    writer.write(data)
    await writer.drain()
