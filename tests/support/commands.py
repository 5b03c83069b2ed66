"""Runs the `aioproducer` command in a process, with pipes or on a pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

WAIT = 30.0
"""Seconds; longer than any step takes on a slow machine."""
COMMAND = ("-W", "error", "-m", "aioproducer")
ROOT = Path(__file__).parent.parent.parent

# A terminal opened by a session leader becomes its controlling terminal, so that Ctrl-C becomes SIGINT.
ON_TERMINAL = (
    "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.executable, sys.argv[1:])"
)


class Ended(NamedTuple):
    """The exit code and the output of a command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The parsed line that --json wrote."""
        [line] = self.out.splitlines()
        return json.loads(line)


class Running:
    """A running command with pipes as its standard streams."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._err = ""

    async def line(self, text: str) -> str:
        """Wait until standard error has a line with `text`."""
        assert self._child.stderr is not None
        async with asyncio.timeout(WAIT):
            while line := (await self._child.stderr.readline()).decode():
                self._err += line
                if text in line:
                    return line
        raise AssertionError(f"the command ended without {text!r}:\n{self._err}")

    @property
    def output(self) -> asyncio.StreamReader:
        """Standard output."""
        assert self._child.stdout is not None
        return self._child.stdout

    def write(self, data: bytes) -> None:
        """Write to standard input."""
        assert self._child.stdin is not None
        self._child.stdin.write(data)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self._child.send_signal(number)

    async def ended(self) -> Ended:
        """Close standard input and wait for the command to end."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        out, err = await asyncio.wait_for(self._child.communicate(), WAIT)
        assert self._child.returncode is not None
        return Ended(self._child.returncode, (out or b"").decode(), self._err + (err or b"").decode())


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a command: this process's own, without variables for aioproducer and colours."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AIOPRODUCER_")}
    plain |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "100"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        plain.pop(name, None)
    return plain | dict(more or {})


@contextlib.asynccontextmanager
async def running(
    *arguments: str, env: Mapping[str, str] | None = None, **streams: Any
) -> AsyncIterator[Running]:
    """Start a command with pipes; kill it at the end of the block if it is still running."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    child = await asyncio.create_subprocess_exec(
        sys.executable, *COMMAND, *arguments, env=environment(env), **(pipes | streams)
    )
    try:
        yield Running(child)
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def run(
    *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, **streams: Any
) -> Ended:
    """Run a command to its end, with pipes."""
    async with running(*arguments, env=env, **streams) as command:
        if "stdin" not in streams:
            command.write(stdin)
        return await command.ended()


class Terminal:
    """A running command on a terminal of 24 lines and 100 columns."""

    def __init__(self, child: asyncio.subprocess.Process, master: int) -> None:
        self._child = child
        self._master = master
        self._is_closed = False
        self.shown = ""
        """Everything that the command has written, without escape sequences."""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed (Linux)
            data = b""
        if not data:
            self._is_closed = True
            asyncio.get_running_loop().remove_reader(self._master)
        self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        self._news.set()

    async def until(self, text: str) -> None:
        """Wait until the command has shown `text`."""
        async with asyncio.timeout(WAIT):
            while text not in self.shown:
                assert not self._is_closed, f"the command ended without {text!r}:\n{self.shown}"
                self._news.clear()
                await self._news.wait()

    def type(self, text: str) -> None:
        """Type `text`; \\x03 is Ctrl-C and \\x04 ends the input."""
        os.write(self._master, text.encode())

    async def ended(self) -> int:
        """Wait for the command to end and return its exit code."""
        async with asyncio.timeout(WAIT):
            code = await self._child.wait()
            while not self._is_closed:
                self._news.clear()
                await self._news.wait()
        return code


@contextlib.asynccontextmanager
async def on_terminal(*arguments: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Terminal]:
    """Start a command on a pseudo-terminal; kill it at the end of the block if it is still running."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", ON_TERMINAL, sys.executable, *COMMAND, *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(env),
        start_new_session=True,
    )
    os.close(slave)
    terminal = Terminal(child, master)
    try:
        yield terminal
    finally:
        if child.returncode is None:
            child.kill()
        await terminal.ended()
        os.close(master)
