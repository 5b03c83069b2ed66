"""The declared calls, which type checkers, editors and readers see, agree with the compiled and the blocking code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Coroutine
from pathlib import Path
from typing import get_args, get_origin

import pytest

from aioproducer import Producer, blocking
from aioproducer.records import send_calls
from aioproducer.records.send_calls import SendCalls

CALLS = ["send", "send_and_wait", "try_send"]


def declared() -> dict[str, list[ast.FunctionDef]]:
    """Return the overloads of each call, and its declaration after them."""
    tree = ast.parse(Path(send_calls.__file__).read_text(encoding="utf-8"))
    [found] = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == SendCalls.__name__
    ]
    [block] = [
        node for node in found.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    calls: dict[str, list[ast.FunctionDef]] = {}
    for node in block.body:
        assert isinstance(node, ast.FunctionDef)
        calls.setdefault(node.name, []).append(node)
    return calls


def names_of(declaration: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*declaration.args.args, *declaration.args.kwonlyargs)]


def test_the_compiled_calls_are_declared():
    assert list(declared()) == CALLS


@pytest.mark.parametrize("name", CALLS)
def test_a_declaration_has_the_parameters_and_the_docstring_of_the_compiled_call(name):
    *overloads, last = declared()[name]
    compiled = getattr(Producer, name)

    assert ast.get_docstring(last) == inspect.getdoc(compiled)
    assert len(overloads) == 4
    for each in (*overloads, last):
        assert names_of(each) == list(inspect.signature(compiled).parameters)


@pytest.mark.parametrize("name", CALLS)
def test_a_declaration_has_the_parameters_of_the_blocking_call(name):
    for each in declared()[name]:
        assert names_of(each) == list(inspect.signature(getattr(blocking.Producer, name)).parameters)


def test_declared_results_are_coroutines_where_the_compiled_calls_are():
    [base] = [each for each in Producer.__orig_bases__ if get_origin(each) is SendCalls]

    results = get_args(base)[:3]
    for name, result in zip(CALLS, results, strict=True):
        assert (get_origin(result) is Coroutine) == inspect.iscoroutinefunction(getattr(Producer, name)), name


def test_the_declarations_define_nothing_at_runtime():
    assert not set(CALLS) & set(vars(SendCalls))
