"""The user's transactional calls are counted by kind; the calls that the producer makes itself are not counted."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.core import Core
from aioproducer.metrics import Metrics
from aioproducer.observe.hooks import Hooks, TransactionEvent
from aioproducer.transactions.call_watch import CallWatch
from tests.support.scripted_broker import make_config


class Hears:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_transaction(self, event: Any) -> None:
        self.events.append(event)


async def test_calls_are_counted_by_kind_with_their_failures():
    loop, metrics, hears = asyncio.get_running_loop(), Metrics(), Hears()
    core = Core(make_config(), loop, WakeUp(loop), metrics, Random(1), Hooks([hears], "shop"))
    watch = CallWatch(core, SimpleNamespace(transactional_id="tx"))
    error = RuntimeError()

    for name, failure in (("commit", None), ("commit", error), ("offsets 1", None), ("offsets 2", None)):
        watch.ended(name, 0.25, failure)
    for own in ("epoch", "partitions", "expiry"):
        watch.ended(own, 1.0, None)

    assert {call.call: (call.count, call.failures) for call in metrics.transaction_calls.values()} == {
        "commit": (2, 1),
        "send_offsets": (2, 0),
    }
    assert metrics.transaction_calls["commit"].time.total == 0.5
    assert hears.events[1] == TransactionEvent("shop", "tx", "commit", 0.25, error)
    assert len(hears.events) == 4
