"""Tests of a task's rows without Spark: the worker's producer, the reports, and the errors."""

from __future__ import annotations

import multiprocessing
import pickle
import time
import traceback
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    StringType,
    StructField,
    StructType,
)

from aioproducer import ConfigError, KafkaError, TopicPartition, murmur2_partitions
from aioproducer.spark import SinkError, exactly_once, sink, task
from aioproducer.spark.options import PlanningError, read_options
from aioproducer.spark.reports import TaskReport, Version, Written, summary
from aioproducer.spark.sink import KafkaSink
from aioproducer.testing import ApiKey, ErrorCode
from tests.support.spark_stage import stage

MODES = {"delivery": "exactly_once", "transactionalid": "tx"}


@pytest.fixture
def cluster():
    with stage(1, topics={"t": 3, "u": 1}) as running:
        yield running
        for key in list(task._kept):
            task._kept.pop(key).close(timeout=1)


def options_of(cluster, **told):
    given = {"kafka.bootstrap.servers": cluster.servers, "topic": "t", "kafka.retry.backoff.ms": "5", **told}
    return read_options({name: value for name, value in given.items() if value is not None}, is_stream=False)


def batch_of(first, count, **columns):
    values = [b"v%d" % number for number in range(first, first + count)]
    return pa.record_batch({"value": pa.array(values, pa.binary()), **columns})


# --------------------------------------------------------------------------------------------------- at least once


def test_a_report_lists_the_rows_of_each_partition(cluster):
    batches = [batch_of(0, 100), batch_of(100, 50)]

    report = task.write_at_least_once(batches, options_of(cluster), 7)

    assert (report.task, report.rows, report.retries) == (7, 150, 0)
    assert sum(written.rows for written in report.written.values()) == 150
    for (topic, partition), written in report.written.items():
        assert topic == "t"
        assert (
            written.last_offset == len(cluster.call(lambda p=partition: cluster.cluster.records("t", p))) - 1
        )
    assert report.size > 0
    assert 0 < report.p99 < 10
    assert pickle.loads(pickle.dumps(report)) == report
    assert summary([report]).startswith("150 rows, 0.0 MB to ")


@pytest.mark.promise(
    "Spark",
    "at least once: a worker keeps its producer, and drops it with all its pending records when a task fails",
)
def test_a_workers_producer_is_reused_and_dropped_when_it_fails(cluster):
    options = options_of(cluster)
    task.write_at_least_once([batch_of(0, 1)], options, 0)
    (kept,) = task._kept.values()

    task.write_at_least_once([batch_of(1, 1)], options, 1)
    assert list(task._kept.values()) == [kept]

    cluster.call(lambda: cluster.cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD))
    with pytest.raises(SinkError, match=r"1 of 1 row for topic t failed.*INVALID_RECORD"):
        task.write_at_least_once([batch_of(2, 1)], options, 2)
    assert not task._kept
    task.write_at_least_once([batch_of(3, 1)], options, 3)
    assert cluster.committed("t") == [b"v0", b"v1", b"v3"]


@pytest.mark.promise(
    "Spark",
    "at least once: a worker keeps its producer, and drops it with all its pending records when a task fails",
)
def test_no_record_of_a_failed_task_is_sent_later(cluster):
    def batches():
        yield batch_of(0, 10)
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="own"):
        task.write_at_least_once(batches(), options_of(cluster, **{"kafka.linger.ms": "60000"}), 0)

    task.write_at_least_once([batch_of(100, 1)], options_of(cluster), 0)
    assert cluster.committed("t") == [b"v100"]


def test_a_worker_keeps_few_producers(cluster):
    for number in range(task.MOST_PRODUCERS + 2):
        task.write_at_least_once(
            [batch_of(number, 1)], options_of(cluster, **{"kafka.client.id": f"c{number}"}), 0
        )

    names = {producer.config.client_id for producer in task._kept.values()}
    assert names == {f"c{number}" for number in range(2, task.MOST_PRODUCERS + 2)}


def write_in_child(options):
    report = task.write_at_least_once([batch_of(1, 1)], options, 0)
    assert report.rows == 1
    assert len(task._kept) == 2  # the parent's producer can neither be used nor closed


