"""The state that all brokers in a cluster share. The handlers know their cluster only as a ClusterState.

Controller has the topics. This class adds the coordinators, faults and limits, and stops and restarts individual
brokers.
"""

from __future__ import annotations

import asyncio
import math
from base64 import urlsafe_b64encode
from collections.abc import Callable
from random import Random

from aioproducer.testing.embedded.authorizer import Authorizer
from aioproducer.testing.embedded.broker import BrokerState
from aioproducer.testing.embedded.broker_security import Security
from aioproducer.testing.embedded.controller import Controller
from aioproducer.testing.embedded.faults import FaultScript
from aioproducer.testing.embedded.groups import GroupCoordinator
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.offset_log import TOPIC as OFFSETS_TOPIC
from aioproducer.testing.embedded.quotas import Quota, Quotas
from aioproducer.testing.embedded.releases import release_named
from aioproducer.testing.embedded.telemetry import Telemetry
from aioproducer.testing.embedded.topics import NO_LEADER
from aioproducer.testing.embedded.transaction_log import TOPIC as TRANSACTIONS_TOPIC
from aioproducer.testing.embedded.transactions import TransactionCoordinator
from aioproducer.types import Node


class ClusterState(Controller):
    """Everything in a cluster that requests depend on; tests may also change it."""

    def __init__(
        self,
        config: LogConfig,
        default_partitions: int,
        default_replication_factor: int,
        clock: Callable[[], float],
        random: Random,
        *,
        faults: FaultScript,
        transaction_version: int,
        auto_create: bool,
        security: Security | None,
        collects_metrics: bool,
    ) -> None:
        super().__init__(config, default_partitions, default_replication_factor, clock, random)
        self.auto_create = auto_create
        self.faults = faults
        """The scripted faults; see `FaultScript.add`."""
        self.authorizer = Authorizer()
        """The operations that are denied to clients; see `Authorizer.deny`."""
        self.quotas = Quotas()
        """The clients' limits; see `set_quota`."""
        self.security = security
        self.telemetry = Telemetry()
        """The metrics that the cluster requests from clients, and those that they have pushed."""
        self.transactions = TransactionCoordinator(self, transaction_version)
        """The state of transactional ids, and the scripted faults for their transactions."""
        self.groups = GroupCoordinator(self)
        """The members of consumer groups, and the offsets that they have committed."""
        self.cluster_id = urlsafe_b64encode(self.new_uuid().bytes).decode().rstrip("=")
        self._collects_metrics = collects_metrics
        # Tasks that restart crashed brokers after a delay.
        self._restarts: dict[asyncio.Task[None], None] = {}

    # Brokers

    async def stop_broker(self, node: int) -> None:
        """Stop a broker as a crash would: its connections break, and its partitions get new leaders immediately."""
        self.crash_broker(node)
        await self.broker(node).wait_stopped()

    def crash_broker(self, node: int, down_for: float = math.inf) -> None:
        """Crash a broker without waiting for its connections to end, and restart it after `down_for` seconds."""
        self.broker(node).halt()
        self._replace(node)
        if math.isfinite(down_for):
            restart = asyncio.create_task(
                self._start_again(node, down_for), name=f"embedded broker {node} comes back"
            )
            self._restarts[restart] = None
            restart.add_done_callback(self._restarts.pop)

    async def _start_again(self, node: int, after: float) -> None:
        await asyncio.sleep(after)
        try:
            if self.broker(node).state is BrokerState.STOPPED:
                await self.start_broker(node)
        except OSError as error:
            self.failures.append(error)

    async def start_broker(self, node: int, *, versions: str | None = None) -> None:
        """Start a stopped broker at its old address. If `versions` is given, the broker imitates that release.

        Raises:
            OSError: the port is in use.
        """
        broker = self.broker(node)
        if versions is not None:
            broker.release = release_named(versions, collects_metrics=self._collects_metrics)
        await broker.start()
        for partition in self._partitions():
            partition.broker_started(node)
        self.transactions.resume()
        self.groups.resume()

    def freeze_broker(self, node: int, *, fenced_after: float | None = None) -> None:
        """Freeze a broker: it keeps its connections and accepts new ones, but reads no requests and sends no responses.

        Args:
            node: The broker's node id.
            fenced_after: If None, the controller does not notice: the broker keeps its leadership, and its replicas
                count as up to date, so the other brokers' partitions remain available. Otherwise, its replicas stop
                fetching, so acks=all waits for them. After this many seconds (broker.session.timeout.ms), the
                controller fences the broker: it leaves the ISRs, and its partitions get new leaders. When it thaws,
                it rejoins the ISRs.
        """
        self.broker(node).freeze()
        if fenced_after is not None:
            for partition in self._partitions():
                partition.stop_fetching(node)
            self.broker(node).while_frozen(fenced_after, self._fence, node)

    def _fence(self, node: int) -> None:
        self.broker(node).is_fenced = True
        self._replace(node)

    def _replace(self, node: int) -> None:
        """Act as the controller: let the partitions that have a replica on the broker continue without it."""
        alive = {other.node_id for other in self.alive()}
        for partition in self._partitions():
            partition.broker_stopped(node, alive)

    def thaw_broker(self, node: int) -> None:
        """Thaw a frozen broker: it serves the requests that have arrived in the meantime, and its replicas catch up."""
        was_fenced = self.broker(node).is_fenced
        self.broker(node).thaw()
        for partition in self._partitions():
            if was_fenced:
                # start_fetching() skips partitions that were created while the broker was fenced.
                partition.broker_started(node)
            else:
                partition.start_fetching(node)

    async def close_connections(self, node: int) -> None:
        """Cut all connections to a broker. The broker keeps running."""
        await self.broker(node).close_connections()

    # Topics and clients

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. A new topic with the same name gets a different id.

        Raises:
            KeyError: the topic does not exist.
        """
        topic = self.topics.pop(name)
        del self._topics_by_id[topic.topic_id]
        for partition in topic.partitions:
            partition.delete()
        self.groups.forget_topic(name)

    def set_quota(
        self,
        client_id: str | None = None,
        *,
        producer_byte_rate: float | None = None,
        request_percentage: float | None = None,
    ) -> None:
        """Limit a client on each broker: above the limit, its connections are muted for a while.

        The response is sent immediately and contains the throttle time (KIP-219). As in Kafka, rates are averaged over
        eleven seconds, so a burst of ten seconds' worth of data is possible.

        Args:
            client_id: The client id; None limits each client id that has no quota of its own.
            producer_byte_rate: Bytes of Produce requests per second; None: no limit.
            request_percentage: The share of a request thread's time, in percent. A fault's `delay` counts as work; the
                time that a request spends waiting does not. None: no limit.

        Raises:
            ValueError: a limit is not above 0.
        """
        self.quotas.set(client_id, Quota(producer_byte_rate, request_percentage))

    # For handlers

    def auto_create_topic(self, name: str) -> None:
        """Create a topic that a client has requested. An internal topic gets its usual number of partitions."""
        if name == OFFSETS_TOPIC:
            self.groups.create_topic()
        elif name == TRANSACTIONS_TOPIC:
            self.transactions.create_topic()
        else:
            self.create_topic(name)

    def coordinator(self, key: str, *, of_transactions: bool = False) -> Node | None:
        """Return the broker that coordinates a group or a transactional id; None if it currently has no coordinator."""
        node = self.transactions.node(key) if of_transactions else self.groups.node(key)
        return None if node == NO_LEADER else self.broker(node).node
