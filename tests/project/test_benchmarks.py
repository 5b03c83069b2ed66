"""benchmarks/: the acknowledging broker, the real one whose log is read back, each kind of
measurement, and the plan."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import time
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import against
import bench
import clients
import codec_libraries
import gathering
import large_cluster
import observability
import plan
import programs
import real_kafka
import runner
import services
import tls
import transforming
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.messages import ApiVersionsRequest
from aioproducer.testing.embedded.releases import release_named
from broker import AckBroker
from figures import Figures
from job import LINES, Job, lines
from plan import AIOKAFKA, BARE_LOOP, BARE_STREAM, CALLBACK, CLIENTS, OURS, REAL, Cell
from programs import FRANZ_GO, JAVA, LIBRDKAFKA
from tests.support.producing import quick_producer, results, send_numbers, within
from tests.support.raw_client import RawClient
from tests.support.read_back import read_back

pytestmark = pytest.mark.slow

COMPILED = (FRANZ_GO, LIBRDKAFKA, JAVA)

# ------------------------------------------------------------------------------------ the acknowledging broker


@pytest.mark.promise(
    "Speed",
    "the benchmarks' acknowledging broker runs in another process, accepts any topics and partitions, and "
    "counts records per partition",
)
async def test_the_acknowledging_broker_counts_the_records_of_each_partition():
    with AckBroker("--topic", "t:3", "--topic", "u:1") as broker:
        async with quick_producer(broker.bootstrap) as producer:
            deliveries = await send_numbers(producer, range(30), partition=2)
            deliveries += await send_numbers(producer, range(500), topic="u", key=b"k")
            found = await results(deliveries)
        counts = broker.counts()

    assert [metadata.offset for metadata in found] == [*range(30), *range(500)]
    assert {name: topic["records"] for name, topic in counts["topics"].items()} == {
        "t": [0, 0, 30],
        "u": [500],
    }


@pytest.mark.promise("Speed", "the benchmarks' acknowledging broker answers at once or after a given delay")
async def test_the_acknowledging_broker_answers_after_the_requested_delay():
    with AckBroker("--topic", "t:1", "--delay-ms", "30") as broker:
        async with quick_producer(broker.bootstrap, delivery_timeout_ms=400_000) as producer:
            await producer.partitions_for("t")
            began = time.perf_counter()  # uvloop's own clock counts in milliseconds
            await within(2, producer.send_and_wait("t", b"v"))

            assert time.perf_counter() - began >= 0.03


@pytest.mark.promise("Speed", "the benchmarks' acknowledging broker has the version ranges of a real broker")
async def test_the_acknowledging_broker_speaks_the_versions_of_a_real_one():
    with AckBroker() as broker:
        async with RawClient(broker.bootstrap) as client:
            answer = await client.ask(ApiVersionsRequest(), 4)

    newest = {entry.api_key: entry.max_version for entry in answer.api_keys}
    real = release_named("4.3").versions
    for api_key in (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID):
        assert newest[api_key] == real[api_key].max


@pytest.mark.promise(
    "Speed",
    "the benchmarks' large cluster rejects records sent to a former leader, and accepts each record once",
)
async def test_the_large_cluster_moves_its_leaders_and_loses_no_record(monkeypatch):
    counts = []
    obey = large_cluster.Double.obey
    monkeypatch.setattr(
        large_cluster.Double,
        "obey",
        lambda double, command: counts.append(obey(double, command)) or counts[-1],
    )
    with large_cluster.Double("--brokers", "5", "--topics", "6", "--partitions", "4") as double:
        steps = await large_cluster.run(double, topics=6, partitions=4, idle_seconds=0.01)

    assert [step["step"] for step in steps][:3] == [
        "start",
        "metadata of all topics",
        "a record to each partition",
    ]
    assert all(step["cpu_seconds"] > 0 and step["lag_max_ms"] >= step["lag_p99_ms"] >= 0 for step in steps)
    assert counts[-1]["records"] == 3 * 6 * 4
    assert counts[-1]["rejected_batches"] == 12, "half of the partitions have moved"


# --------------------------------------------------------------------------------------------- the measurements


def run(cell: Cell) -> dict:
    with runner.Targets() as targets:
        return runner.run(cell, targets)


SMALL_JOBS = {
    "throughput": ("pipelined", {"cpu_us", "records_per_s"}),
    "closed loop": ("closed_loop", {"p50_ms", "p99_ms", "cpu_us"}),
    "memory": ("memory", {"bytes_per_record"}),
    "lag": ("lag", {"lag_p99_ms", "lag_max_ms", "idle_p99_ms", "idle_max_ms"}),
    "window": ("window", {"cpu_us", "records_per_s"}),
}


@pytest.mark.promise(
    "Speed",
    "the benchmarks measure CPU per record, records/s, closed loop p50/p99, RSS per waiting record and "
    "lag of the loop",
)
@pytest.mark.parametrize("section", SMALL_JOBS)
def test_each_kind_of_measurement_gives_its_figures_and_is_counted(section):
    kind, figures = SMALL_JOBS[section]
    job = Job(kind, OURS, records=20_000, warm_up=10_000, seconds=0.1, tasks=10, partitions=3)

    result = run(Cell(section, "small", OURS, job, 1, silent=kind == "memory"))

    assert figures <= result.keys()
    assert all(result[name] > 0 for name in figures)


WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None
import asyncio, measure, plan
from job import Job, new_event_loop
from plan import OURS
assert new_event_loop is asyncio.new_event_loop
assert {cell.job.loop for cell in plan.throughput(False)} == {"asyncio"}
cells = [cell for cell in plan.throughput(False) if cell.job.client == OURS]
assert len(cells) == len({(cell.column, cell.row) for cell in cells}) == 9, cells
sys.argv[1:] = [Job("idle", OURS, seconds=0.05).as_argument()]
measure.main()
"""


