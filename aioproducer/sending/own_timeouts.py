"""Fails records whose own timeout (an argument to the call that sent them) expires before they have a result."""

from __future__ import annotations

from collections.abc import Sequence

from aioproducer.core import Core
from aioproducer.errors import DeliveryTimeoutError
from aioproducer.records._record_path import Delivery, Span
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.batch import FlushWait, ProducerBatch
from aioproducer.records.receipt import parts_of, pending_batches
from aioproducer.transactions.state import Transaction, abortable
from aioproducer.types import Outcome

RECORDS_A_TURN = 4000
"""How many of a call's records are timed out per turn of the event loop. This takes about 2 ms."""


class OwnTimeouts:
    """The timeouts of `send`, `try_send`, `send_many` and `send_batch`: a timer for each call that has a timeout.

    A record that was never sent is left out of its batch (NOT_PERSISTED). The outcome of a record that was sent is
    UNKNOWN.
    """

    def __init__(self, core: Core, accumulator: Accumulator, transaction: Transaction) -> None:
        self._loop = core.loop
        self._accumulator = accumulator
        self._transaction = transaction
        self._metrics = core.metrics
        self._wake = core.wake

    def end_delivery_after(self, delivery: Delivery, timeout: float, began: float) -> None:
        """Time out one delivery `timeout` seconds after the loop time `began`."""
        timer = self._loop.call_at(began + timeout, self._end_delivery, delivery, timeout)
        delivery.add_done_callback(lambda _: timer.cancel())

    def end_rows_after(
        self, spans: Sequence[Span], timeout: float, began: float, waits: Sequence[FlushWait] = ()
    ) -> None:
        """Time out the records from one call, and end the waits for them, `timeout` seconds after the loop time
        `began`."""
        timer = self._loop.call_at(began + timeout, self._end_rows, spans, timeout, waits, 0)
        FlushWait(self._loop, pending_batches(spans)).future.add_done_callback(lambda _: timer.cancel())

    def _end_delivery(self, delivery: Delivery, timeout: float) -> None:
        if delivery.done():
            return
        batch = delivery.batch
        error = self._error(batch, timeout)
        if batch.may_withdraw:
            self._accumulator.withdraw(delivery, error)
            self._count_failed(batch, 1)  # the batch's other records are counted with the batch
        else:
            self._accumulator.end_record(delivery, error)

    def _end_rows(
        self, spans: Sequence[Span], timeout: float, waits: Sequence[FlushWait], number: int
    ) -> None:
        """Time out the records in the spans, starting with the span at index `number`, about RECORDS_A_TURN of them per
        turn of the loop."""
        left = RECORDS_A_TURN
        while number < len(spans) and left > 0:
            for batch, first, count in parts_of(spans[number]):
                if isinstance(batch, ProducerBatch) and not batch.have_ended(first, first + count):
                    self._end_range(batch, first, first + count, timeout)
            left -= spans[number].count
            number += 1
        if number < len(spans):
            self._loop.call_soon(self._end_rows, spans, timeout, waits, number)
            return
        for wait in waits:
            wait.end()

    def _end_range(self, batch: ProducerBatch, first: int, end: int, timeout: float) -> None:
        error, withdraws = self._error(batch, timeout), batch.may_withdraw
        count = self._accumulator.end_records(batch, first, end, error)
        if withdraws:
            self._count_failed(batch, count)

    def _count_failed(self, batch: ProducerBatch, count: int) -> None:
        self._metrics.records_failed += count
        self._metrics.topic(batch.queue.topic).records_failed += count

    def _error(self, batch: ProducerBatch, timeout: float) -> DeliveryTimeoutError:
        queue = batch.queue
        known = "it is not in the log" if batch.may_withdraw else "it may be in the log"
        error = DeliveryTimeoutError(
            f"a record for {queue.topic}-{queue.partition} was not acknowledged within its own timeout of "
            f"{timeout:g} s ({known})",
            outcome=Outcome.NOT_PERSISTED if batch.may_withdraw else Outcome.UNKNOWN,
            topic=queue.topic,
            partition=queue.partition,
            broker=batch.broker,
            attempts=batch.attempts,
            elapsed=timeout,
            last_error=batch.last_error,
            requires_abort=self._transaction.is_used,
        )
        if self._transaction.is_used:
            self._transaction.require_abort(abortable(self._transaction, error))
            self._wake.set()
        return error
