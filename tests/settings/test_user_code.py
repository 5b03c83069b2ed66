"""Settings that are the user's Python code: accepted values, and their representation."""

from __future__ import annotations

import pytest

from aioproducer.settings.java import SERIALIZERS
from aioproducer.settings.user_code import (
    HOOKS,
    INTERCEPTORS,
    CallbackHandler,
    PartitionerChoice,
    Serializing,
    UserCode,
)
from aioproducer.settings.value_types import NoEffect

STRING = "org.apache.kafka.common.serialization.StringSerializer"


class Sees:
    def on_send(self, record: object) -> object:
        return record


class Serializes:
    def serialize(self, topic: str, value: object, headers: object) -> bytes:
        return b""


def test_a_function_and_an_object_with_the_method_are_accepted_as_serializers():
    for value in (str.encode, found := Serializes()):
        assert Serializing().check(value) is value
    assert Serializing().shown(found) == "<Serializes>"


@pytest.mark.parametrize("value", [b"bytes", 5, Sees()])
def test_anything_else_is_not_accepted_as_a_serializer(value):
    with pytest.raises(ValueError, match="callable or have a serialize"):
        Serializing().check(value)


def test_a_file_may_name_a_java_class_that_has_a_counterpart():
    assert Serializing().parse(f" {STRING} ") is SERIALIZERS[STRING]
    with pytest.raises(ValueError, match="without a counterpart"):
        Serializing().parse("com.example.Avro")


def test_the_name_of_a_schema_registry_serializer_has_no_effect():
    with pytest.raises(NoEffect, match="send bytes, or pass a Python function as a keyword argument"):
        Serializing().parse("io.confluent.kafka.serializers.KafkaAvroSerializer")


def test_the_names_of_observing_interceptors_have_no_effect():
    name = "io.confluent.monitoring.clients.interceptor.MonitoringProducerInterceptor"

    with pytest.raises(NoEffect, match=r"call producer\.metrics"):
        INTERCEPTORS.parse(name)
    with pytest.raises(ValueError, match="can't be loaded"):
        INTERCEPTORS.parse(f"{name}, com.example.Masking")


def test_a_callback_handler_is_a_class_with_a_counterpart():
    google = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"

    assert CallbackHandler().check(f" {google}; ") == google
    for wrong in ("com.example.Tokens", "", 5):
        with pytest.raises(ValueError, match="also pass sasl_oauth_token_provider"):
            CallbackHandler().check(wrong)


def test_a_partitioner_of_none_is_the_default():
    assert PartitionerChoice().none_is_default


def test_other_code_cannot_be_passed_as_text():
    with pytest.raises(ValueError, match="it must be a function of two"):
        UserCode("a function of two").parse("os.getcwd")


def test_interceptors_are_a_list_of_objects_with_one_of_the_methods():
    sees = Sees()

    assert INTERCEPTORS.check([sees]) == (sees,)
    assert INTERCEPTORS.shown((sees,)) == "[<Sees>]"
    for wrong in (sees, [object()], [print]):
        with pytest.raises(ValueError, match="a list of objects with on_send"):
            INTERCEPTORS.check(wrong)


def test_hooks_are_a_list_of_objects_with_one_of_the_methods():
    class Hears:
        def on_batch(self, event):
            raise NotImplementedError

    hears = Hears()
    assert HOOKS.check([hears]) == (hears,)
    with pytest.raises(ValueError, match="on_start, on_close"):
        HOOKS.check([object()])


def test_a_partitioner_is_a_name_a_java_class_or_a_function():
    partitioning = PartitionerChoice()

    assert partitioning.parse("org.apache.kafka.clients.producer.RoundRobinPartitioner") == "round_robin"
    assert partitioning.check("murmur2") == "murmur2"
    assert partitioning.shown(max) == "<max>"
