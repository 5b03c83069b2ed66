"""Every key of Java's producer and of librdkafka is handled, and none is dropped silently.

The tables list the handling of every key, so a key that is added or removed in another client makes a test fail."""

from __future__ import annotations

import logging
import os
import re
import struct
import zipfile
from pathlib import Path

import confluent_kafka
import pytest

from aioproducer import ConfigError, Producer, ProducerConfig
from aioproducer.settings.keys import KEYS, Fate
from aioproducer.settings.names import key_named
from aioproducer.testing.apache.jars import DEFAULT_VERSION, class_path
from aioproducer.testing.apache.process import ChildProcesses

# ProducerConfig.configDef().configKeys() of kafka-clients 4.3.1.
JAVA = """
acks | used acks
batch.size | used batch_size
bootstrap.servers | used bootstrap_servers
buffer.memory | used buffer_memory
client.dns.lookup | fixed use_all_dns_ips, else refused
client.id | used client_id
compression.gzip.level | used compression_gzip_level
compression.lz4.level | used compression_lz4_level
compression.type | used compression_type
compression.zstd.level | used compression_zstd_level
config.providers | refused
connections.max.idle.ms | translated connections_max_idle_ms
delivery.timeout.ms | used delivery_timeout_ms
enable.idempotence | used enable_idempotence
enable.metrics.push | used enable_metrics_push
interceptor.classes | used interceptors
key.serializer | used key_serializer
linger.ms | used linger_ms
max.block.ms | used max_block_ms
max.in.flight.requests.per.connection | used max_in_flight_requests_per_connection
max.request.size | used max_request_size
metadata.max.age.ms | used metadata_max_age_ms
metadata.max.idle.ms | used metadata_max_idle_ms
metadata.recovery.rebootstrap.trigger.ms | used metadata_recovery_rebootstrap_trigger_ms
metadata.recovery.strategy | used metadata_recovery_strategy
metric.reporters | fixed (empty), else noted
metrics.num.samples | noted
metrics.recording.level | fixed info, else noted
metrics.sample.window.ms | noted
partitioner.adaptive.partitioning.enable | used partitioner_adaptive_partitioning_enable
partitioner.availability.timeout.ms | used partitioner_availability_timeout_ms
partitioner.class | used partitioner
partitioner.ignore.keys | used partitioner_ignore_keys
receive.buffer.bytes | noted
reconnect.backoff.max.ms | used reconnect_backoff_max_ms
reconnect.backoff.ms | used reconnect_backoff_ms
request.timeout.ms | used request_timeout_ms
retries | fixed 2147483647, else noted
retry.backoff.max.ms | used retry_backoff_max_ms
retry.backoff.ms | used retry_backoff_ms
sasl.client.callback.handler.class | used sasl_client_callback_handler_class
sasl.jaas.config | used sasl_jaas_config
sasl.kerberos.kinit.cmd | refused
sasl.kerberos.min.time.before.relogin | refused
sasl.kerberos.service.name | used sasl_kerberos_service_name
sasl.kerberos.ticket.renew.jitter | refused
sasl.kerberos.ticket.renew.window.factor | refused
sasl.login.callback.handler.class | used sasl_login_callback_handler_class
sasl.login.class | refused
sasl.login.connect.timeout.ms | used sasl_login_connect_timeout_ms
sasl.login.read.timeout.ms | used sasl_login_read_timeout_ms
sasl.login.refresh.buffer.seconds | used sasl_login_refresh_buffer_seconds
sasl.login.refresh.min.period.seconds | used sasl_login_refresh_min_period_seconds
sasl.login.refresh.window.factor | used sasl_login_refresh_window_factor
sasl.login.refresh.window.jitter | used sasl_login_refresh_window_jitter
sasl.login.retry.backoff.max.ms | used sasl_login_retry_backoff_max_ms
sasl.login.retry.backoff.ms | used sasl_login_retry_backoff_ms
sasl.mechanism | used sasl_mechanism
sasl.oauthbearer.assertion.algorithm | refused
sasl.oauthbearer.assertion.claim.aud | refused
sasl.oauthbearer.assertion.claim.exp.seconds | refused
sasl.oauthbearer.assertion.claim.iss | refused
sasl.oauthbearer.assertion.claim.jti.include | refused
sasl.oauthbearer.assertion.claim.nbf.seconds | refused
sasl.oauthbearer.assertion.claim.sub | refused
sasl.oauthbearer.assertion.file | refused
sasl.oauthbearer.assertion.private.key.file | refused
sasl.oauthbearer.assertion.private.key.passphrase | refused
sasl.oauthbearer.assertion.template.file | refused
sasl.oauthbearer.client.credentials.client.id | used sasl_oauthbearer_client_credentials_client_id
sasl.oauthbearer.client.credentials.client.secret | used sasl_oauthbearer_client_credentials_client_secret
sasl.oauthbearer.clock.skew.seconds | noted
sasl.oauthbearer.expected.audience | noted
sasl.oauthbearer.expected.issuer | noted
sasl.oauthbearer.header.urlencode | used sasl_oauthbearer_header_urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms | noted
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | noted
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | noted
sasl.oauthbearer.jwks.endpoint.url | noted
sasl.oauthbearer.jwt.retriever.class | fixed defaultjwtretriever|clientcredentialsjwtretriever, else refused
sasl.oauthbearer.jwt.validator.class | noted
sasl.oauthbearer.scope | used sasl_oauthbearer_scope
sasl.oauthbearer.scope.claim.name | noted
sasl.oauthbearer.sub.claim.name | noted
sasl.oauthbearer.token.endpoint.url | used sasl_oauthbearer_token_endpoint_url
security.protocol | used security_protocol
security.providers | refused
send.buffer.bytes | noted
socket.connection.setup.timeout.max.ms | used socket_connection_setup_timeout_max_ms
socket.connection.setup.timeout.ms | used socket_connection_setup_timeout_ms
ssl.cipher.suites | used ssl_cipher_suites
ssl.enabled.protocols | used ssl_enabled_protocols
ssl.endpoint.identification.algorithm | fixed https, else refused
ssl.engine.factory.class | refused
ssl.key.password | used ssl_key_password
ssl.keymanager.algorithm | fixed sunx509, else noted
ssl.keystore.certificate.chain | used ssl_keystore_certificate_chain
ssl.keystore.key | used ssl_keystore_key
ssl.keystore.location | used ssl_keystore_location
ssl.keystore.password | used ssl_keystore_password
ssl.keystore.type | used ssl_keystore_type
ssl.protocol | translated ssl_enabled_protocols
ssl.provider | refused
ssl.secure.random.implementation | refused
ssl.trustmanager.algorithm | fixed pkix, else refused
ssl.truststore.certificates | used ssl_truststore_certificates
ssl.truststore.location | used ssl_truststore_location
ssl.truststore.password | used ssl_truststore_password
ssl.truststore.type | used ssl_truststore_type
transaction.timeout.ms | used transaction_timeout_ms
transaction.two.phase.commit.enable | fixed false, else refused
transactional.id | used transactional_id
value.serializer | used value_serializer
"""
# The producer, consumer and common properties of librdkafka's CONFIGURATION.md that Java does not have.
LIBRDKAFKA = """
allow.auto.create.topics | used allow_auto_create_topics
api.version.fallback.ms | noted
api.version.request | fixed true, else refused
api.version.request.timeout.ms | noted
auto.commit.enable | noted
auto.commit.interval.ms | noted
auto.offset.reset | noted
background_event_cb | refused
batch.num.messages | noted
broker.address.family | fixed any, else noted
broker.address.ttl | noted
broker.version.fallback | noted
builtin.features | refused
check.crcs | noted
client.rack | noted
closesocket_cb | refused
compression.codec | used compression_type
compression.level | translated compression_level
connect_cb | refused
consume.callback.max.messages | noted
consume_cb | noted
coordinator.query.interval.ms | noted
debug | noted
default_topic_conf | refused
delivery.report.only.error | fixed false, else noted
dr_cb | refused
dr_msg_cb | refused
enable.auto.commit | noted
enable.auto.offset.store | noted
enable.gapless.guarantee | fixed false, else refused
enable.partition.eof | noted
enable.random.seed | noted
enable.sasl.oauthbearer.unsecure.jwt | fixed false, else refused
enable.ssl.certificate.verification | fixed true, else refused
enabled_events | refused
error_cb | refused
fetch.error.backoff.ms | noted
fetch.max.bytes | noted
fetch.message.max.bytes | noted
fetch.min.bytes | noted
fetch.queue.backoff.ms | noted
fetch.wait.max.ms | noted
group.id | noted
group.instance.id | noted
group.protocol | noted
group.protocol.type | noted
group.remote.assignor | noted
heartbeat.interval.ms | noted
https.ca.location | refused
https.ca.pem | refused
interceptors | used interceptors
internal.termination.signal | noted
isolation.level | noted
log.connection.close | fixed true, else noted
log.queue | noted
log.thread.name | noted
log_cb | refused
log_level | noted
max.in.flight | used max_in_flight_requests_per_connection
max.partition.fetch.bytes | noted
max.poll.interval.ms | noted
max.poll.records | noted
message.copy.max.bytes | noted
message.max.bytes | used max_request_size
message.send.max.retries | fixed 2147483647, else noted
message.timeout.ms | translated delivery_timeout_ms
metadata.broker.list | used bootstrap_servers
msg_order_cmp | refused
oauthbearer_token_refresh_cb | refused
offset.store.method | noted
offset.store.path | noted
offset.store.sync.interval.ms | noted
offset_commit_cb | noted
opaque | refused
open_cb | refused
partition.assignment.strategy | noted
partitioner | used partitioner
partitioner_cb | refused
plugin.library.paths | refused
produce.offset.report | noted
queue.buffering.backpressure.threshold | noted
queue.buffering.max.kbytes | translated buffer_memory
queue.buffering.max.messages | noted
queue.buffering.max.ms | used linger_ms
queued.max.messages.kbytes | noted
queued.min.messages | noted
queuing.strategy | fixed fifo, else refused
rebalance_cb | noted
receive.message.max.bytes | noted
reconnect.backoff.jitter.ms | noted
request.required.acks | used acks
resolve_cb | refused
sasl.kerberos.keytab | used sasl_kerberos_keytab
sasl.kerberos.principal | used sasl_kerberos_principal
sasl.mechanisms | used sasl_mechanism
sasl.oauthbearer.assertion.jwt.template.file | refused
sasl.oauthbearer.assertion.private.key.pem | refused
sasl.oauthbearer.client.id | used sasl_oauthbearer_client_credentials_client_id
sasl.oauthbearer.client.secret | used sasl_oauthbearer_client_credentials_client_secret
sasl.oauthbearer.config | refused
sasl.oauthbearer.extensions | used sasl_oauthbearer_extensions
sasl.oauthbearer.grant.type | fixed client_credentials, else refused
sasl.oauthbearer.metadata.authentication.type | fixed none, else refused
sasl.oauthbearer.method | fixed default|oidc, else refused
sasl.password | used sasl_plain_password
sasl.username | used sasl_plain_username
session.timeout.ms | noted
share.acknowledgement.mode | noted
socket.blocking.max.ms | noted
socket.keepalive.enable | fixed true, else noted
socket.max.fails | fixed 1, else refused
socket.nagle.disable | fixed true, else noted
socket.receive.buffer.bytes | noted
socket.send.buffer.bytes | noted
socket.timeout.ms | used request_timeout_ms
socket_cb | refused
ssl.ca.certificate.stores | refused
ssl.ca.location | translated ssl_truststore_location
ssl.ca.pem | used ssl_truststore_certificates
ssl.certificate.location | used ssl_certificate_location
ssl.certificate.pem | used ssl_keystore_certificate_chain
ssl.certificate.verify_cb | refused
ssl.crl.location | used ssl_crl_location
ssl.curves.list | refused
ssl.engine.id | refused
ssl.engine.location | refused
ssl.key.location | used ssl_key_location
ssl.key.pem | used ssl_keystore_key
ssl.providers | refused
ssl.sigalgs.list | refused
ssl_ca | refused
ssl_certificate | refused
ssl_engine_callback_data | refused
ssl_key | refused
statistics.interval.ms | fixed 0, else noted
stats_cb | refused
sticky.partitioning.linger.ms | noted
throttle_cb | refused
topic.blacklist | refused
topic.metadata.propagation.max.ms | noted
topic.metadata.refresh.fast.cnt | noted
topic.metadata.refresh.fast.interval.ms | noted
topic.metadata.refresh.interval.ms | translated metadata_max_age_ms
topic.metadata.refresh.sparse | fixed true, else noted
"""
# Keys that confluent-kafka and librdkafka accept without listing them, keys that Kafka 4.4 adds, keys of
# earlier releases, and Java's keys for consumers and admin clients.
MORE = """
auto.include.jmx.reporter | noted
bootstrap.controllers | noted
bootstrap.resolve.timeout.ms | noted
buffer.memory.allocation.strategy | noted
client.software.name | refused
client.software.version | refused
default.api.timeout.ms | noted
default.topic.config | refused
enable.sparse.connections | fixed true, else noted
enable_sasl_queue | noted
exclude.internal.topics | noted
fetch.max.wait.ms | noted
key.deserializer | noted
logger | refused
metadata.cluster.check.enable | fixed false, else noted
metadata.request.timeout.ms | noted
metrics.jmx.exclude | noted
metrics.jmx.include | noted
oauth_cb | refused
on_commit | noted
on_delivery | refused
partitioner.rack.aware | fixed false, else noted
share.acquire.mode | noted
test.mock.broker.rtt | refused
test.mock.num.brokers | fixed 0, else refused
value.deserializer | noted
"""


