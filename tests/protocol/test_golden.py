"""Every declared message in every version, compared with frames from Kafka's own serializers
(tests/protocol/golden)."""

import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from aioproducer.protocol import messages
from aioproducer.protocol.api import decode_request, decode_response, encode_request, encode_response
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.primitives import NIL_UUID, write_uvarint
from aioproducer.protocol.schema import (
    NEVER,
    REQUESTS,
    Field,
    Message,
    Struct,
    structs_of,
    version_range,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "messages.json").read_text(encoding="utf-8"))
CASES = GOLDEN["cases"]
FILLINGS = ("default", "full", "nulls", "large")


def case_id(case: dict[str, Any]) -> str:
    return f"{case['message']}-{case['version']}-{case['case']}"


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def built(message_type: type[Message], values: dict[str, Any]) -> Message:
    """Create the message that Kafka's JSON describes."""
    structs = {message_type.__name__: message_type, **structs_of(message_type)}

    def part(part_type: type[Struct], node: dict[str, Any]) -> Any:
        fields = {camel_case(field.name): field for field in part_type.FIELDS}
        assert node.keys() <= fields.keys(), f"{part_type.__qualname__} lacks {node.keys() - fields.keys()}"
        return part_type(
            **{fields[name].name: value(fields[name], fields[name].kind, item) for name, item in node.items()}
        )

    def value(field: Field, kind: str, item: Any) -> Any:
        if item is None:
            return None
        if kind == "array":
            return [value(field, field.of, each) for each in item]
        if kind == "struct" or kind in structs:
            return part(structs[field.of], item)
        if kind == "uuid":
            return UUID(bytes=base64.urlsafe_b64decode(item + "=="))
        if kind in ("bytes", "records"):
            return base64.b64decode(item)
        return item

    return part(message_type, values)


@pytest.mark.promise("Protocol", "all messages are checked against bytes made by Kafka's own serializers")
def test_golden_cases_cover_every_declared_version():
    covered = {(case["message"], case["version"], case["case"]) for case in CASES}

    declared = {
        (message_type.__name__, version, filling)
        for request in REQUESTS.values()
        for message_type in (request, request.Response)
        for version in range(message_type.versions.min, message_type.versions.max + 1)
        for filling in FILLINGS
        if filling != "large" or version in message_type.versions
    }

    assert covered == declared


@pytest.mark.promise("Protocol", "all messages are checked against bytes made by Kafka's own serializers")
@pytest.mark.promise(
    "KIPs",
    "KIP-152, 227, 368, 392, 430, 447, 525, 588, 595, 599, 709, 734, 890, 932: only fields and codes of "
    "message versions",
)
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_frame_of_kafka_decodes_to_its_values(case):
    message_type, frame = getattr(messages, case["message"]), bytes.fromhex(case["frame"])

    if case["message"].endswith("Request"):
        header, message = decode_request(frame)
        assert header == (message_type.api_key, case["version"], case["correlation_id"], case["client_id"])
    else:
        message = decode_response(message_type, case["version"], frame, case["correlation_id"])

    assert message == built(message_type, case["values"])


@pytest.mark.promise("Protocol", "all messages are checked against bytes made by Kafka's own serializers")
@pytest.mark.promise(
    "KIPs",
    "KIP-152, 227, 368, 392, 430, 447, 525, 588, 595, 599, 709, 734, 890, 932: only fields and codes of "
    "message versions",
)
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_values_encode_to_the_frame_of_kafka(case):
    message, frame = built(getattr(messages, case["message"]), case["values"]), bytes.fromhex(case["frame"])

    if case["message"].endswith("Request"):
        segments = encode_request(message, case["version"], case["correlation_id"], case["client_id"])
    else:
        segments = encode_response(message, case["version"], case["correlation_id"])

    assert b"".join(segments) == len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize("case", [case for case in CASES if case["case"] == "full"], ids=case_id)
def test_decoding_a_memoryview_gives_the_same_as_decoding_bytes(case):
    frame = memoryview(bytearray.fromhex(case["frame"]))

    if case["message"].endswith("Request"):
        _, message = decode_request(frame)
    else:
        message_type = getattr(messages, case["message"])
        message = decode_response(message_type, case["version"], frame, case["correlation_id"])

    assert message == built(getattr(messages, case["message"]), case["values"])


