"""A run in transactions; test_produce.py tests the failures."""

from __future__ import annotations

import asyncio
import os

from aioproducer import Producer
from aioproducer.cli import transactions
from aioproducer.cli.delivery import Target
from aioproducer.cli.feed import Feed
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.lines import LineFormat, read_lines
from aioproducer.cli.source import Source
from aioproducer.cli.transactions import TransactionalDelivery
from aioproducer.testing import ApiKey


async def test_an_open_transaction_is_committed_after_its_interval_even_if_no_row_follows(
    cluster, monkeypatch
):
    monkeypatch.setattr(transactions, "LONGEST", 0.05)
    reading, writing = os.pipe()
    os.write(writing, b"a\n")
    feed = Feed(
        [Source("pipe", reading, None)],
        lambda source: lambda source, before: read_lines(source, before, LineFormat()),
    )
    ledger = Ledger()
    async with Producer(cluster.bootstrap_servers, transactional_id="x") as producer:
        delivery = TransactionalDelivery(producer, feed, Target("t"), ledger, None)
        feed.start()
        running = asyncio.ensure_future(delivery.run())
        await asyncio.wait_for(cluster.wait_for_requests(ApiKey.END_TXN), 30)
        os.close(writing)
        await asyncio.wait_for(running, 30)
        await delivery.close()

    assert (ledger.delivered, ledger.through) == (1, 1)
    assert [record.value for record in cluster.records("t", committed=True)] == [b"a"]