def rows(*tables: str) -> list[tuple[str, str]]:
    return [tuple(line.split(" | ")) for table in tables for line in table.strip().splitlines()]


def fate_of(name: str) -> str:
    key = key_named(name)
    assert key is not None, f"{name} is not handled"
    if key.setting:
        return f"{key.fate.value} {key.setting}"
    if key.fate is Fate.FIXED:
        values = "|".join(value.rpartition(".")[2] for value in key.fixed) or "(empty)"
        return f"fixed {values}, else {key.otherwise.value}"
    return key.fate.value


@pytest.mark.promise(
    "Settings from anywhere",
    "every setting of Java's producer and of librdkafka is handled, none is forgotten",
)
@pytest.mark.parametrize(("name", "fate"), rows(JAVA, LIBRDKAFKA, MORE))
def test_every_key_is_handled_as_the_tables_say(name, fate):
    assert fate_of(name) == fate


def test_there_is_no_key_that_the_tables_lack():
    assert set(KEYS) - {name for name, _ in rows(JAVA, LIBRDKAFKA, MORE)} == set()


def test_every_key_of_another_client_can_be_written_with_underscores():
    for name, key in KEYS.items():
        found = key_named(name.replace(".", "_"))
        assert found is not None
        assert (found.setting or found.name) == (key.setting or name), name


