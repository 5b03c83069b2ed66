"""Checks TLS and SASL settings against each other and against `security_protocol`.

A setting that would not be used is rejected: if you set a password and forget the protocol, you get an error."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial

from aioproducer.errors import ConfigError
from aioproducer.security.cipher_suites import openssl_ciphers
from aioproducer.settings.java_login import check_token_url, take_java_login
from aioproducer.settings.table import SETTINGS
from aioproducer.settings.unsettled import UnsettledSettings


def settle_security(unsettled: UnsettledSettings) -> None:
    """Settle `security_protocol`, `ssl_*` and `sasl_*` together."""
    is_clear = unsettled.attempt(take_java_login)
    is_clear = unsettled.attempt(partial(_look_at_protocol, prefix="sasl_", fix="SASL_SSL")) and is_clear
    if unsettled.attempt(partial(_look_at_protocol, prefix="ssl_", fix="SSL or SASL_SSL")):
        _settle_tls(unsettled)
    if is_clear:
        unsettled.attempt(_settle_sasl)


_ONLY_TRUST = (
    "ssl_truststore_certificates",
    "ssl_truststore_location",
    "ssl_truststore_type",
    "ssl_truststore_password",
    "ssl_crl_location",
    "ssl_enabled_protocols",
    "ssl_cipher_suites",
)
"""Settings that do not authenticate this client. Programs may set them for every cluster, whatever its protocol, so a
warning is enough if they have no effect."""


def _look_at_protocol(unsettled: UnsettledSettings, prefix: str, fix: str) -> None:
    """Reject TLS or SASL settings if the protocol does not use them."""
    names = unsettled.given(prefix)
    if not names or prefix.strip("_").upper() in unsettled["security_protocol"]:
        return
    if names == ["sasl_mechanism"]:
        # Programs pass on aiokafka's default for this setting, whatever the protocol.
        unsettled.notes.append(
            f"{unsettled.as_text(names[0])} has no effect with {unsettled.as_text('security_protocol')}"
        )
        unsettled.default("sasl_mechanism", None)
    elif all(name in _ONLY_TRUST and not unsettled.is_keyword(name) for name in names):
        for name in names:
            unsettled.drop(name)
        has = "has" if len(names) == 1 else "have"
        unsettled.notes.append(
            f"{_list(unsettled, names)} {has} no effect with {unsettled.as_text('security_protocol')}"
        )
    else:
        raise unsettled.contradiction(
            f"{unsettled.named(names[0])} has no effect with {unsettled.as_text('security_protocol')}; set "
            f"security_protocol={fix}, or leave {_list(unsettled, names)} out",
            names[0],
            None,
            ("security_protocol", *names),
        )


def _list(unsettled: UnsettledSettings, names: Sequence[str]) -> str:
    return ", ".join(unsettled.named(name) for name in names)


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
    unsettled.attempt(_look_at_context)
    for store in ("ssl_truststore", "ssl_keystore"):
        # The type in the source describes the file that the keyword replaces; the type of the new file is detected.
        if unsettled.is_keyword(f"{store}_location") and not unsettled.is_keyword(f"{store}_type"):
            unsettled.drop(f"{store}_type")
    for names in _INSTEAD_OF_EACH_OTHER:
        unsettled.attempt(partial(_look_at_alternatives, names=names))
    for name, needed in _NEEDS:
        unsettled.attempt(partial(_look_at_need, name=name, needed=needed))
    unsettled.attempt(_look_at_what_openssl_takes)


def _look_at_context(unsettled: UnsettledSettings) -> None:
    if not unsettled.is_given("ssl_context"):
        return
    others = [name for name in unsettled.given("ssl_") if name != "ssl_context"]
    if others:
        raise unsettled.error_for(
            "ssl_context",
            f"contains all TLS settings; set {others[0]} there and leave {_list(unsettled, others)} out",
            against=others,
        )


def _look_at_alternatives(unsettled: UnsettledSettings, names: Sequence[str]) -> None:
    given = [name for name in names if unsettled.is_given(name)]
    if len(given) > 1:
        raise unsettled.contradiction(
            f"{unsettled.named(given[0])} and {unsettled.named(given[1])} set the same thing; keep one",
            given[0],
            None,
            given,
        )


def _look_at_need(unsettled: UnsettledSettings, name: str, needed: Sequence[str]) -> None:
    if unsettled.is_given(name) and not any([unsettled.is_given(other) for other in needed]):
        if not unsettled.drop_orphan(name, needed):
            raise ConfigError(
                f"{unsettled.named(name)} requires {' or '.join(needed)}", setting=name, value=None
            )


def _look_at_what_openssl_takes(unsettled: UnsettledSettings) -> None:
    if "SSL" not in unsettled["security_protocol"]:
        return
    names = ("ssl_context", "ssl_cipher_suites", "ssl_enabled_protocols")
    try:
        _check_by_openssl(*[unsettled[name] for name in names])
    except ConfigError as error:
        message, name, value = error.message, error.setting, error.value
    else:
        return
    between = names[1:] if name == "ssl_cipher_suites" else (name,)
    raise unsettled.contradiction(f"{message}{unsettled.place(name)}", name, value, between)


def _check_by_openssl(
    context: ssl.SSLContext | None, suites: tuple[str, ...], protocols: tuple[str, ...]
) -> None:
    """Check the settings that only OpenSSL can check. This function opens no files.

    Args:
        context: ssl_context.
        suites: ssl_cipher_suites.
        protocols: ssl_enabled_protocols.

    Raises:
        ConfigError: the context can't be used, or a cipher suite is unknown or belongs to no enabled protocol.
    """
    if context is not None:
        _check_context(context)
    older = openssl_ciphers(suites)
    usable = {"TLSv1.2"} if older else set()
    usable |= {"TLSv1.3"} if len(older) < len(suites) else set()
    if suites and not usable & set(protocols):
        raise ConfigError(
            f"ssl_cipher_suites={','.join(suites)} contains only suites for {usable.pop()}, which "
            f"ssl_enabled_protocols={','.join(protocols)} excludes; also name a suite for {protocols[0]}",
            setting="ssl_cipher_suites",
            value=suites,
        )


def _check_context(context: ssl.SSLContext) -> None:
    if context.protocol is ssl.PROTOCOL_TLS_SERVER:
        raise ConfigError(
            "ssl_context is a server context; create one with ssl.create_default_context()",
            setting="ssl_context",
            value=context,
        )
    if context.minimum_version < ssl.TLSVersion.TLSv1_2 or context.maximum_version == ssl.TLSVersion.TLSv1_1:
        raise ConfigError(
            "ssl_context allows TLS below 1.2; set ssl_context.minimum_version = ssl.TLSVersion.TLSv1_2",
            setting="ssl_context",
            value=context,
        )
    # At security level 1 and above, OpenSSL does not use such suites, even if they are listed.
    if context.security_level == 0 and any(suite["strength_bits"] == 0 for suite in context.get_ciphers()):
        raise ConfigError(
            "ssl_context allows cipher suites that do not encrypt; add :!eNULL to the argument of "
            "ssl_context.set_ciphers()",
            setting="ssl_context",
            value=context,
        )


# -------------------------------------------------------------------------------------------------- SASL


def _settle_sasl(unsettled: UnsettledSettings) -> None:
    if "SASL" in unsettled["security_protocol"]:
        _settle_mechanism(unsettled)
        _look_at_credentials(unsettled)


def _settle_mechanism(unsettled: UnsettledSettings) -> None:
    if unsettled["sasl_mechanism"] is not None:
        return
    if unsettled.is_given("sasl_oauth_token_provider") or unsettled.is_given(
        "sasl_oauthbearer_token_endpoint_url"
    ):
        unsettled.derive("sasl_mechanism", "OAUTHBEARER", "a token source is set")
    elif unsettled["sasl_plain_username"] is not None and not unsettled.is_given("sasl_jaas_config"):
        unsettled.derive("sasl_mechanism", "PLAIN", "sasl_plain_username is set")
    else:
        raise ConfigError(
            f"{unsettled.as_text('security_protocol')} requires sasl_mechanism; set it to one of "
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
    _reject_unused(unsettled, others)
    if mechanism == "GSSAPI":
        return
    passwords = [name for name in ("sasl_plain_username", "sasl_plain_password") if unsettled.is_given(name)]
    if unsettled.is_given("sasl_credentials"):
        if passwords:
            raise unsettled.error_for(
                "sasl_credentials",
                "provides the user name and the password; leave sasl_plain_... out",
                against=passwords,
            )
    elif len(passwords) < 2:
        missing = "sasl_plain_password" if "sasl_plain_username" in passwords else "sasl_plain_username"
        raise unsettled.error_for(
            "sasl_mechanism",
            f"requires sasl_plain_username and sasl_plain_password, or sasl_credentials; {missing} is missing",
        )
    if unsettled["sasl_scram_token_auth"] and not mechanism.startswith("SCRAM"):
        raise unsettled.error_for(
            "sasl_scram_token_auth",
            "applies only to SCRAM-SHA-256 and SCRAM-SHA-512",
            against=("sasl_mechanism",),
        )
    if mechanism == "PLAIN" and unsettled["security_protocol"] == "SASL_PLAINTEXT":
        if not unsettled["sasl_plain_without_tls"]:
            raise unsettled.error_for(
                "sasl_mechanism",
                f"with {unsettled.as_text('security_protocol')} sends the password in clear text; use "
                "security_protocol=SASL_SSL, or allow it with sasl_plain_without_tls=True",
            )


def _reject_unused(unsettled: UnsettledSettings, others: Sequence[str]) -> None:
    """Reject settings that belong to other mechanisms."""
    if others:
        them = "it" if len(others) == 1 else "them"
        raise unsettled.error_for(
            "sasl_mechanism",
            f"does not use {_list(unsettled, others)}; leave {them} out",
            against=(*others, *_TOKEN_SOURCES),
        )


_TOKEN_SOURCES = ("sasl_oauth_token_provider", "sasl_oauthbearer_token_endpoint_url")


def _look_at_tokens(unsettled: UnsettledSettings) -> None:
    url = unsettled["sasl_oauthbearer_token_endpoint_url"]
    has_provider = unsettled.is_given("sasl_oauth_token_provider")
    passwords = [name for name in unsettled.given("sasl_plain_") if name != "sasl_plain_without_tls"]
    _reject_unused(
        unsettled, passwords + unsettled.given("sasl_credentials") + unsettled.given("sasl_kerberos_")
    )
    if has_provider:
        if others := [
            name
            for name in unsettled.given("sasl_oauthbearer_")
            if name not in ("sasl_oauthbearer_extensions", "sasl_oauthbearer_scope")
        ]:
            raise unsettled.error_for(
                "sasl_oauth_token_provider",
                f"creates the tokens; leave {_list(unsettled, others)} out",
                against=others,
            )
    else:
        _look_at_endpoint(unsettled, url)
    if unsettled["security_protocol"] == "SASL_PLAINTEXT":
        unsettled.notes.append(
            f"sasl_mechanism=OAUTHBEARER with {unsettled.as_text('security_protocol')} sends the token in clear text, "
            "and anyone who reads it can use it; set security_protocol=SASL_SSL"
        )


def _look_at_endpoint(unsettled: UnsettledSettings, url: str | None) -> None:
    if url is None:
        raise unsettled.error_for(
            "sasl_mechanism", "requires sasl_oauth_token_provider or sasl_oauthbearer_token_endpoint_url"
        )
    check_token_url(unsettled)
    for name in (
        "sasl_oauthbearer_client_credentials_client_id",
        "sasl_oauthbearer_client_credentials_client_secret",
    ):
        if unsettled[name] is None:
            raise ConfigError(
                f"{unsettled.named('sasl_oauthbearer_token_endpoint_url')} requires {name}",
                setting=name,
                value=None,
            )
