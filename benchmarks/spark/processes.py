"""CPU time of a process and all that came from it, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICK = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """CPU seconds, user and system."""

    java: float
    python: float

    @property
    def total(self) -> float:
        return self.java + self.python

    def since(self, before: Spent) -> Spent:
        return Spent(self.java - before.java, self.python - before.python)


class Process(NamedTuple):
    name: str
    parent: int
    seconds: float
    """Its own, and those of its children that have ended and were waited for."""


def parsed(stat: str) -> Process:
    """A line of /proc/PID/stat. The name stands in parentheses and may hold anything."""
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()  # from the third on: state, parent ...
    return Process(name, int(fields[1]), sum(map(int, fields[11:15])) / TICK)


def processes() -> dict[int, Process]:
    """All that run, by their ids."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = parsed((entry / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
    return found


def spent(root: int, table: dict[int, Process] | None = None) -> Spent:
    """What a process and all its descendants have used so far, those that have ended included."""
    table = processes() if table is None else table
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    java = python = 0.0
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        if table[pid].name == "java":
            java += table[pid].seconds
        else:
            python += table[pid].seconds
    return Spent(java, python)
