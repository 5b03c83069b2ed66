"""A sink that can be made to fail at one of several places, on the driver or in a task: once, at the n-th visit.

Spark unpickles `CrashingSink` in each of its processes. This imports the module there and installs the wrappers below.
All processes share the files that contain the order and count the visits."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aioproducer.spark import KafkaSink, SinkError, exactly_once, sink, task

NAME = "crashing"
FOLDER, GROUP = "CRASH_FOLDER", "CRASH_GROUP"
"""Environment variables with the folder of these files and the process group of the driver."""
VISITS, GIVEN_UP = "visits", "given-up"
"""The files of an order: one with a byte for each visit, one that exists if Spark has abandoned a batch."""
NO_MARKER = "no_marker"
"""A planted bug: the marker is ignored."""

PLACES = {
    "F1": "plan",
    "F2": "planned",
    "F3": "row",
    "F7": "commit",
    "F8": "end",
    "F10": "committed",
}
"""The failure points at which a process can be killed, with their places."""

_plan = exactly_once.plan


def give_order(order: Mapping[str, Any]) -> None:
    """Replace the order. A process that still follows the previous order goes on using the files of that order."""
    folder = Path(os.environ[FOLDER])
    number = _order()["number"] + 1 if (folder / "order").exists() else 1
    (folder / "fresh").write_text(json.dumps({**order, "number": number}))
    (folder / "fresh").rename(folder / "order")


def _order() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(os.environ[FOLDER]) / "order").read_text())
    return found


def _file(name: str, order: Mapping[str, Any]) -> Path:
    return Path(os.environ[FOLDER]) / f"{name}-{order['number']}"


def visits() -> int:
    """The number of visits to the place that the order names."""
    path = _file(VISITS, _order())
    return path.stat().st_size if path.exists() else 0


def next_visit(path: Path) -> int:
    """Count a visit and return its number, which is unique among all processes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, b".")
        return os.lseek(file, 0, os.SEEK_CUR)  # the end of this write; the file may already be longer
    finally:
        os.close(file)


def visit(place: str, arguments: tuple[Any, ...]) -> None:
    """Visit a place, and act there if the order says so."""
    order = _order()
    if order["place"] != place:
        return
    count = next_visit(_file(VISITS, order))
    act = order["act"]
    if act == "zombie" and count == order["visit"] + 1:
        raise RuntimeError(
            "another task fails meanwhile"
        )  # not an error from Kafka, so Spark abandons the batch at once
    if count != order["visit"]:
        return
    if act == "driver":
        os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
        time.sleep(60)
    if act == "broker":  # at once, or during the next step
        threading.Timer(order["delay"], os.kill, (order["pid"], signal.SIGKILL)).start()
        return
    if act == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "executor":
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
        time.sleep(60)
    if act == "zombie":  # it continues after Spark has abandoned the batch
        deadline = time.monotonic() + 60
        while not _file(GIVEN_UP, order).exists():
            assert time.monotonic() < deadline, "Spark did not abandon the batch within 60 s"
            time.sleep(0.01)
        return
    if act == "outlive":  # until the brokers abort the transaction
        time.sleep(float(order["sink"]["kafka.transaction.timeout.ms"]) / 1000 + 1)
        return
    if act == "rival":  # another driver takes over the transactional id, and does nothing more
        _plan(arguments[0])
        return
    raise SinkError(f"crash at {place}")


def _around(owner: Any, name: str, before: str | None, after: str | None = None) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **told: Any) -> Any:
        if before is not None:
            visit(before, args)
        result = inner(*args, **told)
        if after is not None:
            visit(after, args)
        return result

    setattr(owner, name, wrapped)


def _telling(abort: Callable[..., None]) -> Callable[..., None]:
    def told(*args: Any) -> None:
        abort(*args)
        _file(GIVEN_UP, _order()).touch()

    return told


def _forgetful(is_done: Callable[..., bool]) -> Callable[..., bool]:
    return lambda plan, version: not _order()[NO_MARKER] and is_done(plan, version)


if FOLDER in os.environ:  # not in the test's own process, which only uses the names
    _around(exactly_once, "plan", "plan", "planned")
    _around(exactly_once, "commit", "commit", "committed")
    _around(exactly_once, "_end", "end")
    _around(task.TaskWriter, "_send", "before row", "row")
    _around(task.TaskWriter, "finish", None, "acknowledged")
    _around(sink._Writer, "_commit", "any commit")
    exactly_once.abort = _telling(exactly_once.abort)
    exactly_once._is_done = _forgetful(exactly_once._is_done)


class CrashingStreamWriter(sink.StreamWriter):
    """The writer for the tasks, where unpickling it imports this module."""


class CrashingSink(KafkaSink):
    """KafkaSink with this module's writer."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = CrashingStreamWriter
        return writer
