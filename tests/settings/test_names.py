"""Finding a setting by its names in other clients, and the advice for unknown names."""

from __future__ import annotations

import pytest

from aioproducer.settings.names import key_named, unknown_key, unknown_keyword


@pytest.mark.parametrize(
    "name", ["linger.ms", "linger_ms", "queue.buffering.max.ms", "queue_buffering_max_ms"]
)
def test_a_setting_is_found_by_each_of_its_names(name):
    key = key_named(name)

    assert key is not None
    assert key.setting == "linger_ms"


def test_a_name_that_no_client_has_is_not_found():
    assert key_named("linger.mss") is None


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("linger_mss", "did you mean linger_ms?"),
        ("ssl_cafile", "use ssl_truststore_location"),
        ("queue_buffering_max_ms", "it is queue.buffering.max.ms of another client, use linger_ms"),
        ("completely_different", "docs/configuration.md lists all"),
    ],
)
def test_the_error_for_an_unknown_keyword_says_what_to_write(name, advice):
    error = unknown_keyword(name)

    assert error.setting == name
    assert advice in str(error)


def test_the_error_for_an_unknown_key_names_its_place():
    error = unknown_key("linger.mss", "client.properties:3: ")

    assert str(error).startswith("client.properties:3: there is no setting linger.mss")
    assert "did you mean linger.ms?" in str(error)


def test_a_text_that_may_be_half_a_password_is_not_repeated():
    assert "secret word" not in str(unknown_key("secret word", ""))
