"""Calls that may hang run in a limited number of separate threads, which delay nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aioproducer.concurrency.tasks import Threads, all_ended
from tests.conftest import MS
from tests.support.scripted_broker import LONG, until

BRIEF = 20 * MS


class NoExecutor(ThreadPoolExecutor):
    """A default executor for the loop that fails any test that uses it."""

    def submit(self, *_: object, **__: object) -> None:
        raise AssertionError("the default executor belongs to the application")


class Hanging:
    """A function that hangs until it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.go_on = threading.Event()

    def __call__(self) -> int:
        self.calls += 1
        assert self.go_on.wait(30)
        return self.calls


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    found = Hanging()
    yield found
    found.go_on.set()


@pytest.mark.promise("Security", "no secret is written anywhere")
async def test_the_result_of_a_call_is_not_in_the_repr_of_the_waiting_task():
    has_answered = threading.Event()

    def credentials() -> tuple[str, str]:
        has_answered.set()
        return "alice", "a-Pa55word"

    waiting = asyncio.create_task(Threads().call(credentials))
    await asyncio.sleep(0)
    assert has_answered.wait(30)
    shown = []
    while not waiting.done():
        shown.append(repr(waiting))
        await asyncio.sleep(0)

    assert any("finished result" in text for text in shown), "the task was seen with its result"
    assert not any("a-Pa55word" in text for text in shown)


async def test_a_call_runs_in_its_own_thread_and_its_error_is_raised():
    def fail() -> None:
        raise RuntimeError("its own")

    threads = Threads()

    assert await threads.call(threading.get_ident) != threading.get_ident()
    assert await threads.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(RuntimeError, match="its own"):
        await threads.call(fail)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await asyncio.wait_for(threads.call(lambda: next(iter(()))), LONG)


async def test_a_call_runs_in_the_loop_if_no_thread_can_be_started(monkeypatch):
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    threads = Threads()

    assert await threads.call(threading.get_ident) == threading.get_ident()
    assert await threads.call(divmod, 7, 2) == (3, 1)


@pytest.mark.promise(
    "Security",
    "calls that may hang (files, the user's functions, Kerberos) run in a few threads of their own, which "
    "block nothing else",
)
@pytest.mark.parametrize("most", [1, 3])
async def test_hanging_calls_still_count_after_their_callers_were_cancelled(hanging, most):
    asyncio.get_running_loop().set_default_executor(NoExecutor())
    threads = Threads(most)

    for _ in range(2):
        gone = [asyncio.ensure_future(threads.call(hanging)) for _ in range(most + 2)]
        await until(lambda: hanging.calls >= most)
        await asyncio.wait(gone, timeout=BRIEF)
        for one in gone:
            one.cancel()
        await asyncio.wait(gone)
    assert hanging.calls == most

    hanging.go_on.set()
    assert await asyncio.wait_for(threads.call(hanging), LONG) == most + 1


async def test_closing_the_loop_while_a_call_hangs_is_not_an_error(hanging, capfd):
    def run() -> None:
        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(Threads().call(hanging), BRIEF)

        asyncio.run(give_up())

    before = set(threading.enumerate())
    await asyncio.to_thread(run)
    calls = [one for one in set(threading.enumerate()) - before if one.name == "aioproducer call"]
    assert len(calls) == 1
    hanging.go_on.set()

    await until(lambda: not calls[0].is_alive())
    assert capfd.readouterr().err == ""


HANGS_FOR_EVER = """
import asyncio, threading
from aioproducer.concurrency.tasks import Threads, all_ended

async def main():
    try:
        await asyncio.wait_for(Threads().call(threading.Event().wait), 0.05)
    except TimeoutError:
        print("timed out")

asyncio.run(main())
"""


@pytest.mark.promise(
    "Security",
    "calls that may hang (files, the user's functions, Kerberos) run in a few threads of their own, which "
    "block nothing else",
)
def test_a_hanging_call_does_not_delay_the_exit_of_the_interpreter():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HANGS_FOR_EVER],
        capture_output=True,
        text=True,
        check=False,
        timeout=30_000 * MS,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "timed out\n", "")


async def test_a_cancelled_wait_for_tasks_ends_when_all_tasks_have_ended():
    release = asyncio.Event()
    tasks = [asyncio.create_task(release.wait()) for _ in range(2)]
    waiting = asyncio.create_task(all_ended(tasks))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
    assert all(task.done() for task in tasks)
    await all_ended([])
