"""A transaction that the brokers committed in part is exempt only if their files prove it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from aioproducer.protocol.recordbatch import LENGTH_AT
from aioproducer.testing.embedded.batches import Marker, encode_batch, marker_batch
from aioproducer.testing.embedded.transaction_log import TOPIC, encoded_key, encoded_value
from aioproducer.testing.embedded.transaction_metadata import TransactionMetadata, TransactionStatus
from aioproducer.types import TopicPartition
from tests.campaigns.chaos.coordinators import ended_twice
from tests.campaigns.chaos.faults import V1
from tests.campaigns.chaos.history import ChaosHistory
from tests.campaigns.chaos.oracle import ReadLogs, verdict
from tests.campaigns.chaos.world import STEADY
from tests.campaigns.simulation.history import Ended, Sent, SimulatedTransaction, Told
from tests.support.read_back import LogRecord

PID = 7
COMMITTED, ABORTED = 0, 1
"""The partitions of the two records, which are also their numbers."""
ONGOING = TransactionMetadata(
    "payer",
    PID,
    10_000,
    TransactionStatus.ONGOING,
    producer_epoch=0,
    partitions=(TopicPartition(STEADY, COMMITTED), TopicPartition(STEADY, ABORTED)),
    started_ms=1000,
    updated_ms=1000,
)
PREPARE_COMMIT = replace(ONGOING, state=TransactionStatus.PREPARE_COMMIT, updated_ms=1500)
PREPARE_ABORT = replace(ONGOING, state=TransactionStatus.PREPARE_ABORT, producer_epoch=1, updated_ms=2000)


def record(producer_epoch: int = 0) -> bytes:
    return encode_batch([(b"k", b"v")], 1000, producer_id=PID, producer_epoch=producer_epoch, base_sequence=0)


def commit(coordinator_epoch: int = 0) -> bytes:
    return marker_batch(PID, 0, Marker(True, coordinator_epoch), 1600)


def abort() -> bytes:
    return marker_batch(PID, 1, Marker(False, 1), 2000)


@dataclass
class Files:
    """The files of three brokers, and what readers and the producer saw."""

    directory: Path
    logs: dict[int, list[bytes]] = field(
        default_factory=lambda: {COMMITTED: [record(), commit(), abort()], ABORTED: [record(), abort()]}
    )
    """The batches of each partition; each has one record."""
    states: list[TransactionMetadata] = field(default_factory=lambda: [ONGOING, PREPARE_ABORT])
    outcome: Ended = Ended.UNKNOWN
    is_lost: bool = False
    """True if the hidden record is missing from every log."""

    def write(self, *nodes: int) -> None:
        """Write the files of these brokers."""
        states = [
            encode_batch([(encoded_key("payer"), encoded_value(state, 1))], 1000) for state in self.states
        ]
        topics = {f"{STEADY}-{partition}": log for partition, log in self.logs.items()} | {
            f"{TOPIC}-0": states
        }
        for node in nodes:
            for name, batches in topics.items():
                directory = self.directory / f"node-{node}" / "data" / name
                directory.mkdir(parents=True, exist_ok=True)
                (directory / f"{0:020}.log").write_bytes(
                    b"".join(
                        struct.pack(">q", offset) + batch[LENGTH_AT:] for offset, batch in enumerate(batches)
                    )
                )

    def history(self) -> tuple[ChaosHistory, ReadLogs]:
        """Return what the producer reported, and what readers read."""
        transaction = SimulatedTransaction(0, self.outcome)
        history = ChaosHistory(V1, 0, transactions=[transaction], owners={0: "payer"})
        for number in (COMMITTED, ABORTED):
            sent = Sent(number, "payer", 0, STEADY, number, transaction, 1.0, 2.0)
            sent.buffered_at, sent.ended_at, sent.due = 1.0, 1.1, 2.0
            sent.told, sent.offset = Told.ACKNOWLEDGED, 0
            history.sent.append(sent)
        seen = {COMMITTED: [LogRecord(COMMITTED, 0, 0, 0, None, b"%d filler" % COMMITTED, ())]}
        unseen = {ABORTED: [LogRecord(ABORTED, 0, 0, 0, None, b"%d filler" % ABORTED, ())]}
        everything = seen if self.is_lost else seen | unseen
        return history, ReadLogs({STEADY: everything}, {STEADY: seen})


def test_a_transaction_that_two_coordinators_ended_differently_is_reported_and_exempt(tmp_path):
    files = Files(tmp_path)
    files.write(0, 1, 2)
    history, logs = files.history()

    assert any("is visible in part: 1 of 2" in sentence for sentence in verdict(history, logs))
    history.ended_twice = ended_twice(tmp_path, history, logs)
    assert list(history.ended_twice) == [0]
    assert "COMMIT markers for 1 of 2 records" in history.ended_twice[0]
    assert verdict(history, logs) == []


def the_log_has_the_commit(files: Files) -> None:
    files.states.insert(1, PREPARE_COMMIT)


def the_log_has_no_abort(files: Files) -> None:
    files.states.pop()


def the_abort_is_of_another_transaction(files: Files) -> None:
    files.states[1] = replace(PREPARE_ABORT, producer_epoch=2)


def a_record_has_no_marker(files: Files) -> None:
    files.logs[ABORTED].pop()


def all_markers_are_of_one_coordinator(files: Files) -> None:
    files.logs[COMMITTED][1] = commit(coordinator_epoch=1)


def the_hidden_record_was_committed_too(files: Files) -> None:
    files.logs[ABORTED].insert(1, commit())


def the_records_are_of_two_epochs(files: Files) -> None:
    files.logs[ABORTED][0] = record(producer_epoch=1)


def a_record_is_in_no_log(files: Files) -> None:
    files.is_lost = True


def the_producer_reported_a_commit(files: Files) -> None:
    files.outcome = Ended.COMMITTED


NO_PROOFS: list[Callable[[Files], None]] = [
    the_log_has_the_commit,
    the_log_has_no_abort,
    the_abort_is_of_another_transaction,
    a_record_has_no_marker,
    all_markers_are_of_one_coordinator,
    the_hidden_record_was_committed_too,
    the_records_are_of_two_epochs,
    a_record_is_in_no_log,
    the_producer_reported_a_commit,
]


@pytest.mark.parametrize("is_on_one_broker", [False, True], ids=["all brokers", "one broker"])
@pytest.mark.parametrize("no_proof", NO_PROOFS, ids=lambda no_proof: no_proof.__name__)
def test_without_a_proof_in_all_files_the_producer_is_to_blame(tmp_path, no_proof, is_on_one_broker):
    files = Files(tmp_path)
    files.write(0, 1, 2)
    no_proof(files)
    files.write(*([2] if is_on_one_broker else [0, 1, 2]))
    history, logs = files.history()

    assert ended_twice(tmp_path, history, logs) == {}
