"""metrics(), ping(), health() and describe() of a producer, and start(wait=False), on the embedded cluster."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import threading
from importlib.metadata import version
from typing import Any

import pytest

import aioproducer
from aioproducer import MetricsSnapshot, Producer
from aioproducer.errors import (
    BootstrapError,
    BrokerConnectionError,
    InvalidArgumentError,
    MetadataTimeoutError,
    ProducerClosed,
    ProducerNotStartedError,
    RequestTimedOutError,
    TransactionError,
    TransactionTimeoutError,
)
from aioproducer.metrics import TopicMetrics
from aioproducer.network.broker_entry import BrokerEntry
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records.batch import ProducerBatch
from aioproducer.sending import vital_signs
from aioproducer.sending.vital_signs import weakly_measuring
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from aioproducer.transactions.state import TransactionState
from tests.conftest import in_virtual_time
from tests.support.log_lines import log_lines
from tests.support.producing import (
    PRODUCE,
    assert_nothing_left,
    error_of,
    producing,
    quick_producer,
    until,
    values,
    within,
)

PATIENT = {"request_timeout_ms": 30_000, "max_block_ms": 60_000, "delivery_timeout_ms": 120_000}


# ---------------------------------------------------------------------------------------------------- metrics


@in_virtual_time
async def test_a_window_that_begins_after_close_is_empty():
    async with producing(**PATIENT) as (_, producer):
        await asyncio.sleep(100)
        for _ in range(5):
            await producer.send_and_wait("t", b"v")
    assert producer.metrics(window=60).records_acked == 5
    await asyncio.sleep(1800)

    minute = producer.metrics(window=60)
    assert (minute.records_acked, minute.requests, minute.time_to_ack.count) == (0, 0, 0)
    assert producer.metrics().records_acked == 5
    assert sum(node.disconnects for node in minute.nodes) == 0


class Peeking(dict[str, TopicMetrics]):
    """A dict of topics that reads the producer's metrics on each lookup, as another thread may."""

    def __init__(self, producer: Producer) -> None:
        super().__init__()
        self.producer = producer
        self.seen: list[MetricsSnapshot] = []

    def get(self, name: str, default: TopicMetrics | None = None) -> TopicMetrics | None:  # type: ignore[override]
        self.seen.append(self.producer.metrics())
        return super().get(name, default)


async def test_no_record_is_counted_twice_while_it_gets_its_result():
    async with producing() as (cluster, producer):
        producer._metrics.topics = topics = Peeking(producer)
        for number in range(3):
            await producer.send_and_wait("t", b"%d" % number)
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await error_of(await producer.send("t", b"v"))

        assert {one.records_acked + one.records_failed + one.records_buffered for one in topics.seen} == {
            1,
            2,
            3,
            4,
        }
        assert {one.records_accepted for one in topics.seen} == {1, 2, 3, 4}
        assert producer.metrics().records_accepted == 4


async def test_another_thread_never_sees_a_counter_fall():
    interval, is_over = sys.getswitchinterval(), threading.Event()
    seen: list[MetricsSnapshot] = []

    def look(producer: Producer) -> None:
        while not is_over.is_set():
            seen.append(producer.metrics())

    async with producing(linger_ms=1, topics={f"t{number}": 2 for number in range(20)}) as (_, producer):
        looking = threading.Thread(target=look, args=(producer,))
        sys.setswitchinterval(1e-5)
        looking.start()
        try:
            for number in range(3000):
                await producer.send(f"t{number % 20}", b"v")
                if number % 200 == 0:
                    await producer.flush()
            await producer.flush()
        finally:
            is_over.set()
            looking.join()
            sys.setswitchinterval(interval)
        assert producer.metrics().records_accepted == 3000

    for name in ("records_accepted", "records_acked", "batches", "produce_requests"):
        values = [getattr(one, name) for one in seen]
        assert values == sorted(values), name
    assert all(one.records_acked <= one.records_accepted <= 3000 for one in seen)


# ------------------------------------------------------------------------------------------------------- ping


@pytest.mark.promise(
    "Observability", "ping() asks a broker, and health() says whether records can be expected to arrive"
)
async def test_ping_names_the_broker_that_answered_and_sends_a_new_request_each_time():
    async with producing(brokers=3) as (cluster, producer):
        before = len(cluster.requests_of(ApiKey.METADATA))
        pings = [await producer.ping() for _ in range(3)]

        assert len(cluster.requests_of(ApiKey.METADATA)) == before + 3
        assert {ping.node.node_id for ping in pings} <= {0, 1, 2}
        assert all(0 < ping.seconds < 2 for ping in pings)
        assert cluster.bootstrap_servers.count(f":{pings[0].node.port}") == 1


