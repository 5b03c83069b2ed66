"""pytest fixtures and their markers: `kafka_cluster` is an embedded cluster, `apache_kafka` is a real Kafka cluster,
and `schema_registry` is a real schema registry.

pytest loads this module in every project that has aioproducer installed, so it imports as little as possible.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aioproducer.testing.apache.kafka import ApacheKafka
    from aioproducer.testing.embedded.embedded_cluster import EmbeddedCluster
    from aioproducer.testing.schema_registry import SchemaRegistry

try:
    from pytest_asyncio import fixture as asyncio_fixture
except ImportError:  # another plugin, such as anyio's, runs the async tests
    asyncio_fixture = pytest.fixture  # type: ignore[assignment]  # equivalent for the uses below

MARKERS = (
    "apache: runs against a real Kafka cluster; added to every test that uses the apache_kafka fixture",
    "schema_registry: runs against a real schema registry; added to every test that uses the schema_registry fixture",
    "kafka_cluster(**settings): EmbeddedCluster settings for the kafka_cluster fixture, "
    "e.g. brokers=3, topics={'orders': 12}, versions='2.8'",
)
_MARKED_FIXTURES = {"apache_kafka": "apache", "schema_registry": "schema_registry"}
"""For each fixture, the marker that is added to the tests that use it."""
_KEPT_LOGS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, marker in _MARKED_FIXTURES.items():
            if fixture in getattr(item, "fixturenames", ()) and item.get_closest_marker(marker) is None:
                item.add_marker(marker)


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> EmbeddedCluster:
    """An embedded cluster, new and empty for each test, on the test's event loop.

    By default, it has one broker. `@pytest.mark.kafka_cluster(brokers=3, topics={"orders": 12})` on the test, its class
    or its module changes the settings; the marker accepts all settings of `EmbeddedCluster`. Async tests under
    pytest-asyncio and anyio can use the fixture.
    """
    # pytest-asyncio and anyio set up fixtures on different loops, so use the plugin that runs the test.
    runner = "anyio" if "anyio_backend" in request.fixturenames else "asyncio"
    if runner == "anyio" and _asyncio_mode(request.config) == "auto":
        pytest.fail(
            "with asyncio_mode=auto, pytest-asyncio also sets up the fixtures of anyio's tests, but not on the "
            "tests' own loop; set asyncio_mode=strict, or remove @pytest.mark.anyio",
            pytrace=False,
        )
    if runner == "asyncio" and not _is_async(request):
        pytest.fail(
            "kafka_cluster requires the event loop of an async test, but this test is not async; make it "
            "`async def`, or run EmbeddedCluster in its own thread or process",
            pytrace=False,
        )
    of_test, of_fixtures = _loop_scope_of_test(request), _loop_scope(request.config, "fixture")
    if runner == "asyncio" and of_test != of_fixtures:
        pytest.fail(
            f"kafka_cluster would use the event loop of the {of_fixtures}, but the test uses that of the {of_test}; "
            f"set asyncio_default_fixture_loop_scope={of_test}, or mark the test with loop_scope={of_fixtures!r}",
            pytrace=False,
        )
    cluster: EmbeddedCluster = request.getfixturevalue(f"_kafka_cluster_of_{runner}")
    return cluster


def _asyncio_mode(config: pytest.Config) -> str:
    if not config.pluginmanager.hasplugin("asyncio"):
        return ""
    return str(config.getoption("asyncio_mode", None) or config.getini("asyncio_mode"))


def _is_async(request: pytest.FixtureRequest) -> bool:
    test = getattr(request, "function", None)
    return request.node.get_closest_marker("asyncio") is not None or inspect.iscoroutinefunction(test)


def _loop_scope_of_test(request: pytest.FixtureRequest) -> str:
    marker = request.node.get_closest_marker("asyncio")
    settings = marker.kwargs if marker is not None else {}
    return settings.get("loop_scope") or settings.get("scope") or _loop_scope(request.config, "test")


def _loop_scope(config: pytest.Config, kind: str) -> str:
    """Return the scope of the loop that pytest-asyncio gives to tests or fixtures that do not specify one."""
    try:
        scope = config.getini(f"asyncio_default_{kind}_loop_scope")
    except ValueError:  # pytest-asyncio is not installed, or is too old to have this setting
        scope = None
    return "function" if scope in (None, "", "fixture-scope") else str(scope)


@asyncio_fixture
async def _kafka_cluster_of_asyncio(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedCluster]:
    async with _cluster(request) as cluster:
        yield cluster


@pytest.fixture
async def _kafka_cluster_of_anyio(
    request: pytest.FixtureRequest, anyio_backend_name: str
) -> AsyncIterator[EmbeddedCluster]:
    if anyio_backend_name != "asyncio":
        pytest.fail(
            f"kafka_cluster runs on asyncio, not on {anyio_backend_name}; "
            "make the anyio_backend fixture return 'asyncio'",
            pytrace=False,
        )
    async with _cluster(request) as cluster:
        yield cluster


def _cluster(request: pytest.FixtureRequest) -> EmbeddedCluster:
    from aioproducer.testing.embedded.embedded_cluster import EmbeddedCluster

    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("kafka_cluster"))):
        if marker.args:
            pytest.fail(
                f"@pytest.mark.kafka_cluster takes settings by name, not {marker.args}", pytrace=False
            )
        settings.update(marker.kwargs)
    try:
        return EmbeddedCluster(**settings)
    except (TypeError, ValueError) as error:
        pytest.fail(f"@pytest.mark.kafka_cluster({_as_written(settings)}): {error}", pytrace=False)


def _as_written(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


@pytest.fixture(scope="session")
def apache_kafka_settings() -> dict[str, Any]:
    """The settings of `apache_kafka`: by default, a small broker that starts fast. Override this fixture in
    conftest.py."""
    return {"jvm_args": ("-Xmx384m", "-XX:TieredStopAtLevel=1")}


@pytest.fixture(scope="session")
def apache_kafka(
    request: pytest.FixtureRequest, apache_kafka_settings: dict[str, Any]
) -> Iterator[ApacheKafka]:
    """A real Kafka cluster, shared by all tests in the session. Give each test its own topics.

    Its settings come from the `apache_kafka_settings` fixture. If the `aioproducer[kafka]` extra is missing, the test
    is skipped, except in CI (CI=true), where this is an error. If a test fails, the broker's logs are kept, and the
    last lines of pytest's output name their directory.
    """
    from aioproducer.testing.apache.kafka import ApacheKafka, ApacheKafkaMissingError

    kafka = ApacheKafka(**apache_kafka_settings)
    with _running(kafka, "Kafka", ApacheKafkaMissingError, request):
        yield kafka


@pytest.fixture(scope="session")
def schema_registry_settings() -> dict[str, Any]:
    """The settings of `schema_registry`. Override this fixture in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def schema_registry(
    request: pytest.FixtureRequest, schema_registry_settings: dict[str, Any]
) -> Iterator[SchemaRegistry]:
    """A real schema registry, shared by all tests in the session. Give each test its own topics.

    Its settings come from the `schema_registry_settings` fixture. If the `aioproducer[kafka]` extra is missing, the
    test is skipped, except in CI (CI=true), where this is an error. If a test fails, the registry's log is kept, and
    the last lines of pytest's output name its directory.
    """
    from aioproducer.testing.schema_registry import ApicurioMissingError, SchemaRegistry

    registry = SchemaRegistry(**schema_registry_settings)
    with _running(registry, "Apicurio", ApicurioMissingError, request):
        yield registry


