"""Files, functions and constructors of the package stay small enough to read in one go.

The limits apply to the Python files of a producer, not to the tools for tests, the Spark sink and the blocking
producer. The files are parsed, not executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.project.test_layering import modules

LONGEST_FILE = 600
"""The limit for the number of lines in a file."""
LONGEST_FUNCTION = 60
"""The limit for the number of lines in a function, including the `def`. The lines that declare keyword-only parameters
do not count: in the constructor of a public class and in the commands of the program, each of them is a setting."""
MOST_PARAMETERS = 8
"""The limit for the number of parameters of a constructor, without `self`. Keyword-only parameters of a class
without a leading underscore do not count: they are its settings. Dataclasses and NamedTuples have
no explicit constructor."""

EXEMPT_ROOMS = {"blocking", "spark", "testing"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_large(name: str, source: str) -> list[str]:
    """Return a line for each limit that `source`, the file `name`, exceeds."""
    tree = ast.parse(source)
    found = []
    if (lines := len(source.splitlines())) > LONGEST_FILE:
        found.append(f"{name}: the file has {lines} lines; the limit is {LONGEST_FILE}")
    for function, in_class in functions(tree):
        where = f"{name}:{function.lineno} {in_class.name + '.' if in_class else ''}{function.name}"
        if (length := length_of(function)) > LONGEST_FUNCTION:
            found.append(f"{where}: the function has {length} lines; the limit is {LONGEST_FUNCTION}")
        if in_class is not None and function.name in ("__init__", "__new__"):
            count = count_parameters(in_class, function)
            if count > MOST_PARAMETERS:
                found.append(
                    f"{where}: the constructor has {count} parameters; the limit is {MOST_PARAMETERS}"
                )
    return found


def functions(
    tree: ast.AST, in_class: ast.ClassDef | None = None
) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Yield each function, including nested ones, with the class whose method it is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node, in_class
            yield from functions(node)
        else:
            yield from functions(node, node if isinstance(node, ast.ClassDef) else in_class)


def length_of(function: Function) -> int:
    settings: set[int] = set()
    for parameter, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        last = default if default is not None else parameter
        settings.update(range(parameter.lineno, (last.end_lineno or 0) + 1))
    settings -= {function.lineno}  # a signature of one line
    return (function.end_lineno or 0) - function.lineno + 1 - len(settings)


def count_parameters(in_class: ast.ClassDef, constructor: Function) -> int:
    arguments = constructor.args
    settings = arguments.kwonlyargs if in_class.name.startswith("_") else []
    return len(arguments.posonlyargs) + len(arguments.args) - 1 + len(settings)


def core() -> list[str]:
    return [
        module
        for module, path in modules().items()
        if path.suffix == ".py" and module.partition(".")[0] not in EXEMPT_ROOMS
    ]


@pytest.mark.parametrize("module", core())
def test_files_functions_and_constructors_are_within_the_limits(module):
    path = modules()[module]

    assert too_large(f"{module.replace('.', '/')}.py", path.read_text()) == []


def test_every_room_of_the_producer_is_checked():
    rooms = {module.partition(".")[0] for module in core()}

    assert len(core()) > 150
    assert {"network", "records", "sending", "transactions", "compat", "cli", "producer"} <= rooms
    assert rooms & EXEMPT_ROOMS == set()


# -------------------------------------------------------------------------------------------------- the checker


def lines(count: int) -> str:
    return "\n".join(["    pass"] * count)


def parameters(count: int) -> str:
    return ", ".join(f"p{number}" for number in range(count))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "\n" * 601,
            "a.py: the file has 601 lines; the limit is 600",
        ),
        (
            f"\ndef f():\n{lines(60)}",
            "a.py:2 f: the function has 61 lines; the limit is 60",
        ),
        (
            f"async def f():\n{lines(60)}",
            "a.py:1 f: the function has 61 lines; the limit is 60",
        ),
        (
            f"class C:\n  if 1:\n   def m(self, *, p):\n{lines(60)}",
            "a.py:3 C.m: the function has 61 lines; the limit is 60",
        ),
        (
            f"class C:\n def __init__(self, {parameters(9)}): ...",
            "a.py:2 C.__init__: the constructor has 9 parameters; the limit is 8",
        ),
        (
            f"class _C:\n def __init__(self, *, {parameters(9)}): ...",
            "a.py:2 _C.__init__: the constructor has 9 parameters; the limit is 8",
        ),
        (
            f"class C:\n def __new__(cls, a, /, {parameters(8)}): ...",
            "a.py:2 C.__new__: the constructor has 9 parameters; the limit is 8",
        ),
        (
            f"def f():\n class C:\n  def __init__(self, {parameters(9)}): ...",
            "a.py:3 C.__init__: the constructor has 9 parameters; the limit is 8",
        ),
    ],
)
def test_anything_too_large_is_reported_with_its_size_and_the_limit(source, message):
    assert too_large("a.py", source) == [message]


@pytest.mark.parametrize(
    "source",
    [
        "\n" * 600,
        f"def f():\n{lines(59)}",
        f"def f(\n    *,\n    a=1,\n    b=(\n        2\n    ),\n    c,\n):\n{lines(56)}",
        f"class C:\n def __init__(self, {parameters(8)}, *, a, b=1): ...",
        f"class C:\n def method(self, {parameters(9)}): ...",
        f"def __init__({parameters(9)}): ...",
    ],
)
def test_anything_just_within_the_limits_is_accepted(source):
    assert too_large("a.py", source) == []
