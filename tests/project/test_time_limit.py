"""The tests' own time limit, which pyproject.toml sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANGS = """
import asyncio

async def test_it():
    await asyncio.get_running_loop().create_future()
"""
ON_UVLOOP = """
import uvloop

def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}
"""


@pytest.mark.slow
def test_a_test_that_hangs_on_uvloop_is_a_failure(tmp_path):
    (tmp_path / "test_hanging.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text(ON_UVLOOP)

    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1"),
            *("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-o", "timeout=2", tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 1, run.stdout + run.stderr
    assert "crashed while running 'test_hanging.py::test_it" in run.stdout
