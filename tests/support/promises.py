"""The promises that the tests keep, read from the marks on the tests, and printed by `make promises`:

    @pytest.mark.promise("Records", "a record larger than `batch_size` has a batch of its own")

A mark names a section and a promise. A test may have several marks, and several tests may have the same mark. The
files are parsed, not imported, so this takes only seconds."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
MARK = "pytest.mark.promise"
SECTIONS = (
    "Demo and pipeline",
    "Packaging",
    "Public API",
    "Protocol",
    "Records",
    "Test clusters",
    "Accumulator, sender, connections",
    "Settings",
    "Settings from anywhere",
    "Coming from other clients",
    "Error table",
    "Transactions",
    "Security",
    "Simulation and fuzzing",
    "Blocking producer",
    "Observability",
    "Command line",
    "Spark",
    "Docs",
    "Speed",
    "As a whole",
    "KIPs",
    "Rules of Kafka's producer",
)


class Promise(NamedTuple):
    section: str
    text: str


class MarkError(ValueError):
    """A mark lacks a section or a text, or is not on a test; the message begins with the file and the line."""


def promises() -> dict[Promise, list[str]]:
    """All promises, in the order of the table, each with the node ids of its tests.

    Raises:
        MarkError: a mark is invalid."""
    found: dict[Promise, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for promise, test in marks_in(path.read_text(), path.relative_to(ROOT).as_posix()):
            found.setdefault(promise, []).append(test)
    return {promise: found[promise] for promise in sorted(found, key=_place)}


def marks_in(source: str, path: str) -> Iterator[tuple[Promise, str]]:
    """Each promise of a test file, with the node id of its test.

    Raises:
        MarkError: a mark is invalid."""
    if "mark.promise" not in source:
        return
    tree = ast.parse(source)
    on_tests = set()
    for test, node in _tests_in(tree, path):
        of_this_test = set()
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARK:
                promise = _read(mark, path)
                if promise in of_this_test:
                    raise MarkError(f"{path}:{mark.lineno}: the test has this promise twice")
                of_this_test.add(promise)
                on_tests.add(mark.func)
                yield promise, test
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == MARK and node not in on_tests:
            raise MarkError(f'{path}:{node.lineno}: write @{MARK}("section", "promise") above a test')


def table(found: Mapping[Promise, list[str]]) -> str:
    """The promises by section, each followed by its tests."""
    lines = []
    section = None
    for promise, tests in found.items():
        if promise.section != section:
            section = promise.section
            lines += [*([""] if lines else []), section, "=" * len(section)]
        lines += ["", promise.text, *(f"    {test}" for test in tests)]
    return "\n".join(lines) + "\n"


def _tests_in(tree: ast.Module, path: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions and methods that pytest collects from a file."""
    for top in tree.body:
        inside = isinstance(top, ast.ClassDef) and top.name.startswith("Test")
        for node in top.body if inside else [top]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield "::".join([path, *([top.name] if inside else []), node.name]), node


def _read(mark: ast.Call, path: str) -> Promise:
    values = [value.value for value in mark.args if isinstance(value, ast.Constant)]
    texts = [value for value in values if isinstance(value, str) and value == value.strip() != ""]
    if len(mark.args) != 2 or len(texts) != 2 or mark.keywords:
        raise MarkError(
            f"{path}:{mark.lineno}: a promise has a section and a text, both literal and not empty"
        )
    promise = Promise(*texts)
    if promise.section not in SECTIONS:
        raise MarkError(
            f"{path}:{mark.lineno}: {promise.section!r} is not one of SECTIONS in {Path(__file__).name}"
        )
    return promise


def _place(promise: Promise) -> tuple[int, list[str | int]]:
    """The sort key: the section, then the text; KIP-91 comes before KIP-110."""
    parts = re.split(r"(\d+)", promise.text.lower().replace("`", ""))
    return SECTIONS.index(promise.section), [int(part) if part.isdigit() else part for part in parts]


def main() -> None:
    try:
        sys.stdout.write(table(promises()))
        sys.stdout.flush()
    except MarkError as error:
        sys.exit(str(error))
    except BrokenPipeError:
        # `make promises | head` has read enough. Without this, Python would flush at exit and report an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
