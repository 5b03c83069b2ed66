"""Java classes that configuration files name and that have a counterpart here: serializers and partitioners."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

Serialize = Callable[[Any], bytes | None]


def _packed(layout: str) -> Serialize:
    pack = struct.Struct(layout).pack
    return lambda value: None if value is None else pack(value)


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _uuid(value: uuid.UUID | None) -> bytes | None:
    # UUIDSerializer writes the text, not the sixteen bytes.
    return None if value is None else str(value).encode()


_PACKAGE = "org.apache.kafka.common.serialization."
SERIALIZERS: dict[str, Serialize | None] = {
    # Bytes need no serializer here.
    f"{_PACKAGE}ByteArraySerializer": None,
    f"{_PACKAGE}BytesSerializer": None,
    f"{_PACKAGE}ByteBufferSerializer": None,
    f"{_PACKAGE}StringSerializer": _text,
    f"{_PACKAGE}ShortSerializer": _packed(">h"),
    f"{_PACKAGE}IntegerSerializer": _packed(">i"),
    f"{_PACKAGE}LongSerializer": _packed(">q"),
    f"{_PACKAGE}FloatSerializer": _packed(">f"),
    f"{_PACKAGE}DoubleSerializer": _packed(">d"),
    f"{_PACKAGE}BooleanSerializer": _packed(">?"),
    f"{_PACKAGE}UUIDSerializer": _uuid,
}
"""The classes that `key.serializer` and `value.serializer` may name. All of them keep None, a tombstone."""

PARTITIONERS = {
    "": "murmur2",
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "random",
}
"""The classes that `partitioner.class` may name. Kafka 4.0 removed the first and the last, but files still contain
them."""
