"""Topics and their partitions, with the state that all brokers share: leaders, ISRs, high watermarks and logs.

All replicas of a partition share one log. A follower is up to date immediately, unless `hold_replication` or
`stop_fetching` holds the high watermark back. Records above the high watermark are lost when the leader changes.
A follower that is not in the ISR does not hold the high watermark back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from uuid import UUID

from aioproducer.protocol.compression import Bytes
from aioproducer.protocol.recordbatch import BatchHeader, Record
from aioproducer.testing.embedded.batches import Marker
from aioproducer.testing.embedded.log import LogAppendInfo, PartitionLog, VerificationGuard
from aioproducer.testing.embedded.log_config import LogConfig

NO_LEADER = -1
NO_EPOCH = -1
NO_OFFSET = -1
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_valid_name(topic: str) -> bool:
    """Return True if Kafka allows this topic name."""
    return _NAME.fullmatch(topic) is not None and topic not in (".", "..")


class EmbeddedTopic:
    """A topic: its partitions, and an id that no earlier topic of the same name had."""

    def __init__(self, name: str, topic_id: UUID, partitions: Sequence[Partition], config: LogConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = tuple(partitions)
        self.config = config

    @property
    def is_internal(self) -> bool:
        """True if only brokers write to the topic."""
        return self.name in INTERNAL_TOPICS

    def partition(self, index: int) -> Partition | None:
        """Return the partition with this number, or None if it does not exist."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class Partition:
    """One partition: its leader, its in-sync replicas, its high watermark and its log."""

    def __init__(self, topic: str, index: int, replicas: Sequence[int], config: LogConfig) -> None:
        self.topic = topic
        self.index = index
        self.config = config
        self.replicas = tuple(replicas)
        self.isr = list(replicas)
        self.leader = self.replicas[0]
        self.leader_epoch = 0
        self.log = PartitionLog(config)
        self.high_watermark = 0
        """The offset after the last replicated record. Consumers see only the records below it, and a request with
        acks=all waits until the high watermark has passed its batch."""
        self.is_deleted = False
        self._replicates = True
        self._returned: dict[int, None] = {}
        """The brokers that have been restarted and have not been stopped since."""
        # Replicas that have stopped fetching. The set is never iterated, so its order does not matter.
        self._lagging: set[int] = set()
        # One event for each request that is waiting for a change in this partition, in order of arrival.
        self._watchers: dict[asyncio.Event, None] = {}

    @property
    def last_stable_offset(self) -> int:
        """The offset below which consumers with isolation.level=read_committed see records."""
        return self.log.transactions.last_stable_offset(self.high_watermark)

    @property
    def effective_min_isr(self) -> int:
        """The number of in-sync replicas that acks=all requires, which is at most the number of replicas
        (Partition.effectiveMinIsr)."""
        return min(self.config.min_insync_replicas, len(self.replicas))

    def records(self, *, committed: bool = False) -> list[Record]:
        """Return all records, or those that consumers with isolation.level=read_committed see."""
        return self.log.committed_records(self.high_watermark) if committed else self.log.records()

    def append(
        self, data: Bytes, header: BatchHeader, guard: VerificationGuard | None = None
    ) -> LogAppendInfo:
        """Append a batch as the leader does. Raises AppendError."""
        appended = self.log.append(data, header, leader_epoch=self.leader_epoch, guard=guard)
        self._replicate()
        return appended

    def append_by_broker(self, data: bytes) -> LogAppendInfo:
        """Append a coordinator's records, as the leader does. Raises AppendError."""
        appended = self.log.append_by_broker(data, leader_epoch=self.leader_epoch)
        self._replicate()
        return appended

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, now_ms: int
    ) -> LogAppendInfo:
        """End a producer's transaction in this partition, as the leader does (WriteTxnMarkers). Raises AppendError."""
        appended = self.log.append_marker(
            producer_id, producer_epoch, marker, leader_epoch=self.leader_epoch, now_ms=now_ms
        )
        self._replicate()
        return appended

    def hold_replication(self) -> None:
        """Stop the followers from fetching. While one of them is in the ISR, the high watermark does not advance, and
        acks=all waits."""
        self._replicates = False

    def release_replication(self) -> None:
        """Let the followers catch up."""
        self._replicates = True
        self._replicate()

    def move_leader(self, leader: int) -> None:
        """Start a new leader epoch with this leader, or without one. Records that were not replicated are lost."""
        if self.log.end_offset > self.high_watermark:
            self.log.truncate(self.high_watermark)
        self.leader = leader
        self.leader_epoch += 1
        if leader != NO_LEADER and leader not in self.isr:
            self.isr.append(leader)
        self._changed()

    def set_isr(self, nodes: Sequence[int]) -> None:
        """Set which replicas are in sync. The leader is always in sync."""
        self.isr = [node for node in self.replicas if node in nodes or node == self.leader]
        self._replicate()

    def broker_stopped(self, node: int, alive: Collection[int]) -> None:
        """Remove a broker from the ISR unless it is the only one; if it leads, the next in-sync replica takes over."""
        self._returned.pop(node, None)
        if node in self.isr and len(self.isr) > 1:
            self.isr.remove(node)
        if node == self.leader:
            self.move_leader(next((replica for replica in self.isr if replica in alive), NO_LEADER))
        else:
            self._replicate()

    def broker_started(self, node: int) -> None:
        """If there is no leader and the broker is in sync, make it the leader; otherwise let it catch up and join the
        ISR."""
        self._lagging.discard(node)
        self._returned[node] = None
        if self.leader == NO_LEADER:
            if node in self.isr:
                self.move_leader(node)
                # The replicas that came back earlier can catch up now.
                self.isr += [
                    other for other in self._returned if other in self.replicas and other not in self.isr
                ]
        elif node in self.replicas and node not in self.isr:
            self.isr.append(node)
        self._replicate()

    def stop_fetching(self, node: int) -> None:
        """Stop a replica from fetching: while it is a follower in the ISR, the high watermark does not advance."""
        if node in self.replicas:
            self._lagging.add(node)

    def start_fetching(self, node: int) -> None:
        """Let a replica that has stopped fetching catch up."""
        if node in self._lagging:
            self.broker_started(node)

    def delete(self) -> None:
        """Notify the requests that are waiting for this partition that it has been deleted."""
        self.is_deleted = True
        self._changed()

    def _replicate(self) -> None:
        # Followers outside of the ISR do not hold the high watermark back (Partition.maybeIncrementLeaderHW).
        followers = [node for node in self.isr if node != self.leader]
        if not followers or (self._replicates and self._lagging.isdisjoint(followers)):
            self.high_watermark = self.log.end_offset
        self._changed()

    def _changed(self) -> None:
        for event in self._watchers:
            event.set()

    @contextmanager
    def watched(self, event: asyncio.Event) -> Iterator[None]:
        """Set `event` on every append and every change of leader, high watermark or ISR."""
        self._watchers[event] = None
        try:
            yield
        finally:
            del self._watchers[event]


async def wait_until(partitions: Iterable[Partition], is_true: Callable[[], bool], timeout: float) -> bool:
    """Wait until `is_true()` returns True. It is called immediately, and again after each change to these partitions.

    Args:
        partitions: The partitions to watch.
        is_true: The condition to wait for.
        timeout: The maximum time to wait, in seconds.

    Returns:
        False if the time-out was reached first.
    """
    if is_true():
        return True
    changed = asyncio.Event()
    with ExitStack() as watches:
        for partition in dict.fromkeys(partitions):
            watches.enter_context(partition.watched(changed))
        try:
            async with asyncio.timeout(timeout):
                while not is_true():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return False
    return True
