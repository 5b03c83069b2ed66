"""Compiles the declaration of a message into straight-line Python, once for each version that is used.

`source(EndTxnResponse, 5)` shows the result. Each struct has two functions: decode_X(buf, pos) -> (X, position after
it) and encode_X(o, w), where `w` is a Writer and `out` its bytearray. Neighbouring fields of fixed size are read and
written by one struct.Struct. For malformed bytes, `decode` raises ProtocolError and no other error.

In responses, the elements of a long array are decoded only when they are accessed (`LazyArray`). The decoder walks over
them with skip_X(buf, pos), which raises the same errors as decode_X.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, TypeVar

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol import primitives
from aioproducer.protocol.arrays import LazyArray, Read
from aioproducer.protocol.frame import MAX_FRAME
from aioproducer.protocol.primitives import Buffer, Writer
from aioproducer.protocol.schema import REQUESTS, Field, Message, Struct, default_source, structs_of

M = TypeVar("M", bound=Message)

_FIXED = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "boolean": "?"}
_SIZE = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "boolean": 1, "uuid": 16}

_FEW = 8
"""Arrays of numbers (such as replica ids) that are shorter than this are decoded with a precompiled layout. In
responses, this applies to arrays of `_SHORTEST` or more numbers only within the first `_AT_ONCE` bytes."""
_SHORT, _SHORTEST = 16, 4
"""The maximum number of elements in an array that is decoded immediately: `_SHORT`, or `_SHORTEST` if the elements may
be smaller than `_SMALL`. Decoding such an array takes no longer than walking over it."""
_SMALL = 16
"""The minimum element size, in bytes, for which `_SHORT` applies."""
_AT_ONCE = 512
"""Short arrays are decoded immediately only if they start within the first `_AT_ONCE` bytes of a response. Later
arrays stay encoded, because many short arrays (e.g. nested in one array) can need as much memory as one long array."""


SLICE = 32 * 1024
"""The number of bytes that one step of `decoding` walks over."""


def encode(message: Message, version: int, writer: Writer) -> None:
    """Append `message` to `writer`.

    Raises:
        UnsupportedVersionError: `version` is not declared, or can't carry a field that is set.
        ValueError: a value does not fit its type on the wire.
    """
    encoder, _ = _codec(type(message), version)
    try:
        encoder(message, writer)
    except struct.error as error:
        name = type(message).__name__
        raise ValueError(f"{name} version {version}: a value does not fit its field: {error}") from error


def decode(message_type: type[M], version: int, buf: Buffer, pos: int) -> tuple[M, int]:
    """Return the message at `pos` and the position after it.

    Raises:
        ProtocolError: the bytes are not a message of this type and version.
        UnsupportedVersionError: the message is not declared for `version`.
    """
    _, decoder = _codec(message_type, version)
    try:
        message, stop = decoder(buf, pos, _AT_ONCE)
    except ProtocolError as error:
        raise ProtocolError(f"{message_type.__name__} version {version}: {error.message}") from None
    except (struct.error, IndexError):
        # Fields of fixed size are read without a length check, so these errors only mean that the frame ends too early.
        text = f"{message_type.__name__} version {version}: {len(buf)} bytes are too few"
        raise ProtocolError(text) from None
    return message, stop


def decoding(
    message_type: type[M], version: int, buf: Buffer, pos: int
) -> Generator[None, None, tuple[M, int]]:
    """Decode a message as `decode` does, but in steps, each of which walks over about SLICE bytes of arrays."""
    steps = _steps(message_type, version)
    try:
        return (yield from steps(buf, pos, _AT_ONCE))
    except ProtocolError as error:
        raise ProtocolError(f"{message_type.__name__} version {version}: {error.message}") from None
    except (struct.error, IndexError):
        text = f"{message_type.__name__} version {version}: {len(buf)} bytes are too few"
        raise ProtocolError(text) from None


def source(message_type: type[Message], version: int) -> str:
    """Return the generated code, for readers and for tests."""
    return _Source(message_type, version).text()


@cache
def _codec(
    message_type: type[Message], version: int
) -> tuple[Callable[[Any, Writer], None], Callable[..., tuple[Any, int]]]:
    name = message_type.__name__
    if not message_type.versions.min <= version <= message_type.versions.max:
        declared = message_type.versions
        raise UnsupportedVersionError(f"{name} version {version} is not one of {declared.min}-{declared.max}")
    generated = _Source(message_type, version)
    text, filename = generated.text(), f"<{name} version {version}>"
    # The cache entry lets tracebacks and debuggers show the generated lines.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = generated.namespace
    exec(compile(text, filename, "exec"), namespace)
    return namespace[f"encode_{name}"], namespace[f"decode_{name}"]


@cache
def _steps(
    message_type: type[Message], version: int
) -> Callable[..., Generator[None, None, tuple[Any, int]]]:
    """Return a decoder for a message; the decoder yields between slices."""
    generated = _Source(message_type, version, in_steps=True)
    exec(generated.text(), generated.namespace)
    found: Callable[..., Generator[None, None, tuple[Any, int]]]
    found = generated.namespace[f"decode_{message_type.__name__}"]
    return found


def _not_in_version(field: str, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{field} is set, but version {version} can't carry it")


def _null_in_version(field: str, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{field} is None, but version {version} can't carry null")


def _reader_of(kind: str) -> Read:
    """Return the function that reads one number from an array."""
    unpack, size = struct.Struct(f">{_FIXED[kind]}").unpack_from, _SIZE[kind]

    def read(buf: Buffer, pos: int) -> tuple[Any, int]:
        return unpack(buf, pos)[0], pos + size

    return read


class _Source:
    """Generates the functions of one message in one version; nested structs precede the structs that contain them."""

    def __init__(self, message_type: type[Message], version: int, *, in_steps: bool = False) -> None:
        self.version = version
        self._yielding = message_type.__name__ if in_steps else None
        """The message whose decoder yields between slices of its arrays; the decoders of its structs do not."""
        self._yields = False
        """True while the function that is being generated is a generator."""
        self._walked: set[str] = set()
        """The structs that contain arrays of structs. For each such struct X, walk_X does the same as skip_X but
        yields between slices."""
        self.flexible = version >= message_type.flexible_from
        # Only responses are decoded lazily: requests are decoded only by the embedded cluster, in tests.
        self.is_lazy = any(request.Response is message_type for request in REQUESTS.values())
        self.structs: dict[str, type[Struct]] = {
            **structs_of(message_type),
            message_type.__name__: message_type,
        }
        self.namespace: dict[str, Any] = {
            **vars(primitives),
            **self.structs,
            **{f"read_{kind}": _reader_of(kind) for kind in _FIXED},
            "LazyArray": LazyArray,
            "MAX_FRAME": MAX_FRAME,
            "new": object.__new__,
            "unpack_from": struct.unpack_from,
            "pack": struct.pack,
            "not_in_version": _not_in_version,
            "null_in_version": _null_in_version,
        }
        self.lines: list[str] = []
        self._done: set[str] = set()
        self._struct(message_type.__name__)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def _add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def _struct(self, name: str) -> None:
        if name in self._done:
            return
        self._done.add(name)
        fields = self.structs[name].FIELDS
        present = [field for field in fields if field.is_in(self.version)]
        for field in present:
            if field.of in self.structs:
                self._struct(field.of)
        plain = [field for field in present if field.tag is None]
        tagged = sorted(
            (field for field in present if field.tag is not None), key=lambda field: field.tag or 0
        )
        absent = [field for field in fields if not field.is_in(self.version)]
        self._decode_struct(name, plain, tagged, absent)
        if self.is_lazy:
            self._skip_struct(name, plain, tagged)
            if self._yielding and any(field.of in self.structs for field in plain):
                self._yields = True
                self._skip_struct(name, plain, tagged)
                self._yields = False
                self._walked.add(name)
        self._encode_struct(name, plain, tagged, absent)

    def _runs(self, fields: list[Field]) -> list[list[Field]]:
        """Group the fields, in order: adjacent fields of fixed size form one run; any other field is a separate run."""
        runs: list[list[Field]] = []
        for field in fields:
            if runs and field.kind in _FIXED and runs[-1][0].kind in _FIXED:
                runs[-1].append(field)
            else:
                runs.append([field])
        return runs

    def _layout(self, run: list[Field]) -> str:
        """Add `unpack_X` and `pack_X` of the run's struct.Struct to the namespace, and return X."""
        letters = "".join(_FIXED[field.kind] for field in run)
        name = letters.replace("?", "B")
        layout = struct.Struct(">" + letters)
        self.namespace[f"unpack_{name}"] = layout.unpack_from
        self.namespace[f"pack_{name}"] = layout.pack
        return name

    def _least(self, kind: str) -> int:
        """Return the minimum size of a value in bytes. Array counts are checked against it."""
        if kind in _SIZE:
            return _SIZE[kind]
        if kind in self.structs:
            fields = [f for f in self.structs[kind].FIELDS if f.is_in(self.version) and f.tag is None]
            least = sum(self._least(f.of if f.kind == "struct" else f.kind) for f in fields)
            return least + (1 if self.flexible else 0)
        if self.flexible:
            return 1
        return 2 if kind == "string" else 4

    # Decoding

    def _decode_struct(self, name: str, plain: list[Field], tagged: list[Field], absent: list[Field]) -> None:
        self._add(0, f"def decode_{name}(buf, pos, at_once=MAX_FRAME):")
        self._yields = name == self._yielding
        self._begin_slices()
        self._add(1, f"o = new({name})")
        for field in (*absent, *tagged):
            self._add(1, f"o.{field.name} = {default_source(field)}")
        for run in self._runs(plain):
            self._read(1, name, run)
        self._tags(name, tagged, self._read)
        self._yields = False
        self._add(1, "return o, pos")
        self._add(0, "")

    def _begin_slices(self) -> None:
        if self._yields:
            self._add(1, f"slice_end = pos + {SLICE}")
            self._add(1, "if False: yield")  # makes the function a generator even if no other yield follows

    def _skip_struct(self, name: str, plain: list[Field], tagged: list[Field]) -> None:
        self._add(0, f"def {'walk' if self._yields else 'skip'}_{name}(buf, pos):")
        self._begin_slices()
        self._add(1, "end = len(buf)")
        for run in self._runs(plain):
            self._skip(1, name, run)
        self._tags(name, tagged, self._skip)
        self._add(1, "return pos")
        self._add(0, "")

    def _tags(self, name: str, tagged: list[Field], take: Callable[[int, str, list[Field]], None]) -> None:
        """Generate the section of tagged fields; `take` generates the code for each declared field."""
        if not self.flexible:
            return
        if not tagged:
            self._add(1, "if buf[pos]:")
            self._add(2, "pos = skip_tags(buf, pos)")
            self._add(1, "else:")
            self._add(2, "pos += 1")
            return
        self._add(1, "count, pos = read_uvarint(buf, pos)")
        self._add(1, "if count:")
        self._add(2, "if count * 2 > len(buf) - pos:")
        self._add(3, 'raise out_of_bounds("a tagged field count of", count, pos, len(buf))')
        self._add(2, "seen = set()")
        self._add(2, "for _ in range(count):")
        self._add(3, "tag, pos, stop = read_tag(buf, pos, seen)")
        for place, field in enumerate(tagged):
            self._add(3, f"{'elif' if place else 'if'} tag == {field.tag}:")
            take(4, name, [field])
        self._add(3, "else:")
        self._add(4, "pos = stop")
        self._add(3, "if pos != stop:")
        self._add(4, 'raise out_of_bounds(f"tagged field {tag} stops at", pos, stop, stop)')

    def _read(self, depth: int, owner: str, run: list[Field]) -> None:
        field = run[0]
        target = f"o.{field.name}"
        if field.kind in _FIXED:
            targets = ", ".join(f"o.{each.name}" for each in run) + ("," if len(run) == 1 else "")
            self._add(depth, f"{targets} = unpack_{self._layout(run)}(buf, pos)")
            self._add(depth, f"pos += {sum(_SIZE[each.kind] for each in run)}")
        elif field.kind == "array":
            self._read_array(depth, owner, field)
        elif field.kind == "struct":
            self._add(depth, f"{target}, pos = decode_{field.of}(buf, pos, at_once)")
        else:
            self._add(depth, f"{target}, pos = {self._reader(field)}(buf, pos)")

    def _function(self, verb: str, kind: str, nullable: bool) -> str:
        if kind == "uuid":
            return f"{verb}_uuid"
        compact = "compact_" if self.flexible else ""
        # Records are always nullable; other byte strings never are.
        return f"{verb}_{compact}{'nullable_' if nullable and kind == 'string' else ''}{kind}"

    def _reader(self, field: Field) -> str:
        return self._function("read", field.kind, field.may_be_null(self.version))

    def _read_count(self, depth: int, owner: str, field: Field) -> None:
        """Generate code that reads an array's count into `n` (-1 for null) and checks it against all limits."""
        label = f'"{owner}.{field.name}'
        if self.flexible:
            self._add(depth, "n = buf[pos] - 1")
            self._add(depth, "pos += 1")
            self._add(depth, "if n > 126:")
            self._add(depth + 1, "n, pos = read_compact_size(buf, pos - 1)")
        else:
            self._add(depth, "n, pos = read_int32_size(buf, pos)")
        self._add(depth, f"if n * {self._least(field.of)} > len(buf) - pos:")
        self._add(depth + 1, f'raise out_of_bounds({label}: a count of", n, pos, len(buf))')
        if field.most is not None:
            self._add(depth, f"if n > {field.most}:")
            self._add(depth + 1, f'raise too_many({label}", n, {field.most})')
        if not field.may_be_null(self.version):
            self._add(depth, "if n < 0:")
            self._add(depth + 1, f'raise null_error({label}")')

    def _read_array(self, depth: int, owner: str, field: Field) -> None:
        target = f"o.{field.name}"
        self._read_count(depth, owner, field)
        if field.may_be_null(self.version):
            self._add(depth, "if n < 0:")
            self._add(depth + 1, f"{target} = None")
            self._add(depth, "else:")
            depth += 1
        if field.of in _FIXED:
            self._read_numbers(depth, target, field.of)
            return
        is_struct = field.of in self.structs
        reader = f"decode_{field.of}" if is_struct else self._function("read", field.of, False)
        if self.is_lazy:
            short = _SHORT if self._least(field.of) >= _SMALL else _SHORTEST
            is_long = f"n > {short} or n > 1 and pos > at_once"
            if self._yields and field.of in self._walked:
                is_long = "n > 0"  # each element may contain a long array
            self._add(depth, f"if {is_long}:")
            self._add(depth + 1, f"{target} = LazyArray(buf, pos, n, {reader})")
            self._skip_elements(depth + 1, field.of)
            self._add(depth, "else:")
            depth += 1
        self._add(depth, f"{target} = items = []")
        self._add(depth, "for _ in range(n):")
        self._add(depth + 1, f"item, pos = {reader}(buf, pos{', at_once' if is_struct else ''})")
        self._add(depth + 1, "items.append(item)")

    def _read_numbers(self, depth: int, target: str, kind: str) -> None:
        letter = _FIXED[kind]
        few = f"if n < {_FEW}:"
        if self.is_lazy:
            few = f"if n < {_SHORTEST} or n < {_FEW} and pos <= at_once:"
        layouts = [struct.Struct(f">{count}{letter}").unpack_from for count in range(_FEW)]
        self.namespace[f"unpack_few_{letter}"] = layouts
        self._add(depth, few)
        self._add(depth + 1, f"{target} = list(unpack_few_{letter}[n](buf, pos))")
        self._add(depth, "else:")
        if self.is_lazy:
            self._add(depth + 1, f"{target} = LazyArray(buf, pos, n, read_{kind})")
        else:
            self._add(depth + 1, f'{target} = list(unpack_from(f">{{n}}{letter}", buf, pos))')
        self._add(depth, f"pos += n * {_SIZE[kind]}")

    # Walking over elements without decoding them. `end` is the length of the frame.

    def _skip(self, depth: int, owner: str, run: list[Field]) -> None:
        field = run[0]
        if field.kind in _FIXED:
            self._add(depth, f"pos += {sum(_SIZE[each.kind] for each in run)}")
            self._add(depth, "if pos > end:")
            self._add(depth + 1, "raise IndexError")
        elif field.kind == "array":
            self._read_count(depth, owner, field)
            self._skip_elements(depth, field.of)
        else:
            self._add(depth, self._skipped(field.of or field.kind, field.may_be_null(self.version)))

    def _skip_elements(self, depth: int, kind: str) -> None:
        if kind in _SIZE:
            self._add(depth, "if n > 0:")
            self._add(depth + 1, f"pos += n * {_SIZE[kind]}")
        else:
            self._add(depth, "for _ in range(n):")
            if self._yields and kind in self._walked:
                self._add(depth + 1, f"pos = yield from walk_{kind}(buf, pos)")
            else:
                self._add(depth + 1, self._skipped(kind, False))
            if self._yields:
                self._add(depth + 1, "if pos > slice_end:")
                self._add(depth + 2, f"slice_end = pos + {SLICE}")
                self._add(depth + 2, "yield")

    def _skipped(self, kind: str, nullable: bool) -> str:
        if kind in self.structs or kind == "uuid":
            return f"pos = skip_{kind}(buf, pos)"
        return f"_, pos = {self._function('read', kind, nullable)}(buf, pos)"

    # Encoding

    def _default(self, field: Field) -> str:
        """Return the expression for a field's default; a field with any other value counts as set."""
        if field.kind != "struct":
            return default_source(field)
        self.namespace[f"default_{field.of}"] = self.structs[field.of]()
        return f"default_{field.of}"

    def _encode_struct(self, name: str, plain: list[Field], tagged: list[Field], absent: list[Field]) -> None:
        self._add(0, f"def encode_{name}(o, w):")
        self._add(1, "out = w.out")
        for field in absent:
            if not field.ignorable:
                default = self._default(field)
                self._add(1, f"if o.{field.name} != {default}:")
                self._add(2, f'raise not_in_version("{name}.{field.name}", {self.version})')
        for run in self._runs(plain):
            self._write(1, name, run)
        if self.flexible and not tagged:
            self._add(1, "out.append(0)")
        elif self.flexible:
            self._add(1, "tags = []")
            for field in tagged:
                default = self._default(field)
                self._add(1, f"if o.{field.name} != {default}:")
                self._add(2, "part = Writer()")
                self._write(2, name, [field], "part")
                self._add(2, f"tags.append(({field.tag}, part))")
            self._add(1, "write_tags(out, tags)")
        self._add(0, "")

    def _write(self, depth: int, owner: str, run: list[Field], writer: str = "w") -> None:
        field = run[0]
        value, label = f"o.{field.name}", f'"{owner}.{field.name}"'
        out = "out" if writer == "w" else f"{writer}.out"
        nullable = field.may_be_null(self.version)
        if field.nullable is not None and not nullable:
            self._add(depth, f"if {value} is None:")
            self._add(depth + 1, f"raise null_in_version({label}, {self.version})")
        if field.kind in _FIXED:
            values = ", ".join(f"o.{each.name}" for each in run)
            self._add(depth, f"{out}.extend(pack_{self._layout(run)}({values}))")
        elif field.kind == "array":
            self._write_array(depth, field, out, writer, nullable)
        elif field.kind == "struct":
            self._add(depth, f"encode_{field.of}({value}, {writer})")
        else:
            into = writer if field.kind == "records" else out
            self._add(depth, f"{self._function('write', field.kind, nullable)}({into}, {value})")

    def _write_array(self, depth: int, field: Field, out: str, writer: str, nullable: bool) -> None:
        self._add(depth, f"items = o.{field.name}")
        if nullable:
            self._add(depth, "if items is None:")
            null = "out.append(0)" if self.flexible else 'out.extend(b"\\xff\\xff\\xff\\xff")'
            self._add(depth + 1, null.replace("out", out, 1))
            self._add(depth, "else:")
            depth += 1
        if self.flexible:
            self._add(depth, f"write_uvarint({out}, len(items) + 1)")
        else:
            self.namespace["pack_i"] = struct.Struct(">i").pack
            self._add(depth, f"{out}.extend(pack_i(len(items)))")
        if field.of in _FIXED:
            self._add(depth, f'{out}.extend(pack(f">{{len(items)}}{_FIXED[field.of]}", *items))')
            return
        self._add(depth, "for item in items:")
        if field.of in self.structs:
            self._add(depth + 1, f"encode_{field.of}(item, {writer})")
        else:
            self._add(depth + 1, f"{self._function('write', field.of, False)}({out}, item)")
