"""Processes and file descriptors as the operating system reports them, for tests that start and stop clusters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from tests.conftest import MS


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def command_lines(text: str) -> dict[int, str]:
    """The other processes on the machine whose command line contains `text`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # the process has just ended
                continue
            if text in line and int(entry.name) != os.getpid():
                found[int(entry.name)] = line
    return found


def children() -> set[int]:
    """The child processes of this one, including zombies."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def descriptors() -> dict[str, str]:
    """The open files, pipes and sockets of this process; not /dev/null, which a uvloop loop keeps open."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the descriptor of the directory itself
            continue
        if target != "/dev/null":
            found[entry.name] = target
    return found


async def until(condition: Callable[[], object], timeout: float = 30_000 * MS) -> None:
    """Poll a condition that depends on other processes, since they set no events."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(10 * MS)