def test_without_uvloop_the_clients_run_on_asyncios_loop():
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_UVLOOP],
        cwd=Path(bench.__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 0, found.stderr
    assert "lag_p99_ms" in json.loads(found.stdout)


@pytest.mark.promise("Speed", "`send_many` is compared with a bare stream that writes as many bytes")
@pytest.mark.parametrize("arrow", [False, True])
def test_columns_are_measured_with_a_broker_and_without(arrow):
    for kind in ("columns", "encoding"):
        job = Job(kind, OURS, records=100_000, warm_up=100_000, arrow=arrow, keyed=True)
        result = run(Cell("columns", "small", kind, job, 1))

        assert result["cpu_us"] > 0
        assert result["sent"] == (200_000 if kind == "columns" else 0)


@pytest.mark.promise("Speed", "`send_many` is compared with a bare stream that writes as many bytes")
def test_the_bare_stream_writes_as_many_bytes_as_the_records_have():
    counted = []

    class CountingBroker(AckBroker):
        def counts(self) -> dict:
            counted.append(super().counts())
            return counted[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "AckBroker", CountingBroker)
        job = Job("stream", BARE_STREAM, value_size=100, records=200_000, warm_up=100_000)
        result = run(Cell("wire", "small", BARE_STREAM, job, 1))

    assert result["records_per_s"] > 0
    assert counted[0]["record_bytes"] == 300_000 * 100


@pytest.mark.promise(
    "Speed",
    "every client is measured in the same interleaved run, with the same settings: aiokafka, "
    "confluent-kafka in its three forms, kafka-python, franz-go and Java where they can be built",
)
@pytest.mark.parametrize("client", [client for client in CLIENTS if client not in COMPILED])
def test_every_client_in_python_is_measured_on_the_acknowledging_broker(client):
    job = Job("pipelined", client, records=10_000, warm_up=10_000)

    result = run(Cell("throughput", "small", client, job, 1))

    assert result["cpu_us"] > 0
    assert result["sent"] == 20_000


@pytest.mark.parametrize("kind", ["pipelined", "window"])
@pytest.mark.parametrize("size", [100, 1000])
def test_the_bare_loop_sends_valid_batches_of_which_each_record_is_counted(kind, size):
    job = Job(kind, BARE_LOOP, value_size=size, records=10_000, warm_up=10_000, window=5_000)

    result = run(Cell("throughput", "small", BARE_LOOP, job, 1))

    assert result["sent"] == 20_000
    assert result["records_per_batch"] > {100: 500, 1000: 60}[size]


@pytest.mark.apache
async def test_the_batches_of_the_bare_loop_are_what_a_real_kafka_stores(apache_kafka, topic):
    servers = apache_kafka.bootstrap_servers
    await apache_kafka.create_topic(topic, 3)
    async with quick_producer(servers) as producer:  # it retries until each partition can be written to
        before = [await producer.send_and_wait(topic, b"", partition=number) for number in range(3)]
    job = Job("pipelined", BARE_LOOP, partitions=3, bootstrap=servers, topic=topic)
    face = await clients.open_bare_loop(job)
    values = lines(100)
    for delivery in [await face.send(topic, value) for value in values]:
        await delivery
    await face.close()

    log = await read_back(servers, topic, offsets={at.partition: at.offset + 1 for at in before})
    assert len(log) == 3
    assert sorted(record.value for records in log.values() for record in records) == sorted(values)


async def test_the_bare_loop_counts_no_record_that_the_broker_rejects(kafka_cluster):
    job = Job("pipelined", BARE_LOOP, bootstrap=kafka_cluster.bootstrap_servers, topic="not-there")
    face = await clients.open_bare_loop(job)

    with pytest.raises(RuntimeError, match="error 3"):
        await within(5, face.send_and_wait("not-there", b"v" * job.value_size))
    await face.close()


IN_SERVICES = [OURS, AIOKAFKA, CALLBACK]


@pytest.mark.promise(
    "Speed", "the cost of what services add to records is compared with aiokafka and confluent-kafka"
)
@pytest.mark.parametrize("client", IN_SERVICES)
@pytest.mark.parametrize("work", services.WORKS)
def test_the_cost_of_services_is_measured_with_the_users_own_function(client, work):
    # The cost is the difference of two figures. Ours are small, so they need more records: nine rounds.
    count = 180_000 if client == OURS and not services.WORKS[work].sampler else 4000
    job = Job("services", client, records=count, warm_up=count, work=work)
    result = run(Cell("services", work, client, job, 1))

    has_function = work in (services.TEXT, services.ORJSON, services.JSON, services.AVRO)
    if client == OURS:
        has_function = has_function or work == services.HEADER
    assert result["cpu_us"] == pytest.approx(result["own_us"] + result["client_us"])
    assert result["client_us"] > 0
    windows = 1 + 3 * len(services.rounds(job))  # a warm-up, and three in each round
    assert result["sent"] == 2 * count + (windows * Job.window if has_function else 0)
    assert (result["own_us"] != 0) == has_function
    if work in (services.JSON, services.AVRO) or (work, client) == (
        services.HEADER,
        OURS,
    ):  # the others cost too little for so short a run to measure
        assert result["own_us"] > 0


def test_a_busy_machine_makes_neither_the_client_nor_the_users_own_function_dearer():
    calm, busy = (
        services.Round(whole=5, plain=1.5, calling=5.5),
        services.Round(whole=9, plain=2.5, calling=9.5),
    )
    job = Job("services", OURS, window=1_000_000, work=services.JSON)

    result = services.with_own(job, {"cpu_us": 9.0, "sent": 1}, [calm, busy, calm, busy, calm])

    assert (result["own_us"], result["client_us"], result["cpu_us"]) == (4, 1, 5)
    assert result["sent"] == 1 + 16 * job.window


@pytest.mark.promise(
    "Speed", "the cost of what services add to records is compared with aiokafka and confluent-kafka"
)
@pytest.mark.parametrize("work", services.WORKS)
async def test_every_client_sends_the_same_values_and_headers(kafka_cluster, work):
    sent = {}
    for client in IN_SERVICES:
        job = Job(
            "services",
            client,
            records=LINES,
            partitions=1,
            topic=client,
            work=work,
            value_size=100,
            window=LINES,
        )
        kafka_cluster.create_topic(client, 1)
        await asyncio.to_thread(runner.measured, replace(job, bootstrap=kafka_cluster.bootstrap_servers))
        records = kafka_cluster.records(client)[:LINES]  # the others measure the user's own function
        orders = services.values(replace(job, work=services.JSON))
        assert Counter(record.value for record in records) == Counter(
            map(services.load_avro() if work == services.AVRO else services.to_json, orders)
        )
        headers = {name for record in records for name, _ in record.headers}
        sent[client] = headers
        if work == services.HEADER:
            assert {record.headers for record in records} == {(services.ADDED,)}
        if work == services.RECORDING:
            assert len({record.headers for record in records}) == LINES, "each record has its own span"
    assert sent[AIOKAFKA] == sent[CALLBACK]
    assert sent[OURS] == sent[CALLBACK]
    assert ("traceparent" in sent[OURS]) == bool(services.WORKS[work].sampler)


def test_values_of_services_have_exactly_the_size_in_each_form():
    for work in services.WORKS.keys() - {services.AVRO}:
        made = services.values(Job("services", OURS, work=work, value_size=100))
        function = services.WORKS[work].function
        assert {len(value if function is None else function(value)) for value in made} == {100}
        assert len(made) == LINES


async def test_metrics_are_read_while_aioproducer_is_measured(monkeypatch):
    read = []
    monkeypatch.setattr("prometheus_client.generate_latest", read.append)
    job = Job("services", OURS, work=services.AVRO)
    async with services.reading_metrics(job):
        while not read:  # noqa: ASYNC110  # the task sets no event
            await asyncio.sleep(0)
    async with services.reading_metrics(replace(job, work=services.JSON)):
        assert len(asyncio.all_tasks()) == 1

    job = Job("services", CALLBACK, work=services.AVRO)
    assert services.librdkafka_metrics(job)["statistics.interval.ms"] == 1000
    assert services.librdkafka_metrics(replace(job, work=services.JSON)) == {}


@pytest.mark.promise(
    "Speed", "the cost of what services add to records is compared with aiokafka and confluent-kafka"
)
@pytest.mark.apache
def test_the_loop_of_every_client_writes_each_record_once_with_its_trace():
    with runner.Targets() as targets:
        for client in IN_SERVICES:
            job = Job(
                "transform",
                client,
                records=4000,
                warm_up=2000,
                window=500,
                partitions=3,
                work=services.AVRO,
            )
            result = runner.run(
                Cell("services", transforming.COLUMN, client, job, 1, target=plan.REAL), targets
            )

            assert result["sent"] == 6000
            assert result["cpu_us"] == pytest.approx(result["own_us"] + result["client_us"])
            assert result["own_us"] > 0


def test_a_loop_that_loses_a_record_is_not_measured(monkeypatch):
    job = Job("transform", OURS, records=3, warm_up=1, topic="out", work=services.AVRO)
    written = [transforming.function()(value) for value in transforming.inputs(job)[:4]]

    class Log:
        def topic(self, partitions):
            return contextlib.nullcontext("in")

        def fill(self, topic, values):
            assert (topic, len(values)) == ("in", 4)

        def committed(self, job):
            return Counter((value, self.headers) for value in written[: self.count])

    log = Log()
    monkeypatch.setattr(runner, "measured", lambda job: {"sent": 4, "source": job.source})
    log.count, log.headers = 4, ("traceparent",)
    assert runner.transformed(job, log) == {"sent": 4, "source": "in"}
    log.count = 3
    with pytest.raises(runner.MeasurementError, match="does not contain each of the 4 records once"):
        runner.transformed(job, log)
    log.count, log.headers = 4, ()
    with pytest.raises(runner.MeasurementError, match=r"with the headers \('traceparent',\)"):
        runner.transformed(job, log)


def test_a_peer_without_its_compiler_is_missing_and_says_why(monkeypatch):
    monkeypatch.setenv("PATH", "")

    assert programs.prepare(FRANZ_GO) == "go is not on PATH"
    assert programs.prepare(JAVA) == "java or javac is not on PATH"
    assert programs.prepare(LIBRDKAFKA) == "cargo is not on PATH"
    assert programs.prepare(AIOKAFKA) is None


def test_a_peer_that_cannot_be_built_is_missing_and_says_why(tmp_path, monkeypatch):
    for name in ("go", "java", "javac", "cargo"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(programs, "BUILD", tmp_path / "build")
    monkeypatch.setattr(programs, "CRATE", tmp_path / "build" / "crate")
    monkeypatch.setattr(programs, "jars", lambda: "kafka-clients.jar")

    for client in (FRANZ_GO, JAVA):
        assert "returned non-zero exit status 3" in programs.prepare(client)
    assert "librdkafka can't be built: cargo vendor" in programs.prepare(LIBRDKAFKA)


def missing(client: str) -> str | None:
    """Return what this machine lacks for a client; a client that can't be built is a failure."""
    reason = programs.prepare(client)
    assert reason is None or reason.endswith("not on PATH")
    return reason


@pytest.mark.promise(
    "Speed",
    "every client is measured in the same interleaved run, with the same settings: aiokafka, "
    "confluent-kafka in its three forms, kafka-python, franz-go and Java where they can be built",
)
@pytest.mark.parametrize(
    ("client", "section", "kind", "figure"),
    [
        *((client, "distance", "pipelined", "cpu_us") for client in COMPILED),
        *((client, "window", "window", "cpu_us") for client in COMPILED),
        *((client, "memory", "memory", "bytes_per_record") for client in COMPILED),
        (FRANZ_GO, "distance", "closed_loop", "p99_ms"),
        (JAVA, "distance", "closed_loop", "p99_ms"),
    ],
)
def test_compiled_peers_are_measured_where_possible_and_otherwise_left_out(client, section, kind, figure):
    reason = missing(client)
    options = bench.parse(["--quick", "--repeats", "1", "--sections", section, "--clients", client])

    def small(cell: Cell, targets: runner.Targets) -> dict:
        job = Job(kind, client, records=20_000, warm_up=2000, tasks=1000, partitions=cell.job.partitions)
        return runner.run(
            replace(cell, job=replace(job, window=1000, processors=cell.job.processors)), targets
        )

    result = bench.measure(options, small)

    assert result["missing"] == ({} if reason is None else {client: reason})
    rows = 2 if (client, section) == (FRANZ_GO, "window") else 1
    cells = [cell for cell in result["cells"] if cell["cell"]["row"] != BARE_LOOP]
    assert len(cells) == (rows if reason is None else 0)
    for cell in cells:
        assert cell["failures"] == []
        assert cell["results"][0][figure] > 0


@pytest.mark.promise(
    "Speed",
    "the benchmarks measure CPU per record, records/s, closed loop p50/p99, RSS per waiting record and "
    "lag of the loop",
)
def test_a_measurement_that_the_broker_did_not_count_fails(monkeypatch):
    monkeypatch.setattr(runner, "result_of", lambda process: process.communicate() and {"sent": 5})
    job = Job("closed_loop", OURS, records=10, partitions=1)

    with pytest.raises(runner.MeasurementError, match="counted 10 records, but 5 were sent"):
        run(Cell("closed loop", "small", OURS, job, 1))


def test_a_failed_measurement_says_why_and_does_not_affect_others():
    jobs = [Job("nonsense", OURS), Job("encoding", OURS, records=100_000)]
    figures: dict[Cell, Figures] = {}
    cells = [Cell("throughput", job.kind, OURS, job, 1) for job in jobs]

    runner.measure_all(cells, figures, run)

    assert figures[cells[0]].failures == ["KeyError: 'nonsense'"]
    assert figures[cells[1]].counts


def test_a_defect_of_the_benchmark_fails_one_measurement_and_not_the_run(capsys):
    def run_one(cell: Cell) -> dict[str, float]:
        if cell is cells[0]:
            raise FileNotFoundError("it was there a moment ago")
        return {"cpu_us": 1.0}

    cells = [Cell("throughput", row, OURS, Job("encoding", OURS), 1) for row in ("first", "second")]
    figures: dict[Cell, Figures] = {}

    runner.measure_all(cells, figures, run_one)

    assert figures[cells[0]].failures == ["FileNotFoundError: it was there a moment ago"]
    assert figures[cells[1]].results == [{"cpu_us": 1.0}]
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert f"FAILED {cells[0].name}: FileNotFoundError: it was there a moment ago" in errors


def test_the_size_of_a_log_is_read_while_other_topics_are_deleted(tmp_path, monkeypatch):
    data = tmp_path / "node-0" / "data"
    for name in ("measured-3-0", "measured-3-1", "measured-35-0", "measured-2-0.5e95-delete"):
        (data / name).mkdir(parents=True)
        (data / name / "00000000000000000000.log").write_bytes(b"x" * 100)
        (data / name / "00000000000000000000.index").write_bytes(b"x")
    listed = os.scandir

    def without_the_deleted(path):
        if "-delete" in str(path):
            raise FileNotFoundError(path)
        return listed(path)

    kafka = real_kafka.RealKafka()
    monkeypatch.setattr(kafka, "_kafka", SimpleNamespace(directory=tmp_path))
    monkeypatch.setattr(os, "scandir", without_the_deleted)

    assert kafka.stored_bytes("measured-3") == 200


@pytest.mark.promise(
    "Speed",
    "a run is written as JSON, tables and plots; Ctrl-C keeps what was measured; only a whole run "
    "replaces the stored one, and text written by hand is kept",
)
def test_ctrl_c_keeps_what_was_measured():
    done = []

    def until_interrupted(cell: Cell, targets: runner.Targets) -> dict:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(cell)
        return {"cpu_us": 1.0, "records_per_s": 1e6, "records_per_batch": 10.0}

    options = bench.parse(["--quick", "--sections", "throughput", "--clients", f"{OURS},{AIOKAFKA}"])
    result = bench.measure(options, until_interrupted)

    assert result["interrupted"]
    assert [cell["cell"]["row"] for cell in result["cells"]] == [cell.row for cell in done]
    assert not bench.is_whole(result)


def test_no_process_outlives_a_measurement_that_is_interrupted():
    with pytest.raises(KeyboardInterrupt), runner.started(Job("idle", "", seconds=60)) as process:
        raise KeyboardInterrupt

    assert process.poll() is not None


# ---------------------------------------------------------------------------------------------- read back


@pytest.mark.promise(
    "Speed", "the benchmarks read every value back from a real Kafka, as often as it was sent"
)
@pytest.mark.apache
def test_a_real_kafka_is_read_back_and_counted():
    job = Job("pipelined", OURS, records=20_000, warm_up=10_000, compression="lz4", partitions=3)
    cell = Cell("codecs", "lz4", OURS, job, 1, target=REAL)

    with runner.Targets() as targets:
        assert runner.run(cell, targets)["cpu_us"] > 0
        kafka = targets.real()
        with (
            kafka.topic(1) as topic,
            pytest.raises(real_kafka.ReadBackError, match="0 records, but 5 were sent"),
        ):
            kafka.check(replace(job, partitions=1, topic=topic), 5)


@pytest.mark.promise(
    "Speed", "the benchmarks read every value back from a real Kafka, as often as it was sent"
)
@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (dict.fromkeys(lines(100), 2), None),
        ({**dict.fromkeys(lines(100), 2), b"another": 1}, "1 values were never sent"),
        ({**dict.fromkeys(lines(100), 2), lines(100)[0]: 3, lines(100)[1]: 1}, "more often"),
        (dict.fromkeys(lines(100)[1:], 2), "more often"),
    ],
)
def test_each_value_is_read_back_as_often_as_it_was_sent(found, problem):
    job = Job("pipelined", OURS)
    if problem is None:
        real_kafka.compare(Counter(found), job, 2 * LINES)
    else:
        with pytest.raises(real_kafka.ReadBackError, match=problem):
            real_kafka.compare(Counter(found), job, 2 * LINES)


