"""Java's JAAS line and callback handlers are translated or rejected, and keywords override them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioproducer import ConfigError, Producer, ProducerConfig
from aioproducer.settings.java_login import take_java_login
from aioproducer.settings.unsettled import UnsettledSettings
from aioproducer.types import Secret

OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
IAM_MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
AWS = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
GOOGLE = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"
STRIMZI = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
SAMPLE = "CustomAuthenticateCallbackHandler"
ROLE = "arn:aws:iam::123456789012:role/orders"
MSK = "b-1.orders.abc123.c2.kafka.us-east-1.amazonaws.com:9098"
NAMESPACE = "orders.servicebus.windows.net:9093"
TOKEN_URL = "https://id.example.com/token"
CANARY = "-".join(["hunter2", "canary"])


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "OAUTH_CLIENT_ID", "OAUTH_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)


def jaas(module: str = OAUTH_MODULE, **options: str) -> str:
    pairs = "".join(f' {name.replace("__", ".")}="{value}"' for name, value in options.items())
    return f"{module} required{pairs};"


def java(handler: str = "", line: str = jaas(), servers: str = "kafka:9093", **more: str) -> dict[str, str]:
    """Return a configuration for OAUTHBEARER with Java's names."""
    settings = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": line,
    }
    return settings | ({"sasl.login.callback.handler.class": handler} if handler else {}) | more


def loaded(settings: dict[str, str], **keywords: object) -> ProducerConfig:
    return Producer.from_config(settings, **keywords).config


def provider_of(settings: dict[str, str]) -> str:
    return repr(loaded(settings).sasl_oauth_token_provider)


# ------------------------------------------------------------------------------------------------------------- AWS


@pytest.mark.parametrize(
    ("servers", "region"),
    [
        (MSK, "us-east-1"),
        ("boot-abc.c1.kafka-serverless.eu-west-1.amazonaws.com:9098", "eu-west-1"),
        ("b-1.orders.abc.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("b-1.orders.abc.c2.kafka.us-gov-west-1.amazonaws.com:9098", "us-gov-west-1"),
        (f"proxy.example.com:9098,{MSK}", "us-east-1"),
    ],
)
def test_the_region_of_msk_is_read_from_the_host_name(servers, region):
    assert provider_of(java(AWS, servers=servers)) == f"<MskIamTokenProvider {region}>"


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_with_another_host_name_the_region_comes_from_the_environment(variable, monkeypatch):
    monkeypatch.setenv(variable, "eu-central-1")

    assert provider_of(java(AWS, servers="kafka.example.com:9098")) == "<MskIamTokenProvider eu-central-1>"


def test_the_error_for_a_missing_region_asks_for_it():
    with pytest.raises(ConfigError, match="requires the region of the cluster") as caught:
        loaded(java(AWS, servers="kafka.amazonaws.com.example.com:9098"))

    assert "set the AWS_REGION environment variable" in str(caught.value)
    assert "sasl_oauth_token_provider=MskIamTokenProvider(region)" in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        java(AWS, servers=MSK),
        java(line=jaas(IAM_MODULE), servers=MSK) | {"sasl.mechanism": "AWS_MSK_IAM"},
        java(line=jaas(IAM_MODULE), servers=MSK) | {"sasl.mechanism": "OAUTHBEARER"},
        {"bootstrap.servers": MSK, "security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"},
        {"bootstrap.servers": MSK, "security.protocol": "SASL_SSL", "sasl.jaas.config": jaas(IAM_MODULE)},
    ],
)
def test_each_configuration_of_iam_becomes_oauthbearer_with_amazons_tokens(settings):
    config = loaded(settings)

    assert config.sasl_mechanism == "OAUTHBEARER"
    assert repr(config.sasl_oauth_token_provider) == "<MskIamTokenProvider us-east-1>"


