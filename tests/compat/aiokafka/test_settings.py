"""aiokafka's settings become aioproducer's. Its defaults cause no warning; settings that have no effect do."""

from __future__ import annotations

import inspect
import ssl
import warnings

import aiokafka
import pytest

from aioproducer.compat.aiokafka import AIOKafkaProducer
from aioproducer.compat.aiokafka.errors import KafkaConfigurationError
from aioproducer.compat.aiokafka.settings import translated_settings
from tests.support.tracebacks import assert_no_frame_shows

DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(aiokafka.AIOKafkaProducer).parameters.items()
}


@pytest.mark.promise("Coming from other clients", "aiokafka's own defaults are accepted without a warning")
@pytest.mark.parametrize("name", DEFAULTS)
def test_each_default_of_aiokafka_is_accepted(name, caplog):
    assert AIOKafkaProducer(**{name: DEFAULTS[name]}).config is not None
    assert caplog.messages == []


@pytest.mark.parametrize(
    "more", [{}, {"transactional_id": "id"}, {"api_version": "auto", "partitioner": None}]
)
def test_all_defaults_of_aiokafka_together_are_accepted(more, caplog):
    config = AIOKafkaProducer(**{**DEFAULTS, **more}).config

    assert caplog.messages == []
    assert config.acks == -1
    assert config.enable_idempotence is ("transactional_id" in more)
    assert config.connections_max_idle == 540


@pytest.mark.parametrize(("name", "value"), [("loop", "a loop"), ("api_version", "2.0.0"), ("loop", 1)])
def test_a_setting_without_effect_warns_where_the_producer_is_built(name, value):
    with pytest.warns(DeprecationWarning, match=f"^{name} is ignored: .*leave it out$") as caught:
        AIOKafkaProducer(**{name: value})

    assert [warning.filename for warning in caught] == [__file__]


def test_a_setting_without_effect_warns_once_for_each_place():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            AIOKafkaProducer(api_version="2.0.0")

    assert len(caught) == 1


def test_an_omitted_setting_has_aioproducers_default():
    config = AIOKafkaProducer().config

    assert (config.acks, config.enable_idempotence, config.linger, config.batch_size) == (
        -1,
        True,
        0.005,
        262144,
    )


@pytest.mark.parametrize("acks", [0, 1])
def test_weak_acks_turn_idempotence_off_without_a_warning(acks, caplog):
    config = AIOKafkaProducer(acks=acks).config

    assert (config.acks, config.enable_idempotence) == (acks, False)
    assert caplog.messages == []


def test_a_transactional_id_turns_idempotence_on_as_in_aiokafka():
    assert AIOKafkaProducer(transactional_id="id", enable_idempotence=False).config.enable_idempotence


@pytest.mark.parametrize(
    ("settings", "block", "delivery"),
    [
        ({}, 60, 120),
        ({"request_timeout_ms": 2000}, 2, 2.005),
        ({"request_timeout_ms": 2000, "linger_ms": 0}, 2, 2),
        ({"request_timeout_ms": 2000, "enable_idempotence": True}, 2, 120),
        ({"request_timeout_ms": 2000, "transactional_id": "id"}, 2, 60),
        ({"request_timeout_ms": 2000, "max_block_ms": 7000, "delivery_timeout_ms": 9000}, 7, 9),
    ],
)
def test_the_request_timeout_also_limits_what_it_limits_in_aiokafka(settings, block, delivery):
    config = AIOKafkaProducer(**settings).config

    assert (config.max_block, config.delivery_timeout) == (block, pytest.approx(delivery))


def test_the_default_sasl_mechanism_is_plain():
    sasl = {
        "sasl_plain_username": "me",
        "sasl_plain_password": "secret",
        "ssl_context": ssl.create_default_context(),
    }

    config = AIOKafkaProducer(security_protocol="SASL_SSL", sasl_kerberos_service_name="kafka", **sasl).config

    assert config.sasl_mechanism == "PLAIN"


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 122},
        {"acks": 1, "enable_idempotence": True},
        {"compression_type": "my_custom"},
        {"security_protocol": "SOME"},
        {"request_timeout_ms": "soon"},
        {"no_such_setting": 1},
    ],
)
def test_settings_that_make_no_sense_are_value_errors(settings):
    with pytest.raises(ValueError, match=next(iter(settings))) as caught:
        AIOKafkaProducer(**settings)

    assert isinstance(caught.value, KafkaConfigurationError)


def test_aioproducers_own_settings_are_passed_on():
    assert translated_settings({"buffer_memory": 1, "close_timeout_ms": 2}) == {
        "buffer_memory": 1,
        "close_timeout_ms": 2,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": 7},
        {"no_such_setting": 1},
        {"sasl_plain_pasword": "hunter2", "api_version": "2.0.0"},
        {"request_timeout_ms": 10**400, "linger_ms": 0.5},
    ],
)
@pytest.mark.parametrize("password", ["hunter2", b"hunter2"])
def test_a_rejected_setting_leaves_no_password_in_the_traceback(wrong, password):
    with pytest.raises((ValueError, OverflowError)) as caught:
        AIOKafkaProducer(sasl_plain_password=password, **wrong)

    assert_no_frame_shows(caught.value, "hunter2")


@pytest.mark.parametrize("name", ["loop", "api_version"])
def test_a_warning_that_is_an_error_leaves_no_password_in_the_traceback(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeprecationWarning) as caught:
            AIOKafkaProducer(**{name: "2.0.0"}, sasl_plain_password="hunter2")

    assert_no_frame_shows(caught.value, "hunter2")
