"""Reproduces the cases of docs/runbook.md: the log contains the lines, and metrics() the values, that the page
names."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aioproducer import (
    BufferTimeoutError,
    DeliveryError,
    MetricsSnapshot,
    Outcome,
    Producer,
    ProducerFencedError,
)
from aioproducer.errors import KafkaError
from aioproducer.testing import EmbeddedCluster
from tests.conftest import in_virtual_time
from tests.support.producing import FOUR_RECORDS_FILL_IT, LARGE, PRODUCE, producing, quick_producer

PAGE = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
PATIENT = {"request_timeout_ms": 30_000, "max_block_ms": 60_000, "delivery_timeout_ms": 120_000}

Look = Callable[[Producer], None]
"""A function that is called when an operator would look at the producer."""
CASES: dict[str, Callable[[Look], Awaitable[None]]] = {}


def case(title: str) -> Callable[[Callable[[Look], Awaitable[None]]], Callable[[Look], Awaitable[None]]]:
    def keep(play: Callable[[Look], Awaitable[None]]) -> Callable[[Look], Awaitable[None]]:
        CASES[title] = play
        return play

    return keep


def sections() -> dict[str, list[tuple[str, str]]]:
    """Return the rows of each section's table: where to look, and what to find there."""
    found = {}
    for text in PAGE.split("\n## ")[1:]:
        found[text.splitlines()[0]] = re.findall(r"^\| (\w+) \| `(.+)` \|$", text, re.MULTILINE)
    return found


@case("A broker is slow")
async def play_slow(look: Look) -> None:
    async with producing(brokers=2, topics={"orders": 2}, **PATIENT) as (cluster, producer):
        slow = cluster.leader("orders", 0)
        cluster.faults.add(PRODUCE, node=slow, delay=3.0, count=100)
        for _ in range(20):
            await producer.send("orders", b"v", partition=0)
            await asyncio.sleep(1)
        look(producer)
        cluster.faults.clear()
        await producer.flush()


@case("The buffer is full")
async def play_full(look: Look) -> None:
    settings = {**PATIENT, **FOUR_RECORDS_FILL_IT, "max_block_ms": 5000}
    async with producing(topics={"orders": 1}, **settings) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        for _ in range(4):
            await producer.send("orders", b"v" * LARGE)
        with pytest.raises(BufferTimeoutError):
            await producer.send("orders", b"v" * LARGE)
        waiting = asyncio.create_task(producer.send("orders", b"v" * LARGE))
        await asyncio.sleep(2)
        look(producer)
        hold.set()
        await (await waiting)


@case("Deliveries are unknown")
async def play_unknown(look: Look) -> None:
    settings = {**PATIENT, "request_timeout_ms": 2000, "delivery_timeout_ms": 5000}
    async with producing(topics={"orders": 2}, **settings) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.freeze_broker(0)
        awaited = await producer.send("orders", b"v", partition=0)
        await producer.send("orders", b"v", partition=1)
        await asyncio.sleep(8)
        look(producer)
        error = awaited.exception()
        assert isinstance(error, DeliveryError)
        assert error.outcome is Outcome.UNKNOWN
        cluster.thaw_broker(0)


@case("The producer cannot connect")
async def play_unreachable(look: Look) -> None:
    async with EmbeddedCluster(1) as cluster:
        cluster.crash_broker(0)
        producer = quick_producer(cluster, **PATIENT)
        await producer.start(wait=False)
        await asyncio.sleep(12)
        look(producer)
        with pytest.raises(KafkaError):
            await producer.ping()
        await producer.close()


@case("The producer is fenced")
async def play_fenced(look: Look) -> None:
    async with producing(topics={"orders": 1}, transactional_id="tx", **PATIENT) as (cluster, producer):
        successor = quick_producer(cluster, transactional_id="tx", **PATIENT)
        with pytest.raises(ProducerFencedError):  # noqa: PT012  # the block raises at its end
            async with producer.transaction():
                await producer.send_and_wait("orders", b"v")
                await successor.start()
                await producer.send("orders", b"w")
        look(producer)
        await successor.close()


def test_each_section_of_the_page_is_played():
    assert set(sections()) == set(CASES)
    assert all(rows for rows in sections().values())


@pytest.mark.promise(
    "Observability", "the runbook's symptoms are found by the log lines and metrics that it names"
)
@pytest.mark.parametrize("title", sections())
def test_the_log_and_the_metrics_show_what_the_page_names(title, caplog):
    caplog.set_level(logging.DEBUG)
    seen: list[MetricsSnapshot] = []

    @in_virtual_time
    async def play() -> None:
        await CASES[title](lambda producer: seen.append(producer.metrics()))

    play()

    [metrics] = seen
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    for where, what in sections()[title]:
        if where == "metrics":
            names = {"metrics": _Lenient(metrics)}
            assert eval(what, {}, names), what  # from our own page
        else:
            assert any(level == where and what in line for level, line in lines), what


class _Lenient:
    """A snapshot in which errors that never occurred count as 0."""

    def __init__(self, metrics: MetricsSnapshot) -> None:
        self._metrics = metrics

    def __getattr__(self, name: str) -> object:
        value = getattr(self._metrics, name)
        return Counter(value) if name in ("errors", "rejected") else value
