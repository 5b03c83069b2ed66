"""The metrics that are pushed to brokers, under the Java producer's names (KIP-714)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from aioproducer.observe.otlp import Point
from aioproducer.observe.snapshots import Distribution, MetricsSnapshot, NodeSnapshot, TopicSnapshot

PREFIX = "org.apache.kafka.producer."
NOTHING: Mapping[str, str] = MappingProxyType({})

_CALLS = {
    "initialize": "init",
    "begin": "begin",
    "send_offsets": "send.offsets",
    "commit": "commit",
    "abort": "abort",
}
"""The transactional calls that the Java producer measures, each with its Java name."""
_NO_ROOM = ("BufferTimeoutError", "BufferFullError")
_NOT_AUTHENTICATED = ("AuthenticationError", "UnsupportedSaslMechanismError", "TlsError")


class _Interval(NamedTuple):
    """The interval between two pushes."""

    now: MetricsSnapshot
    since: MetricsSnapshot
    """The counts since the last push."""
    seconds: float
    is_delta: bool


def points(
    now: MetricsSnapshot,
    before: MetricsSnapshot,
    wants: Callable[[str], bool],
    *,
    seconds: float,
    is_delta: bool,
) -> Iterator[Point]:
    """Yield the metrics that the broker wants, grouped by name.

    Args:
        now: the current metrics.
        before: the metrics at the last push, or at the start. Rates, averages and maxima refer to the period between
            `before` and `now`.
        wants: a function that returns whether the broker wants a metric.
        seconds: the time between `before` and `now`.
        is_delta: whether counters (`.total`) count from the last push instead of the start.
    """
    interval = _Interval(now, now - before, max(seconds, 1e-3), is_delta)
    for point in _all(interval):
        if wants(point.name):
            yield point


def _all(interval: _Interval) -> Iterator[Point]:
    now, since = interval.now, interval.since
    yield from _counter("connection.creation", lambda snapshot: snapshot.connects, interval)
    yield from _counter("connection.close", lambda snapshot: snapshot.disconnects, interval)
    yield from _counter("record.send", lambda snapshot: snapshot.records_acked, interval)
    yield from _counter("record.error", _failed, interval)
    yield from _counter("record.retry", lambda snapshot: snapshot.records_retried, interval)
    yield from _counter("batch.split", lambda snapshot: snapshot.splits, interval)
    yield from _counter("request", lambda snapshot: snapshot.requests, interval)
    yield from _counter("outgoing.byte", lambda snapshot: snapshot.bytes_sent, interval)
    yield from _counter("incoming.byte", lambda snapshot: snapshot.bytes_received, interval)
    yield from _counter("response", lambda snapshot: _latency(snapshot).count, interval)
    yield from _counter("buffer.exhausted", lambda snapshot: _named(snapshot.rejected, _NO_ROOM), interval)
    yield from _counter(
        "failed.authentication", lambda snapshot: _named(snapshot.errors, _NOT_AUTHENTICATED), interval
    )
    waited = (since if interval.is_delta else now).buffer_wait.sum
    yield Point(f"{PREFIX}bufferpool.wait.time.ns.total", waited * 1e9, True, NOTHING)
    yield _gauge("bufferpool.wait.ratio", since.buffer_wait.sum / interval.seconds)
    yield from _times("record.queue.time", since.queue_time)
    yield from _times("request.latency", _latency(since))
    yield _gauge("request.size.avg", since.bytes_sent / max(since.requests, 1))
    yield _gauge("compression.rate.avg", since.batch_bytes / max(since.record_bytes, 1))
    yield from _throttle(since)
    yield from _average_and_largest("batch.size", since.batch_size)
    yield _gauge("records.per.request.avg", since.records_per_request.mean)
    yield _gauge("buffer.total.bytes", now.buffer_total)
    yield _gauge("buffer.available.bytes", now.buffer_available)
    yield _gauge("waiting.threads", now.buffer_waiters)
    yield _gauge("requests.in.flight", now.in_flight)
    yield _gauge("connection.count", sum(node.is_connected for node in now.nodes))
    if now.metadata_age is not None:
        yield _gauge("metadata.age", now.metadata_age)
    yield from _of_each(_node_points, now.nodes, since.nodes, interval)
    yield from _of_each(_topic_points, now.topics, since.topics, interval)
    for call in (since if interval.is_delta else now).transactions:
        if call.call in _CALLS:
            yield Point(f"{PREFIX}txn.{_CALLS[call.call]}.time.ns.total", call.time.sum * 1e9, True, NOTHING)


def _counter(
    name: str,
    read: Callable[[MetricsSnapshot], float],
    interval: _Interval,
) -> Iterator[Point]:
    yield from _total_and_rate(name, read(interval.now), read(interval.since), interval, NOTHING)


def _total_and_rate(
    name: str, total: float, change: float, interval: _Interval, attributes: Mapping[str, str]
) -> Iterator[Point]:
    yield Point(f"{PREFIX}{name}.total", float(change if interval.is_delta else total), True, attributes)
    yield Point(f"{PREFIX}{name}.rate", change / interval.seconds, False, attributes)


def _named(counts: Mapping[str, int], names: tuple[str, ...]) -> int:
    return sum(counts.get(name, 0) for name in names)


def _latency(snapshot: MetricsSnapshot) -> Distribution:
    return _merged(node.latency for node in snapshot.nodes)


def _failed(snapshot: MetricsSnapshot) -> int:
    return snapshot.records_failed + snapshot.records_unknown


def _gauge(name: str, value: float, attributes: Mapping[str, str] = NOTHING) -> Point:
    return Point(PREFIX + name, float(value), False, attributes)


def _average_and_largest(
    name: str, values: Distribution, scale: float = 1.0, attributes: Mapping[str, str] = NOTHING
) -> Iterator[Point]:
    yield _gauge(f"{name}.avg", values.mean * scale, attributes)
    yield _gauge(f"{name}.max", values.max * scale, attributes)


def _times(name: str, values: Distribution, attributes: Mapping[str, str] = NOTHING) -> Iterator[Point]:
    """Yield the average and maximum times in milliseconds, as Java does."""
    yield from _average_and_largest(name, values, 1000.0, attributes)


def _throttle(since: MetricsSnapshot) -> Iterator[Point]:
    """Yield the throttle times. As in Java, Produce requests that were not throttled count as 0."""
    throttled = _merged(node.throttles for node in since.nodes)
    yield _gauge("produce.throttle.time.avg", throttled.sum * 1000 / max(since.produce_requests, 1))
    yield _gauge("produce.throttle.time.max", throttled.max * 1000)


def _merged(distributions: Iterable[Distribution]) -> Distribution:
    """Return the count, sum and maximum of all values, without buckets."""
    found = list(distributions)
    return Distribution(
        sum(one.count for one in found),
        sum(one.sum for one in found),
        max((one.max for one in found), default=0.0),
    )


def _of_each(
    points_of: Callable[..., Iterator[Point]],
    now: tuple[NodeSnapshot, ...] | tuple[TopicSnapshot, ...],
    since: tuple[NodeSnapshot, ...] | tuple[TopicSnapshot, ...],
    interval: _Interval,
) -> Iterator[Point]:
    """Yield the points for all topics or nodes, grouped by name."""
    found = [
        point for one, change in zip(now, since, strict=True) for point in points_of(one, change, interval)
    ]
    yield from sorted(found, key=lambda point: point.name)


def _node_points(node: NodeSnapshot, change: NodeSnapshot, interval: _Interval) -> Iterator[Point]:
    if node.node_id < 0:
        return  # a bootstrap address
    attributes = {"node_id": f"node-{node.node_id}"}  # as the Java client writes it
    yield from _times("node.request.latency", change.latency, attributes)
    yield _gauge("node.request.size.avg", change.bytes_sent / max(change.requests, 1), attributes)
    yield from _total_and_rate(
        "node.response", node.latency.count, change.latency.count, interval, attributes
    )
    for name, field in (
        ("node.request", "requests"),
        ("node.outgoing.byte", "bytes_sent"),
        ("node.incoming.byte", "bytes_received"),
    ):
        yield from _total_and_rate(name, getattr(node, field), getattr(change, field), interval, attributes)


def _topic_points(topic: TopicSnapshot, change: TopicSnapshot, interval: _Interval) -> Iterator[Point]:
    attributes = {"topic": topic.name}
    for name, field in (
        ("topic.record.send", "records_acked"),
        ("topic.record.retry", "records_retried"),
        ("topic.byte", "batch_bytes"),
    ):
        yield from _total_and_rate(name, getattr(topic, field), getattr(change, field), interval, attributes)
    errors, new = (one.records_failed + one.records_unknown for one in (topic, change))
    yield from _total_and_rate("topic.record.error", errors, new, interval, attributes)
