"""from_config, from_env and from_properties: the names of any client, text and typed values, origins and errors."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import ssl
import struct
import uuid
from typing import Any

import pytest

from aioproducer import ConfigError, Producer, blocking
from aioproducer.protocol.compression import Codec
from aioproducer.settings.entries import entries_of_environment, entries_of_mapping, resolve
from aioproducer.settings.java import SERIALIZERS
from aioproducer.settings.keys import KEYS
from aioproducer.settings.table import SETTINGS
from aioproducer.testing import EmbeddedCluster
from aioproducer.types import Secret


def properties(tmp_path, text):
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


# -------------------------------------------------------------------------------------------------- from_config


def test_the_same_settings_have_java_librdkafka_and_own_names():
    java = {
        "bootstrap.servers": "a:1,b:2",
        "acks": "1",
        "enable.idempotence": "false",
        "linger.ms": "20",
        "max.request.size": "2000000",
        "buffer.memory": "33554432",
        "compression.type": "zstd",
        "compression.zstd.level": "5",
        "delivery.timeout.ms": "60000",
        "request.timeout.ms": "20000",
        "max.in.flight.requests.per.connection": "3",
        "partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner",
        "metadata.max.age.ms": "60000",
    }
    librdkafka = {
        "metadata.broker.list": "a:1,b:2",
        "request.required.acks": 1,
        "enable.idempotence": False,
        "queue.buffering.max.ms": 20.0,
        "message.max.bytes": 2000000,
        "queue.buffering.max.kbytes": 32768,
        "compression.codec": "zstd",
        "compression.level": 5,
        "message.timeout.ms": 60000,
        "socket.timeout.ms": 20000,
        "max.in.flight": 3,
        "partitioner": "round_robin",
        "topic.metadata.refresh.interval.ms": 60000,
    }
    own = {
        "bootstrap_servers": ["a:1", "b:2"],
        "acks": 1,
        "enable_idempotence": False,
        "linger_ms": 20,
        "max_request_size": 2000000,
        "buffer_memory": 33554432,
        "compression_type": "zstd",
        "compression_level": 5,
        "delivery_timeout_ms": 60000,
        "request_timeout_ms": 20000,
        "max_in_flight_requests_per_connection": 3,
        "partitioner": "round_robin",
        "metadata_max_age_ms": 60000,
    }
    underscored = {name.replace(".", "_"): value for name, value in librdkafka.items()}

    expected = Producer(**own).config

    for mapping in (java, librdkafka, own, underscored):
        assert Producer.from_config(mapping).config == expected


SAMPLES = {
    "bootstrap_servers": ("b:9093", (("b", 9093),)),
    "client_id": ("orders", "orders"),
    "acks": ("-1", -1),
    "compression_type": ("LZ4", Codec.LZ4),
    "partitioner": ("consistent", "consistent"),
    "metadata_recovery_strategy": ("NONE", "none"),
    "security_protocol": ("ssl", "SSL"),
    "delivery_timeout_ms": ("170000.5", 170.0005),
    "sasl_mechanism": ("plain", "PLAIN"),
    "ssl_enabled_protocols": ("TLSv1.3", ("TLSv1.3",)),
    "sasl_oauthbearer_token_endpoint_url": ("https://id/t", "https://id/t"),
    "sasl_login_refresh_window_factor": ("0.9", 0.9),
    "sasl_login_refresh_window_jitter": ("0.1", 0.1),
    "max_in_flight_requests_per_connection": ("4", 4),
    "transactional_id": ("orders", "orders"),
}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (name, key)
        for name, setting in SETTINGS.items()
        for key in (name, *setting.foreign_names)
        if setting.field
        and not name.startswith(("ssl_", "sasl_"))
        and setting.value_type.parse.__qualname__ != "UserCode.parse"
        and name not in ("hooks", "interceptors", "key_serializer", "value_serializer", "compression_level")
    ],
)
def test_text_under_any_name_is_converted_to_the_type_of_the_setting(name, key):
    value_type = type(SETTINGS[name].value_type).__name__
    default = {
        "Milliseconds": ("20000.5", 20.0005),
        "IdleTime": ("20000.5", 20.0005),
        "Count": ("20001", 20001),
        "Switch": ("True", True),
    }
    text, value = SAMPLES.get(name) or default[value_type]

    config = Producer.from_config({key: text}).config

    assert getattr(config, SETTINGS[name].field) == value
    assert config.origin(name) == ("explicit" if key.replace(".", "_") == name else f"explicit as {key}")


@pytest.mark.parametrize("value", ["user:secret@host", "s" * 61])
def test_a_value_hidden_in_the_text_is_not_in_the_error_either(value):
    with pytest.raises(ConfigError) as caught:
        Producer.from_config({"queuing.strategy": value})

    assert value not in str(caught.value)
    assert caught.value.value is None


@pytest.mark.parametrize("text", ["true", "TRUE", "t", "1", " true "])
def test_values_of_switches_that_mean_on(text):
    assert Producer.from_config({"allow.auto.create.topics": text}).config.allow_auto_create_topics


@pytest.mark.parametrize("text", ["false", "False", "f", "0"])
def test_values_of_switches_that_mean_off(text):
    assert not Producer.from_config({"allow.auto.create.topics": text}).config.allow_auto_create_topics


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("linger.ms", "soon", "linger.ms='soon' must be a number of milliseconds, 0 or more"),
        ("linger.ms", "-1", "linger_ms=-1 must be a number of milliseconds, 0 or more"),
        ("linger.ms", "", "linger.ms='' must be a number"),
        ("linger.ms", None, "linger_ms=None must be a number"),
        ("queue.buffering.max.ms", "1s", "queue.buffering.max.ms='1s' must be a number of milliseconds"),
        ("batch.size", "1e6", "batch.size='1e6' must be a whole number"),
        ("enable.idempotence", "yes", "enable.idempotence='yes' must be true or false"),
        (
            "value.serializer",
            "com.example.Avro",
            "is a Java class without a counterpart in Python; also pass value_serializer as a keyword",
        ),
        (
            "key.serializer",
            "com.example.Avro",
            "also pass key_serializer as a keyword, which takes precedence",
        ),
        ("interceptor.classes", "com.example.Trace", "also pass interceptors as a keyword"),
        (
            "connector",
            "socks5://x",
            "can't be given as text; it must be async f(host, port) -> connected socket; also pass connector as a",
        ),
        ("partitioner.class", "com.example.ByRegion", "is not one of murmur2"),
        ("ssl.truststore.type", "JKS", "keytool -importkeystore"),
        (
            "sasl.login.callback.handler.class",
            "com.example.Tokens",
            "='com.example.Tokens' is not a Java class with",
        ),
    ],
)
def test_a_malformed_value_is_rejected_under_the_name_that_the_user_wrote(key, value, problem):
    protocol = (
        {"security.protocol": "SSL", "ssl.truststore.location": "ca.jks"} if key.startswith("ssl") else {}
    )

    with pytest.raises(ConfigError) as raised:
        Producer.from_config({key: value, **protocol})

    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("linger.mss", "did you mean linger.ms?"),
        ("bootstrap.server", "did you mean bootstrap.servers?"),
        ("queue.buffering.max.message", "did you mean queue.buffering.max.messages?"),
        ("lingerms", "did you mean linger_ms?"),
        ("LINGER_MS", "did you mean linger_ms?"),
        ("sasl.pasword", "did you mean sasl.password?"),
        ("ssl_cafile", "use ssl_truststore_location"),
        ("log.like.it.at.all.anywhere", "docs/configuration.md lists all"),
        ("lingr.ms", "did you mean linger.ms?"),
        ("sals.mechanism", "did you mean sasl.mechanism?"),
        ("session.timeout.m", "did you mean session.timeout.ms?"),
        ("producer.linger.ms", "did you mean linger.ms?"),
        ("kafka.acks", "did you mean acks?"),
        ("environment", "docs/configuration.md lists all"),
        ("my_app_setting", "docs/configuration.md lists all"),
        (".hidden.name", "there is no setting (hidden, because it is not a name)"),
        ("two words", "there is no setting (hidden, because it is not a name)"),
        ("", "there is no setting (hidden, because it is not a name)"),
    ],
)
def test_an_unknown_key_is_rejected_with_the_most_similar_one(key, meant):
    with pytest.raises(ConfigError) as raised:
        Producer.from_config({key: "hunter2"})

    assert meant in str(raised.value)
    assert raised.value.setting == key
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("key", "purpose"),
    [
        ("group.id", "meant for consumers"),
        ("auto.offset.reset", "meant for consumers"),
        ("value.deserializer", "meant for consumers"),
        ("consumer.max.poll.records", "meant for consumers"),
        ("bootstrap.controllers", "meant for admin clients"),
        ("admin.request.timeout.ms", "meant for admin clients"),
        ("schema.registry.url", "meant for a schema registry"),
        ("schema.registry.ssl.truststore.location", "meant for a schema registry"),
        ("basic.auth.user.info", "meant for a schema registry"),
        ("auto.register.schemas", "meant for a schema registry"),
        ("value.subject.name.strategy", "meant for a schema registry"),
        ("confluent.monitoring.interceptor.topic", "meant for Confluent's own tools"),
        ("application.id", "meant for Kafka Streams"),
        ("value.converter.schemas.enable", "meant for Kafka Connect"),
        ("spring.json.add.type.headers", "meant for Spring"),
        ("schema_registry_url", "meant for a schema registry"),
        ("my.own.app.setting", "unknown to Kafka's clients"),
        ("orders.topic", "unknown to Kafka's clients"),
        ("orders.client.id", "unknown to Kafka's clients"),
        ("nothing.like.it.at.all.anywhere", "unknown to Kafka's clients"),
    ],
)
def test_a_key_meant_for_other_programs_changes_nothing_and_causes_one_warning(key, purpose, caplog):
    config = Producer.from_config({key: "hunter2"}).config

    assert config == Producer().config
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.endswith(f"the producer's settings: {key} has no effect: {purpose}")
    assert "hunter2" not in caplog.text


def test_an_option_of_aiokafka_with_a_value_other_than_its_default_is_rejected():
    for name, value in (("loop", object()), ("api_version", "2.8.0")):
        with pytest.raises(ConfigError, match="leave it out"):
            Producer.from_config({name: value})
        with pytest.raises(ConfigError, match="leave it out"):
            Producer(**{name: value})


@pytest.mark.parametrize("order", [1, -1])
def test_librdkafkas_socket_timeout_yields_to_the_request_timeout(order, caplog):
    both = {"socket.timeout.ms": 60000, "request.timeout.ms": 20000}

    config = Producer.from_config(dict([*both.items()][::order])).config

    assert config.request_timeout == 20.0
    assert "socket.timeout.ms has no effect: request.timeout.ms sets the same thing" in caplog.text
    assert Producer.from_config({"socket.timeout.ms": 60000}).config.request_timeout == 60.0


@pytest.mark.parametrize(
    "name",
    [
        "max.block.ms",
        "linger.ms",
        "metadata.max.age.ms",
        "connections.max.idle.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.max.ms",
        "delivery.timeout.ms",
        "partitioner.availability.timeout.ms",
    ],
)
def test_javas_longest_duration_is_accepted(name):
    config = Producer.from_config({name: "9223372036854775807"}).config

    assert getattr(config, KEYS[name].setting.removesuffix("_ms")) == (2**53 - 1) / 1000


async def test_a_producer_with_the_longest_durations_starts_sends_and_closes():
    longest = dict.fromkeys(
        ("max.block.ms", "delivery.timeout.ms", "metadata.max.age.ms"), "9223372036854775807"
    )
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        for kind in (Producer, blocking.Producer):
            producer = kind.from_config(
                {"bootstrap.servers": cluster.bootstrap_servers, **longest, "linger.ms": "0"}
            )
            if isinstance(producer, Producer):
                async with producer:
                    await producer.send_and_wait("t", b"x")
            else:
                await asyncio.to_thread(send_one, producer)

        assert len(cluster.records("t")) == 2


def send_one(producer: blocking.Producer) -> None:
    with producer:
        producer.send_and_wait("t", b"x")


@pytest.mark.parametrize("family", ["v4", "v6", "any"])
def test_a_family_of_addresses_is_accepted(family, caplog):
    assert Producer.from_config({"broker.address.family": family}).config == Producer().config
    assert ("both families are tried" in caplog.text) == (family != "any")


def test_trusted_certificates_without_tls_cause_a_warning_in_a_file_and_an_error_as_keywords(caplog):
    config = Producer.from_config(
        {"ssl.ca.location": "/etc/ca.pem", "ssl.truststore.password": "hunter2"}
    ).config

    assert config.ssl_truststore_location is None
    assert (
        "ssl_truststore_location, ssl_truststore_password have no effect with security_protocol=PLAINTEXT"
        in (caplog.text)
    )
    with pytest.raises(ConfigError, match="set security_protocol=SSL or SASL_SSL"):
        Producer(ssl_truststore_location="/etc/ca.pem")
    with pytest.raises(ConfigError, match="set security_protocol=SSL or SASL_SSL"):
        Producer.from_config({"ssl.ca.location": "/etc/ca.pem", "ssl.key.password": "hunter2"})


def test_two_names_of_one_setting_agree_or_are_refused():
    agreed = Producer.from_config(
        {"acks": "all", "request.required.acks": -1, "linger.ms": "5", "queue.buffering.max.ms": 5.0}
    )

    assert agreed.config.acks == -1
    with pytest.raises(
        ConfigError, match=r"acks and request\.required\.acks both set acks, to different values"
    ):
        Producer.from_config({"acks": "all", "request.required.acks": 1})
    with pytest.raises(
        ConfigError, match=r"both set sasl_plain_password, to different values; keep one"
    ) as raised:
        Producer.from_config({"sasl.password": "hunter2", "sasl_plain_password": "hunter3"})
    assert "hunter" not in str(raised.value)


def test_overrides_are_keywords_and_take_precedence():
    config = Producer.from_config(
        {"request.required.acks": "1", "linger.ms": "7"}, acks="all", value_serializer=str.encode
    ).config

    assert (config.acks, config.linger, config.value_serializer) == (-1, 0.007, str.encode)
    assert [config.origin(name) for name in ("acks", "linger_ms", "client_id")] == [
        "explicit",
        "explicit",
        "default",
    ]
    with pytest.raises(ConfigError, match="linger_ms='5' must be a number"):
        Producer.from_config({}, linger_ms="5")
    with pytest.raises(ConfigError, match="Producer has no setting lingerms; did you mean linger_ms"):
        Producer.from_config({}, lingerms=5)


async def connect(host: str, port: int) -> Any:
    return None


FOLLOWED = [
    (
        "value.serializer",
        "com.example.KafkaAvroSerializer",
        "value_serializer",
        str.encode,
    ),
    ("key.serializer", "com.example.Avro", "key_serializer", str.encode),
    ("value.serializer", "com.example.Avro", "value_serializer", None),
    ("interceptor.classes", "com.example.Trace", "interceptors", []),
    ("partitioner.class", "com.example.ByRegion", "partitioner", "random"),
    ("connect_cb", "x", "connector", connect),
    ("partitioner_cb", "x", "partitioner", "random"),
    ("plugin.library.paths", "x.so", "interceptors", []),
    ("ssl.endpoint.identification.algorithm", "", "ssl_context", ssl.create_default_context()),
    ("ssl.provider", "BC", "ssl_context", ssl.create_default_context()),
    ("sasl.login.callback.handler.class", "com.example.Tokens", "sasl_oauth_token_provider", lambda: "token"),
    ("sasl.client.callback.handler.class", "com.example.Iam", "sasl_oauth_token_provider", lambda: "token"),
    ("sasl.oauthbearer.assertion.file", "/token", "sasl_oauth_token_provider", lambda: "token"),
]


@pytest.mark.parametrize(("key", "text", "keyword", "given"), FOLLOWED)
def test_the_advice_to_give_a_keyword_can_be_followed_with_the_same_file(
    key, text, keyword, given, tmp_path, caplog
):
    file = tmp_path / "client.properties"
    file.write_text(f"linger.ms=7\n{key}={text}\n")
    with pytest.raises(ConfigError, match=keyword):
        Producer.from_properties(file)
    protocol = {"ssl_context": "SSL", "sasl_oauth_token_provider": "SASL_SSL"}.get(keyword, "PLAINTEXT")

    config = Producer.from_properties(file, **{keyword: given, "security_protocol": protocol}).config

    assert getattr(config, keyword) == (tuple(given) if given == [] else given)
    assert config.origin(keyword) == ("default" if given is None else "explicit")
    assert config.linger == 0.007
    note = f"{key} ({file}:2) has no effect: the {keyword} keyword takes precedence"
    assert (note in caplog.text) == (key not in KEYS or not KEYS[key].setting)


@pytest.mark.parametrize("mapping", [None, "acks=1", [("acks", 1)], 5])
def test_anything_but_a_mapping_is_rejected(mapping):
    with pytest.raises(ConfigError, match="from_config requires a mapping of settings, not"):
        Producer.from_config(mapping)


def test_a_name_that_is_not_text_is_rejected():
    with pytest.raises(ConfigError, match="a setting's name must be a str, not int"):
        Producer.from_config({5: "hunter2"})


def test_the_mapping_is_not_changed():
    mapping = {"sasl.username": "svc", "sasl.password": "pw", "security.protocol": "SASL_SSL", "retries": "3"}
    before = dict(mapping)

    Producer.from_config(mapping, sasl_mechanism="PLAIN")

    assert mapping == before


def test_a_subclass_is_built_by_its_own_constructor():
    class Orders(Producer):
        def __init__(self, bootstrap_servers: str, *, client_id: str = "x", **settings: object) -> None:
            super().__init__(bootstrap_servers, client_id=client_id + ".orders", **settings)

    producer = Orders.from_config({"metadata.broker.list": "a:1", "client.id": "eu", "linger.ms": "7"})

    assert type(producer) is Orders
    assert producer.config.client_id == "eu.orders"
    assert producer.config.origin("bootstrap_servers") == "explicit as metadata.broker.list"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("String", "é", "é".encode()),
        ("Short", -2, struct.pack(">h", -2)),
        ("Integer", 258, b"\0\0\1\2"),
        ("Long", 258, b"\0\0\0\0\0\0\1\2"),
        ("Float", 1.5, struct.pack(">f", 1.5)),
        ("Double", 1.5, struct.pack(">d", 1.5)),
        ("Boolean", True, b"\1"),
        ("UUID", uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
    ],
)
def test_javas_serializers_have_counterparts(name, value, expected):
    path = f"org.apache.kafka.common.serialization.{name}Serializer"

    config = Producer.from_config({"key.serializer": path, "value.serializer": path}).config

    assert config.key_serializer(value) == expected
    assert config.value_serializer(None) is None, "a tombstone stays one"


@pytest.mark.parametrize("name", ["ByteArray", "Bytes", "ByteBuffer"])
def test_javas_serializers_of_bytes_add_no_serializer(name):
    path = f"org.apache.kafka.common.serialization.{name}Serializer"

    assert path in SERIALIZERS
    assert Producer.from_config({"value.serializer": path}).config.value_serializer is None


# ----------------------------------------------------------------------------------------------------- from_env


def test_settings_are_read_from_the_environment():
    environ = {
        "AIOPRODUCER_BOOTSTRAP_SERVERS": "a:1",
        "AIOPRODUCER_LINGER_MS": "7.5",
        "AIOPRODUCER_MESSAGE_TIMEOUT_MS": "60000",
        "AIOPRODUCER_ENABLE_IDEMPOTENCE": "true",
        "PATH": "/bin",
        "OTHER_LINGER_MS": "9",
    }

    config = Producer.from_env(environ=environ).config

    assert (config.bootstrap_servers, config.linger, config.delivery_timeout) == ((("a", 1),), 0.0075, 60)
    assert config.origin("linger_ms") == "environment AIOPRODUCER_LINGER_MS"
    assert (
        config.origin("delivery_timeout_ms")
        == "environment AIOPRODUCER_MESSAGE_TIMEOUT_MS as message_timeout_ms"
    )
    assert "linger_ms = 7.5 (environment AIOPRODUCER_LINGER_MS)" in str(config)


def test_the_processs_own_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("AIOPRODUCER_CLIENT_ID", "orders")
    monkeypatch.setenv("ORDERS_CLIENT_ID", "others")

    assert Producer.from_env().config.client_id == "orders"
    assert Producer.from_env("ORDERS_").config.client_id == "others"
    assert Producer.from_env(prefix="ORDERS_", client_id="mine").config.client_id == "mine"


def test_variables_of_the_test_tools_are_not_settings():
    environ = {"AIOPRODUCER_CACHE_DIR": "/cache", "AIOPRODUCER_TEST_SLOWNESS": "5"}

    assert Producer.from_env(environ=environ).config == Producer().config


KUBERNETES = {
    "{}_SERVICE_HOST": "10.96.0.7",
    "{}_SERVICE_PORT": "9092",
    "{}_SERVICE_PORT_CLIENTS": "9092",
    "{}_PORT": "tcp://10.96.0.7:9092",
    "{}_PORT_9092_TCP": "tcp://10.96.0.7:9092",
    "{}_PORT_9092_TCP_PROTO": "tcp",
    "{}_PORT_9092_TCP_PORT": "9092",
    "{}_PORT_9092_TCP_ADDR": "10.96.0.7",
    "{}_PORT_9093_UDP": "udp://10.96.0.7:9093",
}
"""The variables that a container gets for each Service in its namespace."""


@pytest.mark.parametrize("service", ["KAFKA", "KAFKA_BROKER", "KAFKA_0_EXTERNAL"])
def test_variables_that_kubernetes_sets_for_a_service_are_not_settings(service, caplog):
    environ = {name.format(service): value for name, value in KUBERNETES.items()}

    config = Producer.from_env("KAFKA_", environ | {"KAFKA_LINGER_MS": "7"}).config

    assert config.linger == 0.007
    assert caplog.records == []


def test_variables_of_a_service_of_another_name_are_not_settings_either():
    environ = {name.format("ORDERS"): value for name, value in KUBERNETES.items()}

    for prefix in ("ORDERS_", "ORDERS"):
        assert Producer.from_env(prefix, environ).config == Producer().config


def test_variables_of_kafkas_scripts_are_not_settings(caplog):
    environ = {
        "KAFKA_HOME": "/opt/kafka",
        "KAFKA_OPTS": "-Djava.security.auth.login.config=/etc/jaas.conf",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "KAFKA_LOG4J_OPTS": "-Dlog4j2.configurationFile=x",
    }

    assert Producer.from_env("KAFKA_", environ).config == Producer().config
    assert caplog.records == []


def test_a_port_that_kubernetes_has_not_set_is_refused():
    with pytest.raises(ConfigError, match="environment KAFKA_PORT: there is no setting port"):
        Producer.from_env("KAFKA_", {"KAFKA_PORT": "9092"})


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        (
            "AIOPRODUCER_LINGER_MS",
            "soon",
            "environment AIOPRODUCER_LINGER_MS: linger_ms='soon' must be a number",
        ),
        ("AIOPRODUCER_LINGER_MS", "", "environment AIOPRODUCER_LINGER_MS: linger_ms='' must be a number"),
        ("AIOPRODUCER_ACKS", "2", "acks='2' (environment AIOPRODUCER_ACKS) is not one of 0, 1, 'all'"),
        (
            "AIOPRODUCER_LINGERMS",
            "5",
            "environment AIOPRODUCER_LINGERMS: there is no setting lingerms; did you mean linger_ms",
        ),
        (
            "AIOPRODUCER_QUEUING_STRATEGY",
            "lifo",
            "environment AIOPRODUCER_QUEUING_STRATEGY: queuing_strategy=lifo can't be used: records for a partition",
        ),
        (
            "AIOPRODUCER_SASL_PASSWORD",
            "hunter2",
            "sasl_plain_password (environment AIOPRODUCER_SASL_PASSWORD as sasl_password) has no effect with "
            "security_protocol=PLAINTEXT",
        ),
    ],
)
def test_an_error_names_the_variable(variable, value, problem):
    with pytest.raises(ConfigError) as raised:
        Producer.from_env(environ={variable: value})

    assert problem in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ([("AIOPRODUCER_ACKS", "1")], "from_env requires a mapping of variables, not list"),
        ({b"AIOPRODUCER_ACKS": "1"}, "a variable's name must be a str, not bytes"),
        ({"AIOPRODUCER_ACKS": "1", 5: "5"}, "a variable's name must be a str, not int"),
    ],
)
def test_variables_that_are_not_a_mapping_of_text_are_rejected(variables, problem):
    with pytest.raises(ConfigError, match=problem):
        Producer.from_env(environ=variables)


@pytest.mark.parametrize("prefix", ["", None, 5])
def test_an_empty_prefix_is_refused(prefix):
    with pytest.raises(ConfigError, match="must be a non-empty str: the prefix of the variables"):
        Producer.from_env(prefix)


# ----------------------------------------------------------------------------------------------- from_properties

CLIENT_PROPERTIES = """\
# What the platform team hands out.
bootstrap.servers = broker-1.example.com:9093,\\
                    broker-2.example.com:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="svc" \\
    password="correct horse \\\\"battery\\\\" staple";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ssl/kafka.pem
