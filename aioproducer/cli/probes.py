"""The probes for one address, from name resolution to an authenticated connection; each is a step of the check."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from functools import partial
from typing import Any, TypeAlias

from aioproducer import KafkaError, ProducerConfig
from aioproducer.cli.checklist import Checklist
from aioproducer.errors import BrokerConnectionError
from aioproducer.metrics import Metrics
from aioproducer.network.broker_entry import address_of
from aioproducer.network.connection import Attempt, Connection
from aioproducer.network.dialer import MakeWire, dial, shake_hands
from aioproducer.network.wire import TlsWire, Wire
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.security.login import Login
from aioproducer.security.tls import certificate_name
from aioproducer.types import Node

Address: TypeAlias = tuple[str, int]
"""Host and port."""

CLOSE_TO_EXPIRY = 30
"""A certificate needs attention if it expires in fewer days than this."""
DAY = 86400.0


class Prober:
    """Probes addresses with the settings and the credentials of one producer."""

    def __init__(self, config: ProducerConfig, checklist: Checklist) -> None:
        self._config = config
        self._list = checklist
        self._login = Login(config)
        self._timeout = config.socket_connection_setup_timeout

    async def connect(self, node: Node, *, advice: str = "") -> Connection | None:
        """Probe the address of a node step by step. Return the connection, or None if a step failed.

        Args:
            node: a bootstrap address, or a broker with the address that it advertises.
            advice: what to do if the address cannot be reached; by default, advice about bootstrap addresses.
        """
        try:
            address = address_of(node, self._config.address_filter)
        except KafkaError as error:
            self._list.failed("address", str(error))
            return None
        if not await self._resolve(address, advice) or not await self._dial(address, advice):
            return None
        if self._login.uses_tls and not await self._shake_hands(address, certificate_name(node.host)):
            return None
        connection = Connection(
            node,
            self._config,
            Attempt(address),
            on_change=lambda _: None,
            metrics=Metrics(),
            login=self._login,
        )
        if not await self._attempt("ApiVersions", connection.reach()):
            return None
        self._list.passed("ApiVersions", _versions(connection))
        if self._login.uses_sasl:
            if not await self._attempt("SASL", connection.authenticate()):
                return None
            self._list.passed("SASL", _identity(self._config))
        elif not await self._attempt("connection", connection.authenticate()):
            return None
        return connection

    async def _attempt(self, name: str, work: Any) -> bool:
        try:
            await work
        except KafkaError as error:
            self._list.failed(name, str(error))
            return False
        return True

    async def _resolve(self, address: Address, advice: str) -> bool:
        host, port = address
        if self._config.connector is not None:
            return True  # a connector resolves the name itself, perhaps on another machine
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # a ValueError: the name cannot be encoded for DNS
            why = getattr(error, "strerror", None) or str(error) or f"no answer within {self._timeout:g} s"
            self._list.failed(
                "DNS",
                f"this machine cannot resolve {host}: {why}",
                advice or "correct the name in -b or bootstrap.servers, or add it to DNS or to /etc/hosts",
            )
            return False
        addresses = list(dict.fromkeys(str(one[0]) for *_, one in found))
        self._list.passed("DNS", ", ".join(addresses))
        return True

    async def _open(self, address: Address, make_wire: MakeWire = Wire) -> Wire:
        """Connect as a producer does: through the connector, or only to IP addresses that the client may connect to."""
        host, port = address
        return await dial(
            host,
            port,
            self._timeout,
            make_wire=make_wire,
            connector=self._config.connector,
            address_filter=self._config.resolved_address_filter,
        )

    async def _dial(self, address: Address, advice: str) -> bool:
        host, port = address
        began = time.perf_counter()
        try:
            wire = await self._open(address)
        except BrokerConnectionError as error:
            why = (
                _reason(error) or f"no connection within {self._timeout:g} s (does a firewall drop packets?)"
            )
            self._list.failed(
                "TCP",
                f"{host}:{port}: {why}",
                advice
                or "start the broker, or correct the port; listeners= in the broker's settings lists its ports",
            )
            return False
        self._list.passed("TCP", f"connected in {(time.perf_counter() - began) * 1000:.1f} ms")
        await _closed(wire)
        return True

    async def _shake_hands(self, address: Address, name: str) -> bool:
        """Perform a separate TLS handshake to show the broker's certificate, which must be valid for `name`."""
        host, port = address
        try:
            async with asyncio.timeout(self._timeout):
                context = await self._login.tls_context()
            wire = await self._open(address, partial(_TlsProbe, context=context, server_name=name))
        except TimeoutError:
            self._list.failed("TLS", f"the certificate files were not read within {self._timeout:g} s")
            return False
        except KafkaError as error:
            self._list.failed("TLS", str(error))
            return False
        assert isinstance(wire, _TlsProbe)
        try:
            await shake_hands(wire, f"{host}:{port}", self._timeout)
            self._show_certificate(wire.session)
        except KafkaError as error:
            self._list.failed("TLS", str(error))
            return False
        finally:
            await _closed(wire)
        return True

    def _show_certificate(self, session: ssl.SSLObject) -> None:
        cipher = session.cipher()
        secured = f"{session.version()}, {cipher[0] if cipher else 'no cipher'}"
        certificate = session.getpeercert()
        if not certificate:
            self._list.look(
                "TLS", f"{secured}; the certificate is not verified", "use a context that verifies it"
            )
            return
        days = (ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()) / DAY
        text = f"{secured}; certificate {described(certificate)}, {days:.0f} days left"
        if days < CLOSE_TO_EXPIRY:
            self._list.look("TLS", text, "renew the broker's certificate")
        else:
            self._list.passed("TLS", text)


def described(certificate: Any) -> str:
    """Describe a certificate (a dict that `getpeercert()` returned): its names, its issuer and its expiry."""
    names = [name for _, name in certificate.get("subjectAltName", ())]
    issuer = [value for part in certificate.get("issuer", ()) for _, value in part]
    return f"for {', '.join(names) or 'no name'} by {', '.join(issuer)}, until {certificate['notAfter']}"


def _versions(connection: Connection) -> str:
    ranges, features = connection.versions.ranges, connection.versions.features
    text = f"{len(ranges)} APIs"
    if produce := ranges.get(ApiKey.PRODUCE):
        text += f", Produce up to version {produce.max}"
    return text + "".join(f", {name} {level}" for name, level in sorted(features.items()))


def _identity(config: ProducerConfig) -> str:
    user = f" as {config.sasl_plain_username}" if config.sasl_plain_username is not None else ""
    return f"{config.sasl_mechanism}{user}"


def _reason(error: BrokerConnectionError) -> str:
    """Return the system's text for a failed connection, even if asyncio has replaced that text; "" for a timeout."""
    cause = error.__cause__
    number = getattr(cause, "errno", None) or 0
    if isinstance(cause, TimeoutError) and not number:
        return ""
    return os.strerror(number) if number > 0 else str(cause or error)  # resolvers use negative numbers


class _TlsProbe(TlsWire):
    """A TLS wire that exposes its session."""

    @property
    def session(self) -> ssl.SSLObject:
        """The TLS session. After the handshake, it has a version, a cipher and the broker's certificate."""
        return self._tls


async def _closed(wire: Wire) -> None:
    wire.abort()
    with contextlib.suppress(OSError):  # the peer closed the connection first
        await wire.writer.wait_closed()
