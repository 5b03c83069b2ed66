"""Reads keywords of `Producer` from a mapping, the environment or a Java properties file, under any client's names.

Text is converted to the type of its setting. `ProducerConfig.of` then checks the values in the same way as keywords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

from aioproducer.errors import ConfigError, without_tracebacks
from aioproducer.settings.keys import Fate, Key
from aioproducer.settings.names import (
    is_default_elsewhere,
    key_named,
    name_meant,
    purpose_elsewhere,
    unknown_key,
    unknown_keyword,
)
from aioproducer.settings.properties import read_properties
from aioproducer.settings.table import SETTINGS
from aioproducer.settings.unsettled import EXPLICIT, NO_MISTAKES, Mistake, Mistakes
from aioproducer.settings.user_code import UserCode
from aioproducer.settings.value_types import NoEffect, ValueType
from aioproducer.types import Secret

_NOT_SETTINGS = (
    # used by aioproducer.testing and the tests
    "AIOPRODUCER_CACHE_DIR",
    "AIOPRODUCER_TEST_SLOWNESS",
    # used by Kafka's own scripts
    "KAFKA_DEBUG",
    "KAFKA_GC_LOG_OPTS",
    "KAFKA_HEAP_OPTS",
    "KAFKA_HOME",
    "KAFKA_JMX_OPTS",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_LOG4J_OPTS",
    "KAFKA_OPTS",
)
"""Environment variables that are never settings, because other programs use them."""

_OF_A_SERVICE = re.compile(
    r"(\w*_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_URL_OF_A_SERVICE = re.compile(r"(\w*_)?PORT=(tcp|udp|sctp)://.*", re.DOTALL)
"""Both patterns recognize variables that Kubernetes sets for a Service whose name begins with the prefix. They match
the rest of the variable's name (and value), after the prefix."""

_OTHER_NAME = {"batch_size": "max_batch_size", "max_batch_size": "batch_size"}
"""The two keywords of one setting, each mapped to the other: overriding one also overrides the other."""

_TRIMMED = "".join(map(chr, range(33)))
"""The characters that Java strips from both ends of a value (ConfigDef.parseType: String.trim)."""

_LEFT_OUT = object()
"""The value that stands for a setting's default."""


class Entry(NamedTuple):
    """A key, its value, and their origin."""

    key: str
    value: Any
    origin: str
    """The origin: "explicit", "environment NAME" or "FILE:LINE"."""
    may_be_no_name: bool = False
    """Whether `key` may actually be part of a password."""


class Sourced(NamedTuple):
    """Keywords of `Producer` that were read from a source, and their origins."""

    settings: dict[str, Any]
    origins: dict[str, str]
    notes: tuple[str, ...] = ()
    """Log messages about settings that have no effect."""
    mistakes: Mistakes = NO_MISTAKES


def entries_of_mapping(mapping: Any) -> list[Entry]:
    """Return the entries of a mapping whose keys are keywords, or names used by Java or librdkafka.

    Raises:
        ConfigError: the argument is not a mapping, or a key is not a str.
    """
    try:
        if not isinstance(mapping, Mapping):
            raise _no_source(f"from_config requires a mapping of settings, not {type(mapping).__name__}")
        if strange := _strange_names(mapping):
            raise _no_source(f"a setting's name must be a str, not {strange[0]}")
        # Not a comprehension, because a traceback would show its variables as well.
        entries = list(starmap(_explicit_entry, mapping.items()))
    finally:
        del mapping  # a traceback that shows locals must not show the secrets in the mapping
    return [entry for entry in entries if entry is not None]


def _strange_names(mapping: Mapping[Any, Any]) -> list[str]:
    """Return the types of the names that are not a str."""
    return sorted({type(name).__name__ for name in mapping if not isinstance(name, str)})


def _explicit_entry(key: str, value: Any) -> Entry | None:
    """Return the entry for a key in a mapping, or None if the value has no effect."""
    return None if is_default_elsewhere(key, value) else _entry(key, value, EXPLICIT)


