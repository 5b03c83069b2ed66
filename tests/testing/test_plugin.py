"""The pytest plugin in other projects, and the check of this project's own conftest."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import aioproducer.testing.plugin as plugin_module
from aioproducer import Producer
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.apache import kafka
from aioproducer.testing.apache.jars import ApacheKafkaMissingError
from tests.conftest import MS
from tests.support.apache_clusters import running
from tests.support.apache_processes import command_lines

pytestmark = pytest.mark.slow

ROOT = Path(plugin_module.__file__).parents[2]

# If the package is installed, pytest finds the plugin without this.
REGISTER = """
    def pytest_configure(config):
        if not config.pluginmanager.hasplugin("aioproducer"):
            from aioproducer.testing import plugin
            config.pluginmanager.register(plugin, "aioproducer")
"""

COMMAND = [sys.executable, "-m", "pytest", "-q", "-rs", "--strict-markers", "-p", "no:cacheprovider"]
COMMAND += ["-W", "error", "-o", "asyncio_default_fixture_loop_scope=function"]


def environment(**variables):
    return {**os.environ, "PYTHONPATH": str(ROOT), **variables}


def pytest_process(directory, *options, **variables):
    return subprocess.run(
        [*COMMAND, *options],
        cwd=directory,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=120_000 * MS,
        check=False,
    )


def run_pytest(directory, *options, **variables):
    return pytest_process(directory, *options, **variables).stdout


def write(file, text):
    file.write_text(textwrap.dedent(text))


@pytest.fixture
def project(tmp_path):
    """Return a function that writes a text to a user's test file, and returns the directory of the file."""
    write(tmp_path / "conftest.py", REGISTER)

    def write_tests(text):
        write(tmp_path / "test_orders.py", text)
        return tmp_path

    return write_tests


# ------------------------------------------------------------------------------------------------ kafka_cluster


async def test_embedded_cluster_is_up(kafka_cluster):
    host, _, port = kafka_cluster.bootstrap_servers.partition(":")

    assert host == "127.0.0.1"
    assert int(port) > 0


@pytest.mark.kafka_cluster(brokers=3)
class TestMarkedCluster:
    @pytest.mark.promise(
        "Test clusters", "a marker configures the embedded cluster; a mistake in it is named"
    )
    @pytest.mark.kafka_cluster(topics={"orders": 12}, versions="2.8")
    async def test_cluster_has_the_settings_of_all_its_markers(self, kafka_cluster):
        async with Producer(kafka_cluster.bootstrap_servers) as producer:
            partitions = await producer.partitions_for("orders")

        assert len(kafka_cluster.nodes) == 3
        assert len(partitions) == 12

    @pytest.mark.promise(
        "Test clusters", "a marker configures the embedded cluster; a mistake in it is named"
    )
    @pytest.mark.kafka_cluster(brokers=2)
    async def test_cluster_has_the_settings_of_the_closest_marker(self, kafka_cluster):
        assert len(kafka_cluster.nodes) == 2


@pytest.mark.promise("Test clusters", "the embedded cluster starts within 50 ms")
async def test_embedded_cluster_starts_within_50_ms():
    durations = []
    for _ in range(5):
        began = time.perf_counter()
        async with EmbeddedCluster(brokers=3, topics={"orders": 12}):
            durations.append(time.perf_counter() - began)

    assert min(durations) < 50 * MS


TWO_TESTS = """
    import pytest

    from aioproducer import Producer

    {mark}
    @pytest.mark.kafka_cluster(topics={{"orders": 1}})
    async def test_cluster(kafka_cluster):
        async with Producer(kafka_cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("orders", b"7")
        assert [record.value for record in kafka_cluster.records("orders")] == [b"7"]

    {mark}
    async def test_cluster_is_empty(kafka_cluster):
        assert not kafka_cluster.topics
"""
ASYNCIO, ANYIO = "@pytest.mark.asyncio", "@pytest.mark.anyio"


@pytest.mark.promise(
    "Test clusters", "pytest fixtures for both clusters work in both modes of pytest-asyncio and with anyio"
)
def test_fixtures_work_in_strict_mode(project):
    told = run_pytest(project(TWO_TESTS.format(mark=ASYNCIO)), "-o", "asyncio_mode=strict")

    assert "2 passed" in told, told


