"""TLS and SASL settings: their values, derived settings, and contradictions."""

from __future__ import annotations

import ssl

import pytest

from aioproducer import ConfigError, Producer, ProducerConfig
from aioproducer.settings.security import settle_security
from aioproducer.settings.unsettled import UnsettledSettings
from aioproducer.types import Secret

PEM = "-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMAo=\n-----END PRIVATE KEY-----\n"
PACKAGE = "org.apache.kafka.common.security"
URL = "https://id.example.com/token"


def config(**settings: object) -> ProducerConfig:
    return Producer(**settings).config


def sasl(mechanism: str | None, **settings: object) -> ProducerConfig:
    named = {} if mechanism is None else {"sasl_mechanism": mechanism}
    return config(**{"security_protocol": "SASL_SSL", **named, **settings})


def jaas(module: str, **options: str) -> str:
    package = {
        "PlainLoginModule": "plain",
        "ScramLoginModule": "scram",
        "OAuthBearerLoginModule": "oauthbearer",
    }
    pairs = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{PACKAGE}.{package.get(module, 'x')}.{module} required {pairs};"


# ---------------------------------------------------------------------------------------------------- mechanisms


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_name_and_password_are_credentials(mechanism):
    effective = sasl(mechanism, sasl_plain_username="svc", sasl_plain_password="pw")

    assert effective.security_protocol == "SASL_SSL"
    assert effective.sasl_mechanism == mechanism
    assert effective.sasl_plain_username == "svc"
    assert effective.sasl_plain_password == Secret("pw")


def test_names_are_accepted_in_any_case_as_in_librdkafka():
    effective = config(
        security_protocol="sasl_ssl",
        sasl_mechanism="scram-sha-256",
        sasl_plain_username="svc",
        sasl_plain_password="pw",
    )

    assert (effective.security_protocol, effective.sasl_mechanism) == ("SASL_SSL", "SCRAM-SHA-256")


def test_a_user_name_alone_means_plain_as_in_aiokafka():
    effective = sasl(None, sasl_plain_username="svc", sasl_plain_password="pw")

    assert effective.sasl_mechanism == "PLAIN"
    assert effective.origin("sasl_mechanism") == "derived because sasl_plain_username is set"


def test_a_source_of_tokens_means_oauthbearer():
    effective = sasl(None, sasl_oauth_token_provider=lambda: "token")

    assert effective.sasl_mechanism == "OAUTHBEARER"


def test_credentials_can_be_a_function():
    def credentials() -> tuple[str, str]:
        return "svc", "pw"

    assert sasl("PLAIN", sasl_credentials=credentials).sasl_credentials is credentials


def test_tokens_can_come_from_an_endpoint():
    effective = sasl(
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=URL,
        sasl_oauthbearer_client_credentials_client_id="svc",
        sasl_oauthbearer_client_credentials_client_secret="pw",
        sasl_oauthbearer_scope="kafka",
        sasl_oauthbearer_extensions={"logicalCluster": "lkc-1"},
    )

    assert effective.sasl_oauthbearer_client_credentials_client_secret == Secret("pw")
    assert effective.sasl_oauthbearer_extensions == (("logicalCluster", "lkc-1"),)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/t",
        "http://127.0.0.1:8080/t",
        "http://[::1]:1",
        "HTTPS://id.example.com",
        URL + "?a=b",
    ],
)
def test_an_endpoint_is_https_or_local(url):
    effective = sasl(
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=url,
        sasl_oauthbearer_client_credentials_client_id="svc",
        sasl_oauthbearer_client_credentials_client_secret="pw",
    )

    assert effective.sasl_oauthbearer_token_endpoint_url == url


# ---------------------------------------------------------------------------------------------------- JAAS lines


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_a_jaas_line_contains_user_name_and_password(mechanism):
    module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"

    effective = sasl(mechanism, sasl_jaas_config=jaas(module, username="svc", password="pw"))

    assert (effective.sasl_plain_username, effective.sasl_plain_password) == ("svc", Secret("pw"))
    assert effective.origin("sasl_plain_password") == "explicit as sasl_jaas_config"


