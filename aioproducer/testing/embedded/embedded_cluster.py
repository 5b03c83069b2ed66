"""A Kafka cluster inside the test's own event loop: real sockets, real batches, a real log per partition.

    async with EmbeddedCluster(brokers=3, topics={"flights": 12}) as cluster:
        producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
        ...
        assert len(cluster.records("flights")) == 1000

EmbeddedCluster starts and stops as a whole. Its base classes contain the state that all brokers share. Inspection is a
read-only view for tests, Controller adds the topics, leaders and ids, and ClusterState adds the coordinators, faults
and limits. Each lower-level module uses the most basic of these classes that meets its needs. EmbeddedBroker owns the
sockets of one broker.
"""

from __future__ import annotations

import asyncio
import random as random_module
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType

from aioproducer.errors import counted
from aioproducer.testing.embedded.broker import BrokerState, EmbeddedBroker
from aioproducer.testing.embedded.broker_security import Security
from aioproducer.testing.embedded.cluster_state import ClusterState
from aioproducer.testing.embedded.connections import serve
from aioproducer.testing.embedded.faults import FaultScript
from aioproducer.testing.embedded.log_config import LogConfig
from aioproducer.testing.embedded.releases import release_named


class EmbeddedCluster(ClusterState):
    """Brokers for tests and demonstrations, in this process and on this event loop.

    The cluster keeps everything in memory, so it is not for production. It imitates Kafka's protocol versions, error
    codes, idempotence, leader epochs, acks and high watermarks.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        port: int = 0,
        topics: Mapping[str, int] | None = None,
        auto_create: bool = True,
        default_partitions: int = 1,
        replication_factor: int | None = None,
        min_insync_replicas: int = 1,
        max_message_bytes: int = 1_048_588,
        versions: str = "4.1",
        transaction_version: int = 2,
        host: str = "127.0.0.1",
        clock: Callable[[], float] = time.time,
        random: random_module.Random | None = None,
        security: Security | None = None,
        collects_metrics: bool = False,
    ) -> None:
        """Configure a cluster; `start()` or `async with` starts it.

        Args:
            brokers: The number of brokers; their node ids start at 0.
            port: The first broker's port; the others use the ports after it. 0 lets the system choose each port.
            topics: Topics to create at the first start, with their partition counts.
            auto_create: Whether to create a missing topic when a client requests its metadata and allows its creation.
            default_partitions: The number of partitions for a topic that is created without a partition count.
            replication_factor: The number of replicas of a partition; None: 3, or the number of brokers if it is lower.
            min_insync_replicas: The number of replicas that must be in sync for acks=all.
            max_message_bytes: The maximum size of a batch, in bytes.
            versions: The Kafka release to imitate, from "0.11" to "4.3", or "azure-event-hubs".
            transaction_version: The finalized level of the transaction.version feature: 2 for transactions v2
                (KIP-890), 1 or 0 for v1. Releases before 4.0 do not have the feature and behave as if the level were 0.
            host: The address to listen on, which is also advertised to clients.
            clock: A function that returns the seconds since 1970, for timestamps and transaction time-outs.
            random: The source of random ids, such as topic ids.
            security: TLS, SASL and sessions; None for PLAINTEXT.
            collects_metrics: Whether to offer the APIs through which clients push metrics (KIP-714); see `telemetry`.

        Raises:
            ValueError: an argument is invalid.
        """
        if brokers < 1 or default_partitions < 1:
            raise ValueError("a cluster must have at least one broker, and a topic at least one partition")
        if replication_factor is not None and not 1 <= replication_factor <= brokers:
            raise ValueError(
                f"replication_factor={replication_factor} is not possible with {counted(brokers, 'broker')}"
            )
        if not 0 <= port <= 65536 - brokers:
            raise ValueError(
                f"port={port} can't be the first port of {counted(brokers, 'broker')}; port 0 chooses free ports"
            )
        if transaction_version not in (0, 1, 2):
            raise ValueError(f"transaction_version={transaction_version} is not one of 0, 1, 2")
        release = release_named(versions, collects_metrics=collects_metrics)
        super().__init__(
            LogConfig.of_broker(
                is_before_4=release.is_before_4,
                max_message_bytes=max_message_bytes,
                min_insync_replicas=min_insync_replicas,
            ),
            default_partitions,
            replication_factor or min(3, brokers),
            clock,
            random or random_module.Random(),
            faults=FaultScript(brokers),
            transaction_version=min(transaction_version, release.transaction_version),
            auto_create=auto_create,
            security=security,
            collects_metrics=collects_metrics,
        )
        self._first_topics = dict(topics or {})
        self._brokers += [
            EmbeddedBroker(
                node_id,
                host,
                port and port + node_id,
                release,
                serve=partial(serve, self),
                on_thaw=self.transactions.wake,
            )
            for node_id in range(brokers)
        ]

    # Start and stop

    async def start(self) -> None:
        """Start all brokers and create the topics.

        After `stop()`, the same cluster can start again with its ports, topics, records, leaders, transactions and
        group offsets, as if all brokers of a real cluster had been restarted. Deleted topics stay deleted.

        Raises:
            RuntimeError: a broker is not stopped; it keeps running.
            OSError: a port is in use. Nothing is left running.
            ValueError: a topic can't be created. Nothing is left running.
        """
        for broker in self._brokers:
            if broker.state is not BrokerState.STOPPED:
                raise RuntimeError(
                    f"the cluster can't start: broker {broker.node_id} is {broker.state.value}; call stop() first,"
                    " or start a single broker with start_broker()"
                )
        self._seen = asyncio.Event()  # An event belongs to the event loop of its first waiter.
        try:
            for broker in self._brokers:
                await self.start_broker(broker.node_id)
            while self._first_topics:
                name, partitions = next(iter(self._first_topics.items()))
                self.create_topic(name, partitions)
                del self._first_topics[name]
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all brokers. No task or socket remains. The logs can still be read, and `start` continues with them.

        If the call is cancelled, the brokers still stop; CancelledError is raised afterwards."""
        for restart in self._restarts:
            restart.cancel()
        self.transactions.halt()
        self.groups.halt()
        for broker in self._brokers:
            if broker.state is not BrokerState.STOPPED:
                broker.halt()
        # All tasks have been cancelled; they need a few turns of the loop to end.
        waiting = asyncio.create_task(self._wait_stopped(), name="embedded cluster stops")
        cancelled = None
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _wait_stopped(self) -> None:
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await self.transactions.wait_stopped()
        for broker in self._brokers:
            await broker.wait_stopped()

    async def __aenter__(self) -> EmbeddedCluster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
        if self.failures and error is None:
            raise self.failures[0]

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, as "host:port,host:port"."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self._brokers)
