"""Defines PendingRecord, a record whose append has to wait for metadata, user code, or room in the buffer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aioproducer.types import ProducerRecord

if TYPE_CHECKING:
    from aioproducer.records._record_path import Delivery, Serialization, UserSerializer


class PendingRecord:
    """A record that is waiting to be appended. `delivery` is set once the record is in the buffer, even if the caller
    was cancelled."""

    __slots__ = (
        "deadline",
        "delivery",
        "intercepted",
        "is_intercepted",
        "of_key",
        "of_value",
        "record",
        "serialization",
        "topic",
        "transaction",
    )

    def __init__(
        self,
        record: ProducerRecord,
        of_value: UserSerializer | None = None,
        of_key: UserSerializer | None = None,
    ) -> None:
        self.topic: object = record.topic
        """The topic as it was passed to `send`. An interceptor may have returned a record for another topic."""
        self.intercepted = record
        """The record as the interceptors returned it."""
        self.is_intercepted = False
        """Whether the interceptors have already received the record."""
        self.record = record
        """The record to be appended. The key and value are serialized, and the partition is set, before the append."""
        self.of_value = of_value
        self.of_key = of_key
        """The serializers of the value and of the key."""
        self.serialization: Serialization | None = None
        """The state of the serializers; None if none has been called yet."""
        self.transaction = 0
        """The number of the transaction to which the record belongs."""
        self.deadline = math.inf
        """The loop time by which the record must be in the buffer."""
        self.delivery: Delivery | None = None
