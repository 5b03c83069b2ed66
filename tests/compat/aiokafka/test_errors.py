"""The names of aiokafka.errors, compared with aiokafka's own."""

from __future__ import annotations

import inspect

import aiokafka.errors
import pytest

import aioproducer.errors
from aioproducer.compat.aiokafka import errors

THEIRS = {
    name: value
    for name, value in vars(aiokafka.errors).items()
    if inspect.isclass(value) and issubclass(value, BaseException)
}
ALIASES = {"KafkaError", "IllegalStateError", "ProducerClosed", "RecordTooLargeError"}
"""Names that are aliases of aioproducer's classes."""


@pytest.mark.promise("Coming from other clients", "every name of aiokafka.errors can be imported")
def test_every_name_of_aiokafkas_errors_can_be_imported():
    assert len(THEIRS) >= 108

    assert {name for name in THEIRS if not hasattr(errors, name)} == set()
    assert set(errors.__all__) == {*THEIRS, "for_code"}


@pytest.mark.parametrize("name", THEIRS)
def test_a_class_has_the_ancestors_the_code_and_the_retriable_flag_of_aiokafkas(name):
    theirs, ours = THEIRS[name], getattr(errors, name)

    ancestors = {kind.__name__ for kind in theirs.__mro__} - {theirs.__name__}
    assert ancestors <= {kind.__name__ for kind in ours.__mro__} | {"RuntimeError" if name in ALIASES else ""}
    if name not in ALIASES:
        assert getattr(ours, "errno", None) == getattr(theirs, "errno", None)
        assert getattr(ours, "retriable", None) == getattr(theirs, "retriable", None)


def test_aliases_are_aioproducers_classes():
    for name in ALIASES:
        assert getattr(errors, name) is getattr(aioproducer.errors, name)


def test_names_for_the_same_code_are_one_class():
    for name, theirs in THEIRS.items():
        assert getattr(errors, name) is getattr(errors, theirs.__name__)


def test_a_users_test_can_create_an_error():
    error = errors.NotEnoughReplicasError("boom")

    assert str(error) == "boom"
    assert isinstance(error, aioproducer.KafkaError)
    assert isinstance(error, RuntimeError)