@pytest.mark.promise(
    "Spark",
    "at least once: a worker keeps its producer, and drops it with all its pending records when a task fails",
)
def test_a_forked_worker_has_its_own_producer(cluster):
    options = options_of(cluster)
    task.write_at_least_once([batch_of(0, 1)], options, 0)

    child = multiprocessing.get_context("fork").Process(target=write_in_child, args=(options,))
    child.start()
    child.join(30)

    assert child.exitcode == 0
    assert cluster.committed("t") == [b"v0", b"v1"]


@pytest.mark.promise(
    "Spark",
    "at least once: a worker keeps its producer, and drops it with all its pending records when a task fails",
)
def test_unacknowledged_bytes_are_limited(cluster, monkeypatch):
    most = []
    monkeypatch.setattr(task, "IN_FLIGHT", 4000)
    monkeypatch.setattr(task, "GATHERED", 1)
    writer_of = task.TaskWriter.write

    def write(self, batch):
        writer_of(self, batch)
        most.append(self._in_flight)

    monkeypatch.setattr(task.TaskWriter, "write", write)
    size = batch_of(0, 100).nbytes

    report = task.write_at_least_once((batch_of(n * 100, 100) for n in range(50)), options_of(cluster), 0)

    assert report.rows == 5000
    assert 0 < max(most) <= max(4000, size) + size


@pytest.mark.promise(
    "Spark",
    "rows of small Arrow batches go into the buffer 4 MB at a time, since each call costs a wake-up of "
    "the loop's thread; all batches of a task have the same columns",
)
def test_small_batches_go_into_the_buffer_together(cluster, monkeypatch):
    calls = []
    send_many = task.Producer.send_many

    def noted(self, topic, values, **columns):
        calls.append(len(values))
        return send_many(self, topic, values, partitions=0, **columns)

    monkeypatch.setattr(task.Producer, "send_many", noted)
    monkeypatch.setattr(task, "GATHERED", 3 * batch_of(100, 100).nbytes)
    batches = (batch_of(number * 100, 100) for number in range(1, 8))

    report = task.write_at_least_once(batches, options_of(cluster), 0)

    assert calls == [300, 300, 100]
    assert report.rows == 700
    assert cluster.committed("t") == [b"v%d" % number for number in range(100, 800)]


@pytest.mark.promise(
    "Spark",
    "rows of small Arrow batches go into the buffer 4 MB at a time, since each call costs a wake-up of "
    "the loop's thread; all batches of a task have the same columns",
)
def test_rows_of_several_batches_go_to_their_own_topics(cluster):
    batches = [
        batch_of(0, 3, topic=pa.array(["t", "u", "t"])),
        batch_of(3, 2, topic=pa.array(["u", "u"])),
    ]

    report = task.write_at_least_once(batches, options_of(cluster, topic=None), 0)

    assert report.rows == 5
    assert sorted(cluster.committed("t")) == [b"v0", b"v2"]
    assert cluster.committed("u") == [b"v1", b"v3", b"v4"]


# ---------------------------------------------------------------------------------------------------- exactly once


def planned(cluster, **told):
    options = options_of(cluster, **MODES, **told)
    return options, exactly_once.plan(options)


def planned_writer(cluster, **told):
    """Return a writer for `df.write` whose transaction has begun, and its options."""
    given = {"kafka.bootstrap.servers": cluster.servers, "topic": "t", **MODES, **told}
    writer = KafkaSink(given).writer(StructType([StructField("value", StringType())]), False)
    writer.__getstate__()  # pickling plans the write
    return read_options(given, is_stream=False), writer


def as_task(monkeypatch, number, attempt=0):
    """Act as the task with this number from now on."""
    context = SimpleNamespace(
        partitionId=lambda: number,
        attemptNumber=lambda: attempt,
        stageId=lambda: 0,
        getLocalProperty=lambda name: None,
    )
    monkeypatch.setattr(sink.TaskContext, "get", lambda: context)


