"""What PySpark does in its Python processes between two calls of the sink, made cheaper. Called at the end of each."""

from __future__ import annotations

import functools
import gc
import sys
from zipimport import zipimporter

WORKERS = {"pyspark.daemon", "pyspark.worker"}
"""Main modules of PySpark processes: those of tasks, and those on the driver that plan and commit."""


def spare() -> None:
    """Leave less to be done after this call and before the next; nothing outside PySpark's own processes."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name in WORKERS:
        _spare_the_collector()
        _spare_the_importer()


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
