"""The package without the features that Linux has and Windows lacks: their attributes and modules are removed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aioproducer.testing import ApacheKafka, EmbeddedCluster
from aioproducer.testing import __main__ as command_line
from aioproducer.testing.apache import jars
from aioproducer.testing.apache.jars import ApacheKafkaMissingError
from tests.support.producing import until

LIKE_WINDOWS = """
import asyncio, importlib, os, pathlib, pkgutil, signal, socket, ssl, subprocess, sys, tempfile, threading
import concurrent.futures, logging.handlers, multiprocessing, queue, random, shutil, uuid
import rich.console, rich.progress, typer  # they would import what only Windows has

for module, names in {
    os: "register_at_fork fork writev sched_getaffinity setpriority getpriority nice memfd_create pidfd_open getuid",
    signal: "SIGHUP SIGKILL SIGSTOP SIGCONT SIGUSR1 SIGALRM pidfd_send_signal pthread_kill",
    socket: "TCP_QUICKACK TCP_USER_TIMEOUT",
}.items():
    for name in names.split():
        delattr(module, name)
for name in "fcntl grp pwd resource termios uvloop".split():
    sys.modules[name] = None


class Loop(asyncio.SelectorEventLoop):
    def add_signal_handler(self, *_):
        raise NotImplementedError

    remove_signal_handler = add_signal_handler


sys.platform = "win32"
"""


def run_like_windows(script: str) -> str:
    """Run a script in a Python without most of the features that Windows lacks; return its output."""
    command = [sys.executable, "-W", "error", "-c", LIKE_WINDOWS + script]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.promise(
    "Packaging", "no module requires POSIX: fork handlers, `fcntl` and signal handlers of a loop are optional"
)
def test_every_module_can_be_imported_without_what_windows_lacks():
    printed = run_like_windows(
        """
import aioproducer
names = [module.name for module in pkgutil.walk_packages(aioproducer.__path__, "aioproducer.")]
skipped = [name for name in names if name.startswith("aioproducer.spark") or name.endswith("__main__")]
for name in set(names) - set(skipped):
    importlib.import_module(name)
print(len(names) - len(skipped))
"""
    )

    assert int(printed) > 100


@pytest.mark.promise(
    "Packaging", "no module requires POSIX: fork handlers, `fcntl` and signal handlers of a loop are optional"
)
def test_records_are_delivered_without_what_windows_lacks():
    printed = run_like_windows(
        """
import aioproducer, aioproducer.blocking
from aioproducer.testing import EmbeddedCluster

async def main():
    async with EmbeddedCluster(brokers=2, topics={"t": 3}) as cluster:
        async with aioproducer.Producer(cluster.bootstrap_servers, compression_type="gzip") as producer:
            await asyncio.gather(*[await producer.send("t", bytes(100_000), key=b"%d" % n) for n in range(50)])
        await asyncio.to_thread(from_a_thread, cluster.bootstrap_servers)
        print(len(cluster.records("t")))

def from_a_thread(servers):
    with aioproducer.blocking.Producer(servers) as producer:
        producer.send("t", b"value").result(timeout=60)

with asyncio.Runner(loop_factory=Loop) as runner:
    runner.run(main())
"""
    )

    assert printed.strip() == "51"


def test_the_attributes_are_really_missing():
    with pytest.raises(
        AssertionError, match="AttributeError: module 'os' has no attribute 'register_at_fork'"
    ):
        run_like_windows("os.register_at_fork(after_in_child=print)")


# ----------------------------------------------------------------------------------------------------------- signals


@pytest.fixture
def loop_without_signals(monkeypatch) -> Iterator[None]:
    """Let the event loop reject signal handlers, as every loop on Windows does. Restores the process's handlers."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", refuse)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "remove_signal_handler", refuse)
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_signal_stops_the_test_cluster_if_the_loop_accepts_no_handlers(
    loop_without_signals, capsys, number
):
    serving = asyncio.create_task(command_line.serve(EmbeddedCluster(1)))
    await until(lambda: "listening" in capsys.readouterr().out)

    signal.raise_signal(number)

    async with asyncio.timeout(30):
        await serving
    assert serving.result() is None


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_the_demo_handles_signals_if_the_loop_accepts_no_handlers_and_restores_the_old_ones(
    loop_without_signals, capsys
):
    interrupt = importlib.import_module("flights.interrupt").Interrupt()
    before = signal.getsignal(signal.SIGTERM)

    with interrupt.catching():
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: interrupt.is_asked)

    assert signal.getsignal(signal.SIGTERM) is before
    assert "press Ctrl-C again" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ a real Kafka


async def test_a_real_kafka_is_rejected_where_it_cannot_run(monkeypatch):
    monkeypatch.setattr(jars, "fcntl", None)
    kafka = ApacheKafka()

    with pytest.raises(ApacheKafkaMissingError, match="Linux and macOS only; use EmbeddedCluster"):
        await kafka.start()
    with contextlib.suppress(RuntimeError):
        await kafka.stop()