def write(options, plan, batches, number=0, task_id=0, attempt=0, speculation=False, owner="q"):
    return exactly_once.write_exactly_once(
        batches,
        options,
        plan,
        Version(owner, number),
        task=task_id,
        attempt=attempt,
        speculation=speculation,
    )


def placed(first, count, partition):
    return batch_of(first, count, partition=pa.repeat(pa.scalar(partition, pa.int32()), count))


def test_a_write_is_planned_written_and_committed(cluster):
    options, plan = planned(cluster)
    assert (plan.partitions, plan.marker) == ((("t", 3),), None)

    reports = [write(options, plan, [placed(n * 10, 10, n)], task_id=n) for n in range(3)]
    assert cluster.committed("t") == []
    assert exactly_once.commit(options, None, Version("q", 0), reports)

    assert len(cluster.committed("t")) == 30
    assert exactly_once.plan(options).marker == Version("q", 0)


def test_the_sockets_of_a_task_are_closed_when_it_reports(cluster):
    options, plan = planned(cluster)

    write(options, plan, [placed(0, 10, 0)])

    deadline = time.monotonic() + 5
    # The broker closes its side a little later.
    while open_connections(cluster) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert open_connections(cluster) == 0
    assert not task._kept


def open_connections(cluster):
    return cluster.call(lambda: cluster.cluster.broker(0).connection_count)


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
@pytest.mark.parametrize(
    ("attempt", "speculation", "why"),
    [
        (1, False, r"attempt 1: .*executor was lost.*Lost task 0\.0.*restart the query"),
        (0, True, r"spark\.speculation is on.*Set spark\.speculation=false"),
    ],
)
def test_a_second_attempt_does_not_write(cluster, attempt, speculation, why):
    options, plan = planned(cluster)

    with pytest.raises(SinkError, match=rf"did not write any rows, because.*{why}"):
        write(options, plan, [placed(0, 1, 0)], attempt=attempt, speculation=speculation)
    assert cluster.records("t") == []


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
@pytest.mark.parametrize(
    ("count", "answer"),
    [(10, "another producer has written"), (7, "OUT_OF_ORDER_SEQUENCE_NUMBER"), (12, "OUT_OF_ORDER")],
)
def test_the_second_writer_of_a_partition_gets_an_error_with_advice(cluster, count, answer):
    """The second writer is another task, or a task of a repeated stage, which has attempt number 0 again."""
    options, plan = planned(cluster)
    write(options, plan, [placed(0, 10, 0)])

    with pytest.raises(SinkError, match=rf"already had another writer.*partition_by_key.*{answer}"):
        write(options, plan, [placed(0, count, 0)])


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_stage_that_runs_again_after_its_dead_task_was_acknowledged_is_detected(
    version, timestamps, monkeypatch
):
    """The second writer also has attempt number 0 and the same number of rows, but different rows."""
    with stage(1, transaction_version=version) as cluster:
        config = {"message.timestamp.type": timestamps}
        cluster.call(lambda: cluster.cluster.create_topic("t", 3, config=config))
        is_append_time = str(timestamps == "LogAppendTime").lower()
        options, writer = planned_writer(cluster, logappendtime=is_append_time)
        as_task(monkeypatch, 0)
        dead = writer.write(iter([placed(0, 10, 0)]))
        assert (dead.rows, len(cluster.records("t"))) == (10, 10)  # acknowledged, but the report is lost

        again = writer.write(iter([placed(100, 10, 0)]))
        as_task(monkeypatch, 1)
        other = writer.write(iter([placed(200, 10, 1)]))
        with pytest.raises(SinkError) as caught:
            writer.commit([again, other])
        writer.abort([again, other])

        assert "task 0 found another writer's rows in t-0, and no other task" in str(caught.value)
        assert "an executor was lost" in str(caught.value)
        assert "restart the query" in str(caught.value)
        assert "partition_by_key" not in str(caught.value)
        assert cluster.committed("t") == []
        assert exactly_once.plan(options).marker is None


