"""Producers that are dropped without close(), and loops that are closed while a producer connects."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aioproducer import Delivery, Producer
from aioproducer.testing import EmbeddedCluster
from tests.support.scripted_broker import LONG, Net, ScriptedBroker, silence, until


def own_tasks() -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("aioproducer")]


@contextmanager
def dropping() -> Iterator[list[str]]:
    """Collect garbage after a block in which a producer is dropped. Yields a list, which gets the warnings' texts."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
        gc.collect()
        told += [str(warning.message) for warning in caught if warning.category is ResourceWarning]


@pytest.mark.promise(
    "As a whole",
    "a dropped producer is collected while its loop runs: the loop refers to it weakly, and `__del__` "
    "closes it in its loop",
)
@pytest.mark.parametrize("settings", [{}, {"transactional_id": "id"}, {"acks": 1}], ids=str)
async def test_a_dropped_producer_is_collected_and_leaves_neither_task_nor_connection(settings):
    async with EmbeddedCluster(2, topics={"t": 4}) as cluster:
        producer = Producer(cluster.bootstrap_servers, **settings)
        await producer.start()
        if "transactional_id" in settings:
            await producer.begin_transaction()
        for partition in range(4):
            await producer.send_and_wait("t", b"v", partition=partition)
        reference = weakref.ref(producer)
        connections = [entry.connection for entry in producer._brokers._entries.values()]
        assert any(connections)

        with dropping() as told:
            del producer

        assert len(told) == 1
        assert "was not closed" in told[0]
        await until(lambda: not own_tasks())
        await until(lambda: all(connection is None or connection.is_gone for connection in connections))
        await until(lambda: gc.collect() >= 0 and reference() is None)


@pytest.mark.promise(
    "As a whole",
    "a dropped producer is collected while its loop runs: the loop refers to it weakly, and `__del__` "
    "closes it in its loop",
)
async def test_records_of_a_dropped_producer_are_delivered():
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:

        async def send() -> list[Delivery]:
            producer = Producer(cluster.bootstrap_servers, linger_ms=60_000)
            await producer.start()
            return [await producer.send("t", b"%d" % number) for number in range(10)]

        with dropping() as told:
            deliveries = await send()
        assert len(told) == 1

        results = await asyncio.wait_for(asyncio.gather(*deliveries), LONG)
        assert [metadata.offset for metadata in results] == list(range(10))
        assert len(cluster.records("t", 0)) == 10
        await until(lambda: not own_tasks())


async def test_a_producer_that_another_thread_collects_is_closed_in_its_loop():
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        producer = Producer(cluster.bootstrap_servers)
        await producer.start()
        held = [producer]
        del producer

        thread = threading.Thread(target=held.clear)
        with dropping() as told:
            thread.start()
            thread.join()

        assert len(told) == 1
        await until(lambda: not own_tasks())


async def test_a_forked_child_leaves_the_parents_loop_alone(monkeypatch):
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        async with Producer(cluster.bootstrap_servers) as producer:
            scheduled: list[object] = []
            monkeypatch.setattr(
                "aioproducer.sending.lifecycle._close_in_background",
                lambda dropped: scheduled.append(dropped),
            )
            monkeypatch.setattr(producer, "_process", os.getpid() + 1)

            producer._close_dropped()
            await asyncio.sleep(0.01)

            assert scheduled == []


async def test_a_closed_producer_is_dropped_without_a_warning():
    async with EmbeddedCluster(1, topics={"t": 1}) as cluster:
        with dropping() as told:
            async with Producer(cluster.bootstrap_servers) as producer:
                await producer.send_and_wait("t", b"v")
            del producer

        assert told == []


PROGRAM = """
import asyncio, gc, socket, sys
from aioproducer import Producer

server = socket.create_server(("127.0.0.1", 0))  # accepts connections and stays silent
port = server.getsockname()[1]

async def hang(host, port):
    await asyncio.Event().wait()

async def main(kind, seconds):
    producer = {
        "silent": lambda: Producer(f"127.0.0.1:{port}"),
        "two": lambda: Producer(f"127.0.0.1:{port}"),
        "connector": lambda: Producer(f"127.0.0.1:{port}", connector=hang),
        "raced": lambda: Producer(f"localhost:{port}"),
    }[kind]()
    starting = asyncio.ensure_future(producer.start())
    await asyncio.sleep(seconds)
    return starting

kind, loop_name = sys.argv[1:]
if loop_name == "uvloop":
    import uvloop
    loop = uvloop.new_event_loop()
else:
    loop = asyncio.new_event_loop()
starting = loop.run_until_complete(main(kind, 1.3 if kind == "two" else 0.2))
loop.close()
del starting
gc.collect()
del loop
gc.collect()
"""


@pytest.mark.promise(
    "As a whole",
    "a dropped producer is collected while its loop runs: the loop refers to it weakly, and `__del__` "
    "closes it in its loop",
)
@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", ["silent", "two", "connector", "raced"])
def test_a_loop_that_is_closed_while_a_broker_is_dialled_leaves_no_traceback(kind, loop_name):
    if loop_name == "uvloop":
        pytest.importorskip("uvloop")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, loop_name],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for word in "Traceback", "Event loop is closed", "Exception ignored", "GeneratorExit":
        assert word not in done.stderr, done.stderr
    assert (
        "Task was destroyed but it is pending" in done.stderr
    )  # asyncio's own message: a connection attempt was in progress


async def test_a_start_that_is_discarded_with_its_loop_awaits_nothing():
    async with ScriptedBroker(silence) as broker, Net(broker.address) as net:
        coroutine = net.brokers._dial(net.brokers._entries[-1])
        coroutine.send(None)

        coroutine.close()  # raises RuntimeError if it awaits something

        assert net.brokers.lost == 0
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task.get_name().startswith("aioproducer connection"):
                task.cancel()
                await asyncio.wait([task])


def test_a_dropped_producer_whose_loop_ends_before_it_is_closed_logs_its_records():
    script = """
    import asyncio, gc
    from aioproducer import Producer
    from aioproducer.testing import EmbeddedCluster

    async def main():
        async with EmbeddedCluster(topics={"t": 1}) as cluster:
            producer = Producer(bootstrap_servers=cluster.bootstrap_servers)
            await producer.start()
            await producer.send_and_wait("t", b"x")
            await cluster.stop()
            for _ in range(3):
                await producer.send("t", b"x")
        del producer
        gc.collect()
        await asyncio.sleep(0.05)  # close() has begun and waits for the records

    asyncio.run(main())
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )

    assert "as happens when an event loop ends, before 3 accepted records had a result" in done.stderr
