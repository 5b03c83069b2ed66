"""How each key of the Java producer (4.4) and librdkafka (2.16) is handled: used, translated, noted or rejected.

table.py lists the keys that are names of our settings; this module lists the others. No key is dropped silently: a key
that has no effect causes a warning, and a key that cannot safely be ignored causes an error that says what to do
instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from aioproducer.settings.table import SETTINGS


class Fate(Enum):
    """How a key is handled."""

    USED = "used"
    """The key is one of our settings under another name."""
    TRANSLATED = "translated"
    """The key's value must be converted to a value of one of our settings."""
    FIXED = "fixed"
    """The key is accepted if it requests behaviour that this producer always has."""
    NOTED = "noted"
    """The key has no effect, and a warning says so."""
    REFUSED = "refused"
    """The key is rejected; the error says why and what to do instead."""


class Key(NamedTuple):
    """A key of another client, by its dotted name."""

    name: str
    fate: Fate
    setting: str = ""
    """For USED and TRANSLATED: the keyword that the key sets."""
    reason: str = ""
    """For FIXED, NOTED and REFUSED: the explanation, which follows a colon in the warning or the error."""
    translate: Callable[[Any], Any] | None = None
    """For TRANSLATED: a function that converts the key's value to a value of our setting; None stands for the setting's
    default."""
    fixed: tuple[str, ...] = ()
    """For FIXED: the accepted values, in lower case."""
    otherwise: Fate = Fate.REFUSED
    """For FIXED: how other values are handled, NOTED or REFUSED."""
    never: tuple[str, ...] = ()
    """For FIXED: values that are rejected even if `otherwise` is NOTED."""
    instead_of_never: str = ""
    """For FIXED: what to do instead of setting one of these values."""

    @property
    def instead(self) -> tuple[str, ...]:
        """The keywords named in `reason` or `instead_of_never`, each of which can replace the key."""
        words = re.findall(r"[a-z_]+", f"{self.reason} {self.instead_of_never}")
        return tuple(word for word in words if word in SETTINGS)


# ------------------------------------------------------------------------------------------------- translated


def _number(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,19}\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


def _kilobytes(value: Any) -> int:
    return _number(value) * 1024


def _metadata_age(value: Any) -> Any:
    if str(value).strip() == "-1":
        raise ValueError("is -1, but metadata is always refreshed; set an interval")
    return value


def _or_default(value: Any) -> Any:
    """Convert librdkafka's -1, the codec's own default level, to None."""
    return None if str(value).strip() == "-1" else value


def _idle(value: Any) -> Any:
    """Convert -1, which makes Java keep connections open, to 0, which does the same in librdkafka and here."""
    return 0 if isinstance(value, int | str) and str(value).strip() == "-1" else value


def _ca_location(value: Any) -> Any:
    """Convert `probe`, which makes librdkafka use the system's certificates, to None: they are the default here."""
    return None if value == "probe" else value


def _message_timeout(value: Any) -> Any:
    """Convert librdkafka's 0, which means no limit, to the longest timeout."""
    return 2**31 - 1 if isinstance(value, int | str) and str(value).strip() == "0" else value


def _ssl_protocol(value: Any) -> Any:
    if value in ("TLS", "TLSv1.3"):
        return None
    if value == "TLSv1.2":
        return ("TLSv1.2",)
    raise ValueError("must be TLSv1.2 or TLSv1.3")


_TRANSLATED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "queue.buffering.max.kbytes": ("buffer_memory", _kilobytes),
    "topic.metadata.refresh.interval.ms": ("metadata_max_age_ms", _metadata_age),
    "compression.level": ("compression_level", _or_default),
    "connections.max.idle.ms": ("connections_max_idle_ms", _idle),
    "ssl.ca.location": ("ssl_truststore_location", _ca_location),
    "ssl.protocol": ("ssl_enabled_protocols", _ssl_protocol),
    "message.timeout.ms": ("delivery_timeout_ms", _message_timeout),
}

