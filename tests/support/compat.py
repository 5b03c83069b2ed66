"""A started compat producer on an embedded cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aioproducer.compat.aiokafka import AIOKafkaProducer
from aioproducer.testing import EmbeddedCluster
from tests.support.producing import QUICK, assert_nothing_left, within


def quick_aiokafka(cluster: EmbeddedCluster, **settings: Any) -> AIOKafkaProducer:
    """A producer that is not started yet, with settings for tests."""
    return AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **{**QUICK, **settings})


@asynccontextmanager
async def aiokafka_producing(
    brokers: int = 1, *, topics: dict[str, int] | None = None, **settings: Any
) -> AsyncIterator[tuple[EmbeddedCluster, AIOKafkaProducer]]:
    """A cluster with a two-partition topic "t", and a started producer, which must leave nothing behind."""
    async with EmbeddedCluster(brokers, topics=topics or {"t": 2}) as cluster:
        producer = quick_aiokafka(cluster, **settings)
        await producer.start()
        try:
            yield cluster, producer
        finally:
            await within(2, producer.producer.close(timeout=0))
        await assert_nothing_left(producer.producer, cluster)
