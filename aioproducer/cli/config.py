"""`aioproducer config`: shows how each key in a properties file is handled, and whether the file is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from aioproducer import ConfigError, ProducerConfig
from aioproducer.cli import options
from aioproducer.cli.exits import ExitCode
from aioproducer.cli.running import finish
from aioproducer.cli.screen import Screen
from aioproducer.cli.settings import Given, new_producer
from aioproducer.settings.entries import Entry, entries_of_file, resolve
from aioproducer.settings.table import SETTINGS

MARKS = {"used": "green", "ignored": "yellow", "rejected": "bold red"}
"""The ways in which a line can be handled, each with its display colour."""


@dataclass(frozen=True, slots=True)
class Line:
    """One key in the file and how it is handled."""

    number: int
    key: str
    handled: str
    """A key of MARKS."""
    text: str
    """The settings with their values, or why the key is ignored or rejected."""


def config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The properties file.", show_default=False)],
    servers: options.Servers = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how each key in a properties file is handled, and the settings that the other commands would use.

    No cluster is needed. The exit code is 2 if the file is not accepted.
    """
    given = Given(servers, file, tuple(settings or ()))
    del settings  # a traceback that shows locals must not show passwords
    screen = Screen(as_json=as_json)

    def command() -> ExitCode:
        lines = list(lines_of(file))
        width = max((len(line.key) for line in lines), default=0)
        for line in lines:
            mark = {"used": screen.tick, "ignored": "!", "rejected": screen.cross}[line.handled]
            style = MARKS[line.handled]
            screen.result(f"{line.number:4} {line.key.ljust(width)} ", (mark, style), f" {line.text}")
        accepted, problem = _accepted(given, screen)
        shown = [] if accepted is None else changed(accepted)
        if accepted is None:
            screen.result((f"{screen.cross} not accepted: ", "bold red"), problem)
        else:
            screen.result((f"{screen.tick} accepted; the settings that differ from the defaults:", "green"))
            for text in shown:
                screen.result(text, indent=2)
        code = ExitCode.OK if accepted is not None else ExitCode.USAGE
        if as_json:
            screen.json(
                {
                    "lines": [asdict(line) for line in lines],
                    "settings": shown,
                    "error": problem or None,
                    "exit_code": int(code),
                }
            )
        return code

    finish(screen, command)


def lines_of(file: Path) -> Iterator[Line]:
    """Yield each key in a file and how it is handled, independently of the other keys.

    Raises:
        ConfigError: the file cannot be read.
    """
    for entry in entries_of_file(file):
        number = int(entry.origin.rpartition(":")[2])
        handled, text = _handled(entry)
        yield Line(number, "(not a key)" if entry.may_be_no_name else entry.key, handled, text)


def _handled(entry: Entry) -> tuple[str, str]:
    found = resolve([entry], {})
    try:
        found.mistakes.raise_if_any()
    except ConfigError as error:
        return "rejected", error.message.removeprefix(f"{entry.origin}: ")
    if found.notes:
        return "ignored", found.notes[0].partition(" has no effect: ")[2] or found.notes[0]
    settings = [f"{name} = {_shown(name, value)}" for name, value in found.settings.items()]
    return "used", ", ".join(settings) or "aioproducer does this anyway"


def _shown(name: str, value: object) -> str:
    return "a function, which only programs use" if callable(value) else SETTINGS[name].shown(value)


def _accepted(given: Given, screen: Screen) -> tuple[ProducerConfig | None, str]:
    try:
        return new_producer(given, screen).config, ""
    except ConfigError as error:
        return None, error.message


def changed(config: ProducerConfig) -> list[str]:
    """Return the settings that differ from their defaults, each with its origin and without secrets."""
    return [f"{name} = {text}" for name, text in config.shown().items() if not text.endswith("(default)")]
