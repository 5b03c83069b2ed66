"""Configuration files as vendors publish them: each loads without changes, with at most one warning.

The files are in vendors/, each with its source. Their secrets are made up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aioproducer import ConfigError, Producer, ProducerConfig, blocking
from aioproducer.testing import RecordingProducer
from aioproducer.types import Secret
from tests.settings.vendors import librdkafka

FILES = Path(__file__).parent / "vendors"


class Expected(NamedTuple):
    """The settings in effect, and the content of the warning."""

    settings: dict[str, Any]
    """The values of fields of ProducerConfig; for objects, their repr."""
    notes: Sequence[str] = ()
    """The parts of the only warning, in order; `{3}` is the place FILE:3."""


SASL_SSL = {"security_protocol": "SASL_SSL"}
OAUTH = {**SASL_SSL, "sasl_mechanism": "OAUTHBEARER"}
CONFLUENT_CLOUD = {
    **SASL_SSL,
    "bootstrap_servers": (("pkc-4r087.us-west2.gcp.confluent.cloud", 9092),),
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "FAKEAPIKEY",
    "sasl_plain_password": Secret("fake/secret+key"),
}
LOADED = {
    "confluent_cloud_java": Expected(
        {**CONFLUENT_CLOUD, "client_id": "ccloud-java-client-0d6b1a3e-6a0f-4c6e-9d7e-3f0a7a3d8a11"},
        [
            "session.timeout.ms ({12}) has no effect: meant for consumers",
            "schema.registry.url ({20}), basic.auth.credentials.source ({21}) and basic.auth.user.info ({22}) have no "
            "effect: meant for a schema registry",
        ],
    ),
    "confluent_cloud_python": Expected(
        {**CONFLUENT_CLOUD, "client_id": "ccloud-python-client-0d6b1a3e-6a0f-4c6e-9d7e-3f0a7a3d8a11"},
        ["session.timeout.ms ({11}) has no effect: meant for consumers"],
    ),
    "msk_scram": Expected(
        {
            **SASL_SSL,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": Secret("fake-secret"),
            "ssl_truststore_location": "/tmp/kafka.client.truststore.jks",
        }
    ),
    "msk_iam": Expected(
        {
            **OAUTH,
            "sasl_oauth_token_provider": "<MskIamTokenProvider us-east-1, role "
            "arn:aws:iam::123456789012:role/msk_client_role>",
        },
        ["awsDebugCreds in sasl_jaas_config ({7}) has no effect"],
    ),
    "msk_oauthbearer": Expected(
        {**OAUTH, "sasl_oauth_token_provider": "<MskIamTokenProvider eu-west-1, profile orders>"}
    ),
    "google": Expected({**OAUTH, "sasl_oauth_token_provider": "<GcpTokenProvider default credentials>"}),
    "strimzi": Expected(
        {
            **OAUTH,
            "sasl_oauthbearer_client_credentials_client_id": "team-a-client",
            "sasl_oauthbearer_client_credentials_client_secret": Secret("fake-client-secret"),
            "sasl_oauthbearer_token_endpoint_url": (
                "https://keycloak.example.com/realms/kafka/protocol/openid-connect/token"
            ),
            "sasl_oauthbearer_scope": "kafka",
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": "/opt/cluster-ca/ca.crt",
        },
        ["oauth.username.claim in sasl_jaas_config ({8}) has no effect"],
    ),
    "event_hubs_connection_string": Expected(
        {
            **SASL_SSL,
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "$ConnectionString",
            "sasl_plain_password": Secret(
                "Endpoint=sb://mynamespace.servicebus.windows.net/;"
                "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=fakeFAKEfake="
            ),
        }
    ),
    "event_hubs_oauth": Expected(
        {
            **OAUTH,
            "sasl_oauth_token_provider": (
                "<AzureTokenProvider https://mynamespace.servicebus.windows.net/.default>"
            ),
        }
    ),
    "aiven_pem": Expected(
        {
            "security_protocol": "SSL",
            "ssl_truststore_location": "ca.pem",
            "ssl_certificate_location": "service.cert",
            "ssl_key_location": "service.key",
        }
    ),
    "redpanda": Expected(
        {
            **SASL_SSL,
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "orders",
            "sasl_plain_password": Secret("fake-secret"),
        }
    ),
    "java_team": Expected(
        {
            "client_id": "orders-service:producer@eu",
            "acks": -1,
            "enable_idempotence": True,
            "linger": 0.02,
            "batch_size": 65536,
            "buffer_memory": 33554432,
            "max_block": (2**53 - 1) / 1000,
            "delivery_timeout": 120.0,
            "request_timeout": 30.0,
            "value_serializer": None,
            "interceptors": (),
        },
        [
            "send.buffer.bytes ({18}) has no effect: the operating system sizes socket buffers",
            "value.serializer ({20}) has no effect: a schema registry's serializers for Java can't be loaded; send "
            "bytes, or pass a Python function as a keyword argument",
            "schema.registry.url ({21}), auto.register.schemas ({22}), use.latest.version ({23}) and "
            "specific.avro.reader ({33}) have no effect: meant for a schema registry",
            "interceptor.classes ({24}) has no effect: Java interceptors for monitoring and tracing can't be loaded; "
            "call producer.metrics(), or use aioproducer.otel",
            "confluent.monitoring.interceptor.bootstrap.servers ({25}) has no effect: meant for Confluent's own "
            "tools",
            "metric.reporters ({26}) has no effect: Java classes can't be loaded; call producer.metrics()",
            "group.id ({28}), auto.offset.reset ({29}), enable.auto.commit ({30}), key.deserializer ({31}) and "
            "value.deserializer ({32}) have no effect: meant for consumers",
            "orders.topic.name ({35}) and orders.retry.max-attempts ({36}) have no effect: unknown to Kafka's "
            "clients",
        ],
    ),
}
SECRETS = ("fake/secret", "fake-secret", "fake-client-secret", "fake-sr-secret", "fakeFAKEfake")


def path_of(name: str) -> Path:
    return FILES / f"{name}.properties"


def loaded(load: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> tuple[ProducerConfig, list[str]]:
    """Return the settings in effect, and everything that was logged."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "aioproducer"):
        config = load().config
    return config, [record.getMessage() for record in caplog.records]


