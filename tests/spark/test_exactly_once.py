"""Tests of the ownership of a transactional id: a query that uses the id of another query is rejected."""

from __future__ import annotations

import time

import pytest

from aioproducer import TransactionHandle
from aioproducer.spark.exactly_once import check_owner
from aioproducer.spark.options import SinkError, SinkOptions
from aioproducer.spark.reports import Plan, Version

OPTIONS = SinkOptions({}, "t", ("t",), True, "x")


def plan(marker: Version | None) -> Plan:
    return Plan(TransactionHandle("x", 1, 0, True), (("t", 3),), marker, time.time(), 900.0)


@pytest.mark.parametrize(
    ("marker", "version"),
    [
        (None, Version("query", 0)),
        (Version("query", 3), Version("query", 4)),
        (Version("query", 3), None),
    ],
)
def test_a_first_query_and_the_same_query_may_write(marker, version):
    assert check_owner(OPTIONS, plan(marker), version) is None


def test_another_query_is_rejected_with_both_names_and_the_option_that_allows_it():
    with pytest.raises(
        SinkError, match=r"belongs to the query old, but this is the query new.*onCheckpointReset=accept"
    ):
        check_owner(OPTIONS, plan(Version("old", 3)), Version("new", 0))


def test_a_reset_of_the_checkpoint_can_be_accepted():
    accepting = SinkOptions({}, "t", ("t",), True, "x", accepts_reset=True)

    assert check_owner(accepting, plan(Version("old", 3)), Version("new", 0)) is None
