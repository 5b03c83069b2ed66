"""The states of a connection, and the changes that are allowed."""

from __future__ import annotations

from enum import Enum


class ConnectionState(Enum):
    """The state of a connection."""

    CONNECTING = "connecting"
    TLS = "tls"
    NEGOTIATING = "negotiating"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    REAUTHENTICATING = "reauthenticating"
    DRAINING = "draining"
    """Accepts no more requests, and closes when the last one in flight is answered."""
    CLOSED = "closed"


TRANSITIONS: dict[ConnectionState, tuple[ConnectionState, ...]] = {
    ConnectionState.CONNECTING: (ConnectionState.TLS, ConnectionState.CLOSED),
    ConnectionState.TLS: (ConnectionState.NEGOTIATING, ConnectionState.CLOSED),
    ConnectionState.NEGOTIATING: (ConnectionState.AUTHENTICATING, ConnectionState.CLOSED),
    ConnectionState.AUTHENTICATING: (ConnectionState.READY, ConnectionState.CLOSED),
    ConnectionState.READY: (
        ConnectionState.REAUTHENTICATING,
        ConnectionState.DRAINING,
        ConnectionState.CLOSED,
    ),
    ConnectionState.REAUTHENTICATING: (
        ConnectionState.READY,
        ConnectionState.DRAINING,
        ConnectionState.CLOSED,
    ),
    ConnectionState.DRAINING: (ConnectionState.CLOSED,),
    ConnectionState.CLOSED: (),
}
