"""Settings before they become a ProducerConfig: each is checked by itself and has its origin.

contradictions.py then compares them and derives the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioproducer.errors import ConfigError
from aioproducer.settings.table import SETTINGS

DEFAULT = "default"
EXPLICIT = "explicit"


class UnsettledSettings:
    """Values by keyword, as they are stored in ProducerConfig, and their origins."""

    def __init__(self, given: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Check the given settings; the others have their defaults.

        Args:
            given: keywords of `Producer`. None means "left out" if None is the default.
            origins: the origins of those that were not given as keywords.

        Raises:
            ConfigError: a value is malformed or out of range.
        """
        self.notes: list[str] = []
        """Notes for the operator: defaults that had to yield, and settings that do less than they seem to."""
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._given: set[str] = set()
        for name, setting in SETTINGS.items():
            value = given.get(name, setting.default)
            is_given = name in given and not (value is None and setting.default is None)
            self._origins[name] = origins.get(name, EXPLICIT) if is_given else DEFAULT
            if is_given:
                self._given.add(name)
            self._values[name] = (
                None if value is None and setting.default is None else setting.check(value, self._where(name))
            )

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each setting, by keyword."""
        return dict(self._origins)

    def is_given(self, name: str) -> bool:
        """Return whether the user has set it, in any way."""
        return name in self._given

    def given(self, prefix: str) -> list[str]:
        """Return the names of the settings with this prefix that the user has set."""
        return [name for name in SETTINGS if name.startswith(prefix) and self.is_given(name)]

    def said(self, name: str) -> str:
        """Return the setting for use in a sentence: `acks=1`, `acks=1 (client.properties:3)`."""
        return f"{name}={self.shown(name)}{self._where(name)}"

    def shown(self, name: str) -> str:
        """Return its value as a user would write it."""
        value = self._values[name]
        return "None" if value is None else SETTINGS[name].value_type.shown(value)

    def default(self, name: str, value: Any) -> None:
        """Set the default of a setting that was left out, if the default depends on others."""
        self._values[name] = value

    def derive(self, name: str, value: Any, because: str) -> None:
        """Set a setting that was left out to a value that follows from others."""
        self._values[name] = value
        self._given.discard(name)
        self._origins[name] = f"derived because {because}"

    def take_from(self, source: str, name: str, value: Any) -> None:
        """Set a setting to a value that is part of another setting's value."""
        self._values[name] = value
        self._given.add(name)
        where = self._origins[source]
        self._origins[name] = f"{where} as {source}" if where == EXPLICIT else where

    def take_over(self, alias: str, name: str) -> None:
        """Set `name` to the value that was given under another keyword.

        Raises:
            ConfigError: both keywords were given, with different values.
        """
        if not self.is_given(alias):
            return
        if self.is_given(name) and self._values[name] != self._values[alias]:
            raise self.refused(alias, f"differs from {self.said(name)}; both set the same thing, so keep one")
        self.take_from(alias, name, self._values[alias])

    def refused(self, name: str, problem: str) -> ConfigError:
        """Return the error that says what is wrong with a setting in combination with others."""
        setting = SETTINGS[name]
        value: Any = self._values[name]
        if setting.hides_value:
            value = None
        elif isinstance(value, float) and name.endswith("_ms"):
            value = value * 1000
        return ConfigError(f"{self.said(name)} {problem}", setting=name, value=value)

    def _where(self, name: str) -> str:
        origin = self._origins[name]
        is_keyword = origin == EXPLICIT or origin.startswith(f"{EXPLICIT} as ")
        return "" if is_keyword or name not in self._given else f" ({origin})"
