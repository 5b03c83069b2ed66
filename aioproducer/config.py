"""The settings of a producer, which are checked once and then never change.

Durations are milliseconds in the public settings and on the wire; in a ProducerConfig they are seconds."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from socket import socket
from types import MappingProxyType
from typing import Any

from aioproducer.observe.client_log import ClientLog, RecentWarnings
from aioproducer.protocol.compression import Codec
from aioproducer.security.addresses import ResolvedAddressFilter
from aioproducer.settings.contradictions import settle
from aioproducer.settings.entries import check_keywords
from aioproducer.settings.names import unknown_keyword
from aioproducer.settings.table import SETTINGS, SecuritySettings, Setting
from aioproducer.settings.unsettled import NO_MISTAKES, Mistakes, UnsettledSettings
from aioproducer.types import AcksName, CompressionName, PartitionerName, RecoveryName, Secret

Connector = Callable[[str, int], Awaitable[socket]]
AddressFilter = Callable[[str, int, int], tuple[str, int] | None]
Credentials = Callable[[], tuple[str, str] | Awaitable[tuple[str, str]]]


class ProducerSettings(SecuritySettings, total=False):
    """The keywords of `Producer`, except bootstrap_servers and the serializers, for functions that pass them on."""

    client_id: str | None
    acks: AcksName
    enable_idempotence: bool | None
    enable_gapless_order: bool
    enable_endless_retries: bool
    max_in_flight_requests_per_connection: int
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_request_size: int
    max_block_ms: float
    delivery_timeout_ms: float | None
    close_timeout_ms: float
    request_timeout_ms: float
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    compression_type: CompressionName | None
    compression_level: int | None
    compression_gzip_level: int | None
    compression_lz4_level: int | None
    compression_zstd_level: int | None
    partitioner: PartitionerName | Callable[..., int] | None
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: float
    metadata_max_age_ms: float
    metadata_max_idle_ms: float
    metadata_recovery_strategy: RecoveryName
    metadata_recovery_rebootstrap_trigger_ms: float
    allow_auto_create_topics: bool
    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    socket_connection_setup_timeout_ms: float
    socket_connection_setup_timeout_max_ms: float
    connections_max_idle_ms: float | None
    transactional_id: str | None
    transaction_timeout_ms: float
    interceptors: Sequence[Any]
    hooks: Sequence[Any]
    enable_metrics_push: bool
    connector: Connector | None
    address_filter: AddressFilter | None
    resolved_address_filter: ResolvedAddressFilter | None
    max_batch_size: int | None


@dataclass(frozen=True, slots=True, repr=False)
class ProducerConfig:
    """All settings of a producer, in seconds and bytes. The docstring of `Producer` describes them.

    `print(producer.config)` shows one setting per line, with its keyword, unit and origin. Passwords and keys are
    hidden, and a pickle does not contain them.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str
    acks: int
    """-1 stands for "all"."""
    enable_idempotence: bool
    enable_gapless_order: bool
    enable_endless_retries: bool
    max_in_flight_requests_per_connection: int
    max_in_flight_per_partition: int
    """max_in_flight_requests_per_connection, or 1 if idempotence is off and the user has not set that keyword."""
    transactional_id: str | None
    transaction_timeout: float
    linger: float
    batch_size: int
    buffer_memory: int
    max_request_size: int
    compression: Codec
    compression_level: int | None
    max_block: float
    delivery_timeout: float
    close_timeout: float
    request_timeout: float
    retry_backoff: float
    retry_backoff_max: float
    partitioner: str | Callable[..., int]
    partitioner_adaptive: bool
    partitioner_availability_timeout: float
    key_serializer: Any
    value_serializer: Any
    interceptors: tuple[Any, ...]
    hooks: tuple[Any, ...]
    enable_metrics_push: bool
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
    """0 means that unused connections stay open."""
    connector: Connector | None
    address_filter: AddressFilter | None
    resolved_address_filter: ResolvedAddressFilter | None
    security_protocol: str
    ssl_context: ssl.SSLContext | None
    ssl_truststore_certificates: str | None
    ssl_truststore_location: str | None
    ssl_truststore_type: str | None
    ssl_truststore_password: Secret | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: Secret | None
    ssl_keystore_location: str | None
    ssl_keystore_type: str | None
    ssl_keystore_password: Secret | None
    ssl_key_password: Secret | None
    ssl_certificate_location: str | None
    ssl_key_location: str | None
    ssl_crl_location: str | None
    ssl_enabled_protocols: tuple[str, ...]
    ssl_cipher_suites: tuple[str, ...]
    sasl_mechanism: str | None
    """None if `security_protocol` does not use SASL."""
    sasl_plain_username: str | None
    sasl_plain_password: Secret | None
    sasl_credentials: Credentials | None
    sasl_plain_without_tls: bool
    sasl_scram_token_auth: bool
    sasl_oauth_token_provider: Any
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: Secret | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_oauthbearer_extensions: tuple[tuple[str, str], ...]
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: str | None
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_refresh_min_period: float
    sasl_login_refresh_buffer: float
    sasl_login_connect_timeout: float
    sasl_login_read_timeout: float
    sasl_login_retry_backoff: float
    sasl_login_retry_backoff_max: float
    _origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    _warnings: RecentWarnings = field(default_factory=RecentWarnings, compare=False, init=False)

    @property
    def max_in_flight(self) -> int:
        """The maximum number of requests in flight on one connection."""
        return self.max_in_flight_requests_per_connection

    @classmethod
    def of(
        cls,
        origins: Mapping[str, str] = MappingProxyType({}),
        notes: Sequence[str] = (),
        mistakes: Mistakes = NO_MISTAKES,
        /,
        **given: Any,
    ) -> ProducerConfig:
        """Check the keyword arguments that were given to `Producer`, and turn them into a config.

        Defaults that had to change because of other settings, and `notes`, are logged in a single warning.

        Args:
            origins: the origin of each setting that was read from a source, by the setting's name.
            notes: further messages for this warning.
            mistakes: the mistakes that were found while the source was read.
            given: the settings, in milliseconds and bytes.

        Raises:
            ConfigError: a setting is unknown, malformed or out of range, or contradicts another one. One error lists
                all mistakes, but an unknown setting is reported alone.
        """
        check_keywords(given)
        unsettled = UnsettledSettings(given, origins, mistakes)
        per_partition = settle(unsettled)
        values = {setting.field: unsettled[name] for name, setting in SETTINGS.items() if setting.field}
        config = cls(**values, max_in_flight_per_partition=per_partition, _origins=unsettled.origins)
        if warnings := (*notes, *unsettled.notes):
            config.log(__name__).warning("the producer's settings: %s", "; ".join(warnings))
        return config

    def log(self, name: str) -> ClientLog:
        """Return this producer's log for the module whose `__name__` is `name`."""
        return ClientLog(name, self.client_id, self._warnings)

    @property
    def recent_warnings(self) -> tuple[dict[str, str], ...]:
        """The last log messages from this producer at WARNING and above."""
        return self._warnings.described()

    def origin(self, setting: str) -> str:
        """Return the origin of a setting.

        Args:
            setting: a keyword of `Producer`.

        Returns:
            "default", "explicit", "environment NAME", "FILE:LINE" or "derived because ...". If the setting was given
            under another name, " as KEY" follows.

        Raises:
            ConfigError: the setting does not exist.
        """
        if setting not in SETTINGS:
            raise unknown_keyword(setting)
        return self._origins.get(setting, "default")

    def shown(self) -> dict[str, str]:
        """Return the value of each setting as text with its origin, by keyword. Secrets are hidden."""
        shown = {}
        for name, setting in SETTINGS.items():
            family = name.partition("_")[0]
            # Leave out SSL and SASL settings that the security protocol does not use; they always have their defaults.
            if setting.field and (family not in ("ssl", "sasl") or family.upper() in self.security_protocol):
                shown[name] = f"{self._shown(setting)} ({self.origin(name)})"
        return shown

    def __str__(self) -> str:
        return "\n".join(f"{name} = {value}" for name, value in self.shown().items())

    __repr__ = __str__

    def _shown(self, setting: Setting) -> str:
        value = getattr(self, setting.field)
        return "None" if value is None else setting.value_type.shown(value) or "''"
