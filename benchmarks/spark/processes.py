"""CPU time of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICK = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    name: str
    parent: int
    own: float
    """CPU seconds, user and system."""
    ended: float = 0.0
    """The CPU seconds of its children that have ended and that it has waited for."""


class Spent(NamedTuple):
    """CPU seconds, user and system."""

    java: float
    python: float

    @property
    def total(self) -> float:
        return self.java + self.python


def parsed(stat: str) -> Process:
    """Parse a line of /proc/PID/stat. The name is in parentheses and may contain any characters."""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()  # from the third on: state, parent ...
    user, system, ended_user, ended_system = map(int, fields[11:15])
    return Process(name, int(fields[1]), (user + system) / TICK, (ended_user + ended_system) / TICK)


def processes() -> dict[int, Process]:
    """Return all running processes, by their ids."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = parsed((entry / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended in the meantime
    return found


def descendants(root: int, table: dict[int, Process] | None = None) -> dict[int, Process]:
    """Return a process and all its descendants."""
    table = processes() if table is None else table
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        found[pid] = table[pid]
        waiting += children.get(pid, [])
    return found


def spent(before: dict[int, Process], after: dict[int, Process]) -> Spent:
    """Return the processor time that `descendants` used between two samples.

    The time of a process that has ended is added to its parent's if the parent has waited for it. PySpark's daemons do
    not wait for their workers, but Spark ends only workers that have been idle for a minute."""
    java = python = ended = 0.0
    for pid, process in after.items():
        was = before.get(pid, Process(process.name, process.parent, 0.0))
        ended += process.ended - was.ended
        if process.name == "java":
            java += process.own - was.own
        else:
            python += process.own - was.own
    gone = sum(process.own + process.ended for pid, process in before.items() if pid not in after)
    return Spent(java, python + max(0.0, ended - gone))
