"""Finds transactions that the brokers themselves ended twice: committed in some partitions, aborted in the others.

A new transaction coordinator reads its partition of `__transaction_state` up to the end of its own log, even beyond
what all replicas have (Kafka's TransactionStateManager.loadTransactionMetadata). If it finds a prepared commit there,
it sends markers at once. Another replica without that record can still be elected before all markers are written. That
replica considers the transaction open, and aborts it after `transaction_timeout_ms`. The producer gets PRODUCER_FENCED
for its commit, and reports an unknown outcome.

A transaction counts only if the brokers' files prove that this happened."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from aioproducer.protocol.recordbatch import HEADER_SIZE, BatchHeader, read_header, read_records
from aioproducer.testing.embedded.batches import Marker, read_marker
from aioproducer.testing.embedded.transaction_log import TOPIC, decoded
from aioproducer.testing.embedded.transaction_metadata import TransactionMetadata, TransactionStatus
from tests.campaigns.chaos.history import ChaosHistory
from tests.campaigns.chaos.oracle import ReadLogs
from tests.campaigns.simulation.history import Ended
from tests.support.record_batches import split_batches

COMMITS = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)


@dataclass(frozen=True)
class Ending:
    """The marker that ended a record's transaction."""

    producer_id: int
    record_epoch: int
    marker_epoch: int
    marker: Marker


@dataclass
class Replica:
    """The files of one broker."""

    data: Path
    _headers: dict[tuple[str, int], list[tuple[BatchHeader, Marker | None]]] = field(default_factory=dict)

    def ending(self, topic: str, partition: int, offset: int) -> Ending | None:
        """Return the marker that ended the record's transaction; None if there is none, or no such record."""
        batches = self._batches(topic, partition)
        at = bisect_right(batches, offset, key=lambda batch: batch[0].base_offset) - 1
        if at < 0:
            return None
        record = batches[at][0]
        for header, marker in batches[at + 1 :]:
            if header.producer_id == record.producer_id and marker is not None:
                return Ending(record.producer_id, record.producer_epoch, header.producer_epoch, marker)
        return None

    @cached_property
    def states(self) -> dict[str, list[TransactionMetadata]]:
        """The states of each transactional id, in the order of the log."""
        found: dict[str, list[TransactionMetadata]] = defaultdict(list)
        for directory in sorted(self.data.glob(f"{TOPIC}-*")):
            for batch in _batches_in(directory):
                header = read_header(batch)
                for record in read_records(batch[HEADER_SIZE:], header):
                    if record.key is not None and record.value is not None:
                        state = decoded(record.key, record.value)
                        found[state.transactional_id].append(state)
        return found

    def _batches(self, topic: str, partition: int) -> list[tuple[BatchHeader, Marker | None]]:
        place = (topic, partition)
        if place not in self._headers:
            found = self._headers[place] = []
            for batch in _batches_in(self.data / f"{topic}-{partition}"):
                header = read_header(batch)
                marker = None
                if header.is_control:
                    marker = read_marker(next(read_records(batch[HEADER_SIZE:], header)))
                found.append((header, marker))
        return self._headers[place]


def _batches_in(directory: Path) -> Iterator[memoryview]:
    for segment in sorted(directory.glob("*.log")):
        yield from split_batches(segment.read_bytes())


def ended_twice(directory: Path, history: ChaosHistory, logs: ReadLogs) -> dict[int, str]:
    """Return, by number, a sentence for each transaction with an unknown outcome that the brokers committed in part.

    Args:
        directory: the cluster's directory, which contains the brokers' files.
        history: the transactions.
        logs: the records.
    """
    replicas = [Replica(data) for data in sorted(directory.glob("node-*/data"))]
    by_transaction: dict[int, list[int]] = defaultdict(list)
    for sent in history.sent:
        if sent.transaction is not None and sent.buffered_at is not None:
            by_transaction[sent.transaction.number].append(sent.number)
    visible, places = set(logs.visible), logs.places
    found = {}
    for transaction in history.transactions:
        numbers = by_transaction[transaction.number]
        seen = visible.intersection(numbers)
        if transaction.ended is not Ended.UNKNOWN or not 0 < len(seen) < len(numbers):
            continue
        owner = history.owners[transaction.number]
        if replicas and all(_ended_twice(replica, owner, numbers, places, seen) for replica in replicas):
            found[transaction.number] = (
                f"transaction {transaction.number} of {owner!r}: one coordinator sent COMMIT markers for {len(seen)} "
                f"of {len(numbers)} records; the next one knew of no commit, and aborted the others"
            )
    return found


def _ended_twice(
    replica: Replica, owner: str, numbers: list[int], places: dict[int, tuple[str, int, int]], seen: set[int]
) -> bool:
    """Return True if the COMMIT markers after the visible records come from an earlier coordinator than the ABORT
    markers after the others, and the transaction log contains only the abort."""
    endings = {number: replica.ending(*places[number]) for number in numbers if number in places}
    found = [ending for ending in endings.values() if ending is not None]
    if len(found) != len(numbers) or len({(one.producer_id, one.record_epoch) for one in found}) != 1:
        return False
    commits = {endings[number] for number in seen}
    aborts = set(endings.values()) - commits
    abort = max(found, key=lambda one: one.marker.coordinator_epoch)
    return (
        aborts == {abort}
        and not abort.marker.commit
        and {endings[number] for number in set(numbers) - seen} == aborts
        and all(one.marker.commit for one in found if one != abort)
        and max(one.marker.coordinator_epoch for one in found if one != abort)
        < abort.marker.coordinator_epoch
        and _only_aborted(replica.states[owner], abort)
    )


def _only_aborted(states: list[TransactionMetadata], abort: Ending) -> bool:
    """Return True if the log contains the decision to abort with this marker, and none to commit the transaction."""
    started = {
        state.started_ms
        for state in states
        if state.state is TransactionStatus.PREPARE_ABORT
        and (state.producer_id, state.producer_epoch) == (abort.producer_id, abort.marker_epoch)
    }
    return len(started) == 1 and not any(
        state.state in COMMITS and state.started_ms in started for state in states
    )
