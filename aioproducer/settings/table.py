"""All settings: the keyword, the type of its values, the default, and the names in other clients' configurations.

The docstring of `Producer` explains each of them. A test compares docs/configuration.md, the signature of Producer and
the fields of ProducerConfig with this table."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypedDict

from aioproducer.errors import ConfigError
from aioproducer.settings.user_code import (
    HOOKS,
    INTERCEPTORS,
    CallbackHandler,
    PartitionerChoice,
    Serializing,
    UserCode,
)
from aioproducer.settings.value_types import (
    Acks,
    Choice,
    ClientId,
    Compression,
    Count,
    FilePath,
    Fraction,
    Hidden,
    IdleTime,
    Level,
    Milliseconds,
    Pairs,
    Pem,
    Servers,
    Switch,
    ValueType,
    Words,
)
from aioproducer.types import MechanismName, ProtocolName, Secret, StoreName

Path = str | PathLike[str]

INT32 = 2**31 - 1
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
_STORE = Choice(
    ("PEM", "PKCS12"),
    (
        (
            "JKS",
            "convert the file: keytool -importkeystore -srckeystore client.jks -destkeystore client.p12 "
            "-deststoretype PKCS12",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One keyword of `Producer`."""

    name: str
    value_type: ValueType
    default: Any
    java: str
    """The dotted name in Java; empty if there is none."""
    librdkafka: tuple[str, ...]
    """The dotted names in librdkafka, which all set the same property."""
    aiokafka: str
    field: str
    """The field of ProducerConfig; empty for a setting from which others are derived."""

    @property
    def foreign_names(self) -> tuple[str, ...]:
        """The dotted names in Java and librdkafka."""
        return tuple(dict.fromkeys(name for name in (self.java, *self.librdkafka) if name))

    @property
    def is_secret(self) -> bool:
        """Whether the setting's value is stored in a Secret."""
        return isinstance(self.value_type, Hidden)

    @property
    def is_for_keywords(self) -> bool:
        """Whether the keyword takes a Python value (user code or PEM text) where another client's configuration names a
        class or a pointer."""
        is_pem = isinstance(self.value_type, Pem) or (
            isinstance(self.value_type, Hidden) and self.value_type.is_pem
        )
        return isinstance(self.value_type, UserCode) or is_pem

    @property
    def hides_value(self) -> bool:
        """Whether an invalid value may be a password."""
        return isinstance(self.value_type, Hidden | Pem) or self.name in (
            "sasl_credentials",
            "sasl_oauth_token_provider",
            "sasl_oauthbearer_extensions",
        )

    def _may_have_credentials(self, shown: str) -> bool:
        """Return whether the value may be a URL or an address that contains a password."""
        has_addresses = isinstance(self.value_type, Servers) or self.name.endswith("_url")
        return "@" in shown and (has_addresses or "://" in shown)

    def shown(self, value: Any) -> str:
        """Return an invalid value as text for an error message; "<hidden>" if it may be a password."""
        shown = shown_value(value)
        return "<hidden>" if self.hides_value or self._may_have_credentials(shown) else shown

    def check(self, value: Any, where: str = "") -> Any:
        """Return the value as it is stored in ProducerConfig.

        Raises:
            ConfigError: the value is malformed or out of range. `where` says where it was set.
        """
        try:
            return self.value_type.check(value)
        except ConfigError as error:  # raised by codec_named() or make_partitioner()
            refusal = ConfigError(f"{error.message}{where}", setting=self.name, value=value)
        except ValueError as error:
            refusal = self.error_for(value, str(error), where)
        raise refusal  # raised outside the handler, so that it has no context that refers to other frames

    def error_for(self, value: Any, problem: str, where: str = "") -> ConfigError:
        """Return the error for an invalid value. If the value may be a password, it appears neither in the error's text
        nor in its attributes."""
        shown = self.shown(value)
        if shown == "<hidden>":
            value = None
        elif shown == _NO_REPR.format(type(value).__name__):
            value = None  # showing it would fail again later
        return ConfigError(f"{self.name}={shown}{where} {problem}", setting=self.name, value=value)