def test_two_tasks_of_an_attempt_that_share_a_partition_are_both_named(cluster, monkeypatch):
    _, writer = planned_writer(cluster)
    reports = []
    for task_id in range(2):
        as_task(monkeypatch, task_id)
        reports.append(writer.write(iter([placed(0, 10, 0)])))

    with pytest.raises(SinkError, match=r"tasks 0 and 1 have both written to t-0.*partition_by_key"):
        writer.commit(reports)


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
def test_a_nonexistent_partition_is_rejected_without_waiting(cluster):
    options, plan = planned(cluster)
    batch = batch_of(0, 3, partition=pa.array([0, 3, 1], pa.int32()))

    with pytest.raises(SinkError, match=r"for partition 3, but the last .* t is 2; .*by_key\(df, 3\)"):
        write(options, plan, [batch])
    assert cluster.records("t") == []


@pytest.mark.promise(
    "Spark",
    "rows of small Arrow batches go into the buffer 4 MB at a time, since each call costs a wake-up of "
    "the loop's thread; all batches of a task have the same columns",
)
@pytest.mark.parametrize(
    "keys", [([None, b"a"], [b"a", b"b"]), ([b"a", b"b"], [None, b"b"]), ([b"a"], [b"b"])]
)
def test_batches_of_a_single_task_are_joined_even_if_only_some_have_rows_without_keys(cluster, keys):
    options, plan = planned(cluster)
    batches = [batch_of(10 * at, len(some), key=pa.array(some, pa.binary())) for at, some in enumerate(keys)]

    report = write(options, plan, batches)

    rows = [row for batch in batches for row in batch.to_pylist()]
    assert exactly_once.commit(options, plan, Version("q", 0), [report])
    assert sorted(cluster.committed("t")) == sorted(row["value"] for row in rows)
    assert {
        (record.key, partition)
        for partition in range(3)
        for record in cluster.call(lambda p=partition: cluster.cluster.records("t", p))
        if record.key is not None
    } == {(key, murmur2_partitions([key], 3)[0]) for some in keys for key in some if key is not None}


def test_reports_that_contradict_each_other_are_not_committed(cluster):
    options, plan = planned(cluster)
    one = write(options, plan, [placed(0, 10, 0)])
    _, later = planned(cluster)
    two = write(options, later, [placed(0, 10, 1)], task_id=1)
    skipped = TaskReport(2, 0, 0, 0.0, 0, 0.0, {}, later, Version("q", 0), is_skipped=True)
    clash = TaskReport(3, 1, 0, 0.0, 0, 0.0, {TopicPartition("t", 1): Written(1, 0)}, later, Version("q", 0))

    for reports, text in (
        ([one, two], "different attempts"),
        ([two, skipped], "some tasks skipped"),
        ([two, clash], "tasks 1 and 3 have both written to t-1.*partition_by_key"),
    ):
        with pytest.raises(SinkError, match=text):
            exactly_once.commit(options, None, Version("q", 0), reports)
    assert cluster.committed("t") == []


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
def test_a_task_rejected_by_kafka_fails_the_commit_and_is_not_retried(cluster, monkeypatch):
    _, writer = planned_writer(cluster)
    as_task(monkeypatch, 0)
    cluster.call(lambda: cluster.cluster.faults.add(ApiKey.PRODUCE, error=ErrorCode.INVALID_RECORD))

    failed = writer.write(iter([placed(0, 10, 0)]))
    with pytest.raises(SinkError, match=r"rows for topic t failed.*INVALID_RECORD"):
        writer.commit([failed])
    writer.abort([failed])

    assert pickle.loads(pickle.dumps(failed)) == failed
    assert cluster.committed("t") == []


def test_a_write_that_took_too_long_is_not_committed(cluster):
    options, plan = planned(cluster)
    report = write(options, plan._replace(begun_at=time.time() - 1000), [placed(0, 1, 0)])

    with pytest.raises(SinkError, match=r"took 1000 s, longer than.*900 s.*maxFilesPerTrigger"):
        exactly_once.commit(options, None, Version("q", 0), [report])


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
def test_a_later_plan_fences_an_earlier_one(cluster):
    """F13: a second driver."""
    options, plan = planned(cluster)
    report = write(options, plan, [placed(0, 10, 0)])
    planned(cluster)

    with pytest.raises(
        SinkError, match=r"'tx' was not committed.*another driver has taken over this transactionalId"
    ):
        exactly_once.commit(options, None, Version("q", 0), [report])
    assert cluster.committed("t") == []


