"""Finds the places where source code makes a decision based on an error code: comparisons, truth tests and matches,
including those of local names.

Passing a code to a call such as `decide(api, answer.error_code)` is not a decision: the table decides there. Compiled
source has a different grammar from Python, so it is searched line by line; there, any 16-bit number that is read from
an answer may be a code."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

ATTRIBUTES = {"error_code", "partition_error_code"}
PARAMETERS = {"error_code"}
MEMBERS = {"ErrorCode", "Code"}
STORED = {"code", "error"}
"""Attributes that may contain a code; a comparison with a number counts as a decision."""
TRUTH = {"bool", "int"}
"""Calls that return the code itself."""


class Decision(NamedTuple):
    """A line that decides, and the function that contains it."""

    line: int
    where: str


def decisions(source: str) -> list[Decision]:
    """All decisions in a Python module, in the order of their lines."""
    tree = ast.parse(source)
    found = {*_of_scope(tree, "", set())}
    return sorted(found)


def _of_scope(scope: ast.AST, where: str, outer: set[str]) -> Iterator[Decision]:
    names = outer | _local_names(scope, outer)
    for node in _nodes_of(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _of_scope(node, f"{where}.{node.name}".lstrip("."), names)
        elif isinstance(node, ast.Lambda):
            yield from _of_scope(node, where, names)
        else:
            for tested in _tested(node):
                if _shows_code(tested, names):
                    yield Decision(tested.lineno, where)
            if isinstance(node, ast.Compare) and _compares_stored(node):
                yield Decision(node.lineno, where)


def _nodes_of(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, including its functions but not their contents."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _local_names(scope: ast.AST, outer: set[str]) -> set[str]:
    """Names that contain an error code: assigned from one, or a parameter called error_code."""
    names = set(outer)
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        arguments = scope.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names |= {argument.arg for argument in every if argument.arg in PARAMETERS}
    before = -1
    while before != len(names):  # a name may be assigned from another one
        before = len(names)
        for node in _nodes_of(scope):
            for target, value in _assignments(node):
                if isinstance(target, ast.Name) and _is_code(value, names):
                    names.add(target.id)
    return names


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets, value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield target, value
        case ast.AnnAssign(target, _, ast.expr() as value) | ast.NamedExpr(target, value):
            yield target, value


def _tested(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of a node whose value decides."""
    match node:
        case ast.Compare(left, _, comparators):
            yield left
            yield from comparators
        case ast.If(test) | ast.While(test) | ast.IfExp(test) | ast.Assert(test) | ast.Match(test):
            yield test
        case ast.BoolOp(_, values):
            yield from values
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Call(ast.Name("bool"), [operand]):
            yield operand
        case ast.comprehension():
            yield from node.ifs
        case ast.MatchValue(value):
            yield value


def _is_code(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Attribute(ast.Name(owner), _) if owner in MEMBERS:
            return True
        case ast.Attribute(_, attribute):
            return attribute in ATTRIBUTES
        case ast.Name(name):
            return name in names
        case ast.Call(ast.Name(function), [operand]) if function in TRUTH:
            return _is_code(operand, names)
        case ast.NamedExpr(_, value):
            return _is_code(value, names)
        case ast.IfExp(_, body, orelse):
            return _is_code(body, names) or _is_code(orelse, names)
        case ast.BoolOp(_, values):
            return any(_is_code(value, names) for value in values)
    return False


def _shows_code(node: ast.expr, names: set[str]) -> bool:
    """Return whether a node is a code, or a display of codes such as (ErrorCode.NONE, 3)."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_is_code(element, names) for element in node.elts)
    return _is_code(node, names)


def _compares_stored(node: ast.Compare) -> bool:
    operands = [node.left, *node.comparators]
    return any(isinstance(one, ast.Attribute) and one.attr in STORED for one in operands) and any(
        isinstance(one, ast.Constant) and type(one.value) is int for one in operands
    )


# Compiled source

_CODE = (
    r"get_int\([^()]*,\s*2\)(?=\s*(?:==|!=|in\b|not\b))|(?:\w+\.)*\w*error_codes?\b|\b(?:ErrorCode|Code)\.\w+"
)
_ASSIGNED = re.compile(rf"^\s*(?:cdef\s+[\w ]+?\s)?(\w+)\s*=\s*(?:<\w+>)?\s*(?:{_CODE})")
_TESTED = re.compile(
    r"^\s*(?:if|elif|while|assert|return|and|or)\b|==|!=|<=|>=|[^-<]>|<(?!\w+>)|\b(?:in|not|and|or|if)\b"
)


def compiled_decisions(source: str) -> list[int]:
    """Lines of a .pyx or .pxi file that make a decision based on an error code."""
    found = []
    names: set[str] = set()
    for number, line in enumerate(_without_texts(source), 1):
        if re.match(r"^\s*(?:cdef|cpdef|def)\b.*[(:]\s*$", line) and not line.startswith((" ", "\t")):
            names.clear()  # another function
        if assigned := _ASSIGNED.match(line):
            names.add(assigned[1])
        local = "".join(rf"|\b{name}\b" for name in sorted(names))
        if (
            re.search(_CODE + local, line)
            and _TESTED.search(line)
            and not re.match(r"^\s*(?:from|c?import)\b", line)
        ):
            found.append(number)
    return found


def _without_texts(source: str) -> list[str]:
    """The lines without comments and strings."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            (first, start), (last, end) = token.start, token.end
            for number in range(first, last + 1):
                line = lines[number - 1]
                begin = start if number == first else 0
                stop = end if number == last else len(line)
                lines[number - 1] = line[:begin] + " " * (stop - begin) + line[stop:]
    return lines
