"""The probes for one address, from name resolution to an authenticated connection; each is a step of the check."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from typing import Any

from aioproducer import KafkaError, ProducerConfig
from aioproducer.cli.checklist import Checklist
from aioproducer.metrics import Metrics
from aioproducer.network.connection import Connection
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.security.login import Login
from aioproducer.security.tls import certificate_name, handshake_error
from aioproducer.types import Node

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
        if not await self._resolve(node, advice) or not await self._dial(node, advice):
            return None
        if self._login.uses_tls and not await self._shake_hands(node):
            return None
        connection = Connection(
            node, self._config, on_change=lambda _: None, metrics=Metrics(), login=self._login
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

    async def _resolve(self, node: Node, advice: str) -> bool:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                found = await loop.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or f"no answer within {self._timeout:g} s"
            self._list.failed(
                "DNS",
                f"this machine cannot resolve {node.host}: {why}",
                advice or "correct the name in -b or bootstrap.servers, or add it to DNS or to /etc/hosts",
            )
            return False
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        self._list.passed("DNS", ", ".join(addresses))
        return True

    async def _dial(self, node: Node, advice: str) -> bool:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout):
                _, writer = await asyncio.open_connection(node.host, node.port)
        except (OSError, TimeoutError) as error:
            why = (
                _reason(error) or f"no connection within {self._timeout:g} s (does a firewall drop packets?)"
            )
            self._list.failed(
                "TCP",
                f"{node.host}:{node.port}: {why}",
                advice
                or "start the broker, or correct the port; listeners= in the broker's settings lists its ports",
            )
            return False
        self._list.passed("TCP", f"connected in {(time.perf_counter() - began) * 1000:.1f} ms")
        await _closed(writer)
        return True

    async def _shake_hands(self, node: Node) -> bool:
        """Do a separate TLS handshake, to show the broker's certificate."""
        try:
            async with asyncio.timeout(self._timeout):
                _, writer = await asyncio.open_connection(
                    node.host,
                    node.port,
                    ssl=await self._login.tls_context(),
                    server_hostname=certificate_name(node.host),
                )
        except ssl.SSLError as error:
            self._list.failed("TLS", str(handshake_error(f"{node.host}:{node.port}", error)))
            return False
        except KafkaError as error:
            self._list.failed("TLS", str(error))
            return False
        except (OSError, TimeoutError) as error:
            why = _reason(error) or f"no answer to the handshake within {self._timeout:g} s"
            self._list.failed("TLS", why, "is this a PLAINTEXT or SASL_PLAINTEXT listener?")
            return False
        session: ssl.SSLObject = writer.get_extra_info("ssl_object")
        self._show_certificate(session)
        await _closed(writer)
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


def _reason(error: BaseException) -> str:
    """Return the system's text for an error, even if asyncio has replaced that text; "" for a timeout."""
    if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
        return ""
    number = getattr(error, "errno", None)
    return (os.strerror(number) if number else "") or str(error) or type(error).__name__


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass  # the peer closed the connection first, but the probe has succeeded