def entries_of_environment(prefix: Any, environ: Mapping[str, str]) -> list[Entry]:
    """Return the entries of environment variables such as AIOPRODUCER_LINGER_MS.

    Raises:
        ConfigError: the prefix is not a str, or is empty (every variable would then be a setting); or the variables
            are not a mapping of str.
    """
    try:
        if not isinstance(prefix, str) or not prefix:
            raise _no_source(f"prefix={prefix!r} must be a non-empty str: the prefix of the variables")
        if not isinstance(environ, Mapping):
            raise _no_source(f"from_env requires a mapping of variables, not {type(environ).__name__}")
        if strange := _strange_names(environ):
            raise _no_source(f"a variable's name must be a str, not {strange[0]}")
        names = sorted(name for name in environ if name.startswith(prefix) and name not in _NOT_SETTINGS)
        entries = list(map(partial(_variable_entry, prefix), names, map(environ.__getitem__, names)))
    finally:
        del environ  # as in entries_of_mapping()
    return [entry for entry in entries if entry is not None]


def _variable_entry(prefix: str, name: str, value: str) -> Entry | None:
    """Return the entry for an environment variable, or None if Kubernetes has set the variable for a Service."""
    rest = name.removeprefix(prefix)
    return None if _is_of_a_service(rest, value) else _entry(rest.lower(), value, f"environment {name}")


def _is_of_a_service(name: str, value: str) -> bool:
    """Return whether Kubernetes sets this variable, in every container, for a Service. `name` is without the prefix."""
    return bool(_OF_A_SERVICE.fullmatch(name) or _URL_OF_A_SERVICE.fullmatch(f"{name}={value}"))


def entries_of_file(path: Any) -> list[Entry]:
    """Return the entries of a properties file, reading it as the Java clients do.

    Raises:
        ConfigError: the file can't be read, or is not a properties file.
    """
    entries = []
    for found in read_properties(path):
        value = found.value.strip(_TRIMMED)
        entries.append(_entry(found.key, value, f"{found.file}:{found.line}", not found.has_sign))
    return entries


def _entry(key: str, value: Any, origin: str, may_be_no_name: bool = False) -> Entry:
    known = key_named(key)
    if known is None or known.fate in (Fate.REFUSED, Fate.NOTED):
        value = None  # it is not needed, and it may be a password
    elif known.setting:
        value = kept_hidden(known.setting, value)
    return Entry(key, value, origin, may_be_no_name)


def kept_hidden(name: str, value: Any) -> Any:
    """Return the value of a keyword, wrapped if it is a secret, so that no traceback shows it as a local variable.

    A secret of the wrong type, such as bytes, will be rejected, so only the name of its type is kept.
    """
    setting = SETTINGS[name]
    if setting.is_secret and isinstance(value, str):
        return Secret(value)
    may_be_secret = setting.is_secret or (setting.hides_value and isinstance(setting.value_type, UserCode))
    if (
        not may_be_secret
        or value is None
        or isinstance(value, Secret)
        or _is_accepted(setting.value_type, value)
    ):
        return value
    return _without_content(value)


def _is_accepted(value_type: ValueType, value: object) -> bool:
    try:
        value_type.check(value)
    except ValueError:
        return False
    return True


def _without_content(value: object) -> object:
    """Return a substitute for `value` in the error message: it has the same type name, but none of the content."""
    type_name = type(value).__name__
    return type(type_name, (), {"__slots__": (), "__repr__": lambda _: f"<hidden {type_name}>"})()


def check_keywords(keywords: dict[str, Any]) -> None:
    """Change keywords of `Producer` in place: wrap the secrets, and remove aiokafka's defaults that wrappers pass on.

    Call this function on a user's keywords before anything that may raise an exception.

    Raises:
        ConfigError: a keyword is unknown. All values are dropped, because the misspelt keyword may have been meant for
            a password.
    """
    for name in [name for name, value in keywords.items() if is_default_elsewhere(name, value)]:
        del keywords[name]
    for name in keywords:
        if name not in SETTINGS:
            keywords.clear()
            raise unknown_keyword(name)
    for name, value in keywords.items():
        keywords[name] = kept_hidden(name, value)


