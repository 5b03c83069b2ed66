"""The settings: checked once, frozen, passed whole.

Milliseconds exist here and on the wire only: every duration of a ProducerConfig is in seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aioproducer.compression import Codec, check_level, codec_named
from aioproducer.errors import ConfigError

DEFAULT_PORT = 9092
DELIVERY_TIMEOUT = 120.0
"""In seconds, unless linger and request timeout together need more."""
_CLIENT_ID = re.compile(r"[a-zA-Z0-9._\- ]*")


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """All settings of a producer, in seconds and bytes. `Producer`'s signature says what each means."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str
    acks: int
    enable_idempotence: bool
    max_in_flight_requests_per_connection: int
    linger: float
    batch_size: int
    buffer_memory: int
    max_request_size: int
    max_block: float
    delivery_timeout: float
    request_timeout: float
    retry_backoff: float
    retry_backoff_max: float
    compression: Codec
    compression_level: int | None
    partitioner: str | Callable[..., int]
    partitioner_adaptive: bool
    partitioner_availability_timeout: float
    metadata_max_age: float
    metadata_max_idle: float
    metadata_recovery_strategy: str
    metadata_recovery_rebootstrap_trigger: float
    allow_auto_create_topics: bool
    reconnect_backoff: float
    reconnect_backoff_max: float
    socket_connection_setup_timeout: float
    socket_connection_setup_timeout_max: float
    connections_max_idle: float
    key_serializer: Any
    value_serializer: Any
    interceptors: tuple[Any, ...]
    transactional_id: str | None
    transaction_timeout: float

    @property
    def max_in_flight(self) -> int:
        """Requests in flight on one connection."""
        return self.max_in_flight_requests_per_connection

    @classmethod
    def of(cls, **settings: Any) -> ProducerConfig:
        """Check the keyword arguments of `Producer` and turn them into a config.

        Raises:
            ConfigError: a value is malformed, out of range, or contradicts another setting.
        """
        acks = _acks(settings["acks"])
        batch_size = "batch_size" if settings["max_batch_size"] is None else "max_batch_size"
        linger = _seconds(settings, "linger_ms")
        request_timeout = _seconds(settings, "request_timeout_ms", above=0)
        if settings["delivery_timeout_ms"] is None:
            delivery_timeout = max(DELIVERY_TIMEOUT, linger + request_timeout)
        else:
            delivery_timeout = _seconds(settings, "delivery_timeout_ms")
        codec = codec_named(settings["compression_type"])
        check_level(codec, settings["compression_level"])
        return cls(
            bootstrap_servers=_servers(settings["bootstrap_servers"]),
            client_id=_client_id(settings["client_id"]),
            acks=acks,
            enable_idempotence=(
                acks == -1
                if settings["enable_idempotence"] is None
                else _switch(settings, "enable_idempotence")
            ),
            max_in_flight_requests_per_connection=_count(
                settings, "max_in_flight_requests_per_connection", 1
            ),
            linger=linger,
            batch_size=_count(settings, batch_size, 0),
            buffer_memory=_count(settings, "buffer_memory", 1024, 2**63 - 1),
            max_request_size=_count(settings, "max_request_size", 1024),
            max_block=_seconds(settings, "max_block_ms"),
            delivery_timeout=delivery_timeout,
            request_timeout=request_timeout,
            retry_backoff=_seconds(settings, "retry_backoff_ms"),
            retry_backoff_max=_seconds(settings, "retry_backoff_max_ms"),
            compression=codec,
            compression_level=settings["compression_level"],
            partitioner=settings["partitioner"],
            partitioner_adaptive=_switch(settings, "partitioner_adaptive_partitioning_enable"),
            partitioner_availability_timeout=_seconds(settings, "partitioner_availability_timeout_ms"),
            metadata_max_age=_seconds(settings, "metadata_max_age_ms", above=0),
            metadata_max_idle=_seconds(settings, "metadata_max_idle_ms", above=0),
            metadata_recovery_strategy=_choice(
                settings, "metadata_recovery_strategy", ("rebootstrap", "none")
            ),
            metadata_recovery_rebootstrap_trigger=_seconds(
                settings, "metadata_recovery_rebootstrap_trigger_ms"
            ),
            allow_auto_create_topics=_switch(settings, "allow_auto_create_topics"),
            reconnect_backoff=_seconds(settings, "reconnect_backoff_ms"),
            reconnect_backoff_max=_seconds(settings, "reconnect_backoff_max_ms"),
            socket_connection_setup_timeout=_seconds(settings, "socket_connection_setup_timeout_ms", above=0),
            socket_connection_setup_timeout_max=_seconds(
                settings, "socket_connection_setup_timeout_max_ms", above=0
            ),
            connections_max_idle=_seconds(settings, "connections_max_idle_ms"),
            key_serializer=_serializer(settings, "key_serializer"),
            value_serializer=_serializer(settings, "value_serializer"),
            interceptors=_interceptors(settings["interceptors"]),
            transactional_id=_transactional_id(settings["transactional_id"]),
            transaction_timeout=_seconds(settings, "transaction_timeout_ms", above=0),
        )._consistent()

    def _consistent(self) -> ProducerConfig:
        if self.enable_idempotence and self.acks != -1:
            raise ConfigError(
                f"acks={self.acks} contradicts enable_idempotence=True, which needs acks='all'; "
                "set enable_idempotence=False to give up protection against duplicates",
                setting="acks",
                value=self.acks,
            )
        if self.enable_idempotence and self.max_in_flight > 5:
            raise ConfigError(
                f"max_in_flight_requests_per_connection={self.max_in_flight} contradicts enable_idempotence=True: "
                "the broker remembers 5 batches per producer; use 5 or less",
                setting="max_in_flight_requests_per_connection",
                value=self.max_in_flight,
            )
        if self.transactional_id is not None and not self.enable_idempotence:
            raise ConfigError(
                f"transactional_id={self.transactional_id!r} needs enable_idempotence=True and acks='all'; "
                "leave both out or leave transactional_id out",
                setting="transactional_id",
                value=self.transactional_id,
            )
        if self.delivery_timeout < self.linger + self.request_timeout:
            raise ConfigError(
                f"delivery_timeout_ms={self.delivery_timeout * 1000:g} is shorter than linger_ms + "
                f"request_timeout_ms = {(self.linger + self.request_timeout) * 1000:g}; raise it or lower "
                "request_timeout_ms",
                setting="delivery_timeout_ms",
                value=self.delivery_timeout * 1000,
            )
        if self.metadata_max_idle < 5:
            raise ConfigError(
                f"metadata_max_idle_ms={self.metadata_max_idle * 1000:g} must be at least 5000",
                setting="metadata_max_idle_ms",
                value=self.metadata_max_idle * 1000,
            )
        return self