# ------------------------------------------------------------------------------------------------- the plan


@pytest.mark.promise(
    "Speed",
    "every client is measured in the same interleaved run, with the same settings: aiokafka, "
    "confluent-kafka in its three forms, kafka-python, franz-go and Java where they can be built",
)
def test_the_plan_compares_all_clients_in_every_case():
    cells = bench.cells(False, list(plan.SECTIONS), list(CLIENTS))
    clients = {
        (section, column): {
            cell.job.client for cell in cells if (cell.section, cell.column) == (section, column)
        }
        for section, column in {(cell.section, cell.column) for cell in cells}
    }

    for size, count in itertools.product((100, 1000), (1, 12)):
        column = f"{size} B, {count} partition{'s' if count > 1 else ''}"
        assert clients["throughput", column] == {*CLIENTS, *([BARE_LOOP] if count > 1 else [])}
    assert clients["throughput real", "100 B, 12 partitions"] == {*CLIENTS, BARE_LOOP}
    for section, size in itertools.product(("window", "window real"), ("100 B", "1000 B")):
        assert clients[section, size] == {*CLIENTS, BARE_LOOP}
    for column in ("1 task, linger 0 ms", "1,000 tasks, linger 0 ms", "1,000 tasks, its defaults"):
        assert clients["closed loop", column] >= {OURS, FRANZ_GO, JAVA, AIOKAFKA}
    for count in ("1", "100", "1,000", "10,000"):
        assert clients["partitions", count] == {OURS, FRANZ_GO, LIBRDKAFKA, JAVA, CALLBACK, AIOKAFKA}
    for codec in ("none", "lz4", "zstd", "gzip", "snappy"):
        assert clients["codecs", codec] == {OURS, FRANZ_GO, JAVA, CALLBACK, "AIOProducer", AIOKAFKA}
        assert clients["lag", codec] == {OURS, AIOKAFKA}
    for work in services.WORKS:
        assert clients["services", work] == {OURS, AIOKAFKA, CALLBACK}
    assert clients["services", transforming.COLUMN] == {OURS, AIOKAFKA, CALLBACK}
    assert clients["wire", "1000 B, 1 connection"] == {OURS, BARE_STREAM}
    assert all(cell.job.loop == "uvloop" for cell in cells if "asyncio" not in cell.row)