@pytest.mark.parametrize("reported", [True, False])
def test_an_abort_fences_remaining_writers_and_never_raises(cluster, reported):
    options, plan = planned(cluster)
    report = write(options, plan, [placed(0, 10, 0)])

    exactly_once.abort(options, None, [report] if reported else [report, None])

    with pytest.raises(SinkError):
        write(options, plan, [placed(10, 10, 1)], task_id=1)
    assert cluster.committed("t") == []
    broken = read_options(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "kafka.max.block.ms": "200", **MODES},
        is_stream=False,
    )
    exactly_once.abort(broken, plan, [report])


@pytest.mark.promise("Spark", "the outcome of a Spark commit is determined even if the response is lost")
def test_a_lost_answer_to_the_commit_is_recovered(cluster):
    """F9: the commit is sent again, or its result is found in the marker."""
    options, plan = planned(cluster)
    report = write(options, plan, [placed(0, 10, 0)])
    cluster.call(lambda: cluster.cluster.faults.add(ApiKey.END_TXN, drop_after_append=True))

    assert exactly_once.commit(options, None, Version("q", 0), [report])
    assert len(cluster.committed("t")) == 10


@pytest.mark.promise("Spark", "the outcome of a Spark commit is determined even if the response is lost")
def test_a_commit_that_is_never_answered_is_found_in_the_log(cluster):
    options, plan = planned(cluster, **{"kafka.max.block.ms": "1500"})
    report = write(options, plan, [placed(0, 10, 0)])
    cluster.call(lambda: cluster.cluster.faults.add(ApiKey.END_TXN, drop_after_append=True, count=10_000))

    assert exactly_once.commit(options, None, Version("q", 0), [report])
    assert len(cluster.call(lambda: cluster.cluster.requests_of(ApiKey.END_TXN))) > 1
    assert len(cluster.committed("t")) == 10


def test_a_lost_acknowledgement_writes_nothing_twice(cluster, monkeypatch):
    """F5: the lost answer is that of a later batch, since the writer of a repeated first batch can't be determined."""
    options, plan = planned(cluster)
    monkeypatch.setattr(task, "GATHERED", 1)

    def batches():
        yield placed(0, 10, 0)
        while len(cluster.records("t")) < 10:
            time.sleep(0.01)
        yield placed(10, 10, 0)

    fault = cluster.call(lambda: cluster.cluster.faults.add(ApiKey.PRODUCE, drop_after_append=True, skip=1))
    report = write(options, plan, batches())
    assert fault.is_used_up
    assert exactly_once.commit(options, None, Version("q", 0), [report])
    assert len(cluster.committed("t")) == 20


@pytest.mark.parametrize("rows", [0, 10])
def test_a_write_without_a_version_leaves_the_marker_as_it_is(cluster, rows):
    options, plan = planned(cluster)
    report = write(options, plan, [placed(0, 10, 0)], number=7)
    assert exactly_once.commit(options, None, Version("q", 7), [report])

    options, plan = planned(cluster)
    batches = [placed(10, rows, 0)] if rows else []
    report = exactly_once.write_exactly_once(
        batches, options, plan, None, task=0, attempt=0, speculation=False
    )
    assert exactly_once.commit(options, plan, None, [report])

    assert len(cluster.committed("t")) == 10 + rows
    assert exactly_once.plan(options).marker == Version("q", 7)


TOPICS = {"topic": None, "topics": "t,u"}


def rows_for(topics, first=0, partition=0):
    """A row for each topic, all for the same partition."""
    columns = {"topic": pa.array(topics), "partition": pa.array([partition] * len(topics), pa.int32())}
    return batch_of(first, len(topics), **columns)


