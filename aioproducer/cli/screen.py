"""A command's output: results go to standard output, everything else to standard error.

If a stream is closed early (`| head`), its output ends, but the command continues."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text


class _Console(Console):
    """A console that silently discards its output once its stream is closed."""

    def on_broken_pipe(self) -> None:
        """Discard all further output. Otherwise the interpreter would report an error when it exits."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


class Screen:
    """Standard output and standard error of one command."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out = _Console(highlight=False)
        self.err = _Console(stderr=True, highlight=False)
        # Lines are wrapped only on a terminal; in a pipe, each message stays on one line, so that grep finds it whole.
        self.out.soft_wrap = not self.out.is_terminal
        self.err.soft_wrap = not self.err.is_terminal
        is_unicode = (self.err.encoding or "").lower().startswith("utf")
        self.tick, self.cross, self.arrow = ("✓", "✗", "→") if is_unicode else ("ok:", "FAILED:", "->")

    def result(self, *parts: str | tuple[str, str], indent: int = 0) -> None:
        """Write one line of the human-readable result, except with --json. A part is a str or a (text, style) pair."""
        if self.as_json:
            return
        if indent and self.out.is_terminal:
            # Padding also indents the continuation lines of wrapped text.
            self.out.print(Padding(Text.assemble(*parts), (0, 0, 0, indent), expand=False))
        else:
            self.out.print(Text.assemble(" " * indent, *parts))

    def json(self, value: Any) -> None:
        """Write the machine-readable result: one line of JSON."""
        self.out.print(Text(json.dumps(value, ensure_ascii=not self._is_utf8, default=str)), soft_wrap=True)

    @property
    def _is_utf8(self) -> bool:
        return (self.out.encoding or "").lower().startswith("utf")

    def say(self, text: str, style: str = "") -> None:
        """Write a message to standard error."""
        self.err.print(Text(text, style=style))

    def warn(self, text: str) -> None:
        """Write a warning to standard error."""
        self.err.print(Text.assemble(("warning: ", "yellow"), text))

    def say_waiting(self) -> None:
        """Explain the effect of the first Ctrl-C, and of a second one."""
        self.say("Waiting for the results of the records that were sent; press Ctrl-C again to stop at once.")

    def fail(self, text: str) -> None:
        """Write the reason for the failure to standard error."""
        self.err.print(Text.assemble((f"{self.cross} ", "bold red"), text))

    def show_log(self, verbosity: int, *, without_v: int = logging.WARNING) -> None:
        """Show the library's log: INFO and above with -v, DEBUG and above with -vv, otherwise `without_v` and above."""
        log = logging.getLogger("aioproducer")
        log.setLevel([without_v, logging.INFO, logging.DEBUG][min(verbosity, 2)])
        log.addHandler(_ToScreen(self))
        log.propagate = False

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Show `text` with a spinner until the end of the block. Without a terminal, show nothing."""
        console = self.out if self.out.is_terminal and not self.as_json else self.err
        if not console.is_terminal or console.is_dumb_terminal:
            return nullcontext()
        return console.status(text)

    def flush(self) -> None:
        """Flush standard output and standard error.

        Raises:
            OSError: a stream cannot be written, for example because the disk is full.
        """
        for console, stream in ((self.out, sys.stdout), (self.err, sys.stderr)):
            try:
                if stream is not None:
                    stream.flush()
            except BrokenPipeError:
                console.on_broken_pipe()


class _ToScreen(logging.Handler):
    """Shows log records among the other messages, above the progress bar."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            self._screen.fail(text)
        elif record.levelno >= logging.WARNING:
            self._screen.warn(text)
        else:
            self._screen.say(f"{record.levelname.lower()}: {text}", "dim")
