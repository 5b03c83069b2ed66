"""Declares messages: one class per message, one line per field, as in Kafka's JSON schemas.

    class EndTxnResponse(Message, api_key=ApiKey.END_TXN, versions=(0, 5), flexible_from=3):
        throttle_time_ms: int = int32()
        error_code: int = int16()
        producer_id: int = int64("5+", default=-1, ignorable=True)

The structs of a message are classes nested in it. A field declares the versions in which it exists, those in which it
may be None, and its tag if it is a tagged field (KIP-482). A field that is not `ignorable` can't be encoded in versions
without it, unless it has its default value. `codec` compiles the encoder and the decoder from the declaration.

In the docstrings of messages, "3: throttle time" means that version 3 added the throttle time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, dataclass_transform
from uuid import UUID

from aioproducer.errors import escaped
from aioproducer.protocol.api_keys import ApiKey, VersionRange
from aioproducer.protocol.arrays import SHOWN_ITEMS, LazyArray
from aioproducer.protocol.primitives import NIL_UUID

LATEST = 32767
"""The upper limit of an open version range; version numbers are int16."""

NEVER = LATEST + 1
"""The `flexible_from` of a message without flexible versions."""

_SHOWN_TEXT = 120
_MISSING: Any = object()


def version_range(text: str) -> VersionRange:
    """Parse Kafka's notation for a version range: "3+", "8-10" or "4"."""
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), LATEST)
    low, _, high = text.partition("-")
    return VersionRange(int(low), int(high or low))


@dataclass(frozen=True, slots=True)
class Field:
    """The declaration of a field."""

    kind: str
    """The type: int8, int16, int32, int64, boolean, uuid, string, bytes, records, struct or array."""
    versions: VersionRange
    default: Any
    nullable: VersionRange | None = None
    tag: int | None = None
    ignorable: bool = False
    of: str = ""
    """The class of a struct; for an array, the kind or the class of its elements."""
    name: str = ""
    most: int | None = None
    """The maximum number of elements in a decoded array; None if only the frame size limits it."""

    def is_in(self, version: int) -> bool:
        return self.versions.min <= version <= self.versions.max

    def may_be_null(self, version: int) -> bool:
        return self.nullable is not None and self.nullable.min <= version <= self.nullable.max


def _field(
    kind: str,
    versions: str,
    default: Any,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    of: str = "",
    most: int | None = None,
) -> Any:
    nulls = version_range(nullable) if nullable else None
    return Field(kind, version_range(versions), default, nulls, tag, ignorable, of, most=most)


# The functions that declare fields. They return Any, so that only the annotation determines the type.


def int8(versions: str = "0+", *, default: int = 0, ignorable: bool = False) -> Any:
    return _field("int8", versions, default, ignorable=ignorable)