def _no_source(problem: str) -> ConfigError:
    return ConfigError(problem, setting="", value=None)


# ---------------------------------------------------------------------------------------------- name by name


def resolve(entries: Iterable[Entry], overrides: Mapping[str, Any]) -> Sourced:
    """Return the keywords that the entries set. `overrides`, which are keywords themselves, take precedence.

    Unknown or rejected keys, malformed values, and settings given twice with different values become `mistakes` in the
    result.
    """
    found = _Found(overrides)
    for entry in entries:
        key = key_named(entry.key)
        if key is not None:
            found.add(key, entry)
        elif not entry.may_be_no_name and (purpose := purpose_elsewhere(entry.key)):
            found.note(purpose, entry)
        else:
            found.refuse(_unknown(entry), unclear=_settings_meant(entry.key))
    for name, value in overrides.items():
        other = _OTHER_NAME.get(name)
        if other is not None and other not in overrides and value is not None:
            found.forget(other)
        found.settings[name] = value
        found.origins.pop(name, None)
    return found.result()


class _Found:
    """The settings found so far in the entries of a source."""

    def __init__(self, overrides: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self._overrides = overrides
        self._given_as: dict[str, Entry] = {}
        self._notes: list[str] = []
        self._without_effect: dict[str, list[str]] = {}
        """The keys that have no effect, by reason."""
        self._mistakes: list[Mistake] = []
        self._unclear: set[str] = set()

    def add(self, key: Key, entry: Entry) -> None:
        """Read an entry with a known key."""
        if key.setting in self._overrides:
            return
        try:
            _reject_impossible(key, entry)
            if note := _reason_to_note(key, entry):
                self.note(note, entry)
            elif key.setting:
                self._set(key, entry, _keyword_value(key, entry))
        except NoEffect as reason:
            self.note(str(reason), entry)
        except ConfigError as error:
            if winner := next((name for name in key.instead if name in self._overrides), ""):
                self._notes.append(f"{_named(entry)} has no effect: the {winner} keyword takes precedence")
                return
            self.refuse(error, key.setting, key.instead)
            if key.setting:
                self.settings.pop(key.setting, None)
                self.origins[key.setting] = _origin(key, entry)

    def _set(self, key: Key, entry: Entry, value: Any) -> None:
        name = key.setting
        if value is _LEFT_OUT:
            return
        if name in self.settings and not _same(name, self.settings[name], value):
            first = self._given_as[name]
            if _yields(entry, first):
                self._note_yield(entry, first)
                return
            if not _yields(first, entry):
                raise _contradiction(name, first, entry)
            self._note_yield(first, entry)
        self.settings[name] = value
        self._given_as[name] = entry
        self.origins[name] = _origin(key, entry)

    def _note_yield(self, loser: Entry, winner: Entry) -> None:
        self._notes.append(f"{_named(loser)} has no effect: {_named(winner)} sets the same thing")

    def note(self, reason: str, entry: Entry) -> None:
        """Record that an entry has no effect."""
        self._without_effect.setdefault(reason, []).append(_named(entry))

    def refuse(self, error: ConfigError, setting: str = "", unclear: Iterable[str] = ()) -> None:
        """Store a mistake without its traceback, which would keep other objects alive."""
        self._mistakes.append(Mistake(setting, without_tracebacks(error)))
        self._unclear.update(unclear)

    def forget(self, name: str) -> None:
        """Drop a setting that is replaced by a keyword with another name."""
        self.settings.pop(name, None)
        self.origins.pop(name, None)
        self._mistakes = [mistake for mistake in self._mistakes if mistake.setting != name]

    def result(self) -> Sourced:
        """Return everything that was found."""
        notes = [
            f"{_and(names)} {'have' if len(names) > 1 else 'has'} no effect: {reason}"
            for reason, names in self._without_effect.items()
        ]
        unclear = frozenset(self._unclear.difference(self._overrides))
        mistakes = Mistakes(tuple(self._mistakes), unclear)
        return Sourced(self.settings, self.origins, (*notes, *self._notes), mistakes)


def _and(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _settings_meant(name: str) -> tuple[str, ...]:
    """Return the setting that was probably meant by an unknown key."""
    key = key_named(name_meant(name))
    return (key.setting,) if key is not None and key.setting else ()


_BROADER_NAMES = ("socket.timeout.ms",)
"""librdkafka names for settings that also have a more specific librdkafka name, such as request.timeout.ms. If both are
given, the more specific name takes precedence."""


def _yields(loser: Entry, winner: Entry) -> bool:
    key, other = key_named(loser.key), key_named(winner.key)
    return (
        key is not None
        and other is not None
        and key.name in _BROADER_NAMES
        and other.name not in _BROADER_NAMES
    )


def _named(entry: Entry) -> str:
    return entry.key if entry.origin == EXPLICIT else f"{entry.key} ({entry.origin})"


def _same(name: str, first: Any, second: Any) -> bool:
    """Return whether two values of a keyword are equivalent, such as "all" and -1."""
    check = SETTINGS[name].value_type.check
    try:
        return bool(check(first) == check(second))
    except ValueError:
        return bool(first == second)


def _unknown(entry: Entry) -> ConfigError:
    if entry.may_be_no_name:
        return ConfigError(
            f"{entry.origin}: this line has no '=' and is not a setting; is a backslash missing at the end of the line "
            "before it?",
            setting="from_properties",
            value=None,
        )
    return unknown_key(entry.key, _place(entry))


def _keyword_value(key: Key, entry: Entry) -> Any:
    """Return the value for the keyword that the entry sets."""
    setting = SETTINGS[key.setting]
    try:
        value = entry.value
        if key.translate is not None and (value := key.translate(value)) is None:
            return _LEFT_OUT
        if isinstance(value, str):
            value = setting.value_type.parse(value)
    except ValueError as error:
        problem = str(error)
    else:
        return value
    if setting.is_for_keywords:
        problem += f"; also pass {key.setting} as a keyword, which takes precedence"
    shown = setting.shown(entry.value)
    fact = None if shown == "<hidden>" else entry.value
    raise ConfigError(f"{_place(entry)}{entry.key}={shown} {problem}", setting=key.setting, value=fact)


def _reject_impossible(key: Key, entry: Entry) -> None:
    if key.fate is Fate.REFUSED:
        raise ConfigError(
            f"{_place(entry)}{entry.key} can't be used: {key.reason}", setting=entry.key, value=None
        )
    if key.fate is Fate.FIXED:
        said = _said(entry)
        if said not in key.fixed and (key.otherwise is Fate.REFUSED or said in key.never):
            text = str(entry.value).strip() if isinstance(entry.value, str) else said
            shown = text if len(text) <= 60 and "@" not in text else "..."
            advice = f"; {key.instead_of_never}" if said in key.never else ""
            raise ConfigError(
                f"{_place(entry)}{entry.key}={shown} can't be used: {key.reason}{advice}",
                setting=entry.key,
                value=entry.value if shown == text else None,
            )


def _reason_to_note(key: Key, entry: Entry) -> str | None:
    if key.fate is Fate.NOTED or (key.fate is Fate.FIXED and _said(entry) not in key.fixed):
        return key.reason
    return None


def _said(entry: Entry) -> str:
    """Return the value as text, for comparison with the accepted values."""
    value = entry.value
    return str(value).strip().lower() if isinstance(value, str | int | float) else repr(type(value))


def _contradiction(setting: str, first: Entry, second: Entry) -> ConfigError:
    names = " and ".join(_named(entry) for entry in (first, second))
    return ConfigError(
        f"{names} both set {setting}, to different values; keep one", setting=setting, value=None
    )


def _place(entry: Entry) -> str:
    return "" if entry.origin == EXPLICIT else f"{entry.origin}: "


def _origin(key: Key, entry: Entry) -> str:
    same = entry.key.replace(".", "_") == key.setting
    return entry.origin if same else f"{entry.origin} as {entry.key}"
