"""The pipeline's work in Spark: cleans the flights, joins them with planes and weather, and aggregates them.

`expected.py` does the same without Spark; change both together, or the proof fails."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from flights_pipeline.source import Source

FLIGHTS = """year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"""
PLANES = """tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT,
    speed INT, engine STRING"""
WEATHER = """origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE,
    wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE,
    time_hour TIMESTAMP"""
CSV = {"header": "true", "nullValue": "NA", "mode": "FAILFAST"}

GROUPS = {
    "delays": ("carrier", "origin", "month"),
    "weather": ("origin", "visibility", "rain"),
    "planes": ("manufacturer", "decade"),
}
"""The name of each aggregate, and the columns that it is grouped by."""
LATE = 15
"""The arrival delay in minutes from which a flight counts as late."""


class Tables(NamedTuple):
    """The data frames read from the files."""

    flights: DataFrame
    planes: DataFrame
    weather: DataFrame


def tables(spark: SparkSession, source: Source) -> Tables:
    """Read the three files for a batch job."""
    read = spark.read.options(**CSV)
    return Tables(
        read.schema(FLIGHTS).csv(str(source.flights)),
        read.schema(PLANES).csv(str(source.planes)),
        read.schema(WEATHER).csv(str(source.weather)),
    )


def as_stream(spark: SparkSession, source: Source) -> Tables:
    """Read the flights as a stream, one file after the other, and planes and weather as static tables."""
    stream = spark.readStream.options(**CSV).option("maxFilesPerTrigger", 1)
    return tables(spark, source)._replace(flights=stream.schema(FLIGHTS).csv(str(source.flights)))


def joined(given: Tables) -> DataFrame:
    """Return every flight, cleaned, with its plane and the weather at its scheduled hour, if they are known."""
    departure = F.col("time_hour") + F.make_dt_interval(mins=F.col("minute"))
    planes = given.planes.select(
        "tailnum",
        # One name for each manufacturer: "AIRBUS INDUSTRIE" is "AIRBUS".
        F.regexp_replace("manufacturer", "^(AIRBUS|MCDONNELL DOUGLAS).*", "$1").alias("manufacturer"),
        "model",
        "seats",
        F.col("year").alias("built"),
    )
    weather = given.weather.select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    return (
        given.flights.drop("year")
        .withColumn("departure", departure)
        .join(F.broadcast(planes), "tailnum", "left")
        .join(F.broadcast(weather), ["origin", "time_hour"], "left")
    )


def enriched(given: Tables) -> DataFrame:
    """Return the flights that arrived as records, with the carrier as key and the scheduled departure as timestamp."""
    return (
        joined(given)
        .where("arr_delay IS NOT NULL")
        .select(
            F.col("carrier").alias("key"),
            _json(
                F.date_format("departure", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("departure"),
                *("carrier", "flight", "tailnum", "origin", "dest", "distance", "dep_delay", "arr_delay"),
                (F.col("distance") * 60 / F.col("air_time")).alias("mph"),
                *("manufacturer", "model", "seats", "built", "temp", "wind_speed", "precip", "visib"),
            ).alias("value"),
            F.col("departure").alias("timestamp"),
        )
    )


def aggregated(given: Tables, topics: dict[str, str]) -> DataFrame:
    """Return all aggregates as records for the topics given by `topics`."""
    flights = joined(given).select(
        "*",
        F.when(F.col("visib").isNull(), "unknown")
        .when(F.col("visib") < 2, "poor")
        .when(F.col("visib") < 8, "fair")
        .otherwise("good")
        .alias("visibility"),
        F.when(F.col("precip").isNull(), "unknown")
        .otherwise(F.when(F.col("precip") > 0, "wet").otherwise("dry"))
        .alias("rain"),
        (F.floor(F.col("built") / 10) * 10).alias("decade"),
    )
    flights.persist()  # read and joined once for all aggregates
    return reduce(
        DataFrame.unionByName, [_aggregate(flights, by, topics[name]) for name, by in GROUPS.items()]
    )


def _aggregate(flights: DataFrame, by: tuple[str, ...], topic: str) -> DataFrame:
    arrived = F.col("arr_delay").isNotNull()
    cancelled = F.col("dep_time").isNull()
    measures = {
        "flights": F.count("*"),
        "cancelled": F.count_if(cancelled),
        "diverted": F.count_if(~arrived & ~cancelled),
        "late": F.count_if(F.col("arr_delay") >= LATE),
        "mean_dep_delay": F.avg(F.when(arrived, F.col("dep_delay"))),
        "mean_arr_delay": F.avg("arr_delay"),
        "worst_arr_delay": F.max("arr_delay"),
    }
    rows = flights.groupBy(*by).agg(*(measure.alias(name) for name, measure in measures.items()))
    group = [F.coalesce(F.col(name).cast("string"), F.lit("unknown")) for name in by]
    return rows.select(
        F.lit(topic).alias("topic"),
        F.concat_ws("/", *group).alias("key"),
        _json(*by, *measures).alias("value"),
    )


def _json(*columns: str | Column) -> Column:
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
