"""The programs that a run needs in addition to Python: the acknowledging broker in C, and the peers in C, Go and Java.

Each is rebuilt when its sources have changed. If Cargo, Go or a Java compiler is missing, `prepare` reports it and the
run continues without that peer."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from aioproducer.testing.apache.jars import DEFAULT_VERSION, ApacheKafkaError, cache_directory, class_path
from aioproducer.testing.apache.resources import Resources
from job import Job, lines

HERE = Path(__file__).parent
BUILD = HERE / "build"
PEERS = HERE / "peers"
FRANZ_GO, JAVA, LIBRDKAFKA = "franz-go", "Java", "librdkafka"
CRATE = BUILD / "crate"
SOURCE = CRATE / "vendor" / "rdkafka-sys"


def is_newer(sources: Iterable[Path], program: Path) -> bool:
    return not program.exists() or any(source.stat().st_mtime > program.stat().st_mtime for source in sources)


def compiled(command: list[str], sources: list[Path], program: Path, directory: Path = HERE) -> Path:
    """Build a program if its sources have changed. The output path is appended to `command` as the last argument."""
    if is_newer(sources, program):
        BUILD.mkdir(exist_ok=True)
        fresh = program.with_name(program.name + ".new")
        subprocess.run([*command, str(fresh)], cwd=directory, check=True, stdout=sys.stderr)
        if program.is_dir():
            shutil.rmtree(program)
        fresh.replace(program)  # processes that run the old program keep it
    return program


def ack_broker() -> Path:
    source = HERE / "ack_broker.c"
    return compiled(["cc", "-O2", str(source), "-o"], [source], BUILD / "ack_broker")


def franz_go() -> Path:
    sources = [PEERS / name for name in ("franz.go", "go.mod", "go.sum")]
    return compiled(["go", "build", "-buildvcs=false", "-o"], sources, BUILD / "franz", PEERS)


def library() -> Path:
    """Build librdkafka, without TLS and codecs, from the source in the crate rdkafka-sys."""
    built = BUILD / "librdkafka"
    archive = built / "src" / "librdkafka.a"
    manifest = PEERS / "librdkafka" / "Cargo.toml"
    if is_newer([manifest], archive):
        for directory in (CRATE, built):
            shutil.rmtree(directory, ignore_errors=True)
        CRATE.mkdir(parents=True)
        shutil.copy(manifest, CRATE)
        (CRATE / "empty.rs").touch()
        without = [
            f"--disable-{name}" for name in ("ssl", "gssapi", "sasl", "curl", "zstd", "zlib", "lz4-ext")
        ]
        for command, directory in (
            (["cargo", "vendor", "--quiet", "vendor"], CRATE),
            (["cp", "-r", str(SOURCE / "librdkafka"), str(built)], BUILD),
            (["bash", "./configure", *without], built),
            (["make", "-s", "-j2", "-C", "src", "librdkafka.a"], built),
        ):
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
            if done.returncode:
                said = (done.stderr or done.stdout).strip().splitlines()[-1:]
                raise ApacheKafkaError(f"librdkafka can't be built: {' '.join(command)}: {' '.join(said)}")
        (built / "include").mkdir()
        (built / "include" / "librdkafka").symlink_to(built / "src")
    return archive


def librdkafka() -> Path:
    source, archive = PEERS / "librdkafka" / "librdkafka.c", library()
    headers = archive.parents[1] / "include"
    command = [
        "cc",
        "-O2",
        "-Wall",
        f"-I{headers}",
        str(source),
        str(archive),
        "-lm",
        "-lpthread",
        "-ldl",
        "-o",
    ]
    return compiled(command, [source, archive], BUILD / "librdkafka-client")


def librdkafka_version() -> str:
    """Return the version of librdkafka in the crate, which follows the crate's own version in Cargo.toml."""
    found = re.search(r'^version = "[^+"]*\+([^"]+)"', (SOURCE / "Cargo.toml").read_text(), re.MULTILINE)
    return found[1] if found else "unknown"


def jars() -> str:
    """Return the class path with Kafka's own clients: the jars that ApacheKafka has downloaded."""
    found = sorted((cache_directory() / f"kafka-{DEFAULT_VERSION}-with-tools").glob("*.jar"))
    return os.pathsep.join(map(str, found))


def java_producer() -> Path:
    source = PEERS / "JavaProducer.java"
    command = ["javac", "-Xlint:all", "-Werror", "-cp", jars(), str(source), "-d"]
    return compiled(command, [source], BUILD / "java")


def fetch_jars() -> None:
    """Download the jars, as a real broker does when it starts."""
    held = Resources(None)
    try:
        asyncio.run(class_path(DEFAULT_VERSION, held.children, held.directory / "jars.log"))
    finally:
        held.release()


def prepare(client: str) -> str | None:
    """Build the program that measures a client. Returns the reason why it can't be measured here, or None."""
    try:
        if client == FRANZ_GO:
            if not shutil.which("go"):
                return "go is not on PATH"
            franz_go()
        elif client == LIBRDKAFKA:
            if missing := [name for name in ("cargo", "make") if not shutil.which(name)]:
                return f"{missing[0]} is not on PATH"
            librdkafka()
        elif client == JAVA:
            if not (shutil.which("java") and shutil.which("javac")):
                return "java or javac is not on PATH"
            if not jars():
                fetch_jars()
            java_producer()
    except (ApacheKafkaError, subprocess.CalledProcessError) as error:
        return str(error).partition("\n")[0]
    return None


def command_for(job: Job) -> list[str]:
    """Return the command that measures a job, without the job itself."""
    if job.client == FRANZ_GO:
        return [str(franz_go())]
    if job.client == LIBRDKAFKA:
        return [str(librdkafka())]
    if job.client == JAVA:
        return [
            "java",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-Xmx2g",
            "-cp",
            f"{java_producer()}{os.pathsep}{jars()}",
            "JavaProducer",
        ]
    return [sys.executable, str(HERE / "measure.py")]


def values_file(size: int) -> Path:
    """Write all values of one size to a file, for the programs that can't generate them."""
    path = BUILD / f"values-{size}"
    if not path.exists():
        BUILD.mkdir(exist_ok=True)
        path.write_bytes(b"".join(lines(size)))
    return path
