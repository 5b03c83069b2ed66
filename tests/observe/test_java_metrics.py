"""Metrics under Java's names: counters, rates and averages between two pushes."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from aioproducer.observe.java_metrics import PREFIX, points
from aioproducer.observe.otlp import Point
from aioproducer.observe.snapshots import (
    Distribution,
    MetricsSnapshot,
    NodeSnapshot,
    TopicSnapshot,
    TransactionCallSnapshot,
)

ROOT = Path(__file__).parents[2]
JAVAS = {
    "waiting.threads buffer.total.bytes buffer.available.bytes metadata.age requests.in.flight "
    "records.per.request.avg compression.rate.avg connection.count": ("",),
    "batch.size record.queue.time record.size request.latency request.size produce.throttle.time "
    "node.request.latency node.request.size": (".avg", ".max"),
    "buffer.exhausted batch.split record.error record.retry record.send connection.close connection.creation "
    "network.io incoming.byte outgoing.byte request response select successful.authentication "
    "failed.authentication successful.reauthentication failed.reauthentication topic.record.send topic.byte "
    "topic.record.retry topic.record.error node.request node.response node.outgoing.byte "
    "node.incoming.byte": (".rate", ".total"),
    "bufferpool.wait.time.ns flush.time.ns metadata.wait.time.ns txn.init.time.ns txn.begin.time.ns "
    "txn.send.offsets.time.ns txn.commit.time.ns txn.abort.time.ns io.time.ns io.wait.time.ns": (".total",),
    "bufferpool.wait.ratio io.ratio io.wait.ratio io.time.ns.avg io.wait.time.ns.avg topic.compression.rate "
    "reauthentication.latency.avg reauthentication.latency.max "
    "successful.authentication.no.reauth.total": ("",),
}
"""The metrics of Java's producer (SenderMetricsRegistry, KafkaProducerMetrics, BufferPool, Selector), with
their names in KIP-714."""

BEFORE = MetricsSnapshot(
    time=100.0,
    started=50.0,
    records_acked=10,
    connects=3,
    topics=(TopicSnapshot(name="a", records_acked=10, records_failed=1),),
    nodes=(NodeSnapshot(node_id=1, connects=2, latency=Distribution(2, 1.0, 0.9, ((0.5, 2),))),),
)
NOW = MetricsSnapshot(
    time=110.0,
    started=50.0,
    records_acked=40,
    produce_requests=4,
    retries=2,
    records_retried=7,
    connects=7,
    bytes_sent=500,
    topics=(
        TopicSnapshot(name="a", records_acked=30, records_failed=3, retries=2, records_retried=7),
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


def test_connections_and_bytes_include_those_of_bootstrap_addresses():
    cumulative = found(is_delta=False)
    assert cumulative["connection.creation.total"][0].value == 7
    assert cumulative["outgoing.byte.total"][0].value == 500


def test_retries_count_records_as_java_does():
    cumulative = found(is_delta=False)
    assert cumulative["record.retry.total"][0].value == 7
    assert [point.value for point in cumulative["topic.record.retry.total"]] == [7, 0]


def test_topics_and_brokers_are_attributes_and_bootstrap_addresses_are_left_out():
    cumulative = found(is_delta=False)
    sent = {point.attributes["topic"]: point.value for point in cumulative["topic.record.send.total"]}
    assert sent == {"a": 30, "b": 10}
    errors = {
        point.attributes["topic"]: point.value for point in found(is_delta=True)["topic.record.error.total"]
    }
    assert errors == {"a": 2, "b": 0}
    assert [point.attributes["node_id"] for point in cumulative["node.request.latency.avg"]] == ["node-1"]


def test_times_are_in_milliseconds_and_cover_the_time_between_two_pushes():
    cumulative = found(is_delta=False)
    assert cumulative["node.request.latency.avg"][0].value == 500
    assert cumulative["request.latency.avg"][0].value == 500
    assert cumulative["produce.throttle.time.avg"][0].value == 100
    assert cumulative["produce.throttle.time.max"][0].value == 300
    assert cumulative["txn.commit.time.ns.total"][0].value == 0.25e9


def test_points_with_the_same_name_are_adjacent():
    names = [point.name for point in points(NOW, BEFORE, lambda name: True, seconds=10.0, is_delta=True)]
    groups = [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
    assert len(groups) == len(set(groups))


def test_metrics_that_were_not_requested_are_left_out():
    wanted = f"{PREFIX}request.total"
    assert [point.name for point in points(NOW, BEFORE, wanted.__eq__, seconds=10.0, is_delta=True)] == [
        wanted
    ]


def test_figures_are_pushed_under_every_name_that_java_has_for_them():
    before = MetricsSnapshot(
        rejected={"BufferFullError": 1},
        record_bytes=100,
        batch_bytes=90,
        buffer_wait=Distribution(1, 2.0, 2.0, ((2.0, 1),)),
    )
    now = MetricsSnapshot(
        rejected={"BufferFullError": 2, "BufferTimeoutError": 5, "InvalidRecordError": 7},
        errors={"AuthenticationError": 1, "TlsError": 2, "NOT_ENOUGH_REPLICAS": 4},
        record_bytes=300,
        batch_bytes=140,
        buffer_wait=Distribution(3, 7.0, 4.0, ((2.0, 1), (4.0, 2))),
        requests=5,
        bytes_sent=1000,
        nodes=(
            NodeSnapshot(node_id=1, is_connected=True, requests=4, bytes_sent=400, latency=Distribution(3)),
            NodeSnapshot(node_id=2, is_connected=True, requests=1, bytes_sent=600, latency=Distribution(1)),
            NodeSnapshot(node_id=3),
        ),
    )
    for is_delta, expected in (
        (True, {"buffer.exhausted.total": 6, "bufferpool.wait.time.ns.total": 5e9}),
        (False, {"buffer.exhausted.total": 7, "bufferpool.wait.time.ns.total": 7e9}),
    ):
        values = {
            (point.name.removeprefix(PREFIX), *point.attributes.values()): point.value
            for point in points(now, before, lambda name: True, seconds=10.0, is_delta=is_delta)
        }
        expected |= {
            "buffer.exhausted.rate": 0.6,
            "bufferpool.wait.ratio": 0.5,
            "compression.rate.avg": 0.25,
            "connection.count": 2,
            "failed.authentication.total": 3,
            "request.size.avg": 200,
            "response.total": 4,
        }
        assert {name: values[name,] for name in expected} == expected
        assert values["node.request.size.avg", "node-1"] == 100
        assert values["node.request.size.avg", "node-3"] == 0
        assert values["node.response.total", "node-1"] == 3


def test_each_metric_of_java_is_pushed_or_listed_in_the_guide_as_not_pushed():
    javas = {name + end for names, ends in JAVAS.items() for name in names.split() for end in ends}
    calls = ("initialize", "begin", "send_offsets", "commit", "abort")
    now = replace(
        NOW, metadata_age=1.0, transactions=tuple(TransactionCallSnapshot(call, 1) for call in calls)
    )
    pushed = {
        point.name.removeprefix(PREFIX)
        for point in points(now, BEFORE, lambda name: True, seconds=10.0, is_delta=True)
    }
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    sentence = page.split("they are not pushed: ")[1].split(". ")[0]
    named = [name.replace("-", ".") for name in re.findall(r"`([\w*-]+)`", sentence)]
    missing = {name for name in javas if any(fnmatch(name, pattern) for pattern in named)}

    assert pushed - javas == set(), "a pushed name is not one of Java's"
    assert javas - pushed == missing
    assert all(any(fnmatch(name, pattern) for name in javas) for pattern in named)
