"""Metrics under Java's names: counters, rates and averages between two pushes."""

from __future__ import annotations

from aioproducer.observe.java_metrics import PREFIX, points
from aioproducer.observe.otlp import Point
from aioproducer.observe.snapshots import (
    Distribution,
    MetricsSnapshot,
    NodeSnapshot,
    TopicSnapshot,
    TransactionCallSnapshot,
)

BEFORE = MetricsSnapshot(
    time=100.0,
    started=50.0,
    records_acked=10,
    topics=(TopicSnapshot(name="a", records_acked=10, records_failed=1),),
    nodes=(NodeSnapshot(node_id=1, connects=2, latency=Distribution(2, 1.0, 0.9, ((0.5, 2),))),),
)
NOW = MetricsSnapshot(
    time=110.0,
    started=50.0,
    records_acked=40,
    produce_requests=4,
    topics=(
        TopicSnapshot(name="a", records_acked=30, records_failed=3),
        TopicSnapshot(name="b", records_acked=10),
    ),
    nodes=(
        NodeSnapshot(node_id=-1, connects=1, requests=3),
        NodeSnapshot(
            node_id=1,
            connects=5,
            latency=Distribution(4, 2.0, 0.9, ((0.5, 4),)),
            throttles=Distribution(2, 0.4, 0.3, ((0.3, 2),)),
        ),
    ),
    transactions=(TransactionCallSnapshot("commit", 1, 0, Distribution(1, 0.25, 0.25, ((0.25, 1),))),),
)


def found(*, is_delta: bool) -> dict[str, list[Point]]:
    by_name: dict[str, list[Point]] = {}
    for point in points(NOW, BEFORE, lambda name: True, seconds=10.0, is_delta=is_delta):
        by_name.setdefault(point.name.removeprefix(PREFIX), []).append(point)
    return by_name


def test_counters_are_totals_or_differences_and_rates_are_per_second():
    cumulative, delta = found(is_delta=False), found(is_delta=True)
    assert [cumulative["record.send.total"][0].value, delta["record.send.total"][0].value] == [40, 30]
    assert cumulative["record.send.rate"] == delta["record.send.rate"]
    assert cumulative["record.send.rate"][0].value == 3.0
    assert cumulative["record.send.total"][0].is_sum
    assert not cumulative["record.send.rate"][0].is_sum
    assert delta["connection.creation.total"][0].value == 4


def test_topics_and_brokers_are_attributes_and_bootstrap_addresses_are_left_out():
    cumulative = found(is_delta=False)
    sent = {point.attributes["topic"]: point.value for point in cumulative["topic.record.send.total"]}
    assert sent == {"a": 30, "b": 10}
    errors = {
        point.attributes["topic"]: point.value for point in found(is_delta=True)["topic.record.error.total"]
    }
    assert errors == {"a": 2, "b": 0}
    assert [point.attributes["node_id"] for point in cumulative["node.request.latency.avg"]] == ["node-1"]


def test_times_are_in_milliseconds_and_of_the_time_between():
    cumulative = found(is_delta=False)
    assert cumulative["node.request.latency.avg"][0].value == 500
    assert cumulative["request.latency.avg"][0].value == 500
    assert cumulative["produce.throttle.time.avg"][0].value == 100
    assert cumulative["produce.throttle.time.max"][0].value == 300
    assert cumulative["txn.commit.time.ns.total"][0].value == 0.25e9


def test_points_of_one_name_stand_together():
    names = [point.name for point in points(NOW, BEFORE, lambda name: True, seconds=10.0, is_delta=True)]
    groups = [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
    assert len(groups) == len(set(groups))


def test_what_is_not_wanted_is_left_out():
    wanted = f"{PREFIX}request.total"
    assert [point.name for point in points(NOW, BEFORE, wanted.__eq__, seconds=10.0, is_delta=True)] == [
        wanted
    ]