@pytest.mark.promise(
    "Spark", "one transaction can cover several topics, and its marker survives changes to the list of topics"
)
def test_rows_for_several_topics_are_committed_together(cluster):
    options, plan = planned(cluster, **TOPICS)
    assert plan.partitions == (("t", 3), ("u", 1))

    reports = [
        write(options, plan, [rows_for(["t", "u", "t"])]),
        write(options, plan, [rows_for(["t"], 10, 2), rows_for(["t"], 11, 2)], task_id=2),
    ]
    assert cluster.committed("t") == cluster.committed("u") == []
    assert exactly_once.commit(options, None, Version("q", 0), reports)

    assert cluster.committed("t") == [b"v0", b"v10", b"v11", b"v2"]
    assert cluster.committed("u") == [b"v1"]
    assert reports[0].written.keys() == {TopicPartition("t", 0), TopicPartition("u", 0)}


@pytest.mark.promise(
    "Spark", "one transaction can cover several topics, and its marker survives changes to the list of topics"
)
def test_the_newest_marker_of_all_topics_counts(cluster):
    """Topic u leaves the list, and later returns with an older marker; topic w is new."""
    cluster.call(lambda: cluster.cluster.create_topic("w", 1))
    lists = [("t", "t"), ("t,u", "u"), ("t", "t"), ("w,u,t", "w"), ("w", "w")]
    for number, (topics, target) in enumerate(lists):
        options, plan = planned(cluster, topic=None, topics=topics)
        assert plan.marker == (Version("q", number - 1) if number else None)
        assert plan.writes == number
        report = write(options, plan, [rows_for([target], number)], number)
        assert exactly_once.commit(options, None, Version("q", number), [report])

    again = write(options, exactly_once.plan(options), [rows_for(["w"])], number=4)
    assert again.is_skipped


def test_a_newer_owner_with_a_lower_number_is_found_among_several_topics(cluster):
    for topics, owner, number in (("t,u", "old", 50), ("t", "new", 0)):
        options, plan = planned(cluster, topic=None, topics=topics)
        report = write(replace(options, accepts_reset=True), plan, [rows_for(["t"])], number, owner=owner)
        assert exactly_once.commit(options, None, Version(owner, number), [report])

    assert planned(cluster, topic=None, topics="t,u")[1].marker == Version("new", 0)


@pytest.mark.parametrize("topic", ["v", None])
def test_a_row_for_another_topic_is_named_with_the_option(cluster, topic):
    options, plan = planned(cluster, **TOPICS)

    with pytest.raises(
        SinkError, match=f"row 4 of task 1 is for topic {topic!r}, but the 'topics' option names only t, u"
    ):
        write(options, plan, [rows_for(["t", "u", "t"]), rows_for(["u", topic])], task_id=1)
    assert cluster.records("t") == []


def test_a_partition_that_one_of_several_topics_lacks_is_rejected(cluster):
    options, plan = planned(cluster, **TOPICS)

    write(options, plan, [rows_for(["t"], partition=2)])
    with pytest.raises(SinkError, match=r"partition 1, but .* u is 0; .*by_key\(df, \{'t': 3, 'u': 1\}\)"):
        write(options, plan, [rows_for(["t", "u"], partition=1)], task_id=1)


def test_a_single_task_places_rows_of_several_topics_by_their_keys(cluster):
    options, plan = planned(cluster, **TOPICS)
    keys = [b"a", None, b"c", b"d"]
    batch = batch_of(0, 4, key=pa.array(keys, pa.binary()), topic=pa.array(["t", "t", "u", "t"]))

    assert exactly_once.commit(options, plan, Version("q", 0), [write(options, plan, [batch])])

    assert cluster.committed("t") == [b"v0", b"v1", b"v3"]
    assert cluster.committed("u") == [b"v2"]


def test_a_foreign_group_offset_is_not_mistaken_for_a_marker(cluster):
    options, _ = planned(cluster)
    with exactly_once._closed_soon(options.producer(transactional_id="other")) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition("t", 0): 5}, "aioproducer.tx")
        producer.commit_transaction()

    with pytest.raises(SinkError, match="an offset that this sink did not write"):
        planned(cluster)


# ----------------------------------------------------------------------------------------------------- other tests


