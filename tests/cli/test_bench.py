"""`aioproducer bench`: the figures for the acknowledged records."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.cli.bench import bench
from aioproducer.testing import ApiKey
from tests.support.commands import on_terminal, run, running


async def test_all_records_are_sent_and_measured(cluster):
    ended = await run(
        "bench", "-b", cluster.bootstrap_servers, "t", "-n", "500", "--record-size", "33", "--json"
    )

    assert ended.code == 0
    facts = ended.json
    assert (facts["delivered"], facts["failed"], facts["unknown"], facts["exit_code"]) == (500, 0, 0, 0)
    assert 0 < facts["p50"] <= facts["p95"] <= facts["p99"] <= facts["p99_9"] <= facts["maximum"]
    assert facts["cpu_us_per_record"] > 0
    records = cluster.records("t")
    assert [len(record.value) for record in records] == [33] * 500
    assert bench.__doc__ is not None


async def test_the_lines_of_a_file_are_sent_repeatedly_at_a_rate(cluster, tmp_path):
    file = tmp_path / "payloads"
    file.write_bytes(b"a\nbb\n")

    ended = await run(
        *("bench", "-b", cluster.bootstrap_servers, "t", "-n", "5"),
        *("--rate", "50", "--payload-file", str(file)),
    )

    assert ended.code == 0
    assert [record.value for record in cluster.records("t")] == [b"a", b"bb", b"a", b"bb", b"a"]
    assert ended.out.startswith("5 records delivered, ")
    assert " ms 99.9th.\n" in ended.out
    assert ended.out.endswith(" us CPU per record.\n")


async def test_records_in_doubt_are_not_counted_as_delivered(cluster):
    cluster.faults.add(ApiKey.PRODUCE, drop_after_append=True, count=100)

    ended = await run(
        *("bench", "-b", cluster.bootstrap_servers, "t", "-n", "5", "--json"),
        *("-X", "delivery.timeout.ms=300", "-X", "request.timeout.ms=200", "-X", "linger.ms=0"),
    )

    assert ended.code == 3
    assert (ended.json["delivered"], ended.json["unknown"], ended.json["p50"]) == (0, 5, None)


async def test_ctrl_c_reports_what_was_measured(cluster):
    async with running("bench", "-b", cluster.bootstrap_servers, "t", "--rate", "100", "--json") as command:
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        command.interrupt()
        ended = await command.ended()

    assert ended.code == 130
    assert ended.json["delivered"] == len(cluster.records("t"))


async def test_the_second_ctrl_c_ends_the_wait_for_results(cluster):
    hold = asyncio.Event()
    cluster.faults.add(ApiKey.PRODUCE, hold=hold)
    async with running("bench", "-b", cluster.bootstrap_servers, "t", "-n", "1", "--json") as command:
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)
        command.interrupt()
        await command.line("press Ctrl-C again to stop at once")
        command.interrupt()
        ended = await command.ended()
        hold.set()

    assert ended.code == 130
    assert (ended.json["delivered"], ended.json["unknown"]) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rate", "0"], "--rate must be more than 0, not 0"),
        (["--payload-file", "missing"], "--payload-file missing: No such file or directory"),
        (["--payload-file", "/dev/null"], "--payload-file /dev/null: the file is empty"),
        (["-X", "acks=0"], "bench measures acknowledgements"),
    ],
)
async def test_wrong_usage_ends_with_2(cluster, arguments, problem):
    ended = await run("bench", "-b", cluster.bootstrap_servers, "t", *arguments)

    assert ended.code == 2
    assert problem in ended.err


async def test_a_terminal_shows_the_figures(cluster):
    async with on_terminal("bench", "-b", cluster.bootstrap_servers, "t", "-n", "10") as terminal:
        code = await terminal.ended()

    assert code == 0
    assert "10 records delivered, " in terminal.shown
