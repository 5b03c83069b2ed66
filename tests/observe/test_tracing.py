"""The interface for a tracer: the producers that get one, and the calls that use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aioproducer.config import ProducerConfig
from aioproducer.observe.tracing import set_tracer, tracer_of
from aioproducer.testing import RecordingProducer
from tests.support.scripted_broker import make_config


class Asked:
    """A tracer that records nothing."""

    def __init__(self, config: ProducerConfig) -> None:
        self.client_id = config.client_id
        self.calls: list[tuple[Any, ...]] = []

    def begin(self, *call: Any) -> None:
        self.calls.append(call)

    def begin_many(self, *call: Any) -> None:
        self.calls.append(call)


@pytest.fixture
def tracers() -> Iterator[list[Asked]]:
    made: list[Asked] = []

    def make(config: ProducerConfig) -> Asked:
        made.append(Asked(config))
        return made[-1]

    set_tracer(make)
    yield made
    set_tracer(None)


async def test_each_started_producer_has_its_own_tracer(tracers):
    async with RecordingProducer(client_id="one") as one, RecordingProducer(client_id="two"):
        await one.send("t", b"v", b"k", headers=[("h", b"1")])
        one.try_send("t", b"w")
        await one.send_and_wait("t", None)
        await one.send_many("t", [b"1", b"2"])
    assert [tracer.client_id for tracer in tracers] == ["one", "two"]
    assert tracers[0].calls == [
        ("t", b"v", b"k", [("h", b"1")], 1),
        ("t", b"w", None, None, 1),
        ("t", None, None, None, 1),
        ("t", 2),
    ]


def test_without_a_factory_there_is_no_tracer():
    assert tracer_of(make_config()) is None
