"""The result of `Producer.metrics()`: immutable snapshots, which can be subtracted, converted to dicts and stored.

A counter starts at 0 and only grows; `later - earlier` gives the counts in between. A gauge is a current value; the
difference of two snapshots contains the later snapshot's gauges. Times are in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NoReturn, TypeVar

S = TypeVar("S", bound="_Numbers")


class Counts(dict[str, int]):
    """Immutable counts by name. It is a dict because a MappingProxyType can be neither pickled nor copied."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the counts in a snapshot cannot be changed; copy them into a dict")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Counts], tuple[dict[str, int]]]:
        return Counts, (dict(self),)


NOTHING: Mapping[str, int] = Counts()
PAST = "past"
"""The value of `state` in the snapshots of producers that no longer exist. The gauges in these snapshots have no
meaning."""
MOST_TOPICS = 1_000
"""The maximum number of topics with their own counters; all others share the counters of OTHER_TOPICS."""
OTHER_TOPICS = "_other"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations or sizes, counted in buckets that grow by a factor of 2**(1/4): a quantile is at most 19% too large."""

    count: int = 0
    sum: float = 0.0
    max: float = 0.0
    """The largest value; in a difference of snapshots, an upper bound of the largest value."""
    buckets: tuple[tuple[float, int], ...] = ()
    """The non-empty buckets in ascending order, each as (upper bound, number of values)."""

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    @property
    def p50(self) -> float:
        return self.quantile(0.5)

    @property
    def p99(self) -> float:
        return self.quantile(0.99)

    def quantile(self, q: float) -> float:
        """Return the `q`-quantile of the values (0 <= q <= 1); 0.0 if there are no values."""
        left = q * self.count
        for end, count in self.buckets:
            left -= count
            if left <= 0:
                return min(end, self.max)
        return self.max

    def __sub__(self, earlier: Distribution) -> Distribution:
        before = dict(earlier.buckets)
        left = ((end, count - before.get(end, 0)) for end, count in self.buckets)
        buckets = tuple((end, count) for end, count in left if count)
        if self.max > earlier.max or not buckets:
            largest = self.max if buckets else 0.0
        else:
            largest = min(buckets[-1][0], self.max)
        return Distribution(self.count - earlier.count, self.sum - earlier.sum, largest, buckets)

    def __add__(self, other: Distribution) -> Distribution:
        counts = dict(self.buckets)
        for end, count in other.buckets:
            counts[end] = counts.get(end, 0) + count
        return Distribution(
            self.count + other.count,
            self.sum + other.sum,
            max(self.max, other.max),
            tuple(sorted(counts.items())),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON: count, sum, mean, p50, p99, max and the buckets."""
        return {
            "count": self.count,
            "sum": self.sum,
            "mean": self.mean,
            "p50": self.p50,
            "p99": self.p99,
            "max": self.max,
            "buckets": [list(bucket) for bucket in self.buckets],
        }


