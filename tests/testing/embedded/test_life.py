"""An embedded cluster starts quickly and leaves nothing behind, whatever its clients and its test do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeAlias

import pytest

from aioproducer import Producer
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import FetchRequest, MetadataRequest
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.testing.embedded.broker import BrokerState, EmbeddedBroker
from tests.conftest import MS
from tests.support.certificates import server_context
from tests.support.producing import until
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request


def open_sockets() -> int:
    """The number of open sockets of this process."""
    found = 0
    for number in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            found += stat.S_ISSOCK(os.fstat(int(number)).st_mode)
    return found


class Leftovers:
    """Asserts, when a block exits, that the tasks and sockets are the same as before the block."""

    def __enter__(self) -> Leftovers:
        self.tasks = asyncio.all_tasks()
        self.sockets = open_sockets()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            assert asyncio.all_tasks() == self.tasks
            assert open_sockets() == self.sockets


# Start-up


@pytest.mark.promise(
    "Test clusters", "`EmbeddedCluster` runs in process, and as `python -m aioproducer.testing`"
)
async def test_a_cluster_starts_within_50_ms():
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(5):
        started = loop.time()
        async with EmbeddedCluster(3, topics={"t": 12}):
            took.append(loop.time() - started)

    # The minimum counts, because other work on the machine can only slow the start down.
    assert min(took) < 50 * MS


def test_its_import_takes_less_than_half_a_second():
    code = (
        "import time; began = time.process_time(); import aioproducer.testing.embedded.embedded_cluster; "
        "print(time.process_time() - began)"
    )
    took = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]

    assert min(took) < 500 * MS


# Clients that hang


async def silent(client: RawClient, cluster: EmbeddedCluster) -> None:
    """Send nothing."""


async def in_a_length(client: RawClient, cluster: EmbeddedCluster) -> None:
    client.writer.write(b"\x00\x00")


async def in_a_frame(client: RawClient, cluster: EmbeddedCluster) -> None:
    client.writer.write(b"\x00\x00\x01\x00half a request")


async def half_closed(client: RawClient, cluster: EmbeddedCluster) -> None:
    client.writer.write(b"\x00\x00\x01\x00half a request")
    client.writer.write_eof()


async def held_up(client: RawClient, cluster: EmbeddedCluster) -> None:
    fault = cluster.faults.add(ApiKey.METADATA, hold=asyncio.Event())
    client.send(MetadataRequest(topics=[]), 12)
    await fault.reached()


async def waiting_for_replicas(client: RawClient, cluster: EmbeddedCluster) -> None:
    cluster.hold_replication("t", 0)
    client.send(produce_request({("t", 0): batch_of(b"a")}), 12)
    await until(lambda: len(cluster.records("t")) == 1, TIMEOUT)


async def waiting_for_records(client: RawClient, cluster: EmbeddedCluster) -> None:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchRequest.FetchTopic(topic="t", partitions=[partition])
    client.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[topic]), 12)
    await cluster.wait_for_requests(ApiKey.FETCH)


async def muted(client: RawClient, cluster: EmbeddedCluster) -> None:
    cluster.faults.add(ApiKey.METADATA, throttle_ms=600_000)
    await client.metadata("t")


async def trickled(client: RawClient, cluster: EmbeddedCluster) -> None:
    cluster.faults.add(ApiKey.METADATA, trickle=1, trickle_pause=600.0)
    client.send(MetadataRequest(topics=[]), 12)
    await client.reader.readexactly(1)


async def frozen(client: RawClient, cluster: EmbeddedCluster) -> None:
    cluster.freeze_broker(0, fenced_after=600.0)
    client.send(MetadataRequest(topics=[]), 12)


async def frozen_by_script(client: RawClient, cluster: EmbeddedCluster) -> None:
    fault = cluster.faults.add(ApiKey.METADATA, freeze_for=600.0)
    client.send(MetadataRequest(topics=[]), 12)
    await fault.reached()


async def down_by_script(client: RawClient, cluster: EmbeddedCluster) -> None:
    fault = cluster.faults.add(ApiKey.METADATA, down_for=600.0)
    client.send(MetadataRequest(topics=[]), 12)
    await fault.reached()


async def not_reading(client: RawClient, cluster: EmbeddedCluster) -> None:
    """Request more data than fits into the sockets, and read none of it."""
    assert (await client.produce(batch_of(b"x" * 1_000_000))).error_code == 0
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2_000_000)
    wanted = FetchRequest(
        min_bytes=1, max_bytes=2_000_000, topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])]
    )
    client.writer.transport.pause_reading()
    for _ in range(50):
        client.send(wanted, 12)
    served = len(cluster.requests_of(ApiKey.FETCH))
    await until(lambda: len(cluster.requests_of(ApiKey.FETCH)) > served, TIMEOUT)
    # Wait until the broker reads no further requests, because it can't send its answer.
    async with asyncio.timeout(TIMEOUT):
        while served != (served := len(cluster.requests_of(ApiKey.FETCH))):  # noqa: ASYNC110
            await asyncio.sleep(20 * MS)
    assert served < 50


Hanging: TypeAlias = Callable[[RawClient, EmbeddedCluster], Awaitable[None]]

WAYS_TO_HANG: list[Hanging] = [
    silent,
    in_a_length,
    in_a_frame,
    half_closed,
    held_up,
    waiting_for_replicas,
    waiting_for_records,
    muted,
    trickled,
    frozen,
    frozen_by_script,
    down_by_script,
    not_reading,
]


async def connected(cluster: EmbeddedCluster, hang: Hanging, node: int = 0) -> RawClient:
    client = RawClient(address(cluster, node))
    await client.__aenter__()
    async with asyncio.timeout(TIMEOUT):
        await hang(client, cluster)
    return client


async def gone(client: RawClient) -> None:
    """Read to the end of the connection, then close it."""
    client.writer.transport.resume_reading()
    try:
        async with asyncio.timeout(TIMEOUT):
            await client.reader.read()
    except ConnectionError:
        pass
    await client.__aexit__()


@pytest.mark.promise(
    "Test clusters", "an embedded cluster leaves nothing behind, whatever clients and tests do"
)
@pytest.mark.parametrize("hang", WAYS_TO_HANG, ids=lambda hang: hang.__name__)
async def test_a_cluster_with_a_hanging_client_leaves_nothing_behind(hang):
    with Leftovers():
        tasks = asyncio.all_tasks()
        async with asyncio.timeout(TIMEOUT):
            async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
                client = await connected(cluster, hang)
            assert asyncio.all_tasks() == tasks
        assert [cluster.broker(node).connection_count for node in (0, 1)] == [0, 0]
        await gone(client)


async def test_a_broker_forgets_clients_that_have_disconnected():
    async with EmbeddedCluster() as cluster:
        for abort in (False, True):
            async with RawClient(address(cluster)) as client:
                await client.metadata("t")
                assert cluster.broker(0).connection_count == 1
                if abort:
                    client.writer.transport.abort()
            await until(lambda: cluster.broker(0).connection_count == 0, TIMEOUT)


# Cancellation


class CancelledAt:
    """Awaits a coroutine, and cancels the task at the n-th wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits: int) -> None:
        self._coroutine = coroutine
        self._waits = waits
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, None]:
        step = partial(self._coroutine.send, None)
        for waited in itertools.count():
            try:
                wanted = step()
            except StopIteration:
                return
            if waited == self._waits:
                self.cancelled = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step = partial(self._coroutine.send, (yield wanted))
            except BaseException as error:
                step = partial(self._coroutine.throw, error)


