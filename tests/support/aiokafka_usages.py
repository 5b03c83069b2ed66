"""Uses of aiokafka's producer, taken from its documentation: lifecycle, records, batches, transactions, errors.

Each takes the imported package and the address of a cluster, and returns what the user saw.
test_aiokafka_surface.py runs it with both clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiokafka
import pytest

NOON = 1_700_000_000_000
"""A timestamp in the past, which cannot come from the clock."""

Usage = Callable[[Any, str], Awaitable[Any]]

USAGES: list[Usage] = []


def usage(function: Usage) -> Usage:
    """Mark a function to be run with both clients."""
    USAGES.append(function)
    return function


# ---------------------------------------------------------------------------------------------- lifecycle


@usage
async def start_send_and_wait_stop(imported, servers):
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    try:
        await producer.send_and_wait("numbers", b"one", partition=0)
    finally:
        await producer.stop()


@usage
async def async_with(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=[servers]) as producer:
        await producer.send_and_wait("numbers", b"one", partition=0)


@usage
async def send_returns_a_future_of_the_metadata(imported, servers):
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    try:
        future = await producer.send("numbers", b"one", partition=1, timestamp_ms=NOON)
        assert asyncio.isfuture(future)
        metadata = await future
        assert future.done()
        assert future.exception() is None
        again = future.result()
    finally:
        await producer.stop()
    return [
        (
            found.topic,
            found.partition,
            found.topic_partition,
            found.topic_partition == imported.TopicPartition("numbers", 1),
            found.offset,
            found.timestamp,
            found.timestamp_type,
            found.log_start_offset,
        )
        for found in (metadata, again)
    ]


@usage
async def stop_flushes_and_futures_are_read_afterwards(imported, servers):
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers, linger_ms=30)
    await producer.start()
    futures = [await producer.send("numbers", b"%d" % number, partition=number % 3) for number in range(30)]
    await producer.stop()
    return [(future.result().partition, future.result().offset) for future in futures]


@usage
async def futures_work_with_asyncio(imported, servers):
    called = []
    async with imported.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        futures = [await producer.send("numbers", b"%d" % number, partition=0) for number in range(5)]
        futures[0].add_done_callback(lambda future: called.append(future.result().offset))
        gathered = await asyncio.gather(*futures)
        done, pending = await asyncio.wait([await producer.send("numbers", b"5", partition=0)])
        waited = await asyncio.wait_for(await producer.send("numbers", b"6", partition=0), timeout=30)
        bounded = await asyncio.wait_for(producer.send("numbers", b"7", partition=0), timeout=30)
        shielded = await asyncio.shield(bounded)
        task = asyncio.create_task(producer.send_and_wait("numbers", b"8", partition=0))
        last = await task
    offsets = [metadata.offset for metadata in (*gathered, done.pop().result(), waited, shielded, last)]
    return offsets, pending, called


@usage
async def cancelling_the_future_does_not_cancel_the_send(imported, servers):
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers, linger_ms=20)
    await producer.start()
    future = await producer.send("numbers", b"one", partition=0)
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await future
    await producer.stop()
    return future.cancelled()


@usage
async def flush(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers, linger_ms=10) as producer:
        futures = [await producer.send("numbers", b"%d" % number, partition=0) for number in range(3)]
        await producer.flush()
        return [future.done() for future in futures]


@usage
async def idempotence(imported, servers):
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
    await producer.start()
    try:
        return [
            (await producer.send_and_wait("numbers", b"%d" % number, b"key")).offset for number in range(3)
        ]
    finally:
        await producer.stop()


@usage
async def weaker_acknowledgements(imported, servers):
    for acks in (1, "all", -1):
        async with imported.AIOKafkaProducer(bootstrap_servers=servers, acks=acks) as producer:
            await producer.send_and_wait("numbers", f"acks={acks}".encode(), partition=0)


@usage
async def no_acknowledgement(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers, acks=0) as producer:
        await producer.send_and_wait("numbers", b"one", partition=0)
        # The broker answers in order: once this topic is known, it has read the record.
        await producer.partitions_for("another")


@usage
async def partitions_for(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        return await producer.partitions_for("numbers")


@usage
async def settings_of_the_documentation(imported, servers):
    producer = imported.AIOKafkaProducer(
        bootstrap_servers=servers,
        client_id="numbers-service",
        metadata_max_age_ms=300_000,
        request_timeout_ms=40_000,
        acks="all",
        key_serializer=None,
        value_serializer=None,
        compression_type=None,
        max_batch_size=16384,
        max_request_size=1_048_576,
        linger_ms=0,
        retry_backoff_ms=100,
        connections_max_idle_ms=540_000,
        enable_idempotence=False,
    )
    async with producer:
        await producer.send_and_wait("numbers", b"one", partition=0)


# ------------------------------------------------------------------------------------------------ records


@usage
async def keys_headers_timestamps_and_tombstones(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait("numbers", b"one", b"key", 3, NOON, [("trace", b"1"), ("trace", b"2")])
        await producer.send_and_wait(
            topic="numbers",
            value=b"two",
            key=b"key",
            partition=3,
            timestamp_ms=NOON + 1,
            headers=[("a", None)],
        )
        await producer.send_and_wait("numbers", key=b"key", value=None, partition=3)
        await producer.send_and_wait("numbers", bytearray(b"three"), key=memoryview(b"key"), partition=3)
        await producer.send_and_wait("numbers", b"four", key=b"key", headers=None)


@usage
async def serializers(imported, servers):
    producer = imported.AIOKafkaProducer(
        bootstrap_servers=servers,
        key_serializer=str.encode,
        value_serializer=lambda value: json.dumps(value).encode(),
        compression_type="gzip",
    )
    await producer.start()
    await producer.send("numbers", {"a": 123.4, "b": "some text " * 30}, key="first")
    await producer.send("numbers", [1, 2, 3, 4] * 50, key="second")
    await producer.stop()


def first_last_or_any(key: bytes, all_partitions: list[int], available: list[int]) -> int:
    assert set(available) <= set(all_partitions)
    if key == b"first":
        return all_partitions[0]
    return all_partitions[-1] if key == b"last" else available[4]


@usage
async def custom_partitioner(imported, servers):
    producer = imported.AIOKafkaProducer(
        bootstrap_servers=servers, partitioner=lambda *choices: first_last_or_any(*choices)
    )
    await producer.start()
    found = []
    for key in (b"last", b"some", b"first"):
        future = await producer.send("numbers", b"value", key=key)
        found.append((await future).partition)
    await producer.stop()
    return found


@usage
async def compression(imported, servers):
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        async with imported.AIOKafkaProducer(
            bootstrap_servers=servers, compression_type=codec, linger_ms=5
        ) as producer:
            text = f"{codec} ".encode() * 400
            futures = [await producer.send("numbers", text, partition=0) for _ in range(4)]
            await asyncio.gather(*futures)


# ------------------------------------------------------------------------------------ batches built by hand


@usage
async def batches_filled_until_they_are_full(imported, servers):
    """The documentation's batch producer. How many records fill a batch depends on the client."""
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers, max_batch_size=1000)
    await producer.start()
    batch = producer.create_batch()
    sent = []

    async def send(full_batch: Any) -> None:
        partition = min(await producer.partitions_for("numbers"))
        metadata = await (await producer.send_batch(full_batch, "numbers", partition=partition))
        assert metadata.offset == sum(sent)
        sent.append(full_batch.record_count())

    number = 0
    while number < 200:
        if batch.append(key=None, value=b"Message %d" % number, timestamp=None) is None:
            await send(batch)
            batch = producer.create_batch()
            continue
        number += 1
    await send(batch)
    await producer.stop()
    return len(sent) > 2, sum(sent)


