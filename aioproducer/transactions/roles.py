"""The roles of a producer in a transaction.

The owner begins the transaction, writes to it and ends it. A participant writes to some of its partitions. An heir only
ends it, in place of the owner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from aioproducer.errors import InvalidRecordError, KafkaError
from aioproducer.types import TopicPartition


class Role:
    """The role of a producer in a transaction. The defaults are the owner's."""

    may_write: ClassVar[bool] = True
    is_only_writer: ClassVar[bool] = True
    """False for a participant: the log may already contain batches from another producer with the same producer id,
    epoch and sequence numbers."""
    asks_leaders: bool = False
    """True if the leader of a partition must be asked for other writers before the first record is sent to it."""
    stays_after_end: ClassVar[bool] = True
    """True if the producer may begin further transactions once this one has ended."""

    def check_is_own(self, topic: str, partition: int) -> None:
        """Raise an error if another producer may write to the partition.

        Raises:
            InvalidRecordError: the partition was not passed to `attach`.
        """

    def refusals(self, topic: str, count: int) -> list[KafkaError | None] | None:
        """Return the `check_is_own` error, or None, for each of at least `count` partitions.

        The result is None if every partition is allowed.
        """
        return None

    def is_repetition(self, *, has_time: bool, has_error: bool) -> bool:
        """Return whether the response to a partition's first batch shows that the log already had a batch with the
        same sequence numbers.

        Args:
            has_time: True if the response contains a timestamp (log_append_time_ms).
            has_error: True if the response contains an error.
        """
        return False


class Owner(Role):
    """Begins the transaction, writes to it and ends it."""


class Heir(Role):
    """Ends a transaction that its owner released. An heir does not know the next sequence numbers."""

    may_write = False
    stays_after_end = False


class Participant(Role):
    """Writes to partitions that the owner exported. Only the owner can end the transaction.

    The broker cannot tell participants apart. If two participants write to the same partition, the broker drops the
    records of one of them as duplicates and answers "success".
    """

    is_only_writer = False

    def __init__(self, partitions: Iterable[TopicPartition], *, detects_repetitions: bool) -> None:
        """Create the role.

        Args:
            partitions: the partitions that only this producer writes to. They never change.
            detects_repetitions: True if the topics use CreateTime. A successful response with a timestamp then refers
                to a batch that was already in the log.
        """
        self.partitions = frozenset(partitions)
        self._detects_repetitions = detects_repetitions
        self.asks_leaders = not detects_repetitions
        self._refusals: dict[str, list[KafkaError | None]] = {}

    def check_is_own(self, topic: str, partition: int) -> None:
        if TopicPartition(topic, partition) not in self.partitions:
            raise InvalidRecordError(
                f"partition {partition} of topic {topic} was not passed to Producer.attach(partitions=...); another "
                "participant of the transaction could write to it",
                argument="partition",
            )

    def refusals(self, topic: str, count: int) -> list[KafkaError | None] | None:
        found = self._refusals.setdefault(topic, [])
        for partition in range(len(found), count):
            try:
                self.check_is_own(topic, partition)
                found.append(None)
            except InvalidRecordError as error:
                found.append(error.with_traceback(None))
        return found

    def is_repetition(self, *, has_time: bool, has_error: bool) -> bool:
        return has_error or (has_time and self._detects_repetitions)


OWNER = Owner()
HEIR = Heir()
