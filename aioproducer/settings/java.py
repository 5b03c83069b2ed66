"""The Java classes that configuration files may name: each has a counterpart in Python or can be left out."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from enum import Enum
from typing import Any

Serialize = Callable[[Any], bytes | None]


def _packed(layout: str) -> Serialize:
    pack = struct.Struct(layout).pack
    return lambda value: None if value is None else pack(value)


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _uuid(value: uuid.UUID | None) -> bytes | None:
    # UUIDSerializer writes the UUID as text, not as sixteen bytes.
    return None if value is None else str(value).encode()


_PACKAGE = "org.apache.kafka.common.serialization."
SERIALIZERS: dict[str, Serialize | None] = {
    # Bytes do not need a serializer.
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
"""The classes that `key.serializer` and `value.serializer` may name. All of them leave None, a tombstone, unchanged."""

PARTITIONERS = {
    "": "murmur2",
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "murmur2",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "random",
}
"""The classes that `partitioner.class` may name. Kafka 4.0 removed the first and the last, but files still contain
them."""

_REGISTRY_PACKAGES = (
    "io.confluent.kafka.serializers.",
    "io.apicurio.registry.",
    "com.amazonaws.services.schemaregistry.",
    "com.microsoft.azure.schemaregistry.kafka.",
)
_TRACING_PACKAGES = (
    "io.confluent.monitoring.clients.interceptor.",
    "io.opentelemetry.instrumentation.kafkaclients.",
    "io.opentracing.contrib.kafka.",
    "brave.kafka.",
)


def is_registry_serializer(name: str) -> bool:
    """Return whether the class is a serializer for a schema registry, which can only encode Java objects."""
    return name.startswith(_REGISTRY_PACKAGES)


def only_observes(names: str) -> bool:
    """Return whether all of these interceptors only observe records, for monitoring or tracing."""
    return all(name.strip().startswith(_TRACING_PACKAGES) for name in names.split(","))


class Tokens(Enum):
    """The sources from which callback handlers get their tokens."""

    ENDPOINT = "endpoint"
    """The token endpoint in the settings, which Kafka's own handler uses."""
    AWS = "Amazon MSK"
    GOOGLE = "Google Cloud"
    STRIMZI = "Strimzi"
    """The token endpoint in the JAAS line."""
    AZURE = "Azure Event Hubs"
    AZURE_SAMPLE = "Azure Event Hubs, if the brokers are there"
    """The source for the handler class in Microsoft's sample. Unrelated classes may have the same name."""


_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_SAMPLE = "CustomAuthenticateCallbackHandler"
_HANDLERS = {
    f"{_OAUTH}OAuthBearerLoginCallbackHandler": Tokens.ENDPOINT,
    f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler": Tokens.ENDPOINT,
    f"{_OAUTH}internals.OAuthBearerSaslClientCallbackHandler": Tokens.ENDPOINT,
    "software.amazon.msk.auth.iam.IAMClientCallbackHandler": Tokens.AWS,
    "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler": Tokens.AWS,
    "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler": Tokens.GOOGLE,
    "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler": Tokens.STRIMZI,
    "de.microsoft.examples.AzureAuthenticateCallbackHandler": Tokens.AZURE,
    "com.azure.spring.cloud.service.implementation.kafka.KafkaOAuth2AuthenticateCallbackHandler": Tokens.AZURE,
    _SAMPLE: Tokens.AZURE_SAMPLE,
}
_HANDLERS_LOWER = {name.lower(): tokens for name, tokens in _HANDLERS.items()}


def tokens_of(handler: str) -> Tokens | None:
    """Return the source from which a callback handler gets its tokens; None if the handler is unknown."""
    # Microsoft's documentation ends the class name with a semicolon.
    name = handler.strip().rstrip(";").lower()
    if name.endswith(f".{_SAMPLE.lower()}"):
        return Tokens.AZURE_SAMPLE
    return _HANDLERS_LOWER.get(name)
