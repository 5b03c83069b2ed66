"""A snapshot of the cluster's metadata: brokers, topics, partitions and their leaders.

A `Cluster` is frozen; each metadata response or leader hint creates a new one from the old one. Unchanged objects are
reused, so `is` shows whether something changed. This module uses neither a socket nor a clock."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple, Protocol
from uuid import UUID

from aioproducer.errors import InvalidTopicError, ProtocolError, escaped
from aioproducer.protocol._request_path import untracked
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import MetadataResponse
from aioproducer.types import Node

NO_LEADER = -1
NO_EPOCH = -1
NO_TOPIC_ID = UUID(int=0)

_MAX_HOST = 255
_FORBIDDEN_IN_HOST = frozenset("/@\\\"'<>?#,;")


class PartitionInfo(NamedTuple):
    """One partition of a topic. `leader` is a node id, or -1 if no known broker leads the partition."""

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

    If `error` is not 0, `partitions` and `topic_id` date from before the error: they preserve the leader epochs, but
    must not be used for sending.
    """

    name: str
    topic_id: UUID
    partitions: tuple[PartitionInfo, ...]
    error: int
    is_internal: bool

    @property
    def available(self) -> list[int]:
        """The partitions that have a leader, in order; computed on each access."""
        return [partition.partition for partition in self.partitions if partition.leader >= 0]


_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's pattern for topic names (org.apache.kafka.common.internals.Topic). The pattern also matches "." and "..",
which Kafka rejects."""


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError for a name that Kafka rejects."""
    if not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise invalid_topic(name)


def invalid_topic(name: str) -> InvalidTopicError:
    return InvalidTopicError(
        f"'{escaped(name, 260)}' is not a valid topic name; use 1 to 249 letters (a-z, A-Z), digits, '.', '_' or "
        "'-', but not '.' or '..'",
        topic=name,
    )


