"""Keys go to the same partitions as with the Java client, librdkafka and aiokafka: each client produces, and the logs
are compared."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from aiokafka.partitioner import DefaultPartitioner as AiokafkaPartitioner

from aioproducer.partitioner import Hashed, RoundRobin, murmur2_partition
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.apache.jars import class_path, java_executable
from aioproducer.testing.apache.process import ChildProcesses
from tests.conftest import MS
from tests.support.producing import quick_producer, results, within

WAIT = 30_000 * MS
"""Seconds; longer than any of these steps takes."""

PARTITIONS = 11
# Text without line ends, because one of the clients reads lines from a pipe.
KEYS = [
    b"",
    b"21",
    b"foobar",
    "ключ 名前 🛫".encode(),
    *(b"k" * length for length in range(1, 30)),
    *(b"order-%d" % number for number in range(160)),
]
BINARY_KEYS = [random.Random(3).randbytes(length) for length in range(1, 60)]

Placed = dict[bytes | None, set[int]]


def placed(cluster: EmbeddedCluster, topic: str) -> Placed:
    """Return, for each key, the partitions whose logs contain it."""
    found: Placed = defaultdict(set)
    for partition in range(PARTITIONS):
        for record in cluster.records(topic, partition):
            found[record.key].add(partition)
    return dict(found)


async def placed_by_us(keys: list[bytes | None], **settings: object) -> Placed:
    async with EmbeddedCluster(topics={"t": PARTITIONS}) as cluster:
        async with quick_producer(cluster, **settings) as producer:
            await results([await producer.send("t", b"v", key) for key in keys])
        return placed(cluster, "t")


# --------------------------------------------------------------------------------------------------- aiokafka


async def placed_by_aiokafka(keys: list[bytes]) -> Placed:
    async with EmbeddedCluster(topics={"t": PARTITIONS}) as cluster:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        await producer.start()
        try:
            futures = [await producer.send("t", b"v", key) for key in keys]
            await within(WAIT, asyncio.gather(*futures))
        finally:
            await producer.stop()
        return placed(cluster, "t")


@pytest.mark.promise(
    "Coming from other clients", "keys go where Java's client, librdkafka and aiokafka put them"
)
async def test_keys_go_where_aiokafka_puts_them():
    keys = KEYS + BINARY_KEYS

    assert await placed_by_us(keys) == await placed_by_aiokafka(keys)


async def test_aiokafkas_own_partitioner_can_be_plugged_in_and_agrees():
    keys = KEYS + BINARY_KEYS

    assert await placed_by_us(keys, partitioner=AiokafkaPartitioner()) == await placed_by_us(keys)


# ------------------------------------------------------------------------------------------------- librdkafka


def produce_with_librdkafka(servers: str, partitioner: str, keys: list[bytes | None]) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "partitioner": partitioner,
            "linger.ms": 1,
            "sticky.partitioning.linger.ms": 0,  # choose a new partition for each record without a key
        }
    )
    for key in keys:
        producer.produce("t", b"v", key)
    assert producer.flush(WAIT) == 0


async def placed_by_librdkafka(keys: list[bytes | None], partitioner: str) -> Placed:
    async with EmbeddedCluster(topics={"t": PARTITIONS}) as cluster:
        await asyncio.to_thread(produce_with_librdkafka, cluster.bootstrap_servers, partitioner, keys)
        return placed(cluster, "t")


@pytest.mark.promise(
    "Coming from other clients", "keys go where Java's client, librdkafka and aiokafka put them"
)
@pytest.mark.parametrize(
    "name",
    ["murmur2", "murmur2_random", "consistent", "consistent_random", "fnv1a", "fnv1a_random"],
)
async def test_keys_go_where_librdkafkas_partitioner_of_the_same_name_puts_them(name):
    keys = [key for key in KEYS + BINARY_KEYS if key]  # empty and missing keys are tested below

    assert await placed_by_us(keys, partitioner=name) == await placed_by_librdkafka(keys, name)


@pytest.mark.parametrize(
    ("name", "empty_is_one", "none_is_one"),
    [
        ("random", False, False),
        ("consistent", True, True),
        ("consistent_random", False, False),
        ("murmur2_random", True, False),
        ("fnv1a", True, True),
        ("fnv1a_random", True, False),
    ],
)
async def test_records_without_a_key_or_with_an_empty_one_are_placed_as_by_librdkafka(
    name, empty_is_one, none_is_one
):
    keys: list[bytes | None] = [b"", None] * 60
    # A batch contains one record, so our sticky partitioners move on with each record.
    ours = await placed_by_us(keys, partitioner=name, batch_size=1)
    theirs = await placed_by_librdkafka(keys, name)

    for key, is_one in ((b"", empty_is_one), (None, none_is_one)):
        if is_one:
            assert ours[key] == theirs[key]
            assert len(ours[key]) == 1
        else:
            assert len(ours[key]) > 1
            assert len(theirs[key]) > 1


async def test_the_name_murmur2_spreads_records_without_a_key_as_java_does_and_librdkafka_does_not():
    keys: list[bytes | None] = [None] * 60

    assert len((await placed_by_us(keys, partitioner="murmur2", batch_size=1))[None]) > 1
    theirs = await placed_by_librdkafka(keys, "murmur2")
    assert len(theirs[None]) == 1
    # The exact equivalent of librdkafka's partitioner is a callable.
    assert await placed_by_us(keys, partitioner=Hashed(murmur2_partition)) == theirs


async def test_partitioners_with_names_can_also_be_passed_as_callables():
    keys = [b"one key"] * (2 * PARTITIONS)

    assert (await placed_by_us(keys, partitioner=RoundRobin()))[b"one key"] == set(range(PARTITIONS))


# -------------------------------------------------------------------------------------------- the Java client


async def produce_with_java(version: str, servers: str, keys: list[bytes], directory: Path) -> str:
    """Feed the keys to Kafka's console producer, with this version of the client; return the producer's log."""
    children = ChildProcesses()
    try:
        client = await class_path(version, children, directory / "jars.log")
        tool = await class_path(
            "3.9.2", children, directory / "jars.log"
        )  # its jars contain the console producer
    finally:
        children.end()
    (client_jar,) = [jar for jar in client.split(os.pathsep) if Path(jar).name.startswith("kafka-clients-")]
    java = await asyncio.create_subprocess_exec(
        *(java_executable(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-cp", os.pathsep.join([client_jar, tool]), "kafka.tools.ConsoleProducer"),
        *("--bootstrap-server", servers, "--topic", "t"),
        *("--property", "parse.key=true", "--property", "key.separator=|"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        lines = b"".join(key + b"|v\n" for key in keys)
        log, _ = await within(WAIT, java.communicate(lines))
    finally:
        if java.returncode is None:
            java.kill()
            await java.wait()
    assert java.returncode == 0, log.decode()
    return log.decode()


@pytest.mark.promise(
    "Coming from other clients", "keys go where Java's client, librdkafka and aiokafka put them"
)
@pytest.mark.apache
@pytest.mark.parametrize("version", ["4.3.1", "3.9.2"])
async def test_keys_go_where_the_java_client_puts_them(version, tmp_path):
    async with EmbeddedCluster(topics={"t": PARTITIONS}) as cluster:
        log = await produce_with_java(version, cluster.bootstrap_servers, KEYS, tmp_path)
        by_java = placed(cluster, "t")

    assert f"Kafka version: {version}" in log
    assert len(by_java) == len(set(KEYS))
    assert by_java == await placed_by_us(KEYS)
