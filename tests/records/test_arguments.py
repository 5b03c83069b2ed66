"""Checks of arguments: the values that they accept, and the text of their errors."""

from __future__ import annotations

import math

import pytest

from aioproducer.errors import InvalidArgumentError, InvalidRecordError, InvalidTopicError
from aioproducer.records.arguments import check_is_bytes, check_target, check_timeout, describe


@pytest.mark.parametrize("data", [b"", bytearray(b"v"), memoryview(b"v")])
def test_a_buffer_is_accepted_as_a_key_or_a_value(data):
    check_is_bytes(data, "value")


@pytest.mark.parametrize("part", ["key", "value"])
def test_the_error_for_anything_else_names_its_type_and_the_serializer_but_not_the_content(part):
    with pytest.raises(InvalidRecordError) as caught:
        check_is_bytes("secret", part)

    assert caught.value.argument == part
    assert "not str" in str(caught.value)
    assert f"{part}_serializer" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_topic_and_a_partition_are_checked_together():
    assert check_target("orders", None) is None
    assert check_target("orders", 3) == 3
    with pytest.raises(InvalidTopicError, match="must be a str, not bytes"):
        check_target(b"orders", 3)
    with pytest.raises(InvalidTopicError):
        check_target("or ders", 3)
    with pytest.raises(InvalidRecordError, match="0 or more, not -1"):
        check_target("orders", -1)


@pytest.mark.parametrize("timeout", [None, 0, 0.5, 7, math.inf])
def test_a_timeout_is_a_number_of_seconds_or_none(timeout):
    check_timeout(timeout)


@pytest.mark.parametrize("timeout", [-1, True, math.nan, 2.0**53, "1"])
def test_any_other_timeout_is_an_error(timeout):
    with pytest.raises(InvalidArgumentError, match="number of seconds"):
        check_timeout(timeout)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "None"), (7, "7"), (0.5, "0.5"), (2**64, "int"), ("secret", "str"), (b"secret", "bytes")],
)
def test_only_numbers_are_shown(value, text):
    assert describe(value) == text
