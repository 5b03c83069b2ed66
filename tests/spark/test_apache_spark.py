"""The Spark sink on real Kafka clusters (transactions v2 on 4.3.1, v1 on 3.9.2), read back with confluent-kafka."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from aioproducer import DeliveryError, Producer, TransactionAbortableError
from aioproducer.spark import SinkError, exactly_once
from aioproducer.spark.options import read_options
from tests.campaigns.spark_chaos import (
    AT_LEAST_ONCE,
    DEATHS,
    PARTITIONS,
    REAL_DEATHS,
    Run,
    apache,
    coordinator_of,
    play,
    three_brokers,
    topics_of,
)
from tests.spark.test_sink import numbered, once, values
from tests.support.read_back import read_back
from tests.support.spark_driver import Driver
from tests.support.spark_stage import write

pytestmark = [pytest.mark.apache, pytest.mark.slow]


@pytest.fixture(params=["v1", "v2"])
def kafka(request):
    """Kafka 3.9.2, on which transactions v1 are finalized, or Kafka 4.3.1, on which v2 are."""
    return request.getfixturevalue({"v1": "apache_kafka_39", "v2": "apache_kafka"}[request.param])


@pytest.fixture
def made(kafka):
    """A topic for one test, with three partitions."""
    name = f"spark-{uuid4().hex[:8]}"
    asyncio.run(kafka.create_topic(name, PARTITIONS))
    return name


def committed(kafka, topic):
    with apache(kafka) as place:
        return place.committed(topic)


class Servers:
    """A substitute for a stage, as an argument of `once`."""

    def __init__(self, kafka):
        self.servers = kafka.bootstrap_servers


def test_both_modes_write_what_consumers_read(spark, kafka, made):
    write(numbered(spark, 1000), kafka.bootstrap_servers, made, kafka__compression_type="lz4")
    for _ in range(2):
        once(spark, Servers(kafka), made, count=300, txnAppId="app", txnVersion=1)

    assert committed(kafka, made) == sorted(values(1000) + values(300))


@pytest.fixture(scope="module")
def driver():
    """A driver that is restarted only after it was killed."""
    with Driver() as running:
        yield running


DRIVERS = {"v1": ("F7", "F8", "F10"), "v2": ("F2", "F3", "F8", "F10")}
"""The places where the driver is killed. F1 is missing, because no broker is involved yet at that place."""


@pytest.mark.promise("Spark", "each row is written exactly once, no matter which process is killed and when")
@pytest.mark.timeout(400)
def test_each_row_is_committed_once_wherever_processes_are_killed(request, kafka, driver, made, tmp_path):
    killed = DRIVERS[request.node.callspec.params["kafka"]]
    names = ("F3 worker", "F3 error", "F4", "F12", "F13", *killed)
    with apache(kafka) as place:
        run = Run(driver, place, made, tmp_path / "run")

        assert play(run, [DEATHS[name] for name in names]) == 1 + len(killed)


@pytest.mark.promise(
    "Spark", "one transaction can cover several topics, and its marker survives changes to the list of topics"
)
@pytest.mark.timeout(400)
def test_each_row_for_three_topics_is_committed_once_wherever_a_process_is_killed(
    kafka, driver, made, tmp_path
):
    for topic in topics_of(made, 3)[1:]:
        asyncio.run(kafka.create_topic(topic, PARTITIONS))
    with apache(kafka) as place:
        run = Run(driver, place, made, tmp_path / "run", topics=3)

        play(run, [DEATHS[name] for name in ("F3 worker", "F7", "F10")])

        assert all(place.committed(topic) for topic in run.topics)


@pytest.mark.promise(
    "Transactions",
    "a second writer of a partition is detected by a timestamp that only the response to a repeated batch "
    "contains",
)
async def test_the_second_writer_of_a_partition_is_detected(kafka, made):
    """A real broker's answer to a repeated batch contains the time of the first one; other answers contain no time."""
    servers = kafka.bootstrap_servers
    async with Producer(servers, transactional_id=made) as owner:
        await owner.begin_transaction()
        handle = await owner.export_transaction([(made, 0), (made, 1)])
        async with Producer.attach(handle, partitions=[(made, 0)], bootstrap_servers=servers) as one:
            for value in (b"1", b"2"):
                await one.send_and_wait(made, value, partition=0)
        async with Producer.attach(handle, partitions=[(made, 0)], bootstrap_servers=servers) as two:
            with pytest.raises(DeliveryError, match="another producer has written"):
                await two.send_and_wait(made, b"3", partition=0)
            with pytest.raises(TransactionAbortableError):
                await two.send(made, b"4", partition=1)
        await owner.commit_transaction()

    log = await read_back(servers, made, committed_only=True)
    assert [record.value for record in log[0]] == [b"1", b"2"]


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
def test_a_stage_that_runs_again_after_its_dead_task_was_acknowledged_is_detected(kafka, timestamps):
    """The second writer also has attempt number 0 and the same number of rows, but different rows."""
    made = f"spark-{uuid4().hex[:8]}"
    asyncio.run(kafka.create_topic(made, PARTITIONS, config={"message.timestamp.type": timestamps}))
    told = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": made}
    told |= {"delivery": "exactly_once", "transactionalid": made}
    told |= {"logappendtime": str(timestamps == "LogAppendTime").lower()}
    options = read_options(told, is_stream=False)
    plan = exactly_once.plan(options)

    def write_rows(first):
        values = [b"%d" % number for number in range(first, first + 10)]
        rows = pa.record_batch({"value": pa.array(values), "partition": pa.array([0] * 10, pa.int32())})
        return exactly_once.write_exactly_once(
            [rows], options, plan, None, task=0, attempt=0, speculation=False
        )

    assert write_rows(0).rows == 10  # acknowledged, but Spark never gets the report
    with pytest.raises(exactly_once.OtherWriterError, match=f"another writer.*{made}"):
        write_rows(100)
    exactly_once.abort(options, plan, [None])

    assert committed(kafka, made) == []


