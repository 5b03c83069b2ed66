"""A delivery behaves like an asyncio future: results, errors, callbacks, cancellation, and the lifetime of objects."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import pickle
import subprocess
import sys
import traceback
import types
import weakref
from collections.abc import Generator

import pytest

from aioproducer.errors import DeliveryError
from aioproducer.records._record_path import Delivery, RecordMetadata
from aioproducer.types import Outcome, TopicPartition
from tests.conftest import MS
from tests.support.compiled_path import OpensBatches, Path, bound, new_batch, sealed
from tests.support.oracle import OracleRecord, encode_batch


@pytest.fixture
async def accumulator() -> OpensBatches:
    return OpensBatches(asyncio.get_running_loop())


@pytest.fixture
def path(accumulator: OpensBatches) -> Path:
    return bound(accumulator)


# ----------------------------------------------------------------------------------------------- RecordMetadata


@pytest.mark.promise("Public API", "calls have aiokafka's names, order and defaults")
def test_record_metadata_has_its_fields_and_shows_them():
    metadata = RecordMetadata("orders", 3, 17, 1234, 1, 5)

    assert (metadata.topic, metadata.partition, metadata.offset) == ("orders", 3, 17)
    assert (metadata.timestamp, metadata.timestamp_type, metadata.log_start_offset) == (1234, 1, 5)
    assert metadata.topic_partition == TopicPartition("orders", 3)
    assert repr(metadata) == (
        "RecordMetadata(topic='orders', partition=3, offset=17, timestamp=1234, timestamp_type=1)"
    )
    with pytest.raises(AttributeError):
        metadata.offset = 1
    with pytest.raises(AttributeError):
        metadata.topic = "other"


def test_record_metadata_is_a_value():
    fields = ("orders", 3, 17, 1234, 1, 5)
    metadata = RecordMetadata(*fields)

    assert metadata == RecordMetadata(*fields)
    assert hash(metadata) == hash(RecordMetadata(*fields))
    assert pickle.loads(pickle.dumps(metadata)) == metadata
    assert metadata != fields
    for at, other in enumerate(("x", 4, 18, 1235, 0, 6)):
        assert metadata != RecordMetadata(*fields[:at], other, *fields[at + 1 :])


def test_record_metadata_without_an_offset_has_none_even_after_pickling():
    metadata = RecordMetadata("orders", 0, None)

    assert metadata.offset is None
    assert RecordMetadata("orders", 0, -1) == metadata
    assert pickle.loads(pickle.dumps(metadata)).offset is None


# ------------------------------------------------------------------------- results


async def test_a_delivery_has_the_offset_of_its_record_and_its_timestamp(path, accumulator):
    deliveries = [await path.send("orders", b"v", timestamp_ms=100 + number) for number in range(3)]

    accumulator.tail.succeed(40, -1, 2)

    assert [await delivery for delivery in deliveries] == [
        RecordMetadata("orders", 0, 40 + number, 100 + number, 0, 2) for number in range(3)
    ]


async def test_a_delivery_has_the_brokers_timestamp_if_there_is_one(path, accumulator):
    delivery = path.try_send("orders", b"v", timestamp_ms=100)

    accumulator.tail.succeed(40, 555, -1)

    metadata = await delivery
    assert (metadata.timestamp, metadata.timestamp_type) == (555, 1)


async def test_a_delivery_has_no_offset_if_the_broker_returned_none(path, accumulator):
    delivery = path.try_send("orders", b"v")

    accumulator.tail.succeed(-1, -1, -1)

    assert (await delivery).offset is None


def test_a_delivery_takes_at_most_32_bytes_besides_the_object_header():
    """Each waiting record has a delivery. With the object header of 16 bytes (32 on a free-threaded Python), it
    exactly fills a block of the allocator."""
    assert Delivery.__basicsize__ - object.__basicsize__ <= 32


async def test_delivery_without_a_result_says_so(path):
    delivery = path.try_send("orders", b"v")

    assert not delivery.done()
    assert not delivery.cancelled()
    assert repr(delivery) == "<Delivery orders-0 pending>"
    with pytest.raises(asyncio.InvalidStateError):
        delivery.result()
    with pytest.raises(asyncio.InvalidStateError):
        delivery.exception()


@pytest.mark.promise("Public API", "a delivery is an asyncio future that can be awaited")
async def test_a_delivery_is_an_asyncio_future(path, accumulator):
    delivery = path.try_send("orders", b"v")

    assert asyncio.isfuture(delivery)
    assert not asyncio.iscoroutine(delivery)
    assert asyncio.ensure_future(delivery) is delivery
    assert delivery.get_loop() is asyncio.get_running_loop()


async def test_failed_delivery_raises_its_error_each_time_without_a_growing_traceback(path, accumulator):
    delivery = path.try_send("orders", b"v")
    error = DeliveryError("refused", outcome=Outcome.NOT_PERSISTED)
    accumulator.tail.give_up(error)

    depths = []
    for _ in range(20):
        with pytest.raises(DeliveryError) as raised:
            await delivery
        assert raised.value is not error
        assert str(raised.value) == str(error)
        depths.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
        with pytest.raises(DeliveryError) as raised:
            delivery.result()
        depths.append(len(list(traceback.walk_tb(raised.value.__traceback__))))

    assert str(delivery.exception()) == str(error)
    assert error.__traceback__ is None, "the error of the batch keeps no frame alive"
    assert set(depths[2:]) <= set(depths[:2])
    assert repr(delivery) == "<Delivery orders-0 done>"


async def test_an_error_that_occurs_while_tasks_wait_is_raised_in_each_of_them(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(3)]
    tasks = [asyncio.ensure_future(awaited(delivery)) for delivery in deliveries]
    await asyncio.sleep(0)
    error = DeliveryError("refused")

    accumulator.tail.give_up(error)

    assert list(map(repr, await asyncio.gather(*tasks, return_exceptions=True))) == [repr(error)] * 3


async def awaited(delivery: Delivery) -> RecordMetadata:
    return await delivery


@pytest.mark.promise("Public API", "a delivery is an asyncio future that can be awaited")
async def test_delivery_can_be_awaited_by_hand_and_in_generator_based_coroutines(path, accumulator):
    delivery = path.try_send("orders", b"v")

    @types.coroutine
    def generator_based() -> Generator[object, None, RecordMetadata]:
        return (yield from delivery)

    by_hand = awaited(delivery)
    assert by_hand.send(None) is delivery
    with pytest.raises(RuntimeError, match="broken off"):
        by_hand.throw(RuntimeError("broken off"))
    task = asyncio.ensure_future(generator_based())
    await asyncio.sleep(0)
    accumulator.tail.succeed(5, -1, -1)

    assert (await task).offset == 5
    with pytest.raises(StopIteration) as stopped:
        awaited(delivery).send(None)
    assert stopped.value.value.offset == 5
    assert list(delivery) == []  # like a done asyncio.Future, which has nothing left to yield


async def test_a_single_record_fails_while_the_others_of_its_batch_do_not(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(3)]
    ended = []
    deliveries[1].add_done_callback(ended.append)
    error = DeliveryError("too late", outcome=Outcome.UNKNOWN)

    accumulator.tail.end_record(deliveries[1], error, False)
    await asyncio.sleep(0)

    assert ended == [deliveries[1]]
    assert [delivery.done() for delivery in deliveries] == [False, True, False]
    with pytest.raises(DeliveryError, match="too late"):
        await deliveries[1]
    assert deliveries[1].cancel() is False
    accumulator.tail.succeed(7, -1, -1)
    assert (await deliveries[0]).offset == 7
    assert (await deliveries[2]).offset == 9
    assert str(deliveries[1].exception()) == str(error)


@pytest.mark.promise("KIPs", "KIP-467: errors of single records")
async def test_errors_of_single_records_replace_the_error_of_their_batch(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(2)]
    bad, of_all = DeliveryError("this record"), DeliveryError("its batch")
    accumulator.tail.record_errors = {1: bad}

    accumulator.tail.give_up(of_all)

    assert [repr(delivery.exception()) for delivery in deliveries] == [repr(of_all), repr(bad)]


def test_batch_ends_once():
    batch = new_batch()
    batch.try_append(b"v", None, 1, None)
    batch.complete(0, -1, -1)

    with pytest.raises(AssertionError):
        batch.complete(0, -1, -1)
    with pytest.raises(AssertionError):
        batch.fail(DeliveryError("x"))


# ------------------------------------------------------------------------- asyncio's functions


async def test_gather_wait_and_as_completed_accept_deliveries(path, accumulator):
    loop = asyncio.get_running_loop()
    gathered = [path.try_send("orders", b"v") for _ in range(3)]
    waited = [path.try_send("orders", b"v") for _ in range(3)]
    completed = [path.try_send("orders", b"v") for _ in range(3)]
    batch = accumulator.tail
    loop.call_soon(batch.succeed, 10, -1, -1)

    offsets = [metadata.offset for metadata in await asyncio.gather(*gathered)]
    done, pending = await asyncio.wait(waited)
    as_completed = [(await next_one).offset for next_one in asyncio.as_completed(completed)]

    assert offsets == [10, 11, 12]
    assert (done, pending) == (set(waited), set())
    assert sorted(as_completed) == [16, 17, 18]


async def test_gather_returns_the_errors_of_deliveries(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(2)]
    error = DeliveryError("refused")
    asyncio.get_running_loop().call_soon(accumulator.tail.give_up, error)

    assert list(map(repr, await asyncio.gather(*deliveries, return_exceptions=True))) == [repr(error)] * 2
    with pytest.raises(DeliveryError):
        await asyncio.gather(*deliveries)


@pytest.mark.promise("Public API", "`asyncio.wait` and `as_completed` work with deliveries")
async def test_wait_leaves_pending_deliveries_alone(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(2)]

    done, pending = await asyncio.wait(deliveries, timeout=1 * MS)

    assert (done, pending) == (set(), set(deliveries))
    accumulator.tail.succeed(0, -1, -1)
    done, pending = await asyncio.wait(deliveries, return_when=asyncio.FIRST_COMPLETED)
    assert done == set(deliveries)


async def test_a_timeout_of_wait_for_detaches_only_the_waiter(path, accumulator):
    delivery = path.try_send("orders", b"v")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(delivery, 1 * MS)

    assert delivery.cancelled()
    assert accumulator.tail.record_count == 1
    accumulator.tail.succeed(0, -1, -1)
    assert delivery.cancelled()


@pytest.mark.promise("Public API", "`asyncio.wait_for` works with deliveries")
async def test_wait_for_returns_the_result(path, accumulator):
    delivery = path.try_send("orders", b"v")
    asyncio.get_running_loop().call_soon(accumulator.tail.succeed, 5, -1, -1)

    assert (await asyncio.wait_for(delivery, 1000 * MS)).offset == 5
    assert (await asyncio.wait_for(delivery, 0)).offset == 5


async def test_timeout_block_ends_the_wait(path, accumulator):
    delivery = path.try_send("orders", b"v")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1 * MS):
            await delivery


async def test_shielded_delivery_outlives_the_waiter(path, accumulator):
    delivery = path.try_send("orders", b"v")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(delivery), 1 * MS)

    assert not delivery.done()
    accumulator.tail.succeed(5, -1, -1)
    assert (await asyncio.shield(delivery)).offset == 5


@pytest.mark.promise("Public API", "`cancel` works as with any future, and the record is still sent")
async def test_cancelled_delivery_stays_cancelled_and_its_record_is_sent(path, accumulator):
    delivery = path.try_send("orders", b"v")
    ended = []
    delivery.add_done_callback(ended.append)

    assert delivery.cancel("enough") is True
    assert delivery.cancel() is False
    await asyncio.sleep(0)

    assert ended == [delivery]
    assert delivery.cancelled()
    assert delivery.done()
    assert repr(delivery) == "<Delivery orders-0 cancelled>"
    for look in (delivery.result, delivery.exception):
        with pytest.raises(asyncio.CancelledError):
            look()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    batch = accumulator.tail
    assert sealed(batch) == encode_batch([OracleRecord(batch.base_timestamp, None, b"v")])
    batch.succeed(0, -1, -1)
    await asyncio.sleep(0)
    assert ended == [delivery]


@pytest.mark.promise(
    "Public API", "each call ends in its cancel scope, anyio's too: the message of a cancellation is kept"
)
@pytest.mark.parametrize("message", ["Cancelled via cancel scope 7f", None, ("any", "object")])
async def test_a_wait_for_a_cancelled_delivery_raises_with_the_message_of_the_cancellation(path, message):
    """anyio recognizes its own cancellation by this message."""
    expected = () if message is None else (message,)
    deliveries = [path.try_send("orders", b"v") for _ in range(3)]
    alone, gathered = asyncio.ensure_future(awaited(deliveries[0])), asyncio.gather(*deliveries[1:])
    others_callback = list[Delivery]().append
    deliveries[0].add_done_callback(others_callback)
    await asyncio.sleep(0)

    for waiter in (alone, gathered):
        waiter.cancel(message)
        with pytest.raises(asyncio.CancelledError) as caught:
            await waiter
        assert caught.value.args == expected

    for look in (deliveries[0].result, deliveries[0].exception):
        with pytest.raises(asyncio.CancelledError) as caught:
            look()
        assert caught.value.args == expected
    assert deliveries[0].remove_done_callback(others_callback) == 0
    assert deliveries[0]._cancel_message == message


async def test_delivery_with_a_result_cannot_be_cancelled(path, accumulator):
    delivery = path.try_send("orders", b"v")
    accumulator.tail.succeed(5, -1, -1)

    assert delivery.cancel() is False
    assert not delivery.cancelled()
    assert (await delivery).offset == 5


async def test_cancelling_a_task_that_awaits_a_delivery_leaves_the_record_in_its_batch(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(2)]
    task = asyncio.ensure_future(awaited(deliveries[0]))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert accumulator.tail.record_count == 2
    accumulator.tail.succeed(5, -1, -1)
    assert (await deliveries[1]).offset == 6


async def test_cancelling_a_gather_cancels_its_deliveries(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(2)]
    gathered = asyncio.gather(*deliveries)

    gathered.cancel()

    with pytest.raises(asyncio.CancelledError):
        await gathered
    assert [delivery.cancelled() for delivery in deliveries] == [True, True]
    assert accumulator.tail.record_count == 2


async def test_several_tasks_await_the_same_delivery(path, accumulator):
    delivery = path.try_send("orders", b"v")
    tasks = [asyncio.ensure_future(awaited(delivery)) for _ in range(5)]
    await asyncio.sleep(0)

    accumulator.tail.succeed(5, -1, -1)

    assert [metadata.offset for metadata in await asyncio.gather(*tasks)] == [5] * 5


@pytest.mark.promise("Public API", "using a producer from another loop or thread is a clear error")
async def test_delivery_cannot_be_awaited_in_another_loop(path):
    delivery = path.try_send("orders", b"v")

    def elsewhere() -> None:
        asyncio.run(awaited(delivery))

    with pytest.raises(RuntimeError, match="different loop"):
        await asyncio.to_thread(elsewhere)


# ------------------------------------------------------------------------- callbacks


@pytest.mark.promise("Public API", "`add_done_callback` works as with any future")
async def test_callbacks_run_in_the_order_of_the_appends(path, accumulator):
    deliveries = [path.try_send("orders", b"v") for _ in range(20)]
    ended = []
    for delivery in reversed(deliveries):
        delivery.add_done_callback(ended.append)

    accumulator.tail.succeed(0, -1, -1)
    assert ended == []
    await asyncio.sleep(0)

    assert ended == deliveries


async def test_callbacks_of_one_delivery_run_in_the_order_in_which_they_were_added(path, accumulator):
    delivery = path.try_send("orders", b"v")
    ended = []
    for number in range(4):
        delivery.add_done_callback(lambda _, number=number: ended.append(number))

    accumulator.tail.succeed(0, -1, -1)
    await asyncio.sleep(0)

    assert ended == [0, 1, 2, 3]


async def test_failing_callback_stops_no_other(path, accumulator):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    deliveries = [path.try_send("orders", b"v") for _ in range(3)]
    ended = []
    broken = ValueError("broken callback")

    def breaks(delivery: Delivery) -> None:
        raise broken

    for delivery in deliveries:
        delivery.add_done_callback(breaks)
        delivery.add_done_callback(ended.append)
    accumulator.tail.succeed(0, -1, -1)
    await asyncio.sleep(0)

    assert ended == deliveries
    assert reported == [broken] * 3


async def test_the_callbacks_of_a_batch_are_one_call_in_the_loop(path, accumulator, monkeypatch):
    loop = asyncio.get_running_loop()
    deliveries = [path.try_send("orders", b"v") for _ in range(100)]
    tasks = [asyncio.ensure_future(awaited(delivery)) for delivery in deliveries]
    await asyncio.sleep(0)
    scheduled = []
    monkeypatch.setattr(loop, "call_soon", lambda *args, **options: scheduled.append((args, options)))

    accumulator.tail.succeed(0, -1, -1)
    monkeypatch.undo()

    ((callbacks,), options) = scheduled[0]
    assert len(scheduled) == 1
    assert options == {}
    assert repr(callbacks) == "<Callbacks of 100 records>"
    loop.call_soon(callbacks)
    assert [metadata.offset for metadata in await asyncio.gather(*tasks)] == list(range(100))


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_callback_that_ends_the_program_leaves_the_others_to_the_next_turn(end):
    """Ctrl-C may come while a callback runs; close() then still waits for the other tasks."""
    ended = []

    async def main() -> None:
        accumulator = OpensBatches(asyncio.get_running_loop())
        path = bound(accumulator)
        deliveries = [path.try_send("orders", b"v") for _ in range(3)]
        deliveries[0].add_done_callback(lambda _: exec("raise end", {"end": end}))
        for delivery in deliveries:
            delivery.add_done_callback(ended.append)
        accumulator.tail.succeed(0, -1, -1)

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(main())
        with pytest.raises(end):
            loop.run_forever()
        assert ended == []
        loop.run_until_complete(task)
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()

    assert [repr(delivery) for delivery in ended] == ["<Delivery orders-0 done>"] * 3


async def test_callback_added_after_the_end_runs_in_the_next_turn(path, accumulator):
    delivery = path.try_send("orders", b"v")
    accumulator.tail.succeed(0, -1, -1)
    ended = []

    delivery.add_done_callback(ended.append)
    assert ended == []
    await asyncio.sleep(0)

    assert ended == [delivery]


async def test_removed_callbacks_do_not_run_and_are_counted(path, accumulator):
    delivery = path.try_send("orders", b"v")
    kept, removed = [], []
    keep, remove = kept.append, removed.append
    assert delivery.remove_done_callback(remove) == 0
    delivery.add_done_callback(remove)
    assert delivery.remove_done_callback(remove) == 1
    delivery.add_done_callback(remove)
    delivery.add_done_callback(keep)
    delivery.add_done_callback(remove)

    assert delivery.remove_done_callback(remove) == 2
    accumulator.tail.succeed(0, -1, -1)
    await asyncio.sleep(0)

    assert (kept, removed) == ([delivery], [])
    assert delivery.remove_done_callback(keep) == 0


@pytest.mark.promise("Public API", "`add_done_callback` works as with any future")
async def test_callback_runs_in_the_context_in_which_it_was_added(path, accumulator):
    variable = contextvars.ContextVar("variable", default="outside")
    delivery = path.try_send("orders", b"v")
    seen = []

    def look(delivery: Delivery) -> None:
        seen.append(variable.get())

    context = contextvars.copy_context()
    context.run(variable.set, "given")
    variable.set("at the call")
    delivery.add_done_callback(look)
    variable.set("later")
    delivery.add_done_callback(look, context=context)
    accumulator.tail.succeed(0, -1, -1)
    await asyncio.sleep(0)

    assert seen == ["at the call", "given"]


async def test_the_callbacks_of_a_batch_run_in_their_own_contexts(path, accumulator):
    variable = contextvars.ContextVar("variable", default="outside")
    seen = []

    async def waits(number: int) -> None:
        variable.set(number)
        delivery = path.try_send("orders", b"v")
        delivery.add_done_callback(lambda _: seen.append(variable.get()))
        await delivery
        seen.append((number, variable.get()))
        variable.set("changed")

    tasks = [asyncio.ensure_future(waits(number)) for number in range(3)]
    await asyncio.sleep(0)
    accumulator.tail.succeed(0, -1, -1)
    await asyncio.gather(*tasks)

    assert seen == [0, (0, 0), 1, (1, 1), 2, (2, 2)]
    assert variable.get() == "outside"


def test_a_callback_whose_context_is_in_use_is_reported_and_stops_no_other():
    in_use, ended, reported = contextvars.copy_context(), [], []

    async def main() -> list[Delivery]:
        asyncio.get_running_loop().set_exception_handler(lambda _, details: reported.append(details))
        accumulator = OpensBatches(asyncio.get_running_loop())
        path = bound(accumulator)
        deliveries = [path.try_send("orders", b"v") for _ in range(2)]
        deliveries[0].add_done_callback(ended.append, context=in_use)
        deliveries[1].add_done_callback(ended.append)
        accumulator.tail.succeed(0, -1, -1)
        await asyncio.sleep(0)
        return deliveries

    deliveries = in_use.run(asyncio.run, main())

    assert ended == [deliveries[1]]
    assert [(details["future"], type(details["exception"])) for details in reported] == [
        (deliveries[0], RuntimeError)
    ]


async def test_a_callback_may_retrieve_the_result_and_add_another_callback(path, accumulator):
    delivery = path.try_send("orders", b"v")
    seen = []
    delivery.add_done_callback(
        lambda done: done.add_done_callback(lambda again: seen.append(again.result().offset))
    )

    accumulator.tail.succeed(5, -1, -1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert seen == [5]


# -------------------------------------------------------------------------------- the lifetime of objects


async def test_values_are_copied_and_not_kept(path, accumulator):
    value, key = bytearray(b"value"), bytearray(b"key")
    immutable = b"immutable" * 2
    references = sys.getrefcount(immutable)

    delivery = path.try_send("orders", value, key, timestamp_ms=1)
    path.try_send("orders", immutable, immutable, timestamp_ms=1, headers=[("name", immutable)])
    value[:] = b"changed and longer"
    key.append(1)

    assert sys.getrefcount(immutable) == references
    batch = accumulator.tail
    expected = [
        OracleRecord(1, b"key", b"value"),
        OracleRecord(1, immutable, immutable, [("name", immutable)]),
    ]
    assert sealed(batch) == encode_batch(expected)
    assert not delivery.done()


@pytest.mark.parametrize("succeeds", [True, False])
async def test_record_bytes_are_freed_when_the_batch_has_ended(path, accumulator, succeeds):
    delivery = path.try_send("orders", b"v" * 1000)
    batch = accumulator.tail
    batch.close()
    batch.seal()
    buffer = batch.records.obj

    if succeeds:
        batch.succeed(0, -1, -1)
    else:
        batch.give_up(DeliveryError("refused"))

    only_ours = object()
    assert sys.getrefcount(buffer) == sys.getrefcount(only_ours)
    assert batch.size == 0
    assert delivery.done()
    delivery.exception()


async def test_bytes_that_a_transport_still_references_do_not_change(path, accumulator):
    path.try_send("orders", b"v" * 1000, timestamp_ms=1)
    first = accumulator.tail
    first.close()
    held = list(first.seal())
    accumulator.topics["orders"].queues[0].tail = None

    first.succeed(0, -1, -1)
    for _ in range(100):
        path.try_send("orders", b"w" * 1000)

    assert b"".join(held) == encode_batch([OracleRecord(1, None, b"v" * 1000)])


async def test_batch_is_freed_with_its_last_delivery(path, accumulator):
    queue = accumulator.topics["orders"].queues[0]
    delivery = path.try_send("orders", b"v")
    batch = weakref.ref(queue.tail)
    queue.tail.succeed(0, -1, -1)

    queue.tail = None
    queue.batches = ()
    assert batch() is not None
    assert (await delivery).offset == 0
    del delivery

    assert batch() is None


async def test_awaiting_leaves_no_cycle_behind(path, accumulator):
    queue = accumulator.topics["orders"].queues[0]
    gc.collect()
    gc.disable()
    try:
        delivery = path.try_send("orders", b"v")
        task = asyncio.ensure_future(awaited(delivery))
        await asyncio.sleep(0)
        batch, awaiting = weakref.ref(queue.tail), weakref.ref(task)
        queue.tail.succeed(0, -1, -1)
        await task
        queue.tail = None
        queue.batches = ()
        del task, delivery
        await asyncio.sleep(0)  # the loop releases its reference to the task at the end of this turn

        assert awaiting() is None
        assert batch() is None
    finally:
        gc.enable()


async def test_unretrieved_failed_deliveries_are_counted():
    noted: list[int] = []
    batch = new_batch(asyncio.get_running_loop(), noted=noted)
    for _ in range(6):
        batch.try_append(b"v", None, 1, None)
    deliveries = [batch.delivery(index) for index in range(6)]
    deliveries[0].cancel()
    thrown_away_early = deliveries.pop(1)
    del thrown_away_early
    batch.give_up(DeliveryError("refused"))

    deliveries[1].exception()
    with pytest.raises(DeliveryError):
        await deliveries[2]
    del deliveries, batch

    # Three remain: the one dropped early and the last two. One was cancelled, and two were retrieved.
    assert noted == [3]


async def test_unretrieved_successful_deliveries_are_not_reported():
    noted: list[int] = []
    batch = new_batch(asyncio.get_running_loop(), noted=noted)
    batch.try_append(b"v", None, 1, None)
    delivery = batch.delivery()
    batch.succeed(0, -1, -1)

    del delivery, batch

    assert noted == []


def test_a_delivery_without_a_batch_and_an_empty_batch_do_not_crash():
    # In a separate process: the test checks that this raises an error and does not crash
    # with a segmentation fault.
    script = """
import asyncio
from aioproducer.records._record_path import Batch, Delivery, PartitionQueue

try:
    Delivery()
except TypeError:
    print("refused")
batch = Batch(PartitionQueue("t", 0), None, 1024, 1024)
assert batch.freeze() == 1024
batch.complete(0, -1, -1)
print("frozen")
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )

    assert ran.stdout.split() == ["refused", "frozen"], ran.stderr
    assert ran.returncode == 0
