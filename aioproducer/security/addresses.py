"""Checks addresses against the user's address filters, and against the IP addresses that are rejected by default.

The functions do no I/O. `Brokers` calls them before it connects to a broker; the dialer calls them before it opens a
socket."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import TypeAlias

from aioproducer.errors import escaped

ResolvedAddressFilter: TypeAlias = Callable[[str, str, int], bool]
"""(host, IP address, port) -> whether to connect there."""

_MOST_SHOWN = 80


def as_address(value: object) -> tuple[str, int] | None:
    """Return the value if it is (host, port), else None."""
    if not isinstance(value, tuple) or len(value) != 2:
        return None
    host, port = value
    if not isinstance(host, str) or not host or isinstance(port, bool) or not isinstance(port, int):
        return None
    return (host, port) if 0 < port < 65536 else None


def described(value: object) -> str:
    """Describe the result of a user's function for an error text. If it is a coroutine, close it."""
    if inspect.iscoroutine(value):
        value.close()  # it will never be awaited
        return "a coroutine (use a plain function, not an async one)"
    if inspect.isawaitable(value):
        return f"an awaitable {type(value).__name__} (use a plain function)"
    return escaped(repr(value), _MOST_SHOWN)


def refusal(ask: ResolvedAddressFilter | None, host: str, address: str, port: int) -> str | None:
    """Return the reason why the client must not connect to this IP address of `host`; None if it may."""
    if ask is None:
        if is_link_local(address):
            return f"{address} is a link-local address; to allow it, set resolved_address_filter"
        return None
    try:
        allowed: object = ask(host, address, port)
    except Exception as error:
        return f"resolved_address_filter raised {type(error).__name__}: {escaped(str(error))}"
    if allowed is True:
        return None
    if allowed is False:
        return f"resolved_address_filter rejected {address}"
    return (
        f"resolved_address_filter returned {described(allowed)} for {address}; it must return True or False"
    )


def is_link_local(address: str) -> bool:
    """Return whether the address is in 169.254.0.0/16 or fe80::/10, where cloud providers run the servers that hand
    out credentials."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False  # not an IP address: a special resolver returned it
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_link_local
    return found.is_link_local


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: localhost or a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
