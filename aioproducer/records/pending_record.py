"""Defines PendingRecord, a record whose append has to wait for metadata, user code, or room in the buffer."""

from __future__ import annotations

from aioproducer.records._record_path import Delivery
from aioproducer.types import ProducerRecord


class PendingRecord:
    """A record that waits to be appended. `delivery` is set once it is in the buffer, even if the caller was
    cancelled."""

    __slots__ = ("deadline", "delivery", "intercepted", "record", "transaction")

    def __init__(self, record: ProducerRecord, transaction: int, deadline: float) -> None:
        self.intercepted = record
        """The record as the interceptors returned it."""
        self.record = record
        """The record to be appended. Its key and value are serialized, and its partition is set, before the append."""
        self.transaction = transaction
        """The number of the transaction that the record belongs to."""
        self.deadline = deadline
        """The loop time by which the record must be in the buffer."""
        self.delivery: Delivery | None = None