@in_virtual_time
async def test_ping_of_a_cluster_that_does_not_answer_ends_in_time():
    async with producing(**PATIENT) as (cluster, producer):
        cluster.freeze_broker(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RequestTimedOutError):
            await producer.ping(timeout=3)
        assert loop.time() - began == pytest.approx(3, abs=0.1)
        cluster.crash_broker(0)
        with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1"):
            await producer.ping()


async def test_ping_requires_a_running_producer_and_a_numeric_timeout():
    async with EmbeddedCluster(1) as cluster:
        producer = quick_producer(cluster)
        with pytest.raises(ProducerNotStartedError):
            await producer.ping()
        await producer.start()
        with pytest.raises(InvalidArgumentError, match="timeout"):
            await producer.ping(timeout=-1)
        await producer.close()
        with pytest.raises(ProducerClosed):
            await producer.ping()


async def test_a_cancelled_ping_leaves_nothing_behind():
    async with producing() as (cluster, producer):
        cluster.freeze_broker(0)
        asking = asyncio.create_task(producer.ping(timeout=60))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        cluster.thaw_broker(0)
        assert (await producer.send_and_wait("t", b"v")).offset == 0


# ----------------------------------------------------------------------------------------------------- health


@pytest.mark.promise(
    "Observability", "ping() asks a broker, and health() says whether records can be expected to arrive"
)
@in_virtual_time
async def test_health_follows_the_cluster():
    async with producing(**PATIENT) as (cluster, producer):
        await producer.send_and_wait("t", b"v")
        assert producer.health() == producer.health()
        healthy = producer.health()
        assert (healthy.ok, healthy.reason, healthy.state) == (True, "", "running")
        assert (healthy.brokers_connected, healthy.brokers_known) == (1, 1)

        cluster.crash_broker(0, down_for=60)
        await asyncio.sleep(2)
        lost = producer.health()
        assert not lost.ok
        assert lost.reason.startswith("no broker is connected: ")
        assert lost.brokers_connected == 0

        await asyncio.sleep(65)
        assert producer.health().ok, "it has reconnected without a record"
        assert json.dumps(producer.health().as_dict())


@in_virtual_time
async def test_a_record_that_waits_too_long_is_not_healthy():
    async with producing(**PATIENT) as (cluster, producer):
        await producer.send_and_wait("t", b"v")
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        delivery = await producer.send("t", b"v")
        await asyncio.sleep(10)
        assert producer.health().ok
        assert producer.health(max_unacked_seconds=9).reason == (
            "a record has been waiting for its acknowledgement for 10 s"
        )
        hold.set()
        await delivery
        assert producer.health(max_unacked_seconds=9).ok


async def test_a_producer_that_does_not_run_is_not_healthy():
    async with EmbeddedCluster(1) as cluster:
        producer = quick_producer(cluster)
        assert producer.health().reason == "the producer is new"
        await producer.start()
        await producer.close()
        assert producer.health().reason == "the producer is closed"


async def test_a_producer_is_not_healthy_once_close_was_called():
    async with producing() as (_, producer):
        assert producer.health().ok
        closing = asyncio.ensure_future(producer.close())
        while producer._closing is None:  # noqa: ASYNC110  # close() sets no event
            await asyncio.sleep(0)
        assert producer.health().reason == "the producer is closing"
        await closing


async def test_a_fenced_producer_is_not_healthy_until_it_has_taken_its_id_back():
    async with producing(transactional_id="tx") as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"v")
        assert producer.health().ok
        async with quick_producer(cluster, transactional_id="tx"):
            with pytest.raises(TransactionError):
                await producer.commit_transaction()
            health = producer.health()
            assert not health.ok
            assert "'tx' is unusable until init_transactions() is called" in health.reason
        await producer.init_transactions()
        assert producer.health().ok


@pytest.mark.parametrize("state", TransactionState)
async def test_health_depends_on_the_state_of_the_transaction(state):
    async with RecordingProducer(transactional_id="tx") as producer:
        before, producer._transaction.state = producer._transaction.state, state
        health = producer.health()
        producer._transaction.state = before
    lost = (
        TransactionState.OUTCOME_UNKNOWN,
        TransactionState.REINIT_REQUIRED,
        TransactionState.FAILED_PARTICIPANT,
    )
    assert health.ok is (state not in lost)
    assert state.value in health.reason or health.ok


