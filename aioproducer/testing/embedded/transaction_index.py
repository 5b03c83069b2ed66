"""The transactions in a log: the open ones, the aborted ones, and the offset below which all have ended.

PartitionLog owns the index and reports every batch that it appends. Kafka keeps this state in ProducerStateManager and
in a segment's TransactionIndex.
"""

from __future__ import annotations

from typing import NamedTuple

from aioproducer.protocol.recordbatch import BatchHeader


class AbortedTxn(NamedTuple):
    """An aborted transaction in a log: a producer's records between two offsets, which consumers must skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""


class _Ended(NamedTuple):
    first_offset: int
    last_offset: int


class TransactionIndex:
    """The transactions of one log."""

    def __init__(self) -> None:
        self.aborted: list[AbortedTxn] = []
        """Aborted transactions, in the order of their markers."""
        self._open: dict[int, int] = {}
        """The first offset of each open transaction, by producer id."""
        self._ended: list[_Ended] = []
        """Ended transactions whose markers may not be replicated yet."""

    def first_offset(self, producer_id: int) -> int | None:
        """Return the first offset of the producer's open transaction, or None if there is none in this log."""
        return self._open.get(producer_id)

    def begin(self, producer_id: int, offset: int) -> None:
        """Note a transactional batch at `offset`; the first one opens the transaction."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, offset: int, *, commit: bool) -> None:
        """Note a marker at `offset`. It changes nothing if the producer has no open transaction here."""
        first = self._open.pop(producer_id, None)
        if first is None:
            return
        self._ended.append(_Ended(first, offset))
        if not commit:
            self.aborted.append(AbortedTxn(producer_id, first, offset))

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset below which every transaction has ended and had its marker replicated."""
        self._ended = [ended for ended in self._ended if ended.last_offset >= high_watermark]
        firsts = [*self._open.values(), *(ended.first_offset for ended in self._ended)]
        return min([high_watermark, *firsts])

    def aborted_between(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions that affect a reader of the records from `start` up to `end`."""
        return [one for one in self.aborted if one.last_offset >= start and one.first_offset < end]

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return True if a transactional batch belongs to an aborted transaction."""
        return any(
            one.producer_id == header.producer_id and one.first_offset <= header.base_offset < one.last_offset
            for one in self.aborted
        )

    def forget_before(self, offset: int) -> None:
        """Forget the aborted transactions that end below `offset`, because their records have been deleted."""
        self.aborted = [one for one in self.aborted if one.last_offset >= offset]
