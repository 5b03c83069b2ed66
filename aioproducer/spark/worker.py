"""What PySpark does in its Python processes between two calls of the sink, made cheaper. Called at the end of each."""

from __future__ import annotations

import functools
import gc
import socket
import sys
from types import FrameType
from zipimport import zipimporter

WORKERS = {"pyspark.daemon", "pyspark.worker"}
"""Main modules of PySpark processes: those of tasks, and those on the driver that plan and commit."""


def spare() -> None:
    """Leave less to be done after this call and before the next; nothing outside PySpark's own processes."""
    if _is_sparks():
        _spare_the_collector()
        _spare_the_importer()


def acknowledge_at_once() -> None:
    """Called before a task reads its rows. Spark writes them in pieces, and the kernel keeps a small piece back until
    the one before is acknowledged (Nagle), which Linux puts off for 40 ms if nothing is written in return."""
    connection = _connection() if _is_sparks() and hasattr(socket, "TCP_QUICKACK") else None
    if connection is not None and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _is_sparks() -> bool:
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name in WORKERS


def _connection() -> socket.socket | None:
    """To the JVM: it stands in the function `worker`, which PySpark's daemon calls in each of its children."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "worker":
            found = frame.f_locals.get("sock")
            return found if isinstance(found, socket.socket) else None
        frame = frame.f_back
    return None


@functools.cache
def _spare_the_collector() -> None:
    """PySpark collects garbage after each task, and the collector looks at all that was ever imported: some 50 ms.
    What is there after the first call of the sink, stays; it need not be looked at again."""
    gc.collect()
    gc.freeze()


def _spare_the_importer() -> None:
    """PySpark 4.0 invalidates the caches of imports before each task, and Python reads the directories of pyspark.zip
    and py4j.zip anew: some 60 ms. Without their importers it does not; the next import makes them again."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