_NO_REPR = "<{} that can't be shown>"


def shown_value(value: Any) -> str:
    """Return a value for an error message, truncated to a maximum length."""
    try:
        shown = repr(value)
    except Exception:  # a user's object; an int of more than 4300 digits
        return _NO_REPR.format(type(value).__name__)
    return shown if len(shown) <= 120 else shown[:119] + "…"


def _setting(
    name: str,
    value_type: ValueType,
    default: Any,
    java: str = "",
    librdkafka: str = "",
    aiokafka: str = "",
    *,
    field: str | None = None,
) -> Setting:
    """Return one row of the table. As a name in another client, "=" stands for the keyword itself (with dots for Java
    and librdkafka). Spaces separate several librdkafka names."""
    dotted = name.replace("_", ".")
    return Setting(
        name,
        value_type,
        default,
        dotted if java == "=" else java,
        tuple(dotted if alias == "=" else alias for alias in librdkafka.split()),
        name if aiokafka == "=" else aiokafka,
        name.removesuffix("_ms").removesuffix("_seconds") if field is None else field,
    )


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _setting(
            "bootstrap_servers",
            Servers(),
            "localhost:9092",
            "=",
            "bootstrap.servers metadata.broker.list",
            "=",
        ),
        _setting("client_id", ClientId(), "aioproducer", "=", "=", "="),
        # Guarantees
        _setting("acks", Acks(), "all", "=", "= request.required.acks", "="),
        _setting("enable_idempotence", Switch(), None, "=", "=", "="),
        _setting("enable_gapless_order", Switch(), False),
        _setting("enable_endless_retries", Switch(), False),
        _setting("max_in_flight_requests_per_connection", Count(1), 5, "=", "= max.in.flight", ""),
        _setting("transactional_id", ValueType(), None, "=", "=", "="),
        _setting("transaction_timeout_ms", Milliseconds(above=0, maximum=INT32), 60000, "=", "=", "="),
        # Batches and memory
        _setting("linger_ms", Milliseconds(), 5, "=", "= queue.buffering.max.ms", "="),
        _setting("batch_size", Count(unit="bytes"), 262144, "=", "=", "max_batch_size"),
        _setting("buffer_memory", Count(1024, 2**63 - 1, "bytes"), 67108864, "="),
        _setting("max_request_size", Count(1024, unit="bytes"), 1048576, "=", "message.max.bytes", "="),
        _setting(
            "compression_type", Compression(), "none", "=", "= compression.codec", "=", field="compression"
        ),
        _setting("compression_level", Level(), None, "", "="),
        _setting("compression_gzip_level", Level(), None, "=", field=""),
        _setting("compression_lz4_level", Level(), None, "=", field=""),
        _setting("compression_zstd_level", Level(), None, "=", field=""),
        # Time
        _setting("max_block_ms", Milliseconds(), 60000, "="),
        _setting("delivery_timeout_ms", Milliseconds(), None, "=", "= message.timeout.ms"),
        _setting("close_timeout_ms", Milliseconds(), 25000),
        _setting(
            "request_timeout_ms", Milliseconds(above=0, maximum=INT32), 30000, "=", "= socket.timeout.ms", "="
        ),
        _setting("retry_backoff_ms", Milliseconds(), 100, "=", "=", "="),
        _setting("retry_backoff_max_ms", Milliseconds(), 1000, "=", "="),
        # Partitions, serializers, interceptors
        _setting("partitioner", PartitionerChoice(), "murmur2", "partitioner.class", "=", "="),
        _setting("partitioner_ignore_keys", Switch(), False, "=", field=""),
        _setting(
            "partitioner_adaptive_partitioning_enable", Switch(), True, "=", field="partitioner_adaptive"
        ),
        _setting("partitioner_availability_timeout_ms", Milliseconds(), 0, "="),
        _setting("key_serializer", Serializing(), None, "=", "", "="),
        _setting("value_serializer", Serializing(), None, "=", "", "="),
        _setting("interceptors", INTERCEPTORS, (), "interceptor.classes"),
        _setting("hooks", HOOKS, ()),
        _setting("enable_metrics_push", Switch(), True, "=", "="),
        # The cluster and its connections
        _setting(
            "metadata_max_age_ms",
            Milliseconds(above=0),
            300000,
            "=",
            "= topic.metadata.refresh.interval.ms",
            "=",
        ),
        _setting("metadata_max_idle_ms", Milliseconds(minimum=5000), 300000, "="),
        _setting("metadata_recovery_strategy", Choice(("rebootstrap", "none")), "rebootstrap", "=", "="),
        _setting("metadata_recovery_rebootstrap_trigger_ms", Milliseconds(), 300000, "=", "="),
        _setting("allow_auto_create_topics", Switch(), True, "", "="),
        _setting("reconnect_backoff_ms", Milliseconds(), 50, "=", "="),
        _setting("reconnect_backoff_max_ms", Milliseconds(), 1000, "=", "="),
        _setting("socket_connection_setup_timeout_ms", Milliseconds(above=0), 10000, "=", "="),
        _setting("socket_connection_setup_timeout_max_ms", Milliseconds(above=0), 30000, "="),
        _setting("connections_max_idle_ms", IdleTime(), 540000, "=", "=", "="),
        _setting("connector", UserCode("async f(host, port) -> connected socket"), None),
        _setting("address_filter", UserCode("f(host, port, node id) -> (host, port) or None"), None),
        _setting("resolved_address_filter", UserCode("f(host, IP address, port) -> bool"), None),
        # TLS
        _setting("security_protocol", Choice(PROTOCOLS), "PLAINTEXT", "=", "=", "="),
        _setting("ssl_context", UserCode("an ssl.SSLContext", ("wrap_bio",), False), None, "", "", "="),
        _setting("ssl_truststore_certificates", Pem(), None, "=", "ssl.ca.pem"),
        _setting("ssl_truststore_location", FilePath(), None, "=", "ssl.ca.location"),
        _setting("ssl_truststore_type", _STORE, None, "="),
        _setting("ssl_truststore_password", Hidden(), None, "="),
        _setting("ssl_keystore_certificate_chain", Pem(), None, "=", "ssl.certificate.pem"),
        _setting("ssl_keystore_key", Hidden(is_pem=True), None, "=", "ssl.key.pem"),
        _setting("ssl_keystore_location", FilePath(), None, "=", "="),
        _setting("ssl_keystore_type", _STORE, None, "="),
        _setting("ssl_keystore_password", Hidden(), None, "=", "="),
        _setting("ssl_key_password", Hidden(), None, "=", "="),
        _setting("ssl_certificate_location", FilePath(), None, "", "="),
        _setting("ssl_key_location", FilePath(), None, "", "="),
        _setting("ssl_crl_location", FilePath(), None, "", "="),
        _setting("ssl_enabled_protocols", Words(("TLSv1.2", "TLSv1.3")), ("TLSv1.2", "TLSv1.3"), "="),
        _setting("ssl_cipher_suites", Words(separators=",:;"), (), "=", "="),
        # SASL
        _setting("sasl_mechanism", Choice((*MECHANISMS, "AWS_MSK_IAM")), None, "=", "= sasl.mechanisms", "="),
        _setting("sasl_jaas_config", Hidden(), None, "=", field=""),
        _setting("sasl_login_callback_handler_class", CallbackHandler(), None, "=", field=""),
        _setting("sasl_client_callback_handler_class", CallbackHandler(), None, "=", field=""),
        _setting("sasl_plain_username", ValueType(), None, "", "sasl.username", "="),
        _setting("sasl_plain_password", Hidden(), None, "", "sasl.password", "="),
        _setting("sasl_credentials", UserCode("f() -> (user name, password)"), None),
        _setting("sasl_plain_without_tls", Switch(), False),
        _setting("sasl_scram_token_auth", Switch(), False),
        _setting(
            "sasl_oauth_token_provider",
            UserCode("a callable, or an object with a token() method", ("token",)),
            None,
            "",
            "",
            "=",
        ),
        _setting("sasl_oauthbearer_token_endpoint_url", ValueType(), None, "=", "="),
        _setting(
            "sasl_oauthbearer_client_credentials_client_id",
            ValueType(),
            None,
            "=",
            "= sasl.oauthbearer.client.id",
        ),
        _setting(
            "sasl_oauthbearer_client_credentials_client_secret",
            Hidden(),
            None,
            "=",
            "= sasl.oauthbearer.client.secret",
        ),
        _setting("sasl_oauthbearer_scope", ValueType(), None, "=", "="),
        _setting("sasl_oauthbearer_header_urlencode", Switch(), False, "="),
        _setting("sasl_oauthbearer_extensions", Pairs(), {}, "", "="),
        _setting("sasl_kerberos_service_name", ValueType(), "kafka", "=", "=", "="),
        _setting("sasl_kerberos_domain_name", ValueType(), None, "", "", "="),
        _setting("sasl_kerberos_principal", ValueType(), None, "", "="),
        _setting("sasl_kerberos_keytab", FilePath(), None, "", "="),
        _setting("sasl_login_refresh_window_factor", Fraction(0.5, 1.0), 0.8, "="),
        _setting("sasl_login_refresh_window_jitter", Fraction(0.0, 0.25), 0.05, "="),
        _setting("sasl_login_refresh_min_period_seconds", Milliseconds(per_second=1), 60, "="),
        _setting("sasl_login_refresh_buffer_seconds", Milliseconds(per_second=1), 300, "="),
        _setting("sasl_login_connect_timeout_ms", Milliseconds(above=0), 10000, "="),
        _setting("sasl_login_read_timeout_ms", Milliseconds(above=0), 10000, "="),
        _setting("sasl_login_retry_backoff_ms", Milliseconds(), 100, "="),
        _setting("sasl_login_retry_backoff_max_ms", Milliseconds(), 10000, "="),
        _setting("max_batch_size", Count(unit="bytes"), None, "", "", "=", field=""),
    )
}
"""All settings by keyword, in the order in which a configuration is printed."""


