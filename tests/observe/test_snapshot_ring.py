"""The snapshots of the last ten minutes."""

from __future__ import annotations

import asyncio

from aioproducer.metrics import Histogram
from aioproducer.observe.snapshot_ring import LONGEST_WINDOW, PERIOD, SnapshotRing, _packed, _unpacked
from aioproducer.observe.snapshots import (
    Counts,
    MetricsSnapshot,
    NodeSnapshot,
    TopicSnapshot,
    TransactionCallSnapshot,
)
from tests.conftest import in_virtual_time


class Counting:
    """A ring whose snapshots count one batch for each second that has passed in the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.ring = SnapshotRing(
            self._loop, lambda: MetricsSnapshot(batches=round(self._loop.time() - self._began))
        )


@in_virtual_time
async def test_a_window_begins_at_the_newest_snapshot_that_is_old_enough():
    counting = Counting()
    await asyncio.sleep(65)
    assert counting.ring.before(60).batches == 0
    assert counting.ring.before(10).batches == 50
    assert counting.ring.before(5).batches == 60
    counting.ring.close()


@in_virtual_time
async def test_a_window_longer_than_the_life_of_the_producer_begins_at_its_start():
    counting = Counting()
    await asyncio.sleep(25)
    assert counting.ring.before(600).batches == 0
    counting.ring.close()


@in_virtual_time
async def test_ten_minutes_are_kept_and_no_more():
    counting = Counting()
    await asyncio.sleep(3 * LONGEST_WINDOW)
    assert counting.ring.before(LONGEST_WINDOW).batches == 2 * LONGEST_WINDOW
    assert len(counting.ring._kept) == LONGEST_WINDOW / PERIOD + 1
    counting.ring.close()


@in_virtual_time
async def test_a_closed_ring_has_no_timer():
    counting = Counting()
    counting.ring.close()
    await asyncio.sleep(3 * PERIOD)
    assert len(counting.ring._kept) == 2


@in_virtual_time
async def test_the_last_snapshot_is_taken_at_the_end():
    counting = Counting()
    await asyncio.sleep(65)
    counting.ring.close()
    await asyncio.sleep(1800)
    assert counting.ring.before(60).batches == 65
    assert counting.ring.before(600).batches == 65


def test_a_snapshot_is_kept_unchanged_in_a_few_kilobytes():
    histogram = Histogram()
    for power in range(60):
        histogram.add(2.0 ** (power / 4 - 10), power + 1)
    values = histogram.snapshot()
    snapshot = MetricsSnapshot(
        client_id="shop",
        errors=Counts({"NOT_ENOUGH_REPLICAS": 3}),
        topics=tuple(TopicSnapshot(name=f"topic-{number}", records_acked=number) for number in range(10)),
        nodes=tuple(NodeSnapshot(node_id=number, latency=values) for number in range(6)),
        transactions=(TransactionCallSnapshot("commit", 1, 0, values),),
        time_to_ack=values,
        queue_time=values,
    )
    packed = _packed(snapshot)
    assert _unpacked(packed) == snapshot
    assert (snapshot - _unpacked(packed)).errors == {}
    assert len(packed) < 4096