@usage
async def a_batch_reports_its_contents(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait("numbers", b"before", partition=1)
        batch = producer.create_batch()
        sizes = [batch.size()]
        found = []
        for number in range(3):
            metadata = batch.append(
                value=b"msg %d" % number, key=b"k", timestamp=NOON + number, headers=[("h", b"v")]
            )
            found.append((metadata.offset, metadata.size, metadata.timestamp))
            sizes.append(batch.size())
        count = batch.record_count()
        batch.close()
        refused = batch.append(value=b"too late", key=None, timestamp=None)
        future = await producer.send_batch(batch, "numbers", partition=1)
        record = await future
    return sizes, found, count, refused, record.topic, record.partition, record.offset


@usage
async def batches_are_serialized_too(imported, servers):
    def as_json(value: object) -> bytes:
        return json.dumps(value).encode()

    async with imported.AIOKafkaProducer(
        bootstrap_servers=servers, key_serializer=str.encode, value_serializer=as_json
    ) as producer:
        batch = producer.create_batch()
        batch.append(key="first", value={"a": 1}, timestamp=None)
        batch.append(key="second", value=[1, 2], timestamp=NOON)
        await (await producer.send_batch(batch, "numbers", partition=2))


@usage
async def a_batch_is_closed_once_it_is_full_or_sent(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers, max_batch_size=500) as producer:
        batch = producer.create_batch()
        states = [batch.closed()]
        while batch.append(key=None, value=bytes(100), timestamp=None) is not None:
            pass
        states.append(batch.closed())
        assert batch.append(key=None, value=b"", timestamp=None) is None
        other = producer.create_batch()
        other.append(key=None, value=b"one", timestamp=None)
        await (await producer.send_batch(other, "numbers", partition=0))
        states.append(other.closed())
        return states


# ------------------------------------------------------------------------------------------- transactions


@usage
async def transactions(imported, servers):
    producer = imported.AIOKafkaProducer(
        bootstrap_servers=servers, transactional_id="numbers-1", transaction_timeout_ms=30_000
    )
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait("numbers", b"one", partition=0)
            future = await producer.send("numbers", b"two", partition=1)
        told = [(await future).offset]
        async with producer.transaction():
            told.append((await producer.send_and_wait("numbers", b"three", partition=0)).offset)
    finally:
        await producer.stop()
    return told[0]


@usage
async def a_transaction_that_an_exception_leaves_is_aborted(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="numbers-2") as producer:

        async def leave_it() -> None:
            async with producer.transaction():
                await producer.send_and_wait("numbers", b"aborted", partition=0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await leave_it()
        async with producer.transaction():
            await producer.send_and_wait("numbers", b"committed", partition=0)


@usage
async def transactions_step_by_step(imported, servers):
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="numbers-3")
    await producer.start()
    await producer.begin_transaction()
    await producer.send("numbers", b"one", partition=0)
    await producer.commit_transaction()
    await producer.begin_transaction()
    await producer.send_and_wait("numbers", b"two", partition=0)
    await producer.abort_transaction()
    await producer.stop()


@usage
async def offsets_in_a_transaction(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="numbers-4") as producer:
        async with producer.transaction():
            await producer.send_and_wait("numbers", b"one", partition=0)
            offsets = {imported.TopicPartition("numbers", 0): 100}
            await producer.send_offsets_to_transaction(offsets, "readers")
    return await committed(servers, "readers")


async def committed(servers: str, group: str) -> int:
    """The group's position, read by a third client."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition("numbers", 0)
        consumer.assign([partition])
        return await consumer.committed(partition)
    finally:
        await consumer.stop()


@usage
async def transactional_calls_without_a_transactional_id(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait("numbers", b"one", partition=0)
        with pytest.raises(imported.IllegalOperation):
            await producer.begin_transaction()


@usage
async def sending_outside_of_a_transaction(imported, servers):
    async with imported.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="numbers-5") as producer:
        with pytest.raises(imported.IllegalOperation):
            await producer.send("numbers", b"stray", partition=0)
        async with producer.transaction():
            await producer.send_and_wait("numbers", b"one", partition=0)


# ------------------------------------------------------------------------------------------------------ errors


@usage
async def nothing_is_sent_after_stop(imported, servers):
    producer = imported.AIOKafkaProducer(bootstrap_servers=servers)
    await producer.start()
    await producer.send_and_wait("numbers", b"before", partition=0)
    await producer.stop()
    await producer.stop()  # harmless
    with pytest.raises(imported.ProducerClosed) as caught:
        await producer.send("numbers", b"one")
    return [isinstance(caught.value, kind) for kind in (imported.KafkaError, RuntimeError)]


@usage
async def errors_are_caught_as_kafka_errors(imported, servers):
    seen = []
    async with imported.AIOKafkaProducer(bootstrap_servers=servers, max_request_size=2000) as producer:
        await producer.send_and_wait("numbers", b"good", partition=0)
        try:
            await producer.send("numbers", bytes(3000), partition=0)
        except imported.KafkaError:
            seen.append("too large")
        await producer.send_and_wait("numbers", b"good too", partition=0)
    return seen


@usage
async def settings_that_make_no_sense_are_value_errors(imported, servers):
    for settings in (
        {"acks": 7},
        {"acks": "some"},
        {"compression_type": "zip"},
        {"enable_idempotence": True, "acks": 1},
        {"enable_idempotence": True, "acks": 0},
    ):
        with pytest.raises(ValueError, match=r"(?i)acks|compression"):
            imported.AIOKafkaProducer(bootstrap_servers=servers, **settings)