class SecuritySettings(TypedDict, total=False):
    """The TLS and SASL settings as arguments for `Producer`. All of them can be left out."""

    security_protocol: ProtocolName
    ssl_context: ssl.SSLContext | None
    ssl_truststore_certificates: str | None
    ssl_truststore_location: Path | None
    ssl_truststore_type: StoreName | None
    ssl_truststore_password: str | Secret | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | Secret | None
    ssl_keystore_location: Path | None
    ssl_keystore_type: StoreName | None
    ssl_keystore_password: str | Secret | None
    ssl_key_password: str | Secret | None
    ssl_certificate_location: Path | None
    ssl_key_location: Path | None
    ssl_crl_location: Path | None
    ssl_enabled_protocols: str | Sequence[str]
    ssl_cipher_suites: str | Sequence[str]
    sasl_mechanism: MechanismName | None
    sasl_jaas_config: str | Secret | None
    sasl_login_callback_handler_class: str | None
    sasl_client_callback_handler_class: str | None
    sasl_plain_username: str | None
    sasl_plain_password: str | Secret | None
    sasl_credentials: Callable[[], tuple[str, str] | Awaitable[tuple[str, str]]] | None
    sasl_plain_without_tls: bool
    sasl_scram_token_auth: bool
    sasl_oauth_token_provider: Any
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | Secret | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_oauthbearer_extensions: Mapping[str, str]
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: Path | None
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_refresh_min_period_seconds: float
    sasl_login_refresh_buffer_seconds: float
    sasl_login_connect_timeout_ms: float
    sasl_login_read_timeout_ms: float
    sasl_login_retry_backoff_ms: float
    sasl_login_retry_backoff_max_ms: float
