"""Checks TLS and SASL settings against each other and against `security_protocol`, and parses the JAAS line.

A setting that would not be used is rejected: a user who has set a password and forgotten the protocol must get an
error."""

from __future__ import annotations

import re

from aioproducer.errors import ConfigError
from aioproducer.settings.jaas import JaasEntry, parse_jaas
from aioproducer.settings.table import SETTINGS
from aioproducer.settings.unsettled import UnsettledSettings
from aioproducer.types import Secret

_LOGIN_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
_OPTIONS = {
    "PlainLoginModule": {"username": "sasl_plain_username", "password": "sasl_plain_password"},
    "ScramLoginModule": {"username": "sasl_plain_username", "password": "sasl_plain_password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl_oauthbearer_client_credentials_client_id",
        "clientSecret": "sasl_oauthbearer_client_credentials_client_secret",
        "scope": "sasl_oauthbearer_scope",
    },
}
_KNOWN_OPTIONS = {
    "PlainLoginModule": "username and password",
    "ScramLoginModule": "username, password and tokenauth",
    "OAuthBearerLoginModule": "clientId, clientSecret, scope and extension_NAME",
}
_INSTEAD = {
    "Krb5LoginModule": "set sasl_mechanism='GSSAPI', sasl_kerberos_principal and sasl_kerberos_keytab",
    "IAMLoginModule": (
        "set sasl_mechanism='OAUTHBEARER' and sasl_oauth_token_provider=MskIamTokenProvider(region)"
    ),
}


def settle_security(unsettled: UnsettledSettings) -> None:
    """Settle `security_protocol`, `ssl_*` and `sasl_*` together.

    Raises:
        ConfigError: they contradict each other, or a required one is missing.
    """
    _take_jaas_apart(unsettled)
    protocol = unsettled["security_protocol"]
    for prefix, used, fix in (
        ("ssl_", "SSL" in protocol, "SSL or SASL_SSL"),
        ("sasl_", "SASL" in protocol, "SASL_SSL"),
    ):
        names = [] if used else unsettled.given(prefix)
        if names == ["sasl_mechanism"]:
            # aiokafka has a default for it, which programs pass on for every protocol.
            unsettled.notes.append(
                f"{unsettled.said(names[0])} has no effect with {unsettled.said('security_protocol')}"
            )
            unsettled.default("sasl_mechanism", None)
        elif names:
            raise ConfigError(
                f"{names[0]} has no effect with {unsettled.said('security_protocol')}; set security_protocol={fix}, "
                f"or leave {', '.join(names)} out",
                setting=names[0],
                value=None,
            )
    if "SSL" in protocol:
        _settle_tls(unsettled)
    if "SASL" in protocol:
        _settle_mechanism(unsettled)
        _look_at_credentials(unsettled)


# -------------------------------------------------------------------------------------------------- TLS

_INSTEAD_OF_EACH_OTHER = (
    ("ssl_truststore_certificates", "ssl_truststore_location"),
    ("ssl_keystore_certificate_chain", "ssl_keystore_location", "ssl_certificate_location"),
    ("ssl_keystore_key", "ssl_keystore_location", "ssl_key_location"),
)
_NEEDS = (
    ("ssl_keystore_key", ("ssl_keystore_certificate_chain", "ssl_certificate_location")),
    ("ssl_key_location", ("ssl_keystore_certificate_chain", "ssl_certificate_location")),
    ("ssl_keystore_certificate_chain", ("ssl_keystore_key", "ssl_key_location")),
    (
        "ssl_key_password",
        ("ssl_keystore_key", "ssl_key_location", "ssl_keystore_location", "ssl_certificate_location"),
    ),
    ("ssl_keystore_type", ("ssl_keystore_location",)),
    ("ssl_keystore_password", ("ssl_keystore_location",)),
    ("ssl_truststore_type", ("ssl_truststore_location",)),
    ("ssl_truststore_password", ("ssl_truststore_location",)),
)