@pytest.mark.promise(
    "Speed",
    "every client is measured in the same interleaved run, with the same settings: aiokafka, "
    "confluent-kafka in its three forms, kafka-python, franz-go and Java where they can be built",
)
def test_cells_that_are_compared_have_the_same_settings():
    for cell in bench.cells(False, ["throughput", "throughput real", "codecs", "distance"], list(CLIENTS)):
        if plan.BY_DEFAULT in cell.row:
            continue
        assert (cell.job.linger_ms, cell.job.batch_size) == (5, 65536), cell.name
    waiting = bench.cells(False, ["memory"], [OURS])[0]
    assert waiting.job.records == 500_000
    assert "--silent" in waiting.broker_options()
    assert bench.cells(False, ["distance"], [OURS])[0].broker_options()[-2:] == ["--delay-ms", "20"]


def test_pipelined_jobs_send_every_value_equally_often():
    for cell in bench.cells(False, list(plan.SECTIONS), list(CLIENTS)):
        if cell.job.kind in ("pipelined", "columns"):
            assert cell.job.records % LINES == 0, cell.name
            assert cell.job.warm_up % LINES == 0, cell.name


@pytest.mark.promise(
    "Speed",
    "every client is measured in the same interleaved run, with the same settings: aiokafka, "
    "confluent-kafka in its three forms, kafka-python, franz-go and Java where they can be built",
)
def test_repeats_are_interleaved_section_by_section():
    cells = bench.cells(False, ["throughput", "memory"], list(CLIENTS))
    order = runner.in_order(cells)

    assert Counter(order) == {cell: cell.repeats for cell in cells}
    sections = [cell.section for cell in order]
    assert sections == sorted(sections, key=["throughput", "memory"].index)
    first_round = order[: sum(cell.section == "throughput" for cell in cells)]
    assert len(set(first_round)) == len(first_round), "a cell is repeated before each was measured once"


