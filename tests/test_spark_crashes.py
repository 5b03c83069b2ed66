"""Exactly once under fire: drivers and workers killed at each point of the protocol, on the embedded cluster."""

from __future__ import annotations

import pytest

from tests.spark_chaos import DEATHS, Broken, Crash, Run, embedded, play
from tests.spark_crashing import NO_MARKER
from tests.spark_driver import MASTER


@pytest.mark.timeout(600)
def test_each_row_is_committed_once_wherever_the_driver_is_killed(tmp_path):
    crashes = [DEATHS[name] for name in ("F1", "F2", "F3", "F7", "F8", "F10")]
    with embedded() as place:
        # F14: what was written by two tasks is written again by three.
        killed = play(Run(place, "killed", tmp_path / "run"), crashes, shuffles=[2, 3, 1, 2, 3, 2, 1])

    assert killed == len(crashes)


@pytest.mark.timeout(600)
def test_failing_tasks_zombies_and_a_commit_that_fails_after_it_was_made(tmp_path):
    crashes = [DEATHS[name] for name in ("F3 error", "F3 worker", "F4", "F12")]
    with embedded() as place:
        run = Run(place, "failed", tmp_path / "run")
        play(run, crashes)

    assert sum("query failed" in text for text in run.log) >= 3


@pytest.mark.timeout(600)
def test_the_proof_convicts_at_least_once_and_a_sink_that_ignores_its_marker(tmp_path):
    with embedded() as place:
        run = Run(place, "twice", tmp_path / "one", delivery="at_least_once")
        run.add_files(2)
        assert run.drive(Crash("F7", "any commit", "driver")) < 0
        assert run.drive() == 0
        with pytest.raises(Broken, match="more than once"):
            run.check()

        run = Run(place, "forgetful", tmp_path / "two")
        run.add_files(2)
        assert run.drive(DEATHS["F10"]) < 0
        assert run.drive(**{NO_MARKER: "1"}) == 0
        with pytest.raises(Broken, match="more than once"):
            run.check()


@pytest.mark.timeout(600)
def test_an_executor_that_is_killed_takes_nothing_with_it_and_leaves_nothing_twice(tmp_path):
    """Two executors in processes of their own."""
    with embedded() as place:
        run = Run(place, "executor", tmp_path / "run")
        run.add_files(3)
        assert run.drive(Crash("F3", "row", "executor"), **{MASTER: "local-cluster[2,1,512]"}) == 0
        run.check()

    assert "query failed" in run.log[0]
