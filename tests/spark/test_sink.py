"""Tests of the sink in a real Spark (local[2]) on the embedded cluster: batches, streams, both modes, errors."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import functions as F

from aioproducer.partitioner import murmur2_partition
from aioproducer.spark import KafkaSink, activate, foreach_batch, partition_by_key
from aioproducer.testing import ApiKey, ErrorCode
from tests.campaigns.spark_chaos import write_files
from tests.support.spark_driver import Driver
from tests.support.spark_stage import FORMAT, stage, write

HEADERS = "array(struct('one' AS key, X'31' AS value), struct('none' AS key, CAST(NULL AS binary) AS value))"


@pytest.fixture(scope="module")
def cluster():
    with stage(2, default_partitions=3) as running:
        yield running


def numbered(spark, count, partitions=4):
    return spark.range(0, count, 1, partitions).selectExpr(
        "CAST(id AS string) AS key", "concat('v', id) AS value"
    )


def values(count, first=0):
    return sorted(b"v%d" % number for number in range(first, count))


def said(caught):
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- batch, default


@pytest.mark.promise(
    "Spark",
    "the columns are those of Spark's own sink; they are checked on the driver, and the same mistakes "
    "have the same messages",
)
def test_a_dataframe_is_written_with_all_parts_of_its_records(spark, cluster, topic):
    df = spark.range(100).selectExpr(
        "CAST(id AS string) AS key",
        "CAST(concat('v', id) AS binary) AS value",
        f"{HEADERS} AS headers",
        "CAST(id % 3 AS int) AS partition",
        "timestamp_millis(1700000000000 + id) AS timestamp",
    )

    write(df, cluster.servers, topic)

    found = cluster.records(topic)
    assert len(found) == 100
    for record in found:
        number = int(record.key)
        assert record.value == b"v%d" % number
        assert record.partition == number % 3
        assert record.timestamp_ms == 1700000000000 + number
        assert list(record.headers) == [("one", b"1"), ("none", None)]


@pytest.mark.promise(
    "Spark",
    "the columns are those of Spark's own sink; they are checked on the driver, and the same mistakes "
    "have the same messages",
)
def test_the_topic_option_takes_precedence_over_the_topic_column(spark, cluster, topic):
    df = spark.range(30).selectExpr(
        "CAST(id AS string) AS value",
        f"concat('{topic}-', id % 3) AS topic",
        "timestamp_millis(id) AS timestamp",
    )

    write(df, cluster.servers)
    write(df, cluster.servers, topic)

    assert [len(cluster.records(f"{topic}-{number}")) for number in range(3)] == [10, 10, 10]
    assert len(cluster.records(topic)) == 30


@pytest.mark.promise(
    "Spark",
    "helpers put the rows of a partition into one task, rerun failed batches, and support update mode",
)
def test_keys_use_the_partitions_of_every_client_and_nulls_any_partition(spark, cluster, topic):
    df = spark.range(300).selectExpr(
        "IF(id % 10 = 0, NULL, CAST(id AS string)) AS key", "CAST(NULL AS string) AS value"
    )

    write(df, cluster.servers, topic)

    found = cluster.records(topic)
    assert len(found) == 300
    for record in found:
        assert record.value is None
        assert record.key is None or record.partition == murmur2_partition(bytes(record.key), 3)


def test_the_sink_can_also_be_registered(spark, cluster, topic):
    class Mine(KafkaSink):
        @classmethod
        def name(cls):
            return "mine"

    spark.dataSource.register(Mine)
    numbered(spark, 10).write.format("mine").option("kafka.bootstrap.servers", cluster.servers).option(
        "topic", topic
    ).mode("append").save()

    assert cluster.committed(topic) == values(10)


@pytest.mark.promise("Spark", "a write in a thread other than the session's finds the sink")
def test_another_thread_can_write_once_it_has_activated_the_session(spark, cluster, topic):
    def write_in_thread(*, is_active):
        if is_active:
            activate(spark)
        write(numbered(spark, 10), cluster.servers, topic)

    for is_active in (False, True):
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(write_in_thread, is_active=is_active)
        error = done.exception()
        if is_active:
            assert error is None
        else:  # once Spark finds it, the helper can be removed
            assert "DATA_SOURCE_NOT_FOUND" in str(error)

    assert cluster.committed(topic) == values(10)


def test_settings_of_kafka_reach_the_producer(spark, cluster, topic):
    write(
        numbered(spark, 1000),
        cluster.servers,
        topic,
        kafka__compression_type="zstd",
        kafka__client_id="from-spark",
    )

    assert cluster.committed(topic) == values(1000)
    batches = cluster.call(lambda: [b for p in range(3) for b in cluster.cluster.batches(topic, p)])
    assert {batch.header.codec.name for batch in batches} == {"ZSTD"}


# --------------------------------------------------------------------------------------------- batch, exactly once


def once(spark, cluster, topic, count=300, **options):
    df = partition_by_key(numbered(spark, count), 3)
    write(df, cluster.servers, topic, delivery="exactly_once", transactionalId=f"tx-{topic}", **options)


@pytest.mark.promise(
    "Spark",
    "exactly once: a batch is committed as a whole, recognized when it is repeated, and skipped if Spark "
    "did not record its commit",
)
def test_exactly_once_recognizes_a_repeated_write(spark, cluster, topic):
    for _ in range(2):
        once(spark, cluster, topic, txnAppId="app", txnVersion=4)

    assert cluster.committed(topic) == values(300)
    for record in cluster.records(topic):
        assert record.partition == murmur2_partition(bytes(record.key), 3)
    assert cluster.offset(f"aioproducer.tx-{topic}", topic) == 4

    once(spark, cluster, topic, txnAppId="app", txnVersion=5)
    assert len(cluster.committed(topic)) == 600


def test_without_a_version_each_write_is_a_new_one(spark, cluster, topic):
    for _ in range(2):
        once(spark, cluster, topic)

    assert len(cluster.committed(topic)) == 600


def test_another_job_with_the_same_id_is_rejected_unless_allowed(spark, cluster, topic):
    once(spark, cluster, topic, txnAppId="one", txnVersion=1)

    with pytest.raises(Exception, match="belongs to the query one, but this is the query two") as caught:
        once(spark, cluster, topic, txnAppId="two", txnVersion=0)
    assert "onCheckpointReset=accept" in said(caught)
    assert cluster.committed(topic) == values(300)

    once(spark, cluster, topic, txnAppId="two", txnVersion=0, onCheckpointReset="accept")
    assert len(cluster.committed(topic)) == 600


@pytest.mark.promise(
    "Spark", "one transaction can cover several topics, and its marker survives changes to the list of topics"
)
@pytest.mark.parametrize("places", ["a mapping", "asked"])
def test_exactly_once_writes_to_several_topics_and_places_rows_by_key(spark, cluster, topic, places):
    counts = {f"{topic}-a": 3, f"{topic}-b": 1}
    for name, count in counts.items():
        cluster.create_topic(name, count)
    options = {"delivery": "exactly_once", "transactionalId": topic, "topics": ",".join(counts)}
    options |= {"txnAppId": "app", "txnVersion": "1"}
    df = numbered(spark, 300).withColumn("topic", F.expr(f"IF(key % 3 = 0, '{topic}-b', '{topic}-a')"))
    if places == "asked":
        df = partition_by_key(df, options={"kafka.bootstrap.servers": cluster.servers, **options})
    else:
        df = partition_by_key(df, counts)

    for _ in range(2):  # the second time, the write is skipped
        write(df, cluster.servers, **options)

    assert cluster.committed(f"{topic}-b") == sorted(b"v%d" % number for number in range(0, 300, 3))
    assert len(cluster.committed(f"{topic}-a")) == 200
    for record in cluster.records(f"{topic}-a"):
        assert record.partition == murmur2_partition(bytes(record.key), 3)


def test_a_row_for_a_topic_that_is_not_listed_is_rejected(spark, cluster, topic):
    df = numbered(spark, 30).withColumn("topic", F.expr(f"IF(key = '7', 'other', '{topic}')"))
    options = {"delivery": "exactly_once", "transactionalId": topic, "topics": topic}

    with pytest.raises(Exception, match="for topic 'other', but the 'topics' option names only"):
        write(partition_by_key(df, {topic: 3}), cluster.servers, **options)
    assert cluster.committed(topic) == []


def test_a_single_task_needs_no_partition_column(spark, cluster, topic):
    df = spark.range(300).selectExpr(
        "IF(id % 2 = 0, NULL, CAST(id AS string)) AS key", "concat('v', id) AS value"
    )
    options = {"delivery": "exactly_once", "transactionalId": topic}

    write(df.coalesce(1), cluster.servers, topic, **options)
    assert cluster.committed(topic) == values(300)

    with pytest.raises(Exception, match="partition_by_key"):
        write(df.repartition(3), cluster.servers, topic, **options)
    assert cluster.committed(topic) == values(300)


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
def test_two_tasks_that_write_to_one_partition_are_refused(spark, cluster, topic):
    df = numbered(spark, 30, partitions=2).withColumn("partition", F.lit(1))

    with pytest.raises(Exception, match=r"must be in one task; use aioproducer\.spark\.partition_by_key"):
        write(df, cluster.servers, topic, delivery="exactly_once", transactionalId=topic)
    assert cluster.committed(topic) == []


def test_a_row_without_a_partition_is_refused(spark, cluster, topic):
    df = numbered(spark, 30).withColumn("partition", F.expr("IF(key = '7', NULL, 0)"))

    with pytest.raises(Exception, match=r"a row has no partition; use aioproducer.spark.partition_by_key"):
        write(df.coalesce(1), cluster.servers, topic, delivery="exactly_once", transactionalId=topic)
    assert cluster.committed(topic) == []


def test_nothing_is_committed_if_a_task_fails(spark, cluster, topic):
    df = partition_by_key(numbered(spark, 300), 3).withColumn(
        "value", F.expr("IF(key = '250', raise_error('the user\\'s own error'), value)")
    )

    with pytest.raises(Exception, match="the user's own error"):
        write(df, cluster.servers, topic, delivery="exactly_once", transactionalId=topic)
    assert cluster.committed(topic) == []

    once(spark, cluster, topic)
    assert cluster.committed(topic) == values(300)


# --------------------------------------------------------------------------------------------------------- streams


def stream(spark, folder, checkpoint, cluster, topic, **options):
    df = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).json(str(folder))
    if options.get("delivery") == "exactly_once":
        df = partition_by_key(df, 3)
    writer = (
        df.writeStream.format(FORMAT)
        .option("kafka.bootstrap.servers", cluster.servers)
        .option("topic", topic)
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
    )
    query = writer.start()
    query.awaitTermination(120)
    return query


def files(folder, count, first=0):
    write_files(folder, count, first, rows=50)


@pytest.mark.promise(
    "Spark",
    "exactly once: a batch is committed as a whole, recognized when it is repeated, and skipped if Spark "
    "did not record its commit",
)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_stream_continues_where_it_stopped(spark, cluster, topic, tmp_path, delivery):
    options = {"delivery": delivery}
    if delivery == "exactly_once":
        options["transactionalId"] = topic
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    files(folder, 3)
    stream(spark, folder, checkpoint, cluster, topic, **options)
    assert cluster.committed(topic) == values(150)

    files(folder, 2, first=3)
    query = stream(spark, folder, checkpoint, cluster, topic, **options)
    assert cluster.committed(topic) == values(250)
    assert [progress["batchId"] for progress in map(dict_of, query.recentProgress)][-1] == 4


@pytest.mark.promise(
    "Spark",
    "each write adds a line to the file of reports; if the file can't be written, the write still succeeds",
)
def test_each_batch_adds_a_line_to_the_file_of_reports(spark, cluster, topic, tmp_path):
    reports = tmp_path / "reports.jsonl"
    files(tmp_path / "in", 2)
    stream(spark, tmp_path / "in", tmp_path / "checkpoint", cluster, topic, reports=str(reports))
    write(numbered(spark, 10), cluster.servers, topic, reports=str(reports))

    found = [json.loads(line) for line in reports.read_text().splitlines()]
    assert [(line["write"], line["rows"]) for line in found] == [
        ("batch 0", 50),
        ("batch 1", 50),
        ("batch write", 10),
    ]
    assert all(line["topics"] == [topic] and line["bytes"] > 0 and line["p99_ms"] > 0 for line in found)


@pytest.mark.slow
@pytest.mark.promise("Spark", "each batch has a log line on the driver, and a listener receives its figures")
def test_each_write_has_a_line_in_the_drivers_log(cluster, topic):
    options = {"topic": topic, "delivery": "exactly_once", "transactionalId": topic}
    order = {"job": "write", "servers": cluster.servers, "rows": 10, "partitions": 3, "options": options}
    with Driver() as driver:
        assert driver.play(order).code == 0
        log = driver._log()

    assert re.search(
        r" INFO aioproducer\.spark\.sink: batch write: 10 rows, .*; .*transaction \d+\.\d\d s", log
    )


@pytest.mark.promise(
    "Spark", "the first write of a query names the Spark settings that would make its rows cheaper"
)
def test_the_first_write_of_large_rows_names_the_settings_that_make_them_cheaper(cluster, topic):
    order = {"job": "write", "servers": cluster.servers, "options": {"topic": topic}}
    with Driver() as driver:
        assert driver.play(order | {"rows": 20_000}).code == 0
        assert " WARNING " not in driver._log()
    with Driver() as driver:
        for _ in range(2):  # with more tasks than worker processes
            assert driver.play(order | {"rows": 70_000, "more": 1000, "tasks": 5}).code == 0
        log = driver._log()

    lines = [line for line in log.splitlines() if " WARNING aioproducer.spark.sink: " in line]
    assert len(lines) == 1
    assert re.search(
        r"the rows of this query would be cheaper to process with "
        r"spark\.sql\.execution\.arrow\.maxBytesPerBatch=2097152 \(its largest Arrow batch was 10 MB, .*\) and "
        r"spark\.python\.unix\.domain\.socket\.enabled=true, set when the session is created$",
        lines[0],
    )


@pytest.mark.promise(
    "Spark", "foreach_batch limits Arrow batches to a size that fits into a processor's cache"
)
def test_foreach_batch_writes_large_rows_in_small_arrow_batches(cluster, topic):
    options = {"topic": topic, "delivery": "at_least_once"}
    order = {"job": "write", "servers": cluster.servers, "options": options, "by_foreach_batch": True}
    with Driver() as driver:
        assert driver.play(order | {"rows": 70_000, "more": 1000}).code == 0
        log = driver._log()

    assert "would be cheaper to process with spark.python.unix.domain.socket.enabled=true" in log
    assert "largest Arrow batch" not in log


def dict_of(progress):
    return progress if isinstance(progress, dict) else {"batchId": progress.batchId}


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
def test_a_new_checkpoint_is_refused(spark, cluster, topic, tmp_path):
    options = {"delivery": "exactly_once", "transactionalId": topic}
    files(tmp_path / "in", 1)
    stream(spark, tmp_path / "in", tmp_path / "one", cluster, topic, **options)

    with pytest.raises(Exception, match="a new checkpoint"):
        stream(spark, tmp_path / "in", tmp_path / "two", cluster, topic, **options)

    assert cluster.committed(topic) == values(50)


@pytest.mark.promise(
    "Spark",
    "exactly once: a batch is committed as a whole, recognized when it is repeated, and skipped if Spark "
    "did not record its commit",
)
def test_a_batch_whose_commit_spark_did_not_record_is_skipped(spark, cluster, topic, tmp_path):
    options = {"delivery": "exactly_once", "transactionalId": topic}
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    files(folder, 2)
    stream(spark, folder, checkpoint, cluster, topic, **options)
    for kept in ("1", ".1.crc"):  # as if the driver had died before it wrote this file
        (checkpoint / "commits" / kept).unlink(missing_ok=True)

    stream(spark, folder, checkpoint, cluster, topic, **options)

    assert cluster.committed(topic) == values(100)


@pytest.mark.promise(
    "Spark", "one transaction can cover several topics, and its marker survives changes to the list of topics"
)
def test_a_longer_list_of_topics_keeps_the_marker(spark, cluster, topic, tmp_path):
    """The last batch was committed in Kafka but not in Spark; then the query starts with one more topic."""
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for letter in "abc":
        cluster.create_topic(f"{topic}-{letter}", 3)

    def run(*letters):
        counts = {f"{topic}-{letter}": 3 for letter in letters}
        rows = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
        which = F.expr(
            f"concat('{topic}-', element_at(array({str(letters)[1:-1]}), CAST(key AS int) % {len(letters)} + 1))"
        )
        rows = partition_by_key(rows.json(str(folder)).withColumn("topic", which), counts)
        options = {"delivery": "exactly_once", "transactionalId": topic, "topics": ",".join(counts)}
        writer = rows.writeStream.format(FORMAT).option("kafka.bootstrap.servers", cluster.servers)
        writer = writer.options(**options, checkpointLocation=str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination(120)

    files(folder, 2)
    run("a", "b")
    for kept in ("1", ".1.crc"):
        (checkpoint / "commits" / kept).unlink(missing_ok=True)
    files(folder, 1, first=2)
    run("c", "b", "a")

    found = [cluster.committed(f"{topic}-{letter}") for letter in "abc"]
    assert sorted(value for topic_values in found for value in topic_values) == values(150)
    assert len(found[2]) > 0


@pytest.mark.promise(
    "Spark",
    "helpers put the rows of a partition into one task, rerun failed batches, and support update mode",
)
def test_foreach_batch_supports_update_mode_and_retries_a_failed_batch(spark, cluster, topic, tmp_path):
    files(tmp_path / "in", 3)
    failed = []

    def prepare(batch, batch_id):
        if batch_id == 1 and not failed:
            failed.append(
                cluster.call(
                    lambda: cluster.cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD)
                )
            )
        return partition_by_key(batch.selectExpr("key", "CAST(count AS string) AS value"), 3)

    counts = (
        spark.readStream.schema("key string, value string")
        .option("maxFilesPerTrigger", 1)
        .json(str(tmp_path / "in"))
        .selectExpr("CAST(CAST(key AS int) % 7 AS string) AS key")
        .groupBy("key")
        .count()
    )
    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(
            foreach_batch(
                {"kafka.bootstrap.servers": cluster.servers, "topic": topic, "transactionalId": topic},
                prepare=prepare,
            )
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)

    last = {}
    for record in cluster.records(topic, committed=True):
        last[bytes(record.key)] = int(record.value)
    assert last == {b"%d" % key: len(range(key, 150, 7)) for key in range(7)}
    assert len(cluster.committed(topic)) == 21


@pytest.mark.promise(
    "Spark",
    "helpers put the rows of a partition into one task, rerun failed batches, and support update mode",
)
def test_foreach_batch_does_not_retry_a_batch_of_a_stopped_query(spark, cluster, topic, tmp_path, caplog):
    files(tmp_path / "in", 1)
    held = cluster.call(asyncio.Event)
    fault = cluster.call(lambda: cluster.cluster.faults.add(ApiKey.PRODUCE, hold=held))
    options = {"kafka.bootstrap.servers": cluster.servers, "topic": topic, "transactionalId": topic}
    query = (
        spark.readStream.schema("key string, value string")
        .json(str(tmp_path / "in"))
        .writeStream.foreachBatch(foreach_batch(options, prepare=lambda rows, _: partition_by_key(rows, 3)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    asyncio.run_coroutine_threadsafe(fault.reached(), cluster.loop).result(60)
    query.stop()
    cluster.call(held.set)

    assert "retrying" not in caplog.text
    assert cluster.committed(topic) == []