@pytest.mark.promise(
    "Test clusters", "pytest fixtures for both clusters work in both modes of pytest-asyncio and with anyio"
)
@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("", ["-o", "asyncio_mode=auto"]),
        (ANYIO, ["-o", "asyncio_mode=strict"]),
        (ANYIO, ["-p", "no:asyncio", "-W", "ignore::pytest.PytestConfigWarning"]),
    ],
)
def test_fixtures_work_in_auto_mode_and_with_anyio(project, mark, options):
    told = run_pytest(project(TWO_TESTS.format(mark=mark)), *options)

    assert "2 passed" in told, told


def test_anyio_in_auto_mode_is_rejected_and_does_not_hang(project):
    told = run_pytest(project(TWO_TESTS.format(mark=ANYIO)), "-o", "asyncio_mode=auto")

    assert re.search(r"\b\d+ errors", told), told
    assert " passed" not in told
    assert " failed" not in told
    assert "set asyncio_mode=strict" in told


ASKS_THE_CLUSTER = """
    import pytest

    from aioproducer import Producer

    {mark}
    async def test_cluster(kafka_cluster):
        async with Producer(kafka_cluster.bootstrap_servers, max_block_ms=5_000) as producer:
            await producer.send_and_wait("orders", b"7")
"""


@pytest.mark.promise("Test clusters", "a marker configures the embedded cluster; a mistake in it is named")
@pytest.mark.parametrize(
    ("mark", "test_scope", "fixture_scope", "told_scope"),
    [
        ("@pytest.mark.asyncio(loop_scope='module')", "function", "function", "module"),
        ("@pytest.mark.asyncio", "session", "function", "session"),
        ("", "session", "function", "session"),
        ("", "function", "session", "function"),
        ("", "session", "session", None),
        ("@pytest.mark.asyncio(loop_scope='module')", "function", "module", None),
    ],
)
def test_a_fixture_on_another_event_loop_is_an_error_that_names_the_setting(
    project, mark, test_scope, fixture_scope, told_scope
):
    options = ["-o", "asyncio_mode=auto", "-o", f"asyncio_default_test_loop_scope={test_scope}"]
    options += ["-o", f"asyncio_default_fixture_loop_scope={fixture_scope}"]
    tests = ASKS_THE_CLUSTER.format(mark=mark)

    told = run_pytest(project(tests), *options)

    assert ("1 error" if told_scope else "1 passed") in told, told
    assert told_scope is None or f"set asyncio_default_fixture_loop_scope={told_scope}, or" in told


def test_a_test_that_is_not_async_gets_an_error_with_the_reason(project):
    told = run_pytest(project("def test_sync(kafka_cluster): pass"))

    assert "1 error" in told, told
    assert "make it `async def`" in told


@pytest.mark.promise("Test clusters", "a marker configures the embedded cluster; a mistake in it is named")
def test_an_invalid_marker_is_an_error_that_names_the_mistake(project):
    tests = """
        import pytest

        @pytest.mark.asyncio
        @pytest.mark.kafka_cluster(broker=3)
        async def test_unknown(kafka_cluster): pass

        @pytest.mark.asyncio
        @pytest.mark.kafka_cluster(brokers=0)
        async def test_impossible(kafka_cluster): pass

        @pytest.mark.asyncio
        @pytest.mark.kafka_cluster(3)
        async def test_without_a_name(kafka_cluster): pass
    """

    told = run_pytest(project(tests))

    assert "3 errors" in told, told
    assert "@pytest.mark.kafka_cluster(broker=3): " in told
    assert "@pytest.mark.kafka_cluster(brokers=0): a cluster must have at least one broker" in told
    assert "takes settings by name, not (3,)" in told


@pytest.mark.promise("Test clusters", "the pytest fixtures leave nothing behind")
def test_cluster_is_stopped_after_its_test_even_if_it_failed(project):
    tests = """
        import socket

        servers = []

        async def test_that_fails(kafka_cluster):
            servers.append(kafka_cluster.bootstrap_servers)
            assert False

        async def test_that_is_left_by_an_error(kafka_cluster):
            servers.append(kafka_cluster.bootstrap_servers)
            raise KeyError

        def test_nobody_listens():
            assert len(servers) == 2
            for server in servers:
                host, port = server.split(":")
                with socket.socket() as client:
                    assert client.connect_ex((host, int(port))) != 0
    """

    told = run_pytest(project(tests), "-o", "asyncio_mode=auto")

    assert "2 failed, 1 passed" in told, told


# ------------------------------------------------------------------------------- apache_kafka, schema_registry

