"""Tests of the advice about Spark's settings, and of the one that foreach_batch sets itself."""

from __future__ import annotations

import pytest

from aioproducer.spark import tuning
from aioproducer.spark.tuning import BYTES, UNIX_SOCKET, ArrowBatches, advice, is_first_of, limited_batches

MB = 1_000_000
LARGE = ArrowBatches(20 * MB, 10 * MB, is_first=True)
SMALL = ArrowBatches(40 * MB, 1 * MB, is_first=True)


@pytest.fixture(autouse=True)
def no_query_was_seen(monkeypatch):
    monkeypatch.setattr(tuning, "_first_stages", {})


def test_arrow_batches_that_are_too_large_are_worth_advice():
    told = advice([LARGE, SMALL])

    assert f"{BYTES}=2097152 (its largest Arrow batch was 10 MB" in told
    assert UNIX_SOCKET not in told


def test_a_unix_socket_is_named_where_spark_has_it_and_the_write_is_large():
    over_tcp = SMALL._replace(over_tcp=True)

    assert advice([over_tcp]) == ""
    assert advice([over_tcp, SMALL]) == (
        f"the rows of this query would be cheaper to process with {UNIX_SOCKET}=true, set when the session is created"
    )
    assert f" and {UNIX_SOCKET}=true, set when" in advice([LARGE, SMALL, over_tcp])


def test_small_batches_and_writes_without_rows_need_no_advice():
    assert advice([SMALL._replace(largest=4 * MB)]) == ""
    assert advice([]) == advice([ArrowBatches(is_first=True)]) == ""


def test_the_advice_is_given_once_for_a_query():
    assert advice([LARGE, ArrowBatches()]) != "", "a task without rows has no say"
    assert advice([LARGE, LARGE._replace(is_first=False)]) == ""


def test_all_tasks_of_the_first_stage_are_part_of_the_first_write():
    assert [is_first_of("a", stage) for stage in (3, 3, 4, 3)] == [True, True, False, True]


def test_a_process_remembers_the_latest_queries(monkeypatch):
    monkeypatch.setattr(tuning, "MOST_QUERIES", 2)

    found = [is_first_of(query, stage) for stage, query in enumerate(("a", "a", None, "b", None, "a"))]

    assert found == [True, False, True, True, False, True]


@pytest.mark.promise(
    "Spark", "foreach_batch limits Arrow batches to a size that fits into a processor's cache"
)
def test_the_session_has_the_limit_only_during_the_write(spark):
    with limited_batches(spark):
        assert spark.conf.get(BYTES) == "2097152"
    assert spark.conf.get(BYTES, None) is None


def test_a_failed_write_also_removes_the_limit(spark):
    with pytest.raises(ZeroDivisionError), limited_batches(spark):
        1 / 0  # noqa: B018
    assert spark.conf.get(BYTES, None) is None


def test_a_limit_of_the_users_is_kept(spark):
    spark.conf.set(BYTES, "1000000")
    try:
        with limited_batches(spark):
            assert spark.conf.get(BYTES) == "1000000"
        assert spark.conf.get(BYTES) == "1000000"
    finally:
        spark.conf.unset(BYTES)
