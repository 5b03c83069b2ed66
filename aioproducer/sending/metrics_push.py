"""Pushes metrics to the brokers that ask for them (KIP-714).

The pushes do not interfere with sending: there is one small request every few minutes, and failed requests are logged
at DEBUG."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from aioproducer.core import Core
from aioproducer.errors import (
    IllegalStateError,
    InvalidArgumentError,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedVersionError,
)
from aioproducer.network.brokers import Brokers
from aioproducer.observe.java_metrics import points
from aioproducer.observe.otlp import Point, metrics_data
from aioproducer.observe.snapshots import MetricsSnapshot
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from aioproducer.protocol.outcomes import Action, decide
from aioproducer.protocol.primitives import NIL_UUID
from aioproducer.types import ENDS_OF_THE_PROGRAM

DEFAULT_INTERVAL = 300.0
"""Seconds between attempts until a broker specifies an interval, as in Java's ClientTelemetryReporter."""
UNTIL_A_BROKER_ANSWERS = 1.0
"""How many seconds to wait before checking again whether a broker has answered. Until one has, no broker can be asked
for subscriptions."""
SHORTEST_INTERVAL = 0.1
"""The minimum time between two pushes, in seconds, even if a broker asks for a shorter interval."""
LAST_PUSH = 1.0
"""The maximum time in seconds that close() waits for the last push, within its own timeout."""
ALL = "*"


class Subscription(NamedTuple):
    """The metrics that the brokers want."""

    id: int
    prefixes: tuple[str, ...]
    """The name prefixes of the wanted metrics."""
    interval: float
    """Seconds between pushes."""
    most_bytes: int
    codec: Codec
    is_delta: bool
    """True if counters restart at 0 after each push (delta temporality)."""

    @classmethod
    def of(cls, response: GetTelemetrySubscriptionsResponse) -> Subscription:
        """Return the subscription in a broker's response."""
        known = {int(codec) for codec in Codec}
        codecs = [Codec(code) for code in response.accepted_compression_types if code in known]
        return cls(
            response.subscription_id,
            tuple(response.requested_metrics),
            max(response.push_interval_ms / 1000, SHORTEST_INTERVAL),
            response.telemetry_max_bytes,
            codecs[0] if codecs else Codec.NONE,
            response.delta_temporality,
        )

    def wants(self, name: str) -> bool:
        """Return whether a metric is wanted. The empty prefix and "*" match every name."""
        return any(prefix == ALL or name.startswith(prefix) for prefix in self.prefixes)


