"""Keeps the Cluster fresh: one task asks for it when it is old, when somebody wants it, when a topic is new.

All wishes end in one refresh at a time, with back-off between them. `wait_for_topic` is where a send waits
for a topic that is not known yet."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterable
from random import Random

from aioproducer.cluster import Cluster, Endpoint, TopicInfo, check_topic_name, invalid_topic
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    BootstrapError,
    BrokerError,
    InvalidTopicError,
    KafkaError,
    MetadataTimeoutError,
    TopicAuthorizationError,
    UnknownPartitionError,
    UnsupportedVersionError,
    escaped,
)
from aioproducer.metrics import Metrics
from aioproducer.network.brokers import Brokers, backoff
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import MetadataRequest, MetadataResponse
from aioproducer.protocol.outcomes import TOPIC_ERRORS, Action, decide

logger = logging.getLogger(__name__)

STEPS_AT_ONCE = 250
"""Partitions of an answer that are taken over before others have a turn: one or two milliseconds."""

SHORTEST_PAUSE = 0.005
"""Seconds between two questions, also with a back-off of 0: a refusal may come without a turn of the loop."""


class Metadata:
    """The cluster as it is known now, and the task that keeps it so. Belongs to one event loop."""

    def __init__(
        self, config: ProducerConfig, brokers: Brokers, wake: WakeUp, metrics: Metrics, random: Random
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._wake = wake
        self._metrics = metrics
        self._random = random
        self._longest_backoff = max(config.retry_backoff, config.retry_backoff_max)
        self.cluster = Cluster.empty()
        self.version = 0
        """Counts the snapshots; 0 is the empty one."""
        self.last_error: KafkaError | None = None
        """Why the last refresh failed; None if it did not."""
        self._learned: list[Callable[[Cluster], Cluster]] | None = None
        """Leader hints that arrived while an answer is being merged, to be applied again afterwards. None when no merge
        is in progress."""
        # what is asked for
        self._wanted: dict[str, float] = {}
        """Topics by name, and when each was last used, in loop time."""
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._new: dict[str, None] = {}
        """Topics that have never been asked for."""
        self._again: dict[str, None] = {}
        """Unknown topics that `ask_for` named: refreshed soon, though no caller is waiting."""
        self._update_requested = False
        # when it is asked for
        self._poked = asyncio.Event()
        self._is_refreshing = False
        self._rounds: list[asyncio.Future[None]] = []
        """Who waits for the end of a refresh, whatever comes of it."""
        self._refreshed_at = float("-inf")
        self._not_before = 0.0
        self._fruitless = 0
        """Refreshes in a row that failed or told nothing new."""
        self._failing_since: float | None = None
        self._closed: KafkaError | None = None

    # What everybody may ask, without waiting

    def topic(self, name: str) -> TopicInfo | None:
        """The topic if it is known and without error."""
        return self.cluster.topic(name)

    def touch(self, name: str, now: float | None = None) -> None:
        """The topic is in use: keep asking for it (KIP-526)."""
        self._wanted[name] = asyncio.get_running_loop().time() if now is None else now

    def ask_for(self, name: str) -> None:
        """Ask about a topic soon, alone if it is new or not known; the cluster may create it then."""
        if name not in self._wanted:
            self._new[name] = None
        elif self.topic(name) is None:
            self._again[name] = None
        self.touch(name)
        self._poked.set()

    def request_update(self) -> None:
        """Refresh soon. Any number of calls until then are one; the back-off between refreshes is kept."""
        self._update_requested = True
        self._poked.set()

    def doubt_leader(self, topic: str, partition: int) -> None:
        """The leader that is known says that it is none, and not who is: refresh soon."""
        self._learn(lambda cluster: cluster.without_epoch(topic, partition))
        self.request_update()

    def apply_leader_hint(
        self,
        topic: str,
        partition: int,
        leader_id: int,
        leader_epoch: int,
        node_endpoints: Iterable[Endpoint],
    ) -> bool:
        """Take over the leader that a produce answer named (KIP-951). True if that was news."""
        return self._learn(
            lambda cluster: cluster.with_leader_hint(
                topic, partition, leader_id, leader_epoch, node_endpoints
            )
        )

    def _learn(self, change: Callable[[Cluster], Cluster]) -> bool:
        """Change the snapshot, and the next one if it is being made. True if that was news."""
        if self._learned is not None:
            self._learned.append(change)
        cluster = change(self.cluster)
        if cluster is self.cluster:
            return False
        self._publish(cluster)
        return True

    def close_waiters(self, error: KafkaError) -> None:
        """Fail everybody who waits for a topic, and who will."""
        self._closed = error
        for name in list(self._waiters):
            self._wake_waiters(name)

    # Waiting

    async def wait_for_topic(self, name: str, deadline: float, partition: int | None = None) -> TopicInfo:
        """The topic as soon as it is known, with that partition if one is named.

        The topic is wanted from now on. Cancelling it changes nothing else.

        Args:
            deadline: loop time at which to give up.

        Raises:
            InvalidTopicError: Kafka does not take this name.
            TopicAuthorizationError: the cluster hides the topic from this client.
            MetadataTimeoutError: the topic was not known in time.
            UnknownPartitionError: the topic was, but has no such partition.
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
        # An answer that arrived together with the deadline counts: the machine may have stood still for both.
        known = self._usable(name, partition)
        if known is not None:
            return known
        raise self._too_late(name, partition, loop.time() - began)

    async def _next_answer(self, name: str) -> None:
        """Wait until the cluster was asked about the topic once more."""
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
        """Errors that waiting does not change. Only straight after an answer: the next send may succeed."""
        info = self.cluster.topics.get(name)
        if info is None or decide(ApiKey.METADATA, info.error).action is not Action.FAIL:
            return
        refusal = TOPIC_ERRORS[info.error]
        if refusal is InvalidTopicError:
            raise invalid_topic(name)
        if refusal is TopicAuthorizationError:
            raise TopicAuthorizationError(
                f"topic {name}: the cluster does not let this client see it; it needs DESCRIBE and WRITE",
                topic=name,
            )

    def _usable(self, name: str, partition: int | None) -> TopicInfo | None:
        """The topic, if it is known with that partition and nobody closed us; it is in use then."""
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
                f"topic {name} has {len(info.partitions)} partitions; partition {partition} "
                f"did not appear within {waited:.3g} s",
                topic=name,
                partition=partition,
                partitions=len(info.partitions),
            )
        if self.last_error is not None:
            why = str(self.last_error)
        elif info is not None:
            why = f"the cluster says {error_name(info.error)}"
        else:
            why = "the cluster has not answered yet"
        return MetadataTimeoutError(f"topic {name} is not known after {waited:.3g} s: {why}", topic=name)

    async def first_update(self, deadline: float) -> None:
        """Learn the cluster for the first time. May be called with or without `run` at work.

        Raises:
            BootstrapError: no bootstrap address answered until `deadline`, a loop time, or none ever will.
            UnsupportedVersionError: the brokers are too old.
            AuthenticationError: a broker rejects our credentials, or we reject its certificate.
            ConfigError: certificates can't be read.
            ProducerClosed: the producer was closed meanwhile.
        """
        try:
            async with asyncio.timeout_at(deadline) as limit:
                while self.version == 0:
                    await self._refresh()
                    if self._closed is not None:
                        raise copy.copy(self._closed)
                    if isinstance(self.last_error, UnsupportedVersionError):
                        raise self.last_error
                    if self.version == 0 and (refusal := self._brokers.refusal) is not None:
                        raise refusal
                    if self._brokers.is_hopeless:
                        break
                    if self.version == 0:
                        await asyncio.sleep(self._not_before - asyncio.get_running_loop().time())
        except TimeoutError:
            if not limit.expired():
                raise
        if self.version == 0:
            # It may have come together with the deadline.
            if (refusal := self._brokers.refusal) is not None:
                raise refusal
            reasons, errors = self._brokers.reasons(), self._brokers.errors()
            # A broker that hangs up on each request is connected, or being connected to, most of the time.
            if self.last_error is not None and len(errors) < len(self._brokers.nodes):
                reasons += f"; the last request failed: {self.last_error}"
            raise BootstrapError(f"no bootstrap server told about the cluster: {reasons}", reasons=errors)

    # The task

    async def run(self) -> None:
        """The refresh task; ends by being cancelled."""
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
        """Loop time of the next refresh."""
        if self._new:
            return 0.0
        if self._update_requested or self._waiters or self._again or self._failing_since is not None:
            return self._not_before
        return max(self._refreshed_at + self._config.metadata_max_age, self._not_before)

    async def _refresh(self) -> None:
        """Ask once, about new topics alone if there are any. While one asks, others wait for it."""
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
        if self._failing_since is None:
            self._failing_since = began
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            # Only a send may create a topic: a refresh of all must not bring back one that was deleted.
            allow_auto_topic_creation=is_partial and self._config.allow_auto_create_topics,
        )
        try:
            response = await self._brokers.request_any(request, self._patience(began))
            await self._take(response, names)
        except KafkaError as error:
            self._update_requested |= not is_partial
            self._failed(error)
        except Exception as error:
            logger.exception("a metadata answer could not be handled")
            self._failed(KafkaError(f"a metadata answer could not be handled: {error!r}"))

    def _next_question(self) -> tuple[list[str], bool]:
        """The topics of the next request, and whether it is about those alone that somebody waits for."""
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
        """Seconds to wait for an answer: not beyond the moment that leads back to the bootstrap servers."""
        patience = self._config.request_timeout
        if self._failing_since is not None and self._may_rebootstrap():
            left = self._failing_since + self._config.metadata_recovery_rebootstrap_trigger - now
            # A broker that is merely slow is given a second in any case.
            patience = min(patience, max(left, 1.0))
        return patience

    def _forget_idle(self) -> None:
        """KIP-526: topics that nobody wrote to for long are neither asked for nor known any more."""
        before = asyncio.get_running_loop().time() - self._config.metadata_max_idle
        idle = [name for name, used in self._wanted.items() if used < before and name not in self._waiters]
        if idle:
            for name in idle:
                del self._wanted[name]
            self._publish(self.cluster.without_topics(idle))

    # What comes of it

    async def _take(self, response: MetadataResponse, names: list[str]) -> None:
        row = decide(ApiKey.METADATA, response.error_code)
        if row.action is Action.REBOOTSTRAP and self._may_rebootstrap():
            self._rebootstrap("a broker asked for it")
        if row.action is not Action.SUCCEED:
            name = error_name(response.error_code)
            raise BrokerError(f"metadata was refused: {name}", code=response.error_code, name=name)
        before = self.cluster
        cluster = await self._merged(response, names)
        if before.cluster_id and cluster.cluster_id != before.cluster_id:
            logger.warning(
                "the cluster is another one: its id was %s and is %s",
                escaped(before.cluster_id),
                escaped(cluster.cluster_id),
            )
            self._brokers.forget_features()
        now = asyncio.get_running_loop().time()
        self.last_error = None
        self._failing_since = None
        # An answer long after the last one is no repetition, also if it tells nothing new.
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
        """The snapshot after an answer. The loop has its turns meanwhile, in which everybody sees the one before."""
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

    def _failed(self, error: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        self.last_error = error
        self._metrics.metadata_failures += 1
        self._not_before = now + self._backoff()
        self._fruitless += 1
        level = logging.WARNING if self._fruitless == 1 else logging.DEBUG
        logger.log(level, "metadata refresh failed: %s", error)
        if not self._may_rebootstrap():
            return
        since, trigger = self._failing_since, self._config.metadata_recovery_rebootstrap_trigger
        if self._brokers.is_unreachable:
            self._rebootstrap("no known broker can be connected to")
        elif since is not None and now - since >= trigger:
            self._rebootstrap(f"no broker has answered for {now - since:.3g} s")

    def _backoff(self) -> float:
        pause = backoff(self._config.retry_backoff, self._longest_backoff, self._fruitless, self._random)
        return max(pause, SHORTEST_PAUSE)

    def _may_rebootstrap(self) -> bool:
        return self._config.metadata_recovery_strategy == "rebootstrap" and not self._brokers.is_bootstrapping

    def _rebootstrap(self, why: str) -> None:
        logger.warning("starting again from the bootstrap servers: %s", why)
        self._failing_since = None
        self._update_requested = True
        self._brokers.rebootstrap()
        self._publish(self.cluster.without_leaders())

    def _publish(self, cluster: Cluster) -> None:
        """The one place where the snapshot changes."""
        self.cluster = cluster
        self.version += 1
        self._brokers.update(cluster)
        self._wake.set()
