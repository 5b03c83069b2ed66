"""Reports on a producer: its metrics, whether a broker answers, and whether it is ready for records."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from aioproducer.cluster import TopicInfo
from aioproducer.config import ProducerConfig
from aioproducer.metrics import Metrics
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.observe.description import Description, versions
from aioproducer.observe.snapshot_ring import LONGEST_WINDOW, PERIOD, SnapshotRing
from aioproducer.observe.snapshots import MetricsSnapshot
from aioproducer.observe.vital_signs import Health, Ping
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import MetadataRequest
from aioproducer.records._record_path import RecordPath
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.arguments import check_timeout
from aioproducer.records.batch import ProducerBatch
from aioproducer.records.idempotence import Idempotence
from aioproducer.sending.metrics_push import MetricsPush
from aioproducer.transactions.state import Transaction

MOST_BATCHES = 10
MOST_TOPICS = 100
"""The maximum number of batches and of topics that describe() shows."""
COUNTERS = (
    "records_accepted",
    "records_sent",
    "records_acked",
    "records_failed",
    "records_unknown",
    "requests",
    "produce_requests",
    "retries",
    "metadata_updates",
    "metadata_failures",
)
"""The fields of metrics() that describe() shows."""


class VitalSigns(RecordPath):
    """Measures a producer. A base class of Lifecycle."""

    _accumulator: Accumulator
    _brokers: Brokers
    _clock_offset: float
    _closing: asyncio.Future[Any] | None
    _config: ProducerConfig
    _idempotence: Idempotence
    _loop: asyncio.AbstractEventLoop
    _metadata: Metadata
    _metrics: Metrics
    _push: MetricsPush
    _ring: SnapshotRing
    _started_at: float
    _state: Any
    _transaction: Transaction
    _wall_clock: Callable[[], float]
    """A function that returns the seconds since 1970; simulations replace it with their own clock."""

    def metrics(self, *, window: float | None = None) -> MetricsSnapshot:
        """Return all counters and gauges. metrics() works in every state, even before start() and after close().

        Args:
            window: seconds, from 10 to 600. If given, the result covers roughly the last `window` seconds instead of
                the time since start(). The producer takes a snapshot every 10 s for this purpose. For other periods,
                subtract two snapshots yourself.

        Raises:
            ValueError: the window is not in this range.
        """
        return self._measure(window)

    async def ping(self, timeout: float = 2.0) -> Ping:
        """Send a request to a broker. Return which broker answered, and how long that took. The answer never comes
        from a cache.

        Args:
            timeout: seconds, including the time to connect.

        Raises:
            BrokerConnectionError: no broker can be reached.
            RequestTimedOutError: no broker answered in time.
            AuthenticationError: a broker rejects our credentials, or we reject its certificate.
            ProducerNotStartedError, ProducerClosed, WrongLoopError, ForkedError: the producer cannot be used.

        Cancelling the call does not affect the producer.
        """
        check_timeout(timeout)
        self._check_usable()
        began = time.perf_counter()  # uvloop's clock has a resolution of 1 ms
        node, _ = await self._brokers.ask_any(MetadataRequest(topics=[]), timeout)
        return Ping(node, time.perf_counter() - began)

    def health(self, *, max_unacked_seconds: float = 30.0) -> Health:
        """Return whether records sent now can be expected to arrive. health() sends nothing, so you can call it as
        often as you like.

        Use it for a readiness check, but not for a liveness check: restarting a process does not bring brokers back,
        and loses the records in its buffer.

        Args:
            max_unacked_seconds: the producer is not `ok` if a record has waited longer than this for its result.
        """
        measured = self._measure()
        connected = sum(node.is_connected for node in measured.nodes)
        return Health(
            not (reason := self._why_unhealthy(measured, connected, max_unacked_seconds)),
            reason,
            measured.state,
            connected,
            len(self._brokers.nodes) if hasattr(self, "_brokers") else 0,
            measured.oldest_unacked_seconds,
            measured.metadata_age,
        )

    async def client_instance_id(self, timeout: float = 10.0) -> UUID:
        """Return the id by which the brokers know this client. A broker assigns it for the client's metrics
        (KIP-714).

        Args:
            timeout: seconds.

        Raises:
            KafkaTimeoutError: no broker assigned an id in time. Brokers do so only if they collect client metrics
                (Kafka 3.7 or later, with a plugin).
            IllegalStateError: enable_metrics_push is off.

        Cancelling the call does not affect the producer.
        """
        check_timeout(timeout)
        self._check_usable()
        return await self._push.client_instance_id(timeout)

    def register_metric(self, name: str, read: Callable[[], float]) -> None:
        """Push a metric of your own to brokers that request it (KIP-1076), unless enable_metrics_push is off.

        Args:
            name: the full name of the metric; brokers subscribe to name prefixes.
            read: a function that returns the value. The function runs in the event loop at each push. If it raises an
                exception, the exception is logged and the metric is removed.

        Raises:
            InvalidArgumentError: the name is not a str, is empty or cannot be encoded as UTF-8, or `read` is not a
                function.
        """
        self._check_usable()
        self._push.register(name, read)

    def unregister_metric(self, name: str) -> None:
        """Undo `register_metric`."""
        self._check_usable()
        self._push.unregister(name)

    def describe(self) -> Description:
        """Return the producer's settings, connections, topics and oldest batches, as text for a bug report.

        describe() sends nothing, and works in every state and thread. `str()` returns the text; `as_dict()` is for
        JSON. Neither contains record data or secrets; both contain the names of topics, hosts and users.
        """
        given = {name: text for name, text in self._config.shown().items() if not text.endswith("(default)")}
        state = self._state.value
        if not hasattr(self, "_accumulator"):
            return Description(versions(None), given, state, warnings=self._config.recent_warnings)
        now = self._loop.time()
        measured = self._measure()
        return Description(
            versions(self._loop),
            given,
            state,
            {
                "id": measured.cluster_id,
                "metadata_age": measured.metadata_age,
                "last_error": None if (error := self._metadata.last_error) is None else str(error),
            },
            tuple(self._brokers.describe(now)),
            self._describe_topics(),
            self._describe_identity(),
            {
                "total": measured.buffer_total,
                "available": measured.buffer_available,
                "waiting_sends": measured.buffer_waiters,
                "records": measured.records_buffered,
                "in_flight_requests": measured.in_flight,
            },
            tuple(
                _described_batch(batch, now) for batch in list(self._accumulator.incomplete)[:MOST_BATCHES]
            ),
            {name: getattr(measured, name) for name in COUNTERS} | {"errors": dict(measured.errors)},
            self._config.recent_warnings,
        )

    def _describe_topics(self) -> dict[str, dict[str, Any]]:
        topics = self._metadata.cluster.topics
        described = {name: _described(topics[name]) for name in islice(topics, MOST_TOPICS)}
        if len(topics) > MOST_TOPICS:
            described["_other"] = {"topics": len(topics) - MOST_TOPICS}
        return described

    def _describe_identity(self) -> dict[str, Any]:
        identity, transaction = self._idempotence.identity, self._transaction
        described: dict[str, Any] = {
            "producer_id": None if identity is None else identity.producer_id,
            "epoch": None if identity is None else identity.epoch,
        }
        if transaction.is_used:
            described["transactional_id"] = transaction.transactional_id
            described["transaction"] = transaction.state.value
            described["transaction_version"] = 2 if transaction.is_v2 else 1
            described["transaction_error"] = None if transaction.error is None else str(transaction.error)
        return described

    def _why_unhealthy(self, measured: MetricsSnapshot, connected: int, max_unacked_seconds: float) -> str:
        if measured.state != "running":
            return f"the producer is {measured.state}"
        if self._closing is not None:
            return "the producer is closing"
        if (why := self._transaction.why_stuck) is not None:
            return why
        if measured.metadata_age is None:
            return f"no broker has answered yet: {self._brokers.reachability.reasons()}"
        if measured.oldest_unacked_seconds > max_unacked_seconds:
            return f"a record has been waiting for its acknowledgement for {measured.oldest_unacked_seconds:.0f} s"
        if not connected and (error := self._metadata.last_error) is not None:
            return f"no broker is connected: {error}"
        return ""

    def _measure(self, window: float | None = None) -> MetricsSnapshot:
        """Return the current metrics, or the metrics for the last `window` seconds."""
        if window is not None and not PERIOD <= window <= LONGEST_WINDOW:
            raise ValueError(
                f"metrics(window=) must be from {PERIOD:g} to {LONGEST_WINDOW:g} seconds, not {window!r}"
            )
        gauges: dict[str, Any] = {
            "client_id": self._config.client_id,
            "state": self._state.value,
            "time": self._wall_clock(),
        }
        if not hasattr(self, "_accumulator"):
            return MetricsSnapshot(
                **gauges, buffer_total=self._config.buffer_memory, buffer_available=self._config.buffer_memory
            )
        now = self._loop.time()
        accumulator, memory = self._accumulator, self._accumulator.memory
        # Exporters call this in their own threads, and the loop's thread may change the collections at the same time,
        # so copy them.
        ended = self._metrics.ended  # read before the buffered records are counted: see Metrics.snapshot()
        incomplete = list(accumulator.incomplete)
        oldest = incomplete[0] if incomplete else None
        snapshot = self._metrics.snapshot(
            ended,
            **gauges,
            describe_node=partial(self._brokers.gauges, now),
            wall_time=self._wall_time,
            cluster_id=self._metadata.cluster.cluster_id,
            started=self._wall_time(self._started_at),
            records_buffered=sum(batch.live_count for batch in incomplete if not batch.is_counted),
            records_unretrieved=sum(accumulator.unretrieved.counts.copy().values()),
            oldest_unacked_seconds=0.0 if oldest is None else max(now - oldest.created, 0.0),
            buffer_total=memory.total,
            buffer_available=memory.available,
            buffer_waiters=memory.waiters,
            metadata_age=self._metadata.age(now),
        )
        return snapshot if window is None else snapshot - self._ring.before(window)

    def _wall_time(self, loop_time: float) -> float:
        return loop_time + self._clock_offset


def _described(topic: TopicInfo) -> dict[str, Any]:
    if topic.error:
        return {"error": error_name(topic.error)}
    partitions = topic.partitions
    return {
        "partitions": len(partitions),
        "without_leader": sum(partition.leader < 0 for partition in partitions),
        "under_replicated": sum(len(partition.isr) < len(partition.replicas) for partition in partitions),
    }


def _described_batch(batch: ProducerBatch, now: float) -> dict[str, Any]:
    return {
        "topic": batch.queue.topic,
        "partition": batch.queue.partition,
        "state": batch.state.value,
        "records": batch.live_count,
        "age": now - batch.created,
        "attempts": batch.attempts,
        "broker": batch.broker,
        "last_error": None if batch.last_error is None else str(batch.last_error),
    }


def weakly_measuring(producer: VitalSigns) -> Callable[[], MetricsSnapshot]:
    """Return a function that measures the producer without keeping it alive."""
    reference = weakref.ref(producer)

    def measure() -> MetricsSnapshot:
        alive = reference()
        return MetricsSnapshot() if alive is None else alive._measure()

    return measure
