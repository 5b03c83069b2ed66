"""Translates the login settings of a Java client: the JAAS line, and the classes of callback handlers.

`take_java_login` turns both into our own settings, or into a token provider. Errors show the names of modules and known
options, but no other part of the line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aioproducer.errors import ConfigError
from aioproducer.security.token_providers import (
    AzureTokenProvider,
    FileTokenProvider,
    FixedTokenProvider,
    GcpTokenProvider,
    MskIamTokenProvider,
    OidcTokenProvider,
)
from aioproducer.settings.jaas import parse_jaas
from aioproducer.settings.java import Tokens, tokens_of
from aioproducer.settings.table import SETTINGS
from aioproducer.settings.unsettled import UnclearError, UnsettledSettings
from aioproducer.types import Secret

_JAAS = "sasl_jaas_config"
_MECHANISM = "sasl_mechanism"
_PROVIDER = "sasl_oauth_token_provider"
_URL = "sasl_oauthbearer_token_endpoint_url"
_CLIENT_ID = "sasl_oauthbearer_client_credentials_client_id"
_CLIENT_SECRET = "sasl_oauthbearer_client_credentials_client_secret"
_HANDLERS = ("sasl_login_callback_handler_class", "sasl_client_callback_handler_class")

_OAUTH_MODULE, _IAM_MODULE = "OAuthBearerLoginModule", "IAMLoginModule"
_MECHANISMS = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    _OAUTH_MODULE: ("OAUTHBEARER",),
    _IAM_MODULE: ("AWS_MSK_IAM", "OAUTHBEARER"),
}
_USER = {"username": "sasl_plain_username", "password": "sasl_plain_password"}
_OPTIONS: dict[str | Tokens, dict[str, str]] = {
    "PlainLoginModule": _USER,
    "ScramLoginModule": {**_USER, "tokenauth": "sasl_scram_token_auth"},
    Tokens.ENDPOINT: {
        "clientId": _CLIENT_ID,
        "clientSecret": _CLIENT_SECRET,
        "scope": "sasl_oauthbearer_scope",
    },
    Tokens.STRIMZI: {
        "oauth.client.id": _CLIENT_ID,
        "oauth.client.secret": _CLIENT_SECRET,
        "oauth.token.endpoint.uri": _URL,
        "oauth.scope": "sasl_oauthbearer_scope",
        "oauth.connect.timeout.seconds": "sasl_login_connect_timeout_ms",
        "oauth.read.timeout.seconds": "sasl_login_read_timeout_ms",
    },
}
"""Options in a JAAS line that correspond to our settings, by login module or by token source."""

_FOR_PROVIDERS = {
    Tokens.AWS: {
        "awsProfileName": "profile",
        "awsRoleArn": "role_arn",
        "awsRoleSessionName": "role_session_name",
        "awsRoleExternalId": "role_external_id",
        "awsStsRegion": "sts_region",
    },
    Tokens.STRIMZI: {
        "oauth.access.token": "access_token",
        "oauth.access.token.location": "access_token_location",
        "oauth.audience": "audience",
        "oauth.ssl.truststore.location": "authorities",
        "oauth.ssl.truststore.certificates": "authorities",
    },
}
"""Options in a JAAS line that become arguments for a token provider."""

_WITHOUT_EFFECT = {
    Tokens.AWS: ("awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs", "awsAddDefaultProviders"),
    Tokens.STRIMZI: (
        "oauth.access.token.is.jwt",
        "oauth.check.access.token.type",
        "oauth.username.claim",
        "oauth.fallback.username.claim",
        "oauth.enable.metrics",
        "oauth.config.id",
        "oauth.http.retries",
        "oauth.http.retry.pause.millis",
        "oauth.include.accept.header",
        "oauth.ssl.truststore.type",
    ),
}
"""Options in a JAAS line that have no effect; a warning lists them."""

_INSTEAD = {
    "Krb5LoginModule": "names Krb5LoginModule, which can't be used; set sasl_mechanism='GSSAPI', "
    "sasl_kerberos_principal and sasl_kerberos_keytab instead",
    "awsRoleAccessKeyId": "set awsProfileName to a profile with this key, or pass sasl_oauth_token_provider",
    "awsRoleSecretAccessKey": "set awsProfileName to a profile with this key, or pass sasl_oauth_token_provider",
    "awsRoleSessionToken": "set awsProfileName to a profile with this key, or pass sasl_oauth_token_provider",
    "oauth.refresh.token": "use oauth.client.secret, or pass sasl_oauth_token_provider",
    "oauth.refresh.token.location": "use oauth.client.secret, or pass sasl_oauth_token_provider",
    "oauth.password.grant.username": "use oauth.client.secret, or pass sasl_oauth_token_provider",
    "oauth.password.grant.password": "use oauth.client.secret, or pass sasl_oauth_token_provider",
    "oauth.client.assertion": "use oauth.client.secret, or pass sasl_oauth_token_provider",
    "oauth.client.assertion.location": "use oauth.client.secret, or pass sasl_oauth_token_provider",
    "oauth.ssl.truststore.password": "set oauth.ssl.truststore.location to a file of PEM certificates",
}
"""Known modules and options that can't be used, with advice for each."""