def test_a_quick_run_is_a_part_of_a_whole_run():
    whole = {
        (cell.section, cell.column, cell.row) for cell in bench.cells(False, list(plan.SECTIONS), [*CLIENTS])
    }
    quick = {
        (cell.section, cell.column, cell.row) for cell in bench.cells(True, list(plan.SECTIONS), [*CLIENTS])
    }

    assert quick < whole
    assert {section for section, _, _ in quick} == {*plan.SECTIONS} - {plan.WINDOW_REAL}


def test_all_clients_fill_the_batches_of_many_partitions_equally():
    """With many partitions, the records of a window determine the size of the batches."""
    jobs = [
        cell.job for cell in bench.cells(False, ["partitions"], [*CLIENTS]) if cell.job.partitions >= 1000
    ]

    assert {(job.partitions, job.window) for job in jobs} == {(1000, 100_000), (10_000, 100_000)}
    assert all(job.records % job.window == 0 for job in jobs)


def test_the_fields_that_the_compiled_programs_read_are_fields_of_a_job():
    fields = json.loads(Job("pipelined", JAVA).as_argument()).keys()
    read = {"franz.go": '`json:"', "JavaProducer.java": 'job.get("', "librdkafka/librdkafka.c": 'number("'}

    for file, before in read.items():
        names = set(json_names((programs.PEERS / file).read_text(), before))
        assert names, file
        assert names <= fields, file