# ------------------------------------------------------------------------------------------------ completeness

CLASSES_OF_KEYS = (
    "org/apache/kafka/clients/producer/ProducerConfig.class",
    "org/apache/kafka/common/config/SaslConfigs.class",
    "org/apache/kafka/common/config/SslConfigs.class",
)
SIZES = {
    3: 5,
    4: 5,
    5: 9,
    6: 9,
    7: 3,
    8: 3,
    9: 5,
    10: 5,
    11: 5,
    12: 5,
    15: 4,
    16: 3,
    17: 5,
    18: 5,
    19: 3,
    20: 3,
}
"""The sizes of a class file's constants, in bytes, by tag."""
STRING, UTF8 = 8, 1


def string_constants(data: bytes) -> dict[str, str]:
    """Return the constant strings of a compiled Java class, by the names of their fields (JVM
    specification, chapter 4)."""
    (count,) = struct.unpack_from(">H", data, 8)
    at, index = 10, 1
    texts: dict[int, str] = {}
    strings: dict[int, int] = {}
    while index < count:
        tag = data[at]
        if tag == UTF8:
            (size,) = struct.unpack_from(">H", data, at + 1)
            texts[index] = data[at + 3 : at + 3 + size].decode()
            at += 3 + size
        else:
            if tag == STRING:
                (strings[index],) = struct.unpack_from(">H", data, at + 1)
            at += SIZES[tag]
        index += 2 if SIZES.get(tag) == 9 else 1
    (interfaces,) = struct.unpack_from(">H", data, at + 6)
    at += 8 + 2 * interfaces
    (fields,) = struct.unpack_from(">H", data, at)
    at += 2
    constants = {}
    for _ in range(fields):
        _, name, _, attributes = struct.unpack_from(">HHHH", data, at)
        at += 8
        for _ in range(attributes):
            attribute, size = struct.unpack_from(">HI", data, at)
            (value,) = struct.unpack_from(">H", data, at + 6)
            if texts[attribute] == "ConstantValue" and value in strings:
                constants[texts[name]] = texts[strings[value]]
            at += 6 + size
    return constants