def in_effect(config: ProducerConfig, expected: Expected) -> dict[str, Any]:
    found = {name: getattr(config, name) for name in expected.settings}
    provider = "sasl_oauth_token_provider"
    return {name: repr(value) if name == provider else value for name, value in found.items()}


def with_places(expected: Expected, path: Path) -> list[str]:
    places = [f"{path}:{line}" for line in range(100)]
    return [note.format(*places) for note in expected.notes]


@pytest.fixture(autouse=True)
def _no_region_in_the_environment(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.promise(
    "Settings from anywhere", "the configuration files of vendors load unchanged, with at most one warning"
)
@pytest.mark.parametrize("name", LOADED)
def test_a_vendors_file_loads_unchanged_with_at_most_one_warning(name, caplog):
    path, expected = path_of(name), LOADED[name]

    config, logged = loaded(lambda: Producer.from_properties(path), caplog)

    assert in_effect(config, expected) == expected.settings
    notes = "; ".join(with_places(expected, path))
    client = f"[producer {config.client_id}] "
    assert logged == ([f"{client}the producer's settings: {notes}"] if notes else [])
    for secret in SECRETS:
        assert secret not in f"{config}{config!r}{logged}"


@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize("kind", [blocking.Producer, RecordingProducer], ids=["blocking", "recording"])
def test_the_other_producers_accept_the_same_file_with_the_same_warning(name, kind, caplog):
    path, expected = path_of(name), LOADED[name]

    config, logged = loaded(lambda: kind.from_properties(path), caplog)

    assert in_effect(config, expected) == expected.settings
    assert len(logged) == (1 if expected.notes else 0)


def test_every_file_names_its_source_and_is_tested():
    files = {path.stem for path in FILES.glob("*.properties")}

    assert files == {*LOADED, "aiven_jks"}
    assert all("# Source" in path_of(name).read_text() for name in files)
    assert "Source: https://" in str(librdkafka.__doc__)


def test_a_dict_for_librdkafkas_producers_and_consumers_loads_unchanged(caplog):
    config, [warning] = loaded(lambda: Producer.from_config(librdkafka.SETTINGS), caplog)

    assert config.bootstrap_servers == (("kafka-1.example.com", 9093), ("kafka-2.example.com", 9093))
    assert (config.security_protocol, config.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert config.sasl_plain_password == Secret("fake-secret")
    assert config.ssl_truststore_location == "/etc/ssl/certs/ca-certificates.crt"
    assert (config.delivery_timeout, config.request_timeout, config.linger) == (2_147_483.647, 30.0, 0.005)
    assert warning.removeprefix("[producer orders] the producer's settings: ").split("; ") == [
        "group.id, auto.offset.reset, enable.auto.commit and session.timeout.ms have no effect: meant for consumers",
        "broker.address.family has no effect: both families are tried and the faster one wins (RFC 8305)",
        "queue.buffering.max.messages has no effect: buffer_memory limits the waiting records, in bytes",
        "statistics.interval.ms has no effect: statistics are not emitted",
        "call producer.metrics() at any time",
        "socket.timeout.ms has no effect: request.timeout.ms sets the same thing",
    ]


def test_for_a_jks_the_error_has_a_keytool_command_after_which_the_file_loads(tmp_path, caplog):
    path = path_of("aiven_jks")
    with pytest.raises(ConfigError) as caught:
        Producer.from_properties(path)
    converted = tmp_path / "client.properties"
    converted.write_text(
        path.read_text()
        .replace("ssl.truststore.type=JKS", "ssl.truststore.type=PKCS12")
        .replace("client.truststore.jks", "client.truststore.p12")
    )

    config, logged = loaded(lambda: Producer.from_properties(converted), caplog)

    assert str(caught.value) == (
        f"ssl_truststore_type='JKS' ({path}:10) is not one of PEM, PKCS12; convert the file: keytool -importkeystore "
        "-srckeystore client.jks -destkeystore client.p12 -deststoretype PKCS12"
    )
    assert (config.ssl_truststore_type, config.ssl_truststore_location) == ("PKCS12", "client.truststore.p12")
    assert (config.ssl_keystore_type, config.ssl_keystore_location) == ("PKCS12", "client.keystore.p12")
    assert config.ssl_keystore_password == Secret("fake-secret")
    assert logged == []


@pytest.mark.parametrize("name", [name for name in LOADED if "sasl_plain_password" in LOADED[name].settings])
def test_a_password_in_the_code_takes_precedence_over_that_of_a_vendors_file(name):
    """The password in the file may be a setting or part of the JAAS line."""
    config = Producer.from_properties(path_of(name), sasl_plain_password="new").config

    assert config.sasl_plain_password == Secret("new")
    assert config.sasl_plain_username == LOADED[name].settings["sasl_plain_username"]
    assert config.origin("sasl_plain_password") == "explicit"