def test_a_jaas_line_implies_the_mechanism_where_possible():
    plain = sasl(None, sasl_jaas_config=jaas("PlainLoginModule", username="svc", password="pw"))

    assert plain.sasl_mechanism == "PLAIN"
    assert plain.origin("sasl_mechanism") == "derived because sasl_jaas_config names PlainLoginModule"
    with pytest.raises(ConfigError, match="requires sasl_mechanism; set it to one of"):
        sasl(None, sasl_jaas_config=jaas("ScramLoginModule", username="svc", password="pw"))


def test_a_jaas_line_may_contain_a_delegation_token():
    effective = sasl(
        "SCRAM-SHA-256",
        sasl_jaas_config=jaas("ScramLoginModule", username="id", password="pw", tokenauth="true"),
    )

    assert effective.sasl_scram_token_auth


def test_a_jaas_line_may_contain_client_credentials():
    effective = sasl(
        "OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=URL,
        sasl_jaas_config=jaas(
            "OAuthBearerLoginModule", clientId="svc", clientSecret="pw", scope="kafka", extension_pool="7"
        ),
    )

    assert effective.sasl_oauthbearer_client_credentials_client_id == "svc"
    assert effective.sasl_oauthbearer_client_credentials_client_secret == Secret("pw")
    assert effective.sasl_oauthbearer_scope == "kafka"
    assert effective.sasl_oauthbearer_extensions == (("pool", "7"),)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"sasl_jaas_config": "hunter2"}, "must be 'LoginModule required"),
        ({"sasl_jaas_config": jaas("Krb5LoginModule", keyTab="x")}, "sasl_kerberos_keytab"),
        ({"sasl_jaas_config": jaas("IAMLoginModule")}, "MskIamTokenProvider(region)"),
        ({"sasl_jaas_config": jaas("OtherLoginModule")}, "use one of PlainLoginModule, ScramLoginModule"),
        (
            {"sasl_jaas_config": jaas("PlainLoginModule", user="x")},
            "has an unknown option (number 1); PlainLoginModule accepts username and password",
        ),
        (
            {"sasl_jaas_config": jaas("OAuthBearerLoginModule", unsecuredLoginStringClaim_sub="me")},
            "asks for an unsecured token",
        ),
        (
            {
                "sasl_jaas_config": jaas("PlainLoginModule", username="a", password="b"),
                "sasl_plain_username": "c",
            },
            "sets sasl_plain_username as well; keep one",
        ),
        (
            {
                "sasl_jaas_config": jaas("PlainLoginModule", username="a", password="b"),
                "sasl_mechanism": "SCRAM-SHA-256",
            },
            "cannot be used with PlainLoginModule in sasl_jaas_config; use PLAIN",
        ),
        ({"sasl_jaas_config": jaas("PlainLoginModule", username="a")}, "sasl_plain_password is missing"),
    ],
)
def test_a_jaas_line_that_cannot_be_used_is_rejected(settings, problem):
    with pytest.raises(ConfigError) as raised:
        sasl(settings.pop("sasl_mechanism", None), **settings)

    assert problem in str(raised.value)
    assert "hunter2" not in str(raised.value)


# ------------------------------------------------------------------------------------------------- contradictions

SASL = {"security_protocol": "SASL_SSL"}
NAME = {"sasl_plain_username": "svc"}
LOGIN = {**NAME, "sasl_plain_password": "pw"}
CREDENTIALS = {"sasl_credentials": lambda: ("svc", "pw")}
PROVIDER = {"sasl_oauth_token_provider": lambda: "token"}
ENDPOINT = {
    "sasl_oauthbearer_token_endpoint_url": URL,
    "sasl_oauthbearer_client_credentials_client_id": "svc",
    "sasl_oauthbearer_client_credentials_client_secret": "pw",
}