@contextmanager
def _running(
    server: ApacheKafka | SchemaRegistry,
    owner: str,
    missing_error: type[RuntimeError],
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """Start a server, and stop it after the block. If a test fails in the meantime, the server's logs are kept."""
    try:
        _run(server.start())
    except missing_error as error:
        if is_ci():
            raise
        pytest.skip(str(error))
    failed_before = request.session.testsfailed
    try:
        yield
    finally:
        has_failed = request.session.testsfailed > failed_before
        _run(server.stop(keep_logs=has_failed))
        if has_failed:
            tell_of_logs(request.config, server.directory, owner)


def is_ci() -> bool:
    """Return whether the tests run in CI (CI=true), where a missing dependency is an error instead of a skip."""
    return os.environ.get("CI", "").lower() in ("true", "1")


def tell_of_logs(config: pytest.Config, directory: Path, owner: str = "Kafka") -> None:
    """Make pytest's summary name the directory in which the logs are kept.

    A log message would be attributed to the last test in the session, which may have passed.
    """
    config.stash.setdefault(_KEPT_LOGS, []).append(f"{owner}'s logs are kept in {directory}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_KEPT_LOGS, []):
        terminalreporter.write_line(line)


def _run(coroutine: Coroutine[object, object, None]) -> None:
    # Unlike asyncio.run(), a Runner with a loop_factory does not change the current event loop, which is
    # pytest-asyncio's.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(coroutine)