def _servers(value: object) -> tuple[tuple[str, int], ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ConfigError(
            f"bootstrap_servers={value!r} must be 'host:port,host:port' or a list of 'host:port'",
            setting="bootstrap_servers",
            value=value,
        )
    servers = tuple(_server(part.strip(), value) for part in parts if part.strip())
    if not servers:
        raise ConfigError(
            "bootstrap_servers is empty; name at least one host:port",
            setting="bootstrap_servers",
            value=value,
        )
    return servers


def _server(text: str, value: object) -> tuple[str, int]:
    """`host`, `host:port`, `[v6]:port`, `PROTOCOL://host:port`."""
    match = re.fullmatch(
        r"(?:[A-Za-z_0-9]+://)?(?:\[([0-9A-Fa-f:.]+(?:%[\w.\-]+)?)\]|([^\s:/@\[\]]+))(?::(\d{1,5}))?", text
    )
    port = int(match[3]) if match and match[3] else DEFAULT_PORT
    if match is None or not 0 < port < 65536:
        raise ConfigError(
            f"bootstrap_servers: {text!r} is no address; write host:port",
            setting="bootstrap_servers",
            value=value,
        )
    return match[1] or match[2], port


def _client_id(value: str) -> str:
    if not isinstance(value, str) or not _CLIENT_ID.fullmatch(value):
        raise ConfigError(
            f"client_id={value!r} may hold letters, digits, '.', '_', '-' and blanks only",
            setting="client_id",
            value=value,
        )
    return value


def _acks(value: object) -> int:
    if type(value) in (int, str) and value in ("all", -1, "-1"):
        return -1
    if type(value) in (int, str) and value in (0, 1, "0", "1"):
        return int(str(value))
    raise ConfigError(f"acks={value!r} is not one of 0, 1, 'all'", setting="acks", value=value)


def _seconds(settings: dict[str, Any], name: str, above: float | None = None) -> float:
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ConfigError(
            f"{name}={value!r} must be a number of milliseconds, 0 or more", setting=name, value=value
        )
    if above is not None and value <= above:
        raise ConfigError(f"{name}={value!r} must be more than {above}", setting=name, value=value)
    return value / 1000


def _count(settings: dict[str, Any], name: str, minimum: int, maximum: int = 2**31 - 1) -> int:
    value = settings[name]
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ConfigError(
            f"{name}={value!r} must be a whole number from {minimum} to {maximum}", setting=name, value=value
        )
    return value


def _switch(settings: dict[str, Any], name: str) -> bool:
    value = settings[name]
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} must be True or False", setting=name, value=value)
    return value


def _serializer(settings: dict[str, Any], name: str) -> Any:
    value = settings[name]
    if value is None or callable(value) or callable(getattr(value, "serialize", None)):
        return value
    raise ConfigError(
        f"{name}={value!r} must be callable or have a method serialize(topic, value, headers)",
        setting=name,
        value=value,
    )


def _interceptors(value: Any) -> tuple[Any, ...]:
    known = ("on_send", "on_acknowledgement")
    if isinstance(value, list | tuple):
        for interceptor in value:
            if not any(callable(getattr(interceptor, name, None)) for name in known):
                break
        else:
            return tuple(value)
    raise ConfigError(
        f"interceptors={value!r} must be a list of objects with on_send(record) or on_acknowledgement(result)",
        setting="interceptors",
        value=value,
    )


def _transactional_id(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise ConfigError(
        f"transactional_id={value!r} must be a name, or left out", setting="transactional_id", value=value
    )


def _choice(settings: dict[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = settings[name]
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}", setting=name, value=value)
    return str(value)