class _Numbers:
    """A snapshot of counters, gauges and distributions."""

    __slots__ = ()

    KEY: ClassVar[str] = ""
    """The field that identifies a snapshot among others of its class."""

    def __sub__(self: S, earlier: S) -> S:
        changes = {
            entry.name: _difference(entry, getattr(self, entry.name), getattr(earlier, entry.name))
            for entry in fields(self)  # type: ignore[arg-type]  # each subclass is a dataclass
        }
        return replace(self, **changes)  # type: ignore[type-var]

    def __add__(self: S, other: S) -> S:
        """Return the sums of the counters, and the gauges from the first snapshot."""
        sums = {
            entry.name: _sum(getattr(self, entry.name), getattr(other, entry.name))
            for entry in fields(self)  # type: ignore[arg-type]  # each subclass is a dataclass
            if not entry.metadata.get("gauge")
        }
        return replace(self, **sums)  # type: ignore[type-var]

    def as_dict(self) -> dict[str, Any]:
        """Return all values as dicts, lists, numbers and strings, for JSON."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}  # type: ignore[arg-type]


def _gauge(**options: Any) -> Any:
    return field(metadata={"gauge": True}, **options)


def _difference(entry: Any, now: Any, before: Any) -> Any:
    if entry.metadata.get("gauge") or now is None:
        return now
    if isinstance(now, Mapping):
        changed = {name: count - before.get(name, 0) for name, count in now.items()}
        return Counts({name: count for name, count in changed.items() if count})
    if isinstance(now, tuple):
        known = {getattr(one, one.KEY): one for one in before}
        return tuple(
            one - known[getattr(one, one.KEY)] if getattr(one, one.KEY) in known else one for one in now
        )
    return now if before is None else now - before


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, Mapping):
        return Counts({name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}})
    if isinstance(one, tuple):
        by_key = {getattr(item, item.KEY): item for item in one}
        for item in other:
            key = getattr(item, item.KEY)
            by_key[key] = by_key[key] + item if key in by_key else item
        return tuple(by_key.values())
    return one + other


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [one.as_dict() for one in value]
    return value.as_dict() if hasattr(value, "as_dict") else value


@dataclass(frozen=True, slots=True)
class NodeSnapshot(_Numbers):
    """The counts for one broker, over all connections to it. Bootstrap addresses have negative ids."""

    KEY: ClassVar[str] = "node_id"

    node_id: int = _gauge(default=-1)
    host: str = _gauge(default="")
    port: int = _gauge(default=0)
    rack: str | None = _gauge(default=None)
    is_connected: bool = _gauge(default=False)
    in_flight: int = _gauge(default=0)
    throttled_for: float = _gauge(default=0.0)
    """Seconds until the broker accepts requests from this producer again; 0 if it accepts them now."""
    last_error: str | None = _gauge(default=None)
    """Why the broker is not connected."""
    bytes_sent: int = 0
    bytes_received: int = 0
    requests: int = 0
    connects: int = 0
    connect_failures: int = 0
    disconnects: int = 0
    throttle_time: float = 0.0
    """Seconds that the producer waited because of the broker's quotas."""
    throttles: Distribution = field(default_factory=Distribution)
    """Seconds of throttling, one value for each response that requested it."""
    latency: Distribution = field(default_factory=Distribution)
    """Seconds from writing a request to receiving its response."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot(_Numbers):
    """One topic. Topics beyond the first 1,000 are counted together under the name `_other`."""

    KEY: ClassVar[str] = "name"

    name: str = _gauge(default="")
    last_ack_time: float | None = _gauge(default=None)
    """The wall-clock time of the last acknowledgement."""
    records_acked: int = 0
    records_failed: int = 0
    records_unknown: int = 0
    retries: int = 0
    records_retried: int = 0
    batch_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TransactionCallSnapshot(_Numbers):
    """One kind of transactional call: begin, initialize, send_offsets, commit, abort or fence."""

    KEY: ClassVar[str] = "call"

    call: str = _gauge(default="")
    count: int = 0
    failures: int = 0
    time: Distribution = field(default_factory=Distribution)
    """Duration of the calls in seconds, including failed calls."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot(_Numbers):
    """The result of `Producer.metrics()`."""

    client_id: str = _gauge(default="")
    cluster_id: str | None = _gauge(default=None)
    state: str = _gauge(default="new")
    """The state of the producer: new, running, closing or closed."""
    time: float = _gauge(default=0.0)
    """The wall-clock time of the snapshot."""
    started: float | None = _gauge(default=None)
    """The wall-clock time at which counting began: the time of start() or, in a difference, of the earlier snapshot."""
    records_buffered: int = _gauge(default=0)
    """Records in the buffer or in flight."""
    oldest_unacked_seconds: float = _gauge(default=0.0)
    """How long the oldest record without a result has been waiting, in seconds; 0 if there is none."""
    buffer_total: int = _gauge(default=0)
    buffer_available: int = _gauge(default=0)
    buffer_waiters: int = _gauge(default=0)
    """Calls to `send` that are waiting for room."""
    in_flight: int = _gauge(default=0)
    metadata_age: float | None = _gauge(default=None)
    """Seconds since the last metadata response; None before the first one."""
    records_accepted: int = 0
    records_sent: int = 0
    """Records in batches that were sent at least once; retries are not counted."""
    records_acked: int = 0
    records_failed: int = 0
    """Records that are certainly not in the log."""
    records_unknown: int = 0
    """Failed records that may be in the log."""
    records_unretrieved: int = 0
    """Failed records whose result no caller has retrieved."""
    rejected: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """Records that were rejected by `send`, and rows rejected by `send_many`, by error class."""
    record_bytes: int = 0
    batches: int = 0
    batch_bytes: int = 0
    produce_requests: int = 0
    requests: int = 0
    connects: int = 0
    """Connections established to all brokers, including bootstrap addresses that `nodes` no longer lists."""
    disconnects: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    retries: int = 0
    """Batches that were sent again."""
    records_retried: int = 0
    """Records in batches that were sent again."""
    splits: int = 0
    data_losses: int = 0
    errors: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    batch_size: Distribution = field(default_factory=Distribution)
    records_per_request: Distribution = field(default_factory=Distribution)
    queue_time: Distribution = field(default_factory=Distribution)
    """Seconds from opening a batch to its first attempt."""
    time_to_ack: Distribution = field(default_factory=Distribution)
    """Seconds from opening a batch to its acknowledgement, weighted by its records."""
    time_to_result: Distribution = field(default_factory=Distribution)
    """Seconds from opening a batch to its result, including failures, weighted by its records."""
    buffer_wait: Distribution = field(default_factory=Distribution)
    """Seconds that calls to `send` waited for room."""
    metadata_updates: int = 0
    metadata_failures: int = 0
    topics: tuple[TopicSnapshot, ...] = ()
    nodes: tuple[NodeSnapshot, ...] = ()
    transactions: tuple[TransactionCallSnapshot, ...] = ()

    def __sub__(self, earlier: MetricsSnapshot) -> MetricsSnapshot:
        return replace(_Numbers.__sub__(self, earlier), started=earlier.time)
