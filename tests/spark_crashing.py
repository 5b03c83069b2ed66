"""The sink with places at which it dies: on the driver, in a task, once, when it comes there for the n-th time.

Spark unpickles `CrashingSink` in each of its processes, which imports this module there, and so the wrappers below take
hold. What to do where is in the environment, how often a place was reached in a file that all processes share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aioproducer.spark import KafkaSink, SinkError, exactly_once, sink, task

NAME = "crashing"
PLACE, VISIT, ACT, FOLDER, GROUP = (f"CRASH_{name}" for name in ("PLACE", "VISIT", "ACT", "FOLDER", "GROUP"))
NO_MARKER = "CRASH_NO_MARKER"
"""A planted bug: the marker is not looked at."""

PLACES = {
    "F1": "plan",
    "F2": "planned",
    "F3": "row",
    "F7": "commit",
    "F8": "end",
    "F10": "committed",
}
"""The failure points at which a process can be killed, by where they are."""


def visit(place: str) -> None:
    """Come to a place; die there if that is what the environment says."""
    if os.environ.get(PLACE) != place:
        return
    file = os.open(Path(os.environ[FOLDER]) / "visits", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b".")
    count = os.fstat(file).st_size
    os.close(file)
    if count != int(os.environ[VISIT]):
        return
    act = os.environ[ACT]
    if act == "driver":
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        time.sleep(60)
    if act == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "executor":
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
        time.sleep(60)
    if act == "stall":  # a zombie: it goes on when the batch was given up
        time.sleep(3)
        return
    raise SinkError(f"crash at {place}")


def _around(owner: Any, name: str, before: str | None, after: str | None = None) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **told: Any) -> Any:
        if before is not None:
            visit(before)
        result = inner(*args, **told)
        if after is not None:
            visit(after)
        return result

    setattr(owner, name, wrapped)


_around(exactly_once, "plan", "plan", "planned")
_around(exactly_once, "commit", "commit", "committed")
_around(exactly_once, "_end", "end")
_around(task.TaskWriter, "write", None, "row")
_around(sink._Writer, "_commit", "any commit")
if os.environ.get(NO_MARKER):
    exactly_once._is_done = lambda plan, version: False


class CrashingStreamWriter(sink.StreamWriter):
    """In the tasks: unpickled there, it brings this module along."""


class CrashingSink(KafkaSink):
    """The same in everything else."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = CrashingStreamWriter
        return writer
