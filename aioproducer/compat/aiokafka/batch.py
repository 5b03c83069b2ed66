"""Batches that are built by hand, with aiokafka's signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aioproducer import BatchBuilder as Batch
from aioproducer import Headers
from aioproducer.compat.aiokafka.translation import aiokafka_errors

Serializer = Callable[[Any], Any]
"""A function that serializes a key or a value. It is also called for None, as in aiokafka."""


class BatchBuilder:
    """A batch that `AIOKafkaProducer.create_batch` returns, to be filled and passed to `send_batch`."""

    def __init__(
        self, batch: Batch, key_serializer: Serializer | None, value_serializer: Serializer | None
    ) -> None:
        self._batch = batch
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer

    def append(self, *, timestamp: int | None, key: Any, value: Any, headers: Headers = ()) -> Any:
        """Add a record. Return its offset, size, crc and timestamp, or None if the batch is full or closed."""
        if self._batch.closed():
            return None
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        with aiokafka_errors:
            return self._batch.append(key=key, value=value, timestamp=timestamp, headers=headers)

    def close(self) -> None:
        """Close the batch to further records."""
        self._batch.close()

    def closed(self) -> bool:
        """Return whether the batch accepts no more records."""
        return self._batch.closed()

    def size(self) -> int:
        """Return the size of the batch in bytes."""
        return self._batch.size()

    def record_count(self) -> int:
        """Return the number of records in the batch."""
        return self._batch.record_count()