@pytest.mark.promise(
    "Settings from anywhere",
    "every setting of Java's producer and of librdkafka is handled, none is forgotten",
)
@pytest.mark.apache
async def test_no_key_of_javas_producer_is_forgotten(tmp_path):
    children = ChildProcesses()
    try:
        jars = await class_path(DEFAULT_VERSION, children, tmp_path / "jars.log")
    finally:
        children.end()
    [jar] = [
        jar for jar in jars.split(os.pathsep) if Path(jar).name == f"kafka-clients-{DEFAULT_VERSION}.jar"
    ]

    with zipfile.ZipFile(jar) as classes:
        keys = {
            value
            for name in CLASSES_OF_KEYS
            for field, value in string_constants(classes.read(name)).items()
            if not field.endswith("_DOC") and re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)+|acks|retries", value)
        }

    assert {"acks", "linger.ms", "sasl.jaas.config", "ssl.truststore.location"} <= keys
    assert len(keys) > 100
    assert keys - {name for name, _ in rows(JAVA)} == set()


@pytest.mark.promise(
    "Settings from anywhere",
    "every setting of Java's producer and of librdkafka is handled, none is forgotten",
)
def test_no_key_that_confluent_kafka_takes_is_forgotten():
    package = Path(confluent_kafka.__file__).parent
    libraries = [*package.glob("*.so"), *package.parent.glob("confluent_kafka.libs/*rdkafka*")]
    words = set()
    for library in libraries:
        for text in re.findall(rb"[a-z][a-z0-9]*(?:[._][a-z0-9]+)*(?=\0)", library.read_bytes()):
            # Linkers may store one string as the end of another.
            parts = re.split(r"(?<=[._])", text.decode())
            words |= {"".join(parts[at:]) for at in range(len(parts))}
    taken = set()
    for word in words:
        try:
            # The second key is invalid, so that no producer is ever created.
            confluent_kafka.Producer({word: "no such value", "acks": "no such value"})
        except (confluent_kafka.KafkaException, TypeError, ValueError, AttributeError) as error:
            if "No such configuration property" not in str(error):
                taken.add(word)

    assert {"linger.ms", "message.max.bytes", "request.required.acks", "group.id", "on_delivery"} <= taken
    assert len(taken) > 180
    assert sorted(word for word in taken if key_named(word) is None) == []


