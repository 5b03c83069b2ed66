"""The walk of a record: the counted calls, and their limits."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.walk import ROOT, Call, Walk

pytestmark = pytest.mark.slow


def call(caller: str, file: str) -> Call:
    return Call(0, caller, file, "f")


def test_call_to_a_higher_layer_is_upward() -> None:
    calls = [
        call("", "producer.py"),
        call("producer.py", "records/batch.py"),
        call("records/batch.py", "sending/sender.py"),
        call("protocol/produce.py", "records/batch.py"),
    ]

    assert Walk(calls).upward == calls[2:]


def test_change_of_file_is_two_consecutive_calls_in_different_files() -> None:
    walk = Walk(
        [
            call("", file)
            for file in ("records/batch.py", "records/batch.py", "sending/sender.py", "records/batch.py")
        ]
    )

    assert walk.changes_of_file == 2


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Cython's hooks call sys.setprofile up to 3.11 only")
def test_a_records_walk_is_not_longer_than_before_and_design_has_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.walk"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    figures = {
        name: int(figure) for name, figure in re.findall(r"^(\S.*?)  +(\d+)", done.stdout, re.MULTILINE)
    }
    assert 0 < figures["changes of file"] <= 55
    assert 0 < figures["upward calls"] <= 2
    python, compiled = re.findall(r"^files +(\d+) of Python, (\d+) compiled", done.stdout, re.MULTILINE)[0]
    in_design = (
        f"{figures['calls']} calls in {int(python) + int(compiled)} files, "
        f"{figures['changes of file']} changes of file, {figures['upward calls']} upward calls"
    )
    assert in_design in (ROOT / "DESIGN.md").read_text()
