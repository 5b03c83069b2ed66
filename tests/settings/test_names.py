"""Finding a setting by its names in other clients, and the advice for unknown names."""

from __future__ import annotations

import pytest

from aioproducer.settings.keys import KEYS
from aioproducer.settings.names import (
    is_default_elsewhere,
    key_named,
    name_meant,
    purpose_elsewhere,
    unknown_key,
    unknown_keyword,
)


@pytest.mark.parametrize(
    "name", ["linger.ms", "linger_ms", "queue.buffering.max.ms", "queue_buffering_max_ms"]
)
def test_a_setting_is_found_by_each_of_its_names(name):
    key = key_named(name)

    assert key is not None
    assert key.setting == "linger_ms"


def test_a_name_unknown_to_all_clients_is_not_found():
    assert key_named("linger.mss") is None


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("linger_mss", "did you mean linger_ms?"),
        ("ssl_cafile", "use ssl_truststore_location"),
        (
            "queue_buffering_max_ms",
            "this looks like queue.buffering.max.ms from another client; use linger_ms instead",
        ),
        ("completely_different", "docs/configuration.md lists all"),
    ],
)
def test_the_error_for_an_unknown_keyword_suggests_a_setting(name, advice):
    error = unknown_keyword(name)

    assert error.setting == name
    assert advice in str(error)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("linger.mss", "linger.ms"),
        ("lingr.ms", "linger.ms"),
        ("lingerms", "linger_ms"),
        ("kafka.linger.ms", "linger.ms"),
        ("producer.acks", "acks"),
        ("orders.client.id", ""),
        ("two words", ""),
        ("", ""),
    ],
)
def test_a_similar_name_is_suggested(name, meant):
    assert name_meant(name) == meant


@pytest.mark.parametrize(
    ("name", "purpose"),
    [
        ("schema.registry.url", "meant for a schema registry"),
        ("basic_auth_user_info", "meant for a schema registry"),
        ("orders.client.id", "unknown to Kafka's clients"),
        ("Orders.Retry.max-attempts", "unknown to Kafka's clients"),
        ("lingr.ms", None),
        ("security.other", None),
        ("orders", None),
        ("pass word.txt", None),
        ("kafka.acks", None),
        ("a..b", None),
    ],
)
def test_the_purpose_of_another_programs_key_is_listed_or_derived_from_its_first_word(name, purpose):
    assert purpose_elsewhere(name) == purpose


def test_no_known_key_is_mistaken_for_that_of_another_program():
    assert {name: purpose for name in KEYS if (purpose := purpose_elsewhere(name))} == {}


@pytest.mark.parametrize(
    ("name", "value", "is_one"),
    [
        ("loop", None, True),
        ("api_version", "auto", True),
        ("api_version", None, True),
        ("api_version", "2.8", False),
        ("loop", object(), False),
        ("linger_ms", None, False),
    ],
)
def test_aiokafkas_defaults_have_no_effect(name, value, is_one):
    assert is_default_elsewhere(name, value) is is_one


def test_the_error_for_an_unknown_key_names_its_place():
    error = unknown_key("linger.mss", "client.properties:3: ")

    assert str(error).startswith("client.properties:3: there is no setting linger.mss")
    assert "did you mean linger.ms?" in str(error)


def test_a_text_that_may_be_part_of_a_password_is_not_repeated():
    assert "secret word" not in str(unknown_key("secret word", ""))
