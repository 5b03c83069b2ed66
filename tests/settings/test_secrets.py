"""A password does not appear anywhere: not in texts, logs, error attributes, local variables in
tracebacks, or pickles."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aioproducer import ConfigError, Producer, ProducerConfig, TransactionHandle, blocking
from aioproducer.blocking import shared as shared_module
from aioproducer.compat import confluent
from aioproducer.compat.aiokafka import AIOKafkaProducer
from aioproducer.security.sasl import OAuthToken
from aioproducer.security.token_providers import OidcTokenProvider
from aioproducer.settings.table import SETTINGS
from aioproducer.testing import RecordingProducer
from aioproducer.types import Secret
from tests.support.tracebacks import PACKAGE, assert_no_frame_shows, fields_of, frames, shown

# Assembled from parts, so that the lines of this file in a traceback don't contain it.
CANARY = "-".join(["hunter2", "canary"])

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


@pytest.mark.promise("Settings from anywhere", "a secret setting is never shown")
def test_a_pickle_of_a_secret_has_lost_it():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Secret(CANARY), protocol)
        lost = pickle.loads(data)

        assert CANARY.encode() not in data
        assert repr(lost) == "<hidden>"
        with pytest.raises(
            ValueError, match="was unpickled, but a pickle does not contain its text; set it again"
        ):
            lost.reveal()


@pytest.mark.parametrize("make", [Producer, lambda **settings: Producer.from_config(settings)])
def test_a_secret_lost_by_pickling_is_rejected_with_that_reason(make):
    with pytest.raises(ConfigError, match="pickle"):
        make(**SASL, sasl_plain_password=pickle.loads(pickle.dumps(Secret(CANARY))))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"canary", "must be a str or a Secret, not bytes"),
        (5, "must be a str or a Secret, not int"),
        ("", "must not be empty"),
        (Secret(""), "must not be empty"),
        (
            pickle.loads(pickle.dumps(Secret("canary"))),
            "was unpickled, but a pickle does not contain its text; set",
        ),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused_with_the_reason(value, problem):
    with pytest.raises(ConfigError) as caught:
        Producer(security_protocol="SASL_SSL", sasl_plain_username="svc", sasl_plain_password=value)

    assert str(caught.value).startswith(f"sasl_plain_password=<hidden> {problem}")
    assert "canary" not in str(caught.value)
    assert caught.value.value is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"client_id": "svc/eu"}, "client_id='svc/eu' must contain only letters"),
        ({"client_id": "https://svc:canary@host"}, "client_id=<hidden> must contain only letters"),
        (
            {"bootstrap_servers": "svc:canary@host:9092"},
            "bootstrap_servers=<hidden> contains something that is not",
        ),
        ({"linger_ms": "a@b"}, "linger_ms='a@b' must be a number"),
    ],
)
def test_a_wrong_value_is_shown_unless_it_may_have_a_password_in_it(settings, told):
    with pytest.raises(ConfigError) as caught:
        Producer(**settings)

    assert told in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "canary" not in str(caught.value.value)


def test_copies_of_a_secret_keep_it():
    secret = Secret(CANARY)

    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret


def test_a_secret_has_no_readable_state():
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
def test_a_secret_must_be_text(text):
    with pytest.raises(TypeError, match="a secret must be a str, not"):
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
    "contradiction": {**LOGIN, "retry_backoff_ms": 200, "retry_backoff_max_ms": 100},
    "three mistakes": {
        **LOGIN,
        "linger_ms": -1,
        "retry_backoff_ms": 200,
        "retry_backoff_max_ms": 100,
        "acks": 1,
    },
    "misspelt": {"sasl_plain_pasword": CANARY},
    "misspelt beside it": {**LOGIN, "lingerms": 5},
    "misspelt before it": {"lingerms": 5, **LOGIN},
    "unclosed jaas": {"security_protocol": "SASL_SSL", "sasl_jaas_config": JAAS},
    "no jaas": {"security_protocol": "SASL_SSL", "sasl_jaas_config": CANARY},
    "jaas of another": {
        "security_protocol": "SASL_SSL",
        "sasl_jaas_config": f"x.Other required a='{CANARY}';",
    },
    "jaas with a bare quotation mark": {
        "security_protocol": "SASL_SSL",
        "sasl_jaas_config": f"x.PlainLoginModule required username='svc' password='a'{CANARY}='b';",
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
"""Cases whose values are not known to be secrets before they are checked."""


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

HANDLE = TransactionHandle("orders", 1, 0, is_v2=True)
PARTITIONS = [("t", 0)]
PRODUCERS: dict[str, Any] = {
    "Producer": Producer,
    "blocking": blocking.Producer,
    "recording": RecordingProducer,
    "confluent": confluent.Producer,
    "confluent blocking": confluent.BlockingProducer,
}


def makers_of(made: Any) -> dict[str, Callable[..., object]]:
    """Return all ways to create a producer of a class from keywords."""
    return {
        "": made,
        "from_config": lambda **settings: made.from_config({}, **settings),
        "from_config, mapping": lambda **settings: made.from_config(settings),
        "from_env": lambda **settings: made.from_env("X_", {}, **settings),
        "from_properties": lambda **settings: made.from_properties("/missing", **settings),
        "attach": lambda **settings: made.attach(HANDLE, partitions=PARTITIONS, **settings),
        "attach, mapping": lambda **settings: made.attach(HANDLE, partitions=PARTITIONS, config=settings),
        "resume": lambda **settings: made.resume(HANDLE, **settings),
        "resume, mapping": lambda **settings: made.resume(HANDLE, config=settings),
    }


ENTRANCES: dict[str, Callable[..., object]] = {
    f"{name} {way}".strip(): make for name, made in PRODUCERS.items() for way, make in makers_of(made).items()
} | {
    "ProducerConfig.of": ProducerConfig.of,
    "shared": blocking.shared_producer,
    "confluent, dict": lambda **settings: confluent.Producer(settings),
    "confluent, dict and keywords": lambda **settings: confluent.Producer({"client.id": "x"}, **settings),
    "confluent blocking, dict": lambda **settings: confluent.BlockingProducer(settings),
    "confluent blocking, dict and keywords": lambda **settings: confluent.BlockingProducer(
        {"client.id": "x"}, **settings
    ),
    "aiokafka": AIOKafkaProducer,
}
"""Every way in which keywords reach a producer. Functions that accept a mapping receive all keywords in one."""


@pytest.mark.promise("Settings from anywhere", "a secret setting is never shown")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", GOOD)
def test_a_secret_is_in_the_config_and_never_shown(case, way, tmp_path, caplog):
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


@pytest.mark.parametrize("made", [*PRODUCERS.values(), AIOKafkaProducer])
def test_the_fields_of_a_producer_are_searched(made):
    outer = made(**LOGIN)
    inner = getattr(outer, "_inner", None) or getattr(outer, "producer", outer)
    assert {"_given", "_config"} <= fields_of(inner).keys()
    assert CANARY not in shown(outer)

    inner._given["planted"] = CANARY

    assert CANARY in shown(outer)


@pytest.mark.promise("Settings from anywhere", "a secret setting is never shown")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", BAD)
def test_the_error_for_rejected_settings_shows_no_secret(
    case, way: Callable[..., Producer], tmp_path, caplog
):
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
        assert_no_frame_shows(error, CANARY)


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("case", sorted(set(BAD) - NOT_HIDDEN_IN_LOCALS))
def test_no_frame_of_any_entrance_shows_a_password(entrance, case):
    with pytest.raises(ConfigError) as raised:
        ENTRANCES[entrance](**BAD[case])

    assert "".join(traceback.format_exception(raised.value)).count(PACKAGE) > 1
    assert_no_frame_shows(raised.value, CANARY)


@pytest.mark.parametrize(
    "entrance", [name for name in ENTRANCES if name != "shared" and not name.endswith("from_properties")]
)
def test_no_field_of_a_producer_shows_a_password(entrance):
    made = ENTRANCES[entrance](**LOGIN)

    assert CANARY not in shown(made)


def test_a_shared_producer_keeps_its_password_hidden():
    servers = "127.0.0.1:1"
    try:
        producer = blocking.shared_producer(bootstrap_servers=servers, **LOGIN)
        other = {**LOGIN, "sasl_plain_password": Secret(CANARY)}

        assert blocking.shared_producer(bootstrap_servers=servers, **other) is producer
        assert CANARY not in shown(shared_module._shared)
    finally:
        blocking.close_shared_producers(0)


def test_no_frame_shows_the_password_of_a_shared_producer_with_a_transactional_id():
    with pytest.raises(ConfigError, match="transactional_id") as raised:
        blocking.shared_producer(**LOGIN, transactional_id="orders")

    assert_no_frame_shows(raised.value, CANARY)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("http://id.example.com/token", CANARY),
        ("https://id.example.com/token", CANARY.encode()),
    ],
)
def test_no_frame_of_a_token_provider_shows_its_secret(url, secret):
    with pytest.raises((ConfigError, TypeError)) as raised:
        OidcTokenProvider(url, "svc", secret)

    assert len(list(frames(raised.value))) > 0
    assert_no_frame_shows(raised.value, CANARY)


@pytest.mark.parametrize(
    "given",
    [
        (CANARY.encode(),),
        (CANARY, "3600"),
        (CANARY, 60, 5),
        (Secret(CANARY), float("nan")),
        (CANARY, 10**400),
        (3600, CANARY),
    ],
)
def test_no_frame_of_a_token_shows_it(given):
    with pytest.raises(ConfigError, match="OAuthToken: ") as raised:
        OAuthToken(*given)

    assert_no_frame_shows(raised.value, CANARY)


def test_no_frame_of_a_token_shows_it_if_its_extensions_cannot_be_read():
    with pytest.raises(KeyError) as raised:
        OAuthToken(CANARY, 60, Failing())

    assert_no_frame_shows(raised.value, CANARY)


def test_every_way_to_create_a_producer_is_tested():
    for made in PRODUCERS.values():
        makers = {
            name
            for name, member in inspect.getmembers(made, inspect.ismethod)
            if not name.startswith("_") and member.__self__ is made
        }
        assert makers == {way.partition(",")[0] for way in makers_of(made)} - {""}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Producer.from_config([], sasl_plain_password=CANARY),
        lambda: Producer.from_config({5: 5}, sasl_plain_password=CANARY),
        lambda: Producer.from_env("", sasl_plain_password=CANARY),
        lambda: Producer.from_env("X_", {"X_SASL_PASSWORD": CANARY, "X_LINGER": "5"}),
        lambda: Producer.from_properties(None, sasl_plain_password=CANARY),
        lambda: Producer.attach(HANDLE, partitions=PARTITIONS, config=[CANARY], ssl_key_password=CANARY),
        lambda: Producer.resume(HANDLE, config=[CANARY], ssl_key_password=CANARY),
        lambda: confluent.Producer([CANARY], sasl_plain_password=CANARY),
        lambda: confluent.Producer({5: CANARY}, sasl_plain_password=CANARY),
        lambda: confluent.BlockingProducer([CANARY], sasl_plain_password=CANARY),
        lambda: blocking.Producer.from_config([CANARY], sasl_plain_password=CANARY),
        lambda: blocking.Producer.from_env("", sasl_plain_password=CANARY),
        lambda: blocking.Producer.from_properties(None, sasl_plain_password=CANARY),
        lambda: blocking.Producer.attach(HANDLE, partitions=[], config=[CANARY], ssl_key_password=CANARY),
        lambda: blocking.Producer.resume(HANDLE, config=[CANARY], ssl_key_password=CANARY),
    ],
)
def test_no_frame_shows_a_password_next_to_an_invalid_source(make):
    with pytest.raises(ConfigError) as raised:
        make()

    assert len(list(frames(raised.value))) > 1
    assert_no_frame_shows(raised.value, CANARY)


class Failing(Mapping[str, str]):
    """A mapping whose last value can't be read, such as a section of an INI file with an invalid reference."""

    def __init__(self, **settings: str) -> None:
        self._settings = settings

    def __repr__(self) -> str:
        return repr(self._settings)

    def __len__(self) -> int:
        return len(self._settings) + 1

    def __iter__(self) -> Iterator[str]:
        return iter([*self._settings, "X_CLIENT_ID"])

    def __getitem__(self, name: str) -> str:
        return self._settings[name]


