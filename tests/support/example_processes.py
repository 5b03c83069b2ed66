"""Runs the examples as users do, each in a separate process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.producing import within

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DEADLINE = 30
"""The time limit for each step of an example, in seconds on a fast machine."""


class Example:
    """A running example."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self, beginning: str, stream: str = "stdout") -> str:
        """Read until a line begins with this text, and return the rest of the line."""
        found = await within(DEADLINE, self._line(beginning.encode(), getattr(self.process, stream)))
        assert found is not None, f"the example ended without {beginning!r}: {await self.finish()}"
        return found

    async def _line(self, beginning: bytes, stream: asyncio.StreamReader) -> str | None:
        async for line in stream:
            if beginning in line:
                return line.partition(beginning)[2].decode().strip()
        return None

    async def finish(self, number: int | None = None) -> tuple[int | None, str, str]:
        """Send a signal, if given, and wait for the exit; return the status and the rest of stdout and stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = await within(DEADLINE, self.process.communicate())
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def running(script: str, *arguments: object, **environment: str) -> AsyncIterator[Example]:
    """An example in a separate process, in which warnings are errors, including those about unclosed sockets."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / f"{script}.py"), *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield Example(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(script: str, *arguments: object) -> tuple[int | None, str, str]:
    async with running(script, *arguments) as example:
        return await example.finish()
