"""examples/flights_demo.py as a user runs it, and its proof, which must find planted corruption."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import flights_demo
from aioproducer.partitioner import murmur2_partition
from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from flights.data import Flight, load
from flights.interrupt import Interrupt, Interrupted
from flights.proof import Proof, ReadRecord
from flights.sending import Sent, State
from flights.topic import prepare
from tests.conftest import MS

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PARTITIONS = 12
DEADLINE = 60_000 * MS
"""The time limit in seconds for a whole run of the demo."""


# ------------------------------------------------------------------------------------- the whole demo, as a process


class Demo:
    """A running demo; its stdout is read line by line."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "flights_demo.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_line(self, beginning: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(beginning):
                return
        raise AssertionError(f"the demo ended without the line {beginning!r}: {self.finish()}")

    def wait_for_progress(self, beginning: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(beginning):
                return
        raise AssertionError(f"the demo ended without the progress line {beginning!r}: {self.finish()}")

    def finish(self) -> tuple[int, str, str]:
        """Return the exit status, the rest of stdout, and stderr."""
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err


@contextmanager
def running_demo(*arguments: str) -> Iterator[Demo]:
    demo = Demo(*arguments)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.communicate()


def run(*arguments: str) -> tuple[int, str, str]:
    with running_demo(*arguments) as demo:
        return demo.finish()


@contextmanager
def cluster_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """An embedded cluster that acts as the user's own: its address and its process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "aioproducer.testing", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("listening on ").strip(), process
    finally:
        process.kill()
        process.communicate()


def children_of(pid: int) -> list[int]:
    lines = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    pairs = [tuple(map(int, line.split())) for line in lines.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def table_of(out: str) -> dict[str, str]:
    """Return the value and the remark of each line of the report, by the line's name."""
    lines = [
        re.split(r" {2,}", line.strip(), maxsplit=1) for line in out.splitlines() if line.startswith("  ")
    ]
    return {name: rest[0] for name, *rest in lines if rest}


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


@pytest.mark.promise(
    "Demo and pipeline",
    "`make demo` starts the embedded cluster, streams the flights, reads them back, verifies, prints a "
    "report",
)
@pytest.mark.promise(
    "Demo and pipeline",
    "the demo reports records, bytes, batches, mean size, requests, retries, p50/p99/max time to ack and "
    "CPU per record",
)
def test_flights_sent_to_the_embedded_cluster_are_verified_and_reported():
    flights = load(5_000, lambda _: None)

    status, out, err = run("--limit", "5000")

    table = table_of(out)
    assert status == 0, err
    assert number(table["records"]) == 5_000
    assert f"{sum(flight.is_cancelled for flight in flights)} of them cancelled" in table["records"]
    assert number(table["bytes"]) == sum(flight.size for flight in flights)
    assert number(table["read back"]) == 5_000
    assert "proved" in table["read back"]
    assert f"{len({flight.key for flight in flights}):,} keys" in out
    assert number(table["retries"]) == 0
    assert number(table["batches"]) >= PARTITIONS
    assert 0 < number(table["requests"]) <= number(table["batches"])
    p50, p99, most = (number(table[f"time to ack, {name}"]) for name in ("p50", "p99", "max"))
    assert 0 < p50 <= p99 <= most
    assert 0 < number(table["CPU per record"]) < 1_000
    assert "note:" not in out
    assert "sending: 5,000 of 5,000 records" in err


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_batches_are_verified(codec):
    status, out, err = run("--limit", "2000", "--compression", codec)

    table = table_of(out)
    assert status == 0, err
    assert f"compression {codec}" in table["batches"]
    assert number(table["mean batch size"]) * number(table["batches"]) < number(table["bytes"])


@pytest.mark.promise(
    "Demo and pipeline", "`KAFKA=host:port`: the demo runs on the user's cluster, in a topic of its own"
)
@pytest.mark.apache
def test_flights_sent_to_a_real_kafka_are_verified(apache_kafka):
    status, out, err = run("--limit", "5000", "--kafka", apache_kafka.bootstrap_servers)

    table = table_of(out)
    assert status == 0, err
    assert number(table["read back"]) == 5_000
    assert "proved" in table["read back"]
    assert "note:" not in out
    assert "stays in your cluster" in out


@pytest.mark.promise("Demo and pipeline", "`KAFKA=apache`: the demo starts and stops a real Kafka cluster")
@pytest.mark.apache
def test_the_demo_starts_a_real_kafka_by_itself_and_ends_it():
    with running_demo("--limit", "3000", "--kafka", "apache") as demo:
        demo.wait_for_line("3,000 flights ->")
        children = children_of(demo.process.pid)
        status, out, err = demo.finish()

    table = table_of(out)
    assert status == 0, err
    assert number(table["read back"]) == 3_000
    assert "proved" in table["read back"]
    assert children
    assert not any(is_alive(child) for child in children)


@pytest.mark.promise("Demo and pipeline", "Ctrl-C stops the demo cleanly, and it still prints the report")
def test_ctrl_c_during_a_run_still_reports_and_leaves_no_process():
    with running_demo("--limit", "200000") as demo:
        demo.wait_for_progress("preparing: ")
        children = children_of(demo.process.pid)
        demo.wait_for_line("200,000 flights ->")
        demo.process.send_signal(signal.SIGINT)
        status, out, err = demo.finish()

    table = table_of(out)
    assert status == 130, err
    assert number(table["records"]) + number(table["not sent"]) == 200_000
    assert "interrupted before reading back" in table["read back"]
    assert len(children) == 1
    assert not is_alive(children[0])


@pytest.mark.promise("Demo and pipeline", "Ctrl-C stops the demo cleanly, and it still prints the report")
def test_ctrl_c_before_anything_was_sent_says_so():
    with running_demo() as demo:
        demo.wait_for_progress("preparing: ")
        demo.process.send_signal(signal.SIGINT)
        status, _, err = demo.finish()

    assert status == 130
    assert "interrupted" in err


async def test_an_interrupted_preparation_ends_even_if_no_broker_answers():
    """Ctrl-C once took half a minute, the timeout of two responses, because the cluster had already ended."""
    interrupt = Interrupt()
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.setblocking(False)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        preparing = asyncio.create_task(prepare(address, "t", 1, interrupt.check))
        connection, _ = await asyncio.get_running_loop().sock_accept(silent)
        with connection:
            interrupt.is_asked = True

            with pytest.raises(Interrupted):
                await asyncio.wait_for(preparing, 6000 * MS)


@pytest.mark.promise("Demo and pipeline", "Ctrl-C stops the demo cleanly, and it still prints the report")
def test_ctrl_c_twice_ends_a_demo_whose_cluster_is_frozen():
    with (
        cluster_process() as (address, cluster),
        running_demo("--kafka", address, "--limit", "200000") as demo,
    ):
        demo.wait_for_line("200,000 flights ->")
        cluster.send_signal(signal.SIGSTOP)
        demo.wait_for_progress("sending: ")
        demo.process.send_signal(signal.SIGINT)
        demo.wait_for_progress("stopping")
        demo.process.send_signal(signal.SIGINT)
        status, out, err = demo.finish()

    table = table_of(out)
    assert status == 130, err
    counts = [number(table.get(name, "0")) for name in ("records", "not sent", "failed", "unknown")]
    assert sum(counts) == 200_000
    assert counts[0] < 200_000
    assert number(table["unknown"]) > 0


@pytest.mark.promise(
    "Demo and pipeline", "`KAFKA=host:port`: the demo runs on the user's cluster, in a topic of its own"
)
def test_an_address_without_a_listener_is_a_clear_error():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

    status, out, err = run("--kafka", address)

    assert status == 2
    assert out == ""
    assert f"flights_demo: no Kafka at {address}" in err
    assert "Connection refused" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--kafka", "apache:x:y"], "as host:port"),
        (["--limit", "0"], "at least 1"),
        (["--compression", "brotli"], "invalid choice"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, text):
    status, out, err = run(*arguments)

    assert (status, out) == (2, "")
    assert text in err


# --------------------------------------------------------------------------------------- against the test's own cluster


async def run_here(cluster: EmbeddedCluster, *arguments: str) -> int:
    """Run the demo in this process, against a cluster as if it were the user's own."""
    options = flights_demo.arguments(
        ["--kafka", cluster.bootstrap_servers, "--limit", "3000", "--topic", "flights", *arguments]
    )
    return await flights_demo.demo(options, Interrupt())


@pytest.mark.promise(
    "Demo and pipeline", "the demo reads back from the offsets noted at the start, and deletes no topic"
)
async def test_a_topic_may_be_used_again_from_its_end_on(kafka_cluster, capsys):
    assert await run_here(kafka_cluster) == 0
    assert await run_here(kafka_cluster) == 0

    assert len(kafka_cluster.records("flights")) == 6_000
    assert number(table_of(capsys.readouterr().out)["read back"]) == 3_000


async def test_the_demo_restores_the_signal_handlers(kafka_cluster):
    """uvloop does not restore them by itself, so SIGTERM could no longer end the process that ran the demo."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]

    assert await run_here(kafka_cluster) == 0

    assert [signal.getsignal(number) for number in numbers] == before


async def test_a_topic_with_another_number_of_partitions_is_refused(kafka_cluster):
    kafka_cluster.create_topic("flights", 3)

    with pytest.raises(flights_demo.DemoError, match=r"has 3 partitions, not 12.*--partitions 3"):
        await run_here(kafka_cluster)

    assert await run_here(kafka_cluster, "--partitions", "3") == 0


async def test_if_createtopics_is_rejected_the_cluster_creates_the_topic(capsys):
    async with EmbeddedCluster(default_partitions=4) as cluster:
        cluster.faults.add(ApiKey.CREATE_TOPICS, error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, count=2)

        assert await run_here(cluster) == 0

    out = capsys.readouterr().out
    assert "topic flights, 4 partitions" in out
    assert "note: CreateTopics was rejected" in out


@pytest.mark.promise(
    "Demo and pipeline",
    "the demo's proof finds every record that is lost, changed, duplicated, out of order or in another "
    "partition",
)
async def test_a_value_that_was_changed_in_transit_fails_the_demo(kafka_cluster, capsys, monkeypatch):
    send_flights = flights_demo.send_flights

    async def send_other_than_remembered(producer, topic, flights, interrupt):
        sent, measured = await send_flights(producer, topic, flights, interrupt)
        flights[7] = flights[7]._replace(value=b"{}")
        return sent, measured

    monkeypatch.setattr(flights_demo, "send_flights", send_other_than_remembered)

    assert await run_here(kafka_cluster) == 1
    captured = capsys.readouterr()
    assert "WRONG: 1 value" in table_of(captured.out)["read back"]
    assert re.search(r"value: partition \d+ offset \d+, row 7", captured.out)
    assert "the proof FAILED" in captured.err


async def test_records_deleted_by_the_cluster_are_distinguished_from_lost_ones(
    kafka_cluster, capsys, monkeypatch
):
    send_flights = flights_demo.send_flights

    async def send_and_lose(producer, topic, flights, interrupt):
        result = await send_flights(producer, topic, flights, interrupt)
        kafka_cluster.log("flights", 0).start_offset = 5
        return result

    monkeypatch.setattr(flights_demo, "send_flights", send_and_lose)

    assert await run_here(kafka_cluster) == 1
    out = capsys.readouterr().out
    assert "retention.ms" in out
    assert number(table_of(out)["records"]) == 3_000


# --------------------------------------------------------------------------------- the proof with made-up records


def flight(row: int, key: bytes) -> Flight:
    value = b'{"row":%d}' % row
    return Flight(key, value, 1_357_000_000_000 + row, (("row", b"%d" % row), ("status", b"departed")))


def delivered() -> tuple[Sent, list[ReadRecord]]:
    """Return nine flights of three keys, all delivered, and the records that a consumer would read."""
    sent = Sent([flight(row, b"UA%d" % (row % 3)) for row in range(9)])
    ends = [0] * PARTITIONS
    records = []
    for row, (key, value, timestamp_ms, headers) in enumerate(sent.flights):
        partition = murmur2_partition(key, PARTITIONS)
        sent.states[row] = State.DELIVERED
        sent.partitions[row], sent.offsets[row] = partition, ends[partition]
        records.append(ReadRecord(partition, ends[partition], timestamp_ms, key, value, headers))
        ends[partition] += 1
    return sent, records


def judged(sent: Sent, records: list[ReadRecord]) -> dict[str, int]:
    proof = Proof(sent, PARTITIONS)
    proof.check(records)
    proof.finish()
    assert proof.records == len(records)
    return dict(proof.kinds)


def replaced(records: list[ReadRecord], row: int, **changes: object) -> list[ReadRecord]:
    return [record._replace(**changes) if i == row else record for i, record in enumerate(records)]


def without_row(records: list[ReadRecord]) -> list[ReadRecord]:
    return replaced(records, 4, headers=(("status", b"departed"),))


CORRUPTIONS: dict[str, tuple[Callable[[list[ReadRecord]], list[ReadRecord]], dict[str, int]]] = {
    "a lost record": (lambda records: records[:4] + records[5:], {"missing": 1}),
    "a value": (lambda records: replaced(records, 4, value=b"{}"), {"value": 1}),
    "no value": (lambda records: replaced(records, 4, value=None), {"value": 1}),
    "a key": (lambda records: replaced(records, 4, key=b"UA2"), {"key": 1}),
    "a timestamp": (lambda records: replaced(records, 4, timestamp_ms=1_357_000_000_003), {"timestamp": 1}),
    "a header": (
        lambda records: replaced(records, 4, headers=(("row", b"4"), ("status", b"cancelled"))),
        {"headers": 1},
    ),
    "headers in another order": (
        lambda records: replaced(records, 4, headers=records[4].headers[::-1]),
        {"headers": 1},
    ),
    "no row number": (without_row, {"headers": 1, "missing": 1}),
    "an offset": (lambda records: replaced(records, 4, offset=77), {"offset": 1}),
    "a partition": (
        lambda records: replaced(records, 4, partition=(records[4].partition + 1) % PARTITIONS),
        {"partition": 1, "offset": 1},
    ),
    "a record twice": (
        lambda records: [*records, records[4]._replace(offset=99)],
        {"duplicate": 1},
    ),
    "two records of a key in the wrong order": (
        lambda records: [*records[:4], records[7], *records[5:7], records[4], records[8]],
        {"order": 1},
    ),
    "somebody else's record": (
        lambda records: [*records, ReadRecord(0, 99, 5, b"k", b"v", ())],
        {"headers": 1},
    ),
}


@pytest.mark.promise(
    "Demo and pipeline",
    "the demo's proof finds every record that is lost, changed, duplicated, out of order or in another "
    "partition",
)
def test_the_proof_finds_nothing_wrong_with_records_stored_as_sent():
    assert judged(*delivered()) == {}


@pytest.mark.promise(
    "Demo and pipeline",
    "the demo's proof finds every record that is lost, changed, duplicated, out of order or in another "
    "partition",
)
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_proof_finds_each_corruption(corruption):
    sent, records = delivered()
    change, findings = CORRUPTIONS[corruption]

    assert judged(sent, change(records)) == findings


def test_a_record_that_was_rejected_or_never_sent_must_not_be_stored():
    sent, records = delivered()
    sent.states[7] = State.FAILED
    sent.states[8] = State.NOT_SENT

    assert judged(sent, records) == {"unexpected": 2}
    assert judged(sent, records[:7]) == {}


def test_a_record_with_an_unknown_outcome_may_be_stored_or_not():
    sent, records = delivered()
    sent.states[4] = State.UNKNOWN

    assert judged(sent, records) == {}
    assert judged(sent, records[:4] + records[5:]) == {}


def test_many_findings_of_one_kind_are_counted_and_only_some_are_reported():
    sent, records = delivered()
    proof = Proof(sent, PARTITIONS)

    proof.check(record._replace(value=b"") for record in records)

    assert proof.kinds["value"] == 9
    assert len(proof.findings) == 5
