"""The handling of an error that ends a command."""

from __future__ import annotations

import json

import pytest
import typer

from aioproducer import BootstrapError
from aioproducer.cli.exits import ExitCode, UsageError
from aioproducer.cli.running import execute, finish
from aioproducer.cli.screen import Screen


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("wrong"), 2, "wrong"),
        (BootstrapError("nobody there"), 1, "nobody there"),
        (OSError(28, "full"), 1, "full"),
    ],
)
def test_an_error_is_a_text_and_an_exit_code(capsys, error, code, text):
    def failing() -> ExitCode:
        raise error

    with pytest.raises(typer.Exit) as raised:
        finish(Screen(as_json=True), failing)

    out, err = capsys.readouterr()
    assert raised.value.exit_code == code
    assert text in err
    assert json.loads(out)["exit_code"] == code


def test_a_bug_is_not_hidden():
    async def broken(stop: object) -> ExitCode:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(Screen(), broken)