@pytest.mark.promise(
    "Spark",
    "a second attempt, a stage that is run again, two tasks on a partition, a second driver and a new "
    "checkpoint are rejected",
)
def test_a_topic_with_log_append_time_is_rejected_without_the_option(kafka):
    name = f"spark-{uuid4().hex[:8]}"
    asyncio.run(kafka.create_topic(name, 1, config={"message.timestamp.type": "LogAppendTime"}))
    told = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": name}
    told |= {"delivery": "exactly_once", "transactionalid": name}

    def write_a_row(**more):
        options = read_options({**told, **more}, is_stream=False)
        plan = exactly_once.plan(options)
        rows = [pa.record_batch({"value": pa.array([b"v"])})]
        report = exactly_once.write_exactly_once(
            rows, options, plan, None, task=0, attempt=0, speculation=False
        )
        exactly_once.commit(options, plan, None, [report])

    with pytest.raises(
        SinkError, match="the topic has LogAppendTime, which requires the option logAppendTime=true"
    ):
        write_a_row()
    assert committed(kafka, name) == []

    write_a_row(logappendtime="true")
    assert committed(kafka, name) == [b"v"]


@pytest.fixture(scope="module")
def three(request):
    with three_brokers(request=request) as place:
        yield place


@pytest.mark.promise("Spark", "each row is written exactly once, no matter which process is killed and when")
@pytest.mark.timeout(400)
def test_brokers_are_killed_during_a_stream_and_a_commit_and_answers_are_lost(three, driver, tmp_path):
    """F11: the new coordinator or leader completes the decided commit. F6: the brokers abort the transaction."""
    played = {"exactly_once": ("leader", "F11", "F5", "F9", "F6"), "at_least_once": AT_LEAST_ONCE}
    for mode, names in played.items():
        asyncio.run(three.kafka.create_topic(mode, PARTITIONS, replication_factor=3))
        run = Run(driver, three, mode, tmp_path / mode, delivery=mode)

        assert play(run, [REAL_DEATHS[name] for name in names]) == len({"leader", "F11"} & set(names))
        outlived = [text for text in run.log if text.startswith("F6")]
        assert all("was not committed: " in text for text in outlived)


@pytest.mark.promise("Spark", "each row is written exactly once, no matter which process is killed and when")
@pytest.mark.timeout(400)
def test_a_coordinator_that_is_killed_while_a_batch_write_is_committed(spark, three):
    name, kafka = "mid-commit", three.kafka
    asyncio.run(kafka.create_topic(name, PARTITIONS, replication_factor=3))
    once(spark, Servers(kafka), name, count=30, txnAppId="app", txnVersion=0)
    victim = asyncio.run(coordinator_of(three.servers, f"tx-{name}"))
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.05):
            if len(asyncio.run(written(kafka, name))) >= 330:  # the rows are written, and the commit is next
                asyncio.run(kafka.kill(victim))
                return

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for version in (1, 1):  # the second one imitates a restarted query
            with contextlib.suppress(PythonException):  # the commit may have found no coordinator in time
                once(spark, Servers(kafka), name, count=300, txnAppId="app", txnVersion=version)
    finally:
        done.set()
        killer.join()
    assert three.mend() == 1
    assert committed(kafka, name) == sorted(values(30) + values(300))


async def written(kafka, topic):
    log = await read_back(kafka.bootstrap_servers, topic)
    return [record for records in log.values() for record in records]
