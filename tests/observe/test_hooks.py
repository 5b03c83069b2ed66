"""Hooks: the events that they receive from an embedded cluster, and the handling of a hook that raises."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from aioproducer import Outcome, Producer, TopicPartition
from aioproducer.errors import (
    BrokerConnectionError,
    BrokerError,
    DeliveryError,
    InvalidRecordError,
    RequestTimedOutError,
    SendManyError,
    TransactionAbortableError,
)
from aioproducer.hooks import add_default, remove_default
from aioproducer.observe.hooks import EVENTS, Event, Hooks, ThrottleEvent
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from aioproducer.types import Node
from tests.conftest import MS
from tests.support.log_lines import log_lines
from tests.support.producing import PRODUCE, error_of, producing, quick_producer, until, values

NODE = Node(1, "host", 9092)


class Hears:
    """A hook with all methods; `heard` contains the events by the method's name."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in EVENTS:
            raise AttributeError(name)
        return lambda event: self.heard.append((name, event))

    def of(self, name: str) -> list[Any]:
        return [event for heard, event in self.heard if heard == name]


@pytest.fixture
def hears() -> Hears:
    return Hears()


@pytest.fixture
def default(hears: Hears) -> Iterator[Hears]:
    add_default(hears)
    yield hears
    remove_default(hears)


# --------------------------------------------------------------------------------------------------- the events


@pytest.mark.promise(
    "Observability", "hooks are called for connections, requests, batches, retries and transactions"
)
async def test_a_producer_reports_its_start_its_end_and_the_events_in_between(hears):
    async with producing(hooks=[hears], client_id="shop") as (_, producer):
        await producer.send_and_wait("t", b"v" * 100)
        delivery = await producer.send("t", b"w")
        await producer.flush()
        assert (await delivery).offset == 1

    order = list(dict.fromkeys(name for name, _ in hears.heard))
    assert order[-1] == "on_close"
    assert order.index("on_connect") < order.index("on_start") < order.index("on_batch")
    assert {event.client_id for _, event in hears.heard} == {"shop"}

    [start] = hears.of("on_start")
    assert start.cluster_id == producer.metrics().cluster_id
    assert 0 <= start.seconds < 2
    first, second = hears.of("on_batch")
    assert (first.topic, first.partition, first.records, first.base_offset) == ("t", 0, 1, 0)
    assert (second.base_offset, second.attempts, second.compression) == (1, 1, "none")
    assert first.wire_bytes == second.wire_bytes + 101, "two of the lengths take one byte more"
    assert (first.outcome, first.error) == (None, None)
    [close] = hears.of("on_close")
    assert (close.report.delivered, close.report.failed) == (2, 0)


async def test_requests_are_reported_with_their_sizes_and_times(hears):
    async with producing(hooks=[hears]) as (_, producer):
        await producer.send_and_wait("t", b"v")

    apis = [event.api for event in hears.of("on_request")]
    assert {"API_VERSIONS", "METADATA", "INIT_PRODUCER_ID", "PRODUCE"} <= set(apis)
    assert sum(event.bytes_sent for event in hears.of("on_request")) == sum(
        node.bytes_sent for node in producer.metrics().nodes
    ) + unused_bytes(producer)
    assert all(event.bytes_received > 0 and event.error is None for event in hears.of("on_request"))


def unused_bytes(producer: Producer) -> int:
    """Return the number of bytes sent to the bootstrap address, which metrics() does not list
    when it is no longer used."""
    listed = {node.node_id for node in producer.metrics().nodes}
    return sum(node.bytes_sent for id, node in producer._metrics.nodes.items() if id not in listed)


async def test_a_request_without_an_answer_is_reported_with_its_error(hears):
    async with producing(hooks=[hears]) as (cluster, producer):
        await producer.send_and_wait("t", b"v")
        cluster.faults.add(PRODUCE, drop_before=True)
        await producer.send_and_wait("t", b"w")

    [lost] = [event for event in hears.of("on_request") if event.error and event.api == "PRODUCE"]
    assert lost.bytes_received == 0
    assert isinstance(lost.error, BrokerConnectionError | RequestTimedOutError)
    [retry] = hears.of("on_retry")
    assert (retry.topic, retry.partition, retry.records, retry.attempts) == ("t", 0, 1, 1)
    assert retry.pause >= 0
    assert isinstance(retry.error, BrokerConnectionError | RequestTimedOutError)
    assert type(hears.of("on_disconnect")[0].error) is BrokerConnectionError