class MetricsPush:
    """Asks for subscriptions and pushes metrics, in a task. Also keeps the client instance id."""

    def __init__(
        self,
        core: Core,
        brokers: Brokers,
        measure: Callable[[], MetricsSnapshot],
    ) -> None:
        config = core.config
        self._loop = core.loop
        self._random = core.random
        self._log = config.log(__name__)
        self._timeout = config.request_timeout
        self._brokers = brokers
        self._measure = measure
        self._resource = {"transactional_id": config.transactional_id} if config.transactional_id else {}
        self.is_enabled = config.enable_metrics_push
        self._instance_id: UUID | None = None
        self._has_instance_id = asyncio.Event()
        self._subscription: Subscription | None = None
        self._interval = DEFAULT_INTERVAL
        self._is_first = True
        """True if the next push is the first of its subscription. The first push is delayed by a random time, so that
        clients do not all push at once."""
        self._before = MetricsSnapshot()
        """The metrics at the last push, or at the start if there was none."""
        self._before_at = self._started_at = 0.0
        self._own: dict[str, Callable[[], float]] = {}
        """The user's own metrics, by name."""
        self._is_idle = asyncio.Event()
        """Set while no push is in flight. The last push waits for this event, because its content depends on whether
        the push before it succeeded."""
        self._is_idle.set()
        self._is_ending = False

    async def run(self) -> None:
        """Ask for subscriptions and push metrics until cancelled, or until a broker reports an error that a retry
        cannot fix."""
        self._before = self._measure()
        self._before_at = self._started_at = self._loop.time()
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)
            if self._is_ending:
                return
            try:
                pause = await self._step()
            except Exception:
                # If this task ended unexpectedly, the producer would close; metrics are not worth that.
                pause = max(self._interval, DEFAULT_INTERVAL)
                self._log.error("the metrics could not be pushed; next attempt in %g s", pause, exc_info=True)

    async def _step(self) -> float | None:
        """Ask for a subscription, or push the metrics in it. Return the seconds until the next step, or None to
        stop."""
        if self._subscription is None:
            # After start(wait=False), it can take a long time for a broker to answer.
            return UNTIL_A_BROKER_ANSWERS if self._brokers.is_bootstrapping else await self._subscribe()
        if self._is_first:
            self._is_first = False
            return self._interval * self._random.uniform(0.5, 1.5)
        return await self._push(self._subscription)

    async def client_instance_id(self, timeout: float) -> UUID:
        """Wait for the id that a broker assigns to this client, and return it."""
        if not self.is_enabled:
            raise IllegalStateError("enable_metrics_push is off, so brokers do not give this client an id")
        try:
            async with asyncio.timeout(timeout):
                await self._has_instance_id.wait()
        except TimeoutError:
            raise KafkaTimeoutError(
                f"no broker gave this client an id within {timeout:g} s; perhaps the brokers do not collect client "
                "metrics"
            ) from None
        assert self._instance_id is not None  # set before the event was set
        return self._instance_id

    async def push_last(self) -> None:
        """Wait for the push in flight, and then push the remaining metrics while the producer is closing, if the
        brokers want any. run() takes no further steps."""
        self._is_ending = True
        await self._is_idle.wait()
        if self._subscription is None or not self._subscription.prefixes:
            return
        try:
            await self._push(self._subscription, is_last=True)
        except Exception:
            self._log.error("the last metrics could not be pushed", exc_info=True)

    async def _subscribe(self) -> float | None:
        """Ask which metrics are wanted. Return the seconds until the next step, or None to stop."""
        request = GetTelemetrySubscriptionsRequest(client_instance_id=self._instance_id or NIL_UUID)
        response: GetTelemetrySubscriptionsResponse | None = await self._ask(request)
        if response is None:
            return self._interval
        action = decide(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, response.error_code).action
        if action is not Action.SUCCEED:
            return self._failed("to ask for subscriptions", response.error_code, action)
        if self._instance_id is None and response.client_instance_id != NIL_UUID:
            self._instance_id = response.client_instance_id
            self._has_instance_id.set()
        subscription = Subscription.of(response)
        self._interval = subscription.interval
        if not subscription.prefixes or self._instance_id is None:
            return self._interval  # the brokers want no metrics at present
        self._subscription, self._is_first = subscription, True
        return 0.0

    async def _push(self, subscription: Subscription, *, is_last: bool = False) -> float | None:
        now, at = self._measure(), self._loop.time()
        since = self._before_at if subscription.is_delta else self._started_at
        data = metrics_data(
            [
                *points(
                    now,
                    self._before,
                    subscription.wants,
                    seconds=at - self._before_at,
                    is_delta=subscription.is_delta,
                ),
                *self._own_points(subscription),
            ],
            self._resource,
            start=now.time - (at - since),
            now=now.time,
            is_delta=subscription.is_delta,
        )
        data = bytes(compressor(subscription.codec)(data))
        if len(data) > subscription.most_bytes:
            self._log.debug(
                "metrics of %d bytes exceed the brokers' limit of %d", len(data), subscription.most_bytes
            )
            return self._interval
        assert self._instance_id is not None  # there is a subscription
        request = PushTelemetryRequest(
            client_instance_id=self._instance_id,
            subscription_id=subscription.id,
            terminating=is_last,
            compression_type=int(subscription.codec),
            metrics=data,
        )
        self._is_idle.clear()
        try:
            response: PushTelemetryResponse | None = await self._ask(request)
            if response is None:
                return self._interval
            action = decide(ApiKey.PUSH_TELEMETRY, response.error_code).action
            if action is Action.SUCCEED:
                self._before, self._before_at = now, at
                return self._interval
            return self._failed("to push metrics", response.error_code, action)
        finally:
            self._is_idle.set()

    def _own_points(self, subscription: Subscription) -> Iterator[Point]:
        """Yield the values of the user's metrics (KIP-1076). If reading a metric raises an exception, log the exception
        and remove the metric."""
        for name, read in list(self._own.items()):
            if not subscription.wants(name):
                continue
            try:
                value = float(read())
            except ENDS_OF_THE_PROGRAM:
                raise
            except BaseException:
                self._log.warning("the metric %s raised an exception and was removed", name, exc_info=True)
                self.unregister(name)
            else:
                yield Point(name, value, False, {})

    def register(self, name: str, read: Callable[[], float]) -> None:
        """Push this user metric in addition to the producer's own."""
        if not _is_metric_name(name):
            raise InvalidArgumentError(
                f"the name of a metric must be a non-empty str that can be encoded as UTF-8, not {name!r}",
                argument="name",
            )
        if not callable(read):
            raise InvalidArgumentError(
                f"read must be a function that returns the value, not {read!r}", argument="read"
            )
        self._own[name] = read

    def unregister(self, name: str) -> None:
        """Stop pushing this metric."""
        self._own.pop(name, None)

    def _failed(self, what: str, code: int, action: Action) -> float | None:
        self._log.debug("a broker did not allow this client %s: %s", what, error_name(code))
        if action is Action.FAIL:
            return None
        if action in (Action.SUBSCRIBE, Action.SUBSCRIBE_LATER):
            self._subscription = None
        return 0.0 if action is Action.SUBSCRIBE else self._interval

    async def _ask(self, request: GetTelemetrySubscriptionsRequest | PushTelemetryRequest) -> Any:
        """Send a request to the least loaded broker. Return the response, or None if there is none."""
        node_id = self._brokers.least_loaded()
        if node_id is None:
            return None
        try:
            return await self._brokers.request_node(node_id, request, self._timeout)
        except UnsupportedVersionError:
            return None  # the broker does not collect metrics
        except KafkaError as error:
            self._log.debug("a telemetry request failed: %s", error)
            return None


def _is_metric_name(name: object) -> bool:
    """Return whether the name is valid in OTLP."""
    try:
        return isinstance(name, str) and bool(name.encode())
    except UnicodeEncodeError:
        return False  # a lone surrogate
