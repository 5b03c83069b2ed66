"""mypy and pyright infer what a producer accepts from its serializers (typed_program.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioproducer.testing.plugin import is_ci

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(__file__).with_name("typed_program.py")
PYRIGHT = {
    "extraPaths": [str(ROOT)],
    "pythonVersion": "3.11",
    "reportUnnecessaryTypeIgnoreComment": "error",
    "typeCheckingMode": "standard",
}


def pyright_or_skip() -> None:
    """Skip the test if pyright cannot be started here; fail it in continuous integration."""
    ran = subprocess.run([sys.executable, "-m", "pyright", "--version"], capture_output=True, text=True)
    if ran.returncode != 0:
        message = f"pyright cannot be started; it needs Node.js: {ran.stderr.strip()}"
        pytest.fail(message) if is_ci() else pytest.skip(message)


def checked(*command: str) -> str:
    """Return the output of a type checker, which must not find an error."""
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def with_line(program: str, line: str, tmp_path: Path) -> Path:
    """Return a copy of the program with one more line in its first function."""
    start = "async def without_serializers(producer: Producer) -> None:\n"
    changed = tmp_path / "program.py"
    changed.write_text(program.replace(start, f"{start}    {line}\n"))
    return changed


@pytest.fixture
def pyright_config(tmp_path: Path) -> str:
    file = tmp_path / "pyrightconfig.json"
    file.write_text(json.dumps(PYRIGHT))
    return str(file)


def test_the_program_has_lines_with_and_without_errors():
    lines = PROGRAM.read_text().splitlines()
    wrong = [line for line in lines if "type: ignore" in line and "`" not in line]

    assert len(wrong) > 30
    assert any('send("orders", {"item": 7})  # type: ignore[' in line for line in wrong)


@pytest.mark.slow
@pytest.mark.promise(
    "Public API", "mypy and pyright know what a producer accepts, and the names of its settings"
)
def test_mypy_finds_exactly_the_marked_errors_of_the_program(tmp_path):
    assert checked("mypy", str(PROGRAM)).startswith("Success")

    surplus = with_line(
        PROGRAM.read_text(), 'await producer.send("orders", b"7")  # type: ignore[arg-type]', tmp_path
    )
    with pytest.raises(AssertionError, match='Unused "type: ignore" comment'):
        checked("mypy", str(surplus))


@pytest.mark.slow
@pytest.mark.promise(
    "Public API", "mypy and pyright know what a producer accepts, and the names of its settings"
)
def test_pyright_finds_exactly_the_marked_errors_of_the_program(tmp_path, pyright_config):
    pyright_or_skip()
    assert checked("pyright", "--pythonpath", sys.executable, "-p", pyright_config, str(PROGRAM)).startswith(
        "0 errors"
    )

    surplus = with_line(
        PROGRAM.read_text(), 'await producer.send("orders", b"7")  # type: ignore[arg-type]', tmp_path
    )
    with pytest.raises(AssertionError, match='Unnecessary "# type: ignore" comment'):
        checked("pyright", "--pythonpath", sys.executable, "-p", pyright_config, str(surplus))
