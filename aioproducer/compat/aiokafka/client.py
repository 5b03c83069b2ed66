"""The part of aiokafka's client that programs use through `producer.client`: the metadata of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aioproducer import KafkaError, Producer, TopicPartition
from aioproducer.cluster import Cluster
from aioproducer.compat.aiokafka.errors import KafkaConnectionError


class BrokerMetadata(NamedTuple):
    """A broker in the cluster."""

    nodeId: int  # aiokafka's name
    host: str
    port: int
    rack: str | None


class ClusterMetadata:
    """The known brokers and topics. Each method returns the current state."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def brokers(self) -> set[BrokerMetadata]:
        """Return the brokers in the cluster."""
        return {BrokerMetadata(*node) for node in self._snapshot().nodes.values()}

    def broker_metadata(self, broker_id: int) -> BrokerMetadata | None:
        """Return the broker with this node id, or None if it is unknown."""
        return next((broker for broker in self.brokers() if broker.nodeId == broker_id), None)

    def topics(self) -> set[str]:
        """Return the topics that this producer has used."""
        return set(self._snapshot().topics)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the numbers of the topic's partitions, or None if they are unknown."""
        found = self._snapshot().topic(topic)
        return None if found is None else {partition.partition for partition in found.partitions}

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the node id of the partition's leader: -1 if it has no leader, None if the partition is unknown."""
        found = self._snapshot().partition(*partition)
        return None if found is None else found.leader

    def _snapshot(self) -> Cluster:
        metadata = getattr(self._producer, "_metadata", None)  # start() creates it
        return Cluster.empty() if metadata is None else metadata.cluster


class Client:
    """The parts of aiokafka's client that health checks and instrumentation use."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.cluster = ClusterMetadata(producer)

    async def force_metadata_update(self) -> bool:
        """Ask a broker for the cluster's metadata. Return whether a broker answered."""
        try:
            await self._producer.ping()
        except KafkaError:
            return False
        self._producer._metadata.request_update()  # the topics in use are refreshed soon
        return True

    async def fetch_all_metadata(self) -> ClusterMetadata:
        """Ask a broker for the cluster's metadata, and return it.

        Raises:
            KafkaConnectionError: no broker answered.
        """
        if not await self.force_metadata_update():
            raise KafkaConnectionError("no broker responded to a metadata request")
        return self.cluster

    # OpenTelemetry's instrumentation of aiokafka reads the following two properties.

    @property
    def _bootstrap_servers(self) -> Sequence[str]:
        return [f"{host}:{port}" for host, port in self._producer.config.bootstrap_servers]

    @property
    def _client_id(self) -> str | None:
        return self._producer.config.client_id
