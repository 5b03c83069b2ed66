"""A producer's process that is killed in a transaction, stopped, out of file descriptors, or ended with records in
flight; and the cost of many producers and many waiting calls."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import textwrap
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioproducer import Producer
from aioproducer.protocol.api import ApiKey
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS
from tests.end_to_end.test_producer_process import run_script
from tests.support.producing import QUICK, quick_producer, results, until, values, within

END_TXN, PRODUCE = ApiKey.END_TXN, ApiKey.PRODUCE


@asynccontextmanager
async def client(cluster: EmbeddedCluster, script: str) -> AsyncIterator[Process]:
    """A process that runs a script as `main(servers)`; the script writes and reads lines with `say` and `hear`."""
    whole = f"""
import asyncio, os, sys
sys.path[:] = {sys.path!r}
from aioproducer import Producer
from aioproducer.errors import *

SETTINGS = {QUICK!r}

def say(what):
    print(what, flush=True)

async def hear():
    return (await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)).strip()

async def main(servers):
{textwrap.indent(textwrap.dedent(script), "    ")}

asyncio.run(main({cluster.bootstrap_servers!r}))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", whole, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def heard(process: Process) -> str:
    """Return the next line that the process writes."""
    assert process.stdout is not None
    return (await within(20, process.stdout.readline())).decode().strip()


def tell(process: Process, what: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{what}\n".encode())


# ------------------------------------------------------------------------------------------- kill -9 and SIGSTOP

KILLED: dict[str, tuple[str, ApiKey | None]] = {
    "before a transaction": ("", None),
    "begun": ("await producer.begin_transaction()", None),
    "with records": ('await producer.begin_transaction(); await producer.send_and_wait("t", b"lost")', None),
    "with a record in flight": (
        'await producer.begin_transaction(); await producer.send("t", b"lost"); await producer.flush()',
        PRODUCE,
    ),
    "committing": (
        'await producer.begin_transaction(); await producer.send_and_wait("t", b"lost"); '
        "await producer.commit_transaction()",
        END_TXN,
    ),
    "aborting": (
        'await producer.begin_transaction(); await producer.send_and_wait("t", b"lost"); '
        "await producer.abort_transaction()",
        END_TXN,
    ),
}
"""The moments at which the process is killed: its last calls, and the request that is then in progress."""


@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
@pytest.mark.parametrize("where", KILLED)
async def test_nothing_of_a_killed_clients_open_transaction_is_committed(where, version):
    steps, api = KILLED[where]
    async with EmbeddedCluster(topics={"t": 1}, transaction_version=version) as cluster:
        script = f"""
            producer = Producer(servers, transactional_id="tx", **SETTINGS)
            await producer.start()
            async with producer.transaction():
                await producer.send("t", b"committed")
            say("ready")
            await hear()
            {steps or "pass"}
            say("there")
            await hear()
        """
        async with client(cluster, textwrap.dedent(script)) as process:
            assert await heard(process) == "ready"
            fault = cluster.faults.add(api, drop_before=True, count=1000) if api is not None else None
            tell(process, "go on")
            if fault is not None:
                await within(20, fault.reached())
            else:
                assert await heard(process) == "there"
            process.kill()
            await process.wait()
        cluster.faults.clear()

        async with Producer(cluster.bootstrap_servers, transactional_id="tx", **QUICK) as successor:
            async with successor.transaction():
                await successor.send("t", b"successor")

        assert [record.value for record in cluster.records("t", 0, committed=True)] == [
            b"committed",
            b"successor",
        ]
        await until(lambda: cluster.partition("t", 0).last_stable_offset == cluster.log("t", 0).end_offset)


async def test_a_client_stopped_for_longer_than_its_timeouts_reports_true_results_when_it_resumes():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        script = """
            SETTINGS.update(request_timeout_ms=300, delivery_timeout_ms=600)
            async with Producer(servers, **SETTINGS) as producer:
                await producer.send_and_wait("t", b"0")
                first = [await producer.send("t", b"%d" % number) for number in range(1, 4)]
                say("ready")
                await asyncio.wait(first)
                later = [await producer.send("t", b"%d" % number) for number in range(4, 7)]
                await asyncio.wait(later)
                for delivery in first + later:
                    error = delivery.exception()
                    say(delivery.result().offset if error is None else error.outcome.name)
        """
        async with client(cluster, script) as process:
            fault = cluster.faults.add(PRODUCE, delay=0.2 * 1000 * MS, skip=1)
            assert await heard(process) == "ready"
            await within(5, fault.reached())
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1500 * MS)
            process.send_signal(signal.SIGCONT)
            told = [await heard(process) for _ in range(6)]

        log = [int(value or b"") for value in values(cluster)]
        assert log == sorted(set(log)), "in order, and nothing twice"
        for number, became in enumerate(told, 1):
            if became.isdigit():
                assert log[int(became)] == number
            elif became == "NOT_PERSISTED":
                assert number not in log
        assert all(became.isdigit() for became in told[3:]), "later records are delivered"


