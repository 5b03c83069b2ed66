"""Sums up why brokers can't be reached, for error texts, for the log, and for deciding whether to rebootstrap.

Brokers owns the entries; nothing here does I/O or changes an entry."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from aioproducer.config import ProducerConfig
from aioproducer.errors import AuthenticationError, BrokerConnectionError, ConfigError, KafkaError, counted
from aioproducer.network.broker_entry import BrokerEntry
from aioproducer.observe.client_log import ClientLog

WARNING_PERIOD = 10.0
"""Seconds between log lines about brokers that stay unreachable."""


class Reachability:
    """The errors of all brokers. `entries` is the dictionary in which Brokers adds and removes brokers."""

    def __init__(self, config: ProducerConfig, entries: Mapping[int, BrokerEntry], log: ClientLog) -> None:
        self._config = config
        self._entries = entries
        self._log = log
        self._warned_at = -math.inf
        """The loop time of the last log line about an unreachable broker."""

    @property
    def refusal(self) -> KafkaError | None:
        """A broker's authentication error, or the error that certificates can't be read; None if there is neither."""
        errors = [entry.last_error for entry in self._entries.values()]
        return next((error for error in errors if isinstance(error, AuthenticationError | ConfigError)), None)

    @property
    def is_hopeless(self) -> bool:
        """True if every broker failed with an error that is not retriable, e.g. because none is a Kafka broker."""
        errors = [entry.last_error for entry in self._entries.values()]
        return all(error is not None and not error.retriable for error in errors)

    @property
    def is_unreachable(self) -> bool:
        """True if every attempt to connect to every broker has failed for at least `reconnect_backoff_max`."""
        before = asyncio.get_running_loop().time() - self._config.reconnect_backoff_max
        return all(entry.has_failed_since(before) for entry in self._entries.values())

    def unreachable(self) -> BrokerConnectionError:
        """Return an error that says, for each broker, why it is not reachable."""
        return BrokerConnectionError(f"no broker is reachable: {self.reasons()}", written=False)

    def reasons(self) -> str:
        """Return text that says, for each broker, why there is no connection."""
        return "; ".join(entry.reason for entry in list(self._entries.values()))

    def errors(self) -> dict[str, KafkaError]:
        """Return the last connection error of each unreachable broker, keyed by "host:port"."""
        errors = ((entry.node, entry.error) for entry in self._entries.values())
        return {f"{node.host}:{node.port}": error for node, error in errors if error is not None}

    def log_loss(
        self, entry: BrokerEntry, error: KafkaError, pause: float, now: float, *, is_starting: bool
    ) -> None:
        """Log each broker's first failure, and then one failure every 10 s while any broker stays unreachable.

        The next attempt is `pause` seconds later. `is_starting` is True until a cluster is known.
        """
        since = ""
        if entry.failures > 1:
            # Until the first metadata arrives, Metadata logs every 10 s why no broker has answered.
            if is_starting or now - self._warned_at < WARNING_PERIOD:
                self._log.debug("%s; next attempt in %.3g s at the earliest", error, pause)
                return
            others = sum(one.failures > 0 and one.connection is None for one in self._entries.values()) - 1
            since = f"; {counted(entry.failures, 'attempt has', 'attempts have')} failed"
            since += f"; {counted(others, 'other broker')} cannot be reached" if others else ""
        self._warned_at = now
        self._log.warning("%s; next attempt in %.3g s at the earliest%s", error, pause, since)
