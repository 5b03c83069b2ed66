"""Where Spark looks for data sources: with this module installed, `format("aioproducer")` needs no registration.

Every such module is imported when any source is looked up, so it imports nothing but what Spark has already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from aioproducer.spark import KafkaSink


class DefaultSource(DataSource):
    """`aioproducer.spark.KafkaSink`, imported when it is used."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return "aioproducer"

    def schema(self) -> StructType:
        """Nothing is read."""
        return _sink(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Nothing is read."""
        return _sink(self.options).reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        return _sink(self.options).writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`."""
        return _sink(self.options).streamWriter(schema, overwrite)


def _sink(options: MutableMapping[str, str]) -> KafkaSink:
    from aioproducer.spark import KafkaSink

    return KafkaSink(options)
