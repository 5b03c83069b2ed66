"""Every public coroutine under the cancel scopes of anyio (as in FastAPI), and under asyncio.timeout.

anyio recognizes its own cancellations by their message, and repeats them in each turn of the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioproducer import Producer, TransformLoop, gather
from aioproducer.compat.aiokafka.future import Future
from aioproducer.errors import WrongLoopError
from aioproducer.testing import EmbeddedCluster, RecordingProducer
from tests.conftest import MS
from tests.support import transforming
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    assert_nothing_left,
    producing,
    quick_producer,
    until,
    values,
    within,
)

Call = Callable[[], Awaitable[object]]
DEADLINE = 20 * MS

# ---------------------------------------------------------------------------------------- ways to end a call


async def fail_after(call: Call) -> None:
    with pytest.raises(TimeoutError), anyio.fail_after(DEADLINE):
        await call()


async def move_on_after(call: Call) -> None:
    with anyio.move_on_after(DEADLINE) as scope:
        await call()
    assert scope.cancelled_caught


async def cancelled_task_group(call: Call) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await asyncio.sleep(DEADLINE)
        group.cancel_scope.cancel()
    assert group.cancel_scope.cancelled_caught


async def asyncio_timeout(call: Call) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DEADLINE):
            await call()


ENDS = [fail_after, move_on_after, cancelled_task_group, asyncio_timeout]

# ------------------------------------------------------------------------------- calls that wait for a broker


@asynccontextmanager
async def without_answers(**settings: Any) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """A producer that knows topic t, and a cluster that does not answer until its broker 0 is thawed."""
    async with producing(**settings) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.freeze_broker(0)
        yield cluster, producer


async def awaiting(waited_for: Awaitable[Any]) -> object:
    return await waited_for


async def of_a_delivery(producer: Producer) -> Call:
    delivery = await producer.send("t", b"v")
    return lambda: awaiting(delivery)


async def of_a_future_of_aiokafkas_interface(producer: Producer) -> Call:
    future = Future(await producer.send("t", b"v"), True)
    return lambda: awaiting(future)


async def of_gathered_deliveries(producer: Producer) -> Call:
    sent = [await producer.send("t", b"v") for _ in range(2)]
    return lambda: awaiting(asyncio.gather(*sent))


async def of_deliveries_gathered_by_the_package(producer: Producer) -> Call:
    sent = [await producer.send("t", b"v") for _ in range(2)]
    return lambda: gather(sent)


async def of_shielded_delivery(producer: Producer) -> Call:
    delivery = await producer.send("t", b"v")
    return lambda: awaiting(asyncio.shield(delivery))


async def of_a_receipt(producer: Producer) -> Call:
    receipt = await producer.send_many("t", [b"v"] * 2)
    return lambda: awaiting(receipt)


async def of_a_receipts_wait(producer: Producer) -> Call:
    return (await producer.send_many("t", [b"v"] * 2)).wait


async def of_a_row(producer: Producer) -> Call:
    receipt = await producer.send_many("t", [b"v"] * 2)
    return lambda: awaiting(receipt.delivery(1))


async def of_a_batch_that_was_built(producer: Producer) -> Call:
    built = producer.create_batch()
    built.append(key=None, value=b"v")
    delivery = await producer.send_batch(built, "t", partition=0)
    return lambda: awaiting(delivery)


async def of_send_and_wait(producer: Producer) -> Call:
    return lambda: producer.send_and_wait("t", b"v")


async def of_send_and_wait_with_a_timeout(producer: Producer) -> Call:
    return lambda: producer.send_and_wait("t", b"v", timeout=60)


async def of_flush(producer: Producer) -> Call:
    await producer.send("t", b"v")
    return producer.flush


async def of_flush_with_a_timeout(producer: Producer) -> Call:
    await producer.send("t", b"v")
    return lambda: producer.flush(60)


@pytest.mark.promise(
    "Public API", "each call ends in its cancel scope, anyio's too: the message of a cancellation is kept"
)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "call",
    [
        of_a_delivery,
        of_a_future_of_aiokafkas_interface,
        of_gathered_deliveries,
        of_deliveries_gathered_by_the_package,
        of_shielded_delivery,
        of_a_receipt,
        of_a_receipts_wait,
        of_a_row,
        of_a_batch_that_was_built,
        of_send_and_wait,
        of_send_and_wait_with_a_timeout,
        of_flush,
        of_flush_with_a_timeout,
    ],
)
async def test_a_wait_for_an_acknowledgement_ends_in_its_scope_and_the_records_are_sent(end, call):
    async with without_answers() as (cluster, producer):
        waits = await call(producer)

        await within(1, end(waits))

        cluster.thaw_broker(0)
        await within(2, producer.flush())
        assert set(values(cluster)) == {b"v"}


async def test_a_task_that_waits_for_a_delivery_of_an_earlier_call_is_cancelled_only_by_its_own_scope():
    async with without_answers() as (cluster, producer):
        first, second = await producer.send("t", b"1"), await producer.send("t", b"2")
        with anyio.move_on_after(60):
            with anyio.move_on_after(DEADLINE) as inner:
                await first
            assert inner.cancelled_caught
            cluster.thaw_broker(0)
            assert (await within(1, second)).offset == 1


# ------------------------------------------------------------------------------ calls that wait for something else


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.send("other", b"v"),
        lambda producer: producer.send_and_wait("other", b"v"),
        lambda producer: producer.send_many("other", [b"v"]),
        lambda producer: producer.partitions_for("other"),
        lambda producer: producer.partition_info("other"),
    ],
    ids=["send", "send_and_wait", "send_many", "partitions_for", "partition_info"],
)
async def test_a_wait_for_metadata_ends_in_its_scope(end, call):
    async with without_answers() as (cluster, producer):
        await within(1, end(lambda: call(producer)))

        cluster.thaw_broker(0)
        assert (await within(2, producer.send_and_wait("t", b"after"))).offset == 0


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("call", ["send", "send_and_wait", "send_many", "send_batch"])
async def test_a_wait_for_room_ends_in_its_scope_and_leaves_no_record(end, call):
    async with without_answers(**FOUR_RECORDS_FILL_IT) as (cluster, producer):
        built = producer.create_batch()
        built.append(key=None, value=b"late" + bytes(LARGE))
        for _ in range(4):
            await producer.send("t", bytes(LARGE))
        calls: dict[str, Call] = {
            "send": lambda: producer.send("t", b"late" + bytes(LARGE)),
            "send_and_wait": lambda: producer.send_and_wait("t", b"late" + bytes(LARGE)),
            "send_many": lambda: producer.send_many("t", [b"late" + bytes(LARGE)]),
            "send_batch": lambda: producer.send_batch(built, "t", partition=0),
        }

        await within(1, end(calls[call]))

        assert producer.metrics().buffer_waiters == 0
        cluster.thaw_broker(0)
        await within(2, producer.flush())
        assert values(cluster) == [bytes(LARGE)] * 4


@pytest.mark.parametrize("end", ENDS)
async def test_a_wait_for_any_broker_ends_in_its_scope(end):
    async with without_answers() as (cluster, producer):
        await within(1, end(producer.ping))
        await within(1, end(producer.client_instance_id))

        cluster.thaw_broker(0)
        assert (await within(2, producer.ping())).node.node_id == 0


@pytest.mark.parametrize("end", ENDS)
async def test_start_ends_in_its_scope_and_leaves_nothing_behind(end):
    async with EmbeddedCluster(1) as cluster:
        cluster.freeze_broker(0)
        producer = quick_producer(cluster)

        await within(1, end(producer.start))

        await assert_nothing_left(producer)


@pytest.mark.promise(
    "Public API", "each call ends in its cancel scope, anyio's too: the message of a cancellation is kept"
)
@pytest.mark.parametrize("end", ENDS)
async def test_close_ends_in_its_scope_and_leaves_nothing_behind(end):
    async with without_answers() as (_, producer):
        await producer.send("t", b"v")

        await within(1, end(producer.close))

        await assert_nothing_left(producer)
        assert (await producer.close()).unknown == 1


@pytest.mark.parametrize("end", ENDS)
async def test_the_producers_block_ends_in_its_scope_and_leaves_nothing_behind(end):
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        producer = quick_producer(cluster)

        async def block() -> None:
            async with producer:
                await producer.partitions_for("t")
                cluster.freeze_broker(0)
                await producer.send_and_wait("t", b"v")

        await within(2, end(block))

        await assert_nothing_left(producer)


# ---------------------------------------------------------------------------------------------- transactions


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("call", ["commit", "abort", "fence", "offsets", "committed", "release"])
async def test_a_call_of_a_transaction_ends_in_its_scope(end, call):
    async with producing(transactional_id="tx") as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"v")
        sent = await producer.send("t", b"w")
        cluster.freeze_broker(0)
        calls: dict[str, Call] = {
            "commit": producer.commit_transaction,
            "abort": producer.abort_transaction,
            "fence": producer.fence_transaction,
            "offsets": lambda: producer.send_offsets_to_transaction({("in", 0): 7}, "group"),
            "committed": lambda: producer.committed("group", [("in", 0)]),
            "release": producer.release_transaction,
        }

        await within(1, end(calls[call]))

        cluster.thaw_broker(0)
        await until(sent.done)
        sent.exception()


@pytest.mark.parametrize("end", ENDS)
async def test_a_wait_for_the_transactional_id_ends_in_its_scope(end):
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        cluster.freeze_broker(0)
        producer = quick_producer(cluster, transactional_id="tx")
        await producer.start(wait=False)

        await within(1, end(producer.begin_transaction))
        await within(1, end(producer.init_transactions))

        cluster.thaw_broker(0)
        await within(2, producer.begin_transaction())
        assert (await within(2, producer.send_and_wait("t", b"v"))).offset == 0
        await within(2, producer.close())


@pytest.mark.parametrize("end", ENDS)
async def test_a_wait_for_exported_partitions_ends_in_its_scope(end):
    """Partitions join a transaction by a request only with transactions v1."""
    async with producing(transactional_id="tx", cluster={"transaction_version": 1}) as (cluster, producer):
        await producer.begin_transaction()
        cluster.freeze_broker(0)

        await within(1, end(lambda: producer.export_transaction([("t", 0)])))

        cluster.thaw_broker(0)
        assert (await within(2, producer.export_transaction([("t", 0)]))).transactional_id == "tx"
        await within(2, producer.abort_transaction())


@pytest.mark.parametrize("end", ENDS)
async def test_the_block_of_a_transaction_is_aborted_when_its_scope_ends(end, monkeypatch):
    monkeypatch.setattr(f"{__name__}.DEADLINE", 500 * MS)  # enough for the first record
    async with producing(transactional_id="tx") as (cluster, producer):

        async def block() -> None:
            async with producer.transaction():
                await producer.send_and_wait("t", b"given up")
                await asyncio.Event().wait()

        await within(1, end(block))

        async with producer.transaction():
            await producer.send("t", b"kept")
        assert values(cluster) == [b"given up", b"kept"]
        assert [record.value for record in cluster.records("t", committed=True)] == [b"kept"]


# ------------------------------------------------------------------------------------------- a transform loop


async def assert_copied(
    cluster: EmbeddedCluster, loop: TransformLoop, producer: Producer, count: int
) -> None:
    """Run the loop until the output has `count` records, and check that each of them is there once."""
    done = asyncio.Event()
    running = asyncio.create_task(transforming.run(loop, producer, done))
    await until(lambda: len(transforming.output(cluster)) >= count or running.done(), 30)
    done.set()
    await running
    assert sorted(transforming.output(cluster)) == sorted(b"%d" % number for number in range(count))


@pytest.mark.parametrize("end", ENDS)
@transforming.each_kind
async def test_the_block_of_a_transform_loop_ends_in_its_scope_and_its_records_are_read_again(kind, end):
    async with (
        transforming.cluster_with_input() as cluster,
        transforming.looping(kind, cluster.bootstrap_servers) as (loop, producer),
    ):
        batch = await anext(loop)

        async def block() -> None:
            async with batch:
                await transforming.copy(batch, producer)
                await asyncio.Event().wait()

        await within(5, end(block))

        await assert_copied(cluster, loop, producer, 40)


@pytest.mark.parametrize("end", ENDS)
@transforming.each_kind
async def test_a_transform_loop_that_waits_for_records_ends_in_its_scope_and_loses_none(kind, end):
    async with (
        transforming.cluster_with_input(0) as cluster,
        transforming.looping(kind, cluster.bootstrap_servers) as (loop, producer),
    ):
        await within(5, end(lambda: anext(loop)))

        await transforming.fill(cluster.bootstrap_servers, 8)
        await assert_copied(cluster, loop, producer, 8)


# ----------------------------------------------------------------------------------------------------- trio


def test_without_asyncios_loop_the_error_says_what_to_use():
    producer = Producer("localhost:9092")
    starting = producer.start()

    with pytest.raises(
        WrongLoopError, match=r"running asyncio event loop.*backend=.asyncio.*aioproducer\.blocking"
    ):
        starting.send(None)  # trio starts a coroutine in this way


@pytest.mark.parametrize("entrance", ["start", "__aenter__"])
@pytest.mark.parametrize("kind", [Producer, RecordingProducer])
def test_under_trio_the_error_says_what_to_use(kind, entrance):
    async def main() -> None:
        with pytest.raises(
            WrongLoopError, match=r"running asyncio event loop.*With trio, .*aioproducer\.blocking"
        ):
            await getattr(kind("localhost:9092"), entrance)()

    anyio.run(main, backend="trio")


# --------------------------------------------------------------------------------------------- completeness


def test_each_coroutine_of_a_producer_is_tested_here():
    source = Path(__file__).read_text()
    coroutines = {
        name
        for name, method in inspect.getmembers(Producer, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }

    assert {"send", "send_and_wait", "flush", "commit_transaction"} <= coroutines
    tested = set(re.findall(r"\bproducer\.(\w+)", source))
    assert coroutines - tested == {"stop"}, "another name for close"
