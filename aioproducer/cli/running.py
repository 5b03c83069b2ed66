"""Runs a command in an event loop, and turns an error that ends the command into a message and an exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from aioproducer import KafkaError
from aioproducer.cli.exits import CommandError, ExitCode, code_of
from aioproducer.cli.screen import Screen
from aioproducer.cli.stop import Stop


def execute(screen: Screen, command: Callable[[Stop], Coroutine[Any, Any, ExitCode]]) -> None:
    """Run an async command to its end.

    Raises:
        typer.Exit: always, with the exit code.
    """

    async def with_signals() -> ExitCode:
        stop = Stop()
        with stop.handled():
            return await command(stop)

    finish(screen, lambda: asyncio.run(with_signals()))


def finish(screen: Screen, command: Callable[[], ExitCode]) -> None:
    """Run a command to its end.

    Raises:
        typer.Exit: always, with the exit code.
    """
    try:
        code = command()
        screen.flush()
    except (CommandError, KafkaError, OSError) as error:
        code = code_of(error)
        _report(screen, error, code)
    raise typer.Exit(code)


def _report(screen: Screen, error: Exception, code: ExitCode) -> None:
    text = str(error) or type(error).__name__
    try:
        screen.fail(text)
        if screen.as_json:
            screen.json({"error": text, "exit_code": int(code)})
        screen.flush()
    except OSError:
        # Neither stream can be written to, so only the exit code can report the error.
        return
