"""Exporters see each producer from its start until it is garbage-collected."""

from __future__ import annotations

import gc

from aioproducer.observe import live
from aioproducer.observe.snapshots import MetricsSnapshot
from aioproducer.testing import RecordingProducer


def clients() -> list[str]:
    return [snapshot.client_id for snapshot in live.snapshots() if snapshot.client_id.startswith("live-")]


async def test_a_producer_is_seen_from_its_start_until_it_is_collected():
    producer = RecordingProducer(client_id="live-1")
    assert clients() == []
    async with producer:
        assert clients() == ["live-1"]
    assert clients() == ["live-1"], "what it counted can still be read"
    del producer
    gc.collect()
    assert clients() == []


def test_what_was_collected_leaves_no_entry():
    class Measured:
        def metrics(self, *, window: float | None = None) -> MetricsSnapshot:
            return MetricsSnapshot(client_id=f"live-{window}")

    before = len(live._live)
    measured = Measured()
    live.add(measured)
    assert clients() == ["live-None"]
    assert len(live._live) == before + 1
    del measured
    gc.collect()
    assert len(live._live) <= before
