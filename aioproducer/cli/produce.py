"""`aioproducer produce`: sends records from files or from standard input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from aioproducer import Producer
from aioproducer.cli import options
from aioproducer.cli.columns import Columns
from aioproducer.cli.delivery import FeedDelivery, Target
from aioproducer.cli.exits import ExitCode, UsageError
from aioproducer.cli.failed_file import FailedFile
from aioproducer.cli.feed import Feed
from aioproducer.cli.formats import Format, Shape
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.lines import LineFormat
from aioproducer.cli.progress import shown_progress
from aioproducer.cli.report import Report
from aioproducer.cli.running import execute
from aioproducer.cli.screen import Screen
from aioproducer.cli.settings import Given, new_producer
from aioproducer.cli.source import open_sources
from aioproducer.cli.stop import Stop
from aioproducer.cli.transactions import TransactionalDelivery

IN_INPUT = "Input"
IN_COLUMNS = "Columns of JSON lines, CSV, Parquet and Arrow"
IN_RECORDS = "Records"
IN_DELIVERY = "Delivery"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|-", help="Files to send. Default: standard input.", show_default=False),
    ] = None,
    *,
    servers: options.Servers = None,
    config: options.SettingsFile = None,
    settings: options.Settings = None,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            "-f",
            help="Format of the input. Default: derived from the file name extension, or else lines. "
            "records: the format that --failed writes.",
            show_default=False,
            rich_help_panel=IN_INPUT,
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "-K",
            metavar="TEXT",
            help="Text between the key and the value in a line; \\t is a tab.",
            show_default=False,
            rich_help_panel=IN_INPUT,
        ),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option(
            "--null",
            metavar="TEXT",
            help="Text that stands for a null key or value.",
            show_default=False,
            rich_help_panel=IN_INPUT,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER",
            help="Separator between the columns of CSV. Default: a comma (a tab for .tsv).",
            show_default=False,
            rich_help_panel=IN_INPUT,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column to use as the key.", show_default=False, rich_help_panel=IN_COLUMNS
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column to use as the value. Default: all columns that no other option names, as a JSON object.",
            show_default=False,
            rich_help_panel=IN_COLUMNS,
        ),
    ] = None,
    header_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--header-column",
            metavar="COLUMN",
            help="Column to use as a header. Repeatable.",
            show_default=False,
            rich_help_panel=IN_COLUMNS,
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the time: milliseconds since 1970, or ISO 8601.",
            show_default=False,
            rich_help_panel=IN_COLUMNS,
        ),
    ] = None,
    partition_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the partition number.",
            show_default=False,
            rich_help_panel=IN_COLUMNS,
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="In the JSON value, also include the columns that other options name.",
            rich_help_panel=IN_COLUMNS,
        ),
    ] = False,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "-H",
            "--header",
            metavar="NAME=VALUE",
            help="Header for all records. Repeatable.",
            show_default=False,
            rich_help_panel=IN_RECORDS,
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partition",
            min=0,
            help="Partition for all records.",
            show_default=False,
            rich_help_panel=IN_RECORDS,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Send at most N records per second.",
            show_default=False,
            rich_help_panel=IN_DELIVERY,
        ),
    ] = None,
    transaction: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Send in transactions with this transactional id; each is committed after 10,000 records or 10 s.",
            show_default=False,
            rich_help_panel=IN_DELIVERY,
        ),
    ] = None,
    failed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write failed records to this file and continue. Without it, the first failed record ends the run.",
            show_default=False,
            rich_help_panel=IN_DELIVERY,
        ),
    ] = None,
    skip: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Skip the first N rows, to continue a run that ended early.",
            show_default=False,
            rich_help_panel=IN_INPUT,
        ),
    ] = 0,
    as_json: options.AsJson = False,
    verbose: options.Verbose = 0,
) -> None:
    """Send lines, JSON lines, CSV, Parquet or Arrow data, and wait until every record is acknowledged.

    If a run ends early, it prints the last row up to which everything is
    acknowledged (with --transaction, committed). --skip continues after it.
    Without --transaction this can create duplicates, because later records may already be in the log.
    """
    given = Given(servers, config, tuple(settings or ()))
    del settings  # a traceback that shows locals must not show passwords
    screen = Screen(as_json=as_json)
    screen.show_log(verbose)

    async def command(stop: Stop) -> ExitCode:
        shape = Shape(
            form,
            LineFormat(_unescaped(key_delimiter), None if null is None else null.encode()),
            Columns(key, value, tuple(header_columns or ()), timestamp, partition_column, keep),
            delimiter,
        )
        _check(rate, delimiter, partition, partition_column)
        target = Target(topic, partition, tuple(_headers(headers or [])), rate)
        sources = open_sources(list(files or []))
        shape.check(sources)
        fixed = {} if transaction is None else {"transactional_id": transaction}
        producer = new_producer(given, screen, **fixed)
        _check_acks(producer)
        saved = None if failed is None else FailedFile(failed)
        feed = Feed(sources, shape.reader, skip)
        return await _run(screen, stop, producer, feed, target, saved, skip)

    execute(screen, command)


async def _run(
    screen: Screen,
    stop: Stop,
    producer: Producer,
    feed: Feed,
    target: Target,
    failed: FailedFile | None,
    skip: int,
) -> ExitCode:
    await stop.unless_stopped(producer.start())
    ledger = Ledger(skip)
    kind = FeedDelivery if producer.config.transactional_id is None else TransactionalDelivery
    delivery = kind(producer, feed, target, ledger, failed)
    report = Report(screen, delivery, failed)

    def finish_soon() -> None:
        feed.stop()
        screen.say_waiting()

    feed.start()
    with stop.calling(finish_soon, delivery.give_up):
        async with shown_progress(screen, feed, ledger):
            await delivery.run()
        was_stopped = stop.count > 0
        await delivery.close()
    if failed is not None:
        failed.close()
    return report.write(was_interrupted=was_stopped)


def _check(
    rate: float | None, delimiter: str | None, partition: int | None, partition_column: str | None
) -> None:
    if rate is not None and not rate > 0:
        raise UsageError(f"--rate must be more than 0, not {rate:g}")
    if delimiter is not None and len(delimiter) != 1:
        raise UsageError("--delimiter must be a single character")
    if partition is not None and partition_column is not None:
        raise UsageError("--partition and --partition-column cannot be used together; keep one")


def _check_acks(producer: Producer) -> None:
    if producer.config.acks == 0:
        raise UsageError(
            "with acks=0, brokers send no acknowledgements, so no record could be reported as delivered; use acks=1 or "
            "acks=all"
        )


def _headers(given: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(f"-H {text}: a header must have the form NAME=VALUE")
        yield name, value.encode()


_ESCAPES = {"t": "\t", "n": "\n", "0": "\0", "\\": "\\"}


def _unescaped(text: str | None) -> bytes | None:
    """Return a delimiter as bytes; \\t is a tab, as with kcat."""
    if text is None:
        return None
    if not text:
        raise UsageError("-K must not be empty; give the text that separates key and value")
    return re.sub(r"\\([tn0\\])", lambda found: _ESCAPES[found[1]], text).encode()