async def run(work: CancelledAt) -> asyncio.Task[None]:
    """Run the work in a task; return the task once it has ended or been cancelled."""

    async def waits() -> None:
        await work

    task = asyncio.create_task(waits())
    await asyncio.gather(task, return_exceptions=True)
    return task


@pytest.mark.promise(
    "Test clusters", "an embedded cluster leaves nothing behind, whatever clients and tests do"
)
async def test_a_start_that_is_cancelled_at_any_wait_leaves_nothing_behind():
    for waits in itertools.count():
        with Leftovers():
            cluster = EmbeddedCluster(2, topics={"t": 1})
            starting = CancelledAt(cluster.start(), waits)
            task = await run(starting)
            assert task.cancelled() == starting.cancelled
            assert cluster.alive() == ([] if starting.cancelled else cluster.nodes)
            await cluster.stop()
        if not starting.cancelled:
            break

    assert waits >= 2  # at least one wait for each broker


async def test_a_stop_that_is_cancelled_at_any_wait_still_stops_everything():
    for waits in itertools.count():
        with Leftovers():
            tasks = asyncio.all_tasks()
            cluster = EmbeddedCluster(2, topics={"t": 1})
            await cluster.start()
            ways = [(silent, 0), (held_up, 0), (in_a_frame, 1), (muted, 1)]
            clients = [await connected(cluster, hang, node) for hang, node in ways]
            stopping = CancelledAt(cluster.stop(), waits)
            task = await run(stopping)

            # All tasks have ended when stop() returns, and the cancellation is not swallowed.
            assert asyncio.all_tasks() == tasks
            assert task.cancelled() == stopping.cancelled
            for client in clients:
                await gone(client)
        if not stopping.cancelled:
            break

    assert waits >= 1


