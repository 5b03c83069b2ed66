"""An embedded cluster with a raw client that is connected to its transaction coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.state_topic import partition_for
from aioproducer.testing.embedded.transaction_log import TOPIC, decoded
from tests.support.raw_client import TIMEOUT, RawClient, address
from tests.support.transaction_stage import Stage

levels = pytest.mark.parametrize("tv", [1, 2])


@asynccontextmanager
async def staged(
    tv: int = 2, brokers: int = 1, **settings: Any
) -> AsyncIterator[tuple[EmbeddedCluster, Stage]]:
    """A cluster with the topic "t", and a connection to the broker that coordinates "txn" and leads the topic."""
    async with EmbeddedCluster(
        brokers, topics={"t": 3}, versions="4.3", transaction_version=tv, **settings
    ) as cluster:
        node = cluster.transactions.node("txn")
        for partition in cluster.topics["t"].partitions:
            partition.move_leader(node)
        async with RawClient(address(cluster, node)) as client:
            yield cluster, Stage(client, tv, "t", "txn", "group")


@asynccontextmanager
async def another(cluster: EmbeddedCluster, on: Stage, node: int = 0) -> AsyncIterator[Stage]:
    """The same producer on another connection."""
    async with RawClient(address(cluster, node)) as client:
        yield Stage(client, on.tv, on.topic, on.name, on.group)


def states(cluster: EmbeddedCluster, name: str = "txn") -> list[str]:
    """The states of a transactional id in the transaction log, oldest first."""
    index = partition_for(name, 50)
    found = [decoded(record.key, record.value) for record in cluster.records(TOPIC, index) if record.value]
    return [metadata.state.name for metadata in found if metadata.transactional_id == name]


async def within_deadline(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


@asynccontextmanager
async def staged_with_group(
    brokers: int = 1, tv: int = 2
) -> AsyncIterator[tuple[EmbeddedCluster, Stage, Stage]]:
    """A cluster, and the same producer on two connections: to the transaction coordinator and the group coordinator."""
    async with EmbeddedCluster(brokers, topics={"t": 3}, versions="4.3", transaction_version=tv) as cluster:
        of_transactions = address(cluster, cluster.transactions.node("txn"))
        of_groups = address(cluster, cluster.groups.node("group"))
        async with RawClient(of_transactions) as one, RawClient(of_groups) as other:
            yield (
                cluster,
                Stage(one, tv, "t", "txn", "group"),
                Stage(other, tv, "t", "txn", "group"),
            )
