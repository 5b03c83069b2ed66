"""The events that end batches without an answer, and the texts of the errors."""

from __future__ import annotations

import asyncio
import gc
import time
from types import SimpleNamespace

import pytest

from aioproducer import DeliveryTimeoutError, Outcome
from aioproducer.errors import ProducerClosed, RequestTimedOutError, TransactionAbortedError
from aioproducer.network.request_stream import LATE_TIMER
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records._record_path import Gate
from aioproducer.records.batch import NAMED
from aioproducer.records.idempotence import Idempotence, ProducerIdentity
from aioproducer.sending.giving_up import GivingUp
from aioproducer.sending.produce_results import ProduceResults
from aioproducer.testing import EmbeddedCluster
from aioproducer.transactions.state import Transaction
from tests.conftest import MS, in_virtual_time
from tests.support.accumulator_bench import Bench
from tests.support.producing import (
    INIT_PRODUCER_ID,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    error_of,
    numbers,
    offsets,
    producing,
    quick_producer,
    results,
    send_numbers,
    until,
    values,
    within,
)


@pytest.mark.promise(
    "Accumulator, sender, connections", "every record has a delivery timeout, with an honest outcome"
)
@pytest.mark.promise("KIPs", "KIP-91: one delivery timeout")
@in_virtual_time
async def test_a_delivery_timeout_of_unsent_records_is_not_persisted():
    settings = {"request_timeout_ms": 20_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(brokers=2, topics={}, **settings) as (cluster, producer):
        cluster.create_topic("t", 1, replication_factor=1)
        await producer.partitions_for("t")
        await cluster.stop_broker(cluster.leader("t", 0))
        await asyncio.sleep(20 * MS)  # until the producer has noticed that its connection ended

        error = await error_of(producer.send_and_wait("t", b"v"), 1)

        assert isinstance(error, DeliveryTimeoutError)
        assert isinstance(error, TimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert (error.topic, error.partition, error.broker, error.attempts) == ("t", 0, None, 0)
        assert 0.099 * 1000 * MS <= error.elapsed < 0.5 * 1000 * MS
        assert values(cluster) == []
        assert producer.metrics().records_failed == 1


@pytest.mark.promise(
    "Accumulator, sender, connections", "every record has a delivery timeout, with an honest outcome"
)
@in_virtual_time
async def test_a_delivery_timeout_of_sent_records_is_unknown():
    settings = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)

        error = await error_of(producer.send_and_wait("t", b"1"), 1)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.UNKNOWN
        assert (error.topic, error.partition, error.broker) == ("t", 0, 0)
        assert error.attempts >= 1
        assert isinstance(error.last_error, RequestTimedOutError)
        assert error.elapsed >= 0.099 * 1000 * MS
        assert producer.metrics().records_unknown == 1
        cluster.thaw_broker(0)


@in_virtual_time
async def test_a_batch_that_expires_in_flight_does_not_make_later_ones_fail():
    """The first records expire; later ones are delivered as soon as the broker answers again."""
    settings = {"request_timeout_ms": 90_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        lost = cluster.faults.add(PRODUCE, drop_before=True, count=1000)
        early = await send_numbers(producer, range(1, 6))
        errors = await results(early)
        assert {error.outcome for error in errors} == {Outcome.UNKNOWN}
        lost.count = 0

        deliveries = await send_numbers(producer, range(6, 12))

        assert await offsets(deliveries) == list(range(1, 7))
        assert numbers(cluster) == [0, *range(6, 12)]


@in_virtual_time
async def test_later_records_do_not_reuse_the_number_of_an_expired_record():
    settings = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 100_000 * MS}
    async with producing(**ONE_BATCH_PER_RECORD, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        lost = cluster.faults.add(PRODUCE, drop_after_append=True, count=1000)
        error = await error_of(producer.send_and_wait("t", b"1"), 1)
        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.UNKNOWN
        assert numbers(cluster) == [0, 1]
        lost.count = 0

        assert (await within(1, producer.send_and_wait("t", b"2"))).offset == 2
        assert numbers(cluster) == [0, 1, 2]


async def test_a_blocked_loop_does_not_expire_batches_that_were_answered_in_time():
    settings = {"request_timeout_ms": 100, "delivery_timeout_ms": 120}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        delivery = await producer.send("t", b"1")
        await until(lambda: numbers(cluster) == [0, 1] or delivery.done())
        if not delivery.done():
            time.sleep(0.4)  # noqa: ASYNC251  # the answer is in the socket, or about to be

        assert (await within(1, delivery)).offset == 1


# ------------------------------------------------------------------------------------------ why nothing was sent

SHORT = {"request_timeout_ms": 40_000 * MS, "delivery_timeout_ms": 100_000 * MS}


@in_virtual_time
async def test_an_error_names_the_partition_without_a_leader():
    async with producing(brokers=2, topics={}, **SHORT) as (cluster, producer):
        cluster.create_topic("t", 1, replication_factor=1)
        await producer.partitions_for("t")
        await cluster.stop_broker(cluster.leader("t", 0))
        await asyncio.sleep(20 * MS)  # until the producer has noticed that its connection ended

        error = await error_of(producer.send_and_wait("t", b"v"), 1)

        assert error.outcome is Outcome.NOT_PERSISTED
        assert "the partition had no leader; nothing was sent" in str(error)


@in_virtual_time
async def test_an_error_says_that_no_broker_returned_a_producer_id():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.faults.add(INIT_PRODUCER_ID, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=10**6)
        async with quick_producer(cluster, **SHORT) as producer:
            error = await error_of(producer.send_and_wait("t", b"0"), 1)

    assert error.outcome is Outcome.NOT_PERSISTED
    assert "no broker returned a producer id (" in str(error)
    assert "COORDINATOR_LOAD_IN_PROGRESS" in str(error)


@in_virtual_time
async def test_an_error_says_that_the_cluster_cannot_be_reached():
    async with producing(**SHORT) as (cluster, producer):
        await producer.partitions_for("t")
        await cluster.stop_broker(0)
        await asyncio.sleep(20 * MS)  # until the producer has noticed that its connection ended

        error = await error_of(producer.send_and_wait("t", b"v"), 1)

        assert error.outcome is Outcome.NOT_PERSISTED
        assert "the cluster can't be reached (" in str(error)


# ------------------------------------------------------------------------------------------ late timers


@in_virtual_time
async def test_a_batch_in_flight_whose_deadline_is_noticed_late_gets_one_more_pass():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        held = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        [delivery] = await send_numbers(producer, [1])
        await within(1, held.reached())
        giving_up: GivingUp = producer._sender._giving_up
        [batch] = producer._accumulator._queues["t"][0].in_flight

        assert giving_up.expire_overdue(batch.deadline + 2 * LATE_TIMER), (
            "its answer may be unread in the socket"
        )
        assert not delivery.done()
        assert not giving_up.expire_overdue(batch.deadline + 2 * LATE_TIMER)
        assert delivery.exception().outcome is Outcome.UNKNOWN

        held.hold.set()


@in_virtual_time
async def test_a_batch_whose_deadline_is_noticed_in_time_fails_immediately():
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        held = cluster.faults.add(PRODUCE, hold=asyncio.Event())
        [delivery] = await send_numbers(producer, [1])
        await within(1, held.reached())
        [batch] = producer._accumulator._queues["t"][0].in_flight

        assert not producer._sender._giving_up.expire_overdue(batch.deadline)
        assert delivery.exception().outcome is Outcome.UNKNOWN

        held.hold.set()


# ------------------------------------------------------------------------------------------ without a sender

ONE_RECORD = {"linger_ms": 0, "delivery_timeout_ms": 100, "request_timeout_ms": 50}
PARTITIONS = (0, 0, 0, 0)
IDENTITY = ProducerIdentity(4711, 0)


class Stage:
    """A GivingUp with a real accumulator; the parts that it only queries are stubs."""

    def __init__(self, leaders=PARTITIONS, *, has_left=False, **settings):
        self.bench = bench = Bench(leaders, **{**ONE_RECORD, **settings})
        self.asked = []
        self.results = ProduceResults(
            bench.core, bench.accumulator, None, None, Idempotence(True), Transaction(None, Gate())
        )
        self.brokers = SimpleNamespace(last_error=lambda node_id: None)
        self.metadata = SimpleNamespace(last_error=None)
        self.producer_ids = SimpleNamespace(is_needed=False, last_error=None)
        numbering = SimpleNamespace(end_if_for_old_topic=lambda batch: self.asked.append(batch) or has_left)
        self.giving_up = GivingUp(
            bench.config,
            bench.accumulator,
            self.brokers,
            self.metadata,
            self.producer_ids,
            numbering,
            self.results,
        )

    def closed(self, partition):
        """Send a record, and close its batch."""
        delivery = self.bench.send(partition)
        self.bench.accumulator.close_first(delivery.batch.queue)
        return delivery

    def numbered(self, partition):
        delivery = self.closed(partition)
        delivery.batch.number(IDENTITY, 7)
        return delivery

    def in_flight(self, partition):
        delivery = self.numbered(partition)
        batch = delivery.batch
        self.bench.accumulator.take(batch.queue)
        batch.mark_sent(0)
        batch.queue.in_flight += (batch,)
        return delivery

    def each(self):
        """Send four records: in a batch that is open, one that is closed, one that is numbered, and one in flight."""
        return self.bench.send(0), self.closed(1), self.numbered(2), self.in_flight(3)

    def expire(self, delivery):
        return self.giving_up.expire_overdue(delivery.batch.deadline)


def is_forgotten(delivery):
    queue = delivery.batch.queue
    return not queue.batches and queue.tail is None


async def test_without_a_producer_id_only_batches_that_have_no_numbers_fail():
    stage = Stage()
    error = ProducerClosed("no id")
    opened, closed, numbered, in_flight = stage.each()

    stage.giving_up.fail_unnumbered(error)

    for delivery in (opened, closed):
        assert delivery.exception().outcome is Outcome.NOT_PERSISTED
        assert delivery.exception().last_error is error
        assert "no id" in str(delivery.exception())
        assert is_forgotten(delivery)
    assert not numbered.done()
    assert numbered.batch.queue.batches
    assert not in_flight.done()


async def test_without_a_producer_id_a_batch_in_flight_that_has_no_numbers_waits_for_its_answer():
    stage = Stage()
    delivery = stage.in_flight(0)
    delivery.batch.number(None, -1)

    stage.giving_up.fail_unnumbered(ProducerClosed("no id"))

    assert not delivery.done()


@pytest.mark.parametrize(
    ("why", "text"), [(ProducerClosed("the reason"), "the reason"), (None, "the transaction was aborted")]
)
async def test_an_aborted_transaction_fails_what_is_not_in_flight(why, text):
    stage = Stage()
    *waiting, in_flight = stage.each()

    stage.giving_up.abort_unsent(why)

    for delivery in waiting:
        assert type(delivery.exception()) is TransactionAbortedError
        assert text in str(delivery.exception())
        assert is_forgotten(delivery)
    assert not in_flight.done()


@pytest.mark.parametrize("why", [ProducerClosed("the reason"), None])
async def test_records_that_the_user_aborted_are_not_reported_as_unretrieved(why):
    stage = Stage()
    delivery = stage.closed(0)

    stage.giving_up.abort_unsent(why)
    del delivery
    gc.collect()

    counts = stage.bench.accumulator.unretrieved.counts
    assert counts == ({} if why is None else {("orders", "TransactionAbortedError"): 1})


async def test_at_the_end_everything_fails_and_what_is_in_flight_is_unknown():
    stage = Stage()
    *waiting, in_flight = stage.each()

    stage.giving_up.abort_all("the end")

    assert [delivery.exception().outcome for delivery in waiting] == [Outcome.NOT_PERSISTED] * 3
    assert in_flight.exception().outcome is Outcome.UNKNOWN
    assert all(map(is_forgotten, waiting))
    assert "the end" in str(in_flight.exception())


@pytest.mark.parametrize("is_closing", [True, False])
async def test_batches_that_fail_together_with_the_one_before_them_are_not_failed_again(is_closing):
    stage = Stage(enable_gapless_order=True)
    deliveries = [stage.closed(0) for _ in range(3)]

    if is_closing:
        stage.giving_up.abort_all("the end")
    else:
        stage.expire(deliveries[-1])

    assert all(delivery.exception().outcome is Outcome.NOT_PERSISTED for delivery in deliveries)


async def test_an_expired_batch_that_was_sent_reports_its_last_error_or_that_no_broker_answered():
    stage = Stage()
    silent, refused = stage.in_flight(0), stage.in_flight(1)
    refused.batch.last_error = ProducerClosed("not now")

    stage.expire(refused)

    assert "the last error was: ProducerClosed('not now')" in str(refused.exception())
    assert "no broker answered" in str(silent.exception())


async def test_an_expired_batch_that_was_not_sent_names_the_broker_that_could_not_accept_it():
    stage = Stage(leaders=(3, -1))
    stage.brokers.last_error = lambda node_id: ProducerClosed(f"error of {node_id}")
    sent_to_a_leader, without_a_leader = stage.closed(0), stage.closed(1)

    stage.expire(without_a_leader)

    assert "broker 3 could not accept the batch (error of 3); nothing was sent" in str(
        sent_to_a_leader.exception()
    )
    assert "the partition had no leader; nothing was sent" in str(without_a_leader.exception())


@pytest.mark.parametrize("is_endless", [True, False])
async def test_endless_retries_leave_a_batch_to_numbering_if_its_topic_was_re_created(is_endless):
    stage = Stage(has_left=True, enable_endless_retries=is_endless)
    delivery = stage.closed(0)

    stage.expire(delivery)

    assert delivery.done() is not is_endless
    assert stage.asked == ([delivery.batch] if is_endless else [])


async def test_endless_retries_give_a_batch_in_doubt_its_delivery_timeout_again():
    stage = Stage(enable_endless_retries=True)
    delivery, _ = stage.closed(0), stage.closed(1)
    batch = delivery.batch
    batch.doubt(NAMED)
    now = batch.deadline

    stage.giving_up.expire_overdue(now)

    assert not delivery.done()
    assert batch.deadline == now + stage.bench.config.delivery_timeout
    assert list(stage.bench.accumulator.incomplete)[-1] is batch, "its deadline is the last one"


async def test_endless_retries_expire_a_batch_that_was_never_sent():
    stage = Stage(has_left=False, enable_endless_retries=True)
    delivery = stage.closed(0)

    stage.expire(delivery)

    assert delivery.exception().outcome is Outcome.NOT_PERSISTED


async def test_only_batches_in_flight_get_one_more_pass_and_each_time_again():
    stage = Stage()
    waiting, first = stage.closed(0), stage.in_flight(1)
    late = first.batch.deadline + 2 * LATE_TIMER

    assert stage.giving_up.expire_overdue(late)
    assert waiting.exception().outcome is Outcome.NOT_PERSISTED
    assert not first.done()
    first.batch.succeed(0, -1, -1)
    stage.bench.accumulator.release(first.batch)
    assert not stage.giving_up.expire_overdue(late)

    second = stage.in_flight(2)
    assert stage.giving_up.expire_overdue(second.batch.deadline + 2 * LATE_TIMER), (
        "another batch, another pass"
    )
