"""All commands: help, exit codes for wrong usage, and output whose reader goes away."""

from __future__ import annotations

import os

import pytest
import typer.main

from aioproducer.cli.app import app
from tests.support.commands import on_terminal, run

COMMANDS = list(typer.main.get_command(app).commands)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
async def test_help_fits_into_a_pipe(command):
    ended = await run(*command, "--help")

    assert ended.code == 0
    assert ended.err == ""
    assert "Usage: aioproducer" in ended.out
    assert "\x1b" not in ended.out


async def test_help_on_a_terminal_lists_the_commands():
    async with on_terminal() as terminal:
        await terminal.ended()

    for name in COMMANDS:
        assert f" {name} " in terminal.shown


@pytest.mark.parametrize("arguments", [["nonsense"], ["produce"], ["produce", "t", "--rate", "x"]])
async def test_wrong_usage_ends_with_2(arguments):
    ended = await run(*arguments)

    assert ended.code == 2
    assert ended.out == ""
    assert "Usage: aioproducer" in ended.err


async def test_help_without_a_reader_causes_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)

    ended = await run("--help", stdout=writing)
    os.close(writing)

    assert "Traceback" not in ended.err
