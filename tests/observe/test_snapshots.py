"""Snapshots of metrics: their differences, and their conversion to plain data."""

from __future__ import annotations

import copy
import json
import pickle
import re
from dataclasses import asdict, fields
from pathlib import Path
from random import Random

import pytest

from aioproducer.metrics import Histogram, Metrics
from aioproducer.observe.snapshots import (
    Distribution,
    MetricsSnapshot,
    NodeSnapshot,
    TopicSnapshot,
    TransactionCallSnapshot,
)


def filled(*values: float) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def test_a_distribution_has_the_quantiles_of_its_histogram():
    random = Random(3)
    histogram = filled(*(random.lognormvariate(-5, 1.5) for _ in range(1000)))
    snapshot = histogram.snapshot()

    for q in (0.0, 0.5, 0.9, 0.99, 1.0):
        assert snapshot.quantile(q) == histogram.quantile(q)
    assert snapshot.mean == pytest.approx(histogram.total / 1000)
    assert sum(count for _, count in snapshot.buckets) == 1000


@pytest.mark.promise(
    "Observability", "a bad minute shows in metrics(window=60) after millions of good records"
)
def test_a_minute_at_100_seconds_is_visible_after_ten_million_records_at_4_milliseconds():
    histogram = Histogram()
    histogram.add(0.004, 10_000_000)
    before = histogram.snapshot()
    histogram.add(100.0, 600)

    assert histogram.snapshot().p99 < 0.005, "the figures since the start would hide the minute"
    minute = histogram.snapshot() - before
    assert (minute.count, minute.max) == (600, 100.0)
    assert 100 <= minute.p50 <= 119
    assert minute.mean == pytest.approx(100)


def test_the_largest_value_of_a_difference_is_an_upper_limit():
    histogram = filled(50.0)
    before = histogram.snapshot()
    histogram.add(1.0)

    minute = histogram.snapshot() - before
    assert 1.0 <= minute.max <= 1.19
    assert (histogram.snapshot() - histogram.snapshot()) == Distribution()


def test_a_difference_has_the_counts_in_between_and_the_current_gauges():
    earlier = MetricsSnapshot(
        time=100.0, started=1.0, records_acked=5, buffer_available=7, errors={"A": 1, "B": 2}
    )
    later = MetricsSnapshot(
        time=160.0, started=1.0, records_acked=9, buffer_available=3, errors={"A": 1, "B": 5, "C": 1}
    )

    minute = later - earlier

    assert (minute.records_acked, minute.buffer_available) == (4, 3)
    assert minute.errors == {"B": 3, "C": 1}
    assert (minute.started, minute.time) == (100.0, 160.0)


def test_brokers_and_topics_are_compared_by_their_names_and_new_ones_count_in_full():
    earlier = MetricsSnapshot(
        nodes=(NodeSnapshot(node_id=1, requests=3),), topics=(TopicSnapshot(name="t", retries=1),)
    )
    later = MetricsSnapshot(
        nodes=(
            NodeSnapshot(node_id=2, requests=4, host="b"),
            NodeSnapshot(node_id=1, requests=5, in_flight=2),
        ),
        topics=(TopicSnapshot(name="t", retries=4, last_ack_time=9.0),),
    )

    minute = later - earlier

    assert [(node.node_id, node.requests, node.in_flight) for node in minute.nodes] == [(2, 4, 0), (1, 2, 2)]
    assert [(topic.name, topic.retries, topic.last_ack_time) for topic in minute.topics] == [("t", 3, 9.0)]