_MSK_HOST = re.compile(
    r"(?i)\.kafka(?:-serverless)?\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)\.?$"
)
_EVENT_HUBS = re.compile(
    r"(?i)\.servicebus\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn|cloudapi\.de)\.?$"
)


class _Line(NamedTuple):
    """The meaning of a JAAS line."""

    module: str = ""
    settings: Mapping[str, Any] = {}
    arguments: Mapping[str, Secret] = {}
    """Arguments for a token provider."""
    ignored: tuple[str, ...] = ()
    """Options that have no effect."""
    problem: str = ""


def take_java_login(unsettled: UnsettledSettings) -> None:
    """Replace the JAAS line and the callback handlers with settings or with a token provider.

    Raises:
        ConfigError: the line is malformed, has no counterpart in Python, or contradicts other settings.
    """
    if "SASL" not in unsettled["security_protocol"] and (
        unsettled.is_keyword("security_protocol") or not unsettled.is_given(_JAAS)
    ):
        return  # the check of security_protocol reports these settings
    _give_way_to_keywords(unsettled)
    tokens, source = _tokens(unsettled)
    line = _Line()
    if unsettled.is_given(_JAAS):
        line = _read_line(unsettled[_JAAS], tokens)
        if line.problem:  # the error's context must not refer to the parser's local variables
            raise unsettled.error_for(_JAAS, line.problem, against=(source,))
        _compare_with_handler(unsettled, line.module, tokens, source)
        _compare_with_mechanism(unsettled, line.module)
        if line.module == _IAM_MODULE:
            tokens, source = Tokens.AWS, _JAAS
        _take_settings(unsettled, line.settings)
    if tokens is Tokens.ENDPOINT:
        _derive_mechanism(unsettled, _MECHANISMS.get(line.module, ()), f"{_JAAS} names {line.module}")
    else:
        _take_provider(unsettled, tokens, source, line)
    if line.ignored:
        has = "has" if len(line.ignored) == 1 else "have"
        unsettled.notes.append(f"{', '.join(line.ignored)} in {unsettled.named(_JAAS)} {has} no effect")


def _take_provider(unsettled: UnsettledSettings, tokens: Tokens, source: str, line: _Line) -> None:
    """Set the token provider that replaces a callback handler."""
    if tokens is Tokens.STRIMZI:
        line = _with_environment(unsettled, line)
    if unsettled.is_given(_PROVIDER):
        raise unsettled.error_for(
            _PROVIDER, f"creates the tokens; leave {unsettled.named(source)} out", against=(source, _JAAS)
        )
    mechanism = unsettled[_MECHANISM]
    if mechanism not in (None, "OAUTHBEARER", "AWS_MSK_IAM"):
        raise unsettled.error_for(
            _MECHANISM,
            f"cannot be used with {_named_source(unsettled, source)}; use OAUTHBEARER",
            against=(source,),
        )
    provider = _provider(unsettled, tokens, source, line)
    if provider is not None:
        unsettled.take_from(source, _PROVIDER, provider)
    _derive_mechanism(unsettled, ("OAUTHBEARER",), f"{_named_source(unsettled, source)} is set")
    if mechanism == "AWS_MSK_IAM":
        unsettled.translate(_MECHANISM, "OAUTHBEARER")


