"""Opens the socket to a broker, either by racing all addresses of the host name or with the user's connector.

uvloop's `create_connection` has no `happy_eyeballs_delay`, so the race (RFC 8305) is implemented here."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from aioproducer.concurrency.tasks import new_task
from aioproducer.errors import BrokerConnectionError, RequestTimedOutError, escaped
from aioproducer.network.wire import Wire
from aioproducer.protocol.frame import PREFIX_SIZE, is_tls
from aioproducer.security.addresses import ResolvedAddressFilter, refusal
from aioproducer.security.tls import handshake_error
from aioproducer.types import qualified_name

ATTEMPT_DELAY = 0.25
"""Seconds after which the next address is tried in parallel (RFC 8305, section 5)."""

MakeWire: TypeAlias = Callable[[asyncio.AbstractEventLoop], Wire]

Connector: TypeAlias = Callable[[str, int], Awaitable[socket.socket]]
"""An async callable that takes (host, port) and returns a connected socket, e.g. one connected through a proxy."""


async def dial(
    host: str,
    port: int,
    timeout: float,
    *,
    make_wire: MakeWire = Wire,
    connector: Connector | None = None,
    passed_over: int = 0,
    address_filter: ResolvedAddressFilter | None = None,
    on_open: Callable[[], None] = lambda: None,
) -> Wire:
    """Connect to the address of `host` that answers first, within `timeout` seconds including name resolution.

    The addresses are tried in the resolver's order, alternating between address families; each has a head start over
    the next. Addresses that `address_filter` rejects are skipped. The first `passed_over` of the remaining addresses
    are tried last, since an address that accepts connections may still be unusable. A connector resolves the name
    itself if it needs to, and its addresses are not filtered. `on_open` is called when the name has been resolved or
    the connector has returned. If `dial` is cancelled, nothing is left open.

    Raises:
        BrokerConnectionError: no address answered; the text gives the reason for each.
    """
    loop = asyncio.get_running_loop()
    where = f"{host}:{port}"
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            if connector is not None:
                sock = await _connected(connector, host, port)
                on_open()
                return await _adopt(loop, sock, make_wire)
            addresses = _interleaved(await _looked_up(loop, host, port))
            addresses = _allowed(addresses, host, port, address_filter)
            on_open()
            start = passed_over % len(addresses)
            return await _race(loop, addresses[start:] + addresses[:start], port, make_wire)
    except socket.gaierror as error:
        message = f"{where}: the name can't be resolved: {error.strerror or error}"
        raise BrokerConnectionError(message, written=False) from error
    except (OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        if limit.expired():
            reason = f"no connection within {timeout:g} s"
        raise BrokerConnectionError(f"{where}: {reason}", written=False) from error


async def _looked_up(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[tuple[Any, ...]]:
    try:
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except RuntimeError:  # asyncio can no longer start a thread while the interpreter is shutting down
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _interleaved(found: list[tuple[Any, ...]]) -> list[str]:
    """Return the addresses without duplicates, alternating between families (RFC 8305, section 4)."""
    families: dict[int, deque[str]] = {}
    for family, _, _, _, address in found:
        if family in (socket.AF_INET, socket.AF_INET6):
            queue = families.setdefault(family, deque())
            if _text(address) not in queue:
                queue.append(_text(address))
    addresses = []
    while any(families.values()):
        addresses += [queue.popleft() for queue in families.values() if queue]
    return addresses


def _allowed(
    addresses: list[str], host: str, port: int, address_filter: ResolvedAddressFilter | None
) -> list[str]:
    """Return the addresses that the filter accepts. Raises OSError if it accepts none of them."""
    if not addresses:
        raise OSError("the name has no address")
    refusals = {address: refusal(address_filter, host, address, port) for address in addresses}
    allowed = [address for address in addresses if refusals[address] is None]
    if not allowed:
        raise OSError("; ".join(why for why in refusals.values() if why is not None))
    return allowed


def _text(address: tuple[Any, ...]) -> str:
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{scope}" if scope and "%" not in address[0] else str(address[0])


async def _race(
    loop: asyncio.AbstractEventLoop, addresses: list[str], port: int, make_wire: MakeWire
) -> Wire:
    if len(addresses) == 1:
        return await _open(loop, addresses[0], port, make_wire)
    waiting = deque(addresses)
    attempts: dict[asyncio.Task[Wire], str] = {}
    winner: asyncio.Task[Wire] | None = None
    try:
        running: list[asyncio.Task[Wire]] = []
        while winner is None and (waiting or running):
            if waiting:
                address = waiting.popleft()
                attempt = new_task(
                    loop, _open(loop, address, port, make_wire), f"aioproducer dial {address}:{port}"
                )
                attempts[attempt] = address
            running = [attempt for attempt in attempts if not attempt.done()]
            await asyncio.wait(
                running, timeout=ATTEMPT_DELAY if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            winner = next(
                (attempt for attempt in running if attempt.done() and not attempt.exception()), None
            )
            running = [attempt for attempt in running if not attempt.done()]
        await _discard(attempts, winner)
    except GeneratorExit:
        raise  # the coroutine is discarded with its loop: nothing can be awaited
    except BaseException:
        await _discard(attempts, None)
        raise
    if winner is None:
        why = "; ".join(f"{address}: {attempt.exception()}" for attempt, address in attempts.items())
        raise OSError(f"no address answered ({why})")
    return winner.result()


async def _discard(attempts: dict[asyncio.Task[Wire], str], winner: asyncio.Task[Wire] | None) -> None:
    """Cancel the losing attempts, and close any that connected anyway."""
    losers = [attempt for attempt in attempts if attempt is not winner]
    for attempt in losers:
        attempt.cancel()
        attempt.add_done_callback(_abandon)
    if losers:
        await asyncio.wait(losers)


def _abandon(attempt: asyncio.Task[Wire]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort()


async def _open(loop: asyncio.AbstractEventLoop, address: str, port: int, make_wire: MakeWire) -> Wire:
    _, wire = await loop.create_connection(lambda: make_wire(loop), address, port)
    return _opened(wire)


async def shake_hands(wire: Wire, who: object, timeout: float) -> None:
    """Do the TLS handshake, if `wire` uses TLS. No request is sent before the certificate has been verified.

    Raises:
        TlsError: a certificate is rejected, or the peer does not speak TLS.
        BrokerConnectionError: the connection was lost.
        RequestTimedOutError: the handshake took longer than `timeout` seconds.
    """
    try:
        async with asyncio.timeout(timeout):
            await wire.shake_hands()
    except TimeoutError:
        message = f"{who}: no TLS handshake within {timeout:g} s: does this port speak TLS?"
        raise RequestTimedOutError(message, written=False) from None
    except ssl.SSLError as error:
        raise handshake_error(who, error) from error
    except OSError as error:
        raise BrokerConnectionError(f"{who}: {error}: does this port speak TLS?", written=False) from error


async def answers_tls(
    host: str,
    port: int,
    timeout: float,
    connector: Connector | None,
    address_filter: ResolvedAddressFilter | None,
    passed_over: int,
) -> bool:
    """Return whether the port answers a TLS ClientHello. This test is needed because some TLS ports do not answer plain
    text with an alert.

    The ClientHello contains no host name and no secret. The connection is closed after the first bytes of the answer.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    greeting = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), greeting).do_handshake()
    loop = asyncio.get_running_loop()
    wire: Wire | None = None
    try:
        async with asyncio.timeout(timeout):
            wire = await dial(
                host,
                port,
                timeout,
                connector=connector,
                address_filter=address_filter,
                passed_over=passed_over,
            )
            wire.write([greeting.read()])
            return is_tls(await wire.reader.readexactly(PREFIX_SIZE))
    except (BrokerConnectionError, OSError, EOFError):  # a TimeoutError is an OSError
        return False
    finally:
        if wire is not None and not loop.is_closed():
            wire.abort()
            with contextlib.suppress(OSError):
                await wire.writer.wait_closed()


