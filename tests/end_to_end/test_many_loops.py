"""Producers on several event loops, in several threads at the same time, share no state of the package."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop

from aioproducer import Producer
from tests.support.docs_runner import Docs

THREADS = 4
RECORDS = 3000


@pytest.fixture(scope="module")
def docs():
    """A cluster in its own thread."""
    with Docs() as docs:
        yield docs


async def produce(servers, topic, number, codec):
    """Send single records and hundreds of rows in turn; return their positions."""
    async with Producer(servers, linger_ms=1, batch_size=4096, compression_type=codec) as producer:
        places = []
        for first in range(0, RECORDS, 200):
            single = [
                await producer.send(topic, b"%d:%d" % (number, index)) for index in range(first, first + 100)
            ]
            rows = [b"%d:%d" % (number, index) for index in range(first + 100, first + 200)]
            receipt = await producer.send_many(topic, rows)
            places += [await delivery for delivery in single]
            places += [await (await receipt).delivery(row) for row in range(100)]
        return [(place.partition, place.offset) for place in places]


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_producers_in_several_threads_do_not_disturb_each_other(docs, topic, run, codec):
    docs.topic(topic, 3)
    servers = docs.cluster.bootstrap_servers

    def work(number):
        return run(produce(servers, topic, number, codec))

    with ThreadPoolExecutor(THREADS) as threads:
        places = list(threads.map(work, range(THREADS)))

    log = {
        (partition, record.offset): record.value
        for partition in range(3)
        for record in docs.call(lambda partition=partition: docs.cluster.records(topic, partition))
    }
    assert len(log) == THREADS * RECORDS
    for number, found in enumerate(places):
        assert [log[place] for place in found] == [b"%d:%d" % (number, index) for index in range(RECORDS)]
