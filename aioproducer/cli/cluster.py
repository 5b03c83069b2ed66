"""`aioproducer cluster`: the embedded cluster of `aioproducer.testing`, for trying things out."""

from __future__ import annotations

import argparse
import asyncio
import errno
from typing import Annotated

import typer

from aioproducer.cli import options
from aioproducer.cli.exits import CommandError, ExitCode, UsageError
from aioproducer.cli.running import finish
from aioproducer.cli.screen import Screen


def cluster(
    *,
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers.")] = 1,
    host: Annotated[str, typer.Option(help="The address to listen on and to advertise.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the first broker; the other brokers use the next ports. 0 selects free ports.",
        ),
    ] = 9092,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="NAME[:PARTITIONS]",
            help="A topic to create. Repeatable.",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, help="Number of partitions in topics that clients create.")
    ] = 1,
    versions: Annotated[
        str, typer.Option(metavar="RELEASE", help="Behave like this release of Kafka.")
    ] = "4.1",
    as_json: options.AsJson = False,
) -> None:
    """Run a Kafka-compatible cluster in this process until Ctrl-C. The cluster keeps all data in memory.

    The command prints the addresses when the cluster is ready.
    """
    screen = Screen(as_json=as_json)

    def command() -> ExitCode:
        from aioproducer.testing import __main__ as testing

        try:
            made = testing.cluster_of(
                argparse.Namespace(
                    brokers=brokers,
                    host=host,
                    port=port,
                    topic=[_topic(text) for text in topics or ()],
                    partitions=partitions,
                    versions=versions,
                    transaction_version=2,
                    stop_with_stdin=False,
                )
            )
        except ValueError as error:
            raise UsageError(str(error)) from error

        def announce(servers: str) -> None:
            screen.result(f"listening on {servers}")
            if as_json:
                screen.json({"bootstrap_servers": servers})
            screen.flush()

        try:
            asyncio.run(testing.serve(made, announce=announce))
        except OSError as error:
            advice = "; --port 0 chooses free ports" if error.errno == errno.EADDRINUSE else ""
            raise CommandError(f"{error}{advice}") from error
        return ExitCode.OK

    finish(screen, command)


def _topic(text: str) -> tuple[str, int]:
    name, sign, count = text.partition(":")
    if sign and not (count.isascii() and count.isdigit() and int(count)):
        raise UsageError(f"--topic {text}: PARTITIONS in NAME:PARTITIONS must be a whole number, at least 1")
    return name, int(count or 1)
