"""Keywords read from a mapping, the environment or a Java properties file, under the names of any client.

Text is converted to the type of each setting. `ProducerConfig.of` checks the values as it does for keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aioproducer.errors import ConfigError
from aioproducer.settings.keys import Fate, Key
from aioproducer.settings.names import key_named, unknown_key, unknown_keyword
from aioproducer.settings.properties import read_properties
from aioproducer.settings.table import SETTINGS
from aioproducer.settings.unsettled import EXPLICIT
from aioproducer.settings.user_code import UserCode
from aioproducer.settings.value_types import ValueType
from aioproducer.types import Secret

_NOT_SETTINGS = ("AIOPRODUCER_CACHE_DIR", "AIOPRODUCER_TEST_SLOWNESS")
"""Variables of `aioproducer.testing` and of the tests."""

_OTHER_NAME = {"batch_size": "max_batch_size", "max_batch_size": "batch_size"}
"""Two keywords for one setting: overriding one of them also overrides the other."""

_TRIMMED = "".join(map(chr, range(33)))
"""The characters that Java cuts from both ends of a value (ConfigDef.parseType: String.trim)."""

_LEFT_OUT = object()
"""The value that stands for a setting's default."""


class Entry(NamedTuple):
    """A key and its value, with their origin."""

    key: str
    value: Any
    origin: str
    """The origin: "explicit", "environment NAME" or "FILE:LINE"."""
    may_be_no_name: bool = False
    """The text in the key's place may not be a key at all, but part of a password."""


class Sourced(NamedTuple):
    """Keywords of `Producer` and their origins."""

    settings: dict[str, Any]
    origins: dict[str, str]
    notes: tuple[str, ...] = ()
    """Messages for the log about settings that have no effect."""


def entries_of_mapping(mapping: Any) -> list[Entry]:
    """Return the entries of a mapping whose keys are keywords, or names used by Java or librdkafka.

    Raises:
        ConfigError: it is not a mapping, or a key is not a str.
    """
    if not isinstance(mapping, Mapping):
        type_name = type(mapping).__name__
        del mapping  # no traceback may show its contents
        raise _no_source(f"from_config needs a mapping of settings, not {type_name}")
    strange = {type(key).__name__ for key in mapping if not isinstance(key, str)}
    if strange:
        del mapping
        raise _no_source(f"a setting's name must be a str, not {sorted(strange)[0]}")
    return [_entry(key, value, EXPLICIT) for key, value in mapping.items()]


def entries_of_environment(prefix: Any, environ: Mapping[str, str]) -> list[Entry]:
    """Return the entries of environment variables such as AIOPRODUCER_LINGER_MS.

    Raises:
        ConfigError: the prefix is empty, so that every variable would count as a setting.
    """
    if not isinstance(prefix, str) or not prefix:
        del environ
        raise _no_source(f"prefix={prefix!r} must be the text that the names of all settings begin with")
    return [
        _entry(name.removeprefix(prefix).lower(), value, f"environment {name}")
        for name, value in sorted(environ.items())
        if name.startswith(prefix) and name not in _NOT_SETTINGS
    ]


def entries_of_file(path: Any) -> list[Entry]:
    """Return the entries of a properties file, which is read as Java's clients read it.

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
    if known is None or known.fate is Fate.REFUSED:
        value = None  # it is no longer needed, and it may be a password
    elif known.setting:
        value = kept_hidden(known.setting, value)
    return Entry(key, value, origin, may_be_no_name)


def kept_hidden(name: str, value: Any) -> Any:
    """Return the value of a keyword, wrapped if it is a secret, so that no traceback shows it as a local variable.

    A secret of another type, such as bytes, will be rejected, so only its type is kept.
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
    """Return an object that has nothing in common with `value` but the name of its type, for the error message."""
    type_name = type(value).__name__
    return type(type_name, (), {"__slots__": (), "__repr__": lambda _: f"<hidden {type_name}>"})()