def json_names(source: str, before: str) -> list[str]:
    return [part.partition('"')[0] for part in source.split(before)[1:]]


# ---------------------------------------------------------------------------------------------------- TLS


@pytest.mark.parametrize("client", [OURS, AIOKAFKA, CALLBACK, FRANZ_GO, JAVA])
def test_clients_are_measured_over_tls_and_counted(client):
    if reason := missing(client):
        pytest.skip(reason)
    job = Job("pipelined", client, value_size=1000, records=10_000, warm_up=1000, over_tls=True)

    result = run(Cell("tls", "with TLS", client, job, 1))

    assert result["cpu_us"] > 0
    assert result["sent"] == 11_000


def test_a_client_that_does_not_trust_the_certificate_sends_nothing():
    job = Job("pipelined", OURS, records=10, bootstrap="")
    with tls.TlsEnd() as end, tls.TlsEnd() as another, AckBroker("--advertise-port", str(end.port)) as broker:
        untrusting = replace(job, bootstrap=end.lead_to(broker.bootstrap), authority=another.authority)
        with pytest.raises(runner.MeasurementError, match="the broker's certificate was rejected"):
            runner.measured(untrusting)
        assert broker.counts()["topics"] == {}


@pytest.mark.parametrize("over_tls", [False, True])
def test_a_bare_stream_is_measured_with_and_without_tls(over_tls):
    job = Job("stream", BARE_STREAM, value_size=100, records=200_000, warm_up=100_000, over_tls=over_tls)

    assert run(Cell("tls", "small", BARE_STREAM, job, 1))["cpu_us"] > 0


