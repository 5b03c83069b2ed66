"""Kafka's own command-line tools: Java classes that run to completion."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aioproducer.testing.apache.jars import ApacheKafkaError, JavaRuntime, tail
from aioproducer.testing.apache.resources import Resources

LEAN_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Arguments for a JVM that runs briefly and should start quickly."""
_UTF8 = ("-Dstdout.encoding=UTF-8", "-Dfile.encoding=UTF-8")
"""Arguments that make the output UTF-8 in every locale; the second one is for Java 17."""


async def run_tool(
    java: JavaRuntime, held: Resources, main_class: str, arguments: Sequence[str], timeout: float
) -> str:
    """Run a tool and return its output on stdout. See ApacheKafka.run_tool."""
    number = held.next_number()
    output, errors = (held.directory / f"tool-{number}.{kind}" for kind in ("out", "log"))
    scratch = held.directory / "tmp"
    scratch.mkdir(exist_ok=True)
    command = java.command(main_class, *arguments, scratch=scratch, options=LEAN_JVM + _UTF8)
    process = held.children.spawn(command, directory=held.directory, log=errors, output=output)
    try:
        async with asyncio.timeout(timeout):
            exit_code = await held.children.wait(process)
    except TimeoutError:
        exit_code = None
    finally:
        held.children.kill(process)  # does nothing if the process has ended
    if exit_code != 0:
        how = f"did not end within {timeout:g} s" if exit_code is None else f"exited with {exit_code}"
        # Show 100 lines, because a tool prints its long usage text after the error.
        raise ApacheKafkaError(f"{main_class} {how}:\n{tail(output)}\n{tail(errors, lines=100)}")
    printed = output.read_text("utf-8", errors="replace")
    output.unlink()
    errors.unlink()
    return printed