async def test_a_failed_batch_is_reported_with_its_outcome(hears):
    async with producing(hooks=[hears]) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await error_of(await producer.send("t", b"v"))

    [batch] = hears.of("on_batch")
    assert (batch.records, batch.base_offset, batch.outcome) == (1, None, Outcome.NOT_PERSISTED)
    assert isinstance(batch.error, DeliveryError)


async def test_a_failed_connection_is_reported(hears):
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        cluster.crash_broker(0)
        producer = quick_producer(cluster, hooks=[hears], max_block_ms=100 * MS)
        await producer.start(wait=False)
        await until(lambda: hears.of("on_connect"))
        await producer.close()
    assert isinstance(hears.of("on_connect")[0].error, BrokerConnectionError)
    [start] = hears.of("on_start")
    assert start.cluster_id is None


async def test_a_throttle_is_reported(hears):
    async with producing(hooks=[hears]) as (cluster, producer):
        cluster.faults.add(PRODUCE, throttle_ms=7)
        await producer.send_and_wait("t", b"v")
    [throttle] = hears.of("on_throttle")
    assert (throttle.node.node_id, throttle.seconds) == (0, 0.007)


async def test_a_record_that_send_does_not_accept_is_reported_and_counted(hears):
    async with producing(hooks=[hears]) as (_, producer):
        await producer.send_and_wait("t", b"v")
        for wrong in ({"value": 5}, {"value": b"v", "headers": [("h",)]}):
            with pytest.raises(InvalidRecordError):
                await producer.send("t", **wrong)
        with pytest.raises(InvalidRecordError):
            producer.try_send("t", "text")
        with pytest.raises(InvalidRecordError):
            await producer.send("", b"v")
        with pytest.raises(InvalidRecordError):
            await producer.send_batch(producer.create_batch(), "t", partition=-1)
        receipt = await producer.send_many("t", [b"1", 2, b"3", 4])
        with pytest.raises(SendManyError):
            await receipt
        rejected = producer.metrics().rejected

    assert sum(rejected.values()) == 7
    assert sum(event.records for event in hears.of("on_rejected")) == 7
    assert [event.records for event in hears.of("on_rejected")][-1] == 2
    assert {event.topic for event in hears.of("on_rejected")} == {"t", ""}


async def test_a_cancelled_send_is_not_rejected(hears):
    async with producing(hooks=[hears]) as (cluster, producer):
        cluster.faults.add(ApiKey.METADATA, hold_before=asyncio.Event(), count=100)
        sending = asyncio.create_task(producer.send("other", b"v"))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert producer.metrics().rejected == {}
    assert hears.of("on_rejected") == []


async def test_the_calls_of_a_transaction_are_reported_and_counted(hears):
    async with producing(hooks=[hears], transactional_id="tx", topics={"t": 1, "in": 1}) as (
        cluster,
        producer,
    ):
        async with producer.transaction() as transaction:
            await producer.send("t", b"v")
            await transaction.send_offsets({TopicPartition("in", 0): 1}, "group")
        await producer.begin_transaction()
        delivery = await producer.send("t", b"w")
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await error_of(delivery)
        calls = {call.call: (call.count, call.failures) for call in producer.metrics().transactions}

    told = [(event.call, type(event.error).__name__) for event in hears.of("on_transaction")]
    assert told == [
        ("initialize", "NoneType"),
        ("begin", "NoneType"),
        ("send_offsets", "NoneType"),
        ("commit", "NoneType"),
        ("begin", "NoneType"),
        ("commit", "TransactionAbortableError"),
        ("abort", "NoneType"),
    ]
    assert {event.transactional_id for event in hears.of("on_transaction")} == {"tx"}
    assert calls == {
        "initialize": (1, 0),
        "begin": (2, 0),
        "send_offsets": (1, 0),
        "commit": (2, 1),
        "abort": (1, 0),
    }


# ----------------------------------------------------------------------------------------- hooks that go wrong


@pytest.mark.promise("Observability", "a hook that raises is logged and switched off")
async def test_a_hook_that_raises_is_logged_and_switched_off(hears, caplog):
    calls = []

    class Raises:
        def on_batch(self, event: Event) -> None:
            calls.append(event)
            raise RuntimeError("boom")

        def on_request(self, event: Event) -> None:
            calls.append(event)

    async with producing(hooks=[Raises(), hears]) as (_, producer):
        await producer.send_and_wait("t", b"v")
        heard = len(calls)
        await producer.send_and_wait("t", b"w")

    assert len(calls) == heard, "none of its methods is called again"
    assert len(hears.of("on_batch")) == 2
    [line] = [line for line in log_lines(caplog, logging.WARNING) if "switched off" in line]
    assert "Raises.on_batch raised" in line
    assert "boom" in caplog.text