def _named_source(unsettled: UnsettledSettings, source: str) -> str:
    return unsettled.named(source) if source == _JAAS else unsettled.as_text(source)


def _derive_mechanism(unsettled: UnsettledSettings, mechanisms: Sequence[str], because: str) -> None:
    if len(mechanisms) == 1 and not unsettled.is_given(_MECHANISM):
        unsettled.derive(_MECHANISM, mechanisms[0], because)


def _give_way_to_keywords(unsettled: UnsettledSettings) -> None:
    """Drop a login that was read from a source, even an invalid one, if keywords replace all of it."""
    winner = next((name for name in (_PROVIDER, "sasl_credentials") if unsettled.is_keyword(name)), "")
    has_password = all(unsettled.is_keyword(name) for name in _USER.values())
    if not winner and not has_password:
        return
    given = [
        name for name in (*_HANDLERS, _JAAS) if unsettled.is_given(name) and not unsettled.is_keyword(name)
    ]
    if has_password or winner == "sasl_credentials":
        # A valid JAAS line with a user name is kept, because its module determines the mechanism.
        given = [name for name in given if not (name == _JAAS and _names_user(unsettled))]
    if given:
        unsettled.note_winner(winner or "sasl_plain_password", given)
    for name in given:
        unsettled.drop(name)


def _names_user(unsettled: UnsettledSettings) -> bool:
    try:
        line = _read_line(unsettled[_JAAS], Tokens.ENDPOINT)
    except UnclearError:
        return False
    return not line.problem and line.module in ("PlainLoginModule", "ScramLoginModule")


def _tokens(unsettled: UnsettledSettings) -> tuple[Tokens, str]:
    """Return the source of the tokens, and the setting that determines it."""
    found = {name: tokens_of(unsettled[name]) for name in _HANDLERS if unsettled.is_given(name)}
    named = {name: tokens for name, tokens in found.items() if tokens not in (None, Tokens.ENDPOINT)}
    if len(set(named.values())) > 1:
        raise unsettled.error_for(
            _HANDLERS[0],
            f"cannot be used with {unsettled.as_text(_HANDLERS[1])}; leave one of them out",
            against=_HANDLERS,
        )
    for name, tokens in named.items():
        assert tokens is not None
        return tokens, name
    if unsettled.is_given(_MECHANISM) and unsettled[_MECHANISM] == "AWS_MSK_IAM":
        return Tokens.AWS, _MECHANISM
    return Tokens.ENDPOINT, _MECHANISM


# -------------------------------------------------------------------------------------------- the JAAS line


def _read_line(text: Secret, tokens: Tokens) -> _Line:
    """Return the meaning of a JAAS line. If the line can't be used, `problem` says why."""
    try:
        entry = parse_jaas(text.reveal())
    except ValueError as error:
        return _Line(problem=str(error))
    if entry.module not in _MECHANISMS:
        known = ", ".join(_MECHANISMS)
        return _Line(
            problem=_INSTEAD.get(entry.module, f"names an unsupported login module; use one of {known}")
        )
    if entry.module == _IAM_MODULE:
        tokens = Tokens.AWS
    settings: dict[str, Any] = {}
    arguments: dict[str, Secret] = {}
    extensions: dict[str, str] = {}
    ignored = []
    is_oauth = entry.module in (_OAUTH_MODULE, _IAM_MODULE)
    names = _OPTIONS.get(tokens if is_oauth else entry.module, {})
    for number, (option, value) in enumerate(entry.options.items(), 1):
        prefix = "oauth.sasl.extension." if tokens is Tokens.STRIMZI else "extension_"
        if option == "oauth.ssl.truststore.type" and value.reveal().upper() != "PEM":
            return _Line(problem=f"has the option {option}, which must be PEM; convert the file")
        if option in names:
            settings[names[option]] = value
        elif is_oauth and option in _FOR_PROVIDERS.get(tokens, {}):
            arguments[_FOR_PROVIDERS[tokens][option]] = value
        elif is_oauth and option in _WITHOUT_EFFECT.get(tokens, ()):
            ignored.append(option)
        elif is_oauth and option.startswith(prefix):
            extensions[option.removeprefix(prefix)] = value.reveal()
        elif is_oauth and option.startswith("unsecured"):
            return _Line(
                problem="asks for an unsecured token; set sasl_oauth_token_provider to a function that creates one"
            )
        elif is_oauth and option in _INSTEAD:
            return _Line(problem=f"has the option {option}, which can't be used; {_INSTEAD[option]}")
        else:
            # The name is not shown, because it may be part of a password: after a quotation mark without a backslash,
            # the rest of the password looks like an option.
            return _Line(problem=_unknown_option(entry.module, tokens if is_oauth else None, number))
    if extensions:
        settings["sasl_oauthbearer_extensions"] = extensions
    return _Line(entry.module, settings, arguments, tuple(ignored))