# ------------------------------------------------------------------------------------------------------ fixed

_TOKENS = "set sasl_oauth_token_provider to a function that returns a token"
_OWN_CONTEXT = "pass your own ssl_context"
_CHECKED = f"the brokers' certificates and names are always verified; to change that, {_OWN_CONTEXT}"
_METRICS = "call producer.metrics()"
_LOGGING = "set the level of the 'aioproducer' logger"
_RETRIES = "records are retried until delivery_timeout_ms has passed"
_NO_RETRIES = (
    "leave {} out; idempotence, which is on by default, keeps retries from creating duplicates, and a shorter "
    "delivery_timeout_ms ends them sooner"
)

_FIXED: dict[str, tuple[str, Fate, str]] = {
    # key: (accepted values, how other values are handled, reason)
    "client.dns.lookup": (
        "use_all_dns_ips",
        Fate.REFUSED,
        "all addresses of a name are tried; list the brokers' own names in bootstrap_servers",
    ),
    "retries": ("2147483647", Fate.NOTED, _RETRIES),
    "message.send.max.retries": ("2147483647", Fate.NOTED, _RETRIES),
    "transaction.two.phase.commit.enable": (
        "false",
        Fate.REFUSED,
        "no released broker supports it (KIP-939); leave it out",
    ),
    "metric.reporters": ("", Fate.NOTED, f"Java classes can't be loaded; {_METRICS}"),
    "metrics.recording.level": ("info", Fate.NOTED, f"all metrics are always recorded; {_METRICS}"),
    "statistics.interval.ms": ("0", Fate.NOTED, f"statistics are not emitted; {_METRICS} at any time"),
    "ssl.endpoint.identification.algorithm": ("https", Fate.REFUSED, _CHECKED),
    "enable.ssl.certificate.verification": ("true", Fate.REFUSED, _CHECKED),
    "ssl.trustmanager.algorithm": ("pkix", Fate.REFUSED, f"it is specific to Java; {_OWN_CONTEXT}"),
    "ssl.keymanager.algorithm": ("sunx509", Fate.NOTED, "it is specific to Java"),
    "sasl.oauthbearer.method": ("default oidc", Fate.REFUSED, _TOKENS),
    "sasl.oauthbearer.grant.type": ("client_credentials", Fate.REFUSED, _TOKENS),
    "sasl.oauthbearer.metadata.authentication.type": ("none", Fate.REFUSED, _TOKENS),
    "enable.sasl.oauthbearer.unsecure.jwt": ("false", Fate.REFUSED, _TOKENS),
    "sasl.oauthbearer.jwt.retriever.class": (
        "org.apache.kafka.common.security.oauthbearer.defaultjwtretriever"
        " org.apache.kafka.common.security.oauthbearer.clientcredentialsjwtretriever",
        Fate.REFUSED,
        f"Java classes can't be loaded; {_TOKENS}",
    ),
    "enable.gapless.guarantee": (
        "false",
        Fate.REFUSED,
        "set enable_gapless_order=True, which fails the records buffered behind a failed one but accepts later ones",
    ),
    "delivery.report.only.error": ("false", Fate.NOTED, "deliveries that are not awaited cost nothing"),
    "queuing.strategy": (
        "fifo",
        Fate.REFUSED,
        "records for a partition are sent in the order of the send() calls; leave it out",
    ),
    "socket.nagle.disable": ("true", Fate.NOTED, "TCP_NODELAY is always on"),
    "socket.keepalive.enable": ("true", Fate.NOTED, "TCP keep-alive is always on"),
    "socket.max.fails": (
        "1",
        Fate.REFUSED,
        "a connection whose request timed out is always closed; leave it out",
    ),
    "broker.address.family": (
        "any",
        Fate.NOTED,
        "both families are tried and the faster one wins (RFC 8305)",
    ),
    "api.version.request": (
        "true",
        Fate.REFUSED,
        "versions are always negotiated, and brokers before 2.1 are not supported; leave it out",
    ),
    "topic.metadata.refresh.sparse": ("true", Fate.NOTED, "only the metadata of topics in use is requested"),
    "log.connection.close": ("true", Fate.NOTED, f"closed connections are logged at DEBUG; {_LOGGING}"),
    "enable.sparse.connections": ("true", Fate.NOTED, "connections are opened when they are needed"),
    "partitioner.rack.aware": ("false", Fate.NOTED, "partitions are not chosen by rack (KIP-1123)"),
    "metadata.cluster.check.enable": ("false", Fate.NOTED, "cluster ids are not compared"),
    "test.mock.num.brokers": ("0", Fate.REFUSED, "start an aioproducer.testing.EmbeddedCluster instead"),
}