@pytest.mark.parametrize(
    ("settings", "setting", "problem"),
    [
        (
            LOGIN,
            "sasl_plain_username",
            "has no effect with security_protocol=PLAINTEXT; set security_protocol=SASL_SSL",
        ),
        (
            {"security_protocol": "SSL", **LOGIN},
            "sasl_plain_username",
            "has no effect with security_protocol=SSL",
        ),
        (
            {"ssl_truststore_location": "ca.pem"},
            "ssl_truststore_location",
            "set security_protocol=SSL or SASL_SSL",
        ),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "SCRAM-SHA-256",
                **LOGIN,
                "ssl_key_password": "x",
            },
            "ssl_key_password",
            "has no effect with security_protocol=SASL_PLAINTEXT",
        ),
        (
            {"security_protocol": "SASL_SSL"},
            "sasl_mechanism",
            "security_protocol=SASL_SSL requires sasl_mechanism",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"},
            "sasl_mechanism",
            "sasl_plain_username is missing",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **NAME},
            "sasl_mechanism",
            "sasl_plain_password is missing",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", **LOGIN},
            "sasl_mechanism",
            "sends the password in clear text; use security_protocol=SASL_SSL, or allow it with",
        ),
        (
            {**SASL, "sasl_mechanism": "PLAIN", **LOGIN, **CREDENTIALS},
            "sasl_credentials",
            "leave sasl_plain_... out",
        ),
        (
            {**SASL, "sasl_mechanism": "PLAIN", **LOGIN, "sasl_scram_token_auth": True},
            "sasl_scram_token_auth",
            "applies only to SCRAM",
        ),
        (
            {**SASL, "sasl_mechanism": "PLAIN", **LOGIN, **PROVIDER},
            "sasl_mechanism",
            "does not use sasl_oauth_token_provider",
        ),
        (
            {**SASL, "sasl_mechanism": "PLAIN", **LOGIN, "sasl_login_read_timeout_ms": 5},
            "sasl_mechanism",
            "does not use sasl_login_read_timeout_ms",
        ),
        (
            {**SASL, "sasl_mechanism": "OAUTHBEARER"},
            "sasl_mechanism",
            "requires sasl_oauth_token_provider or",
        ),
        (
            {**SASL, "sasl_mechanism": "OAUTHBEARER", **PROVIDER, **LOGIN},
            "sasl_mechanism",
            "does not use sasl_plain_username",
        ),
        (
            {**SASL, "sasl_mechanism": "OAUTHBEARER", **PROVIDER, **CREDENTIALS},
            "sasl_mechanism",
            "does not use sasl_credentials",
        ),
        (
            {**SASL, **PROVIDER, **ENDPOINT},
            "sasl_oauth_token_provider",
            "leave sasl_oauthbearer_token_endpoint_url",
        ),
        (
            {**SASL, "sasl_oauthbearer_token_endpoint_url": URL},
            "sasl_oauthbearer_client_credentials_client_id",
            "requires sasl_oauthbearer_client_credentials_client_id",
        ),
        (
            {**SASL, "sasl_mechanism": "GSSAPI", "sasl_plain_username": "u", "sasl_plain_password": "p"},
            "sasl_mechanism",
            "does not use sasl_plain_username",
        ),
        (
            {
                **SASL,
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "u",
                "sasl_plain_password": "p",
                "sasl_kerberos_keytab": "k",
            },
            "sasl_mechanism",
            "does not use sasl_kerberos_keytab",
        ),
        (
            {**SASL, "sasl_mechanism": "AWS_MSK_IAM"},
            "sasl_mechanism",
            "requires the region of the cluster, which is not in the host names of bootstrap_servers",
        ),
    ],
)
def test_contradictory_security_settings_are_rejected(settings, setting, problem):
    with pytest.raises(ConfigError) as raised:
        config(**settings)

    assert raised.value.setting == setting
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example.com/token",
        "https://me:hunter2@id.example.com/token",
        "ftp://id.example.com",
        "id.example.com",
        "https://",
        "https://id.example.com /token",
        "http://localhost.example.com/",
    ],
)
def test_an_endpoint_that_would_leak_the_secret_is_refused_without_showing_it(url):
    with pytest.raises(ConfigError, match="must be https://host/path") as raised:
        sasl("OAUTHBEARER", **{**ENDPOINT, "sasl_oauthbearer_token_endpoint_url": url})

    assert raised.value.setting == "sasl_oauthbearer_token_endpoint_url"
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("protocol", [{}, {"security_protocol": "SSL"}])
def test_a_mechanism_alone_as_programs_for_aiokafka_pass_it_causes_a_warning(protocol, caplog):
    effective = config(sasl_mechanism="PLAIN", sasl_plain_username=None, sasl_plain_password=None, **protocol)

    assert effective.sasl_mechanism is None
    [warning] = [record.getMessage() for record in caplog.records]
    assert "sasl_mechanism=PLAIN has no effect with security_protocol=" in warning


def test_passwords_in_clear_text_can_be_allowed_by_a_setting():
    effective = config(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_plain_without_tls=True, **LOGIN
    )

    assert effective.sasl_plain_without_tls


