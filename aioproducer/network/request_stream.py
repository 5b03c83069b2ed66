"""Requests and responses on one open socket: frames, the deque of requests in flight, deadlines.

Responses arrive in the order of the requests, so the next frame belongs to the oldest request in flight. Any error
closes the stream and fails every request in flight: a stream whose position is in doubt is never used again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from aioproducer.concurrency.tasks import all_ended
from aioproducer.concurrency.wakeup import CLOCK_SLACK
from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    AuthenticationError,
    BrokerConnectionError,
    KafkaError,
    NotKafkaError,
    ProtocolError,
    RequestTimedOutError,
)
from aioproducer.metrics import Metrics
from aioproducer.network.connection_state import TRANSITIONS, ConnectionState
from aioproducer.network.handshake import BrokerVersions
from aioproducer.network.large_answer import LARGE, LargeAnswer
from aioproducer.network.wire import Wire
from aioproducer.observe.hooks import NO_HOOKS, Hooks, RequestEvent, ThrottleEvent
from aioproducer.protocol.api import ApiKey, decode_response, decoding_response, encode_request
from aioproducer.protocol.frame import MAX_FRAME_BEFORE_AUTHENTICATION, PREFIX_SIZE, Frames
from aioproducer.protocol.produce import ProduceBatches
from aioproducer.protocol.schema import Message
from aioproducer.types import Node

HIGH_WATER = 1024 * 1024
"""Once this many bytes for a broker are unsent, no more of its batches are drained until all of these bytes have been
sent."""

NEARBY_LATENCY = 0.001
"""The maximum smoothed latency, in seconds, of a nearby broker. For such a broker, waiting until half of the in-flight
limit is free delays a request by about this much at most."""

THROTTLE_PERIOD = 10.0
"""Seconds between log lines about throttling by the same broker."""
MAX_THROTTLE = 60.0
"""The maximum throttle time in seconds; longer ones are capped at this value (the field allows up to 24 days)."""

LATE_TIMER = 0.1
"""If a deadline timer fires more than this many seconds late, the event loop was blocked. Responses may then be waiting
unread in the socket, so the event loop gets some more time to read them."""

_API_NAMES = {int(api): api.name for api in ApiKey}
Answered: TypeAlias = Callable[[Any, KafkaError | None], None]
"""A callback that receives (response, None) or (None, error)."""


class _InFlight:
    """A request that was written and is in flight until its response arrives or, with acks=0, until its bytes have been
    sent."""

    __slots__ = (
        "answered",
        "correlation_id",
        "deadline",
        "future",
        "request",
        "sent_at",
        "size",
        "start",
        "timeout",
        "version",
    )

    def __init__(
        self,
        request: Message | ProduceBatches,
        version: int,
        correlation_id: int,
        future: asyncio.Future[Any],
        answered: Answered | None,
        sent_at: float,
        timeout: float,
        start: int,
    ) -> None:
        self.request = request
        self.version = version
        self.correlation_id = correlation_id
        self.future = future
        self.answered = answered
        self.sent_at = sent_at
        self.timeout = timeout
        self.deadline = sent_at + timeout
        self.start = start
        self.size = 0


class RequestStream:
    """The requests and responses on a connection. The subclass Connection opens the socket and does the handshake."""

    def __init__(
        self,
        node: Node,
        config: ProducerConfig,
        *,
        on_change: Callable[[RequestStream], None],
        metrics: Metrics,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self.node = node
        self._config = config
        self._log = config.log(__name__)
        self.on_change = on_change
        self._metrics = metrics.node(node.node_id)
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        # changed only by _move()
        self.state = ConnectionState.CONNECTING
        self._closed_in = ConnectionState.CLOSED
        """The state that preceded CLOSED; until the connection is closed, the value is CLOSED."""
        self.error: KafkaError | None = None
        """Why the connection was closed; None for an orderly close (idle, drained)."""
        self.versions = BrokerVersions({})
        """The broker's API versions, which the handshake sets."""
        # the socket
        self._wire: Wire | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._session_task: asyncio.Task[None] | None = None
        """The task that re-authenticates before each session expires; None if sessions do not expire."""
        self._frame_limit = MAX_FRAME_BEFORE_AUTHENTICATION
        self._congested = False
        self._most_in_flight = config.max_in_flight_requests_per_connection
        self.reports_room = False
        """True from the moment the in-flight limit is reached until half of it is free (nearby brokers) or one slot is
        free (others). At that point, `on_change` is called. Other responses do not wake the sender: otherwise each
        response would trigger a separate request, which costs a turn of the loop and a system call."""
        self._frames = Frames()
        # requests
        self._in_flight: deque[_InFlight] = deque()
        self._unanswered: deque[int] = deque(maxlen=1000)
        """The correlation ids of the requests for which no response is expected."""
        self._leaving: deque[_InFlight] = deque()
        """Requests without a response (acks=0) whose bytes are still in the transport."""
        self._correlation_id = -1
        self._sliced: set[int] = set()
        """The correlation ids of the requests whose responses may be decoded in slices."""
        self.throttled_until = 0.0
        """The loop time until which the broker throttles this client (KIP-219)."""
        self._throttle_logged_at = -THROTTLE_PERIOD
        self.last_used = self._loop.time()
        self.latency = 0.0
        """The smoothed time from a request to its response, in seconds."""
        # one timer for the earliest deadline
        self._timer: asyncio.TimerHandle | None = None
        self._gave_a_moment = False

    def __str__(self) -> str:
        return str(self.node)

    def __repr__(self) -> str:
        return f"<Connection {self.node}, {self.state.value}, {self.in_flight} in flight>"

    # State, as seen by other modules

    @property
    def in_flight(self) -> int:
        """The number of requests that were written and have not been answered yet."""
        return len(self._in_flight) + len(self._leaving)

    @property
    def can_send(self) -> bool:
        """True if a request can be sent to this broker now."""
        return (
            self.state is ConnectionState.READY
            and not self._congested
            and self._wire is not None
            and not self._wire.is_closing()
            and not self.reports_room
            and (self.throttled_until == 0.0 or self.throttled_until <= self._loop.time())
        )

    @property
    def is_gone(self) -> bool:
        """True once the connection is closed and its tasks have ended."""
        return self.state is ConnectionState.CLOSED and all(task.done() for task in self._tasks())

    # Requests

    def request(
        self,
        message: Message | ProduceBatches,
        *,
        timeout: float,
        version_ceiling: int | None = None,
        expects_response: bool = True,
        answered: Answered | None = None,
        in_slices: bool = False,
    ) -> asyncio.Future[Any]:
        """Write a request immediately, without waiting, and return a future for its response.

        The future fails with BrokerConnectionError, RequestTimedOutError or ProtocolError, whose `written` attribute
        says whether bytes of the request may have been sent. Cancelling the future does not cancel the request: the
        response is read and discarded. The future need not be awaited.

        Args:
            timeout: seconds until the response must be complete; after that, the connection is closed.
            version_ceiling: the highest version in which the message may be encoded.
            expects_response: False for acks=0; the result is then None, set when the bytes have left the transport.
            answered: a callback that also receives (response, None) or (None, error), but never before `request` has
                returned. It is called in the turn of the loop in which the response arrives; a callback on the future
                would run one turn later.
            in_slices: whether the result may be a LargeAnswer, which is decoded in slices.

        Raises:
            UnsupportedVersionError: client and broker have no version in common; nothing was written.
        """
        if self.state is not ConnectionState.READY:
            future: asyncio.Future[Any] = self._loop.create_future()
            error = BrokerConnectionError(f"{self}: the connection is {self.state.value}", written=False)
            self._fail(future, answered, error)
            return future
        version = self.versions.of(message.api_key, version_ceiling)
        answer = self._send(message, version, timeout, expects_response, answered)
        if in_slices:
            self._sliced.add(self._correlation_id)
        return answer

    def cork(self) -> None:
        """Hold back requests until `uncork`, so that they are written together. Do not await in between."""
        if self._wire is not None:
            self._wire.is_corked = True

    def uncork(self) -> None:
        """Write the requests that were held back."""
        wire = self._wire
        if wire is not None:
            wire.uncork()
            if (self._congested or self._leaving) and not wire.unsent and not wire.is_closing():
                self._drained()  # the kernel accepted all bytes immediately, which the transport does not report

    def _send(
        self,
        message: Message | ProduceBatches,
        version: int,
        timeout: float,
        expects_response: bool = True,
        answered: Answered | None = None,
    ) -> asyncio.Future[Any]:
        wire = self._wire
        assert wire is not None  # set in every state in which requests are sent
        if wire.is_closing():
            lost: asyncio.Future[Any] = self._loop.create_future()
            error = BrokerConnectionError(f"{self}: the connection was lost", written=False)
            self._fail(lost, answered, error)
            return lost
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if isinstance(message, ProduceBatches):
            segments = message.frame(version, correlation_id, self._config.client_id)
        else:
            segments = encode_request(message, version, correlation_id, self._config.client_id)
        future: asyncio.Future[Any] = self._loop.create_future()
        self.last_used = now = self._loop.time()
        entry = _InFlight(message, version, correlation_id, future, answered, now, timeout, wire.written)
        entry.size = wire.write(segments)
        self._metrics.requests += 1
        self._metrics.bytes_sent += entry.size
        unsent = wire.unsent
        if unsent >= HIGH_WATER:
            self._congested = True
        if not expects_response:
            self._unanswered.append(correlation_id)
        if expects_response:
            self._in_flight.append(entry)
        elif unsent or wire.is_closing():  # a failed write may leave unsent at 0; _shut() reports the failure
            self._leaving.append(entry)
        else:
            self._has_left(entry)
            return future
        if len(self._in_flight) + len(self._leaving) >= self._most_in_flight:
            self.reports_room = True
        self._arm(entry.deadline)
        return future

    def _drained(self) -> None:
        """Continue after all written bytes have been passed to the kernel."""
        if self.state is ConnectionState.CLOSED or not (self._congested or self._leaving):
            return
        self._congested = False
        while self._leaving:
            self._has_left(self._leaving.popleft())
        self.reports_room = self.in_flight >= self._most_in_flight
        self.on_change(self)
        self._close_if_drained()

    def _has_left(self, entry: _InFlight) -> None:
        """Complete a request that gets no response, now that its bytes have been passed to the kernel."""
        if not entry.future.done():
            entry.future.set_result(None)
        if entry.answered is not None:
            self._loop.call_soon(entry.answered, None, None)

    # Responses

    def _read_responses(self, data: bytes) -> None:
        """Handle all responses that the received bytes complete. The transport calls this method (Wire.listen)."""
        try:
            for frame in self._frames.feed(data, self._frame_limit):
                self._receive(frame)
        except NotKafkaError as error:
            self._shut(NotKafkaError(f"{self}: {error.message}; the connection was closed", peer=error.peer))
        except ProtocolError as error:
            # A peer that sends malformed data before the handshake is complete is not a broker.
            error_type = NotKafkaError if self.state is ConnectionState.NEGOTIATING else type(error)
            self._shut(error_type(f"{self}: {error.message}; the connection was closed{self._hint()}"))
        except Exception:
            self._log.exception("%s: a response could not be handled", self)
            self._shut(ProtocolError(f"{self}: a response could not be handled; the connection was closed"))

    async def _watch(self, wire: Wire) -> None:
        """Wait for the end of the stream. The task that runs this coroutine lives as long as the socket."""
        try:
            wire.listen(self._read_responses)
            await wire.reader.read()
            where = " in the middle of a response" if self._frames.is_cut_off else self._hint()
            self._shut(BrokerConnectionError(f"{self}: the broker closed the connection{where}"))
        except OSError as error:
            self._shut(self._broken(error))
        except asyncio.CancelledError:
            self._shut(BrokerConnectionError(f"{self}: the reader task was cancelled"))
            raise
        with contextlib.suppress(OSError):
            await wire.writer.wait_closed()

    def _receive(self, frame: bytes) -> None:
        if self.state is ConnectionState.CLOSED or self._is_unasked(frame):
            return
        if not self._in_flight:
            raise ProtocolError(f"received a response of {len(frame)} bytes without a request in flight")
        entry = self._in_flight[0]
        request = entry.request
        response: Any
        if isinstance(request, ProduceBatches):
            response = request.answer(entry.version, frame, entry.correlation_id)
        else:
            response = self._decoded(request, entry, frame)
        # The request is not removed before this point, so that it fails with the others if its response is malformed.
        self._in_flight.popleft()
        metrics = self._metrics
        self.last_used = now = self._loop.time()
        took = now - entry.sent_at
        self.latency = took if self.latency == 0.0 else 0.8 * self.latency + 0.2 * took
        metrics.responses += 1
        metrics.bytes_received += PREFIX_SIZE + len(frame)
        metrics.latency.add(took)
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttle(throttle_ms / 1000)
        if self._hooks.on_request:
            self._report_request(entry, PREFIX_SIZE + len(frame), took, None)
        if not entry.future.done():
            entry.future.set_result(response)
        if entry.answered is not None:
            entry.answered(response, None)
        if self.reports_room:
            self._look_for_room()
        if self.state is ConnectionState.DRAINING:
            self._close_if_drained()

    def _report_request(
        self, entry: _InFlight, bytes_received: int, seconds: float, error: KafkaError | None
    ) -> None:
        hooks, api = self._hooks, _API_NAMES[entry.request.api_key]
        event = RequestEvent(hooks.client_id, self.node, api, entry.size, bytes_received, seconds, error)
        hooks.tell(hooks.on_request, event)

    def _decoded(self, request: Message, entry: _InFlight, frame: bytes) -> Message | LargeAnswer:
        if entry.correlation_id in self._sliced:
            self._sliced.discard(entry.correlation_id)
            if len(frame) > LARGE:
                steps = decoding_response(request.Response, entry.version, frame, entry.correlation_id)
                return LargeAnswer(steps, self._close_as_malformed)
        return decode_response(request.Response, entry.version, frame, entry.correlation_id)

    def _is_unasked(self, frame: bytes) -> bool:
        """Return whether this is a response to a request with acks=0: some brokers (Azure Event Hubs) send one."""
        if not self._unanswered or len(frame) < 4:
            return False
        correlation_id = int.from_bytes(frame[:4])
        while self._unanswered and self._unanswered[0] <= correlation_id:
            if self._unanswered.popleft() == correlation_id:
                return True
        return False

    def heed_throttle(self, response: Message) -> None:
        """Apply the throttle time of a response that was decoded in slices."""
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._throttle(throttle_ms / 1000)

    def _close_as_malformed(self, error: ProtocolError) -> KafkaError:
        """Close the connection because a response that was decoded in slices is malformed."""
        refused = type(error)(f"{self}: {error.message}; the connection was closed")
        self._shut(refused)
        return refused

    def _look_for_room(self) -> None:
        left = self.in_flight
        if left <= self._most_in_flight // 2 or (
            self.latency > NEARBY_LATENCY and left < self._most_in_flight
        ):
            self.reports_room = False
            self.on_change(self)

    def _close_if_drained(self) -> None:
        if self.state is ConnectionState.DRAINING and not self.in_flight:
            self._shut(None)

    def _throttle(self, seconds: float) -> None:
        if seconds > MAX_THROTTLE:
            self._log.warning(
                "%s: the throttle time of %g s was reduced to %g s", self, seconds, MAX_THROTTLE
            )
            seconds = MAX_THROTTLE
        self._metrics.throttles.add(seconds)
        if self._hooks.on_throttle:
            self._hooks.tell(
                self._hooks.on_throttle, ThrottleEvent(self._hooks.client_id, self.node, seconds)
            )
        now = self._loop.time()
        if now >= self._throttle_logged_at + THROTTLE_PERIOD:
            self._throttle_logged_at = now
            self._log.info(
                "%s is throttling this client for %.3g s because of a quota (%.3g s in total)",
                self,
                seconds,
                self._metrics.throttles.total,
            )
        self.throttled_until = max(self.throttled_until, now + seconds)

    # Deadlines

    def _arm(self, when: float) -> None:
        """Ensure that the timer fires no later than `when`. Responses do not cancel it; `_on_timer` re-arms it."""
        if self._timer is not None:
            if self._timer.when() <= when + CLOCK_SLACK:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        requests = [*self._in_flight, *self._leaving]
        idle = self._config.connections_max_idle
        if requests:
            deadline = min(entry.deadline for entry in requests)
        elif idle > 0:
            deadline = self.last_used + idle
        else:
            return
        if deadline > now + CLOCK_SLACK:
            self._gave_a_moment = False
            self._arm(deadline)
        elif not requests:
            self._log.debug("%s: closed after %g s without a request", self, idle)
            self._shut(None)
        elif deadline < now - LATE_TIMER and not self._gave_a_moment:
            self._gave_a_moment = True
            self._timer = self._loop.call_later(LATE_TIMER / 2, self._on_timer)
        else:
            late = min(requests, key=lambda entry: entry.deadline)
            self._shut(BrokerConnectionError(self._no_answer(late)))

    # The end

    def drain(self) -> None:
        """Accept no more requests, and close once those in flight have been answered or have failed."""
        if self.state is ConnectionState.READY or self.state is ConnectionState.REAUTHENTICATING:
            self._move(ConnectionState.DRAINING)
            if not self.in_flight:
                self._shut(None)
        elif self.state is not ConnectionState.DRAINING:
            self._shut(None)

    def abort(self, error: KafkaError) -> None:
        """Close immediately; all requests in flight fail with `error`."""
        self._shut(error)

    async def close(self) -> None:
        """Close immediately; requests in flight fail. On return the socket is closed and all tasks have ended."""
        self._shut(BrokerConnectionError(f"{self}: the connection was closed by this client"))
        await self._ended()

    async def _ended(self) -> None:
        """Wait until all tasks have ended, even if the caller is cancelled in the meantime."""
        await all_ended(task for task in self._tasks() if task is not asyncio.current_task())
        if self._reader_task is None and self._wire is not None:
            with contextlib.suppress(OSError):
                await self._wire.writer.wait_closed()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._reader_task, self._session_task) if task is not None]

    def _shut(self, error: KafkaError | None) -> None:
        """Enter CLOSED: stop the timer, drop the socket, fail the requests in flight. No other code enters CLOSED."""
        if self.state is ConnectionState.CLOSED:
            return
        was_open = self.state in (
            ConnectionState.READY,
            ConnectionState.REAUTHENTICATING,
            ConnectionState.DRAINING,
        )
        self._closed_in = self.state
        self._move(ConnectionState.CLOSED)
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session_task is not None and self._session_task is not asyncio.current_task():
            self._session_task.cancel()
        # Read `left` before the transport discards its buffer: a request that is wholly in that buffer was never sent.
        left = 0
        if self._wire is not None:
            left = self._wire.left
            self._wire.abort()
        now = self._loop.time()
        entries = [*self._in_flight, *self._leaving]
        self._in_flight.clear()
        self._leaving.clear()
        for entry in entries:
            failure = self._failure(error, entry, entry.start < left, now)
            self._fail(entry.future, entry.answered, failure)
            if self._hooks.on_request:
                self._report_request(entry, 0, now - entry.sent_at, failure)
        if was_open:
            self._metrics.disconnects += 1
            self._log.debug("%s: closed: %s", self, error or "idle or drained")
        self.on_change(self)

    def _fail(self, future: asyncio.Future[Any], answered: Answered | None, error: KafkaError) -> None:
        if not future.done():
            future.set_exception(error)
            future.exception()  # marks the exception as retrieved: a request's future need not be awaited
        if answered is not None:
            self._loop.call_soon(answered, None, error)

    def _failure(self, error: KafkaError | None, entry: _InFlight, written: bool, now: float) -> KafkaError:
        if isinstance(error, NotKafkaError):
            return NotKafkaError(error.message, peer=error.peer, written=written)
        if isinstance(error, ProtocolError):
            return type(error)(error.message, written=written)
        if isinstance(error, BrokerConnectionError) and entry.deadline <= now + CLOCK_SLACK:
            return RequestTimedOutError(self._no_answer(entry), written=written)
        if isinstance(error, AuthenticationError) and self._closed_in is ConnectionState.NEGOTIATING:
            return error  # with TLS 1.3, the alert that rejects our certificate arrives in place of the first response
        message = error.message if error is not None else f"{self}: the connection was closed"
        return BrokerConnectionError(message, written=written)

    def _no_answer(self, entry: _InFlight) -> str:
        what = f"{entry.request.api_key.name} within {entry.timeout:.3g} s"
        return f"{self}: no answer to {what}; the connection was closed{self._hint()}"

    def _broken(self, error: OSError) -> KafkaError:
        """Return the error for a failed read."""
        return BrokerConnectionError(
            f"{self}: the connection was lost: {str(error) or type(error).__name__}{self._hint()}"
        )

    def _hint(self) -> str:
        """Return a hint for error texts; Connection overrides this method."""
        return ""

    def _move(self, to: ConnectionState) -> None:
        """Change the state. TRANSITIONS lists all permitted changes."""
        assert to in TRANSITIONS[self.state], f"{self.state} to {to}"
        self.state = to
