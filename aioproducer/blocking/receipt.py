"""What became of the rows of one `send_many`, for threads."""

from __future__ import annotations

from typing import Self

from aioproducer import Receipt as AsyncReceipt
from aioproducer.blocking.send_queue import Delivery, SendQueue


class Receipt:
    """As `aioproducer.Receipt`, with `result()` and `wait()` instead of `await`."""

    def __init__(self, sends: SendQueue, receipt: AsyncReceipt) -> None:
        self._sends = sends
        self._receipt = receipt

    def __len__(self) -> int:
        """How many rows the call had."""
        return len(self._receipt)

    def __repr__(self) -> str:
        return f"<blocking {self._receipt!r}>"

    @property
    def topic(self) -> str:
        """Where the rows went."""
        return self._receipt.topic

    def done(self) -> bool:
        """Whether every row has its result."""
        return self._receipt.done()

    def result(self, timeout: float | None = None) -> Self:
        """Wait for all rows.

        Args:
            timeout: in seconds; None waits as long as the records may live (delivery_timeout_ms).

        Raises:
            SendManyError: some failed.
            TimeoutError: some have no result yet; they stay on their way.
        """
        self.wait(timeout)
        self._receipt.raise_errors()
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """The same, and leave it to the caller to look at `errors`."""
        if not self._receipt.done():
            self._sends.call(self._receipt.wait).wait(self._sends.own_thread(), timeout)
        return self

    @property
    def offsets(self) -> dict[int, list[range]]:
        """As `aioproducer.Receipt.offsets`: of the rows that are in the log so far, by partition."""
        return self._receipt.offsets

    @property
    def errors(self) -> dict[int, BaseException]:
        """As `aioproducer.Receipt.errors`: by row, why it is not in the log, or may not be."""
        return self._receipt.errors

    def partition(self, row: int) -> int | None:
        """As `aioproducer.Receipt.partition`: where a row went."""
        return self._receipt.partition(row)

    def delivery(self, row: int) -> Delivery:
        """As `aioproducer.Receipt.delivery`: that of one row."""
        return Delivery(self._sends, self._receipt.topic, self._receipt.delivery(row))