# ------------------------------------------------------------------------------------------ noted and refused

_FOR_CONSUMERS = "meant for consumers"

_NOTED: dict[str, str] = {
    _FOR_CONSUMERS: """
        group.id group.instance.id partition.assignment.strategy session.timeout.ms heartbeat.interval.ms
        group.protocol.type group.protocol group.remote.assignor coordinator.query.interval.ms max.poll.interval.ms
        enable.auto.commit auto.commit.enable auto.commit.interval.ms enable.auto.offset.store queued.min.messages
        queued.max.messages.kbytes fetch.wait.max.ms fetch.queue.backoff.ms fetch.message.max.bytes
        max.partition.fetch.bytes fetch.max.bytes fetch.min.bytes fetch.error.backoff.ms offset.store.method
        offset.store.path offset.store.sync.interval.ms isolation.level consume_cb rebalance_cb offset_commit_cb
        enable.partition.eof check.crcs auto.offset.reset consume.callback.max.messages max.poll.records
        share.acknowledgement.mode share.acquire.mode on_commit
        key.deserializer value.deserializer exclude.internal.topics default.api.timeout.ms fetch.max.wait.ms""",
    "meant for admin clients": "bootstrap.controllers",
    "there is no JMX; call producer.metrics()": """
        auto.include.jmx.reporter metrics.jmx.include metrics.jmx.exclude""",
    "the operating system sizes socket buffers": """
        send.buffer.bytes receive.buffer.bytes socket.send.buffer.bytes socket.receive.buffer.bytes""",
    "there are no sample windows; compare two results of producer.metrics()": """
        metrics.num.samples metrics.sample.window.ms""",
    f"Python's logging does this; {_LOGGING}": "debug log_level log.thread.name log.queue",
    "buffer_memory limits the waiting records, in bytes": "queue.buffering.max.messages",
    "batch_size limits a batch, in bytes": "batch.num.messages",
    "the sticky partition changes after a full batch, or 16 KiB if batches are sent before they are full (KIP-794)": (
        "sticky.partitioning.linger.ms"
    ),
    "a request is sent whenever a broker can accept one": "queue.buffering.backpressure.threshold",
    "records are copied once, whatever their size": "message.copy.max.bytes",
    "responses from brokers are limited to 64 MiB": "receive.message.max.bytes",
    "a missing topic is requested repeatedly for max_block_ms": "topic.metadata.propagation.max.ms",
    "retry_backoff_ms also applies to metadata": """
        topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.fast.cnt""",
    "host names are looked up for every connection": "broker.address.ttl",
    "request_timeout_ms applies to every request": "metadata.request.timeout.ms",
    "socket_connection_setup_timeout_ms covers it": "api.version.request.timeout.ms",
    "no longer used, not even by librdkafka": """
        api.version.fallback.ms broker.version.fallback reconnect.backoff.jitter.ms socket.blocking.max.ms
        produce.offset.report""",
    "meant for librdkafka's threads": "internal.termination.signal enable.random.seed enable_sasl_queue",
    "partitions are not chosen by rack (KIP-1123)": "client.rack",
    "start() tries all bootstrap addresses for max_block_ms": "bootstrap.resolve.timeout.ms",
    "buffers grow as records arrive": "buffer.memory.allocation.strategy",
    "brokers check the tokens": """
        sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
        sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwks.endpoint.refresh.ms
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
        sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
        sasl.oauthbearer.jwt.validator.class""",
}
_REFUSED: dict[str, str] = {
    "it is a callback; await the delivery that send() returns, or use its add_done_callback()": """
        dr_cb dr_msg_cb on_delivery""",
    f"it is a callback; errors are raised where you await, and also logged; {_LOGGING}": """
        error_cb background_event_cb log_cb logger""",
    f"it is a callback; {_METRICS} at any time": "stats_cb throttle_cb",
    f"it is a callback; {_TOKENS}": "oauth_cb oauthbearer_token_refresh_cb",
    "it is a C function; set partitioner to a function (key, all, available) -> partition": "partitioner_cb",
    "it is a C function or pointer": """
        enabled_events opaque open_cb closesocket_cb socket_cb msg_order_cmp""",
    "it is a C function; set connector to a function that opens the connection": "connect_cb resolve_cb",
    "it loads C libraries; pass Python objects as interceptors=[...]": "plugin.library.paths",
    "it contains topic settings; put them next to the other settings": "default_topic_conf default.topic.config",
    "a client can't hide topics, but the brokers' ACLs can; leave it out": "topic.blacklist",
    "it lists librdkafka's compiled features; every codec is always available; leave it out": "builtin.features",
    "brokers see aioproducer's own name and version; leave it out": "client.software.name client.software.version",
    "start an aioproducer.testing.EmbeddedCluster instead": "test.mock.broker.rtt",
    "values stored elsewhere are not looked up; read them in your program, and pass them as keywords": (
        "config.providers"
    ),
    f"it is specific to Java; {_OWN_CONTEXT}": """
        security.providers ssl.provider ssl.engine.factory.class ssl.secure.random.implementation""",
    f"it is specific to OpenSSL; {_OWN_CONTEXT}": """
        ssl.providers ssl.engine.location ssl.engine.id ssl_engine_callback_data ssl.curves.list ssl.sigalgs.list
        ssl.certificate.verify_cb ssl.ca.certificate.stores""",
    "it is a pointer; set ssl_truststore_certificates": "ssl_ca",
    "it is a pointer; set ssl_keystore_certificate_chain": "ssl_certificate",
    "it is a pointer; set ssl_keystore_key": "ssl_key",
    "it is a Java class; set the credentials with sasl_plain_username and sasl_plain_password": "sasl.login.class",
    "the Kerberos library renews tickets automatically; set sasl_kerberos_keytab, or run kinit separately": """
        sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter
        sasl.kerberos.ticket.renew.window.factor""",
    _TOKENS: """
        sasl.oauthbearer.config sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.assertion.template.file
        sasl.oauthbearer.assertion.jwt.template.file""",
    "the token endpoint's certificate is verified with the system's store, or with SSL_CERT_FILE": """
        https.ca.location https.ca.pem""",
}


def _all_keys() -> dict[str, Key]:
    keys = {}
    for setting in SETTINGS.values():
        for name in setting.foreign_names:
            keys[name] = Key(name, Fate.USED, setting.name)
    for name, (setting_name, translate) in _TRANSLATED.items():
        keys[name] = Key(name, Fate.TRANSLATED, setting_name, translate=translate)
    for name, (values, otherwise, reason) in _FIXED.items():
        fixed = tuple(values.split()) or ("",)
        # Users disable retries to avoid the duplicates that retries create without idempotence.
        never, advice = (("0",), _NO_RETRIES.format(name)) if reason == _RETRIES else ((), "")
        keys[name] = Key(
            name,
            Fate.FIXED,
            reason=reason,
            fixed=fixed,
            otherwise=otherwise,
            never=never,
            instead_of_never=advice,
        )
    for fate, table in ((Fate.NOTED, _NOTED), (Fate.REFUSED, _REFUSED)):
        for reason, names in table.items():
            for name in names.split():
                keys[name] = Key(name, fate, reason=reason)
    return keys


KEYS = _all_keys()
"""All keys, by dotted name."""