# ---------------------------------------------------------------------------------------- the handling of keys


def built(mapping: dict[str, object], caplog: pytest.LogCaptureFixture) -> tuple[ProducerConfig, list[str]]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "aioproducer"):
        config = Producer.from_config(mapping).config
    return config, [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", [key.name for key in KEYS.values() if key.fate is Fate.REFUSED])
def test_a_refused_key_says_why_and_shows_no_value(name):
    with pytest.raises(ConfigError) as raised:
        Producer.from_config({name: "hunter2"})

    assert str(raised.value) == f"{name} can't be used: {KEYS[name].reason}"
    assert raised.value.setting == name
    assert len(KEYS[name].reason) > 20, "a reason must be a sentence"


@pytest.mark.parametrize("name", [key.name for key in KEYS.values() if key.fate is Fate.NOTED])
def test_a_noted_key_changes_nothing_and_causes_a_warning(name, caplog):
    config, [warning] = built({name: "1"}, caplog)

    assert config == Producer().config
    assert f"{name} has no effect: {KEYS[name].reason}" in warning


def test_all_noted_keys_are_in_one_warning_with_the_settings_that_had_to_yield(caplog):
    _, [warning] = built({"send.buffer.bytes": 1, "retries": 3, "client.rack": "a", "acks": 1}, caplog)

    for part in ("send.buffer.bytes", "retries", "client.rack", "acks=1 turns enable_idempotence off"):
        assert part in warning


@pytest.mark.parametrize(
    "key", [key for key in KEYS.values() if key.fate is Fate.FIXED], ids=lambda key: key.name
)
def test_a_fixed_key_is_accepted_if_it_requests_the_fixed_behaviour(key, caplog):
    for value in key.fixed:
        config, warnings = built({key.name: value.upper()}, caplog)

        assert config == Producer().config
        assert warnings == []

    if key.otherwise is Fate.NOTED:
        _, [warning] = built({key.name: "something else"}, caplog)
        assert f"{key.name} has no effect: {key.reason}" in warning
    else:
        with pytest.raises(ConfigError) as raised:
            Producer.from_config({key.name: "something else"})
        assert str(raised.value) == f"{key.name}=something else can't be used: {key.reason}"


@pytest.mark.parametrize("name", ["retries", "message.send.max.retries"])
@pytest.mark.parametrize("value", [0, "0"])
def test_retries_of_zero_are_rejected_and_not_only_warned_about(name, value):
    with pytest.raises(ConfigError) as caught:
        Producer.from_config({name: value})

    assert str(caught.value) == (
        f"{name}=0 can't be used: records are retried until delivery_timeout_ms has passed; leave {name} out; "
        "idempotence, which is on by default, keeps retries from creating duplicates, and a shorter "
        "delivery_timeout_ms ends them sooner"
    )


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("queue.buffering.max.kbytes", "2048", "buffer_memory", 2_097_152),
        ("queue.buffering.max.kbytes", 2048, "buffer_memory", 2_097_152),
        ("topic.metadata.refresh.interval.ms", "60000", "metadata_max_age", 60.0),
        ("compression.level", "-1", "compression_level", None),
        ("connections.max.idle.ms", "-1", "connections_max_idle", 0.0),
        ("connections.max.idle.ms", -1, "connections_max_idle", 0.0),
        ("connections.max.idle.ms", "0", "connections_max_idle", 0.0),
        ("connections.max.idle.ms", "60000", "connections_max_idle", 60.0),
        ("ssl.ca.location", "probe", "ssl_truststore_location", None),
        ("ssl.ca.location", "/etc/ca.pem", "ssl_truststore_location", "/etc/ca.pem"),
        ("ssl.protocol", "TLSv1.3", "ssl_enabled_protocols", ("TLSv1.2", "TLSv1.3")),
        ("ssl.protocol", "TLS", "ssl_enabled_protocols", ("TLSv1.2", "TLSv1.3")),
        ("ssl.protocol", "TLSv1.2", "ssl_enabled_protocols", ("TLSv1.2",)),
        ("message.timeout.ms", "0", "delivery_timeout", 2_147_483.647),
        ("message.timeout.ms", 0, "delivery_timeout", 2_147_483.647),
        ("message.timeout.ms", "60000", "delivery_timeout", 60.0),
    ],
)
def test_a_translated_key_sets_the_setting(name, value, field, expected):
    protocol = {"security.protocol": "SSL"} if name.startswith("ssl") else {}

    assert getattr(Producer.from_config({name: value, **protocol}).config, field) == expected


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("queue.buffering.max.kbytes", "much", "'much' must be a whole number"),
        ("queue.buffering.max.kbytes", 1.5, "1.5 must be a whole number"),
        ("queue.buffering.max.kbytes", True, "True must be a whole number"),
        ("queue.buffering.max.kbytes", 2**60, "must be a whole number from 1024"),
        ("topic.metadata.refresh.interval.ms", -1, "metadata is always refreshed; set an interval"),
        ("connections.max.idle.ms", "-2", "must be a number of milliseconds, 0 or more"),
        ("ssl.protocol", "SSLv3", "must be TLSv1.2 or TLSv1.3"),
        ("compression.level", "high", "must be a whole number"),
    ],
)
def test_a_translated_key_with_an_invalid_value_is_rejected(name, value, problem):
    protocol = {"security.protocol": "SSL"} if name.startswith("ssl") else {}

    with pytest.raises(ConfigError) as raised:
        Producer.from_config({name: value, **protocol})

    assert problem in str(raised.value)
    assert raised.value.setting == KEYS[name].setting
