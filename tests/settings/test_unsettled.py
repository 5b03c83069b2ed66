"""Unsettled settings: values, defaults, and origins."""

from __future__ import annotations

import pytest

from aioproducer import ConfigError
from aioproducer.settings.unsettled import (
    DEFAULT,
    EXPLICIT,
    Mistake,
    Mistakes,
    UnclearError,
    UnsettledSettings,
)

FILE = "client.properties:3"


def unsettled(origins: dict[str, str] | None = None, **given: object) -> UnsettledSettings:
    return UnsettledSettings({"bootstrap_servers": "a:9092", **given}, origins or {})


def test_an_omitted_setting_has_its_default():
    found = unsettled()

    assert found["linger_ms"] == 0.005
    assert found.origins["linger_ms"] == DEFAULT
    assert not found.is_given("linger_ms")


def test_a_setting_of_a_file_is_named_with_its_place_and_a_keyword_is_not():
    assert unsettled({"linger_ms": FILE}, linger_ms=7).as_text("linger_ms") == f"linger_ms=7 ({FILE})"
    assert unsettled(linger_ms=7).as_text("linger_ms") == "linger_ms=7"


def test_none_counts_as_omitted_where_none_is_the_default():
    assert not unsettled(transactional_id=None).is_given("transactional_id")


def test_a_malformed_value_is_refused_with_its_place():
    with pytest.raises(ConfigError, match="linger_ms") as caught:
        unsettled({"linger_ms": FILE}, linger_ms=-1).raise_mistakes()

    assert caught.value.setting == "linger_ms"
    assert FILE in str(caught.value)


def test_a_derived_value_names_its_source():
    found = unsettled(acks=1)
    found.derive("enable_idempotence", False, found.as_text("acks"))

    assert found["enable_idempotence"] is False
    assert found.origins["enable_idempotence"] == "derived because acks=1"
    assert not found.is_given("enable_idempotence")


def test_an_alias_sets_the_value_unless_both_are_given_and_differ():
    found = unsettled(max_batch_size=1000)
    found.take_over("max_batch_size", "batch_size")
    assert found["batch_size"] == 1000
    assert found.origins["batch_size"] == f"{EXPLICIT} as max_batch_size"

    with pytest.raises(ConfigError, match=r"differs from batch_size=2000.*keep one"):
        unsettled(max_batch_size=1000, batch_size=2000).take_over("max_batch_size", "batch_size")


def test_an_invalid_setting_counts_as_given_and_cannot_be_read():
    mistake = Mistake("linger_ms", ConfigError("wrong", setting="linger_ms", value=None))
    found = UnsettledSettings({}, {"linger_ms": FILE}, Mistakes((mistake,), frozenset({"acks"})))

    assert found.is_given("linger_ms")
    for name in ("linger_ms", "acks"):
        with pytest.raises(UnclearError):
            found[name]
    with pytest.raises(ConfigError, match="wrong"):
        found.raise_mistakes()


def test_a_check_that_needs_an_invalid_setting_is_skipped():
    found = unsettled(linger_ms=-1)

    assert not found.attempt(lambda settings: settings.default("batch_size", settings["linger_ms"]))
    with pytest.raises(ConfigError, match="linger_ms=-1") as caught:
        found.raise_mistakes()
    assert caught.value.errors == ()


def test_all_mistakes_are_raised_as_one_error():
    found = unsettled(linger_ms=-1, acks=5)

    with pytest.raises(
        ConfigError, match=r"there are 2 mistakes in the settings:\n  acks=5 .*\n  linger_ms=-1 "
    ) as caught:
        found.raise_mistakes()

    assert [error.setting for error in caught.value.errors] == ["acks", "linger_ms"]
    assert caught.value.setting == "acks"


def test_a_keyword_overrides_a_contradicting_setting_of_a_source_and_the_check_runs_again():
    found = unsettled({"acks": FILE}, acks=1, enable_idempotence=True)

    def check(settings: UnsettledSettings) -> None:
        if settings["acks"] != -1:
            raise settings.error_for("acks", "contradicts it", against=("enable_idempotence",))

    assert found.attempt(check)
    assert (found["acks"], found.origins["acks"]) == (-1, DEFAULT)
    assert found.notes == [f"the enable_idempotence keyword overrides acks ({FILE})"]


@pytest.mark.parametrize("origins", [{}, {"acks": FILE, "enable_idempotence": FILE}])
def test_a_contradiction_within_a_source_or_between_keywords_is_a_mistake(origins):
    found = unsettled(origins, acks=1, enable_idempotence=True)

    def check(settings: UnsettledSettings) -> None:
        raise settings.error_for("acks", "contradicts it", against=("enable_idempotence",))

    assert not found.attempt(check)
    with pytest.raises(ConfigError, match="contradicts it") as caught:
        found.raise_mistakes()
    assert type(caught.value) is ConfigError


def test_with_a_dropped_setting_its_parts_and_its_mistake_are_also_dropped():
    found = unsettled({"sasl_jaas_config": FILE}, sasl_jaas_config="line", sasl_mechanism="PLAIN")
    found.take_from("sasl_jaas_config", "sasl_plain_username", "svc")
    assert found.is_part("sasl_plain_username", "sasl_jaas_config")
    found.drop("sasl_jaas_config")

    assert not found.is_given("sasl_plain_username")
    assert not found.is_given("sasl_jaas_config")
    wrong = unsettled({"ssl_truststore_type": FILE}, ssl_truststore_type="JKS")
    wrong.drop("ssl_truststore_type")
    wrong.raise_mistakes()
    assert wrong["ssl_truststore_type"] is None


def test_given_omits_settings_that_have_their_default():
    found = unsettled(
        sasl_kerberos_service_name="kafka", sasl_kerberos_principal="me", sasl_plain_without_tls=False
    )

    assert found.given("sasl_") == ["sasl_kerberos_principal"]


def test_given_lists_what_the_user_has_set_by_prefix():
    assert unsettled(ssl_key_password="p", linger_ms=1).given("ssl_") == ["ssl_key_password"]
