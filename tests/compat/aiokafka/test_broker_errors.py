"""The classes with an error code, compared with aiokafka's own."""

from __future__ import annotations

import inspect

import aiokafka.errors

from aioproducer.compat.aiokafka import broker_errors, errors


def test_the_class_of_a_code_is_that_of_aiokafka():
    for code in range(-1, 200):
        assert broker_errors.for_code(code).__name__ == aiokafka.errors.for_code(code).__name__


def test_the_class_of_a_code_has_that_code():
    codes = [code for code in range(-1, 200) if broker_errors.for_code(code).errno == code]

    assert codes == [*range(-1, 73), 79]


def test_every_class_is_also_a_name_of_the_errors_module():
    classes = {
        name: value
        for name, value in vars(broker_errors).items()
        if not name.startswith("_")
        and inspect.isclass(value)
        and issubclass(value, broker_errors.BrokerResponseError)
    }

    assert len(classes) == 80
    for name, value in classes.items():
        assert getattr(errors, name) is value
        assert value.__module__ == errors.__name__, "a traceback shows the name that users import"
        assert name in errors.__all__
