"""Tests of the columns of a DataFrame: those that can be written, and how their rows are passed to send_many."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from aioproducer.spark.columns import arguments_of, by_topic, check_columns
from aioproducer.spark.options import SinkError, SinkOptions

OPTIONS = SinkOptions({}, "t")


def schema(**columns: object) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


def test_the_columns_of_sparks_own_sink_and_a_timestamp_are_accepted():
    check_columns(
        schema(
            topic=StringType(),
            key=BinaryType(),
            value=StringType(),
            partition=IntegerType(),
            timestamp=LongType(),
        ),
        SinkOptions({}),
    )


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"value": StringType(), "id": LongType()}, OPTIONS, "column id is not part of a Kafka record"),
        ({"key": StringType()}, OPTIONS, "Required attribute 'value' not found"),
        ({"value": LongType()}, OPTIONS, "value attribute unsupported type bigint. value must be a"),
        (
            {"value": StringType(), "headers": StringType()},
            OPTIONS,
            "headers attribute unsupported type string",
        ),
        ({"value": StringType()}, SinkOptions({}), "topic option required"),
    ],
)
def test_other_columns_are_refused_before_a_task_runs(columns, options, words):
    with pytest.raises(SinkError, match=words):
        check_columns(schema(**columns), options)


def test_columns_become_the_arguments_of_send_many():
    rows = pa.table({"topic": ["t"], "key": [b"k"], "value": [b"v"]})

    arguments = arguments_of(rows)

    assert set(arguments) == {"keys", "values"}
    assert arguments["values"].to_pylist() == [b"v"]


def test_rows_are_divided_by_topic_in_their_order():
    batch = pa.record_batch({"topic": ["a", "b", "a"], "value": [b"1", b"2", b"3"]})

    found = {topic: table.column("value").to_pylist() for topic, table in by_topic([batch], None)}

    assert found == {"a": [b"1", b"3"], "b": [b"2"]}
    assert [topic for topic, _ in by_topic([batch], "t")] == ["t"]


def test_a_row_without_a_topic_is_refused():
    batch = pa.record_batch({"topic": ["a", None], "value": [b"1", b"2"]})

    with pytest.raises(SinkError, match="null topic present"):
        list(by_topic([batch], None))
