"""aioproducer: an asyncio-native Apache Kafka producer."""

from aioproducer._record_path import Delivery, RecordMetadata
from aioproducer.batch import BatchBuilder
from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    BrokerError,
    BufferFullError,
    ConfigError,
    DeliveryError,
    DeliveryTimeoutError,
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosed,
    RecordTooLargeError,
)
from aioproducer.interceptors import Interceptor
from aioproducer.producer import CloseReport, Producer
from aioproducer.types import Headers, Outcome, ProducerRecord, TopicPartition

__all__ = [
    "BatchBuilder",
    "BrokerError",
    "BufferFullError",
    "CloseReport",
    "ConfigError",
    "Delivery",
    "DeliveryError",
    "DeliveryTimeoutError",
    "Headers",
    "Interceptor",
    "InvalidRecordError",
    "KafkaError",
    "KafkaTimeoutError",
    "Outcome",
    "Producer",
    "ProducerClosed",
    "ProducerConfig",
    "ProducerRecord",
    "RecordMetadata",
    "RecordTooLargeError",
    "TopicPartition",
]