def test_a_sum_has_the_counts_of_both_and_the_gauges_of_the_first():
    one = MetricsSnapshot(
        client_id="shop",
        buffer_available=7,
        records_acked=5,
        errors={"A": 1},
        time_to_ack=filled(1.0, 3.0).snapshot(),
        topics=(TopicSnapshot(name="t", retries=1),),
    )
    other = MetricsSnapshot(
        client_id="other",
        buffer_available=9,
        records_acked=2,
        errors={"A": 2, "B": 1},
        time_to_ack=filled(1.0, 4.0).snapshot(),
        topics=(TopicSnapshot(name="u", retries=4), TopicSnapshot(name="t", retries=2)),
    )

    both = one + other

    assert (both.client_id, both.buffer_available, both.records_acked) == ("shop", 7, 7)
    assert both.errors == {"A": 3, "B": 1}
    assert both.time_to_ack == filled(1.0, 3.0, 1.0, 4.0).snapshot()
    assert [(topic.name, topic.retries) for topic in both.topics] == [("t", 3), ("u", 4)]


def test_a_snapshot_is_plain_data_for_json():
    snapshot = MetricsSnapshot(
        client_id="orders",
        errors={"A": 1},
        time_to_ack=filled(1.0).snapshot(),
        nodes=(NodeSnapshot(node_id=1, latency=filled(0.5).snapshot()),),
    )

    told = json.loads(json.dumps(snapshot.as_dict()))

    assert (told["client_id"], told["errors"]) == ("orders", {"A": 1})
    assert told["time_to_ack"]["count"] == 1
    assert told["nodes"][0]["latency"]["p99"] == 0.5
    assert told["time_to_ack"]["buckets"] == [[pytest.approx(1.189, abs=0.01), 1]]


def full_snapshot() -> MetricsSnapshot:
    metrics = Metrics(records_acked=3, rejected={"A": 1})
    metrics.count_error("B")
    metrics.node(1).latency.add(0.5)
    metrics.topic("orders").records_acked = 3
    metrics.transaction_call("commit").add(0.1, is_failure=True)
    return metrics.snapshot(
        describe_node=lambda _: {"host": "a"}, wall_time=lambda time: time, client_id="orders"
    )


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy, copy.copy])
@pytest.mark.parametrize("snapshot", [MetricsSnapshot(), full_snapshot()], ids=["empty", "full"])
def test_a_snapshot_can_be_pickled_and_copied(snapshot, copied):
    assert copied(snapshot) == snapshot
    assert copied(snapshot) - snapshot == snapshot - snapshot


def test_a_snapshot_can_be_made_a_dict_by_dataclasses():
    found = json.loads(json.dumps(asdict(full_snapshot())))

    assert (found["rejected"], found["errors"]) == ({"A": 1}, {"B": 1})
    assert found["topics"][0]["name"] == "orders"


@pytest.mark.parametrize(
    "change",
    [
        lambda counts: counts.__setitem__("A", 2),
        lambda counts: counts.__delitem__("A"),
        lambda counts: counts.clear(),
        lambda counts: counts.pop("A"),
        lambda counts: counts.popitem(),
        lambda counts: counts.setdefault("C", 2),
        lambda counts: counts.update(A=2),
        lambda counts: counts.__ior__({"A": 2}),
    ],
)
def test_the_counts_of_a_snapshot_cannot_be_changed(change):
    counts = full_snapshot().rejected

    with pytest.raises(TypeError, match="cannot be changed"):
        change(counts)
    assert counts == {"A": 1}


@pytest.mark.promise("Observability", "the docs describe each field of metrics() and name Java's counterpart")
@pytest.mark.parametrize("heading", ["## What to watch", "### Java's names"])
def test_the_guide_lists_each_field(heading):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.split(heading)[1].split("\n#")[0]
    named = [
        name
        for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(named) == sorted(field.name for field in fields(MetricsSnapshot))


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [("topic", TopicSnapshot), ("node", NodeSnapshot), ("transaction", TransactionCallSnapshot)],
)
def test_the_guide_lists_javas_names_of_the_fields_of_topics_nodes_and_transactions(prefix, kind):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.split("#### Topics, brokers and kinds of calls")[1].split("\n#")[0]
    named = [
        name
        for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
        for name in re.findall(rf"`{prefix}\.(\w+)`", row)
    ]
    assert sorted(named) == sorted(field.name for field in fields(kind))
