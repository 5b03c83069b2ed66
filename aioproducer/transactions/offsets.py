"""Converts the user's offsets, partitions and group metadata to the types of this package."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from aioproducer.cluster import check_topic_name
from aioproducer.errors import InvalidRecordError
from aioproducer.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

_MAGIC = b"CGMDv2:"
"""The first bytes of librdkafka's format, which confluent-kafka's `consumer_group_metadata()` returns."""
_INT32 = 2**31 - 1
LONGEST_METADATA = 4096
"""The maximum length of metadata in characters (offset.metadata.max.bytes). If metadata is longer, the broker rejects
it and the transaction must be aborted."""


def group_metadata(group: ConsumerGroupMetadata | str | bytes) -> ConsumerGroupMetadata:
    """Convert a group id, a ConsumerGroupMetadata, or the bytes of confluent-kafka's `consumer_group_metadata()`.

    Raises:
        InvalidRecordError: the value has another type, is malformed, or has no group id.
    """
    if isinstance(group, bytes):
        group = _of_librdkafka(group)
    elif isinstance(group, str):
        group = ConsumerGroupMetadata(group)
    if not isinstance(group, ConsumerGroupMetadata):
        raise InvalidRecordError(
            "the group must be a group id, a ConsumerGroupMetadata, or the bytes that confluent-kafka's "
            f"consumer_group_metadata() returns, not {type(group).__name__}"
        )
    if not group.group_id or not _is_text(group.group_id):
        raise InvalidRecordError("the group id must be a str of 1 to 32767 bytes")
    if (
        type(group.generation_id) is not int
        or not -1 <= group.generation_id <= _INT32
        or not _is_text(group.member_id)
        or not (group.group_instance_id is None or _is_text(group.group_instance_id))
    ):
        raise InvalidRecordError(
            f"the membership of group {group.group_id!r} is malformed: generation_id must be an int of at least -1, "
            "and member_id and group_instance_id must be str"
        )
    return group


def _is_text(text: object) -> bool:
    """Return whether `text` is a str that fits into a request."""
    try:
        return isinstance(text, str) and len(text.encode()) < 2**15
    except UnicodeEncodeError:
        return False


def _of_librdkafka(packed: bytes) -> ConsumerGroupMetadata:
    # The format: the magic; the generation id, an int in native byte order; the group id and the member id, each
    # followed by a zero byte; a byte that is 1 if there is no instance id; and the instance id.
    head = len(_MAGIC) + 4
    parts = packed[head:].split(b"\0", 2)
    if not packed.startswith(_MAGIC) or len(parts) < 3:
        raise InvalidRecordError(
            "these bytes are not the result of consumer_group_metadata() in confluent-kafka 1.5 or later"
        )
    (generation_id,) = struct.unpack("=i", packed[len(_MAGIC) : head])
    group_id, member_id, rest = parts
    try:
        instance_id = None if rest[:1] == b"\x01" else rest[1:].rstrip(b"\0").decode()
        return ConsumerGroupMetadata(group_id.decode(), generation_id, member_id.decode(), instance_id)
    except UnicodeDecodeError as error:
        raise InvalidRecordError("an id in this consumer_group_metadata() is not UTF-8 text") from error


def offsets_to_commit(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Convert {(topic, partition): offset}, or a list of objects with a topic, a partition and an offset.

    In a mapping, an offset is a number, (offset, metadata), or an OffsetAndMetadata (ours or aiokafka's). In a list,
    such as confluent-kafka's lists of TopicPartitions, negative offsets are left out: they mean that there is no
    offset.

    Raises:
        InvalidRecordError: the mapping or the list contains something else.
    """
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    if isinstance(offsets, Mapping):
        for place, offset in offsets.items():
            found[_place("offsets", place)] = _offset(place, offset)
        return found
    if isinstance(offsets, str | bytes) or not isinstance(offsets, Iterable):
        raise InvalidRecordError(
            "offsets must be a mapping of TopicPartition to offset, or a list of confluent_kafka.TopicPartition, "
            f"not {type(offsets).__name__}"
        )
    for one in offsets:
        if not hasattr(one, "offset") or not hasattr(one, "partition"):
            raise InvalidRecordError(f"offsets: {one!r} does not have a topic, a partition and an offset")
        if isinstance(one.offset, int) and one.offset < 0:
            continue  # a logical offset, such as OFFSET_INVALID
        epoch, metadata = getattr(one, "leader_epoch", None), getattr(one, "metadata", None)
        position = OffsetAndMetadata(one.offset, metadata or "", -1 if epoch is None else epoch)
        found[_place("offsets", one)] = _offset(one, position)
    return found


def partitions_of_handoff(partitions: Iterable[Any]) -> list[TopicPartition]:
    """Convert TopicPartitions or (topic, partition) tuples to a list of TopicPartitions.

    Raises:
        InvalidRecordError: the list contains something else.
    """
    if isinstance(partitions, str | bytes | Mapping) or not isinstance(partitions, Iterable):
        raise InvalidRecordError(
            f"partitions must be a list of TopicPartition, not {type(partitions).__name__}"
        )
    return [_place("partitions", place) for place in partitions]


def _place(what: str, place: Any) -> TopicPartition:
    topic, partition = getattr(place, "topic", None), getattr(place, "partition", None)
    if isinstance(place, tuple) and len(place) == 2:
        topic, partition = place
    if not isinstance(topic, str) or type(partition) is not int or not 0 <= partition <= _INT32:
        raise InvalidRecordError(f"{what}: {place!r} is not a TopicPartition(topic, partition)")
    check_topic_name(topic)
    return TopicPartition(topic, partition)


def _offset(place: object, offset: Any) -> OffsetAndMetadata:
    if type(offset) is int:
        offset = OffsetAndMetadata(offset)
    elif isinstance(offset, tuple) and not isinstance(offset, OffsetAndMetadata) and len(offset) == 2:
        offset = OffsetAndMetadata(*offset)  # aiokafka's OffsetAndMetadata is also such a tuple
    if (
        not isinstance(offset, OffsetAndMetadata)
        or type(offset.offset) is not int
        or not 0 <= offset.offset < 2**63
    ):
        raise InvalidRecordError(f"offsets: the offset of {place!r} must be a whole number, 0 or more")
    if type(offset.leader_epoch) is not int or not -1 <= offset.leader_epoch <= _INT32:
        raise InvalidRecordError(f"offsets: the leader epoch of {place!r} must be an integer, -1 or greater")
    if not _is_text(offset.metadata) or len(offset.metadata) > LONGEST_METADATA:
        raise InvalidRecordError(
            f"offsets: the metadata of {place!r} must be a str of at most {LONGEST_METADATA} characters"
        )
    return offset
