"""Tests of a blocking producer and its process: Ctrl-C, fork, and the exit of the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.conftest import MS
from tests.support.docs_runner import Docs


@pytest.fixture(scope="module")
def cluster():
    """A cluster outside the script's process, which the script can't disturb."""
    with Docs() as cluster:
        yield cluster


class Script:
    """A Python script in a separate process, with {servers} and {topic} replaced."""

    def __init__(self, cluster, topic, code):
        code = textwrap.dedent(code).replace("{servers}", cluster.cluster.bootstrap_servers)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code.replace("{topic}", topic)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def interrupt(self):
        """Send Ctrl-C as soon as the script prints "ready". Returns the seconds until it ended."""
        assert self.process.stdout.readline() == "ready\n", self.process.communicate(timeout=20)
        time.sleep(100 * MS)  # the script now begins the call
        self.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        self.end()
        return time.monotonic() - began

    def end(self, status=0):
        """Wait for the script; its output is then in `out` and `err`."""
        try:
            self.out, self.err = self.process.communicate(timeout=30_000 * MS)
        finally:
            self.process.kill()
            self.process.wait()
        assert self.process.returncode == status, (self.out, self.err)
        return self


@pytest.fixture
def run(cluster, topic):
    cluster.topic(topic, 1)
    return lambda code: Script(cluster, topic, code)


@pytest.fixture
def frozen(cluster):
    """Freezes the broker: it accepts connections and data, but does not answer until `thaw`."""
    yield lambda: cluster.call(lambda: cluster.cluster.freeze_broker(0))
    cluster.call(lambda: cluster.cluster.thaw_broker(0))


@pytest.mark.promise(
    "Blocking producer", "Ctrl-C interrupts a call at once, aborts a transaction, and never stops the loop"
)
@pytest.mark.parametrize(
    "call",
    [
        "producer.send_and_wait('{topic}', b'v')",
        "producer.flush()",
        "delivery.result()",
        "delivery.exception(timeout=60)",
        "producer.send('{topic}-other', b'v')",
        "[producer.send('{topic}', bytes(900)) for _ in range(100)]",
        "producer.close()",
    ],
)
def test_ctrl_c_interrupts_a_call_immediately_and_cleanly(run, cluster, frozen, call):
    code = """
        import signal, threading
        from aioproducer.blocking import Producer

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        try:
            with Producer("{servers}", buffer_memory=4096, batch_size=1024) as producer:
                producer.send_and_wait("{topic}", b"known")
                print("freeze", flush=True)
                signal.sigtimedwait([signal.SIGUSR1], 20)
                delivery = producer.send("{topic}", b"never answered")
                print("ready", flush=True)
                CALL
                print("not interrupted")
        except KeyboardInterrupt:
            print(producer, threading.active_count())
    """
    script = run(code.replace("CALL", call))
    assert script.process.stdout.readline() == "freeze\n"
    frozen()
    script.process.send_signal(signal.SIGUSR1)

    seconds = script.interrupt()

    assert seconds < 3000 * MS
    assert script.out.startswith("<blocking <Producer closed")
    assert script.out.endswith(" 1\n"), "a thread still runs"
    told = script.err.splitlines()  # lines about dropped records
    assert all("no caller has looked at" in line for line in told), script.err


@pytest.mark.promise(
    "Blocking producer", "Ctrl-C interrupts a call at once, aborts a transaction, and never stops the loop"
)
def test_ctrl_c_in_a_transaction_aborts_it(run, cluster, topic):
    script = run(
        """
        import time
        from aioproducer.blocking import Producer

        with Producer("{servers}", transactional_id="{topic}") as producer:
            try:
                with producer.transaction():
                    producer.send("{topic}", b"v").result(20)
                    print("ready", flush=True)
                    time.sleep(20)
            except KeyboardInterrupt:
                with producer.transaction():
                    producer.send("{topic}", b"after")
        """
    )

    assert script.interrupt() < 5000 * MS
    read = cluster.call(lambda: cluster.cluster.records(topic, committed=True))
    assert [record.value for record in read] == [b"after"]


@pytest.mark.promise(
    "Blocking producer", "blocking calls are rejected where they would stop an event loop, and after a fork"
)
def test_a_forked_child_can_only_use_its_own_producer(run, cluster, topic):
    script = run(
        """
        import os, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork() with threads
        from aioproducer.blocking import Producer

        with Producer("{servers}") as producer:
            delivery = producer.send("{topic}", b"before")
            delivery.result(20)
            pending = producer.send("{topic}", b"perhaps pending")
            child = os.fork()
            if child == 0:
                try:
                    for name, call in {
                        "send": lambda: producer.send("{topic}", b"v"),
                        "flush": producer.flush,
                        "metrics": producer.metrics,
                        "close": producer.close,
                        "cancel": pending.cancel,
                    }.items():
                        try:
                            call()
                        except Exception as error:
                            print(name, type(error).__name__, flush=True)
                        else:
                            print(name, "worked", flush=True)
                    print(delivery.result().offset, threading.active_count(), flush=True)
                    with Producer("{servers}") as own:
                        own.send("{topic}", b"child").result(20)
                    print(threading.active_count(), flush=True)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            producer.send("{topic}", b"after").result(20)
        print(producer.close().delivered, threading.active_count())
        """
    ).end()

    calls = [f"{name} ForkedError" for name in ("send", "flush", "metrics", "close", "cancel")]
    assert script.out.splitlines() == [*calls, "0 1", "1", "3 1"]
    assert script.err == ""
    assert {record.value for record in cluster.records(topic)} == {
        b"before",
        b"perhaps pending",
        b"child",
        b"after",
    }


@pytest.mark.promise(
    "Blocking producer", "the exit of the interpreter neither hangs nor silently loses records"
)
def test_the_end_of_the_interpreter_closes_with_a_warning_and_loses_nothing(run, cluster, topic):
    script = run(
        """
        from aioproducer.blocking import Producer

        producer = Producer("{servers}", linger_ms=20_000, compression_type="gzip", client_id="job")
        producer.start()
        for number in range(2000):
            producer.send("{topic}", b"%d" % number + bytes(1000))
        """
    ).end()

    [line] = [line for line in script.err.splitlines() if "was not closed; use `with` or close()" in line]
    assert line.startswith("[producer job] <")
    assert "Traceback" not in script.err
    assert "Unclosed" not in script.err
    assert [int(record.value.rstrip(b"\0")) for record in cluster.records(topic)] == list(range(2000))


@pytest.mark.promise(
    "Blocking producer", "the exit of the interpreter neither hangs nor silently loses records"
)
def test_the_end_of_the_interpreter_waits_for_threads_that_still_send(run, cluster, topic):
    script = run(
        """
        import threading, time
        from aioproducer.blocking import Producer

        producer = Producer("{servers}", compression_type="gzip")
        producer.start()

        def work():
            threading.main_thread().join()
            for number in range(100):
                producer.send("{topic}", b"%d" % number)
            producer.close()

        threading.Thread(target=work).start()
        """
    ).end()

    assert script.err == ""
    assert len(cluster.records(topic)) == 100


@pytest.mark.promise(
    "Blocking producer", "the exit of the interpreter neither hangs nor silently loses records"
)
def test_the_end_of_the_interpreter_is_bounded_and_reports_lost_records(run, cluster, frozen):
    script = run(
        """
        import signal
        from aioproducer.blocking import Producer, loop_thread

        loop_thread.EXIT_SECONDS = 0.3
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        producer = Producer("{servers}")
        producer.start()
        producer.send_and_wait("{topic}", b"known")
        print("freeze", flush=True)
        signal.sigtimedwait([signal.SIGUSR1], 20)
        for _ in range(7):
            producer.send("{topic}", b"v")
        """
    )
    assert script.process.stdout.readline() == "freeze\n"
    frozen()
    script.process.send_signal(signal.SIGUSR1)
    began = time.monotonic()

    script.end()

    assert time.monotonic() - began < 5000 * MS
    assert "was not closed" in script.err
    assert "1 record was delivered" in script.err
    assert "the outcome of 7 is unknown" in script.err


@pytest.mark.promise(
    "Blocking producer", "the exit of the interpreter neither hangs nor silently loses records"
)
def test_a_child_of_multiprocessing_closes_at_its_end(run, cluster, topic):
    script = run(
        """
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from aioproducer.blocking import Producer

        def work():
            producer = Producer("{servers}", linger_ms=20_000)
            producer.start()
            producer.send("{topic}", b"child")

        with Producer("{servers}") as producer:
            producer.send("{topic}", b"parent")
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join()
            assert child.exitcode == 0, child.exitcode
        """
    ).end()

    assert script.err.count("was not closed") == 1
    assert {record.value for record in cluster.records(topic)} == {b"parent", b"child"}