# ------------------------------------------------------------------------------------------------ observability


@pytest.mark.promise("Observability", "a benchmark measures what hooks, exporters and logs cost")
def test_observability_is_measured_with_everything_switched_on():
    job = Job("pipelined", OURS, records=20_000, warm_up=1_000)

    plain = observability.measured(job, is_observed=False)
    observed = observability.measured(job, is_observed=True)

    assert plain["sent"] == observed["sent"] == 21_000
    assert plain["heard"] == {}
    assert observed["heard"].keys() >= {"StartEvent", "ConnectEvent", "RequestEvent", "BatchEvent"}


@pytest.mark.parametrize("case", against.CASES)
def test_two_versions_are_compared_by_their_public_face(case):
    job, figure = against.CASES[case]
    job = replace(job, records=200, warm_up=20)

    found = against.ratios(job, figure, against.ROOT, pairs=1)

    assert len(found) == 1
    assert found[0] > 0


def test_another_version_than_the_intended_one_is_not_measured(tmp_path):
    job = replace(against.CASES["one task"][0], records=20, warm_up=2)

    with pytest.raises(runner.MeasurementError, match="was measured instead of"):
        against.measured(job, tmp_path)


def test_ways_to_await_many_deliveries_are_compared_in_one_run():
    with AckBroker("--topic", "t:12") as broker:
        found = asyncio.run(gathering.measure(broker.bootstrap, 2, 1000, 100, True))
        counted = sum(broker.counts()["topics"]["t"]["records"])

    assert counted == (2 + gathering.WARM_UP) * 3 * 1000
    assert found.keys() == {"one by one", "aioproducer.gather", "asyncio.gather"}
    assert all(len(used) == 2 and min(used) > 0 for used in found.values())


