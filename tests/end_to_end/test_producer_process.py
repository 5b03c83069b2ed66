"""A producer and its process: Ctrl-C, fork, and a producer that is never closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.conftest import MS


def run_script(script: str, *, interrupt: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a Python script in its own process. With `interrupt`, send Ctrl-C as soon as it prints "ready"."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "default"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        first = ""
        if interrupt:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first == "ready\n", process.communicate(timeout=20)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, first + out, err)


@pytest.mark.promise("Public API", "leaving `async with` by an exception aborts quickly")
def test_ctrl_c_leaves_cleanly():
    done = run_script(
        """
        import asyncio, sys, threading
        from aioproducer import Producer
        from aioproducer.testing import EmbeddedCluster

        async def main():
            global producer
            async with EmbeddedCluster(topics={"t": 1}) as cluster:
                async with Producer(cluster.bootstrap_servers, compression_type="gzip") as producer:
                    await producer.send_and_wait("t", bytes(20_000))
                    cluster.freeze_broker(0)
                    delivery = await producer.send("t", b"never answered")
                    print("ready", flush=True)
                    await asyncio.sleep(20)

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print(producer, threading.active_count())
        """,
        interrupt=True,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("<Producer closed"), done.stdout
    assert done.stdout.splitlines()[1].endswith(" 1"), "a thread is left"
    for trouble in ("Warning", "Traceback", "never retrieved", "destroyed"):
        assert trouble not in done.stderr, done.stderr


@pytest.mark.promise(
    "Public API", "using a producer after a fork is a clear error, and the parent's still works"
)
def test_a_forked_child_gets_errors_and_does_no_harm_to_its_parent():
    done = run_script(
        """
        import asyncio, os, sys
        from aioproducer import Producer
        from aioproducer.testing import EmbeddedCluster

        def drive(coroutine):
            coroutine.send(None)

        async def main():
            async with EmbeddedCluster(topics={"t": 1}) as cluster:
                async with Producer(cluster.bootstrap_servers) as producer:
                    await producer.send_and_wait("t", b"before")
                    builder = producer.create_batch()
                    child = os.fork()
                    if child == 0:
                        try:
                            for name, call in {
                                "try_send": lambda: producer.try_send("t", b"v"),
                                "send": lambda: drive(producer.send("t", b"v")),
                                "send_and_wait": lambda: drive(producer.send_and_wait("t", b"v")),
                                "flush": lambda: drive(producer.flush()),
                                "partitions_for": lambda: drive(producer.partitions_for("t")),
                                "send_batch": lambda: drive(producer.send_batch(builder, "t", partition=0)),
                                "close": lambda: drive(producer.close()),
                            }.items():
                                try:
                                    call()
                                except Exception as error:
                                    print(name, type(error).__name__, flush=True)
                                else:
                                    print(name, "worked", flush=True)
                        finally:
                            os._exit(0)
                    os.waitpid(child, 0)
                    print((await asyncio.wait_for(producer.send_and_wait("t", b"after"), 5)).offset)
                print(len(cluster.records("t")), (await producer.close()).delivered)

        asyncio.run(main())
        """
    )

    assert done.returncode == 0, done.stderr
    calls = ("try_send", "send", "send_and_wait", "flush", "partitions_for", "send_batch", "close")
    assert done.stdout.splitlines() == [*(f"{call} ForkedError" for call in calls), "1", "2 2"]


def test_an_unclosed_producer_warns():
    done = run_script(
        """
        import asyncio
        from aioproducer import Producer
        from aioproducer.testing import EmbeddedCluster

        async def main():
            async with EmbeddedCluster(topics={"t": 1}) as cluster:
                producer = Producer(cluster.bootstrap_servers)
                await producer.start()
                await producer.send("t", b"v")

        asyncio.run(main())
        """
    )

    assert done.returncode == 0, done.stderr
    assert "ResourceWarning: <Producer running" in done.stderr
    assert "Traceback" not in done.stderr, done.stderr


UNCLOSED = """
    import asyncio, gc, os
    from aioproducer import Producer
    from aioproducer.testing import EmbeddedCluster

    async def main():
        global producer
        async with EmbeddedCluster(topics={"t": 2}) as cluster:
            producer = Producer(cluster.bootstrap_servers, linger_ms=60_000)
            await producer.start()
            await producer.partitions_for("t")
            cluster.freeze_broker(0)
            for _ in range(50):
                await producer.send("t", b"v", partition=0)
            await producer.send("t", bytes(300_000), partition=1)  # it fills a batch, so it is sent at once
            while not producer.metrics().in_flight:
                await asyncio.sleep(0.001)
    """
CLOSED_LOOP = "loop = asyncio.new_event_loop(); loop.run_until_complete(main()); loop.close()"
LOST = "51 accepted records had a result: 50 were not sent and are lost, 1 may be in the log"


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("asyncio.run(main())", "its tasks were cancelled, as happens when an event loop ends,"),
        (f"{CLOSED_LOOP}; del producer; gc.collect()", "it was garbage-collected"),
        (f"{CLOSED_LOOP}; here = producer, loop", "the interpreter ended"),
    ],
)
def test_a_producer_that_was_not_closed_logs_how_many_records_are_lost(end, why):
    done = run_script(textwrap.dedent(UNCLOSED) + end)

    assert done.returncode == 0, done.stderr
    assert f": {why} before {LOST}" in done.stderr
    assert done.stderr.count("Unclosed producer <Producer running") == 1, done.stderr


def test_a_child_does_not_report_the_records_of_its_parents_producer():
    done = run_script(
        textwrap.dedent(UNCLOSED)
        + """
