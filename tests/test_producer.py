"""The front door: what producer.py shows of the compiled calls."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from aioproducer import Producer
from aioproducer import producer as producer_module


def declared_in_source():
    """The methods that producer.py declares for its readers and for editors, and that are compiled elsewhere."""
    tree = ast.parse(Path(producer_module.__file__).read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Producer"]
    [block] = [
        node for node in found.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    return {node.name: node for node in block.body}


def test_the_compiled_methods_are_declared_where_readers_look_for_them():
    assert list(declared_in_source()) == ["send", "send_and_wait", "try_send"]


@pytest.mark.parametrize("name", ["send", "send_and_wait", "try_send"])
def test_a_declared_method_has_the_signature_and_the_text_of_the_compiled_one(name):
    declared, compiled = declared_in_source()[name], getattr(Producer, name)

    assert ast.get_docstring(declared) == inspect.getdoc(compiled)
    names = [argument.arg for argument in (*declared.args.args, *declared.args.kwonlyargs)]
    assert names == list(inspect.signature(compiled).parameters)
    assert isinstance(declared, ast.AsyncFunctionDef) == inspect.iscoroutinefunction(compiled)
