"""Closing a producer, with and without waiting for its records."""

from __future__ import annotations

import asyncio

from aioproducer import Producer
from aioproducer.cli.closing import Closing
from aioproducer.testing import ApiKey


async def test_a_patient_close_waits_for_the_results(cluster):
    producer = Producer(cluster.bootstrap_servers)
    await producer.start()
    await producer.send("t", b"x")

    report = await Closing(producer).wait()

    assert (report.delivered, report.unknown) == (1, 0)


async def test_a_running_close_can_be_cut_short(cluster):
    hold = asyncio.Event()
    cluster.faults.add(ApiKey.PRODUCE, hold=hold)
    producer = Producer(cluster.bootstrap_servers)
    await producer.start()
    delivery = await producer.send("t", b"x")
    closing = Closing(producer)
    waiting = asyncio.ensure_future(closing.wait())
    await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE), 30)

    closing.at_once()
    report = await asyncio.wait_for(waiting, 30)
    hold.set()

    assert (report.delivered, report.unknown) == (0, 1)
    assert delivery.exception() is not None


async def test_an_immediate_close_returns_its_report_later(cluster):
    producer = Producer(cluster.bootstrap_servers)
    await producer.start()
    closing = Closing(producer)

    closing.at_once()

    assert closing.has_begun
    assert (await closing.wait()).delivered == 0
