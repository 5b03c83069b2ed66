"""The commands of `aioproducer`."""

from __future__ import annotations

from typing import Annotated

import typer

from aioproducer import __version__
from aioproducer.cli.bench import bench
from aioproducer.cli.check import check
from aioproducer.cli.cluster import cluster
from aioproducer.cli.config import config
from aioproducer.cli.exits import ExitCode
from aioproducer.cli.info import info
from aioproducer.cli.produce import produce

app = typer.Typer(
    name="aioproducer",
    help="Send records to Apache Kafka, and find out why sending fails.",
    epilog="Exit codes: 0 delivered, 1 failed, 2 usage error, 3 outcome unknown, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


for command in (produce, check, config, bench, cluster, info):
    app.command()(command)


def run() -> ExitCode:
    """Run the command that sys.argv names and return its exit code."""
    try:
        app(prog_name="aioproducer")
    except SystemExit as end:
        return ExitCode(end.code) if isinstance(end.code, int) else ExitCode.FAILED
    return ExitCode.OK
