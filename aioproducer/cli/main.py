"""The entry point `aioproducer`: it says what to install if the extra `cli` is missing."""

from __future__ import annotations

import sys

from aioproducer.cli.exits import ExitCode

PACKAGES = ("typer", "rich")


def main() -> int:
    """Run the command of sys.argv and return the exit code."""
    try:
        try:
            from aioproducer.cli.app import run
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in PACKAGES:
                raise
            sys.stderr.write(
                f"The command aioproducer needs the package {package}, which is not installed: "
                "pip install 'aioproducer[cli]'\n"
            )
            return ExitCode.USAGE
        return run()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
