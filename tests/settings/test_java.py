"""The counterparts of Java's serializers and partitioners: they return the same results as Java's."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from aioproducer.partitioner import make_partitioner
from aioproducer.settings.java import PARTITIONERS, SERIALIZERS

PACKAGE = "org.apache.kafka.common.serialization."
IDENTIFIER = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("String", "ü", b"\xc3\xbc"),
        ("Short", -2, b"\xff\xfe"),
        ("Integer", 1, b"\x00\x00\x00\x01"),
        ("Long", -1, b"\xff" * 8),
        ("Float", 1.0, b"\x3f\x80\x00\x00"),
        ("Double", 1.0, b"\x3f\xf0" + bytes(6)),
        ("Boolean", True, b"\x01"),
        ("UUID", IDENTIFIER, b"123e4567-e89b-12d3-a456-426614174000"),
    ],
)
def test_a_serializer_writes_javas_bytes_and_lets_a_tombstone_through(name, value, written):
    serialize = SERIALIZERS[f"{PACKAGE}{name}Serializer"]

    assert serialize(value) == written
    assert serialize(None) is None


@pytest.mark.parametrize("name", ["ByteArray", "Bytes", "ByteBuffer"])
def test_bytes_need_no_serializer(name):
    assert SERIALIZERS[f"{PACKAGE}{name}Serializer"] is None


def test_each_partitioner_class_has_an_existing_counterpart():
    for name in PARTITIONERS.values():
        assert make_partitioner(name, Random(0)) is not None
    assert PARTITIONERS["org.apache.kafka.clients.producer.RoundRobinPartitioner"] == "round_robin"
