"""The log lines of an outage: the table of docs/operations.md, row by row."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from aioproducer.errors import BootstrapError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from tests.conftest import in_virtual_time
from tests.support.log_lines import log_lines
from tests.support.producing import FOUR_RECORDS_FILL_IT, LARGE, PRODUCE, producing, quick_producer

ROOT = Path(__file__).parents[2]
SLOW = {
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1000,
    "delivery_timeout_ms": 120_000,
    "request_timeout_ms": 30_000,
    "max_block_ms": 60_000,
}

Scenario = Callable[[], Coroutine[Any, Any, None]]
SCENARIOS: dict[str, tuple[Scenario, int]] = {}


class Row(NamedTuple):
    event: str
    level: str
    line: str


def table() -> list[Row]:
    """The rows of the table in the docs: what happened, the level, and an example of the line."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    text = page.split("## Log lines")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \| (INFO|WARNING|ERROR) \| `([^`]+)`", text, re.MULTILINE)
    return [Row(*found) for found in rows]


def shape(line: str) -> str:
    """The line without its numbers."""
    return re.sub(r"\d[\d.]*(e-\d+)?", "#", line)


def scenario(event: str, times: int = 1) -> Callable[[Scenario], Scenario]:
    """The scenario in which the line of a row appears so many times."""

    def keep(play: Scenario) -> Scenario:
        SCENARIOS[event] = play, times
        return play

    return keep


def test_each_row_has_its_scenario():
    assert {row.event for row in table()} == set(SCENARIOS)


@pytest.mark.promise(
    "Observability", "each event of the log's table has its line, at its level and as often as stated"
)
@pytest.mark.parametrize("row", table(), ids=lambda row: row.event)
def test_the_line_of_each_row_is_logged_at_its_level_and_as_often_as_it_should(row, caplog):
    caplog.set_level(logging.DEBUG)
    play, times = SCENARIOS[row.event]

    if row.event == "the event loop was blocked":
        asyncio.run(play())
    else:
        in_virtual_time(play)()

    lines = log_lines(caplog, logging.INFO)
    levels = [
        record.levelname for record in caplog.records if shape(record.getMessage()).endswith(shape(row.line))
    ]
    assert levels == [row.level] * times, "\n".join(lines)
    of_producer = [
        entry for entry in caplog.records if not entry.name.startswith(("aioproducer.testing", "asyncio"))
    ]
    assert all(entry.getMessage().startswith("[producer aioproducer] ") for entry in of_producer)


async def refused_for(seconds: float) -> None:
    """Each Produce request is rejected for a while, then one is accepted."""
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=1000)
        delivery = await producer.send("orders", b"v")
        await asyncio.sleep(seconds)
        cluster.faults.clear()
        await delivery


@scenario("a batch is sent again")
async def play_retry() -> None:
    await refused_for(5)


@scenario("the error persists", 3)
async def play_retries() -> None:
    await refused_for(35)


@scenario("batches are accepted again")
async def play_recovery() -> None:
    await refused_for(5)


@scenario("connected")
async def play_connected() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (_, producer):
        await producer.send_and_wait("orders", b"v")


@scenario("a broker cannot be reached, or a connection is lost")
async def play_lost() -> None:
    async with producing(brokers=1, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.crash_broker(0, down_for=5)
        await asyncio.sleep(8)


@scenario("connected again")
async def play_again() -> None:
    await play_lost()


@scenario("start() waits", 2)
async def play_start() -> None:
    async with EmbeddedCluster(1) as cluster:
        cluster.freeze_broker(0)
        timeouts = {"socket_connection_setup_timeout_ms": 3000, "max_block_ms": 25_000}
        with pytest.raises(BootstrapError):
            await quick_producer(cluster, **{**SLOW, **timeouts}).start()


@scenario("back to the bootstrap servers")
async def play_rebootstrap() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.crash_broker(0, down_for=20)
        delivery = await producer.send("orders", b"v")
        await delivery


@scenario("a leader moved")
async def play_moved() -> None:
    async with producing(brokers=2, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.move_leader("orders", 0, 1 - cluster.leader("orders", 0))
        await producer.send_and_wait("orders", b"v")


@scenario("a partition has no leader")
async def play_no_leader() -> None:
    async with producing(brokers=2, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.set_isr("orders", 0, [cluster.leader("orders", 0)])
        cluster.crash_broker(cluster.leader("orders", 0), down_for=20)
        await (await producer.send("orders", b"v"))


@scenario("a broker throttles", 2)
async def play_throttled() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, throttle_ms=2000, count=7)
        for _ in range(7):
            await producer.send_and_wait("orders", b"v")


@scenario("the buffer is full", 2)
async def play_full() -> None:
    async with producing(topics={"orders": 1}, **{**SLOW, **FOUR_RECORDS_FILL_IT}) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        for _ in range(4):
            await producer.send("orders", b"v" * LARGE)
        waiting = asyncio.create_task(producer.send("orders", b"v" * LARGE))
        await asyncio.sleep(13)
        hold.set()
        await (await waiting)
        await asyncio.sleep(2)


@scenario("the buffer has room again")
async def play_room() -> None:
    await play_full()


@scenario("the event loop was blocked")
async def play_blocked() -> None:
    async with producing(topics={"orders": 1}, linger_ms=5) as (_, producer):
        for _ in range(2):
            delivery = await producer.send("orders", b"v")
            await asyncio.sleep(0)
            time.sleep(1.3)  # noqa: ASYNC251  # what blocking code does
            await delivery


@scenario("records failed, and no caller retrieved the result")
async def play_unseen() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await producer.send("orders", b"v")
        await asyncio.sleep(3)


def test_records_of_a_transaction_that_the_user_aborts_are_no_error(caplog):
    @in_virtual_time
    async def play() -> None:
        async with producing(topics={"orders": 1}, transactional_id="tx", linger_ms=1000) as (_, producer):
            await producer.begin_transaction()
            for _ in range(7):
                await producer.send("orders", b"v")
            await producer.abort_transaction()
            await asyncio.sleep(3)
            assert producer.metrics().records_unretrieved == 0

    play()

    assert log_lines(caplog, logging.WARNING) == []


def test_thousands_of_topics_that_are_refused_write_a_few_lines_only(caplog):
    @in_virtual_time
    async def play() -> None:
        async with producing(topics={f"t{number}": 1 for number in range(100)}, **SLOW) as (
            cluster,
            producer,
        ):
            cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=300)
            deliveries = [await producer.send(f"t{number}", b"v") for number in range(100)]
            await asyncio.gather(*deliveries, return_exceptions=True)

    play()

    warnings = log_lines(caplog, logging.WARNING)
    assert len([line for line in warnings if "is sent again in" in line]) == 20
    assert len([line for line in warnings if line.startswith("batches of more topics")]) == 1


def test_a_failed_connection_has_one_line_and_not_two(caplog):
    @in_virtual_time
    async def play() -> None:
        async with EmbeddedCluster(1) as cluster:
            cluster.crash_broker(0)
            with pytest.raises(BootstrapError):
                await quick_producer(cluster, **{**SLOW, "max_block_ms": 5000}).start()

    play()

    assert len(log_lines(caplog, logging.WARNING)) == 1