ssl.endpoint.identification.algorithm=https
send.buffer.bytes=131072
"""


def test_javas_own_file_is_accepted_unchanged(tmp_path, caplog):
    path = properties(tmp_path, CLIENT_PROPERTIES)

    with caplog.at_level(logging.WARNING, "aioproducer"):
        config = Producer.from_properties(path).config

    assert config.bootstrap_servers == (("broker-1.example.com", 9093), ("broker-2.example.com", 9093))
    assert (config.security_protocol, config.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (config.sasl_plain_username, config.sasl_plain_password) == (
        "svc",
        Secret('correct horse "battery" staple'),
    )
    assert config.ssl_truststore_location == "/etc/ssl/kafka.pem"
    assert config.origin("sasl_mechanism") == f"{path}:5"
    assert config.origin("sasl_plain_password") == f"{path}:6"
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"send.buffer.bytes ({path}:12) has no effect" in warning
    assert f"bootstrap_servers = broker-1.example.com:9093,broker-2.example.com:9093 ({path}:2)" in str(
        config
    )


@pytest.mark.promise(
    "Settings from anywhere", "a properties file is read as Java reads it; errors name file and line"
)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("acks=all\nlinger.ms=soon\n", "{path}:2: linger.ms='soon' must be a number of milliseconds"),
        ("\n\nlinger.ms=-5\n", "linger_ms=-5 ({path}:3) must be a number of milliseconds"),
        ("lingerms=5\n", "{path}:1: there is no setting lingerms; did you mean linger_ms?"),
        ("a\n", "{path}:1: this line has no '=' and is not a setting"),
        ("=5\n", "{path}:1: there is no setting (hidden, because it is not a name)"),
        (
            "queuing.strategy=lifo\n",
            "{path}:1: queuing.strategy=lifo can't be used: records for a partition are",
        ),
        ("sasl.password=x\n", "sasl_plain_password ({path}:1 as sasl.password) has no effect with"),
        (
            "security.protocol=SSL\nssl.key.location=key.pem\n",
            "ssl_key_location ({path}:2) requires ssl_keystore_certificate_chain or",
        ),
        (
            "acks=1\nacks=all\n",
            "acks ({path}:1) and acks ({path}:2) both set acks, to different values; keep one",
        ),
        (
            "acks=1\nenable.idempotence=true\n",
            "acks=1 ({path}:1) cannot be used with enable_idempotence=True ({path}:2), which requires acks='all'",
        ),
        (
            "delivery.timeout.ms=1000\nsocket.timeout.ms=5000",
            "delivery_timeout_ms=1000 ({path}:1) is shorter than linger_ms=5 + "
            "request_timeout_ms=5000 ({path}:2 as socket.timeout.ms)",
        ),
        (
            "ssl.endpoint.identification.algorithm=\n",
            "{path}:1: ssl.endpoint.identification.algorithm= can't be used",
        ),
    ],
)
def test_an_error_names_file_and_line(text, problem, tmp_path):
    path = properties(tmp_path, text)

    with pytest.raises(ConfigError) as raised:
        Producer.from_properties(path)

    assert problem.format(path=path) in str(raised.value)


@pytest.mark.promise(
    "Settings from anywhere", "all mistakes of a file are reported at once, each with its line"
)
def test_all_mistakes_of_a_file_are_reported_at_once_each_with_its_line(tmp_path):
    text = """\
