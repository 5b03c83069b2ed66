"""The settings: defaults, what is refused and with which words, and milliseconds that become seconds."""

from __future__ import annotations

import dataclasses
import inspect
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer import ConfigError, KafkaError, Producer, ProducerConfig
from aioproducer.compression import Codec


def config(**settings: object) -> ProducerConfig:
    return Producer(**settings).config


# ---------------------------------------------------------------------------------------------------- defaults


def test_defaults():
    assert config() == ProducerConfig(
        bootstrap_servers=(("localhost", 9092),),
        client_id="aioproducer",
        acks=-1,
        enable_idempotence=True,
        max_in_flight_requests_per_connection=5,
        linger=0.005,
        batch_size=262_144,
        buffer_memory=67_108_864,
        max_request_size=1_048_576,
        max_block=60.0,
        delivery_timeout=120.0,
        request_timeout=30.0,
        retry_backoff=0.1,
        retry_backoff_max=1.0,
        compression=Codec.NONE,
        compression_level=None,
        partitioner="murmur2",
        partitioner_adaptive=True,
        partitioner_availability_timeout=0.0,
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
        key_serializer=None,
        value_serializer=None,
        interceptors=(),
        transactional_id=None,
        transaction_timeout=60.0,
    )


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().linger = 1.0


def test_every_setting_is_described_where_users_look():
    described = inspect.getdoc(Producer) or ""

    missing = [name for name in inspect.signature(Producer).parameters if name not in described]

    assert missing == []


# ------------------------------------------------------------------------------------------------------- units

MILLISECONDS = {name for name in inspect.signature(Producer).parameters if name.endswith("_ms")}


@pytest.mark.parametrize("name", sorted(MILLISECONDS))
def test_milliseconds_become_seconds(name):
    # Not below what the settings demand of each other, and not a default.
    milliseconds = 170_500 if name == "delivery_timeout_ms" else 20_250

    effective = config(**{name: milliseconds})

    assert getattr(effective, name.removesuffix("_ms")) == milliseconds / 1000


@pytest.mark.parametrize("name", sorted(MILLISECONDS))
def test_milliseconds_may_be_a_fraction(name):
    value = 170_000.5 if name == "delivery_timeout_ms" else 20_000.5

    assert getattr(config(**{name: value}), name.removesuffix("_ms")) == value / 1000


def test_no_field_of_the_config_is_in_milliseconds():
    assert [field.name for field in dataclasses.fields(ProducerConfig) if field.name.endswith("_ms")] == []


def test_max_batch_size_is_another_name_of_batch_size():
    assert config(max_batch_size=1234).batch_size == 1234
    assert config(max_batch_size=1234) == config(batch_size=1234)


# ------------------------------------------------------------------------------------------------ refused values

NO_COUNTS = [-1, 1.5, "5", None, True, 2**63]
NO_DURATIONS = [-1, -0.001, "5", None, True, float("nan"), float("inf"), 2**60]
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
        if (name, value) != ("delivery_timeout_ms", None)
    ),
    *((name, 0) for name in NOT_ZERO),
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
    *(("client_id", value) for value in (None, 5, "naïve", "two\nlines", "a/b")),
    *(("compression_type", value) for value in ("", "gzip2", "GZIP ", 1, b"gzip")),
    *(("partitioner", value) for value in ("", "murmur", None, 5)),
    *(("metadata_recovery_strategy", value) for value in ("", "always", None, 5, [])),
    ("metadata_max_idle_ms", 4999),
    ("delivery_timeout_ms", 30_000),
    *((name, value) for name in ("key_serializer", "value_serializer") for value in ("utf-8", 5)),
]


