"""The results of the rows of one `send_many` call."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator
from copy import copy
from typing import Any

from aioproducer.errors import SendManyError, counted
from aioproducer.records._record_path import Batch, BatchState, Delivery, Rows, Span
from aioproducer.records.batch import FlushWait, ProducerBatch
from aioproducer.types import Outcome


class Receipt:
    """The results of all rows of one `send_many` call. `await` the receipt to wait until every row has its result.

        receipt = await producer.send_many("orders", values, keys=keys)
        await receipt                  # raises SendManyError if a row failed; the others are in the log
        receipt.offsets                # {0: [range(17, 4017)], 1: ...}
        receipt.errors                 # {row: error}
        await receipt.delivery(7)      # the RecordMetadata of row 7

    Cancelling a task that awaits the receipt does not affect the rows. A failed row is logged, and counted in the
    CloseReport, unless `errors` was read or the receipt was awaited. The delivery of a single record behaves in the
    same way.
    """

    def __init__(
        self,
        topic: str,
        rows: Rows,
        loop: AbstractEventLoop,
        note_unsent: Callable[[str, Iterable[BaseException]], None],
    ) -> None:
        self.topic = topic
        self._rows = rows
        self._loop = loop
        self._note_unsent = note_unsent
        self._order: dict[int, memoryview] = {}
        """The rows of each partition, in the order of their records."""
        self._is_seen = False
        self.waits: list[FlushWait] = []
        """Unfinished waits for all rows; the `send_many` call's timeout ends them."""

    def __len__(self) -> int:
        """Return the number of rows in the call."""
        return self._rows.count

    def __repr__(self) -> str:
        what = "done" if self.done() else "pending"
        return f"<Receipt {self.topic}: {counted(len(self), 'row')}, {what}>"

    def done(self) -> bool:
        """Return whether every row has its result."""
        return not self._pending()

    def __await__(self) -> Generator[Any, None, Receipt]:
        """Wait for all rows.

        Raises:
            SendManyError: at least one row failed.
        """
        yield from self.wait().__await__()
        self.raise_errors()
        return self

    async def wait(self) -> Receipt:
        """Wait for all rows without raising their errors; read `errors` afterwards."""
        pending = self._pending()
        if pending:
            wait = FlushWait(self._loop, pending)
            self.waits.append(wait)
            try:
                await wait.future
            finally:
                self.waits.remove(wait)
        return self

    def raise_errors(self) -> None:
        """Raise SendManyError if any row has failed so far."""
        errors = self.errors
        if not errors:
            return
        row, error = next(iter(errors.items()))
        outcomes = {getattr(error, "outcome", Outcome.UNKNOWN) for error in errors.values()}
        raise SendManyError(
            f"{len(errors)} of {counted(len(self), 'row')} for topic {self.topic} failed; the first is row {row}: "
            f"{error}",
            errors=errors,
            outcome=Outcome.UNKNOWN if Outcome.UNKNOWN in outcomes else Outcome.NOT_PERSISTED,
            **{flag: any(getattr(error, flag, False) for error in errors.values()) for flag in _FLAGS},
        )

    def call_when_done(self, callback: Callable[[dict[int, BaseException]], None]) -> None:
        """Call `callback` with the rows' errors once every row has its result. This does not count as retrieving the
        errors."""

        def tell(_: object) -> None:
            callback(self._errors(marks_retrieved=False))

        if pending := self._pending():
            FlushWait(self._loop, pending).future.add_done_callback(tell)
        else:
            tell(None)

    @property
    def offsets(self) -> dict[int, list[range]]:
        """The offsets of the rows that are in the log so far, by partition and in ascending order. Empty with acks=0,
        because the broker then does not report offsets."""
        found: dict[int, list[range]] = {}
        for batch, first, count, _ in self._leaves():
            if batch.state is BatchState.DONE and batch.error is None and batch.base_offset >= 0:
                for start, end in _without(_failed(batch), first, first + count):
                    offset = batch.base_offset + start - bisect_left(batch.withdrawn, start)
                    ranges = found.setdefault(batch.queue.partition, [])
                    _extend(ranges, range(offset, offset + end - start))
        return found

    @property
    def errors(self) -> dict[int, BaseException]:
        """The error of each row that has failed so far. If its `outcome` is UNKNOWN, the row may nevertheless be in the
        log."""
        self._is_seen = True
        return self._errors(marks_retrieved=True)

    def _errors(self, *, marks_retrieved: bool) -> dict[int, BaseException]:
        errors = dict(self._rows.errors)
        for batch, first, count, rank in self._leaves():
            failed = _failed(batch)
            if batch.error is None and not failed:
                continue
            rows = self._rows_of(batch.queue.partition)
            for index in range(first, first + count):
                error = failed.get(index) or batch.error
                if index in failed and marks_retrieved:
                    batch.mark_retrieved(index)
                if error is not None:
                    errors[rows[rank + index - first]] = error
        return dict(sorted(errors.items()))

    def partition(self, row: int) -> int | None:
        """Return the partition of a row; None if the row was not sent.

        Raises:
            IndexError: the row does not exist.
        """
        number = self._rows.place(self._checked(row))
        return None if number < 0 else number

    def delivery(self, row: int) -> Delivery:
        """Return the delivery of one row.

        Raises:
            IndexError: the row does not exist.
            InvalidRecordError or another error of `send`: the reason why the row was not sent.
        """
        error = self._rows.errors.get(self._checked(row))
        if error is not None:
            raise copy(error)  # a traceback on the receipt's own error would keep the caller's frames alive
        partition = self._rows.place(row)
        left = bisect_left(self._rows_of(partition), row)
        for span in self._rows.spans:
            if span.batch.queue.partition == partition:
                if left < span.count:
                    return span.batch.delivery(span.first + left, self._rows.timestamp(row))
                left -= span.count
        raise IndexError(f"row {row} is not in the buffer yet")

    def _checked(self, row: int) -> int:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} does not exist; the call has {counted(len(self), 'row')}")
        return row

    def _rows_of(self, partition: int) -> memoryview:
        rows = self._order.get(partition)
        if rows is None:
            rows = self._order[partition] = self._rows.rows_of(partition)
        return rows

    def _leaves(self) -> Iterator[tuple[Batch, int, int, int]]:
        """Yield (batch, index of the first record, number of rows, number of earlier rows in the partition) for each
        batch. If a batch was split, yield its parts instead."""
        ranks: dict[int, int] = {}
        for span in self._rows.spans:
            partition = span.batch.queue.partition
            rank = ranks.get(partition, 0)
            ranks[partition] = rank + span.count
            for batch, first, count in parts_of(span):
                yield batch, first, count, rank
                rank += count

    def _pending(self) -> list[ProducerBatch]:
        return pending_batches(self._rows.spans)

    def __del__(self) -> None:
        if self._is_seen:
            return
        for batch, _, count, _ in self._leaves():
            batch.count_unretrieved(count)
        self._note_unsent(self.topic, self._rows.errors.values())


