"""An executor whose threads do not keep the interpreter running."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from aioproducer.concurrency.threads import DaemonThreads

TIMEOUT = 10


@pytest.fixture
def threads() -> Iterator[DaemonThreads]:
    executor = DaemonThreads(2, "test")
    yield executor
    executor.shutdown(cancel_futures=True)
    assert executor.ended(0)


def test_a_job_has_its_result_or_its_error(threads):
    assert threads.submit(divmod, 7, 2).result(TIMEOUT) == (3, 1)
    assert isinstance(threads.submit(divmod, 7, 0).exception(TIMEOUT), ZeroDivisionError)


def test_threads_are_daemons_and_limited_in_number(threads):
    may_go_on = threading.Event()
    jobs = [threads.submit(may_go_on.wait, TIMEOUT) for _ in range(5)]

    assert len(threads._threads) == 2
    assert all(thread.daemon for thread in threads._threads)
    may_go_on.set()
    assert [job.result(TIMEOUT) for job in jobs] == [True] * 5


def test_an_idle_thread_takes_the_next_job(threads):
    for _ in range(20):
        threads.submit(int).result(TIMEOUT)
        idle = threading.Event()
        while not threads._idle and not idle.wait(0.001):
            pass

    assert len(threads._threads) == 1


def test_shutdown_cancels_waiting_jobs_and_rejects_new_ones(threads):
    may_go_on, runs = threading.Event(), threading.Semaphore(0)

    def work() -> bool:
        runs.release()
        return may_go_on.wait(TIMEOUT)

    running = [threads.submit(work) for _ in range(2)]
    for _ in running:
        assert runs.acquire(timeout=TIMEOUT)
    waiting = threads.submit(work)

    threads.shutdown(wait=False, cancel_futures=True)

    assert waiting.cancelled()
    assert not threads.ended(0.01)
    with pytest.raises(RuntimeError, match="cannot submit work to 'test' after shutdown"):
        threads.submit(work)
    may_go_on.set()
    assert [job.result(TIMEOUT) for job in running] == [True, True]
    assert threads.ended(TIMEOUT)


def test_the_initializer_runs_in_each_thread():
    names: list[str] = []
    executor = DaemonThreads(1, "named", lambda: names.append(threading.current_thread().name))

    executor.submit(int).result(TIMEOUT)
    executor.shutdown()

    assert names == ["named_0"]
