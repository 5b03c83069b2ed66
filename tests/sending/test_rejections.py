"""Records that are not accepted: they are counted by the class of their error, and reported to the hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aioproducer.errors import InvalidRecordError, RecordTooLargeError
from aioproducer.metrics import Metrics
from aioproducer.observe.hooks import Hooks, RejectedEvent
from aioproducer.sending.rejections import Rejections


class Hears:
    def __init__(self) -> None:
        self.events: list[RejectedEvent] = []

    def on_rejected(self, event: Any) -> None:
        self.events.append(event)


@pytest.fixture
def hears() -> Hears:
    return Hears()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def rejections(hears, metrics) -> Rejections:
    return Rejections(metrics, Hooks([hears], "shop"))


def test_an_error_that_leaves_the_block_is_counted(rejections, metrics, hears):
    error = InvalidRecordError("no")
    with pytest.raises(InvalidRecordError), rejections.of("t", 3):
        raise error
    with rejections.of("t"):
        pass

    assert metrics.rejected == {"InvalidRecordError": 3}
    assert hears.events == [RejectedEvent("shop", "t", 3, error)]


def test_a_cancellation_is_not_an_error(rejections, metrics, hears):
    with pytest.raises(asyncio.CancelledError), rejections.of("t"):
        raise asyncio.CancelledError
    assert (metrics.rejected, hears.events) == ({}, [])


def test_each_row_is_counted_and_reported_by_class(rejections, metrics, hears):
    first, large = InvalidRecordError("1"), RecordTooLargeError("2", size=2, limit=1)
    rejections.note_rows("t", [first, large, InvalidRecordError("3")])

    assert metrics.rejected == {"InvalidRecordError": 2, "RecordTooLargeError": 1}
    assert [(event.error, event.records) for event in hears.events] == [(first, 2), (large, 1)]
