"""The exit codes of all commands, and the exceptions that end a command with one of them."""

from __future__ import annotations

from enum import IntEnum

from aioproducer import ConfigError, KafkaError, Outcome


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """An option, a setting or a file name is wrong; nothing was sent."""
    UNKNOWN = 3
    """The outcome of at least one record is unknown: it may be in the log."""
    INTERRUPTED = 130
    """The command was stopped by Ctrl-C or SIGTERM; shells report 130 for Ctrl-C."""


class CommandError(Exception):
    """Ends a command with a message for the user and an exit code."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code


class UsageError(CommandError):
    """An option, or a combination of options, is not valid."""

    def __init__(self, text: str) -> None:
        super().__init__(text, ExitCode.USAGE)


class Interrupted(CommandError):
    """Ends a command at once after Ctrl-C or SIGTERM."""

    def __init__(self) -> None:
        super().__init__("interrupted", ExitCode.INTERRUPTED)


def code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error that ended a command."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, ConfigError):
        return ExitCode.USAGE
    if isinstance(error, KafkaError) and getattr(error, "outcome", None) is Outcome.UNKNOWN:
        return ExitCode.UNKNOWN
    return ExitCode.FAILED
