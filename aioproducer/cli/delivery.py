"""Sends the rows from a feed without transactions, and enters their results in the ledger.

transactions.py does the same for `--transaction`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aioproducer import KafkaError, Producer, Receipt
from aioproducer.cli.closing import Closing
from aioproducer.cli.exits import ExitCode, code_of
from aioproducer.cli.failed_file import FailedFile
from aioproducer.cli.feed import Feed
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.rows import InputRows

STEPS_PER_SECOND = 20
"""With --rate, the number of parts into which each second's records are divided."""


@dataclass(frozen=True, slots=True)
class Target:
    """The topic, partition and headers that all records share, and the maximum rate."""

    topic: str
    partition: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    rate: float | None = None
    """The maximum number of records a second."""

    def complete(self, rows: InputRows) -> InputRows:
        """Return the rows with the shared partition and headers applied."""
        headers: Any = rows.headers
        if self.headers:
            own = [rows.record(index).headers or [] for index in range(len(rows))]
            headers = [[*some, *self.headers] for some in own]
        return replace(
            rows, headers=headers, partitions=rows.partitions if self.partition is None else self.partition
        )

    async def send(self, producer: Producer, rows: InputRows) -> Receipt:
        """Send rows, which must not be empty."""
        return await producer.send_many(
            self.topic,
            rows.values,
            keys=rows.keys,
            headers=rows.headers,
            timestamps=rows.timestamps,
            partitions=rows.partitions,
        )


class FeedDelivery:
    """One run of `produce`. `run()` returns once the results of all records that were sent are known."""

    def __init__(
        self, producer: Producer, feed: Feed, target: Target, ledger: Ledger, failed: FailedFile | None
    ) -> None:
        self.producer = producer
        self.feed = feed
        self.target = target
        self.ledger = ledger
        self.problem = ""
        """The reason why the run stopped before the end of the input; empty if it did not stop early, or if a failed
        record stopped it."""
        self.code = ExitCode.OK
        """The exit code for `problem`."""
        self._failed = failed
        self._next_at = 0.0
        """The earliest loop time at which the next records may be sent, with --rate."""
        self._sent: asyncio.Queue[tuple[InputRows, Receipt | None] | None] = asyncio.Queue()
        self._closing = Closing(producer)

    async def run(self) -> None:
        """Send all rows and wait for their results."""
        settling = asyncio.create_task(self._settle_all(), name="aioproducer results")
        try:
            while (rows := await self.feed.next()) is not None:
                async for part in self.parts(rows):
                    if not await self._send(part):
                        break
        finally:
            self._sent.put_nowait(None)
            await settling

    def give_up(self) -> None:
        """Fail the records whose results are not known yet, so that `run()` ends."""
        self._closing.at_once()

    async def close(self) -> None:
        """Close the producer."""
        await self._closing.wait()

    async def parts(self, rows: InputRows) -> AsyncIterator[InputRows]:
        """Yield the rows in parts, at the pace of --rate, until the feed is stopped."""
        rate = self.target.rate
        rows = self.target.complete(rows)
        size = len(rows) if rate is None else max(1, int(rate / STEPS_PER_SECOND))
        loop = asyncio.get_running_loop()
        for start in range(0, max(len(rows), 1), max(size, 1)):
            part = rows.part(start, start + size)
            if rate is not None:
                await self.feed.pause(self._next_at - loop.time())
                self._next_at = max(self._next_at, loop.time()) + len(part) / rate
            if self.feed.is_stopped:
                return
            yield part

    async def _send(self, rows: InputRows) -> bool:
        """Send rows. Return False if `send_many` raised an error, which ends the run."""
        if not len(rows):
            self._sent.put_nowait((rows, None))
            return True
        try:
            receipt = await self.target.send(self.producer, rows)
        except KafkaError as error:
            self.stop_for(error)
            return False
        self._sent.put_nowait((rows, receipt))
        return True

    async def _settle_all(self) -> None:
        while (sent := await self._sent.get()) is not None:
            rows, receipt = sent
            if receipt is not None:
                await receipt.wait()
            self.enter(rows, {} if receipt is None else receipt.errors)

    def enter(self, rows: InputRows, errors: Mapping[int, BaseException]) -> None:
        """Record the results of rows: write failed records to their file, then enter the results in the ledger."""
        saved = False
        if errors and self._failed is not None:
            try:
                self._failed.write(rows, errors)
                saved = True
            except OSError as error:
                self._failed_file_broke(error)
        self.ledger.settle(rows, errors, saved=saved)
        if self.ledger.has_gap:
            self.feed.stop()

    def _failed_file_broke(self, error: OSError) -> None:
        assert self._failed is not None
        self.problem = self.problem or f"--failed {self._failed.path} cannot be written: {error.strerror}"
        self.code = ExitCode.FAILED
        self._failed = None

    def stop_for(self, error: KafkaError) -> None:
        """End the run because of an error that is not limited to individual records."""
        self.feed.stop()
        if not self.problem and not self._closing.has_begun:
            self.problem, self.code = str(error), code_of(error)
