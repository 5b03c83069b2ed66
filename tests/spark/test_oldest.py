"""Tests of the oldest Spark that the sink supports, 4.0.0, which has no Arrow writer for streams.

The records are read back by Spark's own Kafka source. The required packages are downloaded once and kept under
build/bench-spark: PySpark 4.0.0 with its dependencies in a virtual environment (1 GB, from PyPI), and the four jars of
the source (10 MB, from Maven Central)."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.spark import environment
from tests.campaigns.spark_chaos import DEATHS, PARTITIONS, Place, Run, embedded, play
from tests.support.spark_driver import Driver

pytestmark = pytest.mark.slow

OLDEST = "4.0.0"
ROWS = 200


@pytest.fixture(scope="module")
def driver(request):
    """A driver with this version of PySpark, and the jars of its Kafka source."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # downloads are printed
        jars = environment.connector(OLDEST).jars
        python = environment.python_with(OLDEST)
    with Driver(python=str(python), jars=",".join(sorted(map(str, jars.glob("*.jar"))))) as running:
        yield running


def reading(driver, servers, fault=None):
    """Return a place for these brokers, whose records are read by Spark's own source."""

    def committed(topic):
        ended = driver.play({"job": "read", "servers": servers, "topic": topic})
        assert ended.code == 0, ended.said
        return sorted(value.encode() for value in ended.values)

    return Place(servers, committed, fault)


def write(driver, servers, **options):
    order = {"job": "write", "servers": servers, "rows": ROWS, "partitions": PARTITIONS, "options": options}
    ended = driver.play(order)
    assert ended.code == 0, ended.said


def write_batches(driver, place):
    """Write in both modes; with exactly_once twice, under the same version."""
    write(driver, place.servers, topic="oldest")
    told = {"delivery": "exactly_once", "transactionalId": "o", "txnAppId": "a", "txnVersion": "3"}
    for _ in range(2):
        write(driver, place.servers, topic="oldest-once", **told)

    rows = sorted(b"v%d" % number for number in range(ROWS))
    assert place.committed("oldest") == rows
    assert place.committed("oldest-once") == rows


VALUE = "'x' AS value"
MISTAKES = [
    (["id AS value"], {}, "value attribute unsupported type bigint. value must be a(n) string or binary"),
    ([VALUE, "id AS key"], {}, "key attribute unsupported type bigint. key must be a(n) string or binary"),
    (
        [VALUE, "1 AS topic"],
        {"topic": None},
        "topic attribute unsupported type int. topic must be a(n) string",
    ),
    (
        [VALUE, "array(id) AS headers"],
        {},
        "headers attribute unsupported type array<bigint>. headers must be a(n) array<struct<key:string,value:binary>>",
    ),
    (
        [VALUE, "id AS partition"],
        {},
        "partition attribute unsupported type bigint. partition must be a(n) int",
    ),
    (["'x' AS key"], {}, "Required attribute 'value' not found"),
    (
        [VALUE],
        {"topic": None},
        "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic.",
    ),
    (
        [VALUE, "CAST(NULL AS string) AS topic"],
        {"topic": None},
        "null topic present in the data. Use the topic option for setting a default topic.",
    ),
    (
        [VALUE],
        {"kafka.bootstrap.servers": None},
        "Kafka option bootstrap.servers is not set. Please make sure it is set and retry.",
    ),
    (
        [VALUE],
        {"kafka.key.serializer": "x"},
        "Kafka option 'key.serializer' is not supported as keys are serialized with ByteArraySerializer.",
    ),
]


@pytest.mark.promise(
    "Spark",
    "the columns are those of Spark's own sink; they are checked on the driver, and the same mistakes "
    "have the same messages",
)
@pytest.mark.timeout(900)
def test_sparks_own_sink_reports_the_same_errors(driver):
    with embedded() as running:
        for columns, options, text in MISTAKES:
            given = {"kafka.bootstrap.servers": running.servers, "topic": "t", **options}
            given = {name: value for name, value in given.items() if value is not None}
            order = {"job": "fail", "formats": ["kafka", "aioproducer"], "columns": columns, "options": given}

            assert [text in said for said in driver.play(order).values] == [True, True], text


@pytest.mark.promise(
    "Spark",
    "Spark 4.0.0 works, though it has no Arrow writer for streams; Spark's own source reads each row once",
)
@pytest.mark.timeout(900)  # the first time; then 60 s
def test_on_the_embedded_cluster_with_a_driver_that_is_killed(driver, tmp_path):
    with embedded() as running:
        place = reading(driver, running.servers, running.fault)
        write_batches(driver, place)
        run = Run(driver, place, "oldest-stream", tmp_path / "run")
        assert play(run, [DEATHS["F9"], DEATHS["F10"]]) == 1


@pytest.mark.promise(
    "Spark",
    "Spark 4.0.0 works, though it has no Arrow writer for streams; Spark's own source reads each row once",
)
@pytest.mark.apache
@pytest.mark.timeout(900)
def test_on_a_real_kafka_with_a_commit_that_fails_after_it_took_effect(driver, apache_kafka, tmp_path):
    for topic in ("oldest", "oldest-once", "oldest-stream"):
        asyncio.run(apache_kafka.create_topic(topic, PARTITIONS))
    place = reading(driver, apache_kafka.bootstrap_servers)

    write_batches(driver, place)
    play(Run(driver, place, "oldest-stream", tmp_path / "run"), [DEATHS["F12"]])
