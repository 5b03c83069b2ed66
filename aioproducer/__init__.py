"""aioproducer: an asyncio-native Apache Kafka producer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__: str
"""The version of the package, read from its metadata on first use."""

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig
    from aioproducer.errors import (
        AuthenticationError,
        BootstrapError,
        BrokerError,
        BufferFullError,
        BufferTimeoutError,
        CommitOutcomeUnknownError,
        ConfigError,
        DeliveryError,
        DeliveryTimeoutError,
        InvalidRecordError,
        KafkaError,
        KafkaTimeoutError,
        MetadataTimeoutError,
        ProducerClosed,
        ProducerFencedError,
        RecordTooLargeError,
        SendManyError,
        SerializationError,
        TopicAuthorizationError,
        TransactionAbortableError,
        TransactionAbortedError,
        TransactionError,
        TransactionReinitError,
        UnknownPartitionError,
    )
    from aioproducer.observe.description import Description
    from aioproducer.observe.snapshots import MetricsSnapshot
    from aioproducer.observe.vital_signs import Health, Ping
    from aioproducer.producer import Producer
    from aioproducer.records._record_path import (
        Delivery,
        RecordMetadata,
        SerializationContext,
        murmur2_partitions,
    )
    from aioproducer.records.batch import BatchBuilder
    from aioproducer.records.gathering import gather
    from aioproducer.records.interceptors import Interceptor
    from aioproducer.records.receipt import Receipt
    from aioproducer.transactions.transform_loop import TransformBatch, TransformLoop
    from aioproducer.types import (
        CloseReport,
        ConsumerGroupMetadata,
        Headers,
        OffsetAndMetadata,
        Outcome,
        ProducerRecord,
        Secret,
        TopicPartition,
        TransactionHandle,
    )

__all__ = [
    "AuthenticationError",
    "BatchBuilder",
    "BootstrapError",
    "BrokerError",
    "BufferFullError",
    "BufferTimeoutError",
    "CloseReport",
    "CommitOutcomeUnknownError",
    "ConfigError",
    "ConsumerGroupMetadata",
    "Delivery",
    "DeliveryError",
    "DeliveryTimeoutError",
    "Description",
    "Headers",
    "Health",
    "Interceptor",
    "InvalidRecordError",
    "KafkaError",
    "KafkaTimeoutError",
    "MetadataTimeoutError",
    "MetricsSnapshot",
    "OffsetAndMetadata",
    "Outcome",
    "Ping",
    "Producer",
    "ProducerClosed",
    "ProducerConfig",
    "ProducerFencedError",
    "ProducerRecord",
    "Receipt",
    "RecordMetadata",
    "RecordTooLargeError",
    "Secret",
    "SendManyError",
    "SerializationContext",
    "SerializationError",
    "TopicAuthorizationError",
    "TopicPartition",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionError",
    "TransactionHandle",
    "TransactionReinitError",
    "TransformBatch",
    "TransformLoop",
    "UnknownPartitionError",
    "gather",
    "murmur2_partitions",
]

# Names are imported on first use, because pytest loads aioproducer.testing.plugin, and with it this module, at the
# start of every run wherever aioproducer is installed.
_MODULES = {
    "AuthenticationError": "aioproducer.errors",
    "BatchBuilder": "aioproducer.records.batch",
    "BootstrapError": "aioproducer.errors",
    "BrokerError": "aioproducer.errors",
    "BufferFullError": "aioproducer.errors",
    "BufferTimeoutError": "aioproducer.errors",
    "CloseReport": "aioproducer.types",
    "CommitOutcomeUnknownError": "aioproducer.errors",
    "ConfigError": "aioproducer.errors",
    "ConsumerGroupMetadata": "aioproducer.types",
    "Delivery": "aioproducer.records._record_path",
    "DeliveryError": "aioproducer.errors",
    "DeliveryTimeoutError": "aioproducer.errors",
    "Description": "aioproducer.observe.description",
    "Headers": "aioproducer.types",
    "Health": "aioproducer.observe.vital_signs",
    "Interceptor": "aioproducer.records.interceptors",
    "InvalidRecordError": "aioproducer.errors",
    "KafkaError": "aioproducer.errors",
    "KafkaTimeoutError": "aioproducer.errors",
    "MetadataTimeoutError": "aioproducer.errors",
    "MetricsSnapshot": "aioproducer.observe.snapshots",
    "OffsetAndMetadata": "aioproducer.types",
    "Outcome": "aioproducer.types",
    "Ping": "aioproducer.observe.vital_signs",
    "Producer": "aioproducer.producer",
    "ProducerClosed": "aioproducer.errors",
    "ProducerConfig": "aioproducer.config",
    "ProducerFencedError": "aioproducer.errors",
    "ProducerRecord": "aioproducer.types",
    "Receipt": "aioproducer.records.receipt",
    "RecordMetadata": "aioproducer.records._record_path",
    "RecordTooLargeError": "aioproducer.errors",
    "Secret": "aioproducer.types",
    "SendManyError": "aioproducer.errors",
    "SerializationContext": "aioproducer.records._record_path",
    "SerializationError": "aioproducer.errors",
    "TopicAuthorizationError": "aioproducer.errors",
    "TopicPartition": "aioproducer.types",
    "TransactionAbortableError": "aioproducer.errors",
    "TransactionAbortedError": "aioproducer.errors",
    "TransactionError": "aioproducer.errors",
    "TransactionHandle": "aioproducer.types",
    "TransactionReinitError": "aioproducer.errors",
    "TransformBatch": "aioproducer.transactions.transform_loop",
    "TransformLoop": "aioproducer.transactions.transform_loop",
    "UnknownPartitionError": "aioproducer.errors",
    "gather": "aioproducer.records.gathering",
    "murmur2_partitions": "aioproducer.records._record_path",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("aioproducer")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