def check_keywords(keywords: dict[str, Any]) -> None:
    """Wrap the secrets among keywords of `Producer`, in place.

    To be called with a user's keywords before anything that may raise.

    Raises:
        ConfigError: there is no such keyword. All values are dropped, because the misspelt keyword may be that of a
            password.
    """
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
    """Return the keywords that the entries stand for. Overrides, which are keywords themselves, take precedence.

    Raises:
        ConfigError: a key is unknown or rejected, a value is malformed, or a setting has two values.
    """
    settings: dict[str, Any] = {}
    origins: dict[str, str] = {}
    given_as: dict[str, Entry] = {}
    notes = []
    for entry in entries:
        key = key_named(entry.key)
        if key is None:
            raise _unknown(entry)
        if winner := _replaced_by(key, overrides):
            if not key.setting:
                notes.append(f"{_named(entry)} has no effect: the keyword {winner} takes precedence")
            continue
        _refuse_what_can_not_be(key, entry)
        if note := _note(key, entry):
            notes.append(note)
        if not key.setting or (value := _keyword_value(key, entry)) is _LEFT_OUT:
            continue
        if key.setting in settings and not _same(key.setting, settings[key.setting], value):
            raise _contradiction(key.setting, given_as[key.setting], entry)
        settings[key.setting] = value
        given_as[key.setting] = entry
        origins[key.setting] = _origin(key, entry)
    for name, value in overrides.items():
        other = _OTHER_NAME.get(name)
        if other is not None and other not in overrides and value is not None:
            settings.pop(other, None)
            origins.pop(other, None)
        settings[name] = value
        origins.pop(name, None)
    return Sourced(settings, origins, tuple(notes))


def _replaced_by(key: Key, overrides: Mapping[str, Any]) -> str:
    """Return the keyword whose Python value makes this key superfluous, or "".

    A key that only such a keyword can replace is rejected with that advice; a user who follows it need not change the
    file.
    """
    if key.setting and not SETTINGS[key.setting].is_for_keywords:
        return ""
    return next((name for name in (key.setting, *key.instead) if name in overrides), "")


def _named(entry: Entry) -> str:
    return entry.key if entry.origin == EXPLICIT else f"{entry.key} ({entry.origin})"


def _same(name: str, first: Any, second: Any) -> bool:
    """Return whether two values of a keyword mean the same, like "all" and -1."""
    check = SETTINGS[name].value_type.check
    try:
        return bool(check(first) == check(second))
    except ValueError:
        return bool(first == second)


def _unknown(entry: Entry) -> ConfigError:
    if entry.may_be_no_name:
        return ConfigError(
            f"{entry.origin}: this line has no '=' and is not a setting; did the line before it end with a backslash?",
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
        problem += f"; pass the keyword {key.setting} as well; it takes precedence"
    shown = setting.shown(entry.value)
    fact = None if shown == "<hidden>" else entry.value
    raise ConfigError(f"{_place(entry)}{entry.key}={shown} {problem}", setting=key.setting, value=fact)


def _refuse_what_can_not_be(key: Key, entry: Entry) -> None:
    if key.fate is Fate.REFUSED:
        raise ConfigError(
            f"{_place(entry)}{entry.key} can't be used: {key.reason}", setting=entry.key, value=None
        )
    if key.fate is Fate.FIXED:
        said = _said(entry)
        if said not in key.fixed and (key.otherwise is Fate.REFUSED or said in key.never):
            shown = said if len(said) <= 60 and "@" not in said else "..."
            advice = f"; {key.instead_of_never}" if said in key.never else ""
            raise ConfigError(
                f"{_place(entry)}{entry.key}={shown} can't be used: {key.reason}{advice}",
                setting=entry.key,
                value=entry.value if shown == said else None,
            )


def _note(key: Key, entry: Entry) -> str | None:
    if key.fate is Fate.NOTED or (key.fate is Fate.FIXED and _said(entry) not in key.fixed):
        return f"{_named(entry)} has no effect: {key.reason}"
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
