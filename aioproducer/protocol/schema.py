"""How a message is declared: one class per message, one line per field, as in Kafka's JSON schemas.

    class EndTxnResponse(Message, api_key=ApiKey.END_TXN, versions=(0, 5), flexible_from=3):
        throttle_time_ms: int = int32()
        error_code: int = int16()
        producer_id: int = int64("5+", default=-1, ignorable=True)

The structs of a message are classes nested in it. A field says in which versions it exists, in which it may
be None, and its tag if it travels in the section of tagged fields (KIP-482). A field that is not
`ignorable` refuses to be encoded at a version without it, unless it has its default. `codec` compiles
encoder and decoder from this.
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
"""Upper end of an open version range; version numbers are int16."""

NEVER = LATEST + 1
"""`flexible_from` of a message that has no flexible version."""

_SHOWN_TEXT = 120
_MISSING: Any = object()


def version_range(text: str) -> VersionRange:
    """Kafka's notation: "3+", "8-10" or "4"."""
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), LATEST)
    low, _, high = text.partition("-")
    return VersionRange(int(low), int(high or low))


@dataclass(frozen=True, slots=True)
class Field:
    """One field's declaration."""

    kind: str
    """int8, int16, int32, int64, boolean, uuid, string, bytes, records, struct or array."""
    versions: VersionRange
    default: Any
    nullable: VersionRange | None = None
    tag: int | None = None
    ignorable: bool = False
    of: str = ""
    """Of a struct its class; of an array the kind of its elements, or their class."""
    name: str = ""
    most: int | None = None
    """The most elements that an array may have in a message that is decoded; None: as many as the frame holds."""

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


# What stands behind the `=` of a field. They return Any, so that the annotation alone gives the type.


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
    """Turns the declared fields of a class into slots, where they would else be class attributes."""

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
    """A part of a message. Built from keywords; what is left out has the schema's default."""

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
    """All versions that are declared here."""
    flexible_from: ClassVar[int]
    """First version with compact lengths and tagged fields."""
    Response: ClassVar[type[Message]]
    """Of a request: the class of its response."""

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
"""Every declared request by its API key."""


def structs_of(message: type[Message]) -> dict[str, type[Struct]]:
    """The structs nested in `message`, by name."""
    return {
        name: part
        for name, part in vars(message).items()
        if isinstance(part, type) and issubclass(part, Struct)
    }


def _add_init(part: type[Struct], message: type[Message]) -> None:
    """A keyword-only __init__, compiled: broker and client build one struct per partition and request."""
    namespace: dict[str, Any] = {"MISSING": _MISSING, "NIL_UUID": NIL_UUID}
    parameters, body = [], []
    for field in part.FIELDS:
        name = field.name
        if field.kind == "array" or field.kind == "struct":
            # A default that can be changed is made anew for each object.
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
    """A field's default as an expression of generated code."""
    if field.kind == "array":
        return "[]"
    if field.kind == "struct":
        return f"{field.of}()"
    return "NIL_UUID" if field.kind == "uuid" else repr(field.default)


def _shown(value: object) -> str:
    """Never the content of bytes: they are records, keys, values or passwords."""
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
