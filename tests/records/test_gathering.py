"""`aioproducer.gather` behaves like `asyncio.gather`, for deliveries and for all other awaitables."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from aioproducer.errors import DeliveryError
from aioproducer.records._record_path import Delivery
from aioproducer.records.gathering import gather
from tests.conftest import MS
from tests.support.compiled_path import OpensBatches, Path, bound, new_batch

Gather = Callable[..., Awaitable[list[Any]]]


@pytest.fixture
async def accumulator() -> OpensBatches:
    return OpensBatches(asyncio.get_running_loop(), partitions=3)


@pytest.fixture
def path(accumulator: OpensBatches) -> Path:
    return bound(accumulator)


def send(path: Path, partition: int = 0) -> Delivery:
    return path.try_send("orders", b"v", None, partition)


def batch_of(delivery: Delivery) -> Any:
    return delivery.batch


async def started(waiting: Awaitable[Any]) -> asyncio.Task[Any]:
    """Return a task that has taken its first step and now waits."""
    task = asyncio.ensure_future(waiting)
    assert isinstance(task, asyncio.Task)
    await asyncio.sleep(0)
    return task


async def theirs(awaitables: Iterable[Awaitable[Any]], *, return_exceptions: bool = False) -> list[Any]:
    return await asyncio.gather(*awaitables, return_exceptions=return_exceptions)


# ------------------------------------------------------------------------------------------------------- results


async def test_results_are_in_the_order_of_the_deliveries_no_matter_how_their_batches_end(path):
    deliveries = [send(path, partition) for partition in (2, 0, 1, 0)]
    task = await started(gather(deliveries))

    for partition, base in ((0, 10), (1, 20), (2, 30)):
        assert not task.done()
        next(each.batch for each in deliveries if each.topic_partition.partition == partition).succeed(
            base, -1, -1
        )
        await asyncio.sleep(0)

    assert [(each.partition, each.offset) for each in await task] == [(2, 30), (0, 10), (1, 20), (0, 11)]


async def test_deliveries_with_results_are_not_waited_for(path, accumulator):
    deliveries = (send(path) for _ in range(3))
    gathering = gather(list(deliveries))
    accumulator.topics["orders"].queues[0].tail.succeed(5, -1, -1)

    with pytest.raises(StopIteration) as ended:
        gathering.send(None)

    assert [metadata.offset for metadata in ended.value.value] == [5, 6, 7]


async def test_any_iterable_of_deliveries_is_gathered(path, accumulator):
    first, second = send(path), send(path)
    accumulator.tail.succeed(5, -1, -1)

    assert await gather([]) == []
    assert [each.offset for each in await gather(each for each in (first, second))] == [5, 6]
    assert [each.offset for each in await gather({first: 1, second: 2})] == [5, 6]
    assert [each.offset for each in await gather((first, first))] == [5, 5]


async def test_a_list_that_changes_during_the_wait_makes_no_difference(path, accumulator):
    deliveries = [send(path) for _ in range(3)]
    task = await started(gather(deliveries))
    deliveries.clear()

    accumulator.tail.succeed(5, -1, -1)

    assert [metadata.offset for metadata in await task] == [5, 6, 7]


async def test_several_gathers_and_callbacks_share_a_delivery(path, accumulator):
    deliveries = [send(path) for _ in range(3)]
    ended: list[Delivery] = []
    deliveries[0].add_done_callback(ended.append)
    tasks = [await started(gather(deliveries)) for _ in range(2)]
    tasks.append(await started(gather([*deliveries, *deliveries])))
    deliveries[1].add_done_callback(ended.append)
    deliveries[2].add_done_callback(ended.append)
    assert deliveries[2].remove_done_callback(ended.append) == 1

    accumulator.tail.succeed(5, -1, -1)

    offsets = [[metadata.offset for metadata in await task] for task in tasks]
    assert offsets == [[5, 6, 7], [5, 6, 7], [5, 6, 7, 5, 6, 7]]
    assert ended == deliveries[:2]


async def test_deliveries_follow_their_records_when_a_batch_is_split(path, accumulator):
    deliveries = [send(path) for _ in range(4)]
    task = await started(gather(deliveries))
    parent, parts = accumulator.tail, []
    parent.close()
    for first in (0, 2):
        parts.append(new_batch(asyncio.get_running_loop(), queue=parent.queue))
        parts[-1].take_records(parent, first, first + 2, {})
    parent.split_into([(0, parts[0]), (2, parts[1])])

    parts[1].succeed(20, -1, -1)
    await asyncio.sleep(0)
    assert not task.done()
    parts[0].succeed(10, -1, -1)

    assert [metadata.offset for metadata in await task] == [10, 11, 20, 21]


# -------------------------------------------------------------------------------------------------------- errors


async def test_the_first_error_is_raised_as_soon_as_it_occurs_and_cancels_nothing(path):
    pending, failing, later = send(path, 0), send(path, 1), send(path, 2)
    task = await started(gather([pending, later, failing]))

    batch_of(failing).give_up(DeliveryError("first"))
    batch_of(later).give_up(DeliveryError("second"))

    with pytest.raises(DeliveryError, match="first"):
        await task
    assert not pending.done()
    batch_of(pending).succeed(5, -1, -1)
    assert (await pending).offset == 5


async def test_the_error_of_a_record_that_ends_before_its_batch_is_raised_immediately(path, accumulator):
    deliveries = [send(path) for _ in range(2)]
    task = await started(gather(deliveries))

    accumulator.tail.end_record(deliveries[1], DeliveryError("its own timeout"), True)

    with pytest.raises(DeliveryError, match="its own timeout"):
        await task
    assert not deliveries[0].done()


async def test_errors_are_results_if_requested(path):
    fine, failing, cancelled = send(path, 0), send(path, 1), send(path, 2)
    task = await started(gather([failing, cancelled, fine], return_exceptions=True))

    batch_of(failing).give_up(DeliveryError("refused"))
    cancelled.cancel("enough")
    await asyncio.sleep(0)
    assert not task.done()
    batch_of(fine).succeed(5, -1, -1)

    error, cancellation, metadata = await task
    assert (type(error), str(error)) == (DeliveryError, "refused")
    assert (type(cancellation), cancellation.args) == (asyncio.CancelledError, ("enough",))
    assert metadata.offset == 5


async def test_failures_of_gathered_deliveries_count_as_retrieved_at_any_time():
    noted: list[int] = []
    loop = asyncio.get_running_loop()
    batches = [new_batch(loop, noted=noted) for _ in range(4)]
    for batch in batches:
        batch.try_append(b"v", None, 1, None)
        batch.try_append(b"v", None, 1, None)
    batches[0].give_up(DeliveryError("before"))
    gathered = [batch.delivery(0) for batch in batches]
    with pytest.raises(DeliveryError, match="before"):
        await gather(gathered)

    not_gathered = batches[1].delivery(1)
    del gathered
    for batch in batches[1:]:
        batch.give_up(DeliveryError("after"))
    await asyncio.sleep(0)
    del batch, batches, not_gathered
    assert noted == [1]


async def test_a_failure_of_a_single_record_counts_as_retrieved():
    batch = new_batch(asyncio.get_running_loop())
    for _ in range(3):
        batch.try_append(b"v", None, 1, None)
    deliveries = [batch.delivery(index) for index in range(3)]
    batch.end_record(deliveries[0], DeliveryError("not gathered"), True)
    task = await started(gather(deliveries[1:]))

    batch.end_record(deliveries[1], DeliveryError("its own timeout"), True)
    with pytest.raises(DeliveryError, match="its own timeout"):
        await task
    batch.end_record(deliveries[2], DeliveryError("later"), True)

    assert [str(error) for error in batch.unretrieved_errors] == ["not gathered"]


@pytest.mark.parametrize("ends", ["succeed", "give_up"])
async def test_gathering_leaves_no_cycle_behind(path, accumulator, ends):
    queue = accumulator.topics["orders"].queues[0]
    gc.collect()
    gc.disable()
    try:
        deliveries = [send(path) for _ in range(3)]
        pending = send(path, 1)
        task = await started(gather([*deliveries, pending]))
        batch, waiting = weakref.ref(queue.tail), weakref.ref(task)
        if ends == "succeed":
            queue.tail.succeed(0, -1, -1)
            batch_of(pending).succeed(0, -1, -1)
            await task
        else:
            queue.tail.give_up(DeliveryError("refused"))
            [error] = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(error, DeliveryError)
            del error
        queue.tail = None
        queue.batches = ()
        del task, deliveries
        await asyncio.sleep(0)  # the loop releases its reference to the task at the end of this turn

        assert waiting() is None
        assert batch() is None
    finally:
        gc.enable()


# -------------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("message", ["Cancelled via cancel scope 7f", None, ("any", "object")])
async def test_cancelling_it_cancels_the_deliveries_without_results_and_keeps_the_message(path, message):
    fine, pending = send(path, 0), send(path, 1)
    task = await started(gather([fine, pending]))
    batch_of(fine).succeed(5, -1, -1)

    task.cancel(message)

    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert caught.value.args == (() if message is None else (message,))
    assert (fine.cancelled(), pending.cancelled()) == (False, True)
    assert pending._cancel_message == message
    assert batch_of(pending).record_count == 1
    batch_of(pending).succeed(0, -1, -1)


async def test_a_shielded_gather_keeps_its_deliveries(path, accumulator):
    deliveries = [send(path) for _ in range(2)]

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(gather(deliveries)), 1 * MS)

    accumulator.tail.succeed(5, -1, -1)
    assert [metadata.offset for metadata in await gather(deliveries)] == [5, 6]


async def test_a_cancelled_delivery_ends_the_wait_of_the_others(path):
    cancelled, pending = send(path, 0), send(path, 1)
    task = await started(gather([pending, cancelled]))

    cancelled.cancel("enough")

    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert not pending.done()


# ------------------------------------------------------------------------------------------------ other awaitables


async def test_other_awaitables_are_gathered_by_asyncio(path, accumulator):
    async def work() -> int:
        return 7

    future = asyncio.get_running_loop().create_future()
    delivery = send(path)
    accumulator.tail.succeed(5, -1, -1)
    future.set_result(6)

    results = await gather([delivery, future, work()])

    assert [results[0].offset, *results[1:]] == [5, 6, 7]
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("theirs"))
    with pytest.raises(ValueError, match="theirs"):
        await gather([delivery, failed])
    assert [type(each) for each in await gather([failed], return_exceptions=True)] == [ValueError]


async def test_cancelling_a_gather_of_other_awaitables_cancels_them(path):
    future, delivery = asyncio.get_running_loop().create_future(), send(path)
    task = await started(gather([future, delivery]))

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (future.cancelled(), delivery.cancelled()) == (True, True)


async def test_a_single_delivery_is_rejected(path):
    with pytest.raises(
        TypeError, match=r"an iterable of deliveries, not a single Delivery; await it directly"
    ):
        await gather(send(path))
    with pytest.raises(TypeError):
        await gather(["orders"])


async def test_deliveries_of_another_loop_are_rejected(path):
    async def in_another_loop(delivery: Delivery) -> None:
        with pytest.raises(ValueError, match="an event loop other than the running one"):
            await gather([delivery])

    delivery = send(path)
    await asyncio.to_thread(asyncio.run, in_another_loop(delivery))
    assert not delivery.done()


# ------------------------------------------------------------------------------------------- the same as asyncio's


class Scenario:
    """The batches of a run, and random events for them. Two runs with the same seed differ only in `gather`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.noted: list[int] = []
        loop = asyncio.get_running_loop()
        self.batches = [new_batch(loop, noted=self.noted) for _ in range(self.random.randint(1, 4))]
        self.deliveries: list[Delivery] = []
        for batch in self.batches:
            for index in range(self.random.randint(1, 4)):
                batch.try_append(b"v", None, 1, None)
                self.deliveries.append(batch.delivery(index))
        self.random.shuffle(self.deliveries)
        self.number = 0

    def happen(self) -> None:
        """End a batch or a record, or cancel a delivery."""
        self.number += 1
        error = DeliveryError(f"error {self.number}")
        kind = self.random.randrange(8)
        delivery = self.random.choice(self.deliveries)
        batch = self.random.choice(self.batches)
        if kind == 0:
            delivery.cancel(f"delivery cancelled {self.number}")
        elif kind <= 2:
            if not delivery.done():
                delivery.batch.end_record(delivery, error, True)
        elif batch.state.name != "DONE":
            batch.give_up(error) if kind <= 4 else batch.succeed(100 * self.number, -1, -1)

    def finish(self) -> None:
        for batch in self.batches:
            if batch.state.name != "DONE":
                batch.give_up(DeliveryError("at the end"))


