"""Starts and stops a producer: start() creates its parts, and close() stops them. A running producer that is dropped is
closed in the background."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from enum import Enum
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, NoReturn, Self

from aioproducer.concurrency.tasks import ended, new_task
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.core import Core
from aioproducer.errors import (
    ForkedError,
    IllegalStateError,
    ProducerClosed,
    WrongLoopError,
    counted,
)
from aioproducer.from_config import FromConfig
from aioproducer.metrics import Metrics
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.observe import live
from aioproducer.observe.hooks import CloseEvent, Hooks, StartEvent
from aioproducer.observe.snapshot_ring import SnapshotRing
from aioproducer.observe.tracing import tracer_of
from aioproducer.records._record_path import BatchState
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.arguments import check_timeout
from aioproducer.records.compressor import BatchCompressor
from aioproducer.records.idempotence import Idempotence
from aioproducer.records.interceptors import Interceptors
from aioproducer.records.partition_choice import PartitionChoice
from aioproducer.records.serializers import Serializers
from aioproducer.sending.metrics_push import LAST_PUSH, MetricsPush
from aioproducer.sending.own_timeouts import OwnTimeouts
from aioproducer.sending.rejections import Rejections
from aioproducer.sending.sender import Sender
from aioproducer.sending.vital_signs import VitalSigns, weakly_measuring
from aioproducer.transactions.calls import Transactional
from aioproducer.transactions.coordinator import Coordinator
from aioproducer.transactions.first_writer import FirstWriter
from aioproducer.transactions.state import Transaction
from aioproducer.types import CloseReport, Outcome, TransactionHandle

TASKS_CANCELLED = "its tasks were cancelled, as happens when an event loop ends,"
MOST_TOPICS_NAMED = 10
"""The maximum number of topics named in one log line."""


class ProducerState(Enum):
    NEW = "new"
    RUNNING = "running"
    CLOSING = "closing"
    CLOSED = "closed"


TRANSITIONS: dict[ProducerState, frozenset[ProducerState]] = {
    ProducerState.NEW: frozenset({ProducerState.RUNNING, ProducerState.CLOSED}),
    ProducerState.RUNNING: frozenset({ProducerState.CLOSING}),
    ProducerState.CLOSING: frozenset({ProducerState.CLOSED}),
    ProducerState.CLOSED: frozenset(),
}


class Lifecycle(VitalSigns, Transactional, FromConfig):
    """A base class of Producer: starts and stops it."""

    # CPython 3.11 looks up `producer.send` again on every call if the instance's `__dict__` has more than 30 entries.
    __slots__ = (
        "_accumulator",
        "_brokers",
        "_choice",
        "_clock_offset",
        "_closing",
        "_compressor",
        "_config",
        "_coordinator",
        "_give_up_flush",
        "_given",
        "_handle",
        "_hooks",
        "_idempotence",
        "_initializes_later",
        "_interceptors",
        "_is_owner",
        "_is_reported",
        "_log",
        "_logs_given_up",
        "_loop",
        "_metadata",
        "_metrics",
        "_own_timeouts",
        "_process",
        "_push",
        "_push_task",
        "_random",
        "_rejections",
        "_ring",
        "_sender",
        "_serializers",
        "_shares_the_loop",
        "_started_at",
        "_state",
        "_takes_columns",
        "_tasks",
        "_transaction",
        "_wake",
        "_wall_clock",
    )

    def _prepare(self) -> None:
        """Set the fields of a producer that has not been started."""
        self._state = ProducerState.NEW
        self._log = self._config.log(__name__)
        self._metrics = Metrics()
        self._random = Random()
        self._choice = PartitionChoice(self._config, self._random)
        self._interceptors = Interceptors(self._config.interceptors, self._log)
        self._serializers = Serializers(self._config.value_serializer, self._config.key_serializer)
        self._hooks = Hooks(
            self._config.hooks, self._config.client_id, self._config.log("aioproducer.observe.hooks")
        )
        self._rejections = Rejections(self._metrics, self._hooks)
        self._transaction = Transaction(self._config.transactional_id, self._gate)
        self._handle: TransactionHandle | None = None
        """The handle of another producer's transaction that this producer takes part in or has taken over."""
        self._is_owner = False
        self._initializes_later = False
        self._shares_the_loop = True
        """False if the loop does not run the application's tasks, so that compression threads need no lower
        priority."""
        self._wall_clock: Callable[[], float] = time.time
        # start() creates the rest, once the loop is known.
        self._loop: asyncio.AbstractEventLoop
        self._process: int
        """The process id. A forked child inherits the producer, but must not touch its loop."""
        self._accumulator: Accumulator
        self._brokers: Brokers
        self._metadata: Metadata
        self._coordinator: Coordinator
        self._sender: Sender
        self._own_timeouts: OwnTimeouts
        self._tasks: list[asyncio.Task[None]] = []
        self._push_task: asyncio.Task[None] | None = None
        self._compressor: BatchCompressor
        self._ring: SnapshotRing
        self._started_at: float
        self._clock_offset: float
        """The difference between the wall clock and the loop's time when start() was called."""
        self._closing: asyncio.Future[CloseReport] | None = None
        self._is_reported = False
        self._logs_given_up = False
        self._give_up_flush = asyncio.Event()
        self._takes_columns = False
        """True if no user code has to see individual records; send_many then appends rows directly to the batches."""

    def _move(self, to: ProducerState) -> None:
        assert to in TRANSITIONS[self._state], f"a producer can't go from {self._state.value} to {to.value}"
        self._state = to

    async def start(self, *, wait: bool = True) -> None:
        """Connect to the cluster and start sending. `async with` calls this method.

        Args:
            wait: False to return at once and connect in the background, for a service that has to start even while
                the cluster is unavailable. The producer tries to connect until it succeeds or is closed, and logs the
                reason for the failure every 10 s. In the meantime, `send` waits for its topic (max_block_ms) and
                `health()` is not ok. A transactional producer takes over its transactional id when it begins its
                first transaction.

        Raises:
            BootstrapError: no bootstrap address answered within max_block_ms (if that is 0, request_timeout_ms). The
                error gives the reason for each address. Not raised with `wait=False`.
            AuthenticationError: a broker rejects our credentials, or we reject its certificate. Raised immediately, but
                not with `wait=False`.
            ConfigError: certificates cannot be read. Not raised with `wait=False`.
            IllegalStateError: the producer has already been started.
            WrongLoopError: no asyncio event loop is running.

        If start() is cancelled, the producer is closed.
        """
        if self._state is not ProducerState.NEW:
            raise IllegalStateError(
                f"the producer is {self._state.value}; it can only be started once, so create a new one"
            )
        self._loop = _running_loop()
        self._started_at = self._loop.time()
        self._clock_offset = self._wall_clock() - self._started_at
        self._move(ProducerState.RUNNING)
        self._process = os.getpid()
        _started.add(self)
        live.add(self, partial(self._metrics.past, self._config.client_id))
        self._make_parts()
        self._run_user_code(
            self._serializers.of_value,
            self._serializers.of_key,
            None if self._interceptors.is_empty else self._interceptors,
            self._metadata,
        )
        self._ring = SnapshotRing(self._loop, weakly_measuring(self))
        try:
            await self._open(wait=wait)
        except GeneratorExit:
            raise  # the loop is gone, so nothing can be awaited
        except BaseException:
            await self.close(timeout=0)
            raise
        if self._hooks.on_start:
            cluster_id = self._metadata.cluster.cluster_id
            seconds = self._loop.time() - self._started_at
            self._hooks.tell(self._hooks.on_start, StartEvent(self._config.client_id, cluster_id, seconds))

    def _make_parts(self) -> None:
        """Create the buffer and the parts that process its records. None of them is active yet."""
        core = Core(self._config, self._loop, WakeUp(self._loop), self._metrics, self._random, self._hooks)
        self._wake = core.wake
        self._brokers = brokers = Brokers(core)
        self._metadata = metadata = Metadata(core, brokers)
        self._accumulator = accumulator = Accumulator(
            core, partial(BatchCompressor, core.config, core.loop, gives_way=self._shares_the_loop)
        )
        self._compressor = accumulator.compressor
        transaction = self._transaction
        self._own_timeouts = OwnTimeouts(core, accumulator, transaction)
        self._idempotence = idempotence = Idempotence(core.config.enable_idempotence)
        self._push = MetricsPush(core, brokers, weakly_measuring(self))
        self._coordinator = Coordinator(core, transaction, idempotence, accumulator, brokers)
        self._sender = Sender(
            core, accumulator, brokers, metadata, idempotence, transaction, self._coordinator
        )

    async def _open(self, *, wait: bool) -> None:
        """Start the parts. If `wait` is true, wait for the first metadata response before starting the sender."""
        config = self._config
        self._spawn(self._metadata.run(), "aioproducer-metadata")
        if wait:
            # With max_block_ms=0, `send` never waits, but connecting still takes time.
            await self._metadata.first_update(
                self._loop.time() + (config.max_block or config.request_timeout)
            )
        else:
            self._metadata.expect_first_update()
        self._spawn(self._sender.run(), "aioproducer-sender")
        if config.enable_metrics_push:
            self._push_task = self._spawn(self._push.run(), "aioproducer-metrics-push")
        is_compiled = self._choice.is_compiled
        self._takes_columns = is_compiled and self._serializers.is_empty and self._interceptors.is_empty
        self._tracer = tracer_of(config)
        self._bind(
            self._loop,
            self._accumulator,
            self._accumulator.memory,
            config.batch_size,
            config.max_request_size,
            is_compiled and self._handle is None,
            self._sender.send_alone,
        )
        if self._handle is not None and self._is_owner:
            self._coordinator.resume(self._handle)
        elif self._handle is not None:
            first_writer = None
            if self._transaction.role.asks_leaders:
                first_writer = FirstWriter(config, self._brokers, self._metadata, self._random, self._handle)
            self._coordinator.attach(self._handle, first_writer)
        elif self._transaction.is_used and wait:
            await self._coordinator.initialize()
        elif self._transaction.is_used:
            self._initializes_later = True

    def _spawn(self, coroutine: Any, name: str) -> asyncio.Task[None]:
        task = new_task(self._loop, coroutine, name)
        # The reference is weak, like all references from the loop to a producer, so that a dropped producer can be
        # garbage-collected.
        task.add_done_callback(partial(_task_ended, weakref.ref(self)))
        self._tasks.append(task)
        return task

    async def close(self, timeout: float | None = None) -> CloseReport:
        """Send the buffered records and stop.

        When close() returns, no task or socket is left. A thread that is still compressing a batch ends when that
        batch is done, and does not keep the interpreter alive.

        Args:
            timeout: seconds to wait for records that are buffered or in flight; 0 fails them immediately. Default:
                delivery_timeout_ms, after which every record has its result anyway.

        Returns:
            How many records have been delivered, have failed, and have an unknown outcome since start().

        Cancelling close() fails the remaining records immediately. A second call waits for the first and returns its
        report.
        """
        check_timeout(timeout)
        if self._state is ProducerState.NEW:
            self._move(ProducerState.CLOSED)
            self._unbind()
            return CloseReport(0, 0, 0, {})
        if self._state is not ProducerState.CLOSED:
            self._check_place()
        if self._closing is None:
            seconds = self._config.delivery_timeout + 1 if timeout is None else timeout
            self._closing = asyncio.ensure_future(self._close(seconds, "the producer was closed"))
        try:
            return await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._give_up_flush.set()
            await ended(self._closing)
            raise

    stop = close
    """aiokafka's name for `close`."""

    async def _close(self, timeout: float, reason: str) -> CloseReport:
        self._move(ProducerState.CLOSING)
        self._unbind()
        self._accumulator.close()
        self._metadata.close_waiters(
            ProducerClosed("the producer was closed while the record waited for metadata")
        )
        began = self._loop.time()
        if timeout > 0 and (self._accumulator.incomplete or self._transaction.is_used):
            await self._while_wanted(self._finish(), timeout)
            if self._logs_given_up:
                self._report_given_up(self._loop.time() - began)
        self._sender.abort(f"{reason} before the records were acknowledged")
        await self._coordinator.close()
        await self._end_tasks(task for task in self._tasks if task is not self._push_task)
        left = began + timeout - self._loop.time()
        if left > 0:
            await self._while_wanted(self._push.push_last(), min(left, LAST_PUSH))
        await self._end_tasks(self._tasks)
        await self._brokers.close()
        self._ring.close()
        await self._compressor.close()
        self._accumulator.unretrieved.close()
        self._move(ProducerState.CLOSED)
        metrics = self._metrics
        report = CloseReport(
            metrics.records_acked,
            metrics.records_failed,
            metrics.records_unknown,
            dict(self._accumulator.unretrieved.counts),
        )
        if self._hooks.on_close:
            self._hooks.tell(
                self._hooks.on_close, CloseEvent(self._config.client_id, report, self._loop.time() - began)
            )
        return report

    async def _end_tasks(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        ending = list(tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _while_wanted(self, step: Coroutine[Any, Any, None], timeout: float) -> None:
        """Run part of close() until it ends, the timeout expires, or close() is cancelled."""
        running = asyncio.ensure_future(step)
        given_up = asyncio.ensure_future(self._give_up_flush.wait())
        await asyncio.wait({running, given_up}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        given_up.cancel()
        await asyncio.wait({running, given_up})
        if not running.cancelled() and (error := running.exception()) is not None:
            self._log.error("close() failed; the remaining records fail as well", exc_info=error)

    def _report_given_up(self, waited: float) -> None:
        """Log the records that were still unacknowledged when an `async with` block stopped waiting, because the
        block discards the CloseReport that would show them."""
        counts: Counter[str] = Counter()
        for batch in self._accumulator.incomplete:
            counts[batch.queue.topic] += batch.live_count
        if not counts:
            return
        topics = [f"{count} for topic {topic}" for topic, count in counts.most_common(MOST_TOPICS_NAMED)]
        if len(counts) > MOST_TOPICS_NAMED:
            topics.append(f"the others for {counted(len(counts) - MOST_TOPICS_NAMED, 'more topic')}")
        self._log.error(
            "%r stopped waiting before %s acknowledged, after %.3g s: %s. Each delivery says whether its record may "
            "be in the log. To wait longer, raise close_timeout_ms (%g) or call close(timeout=seconds)",
            self,
            counted(counts.total(), "record was", "records were"),
            waited,
            ", ".join(topics),
            self._config.close_timeout * 1000,
        )

    async def _finish(self) -> None:
        """End the transaction and flush: the part of close() that may take a long time."""
        await self._end_transaction()
        await self._accumulator.flush()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an exception, including a cancellation, close() does not wait for the remaining records.
        await self.close(timeout=self._seconds_to_leave() if error_type is None else 0)

    def _seconds_to_leave(self) -> float:
        """Return how many seconds close() may wait when a block ends, and make it log the records that it fails."""
        self._logs_given_up = True
        return min(self._config.close_timeout, self._config.delivery_timeout + 1)

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "a Producer requires `async with`, inside a coroutine; in code without asyncio, use "
            "aioproducer.blocking.Producer"
        )

    def __exit__(self, *error: object) -> None:
        """Do nothing; Python looks this method up before it calls __enter__."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Producer can't be pickled or copied, since it belongs to a process and an event loop; send the settings "
            "and create one in each process"
        )

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_state", ProducerState.NEW) in (ProducerState.RUNNING, ProducerState.CLOSING):
            is_closing = self._close_dropped()
            warn(f"{self!r} was not closed; use `async with` or await close()", ResourceWarning, source=self)
            if not is_closing:
                self._report_unclosed("it was garbage-collected")

    def _report_unclosed(self, why: str) -> None:
        """Log, once, how many accepted records are lost because the producer was not closed."""
        batches = list(self._accumulator.incomplete) if hasattr(self, "_accumulator") else []
        if not batches or self._is_reported:
            return
        try:
            self._check_place()
        except ForkedError:
            return  # the buffered records belong to the parent process
        except WrongLoopError:
            pass  # the loop has ended
        self._is_reported = True
        count = sum(batch.live_count for batch in batches)
        unknown = sum(
            batch.live_count
            for batch in batches
            if batch.outcome is Outcome.UNKNOWN or batch.state is BatchState.IN_FLIGHT
        )
        self._log.error(
            "Unclosed producer %r: %s before %s had a result: %s lost, %d may be in the log. "
            "Use `async with Producer(...)`, or await producer.close() before the event loop ends",
            self,
            why,
            counted(count, "accepted record"),
            counted(count - unknown, "was not sent and is", "were not sent and are"),
            unknown,
        )

    def _close_dropped(self) -> bool:
        """Close a running producer that is no longer referenced. Return False if its loop can no longer do that.

        The task that runs close() keeps the producer alive until it ends. The producer's __del__ is not called again.
        The garbage collector may call this in any thread.
        """
        if self._state is not ProducerState.RUNNING or self._process != os.getpid() or self._loop.is_closed():
            return False
        try:
            self._loop.call_soon_threadsafe(_close_in_background, self)
        except RuntimeError:
            return False  # another thread has closed the loop in the meantime
        return True

    def __repr__(self) -> str:
        if not hasattr(self, "_state"):
            return "<Producer with rejected settings>"
        servers = ",".join(f"{host}:{port}" for host, port in self._config.bootstrap_servers)
        return f"<Producer {self._state.value} {servers}>"


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongLoopError(
            "start() requires a running asyncio event loop. Use asyncio.run(). With anyio, use its asyncio backend: "
            'anyio.run(main, backend="asyncio"). With trio, or without an event loop, use '
            "aioproducer.blocking.Producer in a thread"
        ) from None


_dropped: set[asyncio.Task[CloseReport]] = set()
"""Tasks that close dropped producers. The loop has only weak references to its tasks."""
_started: weakref.WeakSet[Lifecycle] = weakref.WeakSet()
"""Producers that may lose records when the interpreter exits."""


def _close_in_background(producer: Lifecycle) -> None:
    def ended(task: asyncio.Task[CloseReport]) -> None:
        _dropped.discard(task)
        if task.cancelled():
            producer._report_unclosed(TASKS_CANCELLED)

    task = new_task(producer._loop, producer.close(), "aioproducer close of a dropped producer")
    _dropped.add(task)
    _started.add(producer)  # the garbage collector has cleared the weak references to the producer
    task.add_done_callback(ended)


def _task_ended(reference: weakref.ref[Lifecycle], task: asyncio.Task[None]) -> None:
    """Close the producer after one of its tasks has ended unexpectedly, which is a bug in aioproducer."""
    producer = reference()
    if producer is not None and producer._closing is not None:
        return
    if task.cancelled():
        if producer is not None:
            producer._report_unclosed(TASKS_CANCELLED)
        return
    if task.exception() is None:
        return
    log = logging.getLogger(__name__) if producer is None else producer._log
    log.error("%s ended unexpectedly; the producer is closing", task.get_name(), exc_info=task.exception())
    if producer is not None:
        reason = f"{task.get_name()} ended unexpectedly"
        producer._closing = new_task(producer._loop, producer._close(0, reason))


def _report_all_unclosed() -> None:
    """Report the producers that still exist because their loop was closed before they were."""
    for producer in list(_started):
        producer._report_unclosed("the interpreter ended")


atexit.register(_report_all_unclosed)
