"""Transaction markers on their way from a coordinator to the partition leaders (WriteTxnMarkers).

TransactionCoordinator calls `write` for each prepared transaction whenever something has changed, until all markers of
the transaction are written and replicated. Kafka does this in TransactionMarkerChannelManager.
"""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.testing.embedded.batches import Marker
from aioproducer.testing.embedded.controller import Controller
from aioproducer.testing.embedded.log import AppendError
from aioproducer.testing.embedded.topics import NO_LEADER, Partition
from aioproducer.testing.embedded.transaction_metadata import TransactionMetadata, TransactionStatus
from aioproducer.types import TopicPartition


class _Appended(NamedTuple):
    """A marker in a log. It takes effect once it is replicated; before that, a change of leader discards it."""

    leader_epoch: int
    offset: int


class Markers:
    """The markers that have been written but not yet replicated, and the partitions whose markers are held back."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster
        self._held: list[tuple[str | None, int | None]] = []
        # Keyed by transaction, as (transactional id, producer id, epoch), and then by partition.
        self._appended: dict[tuple[str, int, int], dict[TopicPartition, _Appended]] = {}
        self._waiting: dict[Partition, None] = {}

    def hold(self, topic: str | None, partition: int | None) -> None:
        """Stop writing markers to these partitions; None means all."""
        self._held.append((topic, partition))

    def release(self) -> None:
        """Write markers to all partitions again."""
        self._held.clear()

    def targets(self) -> list[Partition]:
        """Return the partitions to watch: one of them must change before a marker can be written or replicated."""
        return list(self._waiting)

    def write(self, metadata: TransactionMetadata, coordinator_epoch: int) -> bool:
        """Write those markers of a prepared transaction that can be written now.

        Returns:
            True if all of them are written and replicated.
        """
        key = metadata.transactional_id, *metadata.identity
        appended = self._appended.setdefault(key, {})
        marker = Marker(metadata.state is TransactionStatus.PREPARE_COMMIT, coordinator_epoch)
        # Pass a list to all(), not a generator, because every partition must be processed.
        if not all([self._write_one(metadata, marker, target, appended) for target in metadata.partitions]):
            return False
        del self._appended[key]
        return True

    def _write_one(
        self,
        metadata: TransactionMetadata,
        marker: Marker,
        target: TopicPartition,
        appended: dict[TopicPartition, _Appended],
    ) -> bool:
        partition = self._cluster.find_partition(*target)
        if partition is None:
            return True  # The topic has been deleted, along with the transaction's records.
        self._waiting.pop(partition, None)
        written = appended.get(target)
        if written is None or written.leader_epoch != partition.leader_epoch:
            if not self._can_write(partition):
                self._waiting[partition] = None
                return False
            try:
                offset = partition.append_marker(
                    *metadata.identity, marker, self._cluster.now_ms()
                ).last_offset
            except AppendError:
                # A newer epoch or coordinator has written to this log, so the transaction has already ended there.
                return True
            written = appended[target] = _Appended(partition.leader_epoch, offset)
        if partition.high_watermark > written.offset:
            return True
        self._waiting[partition] = None
        return False

    def _can_write(self, partition: Partition) -> bool:
        is_held = any(
            topic in (None, partition.topic) and index in (None, partition.index)
            for topic, index in self._held
        )
        if is_held or partition.leader == NO_LEADER:
            return False
        return self._cluster.broker(partition.leader).is_running
