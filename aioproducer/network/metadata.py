"""Keeps the Cluster snapshot up to date: one task refreshes it when it is old, on request, or for a new topic.

All requests for a refresh are merged: only one refresh runs at a time, with a back-off between refreshes. `send`
waits in `wait_for_topic` for a topic that is not known yet."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Callable, Collection

from aioproducer.cluster import Cluster, Endpoint, LeaderHint, TopicInfo, check_topic_name, invalid_topic
from aioproducer.core import Core
from aioproducer.errors import (
    BootstrapError,
    BrokerError,
    InvalidTopicError,
    KafkaError,
    MetadataTimeoutError,
    TopicAuthorizationError,
    UnknownPartitionError,
    UnsupportedVersionError,
    counted,
)
from aioproducer.network.backoff import backoff
from aioproducer.network.brokers import Brokers
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import MetadataRequest, MetadataResponse
from aioproducer.protocol.outcomes import TOPIC_ERRORS, Action, decide

STEPS_AT_ONCE = 250
"""The number of partitions that are merged before other tasks can run. Merging them takes one or two milliseconds."""

START_PERIOD = 10.0
"""Seconds between log lines while start() waits for a broker."""
SHORTEST_PAUSE = 0.005
"""The minimum time between two requests, in seconds, even if the back-off is 0: a request may fail immediately."""


class Metadata:
    """The snapshot of the cluster, and the task that refreshes it. A Metadata object belongs to one event loop."""

    def __init__(self, core: Core, brokers: Brokers) -> None:
        self._config = config = core.config
        self._log = config.log(__name__)
        self._brokers = brokers
        self._wake = core.wake
        self._metrics = core.metrics
        self._random = core.random
        self._longest_backoff = max(config.retry_backoff, config.retry_backoff_max)
        self.cluster = Cluster.empty()
        self.version = 0
        """The snapshot's number; 0 is the empty snapshot."""
        self.last_error: KafkaError | None = None
        """The error of the last refresh; None if it succeeded."""
        self._learned: list[Callable[[Cluster], Cluster]] | None = None
        """Changes made to the snapshot while a response is being merged, to be applied again afterwards. None when no
        merge is in progress."""
        # the topics to request
        self._wanted: dict[str, float] = {}
        """The loop time at which each topic was last used, by name."""
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._new: dict[str, None] = {}
        """Topics that have never been requested."""
        self._again: dict[str, None] = {}
        """Unknown topics that were passed to `ask_for`. They are requested soon, though no caller is waiting for
        them."""
        self._update_requested = False
        self._start_timer: asyncio.TimerHandle | None = None
        # the time of the next request
        self._poked = asyncio.Event()
        self._is_refreshing = False
        self._rounds: list[asyncio.Future[None]] = []
        """Futures for the callers that are waiting for the current refresh to end, successfully or not."""
        self._refreshed_at = float("-inf")
        self._not_before = 0.0
        self._fruitless = 0
        """The number of consecutive refreshes that failed or changed nothing."""
        self._failing_since: float | None = None
        self._closed: KafkaError | None = None

    # Calls that do not wait

    def topic(self, name: str) -> TopicInfo | None:
        """Return the topic if it is known and has no error."""
        return self.cluster.topic(name)

    def touch(self, name: str, now: float | None = None) -> None:
        """Mark the topic as in use, so that refreshes include it (KIP-526)."""
        self._wanted[name] = asyncio.get_running_loop().time() if now is None else now

    def ask_for(self, name: str) -> None:
        """Request a topic soon. A request for new or unknown topics omits the known ones, and it may create topics."""
        if name not in self._wanted:
            self._new[name] = None
        elif self.topic(name) is None:
            self._again[name] = None
        self.touch(name)
        self._poked.set()

    def request_update(self) -> None:
        """Refresh soon. Several calls trigger a single refresh, and the back-off between refreshes still applies."""
        self._update_requested = True
        self._poked.set()

    def doubt_leaders(self, places: Collection[tuple[str, int]]) -> None:
        """Refresh soon: the known leader of each of these partitions, given as (topic, number), reported that it is not
        the leader, but did not name the new one."""
        self._learn(lambda cluster: cluster.without_epochs(places))
        self.request_update()

    def apply_leader_hints(self, hints: Collection[LeaderHint], node_endpoints: Collection[Endpoint]) -> bool:
        """Apply the leader hints in a Produce response (KIP-951). Return whether this changed the snapshot."""
        return self._learn(lambda cluster: cluster.with_leader_hints(hints, node_endpoints))

    def _learn(self, change: Callable[[Cluster], Cluster]) -> bool:
        """Change the snapshot, and also the next one if a merge is in progress. Return whether the snapshot changed."""
        if self._learned is not None:
            self._learned.append(change)
        cluster = change(self.cluster)
        if cluster is self.cluster:
            return False
        self._publish(cluster)
        return True

    def age(self, now: float) -> float | None:
        """Return the seconds since the last complete response; None before the first one."""
        return now - self._refreshed_at if self._refreshed_at > float("-inf") else None

    def close_waiters(self, error: KafkaError) -> None:
        """Fail all callers that are waiting for a topic, and all later ones."""
        self._closed = error
        self._stop_start_timer()
        for name in list(self._waiters):
            self._wake_waiters(name)

    # Waiting

    async def wait_for_topic(self, name: str, deadline: float, partition: int | None = None) -> TopicInfo:
        """Return the topic as soon as it is known and, if `partition` is given, has that partition.

        From now on, refreshes include the topic, even if the call is cancelled.

        Args:
            deadline: loop time at which waiting ends.

        Raises:
            InvalidTopicError: Kafka does not accept this name.
            TopicAuthorizationError: this client is not authorized to see the topic.
            MetadataTimeoutError: the topic was not known in time.
            UnknownPartitionError: the topic is known, but does not have this partition.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        check_topic_name(name)
        known = self._usable(name, partition)
        if known is not None:
            return known
        try:
            async with asyncio.timeout_at(deadline) as limit:
                while True:
                    if self._closed is not None:
                        raise copy.copy(self._closed)
                    known = self._usable(name, partition)
                    if known is not None:
                        return known
                    await self._next_answer(name)
                    self._raise_for(name)
        except TimeoutError:
            if not limit.expired():
                raise
        # A response that arrived just as the deadline passed still counts: the process may have been paused.
        known = self._usable(name, partition)
        if known is not None:
            return known
        raise self._too_late(name, partition, loop.time() - began)

    async def _next_answer(self, name: str) -> None:
        """Wait until the next response about the topic has been merged."""
        if name not in self._wanted:
            self._new[name] = None
        self.touch(name)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(name, []).append(waiter)
        self._poked.set()
        try:
            await waiter
        finally:
            waiters = self._waiters.get(name, [])
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[name]

    def _raise_for(self, name: str) -> None:
        """Raise the error for a topic if waiting cannot resolve it.

        Call this only right after a response: an older error must not fail a `send` that might succeed.
        """
        info = self.cluster.topics.get(name)
        if info is None or decide(ApiKey.METADATA, info.error).action is not Action.FAIL:
            return
        refusal = TOPIC_ERRORS[info.error]
        if refusal is InvalidTopicError:
            raise invalid_topic(name)
        if refusal is TopicAuthorizationError:
            raise TopicAuthorizationError(
                f"this client is not authorized to see topic {name}; grant it DESCRIBE and WRITE on the topic",
                topic=name,
            )

    def _usable(self, name: str, partition: int | None) -> TopicInfo | None:
        """Return the topic and mark it as in use, if it is known with that partition and the producer is not closed."""
        info = self.topic(name)
        if info is None or self._closed is not None:
            return None
        if partition is not None and partition >= len(info.partitions):
            return None
        self.touch(name)
        return info

    def _too_late(self, name: str, partition: int | None, waited: float) -> KafkaError:
        info = self.cluster.topics.get(name)
        if info is not None and info.error == 0 and partition is not None:
            return UnknownPartitionError(
                f"topic {name} has {counted(len(info.partitions), 'partition')}; partition {partition} "
                f"did not appear within {waited:.3g} s",
                topic=name,
                partition=partition,
                partitions=len(info.partitions),
            )
        reported = ""
        if self.last_error is not None:
            why = str(self.last_error)
        elif info is not None:
            reported = error_name(info.error)
            why = f"the cluster reports {reported}"
        else:
            why = "the cluster has not answered yet"
        text = f"topic {name} is still unknown after {waited:.3g} s: {why}"
        return MetadataTimeoutError(text, topic=name, reported=reported)

    async def first_update(self, deadline: float) -> None:
        """Wait for the first snapshot of the cluster. The `run` task may or may not be running.

        Raises:
            BootstrapError: no bootstrap server answered by `deadline` (a loop time), or all of them failed with errors
                that are not retriable.
            UnsupportedVersionError: the brokers are too old.
            AuthenticationError: a broker rejects our credentials, or we reject its certificate.
            ConfigError: certificates can't be read.
            ProducerClosed: the producer was closed in the meantime.
        """
        self.expect_first_update(deadline)
        try:
            async with asyncio.timeout_at(deadline) as limit:
                while self.version == 0:
                    await self._refresh()
                    if self._closed is not None:
                        raise copy.copy(self._closed)
                    if isinstance(self.last_error, UnsupportedVersionError):
                        raise self.last_error
                    if self.version == 0 and (refusal := self._brokers.reachability.refusal) is not None:
                        raise refusal
                    if self._brokers.reachability.is_hopeless:
                        break
                    if self.version == 0:
                        await asyncio.sleep(self._not_before - asyncio.get_running_loop().time())
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._stop_start_timer()
        if self.version == 0:
            # The error may have arrived just as the deadline passed.
            if (refusal := self._brokers.reachability.refusal) is not None:
                raise refusal
            raise BootstrapError(
                f"no bootstrap server returned metadata: {self._reasons()}",
                reasons=self._brokers.reachability.errors(),
            )

    def _reasons(self) -> str:
        """Return the reasons why no bootstrap server has returned metadata."""
        reachability = self._brokers.reachability
        reasons = reachability.reasons()
        # A broker that closes the connection after each request is usually connected or connecting, so `reasons` does
        # not contain its error.
        if self.last_error is not None and len(reachability.errors()) < len(self._brokers.nodes):
            reasons += f"; the last request failed: {self.last_error}"
        return reasons

    def expect_first_update(self, deadline: float = math.inf) -> None:
        """Log every 10 s why there is no snapshot of the cluster yet. start() stops waiting at `deadline`."""
        loop = asyncio.get_running_loop()
        self._start_timer = loop.call_later(START_PERIOD, self._still_waits, loop.time(), deadline)

    def _stop_start_timer(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None

    def _still_waits(self, began: float, deadline: float) -> None:
        self._start_timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self.version or deadline - now < 1:
            return  # start() is about to succeed, or to raise an error with the same reasons
        end = f"giving up in {deadline - now:.0f} s (max_block_ms)" if deadline < math.inf else "still trying"
        self._log.warning("no broker has answered for %.0f s, %s: %s", now - began, end, self._reasons())
        self._start_timer = loop.call_later(START_PERIOD, self._still_waits, began, deadline)

    # The task

    async def run(self) -> None:
        """Refresh the metadata whenever it is due, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._poked.clear()
            due = self._due()
            if due <= loop.time():
                await self._refresh()
                continue
            try:
                async with asyncio.timeout_at(due):
                    await self._poked.wait()
            except TimeoutError:
                pass

    def _due(self) -> float:
        """Return the loop time of the next refresh."""
        if self._new:
            return 0.0
        if self._update_requested or self._waiters or self._again or self._failing_since is not None:
            return self._not_before
        return max(self._refreshed_at + self._config.metadata_max_age, self._not_before)

    async def _refresh(self) -> None:
        """Refresh once, or wait for the refresh in progress. If there are new topics, only new and unknown topics are
        requested."""
        if self._is_refreshing:
            waiter = asyncio.get_running_loop().create_future()
            self._rounds.append(waiter)
            await waiter
            return
        self._is_refreshing = True
        try:
            await self._ask()
        finally:
            self._is_refreshing = False
            rounds, self._rounds = self._rounds, []
            for waiter in rounds:
                if not waiter.done() and not waiter.get_loop().is_closed():
                    waiter.set_result(None)

    async def _ask(self) -> None:
        names, is_partial = self._next_question()
        began = asyncio.get_running_loop().time()
        lost = self._brokers.lost
        if self._failing_since is None:
            self._failing_since = began
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            # Only a `send` may create a topic: a refresh of all topics must not re-create a deleted one.
            allow_auto_topic_creation=is_partial and self._config.allow_auto_create_topics,
        )
        try:
            response = await self._brokers.request_any(request, self._patience(began))
            await self._take(response, names)
        except KafkaError as error:
            self._update_requested |= not is_partial
            # The log already contains a line about each broker that was lost.
            self._failed(error, is_known=self._brokers.lost > lost)
        except Exception as error:
            self._log.exception("a metadata response could not be handled")
            self._failed(KafkaError(f"a metadata response could not be handled: {error!r}"))

    def _next_question(self) -> tuple[list[str], bool]:
        """Return the topics for the next request, and whether it contains only new and unknown topics."""
        missed = dict.fromkeys([*self._waiters, *self._again])
        unknown = [name for name in missed if self.topic(name) is None and name not in self._new]
        if self._new or (unknown and not self._update_requested and not self._is_old()):
            names = [*self._new, *unknown]
            self._new.clear()
            return names, True
        self._update_requested = False
        self._forget_idle()
        return list(self._wanted), False

    def _is_old(self) -> bool:
        age = asyncio.get_running_loop().time() - self._refreshed_at
        return age >= self._config.metadata_max_age

    def _patience(self, now: float) -> float:
        """Return how many seconds to wait for a response: request_timeout, or less if a rebootstrap is due sooner."""
        patience = self._config.request_timeout
        if self._failing_since is not None and self._may_rebootstrap():
            left = self._failing_since + self._config.metadata_recovery_rebootstrap_trigger - now
            # Wait at least one second, since the broker may just be slow.
            patience = min(patience, max(left, 1.0))
        return patience

    def _forget_idle(self) -> None:
        """Forget the topics that have not been written to for metadata_max_idle (KIP-526)."""
        before = asyncio.get_running_loop().time() - self._config.metadata_max_idle
        idle = [name for name, used in self._wanted.items() if used < before and name not in self._waiters]
        if idle:
            for name in idle:
                del self._wanted[name]
            self._publish(self.cluster.without_topics(idle))

    # The result

    async def _take(self, response: MetadataResponse, names: list[str]) -> None:
        row = decide(ApiKey.METADATA, response.error_code)
        if row.action is Action.REBOOTSTRAP and self._may_rebootstrap():
            self._rebootstrap("a broker requested it")
        if row.action is not Action.SUCCEED:
            name = error_name(response.error_code)
            raise BrokerError(
                f"the broker rejected the metadata request: {name}", code=response.error_code, name=name
            )
        before = self.cluster
        cluster = await self._merged(response, names)
        if before.cluster_id and cluster.cluster_id != before.cluster_id:
            self._log.warning(
                "the cluster id changed from %s to %s",
                before.cluster_id,
                cluster.cluster_id,
            )
            self._brokers.forget_features()
        now = asyncio.get_running_loop().time()
        self.last_error = None
        self._failing_since = None
        # A response that arrives long after the previous one is not counted as a repetition, even if it contains
        # nothing new.
        is_repetition = cluster is before and now - self._not_before <= self._longest_backoff
        self._fruitless = self._fruitless + 1 if is_repetition else 0
        self._not_before = now + self._backoff()
        if set(names) >= set(self._wanted):
            self._refreshed_at = now
        self._metrics.metadata_updates += 1
        self._publish(cluster)
        for name in names:
            self._again.pop(name, None)
            self._wake_waiters(name)

    async def _merged(self, response: MetadataResponse, names: list[str]) -> Cluster:
        """Return a snapshot that includes the response. Other tasks may run in the meantime; they see the previous
        snapshot."""
        learned: list[Callable[[Cluster], Cluster]] = []
        self._learned = learned
        steps = self.cluster.merging(response, names)
        try:
            while True:
                for _ in range(STEPS_AT_ONCE):
                    next(steps)
                await asyncio.sleep(0)
        except StopIteration as end:
            cluster: Cluster = end.value
        finally:
            self._learned = None
        for change in learned:
            cluster = change(cluster)
        return cluster

    def _wake_waiters(self, name: str) -> None:
        for waiter in self._waiters.pop(name, []):
            if not waiter.done():
                waiter.set_result(None)

    def _failed(self, error: KafkaError, *, is_known: bool = False) -> None:
        now = asyncio.get_running_loop().time()
        self.last_error = error
        self._metrics.metadata_failures += 1
        self._not_before = now + self._backoff()
        self._fruitless += 1
        level = logging.WARNING if self._fruitless == 1 and not is_known else logging.DEBUG
        self._log.log(level, "metadata refresh failed: %s", error)
        if not self._may_rebootstrap():
            return
        since, trigger = self._failing_since, self._config.metadata_recovery_rebootstrap_trigger
        if self._brokers.reachability.is_unreachable:
            self._rebootstrap("no known broker is reachable")
        elif since is not None and now - since >= trigger:
            self._rebootstrap(f"no broker has answered for {now - since:.3g} s")

    def _backoff(self) -> float:
        pause = backoff(self._config.retry_backoff, self._longest_backoff, self._fruitless, self._random)
        return max(pause, SHORTEST_PAUSE)

    def _may_rebootstrap(self) -> bool:
        return self._config.metadata_recovery_strategy == "rebootstrap" and not self._brokers.is_bootstrapping

    def _rebootstrap(self, why: str) -> None:
        self._log.info("returning to the bootstrap servers: %s", why)
        self._failing_since = None
        self._update_requested = True
        self._brokers.rebootstrap()
        self._publish(self.cluster.without_leaders())

    def _publish(self, cluster: Cluster) -> None:
        """Replace the snapshot. No other method changes `cluster`."""
        are_same_nodes = cluster.nodes is self.cluster.nodes
        self.cluster = cluster
        self.version += 1
        if not are_same_nodes:
            self._brokers.update(cluster)
        self._wake.set()
