"""Settings that are not a ProducerConfig yet: each has been checked individually and has an origin.

contradictions.py then compares them with each other and derives the rest. All mistakes are collected and raised
together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from aioproducer.errors import ConfigError, without_tracebacks
from aioproducer.settings.table import SETTINGS

DEFAULT = "default"
EXPLICIT = "explicit"


class Mistake(NamedTuple):
    """An error, and the setting whose value it concerns. `setting` is empty if the key is not a setting."""

    setting: str
    error: ConfigError


class Mistakes(NamedTuple):
    """The mistakes in a source, such as a file, before its settings are compared."""

    found: tuple[Mistake, ...] = ()
    unclear: frozenset[str] = frozenset()
    """Settings that were probably meant by a misspelt or rejected key."""

    def raise_if_any(self) -> None:
        """Raise one error for all mistakes, if there are any.

        Raises:
            ConfigError: the only mistake, or an error that lists all mistakes and has them in `errors`.
        """
        errors = tuple(mistake.error for mistake in self.found)
        if not errors:
            return
        if len(errors) == 1:
            raise errors[0]
        lines = "".join(f"\n  {error.message}" for error in errors)
        first = errors[0]
        raise ConfigError(
            f"there are {len(errors)} mistakes in the settings:{lines}",
            setting=first.setting,
            value=first.value,
            errors=errors,
        )


NO_MISTAKES = Mistakes()


class UnclearError(Exception):
    """A check needs a setting whose value is unknown, because there is a mistake in the setting itself. The check
    is skipped."""


class Contradiction(ConfigError):
    """Settings contradict each other; `between` names them. Keywords override the settings from a source."""

    between: tuple[str, ...]


class UnsettledSettings:
    """Values by keyword, as they are stored in ProducerConfig, and their origins."""

    def __init__(
        self, given: Mapping[str, Any], origins: Mapping[str, str], mistakes: Mistakes = NO_MISTAKES
    ) -> None:
        """Check each of the given settings; the others get their defaults.

        Args:
            given: keywords of `Producer`. None means "left out" if None is the default.
            origins: the origin of each setting that was read from a source rather than given as a keyword.
            mistakes: the mistakes in that source.
        """
        self.notes: list[str] = []
        """Notes for the operator about defaults that were overridden and settings that have less effect than
        expected."""
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._given: set[str] = set()
        self._sourced = set(origins)
        """Settings that were read from a source."""
        self._parts: dict[str, str] = {}
        """For each setting whose value is part of another setting's value: the name of that other setting."""
        self._dropped: set[str] = set()
        """Settings from the source that a keyword overrode."""
        self._mistakes = list(mistakes.found)
        self._unclear = mistakes.unclear.difference(given)
        for name in SETTINGS:
            self._take(name, given, origins)
        for name in {mistake.setting for mistake in mistakes.found} - {""}:
            self._given.add(name)
            self._origins[name] = origins.get(name, EXPLICIT)

    def _take(self, name: str, given: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        setting = SETTINGS[name]
        value = given.get(name, setting.default)
        is_none = value is None and (setting.default is None or setting.value_type.none_is_default)
        is_given = name in given and not is_none
        self._origins[name] = origins.get(name, EXPLICIT) if is_given else DEFAULT
        self._values[name] = None
        if not is_given:
            self._values[name] = _default(name)
            return
        self._given.add(name)
        try:
            self._values[name] = setting.check(value, self.place(name))
        except ConfigError as error:
            self._mistakes.append(Mistake(name, without_tracebacks(error)))

    # Reading

    def __getitem__(self, name: str) -> Any:
        if name in self._unclear or name in self._wrong:
            raise UnclearError(name)
        return self._values[name]

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each setting, by keyword."""
        return dict(self._origins)

    def is_given(self, name: str) -> bool:
        """Return whether the user has set the setting, in any way."""
        if name in self._unclear:
            raise UnclearError(name)
        return name in self._given

    def is_keyword(self, name: str) -> bool:
        """Return whether the user has set the setting as a keyword, not in a file, a mapping or the environment."""
        return name in self._given and name not in self._sourced

    def is_part(self, name: str, source: str) -> bool:
        """Return whether the value of the setting is part of the value of the setting `source`."""
        return self._parts.get(name) == source

    def given(self, prefix: str) -> list[str]:
        """Return the names of the settings with this prefix that the user has set to a value other than the default."""
        wrong = self._wrong
        return [
            name
            for name in SETTINGS
            if name.startswith(prefix) and name in self._given and (name in wrong or self._differs(name))
        ]

    def _differs(self, name: str) -> bool:
        value, default = self._values[name], _default(name)
        # The user's own objects are not compared.
        return value is not None if default is None else bool(value != default)

    def as_text(self, name: str) -> str:
        """Return the setting for use in a sentence: `acks=1`, `acks=1 (client.properties:3)`."""
        return f"{name}={self.shown(name)}{self.place(name)}"

    def named(self, name: str) -> str:
        """Return the setting's name and where it was set, for use in a sentence: `acks (client.properties:3)`."""
        return f"{name}{self.place(name)}"

    def shown(self, name: str) -> str:
        """Return the value of the setting as a user would write it."""
        value = self._values[name]
        return "None" if value is None else SETTINGS[name].value_type.shown(value)

    # Deriving

    def default(self, name: str, value: Any) -> None:
        """Set the default of a setting that was left out, if that default depends on other settings."""
        self._values[name] = value

    def derive(self, name: str, value: Any, because: str) -> None:
        """Set a setting that was left out to a value derived from other settings."""
        self._values[name] = value
        self._given.discard(name)
        self._origins[name] = f"derived because {because}"

    def translate(self, name: str, value: Any) -> None:
        """Replace the value of a setting with the value that it stands for."""
        former = self.shown(name)
        self._values[name] = value
        self._origins[name] += f" as {former}"

    def take_from(self, source: str, name: str, value: Any) -> None:
        """Set a setting to a value that is part of another setting's value."""
        self._values[name] = value
        self._given.add(name)
        self._parts[name] = source
        if source in self._sourced:
            self._sourced.add(name)
        where = self._origins[source]
        self._origins[name] = f"{where} as {source}" if where == EXPLICIT else where

    def take_over(self, alias: str, name: str) -> None:
        """Set `name` to the value that was given under another keyword.

        Raises:
            ConfigError: both keywords were given, with different values.
        """
        if not self.is_given(alias):
            return
        if self.is_given(name) and self[name] != self[alias]:
            problem = f"differs from {self.as_text(name)}; both set the same thing, so keep one"
            raise self.error_for(alias, problem, against=(name,))
        self.take_from(alias, name, self[alias])

    def drop(self, name: str) -> None:
        """Reset a setting and its parts to their defaults, for example because a keyword overrides it."""
        for part in [name, *(part for part, source in self._parts.items() if source == name)]:
            self._values[part] = _default(part)
            self._origins[part] = DEFAULT
            self._given.discard(part)
            self._sourced.discard(part)
            self._dropped.add(part)
        self._mistakes = [mistake for mistake in self._mistakes if mistake.setting != name]

    def drop_orphan(self, name: str, needed: Sequence[str]) -> bool:
        """Drop a setting from the source if a keyword has overridden a setting in `needed`. Return whether it was
        dropped."""
        is_orphan = name in self._sourced and bool(self._dropped.intersection(needed))
        if is_orphan:
            self.drop(name)
        return is_orphan

    # Mistakes

    def attempt(self, check: Callable[[UnsettledSettings], None]) -> bool:
        """Run a check, and collect its error.

        Settings from a source that contradict keywords are dropped with a note, and the check runs again. If the check
        needs a setting that itself contains a mistake, the check is skipped.

        Returns:
            Whether the check ended without an error.
        """
        while True:
            try:
                check(self)
            except UnclearError:
                return False
            except Contradiction as found:
                if self._give_way(found.between):
                    continue
                concerned = found.between
                error = ConfigError(found.message, setting=found.setting, value=found.value)
            except ConfigError as found:
                concerned = (found.setting,)
                error = without_tracebacks(found)
            else:
                return True
            if not self._wrong.intersection(concerned):  # one mistake per setting is enough
                self._mistakes.append(Mistake("", error))
            return False

    @property
    def _wrong(self) -> set[str]:
        return {mistake.setting for mistake in self._mistakes if mistake.setting}

    def _give_way(self, between: Sequence[str]) -> bool:
        winners = [name for name in between if self.is_keyword(name)]
        losers = [name for name in between if name in self._given and name in self._sourced]
        if not winners or not losers:
            return False
        self.note_winner(winners[0], losers)
        for name in losers:
            self.drop(name)
        return True

    def note_winner(self, winner: str, losers: Sequence[str]) -> None:
        """Add a note that a keyword overrides settings from the source."""
        whole = [name for name in losers if self._parts.get(name) not in losers]
        self.notes.append(f"the {winner} keyword overrides {', '.join(self.named(name) for name in whole)}")

    def raise_mistakes(self) -> None:
        """Raise one error for all mistakes, if there are any (ConfigError)."""
        Mistakes(tuple(self._mistakes)).raise_if_any()

    def error_for(self, name: str, problem: str, *, against: Sequence[str] = ()) -> ConfigError:
        """Return the error that says what is wrong with a setting in combination with others.

        Args:
            name: the setting to name.
            problem: the rest of the sentence that begins with the setting and its value.
            against: the settings that it contradicts.
        """
        setting = SETTINGS[name]
        value: Any = self._values[name]
        if setting.hides_value:
            value = None
        elif isinstance(value, float) and name.endswith("_ms"):
            value = value * 1000
        return self.contradiction(f"{self.as_text(name)} {problem}", name, value, (name, *against))

    def contradiction(self, text: str, name: str, value: Any, between: Sequence[str]) -> ConfigError:
        """Return the error for settings that contradict each other; keywords override settings from a source."""
        return Contradiction(text, setting=name, value=value, between=tuple(between))

    def place(self, name: str) -> str:
        """Return where the setting was set, for use after its name; "" for a keyword."""
        origin = self._origins[name]
        is_keyword = origin == EXPLICIT or origin.startswith(f"{EXPLICIT} as ")
        return "" if is_keyword or name not in self._given else f" ({origin})"


def _default(name: str) -> Any:
    setting = SETTINGS[name]
    return None if setting.default is None else setting.check(setting.default)
