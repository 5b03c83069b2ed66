"""The planted bugs that random schedules do not find: the test that is named for each bug fails when it is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.simulation import unseen_planted
from tests.campaigns.simulation.unseen import UNSEEN

ROOT = Path(__file__).parents[2]


def test_each_bug_that_random_schedules_miss_can_be_planted():
    assert unseen_planted.PLANTS.keys() == UNSEEN.keys()


@pytest.mark.slow
@pytest.mark.promise(
    "Simulation and fuzzing",
    "random schedules find each planted bug, or it is listed with the reason and the test that finds it",
)
@pytest.mark.parametrize("bug", UNSEEN)
def test_the_test_that_is_named_for_a_bug_fails_with_it(bug):
    _, module, test = UNSEEN[bug]

    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *("-p", unseen_planted.__name__, f"tests/{module}.py::{test}"),
        ],
        cwd=ROOT,
        env={**os.environ, unseen_planted.VARIABLE: bug},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    said = run.stdout + run.stderr
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, said
    summary = run.stdout.splitlines()[-1]
    assert summary.startswith("1 failed"), said
    assert "error" not in summary, said
    assert Path(unseen_planted.__file__).name not in run.stdout, f"the patch itself raised the error:\n{said}"
