"""enable_gapless_order and enable_endless_retries: off by default, and their effects."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import Delivery, DeliveryError, DeliveryTimeoutError, Outcome
from aioproducer.config import ProducerConfig
from aioproducer.errors import ConfigError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceResponse
from tests.conftest import MS, in_virtual_time
from tests.support.error_table.stage import altered
from tests.support.producing import (
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    error_of,
    numbers,
    offsets,
    producing,
    results,
    send_numbers,
    until,
    values,
    within,
)

GAPLESS = {"enable_gapless_order": True, **ONE_BATCH_PER_RECORD}
ENDLESS = {
    "enable_endless_retries": True,
    "request_timeout_ms": 40_000 * MS,
    "delivery_timeout_ms": 100_000 * MS,
    **ONE_BATCH_PER_RECORD,
}


def outcomes_of(found):
    return [getattr(end, "outcome", None) for end in found]


# ---------------------------------------------------------------------------------------------------- settings


def test_both_are_off_by_default():
    config = ProducerConfig.of(bootstrap_servers="localhost:1")

    assert (config.enable_gapless_order, config.enable_endless_retries) == (False, False)


@pytest.mark.parametrize("name", ["enable_gapless_order", "enable_endless_retries"])
@pytest.mark.parametrize("weaker", [{"acks": 1}, {"acks": 0}, {"enable_idempotence": False}], ids=str)
def test_both_need_idempotence(name, weaker):
    with pytest.raises(ConfigError, match=f"{name}=True requires enable_idempotence=True") as raised:
        ProducerConfig.of(**{name: True, **weaker})

    assert raised.value.setting == name
    assert ProducerConfig.of(**{name: False, **weaker}).acks == weaker.get("acks", -1)


def test_endless_retries_cannot_be_combined_with_transactions():
    with pytest.raises(
        ConfigError, match="enable_endless_retries=True cannot be used with transactional_id=tx"
    ):
        ProducerConfig.of(enable_endless_retries=True, transactional_id="tx")
    assert ProducerConfig.of(enable_gapless_order=True, transactional_id="tx").enable_gapless_order


# ------------------------------------------------------------------------------------------------ gapless order


@pytest.mark.parametrize("in_flight", [1, 5])
async def test_in_gapless_order_a_failed_record_fails_the_later_ones(in_flight):
    settings = {**GAPLESS, "max_in_flight_requests_per_connection": in_flight}
    async with producing(topics={"t": 2}, **settings) as (cluster, producer):
        await offsets(await send_numbers(producer, [0, 1], partition=0))
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION, partition=0)

        deliveries = await send_numbers(producer, range(2, 12), partition=0)
        others = await send_numbers(producer, range(12), partition=1)
        found = await results(deliveries)

        assert "POLICY_VIOLATION" in str(found[0])
        assert set(outcomes_of(found)) == {Outcome.NOT_PERSISTED}
        assert all("an earlier record in the same partition has failed" in str(end) for end in found[1:])
        assert all(end.attempts == 0 for end in found[6:]), "they were never sent"
        assert await offsets(others) == list(range(12)), "other partitions continue"
        assert numbers(cluster, "t", 0) == [0, 1]
        assert (await producer.send_and_wait("t", b"12", partition=0)).offset == 2, "what is sent afterwards"


async def test_without_gapless_order_records_after_a_failed_one_are_delivered():
    async with producing(**ONE_BATCH_PER_RECORD) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION)

        found = await results(await send_numbers(producer, range(1, 8)))

        assert outcomes_of(found) == [Outcome.NOT_PERSISTED, *[None] * 6]
        assert numbers(cluster) == [0, *range(2, 8)]


@in_virtual_time
async def test_in_gapless_order_an_expired_record_leaves_no_gap_whatever_is_in_flight():
    settings = {"request_timeout_ms": 90_000 * MS, "delivery_timeout_ms": 100_000 * MS, **GAPLESS}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        lost = cluster.faults.add(PRODUCE, drop_before=True, count=1000)

        found = await results(await send_numbers(producer, range(1, 9)))

        assert isinstance(found[0], DeliveryTimeoutError)
        assert found[0].outcome is Outcome.UNKNOWN
        assert all(isinstance(end, DeliveryError) for end in found)
        lost.count = 0
        assert (await within(2, producer.send_and_wait("t", b"9"))).offset == 1
        assert numbers(cluster) == [0, 9]


@in_virtual_time
async def test_in_gapless_order_a_batch_behind_a_failed_one_that_is_in_the_log_is_delivered():
    """The outcome of the record before it is unknown, but that record is in the log, so there is no gap."""
    settings = {"request_timeout_ms": 190, "delivery_timeout_ms": 200, **GAPLESS}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, throttle_ms=150)
        await producer.send_and_wait("t", b"1")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        early = await producer.send("t", b"2")
        await within(1, held.reached())
        late = await producer.send("t", b"3")
        await until(lambda: producer.metrics().in_flight == 2)

        assert (await error_of(early)).outcome is Outcome.UNKNOWN
        release.set()

        assert (await within(1, late)).offset == 3
        assert numbers(cluster) == [0, 1, 2, 3]


async def test_in_gapless_order_valid_records_are_not_sent_without_the_rejected_one():
    def name_a_record(answer):
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    partition.record_errors = [ProduceResponse.BatchIndexAndErrorMessage(batch_index=1)]

    with altered(PRODUCE, name_a_record):
        async with producing(enable_gapless_order=True, linger_ms=30) as (cluster, producer):
            await producer.send_and_wait("t", b"0")
            cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)

            found = await results(await send_numbers(producer, range(1, 5)))

            assert outcomes_of(found) == [Outcome.NOT_PERSISTED] * 4
            assert numbers(cluster) == [0]


async def test_in_gapless_order_a_record_is_not_left_out_by_its_own_timeout():
    async with producing(enable_gapless_order=True, linger_ms=200) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        late = await producer.send("t", b"1", timeout=0.01)
        behind = await producer.send("t", b"2")

        error = await error_of(late)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.UNKNOWN
        assert (await behind).offset == 2
        assert numbers(cluster) == [0, 1, 2]


@pytest.mark.parametrize("call", ["send", "send_many"])
@pytest.mark.parametrize("compression_type", [None, "gzip"])
@in_virtual_time
async def test_in_gapless_order_records_that_timed_out_leave_nothing_behind_while_no_broker_answers(
    compression_type, call
):
    async with producing(enable_gapless_order=True, compression_type=compression_type) as (cluster, producer):
        await producer.partitions_for("t")
        await cluster.stop_broker(0)
        await until(lambda: producer._brokers.lost)
        for _ in range(2):
            if call == "send":
                late = [await producer.send("t", bytes(1000), timeout=1) for _ in range(300)]
                assert {type(error) for error in await results(late, 5)} == {DeliveryTimeoutError}
            else:
                await error_of(await producer.send_many("t", [bytes(1000)] * 300, timeout=1), 5)

        await within(1, producer.flush())

        snapshot = producer.metrics()
        assert (snapshot.buffer_available, snapshot.records_buffered) == (snapshot.buffer_total, 0)
        report = await within(1, producer.close())
        assert (report.delivered, report.failed, report.unknown) == (0, 600, 0)


@pytest.mark.parametrize("compression_type", [None, "gzip"])
@pytest.mark.parametrize("is_refused", [False, True])
@in_virtual_time
async def test_in_gapless_order_a_record_is_sent_though_one_before_it_timed_out(is_refused, compression_type):
    settings = {"linger_ms": 100, "compression_type": compression_type}
    async with producing(enable_gapless_order=True, **settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        late = await producer.send("t", b"1", timeout=0.01)
        in_its_batch: list[Delivery] = []
        late.add_done_callback(lambda _: in_its_batch.append(producer.try_send("t", b"2")))
        await error_of(late)
        if is_refused:
            cluster.faults.add(PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        after = await producer.send("t", bytes(300_000))

        assert (await within(5, in_its_batch[0])).offset == 2
        assert (await within(5, after)).offset == 3
        assert values(cluster)[:3] == [b"0", b"1", b"2"]


@in_virtual_time
async def test_in_gapless_order_a_record_that_comes_after_one_that_timed_out_alone_is_sent():
    async with producing(enable_gapless_order=True, linger_ms=100) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await error_of(await producer.send("t", b"1", timeout=0.01))
        await asyncio.sleep(0.05)

        deliveries = [await producer.send("t", b"2"), await producer.send("t", bytes(300_000))]

        assert [result.offset for result in await results(deliveries, 5)] == [1, 2]
        assert values(cluster)[:2] == [b"0", b"2"]


@in_virtual_time
async def test_in_gapless_order_thousands_fail_quickly_with_the_first_one():
    settings = {"request_timeout_ms": 50, "delivery_timeout_ms": 100, **GAPLESS}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        deliveries = await send_numbers(producer, range(1, 3000))

        found = await results(deliveries)

        assert isinstance(found[0], DeliveryTimeoutError)
        assert {type(end) for end in found} <= {DeliveryError, DeliveryTimeoutError}
        cluster.thaw_broker(0)


async def test_close_fails_a_batch_first_if_the_record_before_it_is_retried_endlessly():
    """When `early` fails and ends the batches behind it, `late` is still in flight, but has already failed."""
    settings = {**GAPLESS, "enable_endless_retries": True}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        early, late = await send_numbers(producer, [1, 2])
        await within(1, held.reached())
        await until(lambda: producer.metrics().in_flight == 2)
        # The same happens when its delivery timeout has passed.
        producer._accumulator.postpone(early.batch, early.batch.deadline + 1)

        report = await within(1, producer.close(timeout=0))

        assert outcomes_of(await results([early, late])) == [Outcome.UNKNOWN] * 2
        assert report.unknown == 2
        release.set()


# ----------------------------------------------------------------------------------------------- endless retries


@in_virtual_time
async def test_endless_retries_deliver_records_in_doubt_long_after_their_time():
    async with producing(**ENDLESS) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        lost = cluster.faults.add(PRODUCE, drop_after_append=True, count=10_000)
        deliveries = await send_numbers(producer, [1, 2, 3])
        await asyncio.sleep(350_000 * MS / 1000)
        assert not any(delivery.done() for delivery in deliveries)

        lost.count = 0

        assert await within(2, offsets(deliveries)) == [1, 2, 3]
        assert numbers(cluster) == [0, 1, 2, 3]
        assert producer.metrics().records_unknown == 0


@in_virtual_time
async def test_endless_retries_let_records_expire_that_are_not_in_doubt():
    async with producing(**ENDLESS) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=10_000)

        found = await results(await send_numbers(producer, [1, 2]))

        assert all(isinstance(end, DeliveryTimeoutError) for end in found)
        assert outcomes_of(found) == [Outcome.NOT_PERSISTED] * 2
        cluster.faults.clear()
        assert (await producer.send_and_wait("t", b"3")).offset == 1


@in_virtual_time
async def test_endless_retries_fail_a_batch_whose_late_answer_says_that_it_was_not_stored():
    settings = {**ENDLESS, "request_timeout_ms": 190, "delivery_timeout_ms": 200}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, throttle_ms=150)
        await producer.send_and_wait("t", b"1")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, hold=release)
        (delivery,) = await send_numbers(producer, [2])
        await within(1, held.reached())
        await until(lambda: asyncio.get_running_loop().time() > delivery.batch.created + 0.22)
        assert not delivery.done()

        release.set()
        error = await error_of(delivery, 1)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is Outcome.NOT_PERSISTED
        assert "NOT_ENOUGH_REPLICAS" in str(error)


@in_virtual_time
async def test_close_ends_endless_retries_as_unknown():
    async with producing(**ENDLESS) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.freeze_broker(0)
        deliveries = await send_numbers(producer, [1, 2])
        await asyncio.sleep(0.25)
        assert not any(delivery.done() for delivery in deliveries)

        report = await within(1, producer.close(timeout=0))

        assert outcomes_of(await results(deliveries)) == [Outcome.UNKNOWN] * 2
        assert report.unknown == 2
        cluster.thaw_broker(0)


@in_virtual_time
async def test_endless_retries_continue_for_a_record_that_moved_to_a_re_created_topic():
    async with producing(cluster={"versions": "4.1"}, **ENDLESS) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.faults.add(PRODUCE, error=ErrorCode.REQUEST_TIMED_OUT, after_append=True)
        refused = cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=10_000)
        (delivery,) = await send_numbers(producer, [1])
        await within(1, refused.reached())
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)
        await asyncio.sleep(0.35)
        assert not delivery.done()

        refused.count = 0

        assert (await within(2, delivery)).offset == 0
        assert numbers(cluster) == [1]


async def test_endless_retries_end_where_a_topic_was_re_created_without_the_partition():
    """No more requests will be sent, and the log that may have contained the record is deleted."""
    async with producing(topics={"t": 2}, cluster={"versions": "3.5"}, **ENDLESS) as (cluster, producer):
        await producer.send_and_wait("t", b"0", partition=1)
        lost = cluster.faults.add(PRODUCE, drop_after_append=True, partition=1, count=10_000)
        (delivery,) = await send_numbers(producer, [1], partition=1)
        await within(1, lost.reached())
        cluster.delete_topic("t")
        cluster.create_topic("t", 1)

        error = await error_of(delivery, 2)

        assert error.outcome is Outcome.UNKNOWN
        assert "the topic was re-created" in str(error)
        assert (await producer.send_and_wait("t", b"2", partition=0)).offset == 0


@in_virtual_time
async def test_records_behind_one_that_is_retried_endlessly_expire_on_time():
    settings = {**ENDLESS, "max_in_flight_requests_per_connection": 1}
    async with producing(**settings) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        lost = cluster.faults.add(PRODUCE, drop_after_append=True, count=10_000)
        deliveries = await send_numbers(producer, [1, 2, 3])

        found = await results(deliveries[1:])

        assert outcomes_of(found) == [Outcome.NOT_PERSISTED] * 2
        assert not deliveries[0].done()
        lost.count = 0
        assert (await within(2, deliveries[0])).offset == 1
