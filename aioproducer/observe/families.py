"""The metrics that exporters show: their names, descriptions and labels, and how each is read from a snapshot."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from aioproducer.observe.snapshots import PAST, MetricsSnapshot

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, Any]]

SECONDS = tuple(2.0**power for power in range(-13, 9))
"""The bucket bounds, from 0.12 ms to 256 s. Powers of two are upper bounds of a Distribution's buckets, so the counts
are exact."""
BYTES = tuple(2.0**power for power in range(7, 25))


@dataclass(frozen=True, slots=True)
class Family:
    """One metric for all producers. Values from producers with the same client id are merged."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    own_labels: Labels
    """The labels in addition to client_id."""
    read: Callable[[MetricsSnapshot], Values]
    bounds: tuple[float, ...] = SECONDS
    merge: Callable[[Any, Any], Any] = operator.add
    """Merges two values into one."""
    rank: Callable[[MetricsSnapshot], float] | None = None
    """If `rank` is given, values are not merged: the value of the producer with the lowest rank is shown."""

    @property
    def labels(self) -> Labels:
        return ("client_id", *self.own_labels)

    def values(self, snapshots: list[MetricsSnapshot], *, topics: bool = True) -> dict[Labels, Any]:
        """Return the values of all producers, keyed by their labels. Without `topics`, the values of all topics are
        added up."""
        hidden = None if topics or "topic" not in self.labels else self.labels.index("topic")
        values: dict[Labels, Any] = {}
        for snapshot in snapshots if self.rank is None else _lowest(snapshots, self.rank):
            if snapshot.state == PAST and self.kind == "gauge":
                continue
            for labels, value in self.read(snapshot):
                if value is None:
                    continue
                key = (snapshot.client_id, *labels)
                if hidden is not None:
                    key = (*key[:hidden], "", *key[hidden + 1 :])
                values[key] = self.merge(values[key], value) if key in values else value
        return values


def _lowest(
    snapshots: list[MetricsSnapshot], rank: Callable[[MetricsSnapshot], float]
) -> Iterable[MetricsSnapshot]:
    """Return the snapshot with the lowest rank for each client id. Producers that no longer exist are left out."""
    found: dict[str, MetricsSnapshot] = {}
    for snapshot in snapshots:
        if snapshot.state == PAST:
            continue
        other = found.setdefault(snapshot.client_id, snapshot)
        if rank(snapshot) < rank(other):
            found[snapshot.client_id] = snapshot
    return found.values()


def _free_share(snapshot: MetricsSnapshot) -> float:
    return snapshot.buffer_available / max(snapshot.buffer_total, 1)


def _of_producer(field: str) -> Callable[[MetricsSnapshot], Values]:
    def read(snapshot: MetricsSnapshot) -> Values:
        return [((), getattr(snapshot, field))]

    return read


def _by_name(field: str) -> Callable[[MetricsSnapshot], Values]:
    def read(snapshot: MetricsSnapshot) -> Values:
        return [((name,), count) for name, count in getattr(snapshot, field).items()]

    return read


def _by_topic(field: str, *labels: str) -> Callable[[MetricsSnapshot], Values]:
    def read(snapshot: MetricsSnapshot) -> Values:
        return [((topic.name, *labels), getattr(topic, field)) for topic in snapshot.topics]

    return read


def _by_node(field: str) -> Callable[[MetricsSnapshot], Values]:
    def read(snapshot: MetricsSnapshot) -> Values:
        return [((str(node.node_id),), getattr(node, field)) for node in snapshot.nodes]

    return read


def _connected(snapshot: MetricsSnapshot) -> Values:
    return [((str(node.node_id),), int(node.is_connected)) for node in snapshot.nodes]


def _failed(snapshot: MetricsSnapshot) -> Values:
    yield from _by_topic("records_failed", "not_persisted")(snapshot)
    yield from _by_topic("records_unknown", "unknown")(snapshot)


def _states(snapshot: MetricsSnapshot) -> Values:
    return [((snapshot.state,), 1)]


def _addresses(snapshot: MetricsSnapshot) -> Values:
    return [((str(node.node_id), f"{node.host}:{node.port}", node.rack or ""), 1) for node in snapshot.nodes]


def _calls(snapshot: MetricsSnapshot) -> Values:
    for call in snapshot.transactions:
        yield (call.call, "success"), call.count - call.failures
        yield (call.call, "failure"), call.failures


def _call_times(snapshot: MetricsSnapshot) -> Values:
    return [((call.call,), call.time) for call in snapshot.transactions]


_counter = functools.partial(Family, "counter")
_gauge = functools.partial(Family, "gauge")
_histogram = functools.partial(Family, "histogram")

