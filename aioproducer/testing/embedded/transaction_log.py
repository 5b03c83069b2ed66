"""The records of `__transaction_state`: one for each state that a transactional id has been in.

A coordinator writes a record before it responds, and the next coordinator knows only what is in the log. The formats
are Kafka's (TransactionLogKey, TransactionLogValue).
"""

from __future__ import annotations

from typing import TypeVar

from aioproducer.protocol import codec
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.primitives import Writer
from aioproducer.protocol.schema import NEVER, Message, Struct, array, int8, int16, int32, int64, string
from aioproducer.testing.embedded.log import PartitionLog
from aioproducer.testing.embedded.transaction_metadata import TransactionMetadata, TransactionStatus
from aioproducer.types import TopicPartition

TOPIC = "__transaction_state"
PARTITIONS = 50
"""Kafka's default (transaction.state.log.num.partitions)."""

M = TypeVar("M", bound=Message)

_VERSION = 2  # the number of bytes at the start of a key or value that contain its version


# Records have no API key, but each Message needs one; these classes use the key of a request that causes such records.


class TransactionLogKey(Message, api_key=ApiKey.INIT_PRODUCER_ID, versions=(0, 0), flexible_from=NEVER):
    """The key of a record: the transactional id."""

    transactional_id: str = string()


class TransactionLogValue(Message, api_key=ApiKey.INIT_PRODUCER_ID, versions=(0, 1), flexible_from=1):
    """The state of a transactional id. Version 1: previous and next producer id, and the client's version (KIP-890)."""

    class PartitionsSchema(Struct):
        topic: str = string()
        partition_ids: list[int] = array("int32")

    producer_id: int = int64()
    previous_producer_id: int = int64("1+", default=-1, tag=0, ignorable=True)
    next_producer_id: int = int64("1+", default=-1, tag=1, ignorable=True)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[TransactionLogValue.PartitionsSchema] | None = array(
        "PartitionsSchema", nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16("1+", tag=2, ignorable=True)


def encoded_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id's records."""
    return versioned(TransactionLogKey(transactional_id=transactional_id), 0)


def encoded_value(metadata: TransactionMetadata, version: int) -> bytes | None:
    """Encode a state as a record's value; return None, a tombstone, for an expired transactional id.

    Args:
        metadata: The state.
        version: The version of the value: 0, or 1 if transaction.version is at least 1.
    """
    if metadata.state is TransactionStatus.DEAD:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in metadata.partitions:
        topics.setdefault(topic, []).append(partition)
    partitions = [
        TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()
    ]
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=None if metadata.state is TransactionStatus.EMPTY else partitions,
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.started_ms,
        client_transaction_version=metadata.client_version,
    )
    return versioned(value, version)


def decoded(key: bytes, value: bytes) -> TransactionMetadata:
    """Decode the state that a record describes.

    Raises:
        ProtocolError: the record does not describe a state.
    """
    named = read_versioned(TransactionLogKey, key)
    state = read_versioned(TransactionLogValue, value)
    return TransactionMetadata(
        transactional_id=named.transactional_id,
        producer_id=state.producer_id,
        timeout_ms=state.transaction_timeout_ms,
        state=TransactionStatus(state.transaction_status),
        producer_epoch=state.producer_epoch,
        previous_producer_id=state.previous_producer_id,
        next_producer_id=state.next_producer_id,
        partitions=tuple(
            TopicPartition(topic.topic, partition)
            for topic in state.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        started_ms=state.transaction_start_timestamp_ms,
        updated_ms=state.transaction_last_update_timestamp_ms,
        client_version=state.client_transaction_version,
    )


def read_states(log: PartitionLog) -> dict[str, TransactionMetadata]:
    """Return the last state of each transactional id in a partition, in the order in which the ids first appeared."""
    found: dict[str, TransactionMetadata] = {}
    for record in log.records():
        assert record.key is not None
        if record.value is None:
            found.pop(read_versioned(TransactionLogKey, record.key).transactional_id, None)
        else:
            metadata = decoded(record.key, record.value)
            found[metadata.transactional_id] = metadata
    return found


# In internal topics, each key and each value begins with its version.


def versioned(message: Message, version: int) -> bytes:
    """Encode a key or a value in the format of internal topics."""
    writer = Writer()
    writer.out += version.to_bytes(_VERSION, "big")
    codec.encode(message, version, writer)
    return bytes(writer.out)


def read_versioned(message_type: type[M], data: bytes) -> M:
    """Decode the result of `versioned`.

    Raises:
        UnsupportedVersionError: the version is not supported.
        ProtocolError: the key or value is malformed.
    """
    version = int.from_bytes(data[:_VERSION], "big")
    message, _ = codec.decode(message_type, version, data, _VERSION)
    return message