# ----------------------------------------------------------------------------------------------------- describe


@pytest.mark.promise("Observability", "describe() is a block for a bug report without data or secrets")
async def test_describe_shows_what_a_bug_report_needs():
    async with producing(brokers=2, topics={"orders": 3}, client_id="orders-api") as (cluster, producer):
        await producer.send_and_wait(
            "orders", b"secret value", key=b"secret key", headers=[("h", b"secret header")]
        )
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        delivery = await producer.send("orders", b"secret value")
        await until(lambda: producer.metrics().in_flight)

        described = producer.describe()
        text = str(described)
        assert described.versions["aioproducer"] == aioproducer.__version__
        assert described.settings["client_id"] == "orders-api (explicit)"
        assert "batch_size" not in described.settings, "the setting has its default"
        assert described.state == "running"
        assert described.cluster["id"] == producer.metrics().cluster_id
        assert described.topics["orders"] == {"partitions": 3, "without_leader": 0, "under_replicated": 0}
        assert {broker["security"] for broker in described.brokers if broker["is_connected"]} == {
            "plain text"
        }
        versions = [broker["api_versions"] for broker in described.brokers if broker["is_connected"]]
        assert versions
        assert all("PRODUCE 0-13; " in shown and "METADATA 0-13" in shown for shown in versions)
        assert described.identity["producer_id"] >= 0
        (batch,) = described.oldest_batches
        assert (batch["topic"], batch["records"], batch["state"], batch["attempts"]) == (
            "orders",
            1,
            "in flight",
            1,
        )
        assert described.counters["records_acked"] == 1
        assert "secret" not in text
        assert json.loads(json.dumps(described.as_dict()))["topics"]["orders"]["partitions"] == 3
        assert "  orders:\n    partitions: 3\n" in text
        hold.set()
        await delivery


async def test_describe_may_be_called_in_another_thread(monkeypatch):
    """While describe() runs in another thread, batches and brokers may appear and disappear between two steps."""
    async with producing() as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        delivery = await producer.send("t", b"v")
        incomplete = producer._accumulator.incomplete
        described_batch, described = vital_signs._described_batch, BrokerEntry.describe

        def changes_batches(batch: ProducerBatch, now: float) -> dict[str, Any]:
            incomplete.move_to_end(batch)
            incomplete["another"] = None
            return described_batch(batch, now)

        def changes_brokers(entry: BrokerEntry, now: float) -> dict[str, Any]:
            entries = producer._brokers._entries
            entries.update(reversed(list(entries.items())), another=entry)
            return described(entry, now)

        monkeypatch.setattr(vital_signs, "_described_batch", changes_batches)
        monkeypatch.setattr(BrokerEntry, "describe", changes_brokers)
        found = producer.describe()
        del incomplete["another"], producer._brokers._entries["another"]
        assert [batch["topic"] for batch in found.oldest_batches] == ["t"]
        assert [broker["node_id"] for broker in found.brokers] == [0]
        hold.set()
        await delivery


async def test_describe_shows_the_last_warnings_of_this_producer():
    class Broken:
        def on_batch(self, _: object) -> None:
            raise ValueError("secret")

    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        producer = quick_producer(cluster, acks=0, hooks=[Broken()])
        [settings] = producer.describe().warnings
        assert "acks=0 turns enable_idempotence off" in settings["line"]
        async with producer, quick_producer(cluster) as other:
            await producer.send_and_wait("t", b"v")
            cluster.crash_broker(0)
            await until(lambda: len(producer.describe().warnings) == 3)

            lines = [warning["line"] for warning in producer.describe().warnings]
            assert "Broken.on_batch raised an exception and has been switched off" in lines[1]
            assert "next attempt in" in lines[2]
            assert "secret" not in str(producer.describe())
            assert not [one for one in other.describe().warnings if "acks=0" in one["line"]]


async def test_describe_works_in_every_state():
    async with EmbeddedCluster(1) as cluster:
        producer = quick_producer(cluster)
        assert "state: new" in str(producer.describe())
        assert producer.describe().versions["event loop"] == "none yet"
        await producer.start()
        assert "state: running" in str(producer.describe())
        await producer.close()
        assert "state: closed" in str(producer.describe())


