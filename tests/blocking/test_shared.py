"""The producers that a process shares: one for each set of settings, others in a forked child, closed at exit."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from aioproducer.blocking import Producer, close_shared_producers, shared_producer
from aioproducer.blocking import shared as shared_module
from aioproducer.errors import ConfigError, IllegalStateError, MetadataTimeoutError, WrongLoopError
from tests.blocking.test_process import Script
from tests.support.docs_runner import Docs
from tests.support.producing import QUICK
from tests.support.scripted_broker import dead_port


@pytest.fixture(scope="module")
def cluster():
    """A cluster in another thread."""
    with Docs() as cluster:
        yield cluster


@pytest.fixture
def settings(cluster):
    before = set(threading.enumerate())  # this thread, the cluster's thread, and those of other tests
    yield {"bootstrap_servers": cluster.cluster.bootstrap_servers, **QUICK}
    close_shared_producers(0)
    assert not set(threading.enumerate()) - before


@pytest.fixture
def run(cluster, topic):
    cluster.topic(topic, 1)
    return lambda code: Script(cluster, topic, code)


def test_the_first_call_builds_a_started_producer_and_later_ones_return_it(cluster, settings, topic):
    cluster.topic(topic, 1)

    producer = shared_producer(**settings)

    assert isinstance(producer, Producer)
    assert producer.send(topic, b"v").result(10).offset == 0
    assert shared_producer(**dict(reversed(settings.items()))) is producer


def test_other_settings_give_another_producer(settings):
    producer, other = shared_producer(**settings), shared_producer(**settings, client_id="other")

    assert other is not producer
    assert shared_producer(**settings, client_id="other") is other


def test_settings_need_not_be_hashable(settings):
    servers = settings.pop("bootstrap_servers").split(",")

    producer = shared_producer(bootstrap_servers=servers, hooks=[], **settings)

    assert shared_producer(bootstrap_servers=list(servers), hooks=[], **settings) is producer


@pytest.mark.promise(
    "Blocking producer", "a shared producer is built once for each process, whichever thread asks first"
)
def test_threads_that_call_at_the_same_time_get_the_same_producer(settings):
    for _ in range(5):
        barrier, found = threading.Barrier(8), []

        def ask(barrier=barrier, found=found):
            barrier.wait()
            found.append(shared_producer(**settings))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(found) == 8
        assert len(set(found)) == 1
        [report] = close_shared_producers()
        assert report.failed == 0


def test_a_closed_one_is_replaced(settings):
    producer = shared_producer(**settings)
    producer.close()

    again = shared_producer(**settings)

    assert again is not producer
    assert shared_producer(**settings) is again
    assert len(shared_module._shared) == 1, "the closed one is kept"


def test_closing_all_reports_on_each(cluster, settings, topic):
    cluster.topic(topic, 1)
    shared_producer(**settings).send(topic, b"1")
    shared_producer(**settings, client_id="other")

    assert sorted(report.delivered for report in close_shared_producers(10)) == [0, 1]
    assert close_shared_producers() == []


def test_it_does_not_wait_for_brokers():
    producer = shared_producer(bootstrap_servers=f"127.0.0.1:{dead_port()}", **{**QUICK, "max_block_ms": 50})

    with pytest.raises(MetadataTimeoutError):
        producer.send("t", b"v")
    close_shared_producers(0)


def test_a_transactional_id_is_rejected(settings):
    with pytest.raises(ConfigError, match="fence each other") as caught:
        shared_producer(**settings, transactional_id="id")

    assert caught.value.setting == "transactional_id"


def test_a_rejected_setting_leaves_nothing_behind(settings):
    with pytest.raises(ConfigError, match="linger"):
        shared_producer(**{**settings, "linger_ms": -1})

    assert shared_module._shared == ()
    assert shared_producer(**settings).health().state == "running"


def test_in_an_event_loop_it_is_rejected(settings):
    async def main():
        with pytest.raises(WrongLoopError):
            shared_producer(**settings)
        with pytest.raises(WrongLoopError):
            close_shared_producers()

    asyncio.run(main())


def test_a_log_handler_that_calls_it_while_a_producer_is_built_gets_an_error_instead_of_a_deadlock(settings):
    errors = []

    class ToKafka(logging.Handler):
        def emit(self, record):
            try:
                shared_producer(**settings)
            except IllegalStateError as error:
                errors.append(error)

    handler = ToKafka()
    logging.getLogger("aioproducer").addHandler(handler)
    try:
        shared_producer(**settings, acks=1)  # logs that idempotence is off
    finally:
        logging.getLogger("aioproducer").removeHandler(handler)

    assert "log handler" in str(errors[0])


# --------------------------------------------------------------------------------------------- processes


@pytest.mark.promise("Blocking producer", "a forked child has its own shared producers")
def test_a_forked_child_builds_its_own_and_the_parent_keeps_its(run, cluster, topic):
    script = run(
        """
        import os, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork() with threads
        from aioproducer.blocking import close_shared_producers, shared_producer

        def kafka():
            return shared_producer(bootstrap_servers="{servers}")

        parents = kafka()
        parents.send("{topic}", b"before").result(20)
        children = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                try:
                    assert kafka() is not parents
                    assert kafka() is kafka()
                    kafka().send("{topic}", b"child %d" % number).result(20)
                    [report] = close_shared_producers()
                    line = b"%d %d\\n" % (report.delivered, threading.active_count())
                    os.write(1, line)  # in one piece: its siblings write at the same time
                finally:
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        assert kafka() is parents
        kafka().send("{topic}", b"after").result(20)
        print("parent", parents.close().delivered)
        """
    ).end()

    assert script.out.splitlines() == ["1 1"] * 3 + ["parent 2"]
    assert script.err == ""
    assert sorted(record.value for record in cluster.records(topic)) == sorted(
        [b"before", b"child 0", b"child 1", b"child 2", b"after"]
    )


def test_a_fork_while_another_thread_builds_a_producer_does_not_block_the_child(run, cluster, topic):
    script = run(
        """
        import os, threading, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from aioproducer.blocking import Producer, shared_producer

        start, begun, forked = Producer.start, threading.Event(), threading.Event()

        def slow_start(self, **options):
            begun.set()
            forked.wait(20)
            start(self, **options)

        Producer.start = slow_start
        thread = threading.Thread(target=lambda: shared_producer(bootstrap_servers="{servers}"))
        thread.start()
        begun.wait(20)
        child = os.fork()
        forked.set()
        if child == 0:
            try:
                shared_producer(bootstrap_servers="{servers}").send("{topic}", b"child").result(20)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        thread.join()
        shared_producer(bootstrap_servers="{servers}").send("{topic}", b"parent").result(20)
        """
    ).end()

    assert script.err == ""
    assert [record.value for record in cluster.records(topic)] == [b"child", b"parent"]


def test_the_exit_of_the_interpreter_delivers_what_is_buffered_without_a_warning(run, cluster, topic):
    script = run(
        """
        from aioproducer.blocking import shared_producer

        producer = shared_producer(bootstrap_servers="{servers}", linger_ms=5000)
        for number in range(100):
            producer.send("{topic}", b"%d" % number)
        """
    ).end()

    assert (script.out, script.err) == ("", "")
    assert [record.value for record in cluster.records(topic)] == [b"%d" % number for number in range(100)]


def test_a_child_of_multiprocessing_delivers_at_its_end_without_a_warning(run, cluster, topic):
    script = run(
        """
        import multiprocessing, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from aioproducer.blocking import shared_producer

        def work(value):
            shared_producer(bootstrap_servers="{servers}", linger_ms=5000).send("{topic}", value)

        work(b"parent")
        child = multiprocessing.get_context("fork").Process(target=work, args=(b"child",))
        child.start()
        child.join()
        assert child.exitcode == 0, child.exitcode
        """
    ).end()

    assert script.err == ""
    assert {record.value for record in cluster.records(topic)} == {b"parent", b"child"}