@pytest.mark.promise("KIPs", "KIP-482: flexible versions and tagged fields")
def test_unknown_tagged_fields_are_skipped():
    case = next(case for case in CASES if case_id(case) == "EndTxnResponse-5-full")
    frame = bytes.fromhex(case["frame"])
    tags = bytearray()
    write_uvarint(tags, 2)
    for tag, value in ((7, b"seven"), (300, b"x" * 200)):
        write_uvarint(tags, tag)
        write_uvarint(tags, len(value))
        tags += value

    # The tags of the body are its last byte; those of the header follow the correlation id.
    extended = frame[:4] + bytes(tags) + frame[5:-1] + bytes(tags)

    message = decode_response(messages.EndTxnResponse, 5, extended, case["correlation_id"])
    assert message == built(messages.EndTxnResponse, case["values"])


def declared_default(kind: str, schema: dict[str, Any]) -> Any:
    """Return the default of a field in a schema, in the form of the declaration."""
    text = schema.get("default")
    if text is None:
        return {"string": "", "bytes": b"", "uuid": NIL_UUID, "array": [], "boolean": False}.get(
            kind, None if kind in ("records", "struct") else 0
        )
    if kind == "boolean":
        return str(text).lower() == "true"
    if kind == "string":
        return None if text == "null" else text
    return int(str(text), 0)


def compare(
    part: type[Struct], schema_fields: list[dict[str, Any]], versions: range, structs: dict[str, Any]
) -> None:
    """Compare each field of `part` with its schema for all `versions`, in order, including nested structs."""
    expected = [field for field in schema_fields if set(versions) & set(range_of(field["versions"]))]
    assert [camel_case(field.name).lower() for field in part.FIELDS] == [f["name"].lower() for f in expected]
    for field, schema in zip(part.FIELDS, expected, strict=True):
        is_array = schema["type"].startswith("[]")
        of = schema["type"].removeprefix("[]")
        kind = "array" if is_array else "struct" if of in structs or "fields" in schema else of
        kind = "boolean" if kind == "bool" else kind
        where = f"{part.__qualname__}.{field.name}"
        present = [version for version in versions if version in range_of(schema["versions"])]
        assert field.kind == kind, where
        assert field.of == (of if kind in ("array", "struct") else ""), where
        assert [version for version in versions if field.is_in(version)] == present, where
        nulls = range_of(schema["nullableVersions"]) if "nullableVersions" in schema else ()
        assert [field.may_be_null(version) for version in present] == [v in nulls for v in present], where
        assert field.tag == schema.get("tag"), where
        assert field.default == declared_default(kind, schema), where
        if present != list(versions):
            assert field.ignorable == schema.get("ignorable", False), where
        nested = schema.get("fields") or structs.get(of)
        if nested:
            owner = getattr(messages, part.__qualname__.split(".")[0])
            compare(structs_of(owner)[of], nested, range(present[0], present[-1] + 1), structs)


def range_of(versions: str) -> range:
    low, high = version_range(versions)
    return range(low, high + 1)


@pytest.mark.promise("Protocol", "each message has one declaration, with versions per field")
@pytest.mark.promise(
    "KIPs",
    "KIP-152, 227, 368, 392, 430, 447, 525, 588, 595, 599, 709, 734, 890, 932: only fields and codes of "
    "message versions",
)
@pytest.mark.parametrize("name", GOLDEN["schemas"])
def test_declaration_matches_the_schema_of_kafka(name):
    message_type, schema = getattr(messages, name), GOLDEN["schemas"][name]
    flexible = schema["flexibleVersions"]
    common = {each["name"]: each["fields"] for each in schema.get("commonStructs", [])}

    assert message_type.api_key == schema["apiKey"]
    assert message_type.flexible_from == (NEVER if flexible == "none" else version_range(flexible).min)
    compare(
        message_type,
        schema["fields"],
        range(message_type.versions.min, message_type.versions.max + 1),
        common,
    )


@pytest.mark.promise("Protocol", "all messages are checked against bytes made by Kafka's own serializers")
def test_error_codes_are_those_of_kafka():
    assert {code.name: int(code) for code in ErrorCode} == GOLDEN["errors"]