def test_describe_hides_secrets_and_names_the_origins_of_settings(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(
        """bootstrap.servers=localhost:9092
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";
"""
    )
    described = Producer.from_properties(file).describe()
    assert "hunter2" not in str(described) + json.dumps(described.as_dict())
    assert "client.properties:1" in described.settings["bootstrap_servers"]


async def test_describe_lists_a_hundred_topics_and_counts_the_others():
    async with producing(topics={f"t{number}": 1 for number in range(130)}) as (_, producer):
        for number in range(130):
            await producer.send(f"t{number}", b"v")
        topics = producer.describe().topics
        assert len(topics) == 101
        assert topics["_other"] == {"topics": 30}


# ------------------------------------------------------------------------------------------- start(wait=False)


@pytest.mark.promise("Observability", "start(wait=False) returns before the cluster can be reached")
@in_virtual_time
async def test_a_producer_that_does_not_wait_starts_before_its_cluster(caplog):
    caplog.set_level(logging.INFO)
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        cluster.crash_broker(0, down_for=25)
        producer = quick_producer(cluster, **PATIENT)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await producer.start(wait=False)
        assert loop.time() == began
        assert producer.health().reason.startswith("no broker has answered yet")

        metadata = await producer.send_and_wait("t", b"v")
        assert metadata.offset == 0
        assert loop.time() - began > 20
        assert producer.health().ok
        await producer.close()
        await assert_nothing_left(producer, cluster)
    waits = [line for line in log_lines(caplog, logging.WARNING) if "no broker has answered for" in line]
    assert len(waits) == 2
    assert "still trying" in waits[0]


@pytest.mark.parametrize(("seconds", "shown"), [(20, [10]), (20.4, [10]), (25, [15, 5])])
def test_a_start_that_is_about_to_fail_logs_no_countdown(seconds, shown, caplog):
    @in_virtual_time
    async def play() -> None:
        async with EmbeddedCluster(1) as cluster:
            cluster.crash_broker(0)
            producer = quick_producer(cluster, **{**PATIENT, "max_block_ms": round(seconds * 1000)})
            with pytest.raises(BootstrapError):
                await producer.start()

    play()

    lines = [line for line in log_lines(caplog, logging.WARNING) if "no broker has answered for" in line]
    assert len(lines) == len(shown)
    for line, left in zip(lines, shown, strict=True):
        assert f"giving up in {left} s" in line


@in_virtual_time
async def test_a_send_without_a_reachable_broker_names_the_reason():
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        cluster.crash_broker(0)
        producer = quick_producer(cluster, **{**PATIENT, "max_block_ms": 3000})
        await producer.start(wait=False)
        with pytest.raises(MetadataTimeoutError, match=r"127\.0\.0\.1"):
            await producer.send("t", b"v")
        await producer.close()
        await assert_nothing_left(producer, cluster)


@in_virtual_time
async def test_a_transactional_producer_that_did_not_wait_initializes_when_it_begins():
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        cluster.crash_broker(0, down_for=20)
        producer = quick_producer(cluster, transactional_id="tx", **{**PATIENT, "max_block_ms": 5000})
        await producer.start(wait=False)
        with pytest.raises(TransactionTimeoutError):
            await producer.begin_transaction()
        await asyncio.sleep(20)
        async with producer.transaction():
            await producer.send("t", b"v")
        assert values(cluster) == [b"v"]
        inits = len(cluster.requests_of(ApiKey.INIT_PRODUCER_ID))
        async with producer.transaction():
            await producer.send("t", b"w")
        await producer.init_transactions()
        assert producer._initializes_later is False
        assert inits == 1
        await producer.close()


@in_virtual_time
async def test_a_producer_that_is_dropped_while_it_connects_leaves_nothing_behind():
    async with EmbeddedCluster(1) as cluster:
        cluster.crash_broker(0)
        producer = quick_producer(cluster, **PATIENT)
        await producer.start(wait=False)
        await asyncio.sleep(1)
        await within(2, producer.close())
        await assert_nothing_left(producer)


# ---------------------------------------------------------------------------------------------------- doubles


async def test_a_recording_producer_has_the_same_calls():
    async with RecordingProducer() as producer:
        await producer.send("t", b"v")
        assert (await producer.ping()).seconds == 0
        assert producer.health().ok
        assert producer.describe().counters["records_acked"] == 1


async def test_objects_that_measure_a_producer_do_not_keep_it_alive():
    producer = RecordingProducer()
    async with producer:
        await producer.send("t", b"v")
    measure = weakly_measuring(producer)
    assert measure().records_acked == 1
    del producer
    gc.collect()
    assert measure() == MetricsSnapshot()


def test_the_version_is_that_of_the_package():
    assert aioproducer.__version__ == version("aioproducer")