@pytest.mark.promise("Spark", "speculation and the continuous trigger are rejected on the driver")
def test_a_stream_planned_before_its_offsets_are_written_has_a_continuous_trigger(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    told = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    schema = StructType([StructField("value", StringType())])

    def plan(place):
        pickle.dumps(KafkaSink({**told, "checkpointLocation": place}).streamWriter(schema, False))

    plan(str(checkpoint))  # the directory does not exist: it may be on another machine
    (checkpoint / "offsets").mkdir(parents=True)
    plan(str(checkpoint))
    (checkpoint / "metadata").write_text("{}")
    for place in (str(checkpoint), f"file:{checkpoint}", f"file://{checkpoint}"):
        with pytest.raises(PlanningError, match="use processingTime or availableNow"):
            plan(place)
    plan(f"s3a:/{checkpoint}")
    (checkpoint / "offsets" / "0").write_text("v1")
    plan(str(checkpoint))


def test_secrets_are_not_shown():
    told = {
        "kafka.bootstrap.servers": "a:1",
        "topic": "t",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="canary";',
    }
    options = read_options(told, is_stream=True)
    assert "canary" not in repr(options)
    with pytest.raises(ConfigError) as caught:
        read_options({**told, "kafka.acks": "nine"}, is_stream=True)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kafka.acks": "nine"},
        {"kafka.bootstrap.servers": ""},
        {"kafka.lingr.ms": "1"},
        {"no such option": "1"},
        {"delivery": "twice"},
        {"delivery": "exactly_once"},
        {"txnappid": "app"},
    ],
)
def test_no_frame_of_a_rejection_shows_a_password(wrong):
    told = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": "-".join(["canary", "password"]),
    }
    with pytest.raises(ConfigError) as caught:
        read_options({**told, **wrong}, is_stream=False)

    assert_no_frame_of_ours_shows(caught.value, "canary-password")


def assert_no_frame_of_ours_shows(error, password):
    ours = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    assert ours
    for frame in ours:
        for name, value in frame.f_locals.items():
            assert password not in repr(value), f"{frame.f_code.co_qualname}: {name}"


def test_no_frame_of_a_task_without_a_connection_shows_a_password(cluster):
    password = "-".join(["canary", "password"])
    login = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": password,
        "kafka.max.block.ms": "500",
    }
    options = options_of(cluster, **login)

    with pytest.raises(KafkaError) as caught:
        task.write_at_least_once([], options, 0)

    assert_no_frame_of_ours_shows(caught.value, password)


@pytest.mark.promise(
    "Spark",
    "each write adds a line to the file of reports; if the file can't be written, the write still succeeds",
)
def test_reports_need_a_directory_and_a_full_disk_does_not_fail_a_batch(cluster, tmp_path, caplog):
    told = {"kafka.bootstrap.servers": cluster.servers, "topic": "t"}
    schema = StructType([StructField("value", StringType())])
    lost = KafkaSink({**told, "reports": str(tmp_path / "none" / "lines")}).writer(schema, False)
    with pytest.raises(
        PlanningError, match="must be a file in an existing directory on the driver's machine"
    ):
        pickle.dumps(lost)  # pickling plans the write
    lost.commit([lost.write(iter([batch_of(0, 3)]))])  # the directory has disappeared in the meantime
    assert f"no line was added to {tmp_path}" in caplog.text

    writer = KafkaSink({**told, "reports": "/dev/full"}).writer(schema, False)
    writer.commit([writer.write(iter([batch_of(0, 3)]))])

    assert "no line was added to /dev/full" in caplog.text
    assert len(cluster.committed("t")) == 6


@pytest.mark.parametrize("given", ["7.5", "-1", "x", str(2**63)])
def test_a_version_must_be_a_number(given):
    told = {"kafka.bootstrap.servers": "a:1", "topic": "t", **MODES, "txnappid": "a", "txnversion": given}

    with pytest.raises(ConfigError, match="txnVersion"):
        read_options(told, is_stream=False)


def test_a_stream_rejects_a_version_from_the_user():
    told = {"kafka.bootstrap.servers": "a:1", "topic": "t", **MODES, "txnappid": "a", "txnversion": "1"}

    with pytest.raises(ConfigError, match="for batch writes"):
        KafkaSink(told).streamWriter(StructType([StructField("value", StringType())]), False)
