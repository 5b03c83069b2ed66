"""Exporters see each producer once it has started, and keep its counters after it is garbage-collected."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from functools import partial

import pytest

from aioproducer.metrics import Metrics
from aioproducer.observe import live
from aioproducer.observe.families import FAMILIES
from aioproducer.observe.live import MOST_CLIENTS, Producers
from aioproducer.observe.snapshots import MOST_TOPICS, OTHER_TOPICS, PAST, Distribution, MetricsSnapshot
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from tests.support.producing import quick_producer

BY_NAME = {family.name: family for family in FAMILIES}


class Measured:
    """A substitute for a producer, with only the parts that exporters use."""

    def __init__(self, client_id: str = "shop", acked: int = 0, topic: str = "orders") -> None:
        self.client_id = client_id
        self.counted = Metrics(records_acked=acked)
        self.counted.topic(topic).records_acked = acked

    def metrics(self, *, window: float | None = None) -> MetricsSnapshot:
        return self.counted.snapshot(
            describe_node=lambda _: {}, wall_time=float, client_id=self.client_id, state="running"
        )


def added(producers: Producers, *given: object) -> Measured:
    measured = Measured(*given)  # type: ignore[arg-type]  # as the tests give them
    producers.add(measured, partial(measured.counted.past, measured.client_id))
    return measured


def total(name: str, client_id: str = "shop") -> object:
    """The value of a metric over all producers with this client id, with topics added up; None if
    there is no such producer."""
    found = BY_NAME[name].values(live.snapshots(), topics=False)
    values = [value for labels, value in found.items() if labels[0] == client_id]
    return values[0] if values else None


async def test_a_producer_is_exported_from_its_start_and_its_counters_stay_when_it_is_collected():
    producer = RecordingProducer(client_id="shop")
    assert total("producers") is None
    async with producer:
        await producer.send("orders", b"v")
        assert (total("producers"), total("records_acked")) == (1, 1)
    assert (total("producers"), total("records_acked")) == (1, 1)
    del producer
    gc.collect()
    assert total("producers") is None, "a gauge ends with its producer"
    assert total("buffer_bytes") is None
    assert total("records_acked") == 1


@pytest.mark.promise("Observability", "an exported counter never falls while its process lives")
async def test_a_counter_does_not_fall_when_one_of_two_producers_is_collected():
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        one, other = (quick_producer(cluster, client_id="shop") for _ in range(2))
        for producer in (one, other):
            await producer.start()
            await producer.send_and_wait("t", b"v")
        connects = total("node_connects")
        await other.close()
        assert total("records_acked") == 2

        del producer, other
        gc.collect()
        assert total("producers") == 1
        assert (total("records_acked"), total("batches"), total("node_connects")) == (2, 2, connects)
        times = total("time_to_ack_seconds")
        assert isinstance(times, Distribution)
        assert times.count == sum(count for _, count in times.buckets) == 2
        assert ("shop", "-1") not in BY_NAME["node_requests"].values(live.snapshots()), "a bootstrap address"

        await one.send_and_wait("t", b"v")
        await one.close()
    assert total("records_acked") == 3


def test_past_counters_of_one_client_id_are_added_up_by_topic_and_error(producers):
    one, other, third = (
        added(producers, "shop", 1),
        added(producers, "shop", 2, "bills"),
        added(producers, "b", 4),
    )
    one.counted.count_error("A")
    other.counted.count_error("A")
    other.counted.count_error("B")
    del one, other, third
    gc.collect()

    assert producers._entries == {}
    assert BY_NAME["records_acked"].values(live.snapshots()) == {
        ("shop", "orders"): 1,
        ("shop", "bills"): 2,
        ("b", "orders"): 4,
    }
    assert BY_NAME["errors"].values(live.snapshots()) == {("shop", "A"): 2, ("shop", "B"): 1}
    assert {snapshot.state for snapshot in live.snapshots()} == {PAST}


def test_the_client_ids_and_topics_that_are_kept_are_limited(producers):
    for number in range(MOST_CLIENTS + 2):
        added(producers, f"client-{number}", 1)
    gc.collect()
    assert total("records_acked", "client-1") is None
    assert total("records_acked", "client-2") == 1

    for number in range(MOST_TOPICS + 3):
        added(producers, "shop", 1, f"topic-{number}")
    gc.collect()
    [shop] = [snapshot for snapshot in live.snapshots() if snapshot.client_id == "shop"]
    assert len(shop.topics) == MOST_TOPICS + 1
    assert (shop.topics[-1].name, shop.topics[-1].records_acked) == (OTHER_TOPICS, 3)
    assert len(live.snapshots()) == MOST_CLIENTS


def test_a_producer_that_is_collected_while_another_is_measured_is_counted_once(producers):
    """The garbage collector may run in the middle of a scrape, in the thread that holds the lock."""
    gone: list[Measured] = []

    class Collects(Measured):
        def metrics(self, *, window: float | None = None) -> MetricsSnapshot:
            gone.clear()
            gc.collect()
            return super().metrics(window=window)

    lasts = Collects("shop", 2)
    producers.add(lasts, partial(lasts.counted.past, "shop"))
    gone.append(added(producers, "shop", 1))

    assert total("records_acked") == 3
    assert total("records_acked") == 3
    assert len(producers._entries) == 1


def test_no_count_is_lost_or_doubled_while_threads_scrape(producers):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    is_over = threading.Event()
    seen: list[int] = []

    def scrape() -> None:
        while not is_over.is_set():
            seen.append(sum(snapshot.records_acked for snapshot in producers.snapshots()))

    scraping = threading.Thread(target=scrape)
    scraping.start()
    try:
        for _ in range(300):
            added(producers, "shop", 1)
    finally:
        is_over.set()
        scraping.join()
        sys.setswitchinterval(interval)

    assert seen == sorted(seen)
    assert total("records_acked") == 300
    assert producers._entries == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
def test_a_forked_process_starts_without_producers():
    script = """
import asyncio, gc, os
from aioproducer.observe import live
from aioproducer.testing import RecordingProducer

async def main():
    async with RecordingProducer(client_id="gone") as producer:
        await producer.send("t", b"v")
    del producer
    gc.collect()
    async with RecordingProducer(client_id="parent") as producer:
        await producer.send("t", b"v")
        child = os.fork()
        if child == 0:
            os._exit(len(live.snapshots()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print([snapshot.client_id for snapshot in live.snapshots()])

asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "['parent', 'gone']", ran.stderr
