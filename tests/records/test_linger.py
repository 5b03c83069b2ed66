"""The linger of open batches: it ends in order, gets longer after many end together, and skips closed batches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aioproducer.config import ProducerConfig
from aioproducer.records._record_path import PartitionQueue
from aioproducer.records.linger import SECONDS_PER_BATCH, Lingers
from tests.support.accumulator_bench import Bench, topic_info
from tests.support.compiled_path import new_batch

# ------------------------------------------------------------------------------------------------ the list itself


def lingers_of(linger_ms: float = 50) -> Lingers:
    return Lingers(ProducerConfig.of(bootstrap_servers="127.0.0.1:1", linger_ms=linger_ms))


def opened(partition: int, order: tuple[int, int] = (0, 0)) -> PartitionQueue:
    """Return a queue whose last batch is open."""
    queue = PartitionQueue("orders", partition)
    queue.tail = new_batch(queue=queue)
    queue.tail.order = order
    return queue


def test_batches_end_in_the_order_in_which_they_were_opened_and_only_once():
    lingers, first, second = lingers_of(), opened(0), opened(1)
    assert lingers.next_due() is None

    assert lingers.add(first, (0, 0), 10.0), "the first batch is due before all others"
    assert not lingers.add(second, (0, 0), 10.01)

    assert len(lingers) == 2
    assert lingers.next_due() == pytest.approx(10.05)
    assert lingers.end(10.04) == []
    assert lingers.end(10.055) == [first]
    assert lingers.next_due() == pytest.approx(10.06)
    assert lingers.end(20.0) == [second]
    assert lingers.end(20.0) == []
    assert lingers.next_due() is None
    assert len(lingers) == 0


def test_a_batch_that_was_closed_before_its_linger_ended_is_skipped():
    lingers, closed, replaced, kept = lingers_of(), opened(0), opened(1), opened(2)
    for queue in (closed, replaced, kept):
        lingers.add(queue, (0, 0), 10.0)
    closed.tail = None
    replaced.tail = new_batch(queue=replaced)
    replaced.tail.order = (1, 0)
    lingers.add(replaced, (1, 0), 10.04)

    assert lingers.end(10.06) == [kept]
    assert lingers.end(10.1) == [replaced]


def test_lingers_get_longer_once_more_batches_end_together_than_can_be_sent_in_a_linger():
    many = int(0.005 / SECONDS_PER_BATCH)
    for count, rests in ((many, False), (many + 1, True)):
        lingers = lingers_of(5)
        for partition in range(count):
            lingers.add(opened(partition), (0, 0), 10.0)
        assert len(lingers.end(10.1)) == count

        for partition in range(many + 1):
            lingers.add(opened(partition), (0, 0), 10.1)

        expected = 10.1 + (count * SECONDS_PER_BATCH if rests else 0.005)
        assert lingers.next_due() == pytest.approx(expected, abs=1e-6)


# -------------------------------------------------------------------------------------------- in the accumulator


def lingered_together(bench: Bench, count: int) -> float:
    """Send `count` batches whose linger ends together. Return the loop time of that end, which is far enough in the
    future for everything that even a slow test appends to have lingered."""
    for partition in range(count):
        bench.send(partition)
    then = bench.loop.time() + 10
    bench.accumulator.ready(then)
    assert len(bench.drain_all()) == count
    return then


@pytest.mark.promise(
    "Accumulator, sender, connections", "very many lingers that end together make the next ones longer"
)
async def test_after_many_lingers_ended_together_the_next_ones_are_longer_and_their_batches_fuller():
    bench = Bench([0] * 400, linger_ms=5)
    then = lingered_together(bench, 300)
    for partition in range(100, 400):
        bench.send(partition)

    assert bench.accumulator.ready(then + 0.006) == ([], then + 300 * SECONDS_PER_BATCH)

    bench.accumulator.hurry(bench.topic.queues[399].tail)
    assert len(bench.drain()) == 1, "an awaited batch is not held back"
    assert bench.accumulator.ready(then + 300 * SECONDS_PER_BATCH)[0] == [0]
    assert len(bench.drain()) == 299


@pytest.mark.promise(
    "Accumulator, sender, connections", "very many lingers that end together make the next ones longer"
)
async def test_a_few_lingers_that_end_together_do_not_lengthen_others():
    bench = Bench([0] * 100, linger_ms=5)
    then = lingered_together(bench, 99)
    bench.send(99)

    assert bench.accumulator.ready(then)[0] == [0]


@pytest.mark.promise(
    "Accumulator, sender, connections", "very many lingers that end together make the next ones longer"
)
async def test_longer_lingers_leave_time_for_the_request():
    bench = Bench([0] * 3000, linger_ms=5, request_timeout_ms=80, delivery_timeout_ms=60_000)
    then = lingered_together(bench, 2999)
    for partition in range(200):
        bench.send(partition)

    assert bench.accumulator.ready(then + 0.019)[0] == []
    assert bench.accumulator.ready(then + 0.02)[0] == [0]


@pytest.mark.promise(
    "Accumulator, sender, connections", "very many lingers that end together make the next ones longer"
)
async def test_after_many_lingers_a_single_record_does_not_linger_longer():
    bench = Bench([0] * 2000, linger_ms=5)
    then = lingered_together(bench, 2000)
    bench.send(0)

    assert bench.accumulator.ready(then)[0] == [0]


@pytest.mark.promise(
    "Accumulator, sender, connections", "very many lingers that end together make the next ones longer"
)
async def test_a_topic_with_few_batches_does_not_linger_longer_because_of_one_with_many():
    bench = Bench([0] * 2000, linger_ms=5)
    bench.accumulator.open_topic(topic_info([1], "other"))
    then = lingered_together(bench, 2000)
    for partition in range(2000):
        bench.send(partition)
    bench.send(0, topic="other")

    assert bench.accumulator.ready(then) == ([1], then + 2000 * SECONDS_PER_BATCH)
    assert len(bench.drain(1)) == 1


async def test_a_record_that_already_lingered_when_many_of_another_topic_ended_is_sent_in_time(monkeypatch):
    bench = Bench([0] * 2000, linger_ms=5)
    bench.accumulator.open_topic(topic_info([1], "other"))
    now = 100.0
    monkeypatch.setattr(bench.accumulator, "_loop", SimpleNamespace(time=lambda: now))
    for partition in range(2000):
        bench.send(partition)
    now += 0.003
    bench.send(0, topic="other")
    now += 0.002

    assert bench.accumulator.ready(now) == ([0], pytest.approx(now + 0.003))
    assert bench.accumulator.ready(now + 0.004)[0] == [0, 1]


@pytest.mark.promise(
    "Accumulator, sender, connections", "very many lingers that end together make the next ones longer"
)
async def test_many_topics_with_one_batch_each_also_linger_longer():
    bench = Bench([0], linger_ms=5)
    names = [f"topic {number}" for number in range(300)]
    for name in names:
        bench.accumulator.open_topic(topic_info([0], name))
        bench.send(0, topic=name)
    then = bench.loop.time() + 10
    bench.accumulator.ready(then)
    assert len(bench.drain_all()) == 300
    for name in names:
        bench.send(0, topic=name)

    assert bench.accumulator.ready(then)[0] == []
    assert bench.accumulator.ready(then + 300 * SECONDS_PER_BATCH)[0] == [0]


async def test_at_most_as_many_batches_as_can_be_sent_in_a_linger_are_exempt_from_longer_lingers():
    bench = Bench([0] * 2000, linger_ms=5)
    bench.accumulator.open_topic(topic_info([1] * 500, "other"))
    then = lingered_together(bench, 2000)
    for partition in range(500):
        bench.send(partition, topic="other")

    bench.accumulator.ready(then)

    assert len(bench.drain(1)) == 0.005 / SECONDS_PER_BATCH
