"""A noun after a number in a text agrees with it: `counted(1, "record")`, not `1 records`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "aioproducer"

NOUNS = (
    "attempts batches brokers callers elements fields headers partitions producers records replicas requests retries "
    "rows tasks times topics tries"
)
PLURAL = re.compile(rf"( (more|other|failed|accepted|unsent))? ({'|'.join(NOUNS.split())})\b")
NUMBER = "\x00"

EXCEPTIONS = {
    "cli/figures.py": "the lines of kafka-producer-perf-test",
    "protocol/recordbatch.py": "records that bytes claim to contain",
    "testing/embedded/record_scan.py": "records that bytes claim to contain",
    "testing/embedded/validation.py": "records that bytes claim to contain",
    "protocol/primitives.py": "elements that bytes claim to contain",
    "observe/retries.py": "once, or several times",
    "sending/produce_results.py": "a partition, or several",
    "settings/contradictions.py": "a limit, which is 5",
}
"""The files in which a fixed plural is right, each with the reason or with the things that are counted."""


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string literal, with NUMBER in place of each formatted value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else NUMBER for part in node.values]
            yield node.lineno, "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"%[ds]", NUMBER, node.value)


def fixed_plurals(source: str) -> list[int]:
    """Return the lines in which a number precedes a noun that is always in the plural."""
    return [
        line
        for line, text in texts(source)
        if any(PLURAL.match(text, found.end()) for found in re.finditer(NUMBER, text))
    ]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('f"{count} records failed"', [1]),
        ('f"after {count} failed attempts"', [1]),
        ('log.info("%d rows", count)', [1]),
        ("f\"{counted(count, 'record')} failed\"", []),
        ('f"{topic} records"', [1]),
        ('"the records"', []),
    ],
)
def test_a_fixed_plural_is_found(source, lines):
    assert fixed_plurals(source) == lines


def test_no_text_has_a_fixed_plural_after_a_number():
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sorted(PACKAGE.rglob("*.py"))
        if "apache" not in path.parts
        and "simulation" not in path.parts
        and (lines := fixed_plurals(path.read_text(encoding="utf-8")))
    }
    assert set(found) == set(EXCEPTIONS), found
