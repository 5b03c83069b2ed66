"""The `Producer` class: it is generic over its keys and values, and each kind of producer has the same calls."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest

import aioproducer
from aioproducer import Producer, blocking
from aioproducer.config import ProducerSettings
from aioproducer.records._record_path import RecordPath
from aioproducer.testing import EmbeddedCluster, RecordingProducer

KINDS = [Producer, blocking.Producer, RecordingProducer]


@pytest.mark.parametrize("kind", KINDS)
def test_a_producer_with_types_is_a_producer_of_the_same_class(kind):
    producer = kind[str, bytes]("localhost:9092", key_serializer=str.encode)

    assert type(producer) is kind
    assert producer.config.key_serializer is str.encode
    assert type(kind[str, bytes].from_config({"linger.ms": 7})) is kind
    assert type(kind[str, dict[str, int]]()) is type(kind())


def test_a_users_subclass_may_set_the_types_or_leave_one_open():
    class Orders(Producer[str, bytes]):
        """A subclass that sets both types."""

    class Keyed(RecordingProducer[str, aioproducer.types.V]):
        """A subclass that leaves the type of the values open."""

    assert Orders("localhost:9092").config.bootstrap_servers == (("localhost", 9092),)
    assert type(Keyed[bytes]()) is Keyed


async def test_a_producer_with_types_sends_through_the_compiled_methods():
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        async with Producer[bytes, bytes](cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("t", b"v", b"k")

        assert [(record.key, record.value) for record in cluster.records("t")] == [(b"k", b"v")]
    assert type(Producer.send).__name__ == "cython_function_or_method"
    assert Producer.send is RecordingProducer.send


async def test_no_field_of_a_producer_is_in_a_dict():
    # If no field is in an instance dict, CPython finds `producer.send` without searching one.
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers, transactional_id="x") as producer:
            async with producer.transaction():
                await producer.send_and_wait("t", b"v")
            await producer.flush()
            producer.metrics()
    assert vars(producer) == {}


def test_producer_settings_have_the_types_of_the_keywords():
    keywords = get_type_hints(Producer.__init__)
    passed_on = get_type_hints(ProducerSettings)

    left_out = {"return", "security", "bootstrap_servers", "key_serializer", "value_serializer"}
    names = [name for name in inspect.signature(Producer).parameters if name not in left_out]
    assert names
    assert {name: passed_on[name] for name in names} == {name: keywords[name] for name in names}
    others = set(passed_on) - set(names)
    assert others
    assert all(name.startswith(("security_", "ssl_", "sasl_")) for name in others)


@pytest.mark.promise(
    "Public API", "the blocking producer and the double have the public names and parameters of the producer"
)
@pytest.mark.parametrize("kind", [blocking.Producer, RecordingProducer])
def test_each_kind_of_producer_has_the_same_public_names_and_parameters(kind):
    names = ["__init__", *(name for name in dir(Producer) if not name.startswith("_"))]

    assert {name for name in dir(kind) if not name.startswith("_")} >= set(names) - {"__init__"}
    for name in names:
        ours, theirs = getattr(kind, name), getattr(Producer, name)
        assert isinstance(ours, property) == isinstance(theirs, property), name
        if not isinstance(theirs, property):
            assert parameters_of(ours) == parameters_of(theirs), name
            assert inspect.getdoc(ours) or name == "__init__", name


def parameters_of(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


# ----------------------------------------------------------------------------------- the declarations of the calls

CALLS = ["send", "send_and_wait", "try_send"]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_of_producer() -> list[ast.stmt]:
    """Return the parsed statements of the class Producer."""
    source = Path(inspect.getfile(Producer)).read_text(encoding="utf-8")
    [found] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == Producer.__name__
    ]
    return found.body


def declared_calls() -> dict[str, Function]:
    """Return the functions that the class Producer declares only for type checkers, editors and readers."""
    return {
        function.name: function
        for node in body_of_producer()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for function in node.body
        if isinstance(function, Function)
    }


@pytest.mark.parametrize("name", CALLS)
def test_the_class_shows_each_compiled_call_with_its_parameters_and_docstring(name):
    declared = declared_calls()[name]
    compiled = getattr(Producer, name)

    assert ast.get_docstring(declared) == inspect.cleandoc(compiled.__doc__)
    names = [each.arg for each in (*declared.args.args, *declared.args.kwonlyargs)]
    assert names == list(inspect.signature(compiled).parameters)
    assert isinstance(declared, ast.AsyncFunctionDef) == inspect.iscoroutinefunction(compiled)


@pytest.mark.parametrize("name", CALLS)
def test_a_shown_call_takes_its_types_from_the_function_of_its_name(name):
    declared = declared_calls()[name]

    assert [ast.unparse(each) for each in declared.decorator_list] == [f"with_types_of(send_calls.{name})"]
    assert declared.args.args[0].annotation is not None  # see with_types_of


@pytest.mark.slow
@pytest.mark.parametrize("name", ["send", "send_and_wait", "try_send"])
def test_an_editor_finds_a_call_in_the_class_with_its_docstring(name):
    import jedi

    program = f'from aioproducer import Producer\nproducer = Producer("localhost:9092")\nproducer.{name}\n'
    script = jedi.Script(program, project=jedi.Project(Path(__file__).parents[1]))

    [shown] = script.help(3, len("producer.") + 1)

    assert (shown.module_name, shown.name) == ("aioproducer.producer", name)
    assert shown.docstring(raw=True) == inspect.cleandoc(getattr(Producer, name).__doc__)
    assert name in {completion.name for completion in script.complete(3, len("producer.") + 1)}


def test_the_slow_path_follows_the_calls():
    body = body_of_producer()
    [block] = [node for node in body if isinstance(node, ast.If)]
    following = body[body.index(block) + 1]

    assert [each.name for each in block.body if isinstance(each, Function)] == CALLS
    assert isinstance(following, ast.AsyncFunctionDef)
    assert following.name == "_send_slowly"


def test_the_declared_calls_define_nothing_at_runtime():
    assert not set(CALLS) & set(vars(Producer))
    for name in CALLS:
        assert getattr(Producer, name) is getattr(RecordPath, name)