def test_the_mechanism_of_msk_can_also_be_a_keyword():
    config = Producer(MSK, security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM").config

    assert config.sasl_mechanism == "OAUTHBEARER"
    assert config.origin("sasl_mechanism") == "explicit as AWS_MSK_IAM"
    assert config.origin("sasl_oauth_token_provider") == "explicit as sasl_mechanism"


def test_jaas_options_are_passed_to_the_provider(caplog):
    line = jaas(
        IAM_MODULE, awsRoleArn=ROLE, awsProfileName="orders", awsStsRegion="eu-west-1", awsMaxRetries="7"
    )

    assert (
        provider_of(java(AWS, line, MSK)) == f"<MskIamTokenProvider us-east-1, profile orders, role {ROLE}>"
    )
    assert "awsMaxRetries in sasl_jaas_config has no effect" in caplog.text


# ------------------------------------------------------------------------------------------------- Google and Azure


def test_googles_handler_becomes_googles_provider():
    assert provider_of(java(GOOGLE)) == "<GcpTokenProvider default credentials>"


@pytest.mark.parametrize(
    "handler",
    [
        SAMPLE,
        f"{SAMPLE};",
        f"com.example.kafka.{SAMPLE}",
        "de.microsoft.examples.AzureAuthenticateCallbackHandler",
        "com.azure.spring.cloud.service.implementation.kafka.KafkaOAuth2AuthenticateCallbackHandler",
    ],
)
def test_azures_handlers_become_azures_provider_for_the_namespace(handler):
    assert provider_of(java(handler, servers=NAMESPACE)) == (
        "<AzureTokenProvider https://orders.servicebus.windows.net/.default>"
    )


def test_the_class_of_microsofts_sample_is_rejected_for_other_brokers():
    with pytest.raises(
        ConfigError, match="is Microsoft's sample for Azure Event Hubs, but the brokers are not"
    ):
        loaded(java(SAMPLE))


# ---------------------------------------------------------------------------------------------------------- Strimzi

STRIMZI_LINE = {
    "oauth__client__id": "orders",
    "oauth__client__secret": CANARY,
    "oauth__token__endpoint__uri": TOKEN_URL,
}


def test_strimzis_options_become_settings():
    line = jaas(
        **STRIMZI_LINE,
        oauth__scope="kafka",
        oauth__connect__timeout__seconds="20",
        oauth__sasl__extension__pool="7",
    )
    config = loaded(java(STRIMZI, line))

    assert config.sasl_oauthbearer_client_credentials_client_id == "orders"
    assert config.sasl_oauthbearer_client_credentials_client_secret == Secret(CANARY)
    assert config.sasl_oauthbearer_token_endpoint_url == TOKEN_URL
    assert config.sasl_oauthbearer_scope == "kafka"
    assert config.sasl_login_connect_timeout == 20.0
    assert config.sasl_oauthbearer_extensions == (("pool", "7"),)
    assert config.sasl_oauth_token_provider is None


def test_strimzis_options_without_a_setting_become_a_provider():
    line = jaas(**STRIMZI_LINE, oauth__audience="kafka", oauth__ssl__truststore__location="/certs/ca.pem")
    config = loaded(java(STRIMZI, line))

    assert repr(config.sasl_oauth_token_provider) == "<OidcTokenProvider https://id.example.com>"
    assert config.sasl_oauthbearer_token_endpoint_url is None
    assert CANARY not in str(config)


def test_strimzis_token_is_an_option_or_in_a_file(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("first\n")
    given = loaded(java(STRIMZI, jaas(oauth__access__token=CANARY))).sasl_oauth_token_provider
    kept = loaded(java(STRIMZI, jaas(oauth__access__token__location=str(file)))).sasl_oauth_token_provider

    assert given() == CANARY
    assert kept() == "first"
    file.write_text("second\n")
    assert kept() == "second"
    assert CANARY not in repr(given)


def test_strimzis_handler_also_reads_the_environment_but_the_line_takes_precedence(monkeypatch):
    monkeypatch.setenv("OAUTH_CLIENT_ID", "other")
    monkeypatch.setenv("OAUTH_CLIENT_SECRET", CANARY)
    line = jaas(oauth__client__id="orders", oauth__token__endpoint__uri=TOKEN_URL)

    config = loaded(java(STRIMZI, line))

    assert config.sasl_oauthbearer_client_credentials_client_id == "orders"
    assert config.sasl_oauthbearer_client_credentials_client_secret == Secret(CANARY)


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        (
            "oauth__refresh__token",
            "has the option oauth.refresh.token, which can't be used; use oauth.client.secret",
        ),
        (
            "oauth__password__grant__password",
            "has the option oauth.password.grant.password, which can't be used",
        ),
        ("oauth__ssl__truststore__password", "to a file of PEM certificates"),
        ("oauth__ssl__truststore__type", "has the option oauth.ssl.truststore.type, which must be PEM"),
        (
            "other",
            "has an unknown option (number 4); OAuthBearerLoginModule accepts oauth.client.id, oauth.client.secret",
        ),
    ],
)
def test_an_option_of_strimzi_that_cannot_be_used_is_named_without_its_value(option, advice):
    with pytest.raises(ConfigError) as caught:
        loaded(java(STRIMZI, jaas(**STRIMZI_LINE, **{option: CANARY})))

    assert advice in str(caught.value)
    assert CANARY not in str(caught.value)


