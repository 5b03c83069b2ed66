"""Registers the data source with Spark: with this module installed, `format("aioproducer")` needs no registration.

Spark imports every `pyspark_*` module when it looks up any data source, so this one imports only what Spark has
already imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from aioproducer.spark import KafkaSink


class DefaultSource(DataSource):
    """`aioproducer.spark.KafkaSink`, imported on first use."""

    @classmethod
    def name(cls) -> str:
        """The name to pass to `format(...)`."""
        return "aioproducer"

    def schema(self) -> StructType:
        """Raise SinkError: the data source can't be read."""
        return _sink(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raise SinkError: the data source can't be read."""
        return _sink(self.options).reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for `df.write`."""
        return _sink(self.options).writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer for `df.writeStream`."""
        return _sink(self.options).streamWriter(schema, overwrite)


def _sink(options: MutableMapping[str, str]) -> KafkaSink:
    from aioproducer.spark import KafkaSink

    return KafkaSink(options)