MISSING = """
    from aioproducer.testing import schema_registry
    from aioproducer.testing.apache import kafka

    def java_executable(server=kafka):
        missing = kafka.ApacheKafkaMissingError if server is kafka else server.missing_error
        raise missing("no Java here: pip install 'aioproducer[kafka]'")

    kafka.java_executable = schema_registry.java_executable = java_executable
"""


@pytest.mark.promise(
    "Test clusters", "pytest fixtures for both clusters work in both modes of pytest-asyncio and with anyio"
)
@pytest.mark.parametrize(
    ("ci", "outcome", "status"), [("false", "1 skipped", 0), ("true", "1 error", 1), ("1", "1 error", 1)]
)
@pytest.mark.parametrize("fixture", ["apache_kafka", "schema_registry"])
def test_missing_extra_skips_except_in_ci(project, fixture, ci, outcome, status):
    directory = project(f"def test_server({fixture}): pass")
    write(directory / "conftest.py", REGISTER + MISSING)

    ended = pytest_process(directory, CI=ci)

    assert outcome in ended.stdout, ended.stdout
    assert ended.returncode == status
    assert "no Java here: pip install 'aioproducer[kafka]'" in ended.stdout


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("True", True), ("1", True), ("false", False), ("", False)]
)
def test_ci_is_detected_as_the_services_set_it(monkeypatch, value, expected):
    monkeypatch.setenv("CI", value)

    assert plugin_module.is_ci() is expected