async def test_a_stop_that_is_cancelled_twice_ends_when_all_brokers_have_stopped(monkeypatch):
    stopped = []
    wait_stopped = EmbeddedBroker.wait_stopped

    async def slowly(broker: EmbeddedBroker) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        await wait_stopped(broker)
        stopped.append(broker.node_id)

    with Leftovers():
        cluster = EmbeddedCluster(2)
        await cluster.start()
        client = await connected(cluster, in_a_frame)
        monkeypatch.setattr(EmbeddedBroker, "wait_stopped", slowly)
        stopping = asyncio.create_task(cluster.stop())
        for _ in range(2):
            await asyncio.sleep(0)
            stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)

        assert stopping.cancelled()
        assert stopped == [0, 1]
        await gone(client)


async def test_a_cancelled_test_leaves_nothing_behind():
    with Leftovers():
        up = asyncio.Event()
        clients = []

        async def a_test() -> None:
            async with EmbeddedCluster(2, topics={"t": 1}) as cluster:
                clients.append(await connected(cluster, held_up))
                up.set()
                await asyncio.Event().wait()

        running = asyncio.create_task(a_test())
        await asyncio.wait_for(up.wait(), TIMEOUT)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        assert running.cancelled()
        await gone(clients[0])


# Repeated starts and stops


async def test_a_cluster_can_be_stopped_twice_and_started_again_with_its_records():
    with Leftovers():
        cluster = EmbeddedCluster(topics={"t": 1})
        await cluster.start()
        async with RawClient(address(cluster)) as client:
            await client.produce(batch_of(b"a"))
        await cluster.stop()
        await cluster.stop()
        assert len(cluster.records("t")) == 1

        await cluster.start_broker(0)
        async with RawClient(address(cluster)) as client:
            await client.produce(batch_of(b"b"))
        assert len(cluster.records("t")) == 2
        assert cluster.broker(0).state is BrokerState.RUNNING
        await cluster.stop()


async def test_a_cluster_that_starts_again_keeps_its_topics_and_records():
    with Leftovers():
        cluster = EmbeddedCluster(2, topics={"t": 2, "deleted": 1})
        async with cluster:
            servers = cluster.bootstrap_servers
            async with RawClient(address(cluster)) as client:
                assert (await client.produce(batch_of(b"a"))).error_code == 0
            cluster.delete_topic("deleted")
            cluster.create_topic("made.later")
            await cluster.stop_broker(1)

        async with cluster:
            assert cluster.bootstrap_servers == servers
            assert sorted(cluster.topics) == ["made.later", "t"]
            assert [node.node_id for node in cluster.alive()] == [0, 1]
            assert cluster.partition("t", 1).isr == [0, 1]
            async with RawClient(address(cluster)) as client:
                assert (await client.produce(batch_of(b"b"))).error_code == 0
            assert [record.value for record in cluster.records("t")] == [b"a", b"b"]


async def test_a_start_that_failed_can_be_repeated():
    cluster = EmbeddedCluster(topics={"t": 1, "u": 1})
    cluster.create_topic("u")
    with pytest.raises(ValueError, match="topic u already exists"):
        await cluster.start()
    cluster.delete_topic("u")
    async with cluster:
        assert sorted(cluster.topics) == ["t", "u"]


async def test_a_running_cluster_rejects_a_start_and_continues():
    async with EmbeddedCluster(2, topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        await cluster.stop_broker(1)
        with pytest.raises(RuntimeError, match=r"broker 0 is running; call stop\(\) first.*start_broker\(\)"):
            await cluster.start()

        assert (await client.produce(batch_of(b"a"))).error_code == 0


@pytest.mark.parametrize("tv", [1, 2])
def test_a_prepared_transaction_is_completed_after_a_start_on_another_loop(tv):
    cluster = EmbeddedCluster(topics={"t": 1}, versions="4.3", transaction_version=tv)

    async def prepare() -> None:
        async with cluster, Producer(cluster.bootstrap_servers, transactional_id="txn") as producer:
            await producer.begin_transaction()
            await producer.send("t", b"a")
            cluster.transactions.hold_markers()
            await producer.commit_transaction()
            assert cluster.records("t", committed=True) == []

    async def complete() -> None:
        async with cluster:
            cluster.transactions.release_markers()
            async with asyncio.timeout(TIMEOUT):
                await cluster.transactions.wait_ended("txn")
            assert [record.value for record in cluster.records("t", committed=True)] == [b"a"]

    asyncio.run(prepare())
    asyncio.run(complete())


async def test_a_cluster_that_was_never_started_can_be_stopped():
    with Leftovers():
        await EmbeddedCluster(2).stop()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_client_that_hangs_in_its_tls_handshake_leaves_nothing_behind(sent):
    with Leftovers():
        async with asyncio.timeout(TIMEOUT):
            async with EmbeddedCluster(security=Security(tls=server_context())) as cluster:
                client = RawClient(address(cluster))
                await client.__aenter__()
                client.writer.write(sent)
                await asyncio.sleep(10 * MS)
        await gone(client)
