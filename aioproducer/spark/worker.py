"""Reduces the work that PySpark does in its Python processes between two calls to the sink."""

from __future__ import annotations

import functools
import gc
import logging
import socket
import sys
from types import FrameType
from zipimport import zipimporter

import pyspark

WORKERS = {"pyspark.daemon", "pyspark.worker"}
"""Main modules of PySpark's Python processes, which run tasks or, on the driver, plan and commit writes."""
LIKE_SPARKS = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""The format of log lines, like that of Spark's own lines."""


def spare() -> None:
    """Reduce the work between this call to the sink and the next. Has no effect outside PySpark's own processes.

    Called at the end of each call to the sink."""
    if _is_sparks():
        _spare_the_collector()
        _spare_the_importer()


def show_messages() -> None:
    """Write the sink's INFO messages to the standard error of this process, which is part of the driver's log.

    Has no effect outside PySpark's own processes, or if logging is configured."""
    logger = logging.getLogger("aioproducer.spark")
    if not _is_sparks() or logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(LIKE_SPARKS, "%y/%m/%d %H:%M:%S"))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


def acknowledge_at_once() -> None:
    """Tell the kernel to acknowledge Spark's data immediately. Called before a task reads its rows.

    Spark writes the rows in pieces. The sending kernel delays a small piece until the previous one is acknowledged
    (Nagle's algorithm), and Linux delays the acknowledgement by 40 ms if no data is sent in return."""
    connection = _tcp_connection() if hasattr(socket, "TCP_QUICKACK") else None
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def could_use_a_unix_socket() -> bool:
    """Return True if this task's rows arrive over TCP, although this release of Spark supports Unix sockets."""
    release = tuple(map(int, pyspark.__version__.split(".")[:2]))
    return release >= (4, 1) and _tcp_connection() is not None


def _is_sparks() -> bool:
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return main is not None and main.name in WORKERS


def _tcp_connection() -> socket.socket | None:
    """Return the connection to the JVM, a local variable of `worker()`, which PySpark's daemon calls in each child.

    Return None if it is a Unix socket, or outside PySpark's own processes."""
    frame: FrameType | None = sys._getframe() if _is_sparks() else None
    while frame is not None:
        if frame.f_code.co_name == "worker":
            found = frame.f_locals.get("sock")
            is_tcp = isinstance(found, socket.socket) and found.family != getattr(socket, "AF_UNIX", None)
            return found if is_tcp else None
        frame = frame.f_back
    return None


@functools.cache
def _spare_the_collector() -> None:
    """Exclude from garbage collection the objects that exist after the first call to the sink.

    PySpark collects garbage after each task, and the collector would traverse all imported modules, which takes
    about 50 ms."""
    gc.collect()
    gc.freeze()


def _spare_the_importer() -> None:
    """Remove the importers of zip files; the next import re-creates them.

    PySpark 4.0 invalidates the import caches before each task, and Python would then read the directories of
    pyspark.zip and py4j.zip again, which takes about 60 ms."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]