@pytest.mark.parametrize(
    ("name", "value"), BAD_VALUES, ids=lambda part: repr(part) if part != "" else "empty"
)
def test_bad_value_is_refused_with_the_setting_and_the_value(name, value):
    with pytest.raises(ConfigError) as raised:
        config(**{name: value})

    error = raised.value
    assert error.setting == name
    assert error.value is value or error.value == pytest.approx(value)
    assert name in str(error)
    if name != "bootstrap_servers":
        shown = f"{value:g}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
        assert shown in str(error) or repr(value) in str(error)


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"bootstrap_servers": ""}, "name at least one host:port"),
        ({"bootstrap_servers": "::1"}, "write host:port"),
        ({"acks": 2}, "0, 1, 'all'"),
        ({"acks": 1, "enable_idempotence": True}, "set enable_idempotence=False"),
        ({"max_in_flight_requests_per_connection": 6}, "use 5 or less"),
        ({"linger_ms": -1}, "0 or more"),
        ({"request_timeout_ms": 0}, "more than 0"),
        ({"batch_size": 0.5}, "whole number from 0"),
        ({"delivery_timeout_ms": 1000}, "raise it or lower request_timeout_ms"),
        ({"compression_type": "gzpi"}, "did you mean 'gzip'"),
        ({"compression_type": "gzip", "compression_level": 10}, "levels 1 to 9"),
        ({"compression_type": "zstd", "compression_level": "3"}, "levels -131072 to 22"),
        ({"compression_level": 3}, "leave compression_level out"),
        ({"partitioner": "murmur"}, "did you mean 'murmur2'"),
        ({"metadata_recovery_strategy": "always"}, "rebootstrap, none"),
        ({"metadata_max_idle_ms": 100}, "at least 5000"),
    ],
)
def test_refusal_says_what_to_do(settings, fix):
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


@pytest.mark.parametrize(
    ("given_acks", "acks"), [("all", -1), (-1, -1), ("-1", -1), (0, 0), ("0", 0), (1, 1), ("1", 1)]
)
def test_acks_forms_and_the_idempotence_that_follows_from_them(given_acks, acks):
    effective = config(acks=given_acks)

    assert effective.acks == acks
    assert effective.enable_idempotence == (acks == -1)


@pytest.mark.parametrize("acks", [0, 1])
def test_explicit_idempotence_contradicts_weaker_acks(acks):
    with pytest.raises(ConfigError, match=rf"acks={acks} contradicts enable_idempotence=True") as raised:
        config(acks=acks, enable_idempotence=True)

    assert raised.value.setting == "acks"


def test_idempotence_can_be_turned_off_and_then_more_than_five_may_be_in_flight():
    effective = config(enable_idempotence=False, max_in_flight_requests_per_connection=50)

    assert not effective.enable_idempotence
    assert effective.max_in_flight == 50


def test_more_than_five_in_flight_contradict_idempotence():
    assert config(max_in_flight_requests_per_connection=5).max_in_flight == 5
    with pytest.raises(ConfigError, match="max_in_flight_requests_per_connection=6 contradicts"):
        config(max_in_flight_requests_per_connection=6)


def test_delivery_timeout_has_to_leave_time_for_a_request():
    assert config(delivery_timeout_ms=30_005).delivery_timeout == 30.005
    with pytest.raises(ConfigError, match="delivery_timeout_ms=30000 is shorter than"):
        config(delivery_timeout_ms=30_000)
    with pytest.raises(ConfigError):
        config(delivery_timeout_ms=1000, request_timeout_ms=1000, linger_ms=1)


def test_explicit_request_timeout_raises_a_delivery_timeout_that_was_left_out():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        effective = config(request_timeout_ms=200_000)

    assert effective.request_timeout == 200
    assert effective.delivery_timeout >= effective.linger + 200


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


def test_positional_argument_is_the_bootstrap_servers_and_all_others_are_keywords():
    assert Producer("a:1").config.bootstrap_servers == (("a", 1),)
    with pytest.raises(TypeError):
        Producer("a:1", "client")


def test_values_that_mean_at_once_or_never_are_allowed():
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
