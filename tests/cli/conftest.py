"""Fixtures for the tests of the command line. Each test starts a process with its own loop, so
one kind of loop suffices here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from aioproducer.testing import EmbeddedCluster


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop}


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """A broker with the topic t, which has one partition."""
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Restore the library's log after each test, since a command that runs in this process shows it on its screen."""
    log = logging.getLogger("aioproducer")
    before = log.level, log.propagate, log.handlers[:]
    yield
    log.setLevel(before[0])
    log.propagate = before[1]
    log.handlers[:] = before[2]
