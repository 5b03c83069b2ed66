"""Manages the connections to all brokers: connects with back-off, routes requests by node id, closes connections.

The sender calls `ready`, which never waits; metadata uses `request_any`. Each change sets the sender's wake-up event;
the sender is not called back."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from aioproducer.cluster import Cluster
from aioproducer.concurrency.changes import Changes
from aioproducer.concurrency.tasks import new_task
from aioproducer.core import Core
from aioproducer.errors import (
    AuthenticationError,
    BrokerConnectionError,
    KafkaError,
    ProducerClosed,
    RequestTimedOutError,
    counted,
)
from aioproducer.network.backoff import JITTER, backoff
from aioproducer.network.broker_entry import BrokerEntry, address_of
from aioproducer.network.connection import Attempt, Connection
from aioproducer.network.connection_race import HEAD_START, first_to_answer
from aioproducer.network.connection_state import ConnectionState
from aioproducer.network.handshake import BrokerVersions
from aioproducer.network.hedge import first_answer
from aioproducer.network.large_answer import LargeAnswer
from aioproducer.network.reachability import Reachability
from aioproducer.network.request_stream import RequestStream
from aioproducer.protocol.schema import Message
from aioproducer.security.login import Login
from aioproducer.types import Node

REFUSED_BACKOFF_MAX = 10.0
"""The longest pause in seconds between attempts while a broker rejects our credentials. More frequent attempts could
lock the account."""

TRY_ANOTHER_AFTER = 0.5
"""How many seconds a request that any broker can answer waits for a connection before another broker is also tried."""


class Brokers:
    """All connections of one producer. A Brokers object belongs to the event loop on which it is first used.

    Until `update` provides the cluster's nodes, the bootstrap addresses serve as nodes, with ids -1, -2, ...
    """

    def __init__(self, core: Core) -> None:
        self._config = core.config
        self._log = core.config.log(__name__)
        self._wake = core.wake
        self._metrics = core.metrics
        self._hooks = core.hooks
        self._random = core.random
        self._login = Login(core.config, random=core.random)
        self._entries: dict[int, BrokerEntry] = {}
        self.reachability = Reachability(core.config, self._entries, self._log)
        self._former: dict[int, BrokerEntry] = {}
        """The entries that were removed when the nodes last changed."""
        self._departing: list[Connection] = []
        """Connections that are no longer handed out, but whose sockets are not closed yet."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._changes = Changes()
        self._rotation = core.random.randrange(1 << 16)
        self._newest_features = BrokerVersions({})
        """The versions reported with the highest features epoch so far; before the first report, the epoch is -1."""
        self._is_closed = False
        self._has_known_cluster = False
        self.lost = 0
        """The number of connections that were lost or could not be established."""
        self.update_wanted = False
        """True if metadata should be refreshed, because a broker was lost or is not known. The sender resets this
        flag."""
        self._replace(self._bootstrap_nodes())

    # The nodes

    @property
    def nodes(self) -> list[Node]:
        """The nodes to connect to. Any thread may read them: the entries are copied, as in describe() and reasons()."""
        return [entry.node for entry in list(self._entries.values())]

    @property
    def is_bootstrapping(self) -> bool:
        """True while the nodes are the bootstrap addresses rather than a cluster's brokers."""
        return any(node_id < 0 for node_id in self._entries)

    def rebootstrap(self) -> None:
        """Discard the cluster's nodes and start again from the bootstrap addresses (KIP-899, KIP-1102).

        Requests in flight are not cancelled: they complete, or fail at their own deadlines.
        """
        if not self._is_closed:
            self._replace(self._bootstrap_nodes())

    def update(self, cluster: Cluster) -> None:
        """Use the nodes in a snapshot, and drain connections to nodes that were removed or moved."""
        if cluster.nodes and not self._is_closed:
            self._has_known_cluster = True
            self._replace(cluster.nodes)

    def _bootstrap_nodes(self) -> dict[int, Node]:
        servers = enumerate(self._config.bootstrap_servers, 1)
        return {-index: Node(-index, host, port) for index, (host, port) in servers}

    def _replace(self, nodes: dict[int, Node]) -> None:
        former: dict[int, BrokerEntry] = {}
        for node_id, entry in list(self._entries.items()):
            node = nodes.get(node_id)
            if node is not None and node[:3] == entry.node[:3]:
                entry.node = node
                continue
            former[node_id] = self._entries.pop(node_id)
            if entry.task is not None:
                entry.task.cancel()
            connection, entry.connection = entry.connection, None
            if connection is not None:
                self._depart(connection)
                connection.drain()
        for node_id, node in nodes.items():
            if node_id not in self._entries:
                # A node that reappears keeps its back-off. Otherwise, if metadata alternated between two lists of
                # dead brokers, those brokers would be tried without any back-off.
                known = self._former.get(node_id)
                self._entries[node_id] = known if known and known.node[:3] == node[:3] else BrokerEntry(node)
        if former:
            self._former = former
        self._changed()

    def _depart(self, connection: Connection) -> None:
        """Stop handing out this connection, and keep it until its socket is closed."""
        self._departing = [one for one in self._departing if not one.is_gone and one is not connection]
        self._departing.append(connection)

    # Calls from the sender, none of which waits

    def ready(self, node_id: int) -> Connection | None:
        """Return the connection to this broker if a request can be sent now, otherwise None. Connect if necessary."""
        entry = self._entries.get(node_id)
        if entry is None:
            self.update_wanted = True  # the sender is not woken: see below
            return None
        if entry.connection is not None:
            return entry.connection if entry.connection.can_send else None
        self._connect(entry)
        if entry.failures or self._waits_in_vain(entry):
            # The sender has records for a broker that may be gone; the partitions may have new leaders, now or
            # soon. The sender is not woken, since it would loop: each new snapshot makes it call `ready` again.
            self.update_wanted = True
        return None

    def connection(self, node_id: int) -> Connection | None:
        """Return the connection to this broker, or None."""
        entry = self._entries.get(node_id)
        return entry.connection if entry is not None else None

    def retry_at(self, node_id: int, since: float) -> float | None:
        """Return the loop time at which to call `ready` again, or None if the wake-up event will signal the change.

        A time is returned during back-off and throttling, and when an attempt to connect has just begun.

        `since` must be a loop time from before the call to `ready`. Otherwise, throttling could end unnoticed between
        the call and `since`, and no event would follow.
        """
        entry = self._entries.get(node_id)
        if entry is None:
            return None
        if entry.connection is None:
            when = entry.retry_at if entry.task is None else entry.dialing_since + TRY_ANOTHER_AFTER
        else:
            when = entry.connection.throttled_until
        return when if when > since else None

    def last_error(self, node_id: int) -> KafkaError | None:
        """Return the error of the last connection that failed or was lost; None if a later one was established."""
        entry = self._entries.get(node_id)
        return entry.last_error if entry is not None else None

    def _waits_in_vain(self, entry: BrokerEntry) -> bool:
        """Return whether an attempt to connect has taken so long that the broker is probably gone."""
        return (
            entry.is_connecting
            and asyncio.get_running_loop().time() >= entry.dialing_since + TRY_ANOTHER_AFTER
        )

    def gauges(self, now: float, node_id: int) -> dict[str, Any] | None:
        """Return the state of a broker for metrics(): {} if it is not known, None for an unused bootstrap address."""
        entry = self._entries.get(node_id)
        if entry is None:
            return {} if node_id >= 0 else None
        return entry.gauges(now)

    def describe(self, now: float) -> list[dict[str, Any]]:
        """Return the state of each broker for describe(). `now` is a loop time."""
        return [entry.describe(now) for entry in list(self._entries.values())]

    def in_flight(self, node_id: int) -> int:
        """Return the number of requests to this broker that have not been answered yet."""
        entry = self._entries.get(node_id)
        return entry.connection.in_flight if entry is not None and entry.connection is not None else 0

    def request(
        self,
        node_id: int,
        message: Message,
        timeout: float,
        *,
        version_ceiling: int | None = None,
        expects_response: bool = True,
    ) -> asyncio.Future[Any]:
        """Write a request to a broker; see `RequestStream.request`. Without a connection, the future fails immediately.

        The in-flight limit and throttling do not delay the request: check `ready` first.
        """
        entry = self._entries.get(node_id)
        if entry is None or entry.connection is None:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(BrokerConnectionError(f"broker {node_id} is not connected", written=False))
            future.exception()
            return future
        return entry.connection.request(
            message, timeout=timeout, version_ceiling=version_ceiling, expects_response=expects_response
        )

    def disconnect(self, node_id: int, error: KafkaError) -> None:
        """Close the connection to a broker that violated the protocol; requests in flight fail with `error`."""
        entry = self._entries.get(node_id)
        if entry is not None and entry.connection is not None:
            entry.connection.abort(error)

    def renegotiate(self, node_id: int) -> None:
        """Close a connection once all requests are answered; the next connection asks for the broker's versions."""
        entry = self._entries.get(node_id)
        if entry is not None and entry.connection is not None:
            entry.connection.drain()

    # Any broker

    def least_loaded(self) -> int | None:
        """Return the best broker for a request that any broker can answer; None while all are in back-off or throttled.

        The order of preference: the connected, unthrottled broker with the fewest requests in flight; a broker that is
        connecting; an unconnected broker that is not in back-off. Equal candidates take turns.
        """
        now = asyncio.get_running_loop().time()
        self._rotation += 1
        entries = self._rotated()
        usable = [entry for entry in entries if entry.is_ready and entry.throttled_until <= now]
        best = (
            min(usable, key=lambda entry: self.in_flight(entry.node.node_id), default=None)
            or next((entry for entry in entries if entry.is_connecting), None)
            or next((entry for entry in entries if entry.connection is None and entry.retry_at <= now), None)
        )
        return best.node.node_id if best is not None else None

    async def request_any(
        self, message: Message, timeout: float, *, version_ceiling: int | None = None
    ) -> Any:
        """Send a request to the first broker that is ready and return the response; see `ask_any`."""
        return (await self.ask_any(message, timeout, version_ceiling=version_ceiling))[1]

    async def ask_any(
        self, message: Message, timeout: float, *, version_ceiling: int | None = None
    ) -> tuple[Node, Any]:
        """Send a request to the first broker that is ready; return the broker that answered, and its response.

        The in-flight limit does not apply. Another broker is tried in parallel if connecting takes half a second, or if
        no response arrives within HEDGE_AFTER seconds. If the call is cancelled, the response is discarded.

        Raises:
            BrokerConnectionError: every broker was tried and none is reachable, or the connection was lost.
            AuthenticationError: before any cluster was known, a broker rejected our credentials, or we rejected its
                certificate.
            RequestTimedOutError: no response within `timeout` seconds.
            ProtocolError: the response is malformed.
            UnsupportedVersionError: the broker is too old for the request.
            ProducerClosed: `close` was called.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        losses = {node_id: entry.losses for node_id, entry in self._entries.items()}
        while True:
            if self._is_closed:
                raise ProducerClosed("the producer was closed")
            now = loop.time()
            node_id = self.least_loaded()
            if node_id is not None and self._entries[node_id].is_ready:
                return await self._first_answer(message, deadline, version_ceiling)
            if not self._has_known_cluster and (refusal := self.reachability.refusal) is not None:
                raise refusal  # other brokers would respond in the same way, and more attempts could lock the account
            self._connect_any(now)
            if all(
                entry.connection is None and entry.task is None and entry.losses > losses.get(node_id, 0)
                for node_id, entry in self._entries.items()
            ):
                raise self.reachability.unreachable()
            if now >= deadline:
                raise RequestTimedOutError(
                    f"no broker was available within {timeout:g} s: {self.reachability.reasons()}",
                    written=False,
                )
            await self._changes.next(min(self._next_look(now), deadline))

    async def _first_answer(
        self, message: Message, deadline: float, version_ceiling: int | None
    ) -> tuple[Node, Any]:
        """Ask ready brokers, one every HEDGE_AFTER seconds, until one responds; return the first response."""
        loop = asyncio.get_running_loop()
        asked: dict[Connection, asyncio.Future[Any]] = {}

        def ask_another() -> asyncio.Future[Any] | None:
            connection = self._ready_connection(asked)
            if connection is None:
                self._connect_any(loop.time())
                return None
            left = max(deadline - loop.time(), 0.001)
            asked[connection] = connection.request(
                message, timeout=left, version_ceiling=version_ceiling, in_slices=True
            )
            return asked[connection]

        first = await first_answer(ask_another)
        answer = first.result()
        connection = next(connection for connection, future in asked.items() if future is first)
        if isinstance(answer, LargeAnswer):
            answer = await answer.decoded()
            connection.heed_throttle(answer)
        return connection.node, answer

    def _ready_connection(self, asked: Container[Connection]) -> Connection | None:
        """Return the ready connection with the fewest requests in flight, leaving out those in `asked`."""
        now = asyncio.get_running_loop().time()
        ready = [
            entry.connection
            for entry in self._rotated()
            if entry.connection is not None
            and entry.is_ready
            and entry.throttled_until <= now
            and entry.connection not in asked
        ]
        return min(ready, key=lambda connection: connection.in_flight, default=None)

    async def request_node(
        self,
        node_id: int,
        message: Message,
        timeout: float,
        *,
        version_ceiling: int | None = None,
        about_to_write: Callable[[], None] | None = None,
    ) -> Any:
        """Send a request to one broker, connecting to it first if necessary, and return its response.

        Throttling delays the request; the in-flight limit does not apply. If `request_node` is cancelled, the response
        is discarded.

        Raises:
            BrokerConnectionError: the broker is not known or not reachable, or the connection was lost.
            RequestTimedOutError: no response within `timeout` seconds.
            ProtocolError: the response is malformed.
            UnsupportedVersionError: client and broker have no version in common.
            ProducerClosed: `close` was called.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        before: int | None = None
        while True:
            if self._is_closed:
                raise ProducerClosed("the producer was closed")
            now = loop.time()
            entry = self._entries.get(node_id)
            if entry is None:
                self._want_update()
                raise self._unknown(node_id)
            if entry.is_ready and entry.throttled_until <= now:
                if about_to_write is not None:
                    about_to_write()
                return await self.request(
                    node_id, message, max(deadline - now, 0.001), version_ceiling=version_ceiling
                )
            before = entry.losses if before is None else before
            if entry.connection is None and entry.losses > before and entry.last_error is not None:
                raise BrokerConnectionError(str(entry.last_error), written=False)
            if now >= deadline:
                why = entry.last_error or (
                    entry.progress if entry.is_connecting else "the broker is throttled or not connected"
                )
                raise RequestTimedOutError(
                    f"no request could be sent to broker {node_id} within {timeout:g} s: {why}", written=False
                )
            if entry.connection is None:
                self._connect(entry)
            times = [deadline, entry.throttled_until, entry.retry_at]
            await self._changes.next(min(time for time in times if time > now))

    def _unknown(self, node_id: int) -> BrokerConnectionError:
        """Return the error for an unknown broker. If a rebootstrap has just discarded it, include its last error."""
        former = self._former.get(node_id)
        if former is None or former.last_error is None:
            return BrokerConnectionError(f"broker {node_id} is not known", written=False)
        return BrokerConnectionError(
            f"broker {node_id} is no longer known; its last connection error was: {former.last_error}",
            written=False,
        )

    def finalized_feature(self, name: str) -> int:
        """Return the level of a feature that the cluster has finalized (KIP-584); 0 if no broker has reported it.

        The newest report from any broker counts. The report is kept after its connection closes, since the level is
        also needed while no connection is open.
        """
        return self._newest_features.features.get(name, 0)

    def forget_features(self) -> None:
        """Keep only reports from open connections: features epochs from two clusters cannot be compared."""
        self._newest_features = BrokerVersions({})
        for entry in self._entries.values():
            if entry.connection is not None:
                self._learn_features(entry.connection.versions)

    def _learn_features(self, versions: BrokerVersions) -> None:
        if versions.features_epoch >= self._newest_features.features_epoch:
            self._newest_features = versions

    def _connect_any(self, now: float) -> None:
        """Start one more attempt to connect, unless another one began less than TRY_ANOTHER_AFTER seconds ago."""
        if any(
            entry.is_connecting and entry.dialing_since + TRY_ANOTHER_AFTER > now
            for entry in self._entries.values()
        ):
            return
        for entry in self._rotated():
            if entry.connection is None and entry.task is None and entry.retry_at <= now:
                self._connect(entry)
                return

    def _next_look(self, now: float) -> float:
        """Return the next loop time at which `ask_any` must check again, even if no event occurs."""
        times = [now + TRY_ANOTHER_AFTER]
        for entry in self._entries.values():
            if entry.is_connecting:
                times.append(entry.dialing_since + TRY_ANOTHER_AFTER)
            else:
                times.append(entry.throttled_until if entry.connection is not None else entry.retry_at)
        return min(time for time in times if time > now)

    def _rotated(self) -> list[BrokerEntry]:
        entries = list(self._entries.values())
        start = self._rotation % len(entries) if entries else 0
        return entries[start:] + entries[:start]

    # Connecting, and losing connections

    def _connect(self, entry: BrokerEntry) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if entry.task is not None or entry.retry_at > now or self._is_closed:
            return
        entry.dialing_since = now
        task = new_task(loop, self._dial(entry), f"aioproducer connect to {entry.node}")
        entry.task = task
        self._tasks[task] = None
        task.add_done_callback(partial(self._dialed, entry))

    async def _dial(self, entry: BrokerEntry) -> None:
        config, loop = self._config, asyncio.get_running_loop()
        try:
            address = address_of(entry.node, config.address_filter)
        except BrokerConnectionError as error:
            self._lost(entry, error)
            return
        connection = entry.attempt = self._make(entry, address, 0)
        pause = max(HEAD_START, config.reconnect_backoff_max) * self._random.uniform(1 - JITTER, 1 + JITTER)
        try:
            connection = await first_to_answer(connection, partial(self._make, entry, address), pause)
            await connection.authenticate()
        except KafkaError as error:
            entry.setup_failed(connection)
            self._hooks.connected(entry.node, loop.time() - entry.dialing_since, error)
            self._lost(entry, error)
            return
        if self._entries.get(entry.node.node_id) is not entry:
            self._depart(connection)
            connection.drain()
            return
        now = loop.time()
        took = now - entry.dialing_since
        failed = f", after {counted(entry.failures, 'failed attempt')}" if entry.failures else ""
        self._log.info("connected to %s in %.3g s%s", entry.node, took, failed)
        entry.connected(connection, now)
        self._hooks.connected(entry.node, took, None)
        self._learn_features(connection.versions)

    def _make(self, entry: BrokerEntry, address: tuple[str, int], number: int) -> Connection:
        """Create a connection. Each connection in an attempt starts with a different address for the host name."""
        config = self._config
        attempt = Attempt(
            address,
            passed_over=entry.failed_setups + number,
            first_asked=entry.first_asked,
            setup_timeout=backoff(
                config.socket_connection_setup_timeout,
                max(config.socket_connection_setup_timeout, config.socket_connection_setup_timeout_max),
                entry.failed_setups,
                self._random,
            ),
            renew_at=self._random.uniform(0.8, 0.9),
        )
        return Connection(
            entry.node,
            config,
            attempt,
            on_change=partial(self._connection_changed, entry),
            metrics=self._metrics,
            hooks=self._hooks,
            login=self._login,
        )

    def _dialed(self, entry: BrokerEntry, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        entry.task = entry.attempt = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s: the attempt to connect failed", entry.node, exc_info=error)
            self._lost(entry, BrokerConnectionError(f"{entry.node}: {error!r}", written=False))
        self._changed()

    def _connection_changed(self, entry: BrokerEntry, connection: RequestStream) -> None:
        current = entry.connection
        if current is connection and current.state is ConnectionState.CLOSED:
            error = current.error
            now = asyncio.get_running_loop().time()
            # An orderly close does not show that the broker is healthy, so earlier failures still count.
            entry.disconnected(now, self._config.reconnect_backoff_max if error is not None else math.inf)
            self._depart(current)
            self._hooks.disconnected(entry.node, error)
            if error is not None:
                self._lost(entry, error)
        self._changed()

    def _lost(self, entry: BrokerEntry, error: KafkaError) -> None:
        """Handle a connection that was lost or could not be established: start the back-off and request metadata."""
        if self._is_closed:
            return
        config = self._config
        now = asyncio.get_running_loop().time()
        longest = max(config.reconnect_backoff, config.reconnect_backoff_max)
        if isinstance(error, AuthenticationError):
            longest = max(longest, REFUSED_BACKOFF_MAX)
        pause = backoff(config.reconnect_backoff, longest, entry.failures, self._random)
        entry.lost(error, now + pause)
        self.lost += 1
        self._metrics.count_error(type(error).__name__)
        if self._entries.get(entry.node.node_id) is entry:
            self.reachability.log_loss(entry, error, pause, now, is_starting=not self._has_known_cluster)
            self._want_update()

    def _want_update(self) -> None:
        self.update_wanted = True
        self._wake.set()

    def _changed(self) -> None:
        self._wake.set()
        self._changes.announce()

    async def close(self) -> None:
        """Close all connections; requests in flight fail. On return, all tasks have ended and sockets are closed."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        connections = [entry.connection for entry in self._entries.values() if entry.connection is not None]
        for connection in [*connections, *self._departing]:
            await connection.close()
        self._departing.clear()
        self._changed()
