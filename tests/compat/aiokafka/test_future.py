"""The futures of the compat producer, used with asyncio's functions."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer import DeliveryError
from aioproducer.compat.aiokafka.errors import KafkaError, PolicyViolationError
from aioproducer.compat.aiokafka.future import Future
from aioproducer.compat.aiokafka.structs import RecordMetadata
from aioproducer.protocol.error_codes import ErrorCode
from tests.support.compat import aiokafka_producing
from tests.support.producing import PRODUCE, until


async def test_every_way_to_wait_gives_the_metadata_as_a_tuple():
    async with aiokafka_producing() as (_, producer):
        futures = [await producer.send("t", b"%d" % number, partition=0) for number in range(8)]

        assert all(isinstance(future, Future) and asyncio.isfuture(future) for future in futures)
        found = [await futures[0], *await asyncio.gather(*futures[1:3])]
        done, _ = await asyncio.wait(futures[3:4])
        found += [future.result() for future in done]
        found.append(await asyncio.wait_for(futures[4], 5))
        found.append(await asyncio.shield(futures[5]))
        found += [await future for future in asyncio.as_completed(futures[6:7])]
        found.append(await asyncio.ensure_future(futures[7]))

    assert [metadata.offset for metadata in found] == list(range(8))
    topic, partition, topic_partition, *_ = found[0]
    assert (topic, partition, topic_partition) == ("t", 0, ("t", 0))
    assert all(type(metadata) is RecordMetadata for metadata in found)
    assert [future.exception() for future in futures] == [None] * 8


WAYS = {
    "await": lambda future: _awaited(future),
    "gather": lambda future: asyncio.gather(future),
    "wait_for": lambda future: asyncio.wait_for(future, 5),
    "shield": lambda future: asyncio.shield(future),
    "a task": lambda future: asyncio.ensure_future(_awaited(future)),
    "as_completed": lambda future: next(iter(asyncio.as_completed([future]))),
}


async def _awaited(future):
    return await future


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_wait_raises_aiokafkas_error(way):
    async with aiokafka_producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION)

        future = await producer.send("t", b"v")

        with pytest.raises(PolicyViolationError) as caught:
            await WAYS[way](future)
        assert isinstance(caught.value, DeliveryError)
        assert isinstance(future.exception(), PolicyViolationError)
        with pytest.raises(PolicyViolationError):
            future.result()


async def test_gather_with_exceptions_returns_aiokafkas_errors_among_the_results():
    async with aiokafka_producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION, partition=0)

        futures = [await producer.send("t", b"v", partition=partition) for partition in (0, 1)]
        refused, stored = await asyncio.gather(*futures, return_exceptions=True)

        assert isinstance(refused, PolicyViolationError)
        assert (stored.partition, stored.offset) == (1, 0)


async def test_a_task_group_raises_aiokafkas_errors():
    async with aiokafka_producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION)
        caught = None

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(producer.send_and_wait("t", b"v"))
        except* PolicyViolationError as errors:
            caught = errors.exceptions

        assert len(caught) == 1


async def test_callbacks_receive_the_future_and_can_be_removed():
    async with aiokafka_producing() as (_, producer):
        called, others = [], []
        future = await producer.send("t", b"v")

        future.add_done_callback(called.append)
        future.add_done_callback(others.append)
        future.add_done_callback(others.append)
        assert future.remove_done_callback(others.append) == 2
        await future
        await until(lambda: called)

        assert called == [future]
        assert others == []
        assert future.get_loop() is asyncio.get_running_loop()


async def test_cancelling_ends_the_wait_and_the_record_is_sent():
    async with aiokafka_producing(linger_ms=20) as (cluster, producer):
        future = await producer.send("t", b"v", partition=0)
        waiting = asyncio.ensure_future(_awaited(future))
        await asyncio.sleep(0)

        assert future.cancel("no more interest")

        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(asyncio.CancelledError):
            await asyncio.gather(future)
        assert future.cancelled()
        assert future.done()
        await producer.flush()
        assert [record.value for record in cluster.records("t", 0)] == [b"v"]


async def test_a_future_without_a_result_says_so():
    async with aiokafka_producing(linger_ms=1000) as (_, producer):
        future = await producer.send("t", b"v", partition=1)

        assert not future.done()
        assert repr(future) == "<Future t-1 pending>"
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        with pytest.raises(asyncio.InvalidStateError):
            future.exception()


async def test_an_unretrieved_failure_is_counted():
    async with aiokafka_producing() as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION)

        future = await producer.send("t", b"v")
        await asyncio.wait([future])
        del future
        report = await producer.stop()

        assert report.unretrieved == {("t", "DeliveryError"): 1}


def test_a_kafka_error_is_what_futures_raise():
    assert issubclass(PolicyViolationError, KafkaError)
