"""`aioproducer produce` as a process: in a pipe and on a terminal, interrupted, and with a cluster that goes away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioproducer.cli.produce import Format
from aioproducer.testing import ApiKey, EmbeddedCluster, ErrorCode
from tests.support.commands import Ended, on_terminal, run, running


def values(cluster: EmbeddedCluster, *, committed: bool = False) -> list[bytes | None]:
    return [record.value for record in cluster.records("t", committed=committed)]


async def produce(
    cluster: EmbeddedCluster, *arguments: object, stdin: bytes = b"", topic: str = "t"
) -> Ended:
    return await run("produce", "-b", cluster.bootstrap_servers, topic, *map(str, arguments), stdin=stdin)


# ----------------------------------------------------------------------------------------------------- the input


@pytest.mark.promise(
    "Command line", "`produce` sends each line of a file as a record, and counts what was acknowledged"
)
async def test_lines_of_a_file_are_delivered_in_order(cluster, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\n\nthree \r\nlast without an end")

    ended = await produce(cluster, file)

    assert ended.code == 0
    assert ended.out == ""
    assert ended.err.startswith("✓ 4 records delivered to t in ")
    assert values(cluster) == [b"one", b"", b"three \r", b"last without an end"]


async def test_lines_of_a_pipe_are_sent_before_the_pipe_ends(cluster):
    async with running("produce", "-b", cluster.bootstrap_servers, "t") as command:
        command.write(b"first\nbegin of the sec")
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        command.write(b"ond\n")
        ended = await command.ended()

    assert ended.code == 0
    assert values(cluster) == [b"first", b"begin of the second"]


async def test_several_files_and_standard_input_are_one_input(cluster, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("1\n2\n")

    ended = await produce(cluster, file, "-", file, "--skip", 1, "--json", stdin=b"3\n")

    assert ended.code == 0
    assert values(cluster) == [b"2", b"3", b"1", b"2"]
    assert ended.json | {"seconds": 0} == {
        "topic": "t",
        "delivered": 4,
        "failed": 0,
        "unknown": 0,
        "saved": 0,
        "acknowledged_through": 5,
        "complete": True,
        "seconds": 0,
        "error": None,
        "exit_code": 0,
    }


async def test_a_line_has_a_key_a_null_and_headers(cluster):
    options = ("-K", "\\t", "--null", "NULL", "-H", "a=1", "-H", "b=x=y", "-p", 0)

    ended = await produce(cluster, *options, stdin=b"k\tv\tw\nno key\nNULL\tNULL\n")

    assert ended.code == 0
    records = cluster.records("t", 0)
    assert [(record.key, record.value) for record in records] == [
        (b"k", b"v\tw"),
        (None, b"no key"),
        (None, None),
    ]
    assert list(records[0].headers) == [("a", b"1"), ("b", b"x=y")]


async def test_json_lines_are_records_as_they_are_or_by_columns(cluster, tmp_path):
    file = tmp_path / "orders.jsonl"
    file.write_text(
        '{"id": 7, "at": "2024-01-02T03:04:05Z", "who": "ann"}\n\n{"id": 8, "at": 5, "who": null}\n'
    )

    plain = await produce(cluster, file)
    mapped = await produce(cluster, file, "--key", "id", "--timestamp", "at", "--header-column", "who")

    assert (plain.code, mapped.code) == (0, 0)
    first, second, third, fourth = cluster.records("t")
    assert first.value == b'{"id": 7, "at": "2024-01-02T03:04:05Z", "who": "ann"}'
    assert second.key is None
    assert (third.key, third.value, third.timestamp) == (b"7", b"{}", 1704164645000)
    assert (fourth.key, fourth.timestamp, list(fourth.headers)) == (b"8", 5, [("who", None)])


async def test_csv_rows_become_json_without_the_columns_used_for_other_parts(cluster, tmp_path):
    file = tmp_path / "orders.csv"
    file.write_text('id,item,note\n1,"a, b","two\nlines"\n2,c,NA\n')

    ended = await produce(cluster, file, "--key", "id", "--null", "NA")

    assert ended.code == 0
    assert [(record.key, json.loads(record.value)) for record in cluster.records("t")] == [
        (b"1", {"item": "a, b", "note": "two\nlines"}),
        (b"2", {"item": "c", "note": None}),
    ]


@pytest.mark.parametrize("name", ["table.parquet", "table.arrow", "table.feather"])
async def test_tables_are_sent_by_columns(cluster, tmp_path, name):
    table = pa.table({"id": [1, 2], "item": ["a", "b"], "note": ["x", None]})
    file = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(table, file)
    else:
        new = pa.ipc.new_stream if name.endswith("arrow") else pa.ipc.new_file
        with new(file, table.schema) as writer:
            writer.write_table(table)

    ended = await produce(cluster, file, "--key", "id", "--keep")
    items = await produce(cluster, file, "--value", "item", "--key", "note", "--skip", 1)

    assert (ended.code, items.code) == (0, 0)
    assert [(record.key, record.value) for record in cluster.records("t")] == [
        (b"1", b'{"id":1,"item":"a","note":"x"}'),
        (b"2", b'{"id":2,"item":"b","note":null}'),
        (None, b"b"),
    ]


async def test_rate_limits_the_records_a_second(cluster):
    ended = await produce(cluster, "--rate", 20, "--json", stdin=b"a\nb\nc\nd\n")

    assert ended.code == 0
    assert ended.json["seconds"] >= 3 / 20


# ---------------------------------------------------------------------------------------------- input that breaks


@pytest.mark.promise(
    "Command line",
    "if the input breaks at row N, the rows before it are delivered, and the report says how to continue",
)
@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (
            "a.jsonl",
            '{"a": 1}\n{"a": 2}\n{"a": \n{"a": 4}\n',
            "line 3: not valid JSON: Expecting value (column 7)",
        ),
        ("a.csv", "a\n1\n2\n3,4\n5\n", "line 4: 2 columns, but the header has 1"),
        ("a.csv", 'a\n1\n2\n"open\n5\n', "line 5: unexpected end of data"),
    ],
)
async def test_rows_before_an_unreadable_one_are_delivered(cluster, tmp_path, name, text, problem):
    file = tmp_path / name
    file.write_text(text)

    ended = await produce(cluster, file, "--json")

    assert ended.code == 1
    assert len(values(cluster)) == 2
    facts = ended.json
    assert (facts["delivered"], facts["acknowledged_through"], facts["complete"]) == (2, 2, False)
    assert facts["error"] == f"{file}: {problem}"
    assert "Every record up to row 2 is delivered. To continue: --skip 2\n" in ended.err


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
async def test_a_file_that_becomes_unreadable_ends_the_run_without_reporting_success(cluster):
    ended = await produce(cluster, "/proc/self/mem")

    assert ended.code == 1
    assert "/proc/self/mem: Input/output error" in ended.err
    assert values(cluster) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing.txt"], "missing.txt cannot be read: No such file or directory"),
        (["/"], "/ cannot be read: it is a directory"),
        (["-", "-"], "standard input (-) is named twice; it can be read only once"),
        (["--rate", "0"], "--rate must be more than 0, not 0"),
        (["-X", "secret"], "-X requires KEY=VALUE, such as -X compression.type=zstd"),
        (
            ["-X", "acks=0"],
            "with acks=0, brokers send no acknowledgements, so no record could be reported as delivered; use acks=1",
        ),
        (["-X", "lingerms=5"], "there is no setting lingerms; did you mean linger_ms?"),
        (
            ["--key", "id"],
            "column options cannot be used with the lines format; use --format to choose another",
        ),
        (["--failed", "/no/such/dir/file"], "the directory does not exist or cannot be written"),
        (["-F", "missing.properties"], "there is no such file"),
        (["-H", "x"], "-H x: a header must have the form NAME=VALUE"),
        (["--format", "csv", "--delimiter", "ab"], "--delimiter must be a single character"),
        (["--skip", "3"], "--skip 3: the input has only 2 rows"),
        (["--no-such-option"], "No such option"),
    ],
)
async def test_wrong_usage_ends_with_2_and_sends_nothing(cluster, arguments, problem):
    ended = await produce(cluster, *arguments, stdin=b"a\nb\n")

    assert ended.code == 2
    assert problem in ended.err
    assert values(cluster) == []


async def test_a_missing_column_is_named_with_the_most_similar_one(cluster, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id,item\n1,2\n")

    ended = await produce(cluster, file, "--key", "idd")

    assert ended.code == 1
    assert f"{file}: there is no column idd; did you mean id?" in ended.err


# ------------------------------------------------------------------------------------------------- failed records


@pytest.mark.promise(
    "Command line",
    "only acknowledged records count as delivered; if any failed, the exit code is 1, or 3 if any is in "
    "doubt",
)
async def test_the_first_failed_record_ends_the_run_and_is_named(cluster):
    lines = [b"small", b"x" * 2_000_000, b"small"]

    ended = await produce(cluster, "--json", stdin=b"\n".join(lines))

    assert ended.code == 1
    facts = ended.json
    assert facts["acknowledged_through"] == 1
    assert facts["delivered"] == len(values(cluster))
    assert facts["failed"] == 1
    assert facts["error"].startswith("row 2: ")
    assert "max_request_size" in facts["error"]


async def test_failed_records_are_saved_and_can_be_sent_again(cluster, tmp_path):
    failed = tmp_path / "failed.jsonl"
    large = os.urandom(10) + b"x" * 2_000

    ended = await produce(
        cluster,
        *("--failed", failed, "-X", "max.request.size=1500", "-K", ":", "-H", "a=b"),
        stdin=b"k:1\nk:" + large.replace(b"\n", b"") + b"\nk:3\n",
    )
    again = await produce(cluster, failed, "--format", "records")

    assert ended.code == 1
    assert (
        f"1 record in {failed}. To send them again: aioproducer produce t {failed} --format records"
        in ended.err
    )
    assert again.code == 0
    row = json.loads(failed.read_text())
    assert (row["row"], row["outcome"], row["key"]) == (2, "not persisted", "k")
    assert "max_request_size" in row["error"]
    assert failed.stat().st_mode & 0o077 == 0
    assert values(cluster) == [b"1", b"3", large.replace(b"\n", b"")]
    assert [(record.key, list(record.headers)) for record in cluster.records("t")] == [
        (b"k", [("a", b"b")])
    ] * 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
async def test_records_are_not_called_saved_if_the_disk_is_full(cluster):
    ended = await produce(
        cluster, "--failed", "/dev/full", "--json", stdin=b"1\n" + b"x" * 2_000_000 + b"\n3\n"
    )

    assert ended.code == 1
    facts = ended.json
    assert (facts["saved"], facts["failed"], facts["acknowledged_through"]) == (0, 1, 1)
    assert facts["error"] == "--failed /dev/full cannot be written: No space left on device"


async def test_a_record_in_doubt_ends_with_3(cluster):
    cluster.faults.add(ApiKey.PRODUCE, drop_after_append=True, count=100)

    ended = await produce(
        cluster,
        *("--json", "-X", "delivery.timeout.ms=300", "-X", "request.timeout.ms=200", "-X", "linger.ms=0"),
        stdin=b"1\n2\n",
    )

    assert ended.code == 3
    facts = ended.json
    assert (facts["delivered"], facts["unknown"], facts["acknowledged_through"]) == (0, 2, 0)
    assert "continuing can create duplicates" in ended.err


async def test_a_topic_without_write_permission_ends_the_run(cluster):
    cluster.faults.add(ApiKey.METADATA, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic="t", count=100)

    ended = await produce(cluster, "--json", stdin=b"1\n")

    assert ended.code == 1
    assert (ended.json["delivered"], ended.json["acknowledged_through"]) == (0, 0)
    assert "not authorized" in ended.json["error"]


async def test_an_unreachable_cluster_is_a_failure_that_names_the_address(tmp_path):
    ended = await run("produce", "-b", "127.0.0.1:1", "-X", "max.block.ms=200", "t", stdin=b"1\n")

    assert ended.code == 1
    assert "127.0.0.1:1" in ended.err


async def test_if_the_cluster_goes_away_only_records_in_its_log_are_counted(cluster):
    settings = ("-X", "delivery.timeout.ms=500", "-X", "request.timeout.ms=400", "-X", "max.block.ms=500")
    async with running("produce", "-b", cluster.bootstrap_servers, *settings, "--json", "t") as command:
        command.write(b"1\n2\n")
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        await cluster.stop_broker(0)
        command.write(b"3\n4\n")
        ended = await command.ended()

    assert ended.code in (1, 3)
    facts = ended.json
    assert facts["delivered"] == facts["acknowledged_through"] <= 2
    assert facts["delivered"] + facts["failed"] + facts["unknown"] <= 4


# --------------------------------------------------------------------------------------------------- transactions


@pytest.mark.promise("Command line", "with `--transaction`, only committed records count as delivered")
async def test_a_transaction_is_committed_whole(cluster):
    ended = await produce(
        cluster, "--transaction", "x", stdin=b"".join(b"%d\n" % number for number in range(25_000))
    )

    assert ended.code == 0
    assert "25,000 records committed to t" in ended.err
    assert values(cluster, committed=True) == [b"%d" % number for number in range(25_000)]
    assert len(cluster.requests_of(ApiKey.END_TXN)) == 3


async def test_a_failed_record_aborts_only_its_transaction(cluster, tmp_path):
    failed = tmp_path / "failed.jsonl"
    lines = [b"%d" % number for number in range(20_000)]
    lines[15_000] = b"x" * 2_000_000

    stopped = await produce(cluster, "--transaction", "x", "--json", stdin=b"\n".join(lines))
    went_on = await produce(
        cluster, "--transaction", "x", "--failed", failed, "--json", stdin=b"\n".join(lines)
    )

    assert (stopped.code, went_on.code) == (1, 1)
    assert (stopped.json["delivered"], stopped.json["acknowledged_through"]) == (10_000, 10_000)
    assert stopped.json["error"].startswith("row 15001: ")
    saved = [json.loads(line) for line in failed.read_bytes().splitlines()]
    assert (went_on.json["acknowledged_through"], went_on.json["saved"]) == (20_000, len(saved))
    delivered = values(cluster, committed=True)[10_000:]
    assert len(delivered) == went_on.json["delivered"] >= 10_000
    assert sorted(delivered + [row["value"].encode() for row in saved]) == sorted(lines)
    assert {row["row"] for row in saved} >= {15_001}
    assert {row["outcome"] for row in saved} == {"not persisted"}


async def test_a_commit_that_is_never_answered_is_in_doubt(cluster):
    cluster.faults.add(ApiKey.END_TXN, drop_after_append=True, count=1000)

    ended = await produce(
        cluster,
        "--transaction",
        "x",
        "--json",
        "-X",
        "max.block.ms=3000",
        "-X",
        "request.timeout.ms=2000",
        stdin=b"1\n",
    )

    assert ended.code == 3
    assert (ended.json["delivered"], ended.json["unknown"], ended.json["acknowledged_through"]) == (0, 1, 0)


async def test_a_fenced_transaction_is_not_delivered(cluster):
    cluster.faults.add(ApiKey.END_TXN, error=ErrorCode.INVALID_PRODUCER_EPOCH, count=10)

    ended = await produce(cluster, "--transaction", "x", "--json", stdin=b"1\n")

    assert ended.code == 1
    assert (ended.json["delivered"], ended.json["failed"]) == (0, 1)
    assert values(cluster, committed=True) == []


# --------------------------------------------------------------------------------------------------------- Ctrl-C


@pytest.mark.promise(
    "Command line", "Ctrl-C ends a command with 130, and `produce` reports what is acknowledged"
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_during_a_wait_for_input_reports_what_is_acknowledged(cluster, number):
    async with running("produce", "-b", cluster.bootstrap_servers, "--json", "t") as command:
        command.write(b"1\n2\n")
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        command.interrupt(number)
        await command.line("Every record up to row 2 is delivered. To continue: --skip 2")
        ended = await command.ended()

    assert ended.code == 130
    assert (ended.json["delivered"], ended.json["acknowledged_through"]) == (2, 2)


async def test_ctrl_c_while_connecting_ends_at_once():
    arrived = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        async with running("produce", "-b", f"127.0.0.1:{port}", "t") as command:
            await asyncio.wait_for(arrived.wait(), 30)
            command.interrupt()
            ended = await command.ended()

    assert ended.code == 130
    assert "interrupted" in ended.err


async def test_the_second_ctrl_c_ends_the_wait_for_a_silent_broker(cluster):
    hold = asyncio.Event()
    cluster.faults.add(ApiKey.PRODUCE, hold=hold)
    async with running("produce", "-b", cluster.bootstrap_servers, "--json", "t") as command:
        command.write(b"1\n2\n")
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        command.interrupt()
        await command.line("press Ctrl-C again to stop at once")
        command.interrupt()
        await command.line("continuing can create duplicates")
        ended = await command.ended()
        hold.set()

    assert ended.code == 130
    assert (ended.json["delivered"], ended.json["unknown"], ended.json["acknowledged_through"]) == (0, 2, 0)


async def test_the_second_ctrl_c_during_a_commit_leaves_the_transaction_in_doubt(cluster):
    hold = asyncio.Event()
    cluster.faults.add(ApiKey.END_TXN, hold=hold)
    arguments = ("produce", "-b", cluster.bootstrap_servers, "--json", "--transaction", "x", "t")
    async with running(*arguments) as command:
        command.write(b"1\n")
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        command.interrupt()
        await command.line("press Ctrl-C again to stop at once")
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.END_TXN), 30)
        command.interrupt()
        ended = await command.ended()
        hold.set()

    assert ended.code == 130
    assert (ended.json["delivered"], ended.json["unknown"]) == (0, 1)


async def test_ctrl_c_commits_the_open_transaction(cluster):
    arguments = ("produce", "-b", cluster.bootstrap_servers, "--json", "--transaction", "x", "t")
    async with running(*arguments) as command:
        command.write(b"1\n")
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        command.interrupt()
        ended = await command.ended()

    assert ended.code == 130
    assert (ended.json["delivered"], ended.json["acknowledged_through"]) == (1, 1)
    assert values(cluster, committed=True) == [b"1"]


# --------------------------------------------------------------------------------------------- the user's terminal


@pytest.mark.promise("Command line", "a progress bar is shown on a terminal, and never in a pipe")
async def test_a_terminal_shows_progress_and_the_report(cluster):
    async with on_terminal("produce", "-b", cluster.bootstrap_servers, "t") as terminal:
        terminal.type("one\ntwo\n")
        await terminal.until("2 delivered")
        terminal.type("\x04")
        code = await terminal.ended()

    assert code == 0
    assert "✓ 2 records delivered to t" in terminal.shown
    assert values(cluster) == [b"one", b"two"]


async def test_ctrl_c_on_a_terminal_reports_what_is_acknowledged(cluster):
    async with on_terminal("produce", "-b", cluster.bootstrap_servers, "t") as terminal:
        terminal.type("one\n")
        await terminal.until("1 delivered")
        terminal.type("\x03")
        code = await terminal.ended()

    assert code == 130
    assert "Every record up to row 1 is delivered. To continue: --skip 1" in terminal.shown


async def test_records_are_delivered_even_if_no_process_reads_the_messages(cluster, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"a\n" * 1000)
    reading, writing = os.pipe()
    os.close(reading)

    ended = await run(
        "produce", "-b", cluster.bootstrap_servers, "--json", "t", str(file), stdout=writing, stderr=writing
    )
    os.close(writing)

    assert ended.code == 0
    assert len(values(cluster)) == 1000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
async def test_a_result_that_cannot_be_written_is_a_failure(cluster):
    full = os.open("/dev/full", os.O_WRONLY)

    ended = await run("produce", "-b", cluster.bootstrap_servers, "--json", "t", stdin=b"a\n", stdout=full)

    os.close(full)

    assert ended.code == 1
    assert "No space left on device" in ended.err


# -------------------------------------------------------------------------------------------------------- secrets


@pytest.mark.promise(
    "Command line", "a secret in the arguments causes a warning, and no secret is ever shown"
)
async def test_a_password_in_the_arguments_causes_a_warning_and_is_not_shown(cluster):
    ended = await produce(
        cluster,
        *("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=u"),
        *("-X", "sasl.password=hunter2", "-X", "sasl_plain_without_tls=true", "-vv"),
        stdin=b"1\n",
    )

    assert ended.code == 1
    assert "warning: -X sasl.password: every user on this machine can see a command's arguments" in ended.err
    assert "AIOPRODUCER_SASL_PLAIN_PASSWORD" in ended.err
    assert "hunter2" not in ended.err + ended.out


async def test_settings_come_from_the_environment_the_file_and_the_arguments(cluster, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={cluster.bootstrap_servers}\nclient.id=from-file\nlinger.ms=1\n")

    ended = await run(
        "produce",
        *("-F", str(file), "-X", "linger.ms=2", "t"),
        stdin=b"1\n",
        env={"AIOPRODUCER_CLIENT_ID": "from-environment", "AIOPRODUCER_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
    )

    assert ended.code == 0
    assert values(cluster) == [b"1"]
    assert {seen.header.client_id for seen in cluster.requests_of(ApiKey.PRODUCE)} == {"from-file"}


def test_formats_have_the_names_that_users_write():
    assert [form.value for form in Format] == ["lines", "jsonl", "csv", "parquet", "arrow", "records"]
