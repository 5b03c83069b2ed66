"""Checks addresses against the user's address filters, and against the IP addresses that are rejected by default.

The functions do no I/O. `Brokers` calls them before it connects to a broker; the dialer calls them before it opens a
socket."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from aioproducer.errors import escaped

ResolvedAddressFilter: TypeAlias = Callable[[str, str, int], bool]
"""(host, IP address, port) -> whether to connect there."""

_MOST_SHOWN = 80

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""The NAT64 prefixes (RFC 6052, RFC 8215). The last 32 bits are an IPv4 address, unless a gateway uses a prefix within
the second one that is shorter than 96 bits."""
_CREDENTIAL_SERVERS = frozenset(
    {IPv6Address("fd00:ec2::254"), IPv6Address("fd00:ec2::23"), IPv6Address("fd20:ce::254")}
)
"""Servers that hand out a machine's credentials at IPv6 addresses that are not link-local: AWS's metadata server and
EKS Pod Identity Agent, and Google Cloud's metadata server."""


def as_address(value: object) -> tuple[str, int] | None:
    """Return the value if it is (host, port), else None."""
    if not isinstance(value, tuple) or len(value) != 2:
        return None
    host, port = value
    if not isinstance(host, str) or not host or isinstance(port, bool) or not isinstance(port, int):
        return None
    return (host, port) if 0 < port < 65536 else None


def described(value: object) -> str:
    """Describe the result of a user's function for an error message. If it is a coroutine, close it."""
    if inspect.iscoroutine(value):
        value.close()  # it will never be awaited
        return "a coroutine (use a plain function, not an async one)"
    if inspect.isawaitable(value):
        return f"an awaitable {type(value).__name__} (use a plain function)"
    return escaped(repr(value), _MOST_SHOWN)


def refusal(ask: ResolvedAddressFilter | None, host: str, address: str, port: int) -> str | None:
    """Return why the client must not connect to `host` at this IP address; None if it may."""
    if ask is None:
        if is_link_local(address):
            return f"{address} is a link-local address; to allow it, set resolved_address_filter"
        if _parsed(address) in _CREDENTIAL_SERVERS:
            return f"{address} is the address of a cloud's credential server; to allow it, set resolved_address_filter"
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
    out credentials.

    This includes an IPv4 address that is embedded in an IPv6 address: IPv4-mapped, NAT64 and 6to4 addresses.
    """
    found = _parsed(address)
    if isinstance(found, IPv6Address):
        found = _embedded(found) or found
    return found is not None and found.is_link_local


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that a host or a gateway connects to instead of this IPv6 address."""
    if any(address in prefix for prefix in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    """Return the address without its scope; None if a custom resolver returned something other than an IP address."""
    try:
        return ip_address(address.partition("%")[0])
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine: localhost or a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"
