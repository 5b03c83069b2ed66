"""What happened in one simulated run: every record, what its sender was told and when, every transaction.

Filled by the workload while it runs; the oracle reads it beside the logs. Nothing here judges."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from aioproducer import Delivery, Outcome, RecordMetadata, TopicPartition
from aioproducer.errors import without_tracebacks
from aioproducer.testing.embedded.topics import EmbeddedTopic


class Told(Enum):
    """What the sender of a record was told."""

    NOTHING = "nothing"
    ACKNOWLEDGED = "acknowledged"
    NOT_PERSISTED = "not persisted"
    UNKNOWN = "unknown"
    GAVE_UP_ASKING = "cancelled by its own sender"


class Ended(Enum):
    """What whoever ended a transaction was told."""

    OPEN = "not ended"
    COMMITTED = "committed"
    ABORTED = "not committed"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class SimulatedTransaction:
    """One transaction as its user sees it."""

    number: int
    ended: Ended = Ended.OPEN
    offset: int | None = None
    """The consumer's position that was sent along, where a run has one partition to read from."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The consumer's positions that were sent along."""
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class Sent:
    """One record on its way."""

    number: int
    producer: str
    task: int
    topic: str
    partition: int | None
    transaction: SimulatedTransaction | None
    asked_at: float
    call_due: float
    """Loop time at which `send` must have returned."""
    due: float = float("inf")
    """Loop time at which the delivery must have ended."""
    buffered_at: float | None = None
    ended_at: float | None = None
    told: Told = Told.NOTHING
    offset: int | None = None
    error: BaseException | None = None
    delivery: Delivery | None = None
    own_due: float = float("inf")
    """Loop time at which the timeout that `send` was given is over."""

    def buffered(self, delivery: Delivery, now: float, due: float) -> None:
        """The record is in the buffer; note what becomes of it."""
        self.buffered_at, self.due = now, due
        self.partition = delivery.topic_partition.partition
        delivery.add_done_callback(self._ended)

    def _ended(self, delivery: Delivery) -> None:
        self.ended_at = asyncio.get_running_loop().time()
        if delivery.cancelled():
            self.told = Told.GAVE_UP_ASKING
        elif (error := delivery.exception()) is not None:
            self.failed(error)
        else:
            self.acknowledged(delivery.result())

    def acknowledged(self, metadata: RecordMetadata) -> None:
        """The broker has it."""
        self.told = Told.ACKNOWLEDGED
        self.offset, self.partition = metadata.offset, metadata.partition

    def failed(self, error: BaseException) -> None:
        """It was refused, or given up."""
        # Its frames refer to deliveries, through which the garbage collector cannot see.
        self.error = without_tracebacks(error)
        outcome = getattr(error, "outcome", None)
        self.told = Told.NOT_PERSISTED if outcome is Outcome.NOT_PERSISTED else Told.UNKNOWN


@dataclass(eq=False)
class History:
    """One run."""

    kind: str
    seed: int
    acks: int | str = "all"
    is_idempotent: bool = True
    sent: list[Sent] = field(default_factory=list)
    transactions: list[SimulatedTransaction] = field(default_factory=list)
    incarnations: list[EmbeddedTopic] = field(default_factory=list)
    """Every topic that there was, also those that were deleted."""
    truncated: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Numbers of the records that a leader change has cut off a partition's log."""
    has_rivals: bool = False
    """Two producers used the same transactional id."""
    lost_receipts: bool = False
    """A call of send_many was cancelled: nobody can look at what becomes of its rows."""
    is_gapless: bool = False
    """enable_gapless_order is on."""
    is_endless: bool = False
    """enable_endless_retries is on."""
    closing_at: float | None = None
    """Loop time at which the producer began to close."""
    aborted_successors: list[str] = field(default_factory=list)
    """Open transactions that an InitProducerId of an older producer has aborted, where an abort before it was due."""
    is_disturbed: bool = True
    """Something went wrong, or its users were impatient."""
    fired: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault has struck."""
    problems: list[str] = field(default_factory=list)
    """What was seen while it ran: errors in logs, calls that took too long, things that close() has left."""
    losses: list[str] = field(default_factory=list)
    """What the producer has reported as lost by the brokers."""
    group_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The consumer group's positions at the end."""
    digest: str = ""
    """Over all frames and their times."""
    seconds: float = 0.0
    """Virtual."""