@pytest.mark.parametrize(("ci", "outcome"), [("true", ApacheKafkaMissingError), ("", pytest.skip.Exception)])
def test_this_projects_own_clusters_are_also_skipped_except_in_ci(monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(kafka, "java_executable", missing_java)

    # Both are caught: an unexpected skip would skip this test.
    with pytest.raises((ApacheKafkaMissingError, pytest.skip.Exception), match="no Java here") as ended:
        with running(kafka.ApacheKafka()):
            pass

    assert ended.type is outcome


def missing_java():
    raise ApacheKafkaMissingError("no Java here")


@pytest.mark.parametrize(
    ("fixture", "marker"), [("apache_kafka", "apache"), ("schema_registry", "schema_registry")]
)
def test_tests_on_a_real_server_get_the_marker_automatically(project, fixture, marker):
    tests = f"""
        import pytest

        @pytest.fixture
        def orders({fixture}): pass

        def test_real({fixture}): pass
        def test_also_real(orders): pass
        def test_other(): pass

        @pytest.mark.{marker}
        def test_marked(): pass
    """

    told = run_pytest(project(tests), "-m", f"not {marker}")

    assert "1 passed, 3 deselected" in told, told


def test_settings_of_the_real_broker_can_be_overridden_and_its_logs_are_kept_after_a_failure(project):
    tests = """
        import pytest
        from aioproducer.testing.apache import kafka

        class Kafka:
            directory = "where-they-are"
            def __init__(self, **settings): self.settings = settings
            async def start(self): pass
            async def stop(self, *, keep_logs): print("stopped, keep_logs", keep_logs)

        kafka.ApacheKafka = Kafka

        @pytest.fixture(scope="session")
        def apache_kafka_settings(apache_kafka_settings):
            return {**apache_kafka_settings, "brokers": 3}

        def test_broker(apache_kafka):
            assert apache_kafka.settings["brokers"] == 3
            assert "-Xmx384m" in apache_kafka.settings["jvm_args"]

        def test_that_fails(apache_kafka):
            assert False
    """

    told = run_pytest(project(tests), "-s", "-k", "broker")

    assert "1 passed" in told, told
    assert "stopped, keep_logs False" in told
    assert "where-they-are" not in told
    told = run_pytest(project(tests), "-s")
    assert "stopped, keep_logs True" in told
    assert "Kafka's logs are kept in where-they-are\n" in told


def test_settings_of_the_registry_can_be_overridden_and_its_log_is_kept_after_a_failure(project):
    tests = """
        import pytest
        from aioproducer.testing import schema_registry as module

        class Registry:
            directory = "where-it-is"
            def __init__(self, **settings): self.settings = settings
            async def start(self): pass
            async def stop(self, *, keep_logs): print("stopped, keep_logs", keep_logs)

        module.SchemaRegistry = Registry

        @pytest.fixture(scope="session")
        def schema_registry_settings(schema_registry_settings):
            return {**schema_registry_settings, "start_timeout": 7}

        def test_registry(schema_registry):
            assert schema_registry.settings == {"start_timeout": 7}

        def test_that_fails(schema_registry):
            assert False
    """

    told = run_pytest(project(tests), "-s", "-k", "test_registry")

    assert "1 passed" in told, told
    assert "stopped, keep_logs False" in told
    assert "where-it-is" not in told
    told = run_pytest(project(tests), "-s")
    assert "stopped, keep_logs True" in told
    assert "Apicurio's logs are kept in where-it-is\n" in told


@pytest.mark.apache
def test_logs_of_a_real_broker_are_kept_and_named_after_a_failed_test_even_if_others_follow(
    project, temporary
):
    tests = """
        def test_that_fails(apache_kafka):
            assert False

        def test_that_passes(apache_kafka):
            pass
    """

    told = run_pytest(project(tests), TMPDIR=str(temporary))

    assert "1 failed, 1 passed" in told, told
    (kept,) = temporary.iterdir()
    assert told.count(f"Kafka's logs are kept in {kept}\n") == 1
    assert "Kafka Server started" in (kept / "node-0" / "server.log").read_text()
    assert not (kept / "node-0" / "data").exists()
    assert not command_lines(str(temporary))


def test_logs_of_this_projects_own_clusters_are_also_named(project):
    tests = """
        from pathlib import Path
        import pytest
        from tests.support.apache_clusters import running

        class Kafka:
            directory = Path("where-they-are")
            async def start(self): pass
            async def stop(self, *, keep_logs): pass

        @pytest.fixture
        def kafka(request):
            with running(Kafka(), request=request) as kafka:
                yield kafka

        def test_that_fails(kafka):
            assert False
    """

    told = run_pytest(project(tests), "-o", "markers=slow: takes long")

    assert "Kafka's logs are kept in where-they-are\n" in told, told


@pytest.fixture
def temporary(tmp_path):
    """Return the directory in which a process with this TMPDIR creates its directories."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    return directory


@pytest.mark.promise("Test clusters", "the pytest fixtures leave nothing behind")
@pytest.mark.apache
def test_real_broker_is_stopped_after_an_interrupted_session(project, temporary):
    tests = """
        import os, signal, time

        def test_broker(apache_kafka):
            print("broker", apache_kafka.nodes[0].pid, flush=True)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
    """

    told = run_pytest(project(tests), "-s", TMPDIR=str(temporary))

    assert "KeyboardInterrupt" in told, told
    pid = int(told.split("broker ")[1].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)
    assert not command_lines(str(temporary))
    assert not list(temporary.iterdir())


# ------------------------------------------------------------------------------------------------- the plugin


@pytest.mark.promise("Test clusters", "importing the pytest plugin imports no other module")
def test_plugin_imports_nothing_but_itself():
    script = """
import sys
import asyncio, pytest, pytest_asyncio
before = set(sys.modules)
import aioproducer.testing.plugin
print(sorted(set(sys.modules) - before))
"""

    told = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True
    ).stdout

    assert told == "['aioproducer', 'aioproducer.testing', 'aioproducer.testing.plugin']\n"


def test_markers_and_fixtures_are_described(project):
    directory = project("")

    markers, fixtures = run_pytest(directory, "--markers"), run_pytest(directory, "--fixtures")

    assert "@pytest.mark.apache: " in markers
    assert "@pytest.mark.schema_registry: " in markers
    assert "@pytest.mark.kafka_cluster(**settings): " in markers
    names = ("kafka_cluster", "apache_kafka", "apache_kafka_settings")
    for name in (*names, "schema_registry", "schema_registry_settings"):
        assert f"\n{name}" in fixtures
    assert "_kafka_cluster_of" not in fixtures


@pytest.mark.promise("As a whole", "unit tests run under asyncio and uvloop, and warnings are errors")
def test_task_that_is_left_behind_fails_the_test(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    write(
        tmp_path / "test_leak.py",
        """
        import asyncio

        async def test_leaves_a_task():
            global task
            task = asyncio.create_task(asyncio.sleep(1000), name="forgotten")

        async def test_leaves_none():
            await asyncio.create_task(asyncio.sleep(0))
        """,
    )

    told = run_pytest(tmp_path, "-o", "asyncio_mode=auto", "-W", "default")

    loops = told.count("tasks left behind: ['forgotten")
    assert loops >= 1
    assert f"{2 * loops} passed, {loops} error" in told, told
