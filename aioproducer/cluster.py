"""What is known of the cluster at one moment: brokers, topics, partitions and their leaders.

A `Cluster` is a frozen value; each answer or hint makes a new one from the old one. Objects that did not
change are taken over, so `is` tells whether something did. Nothing here knows a socket or a clock."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol
from uuid import UUID

from aioproducer.errors import InvalidTopicError, ProtocolError, escaped
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import MetadataResponse
from aioproducer.types import Node

NO_LEADER = -1
NO_EPOCH = -1
NO_TOPIC_ID = UUID(int=0)

_MAX_HOST = 255
_FORBIDDEN_IN_HOST = frozenset("/@\\\"'<>?#,;")


class PartitionInfo(NamedTuple):
    """One partition of a topic. `leader` is a node id, -1 if no broker of the cluster leads it."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error: int


class TopicInfo(NamedTuple):
    """One topic. `partitions` is complete and in order: a partition's number is its index.

    With an error, `partitions` and `topic_id` are what was known before it (they keep the leader epochs), not
    something to send by.
    """

    name: str
    topic_id: UUID
    partitions: tuple[PartitionInfo, ...]
    error: int
    is_internal: bool

    @property
    def available(self) -> list[int]:
        """The partitions that have a leader, in order. Computed at each call."""
        return [partition.partition for partition in self.partitions if partition.leader >= 0]


