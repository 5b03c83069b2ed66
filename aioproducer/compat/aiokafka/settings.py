"""Translates aiokafka's settings into aioproducer's. The names are the same, but some values have to change."""

from __future__ import annotations

import warnings
from typing import Any

from aioproducer.settings.entries import check_keywords

_WITHOUT_EFFECT = {
    "loop": "the producer belongs to the event loop in which it is started",
    "api_version": "versions are negotiated with each broker",
}
_DEFAULT_MECHANISM, _DEFAULT_SERVICE = "PLAIN", "kafka"
"""aiokafka's defaults for sasl_mechanism and sasl_kerberos_service_name."""
_DEFAULT_LINGER_MS = 5
"""aioproducer's default for linger_ms."""


def translated_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Translate keyword arguments for aiokafka's producer into arguments for aioproducer.Producer.

    Settings of aioproducer that aiokafka does not have are passed on unchanged. If a setting was left out,
    aioproducer's default applies: acks="all" with idempotence, a linger of 5 ms, larger batches.

    Raises:
        ConfigError: a setting is unknown.
    """
    settings = {name: value for name, value in given.items() if not _is_left_out(name, value)}
    without_effect = {name: settings.pop(name) for name in _WITHOUT_EFFECT if name in settings}
    check_keywords(settings)  # first, because it wraps the secrets; a warning may be raised as an error
    _warn_of(without_effect)
    _settle_idempotence(settings)
    _settle_sasl(settings)
    _settle_timeouts(settings)
    return settings


def _is_left_out(name: str, value: object) -> bool:
    """Return whether the value means that the setting was not given; wrappers pass on such values."""
    if type(value) is object:
        return True  # aiokafka's default for acks, a marker
    return value is None and name != "connections_max_idle_ms"  # for this setting, None means never


def _warn_of(without_effect: dict[str, Any]) -> None:
    """Warn about settings without effect, unless they have aiokafka's default."""
    for name, value in without_effect.items():
        if value != "auto":
            # aiokafka uses the same warning category for these settings. Stack level 4 is the caller of
            # AIOKafkaProducer().
            warnings.warn(
                f"{name} is ignored: {_WITHOUT_EFFECT[name]}; leave it out", DeprecationWarning, stacklevel=4
            )


def _settle_idempotence(settings: dict[str, Any]) -> None:
    """Make the settings agree on idempotence, as in aiokafka.

    A transactional id overrides enable_idempotence=False, aiokafka's default. Otherwise, acks=0 or 1 disables
    idempotence by default.
    """
    if "transactional_id" in settings:
        if not settings.get("enable_idempotence", True):
            del settings["enable_idempotence"]
    elif settings.get("acks") in (0, 1):
        settings.setdefault("enable_idempotence", False)


def _settle_sasl(settings: dict[str, Any]) -> None:
    """Apply aiokafka's SASL defaults, or drop them if they have no effect and aioproducer would reject them."""
    mechanism = settings.get("sasl_mechanism", _DEFAULT_MECHANISM)
    if str(settings.get("security_protocol", "")).startswith("SASL_"):
        settings["sasl_mechanism"] = mechanism
    elif mechanism == _DEFAULT_MECHANISM:
        settings.pop("sasl_mechanism", None)
    if mechanism != "GSSAPI" and settings.get("sasl_kerberos_service_name") == _DEFAULT_SERVICE:
        del settings["sasl_kerberos_service_name"]


def _settle_timeouts(settings: dict[str, Any]) -> None:
    """Make request_timeout_ms also limit `send` and, without idempotence, the delivery of a record, as in aiokafka."""
    timeout, linger = settings.get("request_timeout_ms"), settings.get("linger_ms", _DEFAULT_LINGER_MS)
    if not isinstance(timeout, int | float) or not isinstance(linger, int | float):
        return  # left out, or rejected by aioproducer
    settings.setdefault("max_block_ms", timeout)
    if not settings.get("enable_idempotence") and "transactional_id" not in settings:
        settings.setdefault("delivery_timeout_ms", timeout + linger)