def _settle_tls(unsettled: UnsettledSettings) -> None:
    if unsettled.is_given("ssl_context"):
        others = [name for name in unsettled.given("ssl_") if name != "ssl_context"]
        if others:
            raise unsettled.refused(
                "ssl_context",
                f"contains all settings of TLS; set {others[0]} there and leave {', '.join(others)} out",
            )
    for names in _INSTEAD_OF_EACH_OTHER:
        given = [name for name in names if unsettled.is_given(name)]
        if len(given) > 1:
            raise ConfigError(
                f"{given[0]} and {given[1]} set the same thing; keep one", setting=given[0], value=None
            )
    for name, needed in _NEEDS:
        if unsettled.is_given(name) and not any(unsettled.is_given(other) for other in needed):
            raise ConfigError(f"{name} needs {' or '.join(needed)}", setting=name, value=None)


# -------------------------------------------------------------------------------------------------- SASL


def _take_jaas_apart(unsettled: UnsettledSettings) -> None:
    if not unsettled.is_given("sasl_jaas_config"):
        return
    module, values, problem = _read_jaas(unsettled["sasl_jaas_config"])
    if problem:  # the error's context must not lead to the parser's local variables
        raise unsettled.refused("sasl_jaas_config", problem)
    for name, value in values.items():
        if unsettled.is_given(name):
            raise unsettled.refused("sasl_jaas_config", f"sets {name} as well; keep one")
        unsettled.take_from("sasl_jaas_config", name, SETTINGS[name].check(value))
    mechanisms = _LOGIN_MODULES[module]
    if unsettled.is_given("sasl_mechanism"):
        if unsettled["sasl_mechanism"] not in mechanisms:
            raise unsettled.refused(
                "sasl_mechanism", f"contradicts {module} in sasl_jaas_config; use {' or '.join(mechanisms)}"
            )
    elif len(mechanisms) == 1:
        unsettled.derive("sasl_mechanism", mechanisms[0], f"sasl_jaas_config names {module}")


def _read_jaas(line: Secret) -> tuple[str, dict[str, object], str]:
    """Return the login module and the settings in the line, or the reason why there are none."""
    try:
        entry = parse_jaas(line.reveal())
        return entry.module, _values_of(entry), ""
    except ValueError as error:
        return "", {}, str(error)


def _values_of(entry: JaasEntry) -> dict[str, object]:
    """Return the settings that the options of a login module stand for."""
    if entry.module not in _LOGIN_MODULES:
        known = ", ".join(_LOGIN_MODULES)
        raise ValueError(_INSTEAD.get(entry.module, f"names a login module other than {known}"))
    values: dict[str, object] = {}
    extensions = {}
    for number, (option, secret) in enumerate(entry.options.items(), 1):
        if name := _OPTIONS[entry.module].get(option):
            values[name] = secret if SETTINGS[name].is_secret else secret.reveal()
        elif option == "tokenauth" and entry.module == "ScramLoginModule":
            values["sasl_scram_token_auth"] = secret.reveal().lower() == "true"
        elif option.startswith("extension_") and entry.module == "OAuthBearerLoginModule":
            extensions[option.removeprefix("extension_")] = secret.reveal()
        elif option.startswith("unsecured"):
            raise ValueError(
                "asks for an unsecured token; give sasl_oauth_token_provider a function that makes one"
            )
        else:
            # Its name is not shown: after a quotation mark without a backslash it is part of a password.
            raise ValueError(
                f"has an unknown option, number {number}; {entry.module} takes {_KNOWN_OPTIONS[entry.module]}; "
                "a quotation mark within a value needs a backslash before it"
            )
    if extensions:
        values["sasl_oauthbearer_extensions"] = extensions
    return values


def _settle_mechanism(unsettled: UnsettledSettings) -> None:
    if unsettled["sasl_mechanism"] is not None:
        return
    if unsettled.is_given("sasl_oauth_token_provider") or unsettled.is_given(
        "sasl_oauthbearer_token_endpoint_url"
    ):
        unsettled.derive("sasl_mechanism", "OAUTHBEARER", "a token's source is set")
    elif unsettled["sasl_plain_username"] is not None and not unsettled.is_given("sasl_jaas_config"):
        unsettled.derive("sasl_mechanism", "PLAIN", "sasl_plain_username is set")
    else:
        raise ConfigError(
            f"{unsettled.said('security_protocol')} needs sasl_mechanism, one of "
            f"{SETTINGS['sasl_mechanism'].value_type.described}",
            setting="sasl_mechanism",
            value=None,
        )