_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's own rule (org.apache.kafka.common.internals.Topic); besides, "." and ".." are none."""


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError for a name that Kafka refuses."""
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise invalid_topic(name)


def invalid_topic(name: str) -> InvalidTopicError:
    return InvalidTopicError(
        f"'{escaped(name, 260)}' is no topic name: 1 to 249 letters, digits, '.', '_' or '-', "
        "but not '.' or '..'",
        topic=name,
    )


class Endpoint(Protocol):
    """A broker's address as any of the answers gives it; `Node` is one as well."""

    @property
    def node_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def rack(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Cluster:
    """A snapshot. The dicts are never changed after construction."""

    nodes: dict[int, Node]
    controller_id: int
    cluster_id: str | None
    topics: dict[str, TopicInfo]

    @classmethod
    def empty(cls) -> Cluster:
        """Nothing is known yet."""
        return cls({}, -1, None, {})

    def topic(self, name: str) -> TopicInfo | None:
        """The topic if it is known and without error."""
        found = self.topics.get(name)
        return found if found is not None and found.error == 0 else None

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """The partition if its topic is known and without error."""
        found = self.topic(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def merged(self, response: MetadataResponse, asked: Collection[str]) -> Cluster:
        """The snapshot after an answer about the topics `asked`; what is known of other topics stays.

        Leader epochs of a topic never go backwards, because a broker that just restarted answers from old
        metadata (KIP-320); a new topic id starts anew (KIP-516). Where topics have no id yet (before 2.8), one that
        was made anew can't be told from old metadata: there an older epoch is better than no leader.

        Raises:
            ProtocolError: the answer names no broker that could be connected to.
        """
        nodes = {node.node_id: node for node in map(_node, response.brokers) if node is not None}
        if not nodes:
            raise ProtocolError("a metadata answer without any broker was refused", written=True)
        nodes = self.nodes if nodes == self.nodes else nodes
        topics = dict(self.topics) if nodes.keys() >= self.nodes.keys() else self._without_lost_leaders(nodes)
        before = dict(topics)
        wanted = set(asked)
        for answer in response.topics:
            name = answer.name
            if name is None or name not in wanted:
                continue
            known = before.get(name)
            topic = _merged_topic(name, answer, known, nodes)
            topics[name] = known if known is not None and topic == known else topic
        for name in asked:
            # A broker has to answer for every topic; one that it left out is as good as unknown.
            if name not in topics:
                topics[name] = TopicInfo(name, NO_TOPIC_ID, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)
        cluster = Cluster(nodes, response.controller_id, response.cluster_id or self.cluster_id, topics)
        return self if self._is_same(cluster) else cluster

    def with_leader_hint(
        self, topic: str, partition: int, leader_id: int, leader_epoch: int, endpoints: Iterable[Endpoint]
    ) -> Cluster:
        """The snapshot after a produce answer named the new leader (KIP-951); `self` if that is no news."""
        known = self.partition(topic, partition)
        if known is None or not self.nodes or leader_id < 0 or leader_epoch <= known.leader_epoch:
            return self
        leader = next((_node(endpoint) for endpoint in endpoints if endpoint.node_id == leader_id), None)
        leader = leader or self.nodes.get(leader_id)
        if leader is None:
            return self
        info = self.topics[topic]
        partitions = list(info.partitions)
        partitions[partition] = known._replace(leader=leader_id, leader_epoch=leader_epoch, error=0)
        return replace(
            self,
            nodes=self.nodes if self.nodes.get(leader_id) == leader else {**self.nodes, leader_id: leader},
            topics={**self.topics, topic: info._replace(partitions=tuple(partitions))},
        )

    def without_epoch(self, topic: str, partition: int) -> Cluster:
        """The snapshot after the leader of a partition said that it is none: whatever is answered next is believed.

        Only for a topic without id, which may have been made anew and count its epochs from 0; `self` for others.
        """
        known = self.partition(topic, partition)
        if known is None or known.leader_epoch == NO_EPOCH or self.topics[topic].topic_id != NO_TOPIC_ID:
            return self
        info = self.topics[topic]
        partitions = list(info.partitions)
        partitions[partition] = known._replace(leader_epoch=NO_EPOCH)
        return replace(self, topics={**self.topics, topic: info._replace(partitions=tuple(partitions))})

    def without_topics(self, names: Collection[str]) -> Cluster:
        """The snapshot after some topics were forgotten."""
        gone = set(names)
        return replace(self, topics={name: info for name, info in self.topics.items() if name not in gone})

    def without_leaders(self) -> Cluster:
        """The snapshot after the brokers turned out to be gone: topics and partition counts stay, all else
        is unknown.

        Epochs are forgotten too: a restored cluster counts from lower ones.
        """
        return Cluster(
            {},
            -1,
            self.cluster_id,
            {
                name: info._replace(
                    partitions=tuple(
                        p._replace(leader=NO_LEADER, leader_epoch=NO_EPOCH) for p in info.partitions
                    )
                )
                for name, info in self.topics.items()
            },
        )

    def _without_lost_leaders(self, nodes: dict[int, Node]) -> dict[str, TopicInfo]:
        """The topics, where a leader that `nodes` does not name any more is no leader."""
        topics: dict[str, TopicInfo] = {}
        for name, info in self.topics.items():
            if any(p.leader >= 0 and p.leader not in nodes for p in info.partitions):
                kept = tuple(
                    p if p.leader in nodes else p._replace(leader=NO_LEADER) for p in info.partitions
                )
                info = info._replace(partitions=kept)
            topics[name] = info
        return topics

    def _is_same(self, other: Cluster) -> bool:
        # The controller is left out: with KRaft each answer names any broker as it (KRaftMetadataCache).
        return (
            self.nodes is other.nodes
            and self.cluster_id == other.cluster_id
            and len(self.topics) == len(other.topics)
            and all(self.topics.get(name) is info for name, info in other.topics.items())
        )


def _node(endpoint: Endpoint) -> Node | None:
    """The endpoint as a node; None if nobody could connect to it. Negative ids are bootstrap addresses."""
    host, port = endpoint.host, endpoint.port
    if endpoint.node_id < 0 or not 0 < port < 65536 or not 0 < len(host) <= _MAX_HOST:
        return None
    if not host.isprintable() or " " in host or not _FORBIDDEN_IN_HOST.isdisjoint(host):
        return None
    return Node(endpoint.node_id, host, port, escaped(endpoint.rack) or None)


def _merged_topic(
    name: str, answer: MetadataResponse.MetadataResponseTopic, known: TopicInfo | None, nodes: dict[int, Node]
) -> TopicInfo:
    error = answer.error_code
    partitions = sorted(answer.partitions, key=lambda partition: partition.partition_index)
    if error == 0 and (not partitions or not _is_gapless(partitions)):
        # A topic always has partitions 0 to n-1; anything else is metadata that is still on its way.
        error = ErrorCode.LEADER_NOT_AVAILABLE
    if error != 0:
        if known is None:
            return TopicInfo(name, answer.topic_id, (), error, answer.is_internal)
        return known._replace(error=error)
    topic_id = answer.topic_id
    if known is not None:
        if topic_id == NO_TOPIC_ID:
            topic_id = known.topic_id  # a broker that doesn't know ids yet (before 2.8) takes none away
        elif known.topic_id not in (NO_TOPIC_ID, topic_id):
            known = None  # deleted and created again: a new topic with an old name
    before = known.partitions if known is not None else ()
    merged = [_merged_partition(name, topic_id, partition, before, nodes) for partition in partitions]
    # Partitions are only ever added; an answer with fewer is older than what is known.
    merged += [p if p.leader in nodes else p._replace(leader=NO_LEADER) for p in before[len(merged) :]]
    return TopicInfo(name, topic_id, tuple(merged), 0, answer.is_internal)


def _is_gapless(partitions: list[MetadataResponse.MetadataResponsePartition]) -> bool:
    return all(partition.partition_index == index for index, partition in enumerate(partitions))


def _merged_partition(
    topic: str,
    topic_id: UUID,
    answer: MetadataResponse.MetadataResponsePartition,
    before: tuple[PartitionInfo, ...],
    nodes: dict[int, Node],
) -> PartitionInfo:
    index, epoch, leader = answer.partition_index, answer.leader_epoch, answer.leader_id
    if index < len(before) and epoch < before[index].leader_epoch:
        known = before[index]
        if epoch == NO_EPOCH:
            epoch = known.leader_epoch
        elif known.leader in nodes:
            return known
        elif topic_id != NO_TOPIC_ID:
            return known._replace(leader=NO_LEADER)
    if leader not in nodes:
        leader = NO_LEADER
    return PartitionInfo(
        topic,
        index,
        leader,
        epoch,
        tuple(answer.replica_nodes),
        tuple(answer.isr_nodes),
        tuple(answer.offline_replicas),
        answer.error_code,
    )
