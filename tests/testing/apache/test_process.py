"""The processes of a real Kafka, and no others, end with the process that started them, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aioproducer.testing.apache import process
from aioproducer.testing.apache.process import ChildProcesses
from tests.support.apache_clusters import LEAN
from tests.support.apache_processes import command_lines, descriptors, is_alive, until

pytestmark = pytest.mark.slow

ROOT = Path(process.__file__).parents[3]


@pytest.fixture
def children():
    children = ChildProcesses()
    yield children
    children.end()


# Children


def thread_states(pid: int) -> list[str]:
    """The states of a process's threads: R for running, T for stopped, Z for ended."""
    return [
        thread.read_text().rpartition(")")[2].split()[0]
        for thread in Path(f"/proc/{pid}/task").glob("*/stat")
    ]


async def test_children_end_with_their_owner(tmp_path):
    children = ChildProcesses()
    sleepers = [children.spawn(["sleep", "1000"], directory=tmp_path, log=tmp_path / "log") for _ in range(3)]
    stopped = children.spawn(["sleep", "1000"], directory=tmp_path, log=tmp_path / "log")
    children.pause(stopped)

    children.end()

    assert not any(is_alive(sleeper.pid) for sleeper in sleepers)
    assert not is_alive(stopped.pid)


async def test_all_threads_have_stopped_when_pause_returns(children, tmp_path):
    """The system stops the threads of a process one after the other, so one of them could still answer a request."""
    hashing = "import hashlib, threading; data = bytes(1 << 20)\n"
    hashing += "def work():\n    while True: hashlib.sha256(data)\n"
    hashing += "for _ in range(8): threading.Thread(target=work).start()"
    worker = children.spawn([sys.executable, "-c", hashing], directory=tmp_path, log=tmp_path / "log")
    await until(lambda: len(thread_states(worker.pid)) == 9)

    for _ in range(10):
        children.pause(worker)
        assert thread_states(worker.pid) == ["T"] * 9
        children.pause(worker)  # a second time changes nothing
        children.resume(worker)
        await until(lambda: "R" in thread_states(worker.pid))


async def test_pause_returns_if_the_process_has_ended(children, tmp_path):
    finished = children.spawn(["true"], directory=tmp_path, log=tmp_path / "log")
    await until(lambda: thread_states(finished.pid) == ["Z"])

    children.pause(finished)

    assert await children.wait(finished) == 0