@pytest.mark.parametrize(("more", "status"), [(0.14, 0), (0.16, 1)])
def test_a_gather_that_costs_more_than_its_goal_is_a_failure(more, status, monkeypatch, capsys):
    async def measured(*_: object) -> dict[str, list[float]]:
        return {"one by one": [1.0], "aioproducer.gather": [1.0 + more], "asyncio.gather": [3.0]}

    class Broker:
        def __init__(self, *options: str) -> None:
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error: object) -> None:
            pass

        bootstrap = ""

        def counts(self):
            return {"topics": {"t": {"records": [(1 + gathering.WARM_UP) * 3 * 10]}}}

    monkeypatch.setattr(gathering, "measure", measured)
    monkeypatch.setattr(gathering, "AckBroker", Broker)
    monkeypatch.setattr(sys, "argv", ["gathering.py", "--rounds", "1", "--window", "10"])

    assert gathering.main() == status
    assert f"{more:+.2f} times that row" in capsys.readouterr().out


def test_the_interval_of_a_median_is_that_of_its_ranks():
    assert observability.interval([float(value) for value in range(1, 31)]) == (10.0, 21.0)


# ------------------------------------------------------------------------------------------------ codec libraries


def test_libraries_are_compared_at_each_level_and_size():
    title, _, *rows = codec_libraries.table([1, 9], [1024, 4096], rounds=1).splitlines()

    assert title == "| | library | 1 KiB (µs) | 4 KiB (µs) | size | GIL released |"
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert len(cells) == 2 * 9 + 2
    assert all(float(small) > 0 and float(large) > 0 for _, _, small, large, _, _ in cells)
    assert [
        size for what, _, _, _, size, _ in cells if what != "CRC-32C" and float(size.rstrip("%")) >= 100
    ] == []


def test_a_function_that_keeps_the_gil_is_recognized():
    data = random.Random(7).randbytes(8_000_000)

    assert codec_libraries.releases_the_gil(lambda data: zlib.compress(data, 1), data)
    assert not codec_libraries.releases_the_gil(lambda data: data.count(b"aioproducer"), data)
