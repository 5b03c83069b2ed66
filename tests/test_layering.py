"""Imports go down the layers only, and asyncio stays in the modules that own tasks and sockets.

The imports are read, not made: with ast from Python files, line by line from Cython ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "aioproducer"

LAYERS: dict[str, int] = {
    name: layer
    for layer, names in {
        10: "__init__",
        9: "producer",
        8: "sender transactional",
        7: "answers coordinator",
        6: "metadata producer_id coordinator_requests",
        5: "accumulator packing brokers connection_race data_loss receipt refusals",
        4: "configured batch connection linger target interceptors unretrieved",
        3: "recordbatch transaction config serializers handshake dialer large_answer login authentication _record_path",
        2: "settings protocol compression metrics partitioner cluster idempotence consumer_group outcomes "
        "sasl tls pem token_providers kerberos wire addresses",
        1: "errors types tasks wakeup daemon_threads _request_path",
    }.items()
    for name in names.split()
}
"""A module may import those of lower layers; the modules of a subpackage may import each other."""

# Of one layer, but they do not look back: a cluster is made from metadata answers, errors hold values,
# settings name codecs and partitioners, providers give tokens.
NEIGHBOURS = {
    ("cluster", "protocol"),
    ("errors", "types"),
    ("outcomes", "protocol"),
    ("consumer_group", "cluster"),
    ("settings", "compression"),
    ("accumulator", "packing"),
    ("brokers", "connection_race"),
    ("settings", "partitioner"),
    ("tls", "pem"),
    ("token_providers", "sasl"),
}

ONLY_THE_PUBLIC_NAMES = {"blocking", "spark", "cli"}
"""Built on the package as users see it."""

TESTING_MAY_IMPORT = {"errors", "types", "protocol", "compression", "cluster", "recordbatch", "testing"}
DOUBLES = {"testing.recording"}
"""The producer itself without what stands behind its buffer; the clusters, which judge the producer, know nothing of
it."""

MAY_IMPORT_ASYNCIO = {
    "batch",
    "unretrieved",
    "accumulator",
    "packing",
    "receipt",
    "connection",
    "connection_race",
    "large_answer",
    "dialer",
    "login",
    "authentication",
    "token_providers",
    "wire",
    "brokers",
    "metadata",
    "coordinator",
    "coordinator_requests",
    "transactional",
    "producer_id",
    "answers",
    "sender",
    "producer",
    "blocking",
    "testing",
    "_record_path",
    "tasks",
    "wakeup",
}
FORBIDDEN_EVERYWHERE = {"aiokafka", "confluent_kafka", "kafka", "uvloop"}
ONLY_IN_SPARK = {"pyspark", "py4j"}


class Import(NamedTuple):
    """`module` as it is written; `for_types` if only type checkers run it."""

    line: int
    module: str
    for_types: bool


def imports_of(source: str, *, is_cython: bool = False) -> Iterator[Import]:
    if is_cython:
        yield from _imports_of_cython(source)
        return
    for node, for_types in _import_nodes(ast.parse(source), False):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(node.lineno, name.name, for_types)
        else:
            assert node.level == 0, f"line {node.lineno}: a relative import"
            for name in node.names:
                # `from aioproducer import errors` imports the module, too.
                full = f"{node.module}.{name.name}" if node.module == "aioproducer" else str(node.module)
                yield Import(node.lineno, full, for_types)


def _import_nodes(node: ast.AST, for_types: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, for_types
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for inner in child.body:
                yield from _import_nodes(ast.Module([inner], []), True)
            for inner in child.orelse:
                yield from _import_nodes(ast.Module([inner], []), for_types)
        else:
            yield from _import_nodes(child, for_types)


def _imports_of_cython(source: str) -> Iterator[Import]:
    for number, line in enumerate(source.splitlines(), 1):
        found = re.match(r"\s*(?:from\s+([\w.]+)\s+c?import\s+\(?\s*(\w*)|c?import\s+([\w.]+))", line)
        if found:
            module = found[1] or found[3]
            yield Import(number, f"{module}.{found[2]}" if module == "aioproducer" else module, False)


def violations(module: str, source: str, *, is_cython: bool = False) -> list[str]:
    """What `source`, as the module `aioproducer.<module>`, imports and must not."""
    own = module.split(".")[0]
    found = []
    for line, name, for_types in imports_of(source, is_cython=is_cython):
        top, _, rest = name.partition(".")
        problem = _outside(own, top) if top != "aioproducer" else _inside(own, rest.split(".")[0], for_types)
        if module in DOUBLES and top == "aioproducer":
            problem = ""
        if problem:
            found.append(f"{module}:{line} {problem} {name}")
    return found


def _outside(own: str, top: str) -> str:
    if top == "asyncio" and own not in MAY_IMPORT_ASYNCIO:
        return "must not know tasks and loops, but imports"
    if top in FORBIDDEN_EVERYWHERE and own != "testing":
        return "must not import"
    if top in ONLY_IN_SPARK and own != "spark":
        return "is not the Spark sink, but imports"
    return ""


def _inside(own: str, other: str, for_types: bool) -> str:
    if own == "testing":
        return "" if other in TESTING_MAY_IMPORT else "must know the wire only, but imports"
    if other == "testing":
        return "must not depend on tests' tools, but imports"
    if own in ONLY_THE_PUBLIC_NAMES:
        return ""
    if other in ONLY_THE_PUBLIC_NAMES:
        return "must not know what is built on it, but imports"
    if other == own or for_types or (own, other) in NEIGHBOURS:
        return ""
    if other not in LAYERS:
        # A public name: `from aioproducer import Producer` inside the package goes through the very top.
        return "must import from the module itself, not"
    return (
        ""
        if LAYERS[other] < LAYERS[own]
        else f"is in layer {LAYERS[own]}, but imports layer {LAYERS[other]}:"
    )


def modules() -> dict[str, Path]:
    """Every source file of the package by its dotted name in it."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in (".py", ".pyx") and "__pycache__" not in path.parts
    }


