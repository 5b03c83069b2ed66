"""The report of a run: what was delivered, what was not, and how to continue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from aioproducer.cli.delivery import FeedDelivery
from aioproducer.cli.exits import ExitCode
from aioproducer.cli.failed_file import FailedFile
from aioproducer.cli.screen import Screen
from aioproducer.errors import counted


class Report:
    """The report of one run, created when the run begins and written when it has ended."""

    def __init__(self, screen: Screen, delivery: FeedDelivery, failed: FailedFile | None) -> None:
        self._screen = screen
        self._delivery = delivery
        self._failed = failed
        self._began = time.monotonic()
        self._skipped = delivery.ledger.through

    def write(self, *, was_interrupted: bool) -> ExitCode:
        """Write the report and return the exit code."""
        code = self._code(was_interrupted)
        if self._screen.as_json:
            self._screen.json(self._facts(code))
        for line, style in self._lines(code):
            self._screen.say(line, style)
        return code

    def _code(self, was_interrupted: bool) -> ExitCode:
        ledger, feed = self._delivery.ledger, self._delivery.feed
        if was_interrupted:
            return ExitCode.INTERRUPTED
        if ledger.unknown or self._delivery.code is ExitCode.UNKNOWN:
            return ExitCode.UNKNOWN
        if ledger.failed or feed.problem:
            return ExitCode.FAILED
        if self._skips_too_much():
            return ExitCode.USAGE
        return self._delivery.code

    def _skips_too_much(self) -> bool:
        rows = self._delivery.feed.rows_read
        return rows is not None and self._skipped > rows

    def _facts(self, code: ExitCode) -> dict[str, Any]:
        ledger = self._delivery.ledger
        return {
            "topic": self._delivery.target.topic,
            "delivered": ledger.delivered,
            "failed": ledger.failed,
            "unknown": ledger.unknown,
            "saved": ledger.saved,
            "acknowledged_through": ledger.through,
            "complete": self._is_complete(),
            "seconds": round(time.monotonic() - self._began, 3),
            "error": self._problem(),
            "exit_code": int(code),
        }

    def _is_complete(self) -> bool:
        """Whether the whole input was read and every record was delivered or saved."""
        feed, ledger = self._delivery.feed, self._delivery.ledger
        return not feed.problem and feed.rows_read is not None and ledger.through >= feed.rows_read

    def _problem(self) -> str | None:
        delivery = self._delivery
        if self._skips_too_much():
            return (
                f"--skip {self._skipped}: the input has only {counted(delivery.feed.rows_read or 0, 'row')}"
            )
        return delivery.problem or delivery.feed.problem or delivery.ledger.first_error or None

    def _lines(self, code: ExitCode) -> Iterator[tuple[str, str]]:
        """Yield the lines of the report, each with its style."""
        ledger, target = self._delivery.ledger, self._delivery.target
        seconds = time.monotonic() - self._began
        done = "committed" if self._is_transactional else "delivered"
        mark = self._screen.tick if code is ExitCode.OK else self._screen.cross
        yield (
            f"{mark} {_records(ledger.delivered)} {done} to {target.topic} in {seconds:.1f} s "
            f"({ledger.delivered / max(seconds, 0.001):,.0f}/s)",
            "green" if code is ExitCode.OK else "bold red",
        )
        if ledger.failed:
            yield f"  {_records(ledger.failed)} not {done}", ""
        if ledger.unknown:
            yield f"  {_records(ledger.unknown)} may or may not be in the log: the outcome is unknown", ""
        if problem := self._problem():
            yield f"  {problem}", ""
        if not self._is_complete() and not self._skips_too_much():
            yield from self._position(done)
        if ledger.saved:
            assert self._failed is not None
            yield (
                f"  {_records(ledger.saved)} in {self._failed.path}. To send them again: "
                f"aioproducer produce {target.topic} {self._failed.path} --format records",
                "",
            )

    def _position(self, done: str) -> Iterator[tuple[str, str]]:
        ledger = self._delivery.ledger
        also = f" or in {self._failed.path}" if self._failed is not None and ledger.saved else ""
        yield (
            f"  Every record up to row {ledger.through} is {done}{also}. To continue: --skip {ledger.through}",
            "",
        )
        if ledger.delivered_later or ledger.unknown:
            yield (
                "  Some later records are or may be in the log already, so continuing can create duplicates.",
                "",
            )

    @property
    def _is_transactional(self) -> bool:
        return self._delivery.producer.config.transactional_id is not None


def _records(count: int) -> str:
    return f"{count:,} " + ("record" if count == 1 else "records")
