"""The `aioproducer` entry point. If the `cli` extra is not installed, an error names the missing package."""

from __future__ import annotations

import sys

from aioproducer.cli.exits import ExitCode

PACKAGES = ("typer", "rich")


def main() -> int:
    """Run the command that sys.argv names and return the exit code."""
    try:
        try:
            from aioproducer.cli.app import run
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in PACKAGES:
                raise
            sys.stderr.write(
                f"The aioproducer command requires the {package} package, which is not installed; run "
                "pip install 'aioproducer[cli]'\n"
            )
            return ExitCode.USAGE
        return run()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
