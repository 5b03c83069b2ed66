"""The tests here start a process each, which has a loop of its own: one kind of loop is enough in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from aioproducer.testing import EmbeddedCluster


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop}


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    """One broker with the topic t of one partition."""
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        yield cluster
