"""Maps the columns of a DataFrame to the parts of Kafka records.

The driver checks the columns. The tasks pass them to the producer in Arrow format, without conversion. Column names,
types and error messages are the same as in Spark's own sink (org.apache.spark.sql.kafka010.KafkaWriter); the
`timestamp` column is the only addition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from aioproducer.spark.options import SinkError, SinkOptions

HEADERS = "array<struct<key:string,value:binary>>"
TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
    "key": ((StringType, BinaryType), "string or binary"),
    "value": ((StringType, BinaryType), "string or binary"),
    "headers": ((), HEADERS),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType, TimestampNTZType, LongType), "timestamp or bigint (milliseconds)"),
}
ARGUMENTS = {
    "value": "values",
    "key": "keys",
    "headers": "headers",
    "timestamp": "timestamps",
    "partition": "partitions",
}
"""The `send_many` argument for each column."""


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check that a DataFrame can be written.

    Raises:
        SinkError: a column is missing or unknown, or has the wrong type.
    """
    types = {column.name: column.dataType for column in schema.fields}
    unknown = [name for name in types if name not in TYPES]
    if unknown:
        raise SinkError(
            f"column {unknown[0]} is not part of a Kafka record ({', '.join(TYPES)}); leave it out, or put it into "
            "value, e.g. to_json(struct(*)) AS value"
        )
    if options.topic is None and "topic" not in types:
        raise SinkError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in types:
        raise SinkError("Required attribute 'value' not found")
    for name, found in types.items():
        allowed, wanted = TYPES[name]
        if not (_is_headers(found) if name == "headers" else isinstance(found, allowed)):
            raise SinkError(
                f"{name} attribute unsupported type {found.simpleString()}. {name} must be a(n) {wanted}"
            )


def _is_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    return [(field.name, type(field.dataType)) for field in found.elementType.fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]


def arguments_of(rows: pa.Table) -> dict[str, Any]:
    """Return the columns as arguments for `send_many`, without the topic."""
    return {
        ARGUMENTS[name]: rows.column(number)
        for number, name in enumerate(rows.schema.names)
        if name in ARGUMENTS
    }


def by_topic(batches: list[pa.RecordBatch], topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Yield each topic with its rows, in their original order. If `topic` is given, it is the topic for all rows.

    Raises:
        SinkError: a row has no topic.
    """
    rows = pa.Table.from_batches(batches)
    if topic is not None:
        yield topic, rows
        return
    column = rows.column("topic")
    if column.null_count:
        raise SinkError("null topic present in the data. Use the topic option for setting a default topic.")
    names = column.unique().to_pylist()
    for name in names:
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(column, name))
