"""A run without transactions: partial sends, the rate limit, and the headers and partition that all records share."""

from __future__ import annotations

import asyncio

from aioproducer import Producer
from aioproducer.cli.delivery import FeedDelivery, Target
from aioproducer.cli.feed import Feed
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.rows import InputRows
from tests.cli.sources import source_of


def feed_of(tmp_path, *rows: InputRows) -> Feed:
    return Feed([source_of(b"", tmp_path)], lambda source: lambda source, before: iter(rows))


def test_headers_and_partition_of_all_records_are_added():
    rows = InputRows([1, 2], 2, [b"a", b"b"], headers=[None, [("own", b"1")]], partitions=[5, 6])

    complete = Target("t", 3, (("all", b"2"),)).complete(rows)

    assert complete.headers == [[("all", b"2")], [("own", b"1"), ("all", b"2")]]
    assert complete.partitions == 3


async def test_a_rate_divides_rows_into_steps(tmp_path):
    rows = InputRows(range(1, 11), 10, [b"x"] * 10)
    delivery = FeedDelivery(Producer(), feed_of(tmp_path), Target("t", rate=40), Ledger(), None)
    began = asyncio.get_running_loop().time()

    parts = [len(part) async for part in delivery.parts(rows)]

    assert parts == [2] * 5
    assert asyncio.get_running_loop().time() - began >= 4 * 2 / 40


async def test_rows_are_counted_once_they_are_acknowledged(cluster, tmp_path):
    feed = feed_of(tmp_path, InputRows([1, 2], 2, [b"a", b"b"]), InputRows((), 4, []))
    ledger = Ledger()
    async with Producer(cluster.bootstrap_servers) as producer:
        delivery = FeedDelivery(producer, feed, Target("t"), ledger, None)
        feed.start()
        await delivery.run()
        await delivery.close()

    assert (ledger.delivered, ledger.through) == (2, 4)
    assert [record.value for record in cluster.records("t")] == [b"a", b"b"]