def _unknown_option(module: str, tokens: Tokens | None, number: int) -> str:
    known = [*_OPTIONS.get(tokens or module, {})]
    if tokens is not None:
        known += [*_FOR_PROVIDERS.get(tokens, {})]
        known += ["oauth.sasl.extension.NAME" if tokens is Tokens.STRIMZI else "extension_NAME"]
    *most, last = known
    listed = f"{', '.join(most)} and {last}" if most else f"only {last}"
    return (
        f"has an unknown option (number {number}); {module} accepts {listed}; "
        "a quotation mark within a value must be preceded by a backslash"
    )


def _compare_with_handler(unsettled: UnsettledSettings, module: str, tokens: Tokens, source: str) -> None:
    if tokens is not Tokens.ENDPOINT and "username" in _OPTIONS.get(module, {}):
        raise unsettled.error_for(
            source,
            f"cannot be used with {module} in {unsettled.named(_JAAS)}; leave one of them out",
            against=(_JAAS,),
        )


def _compare_with_mechanism(unsettled: UnsettledSettings, module: str) -> None:
    if not unsettled.is_given(_MECHANISM):
        return
    mechanisms = _MECHANISMS[module]
    is_for_users = "username" in _OPTIONS.get(module, {})
    if is_for_users and unsettled.is_keyword(_MECHANISM) and not unsettled.is_keyword(_JAAS):
        return  # the keyword wins; the file's user name and password are used for its mechanism if possible
    if unsettled[_MECHANISM] not in mechanisms:
        raise unsettled.error_for(
            _MECHANISM,
            f"cannot be used with {module} in {unsettled.named(_JAAS)}; use {' or '.join(mechanisms)}",
            against=(_JAAS, *_HANDLERS),
        )


def _take_settings(unsettled: UnsettledSettings, settings: Mapping[str, Any]) -> None:
    for name, given in settings.items():
        if unsettled.is_given(name) and not unsettled.is_part(name, _JAAS):
            if unsettled.is_keyword(name) and not unsettled.is_keyword(_JAAS):
                continue
            raise unsettled.error_for(
                _JAAS, f"sets {unsettled.named(name)} as well; keep one", against=(name,)
            )
        unsettled.take_from(_JAAS, name, _checked(unsettled, name, given))


def _checked(unsettled: UnsettledSettings, name: str, given: Any) -> Any:
    """Convert the value of an option to the type of the setting, check it and return it."""
    setting = SETTINGS[name]
    if setting.is_secret or not isinstance(given, Secret):
        return setting.check(given, unsettled.place(_JAAS))
    text = given.reveal()
    if name == "sasl_scram_token_auth":
        return text.lower() == "true"
    value: Any = text
    if name.endswith("_timeout_ms"):
        value = int(text) * 1000 if re.fullmatch(r"\d{1,6}", text) else text
    return setting.check(value, unsettled.place(_JAAS))


# ------------------------------------------------------------------------------------------ token providers


def _with_environment(unsettled: UnsettledSettings, line: _Line) -> _Line:
    """Add the options that Strimzi's handler also reads from the environment: OAUTH_CLIENT_ID and so on."""
    arguments = dict(line.arguments)
    for option, argument in _FOR_PROVIDERS[Tokens.STRIMZI].items():
        if value := os.environ.get(_variable(option)):
            arguments.setdefault(argument, Secret(value))
    source = next(name for name in _HANDLERS if unsettled.is_given(name))
    for option, name in _OPTIONS[Tokens.STRIMZI].items():
        value = os.environ.get(_variable(option))
        if value and not unsettled.is_given(name):
            unsettled.take_from(source, name, _checked(unsettled, name, Secret(value)))
    return line._replace(arguments=arguments)