def test_strimzis_token_endpoint_must_use_https():
    line = jaas(
        **{**STRIMZI_LINE, "oauth__token__endpoint__uri": "http://keycloak:8080/token"},
        oauth__audience="kafka",
    )

    with pytest.raises(ConfigError, match=r"sasl_oauthbearer_token_endpoint_url must be https://host/path"):
        loaded(java(STRIMZI, line))


# ---------------------------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (java("com.example.Tokens"), "is not a Java class with a counterpart in Python; also pass"),
        (
            java(GOOGLE, jaas(PLAIN_MODULE, username="a", password="b")),
            "cannot be used with PlainLoginModule in sasl_jaas",
        ),
        (java(GOOGLE) | {"sasl.mechanism": "PLAIN"}, "sasl_mechanism=PLAIN cannot be used with"),
        (java(GOOGLE) | {"sasl.client.callback.handler.class": AWS}, "; leave one of them out"),
        (
            java(GOOGLE, jaas(clientId="a")),
            "has an unknown option (number 1); OAuthBearerLoginModule accepts only ext",
        ),
        (
            java(line=jaas(IAM_MODULE, awsRoleSecretAccessKey=CANARY), servers=MSK),
            "set awsProfileName to a profile",
        ),
        (
            java(GOOGLE, **{"sasl.oauthbearer.token.endpoint.url": TOKEN_URL}),
            "creates the tokens; leave sasl_oauthbearer",
        ),
    ],
)
def test_a_handler_that_contradicts_other_settings_is_rejected(settings, problem):
    with pytest.raises(ConfigError) as caught:
        loaded(settings)

    assert problem in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_provider_and_a_handler_of_the_same_source_contradict_each_other():
    with pytest.raises(ConfigError, match="creates the tokens; leave sasl_login_callback_handler_class out"):
        Producer(
            security_protocol="SASL_SSL",
            sasl_login_callback_handler_class=GOOGLE,
            sasl_oauth_token_provider=lambda: "token",
        )


# ---------------------------------------------------------------------------------------------------- precedence


def token() -> str:
    return "token"


LOGIN = {"sasl_plain_username": "svc", "sasl_plain_password": "new"}
PLAIN = java(line=jaas(PLAIN_MODULE, username="old", password="old")) | {"sasl.mechanism": "PLAIN"}
ENDPOINT = java(
    line=jaas(clientId="old", clientSecret="old"), **{"sasl.oauthbearer.token.endpoint.url": TOKEN_URL}
)
KERBEROS = java(line=jaas("com.sun.security.auth.module.Krb5LoginModule", keyTab="x")) | {
    "sasl.mechanism": "GSSAPI"
}


