"""The settings: defaults, error messages for rejected values, defaults that yield, and the printed form."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer import ConfigError, KafkaError, Producer, ProducerConfig, blocking
from aioproducer.protocol.compression import Codec
from aioproducer.testing import RecordingProducer


def config(**settings: object) -> ProducerConfig:
    return Producer(**settings).config


# ---------------------------------------------------------------------------------------------------- defaults


@pytest.mark.promise("Settings", "settings become one frozen `ProducerConfig`, in seconds, checked once")
def test_defaults():
    assert config() == ProducerConfig(
        bootstrap_servers=(("localhost", 9092),),
        client_id="aioproducer",
        acks=-1,
        enable_idempotence=True,
        enable_gapless_order=False,
        enable_endless_retries=False,
        max_in_flight_requests_per_connection=5,
        max_in_flight_per_partition=5,
        transactional_id=None,
        transaction_timeout=60.0,
        linger=0.005,
        batch_size=262_144,
        buffer_memory=67_108_864,
        max_request_size=1_048_576,
        compression=Codec.NONE,
        compression_level=None,
        max_block=60.0,
        delivery_timeout=120.0,
        close_timeout=25.0,
        request_timeout=30.0,
        retry_backoff=0.1,
        retry_backoff_max=1.0,
        partitioner="murmur2",
        partitioner_adaptive=True,
        partitioner_availability_timeout=0.0,
        key_serializer=None,
        value_serializer=None,
        interceptors=(),
        hooks=(),
        enable_metrics_push=True,
        metadata_max_age=300.0,
        metadata_max_idle=300.0,
        metadata_recovery_strategy="rebootstrap",
        metadata_recovery_rebootstrap_trigger=300.0,
        allow_auto_create_topics=True,
        reconnect_backoff=0.05,
        reconnect_backoff_max=1.0,
        socket_connection_setup_timeout=10.0,
        socket_connection_setup_timeout_max=30.0,
        connections_max_idle=540.0,
        connector=None,
        address_filter=None,
        resolved_address_filter=None,
        security_protocol="PLAINTEXT",
        **dict.fromkeys(NONE_BY_DEFAULT),
        ssl_enabled_protocols=("TLSv1.2", "TLSv1.3"),
        ssl_cipher_suites=(),
        sasl_plain_without_tls=False,
        sasl_scram_token_auth=False,
        sasl_oauthbearer_header_urlencode=False,
        sasl_oauthbearer_extensions=(),
        sasl_kerberos_service_name="kafka",
        sasl_kerberos_domain_name=None,
        sasl_kerberos_principal=None,
        sasl_kerberos_keytab=None,
        sasl_login_refresh_window_factor=0.8,
        sasl_login_refresh_window_jitter=0.05,
        sasl_login_refresh_min_period=60.0,
        sasl_login_refresh_buffer=300.0,
        sasl_login_connect_timeout=10.0,
        sasl_login_read_timeout=10.0,
        sasl_login_retry_backoff=0.1,
        sasl_login_retry_backoff_max=10.0,
    )


NONE_BY_DEFAULT = [
    "ssl_context",
    "ssl_truststore_certificates",
    "ssl_truststore_location",
    "ssl_truststore_type",
    "ssl_truststore_password",
    "ssl_keystore_certificate_chain",
    "ssl_keystore_key",
    "ssl_keystore_location",
    "ssl_keystore_type",
    "ssl_keystore_password",
    "ssl_key_password",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_crl_location",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_credentials",
    "sasl_oauth_token_provider",
    "sasl_oauthbearer_token_endpoint_url",
    "sasl_oauthbearer_client_credentials_client_id",
    "sasl_oauthbearer_client_credentials_client_secret",
    "sasl_oauthbearer_scope",
]


@pytest.mark.promise("Settings", "settings become one frozen `ProducerConfig`, in seconds, checked once")
def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().linger = 1.0


@pytest.mark.promise("Settings", "settings are typed keywords with Java's names in snake_case")
def test_every_setting_is_described_where_users_look():
    described = inspect.getdoc(Producer) or ""

    missing = [name for name in inspect.signature(Producer).parameters if name not in described]

    assert missing == []


# ------------------------------------------------------------------------------------------------------- units

MILLISECONDS = {name for name in inspect.signature(Producer).parameters if name.endswith("_ms")}


@pytest.mark.promise("Settings", "settings become one frozen `ProducerConfig`, in seconds, checked once")
@pytest.mark.parametrize("name", sorted(MILLISECONDS))
def test_milliseconds_become_seconds(name):
    # At least as long as other settings require, and different from the default.
    milliseconds = 170_500 if name == "delivery_timeout_ms" else 20_250

    effective = config(**{name: milliseconds})

    assert getattr(effective, name.removesuffix("_ms")) == milliseconds / 1000


@pytest.mark.parametrize("name", sorted(MILLISECONDS))
def test_milliseconds_may_be_a_fraction(name):
    value = 170_000.5 if name == "delivery_timeout_ms" else 20_000.5

    assert getattr(config(**{name: value}), name.removesuffix("_ms")) == value / 1000


def test_no_field_of_the_config_is_in_milliseconds():
    assert [field.name for field in dataclasses.fields(ProducerConfig) if field.name.endswith("_ms")] == []


@pytest.mark.promise("Settings", "aiokafka's `max_batch_size` is an alias")
def test_max_batch_size_is_another_name_of_batch_size():
    assert config(max_batch_size=1234).batch_size == 1234
    assert config(max_batch_size=1234) == config(batch_size=1234)


# ----------------------------------------------------------------------------------------------- rejected values

NO_COUNTS = [-1, 1.5, "5", None, True, 2**63]
NO_DURATIONS = [-1, -0.001, "5", None, True, float("nan"), float("inf"), 2**63]
COUNTS = ["max_in_flight_requests_per_connection", "batch_size", "buffer_memory", "max_request_size"]
SWITCHES = ["enable_idempotence", "allow_auto_create_topics", "partitioner_adaptive_partitioning_enable"]
NOT_ZERO = [
    "request_timeout_ms",
    "metadata_max_age_ms",
    "metadata_max_idle_ms",
    "socket_connection_setup_timeout_ms",
    "socket_connection_setup_timeout_max_ms",
    "transaction_timeout_ms",
]
NO_SERVERS = [
    "",
    " , ",
    [],
    None,
    5,
    b"localhost:9092",
    ["localhost", 5],
    [("localhost", 9092)],
    "localhost:",
    "localhost:0",
    "localhost:65536",
    "localhost:port",
    "localhost:-1",
    "localhost:9092:9093",
    "user@localhost:9092",
    "localhost:9092/path",
    "local host:9092",
    "::1",
    "[::1",
    "::1]:9092",
    "[localhost]:9092",
    "[]:9092",
    "://localhost:9092",
]

BAD_VALUES = [
    *(
        (name, value)
        for name in sorted(MILLISECONDS)
        for value in NO_DURATIONS
        if value is not None or name not in ("delivery_timeout_ms", "connections_max_idle_ms")
    ),
    *((name, 0) for name in NOT_ZERO),
    *((name, 2**31) for name in ("request_timeout_ms", "transaction_timeout_ms")),
    *((name, value) for name in COUNTS for value in NO_COUNTS),
    *((name, 2**31) for name in COUNTS if name != "buffer_memory"),
    ("max_in_flight_requests_per_connection", 0),
    ("buffer_memory", 1023),
    ("max_request_size", 1023),
    *(("max_batch_size", value) for value in (-1, 1.5, "5", True)),
    *(("bootstrap_servers", value) for value in NO_SERVERS),
    *(("acks", value) for value in (2, -2, "2", "none", "ALL", None, True, False, 1.0, 0.5, [1])),
    *((name, value) for name in SWITCHES for value in ("false", "true", [])),
    *((name, None) for name in SWITCHES[1:]),
    *(("client_id", value) for value in (5, "naïve", "two\nlines", "a/b")),
    *(("compression_type", value) for value in ("", "gzip2", "GZIP ", 1, b"gzip")),
    *(("partitioner", value) for value in ("", "murmur", 5)),
    *(("metadata_recovery_strategy", value) for value in ("", "always", None, 5, [])),
    ("metadata_max_idle_ms", 4999),
    ("delivery_timeout_ms", 0),
    *((name, value) for name in ("key_serializer", "value_serializer") for value in ("utf-8", 5)),
]


@pytest.mark.promise("Settings", "settings become one frozen `ProducerConfig`, in seconds, checked once")
@pytest.mark.parametrize(
    ("name", "value"), BAD_VALUES, ids=lambda part: repr(part) if part != "" else "empty"
)
def test_bad_value_is_refused_with_the_setting_and_the_value(name, value):
    with pytest.raises(ConfigError) as raised:
        config(**{name: value})

    error = raised.value
    assert error.setting == name
    assert name in str(error)
    if "@" in str(value):  # the error does not repeat an address that contains a password
        assert error.value is None
        return
    assert error.value is value or error.value == pytest.approx(value)
    if name != "bootstrap_servers":
        shown = f"{value:g}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
        assert shown in str(error) or repr(value) in str(error)


@pytest.mark.promise("Settings", "settings become one frozen `ProducerConfig`, in seconds, checked once")
@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"bootstrap_servers": ""}, "name at least one host:port"),
        ({"bootstrap_servers": "::1"}, "as host:port"),
        ({"acks": 2}, "0, 1, 'all'"),
        ({"acks": 1, "enable_idempotence": True}, "set enable_idempotence=False"),
        ({"max_in_flight_requests_per_connection": 6, "enable_idempotence": True}, "use 5 or less"),
        ({"max_in_flight_requests_per_connection": 6, "transactional_id": "orders"}, "use 5 or less"),
        ({"linger_ms": -1}, "0 or more"),
        ({"request_timeout_ms": 0}, "more than 0"),
        (
            {"max_block_ms": 0, "transactional_id": "orders"},
            "leaves no time for the transactional calls (transactional_id=orders); raise it",
        ),
        ({"request_timeout_ms": 2**31}, "at most 2147483647"),
        ({"batch_size": 0.5}, "whole number from 0"),
        ({"delivery_timeout_ms": 1000, "request_timeout_ms": 1000}, "raise it or lower request_timeout_ms"),
        ({"delivery_timeout_ms": 1000, "linger_ms": 1000}, "raise it or lower linger_ms"),
        ({"delivery_timeout_ms": 0}, "leaves no time to send a record; raise it"),
        ({"compression_type": "gzpi"}, "did you mean 'gzip'"),
        ({"compression_type": "gzip", "compression_level": 10}, "levels 1 to 9"),
        ({"compression_type": "zstd", "compression_level": "3"}, "levels -131072 to 22"),
        ({"compression_level": 3}, "leave compression_level out"),
        ({"partitioner": "murmur"}, "did you mean 'murmur2'"),
        ({"metadata_recovery_strategy": "always"}, "rebootstrap, none"),
        ({"metadata_max_idle_ms": 100}, "at least 5000"),
    ],
)
def test_the_error_for_a_rejected_value_says_what_to_do(settings, fix):
    with pytest.raises(ConfigError) as raised:
        config(**settings)

    assert fix in str(raised.value)


def test_config_error_is_a_value_error_as_in_other_clients():
    with pytest.raises(ValueError, match="linger_ms=-1") as raised:
        config(linger_ms=-1)

    assert isinstance(raised.value, KafkaError)


# --------------------------------------------------------------------------------------------- bootstrap addresses


@pytest.mark.parametrize(
    ("given_servers", "expected"),
    [
        ("broker", [("broker", 9092)]),
        ("broker:9093", [("broker", 9093)]),
        ("broker:1", [("broker", 1)]),
        ("broker:65535", [("broker", 65535)]),
        ("10.0.0.1:9093", [("10.0.0.1", 9093)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[2001:DB8::8a2e]", [("2001:DB8::8a2e", 9092)]),
        ("[::ffff:10.0.0.1]:9093", [("::ffff:10.0.0.1", 9093)]),
        ("[fe80::1%eth0]:9093", [("fe80::1%eth0", 9093)]),
        ("PLAINTEXT://broker:9093", [("broker", 9093)]),
        ("SASL_SSL://[::1]:9093", [("::1", 9093)]),
        ("my_broker.example.com.:9093", [("my_broker.example.com.", 9093)]),
        ("a:1,b:2,c", [("a", 1), ("b", 2), ("c", 9092)]),
        (" a:1 , , b:2,", [("a", 1), ("b", 2)]),
        (["a:1", " b:2 "], [("a", 1), ("b", 2)]),
        (("[::1]:1", "b"), [("::1", 1), ("b", 9092)]),
        (("b:2", "a:1"), [("b", 2), ("a", 1)]),
    ],
)
def test_bootstrap_addresses(given_servers, expected):
    assert config(bootstrap_servers=given_servers).bootstrap_servers == tuple(expected)


@given(st.text(max_size=30))
def test_no_text_for_an_address_raises_anything_but_config_error(text):
    try:
        servers = config(bootstrap_servers=text).bootstrap_servers
    except ConfigError:
        return
    for host, port in servers:
        assert host
        assert 0 < port < 65536


# ------------------------------------------------------------------------------------------- acks and idempotence


@pytest.mark.promise("Accumulator, sender, connections", "idempotence is on by default")
@pytest.mark.parametrize(
    ("given_acks", "acks"), [("all", -1), (-1, -1), ("-1", -1), (0, 0), ("0", 0), (1, 1), ("1", 1)]
)
def test_acks_forms_and_the_idempotence_that_follows_from_them(given_acks, acks):
    effective = config(acks=given_acks)

    assert effective.acks == acks
    assert effective.enable_idempotence == (acks == -1)


@pytest.mark.parametrize("acks", [0, 1])
def test_explicit_idempotence_contradicts_weaker_acks(acks):
    with pytest.raises(
        ConfigError, match=rf"acks={acks} cannot be used with enable_idempotence=True"
    ) as raised:
        config(acks=acks, enable_idempotence=True)

    assert raised.value.setting == "acks"


def test_idempotence_can_be_turned_off_and_then_more_than_five_may_be_in_flight():
    effective = config(enable_idempotence=False, max_in_flight_requests_per_connection=50)

    assert not effective.enable_idempotence
    assert effective.max_in_flight == 50


def test_more_than_five_in_flight_contradict_idempotence():
    assert config(max_in_flight_requests_per_connection=5).max_in_flight == 5
    with pytest.raises(ConfigError, match="max_in_flight_requests_per_connection=6 cannot be used with"):
        config(max_in_flight_requests_per_connection=6, enable_idempotence=True)


def test_more_than_five_in_flight_turn_idempotence_off_by_default_with_one_warning(caplog):
    effective, [warning] = warnings_of(caplog, max_in_flight_requests_per_connection=6)

    assert not effective.enable_idempotence
    assert effective.max_in_flight_per_partition == 6
    assert "max_in_flight_requests_per_connection=6 turns enable_idempotence off" in warning
    assert "retries may duplicate and reorder records" in warning
    assert effective.origin("enable_idempotence") == (
        "derived because max_in_flight_requests_per_connection=6"
    )
    with pytest.raises(
        ConfigError, match="cannot be used with transactional_id=orders, which requires idempotence"
    ):
        config(max_in_flight_requests_per_connection=6, transactional_id="orders")


@pytest.mark.promise("KIPs", "KIP-91: one delivery timeout")
def test_delivery_timeout_must_leave_time_for_a_request():
    assert config(delivery_timeout_ms=30_005).delivery_timeout == 30.005
    with pytest.raises(ConfigError, match="delivery_timeout_ms=30000 is shorter than"):
        config(delivery_timeout_ms=30_000, request_timeout_ms=30_000)
    with pytest.raises(ConfigError):
        config(delivery_timeout_ms=1000, request_timeout_ms=1000, linger_ms=1)


# ------------------------------------------------------------------------------------------------- other settings


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        (None, Codec.NONE),
        ("none", Codec.NONE),
        ("gzip", Codec.GZIP),
        ("snappy", Codec.SNAPPY),
        ("lz4", Codec.LZ4),
        ("zstd", Codec.ZSTD),
    ],
)
def test_compression_by_name(name, codec):
    assert config(compression_type=name).compression is codec


def test_callables_are_passed_on():
    def partitioner(key: bytes | None, every: list[int], available: list[int]) -> int:
        return 0

    effective = config(partitioner=partitioner, key_serializer=str.encode, value_serializer=repr)

    assert effective.partitioner is partitioner
    assert effective.key_serializer == str.encode
    assert effective.value_serializer is repr


@pytest.mark.promise("Settings", "settings are typed keywords with Java's names in snake_case")
def test_positional_argument_is_the_bootstrap_servers_and_all_others_are_keywords():
    assert Producer("a:1").config.bootstrap_servers == (("a", 1),)
    with pytest.raises(TypeError):
        Producer("a:1", "client")


def test_values_that_mean_immediately_or_never_are_allowed():
    effective = config(
        linger_ms=0,
        max_block_ms=0,
        retry_backoff_ms=0,
        retry_backoff_max_ms=0,
        reconnect_backoff_ms=0,
        batch_size=0,
        connections_max_idle_ms=0,
        client_id="",
    )

    assert (effective.linger, effective.max_block, effective.batch_size) == (0, 0, 0)


def test_none_has_the_meaning_that_aiokafka_gives_it():
    effective = config(client_id=None, connections_max_idle_ms=None, compression_type=None, partitioner=None)

    assert (effective.client_id, effective.connections_max_idle) == ("aioproducer", 0)
    assert (effective.partitioner, effective.origin("partitioner")) == ("murmur2", "default")
    assert config(partitioner=None, partitioner_ignore_keys=True).partitioner == "random"


@pytest.mark.parametrize("version", ["auto", None])
def test_aiokafkas_own_defaults_are_accepted(version, caplog):
    passed_on = {"loop": None, "api_version": version, "sasl_kerberos_service_name": "kafka"}

    for kind in (Producer, blocking.Producer, RecordingProducer):
        assert kind(**passed_on, partitioner=None).config == config()
    assert (
        config(
            **passed_on,
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_plain_username="svc",
            sasl_plain_password="pw",
            sasl_kerberos_domain_name=None,
        ).origin("sasl_kerberos_service_name")
        == "explicit"
    )
    assert Producer.from_config({**passed_on, "partitioner": None}).config == config()
    assert caplog.records == []


# ------------------------------------------------------------------------------- defaults that yield, and warnings


def warnings_of(caplog: pytest.LogCaptureFixture, **settings: object) -> tuple[ProducerConfig, list[str]]:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "aioproducer"):
        effective = config(**settings)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return effective, [record.getMessage() for record in caplog.records]


@pytest.mark.promise(
    "Settings from anywhere", "an explicit setting overrides a default that contradicts it, with one warning"
)
@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acks_turn_idempotence_off_by_default_with_one_warning(acks, caplog):
    effective, [warning] = warnings_of(caplog, acks=acks)

    assert not effective.enable_idempotence
    assert f"acks={acks} turns enable_idempotence off" in warning
    assert effective.origin("enable_idempotence") == f"derived because acks={acks}"
    assert effective.origin("acks") == "explicit"


@pytest.mark.parametrize(
    ("settings", "milliseconds", "because"),
    [
        ({"request_timeout_ms": 200_000}, 200_005, "request_timeout_ms=200000"),
        ({"request_timeout_ms": 119_996}, 120_001, "request_timeout_ms=119996"),
        ({"linger_ms": 100_000}, 130_000, "linger_ms=100000"),
        (
            {"linger_ms": 100_000, "request_timeout_ms": 25_000},
            125_000,
            "linger_ms=100000 and request_timeout_ms=25000",
        ),
    ],
)
def test_explicit_timeouts_raise_the_default_delivery_timeout_with_one_warning(
    settings, milliseconds, because, caplog
):
    effective, [warning] = warnings_of(caplog, **settings)

    assert effective.delivery_timeout == pytest.approx(milliseconds / 1000)
    raises = "raise" if " and " in because else "raises"
    assert f"{because} {raises} delivery_timeout_ms to {milliseconds}" in warning
    assert effective.origin("delivery_timeout_ms") == f"derived because {because}"


@pytest.mark.parametrize(
    ("settings", "milliseconds", "because"),
    [
        ({}, 60_000, "transaction_timeout_ms=60000"),
        ({"transaction_timeout_ms": 90_000}, 90_000, "transaction_timeout_ms=90000"),
        ({"transaction_timeout_ms": 10_000}, 10_000, "transaction_timeout_ms=10000"),
        ({"request_timeout_ms": 200_000}, 60_000, "transaction_timeout_ms=60000"),
    ],
)
def test_the_default_delivery_timeout_is_at_most_the_transaction_timeout_without_a_warning(
    settings, milliseconds, because, caplog
):
    effective, warnings = warnings_of(caplog, transactional_id="tx", **settings)

    assert warnings == []
    assert effective.delivery_timeout == milliseconds / 1000
    assert effective.origin("delivery_timeout_ms") == f"derived because {because}"


def test_a_longer_transaction_timeout_leaves_the_delivery_timeout_as_it_is(caplog):
    effective, warnings = warnings_of(caplog, transactional_id="tx", transaction_timeout_ms=900_000)

    assert warnings == []
    assert effective.delivery_timeout == 120
    assert effective.origin("delivery_timeout_ms") == "default"
    effective, warnings = warnings_of(caplog, transaction_timeout_ms=10_000)
    assert (effective.delivery_timeout, warnings) == (120, []), "there are no transactions"


def test_a_delivery_timeout_beyond_the_transaction_timeout_has_a_warning_only_if_both_were_set(caplog):
    both = {"delivery_timeout_ms": 90_001, "transaction_timeout_ms": 90_000}

    effective, [warning] = warnings_of(caplog, transactional_id="tx", **both)

    assert "delivery_timeout_ms=90001 is longer than transaction_timeout_ms=90000" in warning
    assert effective.delivery_timeout == 90.001
    equal = {**both, "delivery_timeout_ms": 90_000}
    assert warnings_of(caplog, transactional_id="tx", **equal)[1] == []
    assert warnings_of(caplog, transactional_id="tx", delivery_timeout_ms=90_001)[1] == []
    assert warnings_of(caplog, **both)[1] == [], "there are no transactions"


@pytest.mark.parametrize(
    ("settings", "lowered", "words"),
    [
        ({"delivery_timeout_ms": 5000}, {"request_timeout": 4.995}, "lowers request_timeout_ms to 4995"),
        ({"delivery_timeout_ms": 30_000}, {"request_timeout": 29.995}, "lowers request_timeout_ms to 29995"),
        (
            {"delivery_timeout_ms": 5000, "linger_ms": 1000},
            {"request_timeout": 4.0, "linger": 1.0},
            "lowers request_timeout_ms to 4000",
        ),
        (
            {"delivery_timeout_ms": 5},
            {"request_timeout": 0.005, "linger": 0.0},
            "lowers request_timeout_ms to 5 and linger_ms to 0",
        ),
    ],
)
def test_an_explicit_delivery_timeout_lowers_the_default_request_timeout_with_one_warning(
    settings, lowered, words, caplog
):
    effective, [warning] = warnings_of(caplog, **settings)

    assert {name: getattr(effective, name) for name in lowered} == pytest.approx(lowered)
    assert f"delivery_timeout_ms={settings['delivery_timeout_ms']} {words}" in warning
    assert effective.origin("request_timeout_ms").startswith("derived because delivery_timeout_ms=")


@pytest.mark.promise(
    "Settings from anywhere", "an explicit setting overrides a default that contradicts it, with one warning"
)
def test_several_defaults_that_yield_have_one_warning_together(caplog):
    _, [warning] = warnings_of(caplog, acks=1, request_timeout_ms=200_000)

    assert "enable_idempotence" in warning
    assert "delivery_timeout_ms" in warning


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"acks": "all", "enable_idempotence": True, "max_in_flight_requests_per_connection": 5},
        {"acks": 1, "enable_idempotence": False},
        {"enable_idempotence": False},
        {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1},
        {"request_timeout_ms": 119_995},
        {"request_timeout_ms": 200_000, "delivery_timeout_ms": 200_005},
        {"batch_size": 1_048_576},
        {"transactional_id": "orders"},
    ],
)
def test_without_a_contradiction_there_is_no_warning(settings, caplog):
    _, warnings = warnings_of(caplog, **settings)

    assert warnings == []


def test_without_idempotence_one_batch_per_partition_is_in_flight_so_that_retries_keep_the_order(caplog):
    effective, warnings = warnings_of(caplog, enable_idempotence=False)

    assert effective.max_in_flight_per_partition == 1
    assert effective.max_in_flight == 5
    assert warnings == []


@pytest.mark.parametrize("in_flight", [5, 6, 2])
def test_more_in_flight_without_idempotence_has_a_warning_that_retries_may_reorder(in_flight, caplog):
    effective, [warning] = warnings_of(
        caplog, enable_idempotence=False, max_in_flight_requests_per_connection=in_flight
    )

    assert effective.max_in_flight_per_partition == in_flight
    assert "retries may reorder" in warning


@pytest.mark.parametrize("in_flight", [1, 3, 5])
def test_with_idempotence_a_partition_has_as_many_in_flight_as_a_connection(in_flight):
    assert config(max_in_flight_requests_per_connection=in_flight).max_in_flight_per_partition == in_flight


BACKOFFS = [
    ("retry_backoff_ms", "retry_backoff_max_ms"),
    ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
    ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
]


@pytest.mark.parametrize(("first", "last"), BACKOFFS)
def test_a_first_pause_above_the_maximum_raises_or_lowers_the_default_of_the_other(first, last, caplog):
    raised, [warning] = warnings_of(caplog, **{first: 40_000})
    lowered, [other] = warnings_of(caplog, **{last: 20})

    assert getattr(raised, last.removesuffix("_ms")) == 40
    assert raised.origin(last) == f"derived because {first}=40000"
    assert last in warning
    assert getattr(lowered, first.removesuffix("_ms")) == 0.02
    assert first in other
    with pytest.raises(ConfigError, match=f"{first}=30 is more than {last}=20; lower it or raise {last}"):
        config(**{first: 30, last: 20})


def test_a_batch_size_that_no_request_can_carry_has_a_warning(caplog):
    effective, [warning] = warnings_of(caplog, batch_size=2_000_000)

    assert effective.batch_size == 2_000_000
    assert "batch_size=2000000 is more than max_request_size=1048576, which also limits batches" in warning


# ----------------------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 1},
        {"acks": 0},
        {"enable_idempotence": False},
        {"acks": 1, "enable_idempotence": False},
    ],
)
def test_transactions_need_acks_from_all_and_idempotence(settings):
    with pytest.raises(
        ConfigError, match="transactional_id=orders requires acks='all' and enable_idempotence=True"
    ) as raised:
        config(transactional_id="orders", **settings)

    assert raised.value.setting == "transactional_id"
    assert "leave" in str(raised.value)


def test_two_names_of_one_setting_agree_or_are_refused():
    assert config(batch_size=5, max_batch_size=5).batch_size == 5
    with pytest.raises(ConfigError, match="max_batch_size=6 differs from batch_size=5"):
        config(batch_size=5, max_batch_size=6)


@pytest.mark.parametrize(("codec", "level"), [("gzip", 9), ("lz4", 3), ("zstd", -5)])
def test_javas_level_of_a_codec_is_used_with_that_codec_only(codec, level, caplog):
    used, quiet = warnings_of(caplog, **{"compression_type": codec, f"compression_{codec}_level": level})
    unused, [warning] = warnings_of(
        caplog, **{"compression_type": "snappy", f"compression_{codec}_level": level}
    )

    assert used.compression_level == level
    assert quiet == []
    assert unused.compression_level is None
    assert f"compression_{codec}_level={level} has no effect with compression_type=snappy" in warning


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"compression_type": "gzip", "compression_gzip_level": 10}, "compression_level"),
        ({"compression_gzip_level": 10}, "compression_gzip_level"),
        ({"compression_lz4_level": 18}, "compression_lz4_level"),
        ({"compression_zstd_level": "3"}, "compression_zstd_level"),
        (
            {"compression_type": "gzip", "compression_gzip_level": 1, "compression_level": 2},
            "compression_gzip_level",
        ),
    ],
)
def test_a_level_that_its_codec_does_not_have_is_rejected_even_if_it_is_not_used(settings, setting):
    with pytest.raises(ConfigError) as raised:
        config(**settings)

    assert raised.value.setting == setting


def test_ignoring_keys_selects_the_random_partitioner():
    effective = config(partitioner_ignore_keys=True)

    assert effective.partitioner == "random"
    assert effective.origin("partitioner") == "derived because partitioner_ignore_keys=True"
    assert config(partitioner_ignore_keys=False).partitioner == "murmur2"
    assert config(partitioner_ignore_keys=True, partitioner="random").partitioner == "random"
    with pytest.raises(
        ConfigError, match="partitioner_ignore_keys=True cannot be used with partitioner=round_robin"
    ):
        config(partitioner_ignore_keys=True, partitioner="round_robin")


# --------------------------------------------------------------------------------------------- unknown keywords


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lingerms", "did you mean linger_ms?"),
        ("linger", "did you mean linger_ms?"),
        ("compresion_type", "did you mean compression_type?"),
        ("sasl_password", "use sasl_plain_password"),
        (
            "message_timeout_ms",
            "this looks like message.timeout.ms from another client; use delivery_timeout_ms instead",
        ),
        ("group_id", "meant for consumers; leave it out"),
        ("loop", "a producer belongs to the loop in which it is started"),
        ("api_version", "versions are negotiated"),
        ("ssl_cafile", "use ssl_truststore_location"),
        ("zzz", "docs/configuration.md lists all"),
    ],
)
def test_an_unknown_keyword_is_rejected_with_the_most_similar_one(name, meant):
    with pytest.raises(ConfigError) as raised:
        Producer("localhost", **{name: "hunter2"})

    assert raised.value.setting == name
    assert f"Producer has no setting {name}" in str(raised.value)
    assert meant in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_positional_and_keyword_for_one_setting_is_pythons_error():
    with pytest.raises(TypeError, match="multiple values"):
        Producer("a:1", bootstrap_servers="b:1")


def test_a_subclass_with_its_own_parameters_can_be_built():
    class Orders(Producer):
        def __init__(self, region: str, **settings: object) -> None:
            super().__init__(f"{region}:9092", **settings)

    effective = Orders("eu", linger_ms=7).config

    assert effective.bootstrap_servers == (("eu", 9092),)
    assert [effective.origin(name) for name in ("bootstrap_servers", "linger_ms", "acks")] == [
        "explicit",
        "explicit",
        "default",
    ]


# --------------------------------------------------------------------------------------------- the printed form


def test_config_prints_every_setting_in_its_unit_with_its_origin():
    lines = str(config(acks=1, linger_ms=0.5, bootstrap_servers=["[::1]:1", "b"])).splitlines()

    assert "bootstrap_servers = [::1]:1,b:9092 (explicit)" in lines
    assert "acks = 1 (explicit)" in lines
    assert "enable_idempotence = False (derived because acks=1)" in lines
    assert "linger_ms = 0.5 (explicit)" in lines
    assert "delivery_timeout_ms = 120000 (default)" in lines
    assert "compression_type = none (default)" in lines
    assert "security_protocol = PLAINTEXT (default)" in lines
    assert not any(line.startswith(("ssl_", "sasl_")) for line in lines), (
        "they have no use without TLS and SASL"
    )


def test_repr_is_the_same_text():
    assert repr(config(linger_ms=7)) == str(config(linger_ms=7))


def test_an_explicit_default_is_explicit():
    assert config(acks="all").origin("acks") == "explicit"
    assert config().origin("acks") == "default"
    assert config(delivery_timeout_ms=None).origin("delivery_timeout_ms") == "default"


def test_the_origin_of_an_unknown_setting_is_an_error():
    with pytest.raises(ConfigError, match="did you mean linger_ms"):
        config().origin("linger")


def test_functions_are_printed_by_name_only():
    class Chatty:
        def __repr__(self) -> str:
            return "hunter2"

        def serialize(self, topic: str, value: object, headers: object) -> bytes:
            return b""

    def choose(*_: object) -> int:
        return 0

    text = str(config(value_serializer=Chatty(), key_serializer=str.encode, partitioner=choose))

    assert "hunter2" not in text
    assert "<test_functions_are_printed_by_name_only.<locals>.Chatty>" in text
    assert "<str.encode>" in text
    assert "choose" in text


def test_aliases_are_printed_as_the_setting_that_they_set():
    effective = config(max_batch_size=7, compression_type="gzip", compression_gzip_level=1)

    assert "batch_size = 7 (explicit as max_batch_size)" in str(effective)
    assert "compression_level = 1 (explicit as compression_gzip_level)" in str(effective)
    assert "max_batch_size =" not in str(effective)


def test_config_survives_a_pickle():
    effective = config(acks=1, client_id="orders")

    again = pickle.loads(pickle.dumps(effective))

    assert again == effective
    assert str(again) == str(effective)
