"""`python -m aioproducer` is the command `aioproducer`."""

from __future__ import annotations

from aioproducer import __main__
from aioproducer.cli.main import main


def test_the_module_runs_the_entry_point_of_the_command():
    assert __main__.main is main