@pytest.mark.parametrize(("protocol", "warns"), [("SASL_PLAINTEXT", True), ("SASL_SSL", False)])
def test_a_token_without_tls_causes_a_warning(caplog, protocol, warns):
    config(
        security_protocol=protocol, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=lambda: "token"
    )

    assert ("sends the token in clear text" in caplog.text) is warns


def test_scram_needs_no_such_permission():
    assert config(security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", **LOGIN).sasl_mechanism


# ------------------------------------------------------------------------------------------------------------ TLS


def test_tls_with_the_systems_certificates_needs_nothing_else():
    effective = config(security_protocol="SSL")

    assert effective.ssl_truststore_location is None
    assert effective.sasl_mechanism is None


def test_a_users_context_is_passed_on():
    context = ssl.create_default_context()

    assert config(security_protocol="SSL", ssl_context=context).ssl_context is context


@pytest.mark.parametrize(
    ("settings", "setting", "problem"),
    [
        (
            {"ssl_truststore_certificates": PEM, "ssl_truststore_location": "ca.pem"},
            "ssl_truststore_certificates",
            "set the same thing; keep one",
        ),
        (
            {"ssl_keystore_location": "a.p12", "ssl_certificate_location": "a.pem"},
            "ssl_keystore_location",
            "set the same thing; keep one",
        ),
        ({"ssl_key_location": "key.pem"}, "ssl_key_location", "requires ssl_keystore_certificate_chain or"),
        ({"ssl_keystore_key": KEY}, "ssl_keystore_key", "requires ssl_keystore_certificate_chain or"),
        (
            {"ssl_keystore_certificate_chain": PEM},
            "ssl_keystore_certificate_chain",
            "requires ssl_keystore_key or",
        ),
        ({"ssl_key_password": "x"}, "ssl_key_password", "requires ssl_keystore_key or ssl_key_location or"),
        ({"ssl_keystore_password": "x"}, "ssl_keystore_password", "requires ssl_keystore_location"),
        ({"ssl_truststore_password": "x"}, "ssl_truststore_password", "requires ssl_truststore_location"),
        (
            {"ssl_context": ssl.create_default_context(), "ssl_crl_location": "crl.pem"},
            "ssl_context",
            "set ssl_crl_location there and leave ssl_crl_location out",
        ),
        ({"ssl_keystore_type": "JKS"}, "ssl_keystore_type", "keytool -importkeystore"),
        (
            {"ssl_keystore_key": "/etc/ssl/key.pem", "ssl_keystore_certificate_chain": PEM},
            "ssl_keystore_key",
            "must be PEM text (-----BEGIN ...); give the path of a file as the setting whose name ends in _location",
        ),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "ssl_enabled_protocols", "must contain only TLSv1.2, TLSv1.3"),
        (
            {"ssl_enabled_protocols": ""},
            "ssl_enabled_protocols",
            "is empty; name at least one of TLSv1.2, TLSv1.3",
        ),
    ],
)
def test_contradictory_tls_settings_are_rejected(settings, setting, problem):
    with pytest.raises(ConfigError) as raised:
        config(security_protocol="SSL", **settings)

    assert raised.value.setting == setting
    assert problem in str(raised.value)


def test_lists_are_accepted_as_each_client_writes_them():
    effective = config(
        security_protocol="SSL",
        ssl_enabled_protocols="TLSv1.3,TLSv1.2",
        ssl_cipher_suites="ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384",
    )

    assert effective.ssl_enabled_protocols == ("TLSv1.3", "TLSv1.2")
    assert effective.ssl_cipher_suites == ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384")


def test_sasl_settings_without_sasl_are_rejected_together():
    unsettled = UnsettledSettings({"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice"}, {})

    settle_security(unsettled)

    with pytest.raises(ConfigError, match="sasl_mechanism has no effect with security_protocol=PLAINTEXT"):
        unsettled.raise_mistakes()


def test_a_mechanism_alone_is_left_out_with_a_note():
    unsettled = UnsettledSettings({"sasl_mechanism": "PLAIN"}, {})
    settle_security(unsettled)

    assert unsettled["sasl_mechanism"] is None
    assert unsettled.notes == ["sasl_mechanism=PLAIN has no effect with security_protocol=PLAINTEXT"]
