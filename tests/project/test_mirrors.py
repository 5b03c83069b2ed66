"""Each module of the package has a test file with the same name in the room with the same name, and a test in that file
asserts something about the module."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_layering import PACKAGE, modules

TESTS = Path(__file__).parent.parent

WITHOUT_TESTS_OF_THEIR_OWN = {
    "cli.options": "declarations; test_app.py shows the help of each command",
    "otel": "a re-export; test_exports.py imports it",
    "prometheus": "a re-export; test_exports.py imports it",
    "protocol.api_keys": "a table; test_api.py and test_golden.py use each row",
    "protocol.error_codes": "a table; test_outcomes.py walks it",
    "protocol.messages_connection": "declarations; test_messages.py and test_golden.py encode each",
    "protocol.messages_group": "declarations; test_messages.py and test_golden.py encode each",
    "protocol.messages_metadata": "declarations; test_messages.py and test_golden.py encode each",
    "protocol.messages_records": "declarations; test_messages.py and test_golden.py encode each",
    "protocol.messages_telemetry": "declarations; test_messages.py and test_golden.py encode each",
    "protocol.messages_transaction": "declarations; test_messages.py and test_golden.py encode each",
    "hooks": "a re-export; test_exports.py imports it",
    "sasl": "a re-export; test_exports.py imports it",
    "token_providers": "a re-export; test_exports.py imports it",
}


def mirror_of(module: str) -> Path:
    """Return the test file of `aioproducer.<module>`."""
    *rooms, name = module.split(".")
    return TESTS.joinpath(*rooms, f"test_{name.strip('_')}.py")


def names_from(tree: ast.Module, module: str) -> set[str]:
    """Return the names under which a test file uses `aioproducer.<module>` and its contents."""
    full = f"aioproducer.{module}"
    package, _, name = full.rpartition(".")
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.asname or "aioproducer") for alias in node.names if alias.name == full}
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "aioproducer":
            for alias in node.names:
                is_module = node.module == package and alias.name == name
                if node.module == full or is_module or defined_in(str(node.module), alias.name) == full:
                    found.add(alias.asname or alias.name)
    return found


def defined_in(module: str, name: str) -> str:
    """Return the module that defines the object that `from module import name` imports."""
    return getattr(getattr(importlib.import_module(module), name, None), "__module__", "")


def names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} | {
        inner.value.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name)
    }


def asserts(node: ast.AST) -> bool:
    return any(
        isinstance(inner, ast.Assert) or (isinstance(inner, ast.Attribute) and inner.attr == "raises")
        for inner in ast.walk(node)
    )


def found_tests(source: str, module: str) -> Iterator[str]:
    """Yield the tests that assert something and use the module, directly or through other definitions of the file."""
    tree = ast.parse(source)
    wanted = names_from(tree, module)
    defined: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            arguments = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
            defined[node.name] = names_in(node) | arguments
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id: names_in(node) for target in targets if isinstance(target, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            reached, waiting = set(), {node.name}
            while waiting:
                name = waiting.pop()
                reached.add(name)
                waiting |= defined.get(name, set()) - reached
            if asserts(node) and reached & wanted:
                yield node.name


def names_of_modules() -> list[str]:
    return [module for module in modules() if not module.endswith("__init__")]


@pytest.mark.parametrize("module", names_of_modules())
def test_a_module_has_a_test_that_asserts_something_about_it(module):
    if module in WITHOUT_TESTS_OF_THEIR_OWN:
        assert not mirror_of(module).exists(), "the module has tests by now: remove it from the list"
        return

    assert mirror_of(module).exists()
    assert list(found_tests(mirror_of(module).read_text(), module))


def test_each_exception_names_an_existing_module():
    assert set(WITHOUT_TESTS_OF_THEIR_OWN) <= set(modules())
    assert PACKAGE.is_dir()


@pytest.mark.parametrize(
    "source",
    [
        "def test_a():\n    assert True",
        "from aioproducer.network.wire import Wire\ndef test_a():\n    assert True",
        "from aioproducer.network.wire import Wire\ndef test_a():\n    Wire()",
        "from aioproducer.network.brokers import Brokers\ndef test_a():\n    assert Brokers()",
    ],
)
def test_a_file_without_a_test_about_its_module_is_found(source):
    assert list(found_tests(source, "network.wire")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from aioproducer.network import wire\ndef test_a():\n    assert wire.Wire()",
        "from aioproducer.network.wire import Wire as W\ndef test_a():\n    assert W()",
        "from aioproducer.network.wire import Wire\ndef make():\n    return Wire()\ndef test_a():\n    assert make()",
    ],
)
def test_a_test_about_its_module_is_recognized(source):
    assert list(found_tests(source, "network.wire")) == ["test_a"]
