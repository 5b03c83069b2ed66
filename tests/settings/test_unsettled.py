"""Unsettled settings: values, defaults, and origins."""

from __future__ import annotations

import pytest

from aioproducer import ConfigError
from aioproducer.settings.unsettled import DEFAULT, EXPLICIT, UnsettledSettings

FILE = "client.properties:3"


def unsettled(origins: dict[str, str] | None = None, **given: object) -> UnsettledSettings:
    return UnsettledSettings({"bootstrap_servers": "a:9092", **given}, origins or {})


def test_a_setting_that_was_left_out_has_its_default():
    found = unsettled()

    assert found["linger_ms"] == 0.005
    assert found.origins["linger_ms"] == DEFAULT
    assert not found.is_given("linger_ms")


def test_a_setting_of_a_file_is_named_with_its_place_and_a_keyword_is_not():
    assert unsettled({"linger_ms": FILE}, linger_ms=7).said("linger_ms") == f"linger_ms=7 ({FILE})"
    assert unsettled(linger_ms=7).said("linger_ms") == "linger_ms=7"


def test_none_is_left_out_where_none_is_the_default():
    assert not unsettled(transactional_id=None).is_given("transactional_id")


def test_a_malformed_value_is_refused_with_its_place():
    with pytest.raises(ConfigError, match="linger_ms") as caught:
        unsettled({"linger_ms": FILE}, linger_ms=-1)

    assert caught.value.setting == "linger_ms"
    assert FILE in str(caught.value)


def test_a_derived_value_says_from_what():
    found = unsettled(acks=1)
    found.derive("enable_idempotence", False, found.said("acks"))

    assert found["enable_idempotence"] is False
    assert found.origins["enable_idempotence"] == "derived because acks=1"
    assert not found.is_given("enable_idempotence")


def test_an_alias_gives_its_value_unless_both_are_given_and_differ():
    found = unsettled(max_batch_size=1000)
    found.take_over("max_batch_size", "batch_size")
    assert found["batch_size"] == 1000
    assert found.origins["batch_size"] == f"{EXPLICIT} as max_batch_size"

    with pytest.raises(ConfigError, match=r"differs from batch_size=2000.*keep one"):
        unsettled(max_batch_size=1000, batch_size=2000).take_over("max_batch_size", "batch_size")


def test_given_lists_what_the_user_has_set_by_prefix():
    assert unsettled(ssl_key_password="p", linger_ms=1).given("ssl_") == ["ssl_key_password"]
