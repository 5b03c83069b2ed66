"""Kafka's own command-line tools: they run to completion or are killed, and return their output."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer.testing import ApacheKafka
from aioproducer.testing.apache.jars import ApacheKafkaError, JavaRuntime
from aioproducer.testing.apache.resources import Resources
from aioproducer.testing.apache.tools import run_tool
from tests.support.apache_processes import command_lines, until

# With a real Kafka

apache = pytest.mark.apache


@pytest.fixture
def kafka(apache_kafka: ApacheKafka) -> ApacheKafka:
    """The shared broker: the tools only read from it, or use their own topics."""
    return apache_kafka


@pytest.mark.promise(
    "Test clusters", "`ApacheKafka` has listeners, proxies, features, users and Kafka's own tools"
)
@apache
async def test_kafkas_tools_run_and_return_their_output(kafka):
    await kafka.create_topic("told", partitions=2)
    before = set(kafka.directory.glob("tool-*"))

    printed = await kafka.run_tool(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server",
        kafka.bootstrap_servers_of("INTERNAL"),
        "--describe",
        "--topic",
        "told",
    )

    assert "PartitionCount: 2" in printed
    assert set(kafka.directory.glob("tool-*")) == before


@apache
async def test_a_tool_that_fails_is_reported_with_its_output(kafka):
    with pytest.raises(
        ApacheKafkaError, match=r"DumpLogSegments exited with 1:\n(?s:.*)This tool helps to parse a log file"
    ):
        await kafka.run_tool("org.apache.kafka.tools.DumpLogSegments")


@apache
async def test_a_tool_that_does_not_end_is_ended(kafka, monkeypatch):
    monkeypatch.setattr(kafka, "start_timeout", 0.02)

    with pytest.raises(ApacheKafkaError, match=r"DumpLogSegments did not end within 0\.02 s"):
        await kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", "--help")

    assert not of_tools(kafka)


@apache
async def test_a_cancelled_tool_is_ended(kafka):
    running = asyncio.create_task(kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", "--help"))
    await until(lambda: of_tools(kafka) or running.done())

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert not of_tools(kafka)


def of_tools(kafka: ApacheKafka) -> list[str]:
    lines = command_lines(str(kafka.directory)).values()
    return [line for line in lines if "DumpLogSegments" in line]


# With a script instead of Java


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Resources]:
    resources = Resources(tmp_path / "held")
    yield resources
    resources.release()


def java(tmp_path: Path, script: str) -> JavaRuntime:
    executable = tmp_path / "java"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    return JavaRuntime(str(executable), "all.jar")


async def test_only_the_standard_output_of_a_tool_is_returned_and_no_file_is_left(held, tmp_path):
    runtime = java(
        tmp_path, "printf 'Fl\\303\\274ge\\377 '; echo warning >&2; shift $(($# - 3)); echo \"$@\""
    )

    printed = await run_tool(runtime, held, "a.Tool", ["--one", "two words"], 30)

    assert printed == "Flüge\ufffd a.Tool --one two words\n"
    assert list(held.directory.glob("tool-*")) == []


async def test_a_tool_that_fails_is_reported_with_both_of_its_outputs_which_are_kept(held, tmp_path):
    runtime = java(tmp_path, "echo progress; echo the reason >&2; exit 3")

    with pytest.raises(ApacheKafkaError, match=r"a\.Tool exited with 3:\nprogress\nthe reason"):
        await run_tool(runtime, held, "a.Tool", [], 30)

    assert sorted(path.name for path in held.directory.glob("tool-*")) == ["tool-1.log", "tool-1.out"]


async def test_concurrent_tools_do_not_mix_their_outputs(held, tmp_path):
    runtime = java(tmp_path, 'shift $(($# - 1)); echo "$@"')

    printed = await asyncio.gather(*(run_tool(runtime, held, "a.Tool", [name], 30) for name in "abc"))

    assert printed == ["a\n", "b\n", "c\n"]


async def test_a_tool_that_exceeds_its_time_limit_is_killed(held, tmp_path):
    runtime = java(tmp_path, "while :; do sleep 0.05; done")

    with pytest.raises(ApacheKafkaError, match=r"a\.Tool did not end within 0\.05 s"):
        await run_tool(runtime, held, "a.Tool", [], 0.05)

    assert not command_lines(str(held.directory))