def int16(versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> Any:
    return _field("int16", versions, default, None, tag, ignorable)


def int32(versions: str = "0+", *, default: int = 0, ignorable: bool = False) -> Any:
    return _field("int32", versions, default, ignorable=ignorable)


def int64(versions: str = "0+", *, default: int = 0, tag: int | None = None, ignorable: bool = False) -> Any:
    return _field("int64", versions, default, None, tag, ignorable)


def boolean(
    versions: str = "0+", *, default: bool = False, tag: int | None = None, ignorable: bool = False
) -> Any:
    return _field("boolean", versions, default, None, tag, ignorable)


def uuid(versions: str = "0+", *, ignorable: bool = False) -> Any:
    return _field("uuid", versions, NIL_UUID, ignorable=ignorable)


def string(
    versions: str = "0+",
    *,
    nullable: str | None = None,
    default: str | None = "",
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("string", versions, default, nullable, tag, ignorable)


def byte_string(versions: str = "0+") -> Any:
    return _field("bytes", versions, b"")


def record_batches(versions: str = "0+") -> Any:
    return _field("records", versions, None, nullable=versions)


def struct(of: str, versions: str = "0+", *, tag: int) -> Any:
    return _field("struct", versions, None, None, tag, of=of)


def array(
    of: str,
    versions: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
    most: int | None = None,
) -> Any:
    return _field("array", versions, [], nullable, tag, ignorable, of, most)


# The classes


@dataclass_transform(kw_only_default=True)
class _Declaration(type):
    """Turns the declared fields of a class into slots, because they would otherwise become class attributes."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any
    ) -> _Declaration:
        declared = [attribute for attribute, value in namespace.items() if isinstance(value, Field)]
        fields = []
        for attribute in declared:
            field = namespace.pop(attribute)
            fields.append(
                Field(
                    field.kind,
                    field.versions,
                    field.default,
                    field.nullable,
                    field.tag,
                    field.ignorable,
                    field.of,
                    attribute,
                    field.most,
                )
            )
        namespace["__slots__"] = tuple(declared)
        namespace["FIELDS"] = tuple(fields)
        return super().__new__(mcls, name, bases, namespace, **keywords)


class Struct(metaclass=_Declaration):
    """A part of a message. The constructor accepts keyword arguments; omitted fields get their declared defaults."""

    FIELDS: ClassVar[tuple[Field, ...]]

    __hash__: ClassVar[None]  # type: ignore[assignment]  # mutable, compared by value

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}={_shown(getattr(self, field.name))}" for field in self.FIELDS)
        return f"{type(self).__qualname__}({shown})"


class Message(Struct):
    """A request or a response."""

    api_key: ClassVar[ApiKey]
    versions: ClassVar[VersionRange]
    """All declared versions."""
    flexible_from: ClassVar[int]
    """The first version with compact lengths and tagged fields."""
    Response: ClassVar[type[Message]]
    """The class of the response; only requests have this attribute."""

    def __init_subclass__(
        cls,
        *,
        api_key: ApiKey,
        versions: tuple[int, int],
        flexible_from: int,
        response: type[Message] | None = None,
    ) -> None:
        cls.api_key = api_key
        cls.versions = VersionRange(*versions)
        cls.flexible_from = flexible_from
        if response is not None:
            cls.Response = response
            REQUESTS[api_key] = cls
        for part in (*structs_of(cls).values(), cls):
            _add_init(part, cls)


REQUESTS: dict[int, type[Message]] = {}
"""All declared requests, by API key."""


def structs_of(message: type[Message]) -> dict[str, type[Struct]]:
    """Return the structs nested in `message`, by name."""
    return {
        name: part
        for name, part in vars(message).items()
        if isinstance(part, type) and issubclass(part, Struct)
    }


def _add_init(part: type[Struct], message: type[Message]) -> None:
    """Compile a fast keyword-only __init__: broker and client create a struct for each partition of each request."""
    namespace: dict[str, Any] = {"MISSING": _MISSING, "NIL_UUID": NIL_UUID}
    parameters, body = [], []
    for field in part.FIELDS:
        name = field.name
        if field.kind == "array" or field.kind == "struct":
            # Each object gets its own copy of a mutable default.
            namespace[field.of] = structs_of(message).get(field.of)
            fresh = "[]" if field.kind == "array" else f"{field.of}()"
            parameters.append(f"{name}=MISSING")
            body.append(f"self.{name} = {fresh} if {name} is MISSING else {name}")
        else:
            parameters.append(f"{name}={default_source(field)}")
            body.append(f"self.{name} = {name}")
    lines = [f"def __init__(self, *, {', '.join(parameters)}):", *(f"    {line}" for line in body)]
    exec("\n".join(lines), namespace)
    part.__init__ = namespace["__init__"]  # type: ignore[method-assign]  # what dataclass_transform promises


def default_source(field: Field) -> str:
    """Return a field's default as an expression for generated code."""
    if field.kind == "array":
        return "[]"
    if field.kind == "struct":
        return f"{field.of}()"
    return "NIL_UUID" if field.kind == "uuid" else repr(field.default)


def _shown(value: object) -> str:
    """Return a short representation that never shows bytes, which may be records, keys, values or passwords."""
    if isinstance(value, str):
        return f"'{escaped(value, _SHOWN_TEXT)}'"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    if isinstance(value, list | tuple | LazyArray):
        if value and all(isinstance(item, bytes | bytearray | memoryview) for item in value):
            return f"<{sum(memoryview(item).nbytes for item in value)} bytes>"
        shown = [_shown(item) for item in islice(value, SHOWN_ITEMS)]
        if len(value) > SHOWN_ITEMS:
            shown.append(f"… {len(value) - SHOWN_ITEMS} more")
        return f"[{', '.join(shown)}]"
    return str(value) if isinstance(value, UUID) else repr(value)
