"""`aioproducer cluster`: the embedded cluster as a command."""

from __future__ import annotations

import asyncio
import json
import signal
import socket

import pytest

from aioproducer import Producer
from aioproducer.cli import cluster as module
from tests.support.commands import on_terminal, run, running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_its_topics_until_a_signal(number):
    async with running("cluster", "--port", "0", "--brokers", "2", "-t", "x:3", "--json") as command:
        first = await asyncio.wait_for(command.output.readline(), 30)
        servers = json.loads(first)["bootstrap_servers"]
        async with Producer(servers) as producer:
            partitions = await producer.partitions_for("x")
        command.interrupt(number)
        ended = await command.ended()

    assert partitions == {0, 1, 2}
    assert servers.count(",") == 1
    assert (ended.code, ended.out, ended.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-t", "x:0"], "PARTITIONS in NAME:PARTITIONS must be a whole number, at least 1"),
        (["-t", "x", "-t", "x"], "--topic x is given twice"),
        (["--versions", "nonsense"], "nonsense"),
        (["--port", "65535", "--brokers", "2"], "requires ports up to 65536"),
    ],
)
async def test_wrong_usage_ends_with_2(arguments, problem):
    ended = await run("cluster", *arguments)

    assert ended.code == 2
    assert problem in ended.err


async def test_a_port_that_is_taken_is_a_failure():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = await run("cluster", "--port", str(taken.getsockname()[1]))

    assert ended.code == 1
    assert "--port 0 chooses free ports" in ended.err


async def test_ctrl_c_on_a_terminal_ends_it():
    async with on_terminal("cluster", "--port", "0") as terminal:
        await terminal.until("listening on 127.0.0.1:")
        terminal.type("\x03")

        assert await terminal.ended() == 0


def test_a_topic_has_one_partition_by_default():
    assert module._topic("x") == ("x", 1)
    assert module._topic("x:7") == ("x", 7)