async def _connected(connector: Connector, host: str, port: int) -> socket.socket:
    name = qualified_name(connector)
    try:
        opening = connector(host, port)
        if not inspect.isawaitable(opening):
            raise OSError(
                f"the connector {name} returned {type(opening).__name__}; it must be async and return a connected "
                "socket"
            )
        sock = await opening
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"the connector {name} raised {type(error).__name__}: {escaped(str(error))}") from error
    if not isinstance(sock, socket.socket):
        raise OSError(
            f"the connector {name} returned {type(sock).__name__}; it must return a connected socket"
        )
    return sock


async def _adopt(loop: asyncio.AbstractEventLoop, sock: socket.socket, make_wire: MakeWire) -> Wire:
    """Create the wire for a socket that the user's connector has opened."""
    try:
        sock.setblocking(False)
        _, wire = await loop.create_connection(lambda: make_wire(loop), sock=sock)
    except BaseException:
        sock.close()
        raise
    return _opened(wire)


def _opened(wire: Wire) -> Wire:
    wire.open_writer()
    _keep_alive(wire.writer.get_extra_info("socket"))
    return wire


def _keep_alive(sock: socket.socket | None) -> None:
    """Enable TCP keep-alive, which detects a lost peer within minutes, even while nothing is in flight."""
    if sock is None:
        return
    options = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    with contextlib.suppress(OSError, ValueError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
