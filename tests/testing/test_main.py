"""`python -m aioproducer.testing`: a cluster in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

import pytest

from aioproducer.protocol.messages import ApiVersionsRequest, MetadataRequest
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing import __main__ as command_line
from tests.support.raw_client import RawClient, batch_of

WAIT = 30.0  # seconds; longer than any step takes on a slow machine
COMMAND = ("-W", "error", "-m", "aioproducer.testing")


@contextlib.asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command as a child process; kill it at the end of the block if it is still running."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *COMMAND,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def listening(child: asyncio.subprocess.Process) -> list[str]:
    """Return the addresses once the cluster has started."""
    assert child.stdout is not None
    line = (await asyncio.wait_for(child.stdout.readline(), WAIT)).decode()
    assert line.startswith("listening on 127.0.0.1:")
    return line.removeprefix("listening on ").strip().split(",")


async def ended(child: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Return the exit status, output and error output."""
    out, errors = await asyncio.wait_for(child.communicate(), WAIT)
    return child.returncode, out.decode(), errors.decode()


@pytest.mark.promise(
    "Test clusters", "`EmbeddedCluster` runs in process, and as `python -m aioproducer.testing`"
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_command_serves_until_a_signal_and_exits_with_0(number):
    async with command("--brokers", "3", "--port", "0", "--topic", "t:4") as child:
        servers = await listening(child)
        async with RawClient(servers[0]) as client:
            described = await client.metadata("t")
            assert (await client.produce(batch_of(b"a"))).error_code == 0
        child.send_signal(number)

        assert await ended(child) == (0, "", "")
        assert [f"127.0.0.1:{broker.port}" for broker in described.brokers] == servers
        assert len(described.topics[0].partitions) == 4


async def test_the_command_ends_even_if_clients_hang():
    async with command("--port", "0") as child:
        (server,) = await listening(child)
        async with RawClient(server) as silent, RawClient(server) as halfway:
            halfway.writer.write(b"\x00\x00\x01\x00half a request")
            await halfway.writer.drain()
            await silent.metadata()
            child.terminate()

            assert await ended(child) == (0, "", "")
            assert await silent.is_closed()
            assert await halfway.is_closed()


def two_free_ports() -> int:
    """The first of two consecutive free ports."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):  # the second port is in use, or does not exist
                second.bind(("127.0.0.1", port + 1))
                return port


async def test_the_command_uses_consecutive_ports_from_the_first_one():
    port = two_free_ports()
    async with command("--brokers", "2", "--port", str(port)) as child:
        assert await listening(child) == [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]


async def test_the_command_behaves_like_the_named_release():
    async with command("--port", "0", "--versions", "2.1", "--topic", "t") as child:
        (server,) = await listening(child)
        async with RawClient(server) as client:
            assert (await client.metadata("t", version=7)).topics[0].error_code == 0
        async with RawClient(server) as client:
            client.send(MetadataRequest(topics=[]), 8)
            assert await client.is_closed()


@pytest.mark.parametrize("level", [1, 2])
async def test_the_command_has_the_requested_version_of_transactions(level):
    async with command("--port", "0", "--transaction-version", str(level)) as child:
        (server,) = await listening(child)
        async with RawClient(server) as client:
            request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            described = await client.ask(request, 3)

        levels = {feature.name: feature.max_version_level for feature in described.finalized_features}
        assert levels["transaction.version"] == level


async def test_the_command_ends_with_its_standard_input_if_requested():
    async with command("--port", "0", "--stop-with-stdin") as child:
        await listening(child)
        assert child.stdin is not None
        child.stdin.write(b"what is written there means nothing\n")
        await child.stdin.drain()
        child.stdin.close()

        assert await ended(child) == (0, "", "")


@pytest.mark.promise(
    "Test clusters", "an embedded cluster leaves nothing behind, whatever clients and tests do"
)
async def test_the_command_does_not_outlive_a_parent_that_is_killed():
    parent = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'aioproducer.testing', '--port', '0',"
        " '--stop-with-stdin'], stdin=subprocess.PIPE)\n"
        "time.sleep(600)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE
    )
    await listening(process)
    process.kill()

    # The grandchild shares the standard output, so the stream ends only when both have ended.
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.read(), WAIT) == b""
    await process.wait()


async def test_the_command_names_a_port_that_is_in_use_and_what_to_do():
    async with EmbeddedCluster() as cluster:
        port = cluster.nodes[0].port
        async with command("--port", str(port)) as child:
            status, out, errors = await ended(child)

    assert (status, out) == (1, "")
    assert str(port) in errors
    assert "free ports with --port 0" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--brokers", "0"], "argument --brokers: '0' is not a positive integer"),
        (["--brokers", "three"], "argument --brokers: 'three' is not a positive integer"),
        (["--port", "65536"], "argument --port: '65536' is not a port"),
        (["--port", "65535", "--brokers", "2"], "--port 65535 --brokers 2 requires ports up to 65536"),
        (["--versions", "9.9"], "versions='9.9' is not one of 0.11"),
        (["--topic", "a/b:1"], "topic 'a/b' can't be created: a name has"),
        (["--topic", "a:0"], "argument --topic: '0' is not a positive integer"),
        (["--topic", "a:1", "--topic", "a:2"], "--topic a is given twice"),
        (["--partitions", "-1"], "argument --partitions: '-1' is not a positive integer"),
        (["--broker", "1", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
async def test_the_command_explains_invalid_arguments(arguments, problem):
    async with command("--port", "0", *arguments) as child:
        status, out, errors = await ended(child)

    assert (status, out) == (2, "")
    assert errors.startswith(problem)
    assert len(errors.splitlines()) == 1


async def test_the_help_of_the_command_lists_its_options():
    async with command("--help") as child:
        status, out, errors = await ended(child)

    assert (status, errors) == (0, "")
    for name in ("--brokers", "--port", "--topic", "--versions", "--stop-with-stdin", "azure-", "SIGTERM"):
        assert name in out


# In this process


def cluster_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> EmbeddedCluster:
    monkeypatch.setattr(sys, "argv", ["testing", *arguments])
    return command_line.cluster_of(command_line._arguments())


def test_without_arguments_it_is_one_broker_at_kafkas_port_like_kafka_4_1(monkeypatch):
    cluster = cluster_of(monkeypatch)

    assert cluster.bootstrap_servers == "127.0.0.1:9092"
    assert (cluster.default_partitions, cluster.transactions.version) == (1, 2)
    assert cluster.broker(0).release.name == "4.1"


async def test_each_argument_reaches_the_cluster(monkeypatch):
    arguments = "--brokers 2 --port 0 --partitions 4 --topic t --topic u:3 --transaction-version 1"
    async with cluster_of(monkeypatch, *arguments.split()) as cluster:
        assert [node.host for node in cluster.nodes] == ["127.0.0.1"] * 2
        assert all(node.port > 0 for node in cluster.nodes)
        assert {name: len(topic.partitions) for name, topic in cluster.topics.items()} == {"t": 1, "u": 3}
        assert (cluster.default_partitions, cluster.transactions.version) == (4, 1)


def test_clients_get_the_named_host_and_ports_up_to_the_highest_possible(monkeypatch):
    cluster = cluster_of(monkeypatch, *"--brokers 2 --host example.org --port 65534".split())

    assert cluster.bootstrap_servers == "example.org:65534,example.org:65535"


def test_without_standard_input_stop_with_stdin_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "argv", ["testing", "--stop-with-stdin"])

    assert command_line.main() == 2
    assert capsys.readouterr().err.startswith("--stop-with-stdin requires standard input")
