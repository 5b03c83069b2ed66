"""Tests of the blocking producer: the asyncio one without await, from any thread, leaving nothing behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import inspect
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import types

import pytest

import aioproducer
from aioproducer import OffsetAndMetadata, Outcome, TopicPartition, blocking
from aioproducer.blocking import Producer
from aioproducer.blocking.loop_thread import Flag
from aioproducer.errors import (
    BufferFullError,
    BufferTimeoutError,
    DeliveryError,
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTopicError,
    KafkaError,
    ProducerClosed,
    ProducerNotStartedError,
    RecordTooLargeError,
    SendManyError,
    SerializationError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownPartitionError,
    WrongLoopError,
)
from aioproducer.transactions.state import TransactionState
from tests.conftest import MS
from tests.support.docs_runner import Docs
from tests.support.log_lines import log_lines
from tests.support.producing import FOUR_RECORDS_FILL_IT, LARGE, QUICK, metadata_count

try:
    import uvloop
except ImportError:
    uvloop = None

TIMEOUT = 10_000 * MS
"""Seconds within which every call in these tests ends, unless it blocks forever."""


class Cluster(Docs):
    """An embedded cluster in another thread, which continues while this one is blocked."""

    def freeze(self):
        self.call(lambda: self.cluster.freeze_broker(0))

    def thaw(self):
        self.call(lambda: self.cluster.broker(0).is_frozen and self.cluster.thaw_broker(0))

    @property
    def servers(self):
        return self.cluster.bootstrap_servers


@pytest.fixture(scope="module")
def module_cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster, topic):
    module_cluster.topic(topic, 1)
    yield module_cluster
    until(lambda: not left_behind())  # the threads of the compressor end a moment later
    until(lambda: not [broker for broker in module_cluster.cluster._brokers if broker.connection_count])


def left_behind():
    return [thread for thread in threading.enumerate() if thread.name.startswith("aioproducer")]


def until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(MS)


@pytest.fixture
def make(cluster):
    """Returns a function that creates started producers; all are closed at the end."""
    made = []

    def start(**settings):
        made.append(Producer(cluster.servers, **{**QUICK, **settings}))
        made[-1].start()
        return made[-1]

    yield start
    for producer in made:
        producer.close(timeout=0)
    until(lambda: not [broker for broker in cluster.cluster._brokers if broker.connection_count])


@pytest.fixture
def producer(make):
    return make()


class Held:
    """Keep the loop of a producer busy, so that records sent in the meantime are queued."""

    def __init__(self, producer):
        self._thread = producer._sends.own_thread()
        self._go_on = threading.Event()

    def __enter__(self):
        began = threading.Event()
        self._thread.post(lambda: (began.set(), self._go_on.wait(TIMEOUT)))
        assert began.wait(TIMEOUT)
        return self

    def __exit__(self, *_):
        self._go_on.set()


# -------------------------------------------------------------------------------------------------- the same calls


PUBLIC = [name for name in dir(aioproducer.Producer) if not name.startswith("_")]


@pytest.mark.promise(
    "Blocking producer", "the blocking producer has the calls, parameters and errors of the asyncio producer"
)
@pytest.mark.parametrize("name", ["__init__", *PUBLIC])
def test_each_call_has_the_parameters_of_the_asyncio_producer(name):
    ours, theirs = getattr(Producer, name), getattr(aioproducer.Producer, name)

    if isinstance(theirs, property):
        assert isinstance(ours, property)
        return
    assert not inspect.iscoroutinefunction(ours)
    assert ours.__doc__ or name == "__init__"
    ours_of = [(p.name, p.kind, p.default) for p in inspect.signature(ours).parameters.values()]
    theirs_of = [(p.name, p.kind, p.default) for p in inspect.signature(theirs).parameters.values()]
    assert ours_of == theirs_of


def test_every_public_call_exists_in_the_asyncio_producer():
    extra = {name for name in dir(Producer) if not name.startswith("_")} - set(PUBLIC)

    assert extra == set()


def test_the_scope_of_a_transaction_has_the_calls_of_the_asyncio_one():
    theirs = type(aioproducer.Producer().transaction())

    for name in ("send_offsets", "export"):
        ours_of = inspect.signature(getattr(blocking.TransactionScope, name)).parameters
        assert list(ours_of) == list(inspect.signature(getattr(theirs, name)).parameters)


def test_deliveries_have_the_calls_of_a_future():
    futures = {name for name in dir(concurrent.futures.Future) if not name.startswith(("_", "set_"))}

    assert futures <= set(dir(blocking.Delivery))


# -------------------------------------------------------------------------------------------------------- records


def test_a_record_is_sent_and_its_delivery_has_the_metadata(cluster, topic):
    with Producer(cluster.servers) as producer:
        delivery = producer.send(topic, b"v", key=b"k", headers=[("h", b"1")], timestamp_ms=17)
        metadata = delivery.result(TIMEOUT)

        assert (metadata.topic, metadata.partition, metadata.offset, metadata.timestamp) == (topic, 0, 0, 17)
        assert delivery.done()
        assert delivery.exception() is None
    [record] = cluster.records(topic)
    assert (record.key, record.value, list(record.headers)) == (b"k", b"v", [("h", b"1")])


@pytest.mark.promise(
    "Blocking producer",
    "a burst of records costs one wake-up of the loop, and a thread's records stay in order",
)
def test_records_of_a_thread_stay_in_order_on_every_path(producer, cluster, topic):
    for number in range(3000):
        value = b"%d" % number
        if number % 100 == 7:
            producer.send(topic, bytearray(value))
        elif number % 100 == 8:
            producer.send_and_wait(topic, value)
        elif number % 100 == 9:
            producer.send(topic, value, partition=0, headers=[("h", b"")])
        else:
            producer.send(topic, value)
    producer.flush(TIMEOUT)

    assert cluster.values(topic) == [b"%d" % number for number in range(3000)]


@pytest.mark.promise(
    "Blocking producer",
    "a burst of records costs one wake-up of the loop, and a thread's records stay in order",
)
def test_many_threads_send_through_one_producer_and_each_keeps_its_order(producer, cluster, topic):
    def send(thread):
        return [producer.send(topic, b"%d %d" % (thread, number)) for number in range(500)]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        deliveries = [delivery for sent in pool.map(send, range(8)) for delivery in sent]
    assert len({delivery.result(TIMEOUT).offset for delivery in deliveries}) == 4000

    written = [tuple(map(int, value.split())) for value in cluster.values(topic)]
    for thread in range(8):
        assert [number for of, number in written if of == thread] == list(range(500))


@pytest.mark.promise(
    "Blocking producer",
    "a burst of records costs one wake-up of the loop, and a thread's records stay in order",
)
def test_a_burst_of_records_costs_one_wake_up_of_the_loop(producer, topic, monkeypatch):
    producer.send_and_wait(topic, b"known")
    producer.send(topic, b"known").result(TIMEOUT)
    thread = producer._sends.own_thread()
    posts = []
    post = thread.post

    with Held(producer):
        monkeypatch.setattr(thread, "post", lambda function: posts.append(function) or post(function))
        deliveries = [producer.send(topic, b"v") for _ in range(900)]
        monkeypatch.undo()

    assert len(posts) == 1
    assert [delivery.result(TIMEOUT).offset for delivery in deliveries] == list(range(2, 902))


@pytest.mark.promise(
    "Blocking producer", "Ctrl-C interrupts a call at once, aborts a transaction, and never stops the loop"
)
def test_ctrl_c_during_a_wake_up_does_not_leave_the_loop_asleep(producer, topic, monkeypatch):
    def interrupted(function):
        raise KeyboardInterrupt

    producer.send(topic, b"known").result(TIMEOUT)
    thread = producer._sends.own_thread()
    monkeypatch.setattr(thread, "post", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.send(topic, b"v")
    monkeypatch.undo()

    assert producer.send(topic, b"w").result(TIMEOUT).offset == 2


def test_a_record_beyond_the_queue_waits_for_the_loop(producer, topic):
    producer.send(topic, b"known").result(TIMEOUT)
    held = Held(producer)
    with held, concurrent.futures.ThreadPoolExecutor(1) as pool:
        sending = pool.submit(lambda: [producer.send(topic, b"v") for _ in range(1100)])
        until(lambda: len(producer._sends) == 1001)
        assert not sending.done()
        held._go_on.set()
        assert len(sending.result(TIMEOUT)) == 1100


def test_changes_by_the_caller_after_send_are_not_sent(cluster, topic, make):
    producer = make(value_serializer=lambda value: repr(value).encode())
    value = {"a": 1}
    with_buffer, headers, data = make(), [("h", b"1")], bytearray(b"old")
    with_buffer.send(topic, b"known").result(TIMEOUT)

    delivery = producer.send(topic, value)
    value["a"] = 2
    with_buffer.send(topic, data, headers=headers)
    data[:] = b"new"
    headers.append(("h", b"2"))
    delivery.result(TIMEOUT)
    with_buffer.flush(TIMEOUT)

    _, *written = cluster.records(topic)
    assert {record.value for record in written} == {b"{'a': 1}", b"old"}
    assert [list(record.headers) for record in written if record.value == b"old"] == [[("h", b"1")]]


def test_serializers_may_be_async_and_see_the_callers_context(make, cluster, topic):
    who = contextvars.ContextVar("who", default=b"nobody")

    async def serialize(value):
        await asyncio.sleep(0)
        return who.get() + value

    who.set(b"the caller: ")

    make(value_serializer=serialize).send_and_wait(topic, b"v")

    assert cluster.values(topic) == [b"the caller: v"]


def test_a_serializer_receives_the_context_and_a_record_may_have_its_own(make, cluster, topic):
    def with_context(value, ctx):
        ctx.headers.append((ctx.field, ctx.topic.encode()))
        return b"producer's %d" % value

    async def later(value):
        await asyncio.sleep(0)
        return b"own %d" % value

    producer = make(value_serializer=with_context)
    producer.send_and_wait(topic, 1)
    producer.send_and_wait(topic, None)
    producer.send_and_wait(topic, 2, value_serializer=later)
    producer.send(topic, 3, "k", key_serializer=str.encode, value_serializer=later).result(TIMEOUT)
    producer.try_send(topic, 4, "k", key_serializer=str.encode).result(TIMEOUT)
    with pytest.raises(SerializationError, match="the value_serializer str returned str for topic"):
        producer.send(topic, 5, value_serializer=str)
    with pytest.raises(InvalidRecordError, match="the key_serializer must be callable"):
        producer.try_send(topic, 6, key_serializer=7)

    assert [(record.key, record.value, record.headers) for record in cluster.records(topic)] == [
        (None, b"producer's 1", (("value", topic.encode()),)),
        (None, None, ()),
        (None, b"own 2", ()),
        (b"k", b"own 3", ()),
        (b"k", b"producer's 4", (("value", topic.encode()),)),
    ]


def test_a_record_with_its_own_serializer_is_serialized_before_send_returns(producer, cluster, topic):
    producer.send(topic, b"known").result(TIMEOUT)
    value = [1]

    delivery = producer.send(topic, value, value_serializer=bytes)
    value[0] = 2
    delivery.result(TIMEOUT)

    assert cluster.values(topic) == [b"known", b"\1"]


def test_calls_that_share_a_wake_up_keep_their_own_contexts(make, cluster, topic):
    who = contextvars.ContextVar("who", default=b"nobody")
    producer = make(value_serializer=lambda value: who.get() + value)
    held = Held(producer)

    def send(name):
        who.set(name)
        return producer.send_and_wait(topic, b"!")

    with held, concurrent.futures.ThreadPoolExecutor(2) as pool:
        sending = []
        for name in (b"a", b"b"):
            sending.append(pool.submit(send, name))
            until(lambda: len(producer._sends) == len(sending))  # called immediately
        held._go_on.set()
        assert all(sent.result(TIMEOUT) for sent in sending)

    assert cluster.values(topic) == [b"a!", b"b!"]


def test_hand_built_batches_try_send_and_cluster_information(producer, cluster, topic):
    assert producer.partitions_for(topic) == {0}
    assert producer.partition_info(topic)[0].leader == 0
    batch = producer.create_batch()
    batch.append(key=None, value=b"1")
    batch.append(key=None, value=b"2")

    assert producer.send_batch(batch, topic, partition=0).result(TIMEOUT).offset == 0
    assert producer.try_send(topic, b"3").result(TIMEOUT).offset == 2

    assert producer.metrics().records_acked == 3
    assert cluster.values(topic) == [b"1", b"2", b"3"]


def test_producers_accept_settings_from_every_source(cluster, topic, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={cluster.servers}\n")
    environment = {"AIOPRODUCER_BOOTSTRAP_SERVERS": cluster.servers}

    for producer in (
        Producer.from_config({"bootstrap.servers": cluster.servers}, linger_ms=0),
        Producer.from_env(environ=environment, linger_ms=0),
        Producer.from_properties(file, linger_ms=0),
    ):
        assert producer.config.linger == 0
        with producer:
            producer.send_and_wait(topic, b"v")
    assert len(cluster.values(topic)) == 3


# -------------------------------------------------------------------------------------------------- back-pressure


@pytest.mark.promise(
    "Blocking producer",
    "the blocking `send` waits while the buffer is full, and a record that is rejected later is reported",
)
def test_send_waits_while_the_buffer_is_full_and_continues_in_order(make, cluster, topic):
    producer = make(**FOUR_RECORDS_FILL_IT)
    producer.send_and_wait(topic, b"known")
    cluster.freeze()
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            sending = pool.submit(lambda: [producer.send(topic, b"%0900d" % number) for number in range(50)])
            until(lambda: producer.metrics().buffer_waiters)
            assert not sending.done()
            cluster.thaw()
            offsets = [delivery.result(TIMEOUT).offset for delivery in sending.result(TIMEOUT)]
    finally:
        cluster.thaw()

    assert offsets == list(range(1, 51))
    assert [int(value) for value in cluster.values(topic)[1:]] == list(range(50))


@pytest.mark.promise(
    "Blocking producer",
    "a burst of records costs one wake-up of the loop, and a thread's records stay in order",
)
def test_a_record_that_waits_in_send_does_not_overtake_queued_ones(make, cluster, topic):
    producer = make(**FOUR_RECORDS_FILL_IT)
    producer.send(topic, b"%0900d" % 0).result(TIMEOUT)
    producer._most = 1000
    cluster.freeze()
    try:
        with Held(producer):
            for number in range(1, 20):
                producer.send(topic, b"%0900d" % number)
        until(lambda: producer._sends.lanes)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            sending = pool.submit(producer.send, topic, b"%0900d" % 20)
            until(lambda: any(isinstance(entry, asyncio.Future) for entry in producer._sends.lanes[topic]))
            cluster.thaw()
            assert sending.result(TIMEOUT).result(TIMEOUT).offset == 20
    finally:
        cluster.thaw()

    assert [int(value) for value in cluster.values(topic)] == list(range(21))


@pytest.mark.promise(
    "Blocking producer",
    "the blocking `send` waits while the buffer is full, and a record that is rejected later is reported",
)
def test_a_buffer_that_stays_full_fails_send_and_the_records_queued_behind_it(make, cluster, topic, caplog):
    producer = make(**FOUR_RECORDS_FILL_IT, max_block_ms=1_500_000 * MS)
    producer.send(topic, b"known").result(TIMEOUT)
    producer._most = 1000
    cluster.freeze()
    try:
        with Held(producer):
            queued = [producer.send(topic, bytes(LARGE)) for _ in range(20)]
        began = time.monotonic()
        until(lambda: producer._sends.lanes)
        with pytest.raises(BufferTimeoutError):
            producer.send(topic, bytes(LARGE))

        assert queued[-1].exception(TIMEOUT)
        errors = [delivery.exception() for delivery in queued if delivery.done()]
        # 16 records that each wait for 1.5 s take 24 s.
        assert time.monotonic() - began < 8000 * MS, "each record waited separately"
        assert {type(error) for error in errors} == {BufferTimeoutError, BufferFullError}
        assert {error.outcome for error in errors} == {Outcome.NOT_PERSISTED}
        with pytest.raises((BufferTimeoutError, BufferFullError)):
            queued[-1].result()
    finally:
        cluster.thaw()
    in_buffer = [delivery for delivery in queued if not delivery.done() or delivery.exception() is None]
    assert [delivery.result(TIMEOUT).offset for delivery in in_buffer] == list(range(1, len(in_buffer) + 1))
    assert producer.close(TIMEOUT).failed == len(queued) - len(in_buffer)


@pytest.mark.promise(
    "Blocking producer",
    "the blocking `send` waits while the buffer is full, and a record that is rejected later is reported",
)
def test_a_rejected_record_with_an_unretrieved_error_is_logged_and_reported(make, cluster, topic, caplog):
    producer = make(**FOUR_RECORDS_FILL_IT, max_block_ms=1_500_000 * MS)
    producer.send(topic, b"known").result(TIMEOUT)
    producer._most = 1000
    cluster.freeze()
    try:
        with Held(producer):
            for _ in range(20):
                last = producer.send(topic, bytes(LARGE))
        until(last.done)
    finally:
        cluster.thaw()
    del last

    report = producer.close(TIMEOUT)

    assert report.failed == sum(report.unretrieved.values()) > 0
    assert {key[0] for key in report.unretrieved} == {topic}
    assert caplog.text.count("no caller has looked at the result") == len(report.unretrieved)


@pytest.mark.promise(
    "Public API",
    "the end of `async with` waits up to `close_timeout_ms`, and reports the records that it abandons",
)
def test_the_end_of_with_waits_for_close_timeout_ms(cluster, topic, caplog):
    with Producer(cluster.servers, **QUICK, close_timeout_ms=100) as producer:
        producer.send(topic, b"known").result(TIMEOUT)
        cluster.freeze()
        lost = producer.send(topic, b"lost")
        began = time.monotonic()

    try:
        assert 0.1 <= time.monotonic() - began < 3000 * MS
        assert isinstance(lost.exception(), DeliveryError)
        given_up = rf"stopped waiting before 1 record was acknowledged, after (\S+) s: 1 for topic {re.escape(topic)}\."
        said = re.search(given_up, caplog.text)
        assert said is not None
        assert 0.1 <= float(said[1]) < 3
    finally:
        cluster.thaw()


def test_a_waiting_topic_does_not_delay_other_topics(producer, cluster, topic):
    cluster.cluster.auto_create = False
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            before = metadata_count(cluster.cluster)
            waiting = pool.submit(producer.send, f"{topic}-nowhere", b"v")
            until(lambda: metadata_count(cluster.cluster) > before)
            assert producer.send(topic, b"v").result(TIMEOUT).offset == 0
            producer.close(timeout=0)
            with pytest.raises(ProducerClosed):
                waiting.result(TIMEOUT)
    finally:
        cluster.cluster.auto_create = True


# --------------------------------------------------------------------------------------------------------- errors


@pytest.mark.promise(
    "Blocking producer", "the blocking producer has the calls, parameters and errors of the asyncio producer"
)
@pytest.mark.parametrize(
    ("call", "error_type"),
    [
        (lambda p, t: p.send("no topic!", b"v"), InvalidTopicError),
        (lambda p, t: p.send(7, b"v"), InvalidTopicError),
        (lambda p, t: p.send(t, "text"), InvalidRecordError),
        (lambda p, t: p.send(t, b"v", "text"), InvalidRecordError),
        (lambda p, t: p.send(t, b"v", partition="0"), InvalidRecordError),
        (lambda p, t: p.send(t, b"v", partition=7), UnknownPartitionError),
        (lambda p, t: p.send(t, b"v", headers=[("h", "text")]), InvalidRecordError),
        (lambda p, t: p.send(t, b"v", timestamp_ms=-1), InvalidRecordError),
        (lambda p, t: p.send(t, b"v", timeout="soon"), InvalidRecordError),
        (lambda p, t: p.send(t, bytes(2_000_000)), RecordTooLargeError),
        (lambda p, t: p.send_and_wait(t, "text"), InvalidRecordError),
        (lambda p, t: p.try_send(t, "text"), InvalidRecordError),
        (lambda p, t: p.try_send(t, b"v", timeout=-1), InvalidRecordError),
        (lambda p, t: p.flush(timeout="soon"), InvalidArgumentError),
        (lambda p, t: p.close(timeout="soon"), InvalidArgumentError),
        (lambda p, t: p.partitions_for(""), InvalidTopicError),
        (lambda p, t: p.commit_transaction(), IllegalStateError),
        (lambda p, t: p.start(), IllegalStateError),
    ],
)
def test_errors_are_those_of_the_asyncio_producer_and_are_raised_by_the_call(make, topic, call, error_type):
    producer = make(max_block_ms=2_000_000 * MS)
    producer.send(topic, b"known").result(TIMEOUT)

    with pytest.raises(error_type) as caught:
        call(producer, topic)

    assert type(caught.value) is error_type
    assert producer.send(topic, b"goes on").result(TIMEOUT).offset == 1


@pytest.mark.promise(
    "Blocking producer", "the blocking producer has the calls, parameters and errors of the asyncio producer"
)
def test_a_traceback_includes_the_asyncio_producer(producer, topic):
    with pytest.raises(InvalidRecordError) as caught:
        producer.send_and_wait(topic, b"v", partition=-1)

    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[0] == __file__
    assert any(name.endswith("aioproducer/producer.py") for name in files)


def test_a_failed_record_reports_its_outcome(make, cluster, topic):
    producer = make(request_timeout_ms=50_000 * MS, delivery_timeout_ms=100_000 * MS)
    producer.send(topic, b"known").result(TIMEOUT)
    cluster.freeze()
    try:
        delivery = producer.send(topic, b"v")
        with pytest.raises(DeliveryTimeoutError) as caught:
            delivery.result(TIMEOUT)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert type(delivery.exception()) is DeliveryTimeoutError
    finally:
        cluster.thaw()
    assert producer.close(0).unknown == 1


def test_calls_before_start_and_after_close_are_refused(cluster, topic):
    producer = Producer(cluster.servers, **QUICK)
    for call in (lambda: producer.send(topic, b"v"), producer.flush, producer.ping):
        with pytest.raises(ProducerNotStartedError):
            call()
    assert producer.metrics().state == producer.health().state == producer.describe().state == "new"

    with producer:
        delivery = producer.send(topic, b"v")
    report = producer.close()

    assert (report.delivered, report) == (1, producer.stop())
    assert delivery.result().offset == 0
    assert producer.metrics().records_acked == 1
    assert producer.describe().state == "closed"
    for call in (lambda: producer.send(topic, b"v"), producer.flush, lambda: producer.partitions_for(topic)):
        with pytest.raises(ProducerClosed):
            call()
    with pytest.raises(IllegalStateError):
        producer.start()


def test_it_reports_its_state_and_metrics(producer, topic):
    producer.send_and_wait(topic, b"v")

    assert producer.ping().node.node_id >= 0
    assert producer.health().ok
    assert producer.describe().counters["records_acked"] == producer.metrics().records_acked == 1


def test_it_starts_without_waiting_for_a_cluster(topic):
    producer = Producer("127.0.0.1:1", max_block_ms=200 * MS)
    producer.start(wait=False)
    assert not producer.health().ok
    with pytest.raises(aioproducer.MetadataTimeoutError):
        producer.send(topic, b"v")
    producer.close()
    assert not left_behind()


def test_a_producer_that_was_never_started_closes_without_a_thread():
    producer = Producer()

    assert producer.close().delivered == 0
    assert not left_behind()


def test_an_unreachable_cluster_fails_start_and_leaves_nothing_behind():
    producer = Producer("127.0.0.1:1", max_block_ms=100_000 * MS)

    with pytest.raises(aioproducer.KafkaTimeoutError):
        producer.start()

    assert not left_behind()
    with pytest.raises(ProducerClosed):
        producer.send("t", b"v")


def test_a_refused_setting_raises_the_error_of_the_asyncio_producer():
    with pytest.raises(aioproducer.ConfigError, match="linger_ms"):
        Producer(lingers_ms=5)


# ----------------------------------------------------------------------------------------------------- deliveries


def test_a_delivery_without_a_result_times_out_and_stays_pending(producer, cluster, topic):
    producer.send(topic, b"known").result(TIMEOUT)
    cluster.freeze()
    try:
        delivery = producer.send(topic, b"v")
        with pytest.raises(TimeoutError):
            delivery.result(timeout=20 * MS)
        with pytest.raises(TimeoutError):
            delivery.exception(timeout=0)
        with pytest.raises(TimeoutError):
            producer.flush(timeout=20 * MS)
        assert delivery.running()
        assert not delivery.done()
    finally:
        cluster.thaw()
    assert delivery.result(TIMEOUT).offset == 1


@pytest.mark.parametrize("is_queued", [True, False])
def test_cancelling_a_delivery_detaches_the_waiter_and_the_record_is_sent(
    producer, cluster, topic, is_queued
):
    producer.send(topic, b"known").result(TIMEOUT)
    called = threading.Event()
    cluster.freeze()
    try:
        if is_queued:
            held = Held(producer)
            with held, concurrent.futures.ThreadPoolExecutor(1) as pool:
                delivery = producer.send(topic, b"v")
                delivery.add_done_callback(lambda _: called.set())
                cancelling = pool.submit(delivery.cancel)
                held._go_on.set()
                assert cancelling.result(TIMEOUT)
        else:
            delivery = producer.send(topic, bytearray(b"v"))
            delivery.add_done_callback(lambda _: called.set())
            assert delivery.cancel()
    finally:
        cluster.thaw()

    assert called.wait(TIMEOUT)
    assert delivery.cancelled()
    assert delivery.done()
    with pytest.raises(concurrent.futures.CancelledError):
        delivery.result()
    assert not delivery.cancel()
    producer.flush(TIMEOUT)
    assert cluster.values(topic) == [b"known", b"v"]


def test_callbacks_are_called_once_and_a_failing_one_is_logged(producer, topic, caplog):
    producer.send(topic, b"known").result(TIMEOUT)
    called = []
    both = threading.Barrier(2)
    with Held(producer):
        delivery = producer.send(topic, b"v")
        delivery.add_done_callback(called.append)
        delivery.add_done_callback(lambda _: 1 / 0)
        delivery.add_done_callback(lambda _: both.wait(TIMEOUT))
    both.wait(TIMEOUT)

    delivery.add_done_callback(called.append)  # called immediately
    delivery.add_done_callback(lambda _: 1 / 0)

    assert called == [delivery, delivery]
    assert caplog.text.count("ZeroDivisionError") == 2
    lines = [line for line in log_lines(caplog) if line.startswith("a callback of <Delivery")]
    assert len(lines) == 2, "each names the client id"


# -------------------------------------------------------------------------------------------------- where it may run


@pytest.mark.promise(
    "Blocking producer", "blocking calls are rejected where they would stop an event loop, and after a fork"
)
async def test_a_call_in_a_thread_with_a_running_loop_is_refused(module_cluster, topic):
    module_cluster.topic(topic, 1)
    producer = Producer(module_cluster.servers)
    with pytest.raises(WrongLoopError, match=r"aioproducer\.Producer"):
        producer.start()

    await asyncio.to_thread(producer.start)
    try:
        delivery = await asyncio.to_thread(producer.send, topic, b"v")
        for call in (
            lambda: producer.send(topic, b"v"),
            lambda: producer.flush(),
            lambda: producer.close(),
        ):
            with pytest.raises(WrongLoopError):
                call()
        assert (await asyncio.to_thread(delivery.result, TIMEOUT)).offset == 0
        # These wait for nothing, so an async route can call them.
        await asyncio.to_thread(producer.flush)
        assert producer.health().ok
        assert producer.metrics().records_acked == producer.metrics(window=60).records_acked == 1
        assert producer.describe().state == "running"
    finally:
        await asyncio.to_thread(producer.close)
    assert not left_behind()


@pytest.mark.promise(
    "Blocking producer", "blocking calls are rejected where they would stop an event loop, and after a fork"
)
def test_a_call_from_a_callback_is_refused_instead_of_waiting_for_itself(producer, topic):
    errors = []
    ended = threading.Event()

    def callback(delivery):
        try:
            producer.flush()
        except Exception as error:
            errors.append(error)
        ended.set()

    producer.send(topic, b"v").add_done_callback(callback)

    assert ended.wait(TIMEOUT)
    assert [type(error) for error in errors] in ([WrongLoopError], [])  # [] if it was already done


async def test_the_cells_of_a_notebook_may_block_its_loop(module_cluster, topic, monkeypatch):
    kernel = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    module_cluster.topic(topic, 1)

    with Producer(module_cluster.servers) as producer:
        assert producer.send(topic, b"v").result(TIMEOUT).offset == 0


# ------------------------------------------------------------------------------------------------- the loop thread


def test_all_producers_share_a_thread_which_ends_with_the_last_of_them(make, topic):
    assert not left_behind()
    first, second = make(), make()
    thread = first._sends.own_thread()

    assert second._sends.own_thread() is thread
    assert len([other for other in left_behind() if other.name == "aioproducer-blocking"]) == 1
    first.close()
    assert second.send(topic, b"v").result(TIMEOUT)
    second.close()
    assert not thread.is_alive
    assert thread.loop.is_closed()
    assert make()._sends.own_thread() is not thread


def test_several_threads_may_close_and_have_the_same_report(producer, topic):
    producer.send(topic, b"v")

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: producer.close(), range(8)))

    assert {report.delivered for report in reports} == {1}
    assert not left_behind()


def test_sends_that_race_with_close_are_delivered_or_fail(make, cluster, topic):
    producer, done = make(), []
    producer.send(topic, b"known").result(TIMEOUT)

    def send():
        try:
            while True:
                done.append(producer.send(topic, b"v"))
        except ProducerClosed:
            pass

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(done) > 500)
    producer.close()
    for thread in threads:
        thread.join(TIMEOUT)

    errors = [delivery.exception(TIMEOUT) for delivery in done]
    assert {type(error) for error in errors} <= {type(None), ProducerClosed}
    assert errors.count(None) + 1 == len(cluster.values(topic))


@pytest.mark.skipif(uvloop is None, reason="uvloop is not installed")
def test_the_callers_loop_factory_creates_the_loop(cluster, topic):
    blocking.set_loop_factory(uvloop.new_event_loop)
    try:
        with Producer(cluster.servers, **QUICK) as producer:
            assert isinstance(producer._sends.own_thread().loop, uvloop.Loop)
            assert [producer.send(topic, b"v").result(TIMEOUT).offset for _ in range(50)] == list(range(50))
            blocking.set_loop_factory(uvloop.new_event_loop)
            with pytest.raises(IllegalStateError, match="set_loop_factory"):
                blocking.set_loop_factory(None)
    finally:
        blocking.set_loop_factory(None)


def test_a_loop_factory_that_fails_fails_start(cluster):
    blocking.set_loop_factory(lambda: 1 / 0)
    try:
        with pytest.raises(ZeroDivisionError):
            Producer(cluster.servers).start()
    finally:
        blocking.set_loop_factory(None)


# --------------------------------------------------------------------------------------------------- transactions


@pytest.fixture
def transactional(make, topic):
    return make(transactional_id=topic)


def committed(cluster, topic):
    """The values in the log that read_committed consumers see, in order."""
    return [record.value for record in cluster.call(lambda: cluster.cluster.records(topic, committed=True))]


def test_a_transaction_is_committed_at_the_end_of_its_block(transactional, cluster, topic):
    with transactional.transaction() as transaction:
        deliveries = [transactional.send(topic, b"%d" % number) for number in range(300)]
        transaction.send_offsets({TopicPartition(topic, 0): OffsetAndMetadata(17)}, f"group-{topic}")

    assert all(delivery.done() for delivery in deliveries)
    assert committed(cluster, topic) == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("error_type", [ValueError, KeyboardInterrupt])
def test_a_transaction_is_aborted_when_an_exception_leaves_it(transactional, cluster, topic, error_type):
    deliveries = []

    def interrupted():
        with transactional.transaction():
            deliveries.append(transactional.send(topic, b"v"))
            deliveries.append(transactional.send(topic, b"w"))
            raise error_type

    with pytest.raises(error_type):
        interrupted()

    assert all(isinstance(one.exception(TIMEOUT), TransactionAbortedError | None) for one in deliveries)
    assert committed(cluster, topic) == []
    with transactional.transaction():
        transactional.send(topic, b"next")
    assert committed(cluster, topic) == [b"next"]


@pytest.mark.promise(
    "Transactions",
    "a record that was rejected without an exception makes the commit impossible: a row of `send_many`, a "
    "record that was queued without await",
)
def test_a_block_with_unnoticed_rejected_records_is_aborted_with_an_error(make, cluster, topic):
    producer = make(transactional_id=topic, **FOUR_RECORDS_FILL_IT, max_block_ms=1_500_000 * MS)
    deliveries = []
    try:
        with pytest.raises(TransactionAbortableError, match="buffer"):  # noqa: PT012  # the whole block is what is tested
            with producer.transaction():
                producer.send(topic, b"known").result(TIMEOUT)
                producer._most = 1000
                cluster.freeze()
                with Held(producer):
                    deliveries = [producer.send(topic, bytes(LARGE)) for _ in range(20)]
                until(deliveries[-1].done)
                cluster.thaw()
    finally:
        cluster.thaw()

    assert isinstance(deliveries[-1].exception(TIMEOUT), KafkaError)
    with producer.transaction():
        producer.send(topic, b"next")
    assert committed(cluster, topic) == [b"next"]


@pytest.mark.promise(
    "Blocking producer", "Ctrl-C interrupts a call at once, aborts a transaction, and never stops the loop"
)
def test_a_block_that_is_interrupted_while_its_records_wait_for_room_is_aborted(make, cluster, topic):
    producer = make(transactional_id=topic, **FOUR_RECORDS_FILL_IT)

    def interrupt():
        until(
            lambda: any(
                isinstance(entry, asyncio.Future) for lane in producer._sends.lanes.values() for entry in lane
            )
        )
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the whole block is what is tested
            with producer.transaction():
                producer.send(topic, b"known").result(TIMEOUT)
                producer._most = 1000
                cluster.freeze()
                with Held(producer):
                    for _ in range(20):
                        producer.send(topic, bytes(LARGE))
                interrupting.start()
    finally:
        interrupting.join()
        cluster.thaw()

    until(lambda: producer._inner._transaction.state is TransactionState.READY)
    with producer.transaction():
        producer.send(topic, b"next")
    assert committed(cluster, topic) == [b"next"]


@pytest.mark.promise(
    "Blocking producer", "Ctrl-C interrupts a call at once, aborts a transaction, and never stops the loop"
)
def test_a_block_interrupted_before_its_exit_begins_still_ends(transactional, cluster, topic):
    sends = transactional._sends

    def interrupt():
        until(lambda: any(not isinstance(entry, tuple) for entry in list(sends._queue)))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupting, held = threading.Thread(target=interrupt), Held(transactional)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the whole block is what is tested
        with transactional.transaction():
            transactional.send(topic, b"v").result(TIMEOUT)
            held.__enter__()
            interrupting.start()
    interrupting.join()
    held.__exit__()

    until(lambda: transactional._inner._transaction.state is TransactionState.READY)
    with transactional.transaction():
        transactional.send(topic, b"next")
    assert committed(cluster, topic) == [b"v", b"next"]  # a commit is not interrupted


def test_explicit_transaction_calls_reject_records_outside_of_a_transaction(transactional, cluster, topic):
    transactional.begin_transaction()
    transactional.send(topic, b"1")
    transactional.commit_transaction()
    with pytest.raises(IllegalStateError):
        transactional.send(topic, b"outside")
    transactional.begin_transaction()
    transactional.send(topic, b"2")
    transactional.abort_transaction()
    transactional.begin_transaction()
    transactional.send(topic, b"3")
    transactional.fence_transaction()
    transactional.init_transactions()

    assert committed(cluster, topic) == [b"1"]


def test_a_transaction_is_handed_to_another_producer(transactional, cluster, topic):
    with transactional.transaction() as transaction:
        handle = transaction.export([TopicPartition(topic, 0)])
        with Producer.attach(handle, partitions=[(topic, 0)], bootstrap_servers=cluster.servers) as other:
            other.send(topic, b"1", partition=0)
            other.send(topic, b"2", partition=0)
            with pytest.raises(InvalidRecordError):
                other.send(topic, b"3")

    assert committed(cluster, topic) == [b"1", b"2"]


def test_logging_is_quiet(caplog, cluster, topic):
    with caplog.at_level(logging.WARNING), Producer(cluster.servers) as producer:
        producer.send(topic, b"v")

    assert caplog.text == ""


def interrupted_at(step, wait):
    """Call `wait()` and raise KeyboardInterrupt before its n-th Python instruction. Returns False if it ends before."""
    left = step

    def trace(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    # Python 3.12 reports instructions only to a tracer that is set after they were requested.
    sys._getframe().f_trace_opcodes = True
    gc.disable()  # a finalizer that runs meanwhile would be interrupted, and can't raise
    sys.settrace(trace)
    try:
        wait()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return False


def in_a_thread_of_its_own(test):
    """Run a test that uses `interrupted_at` in a separate thread.

    If another exception is raised at the very end of a handler, CPython does not reset the exception that is
    being handled: every exception that this thread raises afterwards has it as context."""

    @functools.wraps(test)
    def run(**fixtures):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            threads.submit(test, **fixtures).result()

    return run


@pytest.mark.promise(
    "Blocking producer", "Ctrl-C interrupts a call at once, aborts a transaction, and never stops the loop"
)
@in_a_thread_of_its_own
def test_a_ctrl_c_anywhere_in_a_wait_never_stops_the_loop():
    """A threading.Event would stay locked, and the loop thread would wait for that lock in `set`."""
    steps = 0
    while True:
        steps += 1
        flag = Flag()
        was_interrupted = interrupted_at(steps, lambda flag=flag: flag.wait(0.0001))
        setting = threading.Thread(target=flag.set, daemon=True)
        setting.start()
        setting.join(TIMEOUT)
        assert not setting.is_alive(), f"set() hangs after {steps} instructions"
        assert flag.wait(TIMEOUT)
        if not was_interrupted:
            break
    assert steps > 10, "it was never interrupted"


@in_a_thread_of_its_own
def test_a_ctrl_c_anywhere_in_the_wait_for_a_delivery_does_not_lose_the_thread(
    make, cluster, topic, monkeypatch
):
    """Before Python 3.13 an interrupted Thread.is_alive marks a running thread as ended, so it is never joined."""
    monkeypatch.setattr("aioproducer.blocking.loop_thread.SLICE", 0.0001)
    producer = make(delivery_timeout_ms=60_000, request_timeout_ms=30_000)
    producer.send_and_wait(topic, b"known")
    cluster.freeze()
    delivery = producer.send(topic, b"not answered")

    def wait():
        try:
            delivery.result(timeout=0.0002)
        except TimeoutError:
            return

    wait()  # creates the objects that are created only once
    steps = 1
    while interrupted_at(steps, wait):
        assert all(thread.is_alive() for thread in left_behind()), f"ended after {steps} instructions?"
        steps += 1
    assert steps > 50, "it was never interrupted"
    cluster.thaw()
    assert delivery.result(TIMEOUT).offset == 1


def test_many_records_in_one_call(producer, cluster, topic):
    producer.send(topic, b"0").result(TIMEOUT)
    before = producer.send(topic, b"1")
    receipt = producer.send_many(topic, [b"2", "text", b"4"], keys=[b"a", b"b", b"c"])
    after = producer.send(topic, b"5")

    assert len(receipt) == 3
    assert receipt.wait(TIMEOUT) is receipt
    with pytest.raises(SendManyError, match="1 of 3 rows"):
        receipt.result(TIMEOUT)
    assert receipt.done()
    assert repr(receipt) == f"<blocking <Receipt {topic}: 3 rows, done>>"
    assert receipt.errors.keys() == {1}
    assert receipt.offsets == {0: [range(2, 4)]}
    assert receipt.partition(0) == 0
    assert receipt.delivery(2).result(TIMEOUT).offset == 3
    assert [before.result(TIMEOUT).offset, after.result(TIMEOUT).offset] == [1, 4]
    assert producer.send_many(topic, [b"6"]).result(TIMEOUT).offsets == {0: [range(5, 6)]}


def test_waiting_for_a_receipt_times_out(make, cluster, topic):
    producer = make()
    producer.send(topic, b"known").result(TIMEOUT)
    cluster.freeze()
    receipt = producer.send_many(topic, [b"v"])
    with pytest.raises(TimeoutError):
        receipt.result(20 * MS)
    cluster.thaw()
    assert receipt.result(TIMEOUT).offsets == {0: [range(1, 2)]}


@pytest.mark.skipif(sys.platform != "linux", reason="threads are niced on Linux alone")
def test_compression_threads_have_the_priority_of_all_other_threads(make, cluster, topic):
    producer = make(compression_type="gzip")

    producer.send(topic, b"v" * 900_000).result(TIMEOUT)

    compressing = [thread for thread in threading.enumerate() if "compress" in thread.name]
    assert compressing
    for thread in compressing:
        assert os.getpriority(os.PRIO_PROCESS, thread.native_id) == os.getpriority(os.PRIO_PROCESS, 0)
