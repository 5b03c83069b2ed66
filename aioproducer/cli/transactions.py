"""Sends the rows from a feed in transactions. Only records of committed transactions count as delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from aioproducer import (
    CommitOutcomeUnknownError,
    KafkaError,
    Outcome,
    Receipt,
    TransactionAbortedError,
    TransactionError,
)
from aioproducer.cli.delivery import FeedDelivery
from aioproducer.cli.rows import InputRows

MOST_RECORDS = 10_000
LONGEST = 10.0
"""A transaction is committed after MOST_RECORDS records or LONGEST seconds, whichever comes first."""
MOST_COMMITS = 3
"""The maximum number of attempts to commit if no response arrives. Each attempt takes up to max_block_ms."""
PARTING = 2.0
"""The maximum number of seconds for aborting the open transaction after the second Ctrl-C."""


class TransactionalDelivery(FeedDelivery):
    """One run of `produce --transaction`."""

    _work: asyncio.Task[None] | None = None
    _is_committing = False

    async def run(self) -> None:
        """Send all rows and commit them."""
        self._parts: list[tuple[InputRows, Receipt | None]] = []
        self._count = 0
        """The number of records in the open transaction."""
        self._ends_at = 0.0
        """The loop time at which the open transaction is committed."""
        self._work = asyncio.create_task(self._send_all(), name="aioproducer transactions")
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._work.cancelled():
                raise
            unknown = self._is_committing
            self._fail_all(
                CommitOutcomeUnknownError("the command was stopped before the response to the commit arrived")
                if unknown
                else _aborted("the command was stopped before the commit")
            )

    def give_up(self) -> None:
        """End `run()` early; the records in the open transaction fail."""
        if self._work is not None:
            self._work.cancel()
        self._closing.at_once(PARTING)

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                rows = await self.feed.next(max(self._ends_at - loop.time(), 0) if self._parts else None)
            except TimeoutError:
                await self._commit()
                continue
            if rows is None:
                break
            async for part in self.parts(rows):
                if not await self._add(part):
                    break
        await self._commit()

    async def _add(self, rows: InputRows) -> bool:
        """Add rows to the transaction, and commit it whenever it is full. Return False if the run must end."""
        while len(rows) and not self.feed.is_stopped:
            room = MOST_RECORDS - self._count
            if not await self._send_within(rows.part(0, room)):
                return False
            rest = rows.part(room, len(rows)) if room < len(rows) else None
            if self._count >= MOST_RECORDS or asyncio.get_running_loop().time() >= self._ends_at:
                await self._commit()
            if rest is None:
                return True
            rows = rest
        if not len(rows):
            self._parts.append((rows, None))
        return True

    async def _send_within(self, rows: InputRows) -> bool:
        try:
            if not self._count:
                await self.producer.begin_transaction()
                self._ends_at = asyncio.get_running_loop().time() + LONGEST
            self._count += len(rows)
            receipt = await self.target.send(self.producer, rows)
        except KafkaError as error:
            if error.requires_abort:
                self._parts.append((rows, None))  # aborting the transaction also fails these rows
            else:
                self.stop_for(error)
            await self._abort(error)
            return not self.feed.is_stopped
        self._parts.append((rows, receipt))
        return True

    async def _commit(self) -> None:
        """Commit the open transaction if all its records were acknowledged, otherwise abort it."""
        if any([await _errors_of(receipt) for _, receipt in self._parts]):
            await self._abort(None)
            return
        try:
            if self._count:
                await self._commit_until_answered()
        except CommitOutcomeUnknownError as error:
            self.stop_for(error)
            self._fail_all(error)
            return
        except TransactionError as error:
            if error.requires_abort:
                await self._abort(error)
                return
            self.stop_for(error)
            self._fail_all(error)
            return
        self._count = 0
        parts, self._parts = self._parts, []
        for rows, _ in parts:
            self.enter(rows, {})

    async def _commit_until_answered(self) -> None:
        for attempt in range(1, MOST_COMMITS + 1):
            self._is_committing = True
            try:
                await self.producer.commit_transaction()
            except CommitOutcomeUnknownError:
                if attempt == MOST_COMMITS:
                    raise
                continue
            self._is_committing = False
            return

    async def _abort(self, error: BaseException | None) -> None:
        """Abort the open transaction. None of its records is delivered.

        Args:
            error: the reason; None if the reason is that a record failed.
        """
        errors = [await _errors_of(receipt) for _, receipt in self._parts]
        numbered = [
            (rows.numbers[index], one)
            for (rows, _), own in zip(self._parts, errors, strict=True)
            for index, one in own.items()
        ]
        row, cause = min(numbered, key=lambda entry: _is_consequence(entry[1]), default=(0, error))
        if row and cause is not None:
            self.ledger.note(row, cause)
        if self._count:
            try:
                await self.producer.abort_transaction()
            except KafkaError as failure:
                # The transaction stays uncommitted; the brokers abort it after its timeout.
                self.stop_for(failure)
        self._fail_all(_aborted(f"its transaction was aborted because of another record: {cause}"), errors)

    def _fail_all(self, error: BaseException, errors: Sequence[Mapping[int, BaseException]] = ()) -> None:
        """Enter all records in the open transaction as failed, each with its own error if it has one."""
        self._count = 0
        parts, self._parts = self._parts, []
        for number, (rows, _) in enumerate(parts):
            own = errors[number] if errors else {}
            self.enter(rows, {index: _final(own.get(index, error)) for index in range(len(rows))})


async def _errors_of(receipt: Receipt | None) -> dict[int, BaseException]:
    return {} if receipt is None else (await receipt.wait()).errors


def _aborted(text: str) -> TransactionAbortedError:
    return TransactionAbortedError(text, outcome=Outcome.NOT_PERSISTED)


def _final(error: BaseException) -> BaseException:
    """Return the final error of a record: its outcome is NOT_PERSISTED, unless the outcome of the commit is unknown."""
    if (
        isinstance(error, CommitOutcomeUnknownError)
        or getattr(error, "outcome", None) is Outcome.NOT_PERSISTED
    ):
        return error
    return _aborted(f"{error}; its transaction was aborted")


def _is_consequence(error: BaseException) -> bool:
    """Return whether a record failed only because another record in its transaction did."""
    causes = (error, getattr(error, "last_error", None))
    return any(isinstance(cause, TransactionError | TransactionAbortedError) for cause in causes)