@pytest.mark.promise("Test clusters", "`ApacheKafka` is a real broker from pip alone")
async def test_children_end_when_their_owner_is_killed(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = f"""
        import os, signal
        from pathlib import Path
        from aioproducer.testing.apache.process import ChildProcesses

        children = ChildProcesses(scratch=Path({str(scratch)!r}))
        finished = children.spawn(["true"], directory=Path("/"), log=Path({str(tmp_path / "log")!r}))
        children.kill(finished)
        for _ in range(3):
            sleeper = children.spawn(["sleep", "1000"], directory=Path("/"), log=Path({str(tmp_path / "log")!r}))
            print(sleeper.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """

    owner = await asyncio.to_thread(run_script, script)

    sleepers = [int(pid) for pid in owner.stdout.split()]
    assert owner.returncode == -signal.SIGKILL
    assert len(sleepers) == 3
    await until(lambda: not any(map(is_alive, sleepers)))
    await until(lambda: not scratch.exists())


@pytest.mark.promise(
    "Test clusters",
    "a real Kafka ends when the process that started it ends, by Ctrl-C, SIGTERM or SIGKILL, even during "
    "start-up",
)
async def test_a_child_never_runs_if_its_owner_dies_before_the_watchdog_knows_it(tmp_path):
    script = f"""
        import os, signal
        from pathlib import Path
        from aioproducer.testing.apache.process import ChildProcesses

        def die(self, line):
            print(line, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        ChildProcesses._tell = die
        here = Path({str(tmp_path)!r})
        ChildProcesses().spawn(["sh", "-c", "touch it-runs; sleep 1000"], directory=here, log=here / "log")
    """

    owner = await asyncio.to_thread(run_script, script)

    assert owner.returncode == -signal.SIGKILL
    await until(lambda: not is_alive(int(owner.stdout)))
    assert [file.name for file in tmp_path.iterdir()] == ["log"]


async def test_a_child_is_the_command_itself_and_reads_nothing(children, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", "import os, sys; print(os.getpid(), sys.stdin.read(), sys.argv)"]

    child = children.spawn([*command, "a b", "$HOME", ""], directory=tmp_path, log=log)

    assert await children.wait(child) == 0
    assert log.read_text() == f"{child.pid}  ['-c', 'a b', '$HOME', '']\n"


@pytest.mark.promise(
    "Test clusters",
    "a real Kafka ends when the process that started it ends, by Ctrl-C, SIGTERM or SIGKILL, even during "
    "start-up",
)
async def test_ctrl_c_in_a_terminal_reaches_only_the_owner(tmp_path):
    script = f"""
        import os, signal, subprocess
        from pathlib import Path
        from aioproducer.testing.apache.process import ChildProcesses

        os.setsid()
        signal.signal(signal.SIGINT, lambda *_: None)
        here = Path({str(tmp_path)!r})
        children = ChildProcesses()
        child = children.spawn(["sleep", "1000"], directory=here, log=here / "log")
        neighbour = subprocess.Popen(["sleep", "1000"])
        os.killpg(0, signal.SIGINT)
        print(-neighbour.wait(), child.poll())
        children.end()
    """

    owner = await asyncio.to_thread(run_script, script)

    assert owner.stdout == f"{signal.SIGINT.value} None\n", owner.stderr


async def test_output_may_be_kept_apart_from_the_log(children, tmp_path):
    log, output = tmp_path / "log", tmp_path / "output"
    log.write_text("before\n")

    child = children.spawn(
        ["sh", "-c", "echo out; echo err >&2; exit 3"], directory=tmp_path, log=log, output=output
    )

    assert await children.wait(child) == 3
    assert output.read_text() == "out\n"
    assert log.read_text() == "before\nerr\n"


async def test_children_leave_no_descriptor(tmp_path):
    before = descriptors()
    children = ChildProcesses()
    ended = children.spawn(["true"], directory=tmp_path, log=tmp_path / "log")
    await children.wait(ended)
    children.spawn(["sleep", "1000"], directory=tmp_path, log=tmp_path / "log")

    children.end()

    assert descriptors() == before


async def test_a_fork_of_the_owner_does_not_own_the_children(children, monkeypatch):
    assert children.are_ours

    monkeypatch.setattr(os, "getpid", lambda: -1)

    assert not children.are_ours


# Real brokers when their interpreter ends

OWNER = f"""
    import asyncio, sys
    from aioproducer.testing import ApacheKafka

    async def main():
        kafka = ApacheKafka(int(sys.argv[2]), jvm_args={LEAN!r})
        if sys.argv[1] == "leaves it running":
            await kafka.start()
            print("up", flush=True)
        else:
            async with kafka:
                print("up", flush=True)
                await asyncio.sleep(1000)

    asyncio.run(main())
"""


@pytest.mark.promise(
    "Test clusters",
    "a real Kafka ends when the process that started it ends, by Ctrl-C, SIGTERM or SIGKILL, even during "
    "start-up",
)
@pytest.mark.apache
@pytest.mark.parametrize(
    ("signals", "moment", "brokers"),
    [
        ([signal.SIGINT], "StorageTool", 1),
        ([signal.SIGINT], "kafka.Kafka", 1),
        ([signal.SIGINT], "up", 1),
        ([signal.SIGINT, signal.SIGINT], "up", 1),
        ([signal.SIGTERM], "up", 1),
        ([signal.SIGKILL], "kafka.Kafka", 1),
        ([signal.SIGKILL], "up", 1),
        ([signal.SIGINT], "StorageTool", 3),
        ([signal.SIGINT], "up", 3),
        ([signal.SIGTERM], "kafka.Kafka", 3),
        ([signal.SIGKILL], "up", 3),
    ],
    ids=lambda value: "-".join(item.name for item in value) if isinstance(value, list) else str(value),
)
async def test_an_owner_that_gets_a_signal_leaves_no_process_and_no_directory(
    tmp_path, signals, moment, brokers
):
    def running(what: str) -> int:
        return sum(what in line for line in command_lines(str(tmp_path)).values())

    async with owner_of_brokers(tmp_path, brokers) as owner:
        if moment == "up":
            assert await owner.stdout.readline() == b"up\n"
            assert running("kafka.Kafka") == brokers
        else:
            await until(lambda: running(moment) == brokers)
        for number in signals:
            # A terminal also sends the signal to all processes of the group.
            os.killpg(owner.pid, number)
        told = (await owner.stderr.read()).decode()
        await owner.wait()

    assert ("KeyboardInterrupt" in told) == (signal.SIGINT in signals), told
    if signals == [signal.SIGINT]:  # the owner ends its brokers; after other signals, the watchdog does
        assert not command_lines(str(tmp_path))
    await until(lambda: not command_lines(str(tmp_path)))
    await until(lambda: not list(tmp_path.iterdir()))


@pytest.mark.promise(
    "Test clusters",
    "a real Kafka ends when the process that started it ends, by Ctrl-C, SIGTERM or SIGKILL, even during "
    "start-up",
)
@pytest.mark.apache
async def test_an_owner_that_forgets_its_broker_leaves_no_process_and_no_directory(tmp_path):
    async with owner_of_brokers(tmp_path, 1, "leaves it running") as owner:
        assert await owner.stdout.readline() == b"up\n"
        assert await owner.stderr.read() == b""
        assert await owner.wait() == 0

    assert not command_lines(str(tmp_path))
    assert not list(tmp_path.iterdir())


class owner_of_brokers:
    """Run a process, during the block, that starts brokers with their files below `directory`."""

    def __init__(self, directory: Path, brokers: int, how: str = "in a block") -> None:
        self._directory = directory
        self._brokers = brokers
        self._how = how

    async def __aenter__(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            textwrap.dedent(OWNER),
            self._how,
            str(self._brokers),
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self._directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return self._process

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