def _variable(option: str) -> str:
    return option.upper().replace(".", "_")


def _provider(unsettled: UnsettledSettings, tokens: Tokens, source: str, line: _Line) -> Any:
    """Return the token provider, or None if the settings name a token endpoint."""
    if tokens is Tokens.AWS:
        arguments: dict[str, Any] = {name: value.reveal() for name, value in line.arguments.items()}
        return MskIamTokenProvider(_region(unsettled, source), **arguments)
    if tokens is Tokens.GOOGLE:
        return GcpTokenProvider()
    if tokens in (Tokens.AZURE, Tokens.AZURE_SAMPLE):
        return AzureTokenProvider(f"https://{_event_hubs(unsettled, tokens, source)}/.default")
    if tokens is Tokens.STRIMZI:
        return _strimzi_provider(unsettled, line)
    return None


def _region(unsettled: UnsettledSettings, source: str) -> str:
    for host, _ in unsettled["bootstrap_servers"]:
        if match := _MSK_HOST.search(host):
            return match[1].lower()
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if region := os.environ.get(variable):
            return region
    raise unsettled.error_for(
        source,
        "requires the region of the cluster, which is not in the host names of bootstrap_servers; set the AWS_REGION "
        "environment variable, or pass sasl_oauth_token_provider=MskIamTokenProvider(region) as a keyword",
    )


def _event_hubs(unsettled: UnsettledSettings, tokens: Tokens, source: str) -> str:
    host: str = unsettled["bootstrap_servers"][0][0]
    if tokens is Tokens.AZURE_SAMPLE and not _EVENT_HUBS.search(host):
        raise unsettled.error_for(
            source,
            "is Microsoft's sample for Azure Event Hubs, but the brokers are not in Event Hubs; also pass "
            "sasl_oauth_token_provider as a keyword, which takes precedence",
        )
    return host.rstrip(".")


def _strimzi_provider(unsettled: UnsettledSettings, line: _Line) -> Any:
    arguments = dict(line.arguments)
    if token := arguments.pop("access_token", None):
        return FixedTokenProvider(token)
    if location := arguments.pop("access_token_location", None):
        return FileTokenProvider(location.reveal())
    if not arguments:
        return None
    url = unsettled[_URL]
    client_id, client_secret = unsettled[_CLIENT_ID], unsettled[_CLIENT_SECRET]
    if url is None or client_id is None or client_secret is None:
        return None  # the check of the token endpoint reports what is missing
    check_token_url(unsettled)
    others: dict[str, Any] = {name: value.reveal() for name, value in arguments.items()}
    provider = OidcTokenProvider(
        url,
        client_id,
        client_secret,
        scope=unsettled["sasl_oauthbearer_scope"],
        url_encode=unsettled["sasl_oauthbearer_header_urlencode"],
        connect_timeout=unsettled["sasl_login_connect_timeout_ms"],
        read_timeout=unsettled["sasl_login_read_timeout_ms"],
        **others,
    )
    # These settings are now part of the provider.
    for name in (_URL, _CLIENT_ID, _CLIENT_SECRET):
        unsettled.drop(name)
    return provider


def check_token_url(unsettled: UnsettledSettings) -> None:
    """Check the URL of the token endpoint.

    Raises:
        ConfigError: the URL is not https (or http on localhost), or contains a password.
    """
    url: str = unsettled[_URL]
    match = re.fullmatch(r"(?i)(https?)://(\[[0-9a-f:.]+\]|[^\s/:@?#\[\]]+)(:\d{1,5})?(/\S*|\?\S*)?", url)
    local = match is not None and match[2].lower() in ("localhost", "127.0.0.1", "[::1]")
    if match is None or (match[1].lower() == "http" and not local):
        raise ConfigError(
            f"{unsettled.named(_URL)} must be https://host/path, without a user name "
            "or password in it (http:// for localhost only)",
            setting=_URL,
            value=None,
        )
