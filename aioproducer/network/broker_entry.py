"""The state of one broker across its connections: consecutive failures, back-off, the last error.

Brokers decides when to connect; nothing here does I/O or reads a clock."""

from __future__ import annotations

import asyncio
from typing import Any

from aioproducer.config import AddressFilter
from aioproducer.errors import BrokerConnectionError, KafkaError, escaped
from aioproducer.network.connection import Connection
from aioproducer.network.connection_state import ConnectionState
from aioproducer.protocol.api import ApiKey
from aioproducer.security.addresses import as_address, described
from aioproducer.types import Node

FIRST_ASKED = (4, 4, 3, 3, 0)
"""The version of the first ApiVersions request, indexed by the number of consecutive connections that the broker
closed instead of answering. Some brokers (Azure Event Hubs) predate KIP-511 and close the connection if they do not
know the version."""


class BrokerEntry:
    """The state of one broker, which outlives any single connection to it."""

    __slots__ = (
        "attempt",
        "connection",
        "dialing_since",
        "failed_setups",
        "failing_since",
        "failures",
        "hang_ups",
        "last_error",
        "losses",
        "node",
        "ready_since",
        "retry_at",
        "task",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        # the attempt to connect
        self.task: asyncio.Task[None] | None = None
        """The task for the current attempt to connect, if any."""
        self.attempt: Connection | None = None
        """The first connection in that attempt."""
        self.dialing_since = 0.0
        # changed by connected(), setup_failed(), disconnected() and lost()
        self.connection: Connection | None = None
        self.ready_since = 0.0
        self.failures = 0
        """The number of consecutive connections that could not be established or did not last."""
        self.failed_setups = 0
        """The number of consecutive connections that could not be established."""
        self.hang_ups = 0
        """The number of consecutive connections that the broker closed instead of answering ApiVersions."""
        self.failing_since: float | None = None
        """The loop time at which the first attempt counted in `failed_setups` began."""
        self.losses = 0
        """The total number of connections that were lost or could not be established."""
        self.retry_at = 0.0
        self.last_error: KafkaError | None = None

    @property
    def is_ready(self) -> bool:
        connection = self.connection  # read only once, here and below: metrics() may run in another thread
        return connection is not None and connection.state is ConnectionState.READY

    @property
    def is_connecting(self) -> bool:
        return self.task is not None and self.connection is None

    def has_failed_since(self, before: float) -> bool:
        """Return whether all attempts to connect have failed since the loop time `before`, and none is in progress."""
        is_idle = self.connection is None and self.task is None
        return is_idle and self.failing_since is not None and self.failing_since <= before

    @property
    def progress(self) -> str:
        """The step that the current attempt to connect is waiting for, as text."""
        attempt = self.attempt
        return "not connected yet" if attempt is None or self.connection is not None else attempt.progress

    @property
    def throttled_until(self) -> float:
        connection = self.connection
        return connection.throttled_until if connection is not None else 0.0

    @property
    def first_asked(self) -> int:
        """The version of the first ApiVersions request on the next connection."""
        return FIRST_ASKED[min(self.hang_ups, len(FIRST_ASKED) - 1)]

    def gauges(self, now: float) -> dict[str, Any]:
        """Return the state for metrics(). `now` is a loop time."""
        connection, error = self.connection, self.error
        return {
            "host": self.node.host,
            "port": self.node.port,
            "rack": self.node.rack,
            "is_connected": self.is_ready,
            "in_flight": 0 if connection is None else connection.in_flight,
            "throttled_for": max(self.throttled_until - now, 0.0),
            "last_error": None if error is None else str(error),
        }

    def describe(self, now: float) -> dict[str, Any]:
        """Return the state for describe(). `now` is a loop time."""
        described = {"node_id": self.node.node_id, **self.gauges(now), "failures": self.failures}
        connection = self.connection
        if connection is not None:
            described["connected_for"] = max(now - self.ready_since, 0.0)
            described["security"] = connection.security
            described["api_versions"] = connection.versions.described
        return described

    def connected(self, connection: Connection, now: float) -> None:
        """Start using a connection that has been established."""
        self.connection = connection
        self.ready_since = now
        self.failed_setups = 0
        known = connection.versions.ranges.get(ApiKey.API_VERSIONS)
        if known is not None and known.max >= FIRST_ASKED[0]:
            # The broker supports the newest version, so the earlier connections must have been closed by an
            # intermediary.
            self.hang_ups = 0
        self.failing_since = None
        self.last_error = None

    def setup_failed(self, connection: Connection) -> None:
        """Count a connection that could not be established. The caller then also calls `lost`."""
        self.failed_setups += 1
        self.hang_ups = self.hang_ups + 1 if connection.hung_up_on_versions else 0
        if self.failing_since is None:
            self.failing_since = self.dialing_since

    def disconnected(self, now: float, lasting: float) -> None:
        """Forget the closed connection.

        If it was ready for at least `lasting` seconds, earlier failures no longer count.
        """
        self.connection = None
        if now - self.ready_since >= lasting:
            self.failures = 0

    def lost(self, error: KafkaError, retry_at: float) -> None:
        """Count a connection that was lost or could not be established."""
        self.losses += 1
        self.failures += 1
        self.retry_at = retry_at
        self.last_error = error

    @property
    def error(self) -> KafkaError | None:
        """Why the broker is not connected; None if it is connected or no attempt to connect has been made."""
        error = self.last_error
        if error is None and self.is_connecting:
            return BrokerConnectionError(f"{self.node}: {self.progress}", written=False)
        return error

    @property
    def reason(self) -> str:
        """Why the broker is not connected, as text that names the broker."""
        error = self.last_error
        if error is None:
            return f"{self.node}: {'connected' if self.is_ready else self.progress}"
        if str(self.node.port) in error.message:
            return error.message  # most errors already begin with the address
        return f"{self.node}: {error.message}"


def address_of(node: Node, address_filter: AddressFilter | None) -> tuple[str, int]:
    """Return the address to connect to: the `address_filter` setting may map or reject an advertised address.

    Raises:
        BrokerConnectionError: the filter rejects the address, raises an exception, or returns an invalid value.
    """
    if address_filter is None or node.node_id < 0:
        return node.host, node.port
    try:
        address: object = address_filter(node.host, node.port, node.node_id)
    except Exception as error:
        why = f"address_filter raised {type(error).__name__}: {escaped(str(error))}"
        raise BrokerConnectionError(f"{node}: {why}", written=False) from error
    if address is None:
        raise BrokerConnectionError(f"{node}: address_filter rejected this address", written=False)
    if (found := as_address(address)) is None:
        why = f"address_filter returned {described(address)}; it must return (host, port), or None to reject"
        raise BrokerConnectionError(f"{node}: {why} the broker", written=False)
    return found
