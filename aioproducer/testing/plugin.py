"""Fixtures for pytest: `kafka_cluster`, an embedded cluster, and `apache_kafka`, a real broker.

pytest loads this in every project that has aioproducer installed, so it imports next to nothing by itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from aioproducer.testing.apache import ApacheKafka
    from aioproducer.testing.cluster import EmbeddedCluster

try:
    from pytest_asyncio import fixture as async_fixture
except ImportError:  # then another plugin, such as anyio's, runs async fixtures
    async_fixture = pytest.fixture  # type: ignore[assignment]  # the same for what is used here


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "apache: runs against a real Apache Kafka that the test starts")


@async_fixture
async def kafka_cluster() -> AsyncIterator[EmbeddedCluster]:
    """An embedded cluster of one broker, new and empty for each test."""
    from aioproducer.testing.cluster import EmbeddedCluster

    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """One real broker, shared by all tests of the session: give each test topics of its own.

    Skips the test if the extra `aioproducer[kafka]` is missing; in CI (CI=true) that is an error.
    """
    from aioproducer.testing.apache import ApacheKafka, ApacheKafkaMissingError

    kafka = ApacheKafka(jvm_args=("-Xmx384m", "-XX:TieredStopAtLevel=1"))
    try:
        _run(kafka.start())
    except ApacheKafkaMissingError as error:
        if os.environ.get("CI", "").lower() in ("true", "1"):
            raise
        pytest.skip(str(error))
    try:
        yield kafka
    finally:
        _run(kafka.stop())


def _run(coroutine: Coroutine[object, object, None]) -> None:
    # Unlike asyncio.run(), leaves alone which event loop is the current one: pytest-asyncio has set its own.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(coroutine)
