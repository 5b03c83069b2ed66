"""Quotas per client id, and how long a client that exceeds its quota is muted.

As in Kafka's ClientQuotaManager, each broker sums up a client's usage in eleven windows of one second. A client whose
mean rate exceeds the limit is muted until the mean is back at the limit. `connections` calls this module after each
request and passes the event loop's time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")

WINDOW = 1.0
"""The size of a window in seconds (quota.window.size.seconds)."""
WINDOWS = 11
"""The number of windows: ten full ones, and one that is being filled (quota.window.num)."""


class Quota(NamedTuple):
    """A client's limits on one broker; None means no limit."""

    producer_byte_rate: float | None = None
    """Bytes of Produce requests per second."""
    request_percentage: float | None = None
    """The percentage of one request thread's time; 200 is two threads' time."""


class Rate:
    """The mean of the recorded values, per second, over the latest windows (Kafka's `Rate`)."""

    def __init__(self) -> None:
        self._windows: deque[tuple[float, float]] = deque()
        """The start and sum of each window; the last one is being filled."""

    def record(self, value: float, now: float) -> None:
        """Add a value at the time `now`, in seconds."""
        while self._windows and now - self._windows[0][0] >= WINDOWS * WINDOW:
            self._windows.popleft()
        if not self._windows or now - self._windows[-1][0] >= WINDOW:
            self._windows.append((now, value))
        else:
            start, total = self._windows[-1]
            self._windows[-1] = start, total + value

    def throttle(self, limit: float, now: float) -> float:
        """Return how many seconds the rate takes to fall to the limit if no values follow.

        Call this right after `record`.
        """
        start = self._windows[0][0]
        elapsed = now - start
        # At least ten windows count as elapsed, so that the first request does not cause an enormous rate.
        elapsed += max(WINDOWS - 1 - int(elapsed / WINDOW), 0) * WINDOW
        rate = sum(total for _, total in self._windows) / elapsed
        return max((rate - limit) / limit * elapsed, 0.0)


class Quotas:
    """A cluster's quotas, and its clients' rates."""

    def __init__(self) -> None:
        self._quotas: dict[str | None, Quota] = {}
        self._rates: dict[tuple[int, str, str], Rate] = {}

    def set(self, client_id: str | None, quota: Quota) -> None:
        """Set the quota of a client id, or, with None, of each client id that has no quota of its own.

        Raises:
            ValueError: a limit is not above 0.
        """
        for name, limit in quota._asdict().items():
            if limit is not None and not limit > 0:
                raise ValueError(f"{name}={limit} must be above 0; leave it out for no limit")
        self._quotas[client_id] = quota

    def throttle(self, node: int, client_id: str, *, size: int, seconds: float, now: float) -> float:
        """Record a request; return how many seconds to mute its connection for.

        Args:
            node: The broker that served the request; each broker has its own rates.
            client_id: The client that sent the request.
            size: The size of a Produce request in bytes; 0 for other requests.
            seconds: The time that the broker spent on the request.
            now: The loop's time.
        """
        quota = self._quotas.get(client_id) or self._quotas.get(None) or Quota()
        throttle = 0.0
        if quota.producer_byte_rate is not None and size:
            rate = self._rate(node, client_id, "bytes")
            rate.record(size, now)
            throttle = rate.throttle(quota.producer_byte_rate, now)
        if quota.request_percentage is not None:
            rate = self._rate(node, client_id, "time")
            rate.record(seconds * 100, now)
            # Under this quota, Kafka mutes a client for at most one window (ClientRequestQuotaManager).
            throttle = max(throttle, min(rate.throttle(quota.request_percentage, now), WINDOW))
        return throttle

    def _rate(self, node: int, client_id: str, what: str) -> Rate:
        return self._rates.setdefault((node, client_id, what), Rate())


class Timed(Generic[T]):
    """Awaits a coroutine and adds up the time that it spends running, not waiting."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._coroutine = coroutine
        self._clock = clock

    def __await__(self) -> Generator[Any, Any, T]:
        step = partial(self._coroutine.send, None)
        while True:
            started = self._clock()
            try:
                wanted = step()
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self.seconds += self._clock() - started
            try:
                answer = yield wanted
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, answer)
