"""Histograms are accurate enough, and snapshots are frozen."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.metrics import (
    MOST_NODES,
    Distribution,
    Ended,
    Histogram,
    Metrics,
    MetricsSnapshot,
    NodeSnapshot,
)

WORST = 2 ** (1 / 4)
"""The ratio of a bucket's upper bound to its lower bound."""


def filled(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def exact(values: list[float], q: float) -> float:
    return sorted(values)[max(math.ceil(q * len(values)) - 1, 0)]


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=300), st.floats(0, 1))
def test_a_quantile_is_never_too_small_and_at_most_one_bucket_too_large(values, q):
    # An ulp of slack: q * count may be rounded to either side of a whole number.
    found = filled(values).quantile(q)
    lower = exact(values, max(q - 1e-9, 0))
    upper = exact(values, min(q + 1e-9, 1))

    assert lower * (1 - 1e-9) <= found <= upper * WORST * (1 + 1e-9)


@pytest.mark.parametrize("q", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_quantiles_of_many_latencies_are_at_most_a_fifth_off(q):
    random = Random(3)
    values = [random.lognormvariate(-5, 1.5) for _ in range(20_000)]

    assert exact(values, q) <= filled(values).quantile(q) <= 1.19 * exact(values, q)


def test_largest_value_is_exact_and_no_quantile_is_above_it():
    histogram = filled([1.0, 3.0, 1000.0])

    assert histogram.maximum == 1000.0
    assert histogram.quantile(1) == 1000.0
    assert histogram.quantile(2) == 1000.0


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e300])
def test_values_beyond_the_buckets_count_in_the_outermost_ones(value):
    histogram = filled([1.0, value])

    assert histogram.count == 2
    assert 0 <= histogram.quantile(0.01) <= WORST


def test_histogram_without_values_is_all_zero():
    assert Histogram().quantile(0.99) == 0.0
    assert Histogram().snapshot() == Distribution()


def test_values_of_zero_are_counted():
    histogram = filled([0.0, 0.0, 8.0])

    assert histogram.quantile(0.5) == pytest.approx(0, abs=1e-8)
    assert histogram.quantile(0.99) == 8.0


def test_value_can_be_added_several_times_at_once():
    weighted, single = Histogram(), filled([0.25] * 30 + [2.0])
    weighted.add(0.25, 30)
    weighted.add(2.0)

    assert weighted.snapshot() == single.snapshot()
    assert weighted.snapshot().count == 31
    assert weighted.snapshot().mean == pytest.approx((30 * 0.25 + 2) / 31)


def test_memory_of_a_histogram_does_not_grow_with_its_values():
    random = Random(3)
    values = [random.uniform(1e-4, 100) for _ in range(50_000)]
    histogram = filled(values[:10])
    tracemalloc.start()
    try:
        for value in values:
            histogram.add(value)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert histogram.count == 50_010
    assert grown < 2_000


def test_snapshot_does_not_change_with_its_histogram():
    histogram = filled([1.0])
    snapshot = histogram.snapshot()

    histogram.add(100.0)

    assert (snapshot.count, snapshot.sum, snapshot.max) == (1, 1.0, 1.0)
    assert [count for _, count in snapshot.buckets] == [1]


def test_totals_of_all_brokers_include_those_that_are_gone(monkeypatch):
    monkeypatch.setattr("aioproducer.metrics.MOST_NODES", 2)
    metrics = Metrics()
    for number, node_id in enumerate((-1, 0, 1, 2), 1):
        node = metrics.node(node_id)
        node.connects += number
        node.disconnects += 1
        node.bytes_sent += 10 * number
        node.bytes_received += 100 * number
        node.requests += 1

    snapshot = metrics.snapshot(
        describe_node=lambda node_id: {} if node_id >= 0 else None, wall_time=float, client_id="a"
    )

    assert [node.node_id for node in snapshot.nodes] == [1, 2]
    assert (snapshot.connects, snapshot.disconnects, snapshot.requests) == (10, 4, 4)
    assert (snapshot.bytes_sent, snapshot.bytes_received) == (100, 1000)


@pytest.mark.promise("Public API", "`metrics()` returns frozen snapshots")
@pytest.mark.parametrize("snapshot", [Distribution, NodeSnapshot, MetricsSnapshot])
def test_snapshots_are_frozen(snapshot):
    made = snapshot(**dict.fromkeys((field.name for field in dataclasses.fields(snapshot)), 0))

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(snapshot)[0].name, 1)


@pytest.mark.promise(
    "Rules of Kafka's producer", "`metrics()` counts nodes, buffer, batches, retries and errors"
)
def test_each_node_has_its_counters_from_first_use():
    metrics = Metrics()

    first = metrics.node(1)
    first.bytes_sent += 10

    assert metrics.node(1) is first
    assert metrics.node(2).bytes_sent == 0
    assert list(metrics.nodes) == [1, 2]


def test_errors_are_counted_by_name():
    metrics = Metrics()

    for name in ("NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER"):
        metrics.count_error(name)

    assert metrics.errors == {"NOT_LEADER_OR_FOLLOWER": 2, "REQUEST_TIMED_OUT": 1}


def test_producers_share_no_counter():
    assert Metrics().errors is not Metrics().errors
    assert Metrics().time_to_ack is not Metrics().time_to_ack


def test_a_snapshot_counts_the_records_that_were_sent():
    metrics = Metrics(records_sent=5, records_acked=2)

    snapshot = metrics.snapshot(describe_node=lambda _: None, wall_time=lambda time: time, records_buffered=4)

    assert (snapshot.records_accepted, snapshot.records_sent, snapshot.records_acked) == (6, 5, 2)


def test_accepted_records_never_become_fewer():
    """Another thread may read the counters while a record moves from the buffer to its result and is in neither."""
    metrics = Metrics(records_acked=2)

    def accepted(buffered: int, ended: Ended | None = None) -> int:
        return metrics.snapshot(
            ended, describe_node=lambda _: None, wall_time=float, records_buffered=buffered
        ).records_accepted

    assert accepted(4) == 6
    assert accepted(1) == 6
    metrics.records_failed += 3
    before = metrics.ended
    metrics.records_unknown += 5
    assert accepted(1, before) == 6
    assert accepted(1, metrics.ended) == 11


def test_a_thousand_topics_have_their_own_counters_and_the_others_share_one():
    metrics = Metrics()
    for number in range(1_200):
        metrics.topic(f"topic-{number}").records_acked += 1
        metrics.topic(f"topic-{number}").retries += 2

    topics = metrics.snapshot(describe_node=lambda _: None, wall_time=float).topics

    assert len(topics) == 1_001
    assert (topics[999].name, topics[999].records_acked) == ("topic-999", 1)
    assert (topics[-1].name, topics[-1].records_acked, topics[-1].retries) == ("_other", 200, 400)
    assert metrics.topic("topic-5").name == "topic-5", "it keeps its own counters"


def test_a_thousand_brokers_have_their_own_counters():
    assert MOST_NODES == 1_000  # test_hostile_metadata.py tests larger numbers of brokers
