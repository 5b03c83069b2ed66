"""The `Producer` class: it is generic over its keys and values, and each kind of producer has the same calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import get_type_hints

import pytest

import aioproducer
from aioproducer import Producer, blocking
from aioproducer.config import ProducerSettings
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
    # CPython then finds `producer.send` without searching for it.
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