class LeaderHint(NamedTuple):
    """The leader of a partition, as named in a Produce response (KIP-951)."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int


class Endpoint(Protocol):
    """The address of a broker: the attributes that `Node` and the broker entries in all responses have in common."""

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
    """A snapshot of the metadata. Its dicts never change after construction."""

    nodes: dict[int, Node]
    controller_id: int
    cluster_id: str | None
    """The id that the brokers report, escaped like all text from brokers."""
    topics: dict[str, TopicInfo]

    @classmethod
    def empty(cls) -> Cluster:
        """Create a snapshot without any brokers or topics."""
        return cls({}, -1, None, {})

    def topic(self, name: str) -> TopicInfo | None:
        """Return the topic if it is known and has no error, else None."""
        found = self.topics.get(name)
        return found if found is not None and found.error == 0 else None

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return the partition if it exists and its topic is known and has no error, else None."""
        found = self.topic(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def merging(self, response: MetadataResponse, asked: Collection[str]) -> Generator[None, None, Cluster]:
        """Return a snapshot updated from `response`, the answer to a request for the topics in `asked`. Keep all other
        topics.

        The generator yields at each broker, topic and partition, so that other tasks can run in between. Only the
        last step takes longer, because it compares all topics to find out whether any has changed.

        The leader epochs of a topic never go backwards, because a broker that has just restarted may respond with old
        metadata (KIP-320). A new topic id resets the epochs (KIP-516). Without topic ids (brokers before 2.8), a
        re-created topic looks like old metadata; a lower epoch is then accepted only if the known leader is gone.

        Raises:
            ProtocolError: the response contains no broker with a usable address.
        """
        nodes: dict[int, Node] = {}
        for broker in response.brokers:
            yield
            if (node := node_of(broker)) is not None:
                nodes[node.node_id] = node
        if not nodes:
            raise ProtocolError("a metadata response that listed no brokers was rejected", written=True)
        nodes = self.nodes if nodes == self.nodes else nodes
        if nodes.keys() >= self.nodes.keys():
            topics = dict(self.topics)
        else:
            topics = yield from self._without_lost_leaders(nodes)
        before = dict(topics)
        wanted = set(asked)
        for answer in response.topics:
            yield
            name = answer.name
            if name is None or name not in wanted:
                continue
            known = before.get(name)
            topic = yield from _merging_topic(name, answer, known, nodes)
            topics[name] = known if known is not None and topic == known else topic
        for name in asked:
            # A broker must report every requested topic; a topic that it leaves out is treated as unknown.
            if name not in topics:
                topics[name] = TopicInfo(name, NO_TOPIC_ID, (), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)
        cluster_id = escaped(response.cluster_id) or self.cluster_id
        cluster = Cluster(nodes, response.controller_id, cluster_id, topics)
        return self if self._is_same(cluster) else cluster

    def with_leader_hints(self, hints: Iterable[LeaderHint], endpoints: Iterable[Endpoint]) -> Cluster:
        """Return a snapshot with the leaders that a Produce response named, or `self` if no hint is usable.

        Each changed topic is copied only once, however many hints name it, because a broker that restarts can lead
        thousands of partitions.
        """
        if not self.nodes:
            return self
        hints = list(hints)
        leaders = {hint.leader for hint in hints}
        named = {endpoint.node_id: endpoint for endpoint in endpoints if endpoint.node_id in leaders}
        nodes = dict(self.nodes)
        changed: dict[str, list[PartitionInfo]] = {}
        for topic, number, leader_id, epoch in hints:
            known = self.partition(topic, number)
            if known is None or leader_id < 0:
                continue
            partitions = changed.get(topic)
            if epoch <= (known if partitions is None else partitions[number]).leader_epoch:
                continue
            leader = node_of(named[leader_id]) if leader_id in named else None
            leader = leader or self.nodes.get(leader_id)
            if leader is None:
                continue
            nodes[leader_id] = leader
            if partitions is None:
                partitions = changed[topic] = list(self.topics[topic].partitions)
            partitions[number] = known._replace(leader=leader_id, leader_epoch=epoch, error=0)
        if not changed:
            return self
        return replace(self._with(changed), nodes=self.nodes if nodes == self.nodes else nodes)

    def without_epochs(self, places: Iterable[tuple[str, int]]) -> Cluster:
        """Return a snapshot without the leader epochs of some partitions, so that the next response is accepted.

        Call this with (topic, number) pairs after a broker has reported that it does not lead these partitions. Topics
        with an id are not changed. A topic without an id may have been re-created, in which case its epochs start again
        at 0.
        """
        changed: dict[str, list[PartitionInfo]] = {}
        for topic, number in places:
            known = self.partition(topic, number)
            if known is None or known.leader_epoch == NO_EPOCH or self.topics[topic].topic_id != NO_TOPIC_ID:
                continue
            if topic not in changed:
                changed[topic] = list(self.topics[topic].partitions)
            changed[topic][number] = known._replace(leader_epoch=NO_EPOCH)
        return self._with(changed) if changed else self

    def _with(self, changed: dict[str, list[PartitionInfo]]) -> Cluster:
        """Return a snapshot in which some topics have new lists of partitions."""
        topics = dict(self.topics)
        for name, partitions in changed.items():
            topics[name] = topics[name]._replace(partitions=untracked(tuple(partitions)))
        return replace(self, topics=topics)

    def without_topics(self, names: Collection[str]) -> Cluster:
        """Return a copy of the snapshot without the named topics."""
        gone = set(names)
        return replace(self, topics={name: info for name, info in self.topics.items() if name not in gone})

    def without_leaders(self) -> Cluster:
        """Return a snapshot for use when all brokers are unreachable. It keeps the topics but no brokers or leaders.

        The leader epochs are dropped as well, because a restored cluster may have lower ones.
        """
        return Cluster(
            {},
            -1,
            self.cluster_id,
            {
                name: info._replace(
                    partitions=untracked(
                        tuple([p._replace(leader=NO_LEADER, leader_epoch=NO_EPOCH) for p in info.partitions])
                    )
                )
                for name, info in self.topics.items()
            },
        )

    def _without_lost_leaders(self, nodes: dict[int, Node]) -> Generator[None, None, dict[str, TopicInfo]]:
        """Return the topics. A partition loses its leader if that broker is not in `nodes`."""
        topics: dict[str, TopicInfo] = {}
        for name, info in self.topics.items():
            yield
            if any(p.leader >= 0 and p.leader not in nodes for p in info.partitions):
                kept = []
                for partition in info.partitions:
                    kept.append(_led_by_one_of(nodes, partition))
                    yield
                info = info._replace(partitions=untracked(tuple(kept)))
            topics[name] = info
        return topics

    def _is_same(self, other: Cluster) -> bool:
        # The controller is ignored: with KRaft, each response names an arbitrary broker as the controller
        # (KRaftMetadataCache).
        return (
            self.nodes is other.nodes
            and self.cluster_id == other.cluster_id
            and len(self.topics) == len(other.topics)
            and all(self.topics.get(name) is info for name, info in other.topics.items())
        )


def node_of(endpoint: Endpoint) -> Node | None:
    """Return the endpoint as a node; None if its address is unusable or its id is negative (a bootstrap address)."""
    host, port = endpoint.host, endpoint.port
    if endpoint.node_id < 0 or not 0 < port < 65536 or not 0 < len(host) <= _MAX_HOST:
        return None
    if not host.isprintable() or " " in host or not _FORBIDDEN_IN_HOST.isdisjoint(host):
        return None
    return Node(endpoint.node_id, host, port, escaped(endpoint.rack) or None)


def _led_by_one_of(nodes: dict[int, Node], partition: PartitionInfo) -> PartitionInfo:
    return partition if partition.leader in nodes else partition._replace(leader=NO_LEADER)


def _merging_topic(
    name: str, answer: MetadataResponse.MetadataResponseTopic, known: TopicInfo | None, nodes: dict[int, Node]
) -> Generator[None, None, TopicInfo]:
    error = answer.error_code
    topic_id = answer.topic_id
    former = known
    if known is not None:
        if topic_id == NO_TOPIC_ID:
            topic_id = known.topic_id  # a broker without topic ids (before 2.8) does not remove a known id
        elif known.topic_id not in (NO_TOPIC_ID, topic_id):
            former = None  # the topic was deleted and created again under the same name
    before = former.partitions if former is not None else ()
    merged: list[PartitionInfo] = []
    if error == 0:
        for partition in answer.partitions:
            merged.append(_merged_partition(name, topic_id, partition, before, nodes))
            yield
        merged.sort(key=attrgetter("partition"))
        if not merged or any(partition.partition != index for index, partition in enumerate(merged)):
            # A topic always has partitions 0 to n-1; anything else means that the metadata is still incomplete.
            error = ErrorCode.LEADER_NOT_AVAILABLE
    if error != 0:
        if known is None:
            return TopicInfo(name, answer.topic_id, (), error, answer.is_internal)
        return known._replace(error=error)
    for left_out in before[len(merged) :]:
        # Partitions are only ever added, so a response with fewer partitions is outdated.
        merged.append(_led_by_one_of(nodes, left_out))
        yield
    return TopicInfo(name, topic_id, untracked(tuple(merged)), 0, answer.is_internal)


def _merged_partition(
    topic: str,
    topic_id: UUID,
    answer: MetadataResponse.MetadataResponsePartition,
    before: tuple[PartitionInfo, ...],
    nodes: dict[int, Node],
) -> PartitionInfo:
    index, epoch, leader = answer.partition_index, answer.leader_epoch, answer.leader_id
    known = before[index] if 0 <= index < len(before) else None
    if known is not None and epoch < known.leader_epoch:
        if epoch == NO_EPOCH:
            epoch = known.leader_epoch
        elif known.leader in nodes:
            return known
        elif topic_id != NO_TOPIC_ID:
            return known._replace(leader=NO_LEADER)
    if leader not in nodes:
        leader = NO_LEADER
    merged = PartitionInfo(
        topic,
        index,
        leader,
        epoch,
        tuple(answer.replica_nodes),
        tuple(answer.isr_nodes),
        tuple(answer.offline_replicas),
        answer.error_code,
    )
    return known if known is not None and merged == known else merged
