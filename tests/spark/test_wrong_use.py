"""Tests of the errors for wrong use of the sink in a real Spark: columns, options, modes, triggers, SQL."""

from __future__ import annotations

import re
import time

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from aioproducer import ConfigError
from aioproducer.spark import KafkaSink, SinkError, partition_by_key
from tests.campaigns.spark_chaos import write_files
from tests.support.spark_stage import FORMAT, stage, write

pytestmark = pytest.mark.slow

ONCE = {"delivery": "exactly_once", "transactionalId": "x"}


@pytest.fixture(scope="module")
def cluster():
    with stage(1, default_partitions=3) as running:
        yield running


@pytest.fixture
def table(spark):
    """A table with the columns, but without options that would reach the sink."""
    spark.sql(f"CREATE TABLE rows (key string, value string) USING {FORMAT} OPTIONS (topic 'lost')")
    yield "rows"
    spark.sql("DROP TABLE rows")


def wrong(df, cluster, **options):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark's errors have many classes
        write(df, cluster.servers, **options)
    return str(caught.value)


# ----------------------------------------------------------------------------------------------- columns and options


@pytest.mark.promise(
    "Spark",
    "the columns are those of Spark's own sink; they are checked on the driver, and the same mistakes "
    "have the same messages",
)
@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (
            ["id AS value"],
            {"topic": "t"},
            "value attribute unsupported type bigint. value must be a(n) string or binary",
        ),
        (
            ["'x' AS value", "id AS key"],
            {"topic": "t"},
            "key attribute unsupported type bigint. key must be a(n)",
        ),
        (["'x' AS value"], {}, "topic option required when no 'topic' attribute is present"),
        (["'x' AS key"], {"topic": "t"}, "Required attribute 'value' not found"),
        (["'x' AS value", "id"], {"topic": "t"}, "column id is not part of a Kafka record"),
        (
            ["'x' AS value", "array(id) AS headers"],
            {"topic": "t"},
            "headers must be a(n) array<struct<key:string",
        ),
        (["'x' AS value", "id AS partition"], {"topic": "t"}, "partition must be a(n) int"),
        (["'x' AS value", "1.5 AS timestamp"], {"topic": "t"}, "timestamp must be a(n) timestamp or bigint"),
        (["'x' AS value", "CAST(NULL AS string) AS topic"], {}, "null topic present in the data"),
        (
            ["'x' AS value"],
            {"topic": "t", "delivery": "exactly_twice"},
            "must be at_least_once or exactly_once",
        ),
        (["'x' AS value"], {"topic": "t", "topik": "x"}, "there is no option topik; did you mean topic?"),
        (
            ["'x' AS value"],
            {"topic": "t", "delivery": "exactly_once"},
            "requires the 'transactionalId' option",
        ),
        (["'x' AS value"], {"topic": "t", "transactionalId": "x"}, "requires delivery=exactly_once"),
        (
            ["'x' AS value", "'t' AS topic"],
            {"delivery": "exactly_once", "transactionalId": "x"},
            "set the 'topic' option, or topics=a,b,c",
        ),
        (
            ["'x' AS value"],
            {"topic": "t", "delivery": "exactly_once", "transactionalId": "x", "txnAppId": "a"},
            "must be set together",
        ),
        (
            ["'x' AS value"],
            {"topic": "t", "delivery": "exactly_once", "transactionalId": "x", "kafka__acks": "1"},
            "acks",
        ),
        (["'x' AS value"], {"topic": "t", "kafka__lingr_ms": "5"}, "did you mean linger.ms?"),
        (
            ["'x' AS value"],
            {"topic": "t", "kafka__key_serializer": "x"},
            "keys are serialized with ByteArraySerializer",
        ),
        (
            ["'x' AS value", "-1 AS partition"],
            {"topic": "t"},
            "a partition must be a whole number, 0 or more, not -1",
        ),
        (
            ["'x' AS value", "7 AS partition"],
            {"topic": "t", "kafka__max_block_ms": "3000"},  # a busy machine needs time to connect
            "topic t has 3 partitions; partition 7 does not exist",
        ),
        (
            ["'x' AS value", "array(struct(CAST(NULL AS string) AS key, X'31' AS value)) AS headers"],
            {"topic": "t"},
            "the name of a header must be a str, not null",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_each_mistake_has_an_error_message(spark, cluster, columns, options, text):
    assert text in wrong(spark.range(3).selectExpr(*columns), cluster, **options)


@pytest.mark.promise(
    "Spark",
    "the columns are those of Spark's own sink; they are checked on the driver, and the same mistakes "
    "have the same messages",
)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": ""}, "option topic='' must be the name of a topic"),
        (
            {"Delivery": "EXACTLY_ONCE"},
            "option delivery='EXACTLY_ONCE' must be at_least_once or exactly_once",
        ),
        ({"txnAppId": "a"}, "option txnAppId requires delivery=exactly_once"),
        ({"txnVersion": "1"}, "option txnVersion requires delivery=exactly_once"),
        ({"onCheckpointReset": "accept"}, "option onCheckpointReset requires delivery=exactly_once"),
        ({"logAppendTime": "true"}, "option logAppendTime requires delivery=exactly_once"),
        (
            {**ONCE, "transactionalId": ""},
            "requires the 'transactionalId' option: a name that only this query uses",
        ),
        (
            {**ONCE, "txnVersion": "1"},
            "txnAppId and txnVersion ",
        ),  # must be set together; a stream has neither
        ({**ONCE, "onCheckpointReset": "x"}, "option onCheckpointReset='x' must be fail or accept"),
        ({**ONCE, "logAppendTime": "yes"}, "option logAppendTime='yes' must be false or true"),
        ({**ONCE, "kafka.enable.idempotence": "false"}, "enable_idempotence"),
        ({"kafka.transactional.id": "x"}, "set transactionalId and delivery=exactly_once instead"),
        ({"kafka.value.serializer": "x"}, "values are serialized with ByteArraySerializer"),
        ({"kafka.interceptor.classes": "x.Y"}, "interceptor.classes='x.Y' names Java classes"),
        ({"kafka.queuing.strategy": "lifo"}, "queuing.strategy=lifo can't be used: records for a partition"),
        ({"kafka.linger.ms": "soon"}, "linger.ms='soon' must be a number of milliseconds, 0 or more"),
        ({"kafka.compression.type": "lzma"}, "'lzma' is not one of none, gzip, snappy, lz4, zstd"),
        ({"bootstrap.servers": "a:1"}, "there is no option bootstrap.servers; did you mean kafka.bootstrap"),
        ({"startingOffsets": "latest"}, "there is no option startingOffsets; write a producer setting as"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_options_are_checked_before_anything_is_planned(options, text, kind):
    sink = KafkaSink({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **options})

    with pytest.raises(ConfigError) as caught:
        getattr(sink, kind)(StructType([StructField("value", StringType())]), False)

    assert text in str(caught.value)


def test_columns_of_a_stream_are_checked_before_anything_is_planned():
    sink = KafkaSink({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", **ONCE})

    with pytest.raises(SinkError, match=r"key attribute unsupported type bigint. key must be a\(n\) string"):
        sink.streamWriter(
            StructType([StructField("value", StringType()), StructField("key", LongType())]), False
        )


@pytest.mark.promise(
    "Spark",
    "the columns are those of Spark's own sink; they are checked on the driver, and the same mistakes "
    "have the same messages",
)
def test_mistakes_are_reported_before_any_task_runs(spark, cluster):
    df = spark.range(3).selectExpr("'x' AS value")

    with pytest.raises(Exception, match=r"bootstrap\.servers is not set"):
        df.write.format(FORMAT).option("topic", "t").mode("append").save()


def test_the_last_error_names_kafkas_reason(spark, cluster, topic):
    df = spark.range(1).selectExpr("repeat('x', 2000000) AS value")

    text = wrong(df, cluster, topic=topic)
    assert "kafka.max.request.size" in text
    assert "max_request_size" not in text


def test_an_unreachable_broker_is_named(spark, topic):
    df = spark.range(1).selectExpr("'x' AS value")

    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        write(df, "127.0.0.1:1", topic, kafka__max_block_ms="500")


@pytest.mark.parametrize("options", [{}, {**ONCE}], ids=["at_least_once", "exactly_once"])
def test_an_unknown_topic_is_named_with_kafkas_error(spark, cluster, topic, options):
    df = partition_by_key(spark.range(3).selectExpr("'k' AS key", "'x' AS value"), 3)
    unknown = f"{topic}-unknown"
    write(spark.range(3).selectExpr("'x' AS value"), cluster.servers, topic)  # starts Python's workers

    with cluster.without_new_topics():
        began = time.monotonic()
        text = wrong(df, cluster, topic=unknown, **options)
        seconds = time.monotonic() - began

    last = [line for line in text.splitlines() if line.strip() and "SQLSTATE" not in line][-1]
    assert re.search(
        rf"topic {unknown} is still unknown after 10.* s: the cluster reports UNKNOWN_TOPIC_OR_PARTITION; create",
        last,
    )
    assert seconds < 30  # a single wait of 10 s, not one for each attempt of each task
    assert "PicklingError" not in text


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
def test_with_speculation_no_task_writes_exactly_once(spark, cluster, topic):
    df = partition_by_key(spark.range(3).selectExpr("'k' AS key", "'x' AS value"), 3)

    # The real setting becomes the same property, but can't be changed while Spark runs.
    spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        text = wrong(df, cluster, topic=topic, **ONCE)
        write(df, cluster.servers, topic)
    finally:
        spark.sparkContext.setLocalProperty("spark.speculation", None)

    assert "did not write any rows, because spark.speculation is on" in text
    assert len(cluster.committed(topic)) == 3


# ------------------------------------------------------------------------------------------------- modes, SQL, reading


@pytest.mark.promise(
    "Spark",
    "reading, a table's options in SQL, the continuous trigger and modes other than append are rejected "
    "with advice; no unwritten row is recorded as written",
)
@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (None, 'use either the "Append"'),
        ("errorifexists", 'use either the "Append"'),
        ("ignore", 'use either the "Append"'),
        ("overwrite", 'use mode("append"), not mode("overwrite")'),
    ],
)
def test_modes_other_than_append_are_rejected(spark, cluster, topic, mode, text):
    writer = spark.range(3).selectExpr("'x' AS value").write.format(FORMAT)
    writer = writer.option("kafka.bootstrap.servers", cluster.servers).option("topic", topic)

    with pytest.raises(Exception, match=r"Append|append") as caught:
        (writer if mode is None else writer.mode(mode)).save()

    assert text in str(caught.value)


@pytest.mark.promise(
    "Spark",
    "reading, a table's options in SQL, the continuous trigger and modes other than append are rejected "
    "with advice; no unwritten row is recorded as written",
)
def test_sql_options_must_be_in_the_insert_since_those_of_a_table_are_lost(spark, cluster, topic, table):
    options = f"'kafka.bootstrap.servers' = '{cluster.servers}', 'topic' = '{topic}'"

    with pytest.raises(Exception, match=r"write INSERT INTO \.\.\. WITH"):
        spark.sql(f"INSERT INTO {table} VALUES ('k', 'lost')")
    spark.sql(f"INSERT INTO {table} WITH ({options}) VALUES ('k', 'v0')")
    df = spark.range(1, 3).selectExpr("'k' AS key", "concat('v', id) AS value")
    df.writeTo(table).options(**{"kafka.bootstrap.servers": cluster.servers, "topic": topic}).append()

    assert cluster.committed(topic) == [b"v0", b"v1", b"v2"]


@pytest.mark.promise(
    "Spark",
    "reading, a table's options in SQL, the continuous trigger and modes other than append are rejected "
    "with advice; no unwritten row is recorded as written",
)
def test_reading_is_left_to_sparks_own_source(spark, table):
    with pytest.raises(Exception, match="only writes; read from Kafka with Spark's own source"):
        spark.read.format(FORMAT).load()
    with pytest.raises(Exception, match="only writes; read from Kafka with Spark's own source"):
        spark.sql(f"SELECT * FROM {table}").collect()


# ------------------------------------------------------------------------------------- output modes and triggers


def stream(df, cluster, topic, folder, mode="append", **trigger):
    writer = df.writeStream.format(FORMAT).outputMode(mode).trigger(**trigger)
    writer = writer.option("kafka.bootstrap.servers", cluster.servers).option("topic", topic)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def counts(spark, folder):
    rows = spark.readStream.schema("key string, value string").json(str(folder / "in"))
    return rows.groupBy("key").count().selectExpr("key", "CAST(count AS string) AS value")


def test_asynchronous_progress_is_refused_by_spark(spark, cluster, topic, tmp_path):
    write_files(tmp_path / "in", 1)
    rows = spark.readStream.schema("key string, value string").json(str(tmp_path / "in"))
    writer = rows.writeStream.format(FORMAT).option("asyncProgressTrackingEnabled", "true")
    writer = writer.option("kafka.bootstrap.servers", cluster.servers).option("topic", topic)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    with pytest.raises(Exception, match="does not support async progress tracking"):
        writer.trigger(processingTime="1 second").start().awaitTermination(60)

    assert topic not in cluster.cluster.topics, "nothing was sent"


def test_update_mode_is_refused_by_spark(spark, cluster, topic, tmp_path):
    write_files(tmp_path / "in", 1)

    with pytest.raises(Exception, match="does not support Update mode"):
        stream(
            counts(spark, tmp_path), cluster, topic, tmp_path, "update", availableNow=True
        ).awaitTermination(60)


def test_in_complete_mode_each_batch_contains_the_whole_result(spark, cluster, topic, tmp_path):
    write_files(tmp_path / "in", 1, rows=5)
    query = stream(counts(spark, tmp_path), cluster, topic, tmp_path, "complete", processingTime="0 seconds")
    try:
        query.processAllAvailable()
        write_files(tmp_path / "in", 1, first=1, rows=5)
        query.processAllAvailable()
    finally:
        query.stop()

    assert len(cluster.committed(topic)) == 5 + 10


def test_the_continuous_trigger_raises_instead_of_losing_rows():
    """With that trigger, Spark does not call Python writers, but calls the commit."""
    sink = KafkaSink({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"})
    writer = sink.streamWriter(StructType([StructField("value", StringType())]), False)

    with pytest.raises(SinkError, match="processingTime or availableNow"):
        writer.commit([None, None], 0)


def continuous(spark, cluster, topic, **options):
    """A query with a continuous trigger, started."""
    rows = (
        spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value", "0 AS partition")
    )
    return (
        rows.writeStream.format(FORMAT)
        .options(**{"kafka.bootstrap.servers": cluster.servers, "topic": topic, **options})
        .trigger(continuous="100 milliseconds")
        .start()
    )


@pytest.mark.promise("Spark", "speculation and the continuous trigger are rejected on the driver")
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("options", [{}, ONCE], ids=["at_least_once", "exactly_once"])
def test_a_continuous_query_with_a_local_checkpoint_ends_at_once(
    spark, cluster, topic, tmp_path, options, scheme
):
    query = continuous(spark, cluster, topic, checkpointLocation=f"{scheme}{tmp_path}/checkpoint", **options)

    with pytest.raises(Exception, match="use processingTime or availableNow") as caught:
        query.awaitTermination(60)

    assert "PicklingError" not in str(caught.value)
    assert not cluster.records(topic)


@pytest.mark.promise(
    "Spark",
    "reading, a table's options in SQL, the continuous trigger and modes other than append are rejected "
    "with advice; no unwritten row is recorded as written",
)
@pytest.mark.parametrize("options", [{}, ONCE], ids=["at_least_once", "exactly_once"])
def test_a_continuous_query_records_no_progress_and_ends(spark, cluster, topic, tmp_path, options):
    """Spark only logs the commit's error, and fails when too many epochs wait (10,000 by default).

    The sink does not see a checkpoint whose folder is a setting of the session."""
    epochs = "spark.sql.streaming.continuous.epochBacklogQueueSize"
    folder = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(epochs, "2")
    spark.conf.set(folder, str(tmp_path))
    try:
        query = continuous(spark, cluster, topic, queryName=f"continuous-{topic}", **options)
        with pytest.raises(Exception, match="queue has exceeded its maximum"):
            query.awaitTermination(60)
    finally:
        spark.conf.unset(epochs)
        spark.conf.unset(folder)

    (checkpoint,) = tmp_path.iterdir()
    assert not list((checkpoint / "commits").iterdir())
    assert not cluster.records(topic)
