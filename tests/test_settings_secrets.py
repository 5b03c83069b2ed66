"""A password that somebody sets shows nowhere: not in texts, logs, facts of errors, locals of tracebacks, pickles."""

from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import aioproducer
from aioproducer import ConfigError, Producer
from aioproducer.settings.table import SETTINGS
from aioproducer.types import Secret

CANARY = "-".join(["hunter2", "canary"])  # so that this file's own lines in a traceback don't hold it
PACKAGE = str(Path(aioproducer.__file__).parent)

# ------------------------------------------------------------------------------------------------------- Secret


def test_a_secret_shows_nothing():
    secret = Secret(CANARY)

    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>20}",
        repr([secret]),
        repr({"password": secret}),
    ]

    assert all(CANARY not in text for text in shown)
    assert repr(secret) == "<hidden>"
    assert secret.reveal() == CANARY


def test_a_pickle_of_a_secret_has_lost_it():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Secret(CANARY), protocol)
        lost = pickle.loads(data)

        assert CANARY.encode() not in data
        assert repr(lost) == "<hidden>"
        with pytest.raises(ValueError, match="left behind when it was pickled; set it anew"):
            lost.reveal()


def test_copies_of_a_secret_keep_it():
    secret = Secret(CANARY)

    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret


def test_a_secret_has_no_state_to_look_into():
    assert Secret(CANARY).__getstate__() is None
    with pytest.raises(TypeError):
        vars(Secret(CANARY))


def test_secrets_compare_by_their_text():
    assert Secret("a") == Secret("a")
    assert Secret("é\ud800") == Secret("é\ud800")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret(None) != Secret(None)


@pytest.mark.parametrize("text", [5, b"bytes", ["a"]])
def test_a_secret_is_text(text):
    with pytest.raises(TypeError, match="a secret is a str, not"):
        Secret(text)


# ------------------------------------------------------------------------------------------------------ settings

JAAS = f"x.PlainLoginModule required username='svc' password='{CANARY}'"
SASL = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "svc"}
LOGIN = {**SASL, "sasl_plain_password": CANARY}
PEM = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----"

GOOD: dict[str, dict[str, Any]] = {
    "password": LOGIN,
    "secret": {**SASL, "sasl_plain_password": Secret(CANARY)},
    "jaas": {"security_protocol": "SASL_SSL", "sasl_jaas_config": JAAS + ";"},
    "tls": {
        "security_protocol": "SSL",
        "ssl_keystore_location": "client.p12",
        "ssl_keystore_password": CANARY,
        "ssl_key_password": CANARY,
        "ssl_truststore_location": "ca.p12",
        "ssl_truststore_password": CANARY,
    },
    "oidc": {
        "security_protocol": "SASL_SSL",
        "sasl_oauthbearer_token_endpoint_url": "https://id.example.com/token",
        "sasl_oauthbearer_client_credentials_client_id": "svc",
        "sasl_oauthbearer_client_credentials_client_secret": CANARY,
    },
}
BAD: dict[str, dict[str, Any]] = {
    "no protocol": {"sasl_plain_password": CANARY},
    "other setting": {**LOGIN, "linger_ms": -1},
    "contradiction": {**LOGIN, "acks": 1, "enable_idempotence": True},
    "misspelt": {"sasl_plain_pasword": CANARY},
    "misspelt beside it": {**LOGIN, "lingerms": 5},
    "misspelt before it": {"lingerms": 5, **LOGIN},
    "unclosed jaas": {"security_protocol": "SASL_SSL", "sasl_jaas_config": JAAS},
    "no jaas": {"security_protocol": "SASL_SSL", "sasl_jaas_config": CANARY},
    "jaas of another": {
        "security_protocol": "SASL_SSL",
        "sasl_jaas_config": f"x.Other required a='{CANARY}';",
    },
    "no pem": {"security_protocol": "SSL", "ssl_keystore_key": CANARY},
    "pem alone": {"security_protocol": "SSL", "ssl_keystore_key": PEM},
    "in an address": {"bootstrap_servers": f"kafka://svc:{CANARY}@broker:9092"},
    "in a list of addresses": {"bootstrap_servers": ["a:1", f"svc:{CANARY}@broker:9092"]},
    "in a url": {**GOOD["oidc"], "sasl_oauthbearer_token_endpoint_url": f"https://svc:{CANARY}@id/token"},
    "clear text": {**LOGIN, "security_protocol": "SASL_PLAINTEXT"},
    "another client's": {"sasl_oauthbearer_assertion_private_key_passphrase": CANARY},
}
NOT_HIDDEN_IN_LOCALS = {"in an address", "in a list of addresses", "in a url"}
"""Nobody knows that these are secrets before they are looked at."""