acks=5
linger.ms=soon
lingerms=5
queuing.strategy=lifo
retry.backoff.ms=200
retry.backoff.max.ms=100
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.username=svc
ssl.key.location=key.pem
batch.size=-1
max.request.size=1
max.request.size=2000
group.id=orders
"""
    path = properties(tmp_path, text)

    with pytest.raises(ConfigError) as raised:
        Producer.from_properties(path)

    first, *lines = str(raised.value).split("\n")
    assert first == "there are 9 mistakes in the settings:"
    assert lines == [
        f"  {path}:2: linger.ms='soon' must be a number of milliseconds, 0 or more",
        f"  {path}:3: there is no setting lingerms; did you mean linger_ms?",
        f"  {path}:4: queuing.strategy=lifo can't be used: records for a partition are sent in the order of the send() "
        "calls; leave it out",
        f"  max.request.size ({path}:12) and max.request.size ({path}:13) both set max_request_size, to different "
        "values; keep one",
        f"  acks='5' ({path}:1) is not one of 0, 1, 'all'",
        f"  batch_size=-1 ({path}:11) must be a whole number from 0 to 2147483647",
        f"  retry_backoff_ms=200 ({path}:5) is more than retry_backoff_max_ms=100 ({path}:6); lower it or raise "
        "retry_backoff_max_ms",
        f"  ssl_key_location ({path}:10) requires ssl_keystore_certificate_chain or ssl_certificate_location",
        f"  sasl_mechanism=PLAIN ({path}:8) requires sasl_plain_username and sasl_plain_password, or sasl_credentials; "
        "sasl_plain_password is missing",
    ]
    assert [error.message for error in raised.value.errors] == [line.strip() for line in lines]
    assert raised.value.setting == raised.value.errors[0].setting == "linger_ms"
    assert pickle.loads(pickle.dumps(raised.value)).errors[3].setting == "max_request_size"


@pytest.mark.parametrize(
    "text",
    [
        "sasl.mechanism=PLAIN\nsasl.username=svc\nsasl.pasword=hunter2\nsecurity.protocol=SASL_SSL\n",
        "sasl.mechanisn=PLAIN\nsasl.username=svc\nsasl.password=hunter2\nsecurity.protocol=SASL_SSL\n",
        "security.protocl=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=svc\nsasl.password=hunter2\n",
        "security.protocol=SASL_TLS\nsasl.mechanism=PLAIN\nsasl.username=svc\nsasl.password=hunter2\n",
        "sasl.mechanism=OAUTHBEARER\nsecurity.protocol=SASL_SSL\nsasl.login.callback.handler.class=com.example.Own\n",
        "sasl.mechanism=OAUTHBEARER\nsecurity.protocol=SASL_SSL\nsasl.oauthbearer.grant.type=other\n",
        "delivery.timeout.ms=soon\nrequest.timeout.ms=300000\n",
        "transactional.id=\nacks=1\n",
    ],
)
def test_a_mistake_causes_no_further_errors(text, tmp_path):
    with pytest.raises(ConfigError) as raised:
        Producer.from_properties(properties(tmp_path, text))

    assert raised.value.errors == ()
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_part_of_a_password_in_place_of_a_key_is_not_shown(tmp_path):
    text = 'sasl.jaas.config=x.PlainLoginModule required username="svc"\n  "hunter2";\n  hunter2\n  hunter2 hunter2\n'

    with pytest.raises(ConfigError, match="is a backslash missing at the end of the line") as raised:
        Producer.from_properties(properties(tmp_path, text))

    assert "hunter2" not in str(raised.value)


def test_blanks_after_a_password_are_not_part_of_it_as_in_java(tmp_path):
    text = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=svc\nsasl.password=pw  \n"

    assert Producer.from_properties(properties(tmp_path, text)).config.sasl_plain_password == Secret("pw")


def test_blanks_after_a_text_are_not_part_of_it_as_in_java(tmp_path):
    text = "transactional.id=orders \t\nclient.id=svc \nssl.ca.location=ca.pem \nsecurity.protocol=SSL\n"

    config = Producer.from_properties(properties(tmp_path, text)).config

    assert (config.transactional_id, config.client_id) == ("orders", "svc")
    assert config.ssl_truststore_location == "ca.pem"


def test_overrides_take_precedence_over_the_file(tmp_path):
    path = properties(
        tmp_path, "value.serializer=org.apache.kafka.common.serialization.LongSerializer\nacks=1\n"
    )

    config = Producer.from_properties(str(path), acks="all", value_serializer=None).config

    assert (config.acks, config.value_serializer) == (-1, None)


PEM = "-----BEGIN CERTIFICATE-----\\nMAo=\\n-----END CERTIFICATE-----"
STORES = {
    "security.protocol": "SSL",
    "ssl.truststore.location": "old.jks",
    "ssl.truststore.type": "JKS",
    "ssl.truststore.password": "hunter2",
    "ssl.keystore.location": "old.p12",
    "ssl.keystore.type": "PKCS12",
    "ssl.keystore.password": "hunter2",
    "ssl.key.password": "hunter2",
}


@pytest.mark.promise("Settings from anywhere", "keywords always override a file")
@pytest.mark.parametrize(
    ("settings", "keywords", "expected"),
    [
        # a value that can't be used
        ({"linger.ms": "soon"}, {"linger_ms": 5}, {"linger": 0.005}),
        ({"linger.ms": "5", "queue.buffering.max.ms": "7"}, {"linger_ms": 9}, {"linger": 0.009}),
        ({"max.block.ms": "-5"}, {"max_block_ms": 5}, {"max_block": 0.005}),
        (
            {"enable.gapless.guarantee": "true"},
            {"enable_gapless_order": True},
            {"enable_gapless_order": True},
        ),
        ({"retries": "0"}, {"delivery_timeout_ms": 60_000}, {"delivery_timeout": 60.0}),
        (
            {"sasl.login.class": "com.example.Login"},
            {"sasl_plain_password": None},
            {"sasl_plain_password": None},
        ),
        # a store
        (STORES, {"ssl_truststore_location": "new.pem"}, {"ssl_truststore_location": "new.pem"}),
        (
            STORES,
            {"ssl_truststore_certificates": PEM.replace("\\n", "\n")},
            {"ssl_truststore_location": None, "ssl_truststore_password": None, "ssl_truststore_type": None},
        ),
        (
            {**STORES, "ssl.truststore.type": "PKCS12"},
            {"ssl_certificate_location": "new.pem", "ssl_key_location": "new.key"},
            {"ssl_certificate_location": "new.pem", "ssl_keystore_location": None, "ssl_keystore_type": None},
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.certificates": PEM},
            {"ssl_truststore_location": "new.pem"},
            {"ssl_truststore_certificates": None},
        ),
        (STORES, {"ssl_context": ssl.create_default_context()}, {"ssl_truststore_location": None}),
        # a protocol
        (
            STORES,
            {"security_protocol": "PLAINTEXT"},
            {"ssl_keystore_location": None, "ssl_key_password": None},
        ),
        (
            {"security.protocol": "SSL"},
            {"security_protocol": "PLAINTEXT"},
            {"security_protocol": "PLAINTEXT"},
        ),
        # a contradiction
        ({"enable.idempotence": "true"}, {"acks": 1}, {"acks": 1, "enable_idempotence": False}),
        ({"acks": "1"}, {"enable_idempotence": True}, {"acks": -1, "enable_idempotence": True}),
        ({"acks": "1", "enable.idempotence": "false"}, {"transactional_id": "t"}, {"acks": -1}),
        (
            {"enable.idempotence": "true"},
            {"max_in_flight_requests_per_connection": 6},
            {"enable_idempotence": False, "max_in_flight_requests_per_connection": 6},
        ),
        (
            {"acks": "1", "enable.idempotence": "false", "max.in.flight": "9"},
            {"enable_gapless_order": True, "enable_endless_retries": True},
            {"acks": -1, "enable_idempotence": True, "max_in_flight_requests_per_connection": 5},
        ),
        ({"request.timeout.ms": "60000"}, {"delivery_timeout_ms": 5000}, {"request_timeout": 4.995}),
        ({"linger.ms": "60000"}, {"delivery_timeout_ms": 5000}, {"linger": 0.005, "request_timeout": 4.995}),
        ({"delivery.timeout.ms": "60000"}, {"request_timeout_ms": 90_000}, {"delivery_timeout": 120.0}),
        ({"retry.backoff.ms": "200"}, {"retry_backoff_max_ms": 100}, {"retry_backoff": 0.1}),
        (
            {"partitioner.class": "RoundRobinPartitioner"},
            {"partitioner": "random"},
            {"partitioner": "random"},
        ),
        ({"partitioner": "round_robin"}, {"partitioner_ignore_keys": True}, {"partitioner": "random"}),
        (
            {"compression.type": "gzip", "compression.level": "9"},
            {"compression_type": "none"},
            {"compression_level": None},
        ),
        ({"batch.size": "-1"}, {"max_batch_size": 2000}, {"batch_size": 2000}),
    ],
)
def test_keywords_always_take_precedence_over_a_file(settings, keywords, expected, tmp_path):
    path = properties(tmp_path, "".join(f"{name}={value}\n" for name, value in settings.items()))

    config = Producer.from_properties(path, **keywords).config

    assert {name: getattr(config, name) for name in expected} == pytest.approx(expected)


def test_an_overridden_setting_of_a_file_is_reported_with_its_place(tmp_path, caplog):
    path = properties(tmp_path, "acks=1\nlinger.ms=7\n")

    Producer.from_properties(path, enable_idempotence=True, linger_ms=9)

    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.endswith(f"settings: the enable_idempotence keyword overrides acks ({path}:1)")


def test_no_keyword_replaces_a_key_that_requests_the_fixed_behaviour(tmp_path, caplog):
    path = properties(tmp_path, "client.dns.lookup=use_all_dns_ips\nretries=2147483647\n")

    Producer.from_properties(path, bootstrap_servers="a:1", delivery_timeout_ms=60_000)

    assert caplog.records == []


def test_contradictory_keywords_are_also_rejected_together_with_a_file(tmp_path):
    path = properties(tmp_path, "linger.ms=7\n")

    with pytest.raises(ConfigError, match="acks=1 cannot be used with enable_idempotence=True"):
        Producer.from_properties(path, acks=1, enable_idempotence=True)


@pytest.mark.parametrize(
    ("given", "override"), [("batch.size", "max_batch_size"), ("max_batch_size", "batch_size")]
)
def test_overrides_also_take_precedence_under_another_name_of_a_setting(given, override):
    config = Producer.from_config({given: 1000}, **{override: 2000}).config

    assert config.batch_size == 2000
    assert config.origin("batch_size").startswith("explicit")
    with pytest.raises(ConfigError, match="both set the same thing"):
        Producer.from_config({}, batch_size=1000, max_batch_size=2000)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.properties' can't be read: there is no such file"):
        Producer.from_properties(tmp_path / "missing.properties")


def test_a_relative_path_is_read_from_the_working_directory(tmp_path, monkeypatch):
    properties(tmp_path, "client.id=orders\n")
    monkeypatch.chdir(tmp_path)

    config = Producer.from_properties("client.properties").config

    assert config.client_id == "orders"
    assert config.origin("client_id") == "client.properties:1"
    assert not os.path.isabs("client.properties")


@pytest.mark.parametrize("name", ["derived.properties", "explicit.properties", "default"])
def test_the_name_of_a_file_is_not_mistaken_for_an_origin(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("acks=1\nenable.idempotence=true\n")

    with pytest.raises(ConfigError) as raised:
        Producer.from_properties(name)

    assert f"acks=1 ({name}:1) cannot be used with enable_idempotence=True ({name}:2)" in str(raised.value)


# -------------------------------------------------------------------------------------------------- sending


async def test_a_producer_from_another_clients_configuration_sends():
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        settings = {
            "metadata.broker.list": cluster.bootstrap_servers,
            "queue.buffering.max.ms": "0",
            "compression.codec": "gzip",
            "message.send.max.retries": "5",
        }
        async with Producer.from_config(settings, value_serializer=str.encode) as producer:
            await producer.send_and_wait("orders", "7")

        assert [record.value for record in cluster.records("orders")] == [b"7"]


# --------------------------------------------------------------------------------------------------- from entries


def test_entries_of_a_mapping_become_keywords_with_their_origins():
    sourced = resolve(entries_of_mapping({"linger.ms": "5", "acks": "all"}), {})

    assert sourced.settings == {"linger_ms": 5, "acks": "all"}
    assert sourced.origins["linger_ms"] == "explicit"


def test_a_keyword_replaces_an_entry_and_its_origin():
    entries = entries_of_environment("APP_", {"APP_LINGER_MS": "5", "OTHER": "x"})
    sourced = resolve(entries, {"linger_ms": 7})

    assert [entry.origin for entry in entries] == ["environment APP_LINGER_MS"]
    assert sourced.settings == {"linger_ms": 7}
    assert sourced.origins == {}
