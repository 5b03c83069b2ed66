"""Kafka for tests: an in-process cluster with scripted faults, a real Kafka cluster and a real schema registry in
separate processes, and a test double for Producer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.protocol.api_keys import ApiKey
    from aioproducer.protocol.error_codes import ErrorCode
    from aioproducer.testing.apache.kafka import ApacheKafka, ApacheKafkaError, ApacheKafkaMissingError
    from aioproducer.testing.embedded.authorizer import Operation
    from aioproducer.testing.embedded.broker_security import Security
    from aioproducer.testing.embedded.embedded_cluster import EmbeddedCluster
    from aioproducer.testing.recording import RecordingProducer, SentRecord
    from aioproducer.testing.schema_registry import ApicurioError, ApicurioMissingError, SchemaRegistry

__all__ = [
    "ApacheKafka",
    "ApacheKafkaError",
    "ApacheKafkaMissingError",
    "ApiKey",
    "ApicurioError",
    "ApicurioMissingError",
    "EmbeddedCluster",
    "ErrorCode",
    "Operation",
    "RecordingProducer",
    "SchemaRegistry",
    "Security",
    "SentRecord",
]

# Each name is imported on first use, because pytest loads the plugin, and therefore this module, in every project.
_MODULES = {
    "ApacheKafka": "aioproducer.testing.apache.kafka",
    "ApacheKafkaError": "aioproducer.testing.apache.kafka",
    "ApacheKafkaMissingError": "aioproducer.testing.apache.kafka",
    "ApiKey": "aioproducer.protocol.api_keys",
    "ApicurioError": "aioproducer.testing.schema_registry",
    "ApicurioMissingError": "aioproducer.testing.schema_registry",
    "EmbeddedCluster": "aioproducer.testing.embedded.embedded_cluster",
    "ErrorCode": "aioproducer.protocol.error_codes",
    "Operation": "aioproducer.testing.embedded.authorizer",
    "RecordingProducer": "aioproducer.testing.recording",
    "SchemaRegistry": "aioproducer.testing.schema_registry",
    "Security": "aioproducer.testing.embedded.broker_security",
    "SentRecord": "aioproducer.testing.recording",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
