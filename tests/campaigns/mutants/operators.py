"""The mutants of a module: copies of its source with one small change each, of kinds that a test should notice.

Texts, annotations, docstrings and the members of enums are not changed. Entries of tables are left out or
exchanged."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
}
"""`|` is left out because it joins types in this code."""


class Mutant(NamedTuple):
    """One change, and the whole module with it."""

    line: int
    where: str
    """Qualified name of the function, or "" for the module itself."""
    old: str
    new: str
    source: str

    @property
    def change(self) -> str:
        return f"{self.old} -> {self.new}"


class Change(NamedTuple):
    """New values for the fields of one node."""

    owner: ast.AST
    fields: dict[str, Any]
    line: int
    old: str
    new: str


def mutants_of(source: str, namespace: Mapping[str, Any]) -> Iterator[Mutant]:
    """Yield all mutants, from the top of the module to its end.

    Args:
        source: the source of the module.
        namespace: the values of the module's names, used to exchange members of enums for other members.
    """
    tree = ast.parse(source)
    seen = {ast.unparse(tree)}
    for where, change in _Walk(tree, namespace).changes():
        before = {field: getattr(change.owner, field) for field in change.fields}
        vars(change.owner).update(change.fields)
        text = ast.unparse(ast.fix_missing_locations(tree))
        vars(change.owner).update(before)
        if text not in seen:
            seen.add(text)
            yield Mutant(change.line, where, _short(change.old), _short(change.new), text)


def _short(text: str) -> str:
    return textwrap.shorten(text, 100, placeholder=" ...")


class _Walk:
    """Walks through a module and yields its possible changes."""

    def __init__(self, tree: ast.Module, namespace: Mapping[str, Any]) -> None:
        self._tree = tree
        self._namespace = dict(namespace)
        self._enums = {
            value: name
            for name, value in namespace.items()
            if isinstance(value, type) and issubclass(value, Enum)
        }
        self._variadic = {
            node.name: len(node.args.args)
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.args.vararg is not None
        }

    def changes(self) -> Iterator[tuple[str, Change]]:
        yield from self._block(self._tree, "body", "")

    def _block(self, owner: ast.AST, field: str, where: str) -> Iterator[tuple[str, Change]]:
        statements: list[ast.stmt] = getattr(owner, field)
        for index, statement in enumerate(statements):
            if isinstance(statement, ast.ClassDef):
                if not self._is_enum(statement):
                    yield from self._block(statement, "body", f"{where}{statement.name}.")
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._function(statement, f"{where}{statement.name}")
            else:
                is_in_function = bool(where) and not where.endswith(".")
                name = where.rstrip(".")
                if is_in_function and (instead := self._instead_of(statement)) is not None:
                    rest = [*statements[:index], instead, *statements[index + 1 :]]
                    yield name, _change(owner, field, rest, statement, instead)
                yield from ((name, change) for change in self._parts(statement))
                for inner in ("body", "orelse", "finalbody"):
                    if getattr(statement, inner, None):
                        yield from self._block(statement, inner, where)
                for handler in getattr(statement, "handlers", ()):
                    yield from self._block(handler, "body", where)

    def _is_enum(self, node: ast.ClassDef) -> bool:
        value = self._namespace.get(node.name)
        return isinstance(value, type) and issubclass(value, Enum)

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, where: str
    ) -> Iterator[tuple[str, Change]]:
        for field in ("defaults", "kw_defaults"):
            for change in self._list(node.args, field):
                yield where, change
        outside = self._namespace
        self._namespace = outside | self._members_by_another_name(node)
        yield from self._block(node, "body", where)
        self._namespace = outside

    def _members_by_another_name(self, node: ast.AST) -> dict[str, Enum]:
        """Map the names on the left of `no, maybe = Outcome.NOT_PERSISTED, Outcome.UNKNOWN` to the members on the
        right."""
        found = {}
        for assign in ast.walk(node):
            match assign:
                case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                    for name, value in zip(names, values, strict=True):
                        member = self._member(value)
                        if member is not None and isinstance(name, ast.Name):
                            found[name.id] = member
        return found

    # Statements

    @staticmethod
    def _instead_of(statement: ast.stmt) -> ast.stmt | None:
        match statement:
            case ast.Expr(ast.Constant()):
                return None  # a docstring
            case ast.Return(None) | ast.Expr() | ast.Raise() | ast.Assert() | ast.AugAssign():
                return ast.Pass()
            case ast.Assign([ast.Name() | ast.Tuple()]) | ast.AnnAssign(ast.Name()):
                return None  # without it the name would be unknown
            case ast.Assign() | ast.AnnAssign():
                return ast.Pass()
            case ast.Return(value) if not isinstance(value, ast.Constant):
                return ast.Return(ast.Constant(None))
            case _:
                return None

    def _parts(self, statement: ast.stmt) -> Iterator[Change]:
        """Yield changes to the expressions in a statement, but not to the statements in it."""
        match statement:
            case ast.Assign([ast.Tuple()], ast.Tuple() as values):
                yield from self._list(values, "elts")
            case ast.Assign([ast.Name(id="__slots__")]) | ast.Assign(value=ast.BinOp(op=ast.BitOr())):
                return  # names, of attributes or of types
            case ast.Assign(targets):
                for target in targets:
                    yield from self._below(target)
                yield from self._at(statement, "value")
            case ast.AnnAssign() | ast.Return() | ast.AugAssign():
                if isinstance(statement, ast.AugAssign) and type(statement.op) in ARITHMETIC:
                    op = ARITHMETIC[type(statement.op)]()
                    other = ast.AugAssign(statement.target, op, statement.value)
                    yield _change(statement, "op", op, statement, other)
                yield from self._at(statement, "value")
            case ast.Expr(ast.Constant()):
                return
            case ast.Expr():
                yield from self._at(statement, "value")
            case ast.Raise():
                yield from self._at(statement, "exc")
            case ast.Assert():
                yield from self._at(statement, "test")
            case ast.If():
                yield from self._condition(statement)
                yield from self._at(statement, "test")
            case ast.While():
                yield from self._at(statement, "test")
            case ast.For():
                yield _change(statement, "iter", ast.Tuple([], ast.Load()), statement.iter, "()")
                yield from self._at(statement, "iter")

    def _condition(self, node: ast.If | ast.IfExp) -> Iterator[Change]:
        for value in (True, False):
            constant = ast.Constant(value)
            old = f"if {ast.unparse(node.test)}"
            yield Change(node, {"test": constant}, node.lineno, old, f"if {value}")

    # Expressions

    def _at(self, owner: ast.AST, field: str) -> Iterator[Change]:
        node = getattr(owner, field)
        if node is None:
            return
        for other in self._others(node):
            yield _change(owner, field, other, node, other)
        yield from self._below(node)

    def _list(self, owner: ast.AST, field: str, *, members: bool = True) -> Iterator[Change]:
        """Yield changes to the elements of a list; to enum members only if they are not also left out one by one."""
        nodes = getattr(owner, field)
        for index, node in enumerate(nodes):
            if node is None:
                continue
            for other in self._others(node, members=members):
                yield _change(owner, field, [*nodes[:index], other, *nodes[index + 1 :]], node, other)
            yield from self._below(node)

    def _below(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.JoinedStr() | ast.Constant() | ast.Name():
                return
            case ast.Tuple(ctx=ast.Load()) | ast.Set() | ast.List(ctx=ast.Load()):
                yield from self._without_one(node, "elts", node.elts)
                yield from self._list(node, "elts", members=False)
            case ast.Dict():
                yield from self._dict(node)
            case ast.Call():
                yield from self._call(node)
            case ast.IfExp():
                yield from self._condition(node)
                for field in ("test", "body", "orelse"):
                    yield from self._at(node, field)
            case ast.BoolOp():
                if len(node.values) > 2:
                    yield from self._without_one(node, "values", node.values)
                yield from self._list(node, "values")
            case ast.comprehension():
                yield from self._without_one(node, "ifs", node.ifs)
                yield from self._at(node, "iter")
                yield from self._list(node, "ifs")
            case _:
                for field, value in ast.iter_fields(node):
                    if isinstance(value, list):
                        yield from self._list(node, field)
                    elif isinstance(value, ast.expr):
                        yield from self._at(node, field)

    @staticmethod
    def _without_one(owner: ast.AST, field: str, nodes: Sequence[ast.AST]) -> Iterator[Change]:
        for index, node in enumerate(nodes):
            yield _change(owner, field, [*nodes[:index], *nodes[index + 1 :]], node, "(left out)")

    def _dict(self, node: ast.Dict) -> Iterator[Change]:
        entries = list(zip(node.keys, node.values, strict=True))
        for index, (key, value) in enumerate(entries):
            others = [*entries[index + 1 :], *entries[:index]]
            name = "**" if key is None else f"{ast.unparse(key)}: "
            old = f"{name}{ast.unparse(value)}"
            rest = {
                "keys": [*node.keys[:index], *node.keys[index + 1 :]],
                "values": [*node.values[:index], *node.values[index + 1 :]],
            }
            yield Change(node, rest, value.lineno, old, "(left out)")
            other = next((that for its, that in others if its is not None and not _same(that, value)), None)
            if key is not None and other is not None:
                values = [*node.values[:index], other, *node.values[index + 1 :]]
                yield Change(node, {"values": values}, value.lineno, old, f"{name}{ast.unparse(other)}")
        yield from self._list(node, "values")

    def _call(self, node: ast.Call) -> Iterator[Change]:
        yield from self._without_one(node, "keywords", node.keywords)
        named = self._variadic.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if named is not None:
            for index in range(named, len(node.args)):
                rest = [*node.args[:index], *node.args[index + 1 :]]
                yield _change(node, "args", rest, node.args[index], "(left out)")
        yield from self._below(node.func)
        for index, argument in enumerate(node.args):
            is_left_out = named is not None and index >= named
            for other in self._others(argument, members=not is_left_out):
                others = [*node.args[:index], other, *node.args[index + 1 :]]
                yield _change(node, "args", others, argument, other)
            yield from self._below(argument)
        for keyword in node.keywords:
            yield from self._at(keyword, "value")

    def _others(self, node: ast.expr, *, members: bool = True) -> Iterator[ast.expr]:
        """Yield the replacements for an expression."""
        match node:
            case ast.Compare(left, [op], right):
                for other in COMPARISONS[type(op)]:
                    yield ast.Compare(left, [other()], right)
            case ast.BoolOp(op, values):
                yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
                if len(values) == 2:
                    yield from values
            case ast.UnaryOp(ast.Not(), operand):
                yield operand
            case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
                yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
            case ast.Constant(bool() as value):
                yield ast.Constant(not value)
            case ast.Constant(int() | float() as value):
                yield ast.Constant(value + 1)
            case ast.Name() | ast.Attribute():
                member = self._member(node) if members else None
                if member is not None and type(member) in self._enums:
                    every = list(type(member))
                    other_member = every[(every.index(member) + 1) % len(every)]
                    name = ast.Name(self._enums[type(member)], ast.Load())
                    yield ast.Attribute(name, other_member.name, ast.Load())

    def _member(self, node: ast.expr) -> Enum | None:
        match node:
            case ast.Name(id=name):
                value = self._namespace.get(name)
            case ast.Attribute(ast.Name(id=name), attr):
                kind = self._namespace.get(name)
                is_enum = isinstance(kind, type) and issubclass(kind, Enum)
                value = getattr(kind, attr, None) if is_enum else None
            case _:
                value = None
        return value if isinstance(value, Enum) else None


def _same(one: ast.AST, other: ast.AST) -> bool:
    return ast.dump(one) == ast.dump(other)


def _change(owner: ast.AST, field: str, value: Any, old: ast.AST, new: ast.AST | str) -> Change:
    text = new if isinstance(new, str) else ast.unparse(ast.fix_missing_locations(new))
    return Change(owner, {field: value}, old.lineno, ast.unparse(old), text)