# -------------------------------------------------------------------------------------------------- the package


@pytest.mark.parametrize("module", modules())
def test_module_imports_what_its_layer_may(module):
    path = modules()[module]

    assert violations(module, path.read_text(), is_cython=path.suffix == ".pyx") == []


def test_every_module_has_a_layer():
    tops = {module.split(".")[0] for module in modules()}

    assert tops - set(LAYERS) - ONLY_THE_PUBLIC_NAMES - {"testing"} == set()


def test_compiled_path_is_read_like_the_others():
    names = {found.module for found in imports_of((PACKAGE / "_record_path.pyx").read_text(), is_cython=True)}

    assert {"aioproducer.errors", "aioproducer.types", "asyncio"} <= names


# -------------------------------------------------------------------------------------------------- the checker


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("cluster", "import asyncio", "must not know tasks"),
        ("cluster", "from asyncio import Event", "must not know tasks"),
        ("protocol.frame", "def late():\n    import asyncio.streams", "must not know tasks"),
        (
            "config",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
            "must not know tasks",
        ),
        ("errors", "from aioproducer.sender import Sender", "layer 1, but imports layer 8"),
        ("errors", "import aioproducer.sender", "layer 1, but imports layer 8"),
        ("errors", "from aioproducer import sender", "layer 1, but imports layer 8"),
        (
            "batch",
            "try:\n    from aioproducer.accumulator import x\nexcept ImportError:\n    pass",
            "layer 5",
        ),
        ("batch", "from aioproducer.connection import Connection", "layer 4, but imports layer 4"),
        ("sender", "from aioproducer import Producer", "from the module itself"),
        ("sender", "from aioproducer.testing import EmbeddedCluster", "tests' tools"),
        ("sender", "if TYPE_CHECKING:\n    from aioproducer.testing import x", "tests' tools"),
        ("producer", "from aioproducer.blocking import Producer", "built on it"),
        ("producer", "import aiokafka", "must not import"),
        ("producer", "import pyspark.sql", "not the Spark sink"),
        ("testing.broker", "from aioproducer.accumulator import Accumulator", "the wire only"),
        ("testing.broker", "from aioproducer import Producer", "the wire only"),
    ],
)
def test_planted_violation_is_caught(module, source, problem):
    found = violations(module, source)

    assert len(found) == 1
    assert problem in found[0]
    assert found[0].startswith(f"{module}:{source.count(chr(10), 0, source.rindex('import')) + 1} ")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("from aioproducer.batch import ProducerBatch", "layer 3, but imports layer 4"),
        ("cdef x():\n    from aioproducer.producer import Producer", "layer 9"),
        ("from aioproducer cimport producer", "layer 9"),
        ("import aioproducer.testing", "tests' tools"),
    ],
)
def test_planted_violation_in_cython_is_caught(source, problem):
    [found] = violations("_record_path", source, is_cython=True)

    assert problem in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "sender",
            "import asyncio\nfrom aioproducer.accumulator import Accumulator\nfrom aioproducer import errors",
        ),
        ("batch", "if TYPE_CHECKING:\n    from aioproducer.accumulator import Accumulator"),
        ("protocol.api", "from aioproducer.protocol.frame import PREFIX_SIZE"),
        (
            "testing.broker",
            "import asyncio\nfrom aioproducer.protocol import api\nimport aioproducer.testing.log",
        ),
        ("testing.apache", "import confluent_kafka"),
        ("testing.recording", "from aioproducer.producer import Producer"),
        ("blocking", "import asyncio\nfrom aioproducer import Producer"),
        ("spark.sink", "import pyspark\nfrom aioproducer.blocking import Producer"),
        ("__init__", "from aioproducer.producer import Producer"),
    ],
)
def test_what_is_allowed_is_let_through(module, source):
    assert violations(module, source) == []


def test_relative_import_is_refused():
    with pytest.raises(AssertionError, match="line 2: a relative import"):
        violations("sender", "import asyncio\nfrom . import batch")
