"""Types of values that are the user's Python code: functions, and objects with certain methods.

A configuration file can name certain Java classes instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from aioproducer.observe.hooks import EVENTS
from aioproducer.partitioner import make_partitioner
from aioproducer.settings.java import (
    PARTITIONERS,
    SERIALIZERS,
    is_registry_serializer,
    only_observes,
    tokens_of,
)
from aioproducer.settings.value_types import NoEffect, ValueType


@dataclass(frozen=True, slots=True)
class UserCode(ValueType):
    """A value that only Python code can provide: a function, or an object with one of several methods."""

    what: str
    methods: tuple[str, ...] = ()
    must_be_callable: bool = True

    def parse(self, text: str) -> Any:
        raise ValueError(f"can't be given as text; it must be {self.what}")

    def check(self, value: Any) -> Any:
        if self.must_be_callable and callable(value):
            return value
        if any(callable(getattr(value, method, None)) for method in self.methods):
            return value
        raise ValueError(f"must be {self.what}")

    def shown(self, value: Any) -> str:
        # The object's repr may contain anything.
        return f"<{getattr(value, '__qualname__', None) or type(value).__qualname__}>"

    @property
    def described(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class Serializing(UserCode):
    """A serializer, or the name of a Java class that has a counterpart."""

    what: str = "callable or have a serialize(topic, value, headers) method"
    methods: tuple[str, ...] = ("serialize",)

    def parse(self, text: str) -> Callable[[Any], Any] | None:
        if text.strip() in SERIALIZERS:
            return SERIALIZERS[text.strip()]
        if is_registry_serializer(text.strip()):
            raise NoEffect(
                "a schema registry's serializers for Java can't be loaded; send bytes, or pass a Python function as a "
                "keyword argument"
            )
        raise ValueError("is a Java class without a counterpart in Python")

    @property
    def described(self) -> str:
        return "f(value) -> bytes, or an object with serialize()"


@dataclass(frozen=True, slots=True)
class ObjectList(UserCode):
    """A list of objects, each with at least one of the methods."""

    must_be_callable: bool = False

    def parse(self, text: str) -> tuple[()]:
        if text.strip() and only_observes(text):
            raise NoEffect(
                "Java interceptors for monitoring and tracing can't be loaded; call producer.metrics(), or use "
                "aioproducer.otel"
            )
        if text.strip():
            raise ValueError("names Java classes, which can't be loaded")
        return ()

    def check(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be {self.what}")
        return tuple(UserCode.check(self, item) for item in value)

    def shown(self, value: Any) -> str:
        return "[" + ", ".join(UserCode.shown(self, item) for item in value) + "]"

    @property
    def described(self) -> str:
        return "list of objects"


INTERCEPTORS = ObjectList(
    what="a list of objects with on_send(record) or on_acknowledgement(result)",
    methods=("on_send", "on_acknowledgement"),
)
HOOKS = ObjectList(what=f"a list of objects with one of the methods {', '.join(EVENTS)}", methods=EVENTS)


@dataclass(frozen=True, slots=True)
class PartitionerChoice(UserCode):
    """A partitioner: its name, a function, or the name of a Java class that has a counterpart."""

    what: str = "a name or f(key, all, available)"
    none_is_default: ClassVar[bool] = True

    def parse(self, text: str) -> str:
        return PARTITIONERS.get(text.strip(), text.strip())

    def check(self, value: Any) -> Any:
        make_partitioner(value, Random(0))
        return value

    def shown(self, value: Any) -> str:
        return value if isinstance(value, str) else UserCode.shown(self, value)


@dataclass(frozen=True, slots=True)
class CallbackHandler(ValueType):
    """The name of a Java class that gets tokens and has a counterpart in Python."""

    def check(self, value: Any) -> str:
        if not isinstance(value, str) or tokens_of(value) is None:
            raise ValueError(
                "is not a Java class with a counterpart in Python; also pass sasl_oauth_token_provider or "
                "sasl_credentials as a keyword, which takes precedence"
            )
        return value.strip().rstrip(";")

    @property
    def described(self) -> str:
        return "str, a Java class"
