"""Tests of the sink's changes to PySpark's own Python processes, which leave other processes alone."""

from __future__ import annotations

import importlib
import logging
import re
import socket
import sys
import zipfile
from types import SimpleNamespace
from zipimport import zipimporter

import pytest

from aioproducer.spark import worker


@pytest.fixture
def main(monkeypatch):
    """Set the main module's name to that of a PySpark process."""
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


@pytest.mark.promise(
    "Spark",
    "between two calls, PySpark's processes neither scan imported objects nor read their archives again, "
    "and data that Spark writes to a task is acknowledged without a delay of 40 ms",
)
def test_imported_objects_are_excluded_from_garbage_collection_once(main, collector):
    for _ in range(2):
        worker.spare()

    assert collector == ["collect", "freeze"]


@pytest.mark.promise(
    "Spark",
    "between two calls, PySpark's processes neither scan imported objects nor read their archives again, "
    "and data that Spark writes to a task is acknowledged without a delay of 40 ms",
)
def test_a_process_that_is_not_sparks_is_not_changed(main, collector):
    main.name = "my.job"
    importers = dict(sys.path_importer_cache)

    worker.spare()

    assert collector == []
    assert sys.path_importer_cache == importers


@pytest.mark.promise(
    "Spark",
    "between two calls, PySpark's processes neither scan imported objects nor read their archives again, "
    "and data that Spark writes to a task is acknowledged without a delay of 40 ms",
)
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


# Data from the JVM


def puts_acknowledgements_off(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 0


@pytest.fixture
def connection():
    """A connection like that of a worker that has talked to the JVM: the kernel delays acknowledgements."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as jvm, server.accept()[0] as connected:
            for _ in range(10):
                jvm.sendall(b"question")
                connected.recv(100)
                connected.sendall(b"answer")
                jvm.recv(100)
            assert puts_acknowledgements_off(connected)
            yield connected


def called_by_the_daemon(connection: socket.socket | None, function=worker.acknowledge_at_once):
    def called(sock: socket.socket | None) -> object:
        return function()

    called.__code__ = called.__code__.replace(co_name="worker")  # the function's name in PySpark's daemon
    return called(connection)


@pytest.mark.promise(
    "Spark",
    "between two calls, PySpark's processes neither scan imported objects nor read their archives again, "
    "and data that Spark writes to a task is acknowledged without a delay of 40 ms",
)
@pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is Linux's")
def test_data_from_the_jvm_is_acknowledged_immediately(main, connection):
    called_by_the_daemon(connection)

    assert not puts_acknowledgements_off(connection)


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is Linux's")
def test_the_connections_of_other_processes_are_not_changed(main, connection):
    main.name = "my.job"

    called_by_the_daemon(connection)

    assert puts_acknowledgements_off(connection)


def test_without_a_tcp_connection_to_the_jvm_nothing_is_done(main):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        called_by_the_daemon(ours)
        called_by_the_daemon(None)
        worker.acknowledge_at_once()

        theirs.sendall(b"rows")
        assert ours.recv(100) == b"rows"


@pytest.mark.parametrize(("version", "could"), [("4.0.1", False), ("4.1.0", True), ("10.0.0", True)])
def test_a_release_with_unix_sockets_could_use_one_instead_of_tcp(main, monkeypatch, version, could):
    monkeypatch.setattr(worker.pyspark, "__version__", version)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as tcp,
    ):
        assert called_by_the_daemon(tcp, worker.could_use_a_unix_socket) is could
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not called_by_the_daemon(ours, worker.could_use_a_unix_socket)


def bare_logger(monkeypatch):
    """Return the logger of the sink without any handler. Called in the test itself, because pytest
    adds its own just before."""
    logger = logging.getLogger("aioproducer.spark")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    return logger


@pytest.mark.promise("Spark", "each batch has a log line on the driver, and a listener receives its figures")
def test_messages_go_to_the_drivers_log_once(main, monkeypatch, capsys):
    logger = bare_logger(monkeypatch)
    for _ in range(2):
        worker.show_messages()
    logger.getChild("sink").info("batch 7: 1,000 rows")

    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d INFO aioproducer\.spark\.sink: batch 7: 1,000 rows\n", line
    )


@pytest.mark.parametrize("name", ["pyspark.daemon", "my.job"])
def test_configured_logging_and_other_processes_are_not_changed(main, monkeypatch, name):
    logger = bare_logger(monkeypatch)
    main.name = name
    if name == "pyspark.daemon":
        logger.addHandler(logging.NullHandler())
    before = list(logger.handlers)

    worker.show_messages()

    assert logger.handlers == before
    assert logger.level == logging.NOTSET
