"""DESIGN.md and the promises on the tests: each named test exists, each mark has a text, and each module has
its line in the file map."""

from __future__ import annotations

import ast
import difflib
import functools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.project.test_layering import modules
from tests.support.promises import SECTIONS, MarkError, Promise, marks_in, promises

ROOT = Path(__file__).parent.parent.parent


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", text))


@functools.cache
def existing_tests() -> set[str]:
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
    return names


@pytest.mark.promise("Docs", "each promise is a mark on its tests, and `make promises` prints them all")
def test_every_test_named_in_the_design_exists():
    named = names_in((ROOT / "DESIGN.md").read_text())

    assert named
    assert named - existing_tests() == set()


def test_a_name_that_does_not_exist_is_found():
    assert names_in("`test_that_is_not_there`") - existing_tests() == {"test_that_is_not_there"}


# -------------------------------------------------------------------------------------------------- the promises


def test_the_design_has_at_most_30000_bytes():
    assert len((ROOT / "DESIGN.md").read_bytes()) <= 30_000


@pytest.fixture(scope="module")
def found() -> dict[Promise, list[str]]:
    return promises()


def alike(found: Iterable[Promise]) -> list[tuple[str, str]]:
    """Return pairs of texts that are probably one promise in two spellings, or in two sections."""
    texts = [promise.text.casefold() for promise in found]
    return [
        (text, other)
        for number, text in enumerate(texts, 1)
        for other in difflib.get_close_matches(text, texts[number:], cutoff=0.95)
    ]


@pytest.mark.promise("Docs", "each promise is a mark on its tests, and `make promises` prints them all")
def test_each_promise_has_a_section_and_a_distinctive_text(found):
    assert len(found) > 300, "most marks were not read"
    assert {promise.section for promise in found} == set(SECTIONS)
    assert alike(found) == []


@pytest.mark.parametrize(
    "other",
    [
        Promise("Records", "a metadata refresh never waits behind a full deque"),
        Promise("Protocol", "A metadata refresh never waits behind a full deque."),
        Promise("Protocol", "a metadata refresh  never waits behind a full deque"),
    ],
)
def test_a_promise_in_two_spellings_or_sections_is_found(other):
    promise = Promise("Protocol", "a metadata refresh never waits behind a full deque")
    found = [promise, Promise("Protocol", "each message has one declaration"), other]

    assert alike(found) == [(promise.text, other.text.lower())]


def test_a_mark_is_read_with_its_section_its_text_and_its_test():
    source = """
@pytest.mark.promise("Records", "one")
@pytest.mark.promise("Protocol", "of two " "lines")
@pytest.mark.parametrize("number", [1, 2])
async def test_one(number): ...

class TestTwo:
    @pytest.mark.promise("Records", "one")
    def test_two(self): ...
"""

    assert list(marks_in(source, "test_file.py")) == [
        (("Records", "one"), "test_file.py::test_one"),
        (("Protocol", "of two lines"), "test_file.py::test_one"),
        (("Records", "one"), "test_file.py::TestTwo::test_two"),
    ]


@pytest.mark.promise("Docs", "each promise is a mark on its tests, and `make promises` prints them all")
@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.promise\ndef test_it(): ...",
        "@pytest.mark.promise()\ndef test_it(): ...",
        '@pytest.mark.promise("Records")\ndef test_it(): ...',
        '@pytest.mark.promise("Records", "")\ndef test_it(): ...',
        '@pytest.mark.promise("Records", " ")\ndef test_it(): ...',
        '@pytest.mark.promise("Records", "space at the end ")\ndef test_it(): ...',
        '@pytest.mark.promise("Records", TEXT)\ndef test_it(): ...',
        '@pytest.mark.promise("Records", "one", "two")\ndef test_it(): ...',
        '@pytest.mark.promise("Records", text="one")\ndef test_it(): ...',
        '@pytest.mark.promise("No such section", "one")\ndef test_it(): ...',
        '@pytest.mark.promise("Records", "one")\n@pytest.mark.promise("Records", "one")\ndef test_it(): ...',
        '@pytest.mark.promise("Records", "one")\ndef a_helper(): ...',
        'def test_it():\n    @pytest.mark.promise("Records", "one")\n    def test_inside(): ...',
        'pytestmark = pytest.mark.promise("Records", "one")',
    ],
)
def test_a_mark_without_a_text_is_an_error(source):
    with pytest.raises(MarkError, match=r"^test_file\.py:\d+: "):
        list(marks_in(source, "test_file.py"))


@pytest.mark.promise("Docs", "each promise is a mark on its tests, and `make promises` prints them all")
def test_make_promises_prints_each_promise_with_its_tests(found):
    command = "tests.support.promises"
    printed = subprocess.run(
        [sys.executable, "-m", command], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert [line for line in printed.splitlines() if line in SECTIONS] == list(SECTIONS)
    for promise, tests in found.items():
        assert "\n".join(["", promise.text, *(f"    {test}" for test in tests), ""]) in printed
    assert f"\npromises: setup\n\t$(BIN)/python -m {command}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.promise("Docs", "each promise is a mark on its tests, and `make promises` prints them all")
def test_pytest_sees_the_promises_that_are_printed(request, found):
    printed = {(*promise, test) for promise, tests in found.items() for test in tests}
    collected = {
        (*mark.args, item.nodeid.partition("[")[0])
        for item in request.session.items
        for mark in item.iter_markers("promise")
    }

    assert collected <= printed
    assert any(test.endswith(f"::{request.node.name}") for _, _, test in collected), "this test has a promise"


# ---------------------------------------------------------------------------------------------------- the file map


def mapped_modules(text: str) -> list[str]:
    """Return the dotted names of the modules that have a line in the file map."""
    block = text.split("## File map")[1].split("```")[1]
    found, room = [], ""
    for line in block.strip("\n").splitlines():
        if line.startswith(" "):
            name, _, what = line.strip().partition(" ")
            assert what.strip(), f"{name} has no description"
            found.append(room + name)
        else:
            room = line.rstrip("/").removeprefix("aioproducer").replace("/", ".") + "."
            room = "" if room == "." else room
    return found


def test_each_module_has_its_line_in_the_file_map():
    mapped = mapped_modules((ROOT / "DESIGN.md").read_text())

    assert len(mapped) == len(set(mapped))
    assert set(mapped) == {module for module in modules() if not module.endswith("__init__")}
