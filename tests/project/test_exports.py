"""The public names: `__all__` is complete and correct, and every name has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import subprocess
import sys
import types
from pathlib import Path

import pytest

import aioproducer
import aioproducer.observe.hooks
from aioproducer import errors, testing

PUBLIC_MODULES = [
    "aioproducer",
    "aioproducer.blocking",
    "aioproducer.compat.aiokafka",
    "aioproducer.compat.aiokafka.errors",
    "aioproducer.compat.confluent",
    "aioproducer.hooks",
    "aioproducer.otel",
    "aioproducer.prometheus",
    "aioproducer.sasl",
    "aioproducer.testing",
    "aioproducer.token_providers",
]


def public_names(module: types.ModuleType) -> set[str]:
    """Return the names without an underscore, except submodules and names imported for the module's own use."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name != "TYPE_CHECKING"
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", "") not in ("typing", "__future__")
    }


def attribute_docs(module: types.ModuleType) -> set[str]:
    """Return the assigned names of a module that are followed by a docstring."""
    body = ast.parse(Path(inspect.getfile(module)).read_text()).body
    described = set()
    for statement, following in itertools.pairwise(body):
        target = getattr(statement, "target", None) or next(iter(getattr(statement, "targets", [])), None)
        if (
            isinstance(target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            described.add(target.id)
    return described


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_all_is_sorted_and_without_duplicates(name):
    exported = importlib.import_module(name).__all__

    assert list(exported) == sorted(set(exported))


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_everything_in_all_can_be_imported(name):
    module = importlib.import_module(name)

    for exported in module.__all__:
        assert getattr(module, exported) is not None


def test_all_contains_the_names_that_a_user_sees():
    # Each name is imported on first use, so dir() is what lists them.
    seen = {name for name in dir(aioproducer) if name[0].isupper()} - {"TYPE_CHECKING"}
    assert seen | {"gather", "murmur2_partitions"} == set(aioproducer.__all__)
    assert set(aioproducer._MODULES) == set(aioproducer.__all__)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = aioproducer.Nothing


def test_all_of_testing_contains_the_names_that_a_user_sees():
    # Each name is imported on first use, because pytest loads the package in every project.
    assert (
        public_names(testing)
        <= set(testing.__all__)
        == {name for name in dir(testing) if name[0].isupper()} - {"TYPE_CHECKING"}
    )
    with pytest.raises(AttributeError, match="Nothing"):
        _ = testing.Nothing


def test_the_names_that_users_need_exist():
    assert {
        "Producer",
        "RecordMetadata",
        "Delivery",
        "TopicPartition",
        "KafkaError",
        "DeliveryError",
        "Outcome",
    } <= set(aioproducer.__all__)


@pytest.mark.promise("Docs", "every public name is described")
@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_every_public_name_is_described(name):
    module = importlib.import_module(name)
    assert module.__doc__

    for exported in module.__all__:
        value = getattr(module, exported)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__, exported
            # A text that NamedTuple or dataclass generates is not a description.
            assert not value.__doc__.startswith(f"{exported}("), exported
        else:
            assert exported in attribute_docs(aioproducer.types) | attribute_docs(aioproducer.observe.hooks)


@pytest.mark.promise("Docs", "every public name is described")
def test_every_public_method_is_described():
    bare = []
    for exported in aioproducer.__all__:
        value = getattr(aioproducer, exported)
        if not inspect.isclass(value) or issubclass(value, (tuple, BaseException)):
            continue
        for name, member in vars(value).items():
            if name.startswith("_") or not (inspect.isroutine(member) or isinstance(member, property)):
                continue
            if not inspect.getdoc(member):
                bare.append(f"{exported}.{name}")

    # These names of asyncio.Future need no description.
    futures = {"Delivery.done", "Delivery.cancelled", "Delivery.get_loop"}
    futures |= {"Delivery.add_done_callback", "Delivery.remove_done_callback"}
    assert set(bare) - futures == set()


def test_every_error_is_public_in_errors():
    for name, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == errors.__name__:
            assert not name.startswith("_")
    for exported in aioproducer.__all__:
        value = getattr(aioproducer, exported)
        if inspect.isclass(value) and issubclass(value, BaseException):
            assert getattr(errors, exported) is value


@pytest.mark.promise("Packaging", "uvloop is optional and never imported by the package")
def test_importing_the_package_starts_nothing_and_imports_no_test_tools():
    script = """
import sys, threading
import aioproducer
import aioproducer.observe.hooks
assert threading.active_count() == 1
others = ("pytest", "aiokafka", "confluent_kafka", "uvloop", "pyspark")
found = [name for name in sys.modules if name.split(".")[0] in others]
found += [name for name in sys.modules if name.startswith("aioproducer.testing")]
assert found == [], found
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)


def test_star_import_gives_the_public_names():
    namespace: dict[str, object] = {}

    exec("from aioproducer import *", namespace)

    assert set(namespace) - {"__builtins__"} == set(aioproducer.__all__)


@pytest.mark.promise("Packaging", "`py.typed` and the stubs are in the wheel")
def test_package_is_typed():
    package = Path(aioproducer.__file__).parent

    assert (package / "py.typed").exists()
    assert (package / "records" / "_record_path.pyi").exists()
    assert (package / "protocol" / "_request_path.pyi").exists()
