"""The figures of a benchmark."""

from __future__ import annotations

import asyncio

from aioproducer import CloseReport, Producer
from aioproducer.cli.figures import Figures


async def test_latencies_of_delivered_records_are_ordered_and_a_new_window_is_empty(cluster):
    acknowledged = 0
    figures = Figures(lambda: acknowledged)
    async with Producer(cluster.bootstrap_servers) as producer:
        delivery = await producer.send("t", b"1234")
        figures.sent(4)
        for seconds in (1, 3, 2):
            delivery.add_done_callback(figures.done_since(0.0, lambda seconds=seconds: seconds))
        await delivery
        await asyncio.sleep(0)
    acknowledged = 1

    first, second = figures.window(), figures.window()
    total = figures.total(CloseReport(1, 2, 3, {}))

    assert first.startswith("1 records delivered, ")
    assert first.endswith(", 2000.0 ms avg latency, 3000.0 ms max latency.")
    assert second.startswith("0 records delivered, 0.0 records/sec")
    assert (total.average, total.p50, total.maximum) == (2000.0, 2000.0, 3000.0)
    assert "2 records failed; the outcome of 3 is unknown." in total.text()


def test_without_records_there_are_no_latencies():
    total = Figures(lambda: 0).total(CloseReport(0, 0, 0, {}))

    assert (total.average, total.p99_9, total.cpu_us_per_record) == (None, None, None)
    assert total.text().startswith("0 records delivered, 0.0 records/sec (0.00 MB/sec)")
