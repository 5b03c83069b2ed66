"""A record between the call of `send` and its append, which has to wait for metadata, user code or room."""

from __future__ import annotations

from aioproducer.records._record_path import Delivery
from aioproducer.types import ProducerRecord


class PendingRecord:
    """A record that is not in the buffer yet, and its delivery once it is, even if its caller was cancelled."""

    __slots__ = ("deadline", "delivery", "intercepted", "record", "transaction")

    def __init__(self, record: ProducerRecord, transaction: int, deadline: float) -> None:
        self.intercepted = record
        """The record as the interceptors returned it."""
        self.record = record
        """The record as it will be appended: later with its serialized key and value, and its partition."""
        self.transaction = transaction
        """The number of the transaction that it belongs to."""
        self.deadline = deadline
        """The loop time at which it must be in the buffer."""
        self.delivery: Delivery | None = None
