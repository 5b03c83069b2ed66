"""Bugs planted in the producer's connections; see `planted.py`.

Importing this module adds them to `planted.BUGS`."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

from aioproducer.concurrency.wakeup import CLOCK_SLACK
from aioproducer.network.brokers import Brokers
from aioproducer.network.connection_state import ConnectionState
from aioproducer.network.handshake import BrokerVersions
from aioproducer.network.request_stream import RequestStream
from tests.campaigns.simulation.plan import ACKS_1, V2
from tests.campaigns.simulation.planted import planted_bug


@planted_bug(
    "a cluster counts as v1 while no connection is open",
    V2,
    60,
    "while it ran: a transaction runs as transactions v1",
)
def forgotten_features() -> Iterator[None]:
    """The finalized level of a feature is not kept longer than the connection that reported it."""

    def finalized_feature(self: Brokers, name: str) -> int:
        known = [
            entry.connection.versions for entry in self._entries.values() if entry.connection is not None
        ]
        newest = max(known, key=lambda versions: versions.features_epoch, default=BrokerVersions({}))
        return newest.features.get(name, 0)

    with mock.patch.object(Brokers, "finalized_feature", finalized_feature):
        yield


@planted_bug(
    "a connection with a request in flight is closed as idle", ACKS_1, 150, "nothing_fails_for_no_reason"
)
def closed_in_flight() -> Iterator[None]:
    """The idle check ignores requests in flight. If such a request is sent again on another connection, it may fail
    in the same way."""
    on_timer = RequestStream._on_timer

    def on_time(self: RequestStream) -> None:
        limit = self._config.connections_max_idle
        idle_at = self.last_used + limit
        if limit and self.state is ConnectionState.READY and idle_at <= self._loop.time() + CLOCK_SLACK:
            self._shut(None)
            return
        on_timer(self)
        if limit and self._timer is not None:
            self._arm(idle_at)

    with mock.patch.object(RequestStream, "_on_timer", on_time):
        yield