FAMILIES = (
    _gauge("producers", "Producers by state.", ("state",), _states),
    # Records
    _counter(
        "records_sent",
        "Records that were sent to a broker, each counted once.",
        (),
        _of_producer("records_sent"),
    ),
    _counter("records_acked", "Records that are in the log.", ("topic",), _by_topic("records_acked")),
    _counter(
        "records_failed",
        "Failed records, by outcome: not_persisted (certainly not in the log) or unknown (may be in it).",
        ("topic", "outcome"),
        _failed,
    ),
    _counter("records_rejected", "Records that send rejected, by error.", ("error",), _by_name("rejected")),
    _counter("record_bytes", "Bytes of records before compression.", (), _of_producer("record_bytes")),
    _gauge(
        "records_unretrieved",
        "Failed records whose result no caller has retrieved.",
        (),
        _of_producer("records_unretrieved"),
    ),
    _gauge("records_buffered", "Records in the buffer or in flight.", (), _of_producer("records_buffered")),
    _gauge(
        "oldest_unacked_seconds",
        "How long the oldest record without a result has waited.",
        (),
        _of_producer("oldest_unacked_seconds"),
        merge=max,
    ),
    _counter(
        "data_losses",
        "Events in which a broker lost, or may have lost, acknowledged records.",
        (),
        _of_producer("data_losses"),
    ),
    # Times
    _histogram(
        "time_to_result_seconds",
        "Time from opening a batch to its result, including failures, weighted by records.",
        (),
        _of_producer("time_to_result"),
    ),
    _histogram(
        "time_to_ack_seconds",
        "Time from opening a batch to its acknowledgement, weighted by records.",
        (),
        _of_producer("time_to_ack"),
    ),
    _histogram(
        "queue_time_seconds",
        "Time from opening a batch to its first request.",
        (),
        _of_producer("queue_time"),
    ),
    # The buffer
    _gauge(
        "buffer_bytes",
        "Size of the fullest buffer (buffer_memory).",
        (),
        _of_producer("buffer_total"),
        rank=_free_share,
    ),
    _gauge(
        "buffer_available_bytes",
        "Free space in the fullest buffer.",
        (),
        _of_producer("buffer_available"),
        rank=_free_share,
    ),
    _gauge("buffer_waiters", "Calls to send that are waiting for room.", (), _of_producer("buffer_waiters")),
    _histogram(
        "buffer_wait_seconds", "How long calls to send waited for room.", (), _of_producer("buffer_wait")
    ),
    # Batches and requests
    _counter("batches", "Batches sent for the first time.", (), _of_producer("batches")),
    _counter("batch_bytes", "Bytes of batches after compression.", ("topic",), _by_topic("batch_bytes")),
    _histogram(
        "batch_size_bytes", "Sizes of batches on the wire.", (), _of_producer("batch_size"), bounds=BYTES
    ),
    _counter("produce_requests", "Produce requests.", (), _of_producer("produce_requests")),
    _counter("retries", "Batches that were sent again.", ("topic",), _by_topic("retries")),
    _counter(
        "splits",
        "Batches that were too large for a broker and were split in two.",
        (),
        _of_producer("splits"),
    ),
    _counter(
        "errors",
        "Errors in responses and on connections, including those that a retry resolved.",
        ("error",),
        _by_name("errors"),
    ),
    # Metadata and transactions
    _gauge(
        "metadata_age_seconds",
        "Seconds since the last metadata response.",
        (),
        _of_producer("metadata_age"),
        merge=max,
    ),
    _counter("metadata_failures", "Failed metadata requests.", (), _of_producer("metadata_failures")),
    _counter("transaction_calls", "Transactional calls that have ended.", ("call", "result"), _calls),
    _histogram("transaction_call_seconds", "Duration of transactional calls.", ("call",), _call_times),
    # Brokers
    _gauge("node_info", "Addresses of brokers.", ("node", "address", "rack"), _addresses, merge=max),
    _gauge("node_connected", "Connections that are ready.", ("node",), _connected),
    _gauge("node_in_flight", "Requests that have not been answered yet.", ("node",), _by_node("in_flight")),
    _gauge(
        "node_throttled_seconds",
        "Seconds until the broker accepts requests again; 0 if it accepts them now.",
        ("node",),
        _by_node("throttled_for"),
        merge=max,
    ),
    _counter("node_requests", "Requests.", ("node",), _by_node("requests")),
    _counter("node_bytes_sent", "Bytes sent.", ("node",), _by_node("bytes_sent")),
    _counter("node_bytes_received", "Bytes received.", ("node",), _by_node("bytes_received")),
    _counter("node_connects", "Connections established.", ("node",), _by_node("connects")),
    _counter("node_connect_failures", "Failed connection attempts.", ("node",), _by_node("connect_failures")),
    _counter("node_disconnects", "Connections that ended.", ("node",), _by_node("disconnects")),
    _counter(
        "node_throttle_seconds",
        "Seconds that the producer waited because of quotas.",
        ("node",),
        _by_node("throttle_time"),
    ),
    _histogram(
        "node_request_seconds", "Time from a request to its response.", ("node",), _by_node("latency")
    ),
)
"""All metrics; docs/prometheus.md lists them."""
