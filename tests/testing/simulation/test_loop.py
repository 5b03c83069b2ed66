"""The simulated loop: virtual time, and runs that are the same to the byte in every process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aioproducer.testing.simulation.loop import BEGIN, SimulatedLoop, SimulationStalled, simulate


def test_time_passes_only_when_nothing_else_is_ready_to_run():
    async def main():
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        return loop.time() - before

    began = time.perf_counter()

    assert simulate(main) == pytest.approx(7200)
    assert time.perf_counter() - began < 5


def test_a_task_that_waits_for_ever_is_named():
    async def main():
        asyncio.current_task().set_name("the sleeper")
        await asyncio.Event().wait()

    with pytest.raises(SimulationStalled, match="the sleeper"):
        simulate(main)


def test_a_simulation_that_never_ends_is_stopped():
    async def polls():
        while True:  # noqa: ASYNC110  # intended
            await asyncio.sleep(1)

    async def spins():
        while True:  # noqa: ASYNC110  # intended
            await asyncio.sleep(0)

    with pytest.raises(SimulationStalled, match="not finished"):
        simulate(polls, time_limit=1000)
    with pytest.raises(SimulationStalled, match="the clock does not advance"):
        simulate(spins)


def test_no_thread_is_started():
    async def main():
        before = threading.active_count()
        assert await asyncio.to_thread(lambda: threading.active_count()) == before
        with pytest.raises(ZeroDivisionError):
            await asyncio.get_running_loop().run_in_executor(None, lambda: 1 // 0)

    simulate(main)


def test_the_clock_does_not_start_at_zero_and_the_wall_clock_advances_with_it():
    loop = SimulatedLoop()

    assert loop.time() == BEGIN > 0
    loop.run_until_complete(asyncio.sleep(10))
    assert loop.wall_time() == pytest.approx(1_700_000_010)
    loop.close()


def digest(kind, seed, hash_seed):
    """The digests of four runs in another process."""
    code = (
        "import sys; from tests.campaigns.simulation.plan import plan; from tests.campaigns.simulation.run import run; "
        "print(*[run(plan(sys.argv[1], int(sys.argv[2]) + more)).history.digest for more in range(4)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, kind, str(seed)],
        cwd=Path(__file__).parent.parent.parent.parent,
        env={"PYTHONHASHSEED": str(hash_seed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.promise("Simulation and fuzzing", "the same seed is the same run, to the byte, in every process")
@pytest.mark.parametrize("kind", ["idempotent", "transactions v2"])
def test_the_same_seed_gives_the_same_bytes_at_the_same_times_in_every_process(kind):
    first, second = digest(kind, 5, hash_seed=1), digest(kind, 5, hash_seed=4711)

    assert first == second
    assert len(first) == len(set(first)) == 4, "another seed is another run"
    assert all(len(one) == 64 for one in first)
