"""What a producer may do in a transaction: begin, write and end it as its owner, write to some partitions as a
participant, or only end it as the heir of its owner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from aioproducer.errors import InvalidRecordError, KafkaError
from aioproducer.types import TopicPartition


class Role:
    """The limits of a role. Those of the owner apply unless a role overrides them."""

    may_write: ClassVar[bool] = True
    is_only_writer: ClassVar[bool] = True
    """No other producer numbers batches with this producer id and epoch."""
    stays_after_end: ClassVar[bool] = True
    """It may begin further transactions once this one has ended."""

    def check_is_own(self, topic: str, partition: int) -> None:
        """Raise if another producer may write to the partition.

        Raises:
            InvalidRecordError: the partition was not given to `attach`.
        """

    def refusals(self, topic: str, count: int) -> list[KafkaError | None] | None:
        """Return the `check_is_own` error, or None, for each of at least `count` partitions.

        The result is None if every partition is allowed.
        """
        return None

    def is_repetition(self, *, has_time: bool, has_error: bool) -> bool:
        """Return whether the answer to the first batch of a partition says that the log had a batch with its numbers
        before.

        Args:
            has_time: the answer carries a timestamp of the log.
            has_error: the answer carries an error.
        """
        return False


class Owner(Role):
    """Begins the transaction, writes to it and ends it."""


class Heir(Role):
    """Took the transaction over when its owner released it. It does not know the next sequence numbers."""

    may_write = False
    stays_after_end = False


class Participant(Role):
    """Writes to partitions that the owner exported. The transaction is the owner's to end.

    The broker cannot tell participants apart. If two of them number records of the same partition, it drops records of
    one as duplicates and answers "success".
    """

    is_only_writer = False

    def __init__(self, partitions: Iterable[TopicPartition], *, tells_repetitions: bool) -> None:
        """
        Args:
            partitions: the partitions that only this producer writes to. They never change.
            tells_repetitions: the topics use CreateTime. A successful answer that carries a time then refers to a
                batch that was already in the log.
        """
        self.partitions = frozenset(partitions)
        self._tells_repetitions = tells_repetitions
        self._refusals: dict[str, list[KafkaError | None]] = {}

    def check_is_own(self, topic: str, partition: int) -> None:
        if TopicPartition(topic, partition) not in self.partitions:
            raise InvalidRecordError(
                f"partition {partition} of topic {topic} was not given to Producer.attach(partitions=...); another "
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
        return has_error or (has_time and self._tells_repetitions)


OWNER = Owner()
HEIR = Heir()