async def settled() -> None:
    """Wait until the callbacks of asyncio.gather have run, which takes one more turn of the loop than ours."""
    for _ in range(4):
        await asyncio.sleep(0)


async def outcome_of(gathers: Gather, seed: int) -> list[Any]:
    """Play a scenario, and return all its observable effects."""
    scenario = Scenario(seed)
    chance = scenario.random
    for _ in range(chance.choice((0, 0, 2))):
        scenario.happen()
    returns_exceptions = chance.random() < 0.4
    gathered = [chance.choice(scenario.deliveries) for _ in range(chance.randint(1, 8))]
    task = await started(gathers(gathered, return_exceptions=returns_exceptions))
    await settled()
    seen: list[Any] = []
    for _ in range(chance.randint(0, 5)):
        if chance.random() < 0.1:
            task.cancel("cancelled")
            await settled()  # asyncio.gather cancels the deliveries immediately, ours once its task resumes
        for _ in range(chance.randint(0, 3)):
            scenario.happen()
        await settled()
        seen.append((task.done(), [each.done() for each in scenario.deliveries]))
    scenario.finish()
    [result] = await asyncio.gather(task, return_exceptions=True)
    await settled()
    seen.append([str(each) for each in result] if isinstance(result, list) else (type(result), result.args))
    seen.append([each.cancelled() for each in scenario.deliveries])
    del gathered, task, result
    seen.append([str(error) for batch in scenario.batches for error in batch.unretrieved_errors])
    scenario.deliveries.clear()
    scenario.batches.clear()
    return [*seen, sorted(scenario.noted)]


@pytest.mark.parametrize("first", range(0, 1000, 250))
async def test_it_behaves_like_asyncios_gather(first):
    for seed in range(first, first + 250):
        assert await outcome_of(gather, seed) == await outcome_of(theirs, seed), f"seed {seed}"