@pytest.mark.parametrize("name", EVENTS)
async def test_a_cancellation_that_a_hook_raises_itself_only_switches_it_off(name, caplog):
    """`future.result()` of a cancelled future raises CancelledError, which is not our task's cancellation."""

    def cancelled(event: Event) -> None:
        raise asyncio.CancelledError

    async with producing(hooks=[SimpleNamespace(**{name: cancelled})], transactional_id="tx") as (
        cluster,
        producer,
    ):
        async with producer.transaction():
            await producer.send_and_wait("t", b"v")
            cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, throttle_ms=1)
            assert (await producer.send_and_wait("t", b"w")).offset == 1
            with pytest.raises(InvalidRecordError):
                await producer.send("t", 5)
        assert values(cluster) == [b"v", b"w"]
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        updates = producer.metrics().metadata_updates
        producer._metadata.request_update()
        await until(lambda: producer.metrics().metadata_updates > updates)
        await cluster.close_connections(0)
    assert len([line for line in log_lines(caplog, logging.WARNING) if "switched off" in line]) == 1


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_that_ends_the_program_leaves_a_hook(ending):
    def ends(event: Event) -> None:
        raise ending

    hooks = Hooks([SimpleNamespace(on_throttle=ends)], "shop")
    with pytest.raises(ending):
        hooks.tell(hooks.on_throttle, ThrottleEvent("shop", NODE, 0.1))
    assert len(hooks.on_throttle) == 1


async def test_a_hook_that_is_async_is_switched_off(caplog):
    class Awaits:
        async def on_batch(self, event: Event) -> None:
            raise NotImplementedError

    async with producing(hooks=[Awaits()]) as (_, producer):
        await producer.send_and_wait("t", b"v")
        await producer.send_and_wait("t", b"w")
    [line] = [line for line in log_lines(caplog, logging.WARNING) if "switched off" in line]
    assert "is async" in line


def test_a_hook_with_one_method_leaves_the_other_lists_empty():
    class Hears:
        def on_throttle(self, event: Event) -> None:
            assert isinstance(event, ThrottleEvent)

    hooks = Hooks([Hears()], "shop")
    assert [name for name in EVENTS if getattr(hooks, name)] == ["on_throttle"]
    hooks.connected(NODE, 0.1, None)
    hooks.disconnected(NODE, None)
    hooks.tell(hooks.on_throttle, ThrottleEvent("shop", NODE, 0.1))
    assert len(hooks.on_throttle) == 1


# -------------------------------------------------------------------------------------------- the default hooks


async def test_a_default_hook_receives_the_events_of_each_producer_created_later(default):
    async with RecordingProducer(client_id="one") as one:
        await one.send("t", b"v")
    async with RecordingProducer(client_id="two"):
        pass
    remove_default(default)
    async with RecordingProducer(client_id="three"):
        pass
    assert [event.client_id for event in default.of("on_start")] == ["one", "two"]


def test_a_default_hook_is_registered_once(default):
    add_default(default)
    assert len(Hooks([], "x").on_batch) == 1
    remove_default(default)
    remove_default(default)
    assert Hooks([], "x").on_batch == []


async def test_a_retry_is_reported_with_the_error_of_the_broker(hears):
    async with producing(hooks=[hears]) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS)
        await producer.send_and_wait("t", b"v")
    [retry] = hears.of("on_retry")
    assert isinstance(retry.error, BrokerError)
    assert retry.error.name == "NOT_ENOUGH_REPLICAS"


@pytest.mark.promise("Observability", "the docs describe each event of hooks with its fields")
def test_the_table_of_hooks_lists_each_event_with_its_fields():
    guide = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(on_\w+)` \| [^|]+ \| ([^|]+) \|", guide, re.MULTILINE)
    events = {(event.__doc__ or "").split("`")[1]: event for event in get_args(Event)}

    described = {name: re.findall(r"`(\w+)`", fields) for name, fields in rows}

    assert list(described) == list(EVENTS) == list(events)
    for name, event in events.items():
        assert ["client_id", *described[name]] == list(event._fields), name
