"""Parses the line that contains the credentials in Java configurations: `module flag option="value" ...;`

It accepts what a client's line may contain: one login module, its flag and its options (Kafka's JaasConfig). Error
messages do not quote the line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aioproducer.types import Secret

_TOKEN = re.compile(
    r"""[\x00-\x20]*(?:
        "(?P<quoted>(?:[^"\\]|\\.)*)"
      | '(?P<single>(?:[^'\\]|\\.)*)'
      | (?P<sign>[=;])
      | (?P<word>[^\x00-\x20"'=;]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_BLANKS = "".join(map(chr, range(33)))
"""The only characters that Java's StreamTokenizer treats as white space, as in the pattern above."""
_FLAGS = ("required", "requisite", "sufficient", "optional")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module (its class name without the package) and its options, whose values may be secrets."""

    module: str
    options: dict[str, Secret]


def parse_jaas(text: str) -> JaasEntry:
    """Read the value of `sasl.jaas.config`.

    Raises:
        ValueError: the line is malformed. The error's text completes a sentence and does not quote the line.
    """
    tokens = _tokens(text)
    if len(tokens) < 2 or tokens[0][0] != "word" or tokens[1][1].lower() not in _FLAGS:
        raise ValueError("must be 'LoginModule required name=\"value\" ...;'")
    module = tokens[0][1].rpartition(".")[2]
    options: dict[str, Secret] = {}
    at = 2
    while at < len(tokens) and tokens[at] != ("sign", ";"):
        name = tokens[at]
        if name[0] != "word" or tokens[at + 1 : at + 2] != [("sign", "=")] or at + 2 >= len(tokens):
            raise ValueError(f'has something other than name="value" after option {len(options)}')
        kind, value = tokens[at + 2]
        if kind == "sign":
            raise ValueError(f"has no value for option {len(options) + 1}")
        options[name[1]] = Secret(value)
        at += 3
    if at >= len(tokens):
        raise ValueError("must end with a semicolon")
    if at + 1 < len(tokens):
        raise ValueError("must contain one login module, not several")
    return JaasEntry(module, options)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    at = 0
    text = text.strip(_BLANKS)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError("has an unclosed quotation mark")
        at = match.end()
        kind = match.lastgroup or ""
        value = match[kind]
        if kind in ("quoted", "single"):
            kind, value = (
                "quoted",
                re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), value, flags=re.DOTALL),
            )
        tokens.append((kind, value))
    return tokens
