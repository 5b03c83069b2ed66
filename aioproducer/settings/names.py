"""Finds a setting by any of its names, and suggests one if there is no such name."""

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
    "ssl_check_hostname": "leave it out, names are always verified; to change that, pass your own ssl_context",
    "sasl_kerberos_name": "use sasl_kerberos_service_name and sasl_kerberos_domain_name",
    "socks5_proxy": "pass a function that opens the connection as connector",
    "socket_options": "pass a function that opens the connection as connector",
    "selector": "leave it out; the event loop has its own",
    "metrics_enabled": "leave it out and call producer.metrics()",
}


def key_named(name: str) -> Key | None:
    """Return the key for a dotted name, a keyword, or a dotted name written with underscores."""
    return KEYS.get(name) or _KEYWORDS.get(name) or _SNAKE_CASE.get(name)


def unknown_keyword(name: str) -> ConfigError:
    """Return the error for a keyword that `Producer` does not have. It suggests the one that was probably meant."""
    key = _SNAKE_CASE.get(name)
    if key is not None and key.setting:
        advice = f"; it is {key.name} of another client, use {key.setting}"
    elif key is not None:
        advice = f": {key.reason}"
    else:
        advice = _advice(name, list(_KEYWORDS))
    return ConfigError(f"Producer has no setting {_shown(name)}{advice}", setting=name, value=None)


def unknown_key(name: str, where: str) -> ConfigError:
    """Return the error for a key that no client knows. `where` is its place."""
    candidates = list(KEYS) if "." in name else [*_KEYWORDS, *_SNAKE_CASE]
    advice = _advice(name, candidates)
    return ConfigError(f"{where}there is no setting {_shown(name)}{advice}", setting=name, value=None)


def _advice(name: str, candidates: list[str]) -> str:
    if advice := _OTHER_CLIENTS.get(name):
        return f"; {advice}"
    near = difflib.get_close_matches(name.lower(), candidates, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else "; docs/configuration.md lists all"


def _shown(name: str) -> str:
    # A broken line of a file may have part of a password where the name should be.
    return name if re.fullmatch(r"[A-Za-z][\w.\-]{0,79}", name) else "(a text that is not a name)"
