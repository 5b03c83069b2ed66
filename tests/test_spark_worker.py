"""What the sink does for PySpark's own Python processes, and that it leaves others alone."""

from __future__ import annotations

import importlib
import sys
import zipfile
from types import SimpleNamespace
from zipimport import zipimporter

import pytest

from aioproducer.spark import worker


@pytest.fixture
def main(monkeypatch):
    """The main module's name, as in a process of PySpark's."""
    worker._spare_the_collector.cache_clear()
    spec = SimpleNamespace(name="pyspark.daemon")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    yield spec
    worker._spare_the_collector.cache_clear()


@pytest.fixture
def collector(monkeypatch):
    calls = []
    monkeypatch.setattr(
        worker,
        "gc",
        SimpleNamespace(collect=lambda: calls.append("collect"), freeze=lambda: calls.append("freeze")),
    )
    return calls


def test_what_was_imported_is_kept_from_the_collector_once(main, collector):
    for _ in range(2):
        worker.spare()

    assert collector == ["collect", "freeze"]


def test_a_process_that_is_not_sparks_is_left_alone(main, collector):
    main.name = "my.job"
    importers = dict(sys.path_importer_cache)

    worker.spare()

    assert collector == []
    assert sys.path_importer_cache == importers


def test_modules_in_archives_are_imported_as_before(main, collector, monkeypatch, tmp_path):
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("sparks_first.py", "value = 1")
        file.writestr("sparks_second.py", "value = 2")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("sparks_first").value == 1
    assert isinstance(sys.path_importer_cache[str(archive)], zipimporter)

    worker.spare()

    assert str(archive) not in sys.path_importer_cache
    assert importlib.import_module("sparks_second").value == 2
