"""A producer and its process: Ctrl-C, fork, and nobody who closes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap


def run_script(script: str, *, interrupt: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a Python script in a process of its own; `interrupt`: Ctrl-C as soon as it prints "ready"."""
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


def test_a_forked_child_is_refused_and_does_no_harm_to_its_parent():
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


def test_a_producer_that_nobody_closed_warns():
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