def by_keywords(settings: dict[str, Any], _: Path) -> Producer:
    return Producer(**settings)


def by_mapping(settings: dict[str, Any], _: Path) -> Producer:
    return Producer.from_config(settings)


def by_overrides(settings: dict[str, Any], _: Path) -> Producer:
    return Producer.from_config({"client.id": "x"}, **settings)


def as_text(settings: dict[str, Any]) -> dict[str, str]:
    plain = {name: value.reveal() if isinstance(value, Secret) else value for name, value in settings.items()}
    return {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in plain.items()}


def by_environment(settings: dict[str, Any], _: Path) -> Producer:
    return Producer.from_env("X_", {f"X_{name.upper()}": value for name, value in as_text(settings).items()})


def by_file(settings: dict[str, Any], directory: Path) -> Producer:
    path = directory / "client.properties"
    path.write_text(
        "".join(f"{name}={text.replace(chr(10), ' ')}\n" for name, text in as_text(settings).items())
    )
    return Producer.from_properties(path)


WAYS = [by_keywords, by_mapping, by_overrides, by_environment, by_file]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", GOOD)
def test_a_secret_is_in_the_config_and_shows_nowhere(case, way, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        config = way(
            {**GOOD[case], "retries": 3} if way in (by_mapping, by_file) else GOOD[case], tmp_path
        ).config

    secrets = [
        getattr(config, setting.field) for setting in SETTINGS.values() if setting.is_secret and setting.field
    ]
    assert Secret(CANARY) in secrets
    assert "<hidden>" in str(config)
    for text in (str(config), repr(config), caplog.text, repr(pickle.dumps(config))):
        assert CANARY not in text


def shown(value: object) -> str:
    """Its repr; of a producer, which is half-made when it raises, what it keeps."""
    values = value if isinstance(value, tuple) else (value,)
    return "".join(repr(vars(part)) if isinstance(part, Producer) else repr(part) for part in values)


def frames(error: BaseException | None) -> Iterator[TracebackType]:
    """All frames of this package that an error, its causes and its contexts lead to."""
    while error is not None:
        at = error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename.startswith(PACKAGE):
                yield at
            at = at.tb_next
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", BAD)
def test_a_refusal_shows_no_secret(case, way: Callable[..., Producer], tmp_path, caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as raised:
        way(dict(BAD[case]), tmp_path)

    error = raised.value
    for text in (
        str(error),
        repr(error),
        repr(vars(error)),
        caplog.text,
        "".join(traceback.format_exception(error)),
        repr(pickle.dumps(error)),
    ):
        assert CANARY not in text
    assert len(list(frames(error))) > 1
    if case not in NOT_HIDDEN_IN_LOCALS:
        for at in frames(error):
            for name, value in at.tb_frame.f_locals.items():
                assert CANARY not in shown(value), f"{at.tb_frame.f_code.co_qualname}: {name}"


def test_a_broken_file_shows_no_secret(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text(f"sasl.password={CANARY}\nclient.id=\\u12\n")

    with pytest.raises(ConfigError) as raised:
        Producer.from_properties(path)

    for at in frames(raised.value):
        assert CANARY not in "".join(map(shown, at.tb_frame.f_locals.values()))
