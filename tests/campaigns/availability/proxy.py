"""A TCP proxy that can be half-open: it accepts connections but carries no data."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from tests.support.accepting import AcceptingServer

HOST = "127.0.0.1"
CHUNK = 256 * 1024


class HalfOpenProxy:
    """A proxy in front of one broker, used with `async with`.

    From fall_silent() to recover(), every byte is dropped. A connection that is open during that time stays silent
    forever, like one whose state a firewall has lost; connections opened later work."""

    def __init__(self, broker_host: str, broker_port: int = 0, port: int = 0) -> None:
        self.port = port
        self.broker_host, self.broker_port = broker_host, broker_port
        self.accepted = 0
        """Connections accepted since the start."""
        self._is_silent = False
        self._silent: set[asyncio.StreamWriter] = set()
        """The client sides of the connections that carry nothing."""
        self._open: set[asyncio.StreamWriter] = set()
        self._server = AcceptingServer(self._serve, "half-open proxy")

    async def __aenter__(self) -> Self:
        self.port = await self._server.listen(HOST, self.port)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._server.close()

    def fall_silent(self) -> None:
        """Carry nothing from now on."""
        self._is_silent = True
        self._silent |= self._open

    def recover(self) -> None:
        """Carry data again, on connections opened from now on."""
        self._is_silent = False

    @property
    def open(self) -> int:
        """The number of open client connections."""
        return len(self._open)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._open.add(to_client)
        if self._is_silent:
            self._silent.add(to_client)
        to_broker: asyncio.StreamWriter | None = None
        try:
            broker, to_broker = await asyncio.open_connection(self.broker_host, self.broker_port)
            pumps = [
                asyncio.create_task(self._pump(client, to_broker, to_client)),
                asyncio.create_task(self._pump(broker, to_client, to_client)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.wait(pumps)
        except OSError:
            pass  # the broker is down: the client's connection is closed
        finally:
            self._open.discard(to_client)
            self._silent.discard(to_client)
            if to_broker is not None:
                to_broker.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if writer.transport.is_closing():
                    return  # uvloop's write would raise RuntimeError
                if client not in self._silent:
                    writer.write(data)
                    await writer.drain()
