"""Finds a setting by any of its names, suggests one for an unknown name, and recognizes the settings of other tools."""

from __future__ import annotations

import difflib
import re

from aioproducer.errors import ConfigError
from aioproducer.settings.keys import KEYS, Fate, Key
from aioproducer.settings.table import SETTINGS

_KEYWORDS = {name: Key(name, Fate.USED, name) for name in SETTINGS}
_SNAKE_CASE = {name.replace(".", "_"): key for name, key in KEYS.items()}

_OTHER_CLIENTS = {
    # aiokafka, kafka-python
    "loop": "leave it out; a producer belongs to the loop in which it is started",
    "api_version": "leave it out; versions are negotiated with each broker",
    "api_version_auto_timeout_ms": "leave it out; socket_connection_setup_timeout_ms covers it",
    "max_in_flight_requests": "use max_in_flight_requests_per_connection",
    "ssl_cafile": "use ssl_truststore_location",
    "ssl_certfile": "use ssl_certificate_location",
    "ssl_keyfile": "use ssl_key_location",
    "ssl_password": "use ssl_key_password",
    "ssl_crlfile": "use ssl_crl_location",
    "ssl_ciphers": "use ssl_cipher_suites",
    "ssl_check_hostname": "leave it out: names are always verified; to change that, pass your own ssl_context",
    "sasl_kerberos_name": "use sasl_kerberos_service_name and sasl_kerberos_domain_name",
    "socks5_proxy": "set connector to a function that opens the connection",
    "socket_options": "set connector to a function that opens the connection",
    "selector": "leave it out; the event loop has its own",
    "metrics_enabled": "leave it out and call producer.metrics()",
}


_NAMESPACES = {
    "meant for a schema registry": """
        schema.registry. basic.auth. bearer.auth. auto.register. use.latest. use.schema. normalize.schemas
        latest.compatibility. latest.cache. avro. json. protobuf. specific. derive.type. context.name.
        key.subject.name.strategy value.subject.name.strategy reference.subject.name.strategy
        schema.reflection apicurio.""",
    "meant for Confluent's own tools": "confluent.",
    "meant for consumers": "consumer.",
    "meant for admin clients": "admin.",
    "meant for Kafka Streams": "streams. application.id application.server num.stream.threads state.dir",
    "meant for Kafka Connect": """
        key.converter value.converter header.converter offset.storage. offset.flush. config.storage.
        status.storage. internal.key.converter internal.value.converter""",
    "meant for Spring": "spring.",
}
"""The prefixes of other programs' keys, by purpose."""
_BEGINNINGS = {
    beginning: reason for reason, beginnings in _NAMESPACES.items() for beginning in beginnings.split()
}

_FIRST_WORDS = {name.partition(".")[0] for name in KEYS} | {name.partition("_")[0] for name in SETTINGS}
_OWN_PREFIXES = ("producer.", "kafka.")
"""Prefixes that other programs put before a producer's settings."""
_NEAR, _VERY_NEAR = 0.7, 0.8
"""The lowest similarity (difflib) at which one name counts as a misspelling of another. The higher value is for an
application's own names, which may resemble Kafka's by chance."""


def key_named(name: str) -> Key | None:
    """Return the key for a dotted name, a keyword, or a dotted name written with underscores."""
    return KEYS.get(name) or _KEYWORDS.get(name) or _SNAKE_CASE.get(name)


def purpose_elsewhere(name: str) -> str | None:
    """Return the purpose of an unknown key if the key is certainly not meant for a Kafka producer; otherwise None.

    A key counts as an application's own if it contains a dot, does not begin with the first word of any Kafka client's
    setting, and does not resemble such a setting.
    """
    for beginning, reason in _BEGINNINGS.items():
        if name.startswith((beginning, beginning.replace(".", "_"))):
            return reason
    if (
        not re.fullmatch(r"[A-Za-z][\w\-]*(\.[\w\-]+)+", name)
        or name.partition(".")[0].lower() in _FIRST_WORDS
    ):
        return None
    return None if name_meant(name) else "unknown to Kafka's clients"


def name_meant(name: str) -> str:
    """Return the known name that an unknown one was probably meant to be, or ""."""
    for prefix in _OWN_PREFIXES:
        if name.startswith(prefix) and (key := key_named(name.removeprefix(prefix))) is not None:
            return key.name
    candidates = list(KEYS) if "." in name else [*_KEYWORDS, *_SNAKE_CASE]
    is_strange = "." in name and name.partition(".")[0].lower() not in _FIRST_WORDS
    near = difflib.get_close_matches(name.lower(), candidates, 1, _VERY_NEAR if is_strange else _NEAR)
    return near[0] if near else ""


def unknown_keyword(name: str) -> ConfigError:
    """Return the error for a keyword that `Producer` does not have. It suggests the keyword that was probably meant."""
    key = _SNAKE_CASE.get(name)
    if key is not None and key.setting:
        advice = f"; this looks like {key.name} from another client; use {key.setting} instead"
    elif key is not None:
        advice = f": {key.reason}" + ("; leave it out" if key.fate is Fate.NOTED else "")
    else:
        near = difflib.get_close_matches(name.lower(), list(_KEYWORDS), 1, _NEAR)
        advice = _advice(name, near[0] if near else "")
    return ConfigError(f"Producer has no setting {_shown(name)}{advice}", setting=name, value=None)


def unknown_key(name: str, where: str) -> ConfigError:
    """Return the error for a key that no client knows. `where` says where the key is."""
    advice = _advice(name, name_meant(name))
    return ConfigError(f"{where}there is no setting {_shown(name)}{advice}", setting=name, value=None)


def _advice(name: str, meant: str) -> str:
    if advice := _OTHER_CLIENTS.get(name):
        return f"; {advice}"
    return f"; did you mean {meant}?" if meant else "; docs/configuration.md lists all settings"


def _shown(name: str) -> str:
    # In a malformed file, part of a password may appear where the name should be.
    return name if re.fullmatch(r"[A-Za-z][\w.\-]{0,79}", name) else "(hidden, because it is not a name)"


# ------------------------------------------------------------------------------------------ other clients' defaults

_DEFAULTS_ELSEWHERE: dict[str, tuple[object, ...]] = {
    "loop": (None,),
    "api_version": (None, "auto"),
}


def is_default_elsewhere(name: str, value: object) -> bool:
    """Return whether a keyword has aiokafka's default value. Wrappers pass such keywords on; they have no effect."""
    return (value is None or isinstance(value, str)) and value in _DEFAULTS_ELSEWHERE.get(name, ())
