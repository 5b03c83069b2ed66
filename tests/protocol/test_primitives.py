from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioproducer.errors import ProtocolError
from aioproducer.protocol import primitives
from aioproducer.protocol.primitives import (
    NIL_UUID,
    Writer,
    read_bytes,
    read_compact_bytes,
    read_compact_nullable_string,
    read_compact_records,
    read_compact_size,
    read_compact_string,
    read_int32_size,
    read_nullable_string,
    read_records,
    read_string,
    read_uuid,
    read_uvarint,
    skip_tags,
    write_bytes,
    write_compact_bytes,
    write_compact_nullable_string,
    write_compact_records,
    write_compact_string,
    write_nullable_string,
    write_records,
    write_string,
    write_tags,
    write_uvarint,
)

READERS = [
    reader for name, reader in vars(primitives).items() if name.startswith("read_") and name != "read_tag"
]


def written(write, value):
    out = bytearray()
    write(out, value)
    return bytes(out)


# Varints


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_uvarint_has_the_bytes_of_the_protocol(value, encoded):
    assert written(write_uvarint, value) == bytes.fromhex(encoded)
    assert read_uvarint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_uvarint_round_trips_anywhere_in_a_frame(value, before, behind):
    encoded = written(write_uvarint, value)

    assert read_uvarint(before + encoded + behind, len(before)) == (value, len(before) + len(encoded))


@pytest.mark.parametrize("encoded", ["808080808000", "ffffffffff7f", "80" * 100])
def test_uvarint_of_more_than_5_bytes_is_refused(encoded):
    with pytest.raises(ProtocolError, match="longer than 5 bytes"):
        read_uvarint(bytes.fromhex(encoded), 0)


def test_uvarint_of_more_than_32_bits_is_refused():
    with pytest.raises(ProtocolError, match="exceeds 32 bits"):
        read_uvarint(bytes.fromhex("ffffffff10"), 0)


@pytest.mark.parametrize("encoded", ["", "80", "ffffff"])
def test_uvarint_that_is_cut_off_is_refused(encoded):
    with pytest.raises(ProtocolError, match="cut off"):
        read_uvarint(bytes.fromhex(encoded), 0)


# Strings, bytes, UUIDs


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (write_string, read_string),
        (write_nullable_string, read_nullable_string),
        (write_compact_string, read_compact_string),
        (write_compact_nullable_string, read_compact_nullable_string),
    ],
)
@pytest.mark.parametrize("text", ["", "a", "topic-é-漢-😀", "x" * 126, "x" * 127, "x" * 128, "x" * 32767])
def test_string_round_trips(write, read, text):
    encoded = written(write, text)

    assert read(encoded, 0) == (text, len(encoded))


@pytest.mark.parametrize("read", [read_compact_string, read_compact_nullable_string])
def test_string_of_more_than_32767_bytes_is_refused(read):
    encoded = written(write_uvarint, 32769) + b"x" * 32768

    with pytest.raises(ProtocolError, match="the string of 32768 bytes at byte 3 exceeds 32767 bytes"):
        read(encoded, 0)


@pytest.mark.parametrize(
    ("write", "read", "encoded"),
    [
        (write_nullable_string, read_nullable_string, b"\xff\xff"),
        (write_compact_nullable_string, read_compact_nullable_string, b"\x00"),
    ],
)
def test_nullable_string_may_be_none(write, read, encoded):
    assert written(write, None) == encoded
    assert read(encoded, 0) == (None, len(encoded))


@pytest.mark.parametrize(
    ("read", "encoded"),
    [
        (read_string, b"\xff\xff"),
        (read_compact_string, b"\x00"),
        (read_bytes, b"\xff\xff\xff\xff"),
        (read_compact_bytes, b"\x00"),
    ],
)
def test_null_is_refused_where_it_is_not_allowed(read, encoded):
    with pytest.raises(ProtocolError, match="is null"):
        read(encoded, 0)


@pytest.mark.parametrize("write", [write_string, write_compact_string])
def test_string_of_more_than_32767_bytes_is_not_written(write):
    with pytest.raises(ValueError, match="32768 bytes exceeds 32767"):
        write(bytearray(), "x" * 32768)


@pytest.mark.parametrize("read", [read_string, read_nullable_string])
def test_string_with_a_negative_length_other_than_null_is_refused(read):
    with pytest.raises(ProtocolError, match="negative length -2"):
        read(b"\xff\xfe", 0)


@pytest.mark.parametrize("read", [read_bytes, read_records, read_int32_size])
def test_bytes_with_a_negative_length_other_than_null_are_refused(read):
    with pytest.raises(ProtocolError, match="negative length -2147483648"):
        read(b"\x80\x00\x00\x00", 0)


@pytest.mark.parametrize("encoded", [b"\x00\x02\xc3\x28", b"\x00\x01\xff", b"\x00\x03\xed\xa0\x80"])
def test_string_that_is_not_utf8_is_refused(encoded):
    with pytest.raises(ProtocolError, match="not UTF-8"):
        read_string(encoded, 0)


