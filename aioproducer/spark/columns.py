"""The columns of a DataFrame as the parts of Kafka records: checked on the driver, then taken from Arrow as they are.

Names, types and messages are those of Spark's own sink (org.apache.spark.sql.kafka010.KafkaWriter); `timestamp` is
more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    Row,
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
"""What `send_many` calls them."""

ROWS = 10_000
"""Of an Arrow batch that is made from rows; as many as Spark's own have."""


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a DataFrame that can't be written.

    Raises:
        SinkError: a column is missing, not known, or of a type that it can't have.
    """
    types = {column.name: column.dataType for column in schema.fields}
    unknown = [name for name in types if name not in TYPES]
    if unknown:
        raise SinkError(
            f"column {unknown[0]} is no part of a Kafka record ({', '.join(TYPES)}); leave it out, or put it into "
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


def arguments_of(batch: pa.RecordBatch) -> dict[str, Any]:
    """The columns as `send_many` takes them, topic left out."""
    return {
        ARGUMENTS[name]: batch.column(number)
        for number, name in enumerate(batch.schema.names)
        if name in ARGUMENTS
    }


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows for each topic, in their order; `topic` is that of all of them if it is given.

    Raises:
        SinkError: a row has no topic.
    """
    if topic is not None:
        yield topic, batch
        return
    column = batch.column("topic")
    if column.null_count:
        raise SinkError("null topic present in the data. Use the topic option for setting a default topic.")
    names = column.unique().to_pylist()
    for name in names:
        yield name, batch if len(names) == 1 else batch.filter(pc.equal(column, name))


def batches_of_rows(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches, for a Spark whose stream writers give rows (before 4.1)."""
    left, width = iter(rows), len(schema.fields)
    # Everything behind each other, then every n-th: a row's own items are reached by way of Python code.
    while found := list(chain.from_iterable(islice(left, ROWS))):
        columns = [
            _column(field.name, field.dataType, found[number::width])
            for number, field in enumerate(schema.fields)
        ]
        yield pa.record_batch(columns, names=schema.fieldNames())


def _column(name: str, type_: DataType, values: list[Any]) -> pa.Array:
    if name == "headers":
        values = [value and [tuple(header) for header in value] for value in values]
    return pa.array(values, _arrow_type(name, type_))


def _arrow_type(name: str, type_: DataType) -> pa.DataType:
    if name == "headers":
        return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if isinstance(type_, TimestampType):
        return pa.timestamp("us", "UTC")
    if isinstance(type_, TimestampNTZType):
        return pa.timestamp("us")
    if isinstance(type_, LongType):
        return pa.int64()
    if isinstance(type_, IntegerType):
        return pa.int32()
    return pa.string() if isinstance(type_, StringType) else pa.binary()
