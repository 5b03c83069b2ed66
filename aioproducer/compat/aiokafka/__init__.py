"""aiokafka's producer and the names of its errors, based on aioproducer: change the imports, keep the code.

from aioproducer.compat.aiokafka import AIOKafkaProducer
from aioproducer.compat.aiokafka.errors import KafkaConnectionError, KafkaTimeoutError
"""

from aioproducer import OffsetAndMetadata, TopicPartition
from aioproducer.compat.aiokafka import errors as errors
from aioproducer.compat.aiokafka.errors import ConsumerStoppedError, IllegalOperation
from aioproducer.compat.aiokafka.producer import AIOKafkaProducer

__all__ = [
    "AIOKafkaProducer",
    "ConsumerStoppedError",
    "IllegalOperation",
    "OffsetAndMetadata",
    "TopicPartition",
]