@pytest.mark.parametrize(
    ("settings", "keywords", "field", "expected"),
    [
        (PLAIN, {"sasl_plain_password": "new"}, "sasl_plain_password", Secret("new")),
        (PLAIN, {"sasl_plain_username": "svc"}, "sasl_plain_username", "svc"),
        (PLAIN, {"sasl_mechanism": "SCRAM-SHA-512"}, "sasl_mechanism", "SCRAM-SHA-512"),
        (PLAIN, {"sasl_credentials": token}, "sasl_credentials", token),
        (PLAIN, {"sasl_oauth_token_provider": token}, "sasl_mechanism", "OAUTHBEARER"),
        (PLAIN, {"security_protocol": "SSL"}, "sasl_mechanism", None),
        (PLAIN, {"security_protocol": "PLAINTEXT"}, "sasl_plain_password", None),
        (
            PLAIN,
            {"sasl_jaas_config": jaas(PLAIN_MODULE, username="svc", password="b")},
            "sasl_plain_username",
            "svc",
        ),
        (ENDPOINT, {"sasl_oauth_token_provider": token}, "sasl_oauth_token_provider", token),
        (
            ENDPOINT,
            {"sasl_oauthbearer_client_credentials_client_secret": "new"},
            "sasl_oauthbearer_client_credentials_client_secret",
            Secret("new"),
        ),
        (ENDPOINT, {"sasl_mechanism": "SCRAM-SHA-256", **LOGIN}, "sasl_plain_username", "svc"),
        (java(GOOGLE), {"sasl_oauth_token_provider": token}, "sasl_oauth_token_provider", token),
        (
            java("com.example.Tokens"),
            {"sasl_oauth_token_provider": token},
            "sasl_oauth_token_provider",
            token,
        ),
        (java(line="broken"), {"sasl_oauth_token_provider": token}, "sasl_oauth_token_provider", token),
        (java(line="broken") | {"sasl.mechanism": "PLAIN"}, LOGIN, "sasl_plain_username", "svc"),
        (
            java(line="broken") | {"sasl.mechanism": "PLAIN"},
            {"sasl_credentials": token},
            "sasl_credentials",
            token,
        ),
        (java(line="") | {"sasl.mechanism": "PLAIN"}, LOGIN, "sasl_plain_username", "svc"),
        (
            ENDPOINT,
            {"sasl_mechanism": "AWS_MSK_IAM", "bootstrap_servers": MSK},
            "sasl_mechanism",
            "OAUTHBEARER",
        ),
        (ENDPOINT, {"sasl_login_callback_handler_class": GOOGLE}, "sasl_mechanism", "OAUTHBEARER"),
        (KERBEROS, {"sasl_mechanism": "SCRAM-SHA-256", **LOGIN}, "sasl_mechanism", "SCRAM-SHA-256"),
        (
            java(AWS, servers="kafka:9098"),
            {"sasl_oauth_token_provider": token},
            "sasl_oauth_token_provider",
            token,
        ),
        (java(AWS, servers="kafka:9098"), {"security_protocol": "PLAINTEXT"}, "sasl_mechanism", None),
        (java(AWS, servers="kafka:9098"), {"bootstrap_servers": MSK}, "sasl_mechanism", "OAUTHBEARER"),
    ],
)
def test_keywords_take_precedence_over_the_login_of_a_file(settings, keywords, field, expected, tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    for config in (loaded(settings, **keywords), Producer.from_properties(path, **keywords).config):
        assert getattr(config, field) == expected


def test_an_overridden_login_is_reported_with_its_place(tmp_path, caplog):
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in java(GOOGLE).items()))

    Producer.from_properties(path, sasl_oauth_token_provider=token)

    assert (
        "the sasl_oauth_token_provider keyword overrides sasl_login_callback_handler_class "
        f"({path}:5), sasl_jaas_config ({path}:4)"
    ) in caplog.text


def test_without_a_jaas_line_no_setting_is_derived():
    unsettled = UnsettledSettings({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, {})
    take_java_login(unsettled)

    assert unsettled.notes == []
    assert not unsettled.is_given("sasl_oauth_token_provider")
