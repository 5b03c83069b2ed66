"""The parts that a producer's modules share."""

from __future__ import annotations

from aioproducer import Producer
from aioproducer.core import Core
from aioproducer.testing import EmbeddedCluster


async def test_all_parts_of_a_producer_share_one_core(monkeypatch):
    cores = []
    make = Core.__new__
    monkeypatch.setattr(Core, "__new__", lambda *fields: cores.append(make(*fields)) or cores[-1])

    async with EmbeddedCluster(topics={"t": 1}) as cluster, Producer(cluster.bootstrap_servers) as producer:
        [core] = cores
        await producer.send_and_wait("t", b"v")

        assert core.config is producer.config
        assert core.loop is producer._loop
        for part in (producer._accumulator, producer._sender, producer._coordinator, producer._brokers):
            assert part._wake is core.wake
        for part in (producer._brokers, producer._metadata, producer._sender):
            assert part._metrics is core.metrics
        assert core.metrics.records_acked == 1