# ------------------------------------------------------------------------------------------- file descriptors


async def test_a_client_without_file_descriptors_says_so_and_recovers_when_it_has_some_again():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        script = """
            import resource
            before = resource.getrlimit(resource.RLIMIT_NOFILE)
            async with Producer(servers, **SETTINGS) as producer:
                await producer.send_and_wait("t", b"0")
                await asyncio.get_running_loop().run_in_executor(None, int)  # start its thread
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
                say("none left")
                await hear()
                delivery = await producer.send("t", b"1")
                while "Too many open files" not in producer._brokers.reachability.reasons():
                    await asyncio.sleep(0.001)
                say("refused")
                await hear()
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                say((await delivery).offset)
        """
        async with client(cluster, script) as process:
            assert await heard(process) == "none left"
            await cluster.close_connections(0)
            tell(process, "send")
            assert await heard(process) == "refused"
            tell(process, "there are some again")
            assert await heard(process) == "1"

        assert values(cluster) == [b"0", b"1"]


# ---------------------------------------------------------------------------------------------- not closed


def test_a_loop_that_is_closed_before_its_producer_leaves_only_a_warning():
    done = run_script(
        """
        import asyncio, gc
        from aioproducer import Producer
        from aioproducer.testing import EmbeddedCluster

        async def main():
            global producer
            async with EmbeddedCluster(topics={"t": 1}) as cluster:
                producer = Producer(cluster.bootstrap_servers)
                await producer.start()
                await producer.send_and_wait("t", b"v")

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        del producer
        gc.collect()
        print("the end")
        """
    )

    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr
    assert "ResourceWarning: <Producer running" in done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_an_interpreter_with_records_in_flight_exits_soon_and_warns():
    began = time.monotonic()
    done = run_script(
        """
        import asyncio
        from aioproducer import Producer
        from aioproducer.testing import EmbeddedCluster

        async def main():
            global producer, cluster
            cluster = EmbeddedCluster(topics={"t": 1})
            await cluster.start()
            producer = Producer(cluster.bootstrap_servers, linger_ms=10_000)
            await producer.start()
            for _ in range(1000):
                await producer.send("t", bytes(1000))

        asyncio.run(main())
        """
    )

    assert done.returncode == 0, done.stderr
    assert "ResourceWarning: <Producer running" in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) < 20, done.stderr
    assert time.monotonic() - began < 10_000 * MS


# ---------------------------------------------------------------------------- many producers and calls


async def test_many_producers_one_after_the_other_leave_nothing_behind():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:

        async def some(count: int) -> int:
            for _ in range(count):
                async with quick_producer(cluster) as producer:
                    await producer.send("t", b"v")
            # Don't count the objects that the brokers keep.
            cluster.delete_topic("t")
            cluster.create_topic("t", 1)
            cluster.requests.clear()
            gc.collect()
            return len(gc.get_objects())

        await some(20)
        before = await some(20)
        after = await some(150)

        assert after - before < 150, "an object is left for each producer"
        assert len(asyncio.all_tasks()) <= 1 + sum(broker.connection_count for broker in cluster._brokers)


async def test_many_calls_that_wait_for_room_cost_the_same_each_and_stay_within_the_buffer():
    async def spent(count: int) -> float:
        async with EmbeddedCluster(topics={"t": 1}) as cluster:
            patient = dict.fromkeys(
                ("max_block_ms", "request_timeout_ms", "delivery_timeout_ms"), 100_000_000 * MS
            )
            async with quick_producer(cluster, buffer_memory=20_000, batch_size=1000, **patient) as producer:
                await producer.partitions_for("t")
                cluster.freeze_broker(0)
                began = time.process_time()
                sending = [asyncio.ensure_future(producer.send("t", bytes(100))) for _ in range(count)]
                await until(lambda: producer._accumulator.memory.waiters > count * 0.8, seconds=20)
                assert producer._accumulator.memory.available >= 0
                cluster.thaw_broker(0)
                found = await results([await call for call in sending], seconds=60)
                assert [end.offset for end in found] == list(range(count))
                return time.process_time() - began

    few, many = await spent(2000), await spent(20_000)

    assert many < few * 10 * 4, f"{few:.3f} s and {many:.3f} s: the cost of a call grows with their number"
