"""The calls that send one record from any thread: which records are queued, and which wait for the loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aioproducer.blocking import Producer
from aioproducer.blocking.sends import Sends
from tests.support.docs_runner import Docs
from tests.support.producing import QUICK


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    """A producer that has sent a record to topic t, so that it knows the topic."""
    with Docs() as cluster:
        cluster.topic("t", 1)
        with Producer(cluster.cluster.bootstrap_servers, **QUICK) as producer:
            producer.send_and_wait("t", b"v")
            producer.send("t", b"v").result(10)
            yield producer


PLAIN: dict[str, Any] = {
    "topic": "t",
    "value": b"v",
    "key": None,
    "partition": None,
    "timestamp_ms": None,
    "headers": None,
    "timeout": None,
}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"value": None},
        {"key": b"k"},
        {"timestamp_ms": 0},
        {"headers": [("name", b"value"), ("null", None)]},
        {"headers": ()},
    ],
)
def test_a_plain_record_for_a_known_topic_is_queued(producer, record):
    assert producer._is_queueable(**PLAIN | record)


@pytest.mark.parametrize(
    "record",
    [
        {"topic": "unknown"},
        {"topic": b"t"},
        {"value": "text"},
        {"value": bytearray(b"v")},
        {"value": bytes(1 << 20)},
        {"key": "text"},
        {"partition": 0},  # known only after a record for it was sent
        {"partition": "0"},
        {"timestamp_ms": -1},
        {"timestamp_ms": 1.5},
        {"headers": {"name": b"value"}},
        {"headers": [("name", "text")]},
        {"headers": [["name", b"value"]]},
        {"headers": [("näme", b"value")]},
        {"timeout": 1},
    ],
)
def test_any_other_record_waits_for_the_loop(producer, record):
    assert not producer._is_queueable(**PLAIN | record)


def test_every_producer_has_these_calls():
    assert issubclass(Producer, Sends)
    assert (Producer.send, Producer.send_and_wait, Producer.try_send) == (
        Sends.send,
        Sends.send_and_wait,
        Sends.try_send,
    )
