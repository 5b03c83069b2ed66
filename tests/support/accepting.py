"""A server for proxies and simulated brokers. It leaves no task or socket behind, no matter when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from aioproducer.testing.embedded import listener

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[object, object, None]]


class AcceptingServer:
    """Runs `serve` in a task for each connection, and closes the connection when the task ends."""

    def __init__(self, serve: Serve, name: str) -> None:
        self._serve = serve
        self._name = name
        """The name of each task."""
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_closed = False
        self._listener: listener.CountingListener | None
        self._server: asyncio.Server

    async def listen(self, host: str, port: int = 0) -> int:
        """Listen on this port, or on a free one if it is 0. Return the port."""
        self._listener = listener.listen(asyncio.get_running_loop(), host, port)
        if self._listener is not None:
            self._server = await asyncio.start_server(self._accept, sock=self._listener)
        else:
            self._server = await asyncio.start_server(self._accept, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is not None:
            self._listener.made += 1
        if self._is_closed:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name=self._name)
        self._open[task] = writer
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step could not close the connection itself.
        self._open.pop(task).transport.abort()

    async def close(self) -> None:
        """Stop listening, cancel all tasks and wait for their connections to be closed."""
        self._is_closed = True
        listener.close(self._server, self._listener)
        # A connection that the loop has already accepted reaches _accept() a few turns later and is rejected there.
        for _ in range(3):
            await asyncio.sleep(0)
        writers = list(self._open.values())
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await self._server.wait_closed()
