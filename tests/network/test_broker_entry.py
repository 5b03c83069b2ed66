"""The state that is kept about a broker across its connections."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aioproducer.errors import BrokerConnectionError
from aioproducer.network.broker_entry import FIRST_ASKED, BrokerEntry, address_of
from aioproducer.network.connection_state import ConnectionState
from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.types import Node

NODE = Node(3, "b", 9093)
ERROR = BrokerConnectionError("it hung up", written=False)


def a_connection(newest: int = 4, hung_up: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        state=ConnectionState.READY,
        versions=SimpleNamespace(ranges={ApiKey.API_VERSIONS: VersionRange(0, newest)}),
        hung_up_on_versions=hung_up,
        throttled_until=7.5,
        progress="no connection yet",
    )


def test_failed_setups_count_until_a_connection_is_established():
    entry = BrokerEntry(NODE)
    entry.dialing_since = 5.0
    for _ in range(2):
        entry.setup_failed(a_connection())
        entry.lost(ERROR, retry_at=9.0)
        entry.dialing_since = 8.0

    assert (entry.failed_setups, entry.failures, entry.losses) == (2, 2, 2)
    assert entry.failing_since == 5.0, "the first attempt"
    assert (entry.retry_at, entry.error) == (9.0, ERROR)

    entry.connected(a_connection(), now=10.0)

    assert (entry.failed_setups, entry.failing_since, entry.error) == (0, None, None)
    assert (entry.failures, entry.losses) == (2, 2), "it has not lasted yet"
    assert entry.is_ready
    assert entry.throttled_until == 7.5


class Vanishing(BrokerEntry):
    """An entry whose connection or error disappears after the first read, as may happen to another thread."""

    __slots__ = ("first",)
    shown: str

    def __getattribute__(self, name: str) -> object:
        if name != type(self).shown:
            return super().__getattribute__(name)
        first, self.first = self.first, None
        return first


@pytest.mark.parametrize("read", ["is_ready", "throttled_until", "error", "reason", "gauges", "describe"])
@pytest.mark.parametrize("shown", ["connection", "last_error"])
def test_the_state_of_a_broker_may_be_read_in_another_thread(read, shown, monkeypatch):
    monkeypatch.setattr(Vanishing, "shown", shown, raising=False)
    connection = a_connection()
    connection.in_flight, connection.security = 2, "plain text"
    entry = Vanishing(NODE)
    entry.first = connection if shown == "connection" else ERROR

    found = getattr(entry, read)
    if callable(found):
        found = found(5.0)

    if isinstance(found, dict):
        assert found["node_id" if read == "describe" else "host"] in (3, "b")
        assert found["last_error"] in (None, "it hung up")
    else:
        assert found in (True, 0.0, 7.5, None, ERROR, "broker 3 (b:9093): it hung up", f"{NODE}: connected")


@pytest.mark.parametrize(("now", "failures"), [(11.9, 1), (12.0, 0)])
def test_failures_are_forgotten_once_a_connection_has_lasted(now, failures):
    entry = BrokerEntry(NODE)
    entry.lost(ERROR, retry_at=9.0)
    entry.connected(a_connection(), now=10.0)

    entry.disconnected(now, lasting=2.0)

    assert entry.failures == failures
    assert entry.connection is None
    assert not entry.is_ready
    assert entry.throttled_until == 0.0


def test_a_broker_that_hangs_up_on_api_versions_is_asked_for_older_versions():
    entry = BrokerEntry(NODE)
    asked = [entry.first_asked]
    for _ in range(5):
        entry.setup_failed(a_connection(hung_up=True))
        asked.append(entry.first_asked)

    assert asked == [*FIRST_ASKED, FIRST_ASKED[-1]]
    entry.connected(a_connection(newest=0), now=1.0)
    assert entry.first_asked == FIRST_ASKED[-1], "the broker is old"
    entry.connected(a_connection(newest=4), now=1.0)
    assert entry.first_asked == FIRST_ASKED[0], "not the broker but an intermediary had hung up"


def test_another_failure_resets_the_count_of_hang_ups():
    entry = BrokerEntry(NODE)
    entry.setup_failed(a_connection(hung_up=True))
    entry.setup_failed(a_connection())

    assert entry.hang_ups == 0


def test_the_reason_names_the_broker_once():
    entry = BrokerEntry(NODE)
    assert entry.reason == f"{NODE}: not connected yet"
    assert entry.error is None

    entry.task, entry.attempt = object(), a_connection()
    assert entry.reason == f"{NODE}: no connection yet"
    assert str(entry.error) == f"{NODE}: no connection yet"

    entry.lost(ERROR, retry_at=1.0)
    assert entry.reason == f"{NODE}: it hung up"
    entry.lost(BrokerConnectionError("b:9093: it hung up"), retry_at=1.0)
    assert entry.reason == "b:9093: it hung up"

    entry.task = None
    entry.connected(a_connection(), now=1.0)
    assert entry.reason == f"{NODE}: connected"


@pytest.mark.parametrize(
    ("answer", "found"),
    [(("proxy", 1), ("proxy", 1)), (None, "rejected this address"), (17, "it must return (host, port)")],
)
def test_address_filter_maps_or_rejects_advertised_addresses(answer, found):
    if isinstance(found, tuple):
        assert address_of(NODE, lambda *_: answer) == found
    else:
        with pytest.raises(BrokerConnectionError) as raised:
            address_of(NODE, lambda *_: answer)
        assert found in str(raised.value)
        assert str(NODE) in str(raised.value)


def test_bootstrap_addresses_are_not_filtered():
    assert address_of(Node(-1, "b", 9092), lambda *_: None) == ("b", 9092)
    assert address_of(NODE, None) == ("b", 9093)
