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
SOURCE = Path(send_calls.__file__).read_text(encoding="utf-8")


def functions_in(body: list[ast.stmt]) -> dict[str, list[ast.FunctionDef]]:
    """Return the functions, by name, in the last block of `body` that only type checkers read."""
    blocks = [node for node in body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in blocks[-1].body:
        assert isinstance(node, ast.FunctionDef)
        found.setdefault(node.name, []).append(node)
    return found


def typed() -> dict[str, list[ast.FunctionDef]]:
    """Return the overloads of each call, and the function after them, which has the docstring."""
    found = functions_in(ast.parse(SOURCE).body)
    assert len(found.pop("with_types_of")) == 1
    return found


def declared() -> dict[str, ast.FunctionDef]:
    """Return the declaration of each call in SendCalls."""
    [base] = [
        node
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.ClassDef) and node.name == SendCalls.__name__
    ]
    return {name: declaration for name, [declaration] in functions_in(base.body).items()}


def names_of(declaration: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*declaration.args.args, *declaration.args.kwonlyargs)]


def words(text: str | None) -> list[str]:
    return (text or "").split()


def test_the_compiled_calls_are_declared():
    assert list(typed()) == CALLS
    assert list(declared()) == CALLS


@pytest.mark.parametrize("name", CALLS)
def test_the_types_of_a_call_have_the_parameters_and_the_docstring_of_the_compiled_call(name):
    *overloads, last = typed()[name]
    compiled = getattr(Producer, name)

    assert ast.get_docstring(last) == inspect.getdoc(compiled)
    assert len(overloads) == 4
    for each in overloads:
        assert names_of(each) == list(inspect.signature(compiled).parameters)


@pytest.mark.parametrize("name", CALLS)
def test_a_declaration_has_the_parameters_and_the_docstring_of_the_blocking_call(name):
    *overloads, _ = typed()[name]
    of_threads = getattr(blocking.Producer, name)

    assert words(ast.get_docstring(declared()[name])) == words(inspect.getdoc(of_threads))
    for each in overloads:
        assert names_of(each) == list(inspect.signature(of_threads).parameters)


@pytest.mark.parametrize("name", CALLS)
def test_a_declaration_takes_its_types_from_the_function_of_its_name(name):
    declaration = declared()[name]

    assert [ast.unparse(each) for each in declaration.decorator_list] == [f"with_types_of({name})"]
    assert declaration.args.args[0].annotation is not None  # see with_types_of


def test_declared_results_are_coroutines_where_the_compiled_calls_are():
    [base] = [each for each in Producer.__orig_bases__ if get_origin(each) is SendCalls]

    results = get_args(base)[:3]
    for name, result in zip(CALLS, results, strict=True):
        assert (get_origin(result) is Coroutine) == inspect.iscoroutinefunction(getattr(Producer, name)), name


def test_the_declarations_define_nothing_at_runtime():
    assert not set(CALLS) & set(vars(SendCalls))
    assert not set(CALLS) & set(vars(send_calls))
