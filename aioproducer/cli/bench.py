"""`aioproducer bench`: reports the same figures as kafka-producer-perf-test, plus the CPU time per record."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Annotated

import typer

from aioproducer import CloseReport, KafkaError, Producer
from aioproducer.cli import options
from aioproducer.cli.closing import Closing
from aioproducer.cli.exits import ExitCode, UsageError
from aioproducer.cli.figures import Figures
from aioproducer.cli.running import execute
from aioproducer.cli.screen import Screen
from aioproducer.cli.settings import Given, new_producer
from aioproducer.cli.stop import Stop

MOST_SAMPLES = 100_000
"""The latency of every n-th record is measured, where n is max(1, records // MOST_SAMPLES). A run therefore has fewer
than 2 * MOST_SAMPLES samples."""
PERIOD = 5.0
"""Seconds between the lines that report the current rates."""


def bench(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    *,
    records: Annotated[
        int, typer.Option("-n", "--records", "--num-records", min=1, help="Number of records.")
    ] = 1_000_000,
    size: Annotated[
        int, typer.Option("-s", "--size", "--record-size", min=0, help="Size of each value in bytes.")
    ] = 1024,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            "--throughput",
            metavar="N",
            help="Send at most N records per second.",
            show_default=False,
        ),
    ] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option(
            "--payload-file",
            metavar="FILE",
            help="Use the lines of this file as values, in turn.",
            show_default=False,
        ),
    ] = None,
    servers: options.Servers = None,
    config: options.SettingsFile = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = 0,
) -> None:
    """Measure how fast records can be sent one by one, and print the figures of kafka-producer-perf-test.

    Each record is sent by its own call to send(), as an application would do. The latency
    is the time from send() to the acknowledgement. CPU is the processor time that this process uses per record.
    """
    given = Given(servers, config, tuple(settings or ()))
    del settings  # a traceback that shows locals must not show passwords
    screen = Screen(as_json=as_json)
    screen.show_log(verbose)

    async def command(stop: Stop) -> ExitCode:
        if rate is not None and not (rate > 0 or rate == -1):
            raise UsageError(f"--rate must be more than 0, not {rate:g}")
        values = _payloads(payload_file, size)
        producer = new_producer(given, screen)
        if producer.config.transactional_id is not None or producer.config.acks == 0:
            raise UsageError(
                "bench measures acknowledgements outside transactions; leave out acks=0 and transactional.id"
            )
        await stop.unless_stopped(producer.start())
        figures = Figures(lambda: producer.metrics().records_acked)
        run = _Run(producer, topic, values, figures, records)
        reporting = asyncio.create_task(_report(screen, figures), name="aioproducer bench report")

        def finish_soon() -> None:
            run.stop()
            screen.say_waiting()

        with stop.calling(finish_soon, run.closing.at_once):
            try:
                await run.send_all(None if rate == -1 else rate)
                report = await run.closing.wait()
                was_stopped = stop.count > 0
            finally:
                reporting.cancel()
        total = figures.total(report)
        screen.result(total.text())
        if run.problem:
            screen.fail(run.problem)
        code = _code(report, run, was_stopped=was_stopped)
        if as_json:
            screen.json(total.facts() | {"error": run.problem or None, "exit_code": int(code)})
        return code

    execute(screen, command)


def _code(report: CloseReport, run: _Run, *, was_stopped: bool) -> ExitCode:
    if was_stopped:
        return ExitCode.INTERRUPTED
    if report.unknown:
        return ExitCode.UNKNOWN
    return ExitCode.FAILED if report.failed or run.problem else ExitCode.OK


def _payloads(file: Path | None, size: int) -> list[bytes]:
    if file is None:
        return [os.urandom(size // 2).hex().encode().ljust(size, b"x")]
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--payload-file {file}: {error.strerror}") from error
    if not lines:
        raise UsageError(f"--payload-file {file}: the file is empty")
    return lines


class _Run:
    """Sends the records until all are sent, `stop()` is called, or `send` raises an error."""

    def __init__(
        self, producer: Producer, topic: str, values: list[bytes], figures: Figures, records: int
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._values = values
        self._figures = figures
        self._records = records
        self._is_stopped = asyncio.Event()
        self.closing = Closing(producer)
        self.problem = ""

    def stop(self) -> None:
        """Stop sending records."""
        self._is_stopped.set()

    async def send_all(self, rate: float | None) -> None:
        """Send the records, at most `rate` a second."""
        loop = asyncio.get_running_loop()
        step = max(1, self._records // MOST_SAMPLES)
        values = itertools.cycle(self._values)
        began = loop.time()
        try:
            for number in range(self._records):
                if self._is_stopped.is_set():
                    return
                if rate is not None and (pause := began + number / rate - loop.time()) > 0:
                    await self._pause(pause)
                value = next(values)
                sent_at = loop.time()
                delivery = await self._producer.send(self._topic, value)
                self._figures.sent(len(value))
                if number % step == 0:
                    delivery.add_done_callback(self._figures.done_since(sent_at, loop.time))
        except KafkaError as error:
            if not self.closing.has_begun:
                self.problem = str(error)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._is_stopped.wait(), seconds)
        except TimeoutError:
            return


async def _report(screen: Screen, figures: Figures) -> None:
    """Write a line of figures every PERIOD seconds."""
    while True:
        await asyncio.sleep(PERIOD)
        screen.result(figures.window())
