"""Value types: the parsing of text, rejected values, and the representation of values."""

from __future__ import annotations

import pytest

from aioproducer.protocol.compression import Codec
from aioproducer.settings.value_types import (
    Acks,
    ClientId,
    Compression,
    Fraction,
    IdleTime,
    Milliseconds,
    Servers,
    Switch,
    ValueType,
)


@pytest.mark.parametrize(("text", "seconds"), [("5", 0.005), ("0.5", 0.0005), (" 1000 ", 1.0)])
def test_milliseconds_are_kept_in_seconds_and_shown_as_they_were_written(text, seconds):
    kind = Milliseconds()
    value = kind.check(kind.parse(text))

    assert value == seconds
    assert float(kind.shown(value)) == float(text)


@pytest.mark.parametrize("value", [-1, True, "5", float("nan"), 2**63])
def test_no_other_value_is_a_duration(value):
    with pytest.raises(ValueError, match="must be a number of milliseconds"):
        Milliseconds().check(value)


@pytest.mark.parametrize("text", ["5 ms", "1e3", ""])
def test_no_other_text_is_a_duration(text):
    with pytest.raises(ValueError, match="must be a number of milliseconds"):
        Milliseconds().parse(text)


@pytest.mark.parametrize("value", [2**53 - 1, 2**53, 2**63 - 1])
def test_javas_longest_duration_becomes_our_longest_one(value):
    kind = Milliseconds()

    assert kind.check(kind.parse(str(value))) == (2**53 - 1) / 1000


@pytest.mark.parametrize("name", ["orders:eu", "svc@eu", "team a", ""])
def test_a_client_id_may_name_a_user_or_a_part(name):
    assert ClientId().check(name) == name


def test_a_client_id_is_not_a_url():
    with pytest.raises(ValueError, match="must contain only letters"):
        ClientId().check("https://svc:secret@host")


def test_an_idle_time_of_none_means_never():
    assert IdleTime().check(None) == 0.0


def test_a_fraction_must_be_within_its_bounds():
    kind = Fraction(0.5, 0.9)

    assert kind.check(kind.parse("0.75")) == 0.75
    for wrong in (0.4, 1, True, "0.7"):
        with pytest.raises(ValueError, match=r"from 0\.5 to 0\.9"):
            kind.check(wrong)


def test_a_text_is_not_empty_and_can_be_sent_as_utf_8():
    assert ValueType().check("ü") == "ü"
    for wrong in ("", 5, "\ud800"):
        with pytest.raises(ValueError, match=r"must be a non-empty str|surrogate"):
            ValueType().check(wrong)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("T", True), ("1", True), ("false", False), ("0", False)]
)
def test_a_switch_is_parsed_as_other_clients_parse_it(text, value):
    assert Switch().parse(text) is value


@pytest.mark.parametrize(("value", "acks"), [("all", -1), (-1, -1), (0, 0), (1, 1)])
def test_acks_have_a_name_and_numbers(value, acks):
    assert Acks().check(value) == acks


def test_a_codec_is_found_by_its_name():
    assert Compression().check("zstd") is Codec.ZSTD
    with pytest.raises(ValueError, match="zstd"):
        Compression().check("zip")


def test_servers_are_a_list_of_hosts_and_ports():
    assert Servers().check("a:1,[::1]:2") == (("a", 1), ("::1", 2))
    assert Servers().check(["a", "b:2"])[0] == ("a", 9092)
    with pytest.raises(ValueError, match="port"):
        Servers().check("a:99999")
