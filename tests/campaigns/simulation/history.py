"""The events of one simulated run: every record with its result and the result's time, and every transaction.

The workload fills it; the oracle reads it together with the logs. Nothing here judges."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from aioproducer import Delivery, Outcome, RecordMetadata, TopicPartition
from aioproducer.errors import without_tracebacks
from aioproducer.testing.embedded.topics import EmbeddedTopic


class Told(Enum):
    """The result that the sender of a record received."""

    NOTHING = "nothing"
    ACKNOWLEDGED = "acknowledged"
    NOT_PERSISTED = "not persisted"
    UNKNOWN = "unknown"
    GAVE_UP_ASKING = "cancelled by its own sender"


class Ended(Enum):
    """The result that the user of a transaction received."""

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
    """The consumer's position that was sent with it, in runs with one partition to read from."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The consumer's positions that were sent with it."""
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
    """The loop time by which `send` must return."""
    due: float = float("inf")
    """The loop time by which the delivery must end."""
    buffered_at: float | None = None
    ended_at: float | None = None
    told: Told = Told.NOTHING
    offset: int | None = None
    error: BaseException | None = None
    delivery: Delivery | None = None
    own_due: float = float("inf")
    """The loop time at which the timeout passed to `send` ends."""
    deadline: float = float("-inf")
    """The deadline of its batch. With endless retries, a batch in doubt gets a later one when this has passed."""

    def buffered(self, delivery: Delivery, now: float, due: float) -> None:
        """Record that the record is buffered, and later its result."""
        self.buffered_at, self.due, self.deadline = now, due, delivery.batch.deadline
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
        """Record that the broker has acknowledged it."""
        self.told = Told.ACKNOWLEDGED
        self.offset, self.partition = metadata.offset, metadata.partition

    def failed(self, error: BaseException) -> None:
        """Record that it was rejected or has failed."""
        # Tracebacks refer to deliveries, through which the garbage collector cannot see.
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
    """Every topic of the run, including deleted ones."""
    truncated: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """The numbers of the records that a leader change has truncated from a partition's log."""
    has_rivals: bool = False
    """Two producers used the same transactional id."""
    lost_receipts: bool = False
    """A send_many call was cancelled, so the results of its rows can't be read."""
    is_gapless: bool = False
    """enable_gapless_order is on."""
    is_endless: bool = False
    """enable_endless_retries is on."""
    closing_at: float | None = None
    """The loop time at which the producer began to close."""
    aborted_successors: list[str] = field(default_factory=list)
    """Open transactions that were aborted by an older producer's InitProducerId without the abort that must come
    before it."""
    is_disturbed: bool = True
    """True if there were faults or impatient users."""
    fired: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault has occurred."""
    problems: list[str] = field(default_factory=list)
    """Problems seen during the run: errors in logs, calls that took too long, things that close() left."""
    losses: list[str] = field(default_factory=list)
    """Records that the producer has reported as lost by the brokers."""
    group_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The consumer group's positions at the end."""
    digest: str = ""
    """The digest of all frames and their times."""
    seconds: float = 0.0
    """Virtual seconds that the run took."""
