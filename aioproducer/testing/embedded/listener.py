"""A listening socket that can be closed without losing a connection that was just accepted.

asyncio accepts a connection in one turn of the loop and creates its transport in the next. If the server is closed in
between, the transport is never completed: no code closes the connection, and its client waits until the garbage
collector closes the socket. uvloop accepts a connection and creates its transport in the same turn."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from typing import Any

TURNS = 10
"""The maximum number of loop turns to wait for accepted connections to get their transports."""


class CountingListener(socket.socket):
    """A listening socket that counts its connections; `listen` creates it."""

    accepted = 0
    """The number of connections that asyncio has accepted."""
    made = 0
    """The number of accepted connections that have a transport."""
    has_stopped = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, unless this socket has been stopped."""
        if self.has_stopped:
            raise BlockingIOError
        connection = super().accept()
        self.accepted += 1
        return connection


def listen(loop: asyncio.AbstractEventLoop, host: str, port: int) -> CountingListener | None:
    """Return a socket that is bound to this address with the options that asyncio uses.

    The result is None if `host` is not an IP address, and on event loops other than asyncio's selector loop.

    Raises:
        OSError: the port is in use.
    """
    if not isinstance(loop, asyncio.SelectorEventLoop) or not _is_ip(host):
        return None
    is_v6 = ipaddress.ip_address(host).version == 6
    # asyncio sets TCP_NODELAY only on sockets that were created with IPPROTO_TCP.
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    listener = CountingListener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on Windows, this option would let two listeners share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"error while attempting to bind on address {(host, port)}: {str(error.strerror).lower()}",
        ) from None
    return listener


def close(server: asyncio.Server, listener: CountingListener | None, turns: int = TURNS) -> None:
    """Close a server as soon as every accepted connection has its transport, or after `turns` turns of the loop."""
    if listener is not None:
        listener.has_stopped = True
        if listener.accepted > listener.made and turns:
            server.get_loop().call_soon(close, server, listener, turns - 1)
            return
    server.close()


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
