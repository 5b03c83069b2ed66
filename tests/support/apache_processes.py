"""Processes, directories and descriptors as the operating system tells them: what a test looks at when a
cluster has ended, or while it starts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from tests.conftest import MS


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that nobody has reaped does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def command_lines(text: str) -> dict[int, str]:
    """All processes of the machine whose command line has this text in it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # it has just ended
                continue
            if text in line and int(entry.name) != os.getpid():
                found[int(entry.name)] = line
    return found


def children() -> set[int]:
    """All processes that this one has started, also those that have ended and are not reaped."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def descriptors() -> dict[str, str]:
    """What this process has open: files, pipes, sockets. Not /dev/null: a loop of uvloop's keeps one."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # that of the directory itself
            continue
        if target != "/dev/null":
            found[entry.name] = target
    return found


async def until(condition: Callable[[], object], timeout: float = 30_000 * MS) -> None:
    """Wait for what other processes do: they set no events."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(10 * MS)
