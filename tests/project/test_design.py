"""DESIGN.md keeps its word: each test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", text))


def existing_tests() -> set[str]:
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
    return names


def test_every_test_that_the_design_names_exists():
    named = names_in((ROOT / "DESIGN.md").read_text())

    assert len(named) > 100, "the map of promises to tests is part of DESIGN.md"
    assert named - existing_tests() == set()


def test_a_name_that_does_not_exist_is_found_out():
    assert names_in("`test_that_is_not_there`") - existing_tests() == {"test_that_is_not_there"}


def test_every_promise_of_the_map_has_a_test():
    map_of_promises = (ROOT / "DESIGN.md").read_text().split("## 7. ")[1]
    rows = [line for line in map_of_promises.splitlines() if line.startswith("|")][2:]

    assert rows
    for row in rows:
        assert names_in(row), f"no test stands for: {row}"