@pytest.mark.parametrize("made", PRODUCERS.values(), ids=PRODUCERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda made: made.from_config(Failing(sasl_plain_password=CANARY)),
        lambda made: made.from_env("X_", Failing(X_SASL_PLAIN_PASSWORD=CANARY)),
        lambda made: made.from_env("X_", {"X_SASL_PLAIN_PASSWORD": CANARY, 5: "5"}),
        lambda made: made.from_env("X_", {b"X_SASL_PLAIN_PASSWORD": CANARY}),
        lambda made: made.from_env("X_", [CANARY]),
    ],
)
def test_no_frame_shows_the_content_of_a_source_that_cannot_be_read(make, made):
    with pytest.raises((ConfigError, KeyError)) as raised:
        make(made)

    assert_no_frame_shows(raised.value, CANARY)


def test_no_frame_shows_a_password_next_to_an_invalid_handle():
    for make in (Producer.attach, blocking.Producer.attach):
        with pytest.raises(AttributeError) as raised:
            make(None, partitions=PARTITIONS, config={"sasl_password": CANARY}, ssl_key_password=CANARY)
        assert_no_frame_shows(raised.value, CANARY)


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sasl_plain_password", CANARY.encode()),
        ("sasl_plain_password", bytearray(CANARY.encode())),
        ("ssl_key_password", [CANARY]),
        ("ssl_keystore_key", {"key": CANARY}),
        ("sasl_credentials", ("svc", CANARY)),
        ("sasl_oauth_token_provider", CANARY),
    ],
    ids=lambda value: value if isinstance(value, str) and value != CANARY else type(value).__name__,
)
def test_a_password_of_another_type_is_in_no_frame(entrance, setting, value):
    with pytest.raises(ConfigError) as raised:
        ENTRANCES[entrance](**{**SASL, setting: value})

    assert CANARY not in str(raised.value)
    assert "/missing" in str(raised.value) or raised.value.setting == setting
    assert_no_frame_shows(raised.value, CANARY)


def test_the_error_for_a_broken_file_shows_no_secret(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text(f"sasl.password={CANARY}\nclient.id=\\u12\n")

    with pytest.raises(ConfigError) as raised:
        Producer.from_properties(path)

    assert_no_frame_shows(raised.value, CANARY)
