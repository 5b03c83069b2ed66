"""`timeout=` of send_many and send_batch: one limit for all records of a call and for its own waiting time."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest

from aioproducer import InvalidRecordError, Outcome, Producer, Receipt, SendManyError
from aioproducer.errors import BufferTimeoutError, DeliveryTimeoutError, MetadataTimeoutError
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.sending.own_timeouts import RECORDS_A_TURN
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    METADATA,
    PRODUCE,
    error_of,
    producing,
    until,
    values,
    within,
)

PATIENT = {"request_timeout_ms": 20_000, "delivery_timeout_ms": 60_000}
"""Settings with which only the timeout of a call ends a record."""
COLUMNS = pytest.mark.parametrize(
    "settings", [{}, {"value_serializer": bytes}], ids=["columns", "row by row"]
)


async def lose_the_broker(cluster: EmbeddedCluster, producer: Producer) -> None:
    await producer.partitions_for("t")
    await cluster.stop_broker(0)
    await until(lambda: producer._brokers.lost)


async def errors_of(receipt: Receipt) -> set[tuple[type[BaseException], Outcome]]:
    failed = await error_of(receipt, 5)
    assert isinstance(failed, SendManyError)
    return {(type(error), error.outcome) for error in failed.errors.values()}


# --------------------------------------------------------------------------------------------------- send_many


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
@COLUMNS
@in_virtual_time
async def test_rows_that_were_never_sent_end_with_the_timeout_of_their_call_and_return_their_memory(settings):
    async with producing(buffer_memory=1 << 20, **settings, **PATIENT) as (cluster, producer):
        await lose_the_broker(cluster, producer)
        began = asyncio.get_running_loop().time()

        receipt = await producer.send_many("t", [b"v"] * 900, timeout=1)
        errors = await errors_of(receipt)

        assert errors == {(DeliveryTimeoutError, Outcome.NOT_PERSISTED)}
        assert 0.99 < asyncio.get_running_loop().time() - began < 2
        assert len(receipt.errors) == 900
        assert "its own timeout of 1 s" in str(receipt.errors[7])
        assert receipt.done()
        snapshot = producer.metrics()
        assert (snapshot.buffer_available, snapshot.records_buffered) == (1 << 20, 0)
        report = await within(1, producer.close())
        assert (report.delivered, report.failed, report.unknown) == (0, 900, 0)


@COLUMNS
@in_virtual_time
async def test_rows_in_flight_end_with_the_timeout_of_their_call_and_other_records_of_the_batch_do_not(
    settings,
):
    async with producing(linger_ms=30, **settings, **PATIENT) as (cluster, producer):
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        await producer.partitions_for("t")
        before = await producer.send("t", b"before")
        receipt = await producer.send_many("t", [b"a", b"b"], timeout=1)
        behind = await producer.send("t", b"behind")
        await within(2, held.reached())
        waits = asyncio.ensure_future(receipt.wait())
        one = receipt.delivery(1)
        heard: list[Any] = []
        one.add_done_callback(heard.append)
        assert not one.done()

        errors = await errors_of(receipt)

        assert errors == {(DeliveryTimeoutError, Outcome.UNKNOWN)}
        assert (await within(1, waits)).done()
        assert one.done()
        assert isinstance(await error_of(one), DeliveryTimeoutError)
        assert isinstance(await error_of(receipt.delivery(0)), DeliveryTimeoutError), (
            "also one made afterwards"
        )
        assert heard == [one]
        assert not before.done()
        assert not behind.done()
        release.set()
        assert ((await within(1, before)).offset, (await within(1, behind)).offset) == (0, 3)
        assert values(cluster) == [b"before", b"a", b"b", b"behind"]
        assert sorted(receipt.errors) == [0, 1], "a result never changes"


@in_virtual_time
async def test_rows_that_wait_in_an_open_batch_are_left_out_of_it():
    async with producing(linger_ms=5000, **PATIENT) as (cluster, producer):
        await producer.partitions_for("t")
        first = await producer.send("t", b"first")
        receipt = await producer.send_many("t", [b"a", b"b"], timeout=1)
        last = await producer.send("t", b"last")

        assert await errors_of(receipt) == {(DeliveryTimeoutError, Outcome.NOT_PERSISTED)}

        await within(9, producer.flush())
        assert values(cluster) == [b"first", b"last"]
        assert ((await first).offset, (await last).offset) == (0, 1)
        assert receipt.offsets == {}


@COLUMNS
@in_virtual_time
async def test_the_wait_for_room_is_part_of_the_timeout(settings):
    async with producing(**FOUR_RECORDS_FILL_IT, **settings, **PATIENT) as (cluster, producer):
        await lose_the_broker(cluster, producer)
        began = asyncio.get_running_loop().time()

        receipt = await producer.send_many("t", [bytes(LARGE)] * 9, timeout=1)

        assert asyncio.get_running_loop().time() - began < 2, "max_block_ms is much longer"
        assert {type(error) for error in receipt.errors.values()} >= {BufferTimeoutError}
        assert "the call's timeout" in str(receipt.errors[8])
        assert "max_block_ms" not in str(receipt.errors[8])
        await within(1, receipt.wait())
        assert len(receipt.errors) == 9
        assert producer.metrics().records_buffered == 0


@COLUMNS
@in_virtual_time
async def test_the_wait_for_metadata_is_part_of_the_timeout(settings):
    async with producing(**settings, **PATIENT) as (cluster, producer):
        cluster.faults.add(METADATA, error=ErrorCode.LEADER_NOT_AVAILABLE, count=10_000)
        began = asyncio.get_running_loop().time()

        error = await error_of(producer.send_many("t", [b"v"] * 3, timeout=1), 5)

        assert isinstance(error, MetadataTimeoutError)
        assert asyncio.get_running_loop().time() - began < 2


@in_virtual_time
async def test_a_cancelled_call_leaves_rows_that_end_with_its_timeout():
    async with producing(**FOUR_RECORDS_FILL_IT, **PATIENT) as (cluster, producer):
        await lose_the_broker(cluster, producer)
        call = asyncio.ensure_future(producer.send_many("t", [bytes(LARGE)] * 9, timeout=3))
        await until(lambda: producer.metrics().buffer_waiters == 1)

        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert producer.metrics().records_buffered == 4

        await until(lambda: producer.metrics().records_buffered == 0, 9)
        assert producer.metrics().records_failed == 4


async def send_one_record(producer: Producer) -> None:
    await producer.send("t", bytes(LARGE), timeout=5)


async def send_many_records(producer: Producer) -> None:
    await producer.send_many("t", [bytes(LARGE)], timeout=5)


@pytest.mark.parametrize("send", [send_one_record, send_many_records])
@COLUMNS
@in_virtual_time
async def test_a_call_that_is_cancelled_as_it_gets_its_room_keeps_its_timeout(settings, send):
    async with producing(**FOUR_RECORDS_FILL_IT, **PATIENT, **settings) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        for _ in range(4):
            await producer.send("t", bytes(LARGE))
        await within(2, held.reached())
        waits = asyncio.ensure_future(send(producer))
        await until(lambda: producer.metrics().buffer_waiters == 1)
        cluster.faults.add(PRODUCE, drop_before=True, count=10_000)
        [(waiter, append)] = producer._accumulator.lock._waiting.items()

        def append_and_be_cancelled() -> object:
            asyncio.get_running_loop().call_soon(waits.cancel)  # after `waiter` has its result
            return append()

        producer._accumulator.lock._waiting[waiter] = append_and_be_cancelled
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await within(5, waits)

        await until(lambda: producer.metrics().records_unknown + producer.metrics().records_failed, 20)

        assert producer.metrics().records_unknown + producer.metrics().records_failed == 1


@in_virtual_time
async def test_rows_of_a_batch_that_was_split_end_with_their_timeout_and_no_half_is_sent_again():
    async with producing(linger_ms=10, batch_size=4000, **PATIENT) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE, count=1)
        receipt = await producer.send_many("t", [b"%d" % number for number in range(8)], timeout=1)
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release, error=ErrorCode.MESSAGE_TOO_LARGE)
        await within(2, held.reached())

        assert await errors_of(receipt) == {(DeliveryTimeoutError, Outcome.UNKNOWN)}
        assert len(receipt.errors) == 8
        release.set()
        await within(2, producer.flush())

        assert values(cluster) == []
        assert producer.metrics().buffer_available == producer.metrics().buffer_total


@in_virtual_time
async def test_many_rows_that_end_together_hold_the_loop_for_a_few_thousand_at_a_time(monkeypatch):
    async with producing(buffer_memory=1 << 24, batch_size=1 << 14, **PATIENT) as (cluster, producer):
        await lose_the_broker(cluster, producer)
        receipt = await producer.send_many("t", [b"v"] * 50_000, timeout=1)
        loop = asyncio.get_running_loop()
        end_records = producer._accumulator.end_records
        turn = 0
        ended: Counter[int] = Counter()

        def next_turn() -> None:
            nonlocal turn
            turn += 1
            if ended.total() < 50_000:
                loop.call_soon(next_turn)

        def counted(*arguments: Any) -> int:
            if not ended:
                loop.call_soon(next_turn)
            count = end_records(*arguments)
            ended[turn] += count
            return count

        monkeypatch.setattr(producer._accumulator, "end_records", counted)
        await error_of(receipt, 5)

        assert ended.total() == 50_000
        assert max(ended.values()) <= 2 * RECORDS_A_TURN


async def test_a_discarded_receipt_with_a_timeout_counts_its_rows_as_unretrieved():
    async with producing(**PATIENT) as (cluster, producer):
        await lose_the_broker(cluster, producer)
        await producer.send_many("t", [b"a", b"b"], timeout=20 * MS)
        gc.collect()

        await until(lambda: producer.metrics().records_failed == 2)
        gc.collect()

        assert sum((await producer.close()).unretrieved.values()) == 2


@pytest.mark.parametrize("nonsense", [-1, "1", True, float("nan")])
async def test_a_timeout_of_a_call_that_is_not_a_number_of_seconds_is_rejected(nonsense):
    async with producing(**PATIENT) as (_, producer):
        built = producer.create_batch()
        built.append(key=None, value=b"v")
        with pytest.raises(InvalidRecordError, match="timeout must be a number of seconds"):
            await producer.send_many("t", [b"v"], timeout=nonsense)
        with pytest.raises(InvalidRecordError, match="timeout must be a number of seconds"):
            await producer.send_batch(built, "t", partition=0, timeout=nonsense)
        assert (await within(5, await producer.send_batch(built, "t", partition=0))).offset == 0


async def test_a_recording_producer_accepts_timeouts_too():
    async with RecordingProducer() as producer:
        built = producer.create_batch()
        built.append(key=None, value=b"built")
        await (await producer.send_many("t", [b"row"], timeout=5))
        await (await producer.send_batch(built, "t", partition=0, timeout=5))
        assert [record.value for record in producer.sent] == [b"row", b"built"]


# -------------------------------------------------------------------------------------------------- send_batch


@pytest.mark.promise("Public API", "a record can have its own `timeout=`")
@pytest.mark.parametrize("is_sent", [False, True])
@in_virtual_time
async def test_all_records_of_a_built_batch_end_with_its_timeout(is_sent):
    async with producing(**PATIENT) as (cluster, producer):
        await producer.partitions_for("t")
        release = asyncio.Event()
        if is_sent:
            cluster.faults.add(PRODUCE, hold=release)
        else:
            await lose_the_broker(cluster, producer)
        built = producer.create_batch()
        for value in (b"a", b"b", b"c"):
            built.append(key=None, value=value)

        delivery = await producer.send_batch(built, "t", partition=0, timeout=1)
        error = await error_of(delivery, 5)

        assert isinstance(error, DeliveryTimeoutError)
        assert error.outcome is (Outcome.UNKNOWN if is_sent else Outcome.NOT_PERSISTED)
        release.set()
        report = await within(30, producer.close())
        assert report.failed == (0 if is_sent else 3)


@in_virtual_time
async def test_a_built_batch_waits_for_room_no_longer_than_its_timeout():
    async with producing(**FOUR_RECORDS_FILL_IT, **PATIENT) as (cluster, producer):
        await lose_the_broker(cluster, producer)
        for _ in range(4):
            await producer.send("t", bytes(LARGE))
        built = producer.create_batch()
        built.append(key=None, value=bytes(LARGE))

        error = await error_of(producer.send_batch(built, "t", partition=0, timeout=1), 5)

        assert isinstance(error, BufferTimeoutError)
        assert "timeout" in str(error)
        assert "max_block_ms" not in str(error)
