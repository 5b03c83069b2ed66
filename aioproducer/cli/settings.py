"""The settings of a command's producer, from the environment, -F, and then -X and -b; later sources override earlier
ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aioproducer import Producer, Secret
from aioproducer.cli.exits import UsageError
from aioproducer.cli.screen import Screen
from aioproducer.settings.entries import (
    Entry,
    entries_of_environment,
    entries_of_file,
    entries_of_mapping,
    resolve,
)
from aioproducer.settings.names import key_named
from aioproducer.settings.table import SETTINGS

ENVIRONMENT = "AIOPRODUCER_"
"""The prefix of the environment variables that are settings."""


@dataclass(frozen=True, slots=True)
class Given:
    """The values of -b, -F and -X. A command passes on only this object, since its repr hides the passwords in -X."""

    servers: str | None = None
    file: Path | None = None
    settings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Given({self.servers!r}, {self.file!r}, <{len(self.settings)} settings>)"


def new_producer(given: Given, screen: Screen, **fixed: Any) -> Producer:
    """Return a producer that has not been started.

    Args:
        given: the user's options.
        screen: shows a warning if -X contains a password.
        fixed: settings from the command itself, which override all others.

    Raises:
        ConfigError: a setting is unknown or malformed, or contradicts another one.
        UsageError: -X is not KEY=VALUE.
    """
    overrides = _overrides(given)
    _warn_of_secrets(given, screen)
    if given.servers is not None:
        overrides["bootstrap_servers"] = given.servers
    entries = _entries(given)
    # The values are already bytes, so the serializers that a Java program's file often names are switched off.
    given_names = {_setting(entry) for entry in entries} | set(overrides)
    plain = dict.fromkeys(given_names & {"key_serializer", "value_serializer"})
    return Producer._from(entries, overrides | plain | fixed)


def _overrides(given: Given) -> dict[str, Any]:
    pairs = _pairs(given)
    found = resolve(entries_of_mapping({name: value.reveal() for name, value in pairs.items()}), {})
    found.mistakes.raise_if_any()
    return found.settings


def _entries(given: Given) -> list[Entry]:
    entries = [] if given.file is None else entries_of_file(given.file)
    known = {_setting(entry) for entry in entries}
    environment = entries_of_environment(ENVIRONMENT, os.environ)
    return [entry for entry in environment if _setting(entry) not in known] + entries


def _setting(entry: Entry) -> str:
    key = key_named(entry.key)
    return (key.setting or key.name) if key is not None else entry.key


def _pairs(given: Given) -> dict[str, Secret]:
    """Return the settings in -X, by key."""
    parts = [text.partition("=") for text in given.settings]
    if all(sign and key.strip() for key, sign, _ in parts):
        return {key.strip(): Secret(value) for key, _, value in parts}
    del parts  # a traceback that shows locals must not show passwords
    raise UsageError("-X requires KEY=VALUE, such as -X compression.type=zstd")


def _warn_of_secrets(given: Given, screen: Screen) -> None:
    """Warn about each secret in -X."""
    for name in _pairs(given):
        key = key_named(name)
        if key is not None and key.setting and SETTINGS[key.setting].hides_value:
            variable = f"{ENVIRONMENT}{key.setting.upper()}"
            screen.warn(
                f"-X {name}: every user on this machine can see a command's arguments; "
                f"put the secret in a file for -F, or in the variable {variable}"
            )
