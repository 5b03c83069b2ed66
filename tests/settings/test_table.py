"""The table of settings, Producer's signature, ProducerConfig's fields and the guide agree."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from aioproducer import ConfigError, Producer, ProducerConfig
from aioproducer.partitioner import _NAMES
from aioproducer.protocol.compression import Codec
from aioproducer.settings.keys import KEYS, Fate
from aioproducer.settings.table import SETTINGS, SecuritySettings
from aioproducer.settings.unsettled import UnsettledSettings
from aioproducer.types import (
    AcksName,
    CompressionName,
    MechanismName,
    PartitionerName,
    ProtocolName,
    RecoveryName,
    Secret,
    StoreName,
)
from tools.reference.markdown import rows_of, section
from tools.reference.settings import HEADING, row_for

PAGE = Path(__file__).parent.parent.parent / "docs" / "configuration.md"
SIGNATURE = inspect.signature(Producer).parameters


@pytest.mark.promise(
    "Settings from anywhere", "the table of settings, the signature, the config and the guide agree"
)
def test_every_setting_is_a_keyword_with_the_same_default():
    keywords = {name: parameter.default for name, parameter in SIGNATURE.items() if name != "security"}
    security = set(get_type_hints(SecuritySettings))

    assert set(SETTINGS) == set(keywords) | security
    assert set(keywords) & security == set()
    for name, default in keywords.items():
        assert SETTINGS[name].default == default, name
        assert type(SETTINGS[name].default) is type(default), name


@pytest.mark.parametrize(
    ("names", "setting"),
    [
        (AcksName, "acks"),
        (CompressionName, "compression_type"),
        (PartitionerName, "partitioner"),
        (RecoveryName, "metadata_recovery_strategy"),
        (ProtocolName, "security_protocol"),
        (MechanismName, "sasl_mechanism"),
        (StoreName, "ssl_truststore_type"),
        (StoreName, "ssl_keystore_type"),
    ],
)
def test_type_checkers_know_the_names_that_a_setting_accepts(names, setting):
    kind = SETTINGS[setting].value_type
    for name in get_args(names):
        kind.check(name)

    accepted = {
        "acks": {"all", 0, 1, -1},
        "compression_type": {codec.name.lower() for codec in Codec},
        "partitioner": set(_NAMES),
    }
    assert set(get_args(names)) == accepted.get(setting, set(getattr(kind, "words", ())))
    annotation = {**get_type_hints(Producer.__init__), **get_type_hints(SecuritySettings)}[setting]
    assert (
        annotation == names
        or names in get_args(annotation)
        or set(get_args(names)) <= set(get_args(annotation))
    )


def test_every_security_setting_begins_with_its_family():
    assert all(name.startswith(("security_", "ssl_", "sasl_")) for name in get_type_hints(SecuritySettings))


@pytest.mark.promise(
    "Settings from anywhere", "the table of settings, the signature, the config and the guide agree"
)
def test_every_field_of_the_config_is_a_setting_or_derived_from_settings():
    fields = {field.name for field in dataclasses.fields(ProducerConfig)}

    assert fields == {setting.field for setting in SETTINGS.values() if setting.field} | {
        "max_in_flight_per_partition",
        "_origins",
        "_warnings",
    }


def test_names_of_other_clients_belong_to_one_setting_each():
    names = [name for setting in SETTINGS.values() for name in setting.foreign_names]

    assert len(names) == len(set(names))


# ------------------------------------------------------------------------------------------ every wrong value


class Wrong:
    """An object that no setting accepts."""

    def __repr__(self) -> str:
        return "a wrong thing"


WRONG: dict[str, list[Any]] = {
    "Milliseconds": [-1, "5", True, float("nan"), float("inf"), 2**63, 10**5000, b"5", [5]],
    "IdleTime": [-1, "5", True, float("nan"), float("inf"), 2**63],
    "Count": [-1, 1.5, "5", True, 2**63, 10**5000, b"5"],
    "Fraction": [-0.1, 1.1, "0.8", True, float("nan"), None],
    "Switch": ["true", "false", 1, 0, b"true", []],
    "Choice": ["", "something else", 5, b"PLAIN", ["PLAIN"]],
    "Words": ["SSLv3", [5], 5, {"TLSv1.2": 1}, b"TLSv1.2"],
    "Level": ["3", 1.5, True, 100],
    "ValueType": ["t\ud800", "", 5, b"name", ["name"]],
    "ClientId": [5, "naïve", "two\nlines", "a/b", b"name"],
    "FilePath": ["", 5, b"/path", ["/path"], "nul\0inside"],
    "Pem": ["", 5, b"-----BEGIN ", "/path/to/ca.pem"],
    "Hidden": ["", 5, b"hunter2", ["hunter2"], Secret(""), Secret(None)],
    "Pairs": ["a=b", {"a": 5}, {5: "a"}, [("a", "b")], 5],
    "UserCode": ["text", 5, b"text"],
    "CallbackHandler": ["", 5, "com.example.Tokens", b"name"],
    "Serializing": ["utf-8", 5],
    "ObjectList": [None, "text", 5, [5], [None], (str,)],
    "PartitionerChoice": ["", "murmur", 5],
    "Acks": [2, -2, "2", "none", "ALL", None, True, 1.0, [1]],
    "Compression": ["", "gzip2", 1, b"gzip"],
    "Servers": ["", " , ", [], None, 5, b"localhost", ["localhost", 5], "localhost:0"],
}
WRONG_VALUES = [
    (name, value)
    for name, setting in SETTINGS.items()
    for value in [*WRONG[type(setting.value_type).__name__], Wrong()]
    if (name, value) != ("ssl_cipher_suites", "SSLv3") and not (name == "acks" and value is None)
]


@pytest.mark.promise("Settings from anywhere", "every wrong value names its setting")
@pytest.mark.parametrize(
    ("name", "value"), WRONG_VALUES, ids=[f"{name}-{number}" for number, (name, _) in enumerate(WRONG_VALUES)]
)
def test_an_invalid_value_of_any_setting_is_a_config_error_that_names_it(name, value):
    security = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "svc"}
    security["sasl_plain_password"] = "hunter2"
    others = security if name.startswith(("ssl_", "sasl_")) and name not in security else {}
    # The levels depend on the codec.
    others |= {"compression_type": "gzip"} if name == "compression_level" else {}

    with pytest.raises(ConfigError) as raised:
        Producer(**{**others, name: value})

    assert raised.value.setting == name
    assert str(raised.value).startswith(f"{name}=")
    assert len(str(raised.value)) < 400
    assert isinstance(raised.value, ValueError)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(raised.value.value)


def test_none_is_accepted_only_where_it_is_the_default_and_where_aiokafka_accepts_it():
    taken = set()
    for name in SETTINGS:
        try:
            UnsettledSettings({name: None}, {}).raise_mistakes()
        except ConfigError:
            continue
        taken.add(name)

    assert {name for name in taken if SETTINGS[name].default is not None} == {
        "client_id",
        "compression_type",
        "connections_max_idle_ms",
        "partitioner",
    }
    assert {name for name in SETTINGS if SETTINGS[name].default is None} <= taken


@pytest.mark.parametrize("name", SETTINGS)
def test_text_for_any_setting_is_parsed_or_rejected_with_a_sentence(name):
    value_type = SETTINGS[name].value_type
    problems = []
    for text in ("", " ", "x", "\0", "-1", "1e9", "1_000", "٣", "9" * 500, "true", "a=b", "[::1]:1"):
        try:
            value_type.check(value_type.parse(text))
        except ValueError as error:
            problems.append(str(error))

    assert all(len(problem) > 10 for problem in problems)


# -------------------------------------------------------------------------------------------------- the guide


@pytest.mark.promise(
    "Settings from anywhere", "the table of settings, the signature, the config and the guide agree"
)
def test_the_guide_has_a_correct_row_for_every_setting():
    rows = rows_of(section(PAGE.read_text(), HEADING))

    assert [row[:6] for row in rows] == [row_for(setting) for setting in SETTINGS.values()]
    assert all(len(row) == 7 and len(row[6]) > 10 for row in rows), "each row says what its setting means"


@pytest.mark.promise(
    "Settings from anywhere", "the table of settings, the signature, the config and the guide agree"
)
@pytest.mark.parametrize(
    ("fate", "heading"),
    [
        (Fate.TRANSLATED, "Translated"),
        (Fate.FIXED, "Accepted if they ask for what is done anyway"),
        (Fate.NOTED, "Ignored, with a warning"),
        (Fate.REFUSED, "Refused"),
    ],
)
def test_the_guide_says_how_every_key_is_handled_and_why(fate, heading):
    part = PAGE.read_text().split(f"\n### {heading}\n")[1].split("\n### ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    told = {name: line for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])}

    assert set(told) == {key.name for key in KEYS.values() if key.fate is fate}
    for name, line in told.items():
        key = KEYS[name]
        for part in (*filter(None, key.fixed), key.reason, key.setting):
            assert part in line, name
        if fate is Fate.FIXED:
            assert ("a warning" in line) == (key.otherwise is Fate.NOTED), name
