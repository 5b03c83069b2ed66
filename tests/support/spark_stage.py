"""A Spark session, and an embedded cluster in another thread, because Spark's calls block."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import DataFrame, SparkSession

from aioproducer import TopicPartition
from aioproducer.testing import ApacheKafka, EmbeddedCluster
from tests.support import spark_home
from tests.support.read_back import read_back

T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent
FORMAT = "aioproducer"


def session(master: str = "local[2]", **settings: Any) -> SparkSession:
    """A session whose workers use this Python and find the package and the tests."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *sys.path[1:]]))
    java_options = spark_home.java_options()
    builder = SparkSession.builder.master(master).appName("tests")
    told = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": java_options,
        "spark.executor.extraJavaOptions": java_options,
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    for name, value in told.items():
        builder = builder.config(name, value)
    os.environ["SPARK_HOME"] = str(spark_home.home())
    try:
        return builder.getOrCreate()
    finally:
        del os.environ["SPARK_HOME"]  # processes of another Spark version need another home


class Found(NamedTuple):
    """A record and its partition."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Any
    timestamp_ms: int


class Stage:
    """An embedded cluster for code without an event loop."""

    def __init__(self, cluster: EmbeddedCluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        self.loop = loop
        self.servers = cluster.bootstrap_servers

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the cluster's thread and return its result."""
        return call_in(self.loop, function)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic. Without this, it is created when it is first used."""
        self.call(lambda: self.cluster.create_topic(name, partitions))

    @contextmanager
    def without_new_topics(self) -> Iterator[None]:
        """Turn off the creation of topics on first use."""
        self.call(lambda: setattr(self.cluster, "auto_create", False))
        try:
            yield
        finally:
            self.call(lambda: setattr(self.cluster, "auto_create", True))

    def records(self, topic: str, *, committed: bool = False) -> list[Found]:
        """All records, or those that read_committed consumers see; an empty list if the topic does not exist."""

        def found() -> list[Found]:
            known = self.cluster.topics.get(topic)
            return [
                Found(partition, record.key, record.value, record.headers, record.timestamp)
                for partition in range(0 if known is None else len(known.partitions))
                for record in self.cluster.records(topic, partition, committed=committed)
            ]

        return self.call(found)

    def committed(self, topic: str) -> list[bytes]:
        """The values that read_committed consumers see, sorted."""
        return sorted(bytes(record.value or b"") for record in self.records(topic, committed=True))

    def offset(self, group: str, topic: str) -> int | None:
        """The committed offset of partition 0."""
        return self.call(lambda: self.cluster.groups.offsets(group).get(TopicPartition(topic, 0)))


class ApacheStage:
    """A real cluster that creates no topics by itself, for tests that are written for a Stage."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.kafka = kafka
        self.servers = kafka.bootstrap_servers

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic."""
        asyncio.run(self.kafka.create_topic(name, partitions))

    def without_new_topics(self) -> AbstractContextManager[None]:
        """Do nothing: the cluster creates no topics by itself."""
        return nullcontext()

    def records(self, topic: str, *, committed: bool = False) -> list[Found]:
        """All records, or those that read_committed consumers see, as confluent-kafka reads them."""
        log = asyncio.run(read_back(self.servers, topic, committed_only=committed))
        return [
            Found(partition, record.key, record.value, record.headers, record.timestamp)
            for partition, records in log.items()
            for record in records
        ]

    def committed(self, topic: str) -> list[bytes]:
        """The values that read_committed consumers see, sorted."""
        return sorted(record.value or b"" for record in self.records(topic, committed=True))


@contextmanager
def stage(brokers: int = 2, **settings: Any) -> Iterator[Stage]:
    """Run a block with a cluster in another thread."""
    with in_a_thread(lambda: EmbeddedCluster(brokers, **settings)) as (cluster, loop):
        yield Stage(cluster, loop)


@contextmanager
def in_a_thread(
    make: Callable[[], AbstractAsyncContextManager[T]],
) -> Iterator[tuple[T, asyncio.AbstractEventLoop]]:
    """Enter an async context manager in another thread; yield its value and that thread's event loop."""
    ready = threading.Event()
    told: list[tuple[T, asyncio.AbstractEventLoop]] = []
    end = asyncio.Event()

    async def run() -> None:
        async with make() as made:
            told.append((made, asyncio.get_running_loop()))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="beside the test")
    thread.start()
    try:
        assert ready.wait(30)
        yield told[0]
    finally:
        if told:
            told[0][1].call_soon_threadsafe(end.set)
        thread.join(30)


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> T:
    """Call a function in the thread of an event loop and return its result."""

    async def called() -> T:
        return function()

    return asyncio.run_coroutine_threadsafe(called(), loop).result(30)


def write(df: DataFrame, servers: str, topic: str | None = None, **options: Any) -> None:
    """Write a DataFrame as a user would; `kafka__linger_ms=5` sets the kafka.linger.ms option."""
    writer = df.write.format(FORMAT).option("kafka.bootstrap.servers", servers).mode("append")
    if topic is not None:
        writer = writer.option("topic", topic)
    for name, value in options.items():
        writer = writer.option(
            name.replace("kafka__", "kafka.").replace("_", ".") if name.startswith("kafka") else name, value
        )
    writer.save()