@pytest.mark.parametrize(
    ("read", "encoded"),
    [
        (read_string, b"\x00\x05abcd"),
        (read_compact_string, b"\x06abcd"),
        (read_bytes, b"\x7f\xff\xff\xffabcd"),
        (read_compact_bytes, b"\xff\xff\xff\xff\x0fabcd"),
        (read_records, b"\x00\x00\x00\x05abcd"),
        (read_compact_records, b"\x06abcd"),
        (read_uuid, bytes(15)),
    ],
)
def test_length_beyond_the_frame_is_refused(read, encoded):
    with pytest.raises(ProtocolError, match=r"exceeds the \d+ bytes left"):
        read(encoded, 0)


@pytest.mark.parametrize(
    ("write", "read"), [(write_bytes, read_bytes), (write_compact_bytes, read_compact_bytes)]
)
def test_bytes_are_copied_out_of_the_frame(write, read):
    frame = bytearray(written(write, b"secret"))

    value, pos = read(memoryview(frame), 0)
    frame[:] = bytes(len(frame))

    assert (value, pos) == (b"secret", len(frame))


@pytest.mark.parametrize("value", [NIL_UUID, UUID(int=1), UUID(int=2**128 - 1)])
def test_a_uuid_round_trips(value):
    assert read_uuid(b"." + value.bytes, 1) == (value, 17)


def test_compact_size_is_one_less_and_null_is_minus_one():
    assert read_compact_size(b"\x00", 0) == (-1, 1)
    assert read_compact_size(b"\x01", 0) == (0, 1)
    assert read_compact_size(b"\x80\x01", 0) == (127, 2)


@given(st.sampled_from(READERS), st.binary(max_size=40), st.integers(0, 45))
def test_readers_raise_nothing_but_protocol_error(read, frame, pos):
    try:
        _, stop = read(frame, pos)
    except ProtocolError:
        return
    assert pos <= stop <= len(frame)


# Records


@pytest.mark.parametrize("write", [write_records, write_compact_records])
def test_records_are_spliced_and_not_copied(write):
    first, second = bytearray(b"first"), b"second"
    writer = Writer()
    writer.out += b"head"

    write(writer, [first, second])
    writer.out += b"tail"
    segments = writer.segments()

    assert len(writer) == sum(map(len, segments))
    assert segments[2] is second
    assert segments[1].obj is first
    assert b"".join(segments).endswith(b"firstsecondtail")


@pytest.mark.parametrize(
    ("write", "read"), [(write_records, read_records), (write_compact_records, read_compact_records)]
)
@pytest.mark.parametrize(
    "records", [None, b"", b"x", bytearray(b"xyz"), memoryview(b"x" * 200), [b"a", b"bc"], []]
)
def test_records_round_trip_as_a_view(write, read, records):
    writer = Writer()
    write(writer, records)
    frame = b"".join(writer.segments())

    value, pos = read(frame, 0)

    assert pos == len(frame)
    if records is None:
        assert value is None
    else:
        assert value == (b"".join(records) if isinstance(records, list) else records)
        assert value.obj is frame


def test_records_are_counted_in_bytes_even_if_a_memoryview_has_larger_items():
    writer = Writer()

    write_records(writer, memoryview(bytes(8)).cast("q"))

    assert len(writer) == 12
    assert b"".join(writer.segments()) == b"\x00\x00\x00\x08" + bytes(8)


def test_message_without_records_is_one_segment():
    writer = Writer()
    writer.out += b"abc"

    assert writer.segments() == [b"abc"]


def test_records_next_to_each_other_and_at_the_ends_leave_no_empty_segment():
    writer = Writer()
    writer.splice([b"1"], 1)
    writer.splice([b"2"], 1)

    assert writer.segments() == [b"1", b"2"]


# Tags


def tag_section(*tags):
    values = []
    for tag, content in tags:
        value = Writer()
        value.out += content
        values.append((tag, value))
    out = bytearray()
    write_tags(out, values)
    return bytes(out)


@pytest.mark.promise("KIPs", "KIP-482: flexible versions and tagged fields")
def test_tag_section_has_the_bytes_of_the_protocol():
    assert tag_section() == b"\x00"
    assert tag_section((0, b"ab"), (200, b"")) == b"\x02\x00\x02ab\xc8\x01\x00"


def test_unknown_tags_are_skipped():
    section = tag_section((0, b"ab"), (200, b"c" * 200))

    assert skip_tags(b"." + section + b"rest", 1) == 1 + len(section)


def test_duplicate_tag_is_refused():
    with pytest.raises(ProtocolError, match=r"tag 5 .* occurs twice"):
        skip_tags(tag_section((5, b"ab"), (5, b"ab")), 0)


def test_a_count_of_tags_that_exceeds_the_frame_is_rejected():
    with pytest.raises(ProtocolError, match="a tagged field count of 4294967295"):
        skip_tags(b"\xff\xff\xff\xff\x0f" + bytes(100), 0)


def test_tagged_field_beyond_the_frame_is_refused():
    with pytest.raises(ProtocolError, match="a tagged field of length 5"):
        skip_tags(b"\x01\x00\x05abcd", 0)
