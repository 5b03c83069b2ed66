"""The results of one `send_many` call, for threads."""

from __future__ import annotations

from typing import Self

from aioproducer import Receipt as AsyncReceipt
from aioproducer.blocking.send_queue import Delivery, SendQueue


class Receipt:
    """`aioproducer.Receipt` with `result()` and `wait()` instead of `await`."""

    def __init__(self, sends: SendQueue, receipt: AsyncReceipt) -> None:
        self._sends = sends
        self._receipt = receipt

    def __len__(self) -> int:
        """Return the number of rows in the call."""
        return len(self._receipt)

    def __repr__(self) -> str:
        return f"<blocking {self._receipt!r}>"

    @property
    def topic(self) -> str:
        """The topic of the rows."""
        return self._receipt.topic

    def done(self) -> bool:
        """Return True if every row has its result."""
        return self._receipt.done()

    def result(self, timeout: float | None = None) -> Self:
        """Wait for all rows.

        Args:
            timeout: in seconds; None to wait as long as the delivery may take (delivery_timeout_ms).

        Raises:
            SendManyError: some rows failed.
            TimeoutError: some rows have no result yet; the producer continues to send them.
        """
        self.wait(timeout)
        self._receipt.raise_errors()
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Wait for all rows like `result`, but don't raise SendManyError; see `errors`."""
        if not self._receipt.done():
            self._sends.call(self._receipt.wait).wait(self._sends.own_thread(), timeout)
        return self

    @property
    def offsets(self) -> dict[int, list[range]]:
        """The offsets of the rows that are already in the log, by partition; see `aioproducer.Receipt.offsets`."""
        return self._receipt.offsets

    @property
    def errors(self) -> dict[int, BaseException]:
        """The errors for rows that are not, or may not be, in the log, by row; see `aioproducer.Receipt.errors`."""
        return self._receipt.errors

    def partition(self, row: int) -> int | None:
        """Return the partition of a row; see `aioproducer.Receipt.partition`."""
        return self._receipt.partition(row)

    def delivery(self, row: int) -> Delivery:
        """Return the delivery of one row; see `aioproducer.Receipt.delivery`."""
        return Delivery(self._sends, self._receipt.topic, self._receipt.delivery(row))
