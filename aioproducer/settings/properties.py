"""Reads Java's properties files: `key = value` lines as java.util.Properties reads them, with their line numbers.

It supports comments (# and !), `=`, `:` or white space between key and value, lines continued with a backslash, and the
escapes \\t \\n \\r \\f \\uXXXX. A file that is not valid UTF-8 is read as Latin-1. Errors name the file and the line
number, but do not quote the line."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aioproducer.errors import ConfigError

MAX_SIZE = 1024 * 1024
"""The maximum size of a properties file in bytes."""
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_MALFORMED = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9A-Fa-f]{4})")
_SEPARATOR = re.compile(r"[ \t\f]*([=:]?)[ \t\f]*")


class Property(NamedTuple):
    """One key with its value."""

    key: str
    value: str
    file: str
    line: int
    """The number of the line on which the property begins, counted from 1."""
    has_sign: bool
    """Whether the key is followed by `=` or `:`, rather than by white space or nothing."""

    def __repr__(self) -> str:
        return f"Property({self.key!r}, <hidden>, {self.file!r}, {self.line})"


def read_properties(path: Any) -> list[Property]:
    """Return all properties of a file, in order.

    Raises:
        ConfigError: the file is missing, unreadable, not a regular file, larger than 1 MiB, or not text; or an escape
            is malformed.
    """
    try:
        name = os.fspath(path)
    except TypeError:
        name = None
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError(
            f"from_properties requires the path of a file, not {type(path).__name__}",
            setting="from_properties",
            value=None,
        )
    text, problem = _text_of(name)
    if not problem:
        properties, broken = _parsed(text, name)
        if not broken:
            return properties
        lines = f"line {broken[0]}" if len(broken) == 1 else f"lines {', '.join(map(str, broken))}"
        problem = f"\\u in {lines} must be followed by four hexadecimal digits"
        del properties
    # Neither local variables nor the error's context may keep the file's content, which may include passwords.
    del text
    raise ConfigError(
        f"the properties file {name!r} can't be read: {problem}", setting="from_properties", value=name
    )


def _text_of(name: str) -> tuple[str, str]:
    """Return the text in a file and "", or "" and the reason why the file can't be read."""
    try:
        mode = Path(name).stat().st_mode
        # Reading from a pipe or a device might block forever.
        if not stat.S_ISREG(mode):
            return "", "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file"
        with Path(name).open("rb") as file:
            data = file.read(MAX_SIZE + 1)
    except FileNotFoundError:
        return "", "there is no such file"
    except OSError as error:
        return "", error.strerror or type(error).__name__
    except UnicodeEncodeError:
        return "", "no file can have this name"
    if len(data) > MAX_SIZE:
        return "", f"it is larger than {MAX_SIZE} bytes"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if found := re.search(r"[\x00-\x08\x0e-\x1f\x7f]", text):
        line = len(re.findall(r"\r\n|\r|\n", text[: found.start()])) + 1
        return "", f"it is not text (byte {ord(found[0]):#04x} in line {line})"
    return text, ""


def _parsed(text: str, file: str) -> tuple[list[Property], list[int]]:
    """Return the properties, and the numbers of the lines with a malformed escape."""
    properties: list[Property] = []
    broken: list[int] = []
    for line, logical in _logical_lines(text):
        key = _KEY.match(logical)
        assert key is not None, "_KEY also matches the empty string"
        separator = _SEPARATOR.match(logical, key.end())
        assert separator is not None, "_SEPARATOR also matches the empty string"
        value = logical[separator.end() :]
        if _MALFORMED.search(logical):
            broken.append(line)
            continue
        properties.append(Property(_unescaped(key[0]), _unescaped(value), file, line, bool(separator[1])))
    return properties, broken


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines, each joined with its continuation lines, skipping comments and blank lines.

    A line that consists only of a backslash does not continue: the next line begins a new logical line.
    """
    whole, began = "", 0
    naturals = re.split(r"\r\n|\r|\n", text)
    if not naturals[-1]:
        del naturals[-1]  # the empty string after the last line break
    for number, natural in enumerate(naturals, 1):
        line = natural.lstrip(" \t\f")
        if not whole and (not line or line[0] in "#!"):
            began = 0
            continue
        began = began if whole else number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            whole += line[:-1]
            continue
        yield began, whole + line
        whole, began = "", 0
    if began:
        yield began, whole


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] is not None else _ESCAPED.get(match[2], match[2])

    whole = re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", character, text, flags=re.DOTALL)
    # Java writes characters beyond the basic plane as surrogate pairs.
    return whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
