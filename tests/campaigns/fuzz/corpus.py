"""The valid frames from which mutations start: frames written by Apache Kafka's own code, and record batches."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from aioproducer.protocol import messages
from aioproducer.protocol.api import encode_response
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.protocol.messages import MetadataResponse, ProduceResponse
from aioproducer.protocol.produce import ProduceBatches
from aioproducer.protocol.schema import REQUESTS, Message
from tests.support.oracle import OracleRecord, encode_batch, encode_records

GOLDEN = Path(__file__).parent.parent.parent / "protocol" / "golden" / "messages.json"
CORRELATION_ID = 0x01020304
"""The correlation id of every response here; it replaces those of the golden responses."""

RESPONSES = [
    (request.Response, version)
    for request in REQUESTS.values()
    for version in range(request.Response.versions.min, request.Response.versions.max + 1)
]
"""Each response that can be decoded, in each version."""


class Valid(NamedTuple):
    """A frame without its length, with its message and version."""

    message: type[Message]
    version: int
    frame: bytes


def _golden(ending: str) -> list[Valid]:
    found = []
    for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]:
        if case["message"].endswith(ending):
            valid = Valid(getattr(messages, case["message"]), case["version"], bytes.fromhex(case["frame"]))
            # Frames with all fields set are drawn more often than those with all defaults.
            found += [valid] * (3 if case["case"] == "full" else 1)
    return found


@cache
def responses() -> list[Valid]:
    head = CORRELATION_ID.to_bytes(4, "big")
    return [valid._replace(frame=head + valid.frame[4:]) for valid in _golden("Response")]


@cache
def requests() -> list[Valid]:
    return _golden("Request")


@cache
def metadata() -> list[Valid]:
    """Return answers with real brokers and topics: the golden answers have no host that a client could connect to."""
    found = []
    for version in range(MetadataResponse.versions.min, MetadataResponse.versions.max + 1):
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=node, host=f"b{node}", port=9092)
            for node in range(3)
        ]
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=index, leader_id=index, replica_nodes=[0, 1, 2], isr_nodes=[index]
            )
            for index in range(3)
        ]
        topics = [
            MetadataResponse.MetadataResponseTopic(name=name, partitions=partitions)
            for name in ("orders", "t")
        ]
        answer = MetadataResponse(brokers=brokers, topics=topics)
        found.append(
            Valid(MetadataResponse, version, b"".join(encode_response(answer, version, CORRELATION_ID))[4:])
        )
    return found


class Appended(NamedTuple):
    """A Produce request that has been encoded, and the frame of an answer that reports success for all of it."""

    version: int
    request: ProduceBatches
    frame: bytes


class _Place(NamedTuple):
    partition: int


class _Batch(NamedTuple):
    queue: _Place
    segments: tuple[bytes | memoryview, ...] = (b"header", b"records")
    record_count: int = 1


@cache
def appended() -> list[Appended]:
    """Return requests for three partitions of two topics, in each version."""
    found = []
    for version in range(ProduceResponse.versions.min, ProduceResponse.versions.max + 1):
        topics = [("orders", 7, [0, 1]), ("größe", 2**127 + 1, [5])]
        request = ProduceBatches(
            None, -1, 30_000, [(name, id, [_Batch(_Place(n)) for n in where]) for name, id, where in topics]
        )
        request.frame(version, CORRELATION_ID, "client")
        answer = ProduceResponse(
            responses=[
                ProduceResponse.TopicProduceResponse(
                    name=name if version < 13 else "",
                    topic_id=UUID(int=id if version >= 13 else 0),
                    partition_responses=[
                        ProduceResponse.PartitionProduceResponse(index=n, base_offset=100 + n) for n in where
                    ],
                )
                for name, id, where in topics
            ]
        )
        found.append(
            Appended(version, request, b"".join(encode_response(answer, version, CORRELATION_ID))[4:])
        )
    return found


RECORDS = [
    OracleRecord(
        1_700_000_000_000, b"key", b"value", (("trace", b"\x01\x02"), ("trace", None), ("größe", b""))
    ),
    OracleRecord(1_699_999_999_000, None, b""),
    OracleRecord(2**62, b"", None),
    OracleRecord(0, b"k" * 100, b"v" * 300),
]


@cache
def batches() -> list[bytes]:
    """Return record fields: with one batch, several batches, each codec, control batches, and log append time."""
    plain = encode_batch(RECORDS, producer_id=4711, producer_epoch=3, base_sequence=7, transactional=True)
    marker = encode_batch([OracleRecord(5, b"\0\0\0\1", b"\0\0\0\0\0\0")], control=True, producer_id=1)
    stamped = encode_batch(RECORDS[:2], log_append_time=99, base_offset=2**40)
    packed = [
        encode_batch(RECORDS, codec=codec, payload=compressor(codec)(encode_records(RECORDS)))
        for codec in Codec
        if codec is not Codec.NONE
    ]
    many = encode_batch([OracleRecord(number, None, b"") for number in range(100)])
    return [plain, plain, plain, marker, stamped, plain + marker + stamped, many, *packed, b"".join(packed)]