_FLAGS = ("retriable", "requires_abort", "requires_reinit", "fatal")


def parts_of(span: Span) -> Iterator[tuple[Batch, int, int]]:
    """Yield (batch, index of the first record, count) for the records of a span, whose batch may have been split."""
    return _parts_of(span.batch, span.first, span.count)


def pending_batches(spans: Iterable[Span]) -> list[ProducerBatch]:
    """Return the batches that contain records of these spans whose results are not known yet."""
    pending: dict[ProducerBatch, None] = {}
    for span in spans:
        for batch, first, count in parts_of(span):
            if isinstance(batch, ProducerBatch) and not batch.have_ended(first, first + count):
                pending[batch] = None
    return list(pending)


def _parts_of(batch: Batch, first: int, count: int) -> Iterator[tuple[Batch, int, int]]:
    """Yield (batch, index of the first record, count) for each batch that now contains some of these records."""
    if batch.parts is None:
        yield batch, first, count
        return
    starts = [start for start, _ in batch.parts]
    for number, (start, part) in enumerate(batch.parts):
        stop = starts[number + 1] if number + 1 < len(starts) else first + count
        begin, end = max(first, start), min(first + count, stop)
        if begin < end:
            yield from _parts_of(part, begin - start, end - begin)


def _failed(batch: Batch) -> dict[int, BaseException]:
    """Return the errors of individual records that already have results, by index."""
    errors = batch.record_errors or {}
    if batch.state is BatchState.DONE or not errors:
        return errors
    early = batch.ended_early or set()
    return {index: error for index, error in errors.items() if index in early}


def _without(left_out: dict[int, BaseException], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) for each run of indexes in range(first, end) that are not in `left_out`."""
    for index in sorted(left_out):
        if first <= index < end:
            if first < index:
                yield first, index
            first = index + 1
    if first < end:
        yield first, end


def _extend(ranges: list[range], more: range) -> None:
    if ranges and ranges[-1].stop == more.start:
        ranges[-1] = range(ranges[-1].start, more.stop)
    else:
        ranges.append(more)
