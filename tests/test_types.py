"""The representation, comparison and pickling of value types."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest

from aioproducer.types import Node, ProducerRecord, Secret, is_buffer, qualified_name, takes_second


def test_a_broker_is_shown_with_its_id_and_a_bootstrap_address_without_one():
    assert str(Node(3, "a", 9092)) == "broker 3 (a:9092)"
    assert str(Node(-1, "a", 9092)) == "a:9092"


def test_a_record_is_shown_without_its_content():
    record = ProducerRecord("t", b"secret", key=b"key", headers=[("h", b"header")])

    assert repr(record) == "ProducerRecord(topic='t', partition=None, timestamp_ms=None)"


def test_only_reveal_returns_the_text_of_a_secret():
    secret = Secret("password")

    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "password" not in shown
    assert secret.reveal() == "password"


def test_a_pickled_secret_has_lost_its_text_and_says_so():
    lost = pickle.loads(pickle.dumps(Secret("password")))

    assert lost.is_lost
    with pytest.raises(ValueError, match="set it again in this process"):
        lost.reveal()


def test_a_copy_of_a_secret_is_the_same_object():
    secret = Secret("password")

    assert copy.copy(secret) is secret
    assert copy.deepcopy([secret])[0] is secret


def test_secrets_are_compared_by_their_text_and_lost_ones_by_identity():
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret(None) != Secret(None)


def test_a_secret_of_another_type_is_rejected_without_showing_it():
    with pytest.raises(TypeError, match="a secret must be a str, not bytes"):
        Secret(b"password")


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"a", True), (bytearray(b"a"), True), (memoryview(b"a")[::-1], True), ("a", False), (5, False)],
)
def test_a_buffer_gives_access_to_its_bytes(value, expected):
    assert is_buffer(value) is expected


def test_code_is_named_by_its_function_or_its_class():
    assert qualified_name(str.encode) == "str.encode"
    assert qualified_name(Secret("a")) == "Secret"


@pytest.mark.parametrize(
    ("function", "takes", "or_any"),
    [
        (lambda value: None, False, False),
        (lambda value, second: None, True, True),
        (lambda value, second=None: None, False, False),
        (lambda value, name=None: None, True, True),
        (lambda value, *, name: None, False, False),
        (lambda value, second=None, name=None: None, False, False),
        (lambda *values: None, False, True),
        (lambda value, *others: None, False, True),
        (lambda **named: None, False, False),
        ([].append, False, False),
        (dict, False, False),
    ],
)
def test_a_second_parameter_counts_if_it_is_required_or_has_the_name(function, takes, or_any):
    assert takes_second(function, "name") is takes
    assert takes_second(function, "other", "name", or_any=True) is or_any


def test_annotations_that_only_type_checkers_can_read_do_not_matter():
    # Before Python 3.14, such a function can be defined only with annotations that are not evaluated.
    first = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    names: dict[str, Any] = {}
    exec(first + "def f(value: NotImported, second: NotImported) -> NotImported: ...", names)

    assert takes_second(names["f"])