async def forked():
    await main()
    child = os.fork()
    if not child:
        producer.__del__()
        os._exit(0)
    os.waitpid(child, 0)
    await producer.close(timeout=0)

asyncio.run(forked())
"""
    )

    assert done.returncode == 0, done.stderr
    assert "Unclosed" not in done.stderr


@pytest.mark.promise("Records", "a thread that compresses does not keep the interpreter from exiting")
def test_a_thread_that_still_compresses_after_close_does_not_keep_the_interpreter_running():
    began = time.monotonic()
    done = run_script(
        """
        import asyncio, threading, time
        from aioproducer import Producer
        from aioproducer.testing import EmbeddedCluster

        async def main():
            async with EmbeddedCluster(topics={"t": 1}) as cluster:
                servers = cluster.bootstrap_servers
                async with Producer(servers, compression_type="zstd", compression_level=22) as producer:
                    compressing = threading.Event()
                    def for_ever(data):
                        compressing.set()
                        time.sleep(100)
                    producer._compressor._compress = for_ever
                    await producer.send("t", bytes(300_000))
                    while not compressing.is_set():
                        await asyncio.sleep(0.001)
                    began = time.monotonic()
                    report = await producer.close(timeout=0)
                    print(report.failed, time.monotonic() - began < 5, flush=True)

        asyncio.run(main())
        """
    )

    assert (done.returncode, done.stdout) == (0, "1 True\n"), done.stderr
    assert time.monotonic() - began < 15_000 * MS


def test_a_producer_whose_block_is_left_when_the_loop_ends_is_not_reported_as_unclosed():
    done = run_script(
        """
        import asyncio
        from aioproducer import Producer
        from aioproducer.testing import EmbeddedCluster

        async def sends(servers, has_sent):
            async with Producer(servers, linger_ms=60_000) as producer:
                await producer.send("t", b"v")
                has_sent.set()
                await asyncio.Event().wait()

        async def main():
            global task, cluster
            cluster = EmbeddedCluster(topics={"t": 1})
            await cluster.start()
            has_sent = asyncio.Event()
            task = asyncio.ensure_future(sends(cluster.bootstrap_servers, has_sent))
            await has_sent.wait()

        asyncio.run(main())
        print(task.cancelled())
        """
    )

    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "Unclosed" not in done.stderr
