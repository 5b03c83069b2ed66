"""The combined state of all brokers: how their errors are summarized, and which of them are logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioproducer import Producer
from aioproducer.errors import AuthenticationError, BrokerConnectionError, KafkaError, ProtocolError
from aioproducer.network.broker_entry import BrokerEntry
from aioproducer.network.reachability import WARNING_PERIOD, Reachability
from aioproducer.types import Node

LOST = BrokerConnectionError("a:1: it hung up", written=False)
REFUSED = AuthenticationError("b:2: wrong password")


class Brokers:
    """Two brokers, neither of which is connected."""

    def __init__(self) -> None:
        config = Producer(reconnect_backoff_max_ms=3000).config
        self.first, self.second = BrokerEntry(Node(1, "a", 1)), BrokerEntry(Node(2, "b", 2))
        self.entries = {1: self.first, 2: self.second}
        self.reachability = Reachability(config, self.entries, config.log("test"))

    def lose(self, error: KafkaError, now: float, *, is_starting: bool = False) -> None:
        """Lose the first broker's connection."""
        self.first.lost(error, now + 1)
        self.reachability.log_loss(self.first, error, 1.0, now, is_starting=is_starting)


def test_a_rejected_login_is_found_no_matter_which_broker_rejects_it():
    brokers = Brokers()
    brokers.first.lost(LOST, 1.0)
    assert brokers.reachability.refusal is None

    brokers.second.lost(REFUSED, 1.0)

    assert brokers.reachability.refusal is REFUSED


def test_brokers_are_hopeless_only_if_every_error_is_permanent():
    brokers = Brokers()
    brokers.first.lost(ProtocolError("a:1: not Kafka"), 1.0)
    assert not brokers.reachability.is_hopeless, "the second one was not tried"

    brokers.second.lost(LOST, 1.0)
    assert not brokers.reachability.is_hopeless

    brokers.second.lost(ProtocolError("b:2: not Kafka"), 1.0)
    assert brokers.reachability.is_hopeless


@pytest.mark.parametrize(("seconds", "is_unreachable"), [(2.0, False), (4.0, True)])
async def test_brokers_are_unreachable_once_all_have_failed_for_the_longest_back_off(seconds, is_unreachable):
    brokers = Brokers()
    now = asyncio.get_running_loop().time()
    brokers.first.failing_since = now - 100

    assert not brokers.reachability.is_unreachable
    brokers.second.failing_since = now - seconds

    assert brokers.reachability.is_unreachable is is_unreachable


def test_each_unreachable_broker_is_named_with_its_error():
    brokers = Brokers()
    brokers.first.lost(LOST, 1.0)

    error = brokers.reachability.unreachable()

    assert "no broker is reachable: a:1: it hung up; broker 2 (b:2): not connected yet" in str(error)
    assert error.written is False
    assert brokers.reachability.errors() == {"a:1": LOST}


def test_a_broker_that_is_added_later_is_included():
    brokers = Brokers()
    third = brokers.entries[3] = BrokerEntry(Node(3, "c", 3))
    third.lost(REFUSED, 1.0)

    assert brokers.reachability.errors() == {"c:3": REFUSED}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_first_loss_is_a_warning_and_later_ones_are_warnings_once_in_a_period(caplog):
    brokers = Brokers()
    brokers.second.lost(REFUSED, 1.0)

    for now in (100.0, 101.0, 99.0 + WARNING_PERIOD, 100.0 + WARNING_PERIOD):
        brokers.lose(LOST, now)

    first, later = warnings(caplog)
    assert first.endswith("a:1: it hung up; next attempt in 1 s at the earliest")
    assert later.endswith("earliest; 4 attempts have failed; 1 other broker cannot be reached")


def test_before_a_cluster_is_known_only_the_first_loss_is_a_warning(caplog):
    brokers = Brokers()

    for now in (100.0, 100.0 + 2 * WARNING_PERIOD):
        brokers.lose(LOST, now, is_starting=True)

    assert len(warnings(caplog)) == 1