def _look_at_credentials(unsettled: UnsettledSettings) -> None:
    mechanism = unsettled["sasl_mechanism"]
    if mechanism == "OAUTHBEARER":
        _look_at_tokens(unsettled)
        return
    others = unsettled.given("sasl_oauth") + unsettled.given("sasl_login_")
    if mechanism == "GSSAPI":
        others += [name for name in unsettled.given("sasl_plain_") if name != "sasl_plain_without_tls"]
        others += unsettled.given("sasl_credentials")
    else:
        others += unsettled.given("sasl_kerberos_")
    if others:
        raise unsettled.refused("sasl_mechanism", f"does not use {', '.join(others)}; leave them out")
    if mechanism == "GSSAPI":
        return
    has_name, has_password = (
        unsettled[name] is not None for name in ("sasl_plain_username", "sasl_plain_password")
    )
    if unsettled.is_given("sasl_credentials"):
        if has_name or has_password:
            raise unsettled.refused(
                "sasl_credentials", "provides the user name and the password; leave sasl_plain_... out"
            )
    elif not has_name or not has_password:
        missing = "sasl_plain_password" if has_name else "sasl_plain_username"
        raise unsettled.refused(
            "sasl_mechanism",
            f"needs sasl_plain_username and sasl_plain_password, or sasl_credentials; {missing} is missing",
        )
    if unsettled["sasl_scram_token_auth"] and not mechanism.startswith("SCRAM"):
        raise unsettled.refused("sasl_scram_token_auth", "belongs to SCRAM-SHA-256 and SCRAM-SHA-512")
    if mechanism == "PLAIN" and unsettled["security_protocol"] == "SASL_PLAINTEXT":
        if not unsettled["sasl_plain_without_tls"]:
            raise unsettled.refused(
                "sasl_mechanism",
                f"with {unsettled.said('security_protocol')} sends the password in clear text; use "
                "security_protocol=SASL_SSL, or allow it with sasl_plain_without_tls=True",
            )


def _look_at_tokens(unsettled: UnsettledSettings) -> None:
    if unsettled["security_protocol"] == "SASL_PLAINTEXT":
        unsettled.notes.append(
            f"sasl_mechanism=OAUTHBEARER with {unsettled.said('security_protocol')} sends the token in clear text, and "
            "anyone who reads it can use it; set security_protocol=SASL_SSL"
        )
    url = unsettled["sasl_oauthbearer_token_endpoint_url"]
    has_provider = unsettled.is_given("sasl_oauth_token_provider")
    passwords = [name for name in unsettled.given("sasl_plain_") if name != "sasl_plain_without_tls"]
    passwords += unsettled.given("sasl_credentials") + unsettled.given("sasl_kerberos_")
    if passwords:
        raise unsettled.refused("sasl_mechanism", f"does not use {', '.join(passwords)}; leave them out")
    if has_provider:
        if others := [
            name
            for name in unsettled.given("sasl_oauthbearer_")
            if name not in ("sasl_oauthbearer_extensions", "sasl_oauthbearer_scope")
        ]:
            raise unsettled.refused(
                "sasl_oauth_token_provider", f"creates the tokens; leave {', '.join(others)} out"
            )
        return
    if url is None:
        raise unsettled.refused(
            "sasl_mechanism", "needs sasl_oauth_token_provider, or sasl_oauthbearer_token_endpoint_url"
        )
    _check_url(unsettled, url)
    for name in (
        "sasl_oauthbearer_client_credentials_client_id",
        "sasl_oauthbearer_client_credentials_client_secret",
    ):
        if unsettled[name] is None:
            raise ConfigError(f"sasl_oauthbearer_token_endpoint_url needs {name}", setting=name, value=None)


def _check_url(unsettled: UnsettledSettings, url: str) -> None:
    match = re.fullmatch(r"(?i)(https?)://(\[[0-9a-f:.]+\]|[^\s/:@?#\[\]]+)(:\d{1,5})?(/\S*|\?\S*)?", url)
    local = match is not None and match[2].lower() in ("localhost", "127.0.0.1", "[::1]")
    if match is None or (match[1].lower() == "http" and not local):
        raise ConfigError(
            "sasl_oauthbearer_token_endpoint_url must be https://host/path, without a user name or password in it "
            "(http:// for localhost only)",
            setting="sasl_oauthbearer_token_endpoint_url",
            value=None,
        )
